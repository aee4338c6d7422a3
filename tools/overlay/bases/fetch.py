"""Fetching bases into the cache folder, and what is there.

``CACHE/bases/NAME/source`` is the repository. It gets this name by one rename, once it is complete
and proven, and says in ``.git/torch-overlay-base.json`` where it came from.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

from overlay.bases import fingerprint
from overlay.bases.catalog import Base
from overlay.bases.errors import BaseError
from overlay.bases.pythons import find_python
from overlay.bases.ways import WAYS, Progress, Way, by_path
from overlay.errors import UsageError
from overlay.runtime import cache_folder, is_complete, locked, torch_venv

_STAMP = Path(".git", "torch-overlay-base.json")
_PART = "part-"


@dataclass(frozen=True)
class Fetched:
    """A base's source as it lies in the cache folder."""

    folder: str
    commit: str
    """The base commit; the branch that is checked out was made there."""

    way: str
    """What it came by: "a clone", "Debian's source package", or the path that was given."""

    proof: str
    """What of it is proven, and by what, in words."""

    has_tests: bool
    """Whether it has PyTorch's own tests, which a wheel lacks."""


@dataclass(frozen=True)
class BaseState:
    """A base, and what of it is there."""

    base: Base
    source: Optional[Fetched]
    runtime: Optional[str]
    """The virtual environment's folder."""

    python: Optional[str]
    """The interpreter that it was made with."""

    def to_json(self) -> dict[str, Any]:
        """This as JSON knows it."""
        return {
            "name": self.base.name,
            "version": self.base.version,
            "about": self.base.about,
            "source": asdict(self.source) if self.source else None,
            "runtime": self.runtime,
            "python": self.python,
        }


def state_of(base: Base) -> BaseState:
    """What is there of a base; fetches nothing."""
    record = _read_json(_folder(base) / "runtime.json") or {}
    venv, python = record.get("venv"), record.get("python")
    there = venv is not None and is_complete(Path(venv))
    return BaseState(base, _fetched(base), venv if there else None, python if there else None)


def path_of(base: Base) -> Path:
    """The folder of a fetched base's source; BaseError if it is not fetched."""
    fetched = _fetched(base)
    if fetched is None:
        folder = _folder(base)
        halfway = folder.is_dir() and any(folder.glob(f"{_PART}*"))
        raise BaseError(
            f"{base.name} is {'fetched only halfway' if halfway else 'not fetched'}:"
            f" run `torch-overlay base fetch {base.name}`"
        )
    return Path(fetched.folder)


def fetch(
    base: Base,
    source: Optional[Path] = None,
    anew: bool = False,
    source_only: bool = False,
    progress: Progress = lambda line: None,
) -> BaseState:
    """Fetch and prove a base's source, and build its runtime, as far as they are not there.

    ``source`` is a checkout, tarball, folder or wheel to take instead of trying all ways; ``anew``
    replaces a source that is there, with all that was committed to it.
    """
    start = time.monotonic()

    def report(line: str) -> None:
        progress(f"{base.name}: {line} [{time.monotonic() - start:.0f} s]")

    way = by_path(source.absolute()) if source else None
    with _disk_errors(base):
        wait = "waiting for another process that is fetching it"
        with locked(_folder(base), lambda: report(wait)):
            present = None if anew else _fetched(base)
            if present is None:
                _fetch_source(base, [way] if way else WAYS, report)
            elif way and way.name != present.way:
                raise UsageError(
                    f"{base.name} is there already, by {present.way}: fetch it with --anew to"
                    f" replace that with {way.name}"
                )
    if base.runtime is not None and not source_only:
        fetch_runtime(base, progress)
    return state_of(base)


