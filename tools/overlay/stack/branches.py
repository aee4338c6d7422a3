"""ghstack's branches on the remote: what was submitted, as git tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from overlay.git import Git
from overlay.stack.identity import Identity, identity_in


@dataclass(frozen=True)
class Tip:
    """The commit that a branch points to."""

    oid: str
    tree: str
    message: str

    @property
    def title(self) -> str:
        """The first line of its message."""
        return self.message.split("\n", 1)[0]


@dataclass(frozen=True)
class Submitted:
    """The branches of one pull request."""

    name: str
    """As in ``gh/ada/1``."""
    orig: Optional[Tip] = None
    """The commit that was submitted; None if ghstack did not come so far."""
    head: Optional[Tip] = None
    base: Optional[Tip] = None

    @property
    def identity(self) -> Identity:
        """What its commit says."""
        return identity_in(self.orig.message) if self.orig else Identity()


def fetch(git: Git, remote: str, default: str, users: list[str]) -> None:
    """Get the remote's default branch, and the branches of some users' pull requests."""
    prefix = f"refs/remotes/{remote}"
    specs = [f"+refs/heads/gh/{user}/*:{prefix}/gh/{user}/*" for user in users]
    git.run(
        *("fetch", "--quiet", "--no-tags", "--prune", "--recurse-submodules=no", remote),
        *(f"+refs/heads/{default}:{prefix}/{default}", *specs),
    )
    if git.found("symbolic-ref", "--quiet", f"{prefix}/HEAD") is None:
        git.run("remote", "set-head", remote, default)


def read(git: Git, remote: str, users: list[str]) -> dict[str, Submitted]:
    """The branches that were fetched, by their common name."""
    prefix = f"refs/remotes/{remote}/"
    text = git.run(
        *("for-each-ref", "--format=%(refname)%00%(objectname)%00%(tree)%00%(contents)%00%00"),
        *(f"{prefix}gh/{user}/" for user in users),
    ).decode("utf-8", "replace")
    found: dict[str, dict[str, Tip]] = {}
    for entry in text.split("\0\0\n")[:-1]:
        ref, oid, tree, message = entry.split("\0", 3)
        match = re.fullmatch(r"(gh/[^/]+/\d+)/(orig|head|base)", ref[len(prefix) :])
        if match:
            found.setdefault(match[1], {})[match[2]] = Tip(oid, tree, message)
    return {name: Submitted(name, **tips) for name, tips in found.items()}
