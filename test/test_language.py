from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from expecttest import TestCase

from overlay.apatch import PatchSyntaxError
from overlay.errors import OverlayError, PatchError
from overlay.hunks import apply_hunk, is_applied
from overlay.source import Source
from patching import apply, compiled, message

# Each case: "## title", a source, "@@ symbol" and a hunk, "==", what the hunk makes of it.
_CASES = re.split(r"(?m)^## ", Path(__file__).with_name("language_cases.txt").read_text())[1:]


@pytest.mark.parametrize("case", [pytest.param(c, id=c.partition("\n")[0]) for c in _CASES])
def test_a_hunk_is_applied(case):
    match = re.fullmatch(r".*?\n(.*?)@@ (.*?)\n(.*)\n==\n(.*)", case, re.DOTALL)
    source, symbol, hunk, expected = match.groups()
    assert apply(compiled(symbol, hunk), source) == expected


@pytest.mark.parametrize(
    "source, symbol, hunk",
    [
        pytest.param("def f():\n    return\n    x\n", "f", "-return x\n+return y", id="return"),
        pytest.param("def f():\n    a = (x,)\n", "f", " a =\n-(x)\n+(y)", id="tuple"),
        pytest.param("def f():\n    a = (x)\n", "f", " a =\n-(x,)\n+(y,)", id="no tuple"),
        pytest.param("def f():\n    a: T[x]\n", "f", "-T[x,]\n+T[y]", id="tuple in a subscript"),
        pytest.param("def f():\n    x\n    -y\n", "f", "-x - y\n+x + y", id="unary"),
        pytest.param("def f():\n    x -y\n", "f", "-x\n--y\n+z", id="not unary"),
        pytest.param("def f():\n    a = x\n    b(y)\n", "f", " a = ...\n-(y)\n+(z)", id="inline"),
        pytest.param("def f():\n    g(a, b)\n    c(d)\n", "f", " g(...\n-d\n+e", id="brackets"),
        pytest.param("def f():\n    '''a = 1'''\n    # a = 1\n", "f", "-a = 1\n+a = 2", id="text"),
        pytest.param("def f():\n    s = 'x y'\n", "f", "-x\n+z", id="string"),
        pytest.param("def f():\n    def g():\n        x()\n", "f", "-x()\n+y()", id="nested"),
        pytest.param("class A:\n    @d\n    def f(self): 1\n", "A", "-@d\n+@e", id="decorator"),
        pytest.param(
            "def f():\n    if x:\n        a()\n    b()\n", "f", " a()\n-b()\n+c()", id="dedent"
        ),
        pytest.param(
            "def f():\n    a()\n    if x:\n        b()\n", "f", " a()\n-b()\n+c()", id="indent"
        ),
        pytest.param(
            "def f():\n    if x:\n        a()\n    b()\n",
            "f",
            " if x:\n     ...\n-    b()\n+    c()",
            id="block",
        ),
        pytest.param("def f():\n    a(b'x', 1, 2)\n", "f", "-a('x', 1, 2)\n+c()", id="bytes"),
        pytest.param("def f():\n    a(f'x{y}')\n", "f", "-f'x{z}'\n+c()", id="f-string"),
    ],
)
def test_other_code_does_not_match(source, symbol, hunk):
    with pytest.raises(PatchError, match="matches nowhere"):
        apply_hunk(compiled(symbol, hunk), Source(source))


@pytest.mark.parametrize(
    "source, hunk, reason",
    [
        ("def f():\n    if x: a()\n    b()\n", " if x:\n+    c()\n     a()", "one-line body"),
        ("def f():\n    if x: a()\n    b()\n", "-a()\n+a()\n+c()", "one-line body"),
        ("def f():\n    if x: a()\n    b()\n", " a()\n+c()", "one-line body"),
        ("def f():\n    if x: a()\n    b()\n", " if x:\n     ...\n+    c()", "fits no block"),
        ("def f():\n    if x:\n        a()\n    b()\n", " if x:\n-    a()\n b()", "fits no block"),
        ("def f():\n    a()\n    b()\n", "-a()\n+    c()\n b()", "fits no block"),
        ("def f():\n    a()\n    b()\n", " ...\n+    c()", "deeper than the '...'"),
        ("def f():\n    g(a, b)\n", " a,\n+c,  # why\n b", "a comment cannot stand there"),
        ("def f():\n    g(a, b)\n", "-a,  # why\n-b\n+a,  # why not\n+c", "a comment cannot stand"),
        ("def f():\n    g(1)\n", " g(1)\n+)", "closes nothing"),
    ],
)
def test_what_would_not_stand_in_its_place_is_refused(source, hunk, reason):
    reason = reason.replace("one-line body", "begins on its header's line")
    with pytest.raises(PatchError, match=reason):
        apply_hunk(compiled("f", hunk), Source(source))


