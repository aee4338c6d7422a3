from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from modules import Call, Define, Edit, Module, Simple, edits, modules, reformatted
from overlay.apatch import (
    FilePatch,
    Hunk,
    Line,
    Message,
    Patch,
    PatchSyntaxError,
    parse_patch,
    print_patch,
)
from overlay.errors import PatchError
from overlay.hunks import CompiledHunk, apply_hunk
from overlay.source import Source, tokens_of
from patching import apply, compiled, significant


def draw_edit(data: st.DataObject, module: Module) -> Edit:
    possible = edits(module)
    kind = data.draw(st.sampled_from(sorted({edit.kind for edit in possible})))
    edit = data.draw(st.sampled_from([edit for edit in possible if edit.kind == kind]))
    event(kind)
    return edit


@given(modules(), st.data())
def test_a_hunk_makes_the_edit_that_it_was_derived_from(module, data):
    edit = draw_edit(data, module)
    before = str(module)
    edit.make()
    assert apply(compiled(edit.symbol, "\n".join(edit.hunk)), before) == str(module)


@given(modules(), st.data())
def test_the_layout_of_the_source_does_not_matter(module, data):
    edit = draw_edit(data, module)
    text = data.draw(reformatted(str(module)))
    assert significant(Source(text).tokens) == significant(Source(str(module)).tokens)
    edit.make()
    result = apply(compiled(edit.symbol, "\n".join(edit.hunk)), text)
    assert significant(Source(result).tokens) == significant(Source(str(module)).tokens)
    gone = [line[1:] for line in edit.hunk if line.startswith("-")]
    _check_rest_is_untouched(
        text, result, 1 if "doc" in edit.kind else len(tokens_of("\n".join(gone)))
    )


def _check_rest_is_untouched(text: str, result: str, gone: int) -> None:
    """What differs in the text holds no more tokens than the hunk takes away."""
    start = next((i for i, (a, b) in enumerate(zip(text, result)) if a != b), len(text))
    stop = len(text)
    while (
        stop > start
        and stop - len(text) + len(result) > start
        and (text[stop - 1] == result[stop - len(text) + len(result) - 1])
    ):
        stop -= 1
    touched = [t for t in Source(text).tokens if t.start < stop and t.end > start]
    assert len([token for token in touched if token.text != ","]) <= gone
    if not gone:
        comments = [line for line in text.split() if line.startswith("c")]
        assert comments == [line for line in result.split() if line.startswith("c")]


@given(modules(), st.data())
def test_the_encoding_and_the_line_ends_of_the_file_stay(module, data):
    edit = draw_edit(data, module)
    cookie, encoding = data.draw(
        st.sampled_from(
            (
                ("", "utf-8"),
                ("", "utf-8-sig"),
                ("# coding: latin-1\n", "latin-1"),
                ("#!/usr/bin/python\n# -*- coding: cp1252 -*-\n", "cp1252"),
                ("# vim: set fileencoding=utf-8 :\n", "utf-8"),
            )
        )
    )
    newline = data.draw(st.sampled_from(("\n", "\r\n", "\r") if not cookie else ("\n", "\r\n")))

    def content() -> bytes:
        return f"{cookie}{module}# \u00e9\n".replace("\n", newline).encode(encoding)

    before = content()
    edit.make()
    hunk = compiled(edit.symbol, "\n".join(edit.hunk))
    assert apply_hunk(hunk, Source.decode(before)).encode() == content()


@given(modules(), st.data())
def test_what_a_hunk_quotes_is_not_changed_elsewhere(module, data):
    edit = draw_edit(data, module)
    quoted = [line[1:] for line in edit.hunk if line[:1] in (" ", "-")]
    # A hunk on the module's end would stand after the decoys.
    assume(edit.symbol != "<module>" or edit.kind not in ("last", "method"))
    decoys = _decoys(quoted, str(module))
    before = f"{module}\n{decoys}"
    edit.make()
    after = f"{module}\n{decoys}"
    assert apply(compiled(edit.symbol, "\n".join(edit.hunk)), before) == after


def _decoys(quoted: list[str], module: str) -> str:
    """Strings, comments and another symbol that hold what a hunk quotes."""
    code = "".join(f"    {line}\n" for line in module.split("\n"))
    text = "\n".join(quoted).replace("\\", "").replace('"""', "'").replace('"', "'")
    return (
        f'class Decoy:\n    r"""Has\n{text}\n."""\n    def decoy():\n        pass\n{code}'
        f"{''.join(f'    # {line}' for line in text.splitlines(True))}\n"
        f"    decoy = '''{text.replace(chr(39), '')}\n'''\n"
    )


