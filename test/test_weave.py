from __future__ import annotations

from textwrap import dedent

import pytest
from expecttest import TestCase

from overlay.errors import OverlayError, PatchError, UsageError
from overlay.series import Series, load_series
from overlay.tree import MemoryTree
from overlay.weave import State, Weaver, left_out, survey
from patching import message

A = "torch/a.py"
BASE = {
    A: dedent(
        """\
        import os


        def f(x):
            if x:
                g(x)
            return x


        class C:
            y: int = 1
        """
    ).encode(),
    "torch/b.py": b"z = 1\n",
}


def patch_of(body: str, fields: str = "") -> str:
    return f"Subject: x\n\n{fields}---\n{dedent(body)}"


@pytest.fixture
def series(tmp_path):
    """Makes a series of patches by name and, as ``overlay``, of the files that they add."""

    def make(overlay=(), **patches: str) -> Series:
        names = []
        for name, text in patches.items():
            file = name + (".patch" if "+++ " in text else ".apatch")
            names.append(file)
            (tmp_path / "patches").mkdir(exist_ok=True)
            (tmp_path / "patches" / file).write_text(text)
        (tmp_path / "patches" / "series").write_text("# all\n" + "\n".join(names) + "\n")
        for path, content in dict(overlay).items():
            place = tmp_path / "torch_overlay" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        return load_series(tmp_path)

    return make


def applied(series: Series, files=BASE) -> dict:
    weaver = Weaver(MemoryTree(files))
    for patch in series.patches:
        assert weaver.apply(patch)
    return {**files, **weaver.changes()}


def states(series: Series, files) -> list[str]:
    return [state.state.value for state in survey(series.patches, MemoryTree(files)).states]


FIRST = patch_of(
    """\
    torch/a.py
    @@ <module>
     import os
    +import sys
    @@ f
     g(
         ...,
    +    sys,
     )
    @@ f
    -return x
    +return x + 1
    """
)
SECOND = patch_of(
    """\
    torch/a.py
    @@ f
     sys
    +.path
     )
    @@ f
    -return x + 1
    +return 2 * x
    @@ C
     y:
    -int
    +float
    torch/b.py
    @@ <module>
     z = 1
    +w = z
    """
)


def test_patches_are_applied_in_order_and_taken_back(series):
    both = series(first=FIRST, second=SECOND)
    files = applied(both)
    assert files[A].decode() == dedent(
        """\
        import os
        import sys


        def f(x):
            if x:
                g(x, sys.path)
            return 2 * x


        class C:
            y: float = 1
        """
    )
    assert files["torch/b.py"] == b"z = 1\nw = z\n"
    weaver = Weaver(MemoryTree(files))
    assert not weaver.apply(both.patches[1])
    assert weaver.changes() == {}
    assert weaver.take_back(both.patches[1])
    assert weaver.take_back(both.patches[0])
    assert not weaver.take_back(both.patches[0])
    # Imports stay: they may be in use elsewhere.
    assert weaver.changes() == {
        A: BASE[A].replace(b"import os\n", b"import os\nimport sys\n"),
        "torch/b.py": BASE["torch/b.py"],
    }


def test_survey_of_patches_that_rewrite_each_other(series):
    both = series(first=FIRST, second=SECOND)
    files = applied(both)
    only_first = {**BASE, **woven(both, 1)}
    assert states(both, BASE) == ["pending", "pending"]
    assert states(both, only_first) == ["applied", "pending"]
    assert states(both, files) == ["applied", "applied"]
    found = survey(both.patches, MemoryTree(only_first))
    assert {**found.changes} == {path: files[path] for path in found.changes}
    assert [state.patch.name for state in found.in_state(State.PENDING)] == ["second.apatch"]


def test_what_is_there_already_stays_as_it_is_written(series):
    both = series(first=FIRST, second=SECOND)

    def upstreams(files: dict) -> dict:
        layout = files[A].replace(b"g(x, sys", b"g(  # why\n            x, sys")
        assert layout != files[A]
        return {**files, A: layout}

    only_first = upstreams({**BASE, **woven(both, 1)})
    whole = upstreams(applied(both))
    assert states(both, only_first) == ["applied", "pending"]
    assert states(both, whole) == ["applied", "applied"]
    for files in (only_first, whole):
        found = survey(both.patches, MemoryTree(files))
        assert {**found.changes} == {path: whole[path] for path in found.changes}
        assert A in found.changes


