"""What upstream's tests gave before and after the series: plain values, and their JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Optional

from overlay.errors import UsageError

SOMETIMES = "sometimes: "
"""How the reason of a known failure begins whose test also passes at times, as in a race."""


class Status(str, Enum):
    """How one test ended. Only PASSED is green; SKIPPED is a test's own decision."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    TIMED_OUT = "timed out"
    DIED = "died"
    """The process that ran it went away without a result."""


@dataclass(frozen=True)
class Outcome:
    """One test, run once."""

    test: str
    """As in ``test/distributed/fsdp/test_wrap.py::TestAutoWrap::test_wrap``."""
    status: Status
    seconds: float
    reason: str = ""
    """Why it was skipped, or one line on why it failed."""
    tail: str = ""
    """The last lines of a failure."""

    @property
    def file(self) -> str:
        """The test's file, from the source tree's root."""
        return self.test.split("::", 1)[0]

    @property
    def failed(self) -> bool:
        """Whether it ended in any way that is neither passed nor skipped."""
        return self.status not in (Status.PASSED, Status.SKIPPED)


@dataclass(frozen=True)
class Problem:
    """What keeps a run from being green though no test says so."""

    where: str
    """A file, a selection, or a line of the known failures."""
    what: str
    """In one line, as in ``cannot be imported: ModuleNotFoundError: No module named 'x'``."""
    tail: str = ""


@dataclass(frozen=True)
class Side:
    """One half of a run: the tests on the stock torch, or on the one with the series."""

    name: str
    """``stock``, ``with the series``, or what else was applied, as in ``import fix alone``."""
    patches: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    problems: tuple[Problem, ...] = ()
    seconds: float = 0.0
    """Wall time of what ran now; 0 if all was kept."""
    kept: tuple[str, ...] = ()
    """Files whose outcomes come from an earlier run."""


class Verdict(str, Enum):
    """What the series did to one test."""

    BROKEN = "broken"
    """Green before (or skipped), and not green after; or it is not there any more."""
    FIXED = "fixed"
    NEWLY_RUN = "newly run"
    """Not there before, or skipped before, and it passes."""
    NEWLY_FAILING = "newly failing"
    """Not there before, and it fails: as bad as broken."""
    NEWLY_SKIPPED = "newly skipped"
    """Passed before: as bad as broken."""
    STILL_FAILS = "still fails"
    STILL_SKIPPED = "still skipped"
    STILL_PASSES = "still passes"

    @property
    def is_bad(self) -> bool:
        """Whether it makes the whole run fail."""
        return self in (Verdict.BROKEN, Verdict.NEWLY_FAILING, Verdict.NEWLY_SKIPPED)


@dataclass(frozen=True)
class Change:
    """One test on both sides."""

    test: str
    before: Optional[Outcome]
    after: Optional[Outcome]
    known: str = ""
    """The reason in the base's known failures, if it stands there."""

    @property
    def file(self) -> str:
        """The test's file, from the source tree's root."""
        return self.test.split("::", 1)[0]

    @property
    def verdict(self) -> Verdict:
        """What the series did to it."""
        before, after = self.before, self.after
        if after is None:
            return Verdict.BROKEN
        if before is None:
            if after.failed:
                return Verdict.NEWLY_FAILING
            skipped = after.status is Status.SKIPPED
            return Verdict.STILL_SKIPPED if skipped else Verdict.NEWLY_RUN
        if after.failed:
            return Verdict.STILL_FAILS if before.failed else Verdict.BROKEN
        if after.status is Status.SKIPPED:
            if before.status is Status.SKIPPED:
                return Verdict.STILL_SKIPPED
            return Verdict.BROKEN if before.failed else Verdict.NEWLY_SKIPPED
        if before.status is Status.SKIPPED:
            return Verdict.NEWLY_RUN
        return Verdict.FIXED if before.failed else Verdict.STILL_PASSES

    @property
    def is_known_failure(self) -> bool:
        """Whether it fails as it is known to: wherever it is, or by chance on one of both sides."""
        if self.after is None or not self.known:
            return False
        sides = (self.before or self.after, self.after)
        if self.known.startswith(SOMETIMES) and Status.SKIPPED not in {s.status for s in sides}:
            return any(side.failed for side in sides)
        return all(side.failed for side in sides)

    @property
    def is_bad(self) -> bool:
        """Whether it keeps the run from being green: it got worse, or fails and is not known to."""
        bad = self.verdict.is_bad or self.verdict is Verdict.STILL_FAILS
        return bad and not self.is_known_failure


@dataclass(frozen=True)
class Run:
    """Upstream's tests on one base and one device, before and after."""

    base: str
    torch: str
    """The runtime's version, with its local label."""
    python: str
    platform: str
    device: str
    """As the report names it: ``cpu, CUDA stand-in``, ``cpu``, ``cuda (2 x NVIDIA H200)``."""
    selection: str
    """The selection in words, as in ``test/distributed/fsdp -k state_dict, shard 1/4``."""
    tree: str
    """The fingerprint of what the series makes of the base (``fingerprint_of``)."""
    started: str
    """ISO 8601, UTC."""
    before: Side
    after: Side
    known: Mapping[str, str] = field(default_factory=dict)
    """The known failures of this base and device that the selection holds: test to reason."""

    @property
    def changes(self) -> tuple[Change, ...]:
        """Every test of either side, in the order in which they were collected."""
        before = {outcome.test: outcome for outcome in self.before.outcomes}
        after = {outcome.test: outcome for outcome in self.after.outcomes}
        return tuple(
            Change(test, before.get(test), after.get(test), self.known.get(test, ""))
            for test in dict.fromkeys([*after, *before])
        )

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Those of both sides."""
        return (*self.before.problems, *self.after.problems)

    @property
    def is_green(self) -> bool:
        """Whether nothing is broken, everything ran, and nothing fails that is not known."""
        bad = any(change.is_bad for change in self.changes)
        return bool(self.after.outcomes) and not bad and not self.problems

    def as_json(self) -> dict[str, Any]:
        """A value of plain dicts and lists; ``run_from_json`` reads it back."""
        return asdict(self)


def run_from_json(value: Mapping[str, Any]) -> Run:
    """What ``Run.as_json`` wrote. Raises KeyError, TypeError or ValueError on anything else."""
    return Run(**{**value, "before": _side(value["before"]), "after": _side(value["after"])})


def read_run(file: Path) -> Run:
    """The run in a file that ``torch-overlay test --json`` wrote."""
    try:
        return run_from_json(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UsageError(
            f"{file} is not a run of upstream's tests; 'torch-overlay test --json' writes one"
        ) from None


def _side(value: Mapping[str, Any]) -> Side:
    return Side(
        **{
            **value,
            "patches": tuple(value["patches"]),
            "kept": tuple(value["kept"]),
            "problems": tuple(Problem(**problem) for problem in value["problems"]),
            "outcomes": tuple(outcomes_from_json(value["outcomes"])),
        }
    )


def outcomes_from_json(values: Iterable[Mapping[str, Any]]) -> Iterable[Outcome]:
    """Outcomes as ``asdict`` writes them."""
    return (Outcome(**{**value, "status": Status(value["status"])}) for value in values)
