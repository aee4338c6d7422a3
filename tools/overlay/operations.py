"""What the commands do: a series, a target, and the steps from one to the other."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Optional

from overlay import mails
from overlay.errors import OverlayError, PatchError, TargetError, UsageError
from overlay.mails import Step
from overlay.series import Series, SeriesPatch
from overlay.targets import AppliedPatch, Checkout, Record, SourceTree, Target
from overlay.targets.checkout import untracked
from overlay.tree import ChangedTree, Tree
from overlay.verify import Report, verify
from overlay.weave import PatchState, State, Survey, Weaver, left_out, survey


@dataclass(frozen=True)
class Standing:
    """How a series stands with a target."""

    target: Target
    states: tuple[PatchState, ...]
    base: Tree
    """The target as it is without the series."""
    changes: Mapping[str, Optional[bytes]]
    """What the series makes of the base."""
    edited: tuple[str, ...]
    """Files of the series with changes that are neither PyTorch's nor the series'."""

    def patches(self, *states: State) -> tuple[SeriesPatch, ...]:
        """The patches in some states, in order."""
        return tuple(state.patch for state in self.states if state.state in states)

    def not_carried(self) -> dict[str, tuple[str, ...]]:
        """For each selected patch the files that this kind of target does not take."""
        found = {}
        for state in self.states:
            if state.state is not State.NOT_SELECTED:
                paths = left_out(state.patch, self.target.carries)
                if paths:
                    found[state.patch.name] = paths
        return found

    def writes(self) -> dict[str, Optional[bytes]]:
        """The files that are not yet as the series makes them, with what they become."""
        record = self.target.record()
        if record is None and not self.patches(State.PENDING):
            return {}  # What others applied stays in their layout.
        paths = {*self.changes, *(record.files if record else ())}
        wanted = ChangedTree(self.base, self.changes)
        now = self.target.tree
        return {p: wanted.read(p) for p in sorted(paths) if wanted.read(p) != now.read(p)}


def standing(target: Target, series: Series) -> Standing:
    """Find out how each patch of a series stands with a target; nothing is written."""
    if target.interrupted:
        raise TargetError(
            f"{target}: an earlier change was interrupted:"
            " 'torch-overlay apply' or 'torch-overlay revert' puts it right first"
        )
    try:
        selected = series.selected(target.version)
    except UsageError as error:
        raise TargetError(f"{target.root}: {error.message}") from None
    for patch in selected:
        for path in patch.paths:
            target.check_path(path)
    record = target.record()
    found = survey(selected, target.originals(), target.carries)
    states = []
    for patch in series.patches:
        state = next((s for s in found.states if s.patch is patch), None)
        if state is None:
            wanted = f"for torch {patch.versions}"
            states.append(PatchState(patch, State.NOT_SELECTED, wanted))
        elif not any(target.carries(path) for path in patch.paths):
            reason = "an installed torch has no place for its files"
            states.append(PatchState(patch, State.NOT_SELECTED, reason))
        else:
            states.append(_with_record(state, target, record, found))
    in_the_way = set(target.in_the_way(found.changes))
    for number, state in enumerate(states):
        obstacles = [path for path in state.patch.added if path in in_the_way]
        if state.state is State.PENDING and obstacles:
            reason = f"{state.patch.name}: Adds: {untracked(obstacles[0])}"
            states[number] = replace(state, state=State.CONFLICT, reason=reason)
    paths = {p for patch in selected for p in patch.paths if target.carries(p)}
    return Standing(
        target,
        tuple(states),
        found.base,
        found.changes,
        tuple(target.local_changes(sorted(paths | set(record.files if record else ())))),
    )


def _with_record(
    state: PatchState, target: Target, record: Optional[Record], found: Survey
) -> PatchState:
    """A patch's state, given what the tool wrote down when it was applied."""
    recorded = {patch.name: patch.digest for patch in record.series} if record else {}
    if state.state is State.APPLIED:
        # With a record the survey is of the originals, so what stands there is PyTorch's own.
        paths = [p for p in state.patch.paths if target.carries(p)]
        if record is not None or all(map(target.is_pristine, paths)):
            return replace(state, state=State.UPSTREAMED)
        # In a checkout who made the commit does not matter.
        by = [] if isinstance(target, Checkout) else ["not by this tool"]
        if found.in_state(State.PENDING, State.CONFLICT):
            by.append("not the whole series")
        return replace(state, reason=", and ".join(by))
    if state.state is State.PENDING and state.patch.name in recorded:
        if recorded[state.patch.name] != state.patch.digest:
            return replace(state, reason="applied as it was before it was edited: apply it again")
        put_back = target.put_back(state.patch.paths)
        if put_back:
            reason = f"was applied, but {', '.join(put_back)} was put back since: apply it again"
            return replace(state, reason=reason)
        return replace(state, state=State.APPLIED)
    return state