@given(modules(), st.data())
def test_the_same_code_twice_in_a_symbol_is_refused(module, data):
    edit = draw_edit(data, module)
    assume(edit.kind in ("name", "after", "before", "replaced"))
    place = edit.statements
    place.extend(Simple(statement.text) for statement in list(place) if hasattr(statement, "text"))
    with pytest.raises(PatchError) as caught:
        apply_hunk(compiled(edit.symbol, "\n".join(edit.hunk)), Source(str(module)))
    assert "places: quote more" in caught.value.message
    assert len(caught.value.details) == 2


@given(modules(), st.data())
def test_the_layout_of_the_hunk_does_not_matter(module, data):
    edit = draw_edit(data, module)
    tab = data.draw(st.booleans())
    lines: list[str] = []
    for line in edit.hunk:
        body = line[1:]
        if tab and "doc" not in edit.kind:
            body = body.replace("    ", "\t")
        if data.draw(st.booleans()) and body.strip() and line[0] == " ":
            lines.append(data.draw(st.sampled_from(("", " "))))
        if data.draw(st.booleans()) and body.strip() and '"' not in body and "doc" not in edit.kind:
            body += data.draw(st.sampled_from(("  # why", "   "))) * (line[0] != "+")
        lines.append(line[0] + body)
    before = str(module)
    edit.make()
    assert apply(compiled(edit.symbol, "\n".join(lines)), before) == str(module)


@given(modules(), st.data())
def test_a_nested_symbol_is_not_a_part_of_its_parent(module, data):
    edit = draw_edit(data, module)
    assume(edit.kind in ("name", "after", "before", "replaced"))
    copies = [Simple(s.text) for s in edit.statements if isinstance(s, (Simple, Call))]
    edit.statements.append(Define("def", "decoy", ["d"], [], False, [], copies))
    before = str(module)
    edit.make()
    assert apply(compiled(edit.symbol, "\n".join(edit.hunk)), before) == str(module)


SOUP = st.sampled_from(
    "a b a.b f( ) [ ] { } , , : = + - ... ... ; \\ # @ @d def class async if else: try: lambda"
    " x: 'q' \"\"\" f'{ f'{a}' 1 0x ? $ é \t return import from __future__ \x0c \r \u2028"
    " \x00".split(" ")
)
SOUP_LINES = st.builds(
    "{}{}".format,
    st.sampled_from(("", "", "    ", "        ", "\t", "  ")),
    st.lists(SOUP, max_size=5).map(" ".join),
)


@given(
    st.lists(st.tuples(st.sampled_from(" -+"), SOUP_LINES), max_size=6),
    st.lists(SOUP_LINES, max_size=8).map("\n".join),
    st.sampled_from(("<module>", "f", "<module>.__doc__", "f.__doc__")),
)
@settings(max_examples=500)
def test_nothing_but_the_own_errors_comes_of_nonsense(lines, text, symbol):
    # A patch's text has no CR.
    lines = [(mark, code.replace("\r", "")) for mark, code in lines]
    code = "\n".join(line[1] for line in lines if line[0] != "+")
    for source in (text, f"def f(x):\n    {text}\n", f"def f(x):\n    '''{text}'''\n", code + "\n"):
        with suppress(PatchError, PatchSyntaxError):
            hunk = CompiledHunk.of(Hunk(symbol, tuple(Line(*line) for line in lines)), "p")
            result = apply_hunk(hunk, Source(source))
            assert apply_hunk(hunk, result) is result


FLAT = st.sampled_from(("x1()", "x2()", "x3()"))
NESTED = st.recursive(
    st.lists(FLAT, min_size=1, max_size=3),
    lambda blocks: st.lists(
        FLAT | st.tuples(st.sampled_from(("if y1:", "while y2:")), blocks), min_size=1, max_size=3
    ),
    max_leaves=6,
)


def _lines(block: list, depth: int = 0) -> Iterator[tuple[int, str]]:
    for item in block:
        if isinstance(item, str):
            yield depth, item
        else:
            yield depth, item[0]
            yield from _lines(item[1], depth + 1)


@given(NESTED, st.data())
@settings(max_examples=1000)
def test_what_is_applied_is_what_a_search_line_by_line_finds(block, data):
    lines = list(_lines(block))
    start = data.draw(st.integers(0, len(lines) - 1))
    taken = lines[start : start + data.draw(st.integers(1, 4))]
    hunk: list[tuple[str, int, str]] = []
    for number, (depth, text) in enumerate(taken):
        column = depth - min(depth for depth, _ in taken)
        inside = 0 < number < len(taken) - 1
        choice = data.draw(st.integers(0, 5))
        if inside and choice == 0 and hunk[-1][2] != "...":
            hunk.append((" ", column, "..."))
            continue
        hunk.append(("-" if choice < 3 else " ", column, text))
        if choice in (2, 3) and text.endswith(")"):
            hunk.append(("+", column, f"z{number}()"))
        elif choice == 3:
            hunk.append(("+", column + 1, f"z{number}()"))
    assume(any(mark != " " for mark, _, _ in hunk))
    text = "".join(f"{'    ' * depth}{line}\n" for depth, line in lines)
    body = "\n".join(f"{mark}{'    ' * column}{line}" for mark, column, line in hunk)
    with suppress(PatchError, PatchSyntaxError):
        result = apply_hunk(compiled("<module>", body), Source(text))
        event("applied")
        assert {result.text} == set(_applied(lines, hunk))


