"""What must hold of a patched tree before it is written.

``verify`` compares a tree before and after and returns what is wrong with it: touched files that
do not parse, names that do not exist, and calls that no longer bind, in the whole of ``torch/``.

It reads and never runs, so it claims nothing about attributes of objects (``self.x``), modules
from outside the tree, or names computed at run time. Where a call may be of a changed function
but cannot be followed to it, it is listed in ``Report.unresolved`` instead.
"""

from __future__ import annotations

import ast
import gc
import inspect
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Callable, Optional, Union

from .names import (
    FUNCTIONS,
    Constructor,
    Definition,
    Key,
    Module,
    Program,
    Scope,
    Value,
    last_part,
)
from .tree import Tree


@dataclass(frozen=True, order=True)
class Finding:
    """Something at a place in the patched tree; lines count from 1."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True, order=True)
class SignatureChange:
    """A function or class that is now called in another way."""

    path: str
    line: int
    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Report:
    """``findings`` are wrong for certain; ``unresolved`` may be, and nobody but a reader can say.

    ``calls_checked`` counts the calls that were followed to their function and bound to its
    parameters, ``names_checked`` the names that touched files newly use.
    """

    findings: tuple[Finding, ...]
    unresolved: tuple[Finding, ...]
    signatures: tuple[SignatureChange, ...]
    calls_checked: int
    names_checked: int


def verify(before: Tree, after: Tree, touched: Collection[str]) -> Report:
    """Compare two trees that differ in the ``touched`` paths."""
    collecting = gc.isenabled()
    gc.disable()  # syntax trees are many small objects without cycles: it would take half the time
    try:
        return _Verifier(before, after, touched).run()
    finally:
        if collecting:
            gc.enable()


Signatures = tuple[inspect.Signature, ...]
_PARTIALS = ("partial", "partialmethod")
_GUARDS = {"NameError", "ImportError", "ModuleNotFoundError", "AttributeError", "Exception"} | {
    "BaseException"
}


@dataclass
class _Target:
    """A definition whose uses have to be looked at."""

    key: Key
    kind: str  # function, method, constructor or module
    search: str  # the bare name that every use is spelled with
    old: Signatures
    new: Signatures = ()
    changed: bool = True  # the parameters, and not only what it returns
    removed: bool = False
    imported: bool = False  # it was only imported where it was removed
    returns: Optional[str] = None  # the new return annotation, if it matters to callers

    @property
    def name(self) -> str:
        if not self.key[1]:
            return self.key[0]
        name = self.key[1].replace(".<locals>", "")
        return name.rpartition(".")[0] if self.kind == "constructor" else name


@dataclass
class _Uses:
    """The names that a file uses, by scope, with the node of their first use."""

    names: dict[tuple[str, str], tuple[ast.AST, Scope]] = field(default_factory=dict)
    imports: dict[tuple[str, str, Optional[str]], ast.AST] = field(default_factory=dict)
    attributes: dict[tuple[str, str], tuple[ast.Attribute, Scope]] = field(default_factory=dict)
    calls: dict[tuple[str, bytes], list[tuple[ast.Call, Scope]]] = field(default_factory=dict)


class _Verifier:
    def __init__(self, before: Tree, after: Tree, touched: Collection[str]) -> None:
        parsed: dict[tuple[str, bytes], Module] = {}
        self.before, self.after = Program(before, parsed), Program(after, parsed)
        self.touched = sorted(p for p in touched if p.endswith(".py"))
        self.findings: set[Finding] = set()
        self.unresolved: set[Finding] = set()
        self.signatures: set[SignatureChange] = set()
        self.calls: set[tuple[str, int, int]] = set()
        self.names_checked = 0
        self.doubtful: dict[str, list[tuple[str, int, str]]] = {}
        self.targets: dict[Key, _Target] = {}

    def run(self) -> Report:
        for path in self.touched:
            file = self.after.at(path)
            if path in self.after.broken:
                self._broken(path)
            elif file:
                self._check_names(file, self.before.at(path))
            self._compare(self.before.at(path), file)
        self._doubtful()
        if self.targets:
            self._sweep()
        return Report(
            tuple(sorted(self.findings)),
            tuple(sorted(self.unresolved - self.findings)),
            tuple(sorted(self.signatures)),
            len(self.calls),
            self.names_checked,
        )

    def _broken(self, path: str) -> None:
        line, message = self.after.broken[path]
        self.before.at(path)
        # Syntax newer than the running Python is the target's business.
        sure = path not in self.before.broken
        self._say(sure, path, line, f"does not parse: {message}")

    def _say(self, sure: bool, path: str, line: int, message: str) -> None:
        (self.findings if sure else self.unresolved).add(Finding(path, line, message))

    # Names that touched files use

    def _check_names(self, file: Module, before: Optional[Module]) -> None:
        now, then = _uses(file), _uses(before) if before else _Uses()
        for key, (node, scope) in now.names.items():
            new = key not in then.names
            self.names_checked += new
            defined = self.after.defines(scope, key[1])
            if defined or (not new and not self.before.defines(then.names[key][1], key[1])):
                continue
            sure = defined is False and not _guarded(file, node)
            why = "" if defined is False else ", unless it is made at run time"
            self._say(sure, file.path, _line(node), f"{key[1]} is not defined{why}")
        for imported, node in now.imports.items():
            if imported not in then.imports:
                self.names_checked += 1
                self._check_import(file, node, imported[1], imported[2])
        for key, (attribute, scope) in now.attributes.items():
            if key in then.attributes:
                continue
            self.names_checked += 1
            owner = self.after.resolve(scope, attribute.value)
            if owner.kind == "module":
                value = self.after.attribute(owner, attribute.attr)
                self._exists(file, attribute, value, owner.text)
        for call_key, calls in now.calls.items():
            for call, scope in calls if call_key not in then.calls else ():
                self._check_new_call(file, call, scope)

    def _check_import(self, file: Module, node: ast.AST, module: str, name: Optional[str]) -> None:
        value = self.after.import_value(module, name)
        if value.kind == "external" and module.partition(".")[0] != "torch":
            top = module.partition(".")[0]
            if not _standard(top):
                self._say(False, file.path, _line(node), f"{module} is not part of the tree")
            return
        self._exists(file, node, value, module)

    def _exists(self, file: Module, node: ast.AST, value: Value, owner: str) -> None:
        if value.kind == "missing":
            sure = value.certain and not _guarded(file, node)
            self._say(sure, file.path, _line(node), value.text)
        elif value.doubtful:
            if isinstance(node, ast.Attribute):
                used = f"{owner}.{node.attr}"
                self.doubtful.setdefault(used, []).append((file.path, node.lineno, value.text))
            else:
                self._say(False, file.path, _line(node), f"not checked: {value.text}")

    def _doubtful(self) -> None:
        """Names that compiled code makes exist if the tree used them before."""
        for path in self.before.files if self.doubtful else ():
            source = self.before.tree.read(path) or b""
            for name in [n for n in self.doubtful if n.encode() in source]:
                if _words([name]).search(source):
                    del self.doubtful[name]
        for places in self.doubtful.values():
            for path, line, text in places:
                self._say(False, path, line, f"not checked: {text}")

    def _check_new_call(self, file: Module, call: ast.Call, scope: Scope) -> None:
        if last_part(call.func) in _PARTIALS and call.args:
            value = self.after.resolve(scope, call.args[0])
            if value.kind in ("function", "class"):
                self._check_partial(file, call, value, None)
            return
        if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__":
            owner = self.after.resolve(scope, call.func.value)
            if owner.kind in ("super", "class", "instance"):
                made = self.after.explicit_constructor(owner)
                if made.signatures:
                    name = f"{owner.definitions[0].key[1]}.__init__"
                    self._bind(file, call, made.signatures, name, made.why, None)
            return
        value = self.after.resolve(scope, call.func)
        if value.kind in ("function", "class"):
            self._check_call(file, call, value, None)

    # What changed

    def _compare(self, old: Optional[Module], new: Optional[Module]) -> None:
        if old is None or self.before.find(old.name) != old.path:
            return  # nobody can import it
        if new is None:
            if self.after.tree.read(old.path) is None:
                package, _, search = old.name.rpartition(".")
                for key in ((old.name, ""), (f"{package.replace('.', '/')}/__init__.py", search)):
                    self._target(_Target(key, "module", search, (), removed=True))
            return
        for name, bounds in old.scope.bindings.items():
            others = new.scope.bindings.get(name, [])
            imported = all(b.kind == "import" for b in (*bounds, *others))
            same = [b[2:] for b in bounds] == [b[2:] for b in others]
            if imported and same and others:
                continue  # if that changed, it did where it is defined
            if others and not {"def", "class", "import"} & {b.kind for b in bounds}:
                continue
            was = self.before.module_attribute(old.name, name)
            now = self.after.module_attribute(new.name, name)
            if now.kind in ("missing", "unknown") and not others:
                target = _Target((old.path, name), was.kind, name, self.before.signatures(was))
                target.removed, target.imported = True, all(b.kind == "import" for b in bounds)
                self._target(target)
            elif was.kind == "function" and now.kind in ("function", "unknown"):
                self._compare_functions((new.path, name), "function", was, now)
            elif {was.kind, now.kind} in ({"function", "class"}, {"class", "unknown"}):
                key, forms = (new.path, name), self._forms_of(self.before, was)
                target = _Target(key, "class", name, forms, self._forms_of(self.after, now))
                self._target(target, _line(others[0].node) if others else 1)
        functions, classes = _definitions(old)
        new_functions, new_classes = _definitions(new)
        for qualname, definitions in functions.items():
            if "<locals>" in qualname and qualname in new_functions:
                key = (new.path, qualname)
                was = Value("function", (key,), definitions)
                now = Value("function", (key,), new_functions[qualname])
                self._compare_functions(key, "function", was, now)
        for qualname, cls in classes.items():
            if qualname in new_classes:
                self._compare_classes(cls, new_classes[qualname])

    def _forms_of(self, program: Program, value: Value) -> Signatures:
        if value.kind == "class":
            return program.constructor(value.definitions[0]).signatures
        return program.signatures(value)

    def _compare_classes(self, old: Definition, new: Definition) -> None:
        path, qualname = new.key
        names = [
            n
            for cls in (old, new)
            for n, bounds in cls.inside.bindings.items()
            if any(b.kind == "def" for b in bounds)
        ]
        for name in dict.fromkeys(names):
            if name in ("__init__", "__new__"):
                continue
            was = self.before.class_attribute(old, name, receiver=True)
            now = self.after.class_attribute(new, name, receiver=True)
            key = (path, f"{qualname}.{name}")
            if was.kind not in ("function", "property"):
                continue
            if now.kind in ("missing", "unknown") and name not in new.inside.bindings:
                old_forms = self.before.signatures(was)
                self._target(_Target(key, "method", name, old_forms, removed=True))
            else:
                self._compare_functions(key, "method", was, now)
        was_made, now_made = self.before.constructor(old), self.after.constructor(new)
        if was_made.signatures and _shape(was_made.signatures) != _shape(now_made.signatures):
            key = (path, f"{qualname}.__init__")
            self._target(
                _Target(
                    key, "constructor", new.node.name, was_made.signatures, now_made.signatures
                ),
                new.node.lineno,
            )

    def _compare_functions(self, key: Key, kind: str, was: Value, now: Value) -> None:
        old, new = self.before.signatures(was), self.after.signatures(now)
        flavours = [
            {(v.kind, d.flavour) for d in v.definitions if kind == "method"} for v in (was, now)
        ]
        changed = _shape(old) != _shape(new) or flavours[0] != flavours[1]
        returned, returns = _returned(was), _returned(now)
        if returns == returned or not (returned == "None" or _length(returns or "")):
            returns = None  # no annotation says that callers have to treat the result otherwise
        if not changed and not (returned and returns):
            return
        target = _Target(key, kind, key[1].rpartition(".")[2], old, new, changed, returns=returns)
        line = now.definitions[0].node.lineno if now.definitions else 1
        self._target(target, line)
        own = now.definitions and now.definitions[0].key == key
        if changed and kind == "method" and own and was.definitions:
            cls = _class_of(now.definitions[0])
            base = cls and self.after.class_attribute(cls, target.search, receiver=True, above=True)
            if base and base.kind == "function" and base.bound:
                signatures = self.after.signatures(base)
                named = base.definitions[0].key[1]
                self._check_override(key[0], line, named, signatures, signatures, old, new)

    def _target(self, target: _Target, line: int = 1) -> None:
        self.targets[target.key] = target
        if target.changed and not target.removed:
            texts = [
                " or ".join(dict.fromkeys(map(str, s))) or "?" for s in (target.old, target.new)
            ]
            self.signatures.add(SignatureChange(target.key[0], line, target.name, *texts))
            if re.fullmatch(r"__\w+__", target.search):
                self._say(
                    False,
                    target.key[0],
                    line,
                    f"{target.name} changed, and what calls it by syntax is not followed",
                )

    # Calls in the whole tree

    def _sweep(self) -> None:
        constructors = any(t.kind in ("constructor", "class") for t in self.targets.values())
        names = {t.search for t in self.targets.values()}
        searched: set[str] = set()
        while names - searched:
            pending = names - searched
            searched |= pending
            filters = [(n.encode(), self._mentions(n)) for n in sorted(pending)]
            for path in dict.fromkeys((*self.after.files, *self.touched)):
                source = self.after.tree.read(path) or b""
                if any(n in source and mentions(source) for n, mentions in filters):
                    file = self.after.at(path)
                    if file:
                        # Aliases that other files may import are searched for in all of them.
                        names |= _FileSweep(self, file, searched, constructors).run()
                    elif path not in self.touched:
                        line, message = self.after.broken[path]
                        self._say(False, path, line, f"does not parse here: {message}")

    def _mentions(self, name: str) -> Callable[[bytes], bool]:
        """Whether a file that contains a name may use it."""
        word = _words([name]).search
        targets = [t for t in self.targets.values() if t.search == name]
        if not targets or not all(t.imported for t in targets):
            return lambda source: bool(word(source))
        # Names such as ``Any`` stand everywhere, but are seldom imported from where they were.
        modules = [t.key[0].replace("/__init__", "")[:-3].rpartition("/")[2] for t in targets]
        module = _words(modules).search
        attribute = re.compile(rb"\.\s*%b(?!\w)" % name.encode()).search
        return lambda source: bool(_imports(source, word) or (attribute(source) and module(source)))

    def _check_call(
        self, file: Module, call: ast.Call, value: Value, target: Optional[_Target]
    ) -> None:
        signatures, name, doubt = self._callable(value)
        if not signatures:
            self._say(False, file.path, call.lineno, f"call of {name} cannot be checked: {doubt}")
            return
        self._bind(file, call, signatures, name, doubt, target)

    def _callable(self, value: Value) -> tuple[Signatures, str, str]:
        """The signatures of a function or class, its name, and what makes them uncertain."""
        name = value.definitions[0].key[1].replace(".<locals>", "")
        if value.kind == "class":
            made = self.after.constructor(value.definitions[0])
            doubt = made.why or ("" if value.certain else "it may be a subclass")
            return made.signatures, name, doubt
        if value.kind == "property":
            return (), name, "it is a property"
        opaque = next((d.opaque for d in value.definitions if d.opaque), "")
        doubt = f"decorated by {opaque}" if opaque else ""
        doubt = doubt or ("" if value.certain else "it is not the only thing of that name")
        return self.after.signatures(value), name, doubt

    def _bind(
        self,
        file: Module,
        call: ast.Call,
        signatures: Signatures,
        name: str,
        doubt: str,
        target: Optional[_Target],
        *,
        partial: bool = False,
    ) -> None:
        arguments = call.args[1:] if partial else call.args
        star = any(isinstance(a, ast.Starred) for a in arguments)
        double = any(k.arg is None for k in call.keywords)
        positional = sum(not isinstance(a, ast.Starred) for a in arguments)
        keywords = [k.arg for k in call.keywords if k.arg]
        what = "partial of" if partial else "call of"
        error = ""
        for signature in signatures:
            error = _bind_error(signature, positional, keywords, partial=partial or star or double)
            if not error:
                break
        else:
            signature = signatures[-1]
        if not doubt:
            self.calls.add((file.path, call.lineno, call.col_offset))
        if error:
            suffix = f" ({doubt})" if doubt else ""
            self._say(
                not doubt,
                file.path,
                call.lineno,
                f"{what} {name} does not bind: {error}; it is {name}{signature}{suffix}",
            )
        elif doubt:
            self._say(False, file.path, call.lineno, f"{what} {name} cannot be checked: {doubt}")
        elif (
            (star or double)
            and not partial
            and not _takes_all(signature, positional, keywords, star=star, double=double)
        ):
            stars = " and ".join(["*args"] * star + ["**kwargs"] * double)
            self._say(
                False,
                file.path,
                call.lineno,
                f"call of {name} passes {stars}, which cannot be counted",
            )
        if target and target.returns and not partial:
            self._check_result(file, call, target, name)

    def _check_result(self, file: Module, call: ast.Call, target: _Target, name: str) -> None:
        parent = file.parents.get(call)
        if isinstance(parent, ast.Await):
            parent = file.parents.get(parent)
        message = ""
        if isinstance(parent, ast.Expr):
            message = f"the result of {name} is thrown away, and it now returns {target.returns}"
        elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple):
            parts = parent.targets[0].elts
            length = _length(target.returns or "")
            starred = any(isinstance(p, ast.Starred) for p in parts)
            if length is not None and length != len(parts) and not starred:
                message = (
                    f"the result of {name} is unpacked into {len(parts)}, and it now"
                    f" returns {target.returns}"
                )
        if message:
            self._say(False, file.path, call.lineno, message)

    def _check_partial(
        self, file: Module, call: ast.Call, value: Value, target: Optional[_Target]
    ) -> None:
        signatures, name, doubt = self._callable(value)
        if not signatures:
            self._say(
                False, file.path, call.lineno, f"partial of {name} cannot be checked: {doubt}"
            )
            return
        self._bind(file, call, signatures, name, doubt, target, partial=True)
        if not target:
            return
        positional = len(call.args) - 1
        keywords = [k.arg for k in call.keywords if k.arg]
        rest = ", ".join(_left(signatures[-1], positional, keywords)) or "none"
        self._say(
            False,
            file.path,
            call.lineno,
            f"partial of {name} is called later; still required: {rest}",
        )

    def _check_override(
        self,
        path: str,
        line: int,
        base: str,
        old_base: Signatures,
        new_base: Signatures,
        old: Signatures,
        new: Signatures,
    ) -> None:
        """Whether an overriding method takes the calls that its base's method takes."""
        for least in (True, False):

            def fits(wanted: Signatures, given: Signatures, least: bool = least) -> bool:
                forms = [f for s in wanted for f in _forms(s, least=least)]
                fitting = [any(not _bind_error(g, *f) for g in given) for f in forms]
                return any(fitting) if least else all(fitting)

            if fits(old_base, old) and not fits(new_base, new):
                how = "any call" if least else "every call"
                self._say(
                    least,
                    path,
                    line,
                    f"overrides {base}, but does not take {how} that"
                    f" {base}{new_base[-1]} takes: {new[-1]}",
                )
                return


