from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.tree import ChangedTree, MemoryTree
from overlay.verify import Finding, Report, verify

A, B = "torch/a.py", "torch/b.py"


def check(before: Mapping[str, str], changes: Mapping[str, Optional[str]]) -> Report:
    """Verify a change; ``torch/__init__.py`` is there unless it is given."""
    files = {"torch/__init__.py": "", **before}
    tree = MemoryTree({p: dedent(s).encode() for p, s in files.items()})
    new = {p: None if s is None else dedent(s).encode() for p, s in changes.items()}
    return verify(tree, ChangedTree(tree, new), list(new))


def places(findings: tuple[Finding, ...]) -> list[tuple[str, int]]:
    return [(f.path, f.line) for f in findings]


def sweep(caller: str, old: str = "def f(x): ...", new: str = "def f(x, y): ...") -> Report:
    """What a caller's file gets when ``f`` of ``torch/a.py`` changes."""
    return check({A: old, B: caller}, {A: new})


CLASS = "class C:\n    def m(self, x): ...\n"
CLASS_NEW = "class C:\n    def m(self, x, y): ...\n"


# Every way to reach a function: line 2 of the caller does not bind any more.
ROUTES = {
    "from import": "from torch.a import f\nf(1)",
    "renamed": "from torch.a import f as g\ng(1)",
    "module": "import torch.a\ntorch.a.f(1)",
    "module renamed": "import torch.a as m\nm.f(1)",
    "module from package": "from torch import a\na.f(1)",
    "relative": "from .a import f\nf(1)",
    "relative module": "from . import a\na.f(1)",
    "star": "from torch.a import *\nf(1)",
    "keyword": "from torch.a import f\nf(x=1)",
    "too many": "from torch.a import f\nf(1, 2, 3)",
    "unknown keyword": "from torch.a import f\nf(1, 2, z=3)",
    "too many beside *": "from torch.a import f\nf(1, 2, 3, *rest)",
    "unknown keyword beside **": "from torch.a import f\nf(z=3, **rest)",
    "alias": "from torch.a import f; g = f\ng(1)",
    "nested alias": "import torch.a; g = torch.a.f\ng(1)",
    "in a function": "def h():\n    from torch.a import f; f(1)",
    "closure": "from torch.a import f\nh = lambda: [f(1) for _ in ()]",
    "awaited": "from torch.a import f\nasync def h(): await f(1)",
    "decorator": "from torch.a import f\n@f\ndef h(): ...",
    "partial": "from torch.a import f; from functools import partial\np = partial(f, z=1)",
    "optional import": "try: from torch.a import f\nexcept ImportError: f = None\nf(1)",
    "default value": "from torch.a import f\ndef h(x=f(1)): ...",
    "class body": "from torch.a import f\nclass K: v = f(1)",
    "f-string": "from torch.a import f\ns = f'{f(1)}'",
    "walrus": "from torch.a import f\nif (v := f(1)): ...",
}


@pytest.mark.parametrize("route", ROUTES)
def test_call_that_does_not_bind_is_found(route: str) -> None:
    caller = ROUTES[route]
    report = sweep(caller)
    line = 3 if route == "optional import" else 2
    assert places(report.findings) == [(B, line)]
    assert "f does not bind" in report.findings[0].message
    assert report.calls_checked == 1


@pytest.mark.parametrize("route", [r for r in ROUTES if "(1)" in ROUTES[r] and "g(" not in r])
def test_the_same_call_that_binds_is_not(route: str) -> None:
    report = sweep(ROUTES[route], new="def f(x, *, y=0): ...")
    assert (report.findings, report.unresolved) == ((), ())
    assert report.calls_checked == 1
    assert [(s.before, s.after) for s in report.signatures] == [("(x)", "(x, *, y=...)")]


def test_reexports_and_aliases_are_followed_to_other_files() -> None:
    files = {
        A: "def f(x): ...",
        "torch/p/__init__.py": "from ..a import f as g\nfrom .q import *\n",
        "torch/p/q.py": "__all__ = ['_h']\nfrom torch.a import f as _h\n",
        "torch/user.py": "from torch.p import g, _h\ng(1)\n_h(1)\n",
        "torch/__init__.py": "from . import p as p\n",
        "torch/far.py": "import torch\ntorch.p.g(1)\n",
    }
    report = check(files, {A: "def f(x, y): ..."})
    assert places(report.findings) == [
        ("torch/far.py", 2),
        ("torch/user.py", 2),
        ("torch/user.py", 3),
    ]


def test_circular_imports_are_followed() -> None:
    files = {
        A: "from torch.b import h\ndef f(x): ...",
        B: "import torch\nfrom torch import a\ndef h(): torch.a.f(1)",
        "torch/__init__.py": "from torch import a as a, b as b\n",
    }
    report = check(files, {A: "from torch.b import h\ndef f(x, y): ..."})
    assert places(report.findings) == [(B, 3)]


