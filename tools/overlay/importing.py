"""Two versions of a file to hunks: the fewest tokens that still say where a change goes.

Each hunk is tried as it would be applied: it must match exactly once and give the wanted
bytes, and no token that it quotes as context can be left out.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import NamedTuple, Optional

from overlay.alignment import Change, Versions
from overlay.apatch import DOCSTRING, Hunk, PatchSyntaxError
from overlay.errors import PatchError
from overlay.hunks import CompiledHunk, apply_hunk
from overlay.sketch import Sketch, Sketched
from overlay.source import MODULE, Source, SourceError, Symbol, Token, plain_name

REACH = 40
"""How many tokens around an edit may be quoted."""
MERGE_WITHIN = 2
"""Changes with no more tokens between them that stay are one edit."""
TRIED_TOGETHER = 12
"""How many ways to write several edits in one hunk are tried."""
EDIT_COST = 2
NAMELESS_COST = 2


@dataclass(frozen=True)
class Anchored:
    """What of a file's change can be said in hunks."""

    hunks: tuple[Hunk, ...]
    content: bytes
    """The file with these hunks applied."""
    left: tuple[str, ...] = ()
    """What they leave out, each with its line and why."""


def anchor(before: bytes, after: bytes) -> Anchored:
    """Express a change of a Python file in hunks, as far as it can be."""
    try:
        old, new = Source.decode(before), Source.decode(after)
        old.tokens, new.tokens  # noqa: B018 - read now, so that what is not Python is told here
    except SourceError as error:
        return Anchored((), before, (f"cannot be read as Python: {error}",))
    if (old.encoding, old.bom) != (new.encoding, new.bom):
        return Anchored((), before, ("its encoding changes",))
    return _Importer(old, new).anchored()


@dataclass(frozen=True)
class _Unit:
    """A change, or several with what stays between them, and the text that it replaces."""

    change: Change
    is_docstring: bool
    old_start: int
    old_stop: int
    text: str

    @property
    def is_layout(self) -> bool:
        return self.change.is_layout


class _Option(NamedTuple):
    """One way to write an edit into a hunk, and the context that it needs in any case."""

    edit: Sketched
    required: frozenset[int] = frozenset()
    barred: frozenset[int] = frozenset()
    """Context that would make an insertion go elsewhere."""
    from_start: bool = False
    to_end: bool = False


@dataclass(frozen=True)
class _Piece:
    """Units that are one hunk."""

    units: tuple[_Unit, ...]
    hunk: Hunk
    quoted: int
    """How many tokens the hunk quotes or takes away."""
    ways: tuple[int, ...]
    """The way in which each unit's edit is written."""

    @property
    def cost(self) -> int:
        return self.quoted + EDIT_COST * len(self.units)


