"""Fingerprints: what proves that a source is the base that it says it is.

A fingerprint lists the SHA-256 of every Python file under three folders, in the format of
``sha256sum``. Only files of Python packages count in ``torch/``, since only these are in a wheel
too, and nothing that the build generates. So it is the same whichever way a source came.

``python -m overlay.bases.fingerprint FOLDER`` prints that of a source tree.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from overlay.bases.errors import FingerprintError

FOLDERS = ("torch/distributed", "torch/testing/_internal", "test/distributed")

_SHOWN = 20


def compute(root: Path) -> dict[str, str]:
    """The hashes of a source tree's files, by their paths in it."""
    return {
        path: hashlib.sha256((root / path).read_bytes()).hexdigest()
        for folder in FOLDERS
        for path in sorted(_python_files(root, folder))
    }


def load(manifest: Path) -> dict[str, str]:
    """The hashes that a fingerprint file lists."""
    hashes = {}
    for line in manifest.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            digest, path = line.split("  ", 1)
            hashes[path] = digest
    return hashes


def prove(root: Path, expected: Mapping[str, str], what: str) -> str:
    """Say in words what of this source tree is proven; FingerprintError if something differs.

    Folders that the tree lacks as a whole, as a wheel lacks its tests, are named in the answer.
    """
    found = compute(root)
    proven, absent, open_ = [], [], []
    for folder in FOLDERS:
        if not (root / folder).is_dir() and folder.startswith("test/"):
            absent.append(folder)
        elif not any(_is_under(path, folder) for path in expected):
            open_.append(folder)
        else:
            proven.append(folder)

    def of_proven(hashes: Mapping[str, str]) -> dict[str, str]:
        return {p: h for p, h in hashes.items() if any(_is_under(p, f) for f in proven)}

    found, wanted = of_proven(found), of_proven(expected)
    problems = [
        *(f"differs: {p}" for p in wanted if p in found and found[p] != wanted[p]),
        *(f"missing: {p}" for p in wanted if p not in found),
        *(f"not in it: {p}" for p in found if p not in wanted),
    ]
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        count = "a file" if len(problems) == 1 else f"{len(problems)} files"
        raise FingerprintError(
            f"this is not an unchanged {what}: {count} of {len(wanted)} do not match its"
            f" fingerprint, first {problems[0]}",
            [*problems[:_SHOWN], *more],
        )
    text = f"{len(wanted)} files of {', '.join(proven)} match the fingerprint"
    if absent:
        text += f"; there is no {', no '.join(absent)}"
    if open_:
        text += f"; no fingerprint is known for {', '.join(open_)}"
    return text


def render(hashes: Mapping[str, str]) -> str:
    """A fingerprint file's text."""
    return "".join(f"{digest}  {path}\n" for path, digest in hashes.items())


def _is_under(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def _python_files(root: Path, folder: str) -> Iterator[str]:
    for where, subfolders, names in os.walk(root / folder):
        if folder.startswith("torch/") and "__init__.py" not in names:
            subfolders.clear()
            continue
        subfolders[:] = [name for name in subfolders if name not in ("__pycache__", "generated")]
        for name in names:
            if name.endswith(".py"):
                yield Path(where, name).relative_to(root).as_posix()


if __name__ == "__main__":
    sys.stdout.write(render(compute(Path(sys.argv[1]))))
