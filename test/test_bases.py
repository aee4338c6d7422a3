"""Bases against real git, pip and apt, with a small tree in PyTorch's place."""

from __future__ import annotations

import errno
import functools
import http.server
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from overlay import bases, runtime
from overlay.bases import (
    Base,
    BaseError,
    FingerprintError,
    Runtime,
    debian,
    fingerprint,
    process,
    repository,
    wheels,
)
from overlay.bases.pythons import find_python
from overlay.errors import OverlayError, UsageError
from test_runtime import use, write_torch, write_wheel

TREE = {
    "version.txt": "9.8.0a0\n",
    "README.md": "A tree.\n",
    "torch/__init__.py": "",
    "torch/nn.py": "x = 1\n",
    "torch/distributed/__init__.py": "VALUE = 'stock'\n",
    "torch/distributed/fsdp/__init__.py": "",
    "torch/distributed/fsdp/api.py": "class FSDP: ...\n",
    "torch/distributed/examples/example.py": "# in no wheel: no package\n",
    "torch/testing/_internal/__init__.py": "",
    "torch/testing/_internal/common.py": "y = 2\n",
    "test/distributed/test_one.py": "def test(): ...\n",
}
PROVEN = [
    "torch/distributed/__init__.py",
    "torch/distributed/fsdp/__init__.py",
    "torch/distributed/fsdp/api.py",
    "torch/testing/_internal/__init__.py",
    "torch/testing/_internal/common.py",
    "test/distributed/test_one.py",
]
FETCH = """
import json, os, signal, sys
from pathlib import Path
from overlay.bases import Base, fetch
name, version, revision, manifest, source, kill_at = sys.argv[1:]
def progress(line):
    print(line, flush=True)
    if kill_at and kill_at in line:
        os.kill(os.getpid(), signal.SIGKILL)
base = Base(name, version, "", revision, Path(manifest))
state = fetch(base, Path(source) if source else None, source_only=True, progress=progress)
print(state.source.commit)
"""