def woven(series: Series, count: int) -> dict:
    weaver = Weaver(MemoryTree(BASE))
    for patch in series.patches[:count]:
        weaver.apply(patch)
    return weaver.changes()


def test_an_import_that_is_there_is_no_half(series):
    only = series(first=FIRST)
    files = {**BASE, A: BASE[A].replace(b"import os\n", b"import os\nimport sys\n")}
    assert states(only, files) == ["pending"]
    assert applied(only, files)[A].count(b"import sys") == 1


def test_a_later_hunk_may_change_what_an_earlier_one_wrote(series):
    only = series(
        one=patch_of(
            """\
            torch/a.py
            @@ f
            -return x
            +return h(x)
            @@ f
             return h(
            +    1,
                 x
             )
            @@ <module>
            +
            +def h(a, b):
            +    return a
            +
             class C:
            @@ h
            -return a
            +return b
            """
        )
    )
    files = applied(only)
    assert b"    return h(1, x)\n" in files[A]
    assert b"def h(a, b):\n    return b\n" in files[A]
    assert states(only, files) == ["applied"]


def test_nothing_is_changed_by_a_patch_that_fails(series):
    both = series(
        first=FIRST, second=patch_of("torch/b.py\n@@ <module>\n-z\n+y\ntorch/a.py\n@@ f\n-q\n+p\n")
    )
    weaver = Weaver(MemoryTree(BASE))
    weaver.apply(both.patches[0])
    before = weaver.changes()
    with pytest.raises(PatchError, match="matches nowhere in f"):
        weaver.apply(both.patches[1])
    assert weaver.changes() == before
    assert states(both, BASE) == ["pending", "in conflict"]


def test_hunks_that_are_in_each_others_way_are_all_or_nothing(series):
    # Each matches by itself, but the last one no more when the one before it is applied.
    body = "torch/b.py\n@@ <module>\n-1\n+2\n"
    body += "torch/a.py\n@@ f\n-g(x)\n+k(x)\n@@ f\n g(\n-x\n+y\n )\n"
    weaver = Weaver(MemoryTree(BASE))
    with pytest.raises(PatchError, match="matches nowhere"):
        weaver.apply(series(one=patch_of(body)).patches[0])
    assert weaver.changes() == {}


DIFF = """\
Subject: [x] A diff

Why.
---
 torch/b.py | 2 +-

diff --git a/torch/b.py b/torch/b.py
--- a/torch/b.py
+++ b/torch/b.py
@@ -1 +1 @@
-z = 1
+z = 2
diff --git a/torch/n.py b/torch/n.py
new file mode 100644
--- /dev/null
+++ b/torch/n.py
@@ -0,0 +1 @@
+n = 1
"""


def test_line_numbered_patches(series):
    both = series(diff=DIFF, next=patch_of("torch/b.py\n@@ <module>\n-2\n+3\n"))
    assert both.patches[0].paths == ("torch/b.py", "torch/n.py")
    files = applied(both)
    assert (files["torch/b.py"], files["torch/n.py"]) == (b"z = 3\n", b"n = 1\n")
    assert states(both, BASE) == ["pending", "pending"]
    assert states(both, files) == ["applied", "applied"]
    weaver = Weaver(MemoryTree(files))
    assert weaver.take_back(both.patches[1]) and weaver.take_back(both.patches[0])
    assert weaver.changes() == {"torch/b.py": b"z = 1\n", "torch/n.py": None}
    assert states(both, {**BASE, "torch/b.py": b"y = 1\n"}) == ["in conflict", "in conflict"]


@pytest.mark.parametrize(
    "diff",
    [
        "new file mode 120000\n--- /dev/null\n+++ b/torch/a.py\n@@ -0,0 +1 @@\n+/etc/hosts\n",
        "old mode 100644\nnew mode 100755\n--- a/torch/a.py\n+++ b/torch/a.py\n@@ -1 +1 @@\n-x\n+y\n",
    ],
)
def test_line_numbered_patches_of_more_than_contents(series, diff):
    with pytest.raises(UsageError, match="only contents of regular files"):
        series(a=patch_of("diff --git a/torch/a.py b/torch/a.py\n" + diff))


