"""What names mean in a tree of Python files, found by reading them and never by importing them.

``Program.resolve`` follows a name or an attribute through scopes, imports, re-exports, aliases
and classes. What it says it knows, it knows; everything else is ``unknown``, with the reason.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Optional, Union

from .tree import Tree

FunctionNode = Union[ast.FunctionDef, ast.AsyncFunctionDef]
Key = tuple[str, str]
"""A definition's address: the path of its file, and its qualified name in it."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (*FUNCTIONS, ast.Lambda, ast.ClassDef, *_COMPREHENSIONS)

# The builtins of later Pythons too: the target's Python may be newer than the running one.
_BUILTINS = frozenset(dir(builtins)) | {
    *("aiter", "anext", "EncodingWarning", "BaseExceptionGroup", "ExceptionGroup"),
    *("PythonFinalizationError", "WindowsError"),
}
_MODULE_NAMES = frozenset(
    """
    __name__ __file__ __doc__ __path__ __spec__ __loader__ __package__ __builtins__ __dict__
    __annotations__ __cached__ __debug__ __class__
    """.split()
)
_PROPERTIES = frozenset(
    """
    property cached_property setter getter deleter abstractproperty classproperty lazy_property
    """.split()
)
# Decorators that leave the arguments as they are, by the last part of their name.
_TRANSPARENT = _PROPERTIES | frozenset(
    """
    staticmethod classmethod abstractmethod abstractclassmethod abstractstaticmethod overload
    no_type_check contextmanager asynccontextmanager no_grad enable_grad inference_mode lru_cache
    cache wraps final override deprecated compatibility exposed_in _disable_dynamo
    disable_dynamo simple_wraps
    """.split()
)
_PLAIN_BASES = frozenset({"object", "Generic", "ABC", "Protocol"})
# Python and C++ code that puts names into a module.
_DYNAMIC = re.compile(rb"\bglobals\(\)|\bsys\.modules\[|\bvars\(\)|\bexec\(|\b_C\._\w*init\(")


class Bound(NamedTuple):
    """One place that binds a name: ``def``, ``class``, ``import``, ``first`` (a method's first
    parameter), ``assigned`` (``node`` is the value) or ``other``."""

    kind: str
    node: ast.AST
    module: str = ""
    attribute: Optional[str] = None


class Scope:
    """A module, class, function, lambda, comprehension or list of type parameters."""

    def __init__(self, module: Module, node: ast.AST, parent: Optional[Scope], kind: str) -> None:
        self.module, self.node, self.parent, self.kind = module, node, parent, kind
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.qualname: str = parent.qualname if parent else ""
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and parent and kind != "type":
            self.qualname = parent.member(node.name)

    def member(self, name: str) -> str:
        """The qualified name of something defined here."""
        scope: Optional[Scope] = self
        while scope and scope.kind == "type":
            scope = scope.parent
        if not scope or scope.kind == "module":
            return name
        return (
            f"{scope.qualname}.{name}"
            if scope.kind == "class"
            else (f"{scope.qualname}.<locals>.{name}")
        )

    @cached_property
    def bindings(self) -> dict[str, list[Bound]]:
        """What this scope binds, in the order of the source."""
        found: dict[str, list[Bound]] = {}
        _Bindings(self, found).collect()
        return found

    def enclosing(self, kind: str) -> Optional[Scope]:
        """The nearest scope of a kind, this one included."""
        scope: Optional[Scope] = self
        while scope and scope.kind != kind:
            scope = scope.parent
        return scope


