"""What must hold of a series' own files beyond being readable.

A patch quotes as few tokens as say what it means: each quoted token is one that a
later PyTorch can change, and PyTorch's code does not belong in a series.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple

from overlay.apatch import Hunk
from overlay.errors import UsageError
from overlay.pattern import Edit, Literal, Pattern
from overlay.series import Series, SeriesPatch, check_in_trees, load_series, parse_version

QUOTED_RUN = 10
"""How many tokens a hunk may quote in a row that stay as they are."""
KEPT_IN_EDIT = 2
"""How many tokens an edit may take away only to put them back, at either end."""

FIELDS = frozenset(
    "Origin Bug Forwarded Applied-Upstream Last-Update Reviewed-By Torch-Version Adds Tests"
    " Co-authored-by Signed-off-by ghstack-source-id ghstack-comment-id Pull-Request"
    " Pull-Request-resolved".split()
)


class LintFinding(NamedTuple):
    """One fault: in which file of the series, and what to do."""

    path: str
    message: str


def lint_series(root: Path) -> list[LintFinding]:
    """All faults of a series."""
    try:
        series = load_series(root)
    except UsageError as error:
        return [LintFinding("patches/series", error.message)]
    findings = [*_unused(series), *_order(series)]
    for patch in series.patches:
        path = f"patches/{patch.name}"
        findings += [LintFinding(path, message) for message in _fields(patch)]
        for hunks in patch.hunks.values():
            for hunk in hunks:
                for message in _quotes(hunk.hunk, hunk.before, hunk.after):
                    findings.append(LintFinding(path, f"@@ {hunk.hunk.symbol}: {message}"))
    return findings


def _unused(series: Series) -> Iterator[LintFinding]:
    listed = {patch.name for patch in series.patches}
    folder = series.root / "patches"
    for name in _files(folder):
        if name != "series" and name not in listed:
            yield LintFinding(f"patches/{name}", "not listed in patches/series: list or remove it")
    added: dict[str, list[SeriesPatch]] = {}
    for patch in series.patches:
        for path in patch.added:
            for other in added.setdefault(path, []):
                if _may_meet(patch, other):
                    message = f"Adds: {path}: {other.name} adds it too: leave it to one of them"
                    yield LintFinding(f"patches/{patch.name}", message)
            added[path].append(patch)
    for path in _files(series.root / "torch_overlay"):
        if path not in added:
            yield LintFinding(f"torch_overlay/{path}", "no patch adds it: name it in an Adds field")


def _files(folder: Path) -> list[str]:
    """The files below a folder, without what tools leave there (caches)."""
    paths = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    hidden = re.compile(r"\.|__pycache__$")
    return sorted(p.as_posix() for p in paths if not any(hidden.match(part) for part in p.parts))


def _order(series: Series) -> Iterator[LintFinding]:
    """Find patches that use a module, or an imported name, which only a later patch adds."""
    later: dict[str, list[SeriesPatch]] = {}
    names: list[tuple[SeriesPatch, dict[str, set[str]]]] = []
    for patch in reversed(series.patches):
        text = "\n".join([patch.text, *(c.decode(errors="replace") for c in patch.added.values())])
        for importer, imported in names:
            if not _may_meet(patch, importer):
                continue
            for path, words in imported.items():
                written = _written(patch, path)
                used = (set(re.findall(r"\w+", written)) & words) - _imported(written)
                if used:
                    message = (
                        f"uses {min(used)}, which {importer.name} imports later: put that one first"
                    )
                    yield LintFinding(f"patches/{patch.name}", message)
        for path, adders in later.items():
            adder = next((other for other in adders if _may_meet(patch, other)), None)
            if adder is None or path in patch.added:
                continue
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            package, _, last = module.rpartition(".")
            uses = rf"import\s+{re.escape(module)}\b|from\s+{re.escape(module)}\s+import"
            uses += rf"|from\s+{re.escape(package)}\s+import\s[^\n]*\b{re.escape(last)}\b"
            if path.endswith(".py") and re.search(uses, text):
                message = f"imports {module}, which {adder.name} adds later: put that one first"
                yield LintFinding(f"patches/{patch.name}", message)
        for path in patch.added:
            later.setdefault(path, []).insert(0, patch)
        names.append((patch, {path: _imported(_written(patch, path)) for path in patch.hunks}))


def _may_meet(one: SeriesPatch, other: SeriesPatch) -> bool:
    """Whether some version gets both patches: one that either names, or one beside it."""
    named = {
        parse_version(specifier.version.removesuffix(".*"))
        for patch in (one, other)
        for specifier in patch.versions
    }
    versions = {"0", *map(str, named)}
    for version in named:
        release = ".".join(map(str, version.release))
        *start, last = version.release
        below = ".".join(map(str, (*start, last - 1, 99999))) if last else ""
        versions |= {f"{release}a0", f"{release}.0.1", *filter(None, (below,))}
    return any(one.takes(version) and other.takes(version) for version in versions)


def _written(patch: SeriesPatch, path: str) -> str:
    """The code that a patch adds to a file."""
    lines = (line for hunk in patch.hunks.get(path, ()) for line in hunk.hunk.lines)
    return "".join(f"{line.text}\n" for line in lines if line.mark == "+")


def _imported(text: str) -> set[str]:
    """The names that whole imports in a fragment bind."""
    imports = re.findall(r"^\s*from\s+\S+\s+import\s+(\([^)]*\)|[^\n]*)", text, re.M)
    parts = (part.split() for found in imports for part in re.sub(r"[()]", " ", found).split(","))
    return {words[-1] for words in parts if words}


def _fields(patch: SeriesPatch) -> Iterator[str]:
    message = patch.message
    for header in ("From", "Date"):
        if not message.header(header):
            yield f"no {header}: the commit that the patch becomes takes it from there"
    date = message.header("Date")
    if date:
        try:
            parsedate_to_datetime(date)
        except ValueError:
            yield f"Date: '{date}' is not a mail's date, such as Mon, 5 Dec 2022 10:00:00 +0000"
    updated = next(iter(message.field("Last-Update")), "")
    if updated and not re.fullmatch(r"\d{4}-\d\d-\d\d", updated):
        yield f"Last-Update: '{updated}' is not a day, such as 2022-12-05"
    if not message.body.strip():
        yield "no message: say why, in full sentences"
    for name, _ in message.fields:
        if name not in FIELDS:
            yield f"field {name} is not known: write one of {', '.join(sorted(FIELDS))}"
    if not message.field("Torch-Version"):
        yield "no Torch-Version: say for which versions of PyTorch it is, such as >=2.1"
    for path in message.field("Tests"):
        try:
            check_in_trees(path, "Tests")
        except UsageError as error:
            yield error.message


def _quotes(hunk: Hunk, before: Pattern, after: Pattern) -> Iterator[str]:
    run: list[Literal] = []
    for element in (*before.elements, None):
        if isinstance(element, Literal) and element.mark == " ":
            run.append(element)
            continue
        if len(run) > QUOTED_RUN:
            quoted = " ".join(literal.text for literal in run[:4])
            yield (
                f"quotes {len(run)} tokens in a row that stay ('{quoted} ...'):"
                f" {QUOTED_RUN} are enough, use '...' for the rest"
            )
        run = []
    for removal, addition in zip(before.edits, after.edits):
        old, new = _keys(before, removal), _keys(after, addition)
        for kept in (_common(old, new), _common(old[::-1], new[::-1])):
            if old and new and kept > KEPT_IN_EDIT:
                yield (
                    f"takes {kept} tokens away only to put them back"
                    f" (line {_first(before, removal)!r}): quote only what changes"
                )
    for line in hunk.lines:
        if line.mark != "+" and not hunk.is_docstring and line.text.lstrip().startswith("#"):
            yield f"quotes a comment, which says nothing there: {line.text.strip()!r}"


def _keys(pattern: Pattern, edit: Edit) -> list[object]:
    elements = pattern.elements[edit.start : edit.stop]
    return [element.key for element in elements if isinstance(element, Literal)]


def _common(one: list[object], other: list[object]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def _first(pattern: Pattern, edit: Edit) -> str:
    texts = [e.text for e in pattern.elements[edit.start : edit.stop] if isinstance(e, Literal)]
    return " ".join(texts[:6])
