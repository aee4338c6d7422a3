"""Commits of a git checkout as a series of anchored patches, proven before it is written."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Optional

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from overlay.apatch import DIVIDER, FilePatch, Message, Patch, parse_message, print_patch
from overlay.errors import OverlayError, PatchError, TargetError, UsageError
from overlay.git import Git
from overlay.hunks import CompiledHunk
from overlay.importing import Anchored, anchor
from overlay.series import (
    ANCHORED,
    LINE_NUMBERED,
    Series,
    SeriesPatch,
    check_in_trees,
    load_series,
)
from overlay.tree import MemoryTree
from overlay.weave import Weaver

NAME_LENGTH = 60
VERSION_FILES = ("version.txt", "torch/version.py")
_FILE_MODES = {"100644", "100755"}
# Fields that load_series wants last, wherever a later edit of the message has put them.
_FIELDS = re.compile(r"^(Torch-Version|Adds|Tests): .*\n?", re.M)


@dataclass(frozen=True)
class Entry:
    """One file that a commit changes; None where there is none."""

    path: str
    before: Optional[bytes]
    after: Optional[bytes]


@dataclass(frozen=True)
class Commit:
    """A commit with what it changes."""

    oid: str
    parent: str
    author: str
    date: str
    subject: str
    body: str
    entries: tuple[Entry, ...]
    version: str
    """Of the tree: how PyTorch calls itself there."""

    def __str__(self) -> str:
        return f"{self.oid[:12]} ('{self.subject}')"


@dataclass(frozen=True)
class Imported:
    """What became of one commit."""

    commit: Commit
    patches: tuple[str, ...]
    hunks: int
    added: tuple[str, ...]
    line_numbered: Mapping[str, str] = field(default_factory=dict)
    """Files that a line-numbered patch changes, each with why."""


def import_commits(target: Path, revisions: Sequence[str], output: Path) -> list[Imported]:
    """Write commits as a series to a new folder, oldest first; all of it or nothing.

    Before anything is written, the patches are applied in memory to each commit's parent, and
    must give that commit's files byte for byte.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output} is not an empty folder: name a new one")
    commits = read_commits(target, revisions)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as folder:
            draft = Path(folder) / output.name
            done = _write(commits, draft)
            _prove(load_series(draft), done)
            draft.replace(output)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from None
    return done


# Reading commits


def read_commits(target: Path, revisions: Sequence[str]) -> list[Commit]:
    """The commits that revisions and ranges name, the oldest first."""
    if not target.is_dir():
        raise UsageError(f"{target}: no such folder: name a git checkout of PyTorch")
    git = Git(target)
    if git.attempt("rev-parse", "--git-dir").returncode:
        raise UsageError(f"{target} is not a git checkout: import reads commits")
    oids: list[str] = []
    for revision in revisions:
        named = git.attempt("rev-parse", "--revs-only", "--end-of-options", revision)
        names = named.stdout.decode().split()
        if named.returncode or not names:
            raise UsageError(f"{revision}: {target} has no such revision")
        if len(names) == 1 and not names[0].startswith("^"):
            oids.append(git.line("rev-parse", f"{names[0]}^{{commit}}"))
        else:
            listed = git.run("rev-list", "--first-parent", *names).decode().split()
            if not listed:
                raise UsageError(f"{revision}: no commits in this range: write OLDER..NEWER")
            oids += listed
    commits = {oid: _commit(git, oid) for oid in oids}
    bases = git.attempt("merge-base", "--octopus", *(c.parent for c in commits.values()))
    excluded = [f"^{base}" for base in bases.stdout.decode().split()]
    ordered = git.run("rev-list", "--topo-order", "--reverse", *commits, *excluded)
    return [commits[oid] for oid in ordered.decode().split() if oid in commits]


def _commit(git: Git, oid: str) -> Commit:
    raw = git.run("cat-file", "commit", oid)
    head, _, message = raw.partition(b"\n\n")
    lines = head.split(b"\n")
    headers = [line.split(b" ", 1) for line in lines if not line.startswith(b" ")]
    encoding = next((value.decode() for name, value in headers if name == b"encoding"), "utf-8")
    try:
        text = message.decode(encoding, "replace")
        author = next(v for name, v in headers if name == b"author").decode(encoding, "replace")
    except LookupError:
        raise UsageError(f"{oid[:12]}: its message is in an encoding unknown here") from None
    parents = [value.decode() for name, value in headers if name == b"parent"]
    subject, body = _message(text)
    shown = f"{oid[:12]} ('{subject}')"
    if len(parents) > 1:
        raise UsageError(f"{shown} is a merge: name the commits that it brings, without it")
    if not parents:
        raise UsageError(f"{shown} has no parent here: there is nothing to compare it with")
    if git.attempt("cat-file", "-e", parents[0]).returncode:
        raise TargetError(f"{shown}: its parent is not here: fetch more of the history first")
    who, seconds, zone = author.rsplit(" ", 2)
    return Commit(
        oid,
        parents[0],
        _address(who),
        _date(int(seconds), zone),
        subject,
        body,
        _entries(git, parents[0], oid, shown),
        _version(git, oid),
    )


