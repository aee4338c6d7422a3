"""What happens while upstream's tests run, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional, Union

from overlay.upstream.results import Outcome, Problem, Side


@dataclass(frozen=True)
class Told:
    """A step of the preparation, in one line."""

    line: str


@dataclass(frozen=True)
class SideStarted:
    """One half of the run starts. Files whose results are kept are not among ``files``."""

    name: str
    files: tuple[str, ...]
    expected_seconds: Optional[float]
    """Wall time by what earlier runs took; None if no earlier run tells."""


@dataclass(frozen=True)
class FileStarted:
    """A file is being imported, to find its tests."""

    file: str


@dataclass(frozen=True)
class Collected:
    """The selected tests of a file, in the order in which they run. Comes once a file."""

    file: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class TestStarted:
    """With several workers, tests of several files run at a time."""

    __test__ = False

    test: str


@dataclass(frozen=True)
class TestFinished:
    """A test has its outcome."""

    __test__ = False

    outcome: Outcome


@dataclass(frozen=True)
class ProblemFound:
    """Something keeps the run from being green."""

    problem: Problem


@dataclass(frozen=True)
class FileFinished:
    """All tests of a file have their outcomes."""

    file: str


@dataclass(frozen=True)
class SideFinished:
    """One half of the run is complete."""

    side: Side


Event = Union[
    Told,
    SideStarted,
    FileStarted,
    Collected,
    TestStarted,
    TestFinished,
    ProblemFound,
    FileFinished,
    SideFinished,
]

OnEvent = Callable[[Event], None]
