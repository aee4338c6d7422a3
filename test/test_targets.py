from __future__ import annotations

import base64
import csv
import errno
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import venv
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Callable, NoReturn, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import OverlayError, TargetError, UsageError
from overlay.targets import AppliedPatch, Installed, SourceTree, Target, base, find_target
from overlay.targets.installed import _Row, _with_rows

Changes = Mapping[str, Optional[bytes]]

VERSION = "2.13.0+cpu"
DIST_INFO = f"torch-{VERSION}.dist-info"
STATE = f"{DIST_INFO}/torch-overlay"
SERIES = (AppliedPatch("one.apatch", "11"), AppliedPatch("two.apatch", "22"))
FSDP = "torch/distributed/fsdp/"
FILES = {
    "torch/__init__.py": b"raise RuntimeError('torch was imported')\n",
    "torch/version.py": f"debug = False\n__version__: str = {VERSION!r}\n".encode(),
    "torch/distributed/__init__.py": b"",
    FSDP + "__init__.py": b"",
    FSDP + "api.py": b"x = 1\r\ny = 2",
    FSDP + "init.py": b"\xef\xbb\xbfz = 3\n",
    FSDP + "run me.py": b"#!/bin/sh\n",
    FSDP + 'odd,"name.py': b"odd = 1\n",
    "torch/lib/libtorch.so": bytes(range(256)),
}
# To pristine files, then to what these left: change, add (in new folders too), remove.
FIRST: Changes = {
    FSDP + "api.py": b"x = 10\r\ny = 2",
    FSDP + "run me.py": b"#!/bin/sh\nexit\n",
    FSDP + 'odd,"name.py': None,
    FSDP + "added.py": b"new = 1\n",
    "torch/new/folder/mod.py": b"",
}
SECOND: Changes = {
    FSDP + "api.py": FILES[FSDP + "api.py"],
    FSDP + "init.py": b"z = 4\n",
    FSDP + 'odd,"name.py': b"odd = 2\n",
    FSDP + "added.py": b"new = 2\n",
    "torch/new/folder/mod.py": None,
    "torch/other.py": b"other = 1\n",
}


# Thousands of small trees are made: in memory, where the system has such a place.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# ---- making targets


