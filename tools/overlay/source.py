"""A Python source file as tokens and symbols: what patches are matched on.

Tokens come from parso's tokenizer, which knows every Python's syntax whichever
Python runs the tool, and which loses nothing: every byte lies in a token or in
the white space before one.
"""

from __future__ import annotations

import ast
import codecs
import keyword
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from typing import NamedTuple, Optional

from parso.python import tokenize as parso_tokenize
from parso.python.token import PythonTokenTypes
from parso.utils import PythonVersionInfo

GRAMMAR = PythonVersionInfo(3, 13)
"""Newest syntax that the tokenizer knows; older syntax is a part of it as far as tokens go."""

OPENING = {"(": ")", "[": "]", "{": "}"}
CLOSING = frozenset(OPENING.values())
CLAUSES = frozenset({"else", "elif", "except", "finally"})
"""What begins a line without beginning a statement."""
MODULE = "<module>"

_LAYOUT = {
    PythonTokenTypes.NEWLINE,
    PythonTokenTypes.INDENT,
    PythonTokenTypes.DEDENT,
    PythonTokenTypes.ERROR_DEDENT,
    PythonTokenTypes.ENDMARKER,
}
_STRING_PARTS = re.compile(r"([A-Za-z]*)('''|\"\"\"|'|\")(.*)\2\Z", re.DOTALL)
_COMMENT = re.compile(r"[ \t]*#[^\n]*")
NEWLINE = re.compile(r"\r\n|\r|\n")


class SourceError(ValueError):
    """The text cannot be read as Python; the message says where and why."""


class Token(NamedTuple):
    """One token of code, or one word of a docstring.

    ``key`` is what is compared: equal for the same token in another spelling
    (quotes, case of a hexadecimal number). ``start`` and ``end`` are offsets in the text.
    """

    key: object
    text: str
    start: int
    end: int
    depth: int
    """How many blocks the token's logical line stands in."""
    starts_line: bool
    """Whether it is the first token of a logical line."""


def string_parts(text: str) -> tuple[str, str, str]:
    """Prefix, quotes and content of a string token."""
    match = _STRING_PARTS.match(text)
    if match is None:
        raise SourceError(f"not a string: {text[:40]!r}")
    return match[1], match[2], match[3]


def _string_key(text: str, starts_line: bool) -> object:
    prefix, _, content = string_parts(text)
    if "f" not in prefix.lower() and "t" not in prefix.lower():
        try:
            value = _value(text)
            if starts_line and isinstance(value, str) and "\n" in value:
                value = " ".join(value.split())  # a docstring, which is indented like code
            return (type(value).__name__, value)
        except (SyntaxError, ValueError):
            pass
    return ("".join(sorted(prefix.lower())), NEWLINE.sub("\n", content))


