"""Commits to patches and back: real git, real files, and what a user reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Optional

from expecttest import assert_expected_inline
from hypothesis import given, settings
from hypothesis import strategies as st

from changes import CODE, changed
from modules import edits, modules
from overlay.apatch import Hunk, Line, PatchSyntaxError, parse_patch
from overlay.errors import PatchError
from overlay.hunks import CompiledHunk, apply_hunk
from overlay.importing import anchor
from overlay.lint import lint_series
from overlay.series import SeriesPatch, load_series, own_series
from overlay.source import Source, tokens_of
from overlay.targets.base import FolderTree
from overlay.tree import MemoryTree
from overlay.weave import Weaver

VERSION = "2.13.0a0+gitabc1234\n"
ENVIRONMENT = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    **{
        f"GIT_{role}_{name}": value
        for role in ("AUTHOR", "COMMITTER")
        for name, value in (
            ("NAME", "Ada \u00c9xample"),
            ("EMAIL", "ada@example.com"),
            ("DATE", "2022-12-05T10:00:00 +0200"),
        )
    },
}
FILES = """\
    torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py
    torch/distributed/fsdp/_debug_utils.py torch/distributed/fsdp/_limiter_utils.py
    torch/distributed/fsdp/_trace_utils.py torch/distributed/fsdp/api.py
    torch/distributed/fsdp/sharded_grad_scaler.py torch/distributed/fsdp/wrap.py
    torch/distributed/utils.py""".split()


class Repository:
    """A git repository in a folder, with a PyTorch's version."""

    def __init__(self, folder: Path, files: Mapping[str, str | bytes]) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit("base", {"version.txt": VERSION, "torch/__init__.py": "", **files})

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env=ENVIRONMENT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    def write(self, files: Mapping[str, Optional[str | bytes]]) -> None:
        for path, content in files.items():
            place = self.folder / path
            if content is None:
                place.unlink()
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)

    def commit(self, message: str, files: Mapping[str, Optional[str | bytes]]) -> str:
        self.write(files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--cleanup=verbatim", "-m", message)
        return self.git("rev-parse", "HEAD")

    def files(self, revision: str) -> dict[str, bytes]:
        """All files of a commit under torch/ and test/."""
        names = self.git("ls-tree", "-r", "--name-only", revision, "torch", "test").splitlines()
        return {
            name: subprocess.run(
                ["git", "show", f"{revision}:{name}"],
                cwd=self.folder,
                check=True,
                capture_output=True,
            ).stdout
            for name in names
        }


def overlay(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "overlay", *map(str, arguments)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )


def imported(repository: Repository, *revisions: str) -> list[dict[str, object]]:
    """Import commits into ``series`` beside the repository."""
    output = repository.folder.parent / "series"
    done = overlay("import", repository.folder, *revisions, "-o", output, "--json")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert isinstance(value, list)
    return value


def woven(repository: Repository, revision: str) -> dict[str, bytes]:
    """What the imported series makes of a commit; each patch must count as applied then."""
    files = repository.files(revision)
    patches = load_series(repository.folder.parent / "series").patches
    weaver = Weaver(MemoryTree(files))
    for patch in patches:
        assert weaver.apply(patch), f"{patch.name} counts as applied before it is"
        assert weaver.is_applied(patch)
    for path, content in weaver.changes().items():
        if content is None:
            del files[path]
        else:
            files[path] = content
    return files


def patch_text(repository: Repository, name: str) -> str:
    return (repository.folder.parent / "series/patches" / name).read_text()


def test_the_own_series_comes_back(tmp_path: Path, stock_torch: Path) -> None:
    patches = [p for p in load_series(own_series()).patches if p.takes("2.13.0")]
    stock: dict[str, str | bytes] = {
        file.relative_to(stock_torch).as_posix(): file.read_bytes()
        for pattern in ("*.py", "*.pyi")
        for file in (stock_torch / "torch").rglob(pattern)
    }
    repository = Repository(tmp_path / "pytorch", stock)
    base = repository.git("rev-parse", "HEAD")
    for patch in patches:
        commit_of(repository, patch)
    entries = imported(repository, f"{base}..main")
    assert [entry["line_numbered"] for entry in entries] == [{}] * len(patches)

    series = load_series(tmp_path / "series")
    assert [p.message.subject for p in series.patches] == [p.message.subject for p in patches]
    assert [p.message.fields for p in series.patches] == [p.message.fields for p in patches]
    assert [p.message.body for p in series.patches] == [p.message.body for p in patches]
    assert lint_series(tmp_path / "series") == []
    repository.git("worktree", "add", "--quiet", "-b", "again", "../again", base)
    applied = overlay("--series", tmp_path / "series", "apply", tmp_path / "again")
    assert applied.returncode == 0, applied.stderr
    after = FolderTree(tmp_path / "again")
    wanted = repository.files("main")
    assert {path: after.read(path) for path in wanted} == wanted


def commit_of(repository: Repository, patch: SeriesPatch) -> None:
    """Commit what a patch makes of the work tree, with its message."""
    weaver = Weaver(FolderTree(repository.folder))
    weaver.apply(patch)
    fields = "".join(f"{name}: {value}\n" for name, value in patch.message.fields)
    message = f"{patch.message.subject}\n\n{patch.message.body}{fields}"
    repository.commit(message, weaver.changes())


def test_a_hundred_commits_come_back(tmp_path: Path, stock_torch: Path) -> None:
    repository = Repository(
        tmp_path / "pytorch", {path: (stock_torch / path).read_bytes() for path in FILES}
    )
    random = Random(0)
    added: list[str] = []
    made: list[str] = []
    while len(made) < 100:
        kind = len(made) % (len(CODE) + 2)
        files: dict[str, Optional[str | bytes]] = {}
        if kind == len(CODE):
            path = f"torch/distributed/new_{len(made)}.py"
            files[path] = f"def f():\n    return {len(made)}\n"
            added.append(path)
        elif kind == len(CODE) + 1:
            files[added.pop()] = None
        else:
            for path in random.sample(FILES, 1 + (random.random() < 0.2)):
                text = changed((repository.folder / path).read_text(), CODE[kind], random)
                if text is not None:
                    files[path] = text
        if files:
            name = CODE[kind].__name__ if kind < len(CODE) else "new or removed file"
            repository.commit(f"{name} {len(made)}\n\nWhy.\n", files)
            made.append(name)
    entries = imported(repository, "main~100..main")

    assert len(entries) == 100
    assert woven(repository, "main~100") == repository.files("main")
    by_lines = {
        str(entry["subject"]): entry["line_numbered"] for entry in entries if entry["line_numbered"]
    }
    removed = {s for s, paths in by_lines.items() if set(paths.values()) == {"the file is removed"}}
    assert len(removed) == made.count("new or removed file") // 2
    assert len(by_lines) - len(removed) < (100 - len(removed)) / 10


@given(modules(), st.data())
@settings(max_examples=60)
def test_hunks_quote_no_token_that_can_be_left_out(module, data):
    possible = edits(module)
    kind = data.draw(st.sampled_from(sorted({edit.kind for edit in possible})))
    edit = data.draw(st.sampled_from([edit for edit in possible if edit.kind == kind]))
    before = str(module)
    edit.make()
    after = str(module)
    found = anchor(before.encode(), after.encode())
    assert found.content == after.encode() or found.left
    source = Source(before)
    for hunk in found.hunks:
        result = apply_hunk(CompiledHunk.of(hunk, "hunk"), source)
        for shorter in _with_one_token_less(hunk):
            assert not _gives(shorter, source, result), "\n".join(
                line.text for line in shorter.lines
            )
        source = result
    assert source.encode() == found.content


def _with_one_token_less(hunk: Hunk) -> list[Hunk]:
    """The hunks that quote one token of context less: ``...`` or, at an edge, nothing for it."""
    rows = [row for row, line in enumerate(hunk.lines) if line.mark == " "]
    spans = []
    for row in rows:
        text = hunk.lines[row].text
        if hunk.is_docstring:
            words = text.split()
            found = [(text.index(word), text.index(word) + len(word)) for word in words]
        else:
            found = [(token.start, token.end) for token in tokens_of(text)]
        spans += [(row, start, stop) for start, stop in found if text[start:stop] != "..."]
    shorter = []
    for row, start, stop in spans:
        above = hunk.lines[:row]
        below = hunk.lines[row + 1 :]
        text = hunk.lines[row].text
        first = not above and not text[:start].strip()
        last = not below and not text[stop:].strip()
        left_out = text[:start] + ("" if first or last else " ... ") + text[stop:]
        while "... ..." in " ".join(left_out.split()):
            left_out = text[:start] + text[stop:]
            break
        kept = [Line(" ", left_out.rstrip())] if left_out.strip() else []
        shorter.append(Hunk(hunk.symbol, (*above, *kept, *below)))
    return shorter


def _gives(hunk: Hunk, source: Source, result: Source) -> bool:
    try:
        return apply_hunk(CompiledHunk.of(hunk, "hunk"), source, result) is result
    except (PatchSyntaxError, PatchError):
        return False


BEFORE = '''\
"""What this is."""
from torch.a import one
from torch.b import two


class Wrapper:
    """Wraps a module.

    Args:
        module: what is wrapped
    """

    def forward(self, x, unused):
        # Not on the way back.
        if self.training and self.enabled:
            y = cast(x, unused)
        return self.module(y)

    def close(self):
        self.module = None

    def helper(self):
        return two(1)
'''


def hunks(after: str) -> str:
    """The hunks of a change of the file above, as a patch has them."""
    found = anchor(BEFORE.encode(), after.encode())
    lines = [
        text
        for hunk in found.hunks
        for text in (f"@@ {hunk.symbol}", *(line.mark + line.text for line in hunk.lines))
    ]
    if found.content == after.encode():
        assert not found.left
    return "\n".join([*lines, *(f"left: {reason}" for reason in found.left)])


def test_what_hunks_look_like() -> None:
    after = BEFORE.replace("x, unused)", "x, *args)")
    after = after.replace("self.training and self.enabled", "self.training")
    after = after.replace("    def helper(self):\n        return two(1)\n", "")
    after = after.replace("        self.module = None\n\n", "        self.module = None\n")
    after = after.replace("    def close", "    @final\n    def close")
    after = after.replace("is wrapped\n", "is wrapped; it stays\n        as it is\n")
    after = after.replace("import two\n", "import two\nfrom torch.c import final\n")
    assert_expected_inline(
        hunks(after),
        """\
@@ <module>
 two
+from torch.c import final
@@ Wrapper.__doc__
-    wrapped
+    wrapped; it stays
+    as it is
@@ Wrapper.forward
 self ...
-unused
+*args
@@ Wrapper.forward
 training
-and self.enabled
 :
     ... (...
-    unused
+    *args
@@ Wrapper.close
+@final
 def
@@ Wrapper
 ...
-
-def helper(self):
-    return two(1)""",
    )


def test_a_comment_alone_is_left() -> None:
    assert_expected_inline(
        hunks(BEFORE.replace("Not on", "Nor on")),
        """left: line 13: a comment or white space changes beside code that stays""",
    )


def test_a_comment_comes_along_with_code() -> None:
    after = BEFORE.replace(
        "        return self.module(y)", "        # Late.\n        return y  # it"
    )
    assert_expected_inline(
        hunks(after),
        """\
@@ Wrapper.forward
-return self.module(y)
+# Late.
+return y  # it""",
    )


MESSAGE = """\
[FSDP] Take "args", \u00e9 too

Why, with a line that looks like a divider:
---
Fixes #1.

ghstack-source-id: 0123456789abcdef
Pull-Request: https://github.com/pytorch/pytorch/pull/1
Co-authored-by: Bob, B. <bob@example.com>
"""


def test_what_is_not_anchored_goes_by_line_numbers(tmp_path: Path) -> None:
    crlf = b"x = 1\r\n# \xe9\r\n" * 3
    repository = Repository(
        tmp_path / "pytorch",
        {"torch/a.py": BEFORE, "torch/gone.py": "x = 1\n", "torch/b.txt": "1\n", "torch/c.h": crlf},
    )
    after = BEFORE.replace("Not on", "Nor on").replace("two(1)", "two(3)")
    repository.git("config", "core.fileMode", "true")
    repository.commit(
        MESSAGE,
        {
            "torch/a.py": after,
            "torch/gone.py": None,
            "torch/b.txt": "2\n",
            "torch/c.h": crlf.replace(b"1", b"2"),
            "test/new.py": "y = 1\n",
        },
    )
    entry = imported(repository, "HEAD")[0]
    name = "fsdp-take-args-too"
    assert entry["patches"] == [f"{name}.apatch", f"{name}-rest.patch"]
    assert_expected_inline(
        json.dumps(entry["line_numbered"], indent=1),
        """\
{
 "torch/a.py": "line 13: a comment or white space changes beside code that stays",
 "torch/b.txt": "not a Python file",
 "torch/c.h": "not a Python file",
 "torch/gone.py": "the file is removed"
}""",
    )
    text = patch_text(repository, f"{name}.apatch")
    assert "\u00e9 too\n" in text
    assert_expected_inline(
        text.replace("\u00e9", "?").replace("\u00c9", "?"),
        """\
From: Ada ?xample <ada@example.com>
Date: Mon, 05 Dec 2022 10:00:00 +0200
Subject: [FSDP] Take "args", ? too

Why, with a line that looks like a divider:
 ---
Fixes #1.

ghstack-source-id: 0123456789abcdef
Pull-Request: https://github.com/pytorch/pytorch/pull/1
Co-authored-by: Bob, B. <bob@example.com>
Torch-Version: >=2.13
Adds: test/new.py
---
torch/a.py
@@ Wrapper.helper
-1
+3
""",
    )
    rest = patch_text(repository, f"{name}-rest.patch")
    assert rest.startswith(text[: text.index("---\ntorch/")].replace("Adds: test/new.py\n", ""))
    assert woven(repository, "HEAD~1") == repository.files("HEAD")


def test_commits_by_name_come_in_their_order(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "pytorch", {"torch/a.py": BEFORE})
    message = "Same title\n\nTorch-Version: ==2.13.*\n\nPull Request resolved: #1\n"
    one = repository.commit(message, {"torch/a.py": "x = 1\n"})
    two = repository.commit("Same title\n", {"torch/a.py": "x = 2\n"})
    empty = repository.commit("Nothing\n", {})
    entries = imported(repository, two, empty, one, "HEAD~1")
    assert [entry["commit"] for entry in entries] == [one, two, empty]
    assert [entry["patches"] for entry in entries] == [
        ["same-title.apatch"],
        ["same-title-too.apatch"],
        [],
    ]
    versions = [
        parse_patch(patch_text(repository, name)).message.field("Torch-Version")
        for name in ("same-title.apatch", "same-title-too.apatch")
    ]
    assert versions == [("==2.13.*",), (">=2.13",)]
    assert woven(repository, "main~3") == repository.files("main")


def test_a_file_that_is_added_twice(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "pytorch", {})
    base = repository.git("rev-parse", "HEAD")
    for number, content in enumerate(["x = 1\n", None, "x = 2\n", "x = 3\n"]):
        repository.commit(f"Change {number}", {"torch/a.py": content})
    (tmp_path / "series").mkdir()
    imported(repository, f"{base}..HEAD")
    assert woven(repository, base) == repository.files("HEAD")


def test_refusals(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "pytorch", {"torch/a.py": "x = 1\n"})
    repository.commit("Change", {"torch/a.py": "x = 2\n"})
    repository.git("checkout", "--quiet", "-b", "side", "HEAD~1")
    repository.commit("Side", {"torch/b.py": "x = 2\n"})
    repository.git("merge", "--quiet", "--no-ff", "-m", "Merge", "main")
    repository.commit("Docs", {"docs/a.rst": "x\n"})
    (repository.folder / "torch/link").symlink_to("a.py")
    repository.commit("Link", {})
    (repository.folder / "torch/link").unlink()
    (repository.folder / "torch/a.py").chmod(0o755)
    repository.commit("Mode", {})
    (tmp_path / "plain").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    output = tmp_path / "new"

    def refusal(target: Path, *arguments: object, output: Path = output) -> str:
        done = overlay("import", target, *arguments, "-o", output)
        assert done.returncode == 2
        assert done.stdout == ""
        lines = done.stderr.replace(str(tmp_path), "TMP").splitlines()
        for commit in repository.git("log", "--all", "--format=%h", "--abbrev=12").split():
            lines = [line.replace(commit, "COMMIT") for line in lines]
        return "\n".join(lines)

    pytorch = repository.folder
    messages = [
        refusal(tmp_path / "none", "HEAD"),
        refusal(tmp_path / "plain", "HEAD"),
        refusal(pytorch, "nowhere"),
        refusal(pytorch, "HEAD..HEAD"),
        refusal(pytorch, "HEAD", output=tmp_path / "full"),
        refusal(pytorch, "side~3"),
        refusal(pytorch, "side^{/base}"),
        refusal(pytorch, "side~2"),
        refusal(pytorch, "side~1"),
        refusal(pytorch, "side"),
        refusal(pytorch),
    ]
    assert_expected_inline(
        "\n".join(messages),
        """\
torch-overlay: TMP/none: no such folder: name a git checkout of PyTorch
torch-overlay: TMP/plain is not a git checkout: import reads commits
torch-overlay: nowhere: TMP/pytorch has no such revision
torch-overlay: HEAD..HEAD: no commits in this range: write OLDER..NEWER
torch-overlay: TMP/full is not an empty folder: name a new one
torch-overlay: COMMIT ('Merge') is a merge: name the commits that it brings, without it
torch-overlay: COMMIT ('base') has no parent here: there is nothing to compare it with
torch-overlay: COMMIT ('Docs'): a series carries files under torch/ and test/ alone: 'docs/a.rst' is not under torch/ or test/
torch-overlay: COMMIT ('Link'): torch/link is a link or a submodule: leave it out
torch-overlay: COMMIT ('Mode'): torch/a.py becomes 100755: a patch carries contents alone
torch-overlay: Missing argument 'REVS...'.
  see 'torch-overlay import --help'""",
    )
    assert not output.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "plain", "pytorch"]


def test_a_shallow_clone_lacks_a_parent(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "pytorch", {"torch/a.py": "x = 1\n"})
    repository.commit("Change", {"torch/a.py": "x = 2\n"})
    repository.git("clone", "--quiet", "--depth=1", f"file://{repository.folder}", "../shallow")
    done = overlay("import", tmp_path / "shallow", "HEAD", "-o", tmp_path / "new")
    assert done.returncode == 2
    assert "('Change'): its parent is not here: fetch more of the history first" in done.stderr
