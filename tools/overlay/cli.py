"""The command line: read arguments, call, print.

Everything that takes time to import is imported by the command that needs it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NoReturn, Optional

import click

from overlay.errors import OverlayError

if TYPE_CHECKING:
    from overlay.bases import Base, BaseState
    from overlay.demo import Demo
    from overlay.export import Exported
    from overlay.operations import Plan, Standing
    from overlay.series import Series
    from overlay.stack.submit import Submission
    from overlay.targets import Target
    from overlay.verify import Report

TARGET_HELP = """\b
TARGET is an installed torch (a venv, an interpreter or a site-packages folder),
a git checkout of PyTorch or another source tree of it; by default the torch of the
Python that runs this tool.
"""

BASE_HELP = "Or it is the name of a fetched base ('torch-overlay base list').\n"

NO_TESTS = "an installed torch has no test/"
DROP = "remove it and its line in patches/series, or end its Torch-Version there"
NOTHING_APPLIED = "this tool has applied nothing there"

target_argument = click.argument("target", required=False, metavar="[TARGET]")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")


class _Group(click.Group):
    """A group whose errors are one clear line, then details, with the error's exit code."""

    _command: Optional[str] = None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        finally:
            self._command = ctx.invoked_subcommand

    def _prints_json(self) -> bool:
        """Whether standard output is for JSON; 'test' can write it to a file instead."""
        if "--json" not in sys.argv:
            return False
        after = sys.argv[sys.argv.index("--json") + 1 :]
        return self._command != "test" or after[:1] == ["-"]

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
            if self._prints_json():
                _print_json({"error": error.message, "details": list(error.details)})
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


def _load(folder: Optional[Path]) -> Series:
    """The series in a folder, or the tool's own."""
    from overlay.series import load_series, own_series

    return load_series(folder or own_series())


def _say(line: str) -> None:
    """Tell a step of something that takes time."""
    click.echo(line, err=True)


def _open(
    series_folder: Optional[Path], where: Optional[str], commits: bool = True
) -> tuple[Target, Series]:
    from overlay.targets import find_target

    series = _load(series_folder)
    return find_target(where, commits), series


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
    click.echo(_json(value), nl=False)


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


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

    found, patches = _open(series, target, not no_commit)
    with _working("weaving and verifying"):
        if dry_run:
            made = operations.plan(found, patches)
        else:
            made = operations.apply(found, patches, not no_commit)
    if as_json:
        value = {**_standing_json(made.standing), **_plan_json(made), "dry_run": dry_run}
        _print_json({**value, "commits": list(made.commits)})
        return
    _say_not_carried(made.standing)
    if made.writes:
        _say_unresolved(made.report)
    if not made.writes and not made.commits:
        click.echo(f"{found}: nothing to change, the series is applied")
        return
    for path in made.writes:
        click.echo(f"  {path}")
    applied = "would be applied" if dry_run else "applied"
    patches_taken = len(made.standing.patches(State.APPLIED, State.PENDING))
    names = _count(patches_taken, "patch", "patches")
    files = "nothing was written" if dry_run else f"{_count(len(made.writes), 'file')} written"
    if made.commits:
        files += f", {_count(len(made.commits), 'commit')} made"
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
    """Take the series out again; every file is as it was, byte for byte.

    In a git checkout this takes its commits off the branch, if they are the topmost ones.
    """
    from overlay import operations

    found, patches = _open(series, target)
    with _working("reverting"):
        taken = operations.revert(found, patches)
    if as_json:
        value = {"target": str(found.root), "version": found.version}
        _print_json({**value, "files": taken.paths, "commits": taken.commits})
    elif taken.paths:
        for line in taken.commits or taken.paths:
            click.echo(f"  {line}")
        what = f"{_count(len(taken.paths), 'file')} restored"
        if taken.commits:
            what = f"{_count(len(taken.commits), 'commit')} taken off, {what}"
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

    found, patches = _open(series, target)
    result = standing(found, patches)
    landed = landed_by_last_fetch(result, patches)
    conflict = bool(result.patches(State.CONFLICT) or result.edited)
    if as_json:
        _print_json(_standing_json(result, landed))
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
        click.echo(f"{'not selected':14}{_count(count, 'patch', 'patches')}, {reason}")
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


