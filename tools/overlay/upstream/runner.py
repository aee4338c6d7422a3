"""Runs test files on one half: a runtime, and a source tree with the tests."""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from overlay.errors import OverlayError
from overlay.runtime import interpreter
from overlay.upstream.events import (
    Collected,
    Event,
    FileFinished,
    FileStarted,
    OnEvent,
    ProblemFound,
    TestFinished,
    TestStarted,
)
from overlay.upstream.results import Outcome, Problem, Status

INSIDE = Path(__file__).with_name("inside")
STANDIN_DEVICES = 2
_SECONDS_TO_CLOSE = 10
_LINES_SHOWN = 15
_UPSTREAM_LATER = 60
"""In seconds."""


class UpstreamTestsError(OverlayError):
    """The tests cannot be run at all."""


@dataclass(frozen=True)
class Half:
    """What the tests run on, before or after the series."""

    name: str
    """As in ``Side.name``."""
    patches: tuple[str, ...]
    venv: Path
    tree: Path
    """The folder that holds ``test/``."""


@dataclass(frozen=True)
class Unit:
    """A test file, or one part of it: every ``count``-th test from the ``number``-th on."""

    file: str
    part: Optional[tuple[int, int]] = None


@dataclass(frozen=True)
class Settings:
    """How tests are run."""

    standin: bool = False
    """Whether the CPU stands in for CUDA devices."""
    cuda: bool = False
    """Whether tests see the real CUDA devices."""
    workers: int = 1
    timeout: float = 600
    """How many seconds one test may take."""
    import_timeout: float = 300
    """How many seconds a file may take until its tests are known."""
    isolate: bool = False
    """Upstream's own way: ordinary pytest, and ranks that are fresh interpreters."""
    keyword: str = ""
    """As pytest's ``-k``."""

    @property
    def forks(self) -> bool:
        """Whether tests and their ranks are forked: never where a real device is in use."""
        return not self.isolate and not self.cuda and sys.platform == "linux"


@dataclass(frozen=True)
class UnitResult:
    """What a file, or a part of it, gave."""

    tests: tuple[str, ...]
    """Those selected, in order."""
    outcomes: tuple[Outcome, ...]
    problems: tuple[Problem, ...]

    @property
    def is_settled(self) -> bool:
        """Whether another run would most likely give the same."""
        lost = (Status.DIED, Status.TIMED_OUT)
        return not self.problems and not any(o.status in lost for o in self.outcomes)


def run_units(
    half: Half, units: Sequence[Unit], settings: Settings, on_event: OnEvent
) -> dict[Unit, UnitResult]:
    """Run files with several workers; ``on_event`` is called in this thread alone."""
    todo: queue.SimpleQueue[Unit] = queue.SimpleQueue()
    for unit in units:
        todo.put(unit)
    news: queue.SimpleQueue[_News] = queue.SimpleQueue()
    stopping = threading.Event()
    count = max(1, min(settings.workers, len(units)))
    workers = [
        threading.Thread(target=_work, args=(half, settings, todo, news, stopping))
        for _ in range(count)
    ]
    for worker in workers:
        worker.start()
    results: dict[Unit, UnitResult] = {}
    try:
        while count:
            new = news.get()
            if isinstance(new, BaseException):
                raise new
            if new is None:
                count -= 1
            elif isinstance(new, tuple):
                results[new[0]] = new[1]
            else:
                on_event(new)
    finally:
        stopping.set()
        for worker in workers:
            worker.join()
    return {unit: results[unit] for unit in units}


_News = Union[Event, tuple[Unit, UnitResult], BaseException, None]


def _work(
    half: Half,
    settings: Settings,
    todo: queue.SimpleQueue[Unit],
    news: queue.SimpleQueue[_News],
    stopping: threading.Event,
) -> None:
    """A worker: one process that runs file after file."""
    server: Optional[_Server] = None
    try:
        while not stopping.is_set():
            try:
                unit = todo.get_nowait()
            except queue.Empty:
                break
            server = server or _Server(half, settings, stopping)
            news.put((unit, _run_unit(server, unit, settings, news)))
            news.put(FileFinished(unit.file))
            if server.has_ended:
                server = None
    except BaseException as error:
        news.put(error)
    finally:
        if server is not None:
            server.close()
        news.put(None)


