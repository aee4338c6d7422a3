"""Where a pattern stands in a source, or why it stands nowhere.

A match is exact on tokens and happens once: there is no fuzz and no nearest guess.
Where ``...`` leaves a choice that would move an edit, that is two matches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Optional, Union

from overlay.pattern import IMPORTS, BlockEnd, BlockStart, Edit, Literal, Pattern, Wild
from overlay.source import CLOSING, OPENING, Brackets, Region, Source, sign

ENOUGH = 4
"""How many different matches are looked for: more than one is an error that shows them."""


class Site(NamedTuple):
    """Where one edit stands: the tokens ``start`` to ``stop``, none for an insertion."""

    start: int
    stop: int


@dataclass(frozen=True)
class Match:
    """Where a pattern stands: one site an edit, and each element's tokens."""

    sites: tuple[Site, ...]
    spans: tuple[Site, ...]
    """For each element the tokens it stands for; none for a comma that is not written out."""


class _State(NamedTuple):
    """How far a match got, and how the hunk's layout goes with the source's there."""

    element: int
    token: int
    column: Optional[int]
    """Where the hunk's line begins whose logical line in the source began last."""
    depth: int
    block: Optional[int]
    """The depth of the block that the last ``...`` on a line of its own stands for."""


class _Trace(NamedTuple):
    spans: tuple[Site, ...]
    edges: tuple[int, ...]
    """The tokens at which edits begin and end: what tells two ways to match apart."""


@dataclass(frozen=True)
class Shortfall:
    """How far the best attempt got: elements that matched, and the token it stopped at."""

    elements: int
    token: int


