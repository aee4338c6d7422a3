"""Which pull request each patch of a stack is, by its header and by what is on the remote."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Optional

from overlay.git import Git
from overlay.series import Series
from overlay.stack.branches import Submitted
from overlay.stack.entries import Entry
from overlay.stack.github import GitHub, GitHubError, Pull
from overlay.stack.identity import PULL_REQUEST, SOURCE_ID, Identity, identity_of

_STACKED = re.compile(r"^\* (?:__->__ )?#(\d+)\s*$", re.M)


@dataclass(frozen=True)
class Planned:
    """A patch of the stack and its pull request; a new one if that is None."""

    entry: Entry
    identity: Identity
    pull: Optional[Pull] = None
    branches: Optional[Submitted] = None

    @property
    def is_noted(self) -> bool:
        """Whether the patch says all of it."""
        return self.identity == self.entry.identity

    @property
    def lacks_orig(self) -> bool:
        """Whether ghstack ended before it had pushed the commit itself."""
        return self.branches is not None and self.branches.orig is None

    def changed(self, git: Git) -> str:
        """What changed since it was submitted last, in words."""
        orig = self.branches.orig if self.branches else None
        if self.pull is None:
            return ""
        if orig is None:
            return "submitted by halves"
        if orig.tree == self.entry.tree:
            same = git.line("rev-parse", f"{orig.oid}^^{{tree}}") == self.entry.parent_tree
            return "nothing" if same else "what is below it"
        before, after = _by_file(git, orig.oid), _by_file(git, self.entry.commit)
        files = sorted(p for p in {*before, *after} if before.get(p) != after.get(p))
        return ", ".join(files) or "what is below it"


@dataclass
class Found:
    """What there is to say of a stack's pull requests."""

    planned: list[Planned] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def named_pulls(entries: Sequence[Entry], github: GitHub) -> tuple[dict[str, Pull], list[str]]:
    """The pull requests that patches name, by patch, and what is wrong with those names."""
    found: dict[str, Pull] = {}
    problems = []
    owners: dict[str, str] = {}
    for entry in entries:
        name, url = entry.patch.name, entry.identity.pull_request
        if url is None:
            continue
        if url in owners:
            problems.append(
                f"{owners[url]} and {name} both name {url}: leave it in the header of the one that"
                f" goes on with it, and take ghstack's lines out of the other's"
            )
            continue
        owners[url] = name
        number = github.number_of(url)
        if number is None:
            problems.append(
                f"{name} names {url}, which is not of {github.name}: submit it there, or"
                f" {_forget(name)}"
            )
            continue
        try:
            found[name] = github.pull(number)
        except GitHubError as error:
            if error.status != 404:
                raise
            problems.append(f"{name} names {url}, which is not there: {_forget(name)}")
    return found, problems


def resolve(
    entries: Sequence[Entry],
    series: Series,
    pulls: Mapping[str, Pull],
    submitted: Mapping[str, Submitted],
    github: GitHub,
    user: str,
) -> Found:
    """Find the pull request of each patch; what is not clear is a problem, and never a new one."""
    found = Found()
    known = {identity_of(patch.message).pull_request for patch in series.patches}
    strays = _Strays(submitted, known, github, user)
    for entry in entries:
        if entry.identity.pull_request is None:
            found.planned.append(strays.take(entry, found.problems))
        elif entry.patch.name in pulls:
            pull = pulls[entry.patch.name]
            problem, planned = _named(entry, pull, submitted)
            found.planned.append(planned)
            if problem is not None:
                found.problems.append(problem)
    found.problems += strays.left()
    found.problems += filter(None, map(_astray, found.planned))
    found.notes += _dropped(found.planned, known, github)
    return found


def _named(
    entry: Entry, pull: Pull, submitted: Mapping[str, Submitted]
) -> tuple[Optional[str], Planned]:
    """A patch that names a pull request, and what stands against submitting it."""
    name = entry.patch.name
    planned = Planned(entry, entry.identity, pull)
    if not pull.is_open:
        return (
            f"{name}: {pull} was {pull.state}: reopen it at {pull.url}, or take the patch out of"
            f" the series; to open a new one, {_forget(name)}",
            planned,
        )
    branches = submitted.get(pull.head.rpartition("/")[0])
    if not pull.head.startswith("gh/") or branches is None:
        return f"{name}: {pull} is not ghstack's, it comes from {pull.head}: {_forget(name)}", (
            planned
        )
    planned = replace(planned, branches=branches)
    if branches.orig is None:
        return None, planned
    local, there = entry.identity.source_id, branches.identity.source_id
    if local != there and branches.orig.tree != entry.tree:
        return (
            f"{name}: {pull} was updated from elsewhere: get the series as it was submitted there,"
            f" or take its change over ('git diff {local or entry.tree} {branches.orig.oid}') and"
            f" write '{SOURCE_ID}: {there}' into the patch",
            planned,
        )
    if local != there:
        planned = replace(planned, identity=branches.identity)
    return None, planned


