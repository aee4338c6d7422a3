"""What installed torches and source trees have in common."""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Optional

from overlay.errors import TargetError, UsageError
from overlay.targets.journal import Change, Journal, digest, read_file
from overlay.targets.lock import lock_file
from overlay.tree import ChangedTree, Tree

_FORMAT = 1
_PLACES = ("torch/", "test/")


@dataclass(frozen=True)
class AppliedPatch:
    """A patch of the applied series: its name, and the digest of its text."""

    name: str
    digest: str


@dataclass(frozen=True)
class FileRecord:
    """What became of one file: digests are None where there is no file."""

    before: Optional[str]
    after: Optional[str]
    size: int = 0
    mode: Optional[int] = None
    mtime_ns: Optional[int] = None


@dataclass(frozen=True)
class Record:
    """What this tool applied to a target."""

    series: tuple[AppliedPatch, ...]
    files: Mapping[str, FileRecord]
    tool_version: str = ""
    applied: str = ""
    # The digest of the wheel's own RECORD; None for a source tree.
    wheel_record: Optional[str] = None
    format: int = field(default=_FORMAT)


@dataclass(frozen=True)
class FolderTree:
    """A tree on disk, read when asked."""

    root: Path

    def read(self, path: str) -> Optional[bytes]:
        return read_file(self.root / path)

    def python_files(self) -> Iterator[str]:
        found = []
        for folder, names, files in os.walk(self.root / "torch"):
            names[:] = [n for n in names if n != "__pycache__"]
            relative = Path(folder).relative_to(self.root).as_posix()
            found += [f"{relative}/{name}" for name in files if name.endswith(".py")]
        return iter(sorted(found))


