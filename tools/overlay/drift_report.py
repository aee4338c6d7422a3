"""What ``drift`` found, as text, JSON, Markdown and a plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any, Optional, TypeVar

from overlay.drift import Cell, Drift, Outcome, shared_patches
from overlay.rivals import Attempt, Verdict

T = TypeVar("T")

WHOLE = "the whole series"
OURS = "torch-overlay"


def to_json(found: Drift) -> dict[str, Any]:
    """Everything, release by release."""

    def cell_json(cell: Cell) -> dict[str, Any]:
        return {
            "outcome": cell.outcome.value,
            "reason": cell.reason,
            "details": list(cell.details),
        }

    names = [patch.name for patch in found.series.patches]
    return {
        "failed": found.failed,
        "releases": [
            {
                "version": release.version,
                "series": cell_json(release.series),
                "patches": {n: cell_json(c) for n, c in zip(names, release.patches)},
                "unresolved": list(release.unresolved),
            }
            for release in found.releases
        ],
        "compared": [
            {
                "tool": attempt.tool,
                "version": attempt.version,
                "verdict": attempt.verdict.value,
                "reason": attempt.reason,
            }
            for attempt in found.attempts
        ],
    }


def text_lines(found: Drift) -> Iterator[str]:
    """For a terminal: of each patch, runs of releases with the same result."""
    rows, unselected = _rows(found)
    for name, cells in rows:
        yield name
        for span, cell in _runs(cells):
            yield f"  {span:17} {cell.outcome.value}" + (f": {cell.reason}" if cell.reason else "")
            for detail in cell.details:
                yield f"{'':20}{detail}"
    if unselected:
        yield "for none of these releases"
        yield from (f"  {name}" for name in unselected)
    for span, calls in _runs([(release.version, release.unresolved) for release in found.releases]):
        for call in calls:
            yield f"{span}: verify could not resolve {call}"
    for tool, attempts in _by_tool(found).items():
        yield f"{tool}, of a diff made on {found.base}"
        for span, (verdict, reason) in _verdicts(attempts):
            yield f"  {span:17} {verdict.value}" + (f": {reason}" if reason else "")


def markdown_lines(found: Drift) -> Iterator[str]:
    """For a document: tables whose columns are runs of releases with the same results."""
    rows, unselected = _rows(found)
    yield f"## The series on {len(found.releases)} releases"
    yield ""
    yield from _matrix(
        "patch", [(n, [(v, c.outcome.value) for v, c in cells]) for n, cells in rows]
    )
    yield ""
    if unselected:
        yield f"For none of these releases: {', '.join(unselected)}."
        yield ""
    for name, cells in rows:
        for span, cell in _runs(cells):
            if cell.outcome is Outcome.FAILED:
                yield f"- {name} on {span}: {cell.reason}"
    if found.attempts:
        yield from _comparison(found, rows[0][1])


def _comparison(found: Drift, ours: Sequence[tuple[str, Cell]]) -> Iterator[str]:
    tools = _by_tool(found)
    comparable = [
        release.version
        for release in found.releases
        if release.version != found.base
        and shared_patches(found.series, found.base, release.version)
    ]
    occurring = {a.verdict for a in found.attempts if a.version in comparable}
    verdicts = [verdict for verdict in Verdict if verdict in occurring]
    yield f"## The same change, as a diff made on {found.base}"
    yield ""
    yield f"Of the other releases, {len(comparable)} get patches of it, which are compared:"
    yield ""
    yield f"| tool | {' | '.join(verdict.value for verdict in verdicts)} |"
    yield f"| --- |{' ---: |' * len(verdicts)}"
    for tool, attempts in tools.items():
        verdict_of = {a.version: a.verdict for a in attempts}
        tally = [sum(verdict_of[v] is verdict for v in comparable) for verdict in verdicts]
        yield f"| {tool} | {' | '.join(map(str, tally))} |"
    yield ""
    yield "On all:"
    yield ""
    holds = [(version, cell.outcome.value) for version, cell in ours if version != found.base]
    made = [(tool, [(a.version, a.verdict.value) for a in tried]) for tool, tried in tools.items()]
    yield from _matrix("tool", [(OURS, holds), *made])
    yield ""
    for tool, attempts in tools.items():
        for span, (verdict, reason) in _verdicts(attempts):
            if reason and verdict is not Verdict.REFUSED:
                yield f"- {tool} on {span}: {verdict.value}: {reason}"


_COLOURS = {
    "same": ("#1a7f37", "the same as torch-overlay's, or holds"),
    "other": ("#d4a72c", "applied, other code"),
    "broken": ("#cf222e", "applied, broken code, or failed"),
    "refused": ("#d0d7de", "refused"),
    "none": ("#ffffff", "the series is not for it, or not tried"),
}
_KINDS = {
    Verdict.SAME: "same",
    Verdict.SAME_CODE: "same",
    Verdict.DIFFERENT: "other",
    Verdict.UNJUDGED: "other",
    Verdict.BROKEN: "broken",
    Verdict.REFUSED: "refused",
    Verdict.ABSENT: "none",
    Outcome.HOLDS: "same",
    Outcome.NEEDS_EARLIER: "same",
    Outcome.UPSTREAMED: "same",
    Outcome.FAILED: "broken",
    Outcome.NOT_SELECTED: "none",
}


def plot(found: Drift) -> str:
    """The comparison as an SVG picture: tools by releases."""
    versions = [release.version for release in found.releases]
    rows: list[tuple[str, dict[str, str]]] = [
        (OURS, {r.version: _KINDS[r.series.outcome] for r in found.releases})
    ]
    for tool, attempts in _by_tool(found).items():
        rows.append((tool, {a.version: _KINDS[a.verdict] for a in attempts}))
    left, top, side, high = 130, 50, 22, 24
    width = left + side * len(versions) + 10
    legend_top = top + high * len(rows) + 12
    height = legend_top + 20 * len(_COLOURS) + 4
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        "<defs>",
        *(_symbol(kind, colour) for kind, (colour, _) in _COLOURS.items()),
        "</defs>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for column, version in enumerate(versions):
        x = left + side * column + 14
        out.append(f'<text transform="translate({x},{top - 6}) rotate(-60)">{version}</text>')
    for line, (name, kinds) in enumerate(rows):
        y = top + high * line
        out.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        for column, version in enumerate(versions):
            if version in kinds:  # else the diff was made there
                out.append(f'<use href="#{kinds[version]}" x="{left + side * column}" y="{y}"/>')
    for line, (kind, (_, meaning)) in enumerate(_COLOURS.items()):
        y = legend_top + 20 * line
        out.append(f'<use href="#{kind}" x="{left}" y="{y}"/>')
        out.append(f'<text x="{left + 26}" y="{y + 14}">{escape(meaning)}</text>')
    return "\n".join([*out, "</svg>", ""])


def _symbol(kind: str, colour: str) -> str:
    mark = {"other": "≠", "broken": "!", "refused": "-"}.get(kind, "")
    return (
        f'<g id="{kind}"><rect width="18" height="18" rx="3" fill="{colour}" stroke="#8c959f"/>'
        f'<text x="9" y="14" text-anchor="middle">{mark}</text></g>'
    )


def _rows(found: Drift) -> tuple[list[tuple[str, list[tuple[str, Cell]]]], list[str]]:
    """The series and each patch with its result for each release, and the patches without any."""
    rows = [(WHOLE, [(r.version, r.series) for r in found.releases])]
    unselected = []
    for number, patch in enumerate(found.series.patches):
        cells = [(r.version, r.patches[number]) for r in found.releases]
        if all(cell.outcome is Outcome.NOT_SELECTED for _, cell in cells):
            unselected.append(patch.name)
        else:
            rows.append((patch.name, cells))
    return rows, unselected


def _by_tool(found: Drift) -> dict[str, list[Attempt]]:
    tools: dict[str, list[Attempt]] = {}
    for attempt in found.attempts:
        tools.setdefault(attempt.tool, []).append(attempt)
    return tools


def _verdicts(attempts: Sequence[Attempt]) -> Iterator[tuple[str, tuple[Verdict, str]]]:
    return _runs([(a.version, (a.verdict, a.reason)) for a in attempts])


def _runs(values: Sequence[tuple[str, T]]) -> Iterator[tuple[str, T]]:
    """Neighbouring versions with equal values, as one: ``2.1.0 to 2.15.0``."""
    for value, group in groupby(values, key=lambda pair: pair[1]):
        versions = [version for version, _ in group]
        yield (f"{versions[0]} to {versions[-1]}" if len(versions) > 1 else versions[0]), value


def _matrix(what: str, rows: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> Iterator[str]:
    """A table whose columns are runs of versions in which no row changes."""
    versions = [version for version, _ in rows[0][1]] if rows else []
    columns: list[tuple[str, tuple[Optional[str], ...]]] = [
        (version, tuple(cells[number][1] for _, cells in rows))
        for number, version in enumerate(versions)
    ]
    spans = list(_runs(columns))
    yield f"| {what} | {' | '.join(span for span, _ in spans)} |"
    yield f"| --- |{' --- |' * len(spans)}"
    for number, (name, _) in enumerate(rows):
        yield f"| {name} | {' | '.join(str(values[number]) for _, values in spans)} |"
