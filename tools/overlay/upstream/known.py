"""Known failures: what upstream's own tests cannot do on a base and device, with the reason.

A reason that begins with ``sometimes`` is of a test that also passes: it proves nothing either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from overlay.errors import UsageError
from overlay.upstream.results import SOMETIMES, Outcome, Problem, Status

_FOLDER = Path(__file__).with_name("known")


def path_for(base: str, device: str) -> Path:
    """The file of a base and a device, ``cpu`` or ``cuda``; it need not be there."""
    return _FOLDER / f"{base}-{device}.txt"


def load(path: Path) -> dict[str, str]:
    """Tests and reasons, from lines such as ``test/x.py::TestX::test_y: reason``."""
    known: dict[str, str] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        test, _, reason = (part.strip() for part in line.partition(": "))
        if "::" not in test or not reason:
            raise UsageError(f"{path}:{number}: not 'test id: reason': {line.strip()}")
        if test in known:
            raise UsageError(f"{path}:{number}: {test} stands twice: remove one")
        known[test] = reason
    return known


def is_expected(reason: str, outcome: Outcome) -> bool:
    """Whether a test that is known for a reason ended as the reason says."""
    return outcome.failed or (reason.startswith(SOMETIMES) and outcome.status is Status.PASSED)


def check(
    known: Mapping[str, str], ran: Iterable[Outcome], whole_files: Iterable[str]
) -> list[Problem]:
    """Entries that do not fail, or that no test of a wholly run file matches.

    Of a test's outcomes the last counts, which is the one on stock if it is there.
    """
    outcomes = {outcome.test: outcome for outcome in ran}
    files = set(whole_files)
    problems = []
    for test in known:
        if test in outcomes and not is_expected(known[test], outcomes[test]):
            what = (
                f"is among the known failures, but {outcomes[test].status.value}: remove it there"
            )
            problems.append(Problem(test, what))
        elif test not in outcomes and test.split("::", 1)[0] in files:
            what = "is among the known failures, but there is no such test: remove it there"
            problems.append(Problem(test, what))
    return problems
