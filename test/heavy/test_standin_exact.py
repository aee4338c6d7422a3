"""The CUDA stand-in computes what the CPU does on torch 2.6.0, too: a download of three gigabytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.bases import fetch_runtime, find_base
from overlay.runtime import interpreter
from test_cuda_standin import test_computes_what_the_cpu_does  # noqa: F401

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def stock_python() -> Path:
    """The interpreter of the base, in place of that of the default torch."""
    return interpreter(fetch_runtime(find_base("v2.6.0")))
