"""The patch language: a text to a patch and back.

A patch is a mail (headers, message, fields), a line ``---``, and hunks that are
addressed by file and symbol::

    torch/some/file.py
    @@ SomeClass.some_method
     def some_method(
         ...,
    -    unused: int,
    +    args: Tuple[Any, ...],

In a hunk a space marks code that stays, ``-`` code that goes, ``+`` code that comes,
and ``...`` among code that stays stands for any code. `print_patch` gives back
exactly the text that `parse_patch` read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Optional

from overlay.errors import UsageError
from overlay.source import MODULE

DOCSTRING = "__doc__"
DIVIDER = "---"
MARKS = " -+"

_HEADER = re.compile(r"([A-Za-z][A-Za-z0-9-]*): (.*)")
_NAME = r"[^\W\d]\w*(?:#[1-9]\d*)?"
_SYMBOL = re.compile(rf"(?:{re.escape(MODULE)}|{_NAME}(?:\.{_NAME})*)(?:\.__doc__)?")


class PatchSyntaxError(UsageError):
    """A text that is not a patch; the message says in which line and why."""


@dataclass(frozen=True)
class Line:
    """One line of a hunk: ``mark`` is " ", "-" or "+", or "" for an empty line."""

    mark: str
    text: str


@dataclass(frozen=True)
class Hunk:
    """One change inside one symbol; ``symbol`` is as written after ``@@``."""

    symbol: str
    lines: tuple[Line, ...]

    @property
    def scope(self) -> str:
        """The symbol without ``.__doc__``."""
        return self.symbol[: -len(DOCSTRING) - 1] if self.is_docstring else self.symbol

    @property
    def is_docstring(self) -> bool:
        """Whether the hunk changes the symbol's docstring."""
        return self.symbol.endswith("." + DOCSTRING)

    def reversed(self) -> Hunk:
        """The hunk that takes this one back."""
        return Hunk(self.symbol, tuple(_additions_last(self.lines)))


def _additions_last(lines: tuple[Line, ...]) -> Iterator[Line]:
    """The lines with - and + exchanged; in each run of changed lines what goes comes first."""
    added: list[Line] = []
    for line in lines:
        if line.mark == "-":
            added.append(Line("+", line.text))
        elif line.mark == "+":
            yield Line("-", line.text)
        else:
            yield from added
            added.clear()
            yield line
    yield from added


@dataclass(frozen=True)
class FilePatch:
    """The hunks of one file; ``path`` is relative to the root of PyTorch's source."""

    path: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class Message:
    """A patch's mail: headers, body and fields, each with its text as it was written."""

    headers: tuple[tuple[str, str], ...]
    body: str
    """Between the blank line after the headers and the fields, white space included."""
    fields: tuple[tuple[str, str], ...]
    after_fields: str = ""
    """Blank lines between the fields and the divider."""

    def header(self, name: str) -> Optional[str]:
        """A header's value, unfolded."""
        values = [_unfold(value) for key, value in self.headers if key.lower() == name.lower()]
        return values[0] if values else None

    def field(self, name: str) -> tuple[str, ...]:
        """All values of one field, unfolded."""
        return tuple(_unfold(value) for key, value in self.fields if key.lower() == name.lower())

    @property
    def subject(self) -> str:
        """The patch's title."""
        return self.header("Subject") or ""

    def __str__(self) -> str:
        pairs = [f"{name}: {value}\n" for name, value in self.headers]
        fields = [f"{name}: {value}\n" for name, value in self.fields]
        return "".join(pairs) + "\n" + self.body + "".join(fields) + self.after_fields