class Target(ABC):
    """A torch whose files this tool changes."""

    kind: str
    root: Path
    version: str
    tree: Tree
    #: The folder of this tool's own files, relative to ``root``.
    _state: Optional[str]
    #: How long another tool may hold the target before this one gives up, in seconds.
    wait = 10.0

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = FolderTree(root)
        self._locks = 0

    def __str__(self) -> str:
        return f"torch {self.version} in {self.root}"

    @abstractmethod
    def carries(self, path: str) -> bool:
        """Whether this kind of target has a place for such a file."""

    @abstractmethod
    def refusal(self) -> Optional[str]:
        """Why this target cannot be changed at all, in one line; None if it can."""

    @abstractmethod
    def is_pristine(self, path: str) -> bool:
        """Whether the file is proven to be as PyTorch made it."""

    @abstractmethod
    def local_changes(self, paths: Iterable[str]) -> list[str]:
        """Those of the files that were changed neither by PyTorch nor by this tool."""

    def describe_edit(self, path: str) -> str:
        """What is to be said of one of `local_changes`."""
        return (
            f"{path} has changes that are neither PyTorch's nor the series':"
            " take them out, or install that torch anew"
        )

    def in_the_way(self, changes: Mapping[str, Optional[bytes]]) -> list[str]:
        """Files at the places of added ones that `tree` does not show."""
        return []

    @abstractmethod
    def compile_errors(self, files: Mapping[str, bytes]) -> list[tuple[str, int, str]]:
        """Path, line and message for each Python file that does not compile."""

    @abstractmethod
    def _reinstall(self) -> str:
        """The way to get the files of this target back to what PyTorch made them."""

    def _own_files(self, record: Record, state: Mapping[str, bytes]) -> dict[str, bytes]:
        """Further files that go with a record, given those that do in any case."""
        return {}

    def _edited_outside(self, record: Record) -> list[str]:
        """Those of `_own_files` that were edited since."""
        return []

    def _refresh(self) -> None:  # noqa: B027
        """Forget what was read from disk."""

    def check_path(self, path: str) -> None:
        """Raise unless a series may name this path, and its place is no link."""
        parts = path.split("/")
        if (
            not path.startswith(_PLACES)
            or re.search(r"[\\\x00-\x1f\x7f]", path)
            or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
            or path.lower().endswith(".pth")
        ):
            raise UsageError(
                f"{path!r} is not a path that a series may name: only files under torch/ and test/,"
                " with forward slashes, no '..', no .pth and nothing under .git/"
            )
        self._refuse_links(path)

    def _refuse_links(self, path: str) -> None:
        place = self.root
        for part in path.split("/"):
            place /= part
            if place.is_symlink():
                raise TargetError(
                    f"{place.relative_to(self.root)} in {self.root} is a link to"
                    f" {os.readlink(place)}: links are not followed;"
                    " put the file itself there (uv: --link-mode=copy)"
                )

    def record(self) -> Optional[Record]:
        """What this tool applied here before, or None."""
        if self._state is None:
            return None
        path = self.root / self._state / "record.json"
        content = read_file(path)
        if content is None:
            return None
        try:
            data = json.loads(content)
            if data["format"] != _FORMAT:
                raise TargetError(
                    f"{path} is of format {data['format']}, this tool knows {_FORMAT}:"
                    " use the torch-overlay that wrote it"
                )
            data["series"] = tuple(AppliedPatch(**patch) for patch in data["series"])
            data["files"] = {p: FileRecord(**entry) for p, entry in data["files"].items()}
            return Record(**data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TargetError(f"{path} cannot be read ({error}); {self._reinstall()}") from error

    def originals(self) -> Tree:
        """The tree as it was before this tool applied anything."""
        record = self.record()
        if record is None:
            return self.tree
        return ChangedTree(
            self.tree, {path: self._original(f.before) for path, f in record.files.items()}
        )

    @property
    def interrupted(self) -> bool:
        """Whether a write was killed midway: the next write or `locked` undoes it."""
        return self._state is not None and self._journal().interrupted

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other tools away, and recover what was interrupted; may be nested.

        Raises TargetError if another tool does not let go in time.
        """
        if self._locks:
            yield
            return
        reason = self.refusal()
        if reason is not None:
            raise TargetError(reason)
        assert self._state is not None
        for name in ("originals", "journal"):
            self._refuse_links(f"{self._state}/{name}")
        self._require_writable([self._state])
        with lock_file(self.root / self._state / "lock", self.wait):
            self._locks += 1
            try:
                self._refresh()
                self._journal().recover()
                yield
            finally:
                self._locks -= 1

    def write(self, changes: Mapping[str, Optional[bytes]], series: Sequence[AppliedPatch]) -> None:
        """Change files, all or none, and keep a record of it; None removes a file.

        The changes are to what is there now; ``series`` is all that is applied afterwards.
        """
        for path in changes:
            self.check_path(path)
            if not self.carries(path):
                raise UsageError(f"{path}: an installed torch has no place for this file")
        with self.locked():
            record = self.record()
            self._refuse_edited(self.local_changes(changes), record)
            self._change(changes, record, series)

    def revert(self) -> list[str]:
        """Restore every file that this tool changed; return their paths.

        Raises TargetError, and changes nothing, if one of them was edited since.
        """
        if not self.interrupted and self.record() is None:
            return []
        with self.locked():
            record = self.record()
            if record is None:
                return []
            for path in record.files:
                self.check_path(path)
            self._refuse_edited(self.edited_since(), record)
            originals = {p: self._original(f.before) for p, f in record.files.items()}
            self._change(originals, record, ())
            return sorted(record.files)

    def _change(
        self,
        changes: Mapping[str, Optional[bytes]],
        record: Optional[Record],
        series: Sequence[AppliedPatch],
    ) -> None:
        old = record.files if record else {}
        # A file that someone restored by hand needs no record any more.
        files = {p: f for p, f in old.items() if digest(self.tree.read(p)) != f.before}
        steps = []
        originals: dict[str, bytes] = {}
        for path, content in sorted(changes.items()):
            now = self.tree.read(path)
            entry = files.get(path) or self._entry(path, now)
            after = digest(content)
            if now is not None and digest(now) == entry.before:
                originals[str(entry.before)] = now
            if after == entry.before:
                files.pop(path, None)
                step = Change(path, content, entry.mode, entry.mtime_ns)
            else:
                files[path] = replace(entry, after=after, size=len(content or b""))
                step = Change(path, content, entry.mode if now is None else None)
            if content != now:
                steps.append(step)
        if not steps and tuple(series) == (record.series if record else ()):
            return
        own = self._state_files(files, series, record, originals)
        for path in sorted({*own, *self._present_state()}):
            if self.tree.read(path) != own.get(path):
                steps.append(Change(path, own.get(path)))
        self._require_writable(step.path for step in steps)
        self._journal().run(steps)
        self._refresh()

    def _state_files(
        self,
        files: Mapping[str, FileRecord],
        series: Sequence[AppliedPatch],
        old: Optional[Record],
        originals: Mapping[str, bytes],
    ) -> dict[str, bytes]:
        """All files, by path, that go with these changed files and this series."""
        wheel_record = self._wheel_record(old)
        if not files and not series:
            # Reverted: of our own files only the wheel's RECORD stays.
            return self._bare_files(wheel_record)
        record = Record(
            series=tuple(series),
            files=files,
            tool_version=_tool_version(),
            applied=_now(),
            wheel_record=digest(wheel_record),
        )
        text = json.dumps(asdict(record), indent=1, sort_keys=True) + "\n"
        state = {f"{self._state}/record.json": text.encode()}
        for before in {f.before for f in files.values() if f.before is not None}:
            content = originals[before] if before in originals else self._original(before)
            assert content is not None
            state[self._kept(before)] = content
        if wheel_record is not None:
            assert record.wheel_record is not None
            state[self._kept(record.wheel_record)] = wheel_record
        return {**state, **self._own_files(record, state)}

    def _wheel_record(self, record: Optional[Record]) -> Optional[bytes]:
        """The wheel's own RECORD, where there is one."""
        return None

    def _bare_files(self, wheel_record: Optional[bytes]) -> dict[str, bytes]:
        return {}

    def _present_state(self) -> list[str]:
        """The files with which this tool keeps its record, as they are on disk."""
        kept = self.root / f"{self._state}/originals"
        names = sorted(os.listdir(kept)) if kept.is_dir() else []
        return [f"{self._state}/record.json", *(self._kept(name) for name in names)]

    def _entry(self, path: str, now: Optional[bytes]) -> FileRecord:
        if now is None:
            return FileRecord(None, None)
        stat = (self.root / path).stat()
        return FileRecord(digest(now), None, mode=stat.st_mode & 0o7777, mtime_ns=stat.st_mtime_ns)

    def edited_since(self) -> list[str]:
        """The files that were changed after this tool had changed them."""
        record = self.record()
        return [p for p, f in record.files.items() if not self._known(p, f)] if record else []

    def put_back(self, paths: Iterable[str]) -> list[str]:
        """Those of the files that this tool changed and someone else made what they were before."""
        record = self.record()
        files = record.files if record else {}
        return [p for p in paths if p in files and digest(self.tree.read(p)) == files[p].before]

    def _known(self, path: str, entry: FileRecord) -> bool:
        # As before is known too: someone may have restored it by hand.
        return digest(self.tree.read(path)) in (entry.after, entry.before)

    def _refuse_edited(self, edited: Sequence[str], record: Optional[Record]) -> None:
        edited = [*edited, *(self._edited_outside(record) if record else [])]
        if edited:
            raise TargetError(
                f"{edited[0]} in {self.root} has changes that are not from this tool;"
                f" {self._reinstall()}",
                [f"{path} was changed too" for path in edited[1:]],
            )

    def _original(self, before: Optional[str]) -> Optional[bytes]:
        if before is None:
            return None
        path = self.root / self._kept(before)
        content = read_file(path)
        if digest(content) != before:
            raise TargetError(f"{path} is missing or damaged; {self._reinstall()}")
        return content

    def _kept(self, before: str) -> str:
        # Named by content: without ".py", so that nothing compiles or imports it.
        return f"{self._state}/originals/{before}"

    def _journal(self) -> Journal:
        return Journal(self.root, self.root / f"{self._state}/journal")

    def _require_writable(self, paths: Iterable[str]) -> None:
        for path in paths:
            folder = (self.root / path).parent
            while not folder.is_dir():
                folder = folder.parent
            effective = os.access in os.supports_effective_ids
            if not os.access(folder, os.W_OK | os.X_OK, effective_ids=effective):
                raise TargetError(
                    f"{folder} is not writable; run as the user that owns it,"
                    " or use a venv of your own"
                )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _tool_version() -> str:
    from importlib import metadata  # slow to import, and needed for writing only

    try:
        return metadata.version("torch-overlay")
    except metadata.PackageNotFoundError:
        return "unknown"
