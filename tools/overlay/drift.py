"""How a series does on torch's releases: every patch alone, and the series as a whole.

Each release is what its wheel has of Python. Nothing is installed and nothing runs: a release
holds if the patches find their places in it and ``verify`` finds nothing wrong with the result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Callable, Optional

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from overlay.bases import wheels
from overlay.bases.releases import release_files
from overlay.errors import UsageError
from overlay.rivals import BASE, Attempt, Comparison
from overlay.series import Series, SeriesPatch
from overlay.tree import ChangedTree, MemoryTree, Tree
from overlay.verify import Report, verify
from overlay.weave import PatchState, State, Survey, survey

Progress = Callable[[str], None]


class Outcome(str, Enum):
    """How a patch, or a whole series, does on a release."""

    HOLDS = "holds"
    NEEDS_EARLIER = "holds, needs the earlier ones"
    UPSTREAMED = "upstreamed"
    NOT_SELECTED = "not selected"
    FAILED = "failed"


@dataclass(frozen=True)
class Cell:
    """One patch, or the series, on one release."""

    outcome: Outcome
    reason: str = ""
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReleaseDrift:
    """A series on one release."""

    version: str
    series: Cell
    """All selected patches together."""
    patches: tuple[Cell, ...]
    """Each by itself on the stock release, in the series' order."""
    unresolved: tuple[str, ...]
    """The calls of the whole series' result that verify could not follow."""

    @property
    def failed(self) -> bool:
        """Whether a selected patch, or all together, failed."""
        return any(cell.outcome is Outcome.FAILED for cell in (self.series, *self.patches))


@dataclass(frozen=True)
class Drift:
    """A series on many releases, and what else was tried on them."""

    series: Series
    releases: tuple[ReleaseDrift, ...]
    attempts: tuple[Attempt, ...] = ()
    base: str = BASE
    """The release that the others' diff is made on."""

    @property
    def failed(self) -> bool:
        """Whether a selected patch failed on a release."""
        return any(release.failed for release in self.releases)


def drift(
    series: Series,
    specifier: Optional[str] = None,
    compare: bool = False,
    progress: Progress = lambda line: None,
    base: str = BASE,
) -> Drift:
    """Try a series on the releases that a version specifier names.

    ``compare`` tries the same change, as a diff made on ``base``, with other tools too: the patches
    that are for both releases or, where there are none, all that are for ``base``.
    """
    offered = wheels.releases()
    versions = choose(series, offered, specifier)
    comparisons: dict[tuple[str, ...], Comparison] = {}
    base_tree = None
    if compare:
        if base not in offered:
            raise UsageError(f"the package index has no release {base} of torch to make a diff on")
        progress(f"making the diff on torch {base}")
        base_tree = MemoryTree(release_files(base, lambda line: progress(f"  {line}")))
        if not _woven(series.selected(base), base_tree):
            raise UsageError(f"--compare: the series makes nothing of torch {base} to compare with")
    releases: list[ReleaseDrift] = []
    attempts: list[Attempt] = []
    start = time.monotonic()
    for done, version in enumerate(versions):
        where = f"torch {version}, {done + 1} of {len(versions)}"
        if done:
            left = (time.monotonic() - start) / done * (len(versions) - done)
            where += f", about {left:.0f} s left"
        progress(where)
        files = release_files(version, lambda line: progress(f"  {line}"))
        tree = MemoryTree(files)
        releases.append(check_release(series, version, tree))
        if base_tree is not None and version != base:
            shared = shared_patches(series, base, version)
            patches = shared or series.selected(base)
            names = tuple(patch.name for patch in patches)
            if names not in comparisons:
                change = _woven(patches, base_tree) or {}
                comparisons[names] = Comparison.on(base_tree.files, change)
            ours = _woven(shared, tree) if shared else None
            attempts += comparisons[names].attempts(version, files, ours)
    return Drift(series, tuple(releases), tuple(attempts), base)


def shared_patches(series: Series, base: str, version: str) -> tuple[SeriesPatch, ...]:
    """Those that change what a wheel has and are for both releases, in the series' order."""
    there = series.selected(version)
    return tuple(patch for patch in _carried(series.selected(base)) if patch in there)


