"""A small git checkout and a series, as the tests of checkouts and exports use them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from case import ARGUMENTS, Case
from overlay import operations
from overlay.series import load_series
from overlay.targets import Checkout, find_target

CALL = """\
torch/runtime.py
@@ forward
 pre_forward(state,
-None
+()
 )
"""
MAIL = """\
From: Zoë Example <zoe@example.com>
Date: Mon, 5 Dec 2022 10:00:00 +0530
Subject: [FSDP] {subject}

Why.

Torch-Version: {versions}
{adds}ghstack-source-id: 0123abc
Pull-Request: https://example.com/pull/1
---
{hunks}"""
ADDED = "torch/new/added.py"
TOUCHED = {"torch/runtime.py", ADDED}


class Repository(Case):
    """A source tree in git, and a series of two patches."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.write("torch/other/kept.py", "KEPT = 1\n")
        self.write("docs/index.md", "# PyTorch\n")
        self.write("test/test_x.py", "")
        patches = {"arguments.apatch": ARGUMENTS, "call.apatch": CALL}
        self.series(patches, {ADDED: "arguments.apatch"}, mail=MAIL)
        self.git("init", "--quiet", "--initial-branch=main", ".")
        self.commit("base")

    @classmethod
    def at(cls, case: Repository, tree: Path) -> Repository:
        """The same series with another tree."""
        other = cls.__new__(cls)
        other.folder, other.tree = case.folder, tree
        return other

    def git(self, *arguments: str, input: str = "", code: int = 0) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.tree, input=input, capture_output=True, text=True
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.head

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    @property
    def tree_id(self) -> str:
        return self.git("rev-parse", "HEAD^{tree}")

    @property
    def target(self) -> Checkout:
        found = find_target(str(self.tree))
        assert isinstance(found, Checkout)
        return found

    @property
    def patches(self) -> operations.Series:
        return load_series(self.folder / "series")

    def apply(self) -> operations.Plan:
        return operations.apply(self.target, self.patches)

    def revert(self) -> operations.Reverted:
        return operations.revert(self.target, self.patches)

    def states(self) -> list[str]:
        found = operations.standing(self.target, self.patches)
        return [state.state.value for state in found.states]

    def snapshot(self) -> dict[str, object]:
        """Branch, index, work tree and what git keeps beside them."""
        files: dict[str, object] = {
            path.relative_to(self.tree).as_posix(): path.read_bytes()
            for path in self.tree.rglob("*")
            if path.is_file() and ".git" not in path.relative_to(self.tree).parts
        }
        git_dir = Path(self.git("rev-parse", "--absolute-git-dir"))
        own = git_dir / "torch-overlay"
        return {
            **files,
            "HEAD": (self.head, self.git("rev-parse", "--symbolic-full-name", "HEAD")),
            "index": self.git("ls-files", "--stage", "-t"),
            "status": self.git("status", "--porcelain", "--untracked-files=all", "--ignored"),
            "worktrees": re.findall("^worktree (.*)", self.git("worktree", "list", "--porcelain")),
            "own": sorted(p.name for p in own.rglob("*") if "applied" not in p.parts),
        }

    def fresh(self, commit: str) -> Repository:
        """A clone of its own, at a commit."""
        place = self.folder / f"fresh-{len(os.listdir(self.folder))}"
        subprocess.run(["git", "clone", "--quiet", str(self.tree), str(place)], check=True)
        other = Repository.at(self, place)
        other.git("checkout", "--quiet", "--detach", commit)
        return other


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's git configuration, and nothing else that git would read."""
    config = tmp_path / "gitconfig"
    config.write_text(
        "[user]\nname = Ulf User\nemail = ulf@example.com\n"
        '[protocol "file"]\nallow = always\n[advice]\ndetachedHead = false\n'
    )
    for name in list(os.environ):
        if name.startswith("GIT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return config


@pytest.fixture
def repository(user: Path, tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def real_git() -> str:
    found = shutil.which("git")
    assert found
    return found
