"""A hunk as what is looked for in a source: tokens, ``...``, and where the edits stand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Optional, Union

from overlay.apatch import Hunk, Line, PatchSyntaxError
from overlay.source import (
    SourceError,
    Token,
    lines_in_definitions,
    tokens_of,
    words_of,
)

ELLIPSIS = "..."
IMPORTS = frozenset({"from", "import"})


@dataclass(frozen=True)
class Literal:
    """A token that must stand there."""

    key: object
    text: str
    mark: str
    line: int
    """Index of the hunk's line."""
    column: int
    """Where its line in the hunk begins, after the mark."""
    first: bool
    """Whether it is the first token of its line in the hunk."""
    defined: bool
    """Whether it belongs to a class or function that this edit writes or removes."""


@dataclass(frozen=True)
class Wild:
    """``...``: any code that stays; brackets in it are balanced."""

    line: int
    column: int
    own_line: bool


@dataclass(frozen=True)
class BlockStart:
    """Where the symbol's body begins, after its docstring."""


@dataclass(frozen=True)
class BlockEnd:
    """The end of the block, or of the brackets, that the ``...`` before stands in."""


Element = Union[Literal, Wild, BlockStart, BlockEnd]


@dataclass(frozen=True)
class Edit:
    """One change: elements ``start`` to ``stop`` (none for an insertion) become ``lines``."""

    start: int
    stop: int
    lines: tuple[Line, ...]
    """What stands there on the other side."""
    blank_before: int = 0
    """How many blank lines its own side begins with."""
    blank_after: int = 0

    @property
    def inserts(self) -> bool:
        """Whether the edit takes nothing away."""
        return self.start == self.stop


@dataclass(frozen=True)
class Pattern:
    """One side of a hunk: how the source reads before it is applied, or after."""

    is_text: bool
    elements: tuple[Element, ...]
    edits: tuple[Edit, ...]

    @property
    def writes_imports(self) -> bool:
        """Whether all that its edits consist of are imports."""
        firsts = [self.elements[edit.start] for edit in self.edits if not edit.inserts]
        return len(firsts) == len(self.edits) and all(
            isinstance(first, Literal) and first.text in IMPORTS for first in firsts
        )


def compile_hunk(hunk: Hunk, where: str) -> tuple[Pattern, Pattern]:
    """How the source reads before a hunk is applied, and after.

    Raises PatchSyntaxError for a hunk that could not say where it stands, or whether
    it is applied; ``where`` names the hunk in it.
    """
    old, old_edits = _read_side(hunk, "-", where)
    new, new_edits = _read_side(hunk, "+", where)
    if not old_edits:
        raise PatchSyntaxError(f"{where}: changes nothing: mark lines with '-' or '+'")
    for goes, comes in zip(old_edits, new_edits):
        if goes.inserts and comes.inserts:
            raise PatchSyntaxError(f"{where}: an edit of blank lines or comments alone: add code")
    to_start = _is_pure(old_edits[0], new_edits[0]) and _begins_block(old, old_edits[0])
    to_end = _is_pure(old_edits[-1], new_edits[-1]) and _ends_block(old, old_edits[-1])
    before = _pattern(hunk, old, old_edits, to_start, to_end)
    after = _pattern(hunk, new, new_edits, to_start, to_end)
    if list(map(_key, old)) == list(map(_key, new)):
        raise PatchSyntaxError(f"{where}: changes nothing but layout: change some code")
    for side, pattern in (("before", before), ("after", after)):
        if not pattern.elements:
            raise PatchSyntaxError(
                f"{where}: nothing tells where the change stands {side} it is applied:"
                " quote some code that stays"
            )
    return before, after


def check_removals(before: Pattern, after: Pattern, where: str) -> None:
    """Refuse a hunk that takes code away where nothing could tell that it has gone.

    Of whole classes and functions their names tell it.
    """
    for removal, edit in zip(before.edits, after.edits):
        gone = before.elements[removal.start : removal.stop]
        if all(isinstance(element, Literal) and element.defined for element in gone):
            continue
        around = after.elements[max(edit.start - 1, 0) : edit.start + 1]
        if edit.inserts and (
            len(around) < 2 or edit.start == 0 or any(isinstance(e, Wild) for e in around)
        ):
            raise PatchSyntaxError(
                f"{where}: code goes and none comes, so code that stays must be quoted directly"
                " before and after it; otherwise nothing could tell that it has gone"
            )


def _key(element: Element) -> object:
    return (element.key, element.column) if isinstance(element, Literal) else ELLIPSIS


def _is_pure(old: Edit, new: Edit) -> bool:
    """Whether an edit only adds or only takes away code."""
    return old.inserts or new.inserts