@pytest.mark.parametrize(
    "source, hunk",
    [
        # The result stands elsewhere in the symbol.
        ("def f():\n    if a:\n        x(2)\n    x(1)\n", "-x(1)\n+x(2)"),
        ("def f():\n    a = g(x)\n    b = g(y)\n", "-g(x)\n+g(y)"),
        # Code that is added before what stays of the line.
        ("def f():\n    x()\n", "+async\n def f("),
    ],
)
def test_a_hunk_that_could_not_be_told_from_applied_is_refused(source, hunk):
    with pytest.raises(PatchError, match="could not be told from not applied"):
        apply_hunk(compiled("f", hunk), Source(source))


def test_long_hunks_and_files():
    lines = [f"    a{n}(b, c{n})" for n in range(5000)]
    source = "def f():\n" + "\n".join(lines) + "\n"
    added = "\n".join(f"+    n{n} = [{n}, {{{n}: ({n})}}]" for n in range(1000))
    hunk = f" def f():\n     ...\n     a10(...)\n     ...\n     a4000(...)\n{added}\n     ...\n     a4990(\n"
    result = apply(compiled("f", hunk + "-    b\n+    d\n     , ...)"), source)
    assert result.count("\n") == 6001
    assert "    a4000(b, c4000)\n    n0 = [0, {0: (0)}]\n" in result
    assert "    a4990(d, c4990)\n" in result


def test_what_cannot_be_written_in_the_encoding():
    source = Source.decode("# coding: latin-1\nx = 'é'\n".encode("latin-1"))
    hunk = compiled("<module>", " x =\n-'é'\n+'→'")
    assert not is_applied(hunk, source)
    with pytest.raises(ValueError, match="'→' cannot be written in the file's encoding"):
        apply_hunk(hunk, source).encode()


def test_a_statement_is_not_the_beginning_of_another():
    hunk = compiled("<module>", " a()\n+x = 1")
    assert not is_applied(hunk, Source("a()\nx = 1 + y\n"))
    assert is_applied(hunk, Source("a()\nx = 1\n"))


def test_import_that_is_there_with_others():
    hunk = compiled("<module>", " import a\n+from b import c")
    assert hunk.adds_imports
    assert is_applied(hunk, Source("import a\nfrom b import c, d\n"))
    assert not is_applied(hunk, Source("import a\nfrom b import d\n"))


def test_torch_is_read_and_written_byte_for_byte(stock_torch):
    checked = 0
    for path in sorted((stock_torch / "torch" / "distributed").rglob("*.py")):
        content = path.read_bytes()
        source = Source.decode(content)
        assert source.encode() == content
        end = 0
        for token in source.tokens:
            gap = re.sub(r"#.*|\\\n", "", source.text[end : token.start])
            assert not gap.strip(), (path, gap)
            end = token.end
        assert _symbols(source) == _symbols_by_ast(ast.parse(content)), path
        checked += 1
    assert checked > 200


def _symbols(source: Source) -> list[tuple[str, int, int, str]]:
    found = []
    for symbol in source.symbols:
        docstring = "" if symbol.docstring is None else source.tokens[symbol.docstring].text
        first, last = source.tokens[symbol.start], source.tokens[symbol.end - 1]
        found.append(
            (
                re.sub(r"#\d+", "", symbol.name),
                source.line(first.start),
                source.line(last.end),
                ast.literal_eval(docstring) if docstring else "",
            )
        )
    return sorted(found)


def _symbols_by_ast(tree: ast.AST, prefix: str = "") -> list[tuple[str, int, int, str]]:
    found = []
    for node in ast.iter_child_nodes(tree):
        name = prefix
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            line = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            docstring = ast.get_docstring(node, clean=False) or ""
            found.append((prefix + node.name, line, node.end_lineno, docstring))
            name = f"{prefix}{node.name}."
        found += _symbols_by_ast(node, name)
    return sorted(found)


SOURCE = '''\
class Engine:
    """Runs things."""

    def run(self, a, b):
        start(a)
        if b:
            stop(a, b)
        stop(a, b)

    @overload
    def get(self): ...
    def get(self, key=None):
        return key


def run_engine(): pass
'''