output_option = click.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder to write to; it may not have other files.",
)


@main.command(epilog=TARGET_HELP + BASE_HELP)
@target_argument
@output_option
@json_option
@click.pass_obj
def export(series: Optional[Path], target: Optional[str], output: Path, as_json: bool) -> None:
    """Write the series for TARGET as mails that git am takes.

    The same target and series give the same bytes, whoever runs it. From an installed torch
    they are for the source tree of the same version.
    """
    from overlay import export as exports

    patches = _load(series)
    with _working("weaving and verifying"):
        made = exports.export(exports.source_of(target), patches, output)
    _say_exported(made, output, output, as_json)


@main.command(epilog=TARGET_HELP + BASE_HELP)
@target_argument
@output_option
@json_option
@click.pass_obj
def build(series: Optional[Path], target: Optional[str], output: Path, as_json: bool) -> None:
    """Write what someone without this tool needs: the mails, and the changed files whole.

    DIR gets mails/, overlay/ with each file that the series changes or adds, to lay over a
    checkout, and MANIFEST.json with the SHA-256 of each, and of the file that it replaces.
    """
    from overlay import export as exports

    patches = _load(series)
    with _working("weaving and verifying"):
        made = exports.build(exports.source_of(target), patches, output)
    _say_exported(made, output, output / "mails", as_json)


def _say_exported(made: Exported, output: Path, mails: Path, as_json: bool) -> None:
    if as_json:
        _print_json(
            {
                "target": str(made.target.root),
                "version": made.target.version,
                "base_commit": made.base_commit,
                "mails": [str(mails / mail.name) for mail in made.mails],
                "files": list(made.changes()),
                "left_out": made.left_out,
            }
        )
        return
    for mail in made.mails:
        click.echo(f"  {mails / mail.name}")
    for name, paths in made.left_out.items():
        click.echo(f"{name}: left out, {NO_TESTS}: {', '.join(paths)}")
    click.echo(
        f"{made.target}: {_count(len(made.mails), 'mail')} written to {output};"
        f" 'git am --keep-non-patch {mails}/*.patch' applies them"
    )


@main.command(name="import")
@click.argument("checkout", type=click.Path(path_type=Path), metavar="TARGET")
@click.argument("revisions", nargs=-1, required=True, metavar="REVS...")
@output_option
@json_option
def import_(checkout: Path, revisions: tuple[str, ...], output: Path, as_json: bool) -> None:
    """Turn commits into a series of anchored patches, one for each.

    TARGET is a git checkout of PyTorch; REVS are commits or ranges, such as main..HEAD. What
    cannot be anchored is written as a line-numbered patch, and named. The patches are applied in
    memory, and must give each commit's files byte for byte, before anything is written.
    """
    from overlay.commits import import_commits

    with _working("finding anchors"):
        done = import_commits(checkout, revisions, output)
    if as_json:
        _print_json(
            [
                {
                    "commit": each.commit.oid,
                    "subject": each.commit.subject,
                    "patches": list(each.patches),
                    "hunks": each.hunks,
                    "added": list(each.added),
                    "line_numbered": dict(each.line_numbered),
                }
                for each in done
            ]
        )
        return
    for each in done:
        if not each.patches:
            click.echo(f"{each.commit} changes nothing: left out")
        for name in each.patches:
            click.echo(f"  {name}")
        for path, reason in each.line_numbered.items():
            click.echo(f"    {path} by line numbers: {reason}")
    click.echo(f"{output}: {_count(sum(len(each.patches) for each in done), 'patch', 'patches')}")


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

    found, patches = _open(series, checkout)
    if not isinstance(found, Checkout):
        raise UsageError(f"{checkout} is not a git checkout: ghstack submits commits")
    options = submitting.Options(despite=despite, **chosen)
    if options.only and options.start:
        raise UsageError("--only and --from are two ways to name a part: choose one")
    if dry_run:
        planned, problems = submitting.plan_submit(found, patches, options, _say)
        _print_submission(planned, dry_run)
        if problems:
            raise submitting.refusal(problems)
        return
    done = submitting.submit(found, patches, options, _say)
    _print_submission(done, dry_run)
    if done.problem:
        _fail(done.problem)
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

    found, patches = _open(series, checkout)
    linted = lint_applied(found, patches)
    if as_json:
        from dataclasses import asdict

        _print_json(asdict(linted))
    else:
        for finding in linted.findings:
            click.echo(finding)
        for code in linted.ran:
            click.echo(f"ran       {code}" + _in_brackets(linted.other_versions.get(code)))
        for code, why in linted.not_run.items():
            click.echo(f"not run   {code}: {why}")
        if linted.elsewhere:
            lines = _count(len(linted.elsewhere), "finding")
            click.echo(f"{lines} in lines that the series leaves alone")
    if not linted.ran:
        raise linted.nothing_ran()
    sys.exit(1 if linted.findings else 0)


