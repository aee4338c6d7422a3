"""The command line: read arguments, call, print.

Everything that takes time to import is imported by the command that needs it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Optional

import click

from overlay.errors import OverlayError

if TYPE_CHECKING:
    from overlay.demo import Demo
    from overlay.operations import Plan, Standing
    from overlay.series import Series
    from overlay.targets import Target
    from overlay.verify import Report

TARGET_HELP = """\b
TARGET is an installed torch (a venv, an interpreter or a site-packages folder)
or a PyTorch source tree; by default the torch of the Python that runs this tool.
"""

NO_TESTS = "an installed torch has no test/"

target_argument = click.argument("target", required=False, metavar="[TARGET]")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")


class _Group(click.Group):
    """A group whose errors are one clear line, then details, with the error's exit code."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        try:
            super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.exceptions.Abort:
            _fail("stopped")
            sys.exit(130)
        except click.ClickException as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # the older click has none
                error.show()
                sys.exit(2)
            context = getattr(error, "ctx", None)
            hint = f"see '{context.command_path} --help'" if context else ""
            _fail(error.format_message(), [hint] if hint else [])
            sys.exit(2)
        except OverlayError as error:
            _fail(error.message, error.details)
            sys.exit(error.exit_code)
        except BrokenPipeError:
            _drop_output()  # Who reads it has had enough.
            sys.exit(141)
        except OSError as error:
            _drop_output()
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{where}{error.strerror or error}")
            sys.exit(2)
        sys.exit(0)


def _drop_output() -> None:
    """Without this the interpreter complains at exit of what it cannot write."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, details: Sequence[str] = ()) -> None:
    click.echo(f"torch-overlay: {message}", err=True)
    for detail in details:
        click.echo(f"  {detail}", err=True)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--series",
    "series_folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Another series: DIR/patches/series and DIR/torch_overlay. Default: the tool's own.",
)
@click.version_option(package_name="torch-overlay", prog_name="torch-overlay")
@click.pass_context
def main(context: click.Context, series_folder: Optional[Path]) -> None:
    """Carry a series of patches on PyTorch, addressed by symbol instead of by line."""
    context.obj = series_folder


def _open(series_folder: Optional[Path], where: Optional[str]) -> tuple[Target, Series]:
    from overlay.series import load_series, own_series
    from overlay.targets import find_target

    series = load_series(series_folder or own_series())
    return find_target(where), series


@contextmanager
def _working(what: str) -> Iterator[None]:
    """A spinner on standard error while something takes time, where a person looks on."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


@main.command(epilog=TARGET_HELP)
@target_argument
@click.option("--dry-run", is_flag=True, help="Weave and verify, and write nothing.")
@json_option
@click.pass_obj
def apply(series: Optional[Path], target: Optional[str], dry_run: bool, as_json: bool) -> None:
    """Apply the series: all of it or nothing, verified before anything is written."""
    from overlay import operations
    from overlay.weave import State

    found, patches = _open(series, target)
    with _working("weaving and verifying"):
        made = operations.plan(found, patches) if dry_run else operations.apply(found, patches)
    if as_json:
        _print_json({**_standing_json(made.standing), **_plan_json(made), "dry_run": dry_run})
        return
    _say_not_carried(made.standing)
    _say_unresolved(made.report)
    if not made.writes:
        click.echo(f"{found}: nothing to change, the series is applied")
        return
    for path in made.writes:
        click.echo(f"  {path}")
    applied = "would be applied" if dry_run else "applied"
    patches_taken = len(made.standing.patches(State.APPLIED, State.PENDING))
    names = _count(patches_taken, "patch", "patches")
    files = "nothing was written" if dry_run else f"{_count(len(made.writes), 'file')} written"
    click.echo(f"{found}: {names} {applied}, {files}")


def _plan_json(made: Plan) -> dict[str, object]:
    return {"files": list(made.writes), "verify": _report_json(made.report)}


def _report_json(report: Report) -> dict[str, object]:
    def listed(findings: Sequence[Any]) -> list[dict[str, object]]:
        return [{"path": f.path, "line": f.line, "message": f.message} for f in findings]

    return {
        "findings": listed(report.findings),
        "unresolved": listed(report.unresolved),
        "signatures": [str(change) for change in report.signatures],
        "calls_checked": report.calls_checked,
        "names_checked": report.names_checked,
    }


def _say_not_carried(found: Standing) -> None:
    for name, paths in found.not_carried().items():
        click.echo(f"{name}: left out, {NO_TESTS}: {', '.join(paths)}")


def _say_unresolved(report: Report) -> None:
    for finding in report.unresolved:
        click.echo(f"verify could not resolve {finding}")