def test_a_line_numbered_patch_is_not_put_in_another_place(series):
    """Git would take the nearest, which is the other function once the file has grown."""
    body = "    x = 1\n    y = 2\n"
    hunk = "@@ -5,2 +5,2 @@\n     x = 1\n-    y = 2\n+    y = 3\n"
    only = series(a=patch_of("--- a/torch/a.py\n+++ b/torch/a.py\n" + hunk))

    def result(text: str) -> str:
        return applied(only, {A: text.encode()})[A].decode()

    source = f"def f():\n{body}def g():\n{body}"
    assert result(source) == source.removesuffix("2\n") + "3\n"
    with pytest.raises(PatchError, match="its hunk of line 5 stands in lines 4, 7, and not there"):
        result("# new\n" * 2 + source)
    unique = "# new\n" * 2 + f"def g():\n{body}"
    assert result(unique) == unique.replace("2\n", "3\n")


def test_added_files(series):
    only = series(
        {"torch/new.py": b"q = 1\n", "test/t.py": b"r = 1\n"},
        one=patch_of("", "Adds: torch/new.py\nAdds: test/t.py\n"),
    )
    patch = only.patches[0]
    files = applied(only)
    assert (files["torch/new.py"], files["test/t.py"]) == (b"q = 1\n", b"r = 1\n")
    assert states(only, files) == ["applied"]

    def in_torch(path: str) -> bool:
        return path.startswith("torch/")

    assert left_out(patch, in_torch) == ("test/t.py",)
    weaver = Weaver(MemoryTree(BASE), in_torch)
    assert weaver.apply(patch)
    assert weaver.changes() == {"torch/new.py": b"q = 1\n"}
    assert weaver.take_back(patch)
    assert weaver.changes() == {}


def test_the_digest_is_of_the_patch_and_what_it_adds(series):
    one = patch_of("", "Adds: torch/n.py\n")
    first = series({"torch/n.py": b"q = 1\n"}, one=one).patches[0].digest
    assert series({"torch/n.py": b"q = 1\n"}, one=one).patches[0].digest == first
    assert series({"torch/n.py": b"q = 2\n"}, one=one).patches[0].digest != first


@pytest.mark.parametrize(
    "specifier, version, takes",
    [
        (">=2.1", "2.1.0", True),
        (">=2.1", "2.6.0+cu124", True),
        (">=2.1", "2.0.1", False),
        (">=2.6", "2.6.0a0+git1234567", True),
        ("==1.13.*", "1.13.0a0", True),
        ("==2.6.0a0", "2.6.0a0", True),
        ("", "1.0", True),
    ],
)
def test_the_versions_that_a_patch_is_for(series, specifier, version, takes):
    fields = f"Torch-Version: {specifier}\n" if specifier else ""
    only = series(one=patch_of("torch/b.py\n@@ <module>\n-z\n+y\n", fields))
    assert len(only.selected(version)) == takes


@pytest.mark.parametrize(
    "path",
    "/torch/a.py torch/../a.py ../torch/a.py ./torch/a.py setup.py torch/.git/a.py torch\\a.py"
    " c:/torch/a.py test.py torch/x.pth".split(),
)
@pytest.mark.parametrize("kind", ["hunk", "Adds", "diff"])
def test_paths_outside_the_trees_are_refused(series, path, kind):
    text = {
        "hunk": patch_of(f"{path}\n@@ f\n-a\n+b\n"),
        "Adds": patch_of("", f"Adds: {path}\n"),
        "diff": f"Subject: x\n\n---\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-z\n+y\n",
    }[kind]
    with pytest.raises(UsageError) as caught:
        series(one=text)
    assert caught.value.message.startswith("one.")


