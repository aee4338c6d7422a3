"""Patches whose change is upstream, whatever the commit is called that brought it."""

from __future__ import annotations

from overlay.git import Git
from overlay.operations import Standing
from overlay.series import Series
from overlay.stack.config import remote_name
from overlay.stack.identity import identity_of
from overlay.targets import Checkout
from overlay.weave import State, survey


def landed(target: Checkout, series: Series, branch: str) -> frozenset[str]:
    """The patches for a checkout whose change a branch of the remote has, by name."""
    tip = Git(target.root).line("rev-parse", f"refs/remotes/{branch}^{{commit}}")
    selected = series.selected(target.version)
    found = survey(selected, target.at(tip).tree, target.carries)
    return frozenset(state.patch.name for state in found.in_state(State.APPLIED))


def landed_by_last_fetch(found: Standing, series: Series) -> dict[str, str]:
    """Submitted patches whose change upstream has, with the branch that has it.

    Goes by what git fetched last; of patches that never were submitted, their state says enough.
    """
    target = found.target
    submitted = {p.name for p in series.patches if identity_of(p.message).pull_request}
    if not submitted or not isinstance(target, Checkout):
        return {}
    git, remote = Git(target.root), remote_name(target.root)
    prefix = "refs/remotes/"
    default = git.found("symbolic-ref", "--quiet", f"{prefix}{remote}/HEAD")
    if default is None or git.found("rev-parse", "--verify", "--quiet", default) is None:
        return {}
    branch = default[len(prefix) :]
    return {name: branch for name in landed(target, series, branch) if name in submitted}
