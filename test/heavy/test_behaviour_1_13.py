"""The series' behaviour on the real torch 1.13.1, on two ranks on the CPU.

It takes FSDP's own code, with the stand-in for CUDA. Its torch is a download of three gigabytes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from overlay import operations
from overlay.bases.pythons import find_python
from overlay.runtime import copy_of, interpreter, torch_venv
from overlay.series import Series, load_series, own_series
from overlay.targets import find_target

VERSION = "1.13.1"
HERE = Path(__file__).parent
INSIDE = HERE.parents[1] / "tools/overlay/upstream/inside"
TESTS = HERE.parents[1] / "torch_overlay/test/distributed/fsdp/test_fsdp_forward_inputs.py"
PATCHES = load_series(own_series()).selected(VERSION)
FP32, BF16 = ["float32"], ["bfloat16"]
PASSES = {"input's gradient": "float32", "c1 learns": True}

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="session")
def stock() -> Path:
    """An environment with torch 1.13.1, on Python 3.11 where there is one."""
    # Newer packages break its compiled code and the collection of its tests.
    packages = ("numpy<2", "pytest<8.2", "expecttest")
    python = find_python(("3.11", "3.10", "3.9", "3.8"))
    return torch_venv(VERSION, packages=packages, python=python)


@pytest.fixture(scope="session", params=range(1, len(PATCHES) + 1))
def patched(stock: Path, request: pytest.FixtureRequest) -> Iterator[tuple[int, Path]]:
    """How many patches, and a copy of the environment that has them."""
    count = request.param
    folder = stock.with_name(f"{stock.name}-{count}-{os.getpid()}")
    series = Series(own_series(), PATCHES[:count])
    operations.apply(find_target(str(copy_of(stock, folder))), series)
    yield count, folder
    shutil.rmtree(folder)


def run(venv: Path, *arguments: object, standin: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = str(INSIDE)
    environment["TORCH_OVERLAY_CUDA_STANDIN"] = "2" if standin else ""
    command = [str(interpreter(venv)), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_stock_imports_up_to_python_3_10(stock: Path) -> None:
    code = "import sys, torch; print(sys.version_info >= (3, 11)); import torch.distributed.fsdp"
    done = run(stock, "-c", code, standin=False)
    if done.stdout.startswith("True"):
        assert "mutable default" in done.stderr and done.returncode
    else:
        assert done.returncode == 0, done.stderr


def expected(count: int) -> dict[str, Any]:
    """What the first patches make of each case."""
    learns = {"input's gradient": None, "c1 learns": True} if count == 1 else PASSES
    every = count >= 3
    y_is_cast = count in (3, 4)
    nested = {"root": FP32, "c1": FP32, "c2": BF16, **PASSES}
    return {
        "nested bf16": nested if every else "dtype error",
        "bf16 over fp32": (
            {"root": BF16, "c1": BF16, "c2": FP32, **PASSES} if count >= 5 else "dtype error"
        ),
        "external": {
            "root": BF16, "c1": BF16, "c2": [*BF16, *(BF16 if y_is_cast else FP32)], **learns,
        },
        "left alone": "dtype error" if count >= 4 else None,
        "nothing": [2.0] * 4 if every else "index error",
    }  # fmt: skip


def test_rows_of_every_prefix(patched: tuple[int, Path], tmp_path: Path) -> None:
    count, venv = patched
    out = tmp_path / "rows.json"
    done = run(venv, HERE / "rows_1_13.py", out)
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text()) == expected(count)


def test_the_series_passes_its_own_tests(patched: tuple[int, Path], tmp_path: Path) -> None:
    count, venv = patched
    report = tmp_path / "report.xml"
    options = ["-q", "-c", os.devnull, "--rootdir", tmp_path, "-p", "no:cacheprovider"]
    run(venv, "-m", "pytest", *options, f"--junitxml={report}", TESTS)
    cases = list(ElementTree.parse(report).iter("testcase"))
    outcomes = {
        str(case.get("name")): "\n".join(f"{p.tag}: {p.get('message')}\n{p.text}" for p in case)
        for case in cases
    }
    if count < len(PATCHES):
        # What they import comes with the later patches.
        assert len(outcomes) == 1 and "ImportError" in next(iter(outcomes.values()))
    else:
        assert len(outcomes) >= 14
        assert {name: text for name, text in outcomes.items() if text} == {}