@pytest.mark.parametrize(
    "caller",
    [
        "from torch.a import f\ndef h(f): f(1)",
        "from torch.a import f\ndef h():\n    f = make()\n    f(1)",
        "from torch.a import f\nh = [f(1) for f in ()]",
        "from torch.a import f\nwith open('x') as f: f(1)\ndef g():\n    for f in (): f(1)",
        "from other.a import f\nf(1)",
        "def f(x): ...\nf(1)",
        "class K:\n    def f(self): self.f()\n    def g(self): self.f()",
        "# f(1)\n'f(1)'\nx = 'call f(1)'",
        "import numpy as np\nnp.f(1)",
        "from torch.a import f\nf.__name__\nf is None\nx: f\nisinstance(1, f)",
        "from torch.a import f\ndef h(x: f) -> f: ...",
        "__all__ = ['f']",
        "hasattr(x, 'f')",
        "def h():\n    global f\n    f = make()\nf(1)",
        "from torch.a import f\ndef outer():\n    f = g()\n    def inner():\n        f(1)",
    ],
)
def test_other_things_of_that_name_are_left_alone(caller: str) -> None:
    report = sweep(caller)
    assert report.findings == ()
    if "with open" not in caller:  # there the import and the file are both bound to f
        assert report.unresolved == ()


# Every use that cannot be followed is listed, with the reason.
UNRESOLVED = {
    "stars": ("from torch.a import f\nf(*v)", "passes *args,"),
    "double stars": ("from torch.a import f\nf(1, **v)", "passes **kwargs,"),
    "callback": ("from torch.a import f\nregister(f)", "used as a value"),
    "in a container": ("from torch.a import f\nx = {'f': f}", "used as a value"),
    "returned": ("from torch.a import f\ndef h(): return f", "used as a value"),
    "stored": ("from torch.a import f\nx.y = f", "stored"),
    "stored in one of two": ("from torch.a import f; g = other\ng = f", "stored"),
    "partial": (
        "from torch.a import f; from functools import partial\np = partial(f, 1)",
        "still required: y",
    ),
    "getattr": ("import torch.a\ngetattr(torch.a, 'f')(1)", "meant by a string"),
    "patched": ("from unittest import mock\nmock.patch('torch.a.f')", "meant by a string"),
    "unknown object": ("def h(x):\n    x.f(1)", "would not bind"),
    "unknown object, fitting": ("def h(x):\n    x.f(1, 2)", "would bind"),
    "unknown object's attribute": ("def h(x):\n    return x.f", "used as a value"),
    "loaded by name": ("import importlib\nimportlib.import_module(n).f(1)", None),
    "rebound": ("def h():\n    from torch.a import f; f = deco(f); f(1)", "not the only thing"),
}


@pytest.mark.parametrize("use", UNRESOLVED)
def test_use_that_cannot_be_followed_is_listed(use: str) -> None:
    caller, reason = UNRESOLVED[use]
    report = sweep(caller)
    if reason is None:  # what an outside module returns is not followed, but is not of the tree
        assert report.findings == ()
        return
    assert report.findings == ()
    assert set(places(report.unresolved)) == {(B, 2)}
    assert any(reason in u.message for u in report.unresolved)


def test_file_that_does_not_parse_is_listed() -> None:
    report = sweep("from torch.a import f\nf(1\n")
    assert report.findings == ()
    assert places(report.unresolved) == [(B, 2)] or places(report.unresolved) == [(B, 1)]
    assert "does not parse" in report.unresolved[0].message


@pytest.mark.parametrize(
    ("old", "new", "call", "binds"),
    [
        ("def f(x, y): ...", "def f(x, y, /): ...", "f(x=1, y=2)", False),
        ("def f(x, y): ...", "def f(x, y, /): ...", "f(1, 2)", True),
        ("def f(x, y): ...", "def f(x, *, y): ...", "f(1, 2)", False),
        ("def f(x, y): ...", "def f(x, *, y): ...", "f(1, y=2)", True),
        ("def f(x, y): ...", "def f(y, x): ...", "f(1, 2)", True),
        ("def f(x, y): ...", "def f(x, **kw): ...", "f(1, y=2)", True),
        ("def f(x, y=0): ...", "def f(x, y): ...", "f(1)", False),
        ("def f(x): ...", "def f(*args): ...", "f(x=1)", False),
        ("def f(x): ...", "def f(*args, **kwargs): ...", "f(1, *a, **k)", True),
        ("async def f(x): ...", "async def f(x, y): ...", "f(1)", False),
        ("@no_type_check\ndef f(x): ...", "@no_type_check\ndef f(x, y): ...", "f(1)", False),
        (
            "if T:\n  def f(x): ...\nelse:\n  def f(): ...",
            "if T:\n  def f(x, y): ...\nelse:\n  def f(): ...",
            "f(1)",
            False,
        ),
        (
            "if T:\n  def f(x): ...\nelse:\n  def f(): ...",
            "if T:\n  def f(x, y): ...\nelse:\n  def f(): ...",
            "f()",
            True,
        ),
        (
            "@overload\ndef f(x: int): ...\ndef f(x): ...",
            "@overload\ndef f(x: int): ...\ndef f(x, y): ...",
            "f(1)",
            False,
        ),
    ],
)
def test_parameters_of_every_kind(old: str, new: str, call: str, binds: bool) -> None:
    prelude = "from typing import no_type_check, overload\nT = 1\n"
    report = sweep(f"from torch.a import f\n{call}", prelude + old, prelude + new)
    assert places(report.findings) == ([] if binds else [(B, 2)])
    assert report.unresolved == ()
    assert report.calls_checked == 1