def _message(text: str) -> tuple[str, str]:
    """A commit's title in one line, and the rest of its message."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    title, _, body = text.partition("\n\n")
    # A line that would end the message in a mail.
    body = re.sub(rf"^{DIVIDER}$", f" {DIVIDER}", body.strip("\n"), flags=re.M)
    return " ".join(title.split()) or "(no subject)", body


def _address(who: str) -> str:
    name, _, mail = who.partition(" <")
    if re.search(r'[\[\]\\()<>@,:;".]', name):
        name = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{name} <{mail}"


def _date(seconds: int, zone: str) -> str:
    offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:5]))
    zoned = timezone(-offset if zone.startswith("-") else offset)
    return format_datetime(datetime.fromtimestamp(seconds, zoned))


def _entries(git: Git, parent: str, oid: str, shown: str) -> tuple[Entry, ...]:
    listing = git.run(
        "diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", "--raw", parent, oid
    ).split(b"\0")[:-1]
    entries = []
    for head, name in zip(listing[::2], listing[1::2]):
        mode_before, mode_after, before, after, _ = head[1:].decode().split()
        path = os.fsdecode(name)
        check_in_trees(path, f"{shown}: a series carries files under torch/ and test/ alone")
        for mode in (mode_before, mode_after):
            if mode not in _FILE_MODES | {"000000"}:
                raise UsageError(f"{shown}: {path} is a link or a submodule: leave it out")
        was = git.run("cat-file", "blob", before) if int(mode_before) else None
        now = git.run("cat-file", "blob", after) if int(mode_after) else None
        if now is not None and mode_after != ("100644" if was is None else mode_before):
            raise UsageError(
                f"{shown}: {path} becomes {mode_after}: a patch carries contents alone"
            )
        entries.append(Entry(path, was, now))
    return tuple(entries)


def _version(git: Git, oid: str) -> str:
    for path in VERSION_FILES:
        found = git.attempt("cat-file", "blob", f"{oid}:{path}")
        if found.returncode == 0:
            text = found.stdout.decode(errors="replace")
            match = re.search(r"""^__version__ *(?:: *\w+ *)?= *['"](.+)['"]""", text, re.M)
            return match[1] if match else text.strip()
    raise UsageError(
        f"{git.folder} at {oid[:12]} is no PyTorch: it has neither {' nor '.join(VERSION_FILES)}"
    )


# Writing patches


def _write(commits: Sequence[Commit], folder: Path) -> list[Imported]:
    (folder / "patches").mkdir(parents=True)
    added: dict[str, bytes] = {}
    names: list[str] = []
    done = []
    for commit in commits:
        imported = _write_commit(commit, folder, added, names)
        names += imported.patches
        done.append(imported)
    if not names:
        raise UsageError("these commits change nothing: there is nothing to import")
    listing = "".join(f"{name}\n" for name in names)
    (folder / "patches" / "series").write_bytes(listing.encode())
    return done


def _write_commit(
    commit: Commit, folder: Path, added: dict[str, bytes], taken: Sequence[str]
) -> Imported:
    """Write a commit's patches; ``added`` are the files that the series has added so far."""
    files: list[FilePatch] = []
    own: dict[str, bytes] = {}
    rest: list[Entry] = []
    reasons: dict[str, str] = {}
    for entry in commit.entries:
        before, after = entry.before, entry.after
        if before is None and after is not None and entry.path not in added:
            own[entry.path] = added[entry.path] = after
            continue
        reason = _why_not_anchored(entry)
        if reason is None and before is not None and after is not None:
            found = anchor(before, after)
            if not _weaves(entry.path, before, found):
                found = Anchored((), before, ("its hunks could not be told from applied ones",))
            if found.hunks:
                files.append(FilePatch(entry.path, found.hunks))
            if found.content == after:
                continue
            entry = replace(entry, before=found.content)
            reason = "; ".join(found.left)
        rest.append(entry)
        reasons[entry.path] = reason or "it cannot be anchored"
    name = _name(commit.subject, taken)
    patches = []
    message = _mail(commit, list(own))
    for path, content in own.items():
        place = folder / "torch_overlay" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    if files or own:
        patches.append(f"{name}{ANCHORED}")
        text = print_patch(Patch(message, tuple(files)))
        _put(folder, patches[-1], text)
    if rest:
        patches.append(f"{name}{'-rest' if patches else ''}{LINE_NUMBERED}")
        _put(folder, patches[-1], f"{_mail(commit, [])}{DIVIDER}\n{_diff(rest)}")
    hunks = sum(len(file.hunks) for file in files)
    return Imported(commit, tuple(patches), hunks, tuple(own), reasons)


def _weaves(path: str, before: bytes, found: Anchored) -> bool:
    """Whether a file's hunks, as a patch by themselves, are pending before and applied after."""
    hunks = tuple(CompiledHunk.of(hunk, path) for hunk in found.hunks)
    patch = SeriesPatch("", "", Message((), "", ()), {path: hunks}, {}, SpecifierSet())
    weaver = Weaver(MemoryTree({path: before}))
    try:
        return not hunks or (
            weaver.apply(patch)
            and weaver.is_applied(patch)
            and weaver.changes() == {path: found.content}
        )
    except PatchError:
        return False


