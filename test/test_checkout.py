"""Git checkouts: a commit a patch, and nothing half done, with real git."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Callable

import pytest
from expecttest import assert_expected_inline

from case import ARGUMENTS, RUNTIME
from checkouts import ADDED, MAIL, TOUCHED, Repository, real_git, repository, user
from overlay import operations
from overlay.errors import OverlayError, PatchError, TargetError
from overlay.export import export
from overlay.series import load_series, own_series
from overlay.targets import SourceTree, find_target
from overlay.targets.lock import lock_file

__all__ = ["repository", "user"]

WOVEN = RUNTIME.replace("unused", "args").replace("None)", "())")


def said(error: pytest.ExceptionInfo[OverlayError], case: Repository) -> str:
    text = "\n  ".join([error.value.message, *error.value.details])
    return text.replace(str(case.tree.resolve()), "TREE").replace(str(case.folder), "FOLDER")


def test_one_commit_a_patch(repository: Repository) -> None:
    before = repository.snapshot()
    tree = str(repository.tree)
    ids = re.compile(r"\b[0-9a-f]{7}\b")
    assert_expected_inline(
        repository.run("apply", tree),
        """\
  torch/new/added.py
  torch/runtime.py
torch 2.13.0a0 in FOLDER/pytorch: 2 patches applied, 2 files written, 2 commits made
""",
    )
    assert_expected_inline(
        repository.git("log", "--format=%an <%ae>, %ad, %cn: %B", "--stat", "main~2.."),
        """\
Zoë Example <zoe@example.com>, Mon Dec 5 10:00:00 2022 +0530, Ulf User: [FSDP] Call

Why.

Torch-Version: >=2.1
ghstack-source-id: 0123abc
Pull-Request: https://example.com/pull/1


 torch/runtime.py | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)
Zoë Example <zoe@example.com>, Mon Dec 5 10:00:00 2022 +0530, Ulf User: [FSDP] Arguments

Why.

Torch-Version: >=2.1
Adds: torch/new/added.py
ghstack-source-id: 0123abc
Pull-Request: https://example.com/pull/1


 torch/new/added.py | 1 +
 torch/runtime.py   | 4 ++--
 2 files changed, 3 insertions(+), 2 deletions(-)""",
    )
    assert (repository.tree / "torch/runtime.py").read_text() == WOVEN
    assert repository.git("status", "--porcelain") == ""
    after = repository.snapshot()
    assert_expected_inline(
        repository.run("status", tree),
        """\
torch 2.13.0a0 in FOLDER/pytorch
applied       [FSDP] Arguments
              https://example.com/pull/1
applied       [FSDP] Call
              https://example.com/pull/1
""",
    )
    assert "nothing to change" in repository.run("apply", tree)
    assert repository.snapshot() == after
    assert_expected_inline(
        ids.sub("ID", repository.run("revert", tree)),
        """\
  ID [FSDP] Call
  ID [FSDP] Arguments
torch 2.13.0a0 in FOLDER/pytorch: reverted, 2 commits taken off, 2 files restored
""",
    )
    assert repository.snapshot() == before
    assert_expected_inline(
        repository.run("revert", tree),
        """\