def test_annotations_and_default_values_are_not_signature() -> None:
    report = sweep(
        "def h(x): x.f(1)", "def f(x, y=1): ...", "def f(x: int, y: int = 2) -> int: ..."
    )
    assert report.signatures == report.unresolved == ()


KINDS = ["x", "y", "x=0", "y=0", "*args", "*", "x=1", "**kwargs", "/"]
ARGUMENTS = ["1", "x=1", "y=1", "z=1"]


def parses(text: str) -> bool:
    try:
        compile(text, "", "exec")
    except SyntaxError:
        return False
    return True


DEFINITIONS = st.lists(st.sampled_from(KINDS), max_size=4).map(
    lambda parameters: f"def f({', '.join(parameters)}): ..."
)
CALLS = st.lists(st.sampled_from(ARGUMENTS), max_size=4).map(lambda a: f"f({', '.join(a)})")


@given(DEFINITIONS.filter(parses), CALLS.filter(parses))
def test_binding_is_what_python_does(definition: str, call: str) -> None:
    namespace: dict[str, object] = {}
    exec(definition, namespace)
    try:
        exec(call, namespace)
        binds = True
    except TypeError:
        binds = False
    report = check({B: definition}, {A: f"from torch.b import f\n{call}"})
    assert places(report.findings) == ([] if binds else [(A, 2)])


def test_unknown_decorator_makes_a_call_uncertain() -> None:
    wrap = "def wrap(g): return g\n"
    report = sweep(
        "from torch.a import f\nf(1)",
        f"{wrap}@wrap\ndef f(x): ...",
        f"{wrap}@wrap\ndef f(x, y): ...",
    )
    assert report.findings == ()
    assert "decorated by wrap" in report.unresolved[0].message


# Methods: the class of ``torch/a.py`` changes.
METHOD_CALLS = [
    ("from torch.a import C\nclass D(C):\n    def n(self): self.m(1)", 3),
    ("from torch.a import C\nclass D(C):\n    def m(self, x, y): super().m(1)", 3),
    ("from torch.a import C\nclass D(C):\n    def m(self, x, y): super(D, self).m(1)", 3),
    ("from torch.a import C\nC.m(C(), 1)", 2),
    ("from torch.a import C\nC().m(1)", 2),
    ("from torch.a import C\ndef h():\n    c = C()\n    c.m(1)", 4),
    ("import torch.a\nclass D(torch.a.C): ...\nclass E(D):\n    def n(self): self.m(1)", 4),
    (
        "from typing import Generic\nfrom torch.a import C\nclass D(Generic[T], C):\n"
        "    def n(self):\n        def inner(): self.m(1)",
        5,
    ),
]


@pytest.mark.parametrize(("caller", "line"), METHOD_CALLS)
def test_method_calls_are_resolved(caller: str, line: int) -> None:
    report = check({A: CLASS, B: caller}, {A: CLASS_NEW})
    assert places(report.findings) == [(B, line)]
    assert report.unresolved == ()


def test_method_of_an_unrelated_class_is_not_meant() -> None:
    caller = "class K:\n    def m(self): ...\n    def n(self): self.m()"
    report = check({A: CLASS, B: caller}, {A: CLASS_NEW})
    assert report.findings == report.unresolved == ()


def test_method_that_only_a_subclass_has_is_listed() -> None:
    base = "class K:\n    def n(self): self.m(1)"
    sub = "from torch.b import K\nclass C(K):\n    def m(self, x): ..."
    report = check({A: sub, B: base}, {A: sub.replace("x)", "x, y)")})
    assert report.findings == ()
    assert places(report.unresolved) == [(B, 2)]


