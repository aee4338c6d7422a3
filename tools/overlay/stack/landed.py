"""Patches whose change is upstream, whatever the commit is called that brought it."""

from __future__ import annotations

from typing import Optional

from overlay.git import Git
from overlay.series import Series
from overlay.targets import Checkout
from overlay.weave import State, survey


def landed(target: Checkout, series: Series, branch: str) -> frozenset[str]:
    """The patches for a checkout whose change a branch of the remote has, by name."""
    tip = Git(target.root).line("rev-parse", f"refs/remotes/{branch}^{{commit}}")
    selected = series.selected(target.version)
    found = survey(selected, target.at(tip).tree, target.carries)
    return frozenset(state.patch.name for state in found.in_state(State.APPLIED))


def default_branch(target: Checkout, remote: str = "origin") -> Optional[str]:
    """The remote's default branch, as the last fetch left it; None if git does not know it."""
    named = Git(target.root).found("symbolic-ref", "--quiet", f"refs/remotes/{remote}/HEAD")
    if named is None:
        return None
    branch = named[len("refs/remotes/") :]
    there = Git(target.root).found("rev-parse", "--verify", "--quiet", f"refs/remotes/{branch}")
    return branch if there else None
