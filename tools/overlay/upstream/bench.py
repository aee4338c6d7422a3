"""The forked runner beside upstream's own way, on the same files in one run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Optional

from overlay.bases import Base
from overlay.series import Series
from overlay.upstream.compare import Request, outcomes_of, prepare_run
from overlay.upstream.events import OnEvent, SideStarted
from overlay.upstream.results import Outcome, Problem
from overlay.upstream.runner import run_units

GOAL = 5.0


@dataclass(frozen=True)
class Row:
    """One test both ways."""

    test: str
    forked: Optional[Outcome]
    isolated: Optional[Outcome]

    @property
    def differs(self) -> bool:
        """Whether the verdicts are not the same, which is a bug of one of the two."""
        statuses = {o.status if o else None for o in (self.forked, self.isolated)}
        return len(statuses) > 1


@dataclass(frozen=True)
class TestsBench:
    """Both ways of running the same files."""

    __test__ = False

    device: str
    files: Sequence[str]
    rows: Sequence[Row]
    problems: Sequence[Problem]
    forked_seconds: float
    isolated_seconds: float

    @property
    def ratio(self) -> float:
        """How many times faster the forked runner was."""
        return self.isolated_seconds / self.forked_seconds

    @property
    def differences(self) -> list[Row]:
        """Tests with two verdicts."""
        return [row for row in self.rows if row.differs]

    @property
    def is_good(self) -> bool:
        """Whether the verdicts are the same and the goal is met."""
        return bool(self.rows) and not self.differences and not self.problems and self.ratio >= GOAL

    def as_json(self) -> dict[str, Any]:
        """A value of plain dicts and lists."""
        return {**asdict(self), "ratio": self.ratio, "good": self.is_good}

    def lines(self) -> Iterator[str]:
        """What to print."""
        counts = Counter(row.isolated.status.value for row in self.rows if row.isolated)
        counted = ", ".join(f"{number} {status}" for status, number in counts.items())
        yield f"{len(self.files)} files, {len(self.rows)} tests on {self.device}: {counted}"
        yield f"{'forked':32}{self.forked_seconds:8.1f} s"
        yield f"{'ordinary pytest, spawned ranks':32}{self.isolated_seconds:8.1f} s"
        good = "" if self.ratio >= GOAL else f"  LESS THAN {GOAL:g}"
        yield f"{'ratio':32}{self.ratio:8.1f}{good}"
        for row in self.differences:
            statuses = [o.status.value if o else "not run" for o in (row.forked, row.isolated)]
            yield f"TWO VERDICTS: {row.test}: forked {statuses[0]}, isolated {statuses[1]}"
        for problem in self.problems:
            yield f"problem: {problem.where}: {problem.what}"


def bench_tests(base: Base, series: Series, request: Request, on_event: OnEvent) -> TestsBench:
    """Run files before the series, forked and then by ordinary pytest with spawned ranks.

    Each starts from nothing: the time it takes to import torch counts.
    """
    ready = prepare_run(base, series, request, on_event)
    half = ready.halves.before
    units = [unit for unit in ready.units if (half.tree / unit.file).is_file()]
    measured = []
    for name, isolate in (("forked", False), ("ordinary pytest, spawned ranks", True)):
        on_event(SideStarted(name, tuple(unit.file for unit in units), None))
        start = time.monotonic()
        settings = replace(ready.settings, isolate=isolate)
        measured.append((run_units(half, units, settings, on_event), time.monotonic() - start))
    (forked, forked_seconds), (isolated, isolated_seconds) = measured
    before, after = outcomes_of(forked), outcomes_of(isolated)
    return TestsBench(
        device=ready.device,
        files=[unit.file for unit in units],
        rows=[Row(t, before.get(t), after.get(t)) for t in dict.fromkeys([*before, *after])],
        problems=[p for r in (*forked.values(), *isolated.values()) for p in r.problems],
        forked_seconds=forked_seconds,
        isolated_seconds=isolated_seconds,
    )