def _in_brackets(text: Optional[str]) -> str:
    return f" ({text})" if text else ""


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

    shown = run_demo(_load(series), _say)
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


def _test_options(command: Callable[..., Any]) -> Callable[..., Any]:
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


def _base_and_files(names: Sequence[str], every: bool, related: bool) -> tuple[Base, list[str]]:
    from overlay.bases import DEFAULT_BASE, find_base
    from overlay.errors import UsageError

    has_base = bool(names) and not re.match(r"test|.*/|.*\.py$", names[0])
    base = find_base(names[0] if has_base else DEFAULT_BASE)
    files = list(names[1:] if has_base else names)
    if [bool(files), every, related].count(True) > 1:
        raise UsageError("files, --all and --related are three ways to choose tests: use one")
    return base, files


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

    costs = benches.bench_apply(_load(series), _say)
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


@bench.command(name="tests")
@_test_options
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

    base, files = _base_and_files(names, every, related)
    request = Request(
        tuple(files), keyword, every, device="cpu", workers=jobs, timeout=timeout, fresh=True
    )
    with LiveView() as view:
        made = benches.bench_tests(base, _load(series), request, view.on_event)
    if as_json:
        _print_json(made.as_json())
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
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw µs by number of tensors on the last torch as an SVG picture.",
)
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
    from overlay.errors import UsageError

    if markdown and as_json:
        raise UsageError("--json and --markdown are two ways to print it: choose one")
    if plot_file and not plot_file.absolute().parent.is_dir():
        raise UsageError(f"--plot: there is no folder {plot_file.absolute().parent}")
    stock = list(venvs) or [runtime.torch_venv(progress=_say, packages=runtime.TEST_PACKAGES)]
    patches = _load(series)
    found = [
        benches.bench_cast(patches, venv, device, plot_file is not None and venv == stock[-1], _say)
        for venv in stock
    ]
    if plot_file:
        plot_file.write_text(report.plot(found[-1]), encoding="utf-8")
    if as_json:
        _print_json([report.to_json(one) for one in found])
    elif markdown:
        for line in report.markdown_lines(found):
            click.echo(line)
    else:
        for one in found:
            for line in report.text_lines(one):
                click.echo(line)
    sys.exit(0 if all(one.met for one in found) else 1)


@main.group()
def base() -> None:
    """Pinned PyTorch versions: fetch their source and runtime, proven by a fingerprint."""


@base.command(name="list")
@json_option
def base_list(as_json: bool) -> None:
    """Show the bases, and what of each is fetched."""
    from overlay.bases import BASES, state_of

    states = [state_of(known) for known in BASES.values()]
    if as_json:
        _print_json([state.to_json() for state in states])
        return
    for state in states:
        click.echo(f"{state.base.name:14}{state.base.version:10}{state.base.about}")
        _print_base(state)


