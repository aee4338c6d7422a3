"""Random Python modules as structures, and edits of them with the hunks that make them.

All names are unique, so that what a hunk quotes says what is meant. Names that begin
with ``q`` stand in strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Callable, Optional, Union

from hypothesis import strategies as st

from overlay.source import Source

SIMPLE = (
    "N = N(N, N=N)",
    "return N",
    "N: N[N] = N",
    "N = lambda N, /, *N: N + 1",
    "N = [N for N in N if N]",
    "N = {N: N, **N}",
    "N = (N for N in (N, N))",
    "assert N, f'{q!r:>{q}} {q}'",
    'N(f"{q["k"]}", N)',
    "N = (N := N)",
    "N, *N = N",
    "N = -N - -N",
    "N = N[N:N, ::2]",
    "N = N if N else not N",
    "N(N); N()",
    "if N: N(N)",
    "for N in N: N(N); N()",
    "N = 0x1F + 1_000 + 1e3j + N",
    "N(b'q', rb'q' b\"q\", 'q' \"q\", N)",
    "await N(N)",
    "yield N",
    "raise N from N",
    "type N[N: N, *N] = N",
    "N = (N,)",
    "N(N, ..., *N)",
    "from N import (N, N)",
    "import N.N as N",
    "N @= N[N,]",
    "del N, N.N",
    "print(*N, sep=N)",
    "match = N(N)",
)
ODD = (
    "N = '''q\n  q'''",
    "N = N + \\\n        N",
    "N(N)  # q(",
)
HEADERS = (
    ("if N", "elif N", "else"),
    ("for N in N", "else"),
    ("while N",),
    ("async with N as N, N",),
    ("with (N() as N, N)",),
    ("try", "except N as N", "finally"),
    ("try", "except* N"),
    ("if TYPE_CHECKING",),
    ("match N, N", "case N(N, q=N) if N", "case [N, *N] | {N: N}"),
)


@dataclass
class Simple:
    text: str


@dataclass
class Call:
    """A call, or with ``prefix`` something else in brackets that has elements."""

    prefix: str
    parts: list[str]
    suffix: str
    exploded: bool

    @property
    def text(self) -> str:
        return self.prefix + ", ".join(self.parts) + self.suffix


@dataclass
class Block:
    clauses: list[tuple[str, list[Statement]]]


@dataclass
class Define:
    kind: str
    name: str
    decorators: list[str]
    parameters: list[str]
    exploded: bool
    docstring: list[str]
    body: list[Statement]


Statement = Union[Simple, Call, Block, Define]


@dataclass
class Module:
    docstring: list[str]
    body: list[Statement]

    def __str__(self) -> str:
        lines = _docstring(self.docstring, "")
        return "".join(line + "\n" for line in [*lines, *_render(self.body, "")])


def _docstring(lines: Sequence[str], indent: str) -> list[str]:
    if not lines:
        return []
    rest = [indent + line if line else "" for line in lines[1:]]
    if not rest:
        return [f'{indent}"""{lines[0]}"""']
    return [f'{indent}"""{lines[0]}', *rest, f'{indent}"""']


def _bracketed(prefix: str, parts: Sequence[str], suffix: str, exploded: bool) -> list[str]:
    if not exploded:
        return [prefix + ", ".join(parts) + suffix]
    return [prefix, *(f"    {part}," for part in parts), suffix]


def _render(statements: Sequence[Statement], indent: str) -> Iterator[str]:
    deeper = indent + "    "
    for index, statement in enumerate(statements):
        if isinstance(statement, Simple):
            first, *rest = statement.text.split("\n")
            yield indent + first
            yield from rest
        elif isinstance(statement, Call):
            for line in _bracketed(
                statement.prefix, statement.parts, statement.suffix, statement.exploded
            ):
                yield indent + line
        elif isinstance(statement, Block):
            for header, body in statement.clauses:
                yield f"{indent}{header}:"
                yield from _render(body, deeper)
        else:
            if index:
                yield ""
            yield from (f"{indent}@{decorator}" for decorator in statement.decorators)
            for line in _bracketed(
                f"{statement.kind} {statement.name}(",
                statement.parameters,
                "):",
                statement.exploded,
            ):
                yield indent + line
            yield from _docstring(statement.docstring, deeper)
            yield from _render(statement.body, deeper)


class _Builder:
    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def fill(self, template: str) -> str:
        return re.sub(r"\bN\b", lambda _: self.name(), template)

    def chance(self, of: int = 2) -> bool:
        return self.draw(st.integers(0, of - 1)) == 0

    def docstring(self) -> list[str]:
        if self.chance():
            return []
        lines = [f"About {self.name()} and {self.name()}."]
        if self.chance():
            lines += ["", f"{self.name()}: {self.name()} is", f"    {self.name()} ({self.name()})"]
        return lines

    def block(self, depth: int) -> list[Statement]:
        found: list[Statement] = []
        for _ in range(self.draw(st.integers(1, 3))):
            found.append(self.statement(depth, found))
        return found

    def statement(self, depth: int, before: Sequence[Statement]) -> Statement:
        kind = self.draw(st.integers(0, 9))
        if kind < 4 or depth == 3:
            return Simple(self.fill(self.draw(st.sampled_from(SIMPLE))))
        if kind == 4:
            return Simple(self.fill(self.draw(st.sampled_from(ODD))))
        if kind == 5:
            parts = [self.fill("N"), self.fill("N=N"), self.fill("*N")]
            parts = parts[: self.draw(st.integers(0, 3))]
            prefix, suffix = self.draw(st.sampled_from((("N(", ")"), ("N = [", "]"))))
            return Call(self.fill(prefix), parts, suffix, self.chance() and bool(parts))
        if kind < 8:
            headers = [self.fill(header) for header in self.draw(st.sampled_from(HEADERS))]
            if headers[0].startswith("match"):
                cases: list[Statement] = [
                    Block([(header, self.block(depth + 1))]) for header in headers[1:]
                ]
                return Block([(headers[0], cases)])
            return Block([(header, self.block(depth + 1)) for header in headers])
        # Overloads: several definitions of one name.
        names = [other.name for other in before if isinstance(other, Define)]
        name = names[-1] if names and self.chance() else self.name()
        kind_of = self.draw(st.sampled_from(("def", "async def", "class")))
        parameters = ["self", self.fill("N: N"), self.fill("N=N")]
        if kind_of == "class":
            parameters = [self.name(), self.name()]
        parameters = parameters[: self.draw(st.integers(0, len(parameters)))]
        return Define(
            kind_of,
            name,
            [self.fill(text) for text in ("N", "N.N(N)")[: self.draw(st.integers(0, 2))]],
            parameters,
            self.chance() and bool(parameters),
            self.docstring(),
            self.block(depth + 1),
        )


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """A module with unique names."""
    builder = _Builder(draw)
    return Module(builder.docstring(), [*builder.block(0), *builder.block(0)])


@dataclass
class Edit:
    """A change of a module: the hunk that makes it, and a function that makes it here."""

    kind: str
    symbol: str
    hunk: list[str]
    make: Callable[[], None]
    statements: list[Statement] = field(default_factory=list)
    """The block that it is made in, where it is one of statements."""


@dataclass
class _Place:
    """A block that edits may be made in."""

    symbol: str
    statements: list[Statement]
    header: Optional[str]
    """What begins it, or None for a symbol's own body."""
    cases: bool = False
    """Whether only ``case`` may stand in it."""