torch 2.13.0a0 in FOLDER/pytorch: nothing to revert, the series is not there
""",
    )
    assert repository.git("log", "-g", "--format=%gs", "-2").split("\n") == [
        "torch-overlay: revert",
        "torch-overlay: apply",
    ]


# ---- checkouts of every shape


def detached(case: Repository) -> Repository:
    case.git("checkout", "--quiet", "--detach")
    return case


def worktree(case: Repository) -> Repository:
    case.git("worktree", "add", "--quiet", "-b", "side", str(case.folder / "side"))
    return Repository.at(case, case.folder / "side")


def submodule(case: Repository) -> Repository:
    outer = Repository.at(case, case.folder / "outer")
    outer.tree.mkdir()
    outer.git("init", "--quiet", ".")
    outer.git("submodule", "--quiet", "add", str(case.tree), "third_party/pytorch")
    return Repository.at(case, outer.tree / "third_party/pytorch")


def clone(case: Repository, *options: str) -> Repository:
    case.git("config", "uploadpack.allowFilter", "true")
    case.git("config", "uploadpack.allowAnySHA1InWant", "true")
    url = f"file://{case.tree}"
    case.git("clone", "--quiet", *options, url, str(case.folder / "clone"))
    return Repository.at(case, case.folder / "clone")


def shallow(case: Repository) -> Repository:
    case.commit("more")
    return clone(case, "--depth=1")


def partial(case: Repository) -> Repository:
    return clone(case, "--filter=blob:none")


def partial_and_sparse(case: Repository) -> Repository:
    other = clone(case, "--filter=blob:none", "--sparse")
    other.git("sparse-checkout", "set", "--no-cone", "/version.txt", "/torch/__init__.py")
    missing = ("rev-list", "--objects", "--missing=print", "--no-walk", "HEAD:torch")
    assert other.git(*missing).count("?") == 3
    list(other.target.tree.python_files())
    assert "?" not in other.git(*missing)
    return other


def sparse(case: Repository) -> Repository:
    case.git(
        "sparse-checkout", "set", "--no-cone", "/version.txt", "/torch/runtime.py", "/torch/new/"
    )
    assert not (case.tree / "torch/other").exists()
    return case


def sparse_cone(case: Repository) -> Repository:
    case.git("sparse-checkout", "set", "--cone", "--sparse-index", "torch")
    assert not (case.tree / "docs").exists()
    return case


def sparse_elsewhere(case: Repository) -> Repository:
    case.git("sparse-checkout", "set", "--cone", "test")
    (case.tree / "torch").mkdir(exist_ok=True)
    return case


def autocrlf(case: Repository) -> Repository:
    case.git("config", "core.autocrlf", "true")
    case.git("rm", "--quiet", "-r", "--cached", ".")
    case.git("reset", "--quiet", "--hard")
    assert b"\r\n" in (case.tree / "torch/runtime.py").read_bytes()
    return case


def autocrlf_input(case: Repository) -> Repository:
    case.git("config", "core.autocrlf", "input")
    return case


def eol_attribute(case: Repository) -> Repository:
    case.write(".gitattributes", "*.py text eol=crlf\n")
    case.commit("attributes")
    (case.tree / "torch/runtime.py").unlink()
    case.git("checkout", "--", "torch/runtime.py")
    assert b"\r\n" in (case.tree / "torch/runtime.py").read_bytes()
    return case


def crlf_in_git(case: Repository) -> Repository:
    case.git("config", "core.autocrlf", "false")
    (case.tree / "torch/runtime.py").write_bytes(RUNTIME.replace("\n", "\r\n").encode())
    case.commit("CRLF")
    return case


def no_newline_at_the_end(case: Repository) -> Repository:
    case.write("torch/runtime.py", RUNTIME.rstrip("\n"))
    case.commit("no newline")
    return case


def latin_1(case: Repository) -> Repository:
    text = "# -*- coding: latin-1 -*-\n# \xe9\n" + RUNTIME.replace("# keep this", "# \xfc")
    (case.tree / "torch/runtime.py").write_bytes(text.encode("latin-1"))
    case.commit("Latin-1")
    return case


def executable(case: Repository) -> Repository:
    (case.tree / "torch/runtime.py").chmod(0o755)
    case.commit("executable")
    return case


def sha256(case: Repository) -> Repository:
    shutil.rmtree(case.tree / ".git")
    case.git("init", "--quiet", "--object-format=sha256", ".")
    case.commit("base")
    return case


def untracked_elsewhere(case: Repository) -> Repository:
    case.write("torch/mine.py", "MINE = 1\n")
    case.write("torch/new/mine.py", "MINE = 1\n")
    return case


def dirty_elsewhere(case: Repository) -> Repository:
    case.write("torch/other/kept.py", "KEPT = 2\n")
    (case.tree / "docs/index.md").unlink()
    return case


def staged_elsewhere(case: Repository) -> Repository:
    case.write("torch/other/kept.py", "KEPT = 2\n")
    case.write("torch/staged.py", "STAGED = 1\n")
    case.git("add", "--all")
    case.write("torch/other/kept.py", "KEPT = 3\n")
    return case


def touched_without_change(case: Repository) -> Repository:
    os.utime(case.tree / "torch/runtime.py", (1, 1))
    return case


def odd_configuration(case: Repository) -> Repository:
    for setting in (
        *("apply.whitespace=fix", "apply.ignoreWhitespace=change", "am.threeWay=true"),
        *("am.keepcr=false", "mailinfo.scissors=true", "mailinfo.quotedCr=strip"),
        *("diff.noprefix=true", "diff.mnemonicPrefix=true", "diff.renames=copies"),
        *("diff.external=false", "format.signOff=true", "format.subjectPrefix=X"),
        *("status.showUntrackedFiles=no", "status.relativePaths=false", "log.showSignature=true"),
        *(
            "core.quotePath=false",
            "core.abbrev=40",
            "color.ui=always",
            "i18n.logOutputEncoding=latin-1",
        ),
    ):
        case.git("config", *setting.split("=", 1))
    (case.folder / "series/torch_overlay" / ADDED).write_bytes(b"ADDED = 1  \n\r\n\t \n\n\n")
    return case


SHAPES = [
    *(detached, worktree, submodule, shallow, partial, partial_and_sparse, sparse, sparse_cone),
    *(sparse_elsewhere, autocrlf, autocrlf_input, eol_attribute, crlf_in_git),
    *(no_newline_at_the_end, latin_1, executable, sha256, untracked_elsewhere, dirty_elsewhere),
    *(staged_elsewhere, touched_without_change, odd_configuration),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_every_shape(repository: Repository, shape: Callable[[Repository], Repository]) -> None:
    case = shape(repository)
    before, base, target = case.snapshot(), case.head, case.target
    woven = operations.plan(target, case.patches).writes
    made = case.apply()
    assert len(made.commits) == 2
    # HEAD has what was woven and nothing else, and the work tree is as HEAD.
    assert set(case.git("diff", "--no-ext-diff", "--name-only", base, "HEAD").split()) == TOUCHED
    now = case.target.tree
    assert {path: now.read(path) for path in TOUCHED} == woven
    after = case.snapshot()
    assert after["status"] == before["status"]
    assert case.git("diff", "--no-ext-diff", "--name-only", "HEAD", "--", *TOUCHED) == ""
    untouched = set(before) - TOUCHED - {"HEAD", "index"}
    assert {path: after[path] for path in untouched} == {path: before[path] for path in untouched}
    # Plain git am makes the same of the mails.
    folder = case.folder / "mails"
    export(case.target, case.patches, folder)
    fresh = case.fresh(base)
    fresh.git("am", "--quiet", *map(str, sorted(folder.iterdir())))
    assert fresh.tree_id == case.tree_id
    assert fresh.states() == ["applied", "applied"]
    assert len(case.revert().commits) == 2
    assert case.snapshot() == before


def test_the_work_tree_follows_autocrlf(repository: Repository) -> None:
    case = autocrlf(repository)
    case.apply()
    content = (case.tree / "torch/runtime.py").read_bytes()
    assert content == WOVEN.replace("\n", "\r\n").encode()


# ---- what is refused


def edited(case: Repository) -> None:
    case.write("torch/runtime.py", RUNTIME + "# mine\n")


def staged(case: Repository) -> None:
    edited(case)
    case.git("add", "torch/runtime.py")
    case.write("torch/runtime.py", RUNTIME)


def removed(case: Repository) -> None:
    (case.tree / "torch/runtime.py").unlink()


def untracked(case: Repository) -> None:
    case.write(ADDED, "MINE = 1\n")


def ignored(case: Repository) -> None:
    case.write(".git/info/exclude", "torch/new/\n")
    case.write(ADDED, "MINE = 1\n")


def tracked(case: Repository) -> None:
    case.write(ADDED, "MINE = 1\n")
    case.commit("mine")


def side_branch(case: Repository) -> None:
    case.git("checkout", "--quiet", "-b", "side")
    case.write("docs/index.md", "side\n")
    case.commit("side")
    case.git("checkout", "--quiet", "main")
    case.write("docs/index.md", "main\n")
    case.commit("main")


def merging(case: Repository) -> None:
    side_branch(case)
    case.git("merge", "--quiet", "side", code=1)


def rebasing(case: Repository) -> None:
    side_branch(case)
    case.git("rebase", "--quiet", "side", code=1)


def applying(case: Repository) -> None:
    side_branch(case)
    mail = case.git("format-patch", "-1", "--stdout", "side")
    case.git("am", "--quiet", input=mail + "\n", code=128)


def rebasing_by_mail(case: Repository) -> None:
    side_branch(case)
    case.git("rebase", "--quiet", "--apply", "side", code=1)


def picking(case: Repository) -> None:
    side_branch(case)
    case.git("cherry-pick", "side", code=1)


def reverting(case: Repository) -> None:
    side_branch(case)
    case.git("revert", "--no-edit", "side", code=1)


def bisecting(case: Repository) -> None:
    case.git("bisect", "start")


def nobody(case: Repository) -> None:
    case.git("config", "--global", "--remove-section", "user")


DIRTY = (
    "torch 2.13.0a0 in TREE: torch/runtime.py has uncommitted changes: commit or stash them first"
)
IN_THE_WAY = (
    f"arguments.apatch: Adds: {ADDED} is there, untracked, with other content: move it away first"
)


def progress(what: str, ending: str) -> str:
    return f"torch 2.13.0a0 in TREE: {what} is in progress: end it first ('{ending}' gives it up)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (edited, DIRTY),
        (staged, DIRTY),
        (removed, DIRTY),
        (untracked, IN_THE_WAY),
        (ignored, IN_THE_WAY),
        (
            tracked,
            f"arguments.apatch: Adds: {ADDED}: the target has such a file with other content",
        ),
        (merging, progress("a merge", "git merge --abort")),
        (rebasing, progress("a rebase", "git rebase --abort")),
        (rebasing_by_mail, progress("a rebase", "git rebase --abort")),
        (applying, progress("git am", "git am --abort")),
        (picking, progress("a cherry-pick", "git cherry-pick --abort")),
        (reverting, progress("a revert", "git revert --abort")),
        (bisecting, progress("a bisection", "git bisect reset")),
        (
            nobody,
            "torch 2.13.0a0 in TREE: git does not know who commits: set it with"
            " 'git config user.name NAME' and 'git config user.email MAIL'",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_refused(repository: Repository, make: Callable[[Repository], None], message: str) -> None:
    make(repository)
    before = repository.snapshot()
    with pytest.raises(OverlayError) as error:
        repository.apply()
    assert said(error, repository) == message
    assert repository.snapshot() == before


def test_status_says_what_is_in_the_way(repository: Repository) -> None:
    untracked(repository)
    edited(repository)
    assert_expected_inline(
        repository.run("status", str(repository.tree), code=1),
        """\
