"""Lays a hunk out: tokens that are quoted, edits, and ``...`` for what is between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from overlay.apatch import Hunk, Line
from overlay.pattern import ELLIPSIS
from overlay.rewrite import HUNK_INDENT
from overlay.source import (
    CLOSING,
    OPENING,
    Brackets,
    Region,
    Source,
    SourceError,
    line_of,
    tokens_of,
)


@dataclass(frozen=True)
class Sketched:
    """One edit: tokens ``start`` to ``stop`` go, and these lines come, indented as in a file.

    ``width`` is the indentation there that stands for the depth ``depth``.
    """

    start: int
    stop: int
    lines: tuple[str, ...]
    depth: int
    width: int
    blank_before: int = 0
    blank_after: int = 0


class Sketch:
    """Hunks on one region of a source."""

    def __init__(self, source: Source, region: Region, symbol: str) -> None:
        self.source = source
        self.region = region
        self.symbol = symbol
        self.tokens = region.tokens
        self._brackets = Brackets.none(len(self.tokens)) if region.is_text else source.brackets

    def may_quote(self, index: int) -> bool:
        """Whether a token may stand in a hunk as context."""
        if not self.region.start <= index < self.region.end:
            return False
        token = self.tokens[index]
        if token.text == ELLIPSIS or "\n" in token.text or "\r" in token.text:
            return False
        if self.region.is_text:
            return True
        owner = self.source.owner(index)
        if owner == self.region.symbol:
            return True
        symbol = self.source.symbols[owner]
        return symbol.parent == self.region.symbol and symbol.keyword <= index < symbol.body

    def closure(self, quoted: Iterable[int], edits: Sequence[Sketched]) -> Optional[frozenset[int]]:
        """The quoted tokens with those that must be quoted too; None if one may not be.

        ``...`` stands for balanced brackets, and alone in its line for whole lines.
        """
        chosen = set(quoted)
        while True:
            missing = self._missing(chosen, edits)
            if not missing:
                return frozenset(chosen) if all(map(self.may_quote, chosen)) else None
            chosen |= missing

    def _missing(self, chosen: set[int], edits: Sequence[Sketched]) -> set[int]:
        if self.region.is_text:
            return set()
        missing = set()
        items = self._items(chosen, edits)
        for (_, start, edit_before), (stop, _, edit_after) in zip(items, items[1:]):
            if edit_before is not None and stop == self.definition_at(start):
                continue
            for index in range(start, stop):
                text = self.tokens[index].text
                if text in OPENING:
                    inside = self._brackets.partner.get(index, index) < stop
                elif text in CLOSING:
                    inside = self._brackets.opening.get(index, -1) >= start
                else:
                    continue
                if not inside:
                    missing.add(index)
            if start < stop < len(self.tokens) and edit_after is not None and not missing:
                line = self.line(stop)
                goes_on = line < start and edit_before is None
                if line != stop and not goes_on and self._brackets.level_before(stop) == 0:
                    missing.add(stop - 1)
        return missing

    def _items(
        self, quoted: Iterable[int], edits: Sequence[Sketched]
    ) -> list[tuple[int, int, Optional[Sketched]]]:
        """What a hunk consists of, in order, each with where it begins and ends."""
        items: list[tuple[int, int, Optional[Sketched]]] = [
            (index, index + 1, None) for index in quoted
        ]
        items += [(edit.start, edit.stop, edit) for edit in edits]
        return sorted(items, key=lambda item: (item[0], item[1]))

    def definition_at(self, index: int) -> int:
        """The ``def`` or ``class`` of the decorated definition that begins at a token.

        Before the definition means before its decorators. Else the token itself.
        """
        if self.region.is_text or index >= len(self.tokens) or self.tokens[index].text != "@":
            return index
        symbol = self.source.symbols[self.source.owner(index)]
        inside = self.source.owner(index) != self.region.symbol and symbol.start == index
        return symbol.keyword if inside else index

    def line(self, index: int) -> int:
        """The first token of a token's logical line."""
        while index and not self.tokens[index].starts_line:
            index -= 1
        return index

    def hunk(
        self,
        quoted: Iterable[int],
        edits: Sequence[Sketched],
        from_start: bool = False,
        to_end: bool = False,
    ) -> Hunk:
        """The hunk; ``...`` at an edge says that the edit there stands at the block's edge."""
        writer = _Writer(self, self._items(quoted, edits))
        return Hunk(self.symbol, tuple(writer.lines(from_start, to_end)))


