"""The patches of a series as mails that ``git am`` takes: the same bytes on every machine."""

from __future__ import annotations

import binascii
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone
from email.header import decode_header, make_header
from email.utils import parseaddr, parsedate_to_datetime
from pathlib import Path
from typing import Callable, Optional

from overlay.errors import UsageError
from overlay.git import Git
from overlay.series import SeriesPatch
from overlay.tree import Tree

FILE_MODE = "100644"


@dataclass(frozen=True)
class Step:
    """What one patch changes in the files as those before it leave them."""

    patch: SeriesPatch
    changes: Mapping[str, Optional[bytes]]


@dataclass(frozen=True)
class Mail:
    """A mail, and the file name that puts it at its place in the series."""

    name: str
    content: bytes


@dataclass(frozen=True)
class CommitText:
    """What a commit says besides what it changes."""

    author: str
    email: str
    date: str
    """As git keeps it: seconds and time zone."""
    message: str


def commit_text(patch: SeriesPatch) -> CommitText:
    """The commit that a patch becomes: its fields are trailers there, word for word.

    Raises UsageError if the patch does not say who wrote it and when.
    """
    author, email = parseaddr(_required(patch, "From"))
    author = str(make_header(decode_header(author))).strip() or email
    if "@" not in email or re.search(r"[<>\n]", author):
        raise UsageError(f"{patch.name}: From: not an author: write Name <name@example.com>")
    try:
        written = _required(patch, "Date")
        date = parsedate_to_datetime(written)
        if written.endswith("-0000"):  # Python takes that for no time zone at all.
            date = date.replace(tzinfo=timezone.utc)
        seconds = int(date.timestamp()) if date.tzinfo else -1
    except (ValueError, TypeError, OverflowError):
        seconds = -1
    if seconds < 0:
        raise UsageError(
            f"{patch.name}: Date: not a date with a time zone, such as"
            " Mon, 5 Dec 2022 10:00:00 +0000"
        )
    message = patch.message
    fields = "".join(f"{name}: {value}\n" for name, value in message.fields)
    text = f"{_subject(patch)}\n\n{_tidy(message.body)}\n{fields}"
    return CommitText(author, email, f"{seconds} {date.strftime('%z')[:5]}", _tidy(text))


def _required(patch: SeriesPatch, header: str) -> str:
    value = patch.message.header(header)
    if not value:
        raise UsageError(f"{patch.name}: no {header}: the commit takes it from there: add it")
    return value


def _subject(patch: SeriesPatch) -> str:
    return " ".join(str(make_header(decode_header(patch.message.subject))).split())


def _tidy(text: str) -> str:
    """A message as git keeps it."""
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n") + "\n"


def render(
    steps: Sequence[Step],
    base: Tree,
    base_commit: Optional[str] = None,
    mode_of: Callable[[str], str] = lambda path: FILE_MODE,
    object_format: str = "sha1",
) -> list[Mail]:
    """One mail a step, to be applied in order on ``base``.

    They are made in a repository of their own that holds the touched files alone: so neither
    configuration nor the rest of the tree has a say, and any tree will do. Raises UsageError
    if a patch says something that would not survive as a mail.
    """
    if not steps:
        return []
    with tempfile.TemporaryDirectory(prefix="torch-overlay-") as folder:
        git = Git(Path(folder), isolated=True)
        git.run("init", "--quiet", "--bare", "--template=", f"--object-format={object_format}")
        git.run("fast-import", "--quiet", input=_history(steps, base, mode_of))
        options = ("--zero-commit", "--no-signature", "--full-index", "--no-renames", "--binary")
        names = git.line("format-patch", *options, "--output-directory=mails", "base..series")
        mails: list[Mail] = []
        for step, name in zip(steps, names.splitlines()):
            content = (git.folder / name).read_bytes()
            if base_commit and not mails:
                content += f"\nbase-commit: {base_commit}\n".encode()
            content = _without_carriage_returns(content)
            _check(git, step.patch, content)
            mails.append(Mail(Path(name).name, content))
        return mails


def _history(steps: Sequence[Step], base: Tree, mode_of: Callable[[str], str]) -> bytes:
    """The base and the steps as commits, for git fast-import."""
    out = []
    touched = sorted({path for step in steps for path in step.changes})
    modes = {path: mode_of(path) for path in touched if base.read(path) is not None}

    def data(content: bytes) -> bytes:
        return b"data %d\n%s\n" % (len(content), content)

    def commit(
        branch: str, text: CommitText, files: Mapping[str, Optional[bytes]], parent: str = ""
    ) -> None:
        who = f"{text.author} <{text.email}> {text.date}\n"
        out.append(f"commit refs/heads/{branch}\nauthor {who}committer {who}".encode())
        out.append(data(text.message.encode()))
        out.append(f"from refs/heads/{parent}\n".encode() if parent else b"")
        for path, content in sorted(files.items()):
            if content is None:
                out.append(f"D {path}\n".encode())
            else:
                out.append(f"M {modes.get(path, FILE_MODE)} inline {path}\n".encode())
                out.append(data(content))

    before = {path: base.read(path) for path in modes}
    commit("base", CommitText("base", "base@localhost", "0 +0000", "base\n"), before)
    parent = "base"
    for step in steps:
        commit("series", commit_text(step.patch), step.changes, parent)
        parent = ""  # From now on the branch goes on by itself.
    return b"".join(out)


def _without_carriage_returns(mail: bytes) -> bytes:
    """A mail as it is, or encoded where it has CR: git am would else drop it at line ends."""
    if b"\r" not in mail:
        return mail
    head, body = mail.split(b"\n\n", 1)
    lines = [
        line
        for line in head.split(b"\n")
        if not line.startswith((b"MIME-Version:", b"Content-Type:", b"Content-Transfer-Encoding:"))
    ]
    lines += [
        b"MIME-Version: 1.0",
        b"Content-Type: text/plain; charset=UTF-8",
        b"Content-Transfer-Encoding: quoted-printable",
    ]
    quoted = [binascii.b2a_qp(line, istext=False) for line in body.split(b"\n")]
    return b"\n".join(lines) + b"\n\n" + b"\n".join(quoted)


def _check(git: Git, patch: SeriesPatch, mail: bytes) -> None:
    """Let git itself say what it reads in a mail."""
    wanted = commit_text(patch)
    options = ("-b", "--no-scissors", "--quoted-cr=nowarn")
    said = git.run("mailinfo", *options, "message", "diff", input=mail).decode()
    head = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    message = f"{head.get('Subject')}\n\n{(git.folder / 'message').read_text(encoding='utf-8')}"
    # Where mails stand one after another, such a line begins the next one.
    if _tidy(message) != wanted.message or re.search("^From ", message, re.M):
        read, told = _tidy(message).splitlines(), wanted.message.splitlines()
        bad = next((b for a, b in zip(read, told) if a != b or b.startswith("From ")), told[-1])
        if len(read) < len(told) and read == told[: len(read)]:
            bad = next(line for line in told[len(read) :] if line)
        raise UsageError(
            f"{patch.name}: git am would not keep the message as it is, at {bad!r}:"
            " write that line in another way, or indent it"
        )
