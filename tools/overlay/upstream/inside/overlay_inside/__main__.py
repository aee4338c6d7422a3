"""The process that runs test files, one after another, and survives whatever they do.

Settings come as a JSON argument, jobs as JSON lines on standard input, and results go as JSON lines
to standard output. It ends, with all that it started, when standard input does.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Optional

from . import plugin, processes

_PRELOADED = (
    "numpy",
    "pytest",
    "torch",
    "torch.distributed.fsdp",
    "torch.testing._internal.common_distributed",
    "torch.testing._internal.common_fsdp",
)
_LOOK_AFTER_SECONDS = 0.5


class _Stopped(Exception):
    """Standard input was closed: whoever wanted results is gone."""


class Server:
    """Runs the test files of one source tree."""

    def __init__(self, settings: dict[str, Any], results: int) -> None:
        self._tree = str(settings["tree"])
        self._fork = bool(settings["fork"])
        self._limit = float(settings["timeout"])
        self._import_limit = float(settings["import_timeout"])
        self._results = results

    def _send(self, event: dict[str, Any]) -> None:
        line = (json.dumps(event) + "\n").encode()
        while line:
            line = line[os.write(self._results, line) :]

    def serve(self) -> None:
        """Run jobs until there are no more."""
        processes.adopt_orphans()
        if self._fork:
            for name in _PRELOADED:
                # A test file that needs what is missing will say so itself.
                with suppress(Exception):
                    importlib.import_module(name)
        self._send({"event": "ready", "forks": self._fork and not processes.has_threads()})
        with open(0, "rb", buffering=0, closefd=False) as jobs:
            for line in iter(jobs.readline, b""):
                self._run(json.loads(line))
                self._send({"event": "done"})

    def _run(self, job: dict[str, Any]) -> None:
        """Run a file's tests, in as many processes as it takes until each has its outcome."""
        collected: Optional[list[str]] = None
        finished: set[str] = set()
        fork = self._fork and not processes.has_threads()
        while collected is None or len(finished) < len(collected):
            before = len(finished)
            remaining = collected and [test for test in collected if test not in finished]
            job = {**job, "tests": remaining, "fork": fork}
            attempt = _Attempt(self._tree, job, self._limit, self._import_limit)
            for event in attempt.events():
                if event["event"] == "threads":
                    fork = False
                    before = -1
                elif event["event"] != "collected":
                    finished.update([event["test"]] if event["event"] == "finished" else ())
                    self._send(event)
                elif collected is None:
                    collected = event["tests"]
                    self._send(event)
            if attempt.gave_up or collected is None:
                return
            if len(finished) == before:
                for test in remaining or collected:
                    if test not in finished:
                        self._send(_ended(test, "died", "it was never started", 0, ""))
                return


