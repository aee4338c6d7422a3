"""Submit a series as a stack of pull requests, and note in the patches which ones they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from overlay.errors import OverlayError, TargetError, UsageError
from overlay.git import Git
from overlay.mails import Step
from overlay.series import Series, load_series
from overlay.stack import evidence, ghstack
from overlay.stack.checks import Checks
from overlay.stack.entries import Entry, Stack, find_entry, read_entries
from overlay.stack.github import GitHubError
from overlay.stack.identity import TRAILERS, Identity, PatchFiles, identity_in
from overlay.stack.pulls import Planned
from overlay.targets import AppliedPatch, Checkout

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What is passed on to ghstack, and which part of the stack it is for."""

    message: Optional[str] = None
    draft: bool = False
    update_fields: bool = False
    reviewer: Optional[str] = None
    label: Optional[str] = None
    only: Optional[str] = None
    start: Optional[str] = None
    """The patch from which on to submit, up to the top."""
    despite: tuple[str, ...] = ()
    """Checks whose problems do not count: lint, tests."""


@dataclass(frozen=True)
class Row:
    """What becomes of one patch."""

    patch: str
    title: str
    pull: Optional[str]
    """The address of its pull request; None for a new one."""
    base: str
    """What it stands on: the patch below, or the remote's branch."""
    changed: str
    labels: str
    body: str
    is_submitted: bool = True
    """False for a patch that this submit leaves out."""


@dataclass(frozen=True)
class Submission:
    """What became of a submit."""

    rows: tuple[Row, ...]
    problem: Optional[str] = None
    """What is not done, if anything."""


def plan_submit(
    target: Checkout, series: Series, options: Options, say: Say
) -> tuple[Submission, list[OverlayError]]:
    """What submit would do, and the problems that keep it from that; nothing is sent."""
    PatchFiles(series).recover()
    checks = Checks(target, series, options.despite)
    checks.run(say)
    _check_part(checks, options)
    found = checks.pulls.planned
    rows = tuple(_rows(checks, checks.stack, found, options)) if found else ()
    return Submission(rows), checks.problems


def submit(target: Checkout, series: Series, options: Options, say: Say) -> Submission:
    """Check, let ghstack submit, and write its trailers into the patches.

    Raises an error, and sends nothing, if a check finds a problem.
    """
    with target.locked():
        PatchFiles(series).recover()
        checks = Checks(target, series, options.despite)
        checks.run(say)
        _check_part(checks, options)
        if checks.problems:
            raise refusal(checks.problems)
        found = checks.pulls.planned
        stack = _note(checks, checks.stack, _unnoted(found))
        _push_missing(checks, stack, found, say)
        code = ghstack.run(target.root, checks.config, _arguments(stack, options), say)
        return _record(checks, stack, options, code)


def refusal(problems: Sequence[OverlayError]) -> OverlayError:
    """One error for all problems: of the environment rather than of the patches, if any is."""
    count = len(problems)
    what = "a check found a problem" if count == 1 else f"{count} checks found problems"
    error = OverlayError(f"nothing was submitted: {what}", [p.message for p in problems])
    error.exit_code = max(problem.exit_code for problem in problems)
    return error


def _check_part(checks: Checks, options: Options) -> None:
    """Whether ghstack would submit the part that is asked for, and no more."""
    if checks.problems or not (options.only or options.start):
        return
    chosen = {entry.patch.name for entry in _chosen(checks.stack, options)}
    new = [
        planned.entry.patch.name
        for planned in checks.pulls.planned
        if planned.pull is None and planned.entry.patch.name not in chosen
    ]
    if new:
        raise UsageError(
            f"{', '.join(new)}: no pull request yet, and ghstack would open one too: leave"
            " --only and --from out"
        )


def _chosen(stack: Stack, options: Options) -> tuple[Entry, ...]:
    if options.only is not None:
        return (find_entry(stack.entries, options.only),)
    if options.start is not None:
        return stack.entries[stack.entries.index(find_entry(stack.entries, options.start)) :]
    return stack.entries


def _arguments(stack: Stack, options: Options) -> list[str]:
    """ghstack's command line."""
    # What is found again goes by gh/NAME/1/base, which a checkout with .github/ghstack_direct, or
    # a pull request with another base, would make ghstack do without.
    arguments = ["submit", "--no-direct"]
    for name in ("message", "reviewer", "label"):
        value = getattr(options, name)
        if value is not None:
            arguments.append(f"--{name}={value}")
    arguments += ["--draft"] if options.draft else []
    arguments += ["--update-fields"] if options.update_fields else []
    chosen = _chosen(stack, options)
    if options.only is not None:
        return [*arguments, "--no-stack", chosen[0].commit]
    if options.start is not None:
        return [*arguments, f"{chosen[0].parent}..HEAD"]
    return arguments


# ---- noting what a pull request is


def _unnoted(found: Sequence[Planned]) -> dict[str, Identity]:
    return {p.entry.patch.name: p.identity for p in found if not p.is_noted}