class _Bindings:
    def __init__(self, scope: Scope, found: dict[str, list[Bound]]) -> None:
        self.scope, self.found = scope, found

    def add(self, name: str, bound: Bound) -> None:
        self.found.setdefault(name, []).append(bound)

    def collect(self) -> None:
        node, scope = self.scope.node, self.scope
        if scope.kind == "type":
            for parameter in getattr(node, "type_params", ()):
                self.add(parameter.name, Bound("other", parameter))
            return
        if isinstance(node, (*FUNCTIONS, ast.Lambda)):
            for parameter in _parameters(node.args):
                self.add(parameter.arg, Bound("other", parameter))
            first = (node.args.posonlyargs + node.args.args)[:1]
            owner = scope.parent.parent if scope.parent and scope.parent.kind == "type" else None
            owner = owner or scope.parent
            if first and owner and owner.kind == "class" and isinstance(node, FUNCTIONS):
                self.found[first[0].arg] = [Bound("first", node)]
        if isinstance(node, _COMPREHENSIONS):
            for generator in node.generators:
                for part in ast.walk(generator.target):
                    if isinstance(part, ast.Name):
                        self.add(part.id, Bound("other", part))
            return
        for child in _inner(node):
            self.visit(child)
        if scope.kind == "module" and b"global " in scope.module.source:
            for child in ast.walk(scope.module.tree):
                for name in child.names if isinstance(child, ast.Global) else ():
                    self.add(name, Bound("other", child))
        for name in scope.globals | scope.nonlocals if scope.kind != "module" else ():
            self.found.pop(name, None)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, FUNCTIONS):
            self.add(node.name, Bound("def", node))
        elif isinstance(node, ast.ClassDef):
            self.add(node.name, Bound("class", node))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                self.add(node.id, Bound("other", node))
        elif isinstance(node, ast.Global):
            self.scope.globals.update(node.names)
        elif isinstance(node, ast.Nonlocal):
            self.scope.nonlocals.update(node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            self.add(node.name, Bound("other", node))
        elif type(node).__name__ in ("MatchAs", "MatchStar", "MatchMapping"):
            name = getattr(node, "name", None) or getattr(node, "rest", None)
            if name:
                self.add(name, Bound("other", node))
        if isinstance(node, _SCOPES):
            for child in _outer(node) + _annotations(node):
                self.visit(child)
            if isinstance(node, _COMPREHENSIONS):
                # An assignment expression in a comprehension binds outside of it.
                for child in ast.walk(node):
                    if isinstance(child, ast.NamedExpr):
                        self.visit(child.target)
            return
        target: Optional[ast.expr] = None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign) and node.value:
            target = node.target
        if isinstance(target, ast.Name):
            assert isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value
            self.add(target.id, Bound("assigned", node.value))
            self.visit(node.value)
            return
        for child in ast.iter_child_nodes(node):
            self.visit(child)

    def _import(self, node: Union[ast.Import, ast.ImportFrom]) -> None:
        module = self.scope.module
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                source = module.absolute(node)
                if alias.name == "*":
                    module.stars.append(source)
                else:
                    bound = Bound("import", node, source, alias.name)
                    self.add(alias.asname or alias.name, bound)
            elif alias.asname:
                self.add(alias.asname, Bound("import", node, alias.name))
            else:
                top = alias.name.partition(".")[0]
                self.add(top, Bound("import", node, top))


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    rest = [a for a in (arguments.vararg, arguments.kwarg) if a]
    return arguments.posonlyargs + arguments.args + arguments.kwonlyargs + rest


def _outer(node: ast.AST) -> list[ast.AST]:
    """The parts of a scope's node that are evaluated outside of it."""
    if isinstance(node, (*FUNCTIONS, ast.Lambda)):
        decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
        defaults = [d for d in (*node.args.defaults, *node.args.kw_defaults) if d]
        return [*decorators, *defaults]
    if isinstance(node, ast.ClassDef):
        return list(node.decorator_list)
    if isinstance(node, _COMPREHENSIONS):
        return [node.generators[0].iter]
    return []


def _annotations(node: ast.AST) -> list[ast.AST]:
    """The parts that are evaluated where the type parameters, if any, are known."""
    parameters: list[ast.AST] = list(getattr(node, "type_params", ()))
    if isinstance(node, FUNCTIONS):
        found = [p.annotation for p in _parameters(node.args)] + [node.returns]
        return parameters + [f for f in found if f]
    if isinstance(node, ast.ClassDef):
        return [*parameters, *node.bases, *node.keywords]
    return parameters


