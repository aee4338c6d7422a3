"""One hunk on one source: applied, pending, or why it fits neither way."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from textwrap import dedent
from typing import Optional

from overlay.apatch import Hunk, Line
from overlay.errors import PatchError
from overlay.match import Match, Matcher, Site
from overlay.pattern import (
    BlockEnd,
    BlockStart,
    Literal,
    Pattern,
    Wild,
    check_removals,
    compile_hunk,
)
from overlay.rewrite import RewriteError, rewrite
from overlay.source import MODULE, Region, Source, SourceError, Symbol, plain_name, without_comments

SHOWN_SYMBOLS = 3
SHOWN_TOKENS = 12
SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class CompiledHunk:
    """A hunk with its two sides; ``where`` names it in errors: patch, file and symbol."""

    hunk: Hunk
    where: str
    before: Pattern
    after: Pattern

    @property
    def adds_imports(self) -> bool:
        """Whether it only adds imports, which a file may well have already."""
        return self.after.writes_imports and all(edit.inserts for edit in self.before.edits)

    @cached_property
    def removed(self) -> tuple[str, ...]:
        """The classes and functions that it takes away."""
        if self.hunk.is_docstring:
            return ()
        gone, new = (
            [name for edit in side.edits for name in _definitions(edit.lines)]
            for side in (self.after, self.before)
        )
        scope = "" if self.hunk.scope == MODULE else f"{self.hunk.scope}."
        return tuple(scope + name for name in gone if name not in new)

    @classmethod
    def of(cls, hunk: Hunk, where: str) -> CompiledHunk:
        """Compile a hunk; PatchSyntaxError if it could not say where it stands."""
        before, after = compile_hunk(hunk, where)
        check_removals(before, after, where)
        return cls(hunk, where, before, after)

    def reversed(self) -> CompiledHunk:
        """The hunk that takes this one back, without comments that may have no place there."""
        hunk = self.hunk.reversed()
        if not hunk.is_docstring:
            hunk = Hunk(hunk.symbol, tuple(_without_comments(hunk.lines)))
        return CompiledHunk(hunk, self.where, *compile_hunk(hunk, self.where))


def _without_comments(lines: Iterable[Line]) -> Iterator[Line]:
    for mark, run in groupby(lines, lambda line: line.mark):
        if mark == "+":
            yield from (Line(mark, text) for text in without_comments([line.text for line in run]))
        else:
            yield from run


def is_applied(hunk: CompiledHunk, source: Source) -> bool:
    """Whether a hunk's result stands in a source.

    Raises PatchError where neither the result nor what the hunk changes stands there
    exactly once.
    """
    return _find(hunk, source)[1] is None


def apply_hunk(hunk: CompiledHunk, source: Source, expected: Optional[Source] = None) -> Source:
    """The source with a hunk applied; the very same one if it was already.

    Raises PatchError if it does not match exactly once, cannot be written there, or does not
    make the ``expected`` source, where that is known.
    """
    region, match = _find(hunk, source)
    if match is None:
        return source
    try:
        result = rewrite(source, region, hunk.before, match, expected)
    except RewriteError as error:
        line = _line_of(source, region, match.sites[0])
        raise PatchError(f"{hunk.where}: matches in line {line}, but {error}") from None
    if not _holds(hunk, result):
        line = _line_of(source, region, match.sites[0])
        raise PatchError(
            f"{hunk.where}: applied in line {line}, it could not be told from not applied:"
            " quote more of the code around it"
        )
    return result


def _holds(hunk: CompiledHunk, result: Source) -> bool:
    try:
        return is_applied(hunk, result)
    except PatchError:
        return False


def _find(hunk: CompiledHunk, source: Source) -> tuple[Region, Optional[Match]]:
    """Where a hunk is to be applied; no match if it is applied already."""
    try:
        source.tokens  # noqa: B018 - read now, so that a file that is not Python is told here
    except SourceError as error:
        raise PatchError(f"{hunk.where}: {error}") from None
    region = _region(hunk, source)
    before, after = Matcher(source, region, hunk.before), Matcher(source, region, hunk.after)
    done = after.matches()
    if any(map(source.find, hunk.removed)):
        done = []
    todo = [match for match in before.matches() if not any(_within(match, d) for d in done)]
    if len(todo) == 1:
        return region, todo[0]
    if todo:
        raise PatchError(
            f"{hunk.where}: matches in {len(todo)} places: quote more, so that one is meant",
            _places(source, region, todo),
        )
    if len(done) == 1:
        return region, None
    if done:
        raise PatchError(
            f"{hunk.where}: its result stands in {len(done)} places:"
            " quote more, so that one is meant",
            _places(source, region, done),
        )
    raise PatchError(
        f"{hunk.where}: matches nowhere in {_name(hunk)}", _shortfall(source, region, before)
    )


def _definitions(lines: Iterable[Line]) -> list[str]:
    """The classes and functions that some lines define, without those inside of them."""
    source = Source(dedent("".join(f"{line.text}\n" for line in lines)))
    try:
        return [symbol.name.split("#")[0] for symbol in source.symbols if symbol.parent < 0]
    except SourceError:  # a part of a statement
        return []


def _within(before: Match, after: Match) -> bool:
    """Whether all that a hunk would change is what it has written already."""
    return all(
        new.start <= old.start and old.stop <= new.stop
        for old, new in zip(before.sites, after.sites)
    )


def _name(hunk: CompiledHunk) -> str:
    return "the module" if hunk.hunk.scope == MODULE else hunk.hunk.symbol


def _region(hunk: CompiledHunk, source: Source) -> Region:
    symbol = _symbol(hunk, source)
    if not hunk.hunk.is_docstring:
        return source.region(symbol)
    region = source.docstring(symbol)
    if region is None:
        raise PatchError(f"{hunk.where}: {hunk.hunk.scope} has no docstring")
    return region


def _symbol(hunk: CompiledHunk, source: Source) -> Optional[Symbol]:
    name = hunk.hunk.scope
    if name == MODULE:
        return None
    found = source.find(name)
    if len(found) == 1:
        return found[0]
    if found:
        places = []
        for symbol in found:
            line = source.line(source.tokens[symbol.keyword].start)
            places.append(f"{plain_name(symbol.name, source.symbols)}: line {line}")
        raise PatchError(
            f"{hunk.where}: {name} is defined {len(found)} times: say which, as {name}#2", places
        )
    known = list(dict.fromkeys(plain_name(s.name, source.symbols) for s in source.symbols))
    near = difflib.get_close_matches(name, known, SHOWN_SYMBOLS, 0.6)
    last = name.split(".")[-1]
    near += [k for k in known if k.split(".")[-1] == last and k not in near][:SHOWN_SYMBOLS]
    hint = f": the nearest names are {', '.join(near)}" if near else ""
    raise PatchError(f"{hunk.where}: there is no {name} in the file{hint}")


def _line_of(source: Source, region: Region, site: Site) -> int:
    tokens = region.tokens
    if not tokens:
        return 1
    return source.line(tokens[min(site.start, len(tokens) - 1)].start)


def _places(source: Source, region: Region, matches: list[Match]) -> list[str]:
    """Where edits would go: the first edit in which two matches differ says it."""
    edit = next(
        index
        for index in range(len(matches[0].sites))
        if len({match.sites[index] for match in matches}) > 1
    )
    places = []
    for match in matches:
        start, stop = match.sites[edit]
        inserts = start == stop and start > 0
        offset = region.tokens[start - inserts].start
        line = source.line(offset)
        column = offset - source.line_start(offset) + 1
        text = source.text[source.line_start(offset) : source.line_end(offset)].strip()
        places.append(f"{'after ' * inserts}line {line}, column {column}: {text}")
    return places


def _shortfall(source: Source, region: Region, matcher: Matcher) -> list[str]:
    """How far the best attempt got, and what stood there instead."""
    reached = matcher.shortfall
    elements = matcher.elements
    if reached.elements <= 0:
        first = elements[0]
        wanted = _show(first)
        return [f"not even its first token is there: {wanted}"]
    matched = " ".join(_show(e) for e in elements[: reached.elements][-SHOWN_TOKENS:])
    element = elements[min(reached.elements, len(elements) - 1)]
    at = reached.token
    if at < region.end:
        line = source.line(region.tokens[at].start)
        shown = region.tokens[at : min(at + SHOWN_TOKENS, region.end)]
        stands = " ".join(_shortened(token.text) for token in shown)
        instead = f"line {line} has: {stands}"
    else:
        instead = "the symbol ends there"
    return [f"matched so far: {matched}", f"then expected: {_show(element)}", instead]


def _shortened(text: str) -> str:
    """A token in one line; of a docstring, its first words."""
    line = re.sub(r"\s+", " ", text)
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 3] + "..."


def _show(element: object) -> str:
    if isinstance(element, Literal):
        return _shortened(element.text)
    if isinstance(element, Wild):
        return "..."
    return {BlockStart: "(start of the body)", BlockEnd: "(end of the block)"}[type(element)]
