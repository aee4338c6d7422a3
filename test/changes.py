"""Changes to real Python files as a person makes them: what the tests of import commit and bring home."""

from __future__ import annotations

import ast
import re
from random import Random
from typing import Callable, Optional, Union

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
Change = Callable[["File", Random], Optional[str]]


class File:
    """A Python file as lines and syntax tree."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.splitlines(keepends=True)
        self.tree = ast.parse(text)
        self.functions = [n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef)]
        self.classes = [n for n in ast.walk(self.tree) if isinstance(n, ast.ClassDef)]

    def replaced(self, start: int, stop: int, new: list[str]) -> str:
        """The text with lines ``start`` to ``stop`` (from 1, excluded) exchanged."""
        return "".join([*self.lines[: start - 1], *new, *self.lines[stop - 1 :]])

    def with_node(self, node: ast.expr, new: str) -> str:
        """The text with an expression exchanged."""
        start = self.offset(node.lineno, node.col_offset)
        assert node.end_lineno is not None and node.end_col_offset is not None
        stop = self.offset(node.end_lineno, node.end_col_offset)
        return self.text[:start] + new + self.text[stop:]

    def offset(self, line: int, column: int) -> int:
        before = sum(map(len, self.lines[: line - 1]))
        return before + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.stmt) -> tuple[int, int]:
        """The lines of a statement, decorators included."""
        decorators = getattr(node, "decorator_list", [])
        assert node.end_lineno is not None
        return min([node.lineno, *(d.lineno for d in decorators)]), node.end_lineno + 1

    def statements(self) -> list[tuple[ast.stmt, list[ast.stmt]]]:
        """Simple statements in functions, each with its block."""
        found = []
        for function in self.functions:
            for node in ast.walk(function):
                for name in ("body", "orelse", "finalbody"):
                    block = getattr(node, name, None)
                    if isinstance(block, list):
                        found += [
                            (s, block)
                            for s in block
                            if isinstance(s, (ast.Assign, ast.Expr, ast.Return, ast.Raise, ast.If))
                            and not _is_docstring(s)
                        ]
        return found


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _indent(node: ast.stmt) -> str:
    return " " * node.col_offset


def change_expression(file: File, random: Random) -> Optional[str]:
    """Another number, name or attribute somewhere in a function."""
    nodes = [
        node
        for statement, _ in file.statements()
        for node in ast.walk(statement)
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
    ]
    return (
        file.with_node(random.choice(nodes), f"changed_{random.randrange(99)}") if nodes else None
    )


def change_call(file: File, random: Random) -> Optional[str]:
    """One more keyword argument, as a formatter lays it out."""
    calls = [
        node
        for statement, _ in file.statements()
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and node.args and not node.keywords
    ]
    if not calls:
        return None
    last = random.choice(calls).args[-1]
    assert last.end_lineno is not None and last.end_col_offset is not None
    at = file.offset(last.end_lineno, last.end_col_offset)
    indent = re.match(r"\s*", file.lines[last.lineno - 1])
    assert indent is not None
    if file.text.startswith(",\n", at):
        return f"{file.text[: at + 2]}{indent[0]}strict=True,\n{file.text[at + 2 :]}"
    return f"{file.text[:at]}, strict=True{file.text[at:]}"


def insert_statement(file: File, random: Random) -> Optional[str]:
    """New statements with a comment, after another statement."""
    statement, _ = random.choice(file.statements())
    indent = _indent(statement)
    new = [f"{indent}# Why this is here.\n", f"{indent}if note({random.randrange(99)}):\n"]
    new += [f"{indent}    count += 1  # once\n"]
    at = file.span(statement)[random.randrange(2)]
    if isinstance(statement, (ast.Return, ast.Raise)):
        at = file.span(statement)[0]
    return file.replaced(at, at, new)


def delete_statement(file: File, random: Random) -> Optional[str]:
    """One statement less in a block that has others."""
    many = [(s, b) for s, b in file.statements() if len(b) > 1]
    start, stop = file.span(random.choice(many)[0])
    return file.replaced(start, stop, [])


def wrap_statement(file: File, random: Random) -> Optional[str]:
    """A statement that now stands under a condition."""
    statement = random.choice([s for s, _ in file.statements()])
    start, stop = file.span(statement)
    lines = file.lines[start - 1 : stop - 1]
    inside = ["    " + line if line.strip() else line for line in lines]
    return file.replaced(start, stop, [f"{_indent(statement)}if self.enabled:\n", *inside])


def rename_parameter(file: File, random: Random) -> Optional[str]:
    """Another name for a parameter wherever the function uses it."""
    functions = [f for f in file.functions if len(f.args.args) > 1]
    if not functions:
        return None
    function = random.choice(functions)
    name = function.args.args[-1].arg
    start, stop = file.span(function)
    body = "".join(file.lines[start - 1 : stop - 1])
    renamed = re.sub(rf"(?<![\w.\"'`]){name}\b(?![`\"'])", f"{name}_renamed", body)
    return file.replaced(start, stop, [renamed])


def add_parameter(file: File, random: Random) -> Optional[str]:
    """A new last parameter with a default, in the layout of the others."""
    functions = [
        f
        for f in file.functions
        if f.args.args and not (f.args.kwonlyargs or f.args.vararg or f.args.kwarg)
    ]
    function = random.choice(functions)
    last = function.args.args[-1]
    node: ast.expr | ast.arg = function.args.defaults[-1] if function.args.defaults else last
    assert node.end_lineno is not None and node.end_col_offset is not None
    at = file.offset(node.end_lineno, node.end_col_offset)
    if file.text.startswith(",\n", at):
        indent = " " * (function.col_offset + 4)
        return f"{file.text[: at + 2]}{indent}extra: int = 0,\n{file.text[at + 2 :]}"
    return f"{file.text[:at]}, extra: int = 0{file.text[at:]}"


def add_method(file: File, random: Random) -> Optional[str]:
    """A new method after another one."""
    methods = [m for c in file.classes for m in c.body if isinstance(m, ast.FunctionDef)]
    if not methods:
        return None
    method = random.choice(methods)
    _, stop = file.span(method)
    indent = _indent(method)
    new = [
        "\n",
        f"{indent}@property\n",
        f"{indent}def added_{random.randrange(99)}(self) -> int:\n",
    ]
    new += [f'{indent}    """Count."""\n', f"{indent}    return self._count\n"]
    return file.replaced(stop, stop, new)


def add_function(file: File, random: Random) -> Optional[str]:
    """A new function between two definitions of the module."""
    definitions = [s for s in file.tree.body if isinstance(s, (ast.FunctionDef, ast.ClassDef))]
    start, _ = file.span(random.choice(definitions))
    name = f"_added_{random.randrange(999)}"
    new = [
        f"def {name}(x: int) -> int:\n",
        "    # Half of it.\n",
        "    return x // 2\n",
        "\n",
        "\n",
    ]
    return file.replaced(start, start, new)


def move_function(file: File, random: Random) -> Optional[str]:
    """A function of the module at another place."""
    body = file.tree.body
    pairs = [
        (a, b)
        for a, b in zip(body, body[1:])
        if isinstance(a, ast.FunctionDef) and isinstance(b, (ast.FunctionDef, ast.ClassDef))
    ]
    if not pairs:
        return None
    first, second = random.choice(pairs)
    start, stop = file.span(first)[0], file.span(second)[0]
    end = file.span(second)[1]
    moved = file.lines[start - 1 : file.span(first)[1] - 1]
    kept = file.lines[stop - 1 : end - 1]
    between = file.lines[file.span(first)[1] - 1 : stop - 1]
    return file.replaced(start, end, [*kept, *between, *moved])


def delete_function(file: File, random: Random) -> Optional[str]:
    """A function or method less, with the blank lines after it."""
    blocks = [file.tree.body, *(c.body for c in file.classes)]
    pairs = [
        (a, b)
        for block in blocks
        for a, b in zip(block, block[1:])
        if isinstance(a, ast.FunctionDef)
        and isinstance(b, ast.FunctionDef)
        and a.end_lineno is not None
        and a.end_lineno - a.lineno < 30
    ]
    if not pairs:
        return None
    first, second = random.choice(pairs)
    return file.replaced(file.span(first)[0], file.span(second)[0], [])


def add_import(file: File, random: Random) -> Optional[str]:
    """One more import beside the others."""
    imports = [s for s in file.tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]
    _, stop = file.span(random.choice(imports[1:] or imports))
    new = random.choice(["import heapq\n", "from torch.distributed import rpc as _rpc\n"])
    return file.replaced(stop, stop, [new])


def change_import(file: File, random: Random) -> Optional[str]:
    """One more name in an import."""
    imports = [
        s for s in file.tree.body if isinstance(s, ast.ImportFrom) and s.module != "__future__"
    ]
    chosen = random.choice(imports)
    last = chosen.names[-1]
    assert last.end_lineno is not None and last.end_col_offset is not None
    at = file.offset(last.end_lineno, last.end_col_offset)
    new = f"Added{random.randrange(99)}"
    if file.text.startswith(",\n", at):
        return f"{file.text[: at + 2]}    {new},\n{file.text[at + 2 :]}"
    return f"{file.text[:at]}, {new}{file.text[at:]}"


def change_docstring(file: File, random: Random) -> Optional[str]:
    """A word changed in a docstring, or a paragraph more at its end."""
    nodes = [n for n in [*file.functions, *file.classes] if ast.get_docstring(n)]
    if not nodes:
        return None
    docstring = random.choice(nodes).body[0]
    start, stop = file.span(docstring)
    lines = file.lines[start - 1 : stop - 1]
    indent = _indent(docstring)
    if len(lines) > 1 and lines[-1].strip() == '"""' and random.random() < 0.5:
        new = ["\n", f"{indent}A paragraph more, which says\n", f"{indent}what is new.\n"]
        return file.replaced(stop - 1, stop - 1, new)
    index = random.randrange(len(lines))
    words = re.findall(r"\b[a-z]{4,}\b", lines[index])
    if not words:
        return None
    word = random.choice(words)
    return file.replaced(
        start + index, start + index + 1, [lines[index].replace(word, f"{word} or so", 1)]
    )


