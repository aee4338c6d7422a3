from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest
from hypothesis import settings

from overlay import runtime
from upstream_world import World

# What the runner of upstream's tests is tried on: files that crash, hang and fail.
collect_ignore = ["upstream_files"]

# The same examples on every machine; pytest --hypothesis-profile=search looks for new ones.
settings.register_profile("default", derandomize=True, deadline=None, database=None)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile("default")


@pytest.fixture(scope="session")
def stock_venv() -> Path:
    """A virtual environment with an unchanged torch; other runs use it too: leave it as it is."""
    return runtime.torch_venv(packages=runtime.TEST_PACKAGES)


@pytest.fixture(scope="session")
def stock_torch(stock_venv: Path) -> Path:
    """The site-packages folder of the unchanged torch."""
    return runtime.site_packages(stock_venv)


@pytest.fixture(scope="session")
def stock_python(stock_venv: Path) -> Path:
    """The interpreter of the unchanged torch."""
    return runtime.interpreter(stock_venv)


@pytest.fixture
def torch_copy(stock_venv: Path) -> Iterator[Callable[[], Path]]:
    """Makes virtual environments whose torch a test may patch, by replacing files.

    They lie beside the original, since hard links do not cross file systems.
    """
    folder = Path(tempfile.mkdtemp(prefix="test-", dir=stock_venv.parent))

    def make() -> Path:
        return runtime.copy_of(stock_venv, Path(tempfile.mkdtemp(dir=folder)) / "venv")

    yield make
    shutil.rmtree(folder)


@pytest.fixture
def world(stock_venv: Path) -> Iterator[World]:
    # Hard links do not cross file systems, so it lies beside the stock environment.
    folder = Path(tempfile.mkdtemp(prefix="test-", dir=stock_venv.parent))
    yield World(folder, stock_venv)
    shutil.rmtree(folder)
