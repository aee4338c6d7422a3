"""The series for those without the tool: mails that plain git am takes, and whole files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from expecttest import assert_expected_inline

from case import ARGUMENTS, RUNTIME
from checkouts import ADDED, CALL, MAIL, TOUCHED, Repository, repository, user
from overlay import operations
from overlay.bases import fetch, find_base
from overlay.errors import OverlayError, PatchError
from overlay.export import build, export, source_of
from overlay.series import load_series
from overlay.targets import find_target

__all__ = ["repository", "user"]

NAMES = ["0001-FSDP-Arguments.patch", "0002-FSDP-Call.patch"]


def read(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_mails(repository: Repository) -> None:
    out = repository.folder / "out"
    assert_expected_inline(
        repository.run("export", str(repository.tree), "-o", str(out)),
        """\
  FOLDER/out/0001-FSDP-Arguments.patch
  FOLDER/out/0002-FSDP-Call.patch
torch 2.13.0a0 in FOLDER/pytorch: 2 mails written to FOLDER/out; 'git am --keep-non-patch FOLDER/out/*.patch' applies them
""",
    )
    mail = (out / NAMES[0]).read_text(encoding="utf-8")
    assert_expected_inline(
        re.sub("^ $", "", mail.replace(repository.head, "BASE"), flags=re.MULTILINE),
        """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: =?UTF-8?q?Zo=C3=AB=20Example?= <zoe@example.com>
Date: Mon, 5 Dec 2022 10:00:00 +0530
Subject: [PATCH 1/2] [FSDP] Arguments

Why.

Torch-Version: >=2.1
Adds: torch/new/added.py
ghstack-source-id: 0123abc
Pull-Request: https://example.com/pull/1
---
 torch/new/added.py | 1 +
 torch/runtime.py   | 4 ++--
 2 files changed, 3 insertions(+), 2 deletions(-)
 create mode 100644 torch/new/added.py

diff --git a/torch/new/added.py b/torch/new/added.py
new file mode 100644
index 0000000000000000000000000000000000000000..43404a48c2918ef03d044261380310e9a8a07a9a
--- /dev/null
+++ b/torch/new/added.py
@@ -0,0 +1 @@
+ADDED = 1
diff --git a/torch/runtime.py b/torch/runtime.py
index 447cb337f91081eb55e8009dca2b2f4685741e14..0f5e5565f0743fd044aadebe28d72f6c1b608574 100644
--- a/torch/runtime.py
+++ b/torch/runtime.py
@@ -2,8 +2,8 @@ def cast(x):
     return x


-def pre_forward(state, unused):
-    y = cast(unused)  # keep this
+def pre_forward(state, args):
+    y = cast(args)  # keep this
     return y