@dataclass
class _Importer:
    old: Source
    new: Source
    _sources: dict[str, Optional[Source]] = field(default_factory=dict)

    def anchored(self) -> Anchored:
        pieces: list[_Piece] = []
        left: list[_Unit] = []
        for cluster in _clusters(self._units(), self.old, self.new):
            found, missing = self._solved(cluster, pieces)
            left += missing
            for piece in found:
                pieces = self._joined(pieces, piece)
        pieces, left = self._with_left(pieces, left)
        pieces = self._by_symbol(pieces)
        reasons = tuple(dict.fromkeys(map(self._reason, left)))
        try:
            result = self._applied(pieces)
        except (PatchError, PatchSyntaxError) as error:
            return Anchored((), self.old.encode(), (error.message,))
        return Anchored(tuple(piece.hunk for piece in pieces), result.encode(), reasons)

    def _reason(self, unit: _Unit) -> str:
        line = self.new.line(_segment_in(self.new, unit.change)[0])
        if unit.is_layout:
            return f"line {line}: a comment or white space changes beside code that stays"
        return f"line {line}: no hunk gives exactly these bytes"

    def _applied(self, pieces: Sequence[_Piece]) -> Source:
        """The old version with all hunks applied, one after the other."""
        source = self.old
        for piece in pieces:
            source = apply_hunk(CompiledHunk.of(piece.hunk, f"@@ {piece.hunk.symbol}"), source)
        if source.text != self._text([unit for piece in pieces for unit in piece.units]):
            raise PatchError("its hunks together do not give these bytes")
        return source

    # Units

    def _units(self) -> list[_Unit]:
        old_docstrings, docstrings = _docstrings(self.old), _docstrings(self.new)
        versions = Versions(
            self.old.text,
            self.old.tokens,
            self.new.text,
            self.new.tokens,
            frozenset(old_docstrings),
            frozenset(docstrings),
        )
        units = [self._unit(change) for change in versions.changes()]
        shift = 0
        changes = [unit.change for unit in units]
        for index in sorted(old_docstrings):
            shift = sum(c.growth for c in changes if c.old_stop <= index)
            if any(c.old_start <= index < c.old_stop for c in changes):
                continue
            change = Change(index, index + 1, index + shift, index + shift + 1)
            was, now = self.old.tokens[index], self.new.tokens[change.start]
            if was.text != now.text:
                units.append(_Unit(change, True, was.start, was.end, now.text))
        return sorted(units, key=lambda unit: unit.old_start)

    def _unit(self, change: Change) -> _Unit:
        old_start, old_stop = _segment_of(self.old, change.old_start, change.old_stop)
        start, stop = _segment_in(self.new, change)
        return _Unit(change, False, old_start, old_stop, self.new.text[start:stop])

    def _text(self, units: Iterable[_Unit]) -> str:
        """The old version with some units made."""
        out, at = [], 0
        for unit in sorted(units, key=lambda unit: (unit.old_start, unit.old_stop)):
            out += [self.old.text[at : unit.old_start], unit.text]
            at = unit.old_stop
        return "".join([*out, self.old.text[at:]])

    def _source(self, units: Iterable[_Unit]) -> Optional[Source]:
        """The old version with some units made, or None if that is not Python."""
        text = self._text(units)
        if text not in self._sources:
            source = Source(text, self.old.encoding, self.old.bom)
            try:
                source.tokens  # noqa: B018 - whether it can be read
                self._sources[text] = source
            except SourceError:
                self._sources[text] = None
        return self._sources[text]

    # Clusters

    def _solved(
        self, cluster: Sequence[_Unit], done: Sequence[_Piece]
    ) -> tuple[list[_Piece], list[_Unit]]:
        """The hunks of a cluster, and the units that none of them makes."""
        if all(unit.is_layout for unit in cluster):
            return [], list(cluster)
        applied = [unit for piece in done for unit in piece.units]
        found = [self._piece(variant, applied) for variant in self._variants(cluster)]
        pieces = [piece for piece in found if piece is not None]
        for variants in (self._widened(cluster), [self._whole_lines(cluster)]):
            if not pieces:
                found = [self._piece([variant], applied) for variant in variants]
                pieces = [piece for piece in found if piece is not None]
        if pieces:
            return [min(pieces, key=lambda piece: piece.cost)], []
        if len(cluster) == 1:
            return [], list(cluster)
        alone: list[_Piece] = []
        left = []
        for unit in cluster:
            single, missing = self._solved([unit], [*done, *alone])
            alone += single
            left += missing
        return alone, left

    def _variants(self, cluster: Sequence[_Unit]) -> list[list[_Unit]]:
        """A cluster as the edits that it consists of, and as one."""
        if len(cluster) == 1:
            return [list(cluster)]
        merged: list[_Unit] = [cluster[0]]
        for unit in cluster[1:]:
            close = unit.change.old_start - merged[-1].change.old_stop <= MERGE_WITHIN
            if close or unit.is_layout or merged[-1].is_layout:
                merged[-1] = self._merged([merged[-1], unit])
            else:
                merged.append(unit)
        whole = self._merged(cluster)
        return [list(v) for v in dict.fromkeys([tuple(cluster), tuple(merged), (whole,)])]

    def _merged(self, units: Sequence[_Unit]) -> _Unit:
        first, last = units[0].change, units[-1].change
        if units[0].is_docstring:
            return units[0]
        return self._unit(Change(first.old_start, last.old_stop, first.start, last.stop))

    def _widened(self, cluster: Sequence[_Unit]) -> list[_Unit]:
        """A change that only adds or only removes, as one that puts back a token beside it."""
        change = cluster[0].change
        adds, removes = change.start < change.stop, change.old_start < change.old_stop
        if len(cluster) > 1 or adds == removes:
            return []
        wider = []
        if change.old_stop < len(self.old.tokens):
            wider.append(replace(change, old_stop=change.old_stop + 1, stop=change.stop + 1))
        if change.old_start:
            wider.append(replace(change, old_start=change.old_start - 1, start=change.start - 1))
        return [self._unit(each) for each in wider]

    def _whole_lines(self, cluster: Sequence[_Unit]) -> _Unit:
        """A cluster as one change of whole logical lines."""
        merged = self._merged(cluster)
        if merged.is_docstring:
            return merged
        change = merged.change
        old, new = self.old.tokens, self.new.tokens
        before = after = 0
        while change.old_start - before > 0 and not (
            _starts_line(old, change.old_start - before)
            and _starts_line(new, change.start - before)
        ):
            before += 1
        while not (
            _starts_line(old, change.old_stop + after) and _starts_line(new, change.stop + after)
        ):
            after += 1
        return self._unit(
            Change(
                change.old_start - before,
                change.old_stop + after,
                max(change.start - before, 0),
                change.stop + after,
            )
        )

    # Hunks together

    def _joined(self, pieces: list[_Piece], piece: _Piece) -> list[_Piece]:
        """The pieces with one more, as one hunk with the last where that quotes less."""
        if pieces and pieces[-1].hunk.symbol == piece.hunk.symbol:
            together = self._together([pieces[-1], piece], pieces[:-1])
            if together and together.quoted < pieces[-1].quoted + piece.quoted:
                return [*pieces[:-1], together]
        return [*pieces, piece]

    def _by_symbol(self, pieces: list[_Piece]) -> list[_Piece]:
        """The pieces with all of one symbol as one hunk where that quotes less."""
        for symbol in dict.fromkeys(piece.hunk.symbol for piece in pieces):
            own = [piece for piece in pieces if piece.hunk.symbol == symbol]
            if len(own) < 2:
                continue
            first = pieces.index(own[0])
            together = self._together(own, pieces[:first])
            if together and together.quoted < sum(piece.quoted for piece in own):
                rest = [piece for piece in pieces[first:] if piece not in own]
                joined = [*pieces[:first], together, *rest]
                if self._holds(joined):
                    pieces = joined
        return pieces

    def _holds(self, pieces: Sequence[_Piece]) -> bool:
        try:
            self._applied(pieces)
        except (PatchError, PatchSyntaxError):
            return False
        return True

    def _together(self, pieces: Sequence[_Piece], done: Sequence[_Piece]) -> Optional[_Piece]:
        units = [unit for piece in pieces for unit in piece.units]
        ways = [way for piece in pieces for way in piece.ways]
        order = sorted(range(len(units)), key=lambda index: units[index].old_start)
        applied = [unit for piece in done for unit in piece.units]
        return self._piece(
            [units[i] for i in order], applied, pieces[0].hunk.symbol, [ways[i] for i in order]
        )

    def _with_left(
        self, pieces: list[_Piece], left: list[_Unit]
    ) -> tuple[list[_Piece], list[_Unit]]:
        """Try units that found no hunk together with those of the pieces beside them."""
        missing = []
        for unit in left:
            if unit.is_layout:
                missing.append(unit)
                continue
            for index in _nearest(pieces, unit):
                known = dict(zip(pieces[index].units, pieces[index].ways))
                units = sorted([*known, unit], key=lambda u: u.old_start)
                done = [u for piece in pieces[:index] for u in piece.units]
                piece = self._piece(units, done, ways=[known.get(u) for u in units])
                joined = [*pieces[:index], piece, *pieces[index + 1 :]] if piece else []
                if piece and self._holds([p for p in joined if p]):
                    pieces[index] = piece
                    break
            else:
                missing.append(unit)
        return pieces, missing

    # One hunk

    def _piece(
        self,
        units: Sequence[_Unit],
        applied: Sequence[_Unit],
        symbol: Optional[str] = None,
        ways: Optional[Sequence[Optional[int]]] = None,
    ) -> Optional[_Piece]:
        """One hunk that makes some units, given those that are made before; None if there is none.

        ``ways`` are ways to write the edits that are known to do, as far as they are known.
        """
        current, wanted = self._source(applied), self._source([*applied, *units])
        if current is None or wanted is None or len({unit.is_docstring for unit in units}) > 1:
            return None
        changes = [self._placed(unit.change, applied, units) for unit in units]
        for place in self._places(current, wanted, changes, units[0].is_docstring, symbol):
            options = [place.options(change) for change in place.changes]
            chosen = place.best(options, ways)
            if chosen is not None and _comes_back(chosen[0], wanted):
                return _Piece(tuple(units), *chosen)
        return None

    def _placed(self, change: Change, applied: Sequence[_Unit], units: Sequence[_Unit]) -> Change:
        """A change where it stands once some units are made, and once more are."""

        def shift(made: Iterable[_Unit]) -> int:
            return sum(u.change.growth for u in made if u.change.old_start < change.old_start)

        old = change.old_start + shift(applied)
        start = change.old_start + shift([*applied, *units])
        return Change(
            old,
            old + change.old_stop - change.old_start,
            start,
            start + change.stop - change.start,
        )

    def _places(
        self,
        current: Source,
        wanted: Source,
        changes: Sequence[Change],
        is_docstring: bool,
        symbol: Optional[str],
    ) -> Iterator[_Place]:
        """The symbols that hold all changes, the innermost first."""
        start = min(change.old_start for change in changes)
        stop = max(change.old_stop for change in changes)
        new_start = min(change.start for change in changes)
        new_stop = max(change.stop for change in changes)
        holders: list[Optional[Symbol]] = [
            holder
            for holder in reversed(current.symbols)
            if holder.start <= start and stop <= holder.end
        ]
        for holder in [*holders, None]:
            name = MODULE if holder is None else plain_name(holder.name, current.symbols)
            if is_docstring:
                at = _docstring_of(current, holder)
                if at != start:
                    continue
            if holder is not None:
                same = wanted.find(name)
                if len(same) != 1:
                    name = holder.name
                    same = wanted.find(name)
                if len(same) != 1 or len(current.find(name)) != 1:
                    continue
                if not (same[0].start <= new_start and new_stop <= same[0].end):
                    continue
            if symbol in (None, name, f"{name}.{DOCSTRING}"):
                yield _Place(current, wanted, changes, holder, name, is_docstring)


