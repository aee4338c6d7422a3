"""ghstack itself: the installed package, by its own command line, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata, util
from pathlib import Path

from packaging.version import Version

from overlay.errors import TargetError
from overlay.stack.config import Config
from overlay.stack.linting import INSTALL

OLDEST = "0.17.0"
"""0.16 breaks on GitHub's answer 403, and those before it wait for minutes on each."""


def version() -> str:
    """The version of the installed ghstack; TargetError if there is none that will do."""
    if util.find_spec("ghstack") is None:
        raise TargetError(f"ghstack is not installed beside this tool: {INSTALL}")
    found = metadata.version("ghstack")
    if Version(found) < Version(OLDEST):
        raise TargetError(f"ghstack {found} is too old: {OLDEST} or newer is needed: {INSTALL}")
    return found


def run(folder: Path, config: Config, arguments: Sequence[str], say: Callable[[str], None]) -> int:
    """Run ghstack in a checkout, and tell what it says; its exit code."""
    # Without -P, what lies at the top of the checkout could be imported in place of a package.
    safely = ["-P"] if sys.version_info >= (3, 11) else []
    process = subprocess.Popen(
        [sys.executable, *safely, "-m", "ghstack", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.strip():
                say(f"ghstack: {config.redact(line.rstrip())}")
    except KeyboardInterrupt:
        say("stopping when ghstack has: what it did is looked up afterwards")
        process.terminate()
    return process.wait()