def _value(text: str) -> object:
    if "\\" not in text:
        return ast.literal_eval(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # escapes that mean nothing are the file's own affair
        return ast.literal_eval(text)


def _number_key(text: str) -> object:
    try:
        return ("number", repr(ast.literal_eval(text)))
    except (SyntaxError, ValueError):
        return text


def tokens_of(text: str) -> list[Token]:
    """The tokens of code, without layout; formatted strings are one token each.

    Raises SourceError where the text is not Python (an unterminated string, a stray character).
    """
    return [token for token, _ in _scan(text)]


def _scan(text: str) -> Iterator[tuple[Token, bool]]:
    """Tokens, each with whether the tokenizer was sure of its layout."""
    offset = 0
    depth = 0
    starts_line = True
    sound = True
    awaits_block = False
    last = ""
    formatted = 0
    formatted_start = 0
    for kind, string, _, prefix in parso_tokenize.tokenize(text, version_info=GRAMMAR):
        start = offset + len(prefix)
        offset = start + len(string)
        if kind not in _LAYOUT:
            sound = sound and not awaits_block
            last = string
        if formatted or kind is PythonTokenTypes.FSTRING_START:
            if kind is PythonTokenTypes.FSTRING_START:
                if not formatted:
                    formatted_start = start
                formatted += 1
            elif kind is PythonTokenTypes.FSTRING_END:
                formatted -= 1
            elif kind is PythonTokenTypes.ENDMARKER:
                raise SourceError(f"{_place(text, formatted_start)}: the string does not end")
            if formatted:
                continue
            string = text[formatted_start:offset]
            yield (
                Token(
                    _string_key(string, starts_line),
                    string,
                    formatted_start,
                    offset,
                    depth,
                    starts_line,
                ),
                sound,
            )
            starts_line = False
            continue
        if kind in _LAYOUT:
            if kind is PythonTokenTypes.INDENT:
                depth += 1
                sound = sound and awaits_block
                awaits_block = False
            elif kind is PythonTokenTypes.DEDENT:
                depth -= 1
            elif kind is PythonTokenTypes.ERROR_DEDENT:
                sound = False
            elif kind is PythonTokenTypes.NEWLINE:
                awaits_block = last == ":"
                starts_line = True
            continue
        if kind is PythonTokenTypes.ERRORTOKEN:
            if string.lstrip("bfrtuBFRTU")[:1] in ("'", '"'):
                raise SourceError(f"{_place(text, start)}: the string does not end")
            raise SourceError(f"{_place(text, start)}: cannot read {string.splitlines()[0]!r}")
        key: object = string
        if kind is PythonTokenTypes.STRING:
            key = _string_key(string, starts_line)
        elif kind is PythonTokenTypes.NUMBER:
            key = _number_key(string)
        yield Token(key, string, start, offset, depth, starts_line), sound
        starts_line = False


def _place(text: str, offset: int) -> str:
    return f"line {line_of(text, offset)}"


def line_of(text: str, offset: int) -> int:
    """The number, from 1, of the line that an offset lies in."""
    return len(NEWLINE.findall(text, 0, offset)) + 1


def sign(number: int) -> int:
    """-1, 0 or 1."""
    return (number > 0) - (number < 0)


def words_of(text: str, start: int, end: int) -> list[Token]:
    """The words between two offsets, as tokens."""
    return [
        Token(match[0], match[0], match.start(), match.end(), 0, False)
        for match in re.compile(r"\S+").finditer(text, start, end)
    ]


@dataclass(frozen=True)
class Brackets:
    """How brackets pair up in a run of tokens."""

    tokens: Sequence[Token]
    partner: dict[int, int]
    """The closing bracket's index of each opening one."""
    opening: dict[int, int]
    """The opening bracket's index of each closing one."""
    level: list[int]
    """In how many brackets each token stands; a bracket itself stands outside of it."""

    @classmethod
    def none(cls, length: int) -> Brackets:
        """No brackets at all: what words of a docstring have."""
        return cls((), {}, {}, [0] * length)

    @classmethod
    def of(cls, tokens: Sequence[Token]) -> Brackets:
        """The brackets of code."""
        partner: dict[int, int] = {}
        opening: dict[int, int] = {}
        level: list[int] = []
        stack: list[int] = []
        for index, token in enumerate(tokens):
            if token.text in CLOSING and stack:
                opening[index] = stack.pop()
                partner[opening[index]] = index
            level.append(len(stack))
            if token.text in OPENING:
                stack.append(index)
        return cls(tokens, partner, opening, level)

    def level_before(self, index: int) -> int:
        """In how many brackets something stands that is put before a token."""
        if index >= len(self.level):
            return 0
        return self.level[index] + (1 if index in self.opening else 0)

    def is_trailing_comma(self, index: int) -> bool:
        """Whether a token is a comma before a closing bracket that could be left out."""
        return (
            index + 1 < len(self.tokens)
            and self.tokens[index].text == ","
            and index + 1 in self.opening
            and not self.comma_matters(index + 1)
        )

    def comma_matters(self, closing: int) -> bool:
        """Whether a comma before a closing bracket makes a tuple of what would not be one."""
        start = self.opening.get(closing)
        if start is None or self.tokens[closing].text == "}":
            return False
        if (self.tokens[closing].text == ")") == self._follows_value(start):
            return False
        inside = range(start + 1, closing - (self.tokens[closing - 1].text == ","))
        level = self.level[start] + 1
        return not any(self.tokens[i].text == "," and self.level[i] == level for i in inside)

    def _follows_value(self, start: int) -> bool:
        """Whether an opening bracket calls or subscripts what stands before it."""
        if not start or self.tokens[start].starts_line:
            return False
        before = self.tokens[start - 1]
        if before.text[0].isidentifier():
            return not keyword.iskeyword(before.text)
        return before.text in CLOSING or not isinstance(before.key, str)


@dataclass(frozen=True)
class Symbol:
    """A class or function: the tokens ``start`` to ``end`` (excluded), decorators included."""

    name: str
    start: int
    keyword: int
    """Index of its ``def``, ``class`` or ``async``: after the decorators."""
    body: int
    """Index of its body's first token."""
    end: int
    docstring: Optional[int]
    """Index of the docstring's token."""
    parent: int
    """Index of the symbol it is defined in, or -1."""
    depth: int
    """How many blocks its header stands in."""


@dataclass(frozen=True)
class Region:
    """Where a hunk may match: a range of tokens, or the words of a docstring."""

    tokens: Sequence[Token]
    start: int
    body: int
    """Where a hunk that begins with ``...`` begins: after the header and the docstring."""
    end: int
    symbol: int = -1
    """Index of the symbol, or -1 for the module."""
    is_text: bool = False
    """Whether the tokens are the words of a docstring."""


@dataclass
class Source:
    """A Python source file's text with its tokens and symbols."""

    text: str
    encoding: str = "utf-8"
    bom: bytes = field(default=b"", repr=False)

    @classmethod
    def decode(cls, content: bytes) -> Source:
        """Read a file's bytes as Python does: byte-order mark, coding cookie, UTF-8."""
        try:
            encoding, _ = tokenize.detect_encoding(BytesIO(content).readline)
            bom = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
            encoding = "utf-8" if encoding == "utf-8-sig" else encoding
            return cls(content[len(bom) :].decode(encoding), encoding, bom)
        except (SyntaxError, UnicodeDecodeError, LookupError) as error:
            raise SourceError(f"cannot decode: {error}") from error

    def encode(self) -> bytes:
        """The file's bytes."""
        try:
            return self.bom + self.text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise SourceError(
                f"{_place(self.text, error.start)}: {self.text[error.start]!r} cannot be written"
                f" in the file's encoding, {self.encoding}"
            ) from error

    @cached_property
    def tokens(self) -> list[Token]:
        """The file's tokens."""
        tokens = []
        closing: list[str] = []
        for token, sound in _scan(self.text):
            if not sound:
                raise SourceError(f"line {self.line(token.start)}: its indentation fits no block")
            if token.text in OPENING:
                closing.append(OPENING[token.text])
            elif token.text in CLOSING and (not closing or closing.pop() != token.text):
                raise SourceError(f"line {self.line(token.start)}: {token.text!r} closes nothing")
            tokens.append(token)
        if closing:
            raise SourceError(f"{closing[-1]!r} is missing at the end")
        if tokens and tokens[-1].text == ":":
            raise SourceError(f"line {self.line(tokens[-1].start)}: a block without a body")
        return tokens

    @cached_property
    def newline(self) -> str:
        """The file's line ending: that of its first line."""
        match = NEWLINE.search(self.text)
        return match[0] if match else "\n"

    @cached_property
    def indent_unit(self) -> str:
        """The white space of one block."""
        for token in self.tokens:
            if token.starts_line and token.depth == 1:
                return self.indentation(token.start)
        return "    "

    def line(self, offset: int) -> int:
        """The number, from 1, of the line that an offset lies in."""
        return line_of(self.text, offset)

    def line_start(self, offset: int) -> int:
        """The offset where an offset's line begins."""
        return max(self.text.rfind("\n", 0, offset), self.text.rfind("\r", 0, offset)) + 1

    def line_end(self, offset: int) -> int:
        """The offset where an offset's line ends: at its line ending, or at the text's end."""
        match = NEWLINE.search(self.text, offset)
        return match.start() if match else len(self.text)

    def indentation(self, offset: int) -> str:
        """The white space that an offset's line begins with."""
        start = self.line_start(offset)
        line = self.text[start : self.line_end(start)]
        return line[: len(line) - len(line.lstrip(" \t\f"))]

    @cached_property
    def brackets(self) -> Brackets:
        """How the file's brackets pair up."""
        return Brackets.of(self.tokens)

    @cached_property
    def clauses(self) -> dict[int, int]:
        """For each ``else`` and the like, the first token of the statement it belongs to."""
        begun: dict[int, int] = {}
        found = {}
        for index, token in enumerate(self.tokens):
            if not token.starts_line:
                continue
            for deeper in [depth for depth in begun if depth > token.depth]:
                del begun[deeper]
            if token.text not in CLAUSES:
                begun[token.depth] = index
            elif token.depth in begun:
                found[index] = begun[token.depth]
        return found

    @cached_property
    def _table(self) -> tuple[list[Symbol], list[int]]:
        return _find_symbols(self.tokens)

    @property
    def symbols(self) -> list[Symbol]:
        """All classes and functions, in the order of the text."""
        return self._table[0]

    def find(self, name: str) -> list[Symbol]:
        """The definitions of one qualified name; ``name#2`` is the second of them."""
        parts = name.split(".")
        found = []
        for symbol in self.symbols:
            if symbol.name.count(".") == len(parts) - 1 and _same_name(symbol.name, parts):
                found.append(symbol)
        return found

    def owner(self, index: int) -> int:
        """The innermost symbol that a token belongs to, or -1."""
        return self._table[1][index]

    def region(self, symbol: Optional[Symbol]) -> Region:
        """The tokens of a symbol, or of the module."""
        if symbol is None:
            return Region(self.tokens, 0, _after_preamble(self.tokens), len(self.tokens))
        body = symbol.body if symbol.docstring is None else symbol.docstring + 1
        return Region(self.tokens, symbol.start, body, symbol.end, self.symbols.index(symbol))

    def docstring(self, symbol: Optional[Symbol]) -> Optional[Region]:
        """The words of a symbol's (or the module's) docstring, or None if it has none."""
        index = _docstring_at(self.tokens, 0) if symbol is None else symbol.docstring
        if index is None:
            return None
        words = self.docstring_words(index)
        return Region(words, 0, 0, len(words), is_text=True)

    def docstring_words(self, index: int) -> list[Token]:
        """The words of the docstring that a token is."""
        token = self.tokens[index]
        prefix, quotes, _ = string_parts(token.text)
        return words_of(self.text, token.start + len(prefix) + len(quotes), token.end - len(quotes))


def _same_name(qualified: str, wanted: Sequence[str]) -> bool:
    """Whether a numbered name (``A#1.f#2``) is the wanted one, whose numbers may be left out."""
    for have, want in zip(qualified.split("."), wanted):
        if have != want and have.split("#")[0] != want:
            return False
    return True


def _docstring_at(tokens: Sequence[Token], start: int) -> Optional[int]:
    """The index of a docstring that begins a body at ``start``."""
    if start >= len(tokens) or not isinstance(tokens[start].key, tuple):
        return None
    ends_line = start + 1 == len(tokens) or tokens[start + 1].starts_line
    follows = ends_line or tokens[start + 1].text == ";"
    is_string = tokens[start].text[-1] in "'\"" and tokens[start].key[0] == "str"  # type: ignore[index]
    return start if follows and is_string else None


def _after_preamble(tokens: Sequence[Token]) -> int:
    """The index after a module's docstring and its imports from ``__future__``."""
    at = 0 if _docstring_at(tokens, 0) is None else 1
    while [token.text for token in tokens[at : at + 2]] == ["from", "__future__"]:
        at += 1
        while at < len(tokens) and not tokens[at].starts_line:
            at += 1
    return at


def _find_symbols(tokens: Sequence[Token]) -> tuple[list[Symbol], list[int]]:
    """All symbols with numbered qualified names, and each token's innermost symbol's index."""
    symbols: list[Symbol] = []
    owner = [-1] * len(tokens)
    counts: dict[str, int] = {}
    lines = [i for i, token in enumerate(tokens) if token.starts_line] + [len(tokens)]
    enclosing: list[tuple[int, int]] = []  # depth of the header, index of the symbol
    decorated: Optional[int] = None
    for at, (start, stop) in enumerate(zip(lines, lines[1:])):
        depth = tokens[start].depth
        if decorated is None:
            while enclosing and enclosing[-1][0] >= depth:
                enclosing.pop()
        if tokens[start].text == "@":
            decorated = start if decorated is None else decorated
            continue
        keyword = start + 1 if tokens[start].text == "async" else start
        if keyword + 1 < stop and tokens[keyword].text in ("def", "class"):
            plain = tokens[keyword + 1].text
            parent = enclosing[-1][1] if enclosing else -1
            prefix = symbols[parent].name + "." if enclosing else ""
            counts[prefix + plain] = counts.get(prefix + plain, 0) + 1
            name = f"{prefix}{plain}#{counts[prefix + plain]}"
            body = _after_header(tokens, keyword, stop)
            end_line = at + 1
            if body == stop:
                while end_line < len(lines) - 1 and tokens[lines[end_line]].depth > depth:
                    end_line += 1
            first = start if decorated is None else decorated
            end = lines[end_line]
            for index in range(first, end):
                owner[index] = len(symbols)
            docstring = _docstring_at(tokens, body) if body < end else None
            enclosing.append((depth, len(symbols)))
            symbols.append(Symbol(name, first, start, body, end, docstring, parent, depth))
        decorated = None
    return symbols, owner


def _after_header(tokens: Sequence[Token], start: int, stop: int) -> int:
    """The index after the colon that ends a header."""
    level = 0
    for index in range(start, stop):
        text = tokens[index].text
        if text in OPENING:
            level += 1
        elif text in CLOSING:
            level -= 1
        elif text == ":" and level == 0:
            return index + 1
    return stop


def plain_name(name: str, symbols: Sequence[Symbol]) -> str:
    """A numbered name as a person writes it: a number only where it is needed."""
    parent, _, own = name.rpartition(".")
    prefix = f"{parent}." if parent else ""
    plain = own.split("#")[0]
    unique = all(symbol.name != f"{prefix}{plain}#2" for symbol in symbols)
    shown = plain if unique else own
    return f"{plain_name(parent, symbols)}.{shown}" if parent else shown


def lines_in_definitions(text: str) -> set[int]:
    """The numbers, from 1, of a fragment's lines that lie in classes and functions it defines."""
    try:
        tokens = tokens_of(text)
    except SourceError:  # the fragment begins or ends inside a string
        return set()
    lines: set[int] = set()
    for symbol in _find_symbols(tokens)[0]:
        first, last = tokens[symbol.start], tokens[symbol.end - 1]
        lines.update(range(line_of(text, first.start), line_of(text, last.end) + 1))
    return lines


def without_comments(lines: Sequence[str]) -> list[str]:
    """A fragment's lines without their comments; as they are if they cannot be read."""
    text = "\n".join(lines)
    try:
        tokens = tokens_of(text)
    except SourceError:
        return list(lines)
    kept = []
    at = 0
    for token in tokens:
        kept += [_COMMENT.sub("", text[at : token.start]), token.text]
        at = token.end
    return "".join([*kept, _COMMENT.sub("", text[at:])]).split("\n")