class _Place:
    """A symbol before and after a hunk, which is to be found."""

    def __init__(
        self,
        current: Source,
        wanted: Source,
        changes: Sequence[Change],
        symbol: Optional[Symbol],
        name: str,
        is_docstring: bool,
    ) -> None:
        self.current, self.wanted = current, wanted
        self.is_docstring = is_docstring
        self.changes = list(changes)
        if is_docstring:
            region = current.docstring(symbol)
            assert region is not None
            words = wanted.docstring_words(changes[0].start)
            self.versions = Versions(current.text, region.tokens, wanted.text, words)
            self.changes = _word_changes(self.versions, current, wanted, changes[0])
            name = f"{name}.{DOCSTRING}"
        else:
            region = current.region(symbol)
            self.versions = Versions(current.text, current.tokens, wanted.text, wanted.tokens)
        self.region = region
        self.sketch = Sketch(current, region, name)

    # The ways to write an edit

    def options(self, change: Change) -> list[_Option]:
        """The ways to write an edit, those that read best first."""
        start, stop = change.old_start, change.old_stop
        if start < stop and change.start < change.stop:
            return [_Option(edit) for edit in self._edits(change)]
        if start < stop:
            following = self.sketch.definition_at(stop)
            options = []
            if start == self.region.body and not self.is_docstring:
                options += [_Option(edit, from_start=True) for edit in self._edits(change)]
            if stop == self.region.end:
                options += [_Option(edit, to_end=True) for edit in self._edits(change)]
            options += [
                _Option(edit, frozenset(beside))
                for edit in self._edits(change)
                for beside in ({start - 1, following}, {following}, {start - 1})
            ]
            return options
        found = []
        for edit in self._edits(change):
            if start == self.region.end:
                found.append(_Option(edit, to_end=True))
            if start == self.region.body and not self.is_docstring:
                found.append(_Option(edit, from_start=True))
            following = self.sketch.definition_at(start)
            around = frozenset({start - 1, following})
            for beside in ({following}, {start - 1}, around):
                found.append(_Option(edit, frozenset(beside), around - beside))
        return found

    def _edits(self, change: Change) -> Iterator[Sketched]:
        if change.old_start == change.old_stop:
            yield from self._insertions(change)
            return
        old, new = self.versions.old, self.versions.new
        if self._is_whole(change):
            yield from self._statements(change)
            return
        if change.start == change.stop:
            for blank in ((0, 0), (1, 0), (0, 1)):
                depth = self._depth(old, change.old_start)
                yield Sketched(change.old_start, change.old_stop, (), depth, 0, *blank)
            return
        yield self._partial(change, self._head(change), self._tail(change))
        if new[change.stop - 1].text == "," or old[change.old_stop - 1].text == ",":
            yield self._partial(change, "", "")

    def _is_whole(self, change: Change) -> bool:
        """Whether a change is one of whole statements."""
        return not self.is_docstring and all(
            _starts_line(tokens, index)
            for tokens, index in (
                (self.versions.old, change.old_start),
                (self.versions.old, change.old_stop),
                (self.versions.new, change.start),
                (self.versions.new, change.stop),
            )
        )

    def _depth(self, tokens: Sequence[Token], index: int) -> int:
        return 0 if self.is_docstring or index >= len(tokens) else tokens[index].depth

    def _width(self, index: int) -> int:
        """The indentation of the line that a new token stands in."""
        token = self.versions.new[index]
        return len(self.wanted.indentation(token.start).expandtabs(4))

    def _tail(self, change: Change) -> str:
        """A comment that comes behind the last new token."""
        old = self.versions.old_segment(change)
        new = self.versions.segment(change)
        was = self.current.text[self.versions.old[change.old_stop - 1].end : old[1]]
        now = self.wanted.text[self.versions.new[change.stop - 1].end : new[1]]
        return now[: len(now) - len(was)] if now.endswith(was) else ""

    def _head(self, change: Change) -> str:
        """Comments that come above the first new token, with its indentation."""
        old = self.versions.old_segment(change)
        new = self.versions.segment(change)
        was = self.current.text[old[0] : self.versions.old[change.old_start].start]
        now = self.wanted.text[new[0] : self.versions.new[change.start].start]
        return now[len(was) :] if now.startswith(was) else ""

    def _partial(self, change: Change, head: str, tail: str) -> Sketched:
        new = self.versions.new
        first, last = new[change.start], new[change.stop - 1]
        indent = self.wanted.indentation(first.start).expandtabs(4)
        text = indent + head + self.wanted.text[first.start : last.end] + tail
        depth = self._depth(new, change.start)
        width = self._statement_width() if self.is_docstring else self._width(change.start)
        return Sketched(change.old_start, change.old_stop, _lines_of(text), depth, width)

    def _statements(self, change: Change) -> Iterator[Sketched]:
        """Whole statements that others come for, with the blank lines and comments around them."""
        text = self.current.text
        old_start, old_stop = self.versions.old_segment(change)
        first = self.versions.old[change.old_start]
        last = self.versions.old[change.old_stop - 1]
        head = text[old_start : self.current.line_start(first.start)]
        tail = text[_after_line(self.current, last.end) : old_stop]
        segment = self.wanted.text[slice(*self.versions.segment(change))]
        for before, after in product(range(4), range(4)):
            above, below = _without_last_lines(head, before), _without_lines(tail, after)
            if above is None or below is None:
                continue
            lines = _whole_lines(segment, above, below)
            if lines is not None and bool(lines) == (change.start < change.stop):
                yield self._sketched(change, lines, before, after)

    def _insertions(self, change: Change) -> Iterator[Sketched]:
        old_segment = self.current.text[slice(*self.versions.old_segment(change))]
        segment = self.wanted.text[slice(*self.versions.segment(change))]
        if self._is_whole(change):
            for at in _line_starts(old_segment, bool(change.old_start)):
                lines = _whole_lines(segment, old_segment[:at], old_segment[at:])
                if lines:
                    yield self._sketched(change, lines)
            return
        if self.is_docstring and "\n" in segment:
            added = _lines_of(_between(segment, "", old_segment) or "")
            if added[1:] and not added[0]:
                yield self._sketched(change, added[1:])
            at = old_segment.rfind("\n") + 1
            lines = _whole_lines(segment, old_segment[:at], old_segment[at:])
            if lines:
                yield self._sketched(change, lines)
        yield self._partial(change, "", "")
        # An element that comes last in brackets is written with the comma behind it.
        new = self.versions.new
        if new[change.start].text == "," and change.start + 1 < change.stop:
            later = replace(change, start=change.start + 1)
            edit = self._partial(later, "", "")
            yield replace(edit, lines=(*edit.lines[:-1], edit.lines[-1] + ","))

    def _sketched(
        self, change: Change, lines: tuple[str, ...], before: int = 0, after: int = 0
    ) -> Sketched:
        if change.start == change.stop:
            depth, width = self._depth(self.versions.old, change.old_start), 0
        else:
            depth, width = self._depth(self.versions.new, change.start), self._width(change.start)
        if self.is_docstring:
            width = self._statement_width()
        return Sketched(change.old_start, change.old_stop, lines, depth, width, before, after)

    def _statement_width(self) -> int:
        first = self.versions.old[0].start
        token = next(t for t in self.current.tokens if t.end > first)
        return len(self.current.indentation(token.start).expandtabs(4))

    # What to quote

    def best(
        self, options: Sequence[Sequence[_Option]], ways: Optional[Sequence[Optional[int]]]
    ) -> Optional[tuple[Hunk, int, tuple[int, ...]]]:
        """The hunk that quotes least, how many tokens that are, and the ways that it is written."""
        if not options or not all(options):
            return None
        if ways is None or len(ways) != len(options):
            ways = [None] * len(options)
        open_ = sum(way is None for way in ways)
        possible = (range(len(o)) if w is None else (w,) for w, o in zip(ways, options))
        choices = islice(product(*possible), None if open_ < 2 else TRIED_TOGETHER)
        found: Optional[tuple[Hunk, int, tuple[int, ...]]] = None
        for choice in choices:
            if any(way >= len(each) for way, each in zip(choice, options)):
                continue
            chosen = [each[way] for way, each in zip(choice, options)]
            if any(option.to_end for option in chosen[:-1]) or any(
                option.from_start for option in chosen[1:]
            ):
                continue
            quoted = self._quoted(chosen)
            if quoted is not None:
                cost = self._cost(chosen, quoted)
                if found is None or cost < found[1]:
                    found = self._hunk(chosen, quoted), cost, choice
                if len(quoted) <= 1 and cost == found[1]:
                    break
        return found

    def _cost(self, chosen: Sequence[_Option], quoted: Iterable[int]) -> int:
        """How many tokens a hunk quotes or takes away; more if none of them says what is meant."""
        gone = [i for option in chosen for i in range(option.edit.start, option.edit.stop)]
        tokens = [*quoted, *gone]
        named = not tokens or any(map(self._is_name, tokens))
        return len(tokens) + (0 if named else NAMELESS_COST)

    def _is_name(self, index: int) -> bool:
        text = self.sketch.tokens[index].text
        return text[:1].isidentifier() and not keyword.iskeyword(text)

    def _hunk(self, chosen: Sequence[_Option], quoted: Iterable[int]) -> Hunk:
        return self.sketch.hunk(
            quoted,
            [option.edit for option in chosen],
            chosen[0].from_start,
            chosen[-1].to_end,
        )

    def _does(self, chosen: Sequence[_Option], quoted: Iterable[int]) -> bool:
        """Whether a hunk that quotes these tokens matches once and gives what is wanted."""
        try:
            hunk = CompiledHunk.of(self._hunk(chosen, quoted), "hunk")
            return apply_hunk(hunk, self.current, self.wanted) is self.wanted
        except (PatchSyntaxError, PatchError):
            return False

    def _quoted(self, chosen: Sequence[_Option]) -> Optional[frozenset[int]]:
        """The fewest tokens to quote; None if no tokens do."""
        edits = [option.edit for option in chosen]
        required: frozenset[int] = frozenset().union(*(option.required for option in chosen))
        least = self.sketch.closure(required, edits)
        if least is None:
            return None
        if self._does(chosen, least):
            return self._minimal(chosen, least)
        barred: frozenset[int] = frozenset().union(*(option.barred for option in chosen))
        near = [index for index in self._near(edits) if index not in least | barred]
        enough = self._enough(chosen, least, near)
        if enough is None:
            return None
        singles = []
        for rank, index in enumerate(near):
            quoted = self.sketch.closure({*least, index}, edits)
            if quoted is not None and len(quoted) < len(enough):
                singles.append((len(quoted), rank, quoted))
        for _, _, quoted in sorted(singles, key=lambda single: single[:2]):
            if self._does(chosen, quoted):
                return self._minimal(chosen, quoted)
        return self._minimal(chosen, enough)

    def _enough(
        self, chosen: Sequence[_Option], least: frozenset[int], near: Sequence[int]
    ) -> Optional[frozenset[int]]:
        edits = [option.edit for option in chosen]
        count = 1
        while True:
            quoted = self.sketch.closure({*least, *near[:count]}, edits)
            if quoted is not None and self._does(chosen, quoted):
                return quoted
            if count >= len(near):
                return None
            count = min(2 * count, len(near))

    def _minimal(self, chosen: Sequence[_Option], quoted: frozenset[int]) -> frozenset[int]:
        """Leave out tokens, punctuation first, until none can be left out."""
        edits = [option.edit for option in chosen]
        names = set(filter(self._is_name, quoted))
        left_out = True
        while left_out:
            left_out = False
            for index in sorted(quoted, key=lambda i: (i in names, -self._distance(i, edits), i)):
                fewer = self.sketch.closure(quoted - {index}, edits)
                if fewer is not None and len(fewer) < len(quoted) and self._does(chosen, fewer):
                    quoted, left_out = fewer, True
                    break
        return quoted

    def _distance(self, index: int, edits: Sequence[Sketched]) -> int:
        return min(
            edit.start - index if index < edit.start else index - edit.stop + 1 for edit in edits
        )

    def _near(self, edits: Sequence[Sketched]) -> list[int]:
        """Tokens that may be quoted, those that say most about the edits first."""
        tokens = self.sketch.tokens
        lines = {self.sketch.line(min(edit.start, len(tokens) - 1)) for edit in edits if tokens}
        gone = {index for edit in edits for index in range(edit.start, edit.stop)}
        ranked = []
        for index in range(self.region.start, self.region.end):
            distance = self._distance(index, edits)
            if index in gone or not self.sketch.may_quote(index):
                continue
            is_name = self._is_name(index)
            same_line = distance <= REACH and self.sketch.line(index) in lines
            in_header = not self.is_docstring and index < self.region.body
            rank = distance + (0 if is_name else 3) + (0 if same_line else 8)
            if distance <= REACH or in_header:
                ranked.append((rank, index))
        return [index for _, index in sorted(ranked)[:REACH]]


