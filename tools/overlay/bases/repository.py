"""Git repositories that hold a base's source, made without the user's git configuration."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Optional

from overlay.bases.errors import BaseError
from overlay.bases.process import Outcome, run

BRANCH = "main"

_LOCATING = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_NAMESPACE",
)
# Always the same, so that the same files make the same commit.
_AUTHOR = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (
        ("NAME", "torch-overlay"),
        ("EMAIL", "torch-overlay@localhost"),
        ("DATE", "2000-01-01T00:00:00+00:00"),
    )
}
_ANSWER_SECONDS = 30
_SECONDS_BETWEEN_PROGRESS = 3


def commit_all(folder: Path, message: str) -> str:
    """Make a folder a repository with one commit of everything in it; the commit's id."""
    _create(folder)
    _git(folder, ["-c", "core.looseCompression=1", "add", "--all", "--force", "."])
    tree = _git(folder, ["write-tree"]).lines[-1]
    commit = _git(folder, ["commit-tree", "-m", message, tree]).lines[-1]
    _git(folder, ["update-ref", f"refs/heads/{BRANCH}", commit])
    return commit


def clone(url: str, revision: str, folder: Path, progress: Callable[[str], None]) -> str:
    """Make a shallow clone of one revision; its commit's id.

    ``revision`` is a ref's full name, or a commit id that may end in ``~1``.
    """
    _create(folder)
    wanted, depth = (revision[:-2], 2) if revision.endswith("~1") else (revision, 1)
    # A fetch that gets no connection can hang for minutes; this one question may not.
    sought = wanted if wanted.startswith("refs/") else "HEAD"
    answer = _git_remote(folder, ["ls-remote", "--exit-code", url, sought], _ANSWER_SECONDS)
    if answer.status == 2:
        raise BaseError(f"{url} has no {sought}")
    if answer.status != 0:
        raise BaseError(f"git cannot read {url}: {answer.reason()}", answer.lines)

    last = time.monotonic()

    def report(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_PROGRESS:
            last = time.monotonic()
            progress(line)

    command = ["fetch", f"--depth={depth}", "--no-tags", "--no-recurse-submodules", "--progress"]
    fetched = _git_remote(folder, [*command, url, wanted], None, report)
    if fetched.status != 0:
        raise BaseError(f"git cannot fetch {wanted} from {url}: {fetched.reason()}", fetched.lines)
    commit = _git(folder, ["rev-parse", "FETCH_HEAD^{commit}" + "~1" * (depth - 1)]).lines[-1]
    _git(folder, ["update-ref", f"refs/heads/{BRANCH}", commit])
    _git(folder, ["reset", "--quiet", "--hard"])
    return commit


def is_repository(path: Path) -> bool:
    """Whether this very folder is a git work tree or a bare repository."""
    return (path / ".git").exists() or ((path / "objects").is_dir() and (path / "HEAD").is_file())


def resolve(path: Path, revision: str) -> Optional[str]:
    """The commit's id that a revision has in somebody's repository, if it has one."""
    _need_git()
    command = ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    outcome = run(command, path, _environment())
    return outcome.lines[-1] if outcome.status == 0 else None


def _create(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    _git(folder, ["init", "--quiet", "--template="])
    _git(folder, ["symbolic-ref", "HEAD", f"refs/heads/{BRANCH}"])
    _git(folder, ["config", "core.autocrlf", "false"])


def _git(folder: Path, arguments: Sequence[str]) -> Outcome:
    _need_git()
    outcome = run(["git", *arguments], folder, _isolated(), variables=_AUTHOR)
    if outcome.status != 0:
        command = " ".join(arguments)
        raise BaseError(f"git {command} failed: {outcome.reason()}", outcome.lines)
    return outcome


def _git_remote(
    folder: Path,
    arguments: Sequence[str],
    limit: Optional[float],
    on_line: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Git with the user's configuration: that says how to get through to another machine."""
    _need_git()
    settings = {
        "core.hooksPath": os.devnull,
        "protocol.version": "2",
        "http.lowSpeedLimit": "1000",
        "http.lowSpeedTime": str(_ANSWER_SECONDS),
    }
    options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    environment = {
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=15 -oServerAliveInterval=15",
        **_environment(),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
    }
    return run(["git", *options, *arguments], folder, environment, limit, on_line)


def _need_git() -> None:
    if shutil.which("git") is None:
        raise BaseError("git is not installed; a base is kept as a git repository")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _LOCATING}


def _isolated() -> dict[str, str]:
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    kept = {k: v for k, v in _environment().items() if not k.startswith("GIT_CONFIG")}
    return {**kept, **alone}