def _print_base(state: BaseState) -> None:
    source = state.source
    if source is None:
        click.echo(f"{'':14}source: not fetched")
    else:
        tests = "" if source.has_tests else ", without PyTorch's tests"
        click.echo(f"{'':14}source: {source.folder}")
        click.echo(f"{'':14}        by {source.way}{tests}; {source.proof}")
    if state.runtime is not None:
        click.echo(f"{'':14}runtime: {state.runtime}")
    elif state.base.runtime is None:
        click.echo(f"{'':14}runtime: none, no package index has a wheel of it")
    else:
        click.echo(f"{'':14}runtime: not built")


@base.command(name="fetch")
@click.argument("name")
@click.option(
    "--source",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Take this checkout, tarball, folder or wheel instead of trying all ways.",
)
@click.option("--source-only", is_flag=True, help="Leave the runtime for later.")
@click.option("--anew", is_flag=True, help="Replace a source that is there, and its commits.")
@json_option
def base_fetch(
    name: str, source: Optional[Path], source_only: bool, anew: bool, as_json: bool
) -> None:
    """Fetch a base's source as a git repository, prove it, and build its runtime.

    NAME is one of 'base list', or any release of torch, such as 2.9.1, which is then not
    proven by a fingerprint.
    """
    from overlay.bases import fetch, find_base

    state = fetch(find_base(name), source, anew, source_only, _say)
    if as_json:
        _print_json(state.to_json())
    else:
        click.echo(f"{state.base.name:14}{state.base.version:10}{state.base.about}")
        _print_base(state)


@base.command(name="path")
@click.argument("name")
def base_path(name: str) -> None:
    """Print the folder of a fetched base's source."""
    from overlay.bases import find_base, path_of

    click.echo(path_of(find_base(name)))


@main.command()
@_test_options
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

    base, files = _base_and_files(names, every, related)
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
        run = compare.run(base, _load(series), request, view.on_event)
    markdown = report.markdown(run) + "\n"
    if junit_file:
        _write(junit_file, report.junit(run))
    if html_file:
        _write(html_file, report.html(run))
    if summary_file:
        _write(summary_file, markdown)
    if json_file and json_file != "-":
        _write(Path(json_file), _json(run.as_json()))
    step_summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if step_summary:
        with open(step_summary, "a", encoding="utf-8") as summary:
            summary.write(markdown)
    if json_file == "-":
        click.echo(_json(run.as_json()), nl=False)
    else:
        from rich.console import Console

        report.terminal(run, Console(highlight=False))
    sys.exit(0 if run.is_green else 1)


@main.command()
@click.option("--releases", "specifier", metavar="SPEC", help="Which releases, such as '>=2.1,<3'.")
@click.option("--compare", is_flag=True, help="Try the same change as a diff with other tools too.")
@click.option(
    "--diff-on",
    "base",
    default="2.6.0",
    show_default=True,
    metavar="VERSION",
    help="The release that --compare makes the diff on.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw an SVG picture of the comparison.",
)
@json_option
@click.pass_obj
def drift(
    series: Optional[Path],
    specifier: Optional[str],
    compare: bool,
    base: str,
    markdown: bool,
    plot_file: Optional[Path],
    as_json: bool,
) -> None:
    """Try the series on torch's releases: each patch alone, and all of it, woven and verified.

    By default on all final releases that are not yanked, from the first that a patch is for to the
    last. Reads the Python of their wheels from the package index, once, into the cache folder, and
    runs none of it. Exits with 1 if a patch fails on a release that it is for.
    """
    from overlay import drift_report as report
    from overlay.drift import drift as find_drift
    from overlay.errors import UsageError

    if markdown and as_json:
        raise UsageError("--json and --markdown are two ways to print it: choose one")
    if plot_file and not compare:
        raise UsageError("--plot draws the comparison: add --compare")

    found = find_drift(_load(series), specifier, compare, _say, base)
    if plot_file:
        try:
            plot_file.write_text(report.plot(found), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--plot: cannot write {plot_file}: {error.strerror}") from None
    if as_json:
        _print_json(report.to_json(found))
    else:
        for line in report.markdown_lines(found) if markdown else report.text_lines(found):
            click.echo(line)
    sys.exit(1 if found.failed else 0)