def _comes_back(hunk: Hunk, result: Source) -> bool:
    """Whether a hunk can be taken back, as telling whether it is applied may need."""
    compiled = CompiledHunk.of(hunk, "hunk")
    try:
        return compiled.adds_imports or bool(apply_hunk(compiled.reversed(), result))
    except (PatchSyntaxError, PatchError):
        return False


def _clusters(units: Sequence[_Unit], old: Source, new: Source) -> list[list[_Unit]]:
    """Units that belong to one logical line, or nearly touch."""
    clusters: list[list[_Unit]] = []
    for unit in units:
        if clusters and _belong(clusters[-1][-1], unit, old.tokens, new.tokens):
            clusters[-1].append(unit)
        else:
            clusters.append([unit])
    return clusters


def _belong(one: _Unit, other: _Unit, old: Sequence[Token], new: Sequence[Token]) -> bool:
    if one.is_docstring or other.is_docstring:
        return False
    # A comment above a line belongs to it.
    between = range(one.change.old_stop + one.is_layout, other.change.old_start)
    if any(old[index].starts_line for index in between):
        return False
    ends_line = other.is_layout or not _starts_line(new, other.change.start)
    return (
        not _starts_line(old, other.change.old_start) or ends_line or len(between) <= MERGE_WITHIN
    )