def _astray(planned: Planned) -> Optional[str]:
    """What is wrong with a pull request's branches, on which ghstack ends with a traceback."""
    name, pull, branches = planned.entry.patch.name, planned.pull, planned.branches
    if pull is None or branches is None:
        return None
    for kind, tip in (("head", branches.head), ("base", branches.base)):
        if tip is None:
            return (
                f"{name}: {pull} has lost its branch {branches.name}/{kind}: restore it at"
                f" {pull.url}, or close that and {_forget(name)}"
            )
    if pull.base == f"{branches.name}/base":
        return None
    return (
        f"{name}: {pull} would be merged into {pull.base}, where ghstack has {branches.name}/base:"
        f" make that its base again at {pull.url}, or, if 'ghstack --direct' opened it, close it"
        f" and {_forget(name)}"
    )


class _Strays:
    """Pull requests of the user that no patch names: of a submit that was cut short, or lost."""

    def __init__(
        self,
        submitted: Mapping[str, Submitted],
        known: Iterable[Optional[str]],
        github: GitHub,
        user: str,
    ) -> None:
        self._github = github
        own = [s for name, s in submitted.items() if name.startswith(f"gh/{user}/")]
        self._complete = [
            s for s in own if s.orig and s.identity.pull_request not in (None, *known)
        ]
        self._halves: list[tuple[Submitted, Pull]] = []
        for half in own:
            if half.orig is None and half.head is not None:
                pulls = [p for p in github.pulls_from(f"{half.name}/head") if p.is_open]
                self._halves += [(half, pull) for pull in pulls if pull.url not in known]

    def take(self, entry: Entry, problems: list[str]) -> Planned:
        """The pull request of a patch that names none: the same change, or the same title."""
        for half, pull in self._halves:
            same = half.head and half.base and half.head.tree == entry.tree
            if (same and half.base and half.base.tree == entry.parent_tree) or (
                pull.title == entry.title
            ):
                self._halves.remove((half, pull))
                assert half.head is not None
                return Planned(entry, Identity(pull.url, half.head.tree), pull, half)
        for branches in self._complete:
            orig, identity = branches.orig, branches.identity
            assert orig is not None and identity.pull_request is not None
            if orig.title != entry.title and orig.tree != entry.tree:
                continue
            number = self._github.number_of(identity.pull_request)
            if number is None:
                continue
            pull = self._github.pull(number)
            if not pull.is_open:
                continue
            if orig.tree != entry.tree:
                problems.append(
                    f"{entry.patch.name} names no pull request, and {pull} has its title: if it is"
                    f" that one, write '{SOURCE_ID}: {identity.source_id}' and"
                    f" '{PULL_REQUEST}: {pull.url}' into its header; if not, give it another title,"
                    " or close that one"
                )
                return Planned(entry, entry.identity)
            self._complete.remove(branches)
            return Planned(entry, identity, pull, branches)
        return Planned(entry, entry.identity)

    def left(self) -> list[str]:
        """The halves that are no patch's."""
        return [
            f"{pull} '{pull.title}' was opened by a submit that was cut short, and no patch of the"
            f" stack is like it: close it at {pull.url}, or write '{PULL_REQUEST}: {pull.url}' into"
            " the header of its patch"
            for _, pull in self._halves
        ]


def _dropped(
    planned: Sequence[Planned], known: Iterable[Optional[str]], github: GitHub
) -> list[str]:
    """Open pull requests of the stack whose patch is gone."""
    listed = [int(n) for p in planned if p.pull for n in _STACKED.findall(p.pull.body)]
    notes = []
    for number in dict.fromkeys(listed):
        if github.url_of(number) in known or any(
            p.pull and p.pull.number == number for p in planned
        ):
            continue
        pull = github.pull(number)
        if pull.is_open:
            notes.append(
                f"{pull} '{pull.title}' is in this stack, and no patch names it: if its patch was"
                f" dropped, or is a part of another now, close it at {pull.url}"
            )
    return notes


def _forget(name: str) -> str:
    return f"take ghstack's lines out of the header of {name}"


def _by_file(git: Git, commit: str) -> dict[str, str]:
    """What a commit changes in each file, without line numbers."""
    files: dict[str, list[str]] = {}
    path = ""
    options = ("--no-commit-id", "--patch", "--no-renames", "--no-ext-diff", "--no-color", "-r")
    text = git.run("diff-tree", *options, commit).decode("utf-8", "replace")
    for line in text.splitlines():
        if line.startswith("diff --git "):
            path = line.rpartition(" b/")[2]
        elif not line.startswith(("index ", "@@ ")):
            files.setdefault(path, []).append(line)
    return {path: "\n".join(lines) for path, lines in files.items()}
