"""What upstream's tests run on: built once, rebuilt when the series changes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from overlay.bases import find_base
from overlay.errors import PatchError
from overlay.runtime import site_packages
from overlay.series import load_series
from overlay.upstream import halves
from overlay.upstream.halves import Halves, prepare
from upstream_world import BASE, World


@pytest.fixture
def needs(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files without which FSDP cannot be imported, instead of really importing it."""
    monkeypatch.setenv("TORCH_OVERLAY_CACHE", str(world.folder))
    monkeypatch.setenv("TORCH_OVERLAY_PYTHON", sys.executable)
    files: list[str] = []

    def probe(venv: Path) -> dict[str, Any]:
        absent = [file for file in files if not (site_packages(venv) / file).is_file()]
        error = f"ImportError: {absent[0]}" if absent else ""
        return {"torch": "2.13.0", "python": "3.11.0", "error": error}

    monkeypatch.setattr(halves, "_probe", probe)
    return files


def made(world: World, told: list[str]) -> Halves:
    return prepare(find_base(BASE), load_series(world.folder / "series"), told.append)


def test_halves_are_built_once_and_rebuilt_with_the_series(world: World, needs: list[str]) -> None:
    told: list[str] = []
    one = made(world, told)
    assert (one.before.name, one.before.patches) == ("stock", ())
    assert (one.after.name, one.after.patches) == ("with the series", ("marker.apatch",))
    own = "test/distributed/fsdp/test_own.py"
    small = "test/distributed/fsdp/test_small.py"
    assert (one.own_tests, one.related) == ((own,), (small, own))
    assert not (one.before.tree / own).exists() and (one.after.tree / own).is_file()
    assert (one.after.tree / small).read_bytes() == (one.before.tree / small).read_bytes()
    assert (site_packages(one.after.venv) / "torch/overlay_marker.py").is_file()
    assert not (site_packages(one.before.venv) / "torch/overlay_marker.py").exists()

    count = len(told)
    assert made(world, told) == one and len(told) == count
    world.series("Tests: test/distributed/fsdp/test_small.py\n", "ADDED = 2\n")
    two = made(world, told)
    assert len(told) > count
    assert two.before == one.before and two.before_key == one.before_key
    assert two.after.venv != one.after.venv and two.tree != one.tree


def test_where_stock_cannot_import_fsdp_the_fewest_patches_do_it(
    world: World, needs: list[str]
) -> None:
    for name in ("second", "third"):
        world.add_patch(name, f"torch/overlay_{name}.py")
    needs.append("torch/overlay_second.py")
    found = made(world, [])
    assert found.before.name == "stock, importing by marker, second alone"
    assert found.before.patches == ("marker.apatch", "second.apatch")
    torch = site_packages(found.before.venv) / "torch"
    assert (torch / "overlay_second.py").is_file() and not (torch / "overlay_third.py").exists()
    assert len(found.after.patches) == 3


def test_a_series_that_breaks_the_import_is_refused(world: World, needs: list[str]) -> None:
    needs.append("torch/overlay_never.py")
    with pytest.raises(PatchError, match="cannot be imported with the series"):
        made(world, [])
