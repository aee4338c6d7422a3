"""Commands for the series as a stack of pull requests: submit, lint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import click

from overlay.cli.common import counted, fail, json_option, main, open_target, print_json, say

if TYPE_CHECKING:
    from overlay.stack.submit import Submission


@main.command()
@click.argument("checkout", metavar="CHECKOUT")
@click.option("--dry-run", is_flag=True, help="Check, show the plan, and submit nothing.")
@click.option("--only", metavar="PATCH", help="Submit one patch alone.")
@click.option("--from", "start", metavar="PATCH", help="Submit a patch and those above it.")
@click.option("--message", "-m", metavar="TEXT", help="What changed; of existing pull requests.")
@click.option("--draft", is_flag=True, help="Open new pull requests as drafts.")
@click.option("--reviewer", metavar="NAMES", help="Ask these for a review of new ones.")
@click.option("--label", metavar="NAMES", help="Give new ones these labels.")
@click.option("--update-fields", is_flag=True, help="Write titles and texts anew from the patches.")
@click.option(
    "--despite",
    type=click.Choice(["lint", "tests"]),
    multiple=True,
    help="Submit whatever this check finds.",
)
@click.pass_obj
def submit(
    series: Optional[Path],
    /,
    checkout: str,
    dry_run: bool,
    despite: tuple[str, ...],
    **chosen: Any,
) -> None:
    """Submit the applied series as a stack of pull requests, with ghstack.

    Nothing leaves the machine before all checks are through. Which pull request a patch is, is
    then noted in its header, so that every later submit updates that one, from any checkout.
    docs/submitting.md tells the whole round.
    """
    from overlay.errors import UsageError
    from overlay.stack import submit as submitting
    from overlay.targets import Checkout

    found, patches = open_target(series, checkout)
    if not isinstance(found, Checkout):
        raise UsageError(f"{checkout} is not a git checkout: ghstack submits commits")
    options = submitting.Options(despite=despite, **chosen)
    if options.only and options.start:
        raise UsageError("--only and --from are two ways to name a part: choose one")
    if dry_run:
        planned, problems = submitting.plan_submit(found, patches, options, say)
        _print_submission(planned, dry_run)
        if problems:
            raise submitting.refusal(problems)
        return
    done = submitting.submit(found, patches, options, say)
    _print_submission(done, dry_run)
    if done.problem:
        fail(done.problem)
        sys.exit(2)


def _print_submission(found: Submission, dry_run: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("patch", "title", "pull request", "on", "changed", "labels"):
        table.add_column(column, overflow="fold")
    for row in found.rows:
        pull = row.pull or ("new" if dry_run else "none")
        changed = row.changed if row.is_submitted else f"{row.changed} (left out)"
        table.add_row(row.patch, row.title, pull, row.base, changed, row.labels)
    if found.rows:
        console = Console(width=None if sys.stdout.isatty() else 1000, markup=False)
        with console.capture() as shown:
            console.print(table)
        click.echo("\n".join(line.rstrip() for line in shown.get().splitlines()))
    for row in found.rows if dry_run else ():
        click.echo(f"\n--- {row.patch}: {row.title}\n{row.body}", nl=False)


@main.command()
@click.argument("checkout", metavar="CHECKOUT")
@json_option
@click.pass_obj
def lint(series: Optional[Path], checkout: str, as_json: bool) -> None:
    """Run the checkout's own linters, with lintrunner, on the files that the series touches.

    Exits with 1 if one finds something in the lines of the series, with 2 if none could run.
    """
    from overlay.stack.linting import lint_applied

    found, patches = open_target(series, checkout)
    linted = lint_applied(found, patches)
    if as_json:
        from dataclasses import asdict

        print_json(asdict(linted))
    else:
        for finding in linted.findings:
            click.echo(finding)
        for code in linted.ran:
            click.echo(f"ran       {code}" + _in_brackets(linted.other_versions.get(code)))
        for code, why in linted.not_run.items():
            click.echo(f"not run   {code}: {why}")
        if linted.elsewhere:
            lines = counted(len(linted.elsewhere), "finding")
            click.echo(f"{lines} in lines that the series leaves alone")
    if not linted.ran:
        raise linted.nothing_ran()
    sys.exit(1 if linted.findings else 0)


def _in_brackets(text: Optional[str]) -> str:
    return f" ({text})" if text else ""