@dataclass(frozen=True)
class Patch:
    """An anchored patch."""

    message: Message
    files: tuple[FilePatch, ...]
    preamble: str = ""
    """Blank lines after the divider."""

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The files that the hunks change."""
        return tuple(file.path for file in self.files)


def _unfold(value: str) -> str:
    return re.sub(r"\n\s+", " ", value)


def print_patch(patch: Patch) -> str:
    """The text of a patch."""
    out = [str(patch.message), DIVIDER, "\n", patch.preamble]
    for file in patch.files:
        out.append(f"{file.path}\n")
        for hunk in file.hunks:
            out.append(f"@@ {hunk.symbol}\n")
            out.extend(f"{line.mark}{line.text}\n" for line in hunk.lines)
    return "".join(out)


def parse_message(text: str, name: str) -> tuple[Message, int]:
    """The mail that a patch begins with, and the number of lines up to its divider.

    ``name`` is the patch's name, for errors. Raises PatchSyntaxError.
    """
    if "\r" in text:
        raise PatchSyntaxError(f"{name}: has CR line ends: write it with LF alone")
    if not text.endswith("\n"):
        raise PatchSyntaxError(f"{name}: does not end with a line end: add one")
    lines = text.split("\n")[:-1]
    try:
        blank = lines.index("")
    except ValueError:
        raise PatchSyntaxError(
            f"{name}:1: no mail headers: begin with From, Date and Subject, then a blank line"
        ) from None
    headers = _pairs(lines[:blank])
    if headers is None:
        bad = next(n for n in range(1, blank + 1) if _pairs(lines[:n]) is None)
        raise PatchSyntaxError(
            f"{name}:{bad}: not a mail header ('Name: value'): {lines[bad - 1]!r}"
        )
    if not any(key.lower() == "subject" and value.strip() for key, value in headers):
        raise PatchSyntaxError(f"{name}:1: no Subject: give the patch a title")
    try:
        divider = lines.index(DIVIDER, blank)
    except ValueError:
        raise PatchSyntaxError(
            f"{name}:{len(lines)}: no line '{DIVIDER}' between message and hunks"
        ) from None
    last = divider
    while last > blank + 1 and not lines[last - 1].strip():
        last -= 1
    first = last
    while first > blank + 1 and lines[first - 1].strip():
        first -= 1
    fields = _pairs(lines[first:last])
    if fields is None:
        fields, first, last = (), divider, divider
    message = Message(
        headers,
        "".join(line + "\n" for line in lines[blank + 1 : first]),
        fields,
        "".join(line + "\n" for line in lines[last:divider]),
    )
    return message, divider + 1


def _pairs(lines: list[str]) -> Optional[tuple[tuple[str, str], ...]]:
    """Lines as names with values, or None where one is neither that nor a continuation."""
    pairs: list[tuple[str, str]] = []
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match:
            pairs.append((match[1], match[2]))
        elif pairs and line[:1] in (" ", "\t") and line.strip():
            name, value = pairs[-1]
            pairs[-1] = (name, f"{value}\n{line}")
        else:
            return None
    return tuple(pairs)


def parse_patch(text: str, name: str = "patch") -> Patch:
    """Read a patch.

    ``name`` is the patch's name, for errors. Raises PatchSyntaxError.
    """
    message, at = parse_message(text, name)
    lines = text.split("\n")[:-1]

    def fail(number: int, what: str) -> PatchSyntaxError:
        return PatchSyntaxError(f"{name}:{number + 1}: {what}")

    preamble = 0
    while at + preamble < len(lines) and not lines[at + preamble]:
        preamble += 1
    files: list[tuple[str, list[tuple[str, list[Line]]]]] = []

    for number in range(at + preamble, len(lines)):
        line = lines[number]
        hunks = files[-1][1] if files else []
        if line.startswith("@@"):
            if not files:
                raise fail(number, "a hunk before any file: put the file's path on a line above it")
            if not line.startswith("@@ ") or not _SYMBOL.fullmatch(line[3:]):
                raise fail(
                    number,
                    f"no symbol in {line!r}: write '@@ Class.method', '@@ function#2',"
                    f" '@@ Class.__doc__' or '@@ {MODULE}'",
                )
            hunks.append((line[3:], []))
        elif not line or line[0] in MARKS:
            if not hunks:
                raise fail(number, f"a line of a hunk outside any hunk: {line!r}")
            hunks[-1][1].append(Line(line[:1], line[1:]))
        else:
            if files and not hunks:
                raise fail(number, f"no hunk for {files[-1][0]}")
            if not line.endswith(".py") or line != line.strip():
                raise fail(
                    number,
                    "neither a Python file's path nor a hunk's line"
                    f" (' ', '-', '+' or '@@'): {line!r}",
                )
            if any(path == line for path, _ in files):
                raise fail(number, f"{line} stands twice: put its hunks together")
            files.append((line, []))
    if files and not files[-1][1]:
        raise fail(len(lines) - 1, f"no hunk for {files[-1][0]}")
    return Patch(
        message,
        tuple(
            FilePatch(path, tuple(Hunk(symbol, tuple(body)) for symbol, body in hunks))
            for path, hunks in files
        ),
        "\n" * preamble,
    )