def _run_unit(
    server: _Server, unit: Unit, settings: Settings, news: queue.SimpleQueue[_News]
) -> UnitResult:
    tests: tuple[str, ...] = ()
    outcomes: dict[str, Outcome] = {}
    problems: list[Problem] = []

    def problem(what: str, tail: str = "") -> None:
        problems.append(Problem(unit.file, what, tail))
        news.put(ProblemFound(problems[-1]))

    news.put(FileStarted(unit.file))
    for event in server.run(unit):
        kind = event["event"]
        if kind == "collected":
            tests = tuple(event["tests"])
            news.put(Collected(unit.file, tests))
            if not (tests or problems or settings.keyword or unit.part):
                problem("no test in it was collected")
            if settings.standin and event["devices"] not in (None, STANDIN_DEVICES):
                problem("the stand-in for CUDA is not loaded")
        elif kind == "started":
            news.put(TestStarted(event["test"]))
        elif kind == "finished":
            names = ("test", "seconds", "reason", "tail")
            outcome = Outcome(status=Status(event["status"]), **{n: event[n] for n in names})
            if outcome.test in outcomes or outcome.test not in tests:
                problem(f"{outcome.test} has two outcomes, or was not collected")
            outcomes[outcome.test] = outcome
            news.put(TestFinished(outcome))
        elif kind == "problem":
            problem(event["what"], event["tail"])
    missing = [test for test in tests if test not in outcomes]
    if missing:
        problem(f"{len(missing)} of its tests have no outcome, {missing[0]} first")
    return UnitResult(
        tests, tuple(outcomes[test] for test in tests if test in outcomes), tuple(problems)
    )


class _Server:
    """The process inside the base's interpreter, as seen from here."""

    def __init__(self, half: Half, settings: Settings, stopping: threading.Event) -> None:
        self._half = half
        self._settings = settings
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        arguments = {
            "tree": str(half.tree),
            "fork": settings.forks,
            "timeout": settings.timeout,
            "import_timeout": settings.import_timeout,
        }
        self._process = subprocess.Popen(
            [str(interpreter(half.venv)), "-m", "overlay_inside", json.dumps(arguments)],
            cwd=INSIDE,
            env=environment(settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            # Ctrl-C is for us; it ends as soon as we close its standard input.
            start_new_session=True,
        )
        self.has_ended = False
        threading.Thread(target=self._stop_when, args=(stopping,), daemon=True).start()
        if not any(event["event"] == "ready" for event in self._events("ready")):
            raise UpstreamTestsError(
                f"tests cannot be run with {interpreter(half.venv)}", self._last_lines()
            )

    def run(self, unit: Unit) -> Iterator[Mapping[str, Any]]:
        """Run a file, telling of what happens."""
        assert self._process.stdin is not None
        part = list(unit.part) if unit.part else None
        job = {"file": unit.file, "part": part, "keyword": self._settings.keyword}
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        yield from self._events("done")
        if self.has_ended:
            what = "the process that runs it ended with exit code"
            what += f" {self._process.wait()}"
            yield {"event": "problem", "what": what, "tail": "\n".join(self._last_lines())}

    def _events(self, last: str) -> Iterator[Mapping[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["event"] == last == "done":
                return
            yield event
            if event["event"] == last:
                return
        self.has_ended = True

    def _stop_when(self, stopping: threading.Event) -> None:
        stopping.wait()
        self._end()

    def _end(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.close()

    def close(self) -> None:
        """End it, with all that it started."""
        self._end()
        try:
            self._process.wait(_SECONDS_TO_CLOSE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _last_lines(self) -> list[str]:
        self._process.wait()
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").splitlines()[-_LINES_SHOWN:]


def environment(settings: Settings) -> dict[str, str]:
    """The variables that tests run with."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "PYTHON", "TORCH_OVERLAY_"))
    }
    kept.update(
        PYTHONPATH=str(INSIDE),
        # Ranks share the cores, and nothing may fork where threads run.
        **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")},
        # Upstream's own limit says less of what hangs, so it comes after ours.
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(math.ceil(settings.timeout) + _UPSTREAM_LATER),
    )
    if settings.forks:
        kept["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # or the compiler's processes need threads
    if not settings.cuda:
        kept["CUDA_VISIBLE_DEVICES"] = ""
    if settings.standin:
        kept["TORCH_OVERLAY_CUDA_STANDIN"] = str(STANDIN_DEVICES)
    return kept