@main.command(epilog=TARGET_HELP)
@target_argument
@json_option
@click.pass_obj
def revert(series: Optional[Path], target: Optional[str], as_json: bool) -> None:
    """Take the series out again; every file is as it was, byte for byte."""
    from overlay.targets import find_target

    found = find_target(target)
    with _working("reverting"):
        paths = found.revert()
    if as_json:
        _print_json({"target": str(found.root), "version": found.version, "files": paths})
    elif paths:
        for path in paths:
            click.echo(f"  {path}")
        click.echo(f"{found}: reverted, {_count(len(paths), 'file')} restored")
    else:
        click.echo(f"{found}: nothing to revert, this tool has applied nothing there")


@main.command(epilog=TARGET_HELP)
@target_argument
@json_option
@click.pass_obj
def status(series: Optional[Path], target: Optional[str], as_json: bool) -> None:
    """Show how each patch stands: applied, pending, upstreamed, in conflict or not selected.

    Exits with 1 if one is in conflict, or if files of the series have other changes.
    """
    from overlay.operations import standing
    from overlay.weave import State

    found, patches = _open(series, target)
    result = standing(found, patches)
    conflict = bool(result.patches(State.CONFLICT) or result.edited)
    if as_json:
        _print_json(_standing_json(result))
    else:
        _print_standing(result)
    sys.exit(1 if conflict else 0)


def _standing_json(found: Standing) -> dict[str, object]:
    left_out = found.not_carried()
    return {
        "target": str(found.target.root),
        "kind": found.target.kind,
        "version": found.target.version,
        "patches": [
            {
                "name": state.patch.name,
                "subject": state.patch.message.subject,
                "state": state.state.value,
                "reason": state.reason,
                "details": list(state.details),
                "left_out": list(left_out.get(state.patch.name, ())),
            }
            for state in found.states
        ],
        "edited": list(found.edited),
    }


def _print_standing(found: Standing) -> None:
    colours = {"applied": "green", "pending": "yellow", "in conflict": "red", "upstreamed": "cyan"}
    click.echo(str(found.target))
    left_out = found.not_carried()
    for state in found.states:
        value = state.state.value
        click.echo(click.style(f"{value:14}", colours.get(value)) + state.patch.message.subject)
        notes = [note for note in (state.reason, *state.details) if note]
        notes += [f"left out, {NO_TESTS}: {path}" for path in left_out.get(state.patch.name, ())]
        for note in notes:
            click.echo(f"{'':14}{note}")
    reason = found.target.refusal()
    if reason is not None:
        click.echo(f"cannot be changed: {reason}")
        return
    for path in found.edited:
        click.echo(f"{path} has changes that are neither PyTorch's nor the series'")


@main.command(epilog=TARGET_HELP)
@target_argument
@json_option
@click.pass_obj
def verify(series: Optional[Path], target: Optional[str], as_json: bool) -> None:
    """Check what the series makes of the target, whether it is applied yet or not.

    Every touched file compiles, every name it newly uses exists, and every call of a
    function whose signature changed still binds, in the whole of torch/. Calls that
    cannot be resolved are listed.
    """
    from overlay import operations

    found, patches = _open(series, target)
    with _working("verifying"):
        made = operations.plan(found, patches)
    if as_json:
        _print_json({**_standing_json(made.standing), **_plan_json(made)})
        return
    _say_unresolved(made.report)
    report = made.report
    counts = (
        _count(len(report.signatures), "changed signature"),
        f"{_count(report.calls_checked, 'call')} checked",
        f"{_count(report.names_checked, 'name')} checked",
        f"{len(report.unresolved)} unresolved",
    )
    click.echo(f"{found}: holds; {', '.join(counts)}")


@main.command(epilog=TARGET_HELP)
@target_argument
@click.pass_obj
def diff(series: Optional[Path], target: Optional[str]) -> None:
    """Print what apply would change, as a unified diff."""
    from overlay import operations

    found, patches = _open(series, target)
    made = operations.plan(found, patches)
    click.echo(operations.unified_diff(made.standing), nl=False)


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
    from overlay.series import load_series, own_series

    started = time.monotonic()

    def say(line: str) -> None:
        click.echo(f"[{time.monotonic() - started:5.1f} s] {line}", err=True)

    shown = run_demo(load_series(series or own_series()), say)
    if as_json:
        _print_json({**asdict(shown), "patched": str(shown.patched), "ok": shown.as_expected})
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
    from overlay.series import load_series, own_series

    def say(line: str) -> None:
        click.echo(line, err=True)

    costs = benches.bench_apply(load_series(series or own_series()), say)
    rival = next(cost.median for cost in costs if cost.name == "git am")
    if as_json:
        _print_json(
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
