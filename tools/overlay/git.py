"""Git, run in one folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from overlay.errors import TargetError

# What would point git at another repository than the folder's, as in a hook of that one.
_REPOSITORY_VARIABLES = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INDEX_VERSION",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_LITERAL_PATHSPECS",
)


@dataclass(frozen=True)
class Git:
    """The git of one folder.

    ``isolated`` leaves out all configuration and attributes that are not the repository's own,
    so that the outcome is the same for every user.
    """

    folder: Path
    settings: Sequence[str] = ()
    isolated: bool = False
    #: Messages in English, except where a hook of the user's may read them.
    plain: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, input: bytes = b"", ok: Iterable[int] = (0,)) -> bytes:
        """Git's output; TargetError with what it says if its exit code is not in ``ok``."""
        done = self.attempt(*arguments, input=input)
        if done.returncode not in ok:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            lines = lines or [f"exit code {done.returncode}"]
            name = next(a for a in arguments if not a.startswith("-") and "=" not in a)
            raise TargetError(f"{self.folder}: git {name} failed: {lines[0].strip()}", lines[1:])
        return done.stdout

    def line(self, *arguments: str) -> str:
        """Git's output where that is one line."""
        return os.fsdecode(self.run(*arguments)).strip("\n")

    def found(self, *arguments: str) -> Optional[str]:
        """Git's output where that is one line, or None if it fails."""
        done = self.attempt(*arguments)
        return None if done.returncode else os.fsdecode(done.stdout).strip("\n")

    def attempt(self, *arguments: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run git, whatever its exit code will be."""
        try:
            return subprocess.run(
                self.command(*arguments),
                cwd=self.folder,
                env=self.environ(),
                input=input,
                capture_output=True,
                check=False,
            )
        except FileNotFoundError:
            raise no_git() from None

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs git with these arguments."""
        settings = [part for setting in self.settings for part in ("-c", setting)]
        return ["git", *settings, *arguments]

    def environ(self) -> dict[str, str]:
        """The environment that git runs in."""
        if self.isolated:
            outer = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
            outer.update(
                GIT_CONFIG_NOSYSTEM="1",
                GIT_CONFIG_GLOBAL=os.devnull,
                GIT_ATTR_NOSYSTEM="1",
                HOME=os.fspath(self.folder),
                XDG_CONFIG_HOME=os.fspath(self.folder),
            )
        else:
            outer = {k: v for k, v in os.environ.items() if k not in _REPOSITORY_VARIABLES}
        if self.plain:
            outer.update(LC_ALL="C", LANGUAGE="C")
        return {**outer, **self.environment}


def no_git() -> TargetError:
    """The error where git cannot be run."""
    return TargetError("git is not installed: install it, it is what a checkout is changed with")
