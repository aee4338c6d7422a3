"""Both halves of a run: a base's runtime and tests as they are, and with the series."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from overlay import operations
from overlay.bases import Base, Fetched, fetch_runtime, state_of
from overlay.errors import PatchError
from overlay.export import source_of_base
from overlay.git import Git
from overlay.mails import Step
from overlay.runtime import copy_of, interpreter, locked, site_packages
from overlay.series import Series
from overlay.targets import find_target
from overlay.upstream import store
from overlay.upstream.runner import Half, Settings, UpstreamTestsError, environment

Say = Callable[[str], None]

_STAMP = "halves.json"
_DAYS_KEPT = 14
_SECONDS_A_DAY = 86400
_PROBE = """
import json, platform, torch
print(json.dumps([torch.__version__, platform.python_version()]))
import torch.distributed.fsdp
"""


@dataclass(frozen=True)
class Halves:
    """What tests run on, before and after."""

    base: Base
    before: Half
    after: Half
    own_tests: tuple[str, ...]
    """The test files that the series adds."""
    related: tuple[str, ...]
    """The test files that the patches name as theirs."""
    has_upstream_tests: bool
    tree: str
    """The fingerprint of what the series makes of the base."""
    torch: str
    python: str
    before_key: str
    """Changes with anything that the results of ``before`` depend on but the tests' own files."""


def prepare(base: Base, series: Series, say: Say) -> Halves:
    """Bring both halves up to date in the cache folder.

    Raises BaseError if the base is not fetched, PatchError if the series does not fit it.
    """
    source = source_of_base(base)
    fetched = state_of(base).source
    assert fetched is not None  # or there would be no source
    selected = series.selected(source.version)
    if not selected:
        raise operations.nothing_for(source, series)
    stock = fetch_runtime(base, say)
    steps = operations.steps(source, series, with_tests=True)
    changes = _changes(steps)
    runtime = _runtime_fingerprint(stock)
    folder = store.folder() / base.name
    tree = store.fingerprint_of(changes)

    tests = fetched.commit if fetched.has_tests else "none"
    stock_tree = folder / f"tests-{tests[:12]}"
    if fetched.has_tests:
        _build(stock_tree, tests, lambda at: _export_tests(fetched, at))
    else:
        _build(stock_tree, tests, lambda at: (at / "test").mkdir())

    def half(count: int, name: str) -> tuple[Half, dict[str, Any]]:
        """The first patches of the series on the runtime and on the tests."""
        patches = tuple(patch.name for patch in selected[:count])
        if not count:
            stamp = _build(folder / "runtime", runtime, lambda at: _probe(stock))
            return Half(name, (), stock, stock_tree), stamp
        changed = _changes([step for step in steps if step.patch.name in patches])
        digests = [patch.digest for patch in selected[:count]]
        key = store.key_of(runtime, tests, digests, store.fingerprint_of(changed))

        def make(at: Path) -> dict[str, Any]:
            say(f"{base.name}: applying {len(patches)} of {len(selected)} patches to a copy of it")
            shutil.copytree(stock_tree, at / "tree")
            _write(at / "tree", changed)
            venv = copy_of(stock, at / "venv")
            operations.apply(find_target(str(venv)), Series(series.root, selected[:count]))
            return _probe(venv)

        at = folder / key
        stamp = _build(at, key, make)
        return Half(name, patches, at / "venv", at / "tree"), stamp

    after, stamp = half(len(selected), "with the series")
    if stamp["error"]:
        raise PatchError(
            f"{base.name}: torch.distributed.fsdp cannot be imported with the series",
            stamp["error"].splitlines(),
        )
    for count in range(len(selected)):
        before, stamp_before = half(count, "stock" if count == 0 else _name(selected[:count]))
        if not stamp_before["error"]:
            break
    else:
        before = replace(after, name=_name(selected))
    _forget_old(folder)
    own = [path for patch in selected for path in patch.added if path.startswith("test/")]
    named = [path for patch in selected for path in patch.message.field("Tests")]
    return Halves(
        base=base,
        before=before,
        after=after,
        own_tests=tuple(dict.fromkeys(own)),
        related=tuple(dict.fromkeys([*named, *own])),
        has_upstream_tests=fetched.has_tests,
        tree=tree,
        torch=stamp["torch"],
        python=stamp["python"],
        before_key=store.key_of(runtime, tests, before.patches, before.tree.name),
    )


def _name(patches: Sequence[Any]) -> str:
    """Of a half whose stock torch cannot import FSDP."""
    names = [Path(patch.name).stem for patch in patches]
    return f"stock, importing by {', '.join(names)} alone"


def _changes(steps: Sequence[Step]) -> dict[str, Optional[bytes]]:
    changes: dict[str, Optional[bytes]] = {}
    for step in steps:
        changes.update(step.changes)
    return changes


def _runtime_fingerprint(venv: Path) -> str:
    """Of torch and everything beside it: a package's version is in its folder's name."""
    names = sorted(path.name for path in site_packages(venv).glob("*.dist-info"))
    digest = hashlib.sha256("\0".join(names).encode())
    for record in sorted(site_packages(venv).glob("torch-*.dist-info/RECORD")):
        digest.update(record.read_bytes())
    return digest.hexdigest()


def _build(folder: Path, key: str, make: Callable[[Path], Any]) -> dict[str, Any]:
    """A folder made once for a key; what ``make`` returned is kept with it."""
    with locked(folder, lambda: None):
        stamp = folder / _STAMP
        with suppress(OSError, ValueError):
            value = json.loads(stamp.read_text(encoding="utf-8"))
            if value["key"] == key:
                stamp.touch()
                return dict(value)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        value = {"key": key, **(make(folder) or {})}
        store.write_json(stamp, value)
        return value


def _export_tests(source: Fetched, folder: Path) -> None:
    """The base's tests as they are in its commit, without the ``torch/`` beside them."""
    git = Git(Path(source.folder))
    names = git.run("ls-tree", "--name-only", "-z", source.commit).split(b"\0")
    paths = [name for name in ("test", "pytest.ini") if name.encode() in names]
    archive = git.run("archive", "--format=tar", source.commit, *paths)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.isfile():
                place = folder / member.name
                place.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None
                place.write_bytes(content.read())


def _write(folder: Path, changes: Mapping[str, Optional[bytes]]) -> None:
    """Lay the series' changes of tests over them."""
    for path, content in changes.items():
        if not path.startswith("test/"):
            continue
        place = folder / path
        if content is None:
            place.unlink()
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


def _probe(venv: Path) -> dict[str, Any]:
    """What a runtime says of itself, and why FSDP cannot be imported there if it cannot."""
    done = subprocess.run(
        [str(interpreter(venv)), "-c", _PROBE],
        capture_output=True,
        text=True,
        check=False,
        cwd=venv,
        env=environment(Settings()),
    )
    try:
        torch, python = json.loads(done.stdout)
    except ValueError:
        raise UpstreamTestsError(
            f"torch cannot be imported with {interpreter(venv)}", done.stderr.splitlines()[-5:]
        ) from None
    error = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    return {"torch": torch, "python": python, "error": "\n".join(error)}


def _forget_old(folder: Path) -> None:
    """Remove halves that were not used for long."""
    for stamp in folder.glob(f"*/{_STAMP}"):
        with suppress(OSError):
            if time.time() - stamp.stat().st_mtime > _DAYS_KEPT * _SECONDS_A_DAY:
                shutil.rmtree(stamp.parent)
