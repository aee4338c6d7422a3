"""A small checkout with a series of three patches, and a GitHub to submit it to."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from checkouts import Repository
from checkouts import user as user
from fake_github import TOKEN, FakeGitHub

MAIL = """\
From: Zoë Example <zoe@example.com>
Date: Mon, 5 Dec 2022 10:00:00 +0530
Subject: [FSDP] {subject}

Why, with a mention of @grace.

Origin: https://github.com/pytorch/pytorch/pull/90523
Torch-Version: {versions}
{adds}---
{hunks}"""
SOURCE = """\
def one(x):
    return x


def two(x):
    return x


def three(x):
    return x


def four(x):
    return x
"""


def hunk(function: str, value: str) -> str:
    return f"torch/runtime.py\n@@ {function}\n-return x\n+return {value}\n"


THREE = {f"{name}.apatch": hunk(name, f"x + '{name}'") for name in ("one", "two", "three")}
CONFIG = """\
[ghstack]
github_url = {host}
github_oauth = {token}
github_username = ada
"""


class Stacked(Repository):
    """A checkout with a remote, and a series for it."""

    def __init__(self, folder: Path, github: FakeGitHub) -> None:
        super().__init__(folder)
        self.github = github
        self.write("torch/runtime.py", SOURCE)
        self.git("commit", "--quiet", "--all", "--amend", "--message", "base")
        self.git("remote", "add", "origin", str(github.repository))
        self.git("push", "--quiet", "--force", "origin", "main")
        for path in (folder / "series").rglob("*.*"):
            path.unlink()
        self.series(THREE)
        (folder / ".ghstackrc").write_text(CONFIG.format(host=github.host, token=TOKEN))

    def series(
        self,
        patches: Mapping[str, str],
        added: Mapping[str, str] = {},
        versions: str = ">=2.1",
        mail: str = MAIL,
    ) -> None:
        super().series(patches, added, versions, mail)

    def shown(self, text: str) -> str:
        """A text with what differs from run to run named."""
        text = text.replace(str(self.folder.resolve()), "FOLDER")
        text = text.replace(self.github.host, "github.example")
        text = re.sub(r"\b[0-9a-f]{40}\b", "OID", text)
        text = re.sub(r"(?<=ghstack: )\d+(\.\d+)+", "VERSION", text)
        text = re.sub(r"(?<=ghstack/tree/)[\d.]+", "VERSION", text)
        return re.sub(r"\b[0-9a-f]{12}\b", "ID", text)

    def overlay(self, *arguments: str, code: int = 0) -> str:
        """What a command prints, without what ghstack itself says."""
        done = self.run_raw(*arguments)
        output = done.stdout + done.stderr
        assert TOKEN not in output
        assert done.returncode == code, output
        self.said = output
        return self.shown(done.stdout + "".join(_own(done.stderr)))

    def submit(self, *options: str, code: int = 0) -> str:
        return self.overlay("submit", str(self.tree), *options, code=code)

    def start(self) -> None:
        """Apply the series, and submit it for the first time."""
        self.overlay("apply", str(self.tree))
        self.submit()

    def edit(self, name: str, old: str, new: str) -> None:
        """Edit a patch, and apply it again."""
        place = self.folder / "series" / "patches" / name
        text = place.read_text()
        assert old in text
        place.write_text(text.replace(old, new))
        self.overlay("apply", str(self.tree))

    def order(self, *names: str) -> None:
        """Another order, or choice, of the patches; to be applied."""
        listing = self.folder / "series" / "patches" / "series"
        listing.write_text("".join(f"{name}.apatch\n" for name in names))
        for place in listing.parent.glob("*.apatch"):
            if place.stem not in names:
                place.unlink()

    def add(self, name: str, hunks: str) -> None:
        """One more patch, not listed yet."""
        subject = name.replace("-", " ").capitalize()
        text = MAIL.format(subject=subject, versions=">=2.1", adds="", hunks=hunks)
        (self.folder / "series" / "patches" / f"{name}.apatch").write_text(text)

    def land(self, number: int, title: str) -> None:
        """Bring a pull request's change to main as PyTorch's bot does: another commit, no branch."""
        pull = self.github.pull(number)
        tree = self.git("rev-parse", f"origin/{pull.headRefName}^{{tree}}")
        commit = self.git("commit-tree", tree, "-p", "origin/main", "-m", title)
        self.git("push", "--quiet", "origin", f"{commit}:refs/heads/main")
        for kind in ("head", "base", "orig"):
            name = pull.headRefName.replace("head", kind)
            self.git("push", "--quiet", "origin", f":refs/heads/{name}")
        pull.closed = True

    def plan(self, *options: str, code: int = 0) -> str:
        """The table of a dry run, and what is not plainly well."""
        said = self.submit("--dry-run", *options, code=code).split("\n--- ", 1)
        told = [line for line in said[-1].splitlines() if line.startswith(_TELLING)]
        table = [line for line in said[0].splitlines() if not line.startswith(("ok  ", *_TELLING))]
        lines = [line for line in (*table, *told) if not line.startswith(_QUIET)]
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def problems(self, *options: str, code: int = 2) -> str:
        """What a dry run finds wrong."""
        self.submit("--dry-run", *options, code=code)
        lines = [line for line in self.said.splitlines() if line.startswith("PROBLEM")]
        return self.shown("\n".join(lines)) + "\n"

    def identities(self) -> str:
        """ghstack's lines in the patches."""
        out = []
        for patch in self.patches.patches:
            fields = re.findall(r"^(ghstack-\S+|Pull-Request): (.*)", patch.text, re.M)
            values = [value if name == "Pull-Request" else name for name, value in fields]
            out.append(f"{patch.name}: {', '.join(values) or 'none'}")
        return self.shown("\n".join(out)) + "\n"

    def clone(self) -> Stacked:
        """A fresh clone of the remote, with the same series."""
        place = self.folder / f"clone-{len(os.listdir(self.folder))}"
        subprocess.run(
            ["git", "clone", "--quiet", str(self.github.repository), str(place)], check=True
        )
        other = Stacked.at(self, place)
        assert isinstance(other, Stacked)
        other.github = self.github
        return other


_TELLING = ("note  ", "PROBLEM  ", "unknown  ", "despite  ", "torch-overlay: ", "  ", "pushing ")
_QUIET = ("note     lint: not run", "note     tests: none")


def _own(text: str) -> Iterator[str]:
    levels = ("ok  ", *_TELLING)
    for line in text.splitlines(keepends=True):
        if line.startswith(levels):
            yield line


@pytest.fixture
def github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGitHub]:
    with FakeGitHub(tmp_path).running() as fake:
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            monkeypatch.setenv(name, str(fake.certificates))
        for name in ("OAUTH_TOKEN", "GHSTACKRC_PATH"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        yield fake


@pytest.fixture
def stacked(user: Path, tmp_path: Path, github: FakeGitHub) -> Stacked:
    return Stacked(tmp_path, github)


# Takes git's place on the path: at the first push of such branches it kills what it is told to.
KILLER = """\
#!/bin/sh
case "$*" in
    *--dry-run*) ;;
    push*/{branch}*) {kill}; exit 1 ;;
esac
exec {git} "$@"
"""
