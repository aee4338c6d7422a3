"""A run while it goes on: a live view on a terminal, a line now and then in a log."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Callable, Optional

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from overlay.upstream import events
from overlay.upstream.report import words
from overlay.upstream.results import Outcome, Status

SECONDS_BETWEEN_LINES = 30

_RUNNING_SHOWN = 8


class LiveView:
    """Shows the events of a run: counts, what runs now, time left, and failures as they happen.

    Where the console is no terminal, it prints plain lines, at most one in half a minute beside
    failures and problems. Events may come from several threads.
    """

    def __init__(
        self, console: Optional[Console] = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._clock = clock
        self._lock = threading.RLock()
        self._live: Optional[Live] = None
        self._side = _Side("", 0, None, clock())
        self._said = clock()

    def __enter__(self) -> LiveView:
        if self._console.is_terminal:
            self._live = Live(self, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def on_event(self, event: events.Event) -> None:
        """Show what it changes."""
        with self._lock:
            for text in self._take(event):
                self._console.print(text, soft_wrap=True)
                self._said = self._clock()
            if self._live is None and self._clock() - self._said >= SECONDS_BETWEEN_LINES:
                self._said = self._clock()
                self._console.print(Text(self._side.in_words(self._clock())), soft_wrap=True)

    def _take(self, event: events.Event) -> Iterator[Text]:
        """Bring what is shown up to date; what of the event is to stay on the screen."""
        side = self._side
        if isinstance(event, events.Told):
            yield Text(event.line)
        elif isinstance(event, events.SideStarted):
            files = len(event.files)
            self._side = _Side(event.name, files, event.expected_seconds, self._clock())
            expected = event.expected_seconds
            takes = f", takes about {_span(expected)}" if expected is not None and files else ""
            yield Text(f"{event.name}: {words.plural(files, 'file')} to run{takes}", "bold")
        elif isinstance(event, events.FileStarted):
            side.running[event.file] = self._clock()
        elif isinstance(event, events.Collected):
            side.running.pop(event.file, None)
            side.files_collected += 1
            side.collected += len(event.tests)
        elif isinstance(event, events.TestStarted):
            side.running[event.test] = self._clock()
        elif isinstance(event, events.TestFinished):
            side.running.pop(event.outcome.test, None)
            side.counts[event.outcome.status] += 1
            if event.outcome.failed:
                yield _failure(side.name, event.outcome)
        elif isinstance(event, events.ProblemFound):
            where, what = event.problem.where, words.one_line(event.problem.what)
            yield Text(f"{side.name}: problem: {where}: {what}", "bold red")
        elif isinstance(event, events.FileFinished):
            side.running.pop(event.file, None)
            side.files_done += 1
        else:
            counts = Counter(outcome.status for outcome in event.side.outcomes)
            line = ": ".join(filter(None, [words.side_in_words(event.side), _counts(counts)]))
            yield Text(line, "bold")
            self._side = _Side("", 0, None, self._clock())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            side, now = self._side, self._clock()
            if not side.name:
                return
            head = Table.grid(padding=(0, 1))
            bar = ProgressBar(side.expected_tests, sum(side.counts.values()), width=24)
            head.add_row(Text(side.name, "bold"), bar)
            yield head
            yield Text(side.in_words(now, with_name=False))
            for what, since in list(side.running.items())[:_RUNNING_SHOWN]:
                line = f"  {_span(now - since)}  {what}"
                yield Text(line, "dim", no_wrap=True, overflow="ellipsis")
            if len(side.running) > _RUNNING_SHOWN:
                yield Text(f"  and {len(side.running) - _RUNNING_SHOWN} more", "dim")


class _Side:
    """How far one half of the run has come."""

    def __init__(self, name: str, files: int, expected: Optional[float], started: float) -> None:
        self.name = name
        self.files = files
        self.expected = expected
        self.started = started
        self.files_done = 0
        self.files_collected = 0
        self.collected = 0
        self.counts: Counter[Status] = Counter()
        self.running: dict[str, float] = {}
        """What runs now, and since when."""

    @property
    def expected_tests(self) -> float:
        """All tests, if the files to come have as many as those so far; at least one."""
        return max(1.0, self.collected * self.files / max(1, self.files_collected))

    def in_words(self, now: float, with_name: bool = True) -> str:
        """As in ``stock: 3 of 17 files, 33 of 52 tests: 33 passed; ...``."""
        done = sum(self.counts.values())
        line = f"{self.files_done} of {words.plural(self.files, 'file')}, "
        line += f"{done} of {words.plural(self.collected, 'test')}"
        if done:
            line += f": {_counts(self.counts)}"
        line += f"; {self._time(now - self.started)}"
        if not with_name:
            return line
        running = f"; runs {next(iter(self.running))}" if self.running else ""
        return f"{self.name}: {line}{running}"

    def _time(self, elapsed: float) -> str:
        if self.expected is None:
            return _span(elapsed)
        left = self.expected - elapsed
        if left < 0:
            return f"{_span(elapsed)}, {_span(-left)} longer than last time"
        return f"{_span(elapsed)}, about {_span(left)} left"


def _failure(side: str, outcome: Outcome) -> Text:
    reason = words.one_line(outcome.reason)
    why = f": {reason}" if reason else ""
    return Text(f"{side}: {outcome.status.value}: {outcome.test}{why}", "red")


def _counts(counts: Counter[Status]) -> str:
    return ", ".join(f"{counts[status]} {status.value}" for status in Status if counts[status])


def _span(seconds: float) -> str:
    """As in ``0:07`` and ``12:30``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