def add_decorator(file: File, random: Random) -> Optional[str]:
    """One more decorator on a function."""
    function = random.choice(file.functions)
    start, _ = file.span(function)
    new = [f"{_indent(function)}@traced(level={random.randrange(9)})\n"]
    return file.replaced(start, start, new)


def change_several(file: File, random: Random) -> Optional[str]:
    """Three changes, most of them in one function."""
    text: Optional[str] = file.text
    for change in (insert_statement, change_expression, delete_statement):
        text = change(File(text), random) if text else None
    return text


def change_comment(file: File, random: Random) -> Optional[str]:
    """Only a comment."""
    rows = [row for row, line in enumerate(file.lines, 1) if line.strip().startswith("# ")]
    if not rows:
        return None
    row = random.choice(rows)
    return file.replaced(row, row + 1, [file.lines[row - 1].rstrip("\n") + " (see above)\n"])


CODE: tuple[Change, ...] = (
    change_expression,
    change_call,
    insert_statement,
    delete_statement,
    wrap_statement,
    rename_parameter,
    add_parameter,
    add_method,
    add_function,
    move_function,
    delete_function,
    add_import,
    change_import,
    change_docstring,
    add_decorator,
    change_several,
)


def changed(text: str, change: Change, random: Random) -> Optional[str]:
    """A file after a change, if it is still Python and differs."""
    for _ in range(5):
        try:
            new = change(File(text), random)
            if new is not None and new != text:
                ast.parse(new)
                return new
        except (SyntaxError, IndexError):
            continue
    return None