class ErrorTexts(TestCase):
    maxDiff = None

    def fails(self, symbol: str, hunk: str, source: str = SOURCE) -> str:
        with pytest.raises(OverlayError) as caught:
            apply_hunk(compiled(symbol, hunk), Source(source))
        return message(caught.value)

    def test_symbol_missing(self):
        self.assertExpectedInline(
            self.fails("Engine.runs", "-a\n+b"),
            """p.apatch: f.py: @@ Engine.runs: there is no Engine.runs in the file: the nearest names are Engine.run, Engine, Engine.get#2""",
        )
        self.assertExpectedInline(
            self.fails("Motor.run", "-a\n+b"),
            """p.apatch: f.py: @@ Motor.run: there is no Motor.run in the file: the nearest names are Engine.run""",
        )
        self.assertExpectedInline(
            self.fails("xyz", "-a\n+b"), """p.apatch: f.py: @@ xyz: there is no xyz in the file"""
        )

    def test_overload_without_number(self):
        self.assertExpectedInline(
            self.fails("Engine.get", "-key\n+k"),
            """\
p.apatch: f.py: @@ Engine.get: Engine.get is defined 2 times: say which, as Engine.get#2
  Engine.get#1: line 11
  Engine.get#2: line 12""",
        )

    def test_no_docstring(self):
        self.assertExpectedInline(
            self.fails("run_engine.__doc__", "-a\n+b"),
            """p.apatch: f.py: @@ run_engine.__doc__: run_engine has no docstring""",
        )

    def test_matches_nowhere(self):
        self.assertExpectedInline(
            self.fails("Engine.run", " start(a)\n if b:\n-    stop(a)\n+    stop(b)"),
            """\
p.apatch: f.py: @@ Engine.run: matches nowhere in Engine.run
  matched so far: start ( a ) if b : stop ( a
  then expected: )
  line 7 has: , b ) stop ( a , b )""",
        )
        self.assertExpectedInline(
            self.fails("Engine.run", "-halt(a)\n+b"),
            """\
p.apatch: f.py: @@ Engine.run: its result stands in 4 places: quote more, so that one is meant
  line 4, column 22: def run(self, a, b):
  line 6, column 12: if b:
  line 7, column 21: stop(a, b)
  line 8, column 17: stop(a, b)""",
        )
        self.assertExpectedInline(
            self.fails("run_engine", " pass\n-x\n+b"),
            """\
p.apatch: f.py: @@ run_engine: matches nowhere in run_engine
  matched so far: pass
  then expected: x
  the symbol ends there""",
        )
        self.assertExpectedInline(
            self.fails("Engine.__doc__", "-Runs it\n+Does it"),
            """\
p.apatch: f.py: @@ Engine.__doc__: matches nowhere in Engine.__doc__
  matched so far: Runs
  then expected: it
  line 2 has: things.""",
        )

    def test_two_places(self):
        self.assertExpectedInline(
            self.fails("Engine.run", "-stop(a, b)\n+stop(b)"),
            """\
p.apatch: f.py: @@ Engine.run: matches in 2 places: quote more, so that one is meant
  line 7, column 13: stop(a, b)
  line 8, column 9: stop(a, b)""",
        )
        self.assertExpectedInline(
            self.fails("Engine.run", " stop(...)\n+go()"),
            """\
p.apatch: f.py: @@ Engine.run: matches in 2 places: quote more, so that one is meant
  after line 7, column 22: stop(a, b)
  after line 8, column 18: stop(a, b)""",
        )

    def test_result_twice(self):
        self.assertExpectedInline(
            self.fails("Engine.run", "-halt(a)\n+stop(a, b)"),
            """\
p.apatch: f.py: @@ Engine.run: its result stands in 2 places: quote more, so that one is meant
  line 7, column 13: stop(a, b)
  line 8, column 9: stop(a, b)""",
        )

    def test_cannot_be_told_apart(self):
        self.assertExpectedInline(
            self.fails("Engine.run", "-start(a)\n+stop(a, b)"),
            """p.apatch: f.py: @@ Engine.run: applied in line 5, it could not be told from not applied: quote more of the code around it""",
        )

    def test_not_python(self):
        self.assertExpectedInline(
            self.fails("<module>", "-a\n+b", "x = 1\ny = '''\n"),
            """p.apatch: f.py: @@ <module>: line 2: the string does not end""",
        )
        self.assertExpectedInline(
            self.fails("<module>", "-a\n+b", "if x:\n    a\n  b\n"),
            """p.apatch: f.py: @@ <module>: line 3: its indentation fits no block""",
        )

    def test_one_line_body(self):
        self.assertExpectedInline(
            self.fails("run_engine", " def run_engine():\n+    go()\n     pass"),
            """p.apatch: f.py: @@ run_engine: matches in line 16, but that body begins on its header's line, where no other statement fits: replace the whole line""",
        )

    def test_removal_without_context(self):
        self.assertExpectedInline(
            self.fails("Engine.run", " start(a)\n-if b:"),
            """p.apatch: f.py: @@ Engine.run: code goes and none comes, so code that stays must be quoted directly before and after it; otherwise nothing could tell that it has gone""",
        )

    def test_changes_nothing(self):
        self.assertExpectedInline(
            self.fails("Engine.run", " start(a)"),
            """p.apatch: f.py: @@ Engine.run: changes nothing: mark lines with '-' or '+'""",
        )
        self.assertExpectedInline(
            self.fails("Engine.run", "-start(a)\n+start(  a)"),
            """p.apatch: f.py: @@ Engine.run: changes nothing but layout: change some code""",
        )
        self.assertExpectedInline(
            self.fails("Engine.run", " start(a)\n+# why"),
            """p.apatch: f.py: @@ Engine.run: an edit of blank lines or comments alone: add code""",
        )

    def test_no_context(self):
        self.assertExpectedInline(
            self.fails("Engine.run", "+start(a)"),
            """p.apatch: f.py: @@ Engine.run: nothing tells where the change stands before it is applied: quote some code that stays""",
        )

    def test_hunk_is_not_python(self):
        self.assertExpectedInline(
            self.fails("Engine.run", "-start(a)\n+start('a)"),
            """p.apatch: f.py: @@ Engine.run: its new side is not Python: line 1: the string does not end""",
        )


