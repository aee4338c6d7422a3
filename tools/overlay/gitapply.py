"""Line-numbered patches: ``git apply`` in a folder of its own, on the files it is given."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

from overlay.errors import PatchError, TargetError, UsageError


def paths_of(text: str, name: str = "patch") -> tuple[str, ...]:
    """The files that a diff changes, as git reads it; UsageError if it is none."""
    with tempfile.TemporaryDirectory(prefix="torch-overlay-") as folder:
        result = _git(["apply", "--numstat", "-z", "-"], folder, text)
        summary = _git(["apply", "--summary", "-"], folder, text)
    if result.returncode:
        raise UsageError(f"{name}: git cannot read it as a diff: {_first_line(result.stderr)}")
    for line in summary.stdout.decode(errors="replace").splitlines():
        if re.match(r" (rename|copy|mode change|create mode (?!100644))", line):
            raise UsageError(
                f"{name}: '{line.strip()}': only contents of regular files can be changed, added"
                " and removed"
            )
    paths = []
    for entry in result.stdout.decode("utf-8", "surrogateescape").split("\0"):
        if entry:
            paths.append(entry.split("\t")[-1])
    return tuple(paths)


def apply_diff(
    text: str, files: Mapping[str, Optional[bytes]], name: str, reverse: bool = False
) -> dict[str, Optional[bytes]]:
    """What a diff makes of files (None: no such file); PatchError if git does not take it."""
    with tempfile.TemporaryDirectory(prefix="torch-overlay-") as folder:
        for path, content in files.items():
            if content is not None:
                place = Path(folder, path)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
        command = ["apply", "--whitespace=nowarn", *(["--reverse"] if reverse else []), "-"]
        result = _git(command, folder, text)
        if result.returncode:
            lines = result.stderr.decode(errors="replace").splitlines()
            raise PatchError(f"{name}: git apply does not take it", lines)
        _refuse_twins(text, files, name, reverse)
        changed: dict[str, Optional[bytes]] = {}
        for path, content in files.items():
            place = Path(folder, path)
            after = place.read_bytes() if place.is_file() else None
            if after != content:
                changed[path] = after
        return changed


_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def _refuse_twins(
    text: str, files: Mapping[str, Optional[bytes]], name: str, reverse: bool
) -> None:
    """Refuse hunks that are not at their line and could stand in several places.

    Git takes the place that is nearest to the line, which a longer file moves elsewhere.
    """
    lines = text.encode("utf-8", "surrogateescape").split(b"\n")
    path = ""
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.startswith((b"--- a/", b"+++ b/")):
            path = line[6:].split(b"\t")[0].decode("utf-8", "surrogateescape")
        found = _HUNK.match(line)
        if not found or not files.get(path):
            continue
        old, new = int(found[2] or 1), int(found[4] or 1)
        start = int(found[3] if reverse else found[1])
        before = []
        while at < len(lines) and (old > 0 or new > 0):
            mark = lines[at][:1] or b" "
            old -= mark in b" -"
            new -= mark in b" +"
            if mark in (b" +" if reverse else b" -"):
                before.append(lines[at][1:])
            at += 1
        have = (files[path] or b"").split(b"\n")
        if not before or have[start - 1 : start - 1 + len(before)] == before:
            continue
        ends = range(len(before), len(have) + 1)
        places = [end for end in ends if have[end - len(before) : end] == before]
        if len(places) > 1:
            numbers = ", ".join(str(end - len(before) + 1) for end in places)
            raise PatchError(
                f"{name}: {path}: its hunk of line {start} stands in lines {numbers}, and not"
                " there: give it more context, or address it by symbol in an .apatch"
            )


def _git(arguments: Sequence[str], folder: str, text: str) -> subprocess.CompletedProcess[bytes]:
    # A folder inside some repository would make git skip files outside its root.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(Path(folder).resolve().parent)}
    for variable in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        environment.pop(variable, None)
    try:
        return subprocess.run(
            ["git", "-c", "core.autocrlf=false", *arguments],
            cwd=folder,
            env=environment,
            input=text.encode("utf-8", "surrogateescape"),
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise TargetError("git is not installed: line-numbered patches need it") from None


def _first_line(output: bytes) -> str:
    lines = output.decode(errors="replace").splitlines()
    return lines[0].strip() if lines else "no reason given"
