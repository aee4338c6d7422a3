"""The Python files of torch's wheels, read by ranges from the package index.

A wheel of several hundred megabytes gives all its Python in a few seconds. The index is the one
that pip uses: ``--index-url`` in ``TORCH_OVERLAY_PIP_ARGS``, ``PIP_INDEX_URL``, pip's
configuration, or the default. A wheel on disk is read likewise.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from overlay.bases.errors import BaseError

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage, PyPISimple

_SECONDS = 30
_TRIES = 3
_BLOCK = 1 << 20


def releases() -> list[str]:
    """All final releases of torch, but yanked ones, that have a Linux wheel, oldest first."""
    with _index() as client:
        offered = [w.version for w in _wheels(client) if w.version and not w.is_yanked]
    versions = set(map(Version, offered))
    return [str(v) for v in sorted(versions) if not v.is_prerelease and not v.local]


def python_files(wheel: Union[str, Path]) -> Iterator[tuple[str, bytes]]:
    """Paths and contents of the Python files of a release's wheel, or of a wheel on disk.

    ``torch/version.py``, which says how the wheel was built, is left out.
    """
    with ExitStack() as stack:
        file: Union[Path, io.BufferedReader]
        if isinstance(wheel, Path):
            file = wheel
        else:
            client = stack.enter_context(_index())
            file = io.BufferedReader(_Ranges(client.s, _url(client, wheel)))
        try:
            archive = stack.enter_context(zipfile.ZipFile(file))
            # In the order that they lie in: each block is then fetched once.
            for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
                path = entry.filename
                if path.endswith(".py") and path != "torch/version.py":
                    yield path, archive.read(entry)
        except zipfile.BadZipFile as error:
            raise BaseError(f"the wheel of torch {wheel} is broken: {error}") from error


def version_of(wheel: Path) -> Version:
    """The version that a wheel's file name says."""
    try:
        return parse_wheel_filename(wheel.name)[1]
    except InvalidWheelFilename as error:
        raise BaseError(f"{wheel} has no wheel's name: {error}") from None


class _Ranges(io.RawIOBase):
    """A file on a web server, fetched a block at a time."""

    def __init__(self, session: Any, url: str) -> None:
        self._session = session
        self._url = url
        self._position = 0
        self._block = b""
        self._block_start = 0
        self._size = 0
        self._fetch(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = origin + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._position >= self._size:
            return 0
        start = self._position - self._position % _BLOCK
        if start != self._block_start:
            self._fetch(start)
        part = self._block[self._position - start :][: len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _fetch(self, start: int) -> None:
        headers = {"Range": f"bytes={start}-{start + _BLOCK - 1}", "Accept-Encoding": "identity"}
        for tries_left in reversed(range(_TRIES)):
            try:
                # Streamed, so as not to download everything from a server that ignores ranges.
                with self._session.get(
                    self._url, headers=headers, timeout=_SECONDS, stream=True
                ) as answer:
                    answer.raise_for_status()
                    extent = re.fullmatch(
                        r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", "")
                    )
                    if answer.status_code != 206 or extent is None or int(extent[1]) != start:
                        raise BaseError("the package index gives no parts of wheels")
                    self._block, self._block_start = answer.content, start
                    self._size = int(extent[2])
                    return
            except OSError as error:
                if not tries_left:
                    raise BaseError(f"cannot read torch's wheel: {error}") from error


@contextmanager
def _index() -> Iterator[PyPISimple]:
    # Imported here, since these take longer than the whole command may that needs none of them.
    from pypi_simple import PYPI_SIMPLE_ENDPOINT, PyPISimple

    with PyPISimple(endpoint=_index_url() or PYPI_SIMPLE_ENDPOINT) as client:
        client.s.verify = os.environ.get("PIP_CERT") or True
        yield client


def _wheels(client: PyPISimple) -> list[DistributionPackage]:
    """All of torch's Linux wheels for this project's Pythons, in a stable order."""
    from pypi_simple import NoSuchProjectError

    try:
        packages = client.get_project_page("torch", timeout=_SECONDS).packages
    except (OSError, ValueError, NoSuchProjectError) as error:
        raise BaseError(f"cannot read what the package index has of torch: {error}") from error
    fitting = re.compile(r"torch-.*-cp3\d+-.*linux.*_x86_64\.whl")
    return sorted(
        (package for package in packages if fitting.fullmatch(package.filename)),
        key=lambda package: package.filename,
    )


def _url(client: PyPISimple, version: str) -> str:
    wanted = Version(version)
    for wheel in _wheels(client):
        try:
            # Of a release, all wheels hold the same Python, whatever they were built for.
            if Version(wheel.version or "").public == wanted.public:
                return wheel.url
        except InvalidVersion:
            continue
    raise BaseError(f"the package index has no wheel of torch {version} for Linux")


def _index_url() -> Optional[str]:
    words = iter(shlex.split(os.environ.get("TORCH_OVERLAY_PIP_ARGS", "")))
    for word in words:
        if word in ("-i", "--index-url"):
            return next(words, None)
        if word.startswith("--index-url="):
            return word.partition("=")[2]
    if os.environ.get("PIP_INDEX_URL"):
        return os.environ["PIP_INDEX_URL"]
    # Not "get", which does not find what PIP_CONFIG_FILE says.
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    urls = dict(re.findall(r"(?m)^(install|global)\.index-url='(.*)'$", configured.stdout))
    return urls.get("install") or urls.get("global")
