"""The ways to a base's source: each fills a folder with a git repository, or says why not."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Callable, Optional

from packaging.version import Version

from overlay.bases import debian, repository, wheels
from overlay.bases.catalog import Base
from overlay.bases.errors import BaseError, FingerprintError

UPSTREAM = "https://github.com/pytorch/pytorch.git"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """What a way brought."""

    commit: str
    proven_by_commit: bool = False


@dataclass(frozen=True)
class Way:
    """A way to a source: what it is called, and what makes it."""

    name: str
    take: Callable[[Base, Path, Progress], Source]


def by_clone(base: Base, folder: Path, progress: Progress) -> Source:
    """A shallow clone, from GitHub or from what ``TORCH_OVERLAY_UPSTREAM`` names."""
    url = os.environ.get("TORCH_OVERLAY_UPSTREAM") or UPSTREAM
    progress(f"cloning {url}")
    return Source(repository.clone(url, base.revision, folder, progress), base.is_commit)


def by_debian(base: Base, folder: Path, progress: Progress) -> Source:
    """Debian's source package, whole."""
    if base.debian is None:
        raise BaseError("no Debian release has it")
    # Outside the folder that is dropped when a way fails, so that it can be taken up again.
    download = folder.parents[1] / "apt"
    tarball = debian.download(base.debian, download, progress)
    source = _from_tarball(base, tarball, folder, progress)
    shutil.rmtree(download)
    return source


def by_wheel(base: Base, folder: Path, progress: Progress) -> Source:
    """The Python files of the release's wheel; there are no tests among them."""
    if base.runtime is None:
        raise BaseError("there is no wheel of it")
    progress("reading the Python files of its wheel")
    return _from_wheel(base, wheels.python_files(base.version), folder, progress)


def by_path(path: Path) -> Way:
    """What somebody gives: a checkout, a tarball, a folder, or a wheel."""

    def take(base: Base, folder: Path, progress: Progress) -> Source:
        if path.is_dir():
            if repository.is_repository(path):
                return _from_checkout(base, path, folder, progress)
            return _from_folder(base, path, folder, progress)
        if path.suffix == ".whl" and path.is_file():
            _check_version(base, str(wheels.version_of(path)), str(path))
            return _from_wheel(base, wheels.python_files(path), folder, progress)
        if path.is_file():
            return _from_tarball(base, path, folder, progress)
        raise BaseError(f"{path}: no such file or folder")

    return Way(str(path), take)


WAYS = (
    Way("a clone", by_clone),
    Way("Debian's source package", by_debian),
    Way("the wheel's Python files", by_wheel),
)


def _from_checkout(base: Base, path: Path, folder: Path, progress: Progress) -> Source:
    has_it = repository.resolve(path, base.revision) is not None
    revision = base.revision if has_it else "HEAD"
    head = repository.resolve(path, revision)
    if head is None:
        raise BaseError(f"git finds no commit in {path}; is it a whole repository, and yours?")
    progress(f"taking {revision if has_it else 'the checked out commit'} from {path}")
    wanted = base.revision if has_it and base.is_commit else head
    commit = repository.clone(f"file://{path.resolve()}", wanted, folder, progress)
    _check_tree(base, folder, str(path))
    return Source(commit, has_it and base.is_commit)


def _from_folder(base: Base, path: Path, folder: Path, progress: Progress) -> Source:
    root = _root_of(path, str(path))
    _check_tree(base, root, str(path))
    progress(f"copying {root}")
    ignored = shutil.ignore_patterns(".git", "__pycache__", ".torch-overlay")
    shutil.copytree(root, folder, symlinks=True, ignore=ignored)
    return _commit(base, folder, progress)


def _from_tarball(base: Base, path: Path, folder: Path, progress: Progress) -> Source:
    if not hasattr(tarfile, "data_filter"):
        raise BaseError("this Python cannot unpack a tarball safely: use its newest patch release")
    progress(f"unpacking {path.name}")
    unpacked = folder.parent / f"{folder.name}.unpacked"
    unpacked.mkdir()
    try:
        with tarfile.open(path) as archive:
            archive.extractall(unpacked, filter="data")
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise BaseError(f"{path} is not a whole and harmless tarball: {error}") from error
    root = _root_of(unpacked, str(path))
    _check_tree(base, root, str(path))
    root.rename(folder)
    return _commit(base, folder, progress)


def _from_wheel(
    base: Base, files: Iterable[tuple[str, bytes]], folder: Path, progress: Progress
) -> Source:
    folder.mkdir()
    for path, content in files:
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or ".git" in parts:
            raise BaseError(f"the wheel has a file with a harmful name: {path}")
        place = folder.joinpath(*parts)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    # What makes it a source tree for all that reads one.
    (folder / "version.txt").write_text(f"{base.version}\n", encoding="utf-8")
    return _commit(base, folder, progress)


def _commit(base: Base, folder: Path, progress: Progress) -> Source:
    progress("committing it")
    return Source(repository.commit_all(folder, f"PyTorch {base.version}"))


def _root_of(folder: Path, what: str) -> Path:
    """The folder with torch/ in it: this one, or the only one in it, as in most tarballs."""
    children = [child for child in folder.iterdir() if child.is_dir() and not child.is_symlink()]
    for root in [folder, *children] if len(children) == 1 else [folder]:
        if (root / "torch" / "distributed").is_dir() and (root / "version.txt").is_file():
            return root
    raise BaseError(f"{what} is no PyTorch source tree: it has no torch/distributed or version.txt")


def _check_tree(base: Base, root: Path, what: str) -> None:
    try:
        version = (root / "version.txt").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        raise BaseError(f"{what} is no PyTorch source tree: it has no version.txt") from None
    _check_version(base, version, what)


def _check_version(base: Base, version: str, what: str) -> None:
    # A release's own tree calls itself a pre-release, often of the first of its patch releases.
    if _minor(version) != _minor(base.version):
        raise FingerprintError(f"{what} is PyTorch {version}, not {base.version}")


def _minor(version: str) -> Optional[tuple[int, ...]]:
    try:
        return Version(version).release[:2]
    except ValueError:
        return None
