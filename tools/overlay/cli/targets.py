"""Commands on a target: apply, revert, status, verify, diff."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import click

from overlay.cli.common import (
    NO_TESTS,
    TARGET_HELP,
    counted,
    json_option,
    main,
    open_target,
    print_json,
    say_left_out,
    target_argument,
    working,
)

if TYPE_CHECKING:
    from overlay.operations import Plan, Standing
    from overlay.verify import Report

NOTHING_APPLIED = "this tool has applied nothing there"
DROP = "remove it and its line in patches/series, or end its Torch-Version there"


@main.command(epilog=TARGET_HELP)
@target_argument
@click.option("--dry-run", is_flag=True, help="Weave and verify, and write nothing.")
@click.option(
    "--no-commit", is_flag=True, help="Change a git checkout's files, and commit nothing."
)
@json_option
@click.pass_obj
def apply(
    series: Optional[Path], target: Optional[str], dry_run: bool, no_commit: bool, as_json: bool
) -> None:
    """Apply the series: all of it or nothing, verified before anything is written.

    In a git checkout each patch becomes a commit, made by git am with your hooks and signing.
    """
    from overlay import operations
    from overlay.weave import State

    found, patches = open_target(series, target, not no_commit)
    with working("weaving and verifying"):
        if dry_run:
            made = operations.plan(found, patches)
        else:
            made = operations.apply(found, patches, not no_commit)
    if as_json:
        value = {**_standing_json(made.standing), **_plan_json(made), "dry_run": dry_run}
        print_json({**value, "commits": list(made.commits)})
        return
    say_left_out(made.standing.not_carried())
    if made.writes:
        _say_unresolved(made.report)
    if not made.writes and not made.commits:
        click.echo(f"{found}: nothing to change, the series is applied")
        return
    for path in made.writes:
        click.echo(f"  {path}")
    applied = "would be applied" if dry_run else "applied"
    patches_taken = len(made.standing.patches(State.APPLIED, State.PENDING))
    names = counted(patches_taken, "patch", "patches")
    files = "nothing was written" if dry_run else f"{counted(len(made.writes), 'file')} written"
    if made.commits:
        files += f", {counted(len(made.commits), 'commit')} made"
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


def _say_unresolved(report: Report) -> None:
    for finding in report.unresolved:
        click.echo(f"verify could not resolve {finding}")


@main.command(epilog=TARGET_HELP)
@target_argument
@json_option
@click.pass_obj
def revert(series: Optional[Path], target: Optional[str], as_json: bool) -> None:
    """Take the series out again; every file is as it was, byte for byte.

    In a git checkout this takes its commits off the branch, if they are the topmost ones.
    """
    from overlay import operations

    found, patches = open_target(series, target)
    with working("reverting"):
        taken = operations.revert(found, patches)
    if as_json:
        value = {"target": str(found.root), "version": found.version}
        print_json({**value, "files": taken.paths, "commits": taken.commits})
    elif taken.paths:
        for line in taken.commits or taken.paths:
            click.echo(f"  {line}")
        what = f"{counted(len(taken.paths), 'file')} restored"
        if taken.commits:
            what = f"{counted(len(taken.commits), 'commit')} taken off, {what}"
        click.echo(f"{found}: reverted, {what}")
    else:
        nothing = "the series is not there" if found.kind == "checkout" else NOTHING_APPLIED
        click.echo(f"{found}: nothing to revert, {nothing}")


@main.command(epilog=TARGET_HELP)
@target_argument
@json_option
@click.pass_obj
def status(series: Optional[Path], target: Optional[str], as_json: bool) -> None:
    """Show how each patch stands: applied, pending, upstreamed, in conflict or not selected.

    Exits with 1 if one is in conflict, or if files of the series have other changes.
    """
    from overlay.operations import standing
    from overlay.stack.landed import landed_by_last_fetch
    from overlay.weave import State

    found, patches = open_target(series, target)
    result = standing(found, patches)
    landed = landed_by_last_fetch(result, patches)
    conflict = bool(result.patches(State.CONFLICT) or result.edited)
    if as_json:
        print_json(_standing_json(result, landed))
    else:
        _print_standing(result, landed)
    sys.exit(1 if conflict else 0)


def _standing_json(
    found: Standing, landed: Optional[Mapping[str, str]] = None
) -> dict[str, object]:
    from overlay.stack.identity import identity_of

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
                "pull_request": identity_of(state.patch.message).pull_request,
                "landed_on": (landed or {}).get(state.patch.name),
            }
            for state in found.states
        ],
        "edited": list(found.edited),
    }


def _print_standing(found: Standing, landed: Mapping[str, str]) -> None:
    from overlay.stack.identity import identity_of

    colours = {"applied": "green", "pending": "yellow", "in conflict": "red", "upstreamed": "cyan"}
    click.echo(str(found.target))
    left_out = found.not_carried()
    others: dict[str, int] = {}
    for state in found.states:
        value = state.state.value
        if value == "not selected":
            others[state.reason] = others.get(state.reason, 0) + 1
            continue
        click.echo(click.style(f"{value:14}", colours.get(value)) + state.patch.message.subject)
        notes = [note for note in (state.reason, *state.details) if note]
        notes += [f"left out, {NO_TESTS}: {path}" for path in left_out.get(state.patch.name, ())]
        pull = identity_of(state.patch.message).pull_request
        notes += [pull] if pull else []
        if state.patch.name in landed:
            notes.append(f"landed on {landed[state.patch.name]}: {DROP}")
        for note in notes:
            click.echo(f"{'':14}{note}")
    for reason, count in others.items():
        click.echo(f"{'not selected':14}{counted(count, 'patch', 'patches')}, {reason}")
    refusal = found.target.refusal()
    if refusal is not None:
        click.echo(f"cannot be changed: {refusal}")
        return
    for path in found.edited:
        click.echo(found.target.describe_edit(path))


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

    found, patches = open_target(series, target)
    with working("verifying"):
        made = operations.plan(found, patches)
    if as_json:
        print_json({**_standing_json(made.standing), **_plan_json(made)})
        return
    _say_unresolved(made.report)
    report = made.report
    counts = (
        counted(len(report.signatures), "changed signature"),
        f"{counted(report.calls_checked, 'call')} checked",
        f"{counted(report.names_checked, 'name')} checked",
        f"{len(report.unresolved)} unresolved",
    )
    click.echo(f"{found}: holds; {', '.join(counts)}")


@main.command(epilog=TARGET_HELP)
@target_argument
@click.pass_obj
def diff(series: Optional[Path], target: Optional[str]) -> None:
    """Print what apply would change, as a unified diff."""
    from overlay import operations

    found, patches = open_target(series, target)
    made = operations.plan(found, patches)
    click.echo(operations.unified_diff(made.standing), nl=False)