@pytest.mark.parametrize("decorator", ["staticmethod", "classmethod"])
def test_static_and_class_methods(decorator: str) -> None:
    first = "cls, " if decorator == "classmethod" else ""
    text = f"class C:\n    @{decorator}\n    def m({first}x): ...\n    def n(self): self.m(1)"
    calls = "from torch.a import C\nC.m(1)\nC().m(1)"
    report = check({A: text, B: calls}, {A: text.replace("x)", "x, y)")})
    assert places(report.findings) == [(A, 4), (B, 2), (B, 3)]
    assert check({A: text, B: calls}, {A: text.replace("x)", "x, y=0)")}).findings == ()


def test_method_made_a_property_or_static() -> None:
    caller = "from torch.a import C\nC().m(1)\nC.m(C(), 1)"
    static = CLASS.replace("    def m(self, ", "    @staticmethod\n    def m(")
    assert places(check({A: CLASS, B: caller}, {A: static}).findings) == [(B, 3)]
    prop = CLASS.replace("    def m(self, x)", "    @property\n    def m(self)")
    report = check({A: CLASS, B: caller}, {A: prop})
    assert "property" in report.unresolved[0].message


def test_overriding_methods() -> None:
    override = "from torch.a import C\nclass D(C):\n    def m(self, {}): ..."

    def place(parameters: str, new: str = CLASS_NEW) -> tuple[int, int]:
        report = check({A: CLASS, B: override.format(parameters)}, {A: new})
        return len(report.findings), len(report.unresolved)

    assert place("x") == (1, 0)
    assert place("x, y") == (0, 0)
    assert place("*args") == (0, 0)  # by name it took nothing before, either
    assert place("*args, **kwargs") == (0, 0)
    assert place("x", CLASS.replace("x)", "x, y=0)")) == (0, 1)


def test_override_that_changes_beside_its_base() -> None:
    files = {A: CLASS, B: "from torch.a import C\nclass D(C):\n    def m(self, x): ..."}
    report = check(files, {B: files[B].replace("x)", "x, y)")})
    assert places(report.findings) == [(B, 3)]


def test_method_moved_to_a_base_keeps_its_callers() -> None:
    base = "class K: ...\n"
    files = {A: base + "class C(K):\n    def m(self, x): ...", B: "from torch.a import C\nC().m(1)"}
    moved = "class K:\n    def m(self, x{}): ...\nclass C(K): ..."
    assert check(files, {A: moved.format("")}).findings == ()
    assert places(check(files, {A: moved.format(", y")}).findings) == [(B, 2)]


def test_method_that_is_called_by_syntax() -> None:
    old = "class C:\n    def __call__(self, x): ..."
    report = check({A: old}, {A: old.replace("x)", "x, y)")})
    assert places(report.unresolved) == [(A, 2)]
    assert "by syntax" in report.unresolved[0].message


# Constructors


CONSTRUCTOR_CALLS = {
    "call": "from torch.a import C\nC(1)",
    "renamed": "from torch.a import C as K\nK(1)",
    "subclass": "from torch.a import C\nclass D(C): ...\nD(1)",
    "super": "from torch.a import C\nclass D(C):\n    def __init__(self): super().__init__(1)",
    "explicit": "from torch.a import C\nclass D(C):\n    def __init__(self): C.__init__(self, 1)",
    "raised": "from torch.a import C\ndef h(): raise C(1)",
}


@pytest.mark.parametrize("call", CONSTRUCTOR_CALLS)
@pytest.mark.parametrize("kind", ["class", "dataclass", "NamedTuple"])
def test_constructor_calls(call: str, kind: str) -> None:
    imports = "from dataclasses import dataclass\nfrom typing import NamedTuple\n"
    old, new = {
        "class": ("class C:\n    def __init__(self, x): ...", ", y): ..."),
        "dataclass": ("@dataclass(frozen=True)\nclass C:\n    x: int", "\n    y: int"),
        "NamedTuple": ("class C(NamedTuple):\n    x: int", "\n    y: int"),
    }[kind]
    changed = old.replace("): ...", "") + new
    files = {A: imports + old, B: CONSTRUCTOR_CALLS[call]}
    report = check(files, {A: imports + changed})
    line = CONSTRUCTOR_CALLS[call].count("\n") + 1
    assert places(report.findings) == [(B, line)]
    assert report.signatures[0].name == "C"
    fitting = changed.replace("y: int", "y: int = 0").replace(", y)", ", y=0)")
    assert check(files, {A: imports + fitting}).findings == ()


def test_subclass_in_a_third_file() -> None:
    files = {
        A: "class C:\n    def __init__(self, x): ...",
        B: "from torch.a import C\nclass D(C): ...",
        "torch/c.py": "from torch.b import D\nD(1)",
    }
    report = check(files, {A: "class C:\n    def __init__(self): ..."})
    assert places(report.findings) == [("torch/c.py", 2)]