def _places(
    statements: list[Statement],
    symbol: str,
    prefix: str,
    counts: dict[str, int],
    header: Optional[str],
) -> Iterator[tuple[_Place, Optional[Define]]]:
    is_match = header is not None and header.startswith("match n")
    yield _Place(symbol, statements, header, is_match), None
    for statement in statements:
        if isinstance(statement, Block):
            for number, (own, body) in enumerate(statement.clauses):
                anchor = own if re.search(r"n\d", own) else None
                places = _places(body, symbol, prefix, counts, anchor or f"?{number}")
                yield from places
        elif isinstance(statement, Define):
            plain = prefix + statement.name
            counts[plain] = counts.get(plain, 0) + 1
            name = f"{plain}#{counts[plain]}"
            yield _Place(name, [], None), statement
            yield from _places(statement.body, name, name + ".", counts, None)


def edits(module: Module) -> list[Edit]:
    """All edits of a module that the generator knows."""
    found: list[Edit] = []
    if module.docstring:
        found += _docstring_edits("<module>", module.docstring)
    for place, define in _places(module.body, "<module>", "", {}, None):
        if define is not None:
            found += _define_edits(place.symbol, define)
        elif not place.cases:
            made = list(_block_edits(place))
            for edit in made:
                edit.statements = place.statements
                if place.symbol == "<module>" and place.header is not None:
                    # What is new in a module's block must not stand in the first column.
                    edit.hunk = [
                        line[:1] + "    " + line[1:] if line[1:].strip() else line
                        for line in edit.hunk
                    ]
            found += made
    return found


