"""A run's end on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from overlay.upstream.report import words
from overlay.upstream.results import Run

_COLOURS: Mapping[str, str] = {
    **dict.fromkeys(words.BAD_LABELS, "bold red"),
    words.KNOWN_FAILURE: "yellow",
    "fixed": "bold green",
    "newly run": "green",
    "still skipped": "dim",
}


def terminal(run: Run, console: Console) -> None:
    """Print counts per file, then whatever is not green, one test a line, then what that means."""

    def say(text: str, style: str = "") -> None:
        # Names stay whole, for copying, and brackets in them are not markup.
        console.print(Text(text, style), soft_wrap=True)

    say(f"{run.base}: torch {run.torch}, Python {run.python}, {run.platform}, on {run.device}")
    say(f"before: {words.side_in_words(run.before)}")
    say(f"after: {words.side_in_words(run.after)}")
    if run.changes:
        console.print(_counts(run))
    for change in words.bad_changes(run):
        label = words.label(change)
        say(f"{label}: {change.test}", _COLOURS[label])
        reason = words.reason_of(change)
        say(f"  {words.before_and_after(change)}{': ' if reason else ''}{reason}")
    for problem in run.problems:
        say(f"problem: {problem.where}", "bold red")
        say(f"  {words.one_line(problem.what)}")
    for what, groups in (
        ("known failures", words.known_by_reason(run)),
        ("still skipped", words.skipped_by_reason(run)),
    ):
        for reason, tests in groups.items():
            say(f"{what}: {len(tests)}: {reason}", "dim")
    end = "exit status 0" if run.is_green else "exit status 1"
    say(f"{words.headline(run)} ({end})", "bold green" if run.is_green else "bold red")


def _counts(run: Run) -> Table:
    folder = words.shared_folder(run)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(folder or "file", overflow="fold")
    table.add_column("tests", justify="right")
    table.add_column("")
    rows = {file.removeprefix(folder): changes for file, changes in words.by_file(run).items()}
    for name, changes in {**rows, "all": run.changes}.items():
        table.add_row(Text(name), str(len(changes)), _in_colours(words.count_labels(changes)))
    return table


def _in_colours(counts: Mapping[str, int]) -> Text:
    parts = [
        Text(words.counts_in_words({name: number}), _COLOURS.get(name, ""))
        for name, number in counts.items()
    ]
    return Text(", ").join(parts)