class _Attempt:
    """One process that runs a file, or what is left of it."""

    def __init__(self, tree: str, job: dict[str, Any], limit: float, import_limit: float) -> None:
        self._tree = tree
        self._job = job
        self._limit = limit
        self._import_limit = import_limit
        self.gave_up = False
        """Whether the file could not even be imported."""

    def events(self) -> Iterator[dict[str, Any]]:
        """What happens, until the process has ended, and all that it started with it."""
        shared = processes.shared_memory()
        # Sockets in it have short names at most.
        folder = tempfile.mkdtemp(prefix="tests-")
        try:
            yield from self._events(folder)
        finally:
            processes.end_children()
            processes.remove_shared_memory(shared)
            shutil.rmtree(folder, ignore_errors=True)

    def _events(self, folder: str) -> Iterator[dict[str, Any]]:
        reader, writer = os.pipe()
        log = os.path.join(folder, "log")
        output = os.path.join(folder, "output")
        temporary = os.path.join(folder, "tmp")
        os.mkdir(temporary)
        for path in (log, output):
            open(path, "w").close()
        job = {**self._job, "pipe": writer, "output": output}
        pid = self._start(job, log, temporary)
        os.close(writer)
        running: Optional[str] = None
        since = time.monotonic()
        collected = ended = late = False
        with open(reader, "rb") as pipe:
            lines = _Lines(pipe.fileno(), pid)
            while True:
                limit = self._limit if collected or self.gave_up else self._import_limit
                line = lines.next(since + limit)
                if line is None:
                    late = lines.late
                    break
                event = json.loads(line)
                kind = event["event"]
                if kind == "ended":
                    if running is not None:
                        tail = plugin.last_lines(output)
                        seconds = time.monotonic() - since
                        yield _ended(running, "died", "its process " + event["how"], seconds, tail)
                        running = None
                    continue
                if kind == "end":
                    ended = True
                    continue
                if kind == "problem":
                    self.gave_up = True
                if kind == "collected":
                    collected = True
                if kind in ("started", "finished"):
                    running = event["test"] if kind == "started" else None
                since = time.monotonic()
                yield event
        if late:
            processes.say_where_they_stand(os.getpid())
        took = f"took longer than {limit:g} s"
        how = took if late else "its process " + processes.ending(lines.status)
        if running is not None:
            seconds = time.monotonic() - since
            tail = plugin.last_lines(output)
            yield _ended(running, "timed out" if late else "died", how, seconds, tail)
        elif not collected and not self.gave_up:
            self.gave_up = True
            what = "cannot be imported: " + how
            yield {"event": "problem", "what": what, "tail": plugin.last_lines(log)}
        elif late and not ended:
            yield {"event": "problem", "what": "between two tests it " + took, "tail": ""}

    def _start(self, job: dict[str, Any], log: str, temporary: str) -> int:
        arguments = [
            *("-p", "no:cacheprovider", "-s", "--tb=native", "--rootdir", self._tree),
            *([] if os.path.exists(os.path.join(self._tree, "pytest.ini")) else ["-c", os.devnull]),
            *(["-k", job["keyword"]] if job["keyword"] else []),
            job["file"],
        ]
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            processes.end_with_parent()
            os.setsid()
            plugin.redirect(log)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.environ["TMPDIR"] = temporary
            tempfile.tempdir = None
            os.chdir(self._tree)
            if job["fork"]:
                import pytest

                code = int(pytest.main(arguments, plugins=[plugin.Reporter(job)]))
            else:
                os.environ[plugin.JOB] = json.dumps(job)
                os.set_inheritable(job["pipe"], True)
                command = [sys.executable, "-m", "pytest", "-p", plugin.__name__, *arguments]
                os.execv(sys.executable, command)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _ended(test: str, status: str, reason: str, seconds: float, tail: str) -> dict[str, Any]:
    return {
        "event": "finished",
        "test": test,
        "status": status,
        "reason": reason,
        "seconds": round(seconds, 3),
        "tail": tail,
    }


class _Lines:
    """The lines that a process writes into a pipe, as long as it lives and is in time."""

    def __init__(self, pipe: int, pid: int) -> None:
        self._pipe = pipe
        self._pid = pid
        self._buffer = b""
        self._ended = False
        self.late = False
        self.status = 0
        """The wait status, once there are no more lines."""

    def next(self, deadline: float) -> Optional[bytes]:
        """The next line, or None: the process has ended, or ``late`` says that it has not."""
        while b"\n" not in self._buffer:
            seconds = min(_LOOK_AFTER_SECONDS, max(0.0, deadline - time.monotonic()))
            ready = select.select([self._pipe, 0], [], [], 0 if self._ended else seconds)[0]
            if 0 in ready:
                raise _Stopped
            if self._pipe in ready:
                read = os.read(self._pipe, 1 << 16)
                self._buffer += read
                if read:
                    continue
                # All that could write have closed it, so the process is at its end.
                if not self._ended:
                    self.status = os.waitpid(self._pid, 0)[1]
                return None
            if self._ended:
                return None
            if time.monotonic() >= deadline:
                self.late = True
                return None
            # What it started may hold the pipe open.
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._ended, self.status = True, status
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def main() -> int:
    """Serve until standard input ends."""
    results = os.dup(1)
    # What is printed here must not get among the results.
    os.dup2(2, 1)
    try:
        Server(json.loads(sys.argv[1]), results).serve()
    except (_Stopped, BrokenPipeError):
        pass
    finally:
        processes.end_children()
    return 0


if __name__ == "__main__":
    sys.exit(main())