def _setter(items: list, start: int, stop: int, new: list) -> Callable[[], None]:  # type: ignore[type-arg]
    def make() -> None:
        items[start:stop] = new

    return make


def _docstring_edits(symbol: str, lines: list[str]) -> Iterator[Edit]:
    words = lines[0].split()
    changed = lines[0].replace(words[1], "w1 w2")
    yield Edit(
        "docstring word",
        f"{symbol}.__doc__",
        [f"-{words[1]}", "+w1 w2"],
        _setter(lines, 0, 1, [changed]),
    )
    if len(lines) > 1:
        yield Edit(
            "docstring end",
            f"{symbol}.__doc__",
            [" ...", "+", "+w1 (w2)"],
            _setter(lines, len(lines), len(lines), ["", "w1 (w2)"]),
        )
        yield Edit(
            "docstring line",
            f"{symbol}.__doc__",
            [f" {lines[2]}", "+    w1"],
            _setter(lines, 3, 3, ["    w1"]),
        )


def _list_edits(symbol: str, head: str, tail: str, parts: list[str], new: str) -> Iterator[Edit]:
    count = len(parts)
    yield Edit(
        "last element",
        symbol,
        [f" {head}", "     ...,", f"+    {new},", f" {tail}"],
        _setter(parts, count, count, [new]),
    )
    for index in range(count):
        part = parts[index]
        yield Edit(
            "changed element",
            symbol,
            [f" {head}", "     ...", f"-    {part}", f"+    {new}", "     ...", f" {tail}"],
            _setter(parts, index, index + 1, [new]),
        )
        yield Edit(
            "inserted element",
            symbol,
            [f" {head}", "     ...", f"+    {new},", f"     {part}"],
            _setter(parts, index, index, [new]),
        )
        before = f"     {parts[index - 1]}," if index else None
        after = f"     {parts[index + 1]}" if index + 1 < count else None
        yield Edit(
            "removed element",
            symbol,
            [
                *([before] if before else [f" {head}"]),
                f"-    {part},",
                *([after] if after else [f" {tail}"]),
            ],
            _setter(parts, index, index + 1, []),
        )


def _define_edits(symbol: str, define: Define) -> Iterator[Edit]:
    new = "k1=k2" if define.kind != "class" else "k1"
    head = f"{define.kind} {define.name}("
    yield from _list_edits(symbol, head, "):", define.parameters, new)
    if define.docstring:
        yield from _docstring_edits(symbol, define.docstring)
    yield Edit(
        "decorator",
        symbol,
        ["+@k1(k2)", f" {head}"],
        _setter(define.decorators, len(define.decorators), len(define.decorators), ["k1(k2)"]),
    )


def _block_edits(place: _Place) -> Iterator[Edit]:
    statements, symbol, header = place.statements, place.symbol, place.header
    anchored = header is None or not header.startswith("?")
    new = [Simple("k1 = k2(k3)"), Block([("if k4", [Simple("k5()")])])]
    added = ["+k1 = k2(k3)", "+if k4:", "+    k5()"]
    inside = [line[0] + "    " + line[1:] for line in added]
    end = len(statements)
    if anchored and header is None:
        if not isinstance(statements[0], Define):
            yield Edit("first", symbol, [*added, " ..."], _setter(statements, 0, 0, new))
        yield Edit("last", symbol, [" ...", *added], _setter(statements, end, end, new))
        method = Define("def", "k1", [], ["self"], False, [], [Simple("return k2")])
        yield Edit(
            "method",
            symbol,
            [" ...", "+", "+def k1(self):", "+    return k2"],
            _setter(statements, end, end, [method]),
        )
    elif anchored:
        if not isinstance(statements[0], Define):
            yield Edit(
                "block's first", symbol, [f" {header}:", *inside], _setter(statements, 0, 0, new)
            )
        yield Edit(
            "block's last",
            symbol,
            [f" {header}:", "     ...", *inside],
            _setter(statements, end, end, new),
        )
    for index, statement in enumerate(statements):
        before = _quoted(statements[index - 1]) if index else None
        after = _opening(statements[index + 1]) if index + 1 < end else None
        if isinstance(statement, Call):
            yield from _list_edits(
                symbol, statement.prefix, statement.suffix, statement.parts, "k1=k2"
            )
        quoted = _quoted(statement)
        followed = after and not isinstance(statements[index + 1], Define)
        if isinstance(statement, Define) and before and followed:
            lines = list(_render([statement], ""))
            yield Edit(
                "removed definition",
                symbol,
                [f" {before}", "-", *("-" + line for line in lines), f" {after}"],
                _setter(statements, index, index + 1, []),
            )
        if quoted is None:
            continue
        if isinstance(statement, Simple):
            for name in re.findall(r"\bn\d+\b", quoted):
                yield Edit("name", symbol, [f"-{name}", "+k1(k2)"], _renamer(statement, name))
        yield Edit(
            "after", symbol, [f" {quoted}", *added], _setter(statements, index + 1, index + 1, new)
        )
        yield Edit("before", symbol, [*added, f" {quoted}"], _setter(statements, index, index, new))
        yield Edit(
            "replaced",
            symbol,
            [f"-{quoted}", *added],
            _setter(statements, index, index + 1, new),
        )
        if before and after:
            yield Edit(
                "removed",
                symbol,
                [f" {before}", f"-{quoted}", f" {after}"],
                _setter(statements, index, index + 1, []),
            )