def make_wheel(folder: Path) -> Path:
    wheel = folder / f"torch-{VERSION}-py3-none-any.whl"
    files = {
        **FILES,
        f"{DIST_INFO}/METADATA": f"Name: torch\nVersion: {VERSION}\n\nName: x\n".encode(),
        f"{DIST_INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        record = ""
        for path, content in files.items():
            name = '"' + path.replace('"', '""') + '"' if '"' in path else path
            record += f"{name},{hash_of(content)},{len(content)}\n"
            info = zipfile.ZipInfo(path, (2020, 1, 2, 3, 4, 6))
            info.external_attr = (0o100755 if "run me" in path else 0o100644) << 16
            archive.writestr(info, content)
        archive.writestr(f"{DIST_INFO}/RECORD", record + f"{DIST_INFO}/RECORD,,\n")
    return wheel


def hash_of(content: bytes) -> str:
    value = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return "sha256=" + value.decode().rstrip("=")


def pip(python: Path, *arguments: str) -> str:
    done = subprocess.run(
        [python, "-I", "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def pip_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv") / "v"
    venv.create(folder, with_pip=True)
    return folder


@pytest.fixture
def mini_venv(pip_venv: Path, wheel: Path) -> Path:
    """A venv into which pip has installed the small torch."""
    pip(pip_venv / "bin/python", "install", "--no-index", "--force-reinstall", str(wheel))
    return pip_venv


@pytest.fixture(scope="session")
def pristine(pip_venv: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine") / "site-packages"
    pip(
        pip_venv / "bin/python",
        *("install", "--no-index", "--compile", "--target", str(folder), str(wheel)),
    )
    return folder


@pytest.fixture(scope="session")
def pristine_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree") / "pytorch"
    for path, content in {**FILES, "version.txt": b"2.13.0a0\n", "test/test_x.py": b""}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    (folder / FSDP / "run me.py").chmod(0o755)
    return folder


@pytest.fixture
def site(pristine: Path, tmp_path: Path) -> Path:
    return copy(pristine, tmp_path / "site-packages")


@pytest.fixture(params=["installed", "tree"])
def start(request: pytest.FixtureRequest, pristine: Path, pristine_tree: Path) -> Path:
    return pristine if request.param == "installed" else pristine_tree


@pytest.fixture
def in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def one_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_now", lambda: "2020-01-01T00:00:00+00:00")


def copy(source: Path, to: Path) -> Path:
    shutil.copytree(source, to)
    return to


def open_target(where: Path) -> Target:
    return find_target(str(where))


# ---- looking at targets


def snapshot(root: Path) -> dict[str, object]:
    """Every file's mode and content, and every folder, but for bytecode."""
    found: dict[str, object] = {}
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name != "__pycache__"]
        for name in names:
            found[os.path.relpath(os.path.join(folder, name), root)] = "folder"
        for name in files:
            path = Path(folder, name)
            found[str(path.relative_to(root))] = (path.stat().st_mode, path.read_bytes())
    return found


def times(root: Path) -> dict[str, int]:
    return {path: (root / path).stat().st_mtime_ns for path in FILES}


def without_folders(found: dict[str, object]) -> dict[str, object]:
    return {path: value for path, value in found.items() if value != "folder"}


def files_of(root: Path) -> set[str]:
    return set(without_folders(snapshot(root)))


def check_record(root: Path) -> None:
    """RECORD lists every file once, with its true hash and size."""
    with open(root / DIST_INFO / "RECORD", encoding="utf-8", newline="") as file:
        rows = {row[0]: row[1:] for row in csv.reader(file)}
    listed = {path for path in rows if not path.endswith(".pyc")}
    assert listed == {p for p in files_of(root) if p.startswith(("torch/", DIST_INFO))}
    for path in listed - {f"{DIST_INFO}/RECORD"}:
        content = (root / path).read_bytes()
        assert rows[path] == [hash_of(content), str(len(content))], path


def message(error: pytest.ExceptionInfo[OverlayError], root: Path) -> str:
    return error.value.message.replace(str(root), "ROOT")


# ---- finding


def test_find_every_kind(
    mini_venv: Path, pristine_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder named torch in the working directory is not what the interpreter has installed.
    monkeypatch.chdir(pristine_tree)
    site = next(mini_venv.glob("lib/python*/site-packages")).resolve()
    for where in (mini_venv, mini_venv / "bin/python", site):
        target = open_target(where)
        assert isinstance(target, Installed)
        assert (target.kind, target.root, target.version) == ("installed", site, VERSION)
        assert target.python.parent == mini_venv / "bin"
        assert str(target) == f"torch {VERSION} in {site}"
    monkeypatch.setattr(sys, "path", ["", str(site), *sys.path])
    target = find_target(None)
    assert isinstance(target, Installed)
    assert (target.root, target.python) == (site, Path(sys.executable))
    tree = find_target(".")
    assert isinstance(tree, SourceTree)
    assert (tree.kind, tree.root, tree.version) == ("tree", pristine_tree, "2.13.0a0")
    assert "torch" not in sys.modules


def test_find_nothing(tmp_path: Path, pip_venv: Path, pristine_tree: Path) -> None:
    python = pip_venv / "bin/python"
    pip(python, "uninstall", "-y", "torch")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "broken").write_text("#!/bin/sh\necho no encodings >&2\nexit 1\n")
    (tmp_path / "broken").chmod(0o755)
    (tmp_path / "other").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "other").chmod(0o755)
    develop = next(pip_venv.glob("lib/python*/site-packages")) / "develop.pth"

    def said(where: Path) -> str:
        with pytest.raises(OverlayError) as error:
            open_target(where)
        return message(error, tmp_path).replace(str(pip_venv), "VENV")

    kinds = (
        "a target is a venv, an interpreter, a site-packages folder that holds torch/,"
        " or a PyTorch source tree that holds torch/ and version.txt"
    )
    assert said(tmp_path / "no") == f"ROOT/no: no such file or folder; {kinds}"
    assert said(tmp_path) == f"ROOT: found no torch here; {kinds}"
    assert said(tmp_path / "text") == (
        "ROOT/text cannot be run as a Python interpreter: Permission denied"
    )
    assert said(tmp_path / "broken") == (
        "ROOT/broken cannot be run as a Python interpreter: no encodings"
    )
    assert said(tmp_path / "other") == "ROOT/other is not a Python interpreter"
    nothing = "VENV/bin/python has no torch: install it there, or name another target"
    assert said(pip_venv) == said(python) == nothing
    develop.write_text(str(pristine_tree))
    try:
        assert said(python) == (
            f"the torch of VENV/bin/python is not installed but the source tree {pristine_tree}:"
            " name that folder instead"
        )
    finally:
        develop.unlink()


def test_version_is_read_and_not_run(site: Path) -> None:
    path = site / "torch/version.py"
    path.write_text("import no_such_module\n__version__ = '2.6.0a0+git1234567'\n")
    assert open_target(site).version == "2.6.0a0+git1234567"
    for text, said in (
        ("__version__ = str(1)\n", "ROOT does not say torch's version; install torch anew"),
        ("__version__ = (\n", "ROOT cannot be read: '(' was never closed (<unknown>, line 1)"),
    ):
        path.write_text(text)
        with pytest.raises(TargetError) as error:
            open_target(site)
        if "closed" not in said or sys.version_info >= (3, 10):
            assert message(error, path) == said


def test_reading(start: Path) -> None:
    target = open_target(start)
    assert target.tree.read(FSDP + "api.py") == FILES[FSDP + "api.py"]
    assert target.tree.read(FSDP + "none.py") is None
    assert target.tree.read("torch") is None
    assert target.tree.read("torch/version.py/x") is None
    assert list(target.tree.python_files()) == sorted(p for p in FILES if p.endswith(".py"))
    assert target.carries(FSDP + "none.py")
    assert target.carries("test/test_x.py") == (target.kind == "tree")
    assert not target.carries("setup.py")
    assert (target.record(), target.interrupted) == (None, False)
    assert target.originals().read(FSDP + "api.py") == FILES[FSDP + "api.py"]
    assert target.is_pristine(FSDP + "api.py") == (target.kind == "installed")
    assert not target.is_pristine("torch/none.py")


# ---- paths


@pytest.mark.parametrize(
    "path",
    [
        *("", "torch", "torch/", "/torch/x.py", "../torch/x.py", "torch/../x.py", "torch/./x.py"),
        *("torch//x.py", "torch/x.py/", "torch\\x.py", "torch/..\\x.py", "C:/torch/x.py"),
        *("setup.py", "torchgen/x.py", "test", "./torch/x.py", "torch/a.pth", "torch/A.PTH"),
        *("torch/.git/hooks/x", "test/.GIT/config", ".git/config", "torch/x\n.py", "torch/x\0"),
    ],
)
def test_paths_that_no_series_may_name(start: Path, path: str) -> None:
    with pytest.raises(UsageError) as error:
        open_target(start).write({path: b""}, SERIES)
    assert error.value.message == (
        f"{path!r} is not a path that a series may name: only files under torch/ and test/,"
        " with forward slashes, no '..', no .pth and nothing under .git/"
    )


@given(st.lists(st.sampled_from(["torch", "test", "..", ".", "", "a.py", "\\", ".git"])))
def test_allowed_paths_stay_inside(parts: list[str]) -> None:
    path = "/".join(parts)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "version.txt").touch()
        try:
            SourceTree(Path(folder)).check_path(path)
        except UsageError:
            return
        assert os.path.normpath(path) == path
        assert parts[0] in ("torch", "test")
        assert len(parts) > 1