class Texts(TestCase):
    maxDiff = None

    @pytest.fixture(autouse=True)
    def _series(self, series):
        self.series = series

    def fails(self, files=None, overlay=(), **patches: str) -> str:
        with pytest.raises(OverlayError) as caught:
            weaver = Weaver(MemoryTree({**BASE, **(files or {})}))
            for patch in self.series(overlay, **patches).patches:
                weaver.apply(patch)
        return message(caught.value)

    def test_half_there(self):
        half = BASE[A].replace(b"return x\n", b"return x + 1\n")
        self.assertExpectedInline(
            self.fails({A: half}, first=FIRST),
            """\
first.apatch: only a part of it is there
  there: torch/a.py: hunk 3, @@ f
  missing: torch/a.py: hunk 1, @@ <module>
  missing: torch/a.py: hunk 2, @@ f""",
        )

    def test_file_missing(self):
        text = patch_of("torch/x.py\n@@ f\n-a\n+b\n")
        self.assertExpectedInline(
            self.fails(one=text), """one.apatch: torch/x.py: the target has no such file"""
        )

    def test_file_is_not_python(self):
        self.assertExpectedInline(
            self.fails({A: b"x = (\n"}, first=FIRST),
            """first.apatch: torch/a.py: ')' is missing at the end""",
        )
        self.assertExpectedInline(
            self.fails({A: b"x = '\xff'\n"}, first=FIRST),
            """first.apatch: torch/a.py: cannot decode: invalid or missing encoding declaration""",
        )

    def test_encoding_cannot_take_it(self):
        text = patch_of("torch/b.py\n@@ <module>\n-1\n+'→'\n")
        files = {"torch/b.py": b"# coding: latin-1\nz = 1\n"}
        self.assertEqual(
            self.fails(files, one=text),
            "one.apatch: torch/b.py: line 2: '→' cannot be written in the file's encoding,"
            " iso-8859-1",
        )

    def test_adds_conflicts(self):
        text = patch_of("", "Adds: torch/b.py\n")
        self.assertExpectedInline(
            self.fails(None, {"torch/b.py": b"q\n"}, one=text),
            """one.apatch: Adds: torch/b.py: the target has such a file with other content""",
        )

    def test_diff_does_not_fit(self):
        self.assertExpectedInline(
            self.fails({"torch/b.py": b"y = 1\n"}, one=DIFF),
            """\
one.patch: git apply does not take it
  error: patch failed: torch/b.py:1
  error: torch/b.py: patch does not apply""",
        )

    def test_series(self):
        self.assertExpectedInline(
            self.fails(one=patch_of("")),
            """one.apatch: changes nothing: give it hunks, or an Adds field""",
        )
        self.assertExpectedInline(
            self.fails(one=patch_of("", "Adds: torch/no.py\n")),
            """one.apatch: Adds: torch/no.py: cannot read it in torch_overlay/: No such file or directory""",
        )
        self.assertExpectedInline(
            self.fails(one=patch_of("torch/b.py\n@@ f\n-a\n+b\n", "Torch-Version: 2x\n")),
            """one.apatch: Torch-Version: '2x' is not a version specifier, such as >=2.1,<3""",
        )
        text = patch_of("torch/b.py\n@@ f\n-a\n+b\n", "Adds: torch/b.py\n")
        self.assertExpectedInline(
            self.fails(None, {"torch/b.py": b""}, one=text),
            """one.apatch: torch/b.py is both added and changed: do one of them""",
        )
        text = self.fails(one="Subject: x\n\n---\n--- a/a.py\n+++ b/a.py\n@@ x\n")
        self.assertIn("one.patch: git cannot read it as a diff: error: ", text)


@pytest.mark.parametrize(
    "listing, reason",
    [
        ("a.apatch\na.apatch\n", "'a.apatch' stands twice"),
        ("a.txt\n", "neither .apatch nor .patch"),
        ("../a.apatch\n", "not written plainly"),
        ("no.apatch # comment\n", "no.apatch: cannot read the patch: No such file"),
    ],
)
def test_listings(tmp_path, listing, reason):
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "a.apatch").write_text(patch_of("torch/b.py\n@@ <module>\n-z\n+y\n"))
    (tmp_path / "patches" / "series").write_text(listing)
    with pytest.raises(UsageError, match=reason):
        load_series(tmp_path)


def test_no_series(tmp_path):
    with pytest.raises(UsageError, match=r"no series in .*name a folder that has patches/series"):
        load_series(tmp_path)
