"""Runs a checker for lintrunner; a success that complains is a failure too.

Unlike an adapter that only looks for messages it knows, this reports a checker that crashes, is not
installed, or goes on with a warning that it cannot read its settings.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
from typing import Optional

MESSAGE = re.compile(r"^(?P<path>[^\s:]+):(?P<line>\d+):(?:(?P<char>\d+):)? error: (?P<text>.*)$")


def report(
    code: str, text: str, path: Optional[str] = None, line: int = 1, char: Optional[int] = None
) -> None:
    """Print one message in lintrunner's form."""
    print(
        json.dumps(
            {
                "path": path,
                "line": line if path else None,
                "char": char,
                "code": code,
                "severity": "error",
                "name": "failed",
                "original": None,
                "replacement": None,
                "description": text,
            }
        ),
        flush=True,
    )


def main() -> None:
    """Run the command; its messages as lintrunner's, or all its output if none is understood."""
    parser = argparse.ArgumentParser(description=__doc__, fromfile_prefix_chars="@")
    parser.add_argument("--code", required=True, help="the linter's name in messages")
    parser.add_argument("--command", required=True, help="what to run; {files} are the files")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()

    command: list[str] = []
    for word in shlex.split(args.command):
        command += args.files if word == "{files}" else [word]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        report(args.code, f"cannot run {command[0]}: {error}")
        return
    if done.returncode == 0 and not done.stderr.strip():
        return
    messages = [match for line in done.stdout.splitlines() if (match := MESSAGE.match(line))]
    for match in messages:
        char = int(match["char"]) if match["char"] else None
        report(args.code, match["text"], match["path"], int(match["line"]), char)
    if not messages:
        output = (done.stdout + done.stderr).strip()
        report(args.code, output or f"{args.command} failed with status {done.returncode}")


if __name__ == "__main__":
    main()
