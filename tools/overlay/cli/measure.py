"""Commands that show and measure: demo, bench."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import click

from overlay.cli.common import (
    json_option,
    load,
    main,
    markdown_option,
    one_form,
    plot_option,
    print_json,
    say,
)
from overlay.cli.upstream import base_and_files, test_options

if TYPE_CHECKING:
    from overlay.demo import Demo


@main.command()
@json_option
@click.pass_obj
def demo(series: Optional[Path], as_json: bool) -> None:
    """Show nested precisions fail on the stock torch and work with the series.

    Fetches torch into the cache folder on first use. Exits with 1 unless the stock torch
    fails and the patched one works, both as they must.
    """
    from dataclasses import asdict

    from overlay.demo import run_demo

    shown = run_demo(load(series), say)
    if as_json:
        print_json({**asdict(shown), "patched": str(shown.patched), "ok": shown.as_expected})
    else:
        _print_demo(shown)
    sys.exit(0 if shown.as_expected else 1)


def _print_demo(shown: Demo) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for title, half, wanted in (
        ("Before: stock torch", shown.before, "fails"),
        ("After: with the series", shown.after, "works"),
    ):
        table = Table(title=f"{title} {half.torch}", title_justify="left")
        for column in ("module", "parameters in forward", "forward received", "gradient"):
            table.add_column(column)
        for row in half.rows:
            gradient = row["gradient"] or "none"
            table.add_row(row["module"], row["parameters"], row["received"], gradient)
        console.print(table)
        console.print(f"error: {half.error}" if half.error else "no error", markup=False)
        verdict = "as it must" if half.as_expected else "NOT AS IT MUST"
        console.print(f"{wanted}: {verdict}\n", markup=False)
    click.echo(f"The patched torch is in {shown.patched}")


@main.group()
def bench() -> None:
    """Measure what the tool's commands cost; ratios are of one run on one machine."""


@bench.command(name="apply")
@json_option
@click.pass_obj
def bench_apply(series: Optional[Path], as_json: bool) -> None:
    """Measure --help, status and apply, and git am of the same change.

    Exits with 1 if one takes longer, or more memory, than it may.
    """
    from overlay import bench as benches

    costs = benches.bench_apply(load(series), say)
    rival = next(cost.median for cost in costs if cost.name == "git am")
    if as_json:
        print_json(
            [
                {
                    "name": cost.name,
                    "seconds": list(cost.seconds),
                    "median_seconds": cost.median,
                    "ratio_to_git_am": cost.median / rival,
                    "peak_mib": cost.mib,
                    "within_limit": cost.within_limit,
                }
                for cost in costs
            ]
        )
    else:
        click.echo(f"{'':10} {'median':>8} {'min':>8} {'max':>8} {'/ git am':>9} {'peak':>9}")
        for cost in costs:
            click.echo(
                f"{cost.name:10} {cost.median:6.3f} s {min(cost.seconds):6.3f} s"
                f" {max(cost.seconds):6.3f} s {cost.median / rival:9.2f} {cost.mib:5.0f} MiB"
                + ("" if cost.within_limit else "  OVER ITS LIMIT")
            )
    sys.exit(0 if all(cost.within_limit for cost in costs) else 1)


@bench.command(name="tests")
@test_options
@json_option
@click.pass_obj
def bench_tests(
    series: Optional[Path],
    names: tuple[str, ...],
    related: bool,
    every: bool,
    keyword: str,
    jobs: Optional[int],
    timeout: float,
    as_json: bool,
) -> None:
    """Measure the forked runner of 'test' beside ordinary pytest with spawned ranks.

    Both run the same files of the unpatched half, on the CPU. Exits with 1 if a test's verdict
    differs, or if the forked runner is not five times faster.
    """
    from overlay.upstream import bench as benches
    from overlay.upstream.compare import Request
    from overlay.upstream.report import LiveView

    base, files = base_and_files(names, every, related)
    request = Request(
        tuple(files), keyword, every, device="cpu", workers=jobs, timeout=timeout, fresh=True
    )
    with LiveView() as view:
        made = benches.bench_tests(base, load(series), request, view.on_event)
    if as_json:
        print_json(made.as_json())
    else:
        for line in made.lines():
            click.echo(line)
    sys.exit(0 if made.is_good else 1)


@bench.command(name="cast")
@click.option(
    "--torch",
    "venvs",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="VENV",
    help="A stock torch to measure; may be given again. Default: torch 2.13.0, built in the cache.",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@markdown_option
@plot_option("Draw µs by number of tensors on the last torch as an SVG picture.")
@json_option
@click.pass_obj
def bench_cast(
    series: Optional[Path],
    venvs: Sequence[Path],
    device: str,
    markdown: bool,
    plot_file: Optional[Path],
    as_json: bool,
) -> None:
    """Measure how the inputs of a forward are cast: stock torch and the series, in one run.

    Exits with 1 if a goal is missed, or if anything reaches the device where nothing is cast.
    """
    from overlay import bench_cast as benches
    from overlay import cast_report as report
    from overlay import runtime

    one_form(as_json, markdown)
    stock = list(venvs) or [runtime.torch_venv(progress=say, packages=runtime.TEST_PACKAGES)]
    patches = load(series)
    found = [
        benches.bench_cast(patches, venv, device, plot_file is not None and venv == stock[-1], say)
        for venv in stock
    ]
    if plot_file:
        plot_file.write_text(report.plot(found[-1]), encoding="utf-8")
    if as_json:
        print_json([report.to_json(one) for one in found])
    elif markdown:
        for line in report.markdown_lines(found):
            click.echo(line)
    else:
        for one in found:
            for line in report.text_lines(one):
                click.echo(line)
    sys.exit(0 if all(one.met for one in found) else 1)