def _nearest(pieces: Sequence[_Piece], unit: _Unit) -> list[int]:
    """The pieces nearest to a unit, at most two."""
    distances = [
        (min(abs(other.old_start - unit.old_start) for other in piece.units), index)
        for index, piece in enumerate(pieces)
    ]
    return [index for _, index in sorted(distances)[:2]]


def _docstrings(source: Source) -> list[int]:
    """The tokens that are docstrings."""
    found = [_docstring_of(source, symbol) for symbol in [None, *source.symbols]]
    return [index for index in found if index is not None]


def _docstring_of(source: Source, symbol: Optional[Symbol]) -> Optional[int]:
    if symbol is not None:
        return symbol.docstring
    region = source.docstring(None)
    if region is None:
        return None
    return 0


def _word_changes(
    versions: Versions, current: Source, wanted: Source, change: Change
) -> list[Change]:
    """The changed words of a docstring, those that nearly touch as one."""
    was, now = current.tokens[change.old_start], wanted.tokens[change.start]
    words = Versions(
        was.text,
        [_moved(word, -was.start) for word in versions.old],
        now.text,
        [_moved(word, -now.start) for word in versions.new],
    )
    merged: list[Change] = []
    for found in words.changes():
        if merged and (
            found.old_start - merged[-1].old_stop <= MERGE_WITHIN
            or found.is_layout
            or merged[-1].is_layout
        ):
            last = merged[-1]
            merged[-1] = Change(last.old_start, found.old_stop, last.start, found.stop)
        else:
            merged.append(found)
    return merged