def test_call_through_cls_may_be_of_a_subclass() -> None:
    text = dedent(
        """
        class C:
            def __init__(self, x): ...
            @classmethod
            def make(cls): return cls(1)
            def again(self): return type(self)(1)
            def more(self): return self.__class__(1)
        """
    )
    report = check({A: text}, {A: text.replace("x)", "x, y)")})
    assert report.findings == ()
    assert places(report.unresolved) == [(A, 5), (A, 6), (A, 7)]
    assert "may be a subclass" in report.unresolved[0].message


def test_class_used_as_a_value_or_a_type() -> None:
    caller = """\
        from typing import List, Optional
        from torch.a import C
        def h(x: C, y: Optional[C] = None) -> List[C]:
            isinstance(x, (C, int))
            z: List[C] = []
            try: ...
            except C: ...
            C.attribute
            register(C)
        """
    report = check(
        {A: "class C:\n    def __init__(self, x): ...", B: caller},
        {A: "class C:\n    def __init__(self): ..."},
    )
    assert places(report.unresolved) == [(B, 9)]
    assert report.findings == ()


def test_dataclass_fields() -> None:
    old = """\
        from dataclasses import KW_ONLY, dataclass, field
        from typing import ClassVar
        @dataclass
        class Base:
            x: int
        @dataclass
        class C(Base):
            y: int = 0
            kind: ClassVar[int] = 1
            made: int = field(init=False)
            items: list = field(default_factory=list)
            _: KW_ONLY
            late: int = 0
        """
    caller = """\
        from dataclasses import replace
        from torch.a import C
        C(1, 2, [], late=3)
        C(1, late=3, made=1)
        C(1, 2, [], 3)
        c = replace(C(1), y=1)
        """
    new = old.replace("y: int = 0", "z: int = 0")
    report = check({A: old, B: caller}, {A: new})
    assert report.signatures[0].after == "(x, z=..., items=..., *, late=...)"
    assert places(report.findings) == [(B, 4), (B, 5)]
    assert places(report.unresolved) == [(B, 6)]
    base = old.replace("x: int", "x: int\n            w: int")
    assert (B, 3) not in places(check({A: old, B: caller}, {A: base}).findings)
    assert "(x, w, y=..." in check({A: old, B: caller}, {A: base}).signatures[-1].after


def test_base_from_outside_may_come_first() -> None:
    base = "class C:\n    def __init__(self, x): ...\n    def m(self, x): ..."
    text = """\
        from torch.a import C
        class D(property, C):
            def __init__(self): super().__init__(1)
            def n(self): self.m(1)
        class E(C, property):
            def __init__(self): super().__init__(1)
            def n(self): self.m(1)
        """
    report = check({A: base, B: text}, {A: base.replace("x)", "x, y)")})
    assert places(report.findings) == [(B, 6), (B, 7)]
    assert places(report.unresolved) == [(B, 3), (B, 4)]


def test_function_and_class_of_one_name() -> None:
    function, cls = "def f(x): ...", "class f:\n    def __init__(self, x, y): ..."
    caller = "from torch.a import f\nf(1)"
    assert places(sweep(caller, function, cls).findings) == [(B, 2)]
    assert places(sweep(caller, cls, function + "\n").findings) == []
    assert places(sweep(caller, cls, "def f(): ...").findings) == [(B, 2)]
    assert "which changed" in sweep(caller, cls, "f = make()").unresolved[0].message


def test_constructor_that_cannot_be_known() -> None:
    for head in (
        "class C(Other):",
        "class C(metaclass=M):",
        "@deco\nclass C:",
        "class C:\n    def __new__(cls, x): ...",
        "class C:\n    __init__ = deco(M)",
        "@dataclass(init=False)\nclass C:\n    x: int",
        "@dataclass\nclass C(Other):\n    x: int",
    ):
        imports = "from other import Other, M, deco\nfrom dataclasses import dataclass\n"
        text = f"{imports}{head}\n    v = 1\n"
        report = check({A: text}, {B: "from torch.a import C\nC(1)"})
        assert report.findings == ()
        assert places(report.unresolved) == [(B, 2)]


# Removed


def test_removed_function_that_is_still_used() -> None:
    files = {
        A: "def f(x): ...\nother = 1",
        B: "from torch.a import f",
        "torch/c.py": "import torch.a\ntorch.a.f(1)",
        "torch/d.py": "try: from torch.a import f\nexcept ImportError: f = None",
        "torch/e.py": "def h(x): x.f(1)",
    }
    report = check(files, {A: "other = 1"})
    assert places(report.findings) == [(B, 1), ("torch/c.py", 2)]
    assert places(report.unresolved) == [("torch/d.py", 1), ("torch/e.py", 1)]
    assert "it was removed" in report.unresolved[1].message


