"""A pytest plugin: tells of each test as it starts and ends, and can run each in a fork."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import json
import os
import re
import signal
import sys
import time
from typing import Any, Optional

import pytest

from . import processes, ranks

JOB = "TORCH_OVERLAY_TEST_JOB"
"""The environment variable that holds a job's settings where pytest runs as a program."""

_LINES_OF_OUTPUT = 30
_LINES_OF_FAILURE = 60
_LONGEST_LINE = 500
_RUNNERS_FRAME = re.compile(
    r' *File "(.*/(_?pytest|pluggy|unittest|multiprocessing|overlay_inside)/|<frozen runpy>)'
)


def pytest_configure(config: pytest.Config) -> None:
    """Used with ``-p``: the settings are in the environment."""
    job = os.environ.pop(JOB, None)
    if job is not None:
        config.pluginmanager.register(Reporter(json.loads(job)))


class Reporter:
    """Writes a JSON line for everything that happens to a pipe."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._pipe = int(job["pipe"])
        os.set_inheritable(self._pipe, False)
        self._output = str(job["output"])
        self._fork = bool(job["fork"])
        self._wanted: Optional[list[str]] = job["tests"]
        self._part: Optional[tuple[int, int]] = job["part"]
        self._reports: list[Any] = []
        self._printed = ""
        self._started = 0.0

    def _send(self, event: str, **values: Any) -> None:
        line = (json.dumps({"event": event, **values}) + "\n").encode()
        while line:
            line = line[os.write(self._pipe, line) :]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self._wanted is not None:
            wanted = set(self._wanted)
            items[:] = [item for item in items if item.nodeid in wanted]
        elif self._part is not None:
            number, count = self._part
            items[:] = items[number - 1 :: count]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            text = str(report.longrepr)
            self._send("problem", what="cannot be imported: " + _error(text), tail=_last(text))

    def pytest_collection_finish(self, session: Any) -> None:
        tests = [item.nodeid for item in session.items]
        torch = sys.modules.get("torch")
        devices = torch.cuda.device_count() if torch is not None else None
        self._send("collected", tests=tests, devices=devices)
        if "torch.testing._internal.common_distributed" in sys.modules:
            ranks.watch()
            if self._fork:
                ranks.fork(self._in_each_rank())

    def _in_each_rank(self) -> Any:
        restore = ranks.fresh_random_state()

        def prepare() -> None:
            os.close(self._pipe)
            ranks.own_streams()
            restore()

        return prepare

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: Any) -> Optional[bool]:
        if not self._fork or session.testsfailed:
            return None
        if processes.has_threads():
            self._send("threads")
            return True
        processes.adopt_orphans()
        # What is there now stays, so that no fork has to look at it, and thereby copy it.
        gc.collect()
        gc.freeze()
        for item in session.items:
            self._run_in_fork(item)
        return True

    def _run_in_fork(self, item: Any) -> None:
        shared = processes.shared_memory()
        pid = os.fork()
        if pid == 0:
            try:
                processes.end_with_parent()
                os.setsid()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                # The interpreter's own end would run what was registered before the fork.
                _flush()
                os._exit(0)
        status = os.waitpid(pid, 0)[1]
        processes.end_children()
        processes.remove_shared_memory(shared)
        self._send("ended", test=item.nodeid, how=processes.ending(status))

    # Around what pytest prints of its own about a test, so that it does not get among the test's.
    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        redirect(self._output)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        self._reports, self._printed = [], ""
        self._started = time.perf_counter()
        self._send("started", test=nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        self._reports.append(report)
        if report.failed and not self._printed:
            _flush()
            self._printed = last_lines(self._output)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        seconds = round(time.perf_counter() - self._started, 3)
        outcome = outcome_of(self._reports, self._printed)
        self._send("finished", test=nodeid, seconds=seconds, **outcome)

    def pytest_sessionfinish(self) -> None:
        self._send("end")


def outcome_of(reports: list[Any], printed: str) -> dict[str, str]:
    """Status, reason and tail of a test from pytest's reports on its phases."""
    failed = [report for report in reports if report.failed]
    if failed:
        text = str(failed[0].longrepr)
        tail = text if not printed else f"{text}\n\nits output ended with\n{printed}"
        return {"status": "failed", "reason": _error(text), "tail": _last(tail)}
    for report in reports:
        if report.skipped and hasattr(report, "wasxfail"):
            return {"status": "passed", "reason": "fails as expected", "tail": ""}
        if report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            why = re.sub(r"^Skipped: ", "", str(why)).strip()
            return {"status": "skipped", "reason": why.split("\n")[0], "tail": ""}
    if not any(report.when == "call" for report in reports):
        return {"status": "died", "reason": "it ended before it was called", "tail": ""}
    return {"status": "passed", "reason": "", "tail": ""}


def last_lines(path: str, count: int = _LINES_OF_OUTPUT) -> str:
    """The end of what a test has printed, without the frames of who ran it in its stacks."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 10 * count * _LONGEST_LINE))
        text = file.read().decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if not _RUNNERS_FRAME.match(line)]
    return "\n".join(line[:_LONGEST_LINE] for line in lines[-count:]).strip("\n")


def _last(text: str) -> str:
    return "\n".join(line[:_LONGEST_LINE] for line in text.splitlines()[-_LINES_OF_FAILURE:])


_RANK = re.compile(r"^.*?Process (\d+) exited with error code \d+ and exception:\n", re.M)
_CONSEQUENCE = re.compile(r"Connection (closed|reset) by peer|Broken pipe", re.I)


def _error(text: str) -> str:
    """The line of a traceback that says what went wrong; a rank's own where ranks failed."""
    last = _last_error(text)
    if ranks.RankDied.__name__ in last:
        return last.split(": ", 1)[1]
    _, *parts = _RANK.split(text)
    errors = [f"rank {n}: {_last_error(of)}" for n, of in zip(parts[::2], parts[1::2])]
    # A rank that lost another one says less than the other one does.
    errors.sort(key=lambda error: bool(_CONSEQUENCE.search(error)))
    return errors[0] if errors else last


def _last_error(text: str) -> str:
    _, traceback, after = text.rpartition("Traceback (most recent call last):\n")
    lines = [line for line in after.splitlines() if line.strip()]
    # pytest's own style, of errors in collecting, marks the error's lines.
    marked = [line[1:].strip() for line in lines if re.match(r"E\s+\S", line)]
    if marked:
        return marked[-1]
    for line in lines if traceback else lines[-1:]:
        if not line.startswith(" "):
            return line.strip()[:_LONGEST_LINE]
    return lines[-1].strip()[:_LONGEST_LINE] if lines else "no reason was given"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def redirect(path: str) -> None:
    """Let this process and all that it starts print into a file, which is emptied first."""
    _flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    for stream in (sys.__stdout__, sys.__stderr__):
        # What is killed has printed its lines by then, and a fork has none of them to print again.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
