"""Python interpreters on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

from overlay.bases.errors import BaseError

_PROBE = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"


def find_python(pythons: Sequence[str], last_resorts: Sequence[str] = ()) -> Path:
    """An interpreter of one of these versions that can make virtual environments.

    ``TORCH_OVERLAY_PYTHON`` names another one. Else it is the running one if it is of ``pythons``
    or if that is empty, or the first that is found on the PATH or in pyenv's or uv's folders.
    """
    named = os.environ.get("TORCH_OVERLAY_PYTHON")
    if named:
        found = shutil.which(os.path.expanduser(named))
        if found is None or _version(Path(found)) is None:
            raise BaseError(
                f"TORCH_OVERLAY_PYTHON={named} is no Python that can make a virtual environment"
            )
        return Path(found)
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not pythons or running in pythons:
        return Path(sys.executable)
    for version in (*pythons, *last_resorts):
        for candidate in _candidates(version):
            if _version(candidate) == version:
                return candidate
    wanted = ", ".join([*pythons, *last_resorts])
    raise BaseError(
        f"there is no Python of a fitting version here ({wanted}): install one, or name one in"
        " TORCH_OVERLAY_PYTHON"
    )


def _candidates(version: str) -> Iterator[Path]:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        yield Path(sys.executable)
    # Earlier ones on the PATH may be pyenv's shims of versions that are switched off.
    for folder in os.get_exec_path():
        yield Path(folder, f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    uv = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "uv"
    yield from sorted(uv.glob(f"python/cpython-{version}.*/bin/python{version}"))


def _version(python: Path) -> Optional[str]:
    if not os.access(python, os.X_OK):
        return None
    try:
        answer = subprocess.run(
            [python, "-I", "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
