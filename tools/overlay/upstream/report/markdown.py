"""A run as markdown: the summary of a check, and a few lines for a pull request's body."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence

from overlay.upstream.report import words
from overlay.upstream.results import Change, Run

SUMMARY_LIMIT = 1000 * 1024
"""In bytes. GitHub takes 1024 KiB as the summary of a step."""

_NAMED_IN_SHORT = 3
_LEFT_OUT = (
    "**{what} left out: a summary may have no more than {kib} KiB. "
    "The HTML, JUnit and JSON reports have everything.**"
)


def markdown(run: Run, limit: int = SUMMARY_LIMIT) -> str:
    """The summary of a check, for ``GITHUB_STEP_SUMMARY``; says what it leaves out beyond limit."""
    text = "\n".join(_blocks(run, tails=True))
    if _size(text) <= limit:
        return text
    blocks = list(_blocks(run, tails=False))
    kib = limit // 1024
    note = _LEFT_OUT.format(what="The failures' last lines are", kib=kib) + "\n"
    if _size("\n".join([*blocks, note])) <= limit:
        return "\n".join([*blocks, note])
    note = _LEFT_OUT.format(what=f"Some of these {len(blocks)} parts are", kib=kib) + "\n"
    room = limit - _size(note)
    taken = []
    for block in blocks:
        room -= _size(block) + 1
        if room < 0:
            break
        taken.append(block)
    return "\n".join([*taken, note])


def short(run: Run) -> str:
    """One to three lines for the body of a pull request."""
    counts = words.count_labels(run.changes)
    lines = [
        f"Tests: torch {_text(run.torch)}, {_text(run.device)}: "
        f"{'green' if run.is_green else 'not green'}, "
        + words.counts_in_words({"broken": 0, **counts})
        + (f", {words.plural(len(run.problems), 'problem')}" if run.problems else "")
    ]
    before, after = run.before, run.after
    lines.append(
        f"Before: {_text(before.name)}; after: {_text(after.name)}; {_text(run.selection)}"
    )
    folder = words.shared_folder(run)
    names = [change.test for change in words.bad_changes(run)]
    names += [problem.where for problem in run.problems]
    names = [name.removeprefix(folder) for name in names]
    if names:
        shown = ", ".join(map(_code, names[:_NAMED_IN_SHORT]))
        more = len(names) - _NAMED_IN_SHORT
        lines.append(f"Not green: {shown}" + (f" and {more} more" if more > 0 else ""))
    return "\n".join(lines) + "\n"


def _blocks(run: Run, tails: bool) -> Iterator[str]:
    yield f"## {_text(words.headline(run))}\n"
    yield (
        f"Base {_code(run.base)}: torch {_text(run.torch)}, Python {_text(run.python)}, "
        f"{_text(run.platform)}, on **{_text(run.device)}**. Tests: {_code(run.selection)}.\n"
    )
    yield f"- Before: {_text(words.side_in_words(run.before))}"
    yield f"- After: {_text(words.side_in_words(run.after))}\n"
    if run.changes:
        yield _counts(run)
    if run.problems:
        yield f"### {words.plural(len(run.problems), 'problem')}\n"
        for problem in run.problems:
            yield f"{_code(problem.where)}<br>{_code(problem.what)}\n"
            if problem.tail and tails:
                yield _folded(words.plain(problem.tail))
    bad = words.bad_changes(run)
    if bad:
        yield f"### {words.plural(len(bad), 'test')} not green on {_text(run.device)}\n"
        for change in bad:
            yield _bad(change)
            if words.tail_of(change) and tails:
                yield _folded(words.tail_of(change))
    yield from _groups("known failure", words.known_by_reason(run))
    yield from _groups("test still skipped", words.skipped_by_reason(run), "tests still skipped")


def _counts(run: Run) -> str:
    """A table with a row a file."""
    files = words.by_file(run)
    total = words.count_labels(run.changes)
    columns = [name for name in words.LABELS if name in total or name == "broken"]
    lines = [
        "| file | tests | " + " | ".join(columns) + " |",
        "| --- |" + " ---: |" * (len(columns) + 1),
        _row("**all**", run.changes, columns),
    ]
    lines += [_row(_code(file), changes, columns) for file, changes in files.items()]
    return "\n".join(lines) + "\n"


def _row(name: str, changes: Sequence[Change], columns: Sequence[str]) -> str:
    counts = words.count_labels(changes)
    cells = [str(len(changes)), *(str(counts.get(column, 0)) for column in columns)]
    return f"| {name} | {' | '.join(cells)} |"


def _bad(change: Change) -> str:
    reason = words.reason_of(change)
    why = f": {_code(reason)}" if reason else ""
    return (
        f"**{words.label(change)}** {_code(change.test)}<br>{words.before_and_after(change)}{why}\n"
    )


def _groups(noun: str, by_reason: Mapping[str, Sequence[str]], many: str = "") -> Iterator[str]:
    number = sum(map(len, by_reason.values()))
    if not number:
        return
    yield f"### {number} {noun if number == 1 else many or noun + 's'}\n"
    for reason, tests in by_reason.items():
        listed = "\n".join(f"- {_code(test)}" for test in tests)
        summary = f"<code>{html.escape(words.one_line(reason))}</code>"
        yield (f"<details><summary>{len(tests)}: {summary}</summary>\n\n{listed}\n\n</details>\n")


def _folded(tail: str) -> str:
    fence = "`" * max(3, _longest_run_of_backticks(tail) + 1)
    return (
        f"<details><summary>Last lines</summary>\n\n{fence}text\n{tail.rstrip()}\n{fence}\n\n"
        "</details>\n"
    )


def _code(text: str) -> str:
    """A code span, also in a table; what stands in one mentions nobody and links nowhere."""
    text = words.one_line(text)
    if "|" in text:  # It would end a table's cell, and cannot always be escaped in a code span.
        return f"<code>{''.join(map(_entity, text))}</code>"
    ticks = "`" * (_longest_run_of_backticks(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}" if text else ""


def _entity(character: str) -> str:
    if character.isalnum() or not character.isascii() or character in " /.:,-":
        return character
    return f"&#{ord(character)};"


def _text(text: str) -> str:
    """Prose of which nothing is markup."""
    return re.sub(r"([\\`*\[\]<>&|~#!])|(?<!\w)_|_(?!\w)", r"\\\g<0>", words.one_line(text))


def _longest_run_of_backticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _size(text: str) -> int:
    return len(text.encode())