def test_test_files_have_no_place_in_an_installed_torch(site: Path) -> None:
    with pytest.raises(UsageError) as error:
        open_target(site).write({"test/test_x.py": b""}, SERIES)
    assert error.value.message == "test/test_x.py: an installed torch has no place for this file"


def test_links_are_refused(start: Path, tmp_path: Path) -> None:
    root = copy(start, tmp_path / "root")
    outside = tmp_path / "cache"
    outside.mkdir()
    shutil.move(str(root / FSDP / "api.py"), outside / "api.py")
    (root / FSDP / "api.py").symlink_to(outside / "api.py")
    (root / "torch/new").symlink_to(outside)
    before = snapshot(root)
    for path, link in (
        (FSDP + "api.py", FSDP + "api.py"),
        ("torch/new/folder/mod.py", "torch/new"),
    ):
        with pytest.raises(TargetError) as error:
            open_target(root).write({path: b"bad"}, SERIES)
        assert message(error, tmp_path) == (
            f"{link} in ROOT/root is a link to {os.readlink(root / link)}: links are not followed;"
            " put the file itself there (uv: --link-mode=copy)"
        ).replace(str(tmp_path), "ROOT")
    assert snapshot(root) == before
    own = f"{DIST_INFO}/torch-overlay" if (root / DIST_INFO).exists() else ".torch-overlay"
    (root / own).symlink_to(outside)
    with pytest.raises(TargetError, match=rf"^{own.replace('+', '.')} in .* is a link"):
        open_target(root).write({FSDP + "init.py": b"1"}, SERIES)
    assert list(outside.iterdir()) == [outside / "api.py"]
    assert (outside / "api.py").read_bytes() == FILES[FSDP + "api.py"]


# ---- writing and reverting


def test_write_then_revert(start: Path, tmp_path: Path) -> None:
    root = copy(start, tmp_path / "root")
    before, stamps = snapshot(root), times(root)
    linked = {path: tmp_path / str(n) for n, path in enumerate(FILES)}
    for path, link in linked.items():
        os.link(root / path, link)  # as from a package manager's cache
    target = open_target(root)
    for changes, series in ((FIRST, SERIES[:1]), (SECOND, SERIES)):
        target.write(changes, series)
        expected = dict(FILES)
        for path, content in [*FIRST.items(), *(SECOND.items() if changes is SECOND else ())]:
            expected.pop(path, None)
            if content is not None:
                expected[path] = content
        assert {p: c for p in files_of(root) if (c := target.tree.read(p)) and p in expected} == {
            p: c for p, c in expected.items() if c
        }
        assert {p for p in files_of(root) if p.startswith("torch/")} == set(expected)
        record = open_target(root).record()
        assert record is not None
        assert record.series == series
        assert {p: f.after for p, f in record.files.items()} == {
            p: c if c is None else hashlib.sha256(c).hexdigest()
            for p in {**FIRST, **changes}
            if (c := expected.get(p)) != FILES.get(p)
        }
        assert open_target(root).local_changes([*FILES, *FIRST, *SECOND]) == []
        originals = open_target(root).originals()
        assert {p: originals.read(p) for p in originals.python_files()} == {
            p: c for p, c in FILES.items() if p.endswith(".py")
        }
        assert os.stat(root / FSDP / "run me.py").st_mode & 0o777 == 0o755
        assert os.stat(root / FSDP / "added.py").st_mode & 0o777 == 0o644
        if target.kind == "installed":
            check_record(root)
            assert not target.is_pristine(FSDP + "added.py")
            assert target.is_pristine("torch/version.py")
        else:
            assert (root / ".torch-overlay/.gitignore").read_bytes() == b"*\n"
        for path, link in linked.items():
            assert link.read_bytes() == FILES[path]
    reverted = target.revert()
    assert record is not None
    assert reverted == sorted(record.files)
    assert snapshot(root) == before
    assert times(root) == stamps
    assert target.record() is None
    assert target.revert() == []
    assert not list((root / FSDP / "__pycache__").glob("added.*"))


