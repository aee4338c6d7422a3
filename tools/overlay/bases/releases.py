"""The Python of torch's releases, each kept in the cache folder as one archive."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Callable, Optional

from overlay.bases import fingerprint, wheels
from overlay.bases.catalog import BASES
from overlay.bases.errors import BaseError, FingerprintError
from overlay.runtime import cache_folder, locked


def release_files(
    version: str, progress: Callable[[str], None] = lambda line: None
) -> dict[str, bytes]:
    """All Python files of a release's wheel, from the cache folder or the package index.

    Safe to call from several processes. That of a pinned base must match its fingerprint.
    """
    archive = cache_folder() / "wheels" / f"torch-{version}.zip"
    try:
        with locked(archive, lambda: progress("waiting for another process that reads it")):
            files = _kept(archive)
            if files is None:
                progress("reading the Python of its wheel")
                files = dict(wheels.python_files(version))
                _prove(version, files)
                _keep(archive, files)
    except OSError as error:
        raise BaseError(
            f"cannot keep the Python of torch {version} in {archive.parent}: {error};"
            " TORCH_OVERLAY_CACHE names another folder"
        ) from error
    return files


def _kept(archive: Path) -> Optional[dict[str, bytes]]:
    """What an archive holds; None if there is none, or if it was damaged since."""
    try:
        with zipfile.ZipFile(archive) as opened:
            return {name: opened.read(name) for name in opened.namelist()}
    except (FileNotFoundError, zipfile.BadZipFile, zlib.error, EOFError):
        return None


def _keep(archive: Path, files: Mapping[str, bytes]) -> None:
    part = archive.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as opened:
        for path, content in files.items():
            opened.writestr(path, content)
    # Only what is whole gets the name that is looked for.
    part.replace(archive)


def _prove(version: str, files: Mapping[str, bytes]) -> None:
    base = BASES.get(f"v{version}")
    if base is None or base.fingerprint is None:
        return
    wanted = fingerprint.load(base.fingerprint)
    wrong = [
        path
        for path, digest in wanted.items()
        if path.startswith("torch/") and hashlib.sha256(files.get(path, b"")).hexdigest() != digest
    ]
    if wrong:
        raise FingerprintError(
            f"the package index's wheel of torch {version} is not an unchanged {base.name}:"
            f" {len(wrong)} files do not match its fingerprint, first {wrong[0]}",
            wrong[1:20],
        )
