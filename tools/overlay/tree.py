"""Trees of files as plain values: what weaving and verifying read.

Paths are relative, with forward slashes, as they stand in PyTorch's source tree
(``torch/distributed/utils.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Optional, Protocol


class Tree(Protocol):
    """Something that files can be read from."""

    def read(self, path: str) -> Optional[bytes]:
        """The content of a file, or None if there is no such file."""

    def python_files(self) -> Iterator[str]:
        """The paths of all Python files under ``torch/``, sorted."""


@dataclass(frozen=True)
class MemoryTree:
    """A tree held in memory."""

    files: Mapping[str, bytes]

    def read(self, path: str) -> Optional[bytes]:
        return self.files.get(path)

    def python_files(self) -> Iterator[str]:
        return iter(sorted(p for p in self.files if p.startswith("torch/") and p.endswith(".py")))


@dataclass(frozen=True)
class ChangedTree:
    """A tree with changes laid over it; None stands for a removed file."""

    base: Tree
    changes: Mapping[str, Optional[bytes]]

    def read(self, path: str) -> Optional[bytes]:
        return self.changes[path] if path in self.changes else self.base.read(path)

    def python_files(self) -> Iterator[str]:
        paths = set(self.base.python_files())
        for path, content in self.changes.items():
            if path.startswith("torch/") and path.endswith(".py"):
                (paths.discard if content is None else paths.add)(path)
        return iter(sorted(paths))