def _applied(lines: list[tuple[int, str]], hunk: list[tuple[str, int, str]]) -> Iterator[str]:
    """All that a hunk may make of lines, by trying each place."""

    def rest(at: int, item: int, last: tuple[int, int]) -> Iterator[list[tuple[int, str]]]:
        if item == len(hunk):
            yield lines[at:]
            return
        mark, column, text = hunk[item]
        if mark == "+":
            for found in rest(at, item + 1, last):
                yield [(last[0] + column - last[1], text), *found]
        elif text == "...":
            for end in range(at, len(lines) + 1):
                run = lines[at:end]
                if run and _sign(run[0][0] - last[0]) != _sign(column - last[1]):
                    break
                if run and run[-1][0] < run[0][0]:
                    break
                here = (run[0][0], column) if run else last
                for found in rest(end, item + 1, here):
                    yield [*run, *found]
        elif at < len(lines) and lines[at][1] == text:
            depth = lines[at][0]
            if _sign(depth - last[0]) == _sign(column - last[1]):
                for found in rest(at + 1, item + 1, (depth, column)):
                    yield [*([lines[at]] if mark == " " else []), *found]

    for at, (depth, _) in enumerate(lines):
        for found in rest(at, 0, (depth, hunk[0][1])):
            made = [*lines[:at], *found]
            yield "".join(f"{'    ' * depth}{line}\n" for depth, line in made)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


NAMES = st.from_regex(r"[A-Z][a-z]{0,5}(-[A-Z][a-z]{1,4})?", fullmatch=True)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20)
VALUES = st.builds(
    lambda first, rest: "\n ".join([first, *rest]), WORDS, st.lists(NAMES, max_size=2)
)
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=3).map(tuple)
HUNKS = st.builds(
    Hunk,
    st.from_regex(r"([a-z]\w{0,3}(#[1-9])?\.){0,2}([a-z]\w?|__doc__)", fullmatch=True)
    | st.just("<module>"),
    st.lists(st.builds(Line, st.sampled_from(" -+"), WORDS) | st.just(Line("", ""))).map(tuple),
)
FILES = st.lists(
    st.builds(
        FilePatch,
        st.from_regex(r"torch/[a-z]{1,5}\.py", fullmatch=True),
        st.lists(HUNKS, min_size=1, max_size=3).map(tuple),
    ),
    max_size=3,
    unique_by=lambda file: file.path,
)
PATCHES = st.builds(
    Patch,
    st.builds(
        Message,
        st.builds(lambda pairs, title: (*pairs, ("Subject", "s" + title)), PAIRS, WORDS),
        st.lists(WORDS.filter(lambda line: line != "---")).map(
            lambda lines: "".join(line + "\n" for line in lines)
        ),
        PAIRS,
        st.integers(0, 2).map(lambda count: "\n" * count),
    ),
    FILES.map(tuple),
    st.integers(0, 2).map(lambda count: "\n" * count),
)


@given(PATCHES)
def test_printing_and_parsing_are_inverse(patch):
    text = print_patch(patch)
    parsed = parse_patch(text)
    assert print_patch(parsed) == text
    assert parse_patch(print_patch(parsed)) == parsed
    assert (parsed.files, parsed.preamble) == (patch.files, patch.preamble)
    assert parsed.message.headers == patch.message.headers
    if patch.message.fields and patch.message.body.endswith("\n\n"):
        assert parsed.message.fields == patch.message.fields


PATCH_LINES = st.sampled_from(
    "Subject: a|From: b| folded||---|torch/a.py|@@ f|@@ f#2.g.__doc__|@@ |@@| a|-a|+a|+|diff"
    "|Adds: torch/b.py|\x0c|@@ <module>".split("|")
)


@given(st.lists(PATCH_LINES | st.text(max_size=5), max_size=14))
@settings(max_examples=500)
def test_a_text_is_a_patch_or_a_syntax_error(lines):
    text = "".join(line + "\n" for line in ["Subject: a", *lines])
    for given_text in (text, text.replace("Subject: a\n", "Subject: a\n\n---\n", 1), text[11:-1]):
        try:
            patch = parse_patch(given_text)
        except PatchSyntaxError:
            continue
        event("a patch")
        assert print_patch(patch) == given_text