class Matcher:
    """Finds one pattern in one region of a source."""

    def __init__(self, source: Source, region: Region, pattern: Pattern) -> None:
        self.source = source
        self.region = region
        self.tokens = region.tokens
        self.pattern = pattern
        self.elements = pattern.elements
        self.shortfall = Shortfall(-1, region.start)
        self._brackets = Brackets.none(len(self.tokens)) if region.is_text else source.brackets
        self._known: dict[_State, list[_Trace]] = {}
        self._edges = {edge for edit in pattern.edits for edge in (edit.start, edit.stop)}

    def matches(self) -> list[Match]:
        """The matches that differ in where an edit stands, in the order of the text."""
        found: dict[tuple[Site, ...], Match] = {}
        for start in self._candidates():
            for trace in self._rest(_State(0, start, None, 0, None)):
                sites = self._sites(trace.spans, start)
                if sites is not None and sites not in found:
                    found[sites] = Match(sites, trace.spans)
            if len(found) >= ENOUGH:
                break
        return list(found.values())

    def _candidates(self) -> Iterator[int]:
        first = self.elements[0]
        if isinstance(first, BlockStart):
            yield self.region.body
            return
        for index in range(self.region.start, self.region.end):
            if not isinstance(first, Literal) or self.tokens[index].key == first.key:
                yield index

    def _sites(self, spans: tuple[Site, ...], start: int) -> Optional[tuple[Site, ...]]:
        """The edits' sites, or None if one lies inside another symbol."""
        edges = [start, *(span.stop for span in spans)]
        sites = []
        for edit in self.pattern.edits:
            site = Site(edges[edit.start], edges[edit.stop])
            if site.start == site.stop:
                before = spans[edit.start - 1].start if edit.start else site.start
                at = self._insertion(site.start, before)
                if at is None:
                    return None
                site = Site(at, at)
            elif not self._is_whole(edit, site):
                return None
            sites.append(site)
        return tuple(sites)

    def _is_whole(self, edit: Edit, site: Site) -> bool:
        """Whether code that was only added, as lines of its own, ends where a line does.

        What an import brings may be followed by more of it.
        """
        first = self.elements[edit.start]
        if self.region.is_text or not (isinstance(first, Literal) and first.mark == "+"):
            return True
        if edit.lines or first.text in IMPORTS or not self.tokens[site.start].starts_line:
            return True
        return site.stop == len(self.tokens) or self.tokens[site.stop].starts_line

    def _insertion(self, at: int, before: int) -> Optional[int]:
        """Where an insertion before token ``at`` goes; None inside another symbol.

        ``before`` is where the element before it begins.
        """
        if self.region.is_text or not self.region.start < at < self.region.end:
            return at
        index = self.source.owner(at)
        while index != self.region.symbol and index >= 0:
            symbol = self.source.symbols[index]
            if symbol.start < at < symbol.end:
                # Before the definition means before its decorators.
                above = at == symbol.keyword and not symbol.start <= before < at
                return symbol.start if above else None
            index = symbol.parent
        return at

    def _rest(self, state: _State) -> list[_Trace]:
        """How the elements from ``state.element`` on can stand from ``state.token`` on."""
        if state not in self._known:
            self._known[state] = self._ways(state)
        return self._known[state]

    def _ways(self, state: _State) -> list[_Trace]:
        spans: list[Site] = []
        edges: list[int] = []
        while True:
            if state.element > self.shortfall.elements:
                self.shortfall = Shortfall(state.element, state.token)
            if state.element in self._edges:
                edges.append(state.token)
            if state.element == len(self.elements):
                return [_Trace(tuple(spans), tuple(edges))]
            element = self.elements[state.element]
            if isinstance(element, Wild):
                break
            after = self._advance(element, state)
            if after is None:
                return []
            spans.append(Site(state.token, after.token))
            state = after
        kept: dict[tuple[int, ...], _Trace] = {}
        for after in self._wild(element, state):
            for rest in self._rest(after):
                way = _Trace(
                    (*spans, Site(state.token, after.token), *rest.spans), (*edges, *rest.edges)
                )
                kept.setdefault(way.edges, way)
            if len(kept) >= ENOUGH:
                break
        return list(kept.values())

    def _advance(
        self, element: Union[Literal, BlockStart, BlockEnd], state: _State
    ) -> Optional[_State]:
        if isinstance(element, Literal):
            return self._literal(element, state)
        if isinstance(element, BlockStart):
            depth = self._depth_of_body()
            return state._replace(element=1, depth=depth, block=depth)
        return state._replace(element=state.element + 1) if self._ends_block(state) else None

    def _depth_of_body(self) -> int:
        if self.region.is_text or self.region.end == 0:
            return 0
        return self.tokens[min(self.region.body, self.region.end - 1)].depth

    def _literal(self, element: Literal, state: _State) -> Optional[_State]:
        at = state.token
        if (
            at < self.region.end
            and self.tokens[at].key == element.key
            and self._may_own(element, at)
        ):
            return self._step(element, state)
        if self.region.is_text:
            return None
        if element.text == "," and self._comma_may_be_missing(state):
            return state._replace(element=state.element + 1)
        if element.text in CLOSING and self._brackets.is_trailing_comma(at):
            return self._literal(element, state._replace(token=at + 1))
        keyword = self._after_decorators(at)
        if keyword is not None and state.element in self._edges:
            return self._literal(element, state._replace(token=keyword))
        return None

    def _after_decorators(self, at: int) -> Optional[int]:
        """The ``def`` or ``class`` of the decorated definition that begins at a token."""
        if at >= self.region.end or self.tokens[at].text != "@":
            return None
        symbol = self.source.symbols[self.source.owner(at)]
        return symbol.keyword if symbol.start == at else None

    def _may_own(self, element: Literal, at: int) -> bool:
        """Whether a token belongs to the symbol, or to what this edit itself defines."""
        if self.region.is_text:
            return True
        index = self.source.owner(at)
        if index == self.region.symbol or (element.defined and element.mark != " "):
            return True
        symbol = self.source.symbols[index]
        is_header = at < symbol.body and symbol.parent == self.region.symbol
        return is_header and element.mark == " "

    def _step(self, element: Literal, state: _State) -> Optional[_State]:
        """The state after a token that is the element's, if the layouts agree."""
        token = self.tokens[state.token]
        after = state._replace(element=state.element + 1, token=state.token + 1)
        if self.region.is_text:
            return after
        previous = self.elements[state.element - 1] if state.element else None
        if token.starts_line:
            if isinstance(previous, (Literal, Wild)) and not element.first:
                return None
            if state.column is not None and sign(token.depth - state.depth) != sign(
                element.column - state.column
            ):
                return None
            return after._replace(column=element.column, depth=token.depth)
        if (
            element.first
            and isinstance(previous, Literal)
            and previous.mark == element.mark
            and state.element not in self._edges
            and self._brackets.level_before(state.token) == 0
            and not self._breaks_before(state.token)
        ):
            return None  # two lines of the hunk, one of the source
        return after if state.column is not None else after._replace(depth=token.depth)

    def _breaks_before(self, at: int) -> bool:
        gap = self.source.text[self.tokens[at - 1].end : self.tokens[at].start] if at else ""
        return "\n" in gap or "\r" in gap

    def _comma_may_be_missing(self, state: _State) -> bool:
        """Whether a hunk's comma need not be written out: the last in brackets, or of ``...,``."""
        at = state.token
        if not 0 < at < len(self.tokens):
            return False
        previous = self.elements[state.element - 1] if state.element else None
        follows_opening = self.tokens[at - 1].text in OPENING or self.tokens[at - 1].text == ","
        if isinstance(previous, Wild) and follows_opening and not self.tokens[at].starts_line:
            return True
        return self.tokens[at].text in CLOSING and not self._brackets.comma_matters(at)

    def _wild(self, element: Wild, state: _State) -> Iterator[_State]:
        """The states after a run of any code, the shortest first."""
        at = state.token
        after = state._replace(element=state.element + 1)
        if self.region.is_text:
            for end in range(at, self.region.end + 1):
                yield after._replace(token=end)
            return
        by_lines = element.own_line and self._brackets.level_before(at) == 0
        if not by_lines:
            after = after._replace(block=None)
            yield after
            for end in self._runs(at):
                if any(self.tokens[i].starts_line for i in range(max(at + 1, end - 1), end)):
                    return
                yield after._replace(token=end)
            return
        block = self._block_of(element, state)
        yield after._replace(block=block)
        begins_line = at < self.region.end and self.tokens[at].starts_line
        if begins_line:
            actual = self.tokens[at].depth
            if state.column is not None and sign(actual - state.depth) != sign(
                element.column - state.column
            ):
                return
            block = actual
        for end in self._runs(at):
            if end == self.region.end or self.tokens[end].starts_line:
                yield after._replace(token=end, column=element.column, depth=block, block=block)
                if end < self.region.end and self.tokens[end].depth < block:
                    return

    def _block_of(self, element: Wild, state: _State) -> int:
        """The depth of the block that a ``...`` on a line of its own stands in, by its layout."""
        if state.column is not None:
            difference = element.column - state.column
            return max(state.depth + (sign(difference) if difference > 0 else difference // 4), 0)
        if isinstance(self.elements[state.element - 1], BlockStart) and state.element:
            return state.depth
        return self.tokens[state.token - 1].depth if state.token else 0

    def _runs(self, at: int) -> Iterator[int]:
        """Where runs of code from ``at`` on may end: never in brackets that they did not open."""
        while at < self.region.end and self.tokens[at].text not in CLOSING:
            at = self._brackets.partner.get(at, at) + 1
            if at <= self.region.end:
                yield at

    def _ends_block(self, state: _State) -> bool:
        at = state.token
        if at == self.region.end:
            return True
        if self.region.is_text:
            return False
        token = self.tokens[at]
        if token.starts_line:
            return state.block is None or token.depth < state.block
        return token.text in CLOSING