torch 2.13.0a0 in FOLDER/pytorch
in conflict   [FSDP] Arguments
              arguments.apatch: Adds: torch/new/added.py is there, untracked, with other content: move it away first
              https://example.com/pull/1
pending       [FSDP] Call
              https://example.com/pull/1
torch/runtime.py has uncommitted changes: commit or stash them first
""",
    )


def test_no_commit_to_go_on(repository: Repository, tmp_path: Path) -> None:
    repository.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare.git"))
    with pytest.raises(OverlayError, match=r"bare\.git is a bare git repository: name a work tree"):
        find_target(str(tmp_path / "bare.git"))
    repository.git("checkout", "--quiet", "--orphan", "empty")
    with pytest.raises(OverlayError, match="pytorch has no commit yet: commit PyTorch's files"):
        find_target(str(repository.tree))
    repository.git("config", "core.bare", "true")
    with pytest.raises(OverlayError, match="belongs to a bare repository"):
        find_target(str(repository.tree))
    shutil.rmtree(repository.tree / ".git")
    (repository.tree / ".git").write_text("gitdir: nowhere\n")
    with pytest.raises(OverlayError, match="is not a checkout that git can read: fatal: not a git"):
        find_target(str(repository.tree))


def test_an_untracked_file_that_is_the_added_one(repository: Repository) -> None:
    repository.write(ADDED, "ADDED = 1\n")
    repository.apply()
    assert repository.git("status", "--porcelain") == ""


def test_one_at_a_time(repository: Repository) -> None:
    target = repository.target
    target.wait = 0
    held = lock_file(repository.tree / ".git/torch-overlay/lock", 0)
    with held, pytest.raises(TargetError, match="in use by another torch-overlay"):
        operations.apply(target, repository.patches)
    operations.apply(target, repository.patches)


# ---- hooks and signing


def hook(case: Repository, name: str, script: str, folder: str = ".git/hooks") -> None:
    case.write(f"{folder}/{name}", f"#!/bin/sh\n{script}\n")
    (case.tree / folder / name).chmod(0o755)


def test_hooks_run_as_in_git_am(repository: Repository) -> None:
    hook(repository, "applypatch-msg", 'echo "Change-Id: I1" >>"$1"')
    # The whole tree is there for them to look at.
    hook(repository, "pre-applypatch", "grep -q KEPT torch/other/kept.py && test -f docs/index.md")
    base = repository.head
    repository.apply()
    assert repository.git("log", "--format=%(trailers:key=Change-Id)").split("\n")[0] == (
        "Change-Id: I1"
    )
    repository.revert()
    assert repository.head == base


@pytest.mark.parametrize("relative", [True, False])
def test_a_hook_can_refuse(repository: Repository, relative: bool) -> None:
    if relative:
        repository.git("config", "core.hooksPath", ".githooks")
    folder = ".githooks" if relative else ".git/hooks"
    # The second patch, so that a commit has been made by then.
    hook(repository, "applypatch-msg", 'grep -q Arguments "$1" || { echo "no!"; exit 1; }', folder)
    before = repository.snapshot()
    with pytest.raises(TargetError) as error:
        repository.apply()
    message = said(error, repository)
    assert message.startswith("torch 2.13.0a0 in TREE: git am did not make the commits;")
    assert "no!" in message
    assert repository.snapshot() == before


def test_a_hook_that_changes_files_is_noticed(repository: Repository) -> None:
    amend = "echo x >>docs/index.md; git commit --quiet --amend --all --no-edit"
    hook(repository, "post-applypatch", f"grep -q '()' torch/runtime.py || exit 0; {amend}")
    before = repository.snapshot()
    with pytest.raises(TargetError, match=r"the commit of call\.apatch is not what was woven"):
        repository.apply()
    assert repository.snapshot() == before


def test_a_filter_that_does_not_read_back_is_undone(repository: Repository) -> None:
    repository.write(".gitattributes", f"{ADDED} filter=odd\n")
    repository.commit("filter")
    repository.git("config", "filter.odd.smudge", "cat; echo more")
    repository.git("config", "filter.odd.clean", "cat; echo again")
    before = repository.snapshot()
    with pytest.raises(TargetError, match="does not read back as it was written; nothing was"):
        repository.apply()
    assert repository.snapshot() == before


def test_a_branch_that_may_not_move(repository: Repository) -> None:
    hook(
        repository,
        "reference-transaction",
        'if [ "$1" = prepared ] && grep -q refs/heads/main; then echo locked >&2; exit 1; fi',
    )
    before = repository.snapshot()
    with pytest.raises(TargetError, match="git update-ref failed: locked"):
        repository.apply()
    assert repository.snapshot() == before


@pytest.mark.parametrize("works", [True, False])
def test_commits_are_signed(repository: Repository, works: bool) -> None:
    gpg = repository.folder / "gpg"
    gpg.write_text(
        "#!/bin/sh\ncat >/dev/null\necho '[GNUPG:] SIG_CREATED ' >&2\n"
        "printf -- '-----BEGIN PGP SIGNATURE-----\\n\\nabc\\n-----END PGP SIGNATURE-----\\n'\n"
        if works
        else "#!/bin/sh\necho no key >&2\nexit 1\n"
    )
    gpg.chmod(0o755)
    repository.git("config", "gpg.program", str(gpg))
    repository.git("config", "commit.gpgSign", "true")
    before = repository.snapshot()
    if works:
        for commit in repository.apply().commits:
            assert "PGP SIGNATURE" in repository.git("cat-file", "commit", commit)
    else:
        with pytest.raises(TargetError) as error:
            repository.apply()
        assert "gpg failed to sign the data" in said(error, repository)
        assert repository.snapshot() == before


# ---- the series' commits after they were made


def test_commits_above_stay(repository: Repository) -> None:
    repository.apply()
    repository.write("docs/index.md", "mine\n")
    repository.commit("Mine")
    repository.commit("Mine too")
    before = repository.snapshot()
    assert repository.states() == ["applied", "applied"]
    assert not repository.apply().commits
    with pytest.raises(TargetError) as error:
        repository.revert()
    assert_expected_inline(
        re.sub(r"\b[0-9a-f]{7}\b", "ID", said(error, repository)),
        """\
