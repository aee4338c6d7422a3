"""A git checkout of PyTorch: each patch becomes a commit.

What counts is HEAD, not the work tree. The commits are made by ``git am`` in a work tree of
their own inside the git folder, checked there, and only then HEAD, index and work tree move to
them, in one step that is noted first: nothing is half done, whatever happens midway.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Optional

from overlay.errors import TargetError
from overlay.git import Git
from overlay.mails import FILE_MODE, Step, render
from overlay.targets.base import AppliedPatch, FileRecord, Record, Target
from overlay.targets.gittree import Blob, Blobs, GitTree
from overlay.targets.lock import lock_file
from overlay.targets.sourcetree import SourceTree
from overlay.tree import Tree

_IN_PROGRESS = {
    "rebase-apply/applying": ("git am", "git am --abort"),
    "rebase-apply": ("a rebase", "git rebase --abort"),
    "rebase-merge": ("a rebase", "git rebase --abort"),
    "MERGE_HEAD": ("a merge", "git merge --abort"),
    "CHERRY_PICK_HEAD": ("a cherry-pick", "git cherry-pick --abort"),
    "REVERT_HEAD": ("a revert", "git revert --abort"),
    "sequencer": ("a cherry-pick or revert", "git cherry-pick --abort"),
    "BISECT_LOG": ("a bisection", "git bisect reset"),
}
_HOOKS_OF_AM = ("applypatch-msg", "pre-applypatch", "post-applypatch")
_AM = (
    *("am", "--keep-non-patch", "--no-scissors", "--quoted-cr=nowarn", "--no-3way"),
    *("--no-message-id", "--whitespace=nowarn", "--no-ignore-whitespace"),
)
# In the work tree of the commits files lie as git keeps them, and only those that are needed.
_WORK_SETTINGS = (
    "core.autocrlf=false",
    "core.sparseCheckout=false",
    "core.splitIndex=false",
    "core.fsmonitor=false",
)


class _Change(NamedTuple):
    """A file in two commits; None where there is none."""

    old: Optional[Blob]
    new: Optional[Blob]


@dataclass(frozen=True)
class _Applied:
    """What is kept of commits that this tool made; they are known by their last one."""

    base: str
    series: tuple[AppliedPatch, ...]


@dataclass(frozen=True)
class _Move:
    """A step from one commit to another that was begun."""

    old: str
    new: str
    #: Untracked files that are already as the new commit has them.
    kept: tuple[str, ...]


class Checkout(SourceTree):
    """A git work tree that holds torch/ and version.txt at its top."""

    kind = "checkout"

    def __init__(self, root: Path) -> None:
        Target.__init__(self, root)
        self._git = Git(root)
        said = self._git.attempt(
            *("rev-parse", "--is-bare-repository", "--show-object-format"),
            *("--absolute-git-dir", "--git-common-dir"),
        )
        if said.returncode:
            reason = said.stderr.decode(errors="replace").strip().splitlines() or ["no reason"]
            raise TargetError(f"{root} is not a checkout that git can read: {reason[0]}")
        bare, self.object_format, git_dir, common = os.fsdecode(said.stdout).splitlines()
        if bare == "true":
            raise TargetError(f"{root} belongs to a bare repository: name a work tree of it")
        top = self._git.line("rev-parse", "--show-toplevel")
        if Path(top) != root:
            raise TargetError(f"{root} is not the top of its work tree: that is {top}")
        self._git_dir = Path(git_dir)
        self._own = self._git_dir / "torch-overlay"
        self._applied = root / common / "torch-overlay" / "applied"
        self._blobs = Blobs(self._git)
        self.head = self._read_head()
        self.tree: GitTree = self._tree_at(self.head)
        self._has_work_tree = True
        version = self.tree.read("version.txt") or (root / "version.txt").read_bytes()
        self.version = version.decode("utf-8").strip()

    def _read_head(self) -> str:
        head = self._git.found("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        if head is None:
            raise TargetError(
                f"{self.root} has no commit yet: commit PyTorch's files first, or give --no-commit"
            )
        return head

    def _tree_at(self, commit: str) -> GitTree:
        return GitTree(self._git, commit, self._blobs)

    def _refresh(self) -> None:
        self.head = self._read_head()
        if self.tree.commit != self.head:
            self.tree = self._tree_at(self.head)

    def refusal(self) -> Optional[str]:
        for name, (what, ending) in _IN_PROGRESS.items():
            if (self._git_dir / name).exists():
                return f"{self}: {what} is in progress: end it first ('{ending}' gives it up)"
        return None

    # ---- how it stands

    def record(self) -> Optional[Record]:
        """What this tool applied, as long as its commits are the topmost ones."""
        applied = self._applied_at(self.head)
        if applied is None:
            return None
        files = dict.fromkeys(self._changed(applied.base, self.head), FileRecord(None, None))
        return Record(series=applied.series, files=files)

    def originals(self) -> Tree:
        applied = self._applied_at(self.head)
        return self.tree if applied is None else self._tree_at(applied.base)

    def local_changes(self, paths: Iterable[str]) -> list[str]:
        """Files with changes, staged or not, that are not committed."""
        return self._uncommitted(paths)

    def describe_edit(self, path: str) -> str:
        return f"{path} has uncommitted changes: commit or stash them first"

    def in_the_way(self, changes: Mapping[str, Optional[bytes]]) -> list[str]:
        """Untracked files at the places of added ones, with other content."""
        return [
            path
            for path, content in changes.items()
            if self._has_work_tree
            and path not in self.tree.files
            and self._is_other(path, self._oid(content))
        ]

    def _is_other(self, path: str, oid: Optional[str]) -> bool:
        there = os.path.lexists(self.root / path)
        return there and oid is not None and self._oid_in_work_tree(path) != oid

    def _uncommitted(self, paths: Iterable[str]) -> list[str]:
        """Those of the files that are in HEAD or the index, and not the same everywhere."""
        paths = set(paths)
        if not paths or not self._has_work_tree:
            return []
        listing = self._git.run(
            *("--no-optional-locks", "--literal-pathspecs", "status", "--porcelain=v1", "-z"),
            *("--no-renames", "--untracked-files=no", "--ignore-submodules=all", "--"),
            *sorted(paths),
        )
        found = {os.fsdecode(entry)[3:] for entry in listing.split(b"\0")[:-1]}
        return sorted(found & paths)

    def _oid(self, content: Optional[bytes]) -> Optional[str]:
        if content is None:
            return None
        return hashlib.new(self.object_format, b"blob %d\0" % len(content) + content).hexdigest()

    def _oid_in_work_tree(self, path: str) -> Optional[str]:
        return self._git.found("hash-object", f"--path={path}", "--", path)

    def _changed(self, old: str, new: str) -> dict[str, _Change]:
        """The files that differ between two commits."""
        listing = self._git.run("diff-tree", "-r", "-z", "--no-renames", "--full-index", old, new)
        parts = listing.split(b"\0")[:-1]
        found = {}
        for head, path in zip(parts[::2], parts[1::2]):
            old_mode, new_mode, old_oid, new_oid, _ = head[1:].decode().split()
            before = Blob(old_mode, old_oid) if int(old_mode) else None
            after = Blob(new_mode, new_oid) if int(new_mode) else None
            found[os.fsdecode(path)] = _Change(before, after)
        return found

    # ---- commits

    def at(self, commit: str) -> Checkout:
        """This checkout as if a commit were HEAD, and the work tree clean; to read only."""
        other = copy(self)
        other.head, other.tree, other._has_work_tree = commit, self._tree_at(commit), False
        return other

    def base_of_record(self) -> Optional[str]:
        """The commit below those that this tool made, if they are the topmost ones."""
        applied = self._applied_at(self.head)
        return applied.base if applied else None

    def ancestors(self, count: int) -> list[str]:
        """The commits below HEAD, nearest first, up to the first merge or the end."""
        listing = self._git.line("rev-list", "--parents", f"--max-count={count}", self.head)
        found = []
        expected = self.head
        for line in listing.splitlines():
            commit, *parents = line.split()
            if commit != expected or len(parents) != 1:
                break
            expected = parents[0]
            found.append(expected)
        return found

    def touched_since(self, commit: str) -> dict[str, Optional[str]]:
        """The files that differ from those of a commit, with their objects' names."""
        changes = self._changed(commit, self.head).items()
        return {path: change.new.oid if change.new else None for path, change in changes}

    def oids(self, changes: Mapping[str, Optional[bytes]]) -> dict[str, Optional[str]]:
        """The names of the objects that hold these contents."""
        return {path: self._oid(content) for path, content in changes.items()}

    def commits_above(self, subject: str) -> list[str]:
        """The commits above the topmost one with a subject; none if there is no such."""
        above: list[str] = []
        for line in self.describe("--max-count=200", self.head):
            if line.split(" ", 1)[1] == subject:
                return above
            above.append(line)
        return []

    def describe(self, *revisions: str) -> list[str]:
        """Commits as short names with their subjects, newest first."""
        return self._git.line("log", "--no-show-signature", "--format=%h %s", *revisions).split(
            "\n"
        )

    def commit(self, steps: Sequence[Step], series: Sequence[AppliedPatch]) -> list[str]:
        """Make one commit a step, in place of those that this tool made before.

        ``series`` is all that is applied afterwards. Returns the commits, oldest first.
        """
        with self.locked():
            self._require_identity()
            base = self.base_of_record() or self.head
            commits = self._make_commits(base, steps)
            self._move(commits[-1] if commits else base, "torch-overlay: apply")
            if commits:
                with suppress(TargetError):  # It only saves work.
                    self.note_applied(base, series)
            return commits

    def note_applied(self, base: str, series: Sequence[AppliedPatch]) -> None:
        """Keep a note that the commits above ``base`` are these patches, whoever made them."""
        self._refresh()
        self._write_json(self._applied / self.head, asdict(_Applied(base, tuple(series))))

    def drop_to(self, base: str) -> tuple[list[str], list[str]]:
        """Take the commits above ``base`` off; return the files and the commits."""
        with self.locked():
            old = self.head
            commits = self.describe(f"{base}..{old}")
            paths = sorted(self._changed(old, base))
            self._move(base, "torch-overlay: revert")
            with suppress(OSError):
                (self._applied / old).unlink()
                self._applied.rmdir()
            return paths, commits

    def _require_identity(self) -> None:
        if self._git.found("-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT") is None:
            raise TargetError(
                f"{self}: git does not know who commits: set it with"
                " 'git config user.name NAME' and 'git config user.email MAIL'"
            )

    def _make_commits(self, base: str, steps: Sequence[Step]) -> list[str]:
        tree = self._tree_at(base)
        mails = render(steps, tree, None, tree.mode_of, self.object_format)
        if not mails:
            return []
        place = self._own / "work"
        hooks = self.root / os.fsdecode(self._git.run("rev-parse", "--git-path", "hooks")).strip()
        settings = (*_WORK_SETTINGS, f"core.hooksPath={hooks}")
        try:
            self._git.run(
                *("worktree", "add", "--quiet", "--force", "--detach", "--no-checkout"),
                *(os.fspath(place), base),
            )
            work = Git(place, settings, plain=False)
            work.run("read-tree", base)
            if any(os.access(hooks / name, os.X_OK) for name in _HOOKS_OF_AM):
                # What else a hook of the user's looks at, no one can know.
                work.run("checkout-index", "--all", "--quiet")
            with tempfile.TemporaryDirectory(prefix="torch-overlay-") as folder:
                names = []
                for mail in mails:
                    names.append(os.path.join(folder, mail.name))
                    Path(names[-1]).write_bytes(mail.content)
                done = work.attempt(*_AM, *names)
            if done.returncode:
                output = (done.stdout + done.stderr).decode(errors="replace")
                raise TargetError(
                    f"{self}: git am did not make the commits; nothing was changed",
                    output.strip().splitlines(),
                )
            commits = work.line("rev-list", "--reverse", f"{base}..HEAD").split()
        finally:
            self._drop_work()
        self._check(base, commits, steps)
        return commits

    def _check(self, base: str, commits: Sequence[str], steps: Sequence[Step]) -> None:
        """Compare what git am made with what was woven, byte for byte."""
        made = [self._changed(*pair) for pair in zip((base, *commits), commits)]
        for step, found in zip(steps, made):
            got = {path: change.new.oid if change.new else None for path, change in found.items()}
            modes = (
                c.new.mode == (c.old.mode if c.old else FILE_MODE) for c in found.values() if c.new
            )
            if got != self.oids(step.changes) or not all(modes):
                raise TargetError(
                    f"{self}: the commit of {step.patch.name} is not what was woven;"
                    " nothing was changed (does a hook of git am change files?)"
                )
        if len(made) != len(steps):
            raise TargetError(
                f"{self}: {len(made)} commits were made of {len(steps)} patches;"
                " nothing was changed (does a hook of git am make commits?)"
            )

    def _drop_work(self) -> None:
        place = self._own / "work"
        if place.exists():
            self._git.attempt("worktree", "remove", "--force", "--force", os.fspath(place))
            # A work tree that was killed while it was made is none to git.
            shutil.rmtree(place, ignore_errors=True)

    # ---- moving HEAD, index and work tree

    @property
    def interrupted(self) -> bool:
        return self._moving.exists()

    @property
    def _moving(self) -> Path:
        return self._own / "moving.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        if self._locks:
            yield
            return
        with lock_file(self._own / "lock", self.wait):
            self._locks += 1
            try:
                self._drop_work()
                self._recover()
                reason = self.refusal()
                if reason is not None:
                    raise TargetError(reason)
                self._refresh()
                yield
            finally:
                self._locks -= 1

    def _move(self, new: str, why: str) -> None:
        """Bring branch, index and work tree to a commit; what it does not touch stays."""
        old = self.head
        changed = self._changed(old, new)
        for path in self._uncommitted(changed):
            raise TargetError(f"{self}: {self.describe_edit(path)}")
        kept = []
        for path, change in changed.items():
            if change.old is None and change.new and os.path.lexists(self.root / path):
                if self._is_other(path, change.new.oid):
                    raise TargetError(f"{self}: {untracked(path)}")
                kept.append(path)
        self._write_json(self._moving, asdict(_Move(old, new, tuple(kept))))
        try:
            self._set_index({path: changed[path].new for path in kept})
            self._git.run("update-index", "-q", "--refresh", ok=(0, 1))
            self._git.run("read-tree", "-m", "-u", old, new)
            differing = self._git.run(
                *("--literal-pathspecs", "diff-index", "--name-only", "-z", new, "--", *changed)
            )
            if differing:
                path = os.fsdecode(differing.split(b"\0")[0])
                raise TargetError(
                    f"{self}: {path} does not read back as it was written; nothing was changed"
                )
            self._git.run("update-ref", "-m", why, "HEAD", new, old)
        except BaseException:
            self._recover(all_ours=True)
            raise
        self._end_move()

    def _recover(self, all_ours: bool = False) -> None:
        """Undo a move that was begun and did not end.

        ``all_ours``: nothing but this tool can have written its files meanwhile.
        """
        try:
            data = json.loads(self._moving.read_bytes())
            move = _Move(**data)
        except FileNotFoundError:
            return
        except (ValueError, TypeError) as error:
            raise TargetError(
                f"{self._moving} cannot be read ({error}): bring the checkout to where it must be"
                " (git status says where it is), and remove that file"
            ) from error
        if self._read_head() == move.old:
            self._undo(move, all_ours)
        # Else it had ended, or someone has gone on to another commit since.
        self._end_move()

    def _undo(self, move: _Move, all_ours: bool) -> None:
        lock = self._git_dir / "index.lock"
        if lock.exists():
            raise TargetError(
                f"{self}: an earlier change was interrupted and left {lock}: when no other git"
                " runs there, remove it and run this again"
            )
        changed = self._changed(move.old, move.new)
        there = {path: self._oid_in_work_tree(path) for path in changed}
        for path, change in changed.items():
            known = {blob.oid for blob in change if blob} | {None}
            if there[path] not in known and not all_ours:
                raise TargetError(
                    f"{self}: cannot undo an interrupted change, {path} was edited since:"
                    f" 'git checkout -- {path}' drops the edit; then run this again"
                )
        skipped = self._skipped(changed)
        self._set_index({path: change.old for path, change in changed.items()})
        restored = [p for p, c in changed.items() if c.old and p not in skipped]
        if restored:
            names = b"".join(os.fsencode(path) + b"\0" for path in restored)
            self._git.run("checkout-index", "--force", "--quiet", "-z", "--stdin", input=names)
            self._git.run("update-index", "-q", "--refresh", ok=(0, 1))
        for path, change in changed.items():
            if change.old is None and path not in move.kept and there[path] is not None:
                (self.root / path).unlink()
                for folder in Path(path).parents:
                    with suppress(OSError):
                        (self.root / folder).rmdir()
        if skipped:
            names = b"".join(os.fsencode(path) + b"\0" for path in skipped)
            self._git.run("update-index", "--skip-worktree", "-z", "--stdin", input=names)

    def _skipped(self, paths: Iterable[str]) -> list[str]:
        """Those files that a sparse checkout leaves out."""
        listing = self._git.run("--literal-pathspecs", "ls-files", "-t", "-z", "--", *paths)
        entries = [os.fsdecode(entry) for entry in listing.split(b"\0")[:-1]]
        return [entry[2:] for entry in entries if entry.startswith("S ")]

    def _set_index(self, files: Mapping[str, Optional[Blob]]) -> None:
        if not files:
            return
        null = "0" * len(self.head)
        lines = b""
        for path, blob in files.items():
            mode, oid = blob if blob else ("0", null)
            lines += f"{mode} {oid}\t".encode() + os.fsencode(path) + b"\0"
        self._git.run("update-index", "-z", "--index-info", input=lines)

    def _end_move(self) -> None:
        with suppress(FileNotFoundError):
            self._moving.unlink()
        self._refresh()

    # ---- what is kept in the git folder

    def _applied_at(self, head: str) -> Optional[_Applied]:
        try:
            data = json.loads((self._applied / head).read_bytes())
            series = tuple(AppliedPatch(**patch) for patch in data["series"])
            return _Applied(data["base"], series)
        except (OSError, ValueError, TypeError, KeyError):
            # What is in the tree tells as well.
            return None

    def _write_json(self, path: Path, value: object) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(path.name + ".new")
            with open(new, "w", encoding="utf-8") as file:
                json.dump(value, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except OSError as error:
            raise TargetError(
                f"{self}: cannot write {path}: {error.strerror}; nothing was changed"
            ) from error


def untracked(path: str) -> str:
    """What is to be said of an untracked file that an added one would replace."""
    return f"{path} is there, untracked, with other content: move it away first"