@pytest.mark.parametrize("text", ["X = 1\n", "from torch.c import X\n", "class X: ...\n"])
def test_removed_name_of_any_kind(text: str) -> None:
    files = {A: text, "torch/c.py": "X = 1", B: "from torch.a import X"}
    assert places(check(files, {A: ""}).findings) == [(B, 1)]


@pytest.mark.parametrize(
    "user",
    [
        "from torch.p import X",
        "from . import y, \\\n    X",
        "from .p import (\n    y,\n    X as z,\n)",
        "import torch.p as q\nq.X",
        "from torch.p import *\nX",
    ],
)
def test_removed_import(user: str) -> None:
    y = "from other import y\n"
    files = {"torch/__init__.py": "from torch.p import *\n" + y, "torch/p.py": f"import X\n{y}"}
    assert len(check({**files, B: user}, {"torch/p.py": y}).findings) == 1
    other = "from other import X\nclass p: X = 1\ndef h(v): return v.X, 'X'"
    report = check({**files, B: other}, {"torch/p.py": y})
    assert report.findings == report.unresolved == ()


def test_function_replaced_by_an_import() -> None:
    files = {A: "def f(x): ...", B: "from torch.a import f\nf(1)"}
    report = check(files, {A: "from torch.n import f", "torch/n.py": "def f(x, y): ..."})
    assert places(report.findings) == [(B, 2)]
    assert check(files, {A: "from torch.n import f", "torch/n.py": "def f(x): ..."}).findings == ()


def test_removed_method() -> None:
    caller = "from torch.a import C\nclass D(C):\n    def n(self): self.m(1)\n    def o(s): s.m(1)"
    report = check({A: CLASS, B: caller}, {A: "class C: ..."})
    assert places(report.findings) == [(B, 3), (B, 4)]
    dynamic = "class C:\n    def __getattr__(self, name): ..."
    report = check({A: CLASS, B: caller}, {A: dynamic})
    assert report.findings == ()
    assert places(report.unresolved) == [(B, 3), (B, 4)]
    assigned = caller + "\n    def p(self): self.m = 1"
    assert check({A: CLASS, B: assigned}, {A: "class C: ..."}).findings == ()


def test_removed_module() -> None:
    files = {
        "torch/p/__init__.py": "",
        "torch/p/m.py": "def f(): ...",
        A: "from torch.p.m import f",
        B: "import torch.p.m",
        "torch/c.py": "from torch.p import m",
        "torch/p/d.py": "from .m import f",
        "torch/e.py": "import torch.p\ntorch.p.m.f()",
    }
    report = check(files, {"torch/p/m.py": None})
    assert places(report.findings) == [
        (A, 1),
        (B, 1),
        ("torch/c.py", 1),
        ("torch/e.py", 2),
        ("torch/p/d.py", 1),
    ]


# Results


def test_result_that_is_thrown_away_or_unpacked_otherwise() -> None:
    caller = """\
        from torch.a import f
        f(1)
        async def h(): await f(1)
        a, b = f(1)
        a, b, c = f(1)
        a, *b = f(1)
        """
    old, new = "def f(x) -> None: ...", "def f(x) -> tuple[int, int]: ..."
    report = sweep(caller, old, new)
    assert report.findings == report.signatures == ()
    assert places(report.unresolved) == [(B, 2), (B, 3), (B, 5)]
    assert "thrown away" in report.unresolved[0].message
    assert sweep(caller, "def f(x): ...", new).unresolved == ()
    assert sweep(caller, new, old).unresolved == ()


# Touched files


def test_touched_files_parse() -> None:
    report = check({A: "x = 1"}, {A: "x = 1\n\ndef f(:\n", B: "a\0b", "torch/x.txt": "no ( python"})
    assert [(f.path, "does not parse" in f.message) for f in report.findings] == [
        (A, True),
        (B, True),
    ]
    assert report.findings[0].line == 3


def names(before: str, after: str, **files: str) -> Report:
    more = {f"torch/{n}.py": s for n, s in files.items()}
    return check({A: before, **more}, {A: after})


@pytest.mark.parametrize(
    "text",
    [
        "def f(): return missing",
        "def f():\n    def missing_(): ...\n    return lambda: missing",
        "class K:\n    v = 1\n    def m(self): return v",
        "class K:\n    v = 1\n    w = [v for _ in range(2)]",
        "@missing\ndef f(): ...",
        "def f(x=missing): ...",
        "class K(missing): ...",
        "x = [y for x in ()]",
        "def f() -> missing: ...",
        "x = f'{missing}'",
        "def g():\n    x = 1\ndef h(): return x",
    ],
)
def test_name_that_is_not_defined(text: str) -> None:
    report = names("a = 1", f"a = 1\n{text}")
    assert len(report.findings) == 1
    assert "is not defined" in report.findings[0].message
    assert names(f"a = 1\n{text}", f"b = a = 1\n{text}").findings == ()  # it was so before


