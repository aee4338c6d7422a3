"""What differs between two versions of a file: tokens that stay, and changes between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from overlay.apatch import DOCSTRING
from overlay.source import NEWLINE, Token


@dataclass(frozen=True)
class Change:
    """Tokens ``old_start`` to ``old_stop`` of one version that become ``start`` to ``stop``.

    None on both sides: only the layout or a comment between two tokens changes.
    """

    old_start: int
    old_stop: int
    start: int
    stop: int

    @property
    def growth(self) -> int:
        """By how many tokens the file grows."""
        return (self.stop - self.start) - (self.old_stop - self.old_start)

    @property
    def is_layout(self) -> bool:
        """Whether no token changes."""
        return self.old_start == self.old_stop and self.start == self.stop

    def shifted(self, by: int) -> Change:
        """The change where the old tokens stand ``by`` tokens later."""
        return replace(self, old_start=self.old_start + by, old_stop=self.old_stop + by)


@dataclass(frozen=True)
class Versions:
    """A text before and after, as tokens or as words."""

    old_text: str
    old: Sequence[Token]
    text: str
    new: Sequence[Token]
    old_docstrings: frozenset[int] = frozenset()
    docstrings: frozenset[int] = frozenset()
    """Tokens that stay whatever they say: what changes in them is compared by words."""

    def old_segment(self, change: Change) -> tuple[int, int]:
        """The offsets between the tokens around a change, before it."""
        return _segment(self.old_text, self.old, change.old_start, change.old_stop)

    def segment(self, change: Change) -> tuple[int, int]:
        """The offsets between the tokens around a change, after it."""
        return _segment(self.text, self.new, change.start, change.stop)

    def changes(self) -> list[Change]:
        """All changes, in order, each as small as it can be."""
        kept = list(self._kept())
        ends = [(-1, -1), *kept, (len(self.old), len(self.new))]
        found = []
        for (old_before, before), (old_after, after) in zip(ends, ends[1:]):
            change = Change(old_before + 1, old_after, before + 1, after)
            if not change.is_layout or self._differs(change):
                found.append(change)
        return [self._slid(change, found) for change in found]

    def _differs(self, change: Change) -> bool:
        old, new = self.old_segment(change), self.segment(change)
        return self.old_text[slice(*old)] != self.text[slice(*new)]

    def _kept(self) -> Iterator[tuple[int, int]]:
        """Pairs of tokens that stay: by lines first, since tokens repeat and lines seldom do."""
        old_lines, new_lines = _lines(self.old_text), _lines(self.text)
        old_rows, new_rows = _rows(self.old_text, self.old), _rows(self.text, self.new)
        matcher = _matcher(old_lines, new_lines)
        old_at = new_at = 0
        for old_start, start, size in _anchors(matcher, old_lines):
            old_first, first = old_rows[old_start], new_rows[start]
            old_last, last = old_rows[old_start + size], new_rows[start + size]
            yield from self._kept_in(old_at, old_first, new_at, first)
            yield from self._kept_in(old_first, old_last, first, last)
            old_at, new_at = old_last, last

    def _kept_in(
        self, old_start: int, old_stop: int, start: int, stop: int
    ) -> Iterator[tuple[int, int]]:
        old = [self._old_identity(index) for index in range(old_start, old_stop)]
        new = [self._identity(index) for index in range(start, stop)]
        if old == new:
            yield from zip(range(old_start, old_stop), range(start, stop))
            return
        for old_at, at, size in _matcher(old, new).get_matching_blocks():
            for index in range(size):
                yield old_start + old_at + index, start + at + index

    def _old_identity(self, index: int) -> tuple[str, int, bool]:
        return _identity(self.old[index], index in self.old_docstrings)

    def _identity(self, index: int) -> tuple[str, int, bool]:
        return _identity(self.new[index], index in self.docstrings)

    def _slid(self, change: Change, others: Sequence[Change]) -> Change:
        """An insertion or removal where it reads best: as whole statements, or up to a comma.

        Where what it begins with stands behind it too, it can be told to stand later, and the
        other way round.
        """
        if (change.old_start == change.old_stop) == (change.start == change.stop):
            return change
        low = max((o.old_stop for o in others if o.old_start < change.old_start), default=-1)
        high = min(
            (o.old_start for o in others if o.old_start > change.old_start),
            default=len(self.old) + 1,
        )
        choices = [change]
        for step in (-1, 1):
            moved = change
            while True:
                moved = Change(
                    moved.old_start + step,
                    moved.old_stop + step,
                    moved.start + step,
                    moved.stop + step,
                )
                if not low < moved.old_start or not moved.old_stop < high:
                    break
                if not self._may_stand(change, moved):
                    break
                choices.append(moved)
        return max(choices, key=self._reads)

    def _may_stand(self, change: Change, moved: Change) -> bool:
        """Whether a change slid by some tokens is the same change."""
        if moved.old_start < 0 or moved.old_stop > len(self.old) or moved.stop > len(self.new):
            return False
        old_low, old_high = (
            min(change.old_start, moved.old_start),
            max(change.old_stop, moved.old_stop),
        )
        low, high = min(change.start, moved.start), max(change.stop, moved.stop)
        old = [*range(old_low, moved.old_start), *range(moved.old_stop, old_high)]
        new = [*range(low, moved.start), *range(moved.stop, high)]
        if any(self._old_identity(i) != self._identity(j) for i, j in zip(old, new)):
            return False
        ends = [(old_high, high)] if moved.old_stop < old_high else []
        return all(
            self._gap(self.old_text, self.old, i) == self._gap(self.text, self.new, j)
            for i, j in [*zip(old, new), *ends]
            if i != moved.old_stop
        )

    @staticmethod
    def _gap(text: str, tokens: Sequence[Token], index: int) -> str:
        start, stop = _segment(text, tokens, index, index)
        return text[start:stop]

    def _reads(self, change: Change) -> tuple[bool, bool, int]:
        tokens, start, stop = self.new, change.start, change.stop
        if start == stop:
            tokens, start, stop = self.old, change.old_start, change.old_stop
        begins = tokens[start].starts_line
        whole = begins and (stop == len(tokens) or tokens[stop].starts_line)
        depth = tokens[start].depth if whole else 0
        return whole, tokens[stop - 1].text == ",", -depth


def _segment(text: str, tokens: Sequence[Token], start: int, stop: int) -> tuple[int, int]:
    return (
        tokens[start - 1].end if start else 0,
        tokens[stop].start if stop < len(tokens) else len(text),
    )


def _identity(token: Token, is_docstring: bool) -> tuple[str, int, bool]:
    """What must be the same for a token to stay; its text, since it stays byte for byte."""
    return DOCSTRING if is_docstring else token.text, token.depth, token.starts_line


def _matcher(old: Sequence[object], new: Sequence[object]) -> SequenceMatcher[object]:
    return SequenceMatcher(None, old, new, autojunk=False)


def _anchors(
    matcher: SequenceMatcher[object], lines: Sequence[str]
) -> Iterator[tuple[int, int, int]]:
    """Runs of lines that stay; a lone blank line or bracket may stay by chance alone."""
    blocks = matcher.get_matching_blocks()
    for old_start, start, size in blocks:
        told = any(sum(map(str.isalnum, line)) > 2 for line in lines[old_start : old_start + size])
        at_edge = (old_start, start) == (0, 0)
        if told or at_edge or not size:
            yield old_start, start, size


def _lines(text: str) -> list[str]:
    """The lines with their ends; the last one, without, may be empty."""
    lines, at = [], 0
    for match in NEWLINE.finditer(text):
        lines.append(text[at : match.end()])
        at = match.end()
    return [*lines, text[at:]]


def _rows(text: str, tokens: Sequence[Token]) -> list[int]:
    """For each line the number of tokens that begin before it, then the number of all."""
    rows, at, offset = [], 0, 0
    for line in _lines(text):
        while at < len(tokens) and tokens[at].start < offset:
            at += 1
        rows.append(at)
        offset += len(line)
    return [*rows, len(tokens)]
