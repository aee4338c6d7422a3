"""What the tests of the patch language share."""

from __future__ import annotations

from textwrap import dedent

from overlay.apatch import Hunk, Line
from overlay.errors import OverlayError
from overlay.hunks import CompiledHunk, apply_hunk
from overlay.source import Brackets, Source, Token


def hunk_of(symbol: str, body: str) -> Hunk:
    lines = dedent(body.strip("\n")).split("\n") if body.startswith("\n") else body.split("\n")
    return Hunk(symbol, tuple(Line(line[:1], line[1:]) for line in lines))


def compiled(symbol: str, body: str) -> CompiledHunk:
    return CompiledHunk.of(hunk_of(symbol, body), f"p.apatch: f.py: @@ {symbol}")


def significant(tokens: list[Token]) -> list[tuple[object, int, bool]]:
    """What a reformatting keeps of tokens: not the commas that could be left out."""
    brackets = Brackets.of(tokens)
    return [
        (_by_words(token.key), token.depth, token.starts_line)
        for index, token in enumerate(tokens)
        if not brackets.is_trailing_comma(index)
    ]


def _by_words(key: object) -> object:
    """A token's key without the layout of a docstring."""
    return (key[0], *key[1].split()) if isinstance(key, tuple) and key[0] == "str" else key


def apply(hunk: CompiledHunk, text: str) -> str:
    """Apply a hunk; a second time must change nothing, and its reverse gives the tokens back."""
    source = Source(text)
    result = apply_hunk(hunk, source)
    assert result is not source, "it counts as applied already"
    assert apply_hunk(hunk, result) is result
    back = apply_hunk(hunk.reversed(), result)
    assert significant(back.tokens) == significant(source.tokens)
    return result.text


def message(error: OverlayError) -> str:
    return "\n  ".join([error.message, *error.details])