def choose(series: Series, versions: Sequence[str], specifier: Optional[str]) -> list[str]:
    """The versions that a specifier names; without one, from the first that a patch is for to
    the last. UsageError if there are none.
    """
    if specifier is None:
        covered = [n for n, version in enumerate(versions) if series.selected(version)]
        chosen = list(versions[covered[0] : covered[-1] + 1]) if covered else []
        wanted = "that a patch of the series is for"
    else:
        try:
            wanted_versions = SpecifierSet(specifier)
        except InvalidSpecifier:
            raise UsageError(
                f"--releases: '{specifier}' is not a version specifier, such as >=2.1,<3"
            ) from None
        chosen = list(wanted_versions.filter(versions, prereleases=True))
        wanted = specifier
    if not chosen:
        known = f"it has {versions[0]} to {versions[-1]}" if versions else "it has none"
        raise UsageError(f"the package index has no release of torch {wanted}: {known}")
    return chosen


def check_release(series: Series, version: str, tree: Tree) -> ReleaseDrift:
    """A series on the stock tree of a release."""
    wanted = series.selected(version)
    selected = _carried(wanted)
    cells = {
        patch.name: Cell(Outcome.NOT_SELECTED, "a wheel has no place for its files")
        for patch in wanted
    }
    whole = survey(selected, tree, _carries)
    report = _verified(whole)
    for number, patch in enumerate(selected):
        cells[patch.name] = _patch(selected[: number + 1], whole.states[number], tree)
    return ReleaseDrift(
        version,
        _series(whole, report),
        tuple(
            cells.get(patch.name, Cell(Outcome.NOT_SELECTED, f"for torch {patch.versions}"))
            for patch in series.patches
        ),
        tuple(map(str, report.unresolved)),
    )


def _series(whole: Survey, report: Report) -> Cell:
    if not whole.states:
        return Cell(Outcome.NOT_SELECTED, "no patch is for it")
    conflicts = whole.in_state(State.CONFLICT)
    if conflicts:
        others = tuple(state.reason for state in conflicts[1:])
        return Cell(Outcome.FAILED, conflicts[0].reason, (*conflicts[0].details, *others))
    if report.findings:
        return _wrong(report)
    pending = whole.in_state(State.PENDING)
    return Cell(Outcome.HOLDS if pending else Outcome.UPSTREAMED)


def _patch(prefix: Sequence[SeriesPatch], in_series: PatchState, tree: Tree) -> Cell:
    """The last patch of a prefix: alone, or else on those before it."""
    if in_series.state is State.CONFLICT:
        return Cell(Outcome.FAILED, in_series.reason, in_series.details)
    alone = survey(prefix[-1:], tree, _carries)
    if alone.in_state(State.APPLIED):
        return Cell(Outcome.UPSTREAMED)
    if alone.in_state(State.PENDING) and not _verified(alone).findings:
        return Cell(Outcome.HOLDS)
    report = _verified(survey(prefix, tree, _carries))
    return _wrong(report) if report.findings else Cell(Outcome.NEEDS_EARLIER)


def _wrong(report: Report) -> Cell:
    findings = [str(finding) for finding in report.findings]
    return Cell(Outcome.FAILED, f"verify: {findings[0]}", tuple(findings[1:]))


def _verified(found: Survey) -> Report:
    return verify(found.base, ChangedTree(found.base, found.changes), list(found.changes))


def _woven(patches: Sequence[SeriesPatch], tree: Tree) -> Optional[dict[str, bytes]]:
    """The files that patches change in a release, as they make them; None if they do not fit."""
    found = survey(_carried(patches), tree, _carries)
    if found.in_state(State.CONFLICT):
        return None
    return {path: content for path, content in found.changes.items() if content is not None}


def _carried(patches: Sequence[SeriesPatch]) -> list[SeriesPatch]:
    """The patches that change what a wheel has."""
    return [patch for patch in patches if any(map(_carries, patch.paths))]


def _carries(path: str) -> bool:
    """Whether a wheel takes a file: it has no ``test/``."""
    return path.startswith("torch/")
