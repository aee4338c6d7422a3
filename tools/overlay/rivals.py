"""Other ways to carry a change to another release: the same change, as a diff, by other tools.

A diff is made once, on one release, and tried on the others. What a tool makes of a release is
compared with what the series makes of it.
"""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Callable, Optional

from overlay.bases.process import run
from overlay.git import Git
from overlay.runtime import cache_folder, locked
from overlay.tree import ChangedTree, MemoryTree
from overlay.verify import verify

BASE = "2.6.0"
"""The release that the diff is made on."""

MPATCH = "mpatch==1.8.1"

_MPATCH_SCRIPT = """
import pathlib, sys
import mpatch
diff = pathlib.Path(sys.argv[1]).read_bytes().decode()
batch = mpatch.apply_patches_to_dir_atomic(mpatch.parse_auto(diff), ".")
for path, result in batch.results.items():
    if isinstance(result, str):
        print(f"{path}: FAILED: {result}")
        continue
    for failure in result.report.failures:
        print(f"{path}: hunk {failure.hunk_index}: FAILED: {failure.reason}")
sys.exit(not batch.all_applied_cleanly)
"""


_SIGNS = ("FAILED", "conflicts", "error:", "can't find")
"""What the lines have that say why a tool does not take a diff."""


class Verdict(str, Enum):
    """What became of an attempt."""

    SAME = "applied, same bytes"
    SAME_CODE = "applied, same code"
    DIFFERENT = "applied, different code"
    BROKEN = "applied, broken code"  # different, and verify finds fault with it
    UNJUDGED = "applied, the series does not"
    REFUSED = "refused"
    ABSENT = "not tried"


@dataclass(frozen=True)
class Attempt:
    """One tool on one release."""

    tool: str
    version: str
    verdict: Verdict
    reason: str = ""


class _Refused(Exception):
    """A tool does not take the diff; says why."""


class _Absent(Exception):
    """A tool is not there; says why."""


