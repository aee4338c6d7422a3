"""A series: patches in order, the files they add, and which of them a version gets.

A series is a folder with ``patches/series`` (one patch's path a line, ``#`` for
comments) and ``torch_overlay/`` (the files that the patches add to PyTorch, each at
its place in PyTorch's tree).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Optional

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from overlay import gitapply
from overlay.apatch import Message, PatchSyntaxError, parse_message, parse_patch
from overlay.errors import UsageError
from overlay.hunks import CompiledHunk

ANCHORED = ".apatch"
LINE_NUMBERED = ".patch"
TREES = ("torch", "test")
"""The folders of PyTorch's source that a series may change."""


@dataclass(frozen=True)
class SeriesPatch:
    """One patch of a series, read and checked."""

    name: str
    """Its path in ``patches/``."""
    text: str
    message: Message
    hunks: Mapping[str, tuple[CompiledHunk, ...]]
    """The hunks by file; empty for a line-numbered patch."""
    added: Mapping[str, bytes]
    """The files that it adds, with their content."""
    versions: SpecifierSet

    @property
    def is_line_numbered(self) -> bool:
        """Whether it is an ordinary unified diff, which git applies."""
        return self.name.endswith(LINE_NUMBERED)

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """All files that it changes or adds."""
        changed = gitapply.paths_of(self.text) if self.is_line_numbered else tuple(self.hunks)
        return (*changed, *self.added)

    @cached_property
    def digest(self) -> str:
        """A SHA-256 over the patch and what it adds."""
        digest = hashlib.sha256(self.text.encode())
        for path in sorted(self.added):
            digest.update(b"\0" + path.encode() + b"\0" + self.added[path])
        return digest.hexdigest()

    def takes(self, version: str) -> bool:
        """Whether the patch is for a version of PyTorch.

        Local and pre-release labels are normal in what people build: 2.6.0a0+git1234567
        counts as 2.6.0 unless the patch names the pre-release.
        """
        parsed = parse_version(version)
        return any(
            self.versions.contains(candidate, prereleases=True)
            for candidate in (parsed, Version(parsed.base_version))
        )


@dataclass(frozen=True)
class Series:
    """The patches of a series, in order."""

    root: Path
    patches: tuple[SeriesPatch, ...]

    def selected(self, version: str) -> tuple[SeriesPatch, ...]:
        """The patches that a version of PyTorch gets."""
        return tuple(patch for patch in self.patches if patch.takes(version))


def parse_version(version: str) -> Version:
    """A version of PyTorch as it names itself; UsageError if it is none."""
    try:
        return Version(version)
    except InvalidVersion:
        raise UsageError(f"{version!r} is not a version of PyTorch, such as 2.13.0a0") from None


def own_series() -> Path:
    """The series that the tool comes with: from its wheel, or from its repository."""
    packaged = Path(__file__).parent / "_series"
    return packaged if packaged.is_dir() else Path(__file__).parents[2]


def series_names(root: Path) -> list[str]:
    """The patches that a series lists, in order."""
    listing = root / "patches" / "series"
    try:
        lines = listing.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"no series in {root}: cannot read {listing} ({_reason(error)}):"
            " name a folder that has patches/series"
        ) from None
    names = []
    for number, line in enumerate(lines, 1):
        name = line.split("#", 1)[0].strip()
        if not name:
            continue
        if not name.endswith((ANCHORED, LINE_NUMBERED)):
            raise UsageError(
                f"{listing}:{number}: '{name}' is neither {ANCHORED} nor {LINE_NUMBERED}"
            )
        if name in names:
            raise UsageError(f"{listing}:{number}: '{name}' stands twice: remove one")
        check_relative(name, f"{listing}:{number}")
        names.append(name)
    return names


def load_series(root: Path) -> Series:
    """Read a series whole; UsageError with the first thing that is wrong with it."""
    return Series(root, tuple(_load_patch(root, name) for name in series_names(root)))


def _load_patch(root: Path, name: str) -> SeriesPatch:
    path = root / "patches" / name
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name}: cannot read the patch: {_reason(error)}") from None
    hunks: dict[str, tuple[CompiledHunk, ...]] = {}
    changed: tuple[str, ...]
    if name.endswith(ANCHORED):
        patch = parse_patch(text, name)
        message = patch.message
        for file in patch.files:
            hunks[file.path] = tuple(
                CompiledHunk.of(hunk, f"{name}: {file.path}: @@ {hunk.symbol}")
                for hunk in file.hunks
            )
        changed = tuple(hunks)
    else:
        message, _ = parse_message(text, name)
        changed = gitapply.paths_of(text, name)
    lost = re.search(r"^(Torch-Version|Adds|Tests):.*", message.body, re.M)
    if lost:
        raise PatchSyntaxError(
            f"{name}: '{lost[0]}' is among the message's text, where no field is read: put the"
            " fields last before '---', with nothing else among them"
        )
    added = {}
    for adds in message.field("Adds"):
        check_in_trees(adds, name)
        try:
            added[adds] = (root / "torch_overlay" / adds).read_bytes()
        except OSError as error:
            raise UsageError(
                f"{name}: Adds: {adds}: cannot read it in torch_overlay/: {_reason(error)}"
            ) from None
    for path_changed in changed:
        check_in_trees(path_changed, name)
        if path_changed in added:
            raise UsageError(f"{name}: {path_changed} is both added and changed: do one of them")
    if not changed and not added:
        raise PatchSyntaxError(f"{name}: changes nothing: give it hunks, or an Adds field")
    specifier = ",".join(message.field("Torch-Version"))
    try:
        versions = SpecifierSet(specifier)
    except InvalidSpecifier:
        raise UsageError(
            f"{name}: Torch-Version: '{specifier}' is not a version specifier, such as >=2.1,<3"
        ) from None
    return SeriesPatch(name, text, message, hunks, added, versions)


def check_relative(path: str, where: str) -> None:
    """Refuse a path that is not plainly relative; ``where`` names its place."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or "\\" in path or ":" in path or "\0" in path:
        raise UsageError(f"{where}: '{path}' is not a relative path with forward slashes")
    if ".." in parts or str(PurePosixPath(path)) != path:
        raise UsageError(f"{where}: '{path}' is not written plainly: no '.', '..' or '//'")


def check_in_trees(path: str, where: str) -> None:
    """Refuse a path outside the folders of PyTorch that a series may change."""
    check_relative(path, where)
    parts = PurePosixPath(path).parts
    if parts[0] not in TREES or len(parts) < 2:
        raise UsageError(f"{where}: '{path}' is not under torch/ or test/")
    if ".git" in (part.lower() for part in parts) or path.lower().endswith(".pth"):
        raise UsageError(f"{where}: '{path}' is not a file that a patch may touch")


def _reason(error: Exception) -> Optional[str]:
    return error.strerror if isinstance(error, OSError) else str(error)
