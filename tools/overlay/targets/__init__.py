"""Targets: where torch's files are, and how they are changed safely."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Optional

from overlay.errors import TargetError, UsageError
from overlay.targets import probe
from overlay.targets.base import AppliedPatch, FileRecord, Record, Target
from overlay.targets.checkout import Checkout
from overlay.targets.compiling import run_python
from overlay.targets.installed import Installed
from overlay.targets.sourcetree import SourceTree

__all__ = [
    "AppliedPatch",
    "Checkout",
    "FileRecord",
    "Installed",
    "Record",
    "SourceTree",
    "Target",
    "find_target",
]

_KINDS = (
    "a venv, an interpreter, a site-packages folder that holds torch/,"
    " or a PyTorch source tree that holds torch/ and version.txt"
)


def find_target(where: Optional[str], commits: bool = True) -> Target:
    """The torch at ``where``: a venv, an interpreter, a site-packages folder or a source tree.

    None stands for the running interpreter's torch. Torch itself is not imported. A source tree
    that is a git work tree is a checkout, unless ``commits`` is False or files in it were
    changed without commits before.
    """
    if where is None:
        return _of_interpreter(Path(sys.executable), probe.torch_init())
    if not where:
        raise UsageError("the target's name is empty: leave it out, or name one")
    path = Path(os.path.abspath(where))
    if path.is_file():
        return _probe(path)
    if not path.is_dir():
        raise UsageError(f"{where}: no such file or folder; a target is {_KINDS}")
    if (path / "torch").is_dir():
        if (path / "version.txt").is_file():
            tree = SourceTree(path.resolve())
            return Checkout(tree.root) if commits and tree.takes_commits else tree
        if (path / "torch" / "version.py").is_file():
            return Installed(path.resolve())
    for name in ("bin/python", "bin/python3", "Scripts/python.exe"):
        if (path / name).exists():
            return _probe(path / name)
    if all((path / name).exists() for name in ("HEAD", "objects", "refs")):
        raise UsageError(
            f"{where} is a bare git repository: name a work tree of it"
            " ('git worktree add' makes one)"
        )
    raise UsageError(f"{where}: found no torch here; a target is {_KINDS}")


def _probe(python: Path) -> Target:
    answer = run_python(str(python), ["-c", Path(probe.__file__).read_text(encoding="utf-8")])
    try:
        init = json.loads(answer)
        if not isinstance(init, (str, type(None))):
            raise ValueError(answer)
    except ValueError as error:
        raise TargetError(f"{python} is not a Python interpreter") from error
    return _of_interpreter(python, init)


def _of_interpreter(python: Path, init: Optional[str]) -> Target:
    if init is None:
        raise TargetError(f"{python} has no torch: install it there, or name another target")
    root = Path(init).parent.parent.resolve()
    if (root / "version.txt").is_file():
        raise TargetError(
            f"the torch of {python} is not installed but the source tree {root}:"
            " name that folder instead"
        )
    return Installed(root, python)
