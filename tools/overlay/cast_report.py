"""What ``bench cast`` found, as text, JSON, Markdown tables and a plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Optional
from xml.sax.saxutils import escape

from overlay.bench_cast import SHARE_GOAL, CastBench

HEAD = ("inputs", "stock", "ours", "bare loop", "times faster", "goal")


def to_json(found: CastBench) -> dict[str, Any]:
    """Everything, with whether it meets its goals."""
    value = asdict(found)
    for row, content in zip(found.rows, value["rows"]):
        content["met"] = row.met
    return {**value, "met": found.met}


def text_lines(found: CastBench) -> Iterator[str]:
    """For a terminal."""
    yield f"torch {found.torch}, {found.device}, one thread; us: median (quartiles)"
    cells = [HEAD, *_rows(found)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
    yield from _notes(found)


def _rows(found: CastBench) -> Iterator[tuple[str, ...]]:
    for row in found.rows:
        goal = f"{row.goal.times:g}" + ("" if row.met else ", MISSED")
        bare = f"{row.bare.median:.2f}" if row.bare else ""
        times = [f"{spread.median:.2f}" for spread in (row.stock, row.ours)]
        yield (row.goal.name, *times, bare, str(row.ratio), goal)


def _notes(found: CastBench) -> Iterator[str]:
    if found.share:
        share = found.share
        verdict = "" if share.met else ", MISSED"
        yield (
            f"32 FSDP2 layers, 3 arguments each, nothing to cast: {share.stock.median:.0f} us a "
            f"layer, of which casting takes {share.stock_share}; with the series "
            f"{share.ours.median:.0f}, of which {share.ours_share} (goal: {SHARE_GOAL:g}{verdict})"
        )
    else:
        yield f"FSDP2: not measured, {found.no_share}"
    note = f"100 tensors to cast: {found.many['each'].median:.0f} us one by one, as it is done"
    if "foreach" in found.many:
        note += f"; {found.many['foreach'].median:.0f} with _foreach_copy_, without autograd"
    yield note
    seen = ", ".join(found.device_work) or "no operator, launch or wait"
    yield f"the profiler sees {seen} where nothing is cast"


def markdown_lines(benches: Sequence[CastBench]) -> Iterator[str]:
    """For a document: the contract on all torches, then the numbers of each."""
    yield "## What becomes of an input"
    yield ""
    columns: list[tuple[str, CastBench, str]] = []
    for bench in benches:
        names = next(iter(bench.contract.values()))
        release = bench.torch.split("+")[0]
        columns += [(f"{release} {name}", bench, name) for name in names if name != "ours"]
    columns.append(("the series", benches[-1], "ours"))
    yield f"| input | {' | '.join(title for title, _, _ in columns)} |"
    yield f"| --- |{' --- |' * len(columns)}"
    inputs = dict.fromkeys(name for bench in benches for name in bench.contract)
    for name in inputs:
        cells = [_outcome(bench.contract.get(name, {}).get(which)) for _, bench, which in columns]
        yield f"| {name} | {' | '.join(cells)} |"
    for bench in benches:
        yield ""
        yield f"## What it costs on torch {bench.torch}"
        yield ""
        yield f"| {' | '.join(HEAD)} |"
        yield f"| --- |{' ---: |' * (len(HEAD) - 1)}"
        for row in _rows(bench):
            yield f"| {' | '.join(row)} |"
        yield ""
        for note in _notes(bench):
            yield f"- {note}"


def _outcome(found: Optional[dict[str, str]]) -> str:
    if found is None:
        return ""
    cast, settled = found["cast"], found["settled"]
    if cast == settled:
        return cast
    return cast if settled == "the same object" else f"{cast}; {settled}"


_LINES = {"FSDP1": ("#cf222e", "stock"), "ours": ("#1a7f37", "the series"),
          "bare": ("#8c959f", "the bare loop over dtypes")}  # fmt: skip
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT = 420, 300, 60, 20, 190


def plot(found: CastBench) -> str:
    """Microseconds by number of tensors, as an SVG picture with logarithmic axes."""
    counts = list(found.by_count)
    values = [v for times in found.by_count.values() for v in times.values()]
    lowest, highest = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def x(count: float) -> float:
        return _LEFT + _WIDTH * math.log(count) / math.log(counts[-1])

    def y(value: float) -> float:
        return _TOP + _HEIGHT * (highest - math.log10(value)) / (highest - lowest)

    bottom, right = _TOP + _HEIGHT, _LEFT + _WIDTH
    width, height = right + _RIGHT, bottom + 50
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for power in range(lowest, highest + 1):
        level = y(10**power)
        out.append(f'<path d="M{_LEFT} {level:.1f}H{right}" stroke="#d0d7de"/>')
        out.append(
            f'<text x="{_LEFT - 8}" y="{level + 4:.1f}" text-anchor="end">{10**power:g}</text>'
        )
    for count in counts:
        out.append(
            f'<text x="{x(count):.1f}" y="{bottom + 18}" text-anchor="middle">{count}</text>'
        )
    out.append(
        f'<text x="{_LEFT + _WIDTH / 2:.0f}" y="{bottom + 40}" text-anchor="middle">'
        f"tensors of the right dtype (us, torch {escape(found.torch)}, one thread)</text>"
    )
    label = 0.0
    for name, (colour, meaning) in _LINES.items():
        points = [(x(count), y(times[name])) for count, times in found.by_count.items()]
        line = "L".join(f"{across:.1f} {down:.1f}" for across, down in points)
        out.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        across, down = points[-1]
        label = max(down + 4, label + 14)  # one line of text below the last at least
        out.append(f'<text x="{across + 8:.1f}" y="{label:.1f}" fill="{colour}">{meaning}</text>')
    return "\n".join([*out, "</svg>", ""])