torch 2.13.0a0 in TREE: the commits of the series are not the topmost: ID Mine too is above them: take them out with git (git rebase -i, git revert)
  above them: ID Mine""",
    )
    assert repository.snapshot() == before


def amended(case: Repository) -> str:
    case.git("commit", "--amend", "--quiet", "--message", "Another message")
    return case.git("rev-parse", "HEAD~2")


def squashed(case: Repository) -> str:
    case.git("reset", "--quiet", "--soft", "HEAD~2")
    case.commit("One commit")
    return case.git("rev-parse", "HEAD~1")


def rebased(case: Repository) -> str:
    case.git("checkout", "--quiet", "-b", "newer", "HEAD~2")
    case.write("torch/runtime.py", "import math\n\n\n" + RUNTIME)
    base = case.commit("newer")
    case.git("checkout", "--quiet", "main")
    case.git("rebase", "--quiet", "newer")
    return base


def cloned(case: Repository) -> str:
    shutil.rmtree(case.tree / ".git/torch-overlay")
    return case.git("rev-parse", "HEAD~2")


@pytest.mark.parametrize("change", [amended, squashed, rebased, cloned], ids=lambda c: c.__name__)
def test_commits_are_known_by_what_they_do(
    repository: Repository, change: Callable[[Repository], str]
) -> None:
    repository.apply()
    below = change(repository)
    assert repository.states() == ["applied", "applied"]
    assert not repository.apply().commits
    repository.write("docs/index.md", "dirty\n")
    taken = repository.revert()
    assert set(taken.paths) == TOUCHED
    assert repository.head == below
    assert repository.git("status", "--porcelain") == "M docs/index.md"
    assert repository.states() == ["pending", "pending"]


def test_commits_with_other_changes_stay(repository: Repository) -> None:
    repository.apply()
    repository.write("torch/runtime.py", WOVEN + "# mine\n")
    repository.git("commit", "--all", "--amend", "--quiet", "--no-edit")
    assert repository.states() == ["applied", "applied"]
    with pytest.raises(TargetError, match="the commits of the series were changed: take them out"):
        repository.revert()


def test_dirty_files_of_the_series_are_not_lost(repository: Repository) -> None:
    repository.apply()
    repository.write("torch/runtime.py", WOVEN + "# mine\n")
    before = repository.snapshot()
    with pytest.raises(TargetError) as error:
        repository.revert()
    assert said(error, repository) == DIRTY
    assert repository.snapshot() == before


def test_an_edited_series_replaces_its_commits(repository: Repository) -> None:
    base = repository.head
    repository.apply()
    edited = ARGUMENTS.replace("+    args", "+    inputs")
    repository.series({"arguments.apatch": edited}, mail=MAIL)
    assert repository.states() == ["pending"]
    assert len(repository.apply().commits) == 1
    assert repository.git("rev-parse", "HEAD~1") == base
    assert b"inputs" in (repository.tree / "torch/runtime.py").read_bytes()
    assert not (repository.tree / ADDED).exists()
    assert repository.states() == ["applied"]
    repository.revert()
    assert repository.head == base


def test_another_series_is_not_replaced(repository: Repository) -> None:
    repository.apply()
    before = repository.snapshot()
    repository.series({"mine.apatch": ARGUMENTS}, mail=MAIL)
    with pytest.raises(TargetError, match=r"another series is applied: .* takes it out first"):
        repository.apply()
    assert repository.snapshot() == before
    repository.revert()
    assert len(repository.apply().commits) == 1


def test_half_a_series(repository: Repository) -> None:
    repository.apply()
    repository.git("reset", "--quiet", "--hard", "HEAD~1")
    assert repository.states() == ["applied", "pending"]
    with pytest.raises(PatchError) as error:
        repository.apply()
    assert_expected_inline(
        said(error, repository),
        """\
