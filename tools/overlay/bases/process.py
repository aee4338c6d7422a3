"""Other programs: run so that they end with us, whatever ends us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Callable, NamedTuple, Optional

# Ends a program and all that it started once our end of the standard input closes: one that
# outlives a killed parent would go on writing into folders that the next run takes up.
_WATCHED = """
import os, signal, subprocess, sys, threading
def watch():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
sys.exit(subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL))
"""


class Outcome(NamedTuple):
    """How a program ended, and every line it printed."""

    status: Optional[int]
    """None if it took longer than it may."""

    lines: list[str]

    def reason(self) -> str:
        """The line that says best why it failed."""
        if self.status is None:
            return "no answer in time"
        for marks in (("fatal: ", "E: ", "error: "), ("W: ",)):
            for line in self.lines:
                if line.startswith(marks):
                    return line.split(": ", 1)[1]
        return self.lines[-1] if self.lines else f"it ended with status {self.status}"


def run(
    command: Sequence[str],
    folder: Path,
    environment: Optional[Mapping[str, str]] = None,
    limit: Optional[float] = None,
    on_line: Callable[[str], None] = lambda line: None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Outcome:
    """Run a program in a folder, for at most ``limit`` seconds."""
    lines: list[str] = []
    late = threading.Event()
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCHED, *command],
        cwd=folder,
        env={**(os.environ if environment is None else environment), "LC_ALL": "C", **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:

        def stop() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(limit, stop) if limit is not None else None
        if timer:
            timer.start()
        assert process.stdout is not None
        # Text mode takes the carriage returns of a progress display for line ends too.
        for line in process.stdout:
            line = line.rstrip()
            if line:
                lines.append(line)
                on_line(line)
        status = process.wait()
        if timer:
            timer.cancel()
    return Outcome(None if late.is_set() else status, lines)
