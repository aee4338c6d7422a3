"""The words and groups that all reports share."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from overlay.upstream.results import Change, Outcome, Run, Side, Status, Verdict

KNOWN_FAILURE = "known failure"

# From what a reader must see first to what is as it was; each with its plural.
LABELS: Mapping[str, str] = {
    Verdict.BROKEN.value: "broken",
    Verdict.NEWLY_FAILING.value: "newly failing",
    Verdict.NEWLY_SKIPPED.value: "newly skipped",
    Verdict.STILL_FAILS.value: "still fail",
    KNOWN_FAILURE: "known failures",
    Verdict.FIXED.value: "fixed",
    Verdict.NEWLY_RUN.value: "newly run",
    Verdict.STILL_SKIPPED.value: "still skipped",
    Verdict.STILL_PASSES.value: "still pass",
}
BAD_LABELS = tuple(LABELS)[:4]

# ANSI sequences, and what neither XML nor a terminal should get.
_UNPRINTABLE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
    r"|[^\t\n\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)


def label(change: Change) -> str:
    """A change's verdict; a failure that is known has a label of its own."""
    return KNOWN_FAILURE if change.is_known_failure else change.verdict.value


def count_labels(changes: Iterable[Change]) -> dict[str, int]:
    """How many changes have each label that occurs, in the order of LABELS."""
    found = Counter(map(label, changes))
    return {name: found[name] for name in LABELS if name in found}


def counts_in_words(counts: Mapping[str, int]) -> str:
    """As in ``120 still pass, 1 fixed``."""
    return ", ".join(
        f"{number} {name if number == 1 else LABELS[name]}" for name, number in counts.items()
    )


def headline(run: Run) -> str:
    """Green or not, where, and why not: ``Not green on cpu: 1 broken, 1 problem``."""
    if run.is_green:
        counts = counts_in_words(count_labels(run.changes))
        return f"Green on {run.device}: nothing is broken, {counts}"
    bad = {name: number for name, number in count_labels(run.changes).items() if name in BAD_LABELS}
    reasons = [counts_in_words(bad)] if bad else []
    if run.problems:
        reasons.append(plural(len(run.problems), "problem"))
    return f"Not green on {run.device}: {', '.join(reasons) or 'no test ran'}"


def side_in_words(side: Side) -> str:
    """As in ``stock: 51 tests in 62 s``."""
    words = f"{side.name}: {plural(len(side.outcomes), 'test')}"
    if side.seconds:
        words += f" in {side.seconds:.0f} s"
    if side.kept:
        words += f", {plural(len(side.kept), 'file')} of an earlier run"
    return words


def before_and_after(change: Change) -> str:
    """As in ``passed -> timed out``."""
    return f"{_status(change.before)} -> {_status(change.after)}"


def _status(outcome: Outcome | None) -> str:
    return outcome.status.value if outcome else "not there"


def reason_of(change: Change) -> str:
    """One line on why it is as it is after the series, or the known failure's reason."""
    if label(change) == KNOWN_FAILURE:
        return change.known
    return one_line(change.after.reason) if change.after else ""


def tail_of(change: Change) -> str:
    """The last lines of the failure after the series."""
    return plain(change.after.tail) if change.after else ""


def bad_changes(run: Run) -> list[Change]:
    """What keeps the run from being green, worst first."""
    order = list(LABELS)
    bad = [change for change in run.changes if change.is_bad]
    return sorted(bad, key=lambda change: order.index(label(change)))


def by_file(run: Run) -> dict[str, list[Change]]:
    """The changes of each file, in the order of the run."""
    files: dict[str, list[Change]] = {}
    for change in run.changes:
        files.setdefault(change.file, []).append(change)
    return files


def shared_folder(run: Run) -> str:
    """The folder that all files are in, with a slash at its end; it says nothing in a list."""
    files = list(by_file(run))
    shared = os.path.commonpath([os.path.dirname(file) for file in files]) if files else ""
    return f"{shared}/" if shared else ""


def known_by_reason(run: Run) -> dict[str, list[str]]:
    """The tests of known failures, by their reason, most first."""
    return _grouped(
        (change.known, change.test) for change in run.changes if label(change) == KNOWN_FAILURE
    )


def skipped_by_reason(run: Run) -> dict[str, list[str]]:
    """The tests that are skipped before and after, by the reason after, most first."""
    return _grouped(
        (one_line(change.after.reason) or "no reason given", change.test)
        for change in run.changes
        if change.verdict is Verdict.STILL_SKIPPED and change.after
    )


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for reason, test in pairs:
        groups.setdefault(reason, []).append(test)
    return dict(sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])))


def passed(outcomes: Sequence[Outcome]) -> int:
    """How many of the outcomes are green."""
    return sum(outcome.status is Status.PASSED for outcome in outcomes)


def plain(text: str) -> str:
    """Text without colours and control characters."""
    return _UNPRINTABLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def one_line(text: str) -> str:
    """Text on one line, without colours and control characters."""
    return " ".join(plain(text).split())


def plural(number: int, noun: str) -> str:
    """As in ``1 file`` and ``2 files``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
