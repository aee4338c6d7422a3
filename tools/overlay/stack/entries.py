"""The commits that the patches of a series are in a checkout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from overlay import operations
from overlay.errors import TargetError, UsageError
from overlay.git import Git
from overlay.mails import Step, commit_text
from overlay.series import Series, SeriesPatch
from overlay.stack.identity import TRAILERS, Identity, identity_of
from overlay.targets import Checkout
from overlay.weave import State


@dataclass(frozen=True)
class Entry:
    """A patch and its commit."""

    patch: SeriesPatch
    commit: str
    parent: str
    tree: str
    parent_tree: str
    message: str
    """The commit's, which ghstack may have changed."""

    @property
    def identity(self) -> Identity:
        """Which pull request the patch says it is."""
        return identity_of(self.patch.message)

    @property
    def title(self) -> str:
        """The first line of the patch's message as a commit."""
        return commit_text(self.patch).message.split("\n", 1)[0]


@dataclass(frozen=True)
class Stack:
    """The series as it is committed: what ghstack would submit."""

    base: str
    """The commit below."""
    entries: tuple[Entry, ...]
    """The lowest first; a patch that changes nothing has none."""
    steps: tuple[Step, ...]
    """What they do."""

    @property
    def changes(self) -> dict[str, Optional[bytes]]:
        """What all of them together make of the base."""
        return {path: content for step in self.steps for path, content in step.changes.items()}


def find_stack(target: Checkout, series: Series) -> Stack:
    """The commits of a series, one a patch, if they are the topmost and as the series makes them.

    Raises TargetError, with what to do, if not.
    """
    record = target.record()
    if record is not None:
        digests = {patch.name: patch.digest for patch in series.selected(target.version)}
        edited = [p.name for p in record.series if digests.get(p.name) != p.digest]
        edited += [name for name in digests if name not in {p.name for p in record.series}]
        upstreamed = {p.name for p in _upstreamed(target, series)}
        edited = [name for name in edited if name not in upstreamed]
        if edited:
            raise TargetError(
                f"{edited[0]} is not as it was when it was applied:"
                f" 'torch-overlay apply {target.root}' brings the commits up to date"
            )
    base = operations.commit_below(target, series)
    if base is None:
        raise _not_as_woven(target, series)
    steps = operations.steps(target.at(base), series)
    entries = read_entries(target, base, steps)
    if entries is None:
        raise TargetError(
            f"the commits above {base[:12]} are not one a patch: 'torch-overlay revert"
            f" {target.root}', then 'torch-overlay apply {target.root}' makes them anew"
        )
    for entry in entries:
        # A hook may have added lines. If ghstack was cut short before its own were noted in the
        # patch, they are there too, and no @ is; submit makes the commits anew then.
        lines = _without_ghstack(entry.message)
        if not lines.issuperset(_without_ghstack(commit_text(entry.patch).message)):
            raise TargetError(
                f"the commit of {entry.patch.name} does not say what the patch says:"
                f" 'torch-overlay revert {target.root}', then 'torch-overlay apply {target.root}'"
                " makes it anew"
            )
    return Stack(base, entries, steps)


def _without_ghstack(message: str) -> set[str]:
    lines = message.replace("@", "").splitlines()
    return {line for line in lines if not line.startswith(TRAILERS)}


def read_entries(target: Checkout, base: str, steps: Sequence[Step]) -> Optional[tuple[Entry, ...]]:
    """The commits above ``base``, if each does what the step at its place does."""
    git = Git(target.root)
    listing = git.run(
        *("log", "--no-show-signature", "--reverse", "--format=%H%x00%P%x00%T%x00%B%x00"),
        f"{base}..{target.head}",
    )
    entries: list[Entry] = []
    parent, parent_tree = base, git.line("rev-parse", f"{base}^{{tree}}")
    parts = listing.decode("utf-8", "replace").split("\0")[:-1]
    commits = list(zip(parts[::4], parts[1::4], parts[2::4], parts[3::4]))
    if len(commits) != len(steps):
        return None
    for step, (line, parents, tree, message) in zip(steps, commits):
        commit = line.strip()
        changes = target.at(commit).touched_since(parent)
        if parents != parent or changes != target.oids(step.changes):
            return None
        entries.append(Entry(step.patch, commit, parent, tree, parent_tree, message))
        parent, parent_tree = commit, tree
    return tuple(entries)


def find_entry(entries: Sequence[Entry], name: str) -> Entry:
    """The entry that a user names: by the patch's path, or a unique end of it."""

    def fits(entry: Entry) -> bool:
        stem = entry.patch.name.rsplit(".", 1)[0]
        return name in (entry.patch.name, stem, stem.rsplit("/", 1)[-1])

    found = [entry for entry in entries if fits(entry)]
    if len(found) != 1:
        names = [entry.patch.name for entry in entries]
        raise UsageError(f"{name}: no patch of this stack: name one of {', '.join(names)}")
    return found[0]


def _upstreamed(target: Checkout, series: Series) -> tuple[SeriesPatch, ...]:
    return operations.standing(target, series).patches(State.UPSTREAMED)


def _not_as_woven(target: Checkout, series: Series) -> TargetError:
    """Why the series is not what the topmost commits do."""
    apply = f"'torch-overlay apply {target.root}'"
    found = operations.standing(target, series)
    if found.edited:
        return TargetError(target.describe_edit(found.edited[0]))
    patches = {
        commit_text(patch).message.split("\n", 1)[0]: patch
        for patch in series.selected(target.version)
    }
    # The nearest commits down to the lowest with a patch's title.
    git = Git(target.root)
    lines = git.run(
        "log", "--no-show-signature", "-z", "--first-parent", "-200", "--format=%H %s", target.head
    )
    commits = [line.split(" ", 1) for line in lines.decode("utf-8", "replace").split("\0") if line]
    known = [number for number, (_, title) in enumerate(commits) if title in patches]
    if not known:
        return TargetError(f"the series is not applied: {apply} does it first")
    steps = {}
    base = git.found("rev-parse", f"{commits[known[-1]][0]}^")
    if base is not None:
        steps = {step.patch.name: step for step in operations.steps(target.at(base), series)}
    details = []
    for commit, title in reversed(commits[: known[-1] + 1]):
        patch = patches.get(title)
        if patch is None:
            details.append(f"{commit[:12]} '{title}' is no patch of the series")
            continue
        step = steps.get(patch.name)
        changes = target.at(commit).touched_since(f"{commit}^")
        if step is None or changes != target.oids(step.changes):
            details.append(f"{commit[:12]} '{title}' is not as {patch.name} makes it")
    absent = [patch.name for title, patch in patches.items() if title not in dict(_swap(commits))]
    details += [f"{name} has no commit" for name in absent if name in steps]
    return TargetError(
        "the commits are not what the series makes: 'torch-overlay import"
        f" {target.root} COMMIT -o DIR' turns one into a patch to take its place in the series,"
        f" 'git rebase -i' takes one out",
        details,
    )


def _swap(commits: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    return [(title, commit) for commit, title in commits]