base-commit: BASE
""",
    )
    # A commit's message stays as it is, and so does the subject if git am is told to keep it.
    repository.git("am", "--quiet", "--keep-non-patch", *(str(out / name) for name in NAMES))
    by_git = repository.git("log", "-2", "--format=%an %ae %at %B")
    repository.git("reset", "--quiet", "--hard", "HEAD~2")
    repository.apply()
    assert repository.git("log", "-2", "--format=%an %ae %at %B") == by_git


def test_the_same_bytes_for_everyone(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = repository.folder / "first", repository.folder / "second"
    before = repository.snapshot()
    export(repository.target, repository.patches, first)
    assert repository.snapshot() == before
    for setting in (
        *("diff.noprefix=true", "diff.context=9", "diff.algorithm=patience", "diff.orderFile=x"),
        *("format.signature=x", "format.subjectPrefix=X", "format.attach=x", "format.from=x <x@x>"),
        *("format.numbered=false", "format.headers=X: y", "format.outputDirectory=x"),
        *("format.coverLetter=true", "format.thread=true", "format.signOff=true", "format.to=x@x"),
        *("core.abbrev=12", "core.attributesFile=/x", "core.quotePath=false", "color.ui=always"),
        *("format.filenameMaxLength=9", "format.suffix=.txt", "user.name=Other", "diff.stat=1"),
        *("core.autocrlf=true", "commit.gpgSign=true", "init.defaultBranch=x", "log.date=raw"),
        *("diff.external=false", "diff.indentHeuristic=false", "init.templateDir=/x"),
        *("i18n.commitEncoding=latin-1", "fsck.badTimezone=error", "mailinfo.scissors=true"),
    ):
        repository.git("config", "--global", *setting.split("=", 1))
    for name, value in {
        "LC_ALL": "C",
        "TZ": "Asia/Tokyo",
        "COLUMNS": "40",
        "GIT_DIFF_OPTS": "-u9",
        "GIT_AUTHOR_NAME": "Other",
        "GIT_COMMITTER_DATE": "1 +0000",
        "GIT_DIR": "/x",
    }.items():
        monkeypatch.setenv(name, value)
    export(repository.target, repository.patches, second)
    assert read(first) == read(second)


def test_an_applied_series_is_exported_for_the_commit_below(repository: Repository) -> None:
    first, second = repository.folder / "first", repository.folder / "second"
    export(repository.target, repository.patches, first)
    repository.apply()
    # A work tree with changes is as good: what counts is the commit.
    repository.write("torch/runtime.py", "changed\n")
    repository.write("torch/new/mine.py", "")
    made = export(repository.target, repository.patches, second)
    assert made.base_commit == repository.git("rev-parse", "HEAD~2")
    assert read(first) == read(second)
    repository.git("checkout", "--", "torch/runtime.py")
    repository.commit("above")
    with pytest.raises(PatchError, match="is in these files already"):
        export(repository.target, repository.patches, repository.folder / "third")
    assert not (repository.folder / "third").exists()


def test_from_a_tree_without_git(repository: Repository) -> None:
    first, second = repository.folder / "first", repository.folder / "second"
    export(repository.target, repository.patches, first)
    base = repository.head
    tree = str(repository.tree)
    repository.run("apply", "--no-commit", tree)
    made = export(find_target(tree), repository.patches, second)
    assert made.base_commit is None
    trailer = f"\nbase-commit: {base}\n".encode()
    assert {n: c.replace(trailer, b"") for n, c in read(first).items()} == read(second)


def test_from_an_installed_torch(repository: Repository) -> None:
    """Its added tests are there, and what it cannot tell is said."""
    site = repository.folder / "site-packages"
    shutil.copytree(repository.tree / "torch", site / "torch")
    rows = ""
    for path, content in read(site).items():
        value = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
        rows += f"{path},sha256={value.rstrip('=')},{len(content)}\n"
    dist_info = site / "torch-2.13.0a0.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text("Name: torch\nVersion: 2.13.0a0\n\n")
    (dist_info / "RECORD").write_text(rows)
    tests = "test/test_x.py\n@@ <module>\n import os\n+import torch\n"
    added = {ADDED: "arguments.apatch", "test/test_added.py": "arguments.apatch"}
    repository.write("test/test_x.py", "import os\n")
    repository.commit("tests")
    patches = {"arguments.apatch": ARGUMENTS, "call.apatch": CALL + tests}
    repository.series(patches, added, mail=MAIL)
    made = export(find_target(str(site)), repository.patches, repository.folder / "mails")
    assert made.left_out == {"call.apatch": ("test/test_x.py",)}
    repository.git("am", "--quiet", *map(str, sorted((repository.folder / "mails").iterdir())))
    changed = repository.git("diff", "--name-only", "HEAD~2", "HEAD").split()
    assert set(changed) == {*TOUCHED, "test/test_added.py"}


def test_whole_files_laid_over_the_base(repository: Repository) -> None:
    out = repository.folder / "out"
    base = repository.head
    done = json.loads(repository.run("build", str(repository.tree), "-o", str(out), "--json"))
    assert done["files"] == sorted(TOUCHED)
    manifest: dict[str, Any] = json.loads((out / "MANIFEST.json").read_text())
    assert {name: manifest[name] for name in ("format", "torch", "base_commit", "left_out")} == {
        "format": 1,
        "torch": "2.13.0a0",
        "base_commit": base,
        "left_out": {},
    }
    assert [(p["name"], p["subject"]) for p in manifest["patches"]] == [
        ("arguments.apatch", "[FSDP] Arguments"),
        ("call.apatch", "[FSDP] Call"),
    ]
    # The manifest names every file that is there, with its hash, and the one it replaces.
    sha256 = {path: hashlib.sha256(content).hexdigest() for path, content in read(out).items()}
    del sha256["MANIFEST.json"]
    assert sha256 == {
        **{f"mails/{name}": value for name, value in manifest["mails"].items()},
        **{f"overlay/{path}": entry["sha256"] for path, entry in manifest["overlay"].items()},
    }
    assert {path: entry["base_sha256"] for path, entry in manifest["overlay"].items()} == {
        ADDED: None,
        "torch/runtime.py": hashlib.sha256(RUNTIME.encode()).hexdigest(),
    }
    fresh = repository.fresh(base)
    for path in manifest["overlay"]:
        fresh.write(path, (out / "overlay" / path).read_text())
    fresh.commit("laid over")
    repository.apply()
    assert fresh.tree_id == repository.tree_id


def test_for_a_base(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base's name stands for its pinned commit, whatever was committed there since."""
    monkeypatch.setenv("TORCH_OVERLAY_CACHE", str(repository.folder / "cache"))
    with pytest.raises(OverlayError, match=r"9\.8\.0 is not fetched: run"):
        source_of("v9.8.0")
    repository.write("version.txt", "9.8.0\n")
    repository.git("rm", "--quiet", "torch/version.py")
    for path in ("torch/distributed/x.py", "torch/testing/_internal/x.py"):
        repository.write(path, "")
    repository.commit("9.8.0")
    pinned = fetch(find_base("9.8.0"), repository.tree, source_only=True).source
    assert pinned is not None
    base = Repository.at(repository, Path(pinned.folder))
    export(source_of("9.8.0"), repository.patches, repository.folder / "first")
    base.commit("mine")
    base.apply()
    made = export(source_of("v9.8.0"), repository.patches, repository.folder / "second")
    assert made.base_commit == pinned.commit == base.git("rev-parse", "HEAD~3")
    assert read(repository.folder / "first") == read(repository.folder / "second")
    with pytest.raises(OverlayError, match="nowhere: no such file or folder; a target is"):
        source_of("nowhere")


