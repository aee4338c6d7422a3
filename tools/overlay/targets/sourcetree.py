"""A PyTorch source tree, in git or not."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Optional

from overlay.targets.base import Record, Target
from overlay.targets.compiling import compile_errors


class SourceTree(Target):
    """A folder that holds torch/, test/ and version.txt."""

    kind = "tree"
    _state = ".torch-overlay"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.version = (root / "version.txt").read_text("utf-8", "replace").strip()

    @property
    def in_git(self) -> bool:
        """Whether it is a git work tree of its own; in a submodule .git is a file."""
        return (self.root / ".git").exists()

    @property
    def takes_commits(self) -> bool:
        """Whether patches become commits here: not while files are changed without them."""
        return self.in_git and self.record() is None and not self.interrupted

    def carries(self, path: str) -> bool:
        return path.startswith(("torch/", "test/"))

    def refusal(self) -> Optional[str]:
        return None

    def is_pristine(self, path: str) -> bool:
        """Always False: nothing in a source tree proves it."""
        return False

    def local_changes(self, paths: Iterable[str]) -> list[str]:
        """Files that were edited after this tool wrote them; before that, editing is normal."""
        edited = self.edited_since()
        return [path for path in paths if path in edited]

    def compile_errors(self, files: Mapping[str, bytes]) -> list[tuple[str, int, str]]:
        return compile_errors(files, sys.executable, self._oldest_python())

    def _oldest_python(self) -> Optional[tuple[int, int]]:
        """The oldest Python that the tree says it supports."""
        for name, pattern in (
            ("pyproject.toml", r'^requires-python\s*=\s*"\s*>=\s*(\d+)\.(\d+)'),
            ("setup.py", r"^python_min_version\s*=\s*\(\s*(\d+)\s*,\s*(\d+)"),
        ):
            content = self.tree.read(name)
            found = content and re.search(pattern, content.decode("utf-8", "replace"), re.M)
            if found:
                return int(found[1]), int(found[2])
        return None

    def _own_files(self, record: Record, state: Mapping[str, bytes]) -> dict[str, bytes]:
        return {f"{self._state}/.gitignore": b"*\n"}

    def _present_state(self) -> list[str]:
        return [*super()._present_state(), f"{self._state}/.gitignore"]

    def _reinstall(self) -> str:
        return (
            "put the file back to what this tool wrote, or restore the source tree and remove"
            f" {self.root / self._state}"
        )