torch 2.13.0a0 in TREE: only a part of the series is there, not by this tool: take its commits out first (git rebase -i, git revert)
  there: arguments.apatch
  missing: call.apatch""",
    )


def test_without_commits(repository: Repository) -> None:
    tree = str(repository.tree)
    base = repository.head
    repository.run("apply", "--no-commit", tree)
    assert repository.head == base
    assert (repository.tree / "torch/runtime.py").read_text() == WOVEN
    assert isinstance(find_target(tree), SourceTree)
    assert repository.run("status", tree).count("applied  ") == 2
    assert_expected_inline(
        repository.run("apply", tree, code=2),
        """\
torch-overlay: torch 2.13.0a0 in FOLDER/pytorch: files were changed here without commits: 'torch-overlay revert' takes that back, '--no-commit' goes on with it
""",
    )
    repository.run("apply", "--no-commit", tree)
    repository.run("revert", tree)
    assert repository.git("status", "--porcelain", "--ignored") == ""
    repository.run("apply", tree)


# ---- killed


@pytest.mark.parametrize(
    ("command", "when", "done"),
    [
        ("worktree add", "after", False),
        ("am", "after", False),
        ("read-tree -m", "before", False),
        ("read-tree -m", "after", False),
        ("read-tree -m", "halfway", False),
        ("update-ref", "before", False),
        ("update-ref", "after", True),
    ],
)
@pytest.mark.parametrize("shape", [worktree, sparse_cone], ids=lambda shape: shape.__name__)
def test_killed_at(
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    shape: Callable[[Repository], Repository],
    command: str,
    when: str,
    done: bool,
) -> None:
    """Killed at any moment, all is done or nothing is, once the tool has run again."""
    case = dirty_elsewhere(repository) if shape is worktree else repository
    case = shape(case)
    before = case.snapshot()
    killing = repository.folder / "bin"
    killing.mkdir()
    # Halfway: the files are written, and the index is not yet.
    (killing / "git").write_text(
        f"""#!/bin/sh
        case " $* " in *" {command} "*) ;; *) exec {real_git()} "$@" ;; esac
        if [ {when} != before ]; then
            index=$({real_git()} rev-parse --git-path index)
            cp "$index" "$index.kept"
            {real_git()} "$@"
            if [ {when} = halfway ]; then mv "$index.kept" "$index"; else rm "$index.kept"; fi
        fi
        kill -9 $PPID
        """
    )
    (killing / "git").chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{killing}:{os.environ['PATH']}")
        assert case.run_raw("apply", str(case.tree)).returncode == -9
    interrupted = case.target.interrupted
    if interrupted:
        assert "an earlier change was interrupted" in case.run("status", str(case.tree), code=2)
    assert interrupted == (command in ("read-tree -m", "update-ref"))
    with case.target.locked():
        pass
    after = case.snapshot()
    if not done:
        assert after == before
        case.apply()
    assert case.states() == ["applied", "applied"]
    case.revert()
    assert case.snapshot() == before


def interrupt(case: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave an apply where the files are written, and the branch is not moved."""
    target = case.target
    with monkeypatch.context() as patched:
        patched.setattr(type(target), "_recover", lambda self, **_: None)
        hook(case, "reference-transaction", "! grep -q refs/heads/main")
        with pytest.raises(TargetError, match="update-ref"):
            operations.apply(target, case.patches)
    (case.tree / ".git/hooks/reference-transaction").unlink()


