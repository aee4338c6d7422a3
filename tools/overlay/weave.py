"""A series on a tree of files, in memory: what would change, and what stands there already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Optional

from overlay import gitapply
from overlay.errors import OverlayError, PatchError
from overlay.hunks import CompiledHunk, apply_hunk, is_applied
from overlay.series import SeriesPatch
from overlay.source import Source, SourceError
from overlay.tree import ChangedTree, Tree


class State(str, Enum):
    """How a patch stands with a target."""

    APPLIED = "applied"
    PENDING = "pending"
    UPSTREAMED = "upstreamed"
    CONFLICT = "in conflict"
    NOT_SELECTED = "not selected"


@dataclass(frozen=True)
class PatchState:
    """How one patch stands with a target, and why where that needs saying."""

    patch: SeriesPatch
    state: State
    reason: str = ""
    details: tuple[str, ...] = ()


Carries = Callable[[str], bool]


@dataclass(frozen=True)
class _Part:
    """One hunk, diff or added file of a patch."""

    name: str
    is_there: bool
    is_import: bool = False


@dataclass
class Weaver:
    """A tree that patches are applied to and taken back from, in memory."""

    tree: Tree
    carries: Carries = field(default=lambda path: True)
    """Whether the target takes a file; an installed torch has no ``test/``."""
    _texts: dict[str, Source] = field(default_factory=dict)
    _changed: dict[str, Optional[bytes]] = field(default_factory=dict)

    def changes(self) -> dict[str, Optional[bytes]]:
        """The files that differ from the tree's, with their content; None for a removed one."""
        return {
            path: content
            for path, content in sorted(self._changed.items())
            if content != self.tree.read(path)
        }

    def apply(self, patch: SeriesPatch) -> bool:
        """Apply a patch; False if its result stood there already.

        Raises PatchError if it does not fit, or if only a part of it is there; then
        nothing has changed.
        """
        return self._all_or_nothing(patch, reverse=False)

    def take_back(self, patch: SeriesPatch) -> bool:
        """Take a patch back; False if it was not there. As tokens: layout is not restored."""
        return self._all_or_nothing(patch, reverse=True)

    def is_applied(self, patch: SeriesPatch) -> bool:
        """Whether a patch's whole result stands in the tree; PatchError if that is unclear."""
        parts = self._parts(patch)
        # That an import is there already says nothing, unless there is nothing else to go by.
        telling = [part for part in parts if not part.is_import] or parts
        there = [part.name for part in telling if part.is_there]
        missing = [part.name for part in parts if not part.is_there]
        if there and missing:
            raise PatchError(
                f"{patch.name}: only a part of it is there",
                [*(f"there: {name}" for name in there), *(f"missing: {name}" for name in missing)],
            )
        return bool(there)

    def _all_or_nothing(self, patch: SeriesPatch, reverse: bool) -> bool:
        if self.is_applied(patch) != reverse:
            return False
        texts, changed = dict(self._texts), dict(self._changed)
        try:
            self._write(patch, reverse)
        except OverlayError:
            self._texts, self._changed = texts, changed
            raise
        return True

    def _write(self, patch: SeriesPatch, reverse: bool) -> None:
        if patch.is_line_numbered:
            for path, content in self._diff(patch, reverse).items():
                self._set(path, content)
        for path, hunks in self._hunks(patch):
            ordered: Iterable[CompiledHunk] = hunks
            if reverse:
                ordered = [hunk.reversed() for hunk in reversed(hunks)]
            source = self._source(path, patch)
            for hunk in ordered:
                # An import may be in use elsewhere: it stays.
                if not (reverse and hunk.reversed().adds_imports):
                    source = apply_hunk(hunk, source)
            try:
                self._changed[path] = source.encode()
            except SourceError as error:
                raise PatchError(f"{patch.name}: {path}: {error}") from None
            self._texts[path] = source
        for path in self._added(patch):
            self._set(path, None if reverse else patch.added[path])

    def _parts(self, patch: SeriesPatch) -> list[_Part]:
        """The parts of a patch, each with whether its result is there."""
        parts: list[_Part] = []
        if patch.is_line_numbered and any(map(self.carries, patch.paths)):
            parts.append(_Part("the diff", self._diff_is_there(patch)))
        for path, hunks in self._hunks(patch):
            parts += self._hunks_there(path, hunks, patch)
        for path in self._added(patch):
            content = self._read(path)
            if content is not None and content != patch.added[path]:
                raise PatchError(
                    f"{patch.name}: Adds: {path}: the target has such a file with other content"
                )
            parts.append(_Part(path, content is not None))
        return parts

    def _diff_is_there(self, patch: SeriesPatch) -> bool:
        try:
            self._diff(patch, reverse=True)
        except PatchError:
            self._diff(patch, reverse=False)
            return False
        return True

    def _hunks_there(
        self, path: str, hunks: Sequence[CompiledHunk], patch: SeriesPatch
    ) -> list[_Part]:
        """Which hunks of a file are there; a later one may change what an earlier one wrote."""
        source = self._source(path, patch)
        try:
            return self._hunks_there_from_last(path, hunks, source)
        except PatchError:
            # Until it is applied, a later one may find nothing without an earlier one.
            if not _all_pending(hunks, source):
                raise
            names = [_hunk_name(path, number, hunk) for number, hunk in enumerate(hunks, 1)]
            return [_Part(name, False, hunk.adds_imports) for name, hunk in zip(names, hunks)]

    def _hunks_there_from_last(
        self, path: str, hunks: Sequence[CompiledHunk], source: Source
    ) -> list[_Part]:
        parts = []
        for number, hunk in reversed(list(enumerate(hunks, 1))):
            there = is_applied(hunk, source)
            if there and not hunk.adds_imports:
                source = apply_hunk(hunk.reversed(), source)
            parts.append(_Part(_hunk_name(path, number, hunk), there, hunk.adds_imports))
        return parts[::-1]

    def _hunks(self, patch: SeriesPatch) -> list[tuple[str, tuple[CompiledHunk, ...]]]:
        return [(path, hunks) for path, hunks in patch.hunks.items() if self.carries(path)]

    def _added(self, patch: SeriesPatch) -> list[str]:
        return [path for path in patch.added if self.carries(path)]

    def _diff(self, patch: SeriesPatch, reverse: bool) -> dict[str, Optional[bytes]]:
        files = {path: self._read(path) for path in patch.paths if path not in patch.added}
        return gitapply.apply_diff(patch.text, files, patch.name, reverse)

    def _read(self, path: str) -> Optional[bytes]:
        return self._changed[path] if path in self._changed else self.tree.read(path)

    def _set(self, path: str, content: Optional[bytes]) -> None:
        self._texts.pop(path, None)
        self._changed[path] = content

    def _source(self, path: str, patch: SeriesPatch) -> Source:
        if path not in self._texts:
            content = self._read(path)
            if content is None:
                raise PatchError(f"{patch.name}: {path}: the target has no such file")
            try:
                source = Source.decode(content)
                source.tokens  # noqa: B018 - read now, so that a file that is not Python is told here
            except SourceError as error:
                raise PatchError(f"{patch.name}: {path}: {error}") from None
            self._texts[path] = source
        return self._texts[path]


