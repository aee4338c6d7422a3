"""The files of a commit, read from git's objects."""

from __future__ import annotations

import os
import subprocess
import weakref
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple, Optional

from overlay.errors import TargetError
from overlay.git import Git, no_git


class Blob(NamedTuple):
    """A file of a commit: its mode and the object that holds its content."""

    mode: str
    oid: str

    @property
    def is_file(self) -> bool:
        """Whether it is a file, and not a link or a submodule."""
        return self.mode.startswith("100")


class Blobs:
    """Reads objects through one git process, which ends with this object."""

    def __init__(self, git: Git) -> None:
        self._git = git
        self._process: Optional[subprocess.Popen[bytes]] = None

    def read(self, oid: str) -> bytes:
        """The content of an object."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{oid}\n".encode())
        process.stdin.flush()
        head = process.stdout.readline().split()
        if len(head) != 3:
            raise TargetError(
                f"{self._git.folder}: git has no object {oid}: fetch it, or run 'git fsck'"
            )
        content = process.stdout.read(int(head[2]) + 1)
        return content[:-1]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            try:
                self._process = subprocess.Popen(
                    self._git.command("cat-file", "--batch"),
                    cwd=self._git.folder,
                    env=self._git.environ(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except FileNotFoundError:
                raise no_git() from None
            weakref.finalize(self, _end, self._process)
        return self._process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


class GitTree:
    """The files of one commit."""

    def __init__(self, git: Git, commit: str, blobs: Blobs) -> None:
        self.commit = commit
        self._git = git
        self._blobs = blobs

    @cached_property
    def files(self) -> dict[str, Blob]:
        """All entries by path."""
        listing = self._git.run("ls-tree", "-r", "-z", "--full-tree", self.commit)
        found = {}
        for entry in listing.split(b"\0")[:-1]:
            head, path = entry.split(b"\t", 1)
            mode, _, oid = head.decode().split()
            found[os.fsdecode(path)] = Blob(mode, oid)
        return found

    def mode_of(self, path: str) -> str:
        """The mode of a file that is there."""
        return self.files[path].mode

    def read(self, path: str) -> Optional[bytes]:
        blob = self.files.get(path)
        return self._blobs.read(blob.oid) if blob and blob.is_file else None

    def python_files(self) -> Iterator[str]:
        self._fetch_missing()
        return iter(
            sorted(
                path
                for path, blob in self.files.items()
                if path.startswith("torch/") and path.endswith(".py") and blob.is_file
            )
        )

    def _fetch_missing(self) -> None:
        """In a partial clone, get at once what would else be fetched file by file."""
        promisors = self._git.found("config", "--name-only", "--get-regexp", r"\.promisor$")
        if not promisors:
            return
        remote = promisors.splitlines()[0][len("remote.") : -len(".promisor")]
        folder = f"{self.commit}:torch"
        listed = self._git.run("rev-list", "--objects", "--missing=print", "--no-walk", folder)
        missing = [line[1:] for line in listed.splitlines() if line.startswith(b"?")]
        if missing:
            self._git.run(
                *("-c", "fetch.negotiationAlgorithm=noop", "fetch", "--quiet", "--no-tags"),
                *("--no-write-fetch-head", "--recurse-submodules=no", "--filter=blob:none"),
                *("--stdin", remote),
                input=b"\n".join(missing) + b"\n",
            )
