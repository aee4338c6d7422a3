"""A checkout's own linters, run by lintrunner on what the series touches there."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

from overlay import operations
from overlay.errors import TargetError, UsageError
from overlay.git import Git
from overlay.series import Series
from overlay.targets import Checkout, Target

CONFIG = ".lintrunner.toml"
INSTALL = "install the tool with 'pip install torch-overlay[stack]'"
_MATCHED = re.compile(r"Linter '([^']+)' matched files: \[([^\]]*)\]")
# What linters that could not do their work report in place of findings.
_FAILED = ("Linter failed", "command-failed")
_ASK_VERSIONS = """
import importlib.metadata as metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True)
class LinterFinding:
    """What a linter says of one place."""

    linter: str
    path: Optional[str]
    line: Optional[int]
    text: str

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.path, self.line) if part is not None)
        return f"{place}: {self.linter}: {self.text}" if place else f"{self.linter}: {self.text}"


@dataclass(frozen=True)
class Linted:
    """What became of each linter that is for any of the files."""

    ran: tuple[str, ...]
    not_run: Mapping[str, str]
    """Linters that did not run, each with why."""
    findings: tuple[LinterFinding, ...]
    """In lines that the series changed."""
    elsewhere: tuple[LinterFinding, ...]
    """In other lines of the same files, which are as PyTorch has them."""
    other_versions: Mapping[str, str]
    """Linters that ran in another version than the checkout asks for."""

    def nothing_ran(self) -> TargetError:
        """The error where no linter ran."""
        if not self.not_run:
            return TargetError("no linter of the checkout is for the files that the series touches")
        return TargetError(
            "no linter of the checkout ran: 'lintrunner init' there installs them",
            [f"{code}: {why}" for code, why in self.not_run.items()],
        )


def lint_applied(target: Target, series: Series) -> Linted:
    """Run the linters of a checkout that a series is applied to."""
    if not isinstance(target, Checkout):
        raise UsageError(f"{target} is not a git checkout: its linters are run by lintrunner")
    base = operations.commit_below(target, series)
    if base is None or base == target.head:
        raise TargetError(
            f"{target}: the series is not what the topmost commits do:"
            f" 'torch-overlay apply {target.root}' first"
        )
    return lint_checkout(target.root, base)


def lint_checkout(root: Path, base: str, head: str = "HEAD") -> Linted:
    """Run the linters of a checkout on the files that differ between two commits.

    Raises TargetError if there are none, lintrunner is not installed, or it fails.
    """
    linters = _linters(root)
    git = Git(root)
    listing = git.run("diff", "--name-only", "--diff-filter=d", "--no-renames", "-z", base, head)
    paths = [os.fsdecode(path) for path in listing.split(b"\0")[:-1]]
    # Those without their tool run too, and do no harm: lintrunner alone knows which are for what.
    said = _run(root, paths)
    matched = {code for code, files in _MATCHED.findall(said.stderr) if files}
    if said.returncode not in (0, 1) or not _MATCHED.search(said.stderr):
        reason = re.search(r"^error:\s*(.*)", said.stderr, re.M)
        raise TargetError(f"lintrunner failed in {root}: {reason[1] if reason else 'no reason'}")
    not_run, other_versions = _unlike_asked(root, linters, matched)
    changed = _changed_lines(git, base, head)
    found: list[LinterFinding] = []
    elsewhere: list[LinterFinding] = []
    for line in said.stdout.splitlines():
        value = json.loads(line)
        if value["code"] in not_run:
            continue
        if value["name"] in _FAILED:
            not_run[value["code"]] = _why(value["description"])
            continue
        finding = _finding(root, value)
        (found if _is_ours(value, finding, changed) else elsewhere).append(finding)
    ran = tuple(code for code in linters if code in matched and code not in not_run)
    return Linted(
        ran,
        {code: not_run[code] for code in linters if code in not_run},
        _in_order(finding for finding in found if finding.linter in ran),
        _in_order(finding for finding in elsewhere if finding.linter in ran),
        {code: text for code, text in other_versions.items() if code in ran},
    )


def _in_order(findings: Iterable[LinterFinding]) -> tuple[LinterFinding, ...]:
    return tuple(sorted(findings, key=lambda f: (f.path or "", f.line or 0, f.linter, f.text)))


def _linters(root: Path) -> dict[str, Mapping[str, Any]]:
    toml = _toml()
    try:
        with open(root / CONFIG, "rb") as file:
            value = toml.load(file)
        return {linter["code"]: linter for linter in value["linter"]}
    except FileNotFoundError:
        raise TargetError(f"{root} has no {CONFIG}, so there is nothing to run") from None
    except (ValueError, KeyError, TypeError) as error:
        raise TargetError(f"{root / CONFIG} cannot be read: {error}") from None


