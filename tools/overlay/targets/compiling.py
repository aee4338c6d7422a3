"""Compiling files with the Python that will run them."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Mapping
from typing import Optional

from overlay.errors import TargetError

# Runs in the target's interpreter: the sources come over standard input, and nothing is imported
# but these modules.
_SCRIPT = """
import ast, base64, json, sys, warnings
warnings.simplefilter("ignore")
order = json.load(sys.stdin)
oldest = order["oldest"]
errors = []
for path, text in order["files"]:
    source = base64.b64decode(text)
    try:
        if oldest and tuple(oldest) < sys.version_info[:2]:
            ast.parse(source, path, feature_version=tuple(oldest))
        compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        errors.append((path, error.lineno or 1, error.msg or "invalid syntax"))
    except (ValueError, OverflowError, RecursionError, MemoryError) as error:
        errors.append((path, 1, str(error) or type(error).__name__))
json.dump(errors, sys.stdout)
"""


def compile_errors(
    files: Mapping[str, bytes], python: str, oldest: Optional[tuple[int, int]] = None
) -> list[tuple[str, int, str]]:
    """Path, line and message for each ``.py`` file that does not compile with ``python``.

    With ``oldest``, syntax that is newer than that version of Python is an error as well, as far
    as the interpreter knows.
    """
    sources = [
        (path, base64.b64encode(content).decode())
        for path, content in sorted(files.items())
        if path.endswith(".py")
    ]
    if not sources:
        return []
    order = json.dumps({"oldest": oldest, "files": sources})
    answer = run_python(python, ["-I", "-S", "-c", _SCRIPT], order)
    return [(path, line, message) for path, line, message in json.loads(answer)]


def run_python(python: str, arguments: list[str], text: str = "") -> str:
    """What an interpreter prints; TargetError if it does not run."""
    try:
        done = subprocess.run(
            [python, *arguments], input=text, capture_output=True, text=True, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or "it does not end"
        raise TargetError(f"{python} cannot be run as a Python interpreter: {reason}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise TargetError(f"{python} cannot be run as a Python interpreter: {lines[-1]}")
    return done.stdout