def test_what_does_not_verify_is_not_written(repository: Repository) -> None:
    broken = ARGUMENTS.replace("+    args\n", "+    args, kwargs\n", 1)
    repository.series({"arguments.apatch": broken}, mail=MAIL)
    for command in ("export", "build"):
        out = repository.folder / command
        said = repository.run(command, str(repository.tree), "-o", str(out), code=1)
        assert said.startswith("torch-overlay: verify: torch/runtime.py:")
        assert not out.exists()


def test_a_folder_with_other_files_is_left_alone(repository: Repository) -> None:
    target, series = repository.target, repository.patches
    out = repository.folder / "out"
    export(target, series, out)
    export(target, series, out)
    assert sorted(read(out)) == NAMES
    (out / "mine.txt").write_text("mine")
    before = read(out)
    tree, folder = str(repository.tree), str(out)
    for command in ("export", "build"):
        said = repository.run(command, tree, "-o", folder, code=2)
        assert "FOLDER/out has other files (" in said
        assert "): name an empty folder" in said
    assert "is not a folder" in repository.run("export", tree, "-o", f"{folder}/mine.txt", code=2)
    assert "cannot write" in repository.run("export", tree, "-o", "/dev/null/x", code=2)
    assert read(out) == before
    build(target, series, repository.folder / "built")
    build(target, series, repository.folder / "built")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Why.", "Why.\n\ndiff --git a/x b/x", "git am would not keep the message as it is, at 'diff --git a/x b/x'"),
        ("Why.", "Why.\nFrom here on", "at 'From here on'"),
        ("Why.", "Index: x", "at 'Index: x'"),
        ("Why.", "From: Other <o@example.com>", "at 'From: Other <o@example.com>'"),
        ("Subject: [FSDP]", "Subject: [PATCH x]", "at '[PATCH x] Arguments'"),
        ("Subject: [FSDP]", "Subject: Re: x", "at 'Re: x Arguments'"),
        ("From: Zoë Example <zoe@example.com>\n", "", "no From: the commit takes it from there"),
        ("Zoë Example <zoe@example.com>", "Zoë", "From: not an author"),
        ("Date: Mon, 5 Dec 2022 10:00:00 +0530\n", "", "no Date: the commit takes it from there"),
        ("Mon, 5 Dec 2022 10:00:00 +0530", "today", "Date: not a date with a time zone"),
        ("+0530", "", "Date: not a date with a time zone"),
        ("2022", "1922", "Date: not a date with a time zone"),
    ],
)  # fmt: skip
def test_mails_that_git_would_read_otherwise(
    repository: Repository, old: str, new: str, message: str
) -> None:
    assert old in MAIL
    repository.series({"arguments.apatch": ARGUMENTS}, mail=MAIL.replace(old, new, 1))
    before = repository.snapshot()
    for use in (repository.apply, lambda: export(repository.target, repository.patches, Path("x"))):
        with pytest.raises(OverlayError) as error:
            use()
        assert error.value.message.startswith("arguments.apatch: ")
        assert message in error.value.message
    assert repository.snapshot() == before