def _note(checks: Checks, stack: Stack, identities: Mapping[str, Identity]) -> Stack:
    """Write trailers into patches, and make the commits anew with them."""
    target = checks.target
    head = checks.git.line("rev-parse", "HEAD")
    told = all(identity_in(entry.message) == entry.identity for entry in stack.entries)
    if told and not identities and head == target.head:
        return stack
    PatchFiles(checks.series).write(identities)
    checks.series = load_series(checks.series.root)
    if read_entries(target.at(head), stack.base, stack.steps) is None:
        raise TargetError(
            f"{target}: the commits are not those of the series any more: what there is of pull"
            " requests is noted in the patches; see 'git reflog' for what was there"
        )
    # Commits that are known as this tool's are replaced by the new ones.
    patches = {patch.name: patch for patch in checks.series.patches}
    steps = tuple(Step(patches[step.patch.name], step.changes) for step in stack.steps)
    applied = [AppliedPatch(step.patch.name, step.patch.digest) for step in steps]
    target.note_applied(stack.base, [])
    target.commit(steps, applied)
    entries = read_entries(target, stack.base, steps)
    assert entries is not None  # commit has compared them
    return Stack(stack.base, entries, steps)


def _push_missing(checks: Checks, stack: Stack, found: Sequence[Planned], say: Say) -> None:
    """Push what a ghstack that was cut short did not: without it ghstack does not go on."""
    git, remote = checks.git, checks.config.remote
    for planned, entry in zip(found, stack.entries):
        if not planned.lacks_orig:
            continue
        assert planned.branches is not None and planned.branches.head is not None
        commit, tree = entry.commit, planned.branches.head.tree
        if tree != entry.tree:  # Edited since: what was submitted is the older one.
            below = planned.branches.base.oid if planned.branches.base else entry.parent
            message = entry.message.encode()
            commit = os.fsdecode(git.run("commit-tree", tree, "-p", below, input=message)).strip()
        branch = f"{planned.branches.name}/orig"
        say(f"pushing {branch}, which an earlier submit did not come to")
        git.run("push", "--quiet", "--no-verify", remote, f"{commit}:refs/heads/{branch}")


def _record(checks: Checks, stack: Stack, options: Options, code: int) -> Submission:
    """Find out what ghstack did, and note it."""
    failure = f"ghstack ended with exit code {code}" if code else ""
    if code == 0:
        head = checks.git.line("rev-parse", "HEAD")
        entries = read_entries(checks.target.at(head), stack.base, stack.steps)
        if entries is None:
            failure = "ghstack has changed the commits"
        else:
            # Of a patch that was left out, ghstack notes a tree that it has not submitted.
            chosen = {entry.patch.name for entry in _chosen(stack, options)}
            identities = {e.patch.name: identity_in(e.message) for e in entries}
            identities = {name: identities[name] for name in identities if name in chosen}
            try:
                stack = _note(checks, stack, identities)
            except OverlayError as error:
                raise TargetError(
                    f"all is submitted, but cannot be noted in the patches ({error.message}): put"
                    " that right and run it again, which finds the pull requests by their branches"
                ) from None
    try:
        found = checks.look_up(stack.entries).planned
    except OverlayError as error:
        what = f"{failure}, and what it had submitted by then" if failure else "what is submitted"
        raise TargetError(
            f"{what} cannot be looked up ({checks.redact(error.message)}): run it again, and it"
            " goes on from there"
        ) from None
    if failure:
        stack = _note(checks, stack, _unnoted(found))
        problem: Optional[str] = _undone(checks.git, found, failure)
    else:
        problem = _add_summaries(checks, found, options)
    return Submission(tuple(_rows(checks, stack, found, options)), problem)


def _undone(git: Git, found: Sequence[Planned], failure: str) -> str:
    rest = [p for p in found if p.pull is None or p.changed(git) != "nothing"]
    said = [f"{p.entry.patch.name} ({p.pull or 'no pull request'})" for p in rest]
    if not rest:
        return f"{failure}: all is pushed, but some pull requests' texts may be old: run it again"
    done = f"{len(found) - len(rest)} of {len(found)}"
    return (
        f"{failure}: {done} are submitted, not {', '.join(said)}; what there is of pull requests"
        " is noted in the patches: run it again, and it goes on from there"
    )


def _add_summaries(checks: Checks, found: Sequence[Planned], options: Options) -> Optional[str]:
    """Put the result of the tests into the pull requests' texts; what went wrong, if anything."""
    if checks.tests is None:
        return None
    chosen = {entry.patch.name for entry in _chosen(checks.stack, options)}
    for planned in found:
        if planned.pull is None or planned.entry.patch.name not in chosen:
            continue
        text = evidence.summary(checks.tests, planned.entry.patch)
        body = evidence.with_summary(planned.pull.body, text)
        try:
            if body != planned.pull.body:
                checks.github.set_body(planned.pull.number, body)
        except GitHubError as error:
            return f"the tests' summary is not in {planned.pull} ({error.message}): run it again"
    return None


# ---- the plan


def _rows(
    checks: Checks, stack: Stack, found: Sequence[Planned], options: Options
) -> Iterator[Row]:
    chosen = {entry.patch.name for entry in _chosen(stack, options)}
    label = options.label if options.label is not None else checks.config.label
    below = checks.branch or ""
    for planned in found:
        entry, pull = planned.entry, planned.pull
        body = _body(entry) if pull is None or options.update_fields else pull.body
        if checks.tests is not None:
            body = evidence.with_summary(body, evidence.summary(checks.tests, entry.patch))
        yield Row(
            entry.patch.name,
            entry.title,
            pull.url if pull else None,
            below,
            planned.changed(checks.git),
            label or "" if pull is None else "",
            body,
            entry.patch.name in chosen,
        )
        below = entry.patch.name


def _body(entry: Entry) -> str:
    """What ghstack makes of a commit's message, below its list of the stack."""
    lines = entry.message.split("\n")[1:]
    return "\n".join(line for line in lines if not line.startswith(TRAILERS)).strip() + "\n"
