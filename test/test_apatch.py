from __future__ import annotations

import pytest
from expecttest import TestCase

from overlay.apatch import FilePatch, Hunk, Line, PatchSyntaxError, parse_patch, print_patch

PATCH = """\
From: A <a@b.c>
Date: Tue, 1 Dec 2026 19:00:00 +0000
Subject: [FSDP] A title
 that is folded

Why: since
it must.

Not: fields, since a paragraph follows.

Last paragraph.

Origin: https://example.com/1
Torch-Version: >=2.1,
 <3
Adds: torch/a/new.py
Adds: torch/a/other.py
ghstack-source-id: 0123456789abcdef

---

torch/a/b.py
@@ A.f#2
 def f(
-    a
+    b

     ...
@@ <module>.__doc__
 ...
+more
torch/c.py
@@ <module>
+import x
 import y
"""


def test_a_patch_is_read():
    patch = parse_patch(PATCH)
    assert patch.message.subject == "[FSDP] A title that is folded"
    assert patch.message.header("from") == "A <a@b.c>"
    assert patch.message.body.startswith("Why: since\n")
    assert patch.message.field("adds") == ("torch/a/new.py", "torch/a/other.py")
    assert patch.message.field("Torch-Version") == (">=2.1, <3",)
    assert patch.message.field("ghstack-source-id") == ("0123456789abcdef",)
    assert patch.message.field("Not") == ()
    assert patch.paths == ("torch/a/b.py", "torch/c.py")
    first, docstring = patch.files[0].hunks
    assert first == Hunk(
        "A.f#2",
        (
            Line(" ", "def f("),
            Line("-", "    a"),
            Line("+", "    b"),
            Line("", ""),
            Line(" ", "    ..."),
        ),
    )
    assert (docstring.scope, docstring.is_docstring) == ("<module>", True)
    assert print_patch(patch) == PATCH


def test_a_patch_may_only_add_files():
    text = "Subject: x\n\nAdds: torch/a.py\n---\n"
    patch = parse_patch(text)
    assert (patch.files, patch.message.field("Adds")) == ((), ("torch/a.py",))
    assert print_patch(patch) == text


def test_a_reversed_hunk_takes_first_and_adds_then():
    hunk = parse_patch("Subject: x\n\n---\na.py\n@@ f\n a\n-b\n+c\n d\n+e\n").files[0].hunks[0]
    assert [line.mark + line.text for line in hunk.reversed().lines] == [
        " a",
        "-c",
        "+b",
        " d",
        "-e",
    ]
    assert hunk.reversed().reversed() == hunk


def test_equal_patches_are_equal():
    assert parse_patch(PATCH) == parse_patch(PATCH)
    assert FilePatch("a.py", ()) != FilePatch("b.py", ())


@pytest.mark.parametrize(
    "symbol", ["f", "A.f", "_a1.b#12.c", "é", "<module>", "A.__doc__", "A.__init__", "f#2.__doc__"]
)
def test_symbols(symbol):
    text = f"Subject: x\n\n---\na.py\n@@ {symbol}\n-a\n+b\n"
    assert print_patch(parse_patch(text)) == text


@pytest.mark.parametrize(
    "symbol",
    ["", " ", "f ", " f", "1f", "f#0", "f#", "f.", ".f", "f..g", "f()", "<module>.f", "f-g"],
)
def test_what_is_no_symbol(symbol):
    with pytest.raises(PatchSyntaxError, match="p:5: no symbol in"):
        parse_patch(f"Subject: x\n\n---\na.py\n@@ {symbol}\n-a\n+b\n", "p")


class ErrorTexts(TestCase):
    maxDiff = None

    def fails(self, text: str) -> str:
        with pytest.raises(PatchSyntaxError) as caught:
            parse_patch(text, "p.apatch")
        return caught.value.message

    def test_text(self):
        self.assertExpectedInline(
            self.fails("Subject: a\r\n\r\n---\r\n"),
            """p.apatch: has CR line ends: write it with LF alone""",
        )
        self.assertExpectedInline(
            self.fails("Subject: a\n\n---"), """p.apatch: does not end with a line end: add one"""
        )
        self.assertExpectedInline(
            self.fails(""), """p.apatch: does not end with a line end: add one"""
        )

    def test_headers(self):
        self.assertExpectedInline(
            self.fails("Subject: a\n"),
            """p.apatch:1: no mail headers: begin with From, Date and Subject, then a blank line""",
        )
        self.assertExpectedInline(
            self.fails("Subject: a\nb c\n\n---\n"),
            """p.apatch:2: not a mail header ('Name: value'): 'b c'""",
        )
        self.assertExpectedInline(
            self.fails("From: a\n\n---\n"), """p.apatch:1: no Subject: give the patch a title"""
        )
        self.assertExpectedInline(
            self.fails("Subject: a\n\nb\n"),
            """p.apatch:3: no line '---' between message and hunks""",
        )

    def test_hunks(self):
        head = "Subject: a\n\n---\n"
        self.assertExpectedInline(
            self.fails(head + "@@ f\n-a\n"),
            """p.apatch:4: a hunk before any file: put the file's path on a line above it""",
        )
        self.assertExpectedInline(
            self.fails(head + " a\n"), """p.apatch:4: a line of a hunk outside any hunk: ' a'"""
        )
        self.assertExpectedInline(
            self.fails(head + "a.py\n-a\n"),
            """p.apatch:5: a line of a hunk outside any hunk: '-a'""",
        )
        self.assertExpectedInline(self.fails(head + "a.py\n"), """p.apatch:4: no hunk for a.py""")
        self.assertExpectedInline(
            self.fails(head + "a.py\nb.py\n@@ f\n-a\n"), """p.apatch:5: no hunk for a.py"""
        )
        self.assertExpectedInline(
            self.fails(head + "a.py\n@@ f\n-a\na.py\n@@ g\n-a\n"),
            """p.apatch:7: a.py stands twice: put its hunks together""",
        )
        self.assertExpectedInline(
            self.fails(head + "a.cpp\n@@ f\n-a\n"),
            """p.apatch:4: neither a Python file's path nor a hunk's line (' ', '-', '+' or '@@'): 'a.cpp'""",
        )
        self.assertExpectedInline(
            self.fails(head + "a.py\n@@ f\n\tx\n"),
            """p.apatch:6: neither a Python file's path nor a hunk's line (' ', '-', '+' or '@@'): '\\tx'""",
        )
        self.assertExpectedInline(
            self.fails(head + "a.py\n@@ -1,2 +1,2 @@\n"),
            """p.apatch:5: no symbol in '@@ -1,2 +1,2 @@': write '@@ Class.method', '@@ function#2', '@@ Class.__doc__' or '@@ <module>'""",
        )
        self.assertExpectedInline(
            self.fails(head + "--- a/a.py\n+++ b/a.py\n"),
            """p.apatch:4: a line of a hunk outside any hunk: '--- a/a.py'""",
        )