def test_syntax_errors_are_their_own_class():
    with pytest.raises(PatchSyntaxError):
        compiled("f", " a")


@pytest.mark.parametrize(
    "source, hunk",
    [
        pytest.param(
            "if a:\n    x()\nelse:\n    y()\n", "     x()\n+if b:\n+    z()", id="before else"
        ),
        pytest.param(
            "if a:\n    x()\nelif c:\n    y()\n", "     x()\n+if b:\n+    z()", id="before elif"
        ),
        pytest.param(
            "try:\n    x()\nexcept E:\n    y()\n", "     x()\n+try:\n+    z()", id="before except"
        ),
        pytest.param(
            "for i in a:\n    x()\nelse:\n    y()\n", "     x()\n+if b:\n+    z()", id="for"
        ),
        pytest.param("if a:\n    x()\nelse:\n    y()\n", "-if\n+while\n a", id="another header"),
        pytest.param("if a: x()\nelse: y()\n", " if a: x()\n+if b: z()", id="in one line"),
    ],
)
def test_an_else_is_not_made_anothers(source, hunk):
    with pytest.raises(PatchError, match="would no longer belong to the"):
        apply_hunk(compiled("<module>", hunk), Source(source))


@pytest.mark.parametrize(
    "source, hunk",
    [
        pytest.param(
            "if a:\n    x()\nelse:\n    y()\n", "-if\n+while\n a:\n     ...\n else", id="quoted"
        ),
        pytest.param(
            "if a:\n    x()\nelse:\n    y()\n", " if a:\n     x()\n+elif b:\n+    z()", id="elif"
        ),
        pytest.param("if a:\n    x()\nelse:\n    y()\n", "-if a:\n+if b and a:", id="same header"),
        pytest.param(
            "if a:\n    x()\nelse:\n    y()\n",
            "     x()\n+    if b:\n+        z()",
            id="in the body",
        ),
        pytest.param("if a: x()\nelse: y()\n", "-x()\n+z()", id="in one line"),
    ],
)
def test_what_leaves_an_else_to_its_statement(source, hunk):
    assert ast.parse(apply(compiled("<module>", hunk), source))


def test_nothing_new_slips_into_a_block_of_the_module() -> None:
    """What stands in the first column of a hunk on the module must run when it is imported."""
    text = "if TYPE_CHECKING:\n    from a import b\n\nx = b\n"
    with pytest.raises(PatchError) as refused:
        apply(compiled("<module>", "+from c import d\n from a import"), text)
    assert "some 'if' of the module" in refused.value.message
    in_block = compiled("<module>", "+    from c import d\n     from a import")
    assert "TYPE_CHECKING:\n    from c import d\n    from a" in apply(in_block, text)