class _FileSweep:
    """All uses of the targets in one file."""

    def __init__(
        self, verifier: _Verifier, file: Module, names: Collection[str], constructors: bool
    ) -> None:
        self.verifier, self.file, self.names = verifier, file, set(names)
        self.after, self.targets = verifier.after, verifier.targets
        self.constructors = constructors
        self.aliases: set[str] = set()

    def run(self) -> set[str]:
        while True:
            known = set(self.names)
            more = {"cls", "type", "__class__", "__init__", "replace"} if self.constructors else ()
            lines = self.file.lines_of(_words(known.union(more)))
            for node, scope in self.file.walk(lines):
                self._node(node, scope)
            if self.names == known:
                return self.aliases

    def _alias(self, name: str, scope: Scope) -> None:
        self.names.add(name)
        if scope.kind in ("module", "class"):
            self.aliases.add(name)

    def _say(self, sure: bool, node: ast.AST, message: str) -> None:
        self.verifier._say(sure, self.file.path, _line(node), message)

    def _hits(self, via: Iterable[Key]) -> list[_Target]:
        return [self.targets[k] for k in via if k in self.targets]

    def _node(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            name = last_part(node)
            if name in self.names or (self.constructors and name in ("cls", "__class__")):
                self._use(node, name, scope)
            elif self.constructors and name == "__init__" and isinstance(node, ast.Attribute):
                self._explicit_constructor(node, scope)
        elif isinstance(node, ast.ImportFrom):
            self._import(node, scope)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if self._hits([(alias.name, "")]):
                    self._missing(node, f"there is no module {alias.name}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self._string(node)
        elif isinstance(node, FUNCTIONS) and scope.kind == "class" and node.name in self.names:
            self._override(node, scope)
        elif isinstance(node, ast.Call) and self.constructors:
            if isinstance(node.func, ast.Call) and last_part(node.func) == "type":
                self._value_use(node.func, self.after.resolve(scope, node.func), "type()", scope)
            elif last_part(node) == "replace":
                self._replace(node, scope)

    def _import(self, node: ast.ImportFrom, scope: Scope) -> None:
        module = self.file.absolute(node)
        for alias in node.names:
            if self._hits([(module, "")]):
                self._missing(node, f"there is no module {module}")
            if alias.name not in self.names:
                continue
            value = self.after.import_value(module, alias.name)
            via = (*value.via, (f"{module}.{alias.name}", ""), *self._constructed(value).via)
            hits = self._hits(via)
            if not hits:
                continue
            if value.kind == "missing":
                self._missing(node, value.text)
            elif value.kind == "unknown" and any(t.removed for t in hits):
                self._say(False, node, f"{alias.name} was removed: {value.text}")
            if alias.asname:
                self._alias(alias.asname, scope)

    def _missing(self, node: ast.AST, text: str) -> None:
        self._say(not _guarded(self.file, node), node, text)

    def _constructed(self, value: Value) -> Constructor:
        if value.kind == "class" and self.constructors:
            return self.after.constructor(value.definitions[0])
        return Constructor((), ())

    def _use(self, node: Union[ast.Name, ast.Attribute], name: str, scope: Scope) -> None:
        self._value_use(node, self.after.resolve(scope, node), name, scope)

    def _value_use(self, node: ast.expr, value: Value, name: str, scope: Scope) -> None:
        hits = self._hits((*value.via, *self._constructed(value).via))
        if not hits:
            if value.kind in ("unknown", "missing") and isinstance(node, ast.Attribute):
                self._maybe(node, name, value)
            return
        target = hits[0]
        if value.kind == "missing":
            if isinstance(node, ast.Attribute) and self._assigned(name):
                self._say(False, node, f"{target.name} was removed, but {name} may be assigned")
            else:
                self._missing(node, value.text)
            return
        if value.kind not in ("function", "class", "property"):
            if value.kind == "unknown":
                verb = "was removed" if target.removed else "changed"
                self._say(False, node, f"{name} may be {target.name}, which {verb}: {value.text}")
            return
        parent = self.file.parents.get(node)
        if isinstance(parent, ast.Call) and parent.func is node:
            if value.kind == "property":
                self._say(False, node, f"{target.name} is now a property, and its value is called")
            else:
                self.verifier._check_call(self.file, parent, value, target)
        elif isinstance(parent, ast.Call) and _is_partial(parent, node):
            self.verifier._check_partial(self.file, parent, value, target)
        elif isinstance(parent, (*FUNCTIONS, ast.ClassDef)) and node in parent.decorator_list:
            call = ast.copy_location(ast.Call(node, [node], []), node)
            self.verifier._check_call(self.file, call, value, target)
        elif isinstance(parent, ast.ClassDef) and node in parent.bases:
            self._alias(parent.name, scope)
        elif isinstance(parent, ast.Subscript) and parent.value is node:
            above = self.file.parents.get(parent)
            if isinstance(above, ast.ClassDef) and parent in above.bases:
                self._alias(above.name, scope)
        elif isinstance(parent, (ast.Assign, ast.AnnAssign)) and parent.value is node:
            if self._followed(parent, scope):
                return
            self._say(False, node, f"{target.name} is stored as a value")
        elif not self._harmless(node, parent, value):
            self._say(False, node, f"{target.name} is used as a value")

    def _followed(self, node: Union[ast.Assign, ast.AnnAssign], scope: Scope) -> bool:
        """Whether an alias is the only binding of its name, so that its uses are followed."""
        names = node.targets if isinstance(node, ast.Assign) else [node.target]
        if len(names) != 1 or not isinstance(names[0], ast.Name):
            return False
        if len(scope.bindings.get(names[0].id, ())) != 1:
            return False
        self._alias(names[0].id, scope)
        return True

    def _harmless(self, node: ast.AST, parent: Optional[ast.AST], value: Value) -> bool:
        """Whether a value is only compared, described or named as a type."""
        if isinstance(parent, (ast.Attribute, ast.Compare, ast.FormattedValue, ast.Expr)):
            return True
        child = node
        while parent and not isinstance(parent, ast.stmt):
            if isinstance(parent, ast.Call) and child is not parent.func:
                return last_part(parent) in ("isinstance", "issubclass", "cast", "TypeVar")
            if isinstance(parent, ast.arg):
                return True
            if (
                isinstance(parent, ast.Subscript)
                and parent.slice is child
                and value.kind == "class"
            ):
                return True
            if isinstance(parent, ast.ExceptHandler) and parent.type is child:
                return True
            if type(parent).__name__ == "MatchClass":
                return True
            child, parent = parent, self.file.parents.get(parent)
        if isinstance(parent, FUNCTIONS):
            return child is parent.returns or child in ast.walk(parent.args)
        return isinstance(parent, ast.AnnAssign) and parent.annotation is child

    def _maybe(self, node: ast.Attribute, name: str, value: Value) -> None:
        """An attribute of the name of a target, of something that is not known."""
        named = [t for t in self.targets.values() if t.search == name and not t.imported]
        if not named:
            return
        if value.kind == "missing" and not self._related(value, named):
            return
        parent = self.file.parents.get(node)
        may = " or ".join(t.name for t in named)
        if isinstance(parent, ast.Call) and parent.func is node:
            star = any(isinstance(a, ast.Starred) for a in parent.args)
            double = any(k.arg is None for k in parent.keywords)
            keywords = [k.arg for k in parent.keywords if k.arg]
            binds = [
                not _bind_error(s, len(parent.args) - star, keywords, partial=star or double)
                for t in named
                for s in t.new
            ]
            would = (
                "it was removed"
                if not binds
                else ("it would bind" if all(binds) else "it would not bind")
            )
            self._say(False, node, f"call of .{name} may be of {may} ({would}): {value.text}")
        else:
            self._say(False, node, f".{name} may be {may}, used as a value: {value.text}")

    def _related(self, value: Value, named: list[_Target]) -> bool:
        """Whether a class without the method may stand for a subclass that has it."""
        owners = {(p, q.rpartition(".")[0]) for p, q in value.via}
        for target in named:
            if target.kind != "method":
                continue
            path, qualname = target.key
            file = self.after.at(path)
            cls = _definitions(file)[1].get(qualname.rpartition(".")[0]) if file else None
            if cls and owners & {d.key for d in self.after.lineage(cls)}:
                return True
        return False

    def _assigned(self, name: str) -> bool:
        return any(
            isinstance(node, ast.Attribute)
            and node.attr == name
            and isinstance(node.ctx, ast.Store)
            for node, _ in self.file.nodes
        )

    def _explicit_constructor(self, node: ast.Attribute, scope: Scope) -> None:
        """``super().__init__(...)`` and ``Class.__init__(self, ...)``."""
        parent = self.file.parents.get(node)
        owner = self.after.resolve(scope, node.value)
        if owner.kind not in ("super", "class", "instance"):
            return
        made = self.after.explicit_constructor(owner)
        hits = self._hits(made.via)
        if not hits:
            return
        name = hits[0].name
        if not (isinstance(parent, ast.Call) and parent.func is node):
            self._say(False, node, f"{name} is used as a value")
            return
        if not made.signatures:
            self._say(False, node, f"call of {name} cannot be checked: {made.why}")
            return
        self.verifier._bind(self.file, parent, made.signatures, name, made.why, hits[0])

    def _replace(self, node: ast.Call, scope: Scope) -> None:
        """``dataclasses.replace(x, ...)`` calls the constructor of x's class."""
        called = self.after.resolve(scope, node.func)
        if called.text not in ("dataclasses.replace", "copy.replace") or not node.args:
            return
        for target in self.targets.values():
            if target.kind != "constructor" or not node.keywords:
                continue
            accepted = {p for s in target.new for p in s.parameters}
            before = {p for s in target.old for p in s.parameters}
            given = {k.arg for k in node.keywords if k.arg}
            if given & before and not given <= accepted:
                self._say(False, node, f"replace() may be of {target.name}, which changed")

    def _string(self, node: ast.Constant) -> None:
        text = str(node.value)
        bare = text.rpartition(".")[2]
        named = [t for t in self.targets.values() if t.search == bare and not t.imported]
        if not named:
            return
        parent = self.file.parents.get(node)
        if isinstance(parent, ast.keyword):
            parent = self.file.parents.get(parent)
        if not isinstance(parent, ast.Call) or last_part(parent) == "hasattr":
            return
        if re.fullmatch(r"(torch\.[\w.]+|\w+)", text):
            self._say(False, node, f"{named[0].name} may be meant by a string")

    def _override(self, node: ast.AST, scope: Scope) -> None:
        assert isinstance(node, FUNCTIONS)
        owner = scope.node
        if node.name in ("__init__", "__new__") or not isinstance(owner, ast.ClassDef):
            return
        method = Definition(node, scope)
        cls = _class_of(method)
        if cls is None or method.flavour == "property":
            return
        base = self.after.class_attribute(cls, node.name, receiver=True, above=True)
        hits = [t for t in self._hits(base.via) if t.changed and not t.removed]
        if not hits or base.kind != "function":
            return
        value = Value("function", definitions=(method,), bound=method.flavour != "static")
        new = self.after.signatures(value)
        own = self.targets.get(method.key)
        self.verifier._check_override(
            self.file.path,
            node.lineno,
            hits[0].name,
            hits[0].old,
            hits[0].new,
            own.old if own else new,
            new,
        )


# Small questions


def _uses(file: Module) -> _Uses:
    uses = _Uses()
    lines = file.source.splitlines()
    for node, scope in file.nodes:
        where = scope.qualname
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses.names.setdefault((where, node.id), (node, scope))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            dotted = _dotted(node)
            if dotted:
                uses.attributes.setdefault((where, dotted), (node, scope))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = None if alias.name == "*" else alias.name
                uses.imports.setdefault((where, file.absolute(node), name), node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                uses.imports.setdefault((where, alias.name, None), node)
        elif isinstance(node, ast.Call):
            uses.calls.setdefault((where, _segment(lines, node)), []).append((node, scope))
    return uses


def _segment(lines: list[bytes], node: ast.Call) -> bytes:
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    text = lines[first : last + 1]
    text[-1] = text[-1][: node.end_col_offset]
    text[0] = text[0][node.col_offset :]
    return b"".join(part.strip() for part in text)


def _dotted(node: ast.AST) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 1)


_FROM = re.compile(rb"\bfrom\s+(?:torch|\.)[\w.\s]*\Z")
_IMPORTED = re.compile(rb"\s*\((?:[^)#]|#[^\n]*)*|(?:[^\\\n]|\\\r?\n)*")


def _imports(source: bytes, name: Callable[[bytes], object]) -> bool:
    """Whether a file may import a name from a module of the tree, as far as its text shows."""
    before, *chunks = source.split(b"import")
    for chunk in chunks:
        if _FROM.search(before[before.rfind(b"\n") + 1 :]):
            names = _IMPORTED.match(chunk)
            if names and (names[0].strip() == b"*" or name(names[0])):
                return True
        before = chunk
    return False


def _words(names: Iterable[str]) -> re.Pattern[bytes]:
    choice = b"|".join(re.escape(n.encode()) for n in sorted(names))
    return re.compile(rb"(?<!\w)(?:" + choice + rb")(?!\w)")


def _standard(top: str) -> bool:
    names: Optional[frozenset[str]] = getattr(sys, "stdlib_module_names", None)
    if names is not None:
        return top in names
    spec = find_spec(top)  # Python 3.9 has no list of its own modules
    return bool(spec and "-packages" not in (spec.origin or ""))


def _guarded(file: Module, node: ast.AST) -> bool:
    """Whether the code expects that the name may be missing."""
    name = re.escape(last_part(node).encode())
    asked = rb"(has|get|set)attr\([^()]*[\"']%b[\"']" % name
    if name and re.search(asked + rb"|\.%b\s*=[^=]" % name, file.source):
        return True
    child, parent = node, file.parents.get(node)
    while parent and not isinstance(child, FUNCTIONS):
        if isinstance(parent, ast.Try) and child in parent.body:
            for handler in parent.handlers:
                if handler.type is None:
                    return True
                types = handler.type
                caught = types.elts if isinstance(types, ast.Tuple) else [types]
                if _GUARDS & {last_part(c) for c in caught}:
                    return True
        child, parent = parent, file.parents.get(parent)
    return False


def _definitions(
    file: Module,
) -> tuple[dict[str, tuple[Definition, ...]], dict[str, Definition]]:
    functions: dict[str, tuple[Definition, ...]] = {}
    classes: dict[str, Definition] = {}
    for node, scope in file.nodes:
        if isinstance(node, FUNCTIONS):
            definition = Definition(node, scope)
            functions[definition.key[1]] = (*functions.get(definition.key[1], ()), definition)
        elif isinstance(node, ast.ClassDef):
            definition = Definition(node, scope)
            classes.setdefault(definition.key[1], definition)
    return functions, classes


def _class_of(method: Definition) -> Optional[Definition]:
    scope = method.scope
    if not isinstance(scope.node, ast.ClassDef) or scope.parent is None:
        return None
    outer = scope.parent
    return Definition(scope.node, outer.parent if outer.kind == "type" and outer.parent else outer)


def _shape(signatures: Signatures) -> list[list[tuple[str, object, bool]]]:
    empty = inspect.Parameter.empty
    return [
        [(p.name, p.kind, p.default is empty) for p in s.parameters.values()] for s in signatures
    ]


def _returned(value: Value) -> Optional[str]:
    for definition in value.definitions:
        if isinstance(definition.node, FUNCTIONS) and definition.node.returns:
            return ast.unparse(definition.node.returns)
    return None


def _length(annotation: str) -> Optional[int]:
    """How many values ``Tuple[A, B]`` has; None if that is not said."""
    if not annotation:
        return None
    node = ast.parse(annotation, mode="eval").body
    if isinstance(node, ast.Subscript) and last_part(node.value) in ("Tuple", "tuple"):
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not any(isinstance(i, ast.Constant) and i.value is Ellipsis for i in items):
            return len(items)
    return None


def _bind_error(
    signature: inspect.Signature,
    positional: int,
    keywords: Collection[str],
    partial: bool = False,
) -> str:
    """Why a call does not bind, or an empty string."""
    bind = signature.bind_partial if partial else signature.bind
    try:
        bind(*[None] * positional, **dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    return ""


def _takes_all(
    signature: inspect.Signature,
    positional: int,
    keywords: Collection[str],
    *,
    star: bool,
    double: bool,
) -> bool:
    """Whether a call binds whatever its ``*args`` and ``**kwargs`` hold."""
    kinds = {p.kind for p in signature.parameters.values()}
    if star and inspect.Parameter.VAR_POSITIONAL not in kinds:
        return False
    if double and inspect.Parameter.VAR_KEYWORD not in kinds:
        return False
    named = [
        p
        for p in signature.parameters.values()
        if p.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    return not _bind_error(signature, positional, keywords) and len(named) <= positional


def _left(signature: inspect.Signature, positional: int, keywords: Collection[str]) -> list[str]:
    """The parameters that a partial leaves without a value."""
    named = list(signature.parameters.values())
    places = [
        p
        for p in named
        if p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    given = {p.name for p in places[:positional]} | set(keywords)
    return [
        p.name
        for p in named
        if p.name not in given
        and p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def _forms(signature: inspect.Signature, *, least: bool) -> Iterator[tuple[int, list[str]]]:
    """Calls that a signature takes, by place and by name: the shortest, or the longest."""
    named = [
        p
        for p in signature.parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and (not least or p.default is p.empty)
    ]
    only = [p.name for p in named if p.kind is p.KEYWORD_ONLY]
    either = [p.name for p in named if p.kind is p.POSITIONAL_OR_KEYWORD]
    places = sum(p.kind is p.POSITIONAL_ONLY for p in named)
    yield places + len(either), only
    yield places, either + only


def _is_partial(call: ast.Call, node: ast.AST) -> bool:
    return last_part(call.func) in _PARTIALS and bool(call.args) and call.args[0] is node