# ``...`` beside an edit that only adds or only takes away code reaches to the edge of its block.
# At any other edge of a hunk it says nothing, since a hunk may stand anywhere in its symbol.


def _begins_block(elements: Sequence[Element], edit: Edit) -> bool:
    return edit.start == 0 and isinstance(next(iter(elements[edit.stop :]), None), Wild)


def _ends_block(elements: Sequence[Element], edit: Edit) -> bool:
    before = elements[edit.start - 1] if edit.start else None
    return edit.stop == len(elements) and isinstance(before, Wild)


def _pattern(
    hunk: Hunk, elements: Sequence[Element], edits: Sequence[Edit], to_start: bool, to_end: bool
) -> Pattern:
    start, stop = 0, len(elements)
    opening: list[Element] = []
    if to_start or (to_end and edits[-1].start == 1):
        opening.append(BlockStart())
    else:
        while start < stop and isinstance(elements[start], Wild):
            start += 1
    while stop > max(start, edits[-1].stop) and isinstance(elements[stop - 1], Wild):
        stop -= 1
    closing: list[Element] = [BlockEnd()] if to_end else []
    shift = len(opening) - start
    return Pattern(
        hunk.is_docstring,
        (*opening, *elements[start:stop], *closing),
        tuple(replace(edit, start=edit.start + shift, stop=edit.stop + shift) for edit in edits),
    )


def _read_side(hunk: Hunk, mark: str, where: str) -> tuple[list[Element], list[Edit]]:
    """One side's elements, and its edits with the lines that stand there on the other side."""
    tokens = _tokens_by_line(hunk, mark, where)
    defined = set() if hunk.is_docstring else _defined_lines(hunk, mark)
    elements: list[Element] = []
    edits: list[Edit] = []
    edit_start: Optional[int] = None
    own: list[Line] = []
    others: list[Line] = []
    continues = False

    def close_edit() -> None:
        nonlocal edit_start
        if edit_start is not None:
            blanks = _blank_lines(own), _blank_lines(own[::-1])
            edits.append(Edit(edit_start, len(elements), tuple(others), *blanks))
            edit_start = None
            own.clear()
            others.clear()

    for index, line in enumerate(hunk.lines):
        found = tokens.get(index, [])
        if line.mark == " " and found:
            close_edit()
        elif line.mark in ("-", "+"):
            if edit_start is None:
                edit_start = len(elements)
            (own if line.mark == mark else others).append(line)
        column = indent_width(line.text)
        continued = continues
        if line.mark in (" ", mark):
            continues = line.text.endswith("\\")
        for token in found:
            if token.text == ELLIPSIS and line.mark == " ":
                elements.append(Wild(index, column, len(found) == 1))
            else:
                first = token is found[0] and not continued
                elements.append(
                    Literal(
                        token.key, token.text, line.mark, index, column, first, index in defined
                    )
                )
    close_edit()
    return elements, edits


def _blank_lines(lines: Sequence[Line]) -> int:
    """How many blank lines some lines begin with."""
    return next((count for count, line in enumerate(lines) if line.text.strip()), 0)


def _tokens_by_line(hunk: Hunk, mark: str, where: str) -> dict[int, list[Token]]:
    """The tokens of one side, by the index of the hunk's line that each begins in."""
    rows = [index for index, line in enumerate(hunk.lines) if line.mark in (" ", mark)]
    text = "".join(hunk.lines[row].text + "\n" for row in rows)
    try:
        tokens = words_of(text, 0, len(text)) if hunk.is_docstring else tokens_of(text)
    except SourceError as error:
        side = "old" if mark == "-" else "new"
        raise PatchSyntaxError(f"{where}: its {side} side is not Python: {error}") from None
    ends = list(accumulate(len(hunk.lines[row].text) + 1 for row in rows))
    by_line: dict[int, list[Token]] = {}
    for token in tokens:
        by_line.setdefault(rows[bisect_right(ends, token.start)], []).append(token)
    return by_line


def indent_width(text: str) -> int:
    """How many columns of white space a line begins with; a tab goes to the next fourth."""
    expanded = text.expandtabs(4)
    return len(expanded) - len(expanded.lstrip())


def _defined_lines(hunk: Hunk, mark: str) -> set[int]:
    """The lines of one mark that stand in a class or function which these lines define."""
    lines: set[int] = set()
    run: list[int] = []
    for index, line in enumerate((*hunk.lines, Line(" ", "end"))):
        if line.mark == mark:
            run.append(index)
        elif line.mark == " " and line.text.strip():
            defined = lines_in_definitions("".join(hunk.lines[row].text + "\n" for row in run))
            lines.update(run[number - 1] for number in defined)
            run = []
    return lines
