"""The series for one target, for those who do not have the tool: as mails, and as whole files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Optional

from overlay import operations
from overlay.bases import Base, find_base, path_of, state_of
from overlay.errors import PatchError, TargetError, UsageError
from overlay.mails import FILE_MODE, Mail, Step, render
from overlay.series import Series, SeriesPatch
from overlay.targets import Checkout, Target, find_target
from overlay.targets.journal import digest
from overlay.weave import State

_FORMAT = 1


@dataclass(frozen=True)
class Exported:
    """The series for one target, verified."""

    target: Target
    """A checkout stands at the commit that the series goes on."""
    steps: tuple[Step, ...]
    mails: tuple[Mail, ...]
    base_commit: Optional[str]
    left_out: Mapping[str, tuple[str, ...]]
    """By patch, files to change that the target does not have (an installed torch has no test/)."""

    def changes(self) -> dict[str, Optional[bytes]]:
        """What all patches together change."""
        changes: dict[str, Optional[bytes]] = {}
        for step in self.steps:
            changes.update(step.changes)
        before = self.target.originals()
        return {path: c for path, c in sorted(changes.items()) if c != before.read(path)}


def source_of(where: Optional[str]) -> Target:
    """The target at a path, or the pinned commit of the fetched base of that name.

    Raises BaseError if that is not fetched.
    """
    if where is not None and not os.path.lexists(where):
        with suppress(UsageError):  # Then it is no base's name either.
            return source_of_base(find_base(where))
    return find_target(where)


def source_of_base(base: Base) -> Target:
    """A fetched base's source at its pinned commit; BaseError if it is not fetched."""
    target = find_target(str(path_of(base)))
    source = state_of(base).source
    if isinstance(target, Checkout) and source is not None:
        return target.at(source.commit)
    return target


def render_series(target: Target, series: Series) -> Exported:
    """Weave, verify and render a series for a target, whether it is applied there or not.

    Raises PatchError if it does not fit, or if the target's original files cannot be told.
    """
    if isinstance(target, Checkout):
        target = target.at(operations.commit_below(target, series) or target.head)
    found = operations.standing(target, series)
    if found.edited:
        raise TargetError(f"{target}: {target.describe_edit(found.edited[0])}")
    for state in found.states:
        if state.state is State.CONFLICT:
            raise PatchError(state.reason, state.details)
    if target.record() is None and found.patches(State.APPLIED):
        raise PatchError(
            f"{target}: the series, or a part of it, is in these files already, so that mails for"
            " them would leave it out: name a target without it"
            " (in git, a commit below the series' own)"
        )
    operations.check(found)
    steps = operations.steps(target, series, with_tests=True)
    if not steps:
        raise operations.nothing_for(target, series)
    base, commit, object_format = target.originals(), None, "sha1"
    mode_of = lambda path: FILE_MODE  # noqa: E731
    if isinstance(target, Checkout):
        commit, object_format = target.head, target.object_format
        mode_of = target.tree.mode_of
    mails = render(steps, base, commit, mode_of, object_format)
    return Exported(target, steps, tuple(mails), commit, _left_out(target, series))


def _left_out(target: Target, series: Series) -> dict[str, tuple[str, ...]]:
    def missing(patch: SeriesPatch) -> tuple[str, ...]:
        return tuple(p for p in patch.paths if p not in patch.added and not target.carries(p))

    return {p.name: missing(p) for p in series.selected(target.version) if missing(p)}


def export(target: Target, series: Series, folder: Path) -> Exported:
    """Write the series as mails that ``git am`` takes."""
    made = render_series(target, series)
    write_files(folder, {mail.name: mail.content for mail in made.mails})
    return made


def build(target: Target, series: Series, folder: Path) -> Exported:
    """Write the mails to ``mails/``, whole files to ``overlay/``, and a manifest of both."""
    made = render_series(target, series)
    changes = made.changes()
    before = made.target.originals()
    files = {f"mails/{mail.name}": mail.content for mail in made.mails}
    files.update({f"overlay/{p}": content for p, content in changes.items() if content is not None})
    manifest = {
        "format": _FORMAT,
        "torch": made.target.version,
        "base_commit": made.base_commit,
        "patches": [
            {"name": s.patch.name, "subject": s.patch.message.subject, "sha256": s.patch.digest}
            for s in made.steps
        ],
        "left_out": {name: list(paths) for name, paths in made.left_out.items()},
        "mails": {mail.name: digest(mail.content) for mail in made.mails},
        "overlay": {
            path: {"base_sha256": digest(before.read(path)), "sha256": digest(content)}
            for path, content in changes.items()
        },
    }
    text = json.dumps(manifest, indent=2) + "\n"
    write_files(folder, {**files, "MANIFEST.json": text.encode()})
    return made


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder; UsageError if it has others, which would be taken for ours."""
    try:
        if folder.exists():
            others = sorted(set(_files(folder)) - set(files))
            if others:
                raise UsageError(f"{folder} has other files ({others[0]}): name an empty folder")
        for path, content in files.items():
            place = folder / PurePosixPath(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            new = place.with_name(f".{place.name}.new")
            new.write_bytes(content)
            os.replace(new, place)
    except OSError as error:
        where = error.filename2 or error.filename or folder
        raise TargetError(f"cannot write {where}: {error.strerror or error}") from error


def _files(folder: Path) -> Iterable[str]:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: name one")
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix()