def test_writing_the_same_again_changes_nothing(start: Path, tmp_path: Path) -> None:
    root = copy(start, tmp_path / "root")
    target = open_target(root)
    target.write({FSDP + "api.py": FILES[FSDP + "api.py"]}, ())
    assert snapshot(root) == snapshot(start)
    target.write(FIRST, SERIES)
    stamps = {path: os.stat(root / path).st_ino for path in files_of(root)}
    target.write(FIRST, SERIES)
    assert {path: os.stat(root / path).st_ino for path in files_of(root)} == stamps
    # A series whose results were all there already is recorded, too; nothing else is.
    target.revert()
    target.write({FSDP + "api.py": FILES[FSDP + "api.py"]}, SERIES)
    record = target.record()
    assert record is not None
    assert (record.series, record.files) == (SERIES, {})
    target.revert()
    assert snapshot(root) == snapshot(start)


@settings(max_examples=40)
@given(
    st.lists(
        st.dictionaries(
            # Without torch/version.py there is no target.
            st.sampled_from(sorted({*FILES, *FIRST, *SECOND} - {"torch/version.py"})),
            st.none() | st.sampled_from([*FILES.values(), b"1", b"2"]),
        ),
        max_size=4,
    )
)
def test_any_writes_are_reverted(
    pristine: Path, pristine_tree: Path, writes: list[dict[str, Optional[bytes]]]
) -> None:
    for start in (pristine, pristine_tree):
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            root = copy(start, Path(folder, "root"))
            for number, changes in enumerate(writes):
                target = open_target(root)
                target.write(changes, (AppliedPatch(str(number), ""),))
                if target.kind == "installed":
                    check_record(root)
                assert all(target.tree.read(path) == c for path, c in changes.items())
            open_target(root).revert()
            assert snapshot(root) == snapshot(start)
            assert times(root) == times(start)