@dataclass(frozen=True)
class Plan:
    """What apply writes, checked."""

    standing: Standing
    writes: Mapping[str, Optional[bytes]]
    report: Report
    commits: tuple[str, ...] = ()
    """The commits that were made, oldest first."""


def plan(target: Target, series: Series) -> Plan:
    """What apply would write, woven and verified; nothing is written.

    Raises PatchError if a patch does not fit, if only a part of the series is there, or
    if a check of the result fails; TargetError if the target cannot take it.
    """
    if not series.patches:
        raise UsageError(f"{series.root / 'patches' / 'series'} lists no patch")
    found = standing(target, series)
    if all(state.state is State.NOT_SELECTED for state in found.states):
        raise nothing_for(target, series)
    record = target.record()
    if record is not None and record.series:
        others = [patch.name for patch in record.series]
        if not {patch.name for patch in series.patches}.intersection(others):
            raise TargetError(
                f"{target}: another series is applied: 'torch-overlay revert' takes it out first",
                [f"applied: {name}" for name in others],
            )
    if found.edited:
        reason = target.refusal()
        if reason is not None:
            raise TargetError(reason)
        raise TargetError(
            f"{target}: {target.describe_edit(found.edited[0])}",
            [f"{path} has changes too" for path in found.edited[1:]],
        )
    for state in found.states:
        if state.state is State.CONFLICT:
            raise PatchError(state.reason, state.details)
    there, missing = found.patches(State.APPLIED), found.patches(State.PENDING)
    if there and missing and target.record() is None:
        how = "take it out first, or bring in the rest as it came"
        if isinstance(target, Checkout):
            how = "take its commits out first (git rebase -i, git revert)"
        raise PatchError(
            f"{target}: only a part of the series is there, not by this tool: {how}",
            [*(f"there: {p.name}" for p in there), *(f"missing: {p.name}" for p in missing)],
        )
    return Plan(found, found.writes(), check(found))


def nothing_for(target: Target, series: Series) -> PatchError:
    """The error where a series has no patch for a target."""
    versions = ", ".join(sorted({str(patch.versions) or "any" for patch in series.patches}))
    return PatchError(f"{target}: no patch of the series is for it (they are for {versions})")


def check(found: Standing) -> Report:
    """Verify what the series makes of the target; PatchError with the findings if it fails."""
    after = ChangedTree(found.base, found.changes)
    python = {p: c for p, c in found.changes.items() if c is not None and p.endswith(".py")}
    broken = found.target.compile_errors(python)
    if broken:
        path, line, message = broken[0]
        raise PatchError(
            f"{path}:{line}: would not compile for the target's Python: {message}",
            [f"{path}:{line}: {message}" for path, line, message in broken[1:]],
        )
    report = verify(found.base, after, list(found.changes))
    if report.findings:
        raise PatchError(
            f"verify: {report.findings[0]}", [str(finding) for finding in report.findings[1:]]
        )
    return report