def _hunk_name(path: str, number: int, hunk: CompiledHunk) -> str:
    return f"{path}: hunk {number}, @@ {hunk.hunk.symbol}"


def _all_pending(hunks: Sequence[CompiledHunk], source: Source) -> bool:
    """Whether each of some hunks, in order, changes what those before it make of a source."""
    for hunk in hunks:
        try:
            after = apply_hunk(hunk, source)
        except PatchError:
            return False
        if after is source and not hunk.adds_imports:
            return False
        source = after
    return True


@dataclass(frozen=True)
class Survey:
    """How a series stands with a tree."""

    states: tuple[PatchState, ...]
    base: Tree
    """The tree without what the series has changed in it; that is taken back as tokens."""
    changes: Mapping[str, Optional[bytes]]
    """What the whole series makes of the base, as far as its patches fit.

    What stands there already stays as it is, to the byte, unless a patch has to go below it.
    """

    def in_state(self, *states: State) -> tuple[PatchState, ...]:
        """The patches in any of some states."""
        return tuple(state for state in self.states if state.state in states)


def survey(
    patches: Sequence[SeriesPatch], tree: Tree, carries: Carries = lambda path: True
) -> Survey:
    """Find out of each patch of a series whether it is applied, pending or in conflict.

    What later patches have written over an earlier one is taken back first, in memory.
    """
    backward = Weaver(tree, carries)
    applied: set[str] = set()
    for patch in reversed(patches):
        # A patch that is unclear here is said below, on the tree that those before it make.
        with suppress(PatchError):
            if backward.take_back(patch):
                applied.add(patch.name)
    base = ChangedTree(tree, backward.changes())
    forward = Weaver(base, carries)
    states = []
    for patch in patches:
        try:
            forward.apply(patch)
            state = State.APPLIED if patch.name in applied else State.PENDING
            states.append(PatchState(patch, state))
        except PatchError as error:
            states.append(PatchState(patch, State.CONFLICT, error.message, error.details))
    changes = forward.changes()
    if applied:
        pending = [state.patch for state in states if state.state is State.PENDING]
        on_top = _on_top(pending, tree, carries, backward.changes())
        changes = changes if on_top is None else on_top
    return Survey(tuple(states), base, changes)


def _on_top(
    pending: Sequence[SeriesPatch],
    tree: Tree,
    carries: Carries,
    taken_back: Mapping[str, Optional[bytes]],
) -> Optional[dict[str, Optional[bytes]]]:
    """What becomes of all files when pending patches are put on the applied ones as they stand.

    To take those back and to apply them again would change their layout, and comments in them.
    None where a pending patch only fits below an applied one.
    """
    weaver = Weaver(tree, carries)
    try:
        if not all(weaver.apply(patch) for patch in pending):
            return None
    except PatchError:
        return None
    after = ChangedTree(tree, weaver.changes())
    return {path: after.read(path) for path in sorted({*taken_back, *weaver.changes()})}


def left_out(patch: SeriesPatch, carries: Carries) -> tuple[str, ...]:
    """The files of a patch that a target does not take."""
    return tuple(path for path in patch.paths if not carries(path))