def _renamer(statement: Simple, name: str) -> Callable[[], None]:
    def make() -> None:
        statement.text = re.sub(rf"\b{name}\b", "k1(k2)", statement.text)

    return make


def _quoted(statement: Statement) -> Optional[str]:
    """A statement as a hunk quotes it in one line, if it can."""
    if isinstance(statement, Call):
        return statement.text
    if not isinstance(statement, Simple) or "\n" in statement.text:
        return None
    return statement.text


def _opening(statement: Statement) -> Optional[str]:
    """How a hunk quotes a statement's beginning."""
    if isinstance(statement, Define):
        return None if statement.decorators else f"{statement.kind} {statement.name}("
    if isinstance(statement, Block):
        header = statement.clauses[0][0]
        return header if re.search(r"n\d", header) else None
    return _quoted(statement)


@st.composite
def reformatted(draw: st.DrawFn, text: str) -> str:
    """The same code laid out differently: nothing of it but white space, comments, quotes
    and commas that could be left out. Comments hold the number of the token that they follow.
    """
    source = Source(text)
    unit = draw(st.sampled_from(("    ", "  ", "\t", " ")))
    odds = draw(st.integers(2, 12))
    newline = draw(st.sampled_from(("\n", "\r\n", "\r")))
    out: list[str] = []
    end = 0
    for index, token in enumerate(source.tokens):
        gap = text[end : token.start]
        end = token.end
        change = draw(st.integers(0, odds))
        comment = f"# c{index} n1 = n2(n3) ("
        opened = source.brackets.level_before(index)
        in_brackets = opened > 0
        if (
            index in source.brackets.opening
            and source.tokens[index - 1].text not in ("(", "[", "{", ",", "...")
            and not source.brackets.comma_matters(index)
            and change == 1
        ):
            out.append(",")
        if token.starts_line:
            indent = unit * token.depth
            if index:
                out.append(f"  {comment}" * (change == 0) + "\n")
            out.append("\n" * (change == 1) + f"{indent}{comment}\n" * (change == 2))
            out.append(f"{'        ' if change == 3 else ''}{comment}\n" * (change in (3, 4)))
            out.append(indent)
        elif in_brackets and change == 0:
            out.append(f"  {comment}\n{unit * draw(st.integers(0, 4))}")
        elif in_brackets and change <= 2:
            out.append("\n" + unit * draw(st.integers(0, 4)))
        elif in_brackets and source.brackets.is_trailing_comma(index) and change == 3:
            continue
        elif change == 2:
            out.append(" \\\n" + unit)
        else:
            # A comment in the text is not kept, nor is a line break.
            out.append(
                " " * (change == 1)
                + (gap if gap.isspace() and "\n" not in gap else " " * bool(gap))
            )
        new = token.text
        if change == 0 and re.fullmatch(r"[br]*'[^'\"\\\n]*'", new):
            new = new.replace("'", '"')
        out.append(new)
    result = "".join(out) + draw(st.sampled_from(("\n", "", "\n\n", f"\n{unit}# the end")))
    return result.replace("\n", newline)