def fetch_runtime(base: Base, progress: Progress = lambda line: None) -> Path:
    """The virtual environment that goes with a base, built on first use."""
    if base.runtime is None:
        raise BaseError(f"{base.name} has no wheel: build it from its source for a runtime")
    python = find_python(base.runtime.pythons, base.runtime.last_resorts)
    venv = torch_venv(
        base.version, progress=progress, packages=base.runtime.packages, python=python
    )
    folder = _folder(base)
    with _disk_errors(base), locked(folder, lambda: None):
        folder.mkdir(exist_ok=True)
        _write_json(folder / "runtime.json", {"venv": str(venv), "python": str(python)})
    return venv


@contextmanager
def _disk_errors(base: Base) -> Iterator[None]:
    place = f"{_folder(base)}; TORCH_OVERLAY_CACHE names another folder"
    try:
        yield
    except (OSError, BaseError) as error:
        if _is_disk_full(error):
            raise BaseError(f"no space is left for {base.name} in {place}") from error
        if isinstance(error, BaseError):
            raise
        raise BaseError(f"cannot fetch {base.name}: {error}; it is kept in {place}") from error


def _fetch_source(base: Base, ways: Sequence[Way], progress: Progress) -> None:
    folder = _folder(base)
    for left_over in folder.glob(f"{_PART}*"):
        shutil.rmtree(left_over)
    folder.mkdir(parents=True, exist_ok=True)
    failures: list[tuple[Way, BaseError]] = []
    for way in ways:
        part = Path(tempfile.mkdtemp(prefix=_PART, dir=folder))
        try:
            fetched = _take(base, way, part / "source", progress)
        except (BaseError, OSError) as error:
            shutil.rmtree(part)
            if len(ways) == 1 or not isinstance(error, BaseError) or _is_disk_full(error):
                raise
            progress(f"not by {way.name}: {error.message}")
            failures.append((way, error))
            continue
        _put_in_place(part, folder / "source")
        progress(f"ready, by {fetched.way}: {fetched.proof}")
        return
    raise BaseError(
        f"cannot fetch {base.name}: no way to it works here; give its source with --source PATH"
        " (a checkout, a tarball, a folder or a wheel)",
        [
            line
            for way, error in failures
            for line in (
                f"{way.name}: {error.message}",
                # Of what a program printed, the line that says why is in the message.
                *(f"    {d}" for d in error.details if d.split(": ", 1)[-1] not in error.message),
            )
        ],
    )


def _take(base: Base, way: Way, place: Path, progress: Progress) -> Fetched:
    source = way.take(base, place, progress)
    if source.proven_by_commit:
        proof = f"its commit id, {source.commit}, proves it"
    elif base.fingerprint is not None:
        proof = fingerprint.prove(place, fingerprint.load(base.fingerprint), base.name)
    else:
        proof = "nothing proves it: no fingerprint of it is known"
    fetched = Fetched(
        folder=str(_folder(base) / "source"),
        commit=source.commit,
        way=way.name,
        proof=proof,
        has_tests=(place / "test" / "distributed").is_dir(),
    )
    _write_json(place / _STAMP, asdict(fetched))
    return fetched


def _put_in_place(part: Path, destination: Path) -> None:
    if destination.exists():
        destination.rename(part / "replaced")
    (part / "source").rename(destination)
    shutil.rmtree(part)


def _folder(base: Base) -> Path:
    return cache_folder() / "bases" / base.name


def _fetched(base: Base) -> Optional[Fetched]:
    folder = _folder(base) / "source"
    record = _read_json(folder / _STAMP)
    try:
        return Fetched(**{**record, "folder": str(folder)}) if record else None
    except TypeError:
        return None


def _read_json(file: Path) -> Optional[dict[str, Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _write_json(file: Path, content: dict[str, Any]) -> None:
    part = file.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.replace(file)


def _is_disk_full(error: Exception) -> bool:
    # As Python says it, alone or in a list, and as git and apt do.
    text = os.strerror(errno.ENOSPC)
    return text in str(error) or any(text in line for line in getattr(error, "details", ()))