def apply(target: Target, series: Series, commits: bool = True) -> Plan:
    """Apply a series: all of it or nothing. What was written is read back and compared.

    In a checkout each patch becomes a commit, unless ``commits`` is False.
    """
    in_git = isinstance(target, SourceTree) and target.in_git
    if commits and in_git and not isinstance(target, Checkout) and not target.interrupted:
        raise TargetError(
            f"{target}: files were changed here without commits:"
            " 'torch-overlay revert' takes that back, '--no-commit' goes on with it"
        )
    with target.locked():
        made = plan(target, series)
        applied = [
            AppliedPatch(patch.name, patch.digest)
            for patch in made.standing.patches(State.APPLIED, State.PENDING)
        ]
        record = target.record()
        if made.writes or (record is not None and list(record.series) != applied):
            if isinstance(target, Checkout):
                made = replace(made, commits=tuple(target.commit(steps(target, series), applied)))
            else:
                target.write(made.writes, applied)
        for path, content in made.writes.items():
            if target.tree.read(path) != content:
                raise TargetError(f"{target}: {path} does not read back as it was written")
    return made


def steps(target: Target, series: Series, with_tests: bool = False) -> tuple[Step, ...]:
    """What each patch of a series changes in a target's original files, one by one.

    ``with_tests`` takes added files that the target has no place for too.
    """
    selected = series.selected(target.version)
    added = {path for patch in selected for path in patch.added} if with_tests else set()
    base = target.originals()
    weaver = Weaver(base, lambda path: path in added or target.carries(path))
    found = []
    before: Mapping[str, Optional[bytes]] = {}
    for patch in selected:
        weaver.apply(patch)
        now = weaver.changes()
        changes = {
            path: now[path] if path in now else base.read(path)
            for path in sorted({*before, *now})
            if path not in before or path not in now or before[path] != now[path]
        }
        if changes:
            found.append(Step(patch, changes))
        before = now
    return tuple(found)


@dataclass(frozen=True)
class Reverted:
    """What revert took back."""

    paths: tuple[str, ...]
    commits: tuple[str, ...] = ()
    """The commits that were taken off, newest first, with their subjects."""


def revert(target: Target, series: Series) -> Reverted:
    """Take back what was applied.

    In a checkout these are the topmost commits, if together they do what the series does.
    """
    if not isinstance(target, Checkout):
        return Reverted(tuple(target.revert()))
    with target.locked():
        base = commit_below(target, series)
        if base is not None:
            paths, commits = target.drop_to(base)
            return Reverted(tuple(paths), tuple(commits))
        there = standing(target, series).patches(State.APPLIED)
        if there:
            above = target.commits_above(mails.commit_text(there[-1]).message.split("\n")[0])
            what = f"are not the topmost: {above[0]} is above them" if above else "were changed"
            raise TargetError(
                f"{target}: the commits of the series {what}: take them out with git"
                " (git rebase -i, git revert)",
                [f"above them: {line}" for line in above[1:]],
            )
        return Reverted(())


def commit_below(target: Checkout, series: Series) -> Optional[str]:
    """The commit below those of the series, if they are the topmost ones of a checkout.

    They are known by what they do: it may be that they were rebased, or squashed into fewer.
    """
    recorded = target.base_of_record()
    if recorded is not None:
        return recorded
    selected = series.selected(target.version)
    paths = {path for patch in selected for path in patch.paths}
    # What was applied last is most likely one commit a patch.
    for base in reversed(target.ancestors(len(selected))):
        touched = target.touched_since(base)
        if not touched or not paths.issuperset(touched):
            continue
        with suppress(OverlayError):
            changes: dict[str, Optional[bytes]] = {}
            for step in steps(target.at(base), series):
                changes.update(step.changes)
            if touched == target.oids(changes):
                return base
    return None


def unified_diff(found: Standing) -> bytes:
    """What apply would change, as a unified diff with paths under ``a/`` and ``b/``."""
    out: list[bytes] = []
    now = found.target.tree
    for path, content in found.writes().items():
        before = now.read(path)
        lines = difflib.diff_bytes(
            difflib.unified_diff,
            (before or b"").splitlines(keepends=True),
            (content or b"").splitlines(keepends=True),
            b"/dev/null" if before is None else b"a/" + path.encode(),
            b"/dev/null" if content is None else b"b/" + path.encode(),
        )
        for line in lines:
            out.append(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n")
    return b"".join(out)
