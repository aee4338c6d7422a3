"""The GPU check on a machine that has none: it must say so, and never pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SMOKE = Path(__file__).parents[1] / "tools" / "gpu_smoke.sh"


def smoke(folder: Path, nvidia_smi: str, torch_python: Path) -> tuple[int, str]:
    """Its status and what it says with this nvidia-smi."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{nvidia_smi}\n")
    tool.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "TOOL_PYTHON": sys.executable,
        "TORCH_PYTHON": str(torch_python),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run([SMOKE], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize("nvidia_smi", ["exit 9", "echo No devices found"])
def test_no_gpu(tmp_path: Path, stock_python: Path, nvidia_smi: str) -> None:
    assert smoke(tmp_path, nvidia_smi, stock_python) == (
        2,
        "gpu_smoke: no GPU: nvidia-smi lists none on this machine\n",
    )


def test_no_gpu_for_torch(tmp_path: Path, stock_python: Path) -> None:
    assert smoke(tmp_path, "echo 'GPU 0: Some GPU'", stock_python) == (
        2,
        f"gpu_smoke: no GPU: the torch of {stock_python} sees none\n",
    )


def test_no_torch(tmp_path: Path) -> None:
    status, said = smoke(tmp_path, "echo 'GPU 0: Some GPU'", Path("/bin/false"))
    assert (status, said) == (2, "gpu_smoke: /bin/false cannot import torch\n")