@pytest.mark.parametrize(
    ("old", "new", "author"),
    [
        ("Zoë Example <zoe@example.com>", "zoe@example.com", "zoe@example.com"),
        ("Zoë Example", "=?utf-8?q?Zo=C3=AB?= Example", "Zoë Example"),
        ("Zoë Example", '"Example, Zoë"', "Example, Zoë"),
        ("+0530", "-0000", "Zoë Example"),
        ("{subject}", "{subject} — a long one with ünïcode, which has to be\n folded in a mail", "Zoë Example"),
        ("Why.", "  indented — «why»\n\n\n\n  * one  \n\ttwo\n\n-- \n>From me\n...", "Zoë Example"),
    ],
)  # fmt: skip
def test_mails_that_git_reads_as_they_are(
    repository: Repository, old: str, new: str, author: str
) -> None:
    assert old in MAIL
    repository.series({"arguments.apatch": ARGUMENTS}, mail=MAIL.replace(old, new, 1))
    repository.apply()
    assert repository.git("log", "-1", "--format=%an") == author


def test_a_line_numbered_patch(repository: Repository) -> None:
    diff = """\
--- a/torch/other/kept.py
+++ /dev/null
@@ -1 +0,0 @@
-KEPT = 1
--- /dev/null
+++ b/torch/other/new.txt
@@ -0,0 +1 @@
+new
\\ No newline at end of file
"""
    repository.series({"files.patch": diff}, mail=MAIL)
    out = repository.folder / "out"
    made = build(repository.target, repository.patches, out)
    assert made.changes() == {"torch/other/kept.py": None, "torch/other/new.txt": b"new"}
    manifest = json.loads((out / "MANIFEST.json").read_text())
    assert manifest["overlay"]["torch/other/kept.py"]["sha256"] is None
    fresh = repository.fresh("HEAD")
    fresh.git("am", "--quiet", str(out / "mails/0001-FSDP-Files.patch"))
    repository.apply()
    assert fresh.tree_id == repository.tree_id
    assert not (repository.tree / "torch/other/kept.py").exists()
    repository.revert()
    assert (repository.tree / "torch/other/kept.py").read_text() == "KEPT = 1\n"


def test_nothing_selected(repository: Repository) -> None:
    repository.series({"arguments.apatch": ARGUMENTS}, versions="<2.1", mail=MAIL)
    with pytest.raises(OverlayError, match=r"no patch of the series is for it \(they are for <2.1"):
        export(repository.target, load_series(repository.folder / "series"), Path("x"))
    with pytest.raises(OverlayError, match="no patch of the series is for it"):
        operations.apply(repository.target, repository.patches)