@pytest.mark.parametrize(
    "text",
    [
        "import os.path as p, sys\np, sys",
        "def f(a, /, b, *c, d, **e): return a, b, c, d, e, f, __name__, len",
        "[x for y in () for x in y if x]; {k: v for k, v in ()}",
        "for x, (y, *z) in (): x, y, z",
        "with a as b, c() as (d, e): b, d, e\ndef c(): ...\na = 1",
        "try: ...\nexcept E as e: e\nE = 1",
        "def f():\n    global g\n    g = 1\ng",
        "def f():\n    x = 1\n    def h():\n        nonlocal x\n        x = 2\n        return x",
        "if any((hit := x) for x in ()): hit",
        "class K:\n    a = 1\n    b = a\n    c = [a for _ in range(a)] if 0 else __qualname__\n"
        "a = 1",
        "class K:\n    def m(self): return __class__",
        "x: int = 1\nx",
        "def f():\n    del x\n    x = 1\n    return x",
        "lambda a, *b, c=1, **d: (a, b, c, d)",
        "async def f():\n    async for x in y(): x\n    async with y() as z: z\ndef y(): ...",
        "from __future__ import annotations",
    ],
)
def test_names_that_are_defined(text: str) -> None:
    report = names("", text)
    assert report.findings == report.unresolved == ()


NEWER = {
    (3, 9): "@x[0]\ndef f(): ...\nx = 1",
    (3, 10): "match v:\n    case [a, *b]: a, b\n    case {'k': c, **d}: c, d\n"
    "    case K(x=e) | e: e\nv = K = 1",
    (3, 11): "try: ...\nexcept* ValueError as e: e",
    (3, 12): "def f[T: int, *P](x: T) -> T: return T\nclass K[T](L[T]):\n    x: T\n"
    "    def m(self) -> T: return T\ntype A[T] = list[T]\nA, L = 1, 1",
    (3, 13): "def f[T = int](x: T) -> T: ...",
}


@pytest.mark.parametrize("version", [v for v in NEWER if sys.version_info >= v])
def test_newer_syntax(version: tuple[int, int]) -> None:
    report = names("", NEWER[version])
    assert report.findings == report.unresolved == ()


def test_name_whose_definition_a_patch_removes() -> None:
    report = names("import os\ndef f(x): return os, x", "def f(): return os, x")
    assert [f.message.split()[0] for f in report.findings] == ["os", "x"]


def test_names_in_other_modules() -> None:
    report = names(
        "",
        """\
        from torch.b import there, gone
        from torch.nothing import x
        import torch.b as m, torch.nowhere
        from . import b, c
        m.there, m.lost, m.there.anything, torch.b.lost2
        if hasattr(m, "maybe"): m.maybe
        try: from torch.b import perhaps
        except ImportError: ...
        import numpy.linalg
        """,
        b="there = 1",
    )
    assert places(report.findings) == [(A, 1), (A, 2), (A, 3), (A, 4), (A, 5), (A, 5)]
    assert places(report.unresolved) == [(A, 6), (A, 7), (A, 9)]
    assert report.names_checked > 10


def test_modules_that_are_stubs_or_compiled() -> None:
    text = "from torch.stub import x\nfrom torch._C import y\nimport torch.version"
    report = check({A: "", "torch/stub.pyi": "x: int"}, {A: text})
    assert report.findings == ()
    assert places(report.unresolved) == [(A, 1), (A, 2), (A, 3)]


def test_modules_that_make_names_at_run_time() -> None:
    uses = "from torch import b\nfrom torch.b import x\nb.y"
    for text in ("def __getattr__(name): ...", "globals()['x'] = 1", "from torch._C import *"):
        report = names("", uses, b=text)
        assert report.findings == ()
        assert places(report.unresolved) == [(A, 2), (A, 3)]
    used = names("", uses, b="def __getattr__(name): ...", c="import torch.b\ntorch.b.y")
    assert places(used.unresolved) == [(A, 2)]  # the tree reads torch.b.y already


def test_star_imports_bring_public_names() -> None:
    text = "from torch.b import *\nshown, _hidden"
    assert places(names("", text, b="shown = 1\n_hidden = 2").findings) == [(A, 2)]
    assert (
        names("", text, b="shown = 1\n_hidden = 2\n__all__ = ['shown', '_hidden']").findings == ()
    )
    assert names("", "from torch._C import *\nanything").findings == ()


def test_new_calls_in_touched_files() -> None:
    helper = "def cast(dtype, *args): ...\ndef one(x): ...\n@one\ndef odd(): ..."
    old = "from torch.b import cast, one, odd\none()\n"
    new = old + "cast()\ncast(1, 2)\none(1, 2)\nodd(1)\none(*a)\na = 1\nlater = one\nlater()\n"
    report = names(old, new, b=helper)
    assert places(report.findings) == [(A, 3), (A, 5), (A, 10)]  # not line 2: it was so before
    assert places(report.unresolved) == [(A, 6), (A, 7)]