def write(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ["git", *identity, *arguments],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def tarball(path: Path, root: Path, top: str = "pytorch-9.8.0") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        archive.add(root, top or ".")
    return path


def source_of(base: Base) -> Path:
    return bases.path_of(base)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_OVERLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCH_OVERLAY_PYTHON", raising=False)
    # Nothing listens there: whatever would leave this machine by mistake fails.
    monkeypatch.setenv("TORCH_OVERLAY_UPSTREAM", "http://127.0.0.1:9/pytorch.git")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "TORCH_OVERLAY_PIP_ARGS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write(tmp_path / "tree", TREE)


@pytest.fixture
def base(tree: Path, tmp_path: Path) -> Base:
    manifest = tmp_path / "v9.8.1.sha256"
    manifest.write_text(fingerprint.render(fingerprint.compute(tree)))
    # As in Debian, the tree of a patch release may call itself one of the first.
    return Base("v9.8.1", "9.8.1", "a test", "refs/tags/v9.8.1", manifest, runtime=Runtime())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the tag in the middle of its history."""
    folder = write(tmp_path / "checkout", {"README.md": "before\n"})
    git(folder, "init", "--quiet", "--initial-branch=trunk")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=before")
    write(folder, TREE)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=the release")
    git(folder, "tag", "--annotate", "--message=", "v9.8.1")
    write(folder, {"torch/distributed/fsdp/api.py": "class Later: ...\n"})
    git(folder, "commit", "--quiet", "--all", "--message=after")
    return folder


@pytest.fixture
def upstream(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    bare = tmp_path / "upstream.git"
    git(tmp_path, "clone", "--quiet", "--bare", str(checkout), str(bare))
    monkeypatch.setenv("TORCH_OVERLAY_UPSTREAM", bare.as_uri())
    return bare


# The catalog


@pytest.mark.parametrize("base", bases.BASES.values(), ids=list(bases.BASES))
def test_every_base_is_proven_by_something(base: Base) -> None:
    if base.fingerprint is None:
        assert base.is_commit
        assert re.fullmatch(r"[0-9a-f]{40}(~1)?", base.revision)
        return
    hashes = fingerprint.load(base.fingerprint)
    assert len(hashes) > 250
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in hashes.values())
    assert "torch/distributed/fsdp/__init__.py" in hashes
    # Only v2.13.0's has never been seen as a source tree with its tests.
    has_tests = any(path.startswith("test/distributed/") for path in hashes)
    assert has_tests == (base.debian is not None)


def test_names() -> None:
    assert bases.find_base(bases.DEFAULT_BASE).version == "2.13.0"
    assert bases.find_base("1.13.1") is bases.BASES["v1.13.1"]
    assert bases.find_base("2.6.0+cu124") is bases.BASES["v2.6.0"]
    own = bases.find_base("2.9.1")
    assert (own.name, own.revision, own.fingerprint) == ("v2.9.1", "refs/tags/v2.9.1", None)
    with pytest.raises(UsageError, match=r"'trunk' is not a base: name one of v2\.13\.0, "):
        bases.find_base("trunk")


# Fingerprints


def test_a_fingerprint_is_what_sha256sum_checks(tree: Path, base: Base) -> None:
    assert base.fingerprint
    assert list(fingerprint.load(base.fingerprint)) == PROVEN
    command = ["sha256sum", "--check", "--quiet", "--strict", base.fingerprint]
    subprocess.run(command, cwd=tree, check=True)


def test_what_the_build_generates_does_not_count(tree: Path, base: Base) -> None:
    before = fingerprint.compute(tree)
    write(
        tree,
        {
            "torch/testing/_internal/generated/__init__.py": "",
            "torch/distributed/__pycache__/cached.py": "",
            "torch/distributed/_C.pyi": "",
        },
    )
    assert fingerprint.compute(tree) == before


def test_a_fingerprint_says_what_differs(tree: Path, base: Base) -> None:
    assert base.fingerprint
    expected = fingerprint.load(base.fingerprint)
    assert (
        fingerprint.prove(tree, expected, "v9.8.1")
        == "6 files of torch/distributed, torch/testing/_internal, test/distributed match the"
        " fingerprint"
    )
    write(tree, {"torch/distributed/fsdp/api.py": "class FSDP: pass\n"})
    (tree / "torch/testing/_internal/common.py").unlink()
    write(tree, {"test/distributed/test_two.py": ""})
    with pytest.raises(FingerprintError) as caught:
        fingerprint.prove(tree, expected, "v9.8.1")
    assert (
        caught.value.message == "this is not an unchanged v9.8.1: 3 files of 6 do not match its"
        " fingerprint, first differs: torch/distributed/fsdp/api.py"
    )
    assert caught.value.details == (
        "differs: torch/distributed/fsdp/api.py",
        "missing: torch/testing/_internal/common.py",
        "not in it: test/distributed/test_two.py",
    )
    assert caught.value.exit_code == 1


def test_a_folder_of_the_package_may_not_be_missing(tree: Path, base: Base) -> None:
    assert base.fingerprint
    expected = fingerprint.load(base.fingerprint)
    shutil.rmtree(tree / "torch/testing")
    with pytest.raises(FingerprintError, match=r"first missing: torch/testing/_internal/__init__"):
        fingerprint.prove(tree, expected, "v9.8.1")
    (tree / "torch/distributed/fsdp/__init__.py").unlink()
    with pytest.raises(FingerprintError, match="4 files of 6"):
        fingerprint.prove(tree, expected, "v9.8.1")


def test_what_is_not_proven_is_said(tree: Path, base: Base) -> None:
    assert base.fingerprint
    expected = fingerprint.load(base.fingerprint)
    known = {p: h for p, h in expected.items() if not p.startswith("test/")}
    assert fingerprint.prove(tree, known, "it").endswith(
        "5 files of torch/distributed, torch/testing/_internal match the fingerprint; no"
        " fingerprint is known for test/distributed"
    )
    shutil.rmtree(tree / "test")
    assert fingerprint.prove(tree, expected, "it").endswith("; there is no test/distributed")


# By a clone


def test_a_shallow_clone_of_the_tag(base: Base, upstream: Path) -> None:
    lines: list[str] = []
    state = bases.fetch(base, source_only=True, progress=lines.append)
    assert state.source
    folder = source_of(base)
    release = git(upstream, "rev-parse", "v9.8.1^{commit}")
    assert state.source.commit == git(folder, "rev-parse", "HEAD") == release
    assert state.source.way == "a clone"
    assert state.source.has_tests
    assert git(folder, "log", "--format=%s") == "the release"
    assert git(folder, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    assert git(folder, "tag") == ""
    assert git(folder, "status", "--porcelain") == ""
    assert lines[0].startswith(f"v9.8.1: cloning {upstream.as_uri()} [")
    assert lines[-1].startswith("v9.8.1: ready, by a clone: 6 files of ")

    lines.clear()
    assert bases.fetch(base, source_only=True, progress=lines.append) == state
    assert lines == []
    assert bases.state_of(base) == state
    json.dumps(state.to_json())


def test_a_commit_id_proves_a_clone(base: Base, upstream: Path) -> None:
    after = git(upstream, "rev-parse", "trunk")
    before = git(upstream, "rev-parse", "trunk~1")
    trunk = replace(base, name="trunk", revision=f"{after}~1", fingerprint=None, runtime=None)
    state = bases.fetch(trunk)
    assert state.source
    assert state.source.commit == before
    assert state.source.proof == f"its commit id, {before}, proves it"
    assert git(source_of(trunk), "rev-parse", "HEAD") == before
    assert (state.runtime, state.python) == (None, None)
    with pytest.raises(BaseError, match="trunk has no wheel"):
        bases.fetch_runtime(trunk)


def test_a_clone_ignores_hooks_and_settings_that_change_files(
    base: Base, upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = tmp_path / "hooks"
    for name in ("reference-transaction", "post-checkout", "pre-commit"):
        write(hooks, {name: f"#!/bin/sh\ntouch {tmp_path}/ran\n"})
        (hooks / name).chmod(0o755)
    (tmp_path / ".gitconfig").write_text(
        f"[core]\nhooksPath = {hooks}\nautocrlf = true\n[commit]\ngpgSign = true\n"
        f"[init]\ntemplateDir = {hooks}\ndefaultBranch = other\n[fetch]\nprune = true\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", str(upstream))
    bases.fetch(base, source_only=True)
    monkeypatch.delenv("GIT_DIR")
    assert (source_of(base) / "version.txt").read_bytes() == b"9.8.0a0\n"
    assert not (tmp_path / "ran").exists()
    assert git(upstream, "log", "-1", "--format=%s") == "after"


def test_the_users_git_configuration_says_how_to_get_there(
    base: Base, upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text(f'[url "{upstream.as_uri()}"]\ninsteadOf = https://example.com/torch\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("TORCH_OVERLAY_UPSTREAM", "https://example.com/torch")
    state = bases.fetch(base, source_only=True)
    assert state.source and state.source.way == "a clone"


def test_a_server_that_does_not_answer(
    base: Base, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(repository, "_ANSWER_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/pytorch.git"
        with pytest.raises(BaseError, match=rf"git cannot read {url}: no answer in time"):
            repository.clone(url, base.revision, tmp_path / "clone", print)


def test_no_such_tag(base: Base, upstream: Path, tmp_path: Path) -> None:
    with pytest.raises(BaseError, match=r"upstream\.git has no refs/tags/v1"):
        repository.clone(upstream.as_uri(), "refs/tags/v1", tmp_path / "a", print)
    missing = "0123456789" * 4
    with pytest.raises(BaseError, match=rf"git cannot fetch {missing} from"):
        repository.clone(upstream.as_uri(), missing, tmp_path / "b", print)


# What somebody gives


def test_a_given_checkout_gives_the_release_in_it(base: Base, checkout: Path) -> None:
    write(checkout, {"torch/distributed/fsdp/api.py": "half an edit\n"})
    state = bases.fetch(base, checkout, source_only=True)
    assert state.source
    assert state.source.way == str(checkout)
    assert state.source.commit == git(checkout, "rev-parse", "v9.8.1^{commit}")
    assert (source_of(base) / "torch/distributed/fsdp/api.py").read_text() == "class FSDP: ...\n"


def test_a_given_checkout_without_the_tag_gives_what_is_checked_out(
    base: Base, checkout: Path
) -> None:
    git(checkout, "tag", "--delete", "v9.8.1")
    with pytest.raises(FingerprintError, match=r"first differs: torch/distributed/fsdp/api\.py"):
        bases.fetch(base, checkout, source_only=True)
    git(checkout, "checkout", "--quiet", "--detach", "HEAD~1")
    assert bases.fetch(base, checkout, source_only=True).source


def test_a_given_worktree_and_a_given_bare_repository(
    base: Base, checkout: Path, upstream: Path, tmp_path: Path
) -> None:
    git(checkout, "worktree", "add", "--quiet", str(tmp_path / "worktree"))
    for given in (tmp_path / "worktree", upstream):
        state = bases.fetch(base, given, anew=True, source_only=True)
        assert state.source and state.source.way == str(given)


def test_a_commit_in_a_given_checkout_is_proven_by_its_id(base: Base, checkout: Path) -> None:
    after = git(checkout, "rev-parse", "HEAD")
    trunk = replace(base, name="trunk", revision=f"{after}~1", fingerprint=None)
    state = bases.fetch(trunk, checkout, source_only=True)
    assert state.source and state.source.proof.endswith("proves it")

    elsewhere = replace(trunk, name="other", revision="0123456789" * 4 + "~1")
    state = bases.fetch(elsewhere, checkout, source_only=True)
    assert state.source and state.source.commit == after
    assert state.source.proof == "nothing proves it: no fingerprint of it is known"


@pytest.mark.parametrize("kind", ["folder", "tarball", "tarball without a top folder"])
def test_what_is_given_becomes_one_commit_always_the_same(
    kind: str, base: Base, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "script.sh").write_text("")
    (tree / "script.sh").chmod(0o755)
    (tree / "link").symlink_to("torch")
    write(tree, {".gitignore": "torch/\n", "torch/__pycache__/nn.pyc": ""})
    if kind == "folder":
        given = tree
    else:
        shutil.rmtree(tree / "torch/__pycache__")
        top = "." if kind.endswith("top folder") else "pytorch-9.8.0"
        given = tarball(tmp_path / "it.tar.gz", tree, top)
    commits = set()
    for year in ("2001", "2002"):
        monkeypatch.setenv("GIT_AUTHOR_DATE", f"{year}-01-01T00:00:00+00:00")
        state = bases.fetch(base, given, anew=True, source_only=True)
        assert state.source
        commits.add(state.source.commit)
    assert len(commits) == 1
    folder = source_of(base)
    assert git(folder, "status", "--porcelain", "--ignored") == ""
    assert git(folder, "log", "--format=%an %s") == "torch-overlay PyTorch 9.8.1"
    files = git(folder, "ls-tree", "-r", "--name-only", "HEAD").splitlines()
    assert sorted(files) == sorted([*TREE, ".gitignore", "link", "script.sh"])
    assert git(folder, "ls-tree", "HEAD", "script.sh").startswith("100755 ")
    assert git(folder, "ls-tree", "HEAD", "link").startswith("120000 ")


def test_a_given_wheel(base: Base, tmp_path: Path) -> None:
    python = {path: text for path, text in TREE.items() if path.startswith("torch/")}
    del python["torch/distributed/examples/example.py"]
    write_wheel(tmp_path, "torch", "9.8.1+cpu", {**python, "torch/version.py": "cpu = True\n"})
    state = bases.fetch(base, tmp_path / "torch-9.8.1+cpu-py3-none-any.whl", source_only=True)
    assert state.source
    assert not state.source.has_tests
    assert state.source.proof.endswith("match the fingerprint; there is no test/distributed")
    files = git(source_of(base), "ls-files").splitlines()
    assert sorted(files) == sorted([*python, "version.txt"])


def test_a_tampered_file_is_named_and_nothing_is_kept(
    base: Base, tree: Path, tmp_path: Path, cache: Path
) -> None:
    write(tree, {"torch/distributed/fsdp/api.py": "import os\n"})
    for given in (tree, tarball(tmp_path / "it.tar.gz", tree)):
        with pytest.raises(FingerprintError, match=r"differs: torch/distributed/fsdp/api\.py"):
            bases.fetch(base, given, source_only=True)
        assert list((cache / "bases" / "v9.8.1").iterdir()) == []
    with pytest.raises(
        BaseError, match=r"v9\.8\.1 is not fetched: run `torch-overlay base fetch v9"
    ):
        bases.path_of(base)


def test_what_is_no_pytorch(base: Base, tree: Path, checkout: Path, tmp_path: Path) -> None:
    def refused(given: Path, match: str) -> None:
        with pytest.raises(BaseError, match=match):
            bases.fetch(base, given, source_only=True)

    refused(tmp_path / "nowhere", "nowhere: no such file or folder")
    refused(write(tmp_path / "other", {"setup.py": ""}), "other is no PyTorch source tree")
    whole = tarball(tmp_path / "it.tar.gz", tree).read_bytes()
    (tmp_path / "it.tar.gz").write_bytes(whole[: len(whole) // 2])
    refused(tmp_path / "it.tar.gz", r"it\.tar\.gz is not a whole and harmless tarball")
    refused(tree / "README.md", r"README\.md is not a whole and harmless tarball")
    write_wheel(tmp_path, "torch", "9.7.0", {})
    refused(tmp_path / "torch-9.7.0-py3-none-any.whl", r"is PyTorch 9\.7\.0, not 9\.8\.1")
    broken = write(tmp_path, {"torch-9.8.1-py3-none-any.whl": "no zip"})
    refused(broken / "torch-9.8.1-py3-none-any.whl", "is broken")
    refused(write(tmp_path, {"it.whl": ""}) / "it.whl", "has no wheel's name")
    write(tree, {"version.txt": "9.7.0a0\n"})
    refused(tree, r"tree is PyTorch 9\.7\.0a0, not 9\.8\.1")
    git(tmp_path, "init", "--quiet", "empty")
    refused(tmp_path / "empty", "git finds no commit in")


@pytest.mark.parametrize("name", ["../escaped.py", "/tmp/escaped.py"])
def test_a_tarball_cannot_write_elsewhere(
    name: str, base: Base, tree: Path, tmp_path: Path, cache: Path
) -> None:
    given = tmp_path / "it.tar"
    with tarfile.open(given, "w") as archive:
        archive.add(tree, "pytorch")
        link = tarfile.TarInfo("pytorch/out")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo(f"pytorch/out/{name}"), io.BytesIO())
    with pytest.raises(BaseError, match="is not a whole and harmless tarball"):
        bases.fetch(base, given, source_only=True)
    assert not list(tmp_path.rglob("escaped.py"))


def test_a_source_that_is_there_is_not_replaced_unasked(
    base: Base, tree: Path, checkout: Path
) -> None:
    bases.fetch(base, tree, source_only=True)
    mine = write(source_of(base), {"mine.py": ""}) / "mine.py"
    with pytest.raises(
        UsageError, match=r"v9\.8\.1 is there already, by .*/tree: fetch it with --anew"
    ):
        bases.fetch(base, checkout, source_only=True)
    # The same command again, and one without a source, are content with what is there.
    bases.fetch(base, tree, source_only=True)
    bases.fetch(base, source_only=True)
    assert mine.exists()
    with pytest.raises(FingerprintError):
        bases.fetch(base, write(tree, {PROVEN[0]: ""}), anew=True, source_only=True)
    assert mine.exists()
    bases.fetch(base, checkout, anew=True, source_only=True)
    assert not mine.exists()


# By the wheel


class Index(http.server.SimpleHTTPRequestHandler):
    """A package index with the files of a folder, which it gives in parts if ``ranges``."""

    ranges = True

    def do_GET(self) -> None:
        assert self.path.startswith("/")
        folder = Path(self.directory)
        name = self.path.rpartition("/")[2].replace("%2B", "+")
        if self.path == "/simple/torch/":
            links = "".join(f'<a href="/{f.name}">{f.name}</a>' for f in folder.iterdir())
            self.answer(200, links.encode(), {"Content-Type": "text/html"})
        elif not (folder / name).is_file():
            self.send_error(404)
        elif self.ranges:
            content = (folder / name).read_bytes()
            first, last = map(int, self.headers["Range"][len("bytes=") :].split("-"))
            part = content[first : last + 1]
            extent = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
            self.answer(206, part, {"Content-Range": extent})
        else:
            self.answer(200, (folder / name).read_bytes(), {})

    def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving(folder: Path, ranges: bool = True) -> Iterator[str]:
    kind = type("Handler", (Index,), {"ranges": ranges})
    handler = functools.partial(kind, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


@pytest.fixture
def wheel_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    python = {path: text for path, text in TREE.items() if path.startswith("torch/")}
    del python["torch/distributed/examples/example.py"]
    write_wheel(folder, "torch", "9.8.1", {**python, "torch/lib/big.bin": "x" * 3_000_000})
    made = folder / "torch-9.8.1-py3-none-any.whl"
    made.rename(folder / "torch-9.8.1-cp310-cp310-manylinux1_x86_64.whl")
    for name in (
        "torch-9.8.1-cp310-none-macosx_11_0_arm64.whl",
        "torch-10.0.0-cp310-cp310-manylinux1_x86_64.whl",
        "torch-9.10.0-cp310-cp310-manylinux1_x86_64.whl",
        "torch-11.0.0rc1-cp310-cp310-manylinux1_x86_64.whl",
    ):
        (folder / name).write_text("")
    return folder


@pytest.mark.parametrize("given_by", ["variable", "arguments", "configuration"])
def test_the_wheels_python_from_the_index(
    given_by: str,
    base: Base,
    wheel_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(wheel_folder) as url:
        if given_by == "variable":
            monkeypatch.setenv("PIP_INDEX_URL", url)
        elif given_by == "arguments":
            monkeypatch.setenv("TORCH_OVERLAY_PIP_ARGS", f"--pre --index-url {url}")
        else:
            monkeypatch.delenv("PIP_INDEX_URL")
            write(tmp_path, {"pip.conf": f"[global]\nindex-url = {url}\n"})
            monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
        lines: list[str] = []
        state = bases.fetch(base, source_only=True, progress=lines.append)
        assert wheels.releases() == ["9.8.1", "9.10.0", "10.0.0"]
    assert state.source
    assert state.source.way == "the wheel's Python files"
    assert state.source.proof.endswith("; there is no test/distributed")
    assert (source_of(base) / "torch/nn.py").read_text() == "x = 1\n"
    assert (source_of(base) / "version.txt").read_text() == "9.8.1\n"
    assert not (source_of(base) / "torch/lib").exists()
    assert "v9.8.1: not by a clone: git cannot read http://127.0.0.1:9" in lines[1]


def test_a_wheel_that_cannot_be_read(wheel_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(version: str, match: str) -> None:
        with pytest.raises(BaseError, match=match):
            list(wheels.python_files(version))

    refused("9.8.1", "cannot read what the package index has of torch: ")
    with serving(wheel_folder, ranges=False) as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        refused("9.8.1", "the package index gives no parts of wheels")
        refused("9.8.2", r"the package index has no wheel of torch 9\.8\.2 for Linux")
    with serving(wheel_folder) as url:
        monkeypatch.setenv("PIP_INDEX_URL", url.replace("simple", "elsewhere"))
        refused("9.8.1", "cannot read what the package index has of torch: ")
        wheel = wheel_folder / "torch-9.8.1-cp310-cp310-manylinux1_x86_64.whl"
        wheel.write_bytes(wheel.read_bytes()[:-1000])
        monkeypatch.setenv("PIP_INDEX_URL", url)
        refused("9.8.1", r"the wheel of torch 9\.8\.1 is broken")


# By Debian's archive


def test_mirrors_are_those_of_the_systems_sources(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "sources.list": (
                "# deb http://commented.example/debian bookworm main\n"
                "deb [arch=amd64 signed-by=/Keys/a.gpg] http://one.example/debian bookworm main # x\n"
                "deb-src http://one.example/debian bookworm-updates contrib main\n"
                "deb http://security.example bookworm-security main\n"
                "deb http://ubuntu.example/ubuntu noble main\n"
                "deb http://tool.example/debian bookworm stable\n"
            ),
            "sources.list.d/two.sources": (
                "Types: deb\n# a comment\nURIs: http://two.example/debian\n"
                " mirror+file:/etc/apt/mirrors\nSuites: trixie\n trixie-updates\n"
                "Components: main non-free\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n"
                " .\n -----END PGP PUBLIC KEY BLOCK-----\n"
                "\n"
                "Enabled: no\nTypes: deb\nURIs: http://off.example\nSuites: sid\nComponents: main\n"
            ),
            "sources.list.d/three.list.disabled": "deb http://three.example bookworm main\n",
        },
    )
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    assert debian.mirrors_of(tmp_path) == [
        debian.Mirror("http://one.example/debian", "/Keys/a.gpg"),
        debian.Mirror("http://one.example/debian", keyring),
        debian.Mirror("http://two.example/debian", keyring),
        debian.Mirror("mirror+file:/etc/apt/mirrors", keyring),
    ]
    assert debian.mirrors_of(tmp_path / "nowhere") == []


needs_debian = pytest.mark.skipif(
    shutil.which("apt-get") is None or not debian.mirrors_of(Path("/etc/apt")),
    reason="this system's package manager is not one that names Debian's archive",
)


@needs_debian
def test_debians_source_package(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Interrupted in the middle, then whole: the real tree, by the real apt."""
    base = bases.BASES["v1.13.1"]
    code = FETCH.replace(
        'base = Base(name, version, "", revision, Path(manifest))',
        "from overlay.bases import BASES; base = BASES[name]",
    )
    command = [sys.executable, "-c", code, base.name, *[""] * 4, "pytorch 1.13.1"]
    killed = subprocess.run(command, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr

    state = bases.fetch(base, source_only=True)
    assert state.source
    assert state.source.way == "Debian's source package"
    assert state.source.has_tests
    assert state.source.proof == (
        "425 files of torch/distributed, torch/testing/_internal, test/distributed match the"
        " fingerprint"
    )
    folder = source_of(base)
    assert (folder / "version.txt").read_text() == "1.13.0a0\n"
    assert git(folder, "status", "--porcelain") == ""
    assert [path.name for path in (cache / "bases" / base.name).iterdir()] == ["source"]


def test_apt_that_fails(tmp_path: Path) -> None:
    if shutil.which("apt-get") is None:
        with pytest.raises(BaseError, match="this system has no apt-get"):
            debian.download("bookworm", tmp_path, print, tmp_path)
        return
    with pytest.raises(BaseError, match="name no mirror of Debian's archive"):
        debian.download("bookworm", tmp_path, print, tmp_path)
    write(tmp_path, {"sources.list": "deb http://127.0.0.1:9/debian bookworm main\n"})
    with pytest.raises(BaseError, match="apt-get update failed for Debian's bookworm: "):
        debian.download("bookworm", tmp_path, print, tmp_path)


@needs_debian
def test_an_archive_that_is_not_signed_is_refused(tmp_path: Path) -> None:
    write(
        tmp_path / "archive",
        {"dists/bookworm/Release": "Suite: bookworm\n", "dists/bookworm/main/source/Sources": ""},
    )
    line = f"deb [trusted=yes] file:{tmp_path}/archive bookworm main\n"
    write(tmp_path, {"sources.list": line})
    with pytest.raises(BaseError, match="is not signed"):
        debian.download("bookworm", tmp_path / "apt", print, tmp_path)


# What goes wrong around them


def test_no_way_works(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BaseError) as caught:
        bases.fetch(base)
    assert caught.value.message == (
        "cannot fetch v9.8.1: no way to it works here; give its source with --source PATH"
        " (a checkout, a tarball, a folder or a wheel)"
    )
    said = "\n".join(caught.value.details)
    assert "a clone: git cannot read http://127.0.0.1:9/pytorch.git: " in said
    assert "Debian's source package: no Debian release has it" in said
    assert "the wheel's Python files: cannot read what the package index has of torch" in said
    assert bases.state_of(base).source is None


def test_a_way_that_brings_another_tree_is_passed_over(
    base: Base, upstream: Path, wheel_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(upstream, "tag", "--force", "v9.8.1", "trunk")
    lines: list[str] = []
    with serving(wheel_folder) as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        state = bases.fetch(base, source_only=True, progress=lines.append)
    assert state.source and state.source.way == "the wheel's Python files"
    assert "not by a clone: this is not an unchanged v9.8.1: a file of 6" in "\n".join(lines)


def test_neither_git_nor_apt(
    base: Base, tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    distribution = replace(base, debian="bookworm")
    with pytest.raises(BaseError) as caught:
        bases.fetch(distribution)
    said = "\n".join(caught.value.details)
    assert "a clone: git is not installed" in said
    assert "Debian's source package: this system has no apt-get" in said
    with pytest.raises(BaseError, match="git is not installed; a base is kept as a git repository"):
        bases.fetch(base, tree, source_only=True)


@pytest.mark.parametrize("alone", [True, False])
def test_no_space_is_left(
    alone: bool, base: Base, tree: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x.py")

    def fail(*_: object, **__: object) -> None:
        raise full if alone else shutil.Error([("x.py", "y.py", str(full))])

    monkeypatch.setattr(shutil, "copytree", fail)
    with pytest.raises(
        BaseError, match=rf"no space is left for v9\.8\.1 in {cache}/bases/v9\.8\.1;"
    ):
        bases.fetch(base, tree, source_only=True)


def test_no_space_is_left_for_a_program(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def fail(url: str, *_: object) -> str:
        tried.append(url)
        raise BaseError("git cannot fetch", ["fatal: write error: No space left on device"])

    monkeypatch.setattr(repository, "clone", fail)
    with pytest.raises(BaseError, match=r"no space is left for v9\.8\.1 in "):
        bases.fetch(base, source_only=True)
    assert len(tried) == 1


def test_a_cache_that_cannot_be_written(base: Base, tree: Path, cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(BaseError, match=r"cannot fetch v9\.8\.1: .*TORCH_OVERLAY_CACHE names"):
        bases.fetch(base, tree, source_only=True)


def command_for(base: Base, source: str = "", kill_at: str = "") -> list[str]:
    words = [base.name, base.version, base.revision, str(base.fingerprint), source, kill_at]
    return [sys.executable, "-c", FETCH, *words]


def test_two_at_once_fetch_it_once(base: Base, upstream: Path) -> None:
    both = [
        subprocess.Popen(command_for(base), stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0].splitlines()[-1] == outputs[1].splitlines()[-1]
    assert "".join(outputs).count("cloning") == 1
    assert "".join(outputs).count("ready") == 1


@pytest.mark.parametrize(
    ("kind", "stage"),
    [("clone", "cloning"), ("tarball", "unpacking"), ("tarball", "committing")],
)
def test_a_killed_fetch_leaves_nothing_that_counts(
    kind: str, stage: str, base: Base, tree: Path, upstream: Path, tmp_path: Path, cache: Path
) -> None:
    given = str(tarball(tmp_path / "it.tar.gz", tree)) if kind == "tarball" else ""
    killed = subprocess.run(command_for(base, given, stage), capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL
    assert bases.state_of(base).source is None
    with pytest.raises(
        BaseError, match=r"v9\.8\.1 is fetched only halfway: run `torch-overlay base"
    ):
        bases.path_of(base)

    again = subprocess.run(command_for(base, given), capture_output=True, text=True, check=True)
    commit = git(bases.path_of(base), "rev-parse", "HEAD")
    assert again.stdout.splitlines()[-1] == commit
    assert [path.name for path in (cache / "bases" / "v9.8.1").iterdir()] == ["source"]


def test_a_program_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from overlay.bases.process import run\n"
        "run(['sh', '-c', 'echo $$ > pid; exec sleep 60'], Path(sys.argv[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as parent:
        pid = tmp_path / "pid"
        wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"))
        program = Path("/proc", pid.read_text().strip(), "cmdline")
        assert b"sleep" in program.read_bytes()
        parent.kill()
    wait_until(lambda: not program.exists() or b"sleep" not in program.read_bytes())


def wait_until(true: object) -> None:
    assert callable(true)
    for _ in range(1000):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError("it never came true")


def test_how_a_program_failed_is_said_in_a_line(tmp_path: Path) -> None:
    def reason(script: str, limit: float = 60) -> str:
        return process.run(["sh", "-c", script], tmp_path, limit=limit).reason()

    assert reason("echo W: w; echo E: this; echo more; exit 1") == "this"
    assert reason("echo hint; echo 'fatal: that' >&2; exit 1") == "that"
    assert reason("echo W: w; echo x; exit 1") == "w"
    assert reason("echo x; exit 1") == "x"
    assert reason("exit 3") == "it ended with status 3"
    assert reason("sleep 60", limit=0.5) == "no answer in time"


# Runtimes


@pytest.fixture
def fake_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_torch(folder, "9.8.1+cpu", "9.8.1+cpu")
    for name, version in (
        ("numpy", "1.26"),
        ("numpy", "2.1"),
        ("pytest", "8"),
        ("expecttest", "1"),
    ):
        write_wheel(folder, name, version, {f"{name}.py": f"VERSION = '{version}'\n"})
    use(monkeypatch, folder, cache)


def test_the_runtime_of_a_base(
    base: Base, tree: Path, fake_torch: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python-of-mine"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("TORCH_OVERLAY_PYTHON", str(python))
    old = replace(base, runtime=Runtime(pythons=("3.1",), packages=("numpy<2", "pytest")))
    assert bases.state_of(old).runtime is None
    lines: list[str] = []
    state = bases.fetch(old, tree, progress=lines.append)
    assert state.source and state.runtime
    assert state.python == str(python)
    venv = Path(state.runtime)
    assert (runtime.site_packages(venv) / "numpy.py").read_text() == "VERSION = '1.26'\n"
    assert bases.state_of(old) == state

    lines.clear()
    assert bases.fetch(old, tree, progress=lines.append) == state
    assert lines == []

    shutil.rmtree(venv)
    gone = bases.state_of(old)
    assert gone.source and (gone.runtime, gone.python) == (None, None)
    monkeypatch.setenv("TORCH_OVERLAY_PYTHON", "/bin/true-or-not")
    with pytest.raises(BaseError, match="TORCH_OVERLAY_PYTHON=/bin/true-or-not is no Python"):
        bases.fetch_runtime(base)


def test_finding_a_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def interpreter(path: str, script: str) -> Path:
        place = write(tmp_path, {path: f"#!/bin/sh\n{script}\n"}) / path
        place.chmod(0o755)
        return place

    assert find_python(()) == find_python(("3.1", running)) == Path(sys.executable)
    assert find_python(("3.1",), (running,)) == Path(sys.executable)
    with pytest.raises(
        BaseError, match=r"no Python of a fitting version here \(3\.1, 3\.2, 3\.3\)"
    ):
        find_python(("3.1", "3.2"), ("3.3",))

    third = interpreter("data/uv/python/cpython-3.3.0-linux/bin/python3.3", "echo 3.3")
    assert find_python(("3.1", "3.2"), ("3.3",)) == third
    interpreter("bin/python3.1", "echo 3.1: command not found >&2; exit 127")
    interpreter("bin/python3.2", "echo 3.1")
    assert find_python(("3.1", "3.2"), ("3.3",)) == third
    second = interpreter("pyenv/versions/3.2.9/bin/python", "echo 3.2")
    assert find_python(("3.1", "3.2"), (running,)) == second


def test_errors_are_the_projects_own() -> None:
    assert issubclass(BaseError, OverlayError)
    assert BaseError("x").exit_code == 2
