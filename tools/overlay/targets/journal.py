"""Changes to several files that are either all made or not made at all, whatever happens midway.

What stands there is kept first, then every new file is written beside its place, then all are
renamed into place. A manifest says how far that got: until it says ``done``, recovery puts back
what was kept; from then on, recovery only tidies up. No file is ever edited in place.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Optional

from overlay.errors import TargetError


@dataclass(frozen=True)
class Change:
    """A new content for one file, or None to remove it.

    Without a mode the file keeps the one it has; a new file gets that of any new file.
    """

    path: str
    content: Optional[bytes]
    mode: Optional[int] = None
    mtime_ns: Optional[int] = None


@dataclass(frozen=True)
class _Entry:
    path: str
    before: Optional[str]
    after: Optional[str]


def digest(content: Optional[bytes]) -> Optional[str]:
    """The SHA-256 of a content in hexadecimal, or None where there is no file."""
    return None if content is None else hashlib.sha256(content).hexdigest()


def read_file(path: Path) -> Optional[bytes]:
    """The content of a file, or None if there is no such file."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


class Journal:
    """Makes changes to files under ``root``; keeps its notes in ``folder`` while it does."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self._manifest = folder / "manifest.json"

    @property
    def interrupted(self) -> bool:
        """Whether a run was killed midway, so that `recover` has something to do."""
        return self._manifest.exists()

    def run(self, changes: Sequence[Change]) -> None:
        """Make all the changes; the caller holds the lock and has called `recover`.

        Raises TargetError if they cannot be made, and then none is.
        """
        entries = [
            _Entry(c.path, digest(read_file(self.root / c.path)), digest(c.content))
            for c in changes
        ]
        try:
            self._prepare(entries, changes)
            for entry in entries:
                place = self.root / entry.path
                if entry.after is None:
                    place.unlink()
                else:
                    os.replace(_beside(place), place)
            _sync_folders({(self.root / e.path).parent for e in entries})
            self._write_manifest(entries, [], done=True)
        except BaseException as error:
            undone = self._recover_after(error)
            if not isinstance(error, OSError):
                raise
            if undone:
                raise TargetError(f"cannot write {_reason(error)}; nothing was changed") from error
        else:
            self._finish(entries)

    def recover(self) -> bool:
        """End what a killed run left: undo it, or tidy up if it was done. True if undone.

        Raises TargetError, and changes nothing, if a file that would have to be put back was
        changed by someone else in the meantime.
        """
        try:
            manifest = json.loads(self._manifest.read_text())
        except FileNotFoundError:
            # Killed before the manifest was there, or after all was ended: only rubbish is left.
            shutil.rmtree(self.folder, ignore_errors=True)
            return True
        entries = [_Entry(**entry) for entry in manifest["entries"]]
        if manifest["done"]:
            self._finish(entries)
            return False
        self._undo(entries, manifest["made"])
        return True

    def _recover_after(self, error: BaseException) -> bool:
        try:
            return self.recover()
        except OSError as second:
            raise TargetError(
                f"cannot write {_reason(error)}, nor undo what was begun: {_reason(second)};"
                " once that is mended, any torch-overlay command that writes will undo it"
            ) from error

    def _prepare(self, entries: Sequence[_Entry], changes: Sequence[Change]) -> None:
        self.folder.mkdir(parents=True)
        made = self._missing_folders(c.path for c in changes if c.content is not None)
        self._write_manifest(entries, made, done=False)
        for name in made:
            (self.root / name).mkdir()
        for number, (entry, change) in enumerate(zip(entries, changes)):
            place = self.root / entry.path
            if entry.before is not None:
                _keep(place, self.folder / str(number))
            if change.content is not None:
                _write_beside(place, change, place if entry.before is not None else None)
        _sync_folders({self.folder})

    def _undo(self, entries: Sequence[_Entry], made: Sequence[str]) -> None:
        begun: list[tuple[int, _Entry]] = []
        foreign: list[tuple[int, _Entry]] = []
        for number, entry in enumerate(entries):
            now = digest(read_file(self.root / entry.path))
            if now != entry.before:
                (begun if now == entry.after else foreign).append((number, entry))
        if begun and foreign:
            raise TargetError(
                f"cannot undo an interrupted change: {foreign[0][1].path} in {self.root}"
                " was changed since; install torch anew (a checkout: restore it), then remove"
                f" {self.folder.parent}"
            )
        # With nothing begun, other content means that someone has installed torch anew.
        for number, entry in begun:
            place = self.root / entry.path
            if entry.before is None:
                place.unlink()
            else:
                os.replace(self.folder / str(number), place)
        for entry in entries:
            with suppress(FileNotFoundError, NotADirectoryError):
                _beside(self.root / entry.path).unlink()
        for name in reversed(made):
            with suppress(OSError):
                (self.root / name).rmdir()
        self._close({(self.root / e.path).parent for _, e in begun})

    def _finish(self, entries: Sequence[_Entry]) -> None:
        """Drop what the changes made stale. They stay made even if this fails."""
        for entry in entries:
            place = self.root / entry.path
            if place.suffix == ".py":
                _drop_bytecode(place)
        for entry in entries:
            if entry.after is None:
                _remove_empty((self.root / entry.path).parent, self.root)
        with suppress(OSError):
            self._close(set())

    def _close(self, changed: set[Path]) -> None:
        _sync_folders(changed)
        self._manifest.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_manifest(self, entries: Sequence[_Entry], made: list[str], done: bool) -> None:
        text = json.dumps({"done": done, "made": made, "entries": [asdict(e) for e in entries]})
        _write_beside(self._manifest, Change("", text.encode()), None)
        os.replace(_beside(self._manifest), self._manifest)
        _sync_folders({self.folder})

    def _missing_folders(self, paths: Iterable[str]) -> list[str]:
        missing = set()
        for path in paths:
            for folder in Path(path).parents:
                if not (self.root / folder).is_dir():
                    missing.add(folder.as_posix())
        return sorted(missing)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError):
        return f"{error.filename2 or error.filename or 'a file'}: {error.strerror or error}"
    return str(error) or type(error).__name__


def _beside(place: Path) -> Path:
    return place.with_name(f".{place.name}.torch-overlay")


def _keep(place: Path, backup: Path) -> None:
    try:
        os.link(place, backup)
    except OSError:
        shutil.copy2(place, backup)


def _write_beside(place: Path, change: Change, like: Optional[Path]) -> None:
    path = _beside(place)
    assert change.content is not None
    with suppress(FileNotFoundError):
        path.unlink()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o644)
    try:
        rest = memoryview(change.content)
        while rest:
            try:
                rest = rest[os.write(fd, rest) :]
            except OSError as error:
                raise type(error)(error.errno, error.strerror, str(path)) from error
        mode = change.mode
        if like is not None:
            was = like.stat()
            mode = was.st_mode & 0o7777 if mode is None else mode
            if hasattr(os, "fchown"):
                with suppress(OSError):
                    os.fchown(fd, was.st_uid, was.st_gid)
        if mode is not None:
            os.chmod(path, mode)
        os.fsync(fd)
    finally:
        os.close(fd)
    if change.mtime_ns is not None:
        os.utime(path, ns=(change.mtime_ns, change.mtime_ns))


def _drop_bytecode(source: Path) -> None:
    for path in (source.parent / "__pycache__").glob(f"{glob.escape(source.stem)}.*.pyc"):
        with suppress(OSError):
            path.unlink()


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and root in folder.parents:
        try:
            with suppress(OSError):
                (folder / "__pycache__").rmdir()
            folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return
        folder = folder.parent


def _sync_folders(folders: Iterable[Path]) -> None:
    """Make renames last through a power cut, where the system lets folders be synced."""
    if os.name != "posix":
        return
    for folder in folders:
        try:
            fd = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