def test_an_index_lock_that_git_left(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = repository.snapshot()
    interrupt(repository, monkeypatch)
    repository.write(".git/index.lock", "")
    with pytest.raises(TargetError, match=r"left .*index\.lock: when no other git runs there, rem"):
        repository.apply()
    (repository.tree / ".git/index.lock").unlink()
    with repository.target.locked():
        assert repository.snapshot()["HEAD"] == before["HEAD"]
    assert repository.snapshot() == before


def test_an_edit_after_an_interruption_is_not_lost(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = repository.snapshot()
    interrupt(repository, monkeypatch)
    edited(repository)
    with pytest.raises(TargetError, match=r"torch/runtime\.py was edited since: 'git checkout"):
        repository.revert()
    assert (repository.tree / "torch/runtime.py").read_text().endswith("# mine\n")
    repository.git("checkout", "--", "torch/runtime.py")
    assert not repository.revert().commits
    assert repository.snapshot() == before


# ---- the project's own series


@pytest.fixture
def torch_checkout(user: Path, tmp_path: Path, stock_torch: Path) -> Repository:
    """The real torch's Python as a checkout."""
    made = Repository.__new__(Repository)
    made.folder, made.tree = tmp_path, tmp_path / "pytorch"
    ignore = shutil.ignore_patterns(
        "lib", "bin", "include", "share", "*.so", "*.pyi", "__pycache__"
    )
    shutil.copytree(stock_torch / "torch", made.tree / "torch", ignore=ignore)
    made.write("version.txt", "2.13.0\n")
    made.git("init", "--quiet", ".")
    made.commit("base")
    return made


def test_the_series_on_the_real_torch(torch_checkout: Repository, stock_venv: Path) -> None:
    case, series = torch_checkout, load_series(own_series())
    before, base = case.snapshot(), case.head
    made = operations.apply(case.target, series)
    selected = series.selected("2.13.0")
    assert len(made.commits) == len(selected)
    for commit, patch in zip(made.commits, selected):
        message = case.git("show", "--no-patch", "--format=%B", commit)
        assert message.split("\n")[0] == patch.message.subject
        for name, value in patch.message.fields:
            assert f"\n{name}: {value}" in message
    folder = case.folder / "mails"
    export(case.target, series, folder)
    fresh = case.fresh(base)
    fresh.git("am", "--quiet", *map(str, sorted(folder.iterdir())))
    assert fresh.tree_id == case.tree_id
    # From the installed torch come the same mails, but for the commit that they go on.
    installed = case.folder / "installed"
    export(find_target(str(stock_venv)), series, installed)
    for mail in sorted(folder.iterdir()):
        text = mail.read_text(encoding="utf-8").replace(f"\nbase-commit: {base}\n", "")
        assert (installed / mail.name).read_text(encoding="utf-8") == text
    operations.revert(case.target, series)
    assert case.snapshot() == before