def _moved(token: Token, by: int) -> Token:
    return token._replace(start=token.start + by, end=token.end + by)


def _segment_in(source: Source, change: Change) -> tuple[int, int]:
    return _segment_of(source, change.start, change.stop)


def _segment_of(source: Source, start: int, stop: int) -> tuple[int, int]:
    tokens = source.tokens
    return (
        tokens[start - 1].end if start else 0,
        tokens[stop].start if stop < len(tokens) else len(source.text),
    )


def _starts_line(tokens: Sequence[Token], index: int) -> bool:
    return index >= len(tokens) or tokens[index].starts_line


def _after_line(source: Source, offset: int) -> int:
    end = source.line_end(offset)
    if source.text.startswith("\r\n", end):
        return end + 2
    return min(end + 1, len(source.text))


def _lines_of(text: str) -> tuple[str, ...]:
    return tuple(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))


def _between(text: str, head: str, tail: str) -> Optional[str]:
    """What a text has between its head and its tail, or None if it has not both."""
    if len(text) < len(head) + len(tail) or not (text.startswith(head) and text.endswith(tail)):
        return None
    return text[len(head) : len(text) - len(tail)]


def _whole_lines(text: str, head: str, tail: str) -> Optional[tuple[str, ...]]:
    """The lines that a text has between its head and its tail; None if those are not whole."""
    middle = _between(text, head, tail)
    if middle is None or (tail and middle and middle[-1] not in "\r\n"):
        return None
    lines = _lines_of(middle)
    return lines[:-1] if lines[-1] == "" else lines


def _line_starts(text: str, follows_code: bool) -> list[int]:
    """The offsets of a text at which lines begin; the first one only at a file's beginning."""
    starts = [index + 1 for index, char in enumerate(text) if char == "\n"]
    return starts if follows_code else [0, *starts]


def _without_lines(text: str, count: int) -> Optional[str]:
    """A text without some blank lines at its beginning, or None if it has not so many."""
    lines = text.splitlines(keepends=True)
    if len(lines) < count or any(line.strip() for line in lines[:count]):
        return None
    return "".join(lines[count:])


def _without_last_lines(text: str, count: int) -> Optional[str]:
    lines = text.splitlines(keepends=True)
    kept = lines[: len(lines) - count]
    if len(lines) < count or any(line.strip() for line in lines[len(kept) :]):
        return None
    return "".join(kept)