def _toml() -> ModuleType:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        return import_module(name)
    except ImportError:
        raise TargetError(f"{name} is not installed, which reads {CONFIG}: {INSTALL}") from None


def _run(root: Path, paths: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = _environment()
    program = shutil.which("lintrunner", path=environment["PATH"])
    if program is None:
        raise TargetError(f"lintrunner is not installed: {INSTALL}")
    return subprocess.run(
        [program, "--configs", CONFIG, "-vv", "--output", "json", "--", *paths],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _environment() -> dict[str, str]:
    # Last on the path, so that what a user has put there comes first.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
    return {**os.environ, "PATH": path}


def _unlike_asked(
    root: Path, linters: Mapping[str, Mapping[str, Any]], codes: Iterable[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Linters whose tools are not installed, and those with others than the checkout pins.

    Asked of the packages, since an adapter may take a tool that does not start for a clean file.
    """
    # Linters that share an adapter share its packages: one of them has the init command.
    pins: dict[str, dict[str, str]] = {}
    for linter in linters.values():
        for argument in linter.get("init_command", ()):
            pin = re.fullmatch(r"([\w.-]+)==([^;\s]+)", argument)
            if pin:
                pins.setdefault(_adapter(linter), {})[pin[1]] = pin[2]
    there: dict[str, dict[str, str]] = {}
    missing, other = {}, {}
    for code in codes:
        linter = linters[code]
        binaries = [a.partition("=")[2] for a in linter["command"] if "=.lintbin/" in a]
        gone = [binary for binary in binaries if not (root / binary).exists()]
        wanted = pins.get(_adapter(linter), {})
        if wanted:
            python = linter["command"][0]
            if python not in there:
                names = {name for each in pins.values() for name in each}
                there[python] = _versions(root, python, sorted(names))
            gone += [name for name in wanted if name not in there[python]]
            unlike = [
                f"{name} {there[python][name]} in place of {version}"
                for name, version in wanted.items()
                if there[python].get(name, version) != version
            ]
            if unlike:
                other[code] = ", ".join(unlike)
        if gone:
            missing[code] = f"not installed: {', '.join(gone)}"
    return missing, other


def _adapter(linter: Mapping[str, Any]) -> str:
    """What tells linters of one tool: the script that runs it."""
    command = [part for part in linter["command"] if part != "--"]
    return str(next((part for part in command[1:] if not part.startswith("-")), command[0]))


def _versions(root: Path, python: str, names: Sequence[str]) -> dict[str, str]:
    try:
        done = subprocess.run(
            [python, "-c", _ASK_VERSIONS, *names],
            cwd=root,
            env=_environment(),
            capture_output=True,
            check=True,
        )
        return dict(json.loads(done.stdout))
    except (OSError, subprocess.CalledProcessError, ValueError):
        return {}  # So that all of them count as missing.


def _why(description: str) -> str:
    """The last line of what went wrong, which is the exception in a trace."""
    lines = [line.strip() for line in description.splitlines() if line.strip()]
    lines = [line for line in lines if line != "STDOUT:"]
    return lines[-1].partition(" with args: ")[0] if lines else "it failed and does not say why"


def _finding(root: Path, value: Mapping[str, Any]) -> LinterFinding:
    path = value["path"]
    if path is not None and os.path.isabs(path):
        path = os.path.relpath(path, root)
    text = " ".join((value.get("description") or "").split())
    return LinterFinding(value["code"], path, value["line"], f"{value['name']}: {text}")


def _changed_lines(git: Git, base: str, head: str) -> dict[str, set[int]]:
    """The lines that one commit has and the other has not, by file."""
    options = ("--unified=0", "--no-renames", "--no-ext-diff", "--no-color")
    text = git.run("-c", "core.quotePath=false", "diff", *options, base, head).decode(
        "utf-8", "replace"
    )
    found: dict[str, set[int]] = {}
    path = ""
    for line in text.splitlines():
        if line.startswith("+++ b/"):
            path = line[len("+++ b/") :]
        hunk = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
        if hunk:
            start, count = int(hunk[1]), int(hunk[2] or 1)
            # Where lines only go, the ones around them are the place.
            lines = range(start, start + count) if count else (start, start + 1)
            found.setdefault(path, set()).update(lines)
    return found


def _is_ours(
    value: Mapping[str, Any], finding: LinterFinding, changed: Mapping[str, set[int]]
) -> bool:
    if finding.path is None:
        return True
    lines = changed.get(finding.path, set())
    original, replacement = value.get("original"), value.get("replacement")
    if original is not None and replacement is not None:
        matcher = difflib.SequenceMatcher(None, original.splitlines(), replacement.splitlines())
        return any(
            tag != "equal" and lines.intersection(range(start + 1, max(stop, start + 1) + 1))
            for tag, start, stop, _, _ in matcher.get_opcodes()
        )
    return finding.line is None or finding.line in lines
