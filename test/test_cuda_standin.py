"""The stand-in for CUDA, on the stock torch in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECKS = HERE / "cuda_standin_checks.py"
NAMES = re.findall(r"^@check\ndef (\w+)", CHECKS.read_text(), re.M)
INSIDE = HERE.parent / "tools/overlay/upstream/inside"


def run(python: Path, *arguments: object, devices: int, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(INSIDE), "OMP_NUM_THREADS": "1"}
    environment["TORCH_OVERLAY_CUDA_STANDIN"] = str(devices or "")
    environment["TMPDIR"] = str(cwd)
    command = [str(python), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(stock_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return json.loads(run(stock_python, CHECKS, devices=2, cwd=tmp_path_factory.mktemp("checks")))


@pytest.mark.parametrize("name", NAMES)
def test_holds(results: dict[str, str], name: str) -> None:
    assert results[name] == ""


def test_computes_what_the_cpu_does(stock_python: Path, tmp_path: Path) -> None:
    """Bit for bit, with nested FSDP on two ranks."""
    training = HERE / "cuda_standin_training.py"
    plain, standin = (
        json.loads(run(stock_python, training, devices=devices, cwd=tmp_path)) for devices in (0, 2)
    )
    assert (plain["cuda"], standin["cuda"]) == (False, True)
    assert standin["ranks"] == plain["ranks"]