@dataclass(frozen=True)
class Comparison:
    """A change as a diff, made on one release."""

    diff: bytes
    before: Mapping[str, bytes]
    paths: frozenset[str]
    absent: dict[str, str] = field(default_factory=dict)
    """The tools that are not there, and why: looked for once."""

    @classmethod
    def on(cls, files: Mapping[str, bytes], after: Mapping[str, bytes]) -> Comparison:
        """The change from a release's files to ``after``, with three lines of context."""
        before = {path: files[path] for path in after if path in files}
        with _folder(before) as folder:
            trees = [_record(folder)]
            _write(folder, after)
            trees.append(_record(folder))
            options = ["-p", "--full-index", "--no-renames", "-U3"]
            diff = _git(folder).run("diff-tree", *options, *trees)
        return cls(diff, before, frozenset(after))

    def attempts(
        self, version: str, files: Mapping[str, bytes], ours: Optional[Mapping[str, bytes]]
    ) -> list[Attempt]:
        """Try the diff on a release with every tool; ``ours`` is what the series makes of it."""
        attempts = []
        for tool in TOOLS:
            try:
                made = self._made(tool, files)
            except _Refused as refusal:
                verdict, reason = Verdict.REFUSED, str(refusal)
            except _Absent as absence:
                self.absent[tool] = str(absence)
                verdict, reason = Verdict.ABSENT, str(absence)
            else:
                verdict, reason = _judge(files, made, ours)
            attempts.append(Attempt(tool, version, verdict, reason))
        return attempts

    def _made(self, tool: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """What a tool makes of the files that the diff touches."""
        if tool in self.absent:
            raise _Absent(self.absent[tool])
        touched = {path: files[path] for path in self.paths if path in files}
        with _folder({"change.diff": self.diff}) as aside, _folder(touched) as folder:
            diff = aside / "change.diff"
            TOOLS[tool](folder, diff, self.before)
            return _read(folder)


def _judge(
    files: Mapping[str, bytes], made: Mapping[str, bytes], ours: Optional[Mapping[str, bytes]]
) -> tuple[Verdict, str]:
    if ours is None:
        return Verdict.UNJUDGED, ""
    differing = sorted(p for p in {*made, *ours} if made.get(p) != ours.get(p))
    if not differing:
        return Verdict.SAME, ""
    other_code = [path for path in differing if not _same_code(made.get(path), ours.get(path))]
    if not other_code:
        return Verdict.SAME_CODE, f"laid out otherwise in {', '.join(differing)}"
    stock = MemoryTree(files)
    findings = verify(stock, ChangedTree(stock, made), list(made)).findings
    if findings:
        return Verdict.BROKEN, "; ".join(map(str, findings))
    return Verdict.DIFFERENT, f"in {', '.join(other_code)}"


def _same_code(one: Optional[bytes], other: Optional[bytes]) -> bool:
    """Whether two files have the same syntax tree: all but layout and comments."""
    if one is None or other is None:
        return False
    try:
        return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
    except SyntaxError:
        return False


# The tools: each applies a diff to the folder or raises _Refused; ``before`` is what the diff
# was made on.


def _git_apply(folder: Path, diff: Path, before: Mapping[str, bytes]) -> None:
    _run(folder, ["git", "apply", "--whitespace=nowarn", str(diff)])


def _git_apply_3way(folder: Path, diff: Path, before: Mapping[str, bytes]) -> None:
    now = _read(folder)
    _write(folder, before)
    _record(folder)  # so that the repository has the blobs that the diff names
    for path in before:
        (folder / path).unlink()
    _write(folder, now)
    _record(folder)
    _run(folder, ["git", "apply", "--3way", "--index", "--whitespace=nowarn", str(diff)])


def _patch(fuzz: int) -> Callable[[Path, Path, Mapping[str, bytes]], None]:
    def apply(folder: Path, diff: Path, before: Mapping[str, bytes]) -> None:
        if shutil.which("patch") is None:
            raise _Absent("GNU patch is not installed")
        options = ["--batch", "--forward", "--no-backup-if-mismatch", "--reject-file=-"]
        _run(folder, ["patch", "-p1", f"--fuzz={fuzz}", *options, f"--input={diff}"])

    return apply


def _mpatch(folder: Path, diff: Path, before: Mapping[str, bytes]) -> None:
    script = f"import sys; sys.path.insert(0, {str(_mpatch_library())!r}){_MPATCH_SCRIPT}"
    _run(folder, [sys.executable, "-I", "-c", script, str(diff)])


TOOLS: Mapping[str, Callable[[Path, Path, Mapping[str, bytes]], None]] = {
    "git apply": _git_apply,
    "git apply --3way": _git_apply_3way,
    "patch --fuzz=2": _patch(2),
    "patch --fuzz=3": _patch(3),
    "mpatch": _mpatch,
}


def _mpatch_library() -> Path:
    """The folder that mpatch is installed in, apart from everything else; _Absent if it cannot."""
    tag = f"py{sys.version_info[0]}.{sys.version_info[1]}"
    place = cache_folder() / f"{MPATCH.replace('==', '-')}-{tag}"
    with locked(place, lambda: None):
        if not place.is_dir():
            part = place.with_name(f"{place.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            options = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
            command = [sys.executable, "-m", "pip", "install", *options, "--target", str(part)]
            extra = shlex.split(os.environ.get("TORCH_OVERLAY_PIP_ARGS", ""))
            outcome = run([*command, *extra, MPATCH], place.parent)
            if outcome.status != 0:
                raise _Absent(f"pip cannot install {MPATCH}: {outcome.reason()}")
            part.rename(place)
    return place


def _run(folder: Path, command: Sequence[str]) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        # With POSIXLY_CORRECT, patch would behave otherwise.
        env={k: v for k, v in _git(folder).environ().items() if k != "POSIXLY_CORRECT"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        lines = [line.strip() for line in done.stdout.decode(errors="replace").splitlines()]
        telling = [line for line in lines if any(sign in line for sign in _SIGNS)]
        raise _Refused("; ".join((telling or lines)[:3]) or f"it ended with {done.returncode}")


def _git(folder: Path) -> Git:
    """Git without anybody's configuration, and apart from any repository around the folder."""
    ceiling = {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    return Git(folder, ("core.autocrlf=false",), isolated=True, environment=ceiling)


def _record(folder: Path) -> str:
    """Put everything in a folder into its repository; the tree's id."""
    git = _git(folder)
    if not (folder / ".git").exists():
        git.run("init", "--quiet", "--template=")
    git.run("add", "--all", "--force", ".")
    return git.line("write-tree")


@contextmanager
def _folder(files: Mapping[str, bytes]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="torch-overlay-") as folder:
        _write(Path(folder), files)
        yield Path(folder)


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def _read(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }
