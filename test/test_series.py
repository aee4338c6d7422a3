"""The project's own series on the real torch: woven, verified, applied, and its behaviour."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable
from xml.etree import ElementTree

import pytest

from overlay import operations
from overlay.demo import WANTED
from overlay.lint import lint_series
from overlay.runtime import copy_of, interpreter, site_packages
from overlay.series import load_series, own_series
from overlay.targets import find_target
from overlay.tree import ChangedTree
from overlay.weave import State, Weaver

ROOT = Path(__file__).parents[1]
NESTED = "test/distributed/fsdp/test_fsdp_nested_precision.py"
CONTAINERS = "test/distributed/fsdp/test_fsdp_input_containers.py"
SETTLED = "test/distributed/fsdp/test_fsdp_settled_inputs.py"
DTYPE_ERROR = "must have the same dtype"


def run(*command: object, code: int = 0) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def run_tests(
    python: Path, recorder: Path, report: Path, select: str = "", path: str = NESTED
) -> dict[str, str]:
    """The outcome of each of the series' tests ("passed", or what it says), run by an interpreter.

    ``recorder`` is a folder to import the series' helper from where torch does not have it.
    """
    environment = {**os.environ, "PYTHONPATH": str(recorder), "OMP_NUM_THREADS": "1"}
    options = ["-q", "-c", os.devnull, "--rootdir", report.parent, "-p", "no:cacheprovider"]
    options += ["-k", select, f"--junitxml={report}"]
    command = [python, "-m", "pytest", *options, ROOT / "torch_overlay" / path]
    subprocess.run(command, cwd=report.parent, env=environment, capture_output=True, check=False)
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        problems = [child for child in case if child.tag in ("failure", "error", "skipped")]
        text = "\n".join(f"{p.tag}: {p.get('message')}\n{p.text}" for p in problems)
        outcomes[str(case.get("name"))] = text or "passed"
    return outcomes


@pytest.fixture(scope="module")
def patched(stock_venv: Path) -> Iterator[Path]:
    """A copy of the stock torch with the series applied; the tests here only read it."""
    folder = copy_of(stock_venv, stock_venv.with_name(f"{stock_venv.name}-series-{os.getpid()}"))
    operations.apply(find_target(str(folder)), load_series(own_series()))
    yield folder
    shutil.rmtree(folder)


def test_every_prefix_is_sound(stock_venv: Path) -> None:
    """Each patch applies on those before it, and what they make holds."""
    target = find_target(str(stock_venv))
    series = load_series(own_series())
    selected = series.selected(target.version)
    for count in range(1, len(selected) + 1):
        prefix = type(series)(series.root, selected[:count])
        made = operations.plan(target, prefix)
        assert [state.state for state in made.standing.states] == [State.PENDING] * count
        assert made.report.findings == ()


def test_taking_it_back_in_memory_gives_the_stock_code(stock_venv: Path) -> None:
    def code(content: bytes) -> str:
        """All but the imports: what the series imports may be in use elsewhere, so it stays."""
        module = ast.parse(content)
        kept = [node for node in module.body if not isinstance(node, (ast.Import, ast.ImportFrom))]
        return ast.unparse(ast.Module(kept, []))

    target = find_target(str(stock_venv))
    selected = load_series(own_series()).selected(target.version)
    forward = Weaver(target.tree, target.carries)
    assert [forward.apply(patch) for patch in selected] == [True] * len(selected)
    woven = ChangedTree(target.tree, forward.changes())
    backward = Weaver(woven, target.carries)
    assert [backward.take_back(patch) for patch in reversed(selected)] == [True] * len(selected)
    for path, content in backward.changes().items():
        stock = target.tree.read(path)
        if stock is None or content is None:
            assert stock is None and content is None
        else:
            assert code(content) == code(stock) != code(woven.read(path) or b"")


def test_apply_and_revert_leave_the_wheel_as_it_was(
    torch_copy: Callable[[], Path], stock_torch: Path
) -> None:
    venv = torch_copy()
    site = site_packages(venv)

    def snapshot() -> dict[str, tuple[str, int]]:
        return {
            str(path.relative_to(site)): (
                hashlib.sha256(path.read_bytes()).hexdigest(),
                path.stat().st_mode,
            )
            for folder in ("torch/distributed", "torch/testing", "torch-*.dist-info")
            for start in site.glob(folder)
            for path in start.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.name != "lock"
        }

    before = snapshot()
    tool = [sys.executable, "-m", "overlay"]
    run(*tool, "apply", venv)
    status = json.loads(run(*tool, "status", "--json", interpreter(venv)))
    states = [patch["state"] for patch in status["patches"]]
    assert set(states) == {"applied", "not selected"} and states.count("applied") == 5
    left_out = [path for patch in status["patches"] for path in patch["left_out"]]
    assert left_out == [CONTAINERS, NESTED, SETTLED]
    assert snapshot() != before
    run(*tool, "revert", site)
    assert snapshot() == before
    # The copy shares its files with the original, which nobody wrote to.
    for path in before:
        if path.endswith(".py"):
            original = hashlib.sha256((stock_torch / path).read_bytes()).hexdigest()
            assert original == before[path][0]


@pytest.mark.parametrize(("path", "least"), [(NESTED, 15), (CONTAINERS, 40), (SETTLED, 6)])
def test_the_series_passes_its_own_tests(
    patched: Path, tmp_path: Path, path: str, least: int
) -> None:
    outcomes = run_tests(interpreter(patched), tmp_path, tmp_path / "report.xml", path=path)
    assert len(outcomes) >= least
    assert {name: text for name, text in outcomes.items() if text != "passed"} == {}


def test_the_stock_torch_fails_them(stock_venv: Path, tmp_path: Path) -> None:
    """Without the series its tests fail, and those of nested precisions with the dtype error."""
    recorder = tmp_path / "recorder" / "sitecustomize.py"
    recorder.parent.mkdir()
    folder = ROOT / "torch_overlay" / "torch" / "testing" / "_internal"
    recorder.write_text(
        f"import torch.testing._internal as p\np.__path__.append({str(folder)!r})\n"
    )
    cases = "test_nested_bf16 or test_low_precision_root or test_one_forward_dtype"
    python = interpreter(stock_venv)
    outcomes = run_tests(python, recorder.parent, tmp_path / "report.xml", cases)
    # Where the wrappers agree, stock is right: that test must tell the two apart.
    assert outcomes.pop("test_one_forward_dtype_casts_nothing") == "passed"
    assert set(outcomes) == {"test_nested_bf16", "test_low_precision_root"}
    assert all(DTYPE_ERROR in text for text in outcomes.values())


def test_the_readmes_patch_is_a_whole_one(stock_venv: Path, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    patch = re.search(r"^```diff\n(.*?)^```$", text, re.M | re.S)
    assert patch
    for path, content in {
        "patches/series": "readme.apatch\n",
        "patches/readme.apatch": patch[1],
        "torch_overlay/torch/distributed/fsdp/_precision_log.py": "def log_precision(state): ...\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert lint_series(tmp_path) == []
    made = operations.plan(find_target(str(stock_venv)), load_series(tmp_path))
    assert len(made.writes) == 3


def test_demo(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "overlay", "demo", "--json"]
    shown = json.loads(run(*command))
    assert shown["ok"]
    assert DTYPE_ERROR in shown["before"]["error"]
    assert shown["before"]["rows"][-1]["received"] == "float32"
    assert {row["module"] for row in shown["after"]["rows"]} == set(WANTED)
    # A series that changes nothing of it must not pass for one that works.
    series = tmp_path / "series"
    (series / "patches").mkdir(parents=True)
    (series / "torch_overlay" / "torch").mkdir(parents=True)
    (series / "torch_overlay" / "torch" / "unrelated.py").write_text("VALUE = 1\n")
    (series / "patches" / "series").write_text("unrelated.apatch\n")
    (series / "patches" / "unrelated.apatch").write_text(
        "Subject: Unrelated\n\nWhy.\n\nAdds: torch/unrelated.py\n---\n"
    )
    command = [sys.executable, "-m", "overlay", "--series", series, "demo", "--json"]
    shown = json.loads(run(*command, code=1))
    assert shown["before"]["as_expected"] and not shown["after"]["as_expected"]