class _Writer:
    def __init__(
        self, sketch: Sketch, items: Sequence[tuple[int, int, Optional[Sketched]]]
    ) -> None:
        self.source = sketch.source
        self.tokens = sketch.tokens
        self.is_text = sketch.region.is_text
        self.line_of = sketch.line
        self.definition_at = sketch.definition_at
        self.items = items
        self.out: list[Line] = []
        self.open = False
        """Whether the last line is context that may go on."""
        is_module = sketch.region.symbol < 0 and not self.is_text
        # The first column of a hunk on the module is the module's own.
        self.base = (
            0
            if is_module
            else min(
                [self._depth(start) for start, stop, _ in items if start < len(self.tokens)]
                + [edit.depth for _, _, edit in items if edit is not None]
            )
        )

    def _depth(self, index: int) -> int:
        return 0 if self.is_text else self.tokens[index].depth

    def lines(self, from_start: bool, to_end: bool) -> list[Line]:
        edge = self.items[0][2] or self.items[-1][2]
        dots = " " * self._column(edge.depth if edge else 0) + ELLIPSIS
        if to_end:
            self.out.append(Line(" ", dots))
        at: Optional[int] = None
        follows_edit = False
        for start, stop, edit in self.items:
            if at is not None and follows_edit and start == self.definition_at(at):
                at = start
            if at is not None and at < start:
                self._gap(at, start)
            if edit is None:
                self._quote(start, at == start)
            else:
                self._edit(edit)
            at = stop
            follows_edit = edit is not None
        if from_start:
            self.out.append(Line(" ", dots))
        return self.out

    def _column(self, depth: int) -> int:
        return HUNK_INDENT * (depth - self.base)

    def _column_of(self, index: int) -> int:
        token = self.tokens[index]
        if not self.is_text:
            return self._column(token.depth)
        indent = self.source.indentation(token.start)
        return max(len(indent) - self._text_width(), 0)

    def _text_width(self) -> int:
        """The indentation of the statement that a docstring is."""
        first = self.tokens[0].start
        statement = next(t for t in self.source.tokens if t.end > first)
        return len(self.source.indentation(statement.start))

    def _quote(self, index: int, adjacent: bool) -> None:
        token = self.tokens[index]
        before = self.source.text[self.tokens[index - 1].end : token.start] if index else ""
        breaks = "\n" in before or "\r" in before
        if not self.open or token.starts_line or (self.is_text and breaks and adjacent):
            self._begin(" " * self._column_of(index) + token.text)
            return
        previous = self.out[-1].text
        if adjacent and not breaks:
            space = before
        else:
            tight = previous.endswith(tuple(OPENING)) or token.text in (*CLOSING, ",")
            space = "" if tight else " "
        self.out[-1] = Line(" ", previous + space + token.text)

    def _begin(self, text: str) -> None:
        self.out.append(Line(" ", text))
        self.open = True

    def _dots(self, column: int) -> None:
        """``...`` on a line of its own."""
        self.out.append(Line(" ", " " * column + ELLIPSIS))
        self.open = False

    def _more_dots(self, index: int) -> None:
        """``...`` within a line, for code that begins with a token."""
        if self.open and not self.tokens[index].starts_line:
            last = self.out[-1].text
            self.out[-1] = Line(" ", last + ("" if last[-1:] in OPENING else " ") + ELLIPSIS)
        else:
            self._begin(" " * self._column_of(index) + ELLIPSIS)

    def _gap(self, start: int, stop: int) -> None:
        if self.is_text:
            self._more_dots(start)
            return
        line = stop if stop == len(self.tokens) else self.line_of(stop)
        if line <= start and line != stop:
            self._more_dots(start)
            return
        at = start
        if not self.tokens[at].starts_line:
            following = self._next_line(at)
            if self.open:
                self._more_dots(at)
                self.open = False
                at = following
            else:
                depth = max(self._depth(at), self._depth(following))
                self._dots(self._column(depth))
                at = self._after_block(following, line, depth)
        while at < line:
            depth = self._depth(at)
            self._dots(self._column(depth))
            at = self._after_block(at, line, depth)
        if at < stop:
            self._more_dots(at)

    def _next_line(self, index: int) -> int:
        index += 1
        while index < len(self.tokens) and not self.tokens[index].starts_line:
            index += 1
        return index

    def _after_block(self, index: int, stop: int, depth: int) -> int:
        while index < stop and (not self.tokens[index].starts_line or self._depth(index) >= depth):
            index += 1
        return index

    def _edit(self, edit: Sketched) -> None:
        self.open = False
        if edit.start < edit.stop:
            self.out += [Line("-", "")] * edit.blank_before
            self.out += self._removed(edit.start, edit.stop)
            self.out += [Line("-", "")] * edit.blank_after
        shift = self._column(edit.depth) - edit.width
        inside = self._inside_strings(edit.lines)
        for row, line in enumerate(edit.lines):
            if row in inside:
                self.out.append(Line("+", line))
            elif not line.strip():
                self.out.append(Line("+", ""))
            else:
                bare = line.lstrip(" \t")
                indent = max(len(line) - len(bare) + shift, 0)
                self.out.append(Line("+", " " * indent + bare))

    def _inside_strings(self, lines: Sequence[str]) -> set[int]:
        """The rows that begin in a string which is no docstring."""
        if self.is_text:
            return set()
        return _string_rows("\n".join(lines))

    def _removed(self, start: int, stop: int) -> list[Line]:
        lines: list[str] = []
        origin = 0
        for index in range(start, stop):
            token = self.tokens[index]
            before = self.source.text[self.tokens[index - 1].end : token.start] if index else ""
            indent = len(self.source.indentation(token.start).expandtabs(4))
            if index == start or token.starts_line:
                lines.append(" " * self._column_of(index) + token.text)
                origin = indent - self._column_of(index)
            elif "\n" in before or "\r" in before:
                lines.append(" " * max(indent - origin, 0) + token.text)
            else:
                lines[-1] += before + token.text
        text = "\n".join(lines)
        return [Line("-", line) for line in text.replace("\r\n", "\n").split("\n")]


def _string_rows(text: str) -> set[int]:
    """The rows, from 0, of a fragment that begin inside a string which is no docstring."""
    try:
        tokens = tokens_of(text)
    except SourceError:
        return set()
    return {
        row
        for token in tokens
        if not token.starts_line and isinstance(token.key, tuple)
        for row in range(line_of(text, token.start), line_of(text, token.end))
    }