def test_new_constructor_calls_in_touched_files() -> None:
    base = "class C:\n    def __init__(self, x): ...\nclass E(ValueError): ..."
    text = """\
        from torch.b import C, E
        class D(C):
            def __init__(self):
                super().__init__()
                C.__init__(self, 1)
                C.__init__(1)
        class Mixin:
            def __init__(self):
                super().__init__(1)
        raise E("any", "text")
        """
    report = names("", text, b=base)
    assert places(report.findings) == [(A, 4), (A, 6)]
    assert report.unresolved == ()


def test_new_partials_in_touched_files() -> None:
    text = (
        "from functools import partial\nfrom torch.b import one\npartial(one, 1, 2)\npartial(one)"
    )
    report = names("", text, b="def one(x): ...")
    assert places(report.findings) == [(A, 3)]
    assert report.unresolved == ()


def test_added_function_needs_no_comparison() -> None:
    report = names("", "def f(x): ...\nf(1)", b="def h(y): y.f()")
    assert report.signatures == report.findings == report.unresolved == ()


def test_encodings_and_line_ends() -> None:
    tree = MemoryTree(
        {
            "torch/__init__.py": b"",
            A: b"\xef\xbb\xbfdef f(x): ...\r\n",
            B: b"# -*- coding: latin-1 -*-\r\ns = '\xe9'\r\nfrom torch.a import f\r\nf(s)\r\n",
            "torch/c.py": b"from torch.a import f\r\rf(1)\r",
        }
    )
    after = ChangedTree(tree, {A: b"\xef\xbb\xbfdef f(): ...\r\n"})
    assert places(verify(tree, after, [A]).findings) == [(B, 4), ("torch/c.py", 3)]


def test_files_outside_torch_are_checked_when_touched() -> None:
    path = "test/distributed/test_x.py"
    report = check({A: "def f(x): ..."}, {path: "from torch.a import f, g\nf()\n"})
    assert places(report.findings) == [(path, 1), (path, 2)]


# The real thing


@dataclass(frozen=True)
class Folder:
    root: Path

    def read(self, path: str) -> Optional[bytes]:
        file = self.root / path
        return file.read_bytes() if file.is_file() else None

    def python_files(self) -> Iterator[str]:
        files = (self.root / "torch").rglob("*.py")
        return iter(sorted(f.relative_to(self.root).as_posix() for f in files))


RUNTIME = "torch/distributed/fsdp/_runtime_utils.py"
FSDP = "torch/distributed/fsdp/fully_sharded_data_parallel.py"


def with_parameter(source: bytes, function: str, parameter: str) -> bytes:
    """The source with a parameter added before a top-level function's first."""
    lines = source.decode().splitlines(keepends=True)
    node = next(
        n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == function
    )
    first = node.args.args[0]
    line = lines[first.lineno - 1]
    lines[first.lineno - 1] = f"{line[: first.col_offset]}{parameter}, {line[first.col_offset :]}"
    return "".join(lines).encode()


def lines_with(source: Optional[bytes], text: str) -> list[int]:
    assert source is not None
    return [n for n, line in enumerate(source.decode().splitlines(), 1) if text in line]


def test_changed_function_of_torch(stock_torch: Path) -> None:
    stock = Folder(stock_torch)
    changed = with_parameter(stock.read(RUNTIME) or b"", "_pre_forward", "extra")
    report = verify(stock, ChangedTree(stock, {RUNTIME: changed}), [RUNTIME])
    (finding,) = report.findings
    assert finding.path == FSDP
    assert finding.line in lines_with(stock.read(FSDP), "_pre_forward(")
    partials = [u for u in report.unresolved if u.path == RUNTIME and "partial" in u.message]
    (line,) = (p.line for p in partials)
    assert line in lines_with(changed, "partial(")
    assert line + 1 in lines_with(changed, "_pre_forward,")
    assert "torch/nn/parallel/distributed.py" not in {u.path for u in report.unresolved}
    assert [s.name for s in report.signatures] == ["_pre_forward"]


def test_stock_torch_has_no_findings_where_it_runs(stock_torch: Path) -> None:
    """As if a patch added all of FSDP: every name exists and every call binds."""
    stock = Folder(stock_torch)
    folder = "torch/distributed/fsdp/"
    paths = [p for p in stock.python_files() if p.startswith(folder)]
    without = ChangedTree(stock, dict.fromkeys(paths))
    report = verify(without, stock, paths)
    assert report.findings == ()
    assert report.calls_checked > 1000
    assert report.names_checked > 10000
