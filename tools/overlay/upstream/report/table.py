"""Several kept runs as the tables of a document."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from overlay.upstream.report import words
from overlay.upstream.results import SOMETIMES, Run, Side, Status


def table(runs: Sequence[Run]) -> str:
    """Two markdown tables: a row for each half of each run, and the kinds of known failures.

    The share is of the tests that are not skipped. A known failure's kind is its reason up to the
    first colon.
    """
    lines = [
        "| base | torch | on | half | collected | passed | known | other failures | skipped | share"
        " passed | seconds |",
        "| --- | --- | --- | --- |" + " ---: |" * 7,
    ]
    for run in runs:
        lines += [_row(run, run.before), _row(run, run.after)]
    kinds = [_known_kinds(run) for run in runs]
    every_kind = sum(kinds, Counter())
    if every_kind:
        lines += [
            "",
            "| known failures | " + " | ".join(f"{run.base}, {run.device}" for run in runs) + " |",
            "| --- |" + " ---: |" * len(runs),
        ]
        for kind, _ in every_kind.most_common():
            lines.append(f"| {kind} | " + " | ".join(str(found[kind]) for found in kinds) + " |")
    return "\n".join(lines) + "\n"


def _row(run: Run, side: Side) -> str:
    failed = [outcome.test for outcome in side.outcomes if outcome.failed]
    known = sum(test in run.known for test in failed)
    skipped = sum(outcome.status is Status.SKIPPED for outcome in side.outcomes)
    passed = words.passed(side.outcomes)
    ran = len(side.outcomes) - skipped
    # Rounded down, so that 100% is all.
    share = f"{1000 * passed // ran / 10:.1f}%" if ran else "-"
    # What is kept took its time in an earlier run.
    seconds = "-" if side.kept else f"{side.seconds:.0f}"
    numbers = (len(side.outcomes), passed, known, len(failed) - known, skipped, share, seconds)
    cells = (run.base, run.torch, run.device, side.name, *map(str, numbers))
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _known_kinds(run: Run) -> Counter[str]:
    failed = {outcome.test for outcome in run.after.outcomes if outcome.failed}
    return Counter(
        _cell(reason.removeprefix(SOMETIMES).split(":", 1)[0])
        for test, reason in run.known.items()
        if test in failed
    )


def _cell(text: str) -> str:
    return re.sub(r"([\\|`*_<>])", r"\\\1", words.one_line(text))
