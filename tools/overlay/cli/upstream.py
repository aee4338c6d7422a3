"""Commands for PyTorch's own tests: test, report."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

import click

from overlay.cli.common import json_text, load, main, write_text

if TYPE_CHECKING:
    from overlay.bases import Base


def test_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a run of upstream's tests and its benchmark both take."""
    for option in (
        click.option(
            "--timeout", default=600.0, show_default=True, help="Seconds a test may take."
        ),
        click.option("-j", "--jobs", type=click.IntRange(1), help="Files at a time."),
        click.option("-k", "keyword", default="", metavar="EXPR", help="Tests, as pytest's -k."),
        click.option("--all", "every", is_flag=True, help="All of test/distributed/fsdp."),
        click.option("--related", is_flag=True, help="Files that the patches name (the default)."),
        click.argument("names", nargs=-1, metavar="[BASE] [FILES]..."),
    ):
        command = option(command)
    return command


def base_and_files(names: Sequence[str], every: bool, related: bool) -> tuple[Base, list[str]]:
    """What the first name says, and the rest; the base may be left out."""
    from overlay.bases import DEFAULT_BASE, find_base
    from overlay.errors import UsageError

    has_base = bool(names) and not re.match(r"test|.*/|.*\.py$", names[0])
    base = find_base(names[0] if has_base else DEFAULT_BASE)
    files = list(names[1:] if has_base else names)
    if [bool(files), every, related].count(True) > 1:
        raise UsageError("files, --all and --related are three ways to choose tests: use one")
    return base, files


@main.command()
@test_options
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Real CUDA devices, or the CPU; auto takes CUDA where there are two devices.",
)
@click.option("--shard", metavar="K/N", help="The K-th of N shares that take equally long.")
@click.option(
    "--one-device",
    is_flag=True,
    help="With one CUDA device, leave out the tests that need two instead of refusing.",
)
@click.option("--isolate", is_flag=True, help="Upstream's own way: a fresh interpreter each time.")
@click.option("--fresh", is_flag=True, help="Run the stock half too if its results are kept.")
@click.option("--json", "json_file", metavar="FILE", help="Write the run as JSON; - prints it.")
@click.option("--junit", "junit_file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--html", "html_file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--summary", "summary_file", type=click.Path(path_type=Path), metavar="FILE")
@click.pass_obj
def test(
    series: Optional[Path],
    names: tuple[str, ...],
    related: bool,
    every: bool,
    keyword: str,
    device: str,
    shard: Optional[str],
    jobs: Optional[int],
    timeout: float,
    isolate: bool,
    fresh: bool,
    one_device: bool,
    json_file: Optional[str],
    junit_file: Optional[Path],
    html_file: Optional[Path],
    summary_file: Optional[Path],
) -> None:
    """Run PyTorch's own FSDP tests on a base, before and after the series.

    BASE is one of 'base list' whose source is fetched, v2.13.0 by default; FILES are test files or
    folders of PyTorch's tree, or the names of files in test/distributed/fsdp. Without FILES those
    run that the patches name in their Tests fields. On the CPU, a stand-in for CUDA lets upstream's
    tests run, and their ranks are forked from one process instead of spawned.

    Results on the stock torch are kept, so that only the half with the series runs again. Shards
    are dealt by how long tests took in runs of all of them; together they are all tests if they are
    of the same plan, which each result names. Exits with 1 if a test is broken, did not run, or
    fails and is not known to. With GITHUB_STEP_SUMMARY set, the summary goes there too.
    """
    from overlay.upstream import compare, report
    from overlay.upstream.selection import parse_shard

    base, files = base_and_files(names, every, related)
    request = compare.Request(
        files=tuple(files),
        keyword=keyword,
        every=every,
        device=device,
        shard=parse_shard(shard) if shard else None,
        workers=jobs,
        timeout=timeout,
        isolate=isolate,
        fresh=fresh,
        one_device=one_device,
    )
    with report.LiveView() as view:
        run = compare.run(base, load(series), request, view.on_event)
    markdown = report.markdown(run) + "\n"
    if junit_file:
        write_text(junit_file, report.junit(run))
    if html_file:
        write_text(html_file, report.html(run))
    if summary_file:
        write_text(summary_file, markdown)
    if json_file and json_file != "-":
        write_text(Path(json_file), json_text(run.as_json()))
    step_summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if step_summary:
        with open(step_summary, "a", encoding="utf-8") as summary:
            summary.write(markdown)
    if json_file == "-":
        click.echo(json_text(run.as_json()), nl=False)
    else:
        from rich.console import Console

        report.terminal(run, Console(highlight=False))
    sys.exit(0 if run.is_green else 1)


@main.command()
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="RUN.json...",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["text", "markdown", "short", "html", "junit", "table"]),
    default="text",
    show_default=True,
    help="short is for a pull request's body; table is of all the runs together.",
)
def report(files: tuple[Path, ...], form: str) -> None:
    """Print kept runs of upstream's tests ('torch-overlay test --json') in another form."""
    from rich.console import Console

    from overlay.errors import UsageError
    from overlay.upstream import report as reports
    from overlay.upstream.results import read_run

    runs = [read_run(file) for file in files]
    if form == "table":
        click.echo(reports.table(runs), nl=False)
        return
    if form in ("html", "junit") and len(runs) > 1:
        raise UsageError(f"--as {form} is of one run: name one file, not {len(runs)}")
    for run in runs:
        if form == "text":
            reports.terminal(run, Console(highlight=False))
        else:
            click.echo(getattr(reports, form)(run), nl=form == "junit")