def test_stale_bytecode_goes(mini_venv: Path) -> None:
    python = str(mini_venv / "bin/python")
    target = open_target(mini_venv)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    script = "import sys; sys.path.insert(0, sys.argv[1]); import api; print(api.x)"
    for value in ("1", "10"):
        if value == "10":
            target.write(FIRST, SERIES)
        done = subprocess.run(
            [python, "-c", script, str(target.root / FSDP)],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.stdout == f"{value}\n"
    caches = target.root / FSDP / "__pycache__"
    assert list(caches.glob("api.*"))
    other = list(caches.glob("init.*"))
    target.revert()
    assert not list(caches.glob("api.*"))
    assert list(caches.glob("init.*")) == other != []


def test_pip_uninstall_leaves_nothing(mini_venv: Path) -> None:
    python = mini_venv / "bin/python"
    target = open_target(mini_venv)
    target.write(FIRST, SERIES)
    check_record(target.root)
    subprocess.run([python, "-m", "compileall", "-q", target.root / "torch"], check=False)
    assert f"torch {VERSION}" in pip(python, "list", "--format=freeze").replace("==", " ")
    pip(python, "uninstall", "-y", "torch")
    assert not list(target.root.glob("torch*"))


def test_pip_reinstall_gives_a_clean_torch(mini_venv: Path, wheel: Path) -> None:
    before = snapshot(open_target(mini_venv).root)
    open_target(mini_venv).write(FIRST, SERIES)
    pip(mini_venv / "bin/python", "install", "--no-index", "--force-reinstall", str(wheel))
    target = open_target(mini_venv)
    assert snapshot(target.root) == before
    assert target.record() is None


def test_a_torch_that_was_unpacked_over_the_top_is_clean(site: Path, wheel: Path) -> None:
    open_target(site).write(FIRST, SERIES)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    target = open_target(site)
    assert target.record() is None
    assert target.local_changes(FIRST) == [FSDP + "added.py", "torch/new/folder/mod.py"]
    target.write({FSDP + "init.py": b"1"}, SERIES)
    target.revert()
    assert target.tree.read(FSDP + "init.py") == FILES[FSDP + "init.py"]


@given(
    st.dictionaries(st.text(st.sampled_from('ab,"/.é '), min_size=1), st.integers(0, 9)),
    st.dictionaries(
        st.text(st.sampled_from('ab,"/.é '), min_size=1), st.none() | st.integers(0, 9)
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_record_rows(
    old: dict[str, int], new: dict[str, Optional[int]], end: str, cut: bool
) -> None:
    def text(rows: Mapping[str, Optional[int]]) -> bytes:
        return _with_rows(
            b"", {p: None if n is None else _Row("00" * 32, n) for p, n in rows.items()}
        )

    start = text(old).replace(b"\n", end.encode())
    start = start[: -len(end)] if cut and old else start
    rows = {p: None if n is None else _Row("00" * 32, n) for p, n in new.items()}
    result = _with_rows(start, rows)
    expected = {p: n for p, n in {**old, **new}.items() if n is not None}
    assert {r[0]: int(r[2]) for r in csv.reader(result.decode().splitlines())} == expected
    kept = [line for path, line in zip(old, start.splitlines()) if path not in new]
    assert [line for line in result.splitlines() if line in kept] == kept


# ---- refusals


def test_local_changes_are_refused(site: Path) -> None:
    (site / FSDP / "api.py").write_bytes(b"mine")
    (site / FSDP / "added.py").write_bytes(b"mine too")
    (site / FSDP / 'odd,"name.py').unlink()
    before = snapshot(site)
    target = open_target(site)
    assert target.local_changes([*FILES, *FIRST]) == [
        FSDP + "api.py",
        FSDP + 'odd,"name.py',
        FSDP + "api.py",
        FSDP + 'odd,"name.py',
        FSDP + "added.py",
    ]
    with pytest.raises(TargetError) as error:
        target.write({path: FIRST[path] for path in (FSDP + "added.py", FSDP + "api.py")}, SERIES)
    assert message(error, site) == (
        f"{FSDP}added.py in ROOT has changes that are not from this tool; install it anew"
        f" (pip install --force-reinstall --no-deps torch=={VERSION}) and try again"
    )
    assert error.value.details == (f"{FSDP}api.py was changed too",)
    assert snapshot(site) == before
    target.write({FSDP + "init.py": b"1"}, SERIES)  # the others are not touched


def test_revert_refuses_what_was_edited_since(start: Path, tmp_path: Path) -> None:
    root = copy(start, tmp_path / "root")
    target = open_target(root)
    target.write(FIRST, SERIES)
    (root / FSDP / "added.py").write_bytes(b"edited")
    before = snapshot(root)
    with pytest.raises(TargetError, match=f"^{FSDP}added.py in .* has changes"):
        target.revert()
    assert snapshot(root) == before
    assert target.edited_since() == [FSDP + "added.py"]
    (root / FSDP / "added.py").unlink()  # as it was before: known
    assert target.edited_since() == []
    target.revert()
    assert snapshot(root) == snapshot(start)


def test_an_edited_record_is_refused(site: Path) -> None:
    target = open_target(site)
    target.write(FIRST, SERIES)
    with open(site / DIST_INFO / "RECORD", "a") as file:
        file.write("torch/mine.py,,\n")
    before = snapshot(site)
    for call in (target.revert, lambda: target.write(SECOND, SERIES)):
        with pytest.raises(
            TargetError, match=f"^{DIST_INFO.replace('+', '.')}/RECORD in .* has changes"
        ):
            call()
    assert snapshot(site) == before


@pytest.mark.parametrize("name", ["record.json", "originals"])
def test_damaged_state_is_refused(start: Path, tmp_path: Path, name: str) -> None:
    root = copy(start, tmp_path / "root")
    target = open_target(root)
    target.write(FIRST, SERIES)
    state = root / (STATE if target.kind == "installed" else ".torch-overlay")
    if name == "originals":
        for path in (state / name).iterdir():
            path.unlink()
    else:
        (state / name).write_text('{"format": 1}')
    before = snapshot(root)
    with pytest.raises(TargetError, match=r"is missing or damaged|cannot be read"):
        target.revert()
    assert snapshot(root) == before
    if name == "record.json":
        (state / name).write_text('{"format": 2}')
        with pytest.raises(TargetError, match="is of format 2, this tool knows 1"):
            target.record()


def test_a_record_that_was_lost_is_noticed(site: Path) -> None:
    """What RECORD lists then would else pass for PyTorch's own files."""
    target = open_target(site)
    target.write(FIRST, SERIES)
    shutil.rmtree(site / STATE)
    with pytest.raises(TargetError, match=r"record\.json is missing; install it anew"):
        target.record()


def no_record(site: Path) -> None:
    (site / DIST_INFO / "RECORD").unlink()


def no_dist_info(site: Path) -> None:
    shutil.rmtree(site / DIST_INFO)


def no_hashes(site: Path) -> None:
    path = site / DIST_INFO / "RECORD"
    path.write_text("".join(line.split(",")[0] + ",,\n" for line in path.read_text().splitlines()))


def editable(site: Path) -> None:
    (site / DIST_INFO / "direct_url.json").write_text('{"dir_info": {"editable":true}}')


def two_dist_infos(site: Path) -> None:
    for version in ("2.1.0", "2.2.0"):
        copy(site / DIST_INFO, site / f"torch-{version}.dist-info")
        metadata = site / f"torch-{version}.dist-info/METADATA"
        metadata.write_text(metadata.read_text().replace(VERSION, version))
    shutil.rmtree(site / DIST_INFO)


UNPROVEN = (
    "torch in ROOT has no torch-*.dist-info with a RECORD, so that its files cannot be proven:"
    " use a torch from a wheel, in a venv (pip install torch)"
)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (no_record, UNPROVEN),
        (no_dist_info, UNPROVEN),
        (
            no_hashes,
            f"ROOT/{DIST_INFO}/RECORD has no hashes, so that nothing proves what torch's files"
            f" were; install it anew (pip install --force-reinstall --no-deps torch=={VERSION})"
            " and try again",
        ),
        (editable, "torch in ROOT is an editable install: name its source tree instead"),
        (
            two_dist_infos,
            "ROOT has several dist-info folders of torch"
            " (torch-2.1.0.dist-info, torch-2.2.0.dist-info):"
            " uninstall torch until none is left, then install it anew",
        ),
    ],
)
def test_only_regular_wheels_are_changed(
    site: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(site)
    before = snapshot(site)
    target = open_target(site)
    assert target.tree.read(FSDP + "api.py") == FILES[FSDP + "api.py"]
    assert (target.record(), target.interrupted, target.revert()) == (None, False, [])
    with pytest.raises(TargetError) as error:
        target.write(FIRST, SERIES)
    assert message(error, site) == said
    assert target.refusal() == error.value.message
    assert snapshot(site) == before


def test_of_several_dist_infos_the_one_of_the_version_counts(site: Path) -> None:
    shutil.copytree(site / DIST_INFO, site / "torch-2.1.0.dist-info")
    metadata = site / "torch-2.1.0.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace(VERSION, "2.1.0"))
    open_target(site).write(FIRST, SERIES)
    check = [p for p in files_of(site) if p.endswith("record.json")]
    assert check == [f"{STATE}/record.json"]


@pytest.fixture
def as_other_user() -> Iterator[Path]:
    """A folder in which a user without rights can look, but not write; run as such a user."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    user = os.geteuid()
    metadata.version("torch-overlay")  # reads modules that such a user may not be let to
    yield folder
    if user == 0:
        os.seteuid(0)
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("closed", ["all", "one folder"])
def test_not_writable(start: Path, as_other_user: Path, closed: str) -> None:
    root = copy(start, as_other_user / "root")
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o555 if closed == "all" or path == root / FSDP else 0o777)
    before = snapshot(root)
    if os.geteuid() == 0:
        os.seteuid(65534)
    target = open_target(root)
    with pytest.raises(TargetError) as error:
        target.write(FIRST, SERIES)
    state = "ROOT" if target.kind == "tree" else f"ROOT/{DIST_INFO}"
    folder = state if closed == "all" else "ROOT/" + FSDP.rstrip("/")
    assert message(error, root) == (
        f"{folder} is not writable; run as the user that owns it, or use a venv of your own"
    )
    assert snapshot(root) == before


# ---- crashes


Action = Callable[[Path], object]


class Stepper:
    """Runs something in a forked process, where the n-th change to the disk goes wrong."""

    EVENTS = ("rename", "remove", "mkdir", "rmdir", "link", "chmod", "chown", "utime", "truncate")
    GROWING = ("open", "os.mkdir", "os.link", "write")

    def __init__(self, action: Action, root: Path, number: int, kind: str) -> None:
        self.number, self.kind, self.count = number, kind, 0
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self._run(action, root, writing)
        os.close(writing)
        with open(reading, encoding="utf-8") as answer:
            self.said = answer.read()
        status = os.waitpid(child, 0)[1]
        self.killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert self.killed or status == 0, self.said

    def _run(self, action: Action, root: Path, answer: int) -> NoReturn:
        status = 1
        write = os.write

        def stepped_write(fd: int, data: memoryview) -> int:
            if self.kind == "kill" and self.count + 1 == self.number:
                write(fd, data[: len(data) // 2])
            self._step("write")
            return write(fd, data)

        def stepped_fsync(fd: int) -> None:
            self._step("fsync")

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if event == "open":
                flags = arguments[2]
                if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                    self._step(event)
            elif event.startswith("os.") and event[3:] in self.EVENTS:
                self._step(event)

        try:
            os.write, os.fsync = stepped_write, stepped_fsync  # type: ignore[assignment]
            sys.addaudithook(hook)
            said = ""
            try:
                action(root)
            except TargetError as error:
                said = error.message
            status = 0
        except BaseException:
            said = traceback.format_exc()
        write(answer, (said if self.count >= self.number else "never").encode())
        os._exit(status)

    def _step(self, event: str) -> None:
        self.count += 1
        if self.count < self.number:
            return
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "full" and event in self.GROWING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif self.kind == "readonly" or (self.kind == "once" and self.count == self.number):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def write_first(root: Path) -> None:
    open_target(root).write(FIRST, SERIES)


def write_second(root: Path) -> None:
    open_target(root).write(SECOND, SERIES[:1])


def revert(root: Path) -> None:
    open_target(root).revert()


def prepare(start: Path, root: Path, action: Action) -> None:
    copy(start, root)
    if action is not write_first:
        write_first(root)


def recover(root: Path) -> None:
    target = open_target(root)
    with target.locked():
        pass
    assert not target.interrupted


@dataclass(frozen=True)
class Scenario:
    """Something to do with a target, and how the target looks before and after it."""

    start: Path
    root: Path
    action: Action
    before: dict[str, object]
    after: dict[str, object]

    def run(self, number: int, kind: str) -> Stepper:
        shutil.rmtree(self.root, ignore_errors=True)
        prepare(self.start, self.root, self.action)
        return Stepper(self.action, self.root, number, kind)


@pytest.fixture(params=[write_first, write_second, revert])
def scenario(
    request: pytest.FixtureRequest,
    start: Path,
    in_memory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Scenario:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # A kill is no power cut.
    root, action = in_memory / "root", request.param
    prepare(start, root, action)
    before = snapshot(root)
    action(root)
    after = snapshot(root)
    assert before != after
    return Scenario(start, root, action, before, after)


def test_killed_at_every_step(scenario: Scenario) -> None:
    outcomes = []
    for number in range(1, 1000):
        run = scenario.run(number, "kill")
        if not run.killed:
            assert run.said == "never"
            break
        recover(scenario.root)
        found = snapshot(scenario.root)
        assert found in (scenario.before, scenario.after), number
        outcomes.append(found == scenario.after)
        if number % 10 == 0:  # It must go on from there, too.
            scenario.action(scenario.root)
            assert snapshot(scenario.root) == scenario.after
    # Undone up to some step, done from there on.
    assert outcomes == sorted(outcomes)
    assert outcomes.count(False) > 20
    assert outcomes.count(True) > 5


# These take long; an installed torch has all the steps that a source tree has.
@pytest.mark.parametrize("start", ["installed"], indirect=True)
def test_killed_again_while_recovering(scenario: Scenario) -> None:
    for first in range(20, 1000, 40):
        for second in range(1, 1000):
            killed = scenario.run(first, "kill").killed
            again = Stepper(recover, scenario.root, second, "kill").killed
            recover(scenario.root)
            assert snapshot(scenario.root) in (scenario.before, scenario.after), (first, second)
            if not again:
                break
        if not killed:
            break
    assert first > 60


@pytest.mark.parametrize("start", ["installed"], indirect=True)
@pytest.mark.parametrize("kind", ["full", "once", "readonly"])
def test_failing_at_every_step(scenario: Scenario, kind: str) -> None:
    root, before, after = scenario.root, scenario.before, scenario.after
    said = set()
    for number in range(1, 1000):
        run = scenario.run(number, kind)
        if run.said == "never":
            break
        said.add(run.said.split(": ")[-1])
        undone = run.said.endswith("nothing was changed")
        if kind == "full" and undone:
            assert snapshot(root) == before, number
        recover(root)
        # "Nothing was changed" is true, and so is no error, even if tidying up failed.
        allowed = [before] if undone else [after] if run.said == "" else [before, after]
        if kind == "once":  # An empty folder may stay.
            assert without_folders(snapshot(root)) in map(without_folders, allowed), number
        else:
            assert snapshot(root) in allowed, number
    reason = os.strerror(errno.ENOSPC if kind == "full" else errno.EROFS)
    mend = "; once that is mended, any torch-overlay command that writes will undo it"
    nothing, unmended = f"{reason}; nothing was changed", f"{reason}{mend}"
    assert said == ({"", nothing, unmended} if kind == "readonly" else {"", nothing})


def test_what_a_full_disk_says(start: Path, in_memory: Path) -> None:
    root = in_memory / "root"
    for number in range(1, 1000):
        shutil.rmtree(root, ignore_errors=True)
        copy(start, root)
        run = Stepper(write_first, root, number, "full")
        if "api.py" in run.said:
            break
    assert run.said.replace(str(root), "ROOT") == (
        f"cannot write ROOT/{FSDP}.api.py.torch-overlay: No space left on device;"
        " nothing was changed"
    )


def test_a_new_torch_over_an_interrupted_write(site: Path, tmp_path: Path) -> None:
    def interrupt() -> int:
        """Kill when all files are renamed, but not yet said to be done."""
        for number in range(1, 1000):
            shutil.rmtree(site)
            copy(tmp_path / "clean", site)
            Stepper(write_first, site, number, "kill")
            found = snapshot(site)
            if open_target(site).interrupted and f"{STATE}/record.json" in found:
                return number
        raise AssertionError("never in between")

    copy(site, tmp_path / "clean")
    interrupt()
    (site / FSDP / "api.py").write_bytes(b"edited")
    (site / STATE / "lock").unlink()
    before = snapshot(site)
    with pytest.raises(TargetError) as error:
        open_target(site).write(FIRST, SERIES)
    assert message(error, site) == (
        f"cannot undo an interrupted change: {FSDP}api.py in ROOT was changed since;"
        " install torch anew (a checkout: restore it), then remove"
        f" ROOT/{STATE}"
    )
    assert snapshot(site) == before

    # Nothing of it is left but this tool's own files, since RECORD did not list them yet.
    state = copy(site / STATE, tmp_path / "state")
    shutil.rmtree(site)
    copy(tmp_path / "clean", site)
    copy(state, site / STATE)
    recover(site)
    assert snapshot(site) == snapshot(tmp_path / "clean")


# ---- locks


def test_a_locked_target_says_who_holds_it(start: Path, tmp_path: Path) -> None:
    root = copy(start, tmp_path / "root")
    target = open_target(root)
    target.wait = 0.1
    reading, writing = os.pipe()
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        with open_target(root).locked():
            os.write(told, b".")
            os.close(writing)
            os.read(reading, 1)
        os._exit(0)
    os.read(ready, 1)
    os.close(reading)
    with pytest.raises(TargetError) as error:
        target.write(FIRST, SERIES)
    place = "ROOT" if target.kind == "tree" else f"ROOT/{DIST_INFO}"
    assert message(error, root) == (
        f"{place} is in use by another torch-overlay (process {child} on {socket.gethostname()});"
        " try again when it has ended"
    )
    os.close(writing)
    os.waitpid(child, 0)
    assert snapshot(root) == snapshot(start)
    target.write(FIRST, SERIES)


def test_locks_exclude_each_other(start: Path, tmp_path: Path) -> None:
    root = copy(start, tmp_path / "root")
    counter = tmp_path / "counter"
    counter.write_text("0")
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                target = open_target(root)
                target.wait = 120
                for _ in range(25):
                    with target.locked(), target.locked():
                        value = int(counter.read_text())
                        time.sleep(0)
                        counter.write_text(str(value + 1))
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert counter.read_text() == "100"
    assert snapshot(root) == snapshot(start)


# ---- compiling


def test_compile_errors(site: Path) -> None:
    target = open_target(site)
    assert target.compile_errors({}) == []
    found = target.compile_errors(
        {
            "torch/ok.py": b"# coding: latin-1\nx = '\xe9'\nimport no_such_module\n",
            "torch/warns.py": b"x = 1 is 1\n",
            "torch/data.txt": b"not Python",
            "torch/bad.py": b"x = 1\nif x\n",
            "torch/null.py": b"x = '\0'\n",
            "torch/coding.py": b"# coding: none-such\n",
            "torch/return.py": b"\nreturn 1\n",
        }
    )
    assert [path for path, _, _ in found] == [
        *("torch/bad.py", "torch/coding.py", "torch/null.py", "torch/return.py")
    ]
    assert found[0][1] == 2
    assert found[3] == ("torch/return.py", 2, "'return' outside function")


def test_compiled_by_the_interpreter_of_the_target(tmp_path: Path, pristine: Path) -> None:
    site = copy(pristine, tmp_path / "lib/python3.99/site-packages")
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python3.99"
    python.write_text('#!/bin/sh\necho \'[["torch/x.py", 7, "from this one"]]\'\n')
    python.chmod(0o755)
    target = open_target(site)
    assert target.compile_errors({"torch/x.py": b""}) == [("torch/x.py", 7, "from this one")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[project]\nrequires-python = ">=3.7,<3.15"\n'),
        ("setup.py", "python_min_version = (3, 7, 2)\n"),
    ],
)
def test_a_source_tree_says_its_oldest_python(
    pristine_tree: Path, tmp_path: Path, name: str, text: str
) -> None:
    root = copy(pristine_tree, tmp_path / "root")
    files = {"torch/x.py": b"def f(a, /): ...\n", "torch/y.py": b"x = 1\n"}
    assert open_target(root).compile_errors(files) == []
    (root / name).write_text(text)
    found = open_target(root).compile_errors(files)
    if sys.version_info >= (3, 10):
        assert [(path, line) for path, line, _ in found] == [("torch/x.py", 1)]
        assert "3.8" in found[0][2]
    else:  # Python 3.9 does not know since when this syntax is there.
        assert found == []


# ---- the real torch


def real_state(root: Path, paths: list[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in paths:
        place = root / path
        found[path] = (place.stat().st_mode, place.read_bytes()) if place.exists() else None
    dist_info = next(root.glob("torch-*.dist-info"))
    for path, value in snapshot(dist_info).items():
        found[f"{dist_info.name}/{path}"] = value
    return found


def test_real_torch(stock_torch: Path, torch_copy: Callable[[], Path]) -> None:
    places = ["utils.py", "fsdp/api.py", "fsdp/_runtime_utils.py", "fsdp/_init_utils.py"]
    paths = [f"torch/distributed/{name}" for name in places]
    changes: dict[str, Optional[bytes]] = {
        path: (stock_torch / path).read_bytes() + b"\n# changed\n" for path in paths
    }
    changes["torch/distributed/fsdp/_overlay_added.py"] = b"x = 1\n"
    changes["torch/distributed/_state_dict_utils.py"] = None
    stock = real_state(stock_torch, list(changes))

    target = open_target(torch_copy())
    assert isinstance(target, Installed)
    root = target.root
    before = real_state(root, list(changes))
    assert target.local_changes(paths) == []
    assert all(target.is_pristine(path) for path in paths)
    target.write(changes, SERIES)
    after = real_state(root, list(changes))
    assert {path: after[path] and after[path][1] for path in changes} == changes  # type: ignore[index]
    with open(root / target._record_path, encoding="utf-8", newline="") as file:
        rows = {row[0]: row[1:] for row in csv.reader(file)}
    for path, row in rows.items():
        if path.startswith(("torch/distributed/", "torch-")) and row[0]:
            content = (root / path).read_bytes()
            assert row == [hash_of(content), str(len(content))], path
    assert set(rows) >= {p for p, value in after.items() if value not in (None, "folder")}
    assert target.compile_errors({p: c for p, c in changes.items() if c is not None}) == []
    target.revert()
    assert real_state(root, list(changes)) == before

    chance = random.Random(0)
    done = 0
    for _ in range(12):
        child = os.fork()
        if child == 0:
            while True:
                target.write(changes, SERIES)
                target.revert()
        time.sleep(chance.uniform(0.01, 0.4))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        recover(root)
        found = real_state(root, list(changes))
        assert found in (before, after)
        done += found == after
        target.revert()
        assert real_state(root, list(changes)) == before
    assert real_state(stock_torch, list(changes)) == stock
    assert open_target(stock_torch).local_changes(paths) == []