def _put(folder: Path, name: str, text: str) -> None:
    (folder / "patches" / name).write_bytes(text.encode())


def _why_not_anchored(entry: Entry) -> Optional[str]:
    if entry.after is None:
        return "the file is removed"
    if entry.before is None:
        return "an earlier patch adds it too"
    return None if entry.path.endswith(".py") else "not a Python file"


def _name(subject: str, taken: Sequence[str]) -> str:
    """A file name for a title, without numbers that would say an order."""
    words = re.findall(r"[a-z0-9]+", subject.lower())
    name = "-".join(words) or "patch"
    if len(name) > NAME_LENGTH:
        name = name[: NAME_LENGTH + 1].rpartition("-")[0] or name[:NAME_LENGTH]
    stems = {re.sub(r"(-rest)?\.a?patch$", "", other) for other in taken}
    unique = name
    while unique in stems:
        unique += "-too"
    return unique


def _mail(commit: Commit, added: Sequence[str]) -> Message:
    """A commit's message as a patch's, with the fields that a series needs."""
    headers = (("From", commit.author), ("Date", commit.date), ("Subject", commit.subject))
    body = commit.body + "\n" if commit.body else ""
    head = "".join(f"{name}: {value}\n" for name, value in headers)
    message, _ = parse_message(f"{head}\n{body}{DIVIDER}\n", commit.oid[:12])
    own = [match[0].rstrip("\n").split(": ", 1) for match in _FIELDS.finditer(message.body)]
    message = replace(
        message,
        body=_FIELDS.sub("", message.body),
        fields=(*message.fields, *((name, value) for name, value in own)),
    )
    fields = [
        (name, value) for name, value in message.fields if name.lower() != "adds" or value in added
    ]
    if not any(name.lower() == "torch-version" for name, _ in fields):
        fields.append(("Torch-Version", _specifier(commit)))
    named = message.field("Adds")
    fields += [("Adds", path) for path in added if path not in named]
    text = message.body
    if text.strip() and not text.endswith("\n\n"):
        text += "\n"
    return Message(headers, text, tuple(fields))


def _specifier(commit: Commit) -> str:
    """For the version that the commit stands on, and later ones: there a patch fits or fails."""
    try:
        version = Version(commit.version)
    except InvalidVersion:
        raise UsageError(f"{commit}: '{commit.version}' is not a version of PyTorch") from None
    return f">={version.major}.{version.minor}"


def _diff(entries: Sequence[Entry]) -> str:
    """A diff of files as git writes it; in its binary form where a patch cannot hold the text."""
    out = []
    for entry in entries:
        with tempfile.TemporaryDirectory(prefix="torch-overlay-") as name:
            folder = Path(name)
            for side, content in (("a", entry.before), ("b", entry.after)):
                (folder / side).mkdir()
                if content is not None:
                    place = folder / side / entry.path
                    place.parent.mkdir(parents=True)
                    place.write_bytes(content)
            contents = [c for c in (entry.before, entry.after) if c is not None]
            attributes = folder / "attributes"
            attributes.write_text("" if all(map(_is_text, contents)) else "* -diff\n")
            git = Git(folder, isolated=True, environment={"GIT_CEILING_DIRECTORIES": name})
            result = git.attempt(
                *("-c", f"core.attributesFile={attributes}", "-c", "core.quotePath=false"),
                *("-c", "core.autocrlf=false"),
                *("diff", "--no-index", "--no-renames", "--binary", "--full-index"),
                *("--src-prefix=", "--dst-prefix=", "a", "b"),
            )
            if result.returncode not in (0, 1):
                raise TargetError(f"git diff failed: {result.stderr.decode(errors='replace')}")
            out.append(result.stdout.decode())
    return "".join(out)


def _is_text(content: bytes) -> bool:
    try:
        return not re.search("[\r\0]", content.decode("utf-8"))
    except UnicodeDecodeError:
        return False


# The proof


def _prove(series: Series, done: Sequence[Imported]) -> None:
    """Apply each commit's patches to its parent's files; they must give its own."""
    by_name = {patch.name: patch for patch in series.patches}
    for imported in done:
        patches = [by_name[name] for name in imported.patches]
        commit = imported.commit
        before = {e.path: e.before for e in commit.entries if e.before is not None}
        after = {e.path: e.after for e in commit.entries}
        if _woven(patches, before, after) != after:
            raise OverlayError(f"{commit}: its patches do not give its files: nothing was written")


def _woven(
    patches: Sequence[SeriesPatch],
    before: Mapping[str, bytes],
    after: Mapping[str, Optional[bytes]],
) -> dict[str, Optional[bytes]]:
    weaver = Weaver(MemoryTree(before))
    for patch in patches:
        weaver.apply(patch)
    return {**{path: before.get(path) for path in after}, **weaver.changes()}