def _inner(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
        return list(node.body)
    if isinstance(node, ast.Lambda):
        return [node.body]
    if isinstance(node, _COMPREHENSIONS):
        values: list[ast.AST] = [
            *([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        ]
        for index, generator in enumerate(node.generators):
            values += [generator.target, *generator.ifs]
            values += [generator.iter] if index else []
        return values
    return []


Node = tuple[ast.AST, Scope]
"""A node of a file with the scope that it is evaluated in."""


class Module:
    """A parsed file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.tree = ast.parse(source)
        self.is_package = path.endswith("/__init__.py")
        self.name = path[: -len("/__init__.py" if self.is_package else ".py")].replace("/", ".")
        self.stars: list[str] = []
        self.scope = Scope(self, self.tree, None, "module")
        self.parents: dict[ast.AST, ast.AST] = {}
        self._scopes: dict[tuple[ast.AST, str], Scope] = {}

    @cached_property
    def dynamic(self) -> bool:
        """Whether the file may define names that cannot be read off it."""
        return bool(_DYNAMIC.search(self.source))

    def absolute(self, node: ast.ImportFrom) -> str:
        """The full name of the module that an import names."""
        if not node.level:
            return node.module or ""
        package = self.name.split(".") if self.is_package else self.name.split(".")[:-1]
        package = package[: len(package) - node.level + 1]
        return ".".join([*package, *([node.module] if node.module else [])])

    def inside(self, node: ast.AST, parent: Scope) -> Scope:
        """The scope that a node opens."""
        if getattr(node, "type_params", None):
            parent = self._scope(node, parent, "type")
        kind = "class" if isinstance(node, ast.ClassDef) else "function"
        kind = "comprehension" if isinstance(node, _COMPREHENSIONS) else kind
        return self._scope(node, parent, kind)

    def _scope(self, node: ast.AST, parent: Scope, kind: str) -> Scope:
        if (node, kind) not in self._scopes:
            self._scopes[node, kind] = Scope(self, node, parent, kind)
        return self._scopes[node, kind]

    @cached_property
    def nodes(self) -> list[Node]:
        """All nodes, in the order of the source as far as scopes allow."""
        return list(self.walk(None))

    def lines_of(self, pattern: re.Pattern[bytes]) -> list[int]:
        """The numbers of the lines that a pattern occurs in."""
        source = self.source
        if b"\r" in source:
            source = source.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines, line, at = [], 1, 0
        for match in pattern.finditer(source):
            line += source.count(b"\n", at, match.start())
            at = match.start()
            lines.append(line)
        return lines

    def walk(self, lines: Optional[Sequence[int]]) -> Iterator[Node]:
        """The nodes on some lines, which are sorted, or all; fills ``parents`` for them."""
        pending: list[Node] = [(n, self.scope) for n in reversed(self.tree.body)]
        while pending:
            entry = pending.pop()
            node, scope = entry
            if lines is not None and not _on(node, lines, self.parents):
                continue
            yield entry
            children: list[Node]
            if isinstance(node, _SCOPES) or getattr(node, "type_params", None):
                inner = self.inside(node, scope)
                typed = inner.parent or scope
                children = [(n, scope) for n in _outer(node)]
                children += [(n, typed) for n in _annotations(node)]
                if not isinstance(node, _SCOPES):  # a type alias
                    children += [(n, typed) for n in ast.iter_child_nodes(node)]
                children += [(n, inner) for n in _inner(node)]
            else:
                children = [(n, scope) for n in _children(node)]
            for child in reversed(children):
                self.parents[child[0]] = node
                pending.append(child)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for name in node._fields:
        if name not in ("ctx", "op", "ops"):
            value = getattr(node, name, None)
            if isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST):
                        yield item
            elif isinstance(value, ast.AST):
                yield value


def _on(node: ast.AST, lines: Sequence[int], parents: dict[ast.AST, ast.AST]) -> bool:
    first = getattr(node, "lineno", None)
    # Before Python 3.12 what stands in an f-string does not know its place.
    if first is None or isinstance(parents.get(node), (ast.JoinedStr, ast.FormattedValue)):
        return True
    for decorator in getattr(node, "decorator_list", ()):
        first = min(first, decorator.lineno)
    index = bisect_left(lines, first)
    return index < len(lines) and lines[index] <= (getattr(node, "end_lineno", None) or first)


@dataclass(frozen=True)
class Definition:
    """A function or class: its node and the scope that it is defined in."""

    node: Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef]
    scope: Scope

    @property
    def key(self) -> Key:
        return self.scope.module.path, self.scope.member(self.node.name)

    @property
    def inside(self) -> Scope:
        return self.scope.module.inside(self.node, self.scope)

    @property
    def decorators(self) -> list[str]:
        return [last_part(d) for d in self.node.decorator_list]

    @property
    def flavour(self) -> str:
        """How a function in a class binds: plain, static, class or property."""
        if _PROPERTIES.intersection(self.decorators):
            return "property"
        if "staticmethod" in self.decorators or self.node.name == "__new__":
            return "static"
        implicit = self.node.name in ("__init_subclass__", "__class_getitem__")
        return "class" if implicit or "classmethod" in self.decorators else "plain"

    @property
    def opaque(self) -> str:
        """A decorator that may change the arguments, or an empty string."""
        known = _TRANSPARENT | ({"dataclass"} if isinstance(self.node, ast.ClassDef) else set())
        return next((d for d in self.decorators if d not in known), "")


@dataclass(frozen=True)
class Value:
    """What an expression stands for.

    ``kind`` is module, function, property, class, instance, super, external (not of this tree),
    missing or unknown; ``via`` are the addresses that were passed on the way to it; ``text`` is
    a module's name, or why the value is missing or unknown; ``bound`` says that a function's
    first parameter is filled. ``certain`` is False where it may be something else as well, and
    ``doubtful`` says of an unknown value that it may not exist.
    """

    kind: str
    via: tuple[Key, ...] = ()
    definitions: tuple[Definition, ...] = ()
    text: str = ""
    bound: bool = False
    certain: bool = True
    doubtful: bool = False


_ANY_PLACES = inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])


@dataclass(frozen=True)
class Constructor:
    """How a class is called; ``signatures`` is empty where that cannot be said, for ``why``."""

    signatures: tuple[inspect.Signature, ...]
    via: tuple[Key, ...]
    why: str = ""


class _Lineage(NamedTuple):
    """A class with its bases in the order of lookup, the first base that is not known, and one
    that is looked up before a known one."""

    classes: tuple[Definition, ...]
    opened: str
    leading: str


def last_part(node: ast.AST) -> str:
    """The last name of ``a.b.name(...)``, ``a.name`` or ``name``."""
    if isinstance(node, ast.Call):
        return last_part(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def signature(node: FunctionNode, *, drop_first: bool = False) -> inspect.Signature:
    """A function's parameters: names, kinds, order, and whether each has a default."""
    arguments, found = node.args, []
    positional = arguments.posonlyargs + arguments.args
    without = len(positional) - len(arguments.defaults)
    for index, a in enumerate(positional):
        only = index < len(arguments.posonlyargs)
        kind = inspect.Parameter.POSITIONAL_ONLY if only else _EITHER
        found.append(_parameter(a.arg, kind, index >= without))
    if drop_first and found:
        del found[0]
    if arguments.vararg:
        found.append(_parameter(arguments.vararg.arg, inspect.Parameter.VAR_POSITIONAL, False))
    for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
        found.append(_parameter(a.arg, inspect.Parameter.KEYWORD_ONLY, default is not None))
    if arguments.kwarg:
        found.append(_parameter(arguments.kwarg.arg, inspect.Parameter.VAR_KEYWORD, False))
    return inspect.Signature(found)


_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD


_CALLABLE_FIRST = ("function", "class", "property", "module", "instance", "super", "external")


class _Default:
    def __repr__(self) -> str:
        return "..."


_DEFAULT = _Default()


def _parameter(name: str, kind: inspect._ParameterKind, default: bool) -> inspect.Parameter:
    if default:
        return inspect.Parameter(name, kind, default=_DEFAULT)
    return inspect.Parameter(name, kind)


class Program:
    """The files of a tree, parsed when asked for. ``parsed`` may be shared between programs."""

    def __init__(self, tree: Tree, parsed: dict[tuple[str, bytes], Module]) -> None:
        self.tree, self._parsed = tree, parsed
        self.broken: dict[str, tuple[int, str]] = {}
        self._modules: dict[str, Optional[Module]] = {}
        self._paths: dict[str, Optional[str]] = {}
        self._attributes: dict[Key, Value] = {}
        self._lineages: dict[Definition, _Lineage] = {}
        self._active: set[object] = set()
        self._circles = 0

    def at(self, path: str) -> Optional[Module]:
        """A file, or None if there is none or it does not parse (then ``broken`` has it)."""
        if path not in self._modules:
            self._modules[path] = self._load(path)
        return self._modules[path]

    def _load(self, path: str) -> Optional[Module]:
        source = self.tree.read(path)
        if source is None:
            return None
        if (path, source) not in self._parsed:
            try:
                self._parsed[path, source] = Module(path, source)
            except (SyntaxError, ValueError, RecursionError) as error:
                line = getattr(error, "lineno", None) or 1
                self.broken[path] = line, getattr(error, "msg", None) or str(error)
                return None
        return self._parsed[path, source]

    @cached_property
    def files(self) -> tuple[str, ...]:
        return tuple(self.tree.python_files())

    @cached_property
    def _folders(self) -> set[str]:
        parents = {p.rpartition("/")[0] for p in self.files}
        return parents | {"/".join(p.split("/")[:n]) for p in parents for n in range(p.count("/"))}

    def find(self, name: str) -> Optional[str]:
        """The path of a module; the folder's, if it is a package without a file."""
        if name not in self._paths:
            base = name.replace(".", "/")
            found = None
            for path in (f"{base}/__init__.py", f"{base}.py"):
                if self.tree.read(path) is not None:
                    found = path
                    break
            self._paths[name] = found or (base if base in self._folders else None)
        return self._paths[name]

    # Imports

    def import_value(self, module: str, attribute: Optional[str] = None) -> Value:
        """What ``import module`` or ``from module import attribute`` gets."""
        if module.partition(".")[0] != "torch":
            return Value("external", text=f"{module}.{attribute}" if attribute else module)
        if self.find(module) is None:
            if module.split(".")[1:2] in (["_C"], ["version"]):
                return Value("unknown", text=f"{module} is made when torch is built", doubtful=True)
            if self.tree.read(f"{module.replace('.', '/')}.pyi") is not None:
                return Value("unknown", text=f"{module} is a stub", doubtful=True)
            return Value("missing", ((module, ""),), text=f"there is no module {module}")
        if attribute is None:
            return Value("module", ((module, ""),), text=module)
        return self.module_attribute(module, attribute)

    def module_attribute(self, module: str, name: str) -> Value:
        """What ``module.name`` is, through re-exports."""
        path = self.find(module)
        assert path is not None
        key = (path, name)
        if key in self._attributes:
            return self._attributes[key]
        if key in self._active:
            self._circles += 1
            return Value("unknown", (key,), text=f"{name} is imported in a circle")
        circles = self._circles
        self._active.add(key)
        try:
            value = self._module_attribute(module, path, name)
        finally:
            self._active.discard(key)
        value = replace(value, via=(key, *value.via))
        # What a circle left unknown may be known from where the circle is entered elsewhere.
        if self._circles == circles or value.kind != "unknown":
            self._attributes[key] = value
        return value

    def _module_attribute(self, module: str, path: str, name: str) -> Value:
        file = self.at(path)
        circles = self._circles
        submodule = f"{module}.{name}"
        if file and name in file.scope.bindings:
            value = self._bound(file.scope, name, file.scope.bindings[name])
            # ``from . import name`` in the package itself gets the submodule.
            if circles == self._circles or value.kind != "unknown" or not self.find(submodule):
                return value
        starred = self._starred(file, name) if file else None
        if starred and starred.kind != "unknown":
            return starred
        if self.find(submodule) is not None:
            return Value("module", ((submodule, ""),), text=submodule)
        if path in self.broken:
            return Value("unknown", text=f"{path} does not parse", doubtful=True)
        if name in _MODULE_NAMES:
            return Value("external", text=name)
        if submodule in ("torch._C", "torch.version"):
            return Value("unknown", text=f"{submodule} is made when torch is built", doubtful=True)
        if starred:
            return starred
        if file and (file.dynamic or "__getattr__" in file.scope.bindings):
            return Value("unknown", text=f"{module} makes names at run time", doubtful=True)
        via = tuple((p, name) for p in self._sources(file)) if file else ()
        return Value("missing", via, text=f"{module} has no {name}")

    def _sources(self, file: Module) -> dict[str, None]:
        """The paths of the files that star imports take names from."""
        found: dict[str, None] = {}
        pending = [file]
        while pending:
            at = pending.pop()
            _ = at.scope.bindings  # fills ``stars``
            for source in at.stars:
                path = self.find(source) if source.partition(".")[0] == "torch" else None
                star = self.at(path) if path and path not in found else None
                if path and star:
                    found[path] = None
                    pending.append(star)
        return found

    def _starred(self, file: Module, name: str) -> Optional[Value]:
        """A name that a star import may bring in."""
        _ = file.scope.bindings  # fills ``stars``
        unknown: Optional[Value] = None
        for source in reversed(file.stars):
            if source.partition(".")[0] != "torch" or self.find(source) is None:
                unknown = Value(
                    "unknown", text=f"{name} may come from {source} by *", doubtful=True
                )
                continue
            public = self._public(source)
            if name in public if public is not None else not name.startswith("_"):
                value = self.module_attribute(source, name)
                if value.kind == "unknown":
                    unknown = value
                elif value.kind != "missing" and (
                    value.kind != "module" or self._binds(source, name)
                ):
                    return value
        return unknown

    def _binds(self, module: str, name: str) -> bool:
        file = self.at(self.find(module) or "")
        return bool(file and name in file.scope.bindings)

    def _public(self, module: str) -> Optional[list[str]]:
        file = self.at(self.find(module) or "")
        bounds = file.scope.bindings.get("__all__", []) if file else []
        if len(bounds) == 1 and isinstance(bounds[0].node, (ast.List, ast.Tuple)):
            items = bounds[0].node.elts
            names = [i.value for i in items if isinstance(i, ast.Constant)]
            if len(names) == len(items) and b"__all__." not in (file.source if file else b""):
                return [str(n) for n in names]
        return None

    # Names

    def defines(self, scope: Scope, name: str) -> Optional[bool]:
        """Whether a name loaded in a scope is bound anywhere; None if that cannot be said."""
        if self._lookup(scope, name) or name in _BUILTINS or name in _MODULE_NAMES:
            return True
        if name in ("__module__", "__qualname__") and scope.enclosing("class"):
            return True
        starred = self._starred(scope.module, name)
        if starred or scope.module.dynamic:
            return None if not starred or starred.kind == "unknown" else True
        return False

    def _lookup(self, scope: Scope, name: str) -> Optional[tuple[Scope, list[Bound]]]:
        at: Optional[Scope] = scope
        direct = True
        while at:
            if at.kind != "class" or direct:
                bounds = at.bindings.get(name)
                if bounds:
                    return at, bounds
                if name in at.globals and at.kind != "module":
                    at = scope.module.scope
                    continue
            direct = direct and at.kind == "type"
            at = at.parent
        return None

    def resolve(self, scope: Scope, node: ast.AST) -> Value:
        """What an expression evaluated in a scope stands for."""
        if isinstance(node, ast.Name):
            return self._name(scope, node.id)
        if isinstance(node, ast.Attribute):
            return self.attribute(self.resolve(scope, node.value), node.attr)
        if isinstance(node, ast.Call):
            return self._call(scope, node)
        if isinstance(node, ast.Await):
            return Value("unknown", text="the result of a call")
        literals = (ast.Constant, ast.JoinedStr, ast.List, ast.Dict, ast.Tuple, ast.Set)
        if isinstance(node, (*literals, *_COMPREHENSIONS)):
            return Value("external", text="a literal")
        return Value("unknown", text="the result of an expression")

    def _name(self, scope: Scope, name: str) -> Value:
        found = self._lookup(scope, name)
        if found:
            where, bounds = found
            active = (where, name)
            if active in self._active:
                self._circles += 1
                return Value("unknown", text=f"{name} refers to itself")
            self._active.add(active)
            try:
                value = self._bound(where, name, bounds)
            finally:
                self._active.discard(active)
            if where.kind == "module":
                value = replace(value, via=((where.module.path, name), *value.via))
            return value
        if name in _BUILTINS or name in _MODULE_NAMES:
            return Value("external", text=name)
        starred = self._starred(scope.module, name)
        via = tuple((p, name) for p in self._sources(scope.module))
        return starred or Value("missing", via, text=f"{name} is not defined")

    def _bound(self, scope: Scope, name: str, bounds: Sequence[Bound]) -> Value:
        values = []
        for bound in bounds:
            constant = bound.kind == "assigned" and isinstance(bound.node, ast.Constant)
            if not constant:  # ``f = None`` beside an import of f is nothing to call
                values.append(self._one(scope, bound, alone=len(bounds) == 1))
        known = [v for v in values if v.kind not in ("unknown", "missing")]
        if not values:
            return Value("external", text="a literal")
        if not known:
            return values[0]
        first = min(known, key=lambda v: _CALLABLE_FIRST.index(v.kind))
        same = [v for v in known if v.kind == first.kind]
        via = tuple(dict.fromkeys(k for v in same for k in v.via))
        definitions = tuple(dict.fromkeys(d for v in same for d in v.definitions))
        if first.kind == "function":
            run = [d for d in definitions if "overload" not in d.decorators]
            definitions = tuple(run) or definitions
        certain = len(same) == len(values) and all(v.certain for v in same)
        if first.kind in ("class", "module") and len(same) > 1:
            certain = certain and len({v.text or v.definitions for v in same}) == 1
            definitions = first.definitions
        return replace(first, via=via, definitions=definitions, certain=certain)

    def _one(self, scope: Scope, bound: Bound, *, alone: bool) -> Value:
        node = bound.node
        if isinstance(node, FUNCTIONS) and bound.kind == "def":
            definition = Definition(node, scope)
            kind = "function"
            if scope.kind == "class" and definition.flavour == "property":
                kind = "property"
            return Value(kind, (definition.key,), (definition,))
        if isinstance(node, ast.ClassDef):
            definition = Definition(node, scope)
            return Value("class", (definition.key,), (definition,))
        if bound.kind == "import":
            return self.import_value(bound.module, bound.attribute)
        if bound.kind == "first" and isinstance(node, FUNCTIONS):
            owner = scope.enclosing("class")
            if owner and owner.parent and isinstance(owner.node, ast.ClassDef):
                cls = Definition(owner.node, _defining(owner))
                method = Definition(node, owner)
                if method.flavour in ("plain", "property"):
                    return Value("instance", definitions=(cls,))
                if method.flavour == "class" or node.name == "__new__":
                    return Value("class", definitions=(cls,), certain=False)
        if bound.kind == "assigned" and alone:
            if isinstance(node, (ast.Name, ast.Attribute)):
                return self.resolve(scope, node)
            if isinstance(node, ast.Call) and last_part(node) != "super":
                made = self._call(scope, node)
                if made.kind == "instance":
                    return made
        return Value("unknown", text="a local value" if scope.kind != "module" else "a value")

    def _call(self, scope: Scope, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            if node.args:
                cls = self.resolve(scope, node.args[0])
                if cls.kind == "class":
                    return Value("super", definitions=cls.definitions)
            else:
                owner = scope.enclosing("class")
                if owner and isinstance(owner.node, ast.ClassDef):
                    return Value("super", definitions=(Definition(owner.node, _defining(owner)),))
            return Value("unknown", text="super() of an unknown class")
        if isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) == 1:
            return self.attribute(self.resolve(scope, node.args[0]), "__class__")
        made = self.resolve(scope, node.func)
        if made.kind == "class" and not made.definitions[0].opaque:
            return Value("instance", definitions=made.definitions, certain=made.certain)
        if made.kind == "external" and made.text in ("str", "int", "len", "list", "dict", "set"):
            return Value("external", text="a literal")
        return Value("unknown", text="the result of a call")

    def attribute(self, value: Value, name: str) -> Value:
        """What an attribute of a value is."""
        if value.kind == "module":
            found = self.module_attribute(value.text, name)
            return found if value.certain else replace(found, certain=False)
        if value.kind in ("instance", "super", "class"):
            if name == "__class__":
                return Value("class", definitions=value.definitions, certain=False)
            receiver = value.kind != "class"
            found = self.class_attribute(
                value.definitions[0], name, receiver=receiver, above=value.kind == "super"
            )
            if value.kind == "instance" and not value.certain:
                found = replace(found, certain=False)
            unsure = found.kind == "missing" and not value.certain
            return replace(found, kind="unknown") if unsure else found
        if value.kind == "external":
            return Value("external", text=f"{value.text}.{name}")
        known = value.kind not in ("unknown", "missing")
        return Value("unknown", text=f"an attribute of a {value.kind}" if known else value.text)

    # Classes

    def lineage(self, cls: Definition, *, above: bool = False) -> Iterator[Definition]:
        """A class and its bases in the order of lookup; the class itself costs no look-ups."""
        if not above:
            yield cls
        yield from self._lineage(cls).classes[1:]

    def open_base(self, cls: Definition) -> str:
        """A base class that is not in the tree or not known, or an empty string."""
        return self._lineage(cls).opened

    def _lineage(self, cls: Definition) -> _Lineage:
        if cls in self._lineages:
            return self._lineages[cls]
        if ("lineage", cls) in self._active:
            return _Lineage((cls,), cls.node.name, "")
        self._active.add(("lineage", cls))
        assert isinstance(cls.node, ast.ClassDef)
        bases, lines, opened, leading = [], [], "", ""
        scope = cls.inside.parent or cls.scope
        for base in cls.node.bases:
            named = base.value if isinstance(base, ast.Subscript) else base
            value = self.resolve(scope, named)
            if value.kind == "class" and value.definitions[0] != cls:
                further = self._lineage(value.definitions[0])
                bases.append(value.definitions[0])
                lines.append(list(further.classes))
                leading = leading or opened or further.leading
                opened = opened or ("" if value.certain else ast.unparse(base)) or further.opened
            elif value.kind != "external" or last_part(named) not in _PLAIN_BASES:
                opened = opened or ast.unparse(base)
        self._active.discard(("lineage", cls))
        result = _Lineage((cls, *_merge([*lines, list(bases)])), opened, leading)
        self._lineages[cls] = result
        return result

    def class_attribute(
        self, cls: Definition, name: str, *, receiver: bool, above: bool = False
    ) -> Value:
        """What a class, or with ``receiver`` an object of it, has under a name."""
        via: list[Key] = []
        for owner in self.lineage(cls, above=above):
            path, qualname = owner.key
            via.append((path, f"{qualname}.{name}"))
            bounds = owner.inside.bindings.get(name)
            if not bounds:
                continue
            value = self._bound(owner.inside, name, bounds)
            if value.kind == "function":
                flavours = {d.flavour for d in value.definitions}
                bound = flavours == {"class"} or (receiver and flavours == {"plain"})
                first = owner is cls or not self._lineage(cls).leading
                certain = value.certain and len(flavours) == 1 and first
                value = replace(value, bound=bound, certain=certain)
            return replace(value, via=tuple(dict.fromkeys((*via, *value.via))))
        text = f"{cls.node.name} has no {name}"
        opened = self.open_base(cls)
        if opened:
            return Value("unknown", tuple(via), text=f"{text}, but its base {opened} may")
        if name != "__getattr__" and (
            self.class_attribute(cls, "__getattr__", receiver=True).kind == "function"
        ):
            return Value("unknown", tuple(via), text=f"{text}, but its __getattr__ may")
        return Value("missing", tuple(via), text=text)

    def constructor(self, cls: Definition, *, above: bool = False) -> Constructor:
        """How a class is called: its ``__init__``, or the one that ``dataclass`` makes."""
        via: list[Key] = []
        for owner in self.lineage(cls, above=above):
            path, qualname = owner.key
            assert isinstance(owner.node, ast.ClassDef)
            via.append((path, f"{qualname}.__init__"))
            if any(
                k.arg == "metaclass" and last_part(k.value) != "ABCMeta"
                for k in owner.node.keywords
            ):
                return Constructor((), tuple(via), f"{qualname} has a metaclass")
            bindings = owner.inside.bindings
            leading = "" if owner is cls else self._lineage(cls).leading
            if leading and ("__init__" in bindings or _dataclass_options(owner) is not None):
                return Constructor((), tuple(via), f"its base {leading} comes first")
            if "__new__" in bindings:
                return Constructor((), tuple(via), f"{qualname} has a __new__")
            if "__init__" in bindings:
                value = self._bound(owner.inside, "__init__", bindings["__init__"])
                if value.kind != "function" or not value.certain:
                    return Constructor((), tuple(via), f"{qualname}.__init__ is assigned")
                opaque = next((d.opaque for d in value.definitions if d.opaque), "")
                signatures = self.signatures(replace(value, bound=True))
                return Constructor(signatures, tuple(via), opaque and f"decorated by {opaque}")
            if any(last_part(b) == "NamedTuple" for b in owner.node.bases):
                fields = [n for n in owner.node.body if isinstance(n, ast.AnnAssign)]
                made = inspect.Signature(
                    [_parameter(last_part(n.target), _EITHER, n.value is not None) for n in fields]
                )
                return Constructor((made,), tuple(via))
            if _dataclass_options(owner) is not None:
                generated = self._fields(owner)
                via += [(d.key[0], f"{d.key[1]}.__init__") for d in self.lineage(owner)]
                why = "" if generated else f"the fields of {qualname} are not plain"
                signatures = (generated,) if generated else ()
                return Constructor(signatures, tuple(dict.fromkeys(via)), why)
            if owner.opaque:
                return Constructor((), tuple(via), f"{qualname} is decorated by {owner.opaque}")
        opened = self.open_base(cls)
        if issubclass(getattr(builtins, opened, int), Exception):
            return Constructor((_ANY_PLACES,), tuple(via))
        if opened:
            return Constructor((), tuple(via), f"the base {opened} is not in the tree")
        if above:
            return Constructor((), tuple(via), "the next class may be another's base")
        return Constructor((inspect.Signature(),), tuple(via))

    def explicit_constructor(self, owner: Value) -> Constructor:
        """How ``super().__init__`` or ``Class.__init__`` is called."""
        made = self.constructor(owner.definitions[0], above=owner.kind == "super")
        if owner.kind != "class":
            return made
        first = inspect.Parameter("_self", inspect.Parameter.POSITIONAL_ONLY)
        signatures = tuple(
            inspect.Signature([first, *s.parameters.values()]) for s in made.signatures
        )
        return replace(made, signatures=signatures)

    def signatures(self, value: Value) -> tuple[inspect.Signature, ...]:
        """The signatures of a function's definitions, as they are called through the value."""
        return tuple(
            signature(d.node, drop_first=value.bound)
            for d in value.definitions
            if isinstance(d.node, FUNCTIONS)
        )

    def _fields(self, cls: Definition) -> Optional[inspect.Signature]:
        if self.open_base(cls):
            return None
        fields: dict[str, tuple[bool, bool]] = {}  # name: has a default, is for keywords only
        for owner in reversed(list(self.lineage(cls))):
            options = _dataclass_options(owner)
            if options is None:
                continue
            if options.get("init") is False:
                return None
            only = options.get("kw_only") is True
            assert isinstance(owner.node, ast.ClassDef)
            for node in owner.node.body:
                if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                    continue
                annotation = ast.unparse(node.annotation)
                if "ClassVar" in annotation:
                    continue
                if annotation.endswith("KW_ONLY"):
                    only = True
                    continue
                default, keyword, init = node.value is not None, only, True
                if isinstance(node.value, ast.Call) and last_part(node.value) == "field":
                    given = {k.arg: getattr(k.value, "value", None) for k in node.value.keywords}
                    default = bool({"default", "default_factory"} & set(given))
                    init = given.get("init") is not False
                    keyword = bool(given.get("kw_only", only))
                if init:
                    fields[node.target.id] = default, keyword
                else:
                    fields.pop(node.target.id, None)
        names = sorted(fields, key=lambda n: fields[n][1])
        try:
            return inspect.Signature(
                [
                    _parameter(
                        n, inspect.Parameter.KEYWORD_ONLY if fields[n][1] else _EITHER, fields[n][0]
                    )
                    for n in names
                ]
            )
        except ValueError:
            return None


def _defining(scope: Scope) -> Scope:
    """The scope that a class's or function's own scope is defined in."""
    parent = scope.parent
    assert parent is not None
    return parent.parent if parent.kind == "type" and parent.parent else parent


def _merge(lines: list[list[Definition]]) -> list[Definition]:
    """Python's order of base classes; the plain order where Python would refuse."""
    result: list[Definition] = []
    pending = [list(line) for line in lines if line]
    while pending:
        heads = [line[0] for line in pending]
        free = [h for h in heads if not any(h in line[1:] for line in pending)]
        chosen = (free or heads)[0]
        result.append(chosen)
        pending = [[d for d in line if d != chosen] for line in pending]
        pending = [line for line in pending if line]
    return result


def _dataclass_options(cls: Definition) -> Optional[dict[str, object]]:
    for node in cls.node.decorator_list:
        if last_part(node) == "dataclass":
            keywords = node.keywords if isinstance(node, ast.Call) else []
            return {k.arg or "": getattr(k.value, "value", None) for k in keywords}
    return None
