"""The demo: a model that fails on the stock torch and works with the series."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from filelock import FileLock

from overlay import operations, runtime
from overlay.errors import OverlayError, TargetError
from overlay.series import Series
from overlay.targets import find_target

MODEL = Path(__file__).with_name("demo_model.py")
MODEL_TIMEOUT_SECONDS = 150
LINES_SHOWN = 10
DTYPE_ERROR = "mat1 and mat2 must have the same dtype"

FULL = {"parameters": "float32", "received": "float32", "gradient": "float32"}
# FSDP keeps a wrapper's gradients in the dtype of its sharded parameters.
LOW = {"parameters": "bfloat16", "received": "bfloat16", "gradient": "float32"}
WANTED = {"root": FULL, "c1": FULL, "c2": LOW}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Half:
    """One run of the model: its rows, and why it failed if it did."""

    torch: str
    rows: Sequence[dict[str, Any]]
    error: Optional[str]
    as_expected: bool


@dataclass(frozen=True)
class Demo:
    """Both runs, and the patched torch that the second one used."""

    before: Half
    after: Half
    patched: Path
    files: Sequence[str]

    @property
    def as_expected(self) -> bool:
        """Whether the stock torch failed as it must and the patched one worked as it must."""
        return self.before.as_expected and self.after.as_expected


def run_demo(series: Series, say: Say) -> Demo:
    """Run the model on a stock torch, apply the series to a copy of it, and run it there.

    ``say`` is told each step. Raises OverlayError if a step cannot be done.
    """
    stock = runtime.torch_venv(progress=say, packages=runtime.TEST_PACKAGES)
    version = runtime.DEFAULT_TORCH
    say(f"running the model on the stock torch {version}, 2 gloo ranks on the CPU")
    before = _run_model(stock, _failed_as_expected, say)
    folder = stock.with_name(stock.name + "-demo")
    # Two demos at once take turns with the one patched copy.
    with FileLock(f"{folder}.lock"):
        say("applying the series to a copy of it")
        patched = runtime.copy_of(stock, folder)
        made = operations.apply(find_target(str(patched)), series)
        say("running the model on the patched copy")
        after = _run_model(patched, _worked_as_expected, say)
    return Demo(before, after, patched, list(made.writes))


def _run_model(venv: Path, as_expected: Callable[[dict[str, Any]], bool], say: Say) -> Half:
    started = time.monotonic()
    try:
        done = subprocess.run(
            [str(runtime.interpreter(venv)), "-I", str(MODEL)],
            capture_output=True,
            text=True,
            timeout=MODEL_TIMEOUT_SECONDS,
            check=False,
        )
        report = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        waited = time.monotonic() - started
        raise TargetError(f"the model in {venv} did not end within {waited:.0f} s") from None
    except json.JSONDecodeError:
        raise OverlayError(
            f"the model in {venv} gave no report (exit code {done.returncode})",
            done.stderr.splitlines()[-LINES_SHOWN:],
        ) from None
    half = Half(str(report["torch"]), report["rows"], report["error"], as_expected(report))
    if not half.as_expected:
        for line in done.stderr.splitlines()[-LINES_SHOWN:]:
            say(line)
    return half


def _failed_as_expected(report: dict[str, Any]) -> bool:
    return not report["ok"] and DTYPE_ERROR in str(report["error"])


def _worked_as_expected(report: dict[str, Any]) -> bool:
    rows = {row["module"]: {key: row[key] for key in FULL} for row in report["rows"]}
    return bool(report["ok"]) and rows == WANTED
