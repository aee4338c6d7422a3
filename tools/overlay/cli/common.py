"""What all commands share: the group, options that several take, printing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NoReturn, Optional

import click

from overlay.errors import OverlayError, UsageError

if TYPE_CHECKING:
    from overlay.series import Series
    from overlay.targets import Target

TARGET_HELP = """\b
TARGET is an installed torch (a venv, an interpreter or a site-packages folder),
a git checkout of PyTorch or another source tree of it; by default the torch of the
Python that runs this tool.
"""

BASE_HELP = "Or it is the name of a fetched base ('torch-overlay base list').\n"

NO_TESTS = "an installed torch has no test/"

target_argument = click.argument("target", required=False, metavar="[TARGET]")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
markdown_option = click.option("--markdown", is_flag=True, help="Print Markdown tables.")


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
            fail("stopped")
            sys.exit(130)
        except click.ClickException as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # the older click has none
                error.show()
                sys.exit(2)
            context = getattr(error, "ctx", None)
            hint = f"see '{context.command_path} --help'" if context else ""
            fail(error.format_message(), [hint] if hint else [])
            sys.exit(2)
        except OverlayError as error:
            fail(error.message, error.details)
            if self._prints_json():
                print_json({"error": error.message, "details": list(error.details)})
            sys.exit(error.exit_code)
        except BrokenPipeError:
            _drop_output()  # Who reads it has had enough.
            sys.exit(141)
        except OSError as error:
            _drop_output()
            where = f"{error.filename}: " if error.filename else ""
            fail(f"{where}{error.strerror or error}")
            sys.exit(2)
        sys.exit(0)


def _drop_output() -> None:
    """Without this the interpreter complains at exit of what it cannot write."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str, details: Sequence[str] = ()) -> None:
    """Say on standard error what is wrong."""
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


def load(folder: Optional[Path]) -> Series:
    """The series in a folder, or the tool's own."""
    from overlay.series import load_series, own_series

    return load_series(folder or own_series())


def say(line: str) -> None:
    """Tell a step of something that takes time."""
    click.echo(line, err=True)


def open_target(
    series_folder: Optional[Path], where: Optional[str], commits: bool = True
) -> tuple[Target, Series]:
    """The target that is named, and the series for it."""
    from overlay.targets import find_target

    series = load(series_folder)
    return find_target(where, commits), series


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on standard error while something takes time, where a person looks on."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def print_json(value: object) -> None:
    """Print a value as ``--json`` does."""
    click.echo(json_text(value), nl=False)


def json_text(value: object) -> str:
    """A value as the tool writes all its JSON."""
    return json.dumps(value, indent=2) + "\n"


def say_left_out(left_out: Mapping[str, Sequence[str]]) -> None:
    """Print of each patch which of its files the target has no place for."""
    for name, paths in left_out.items():
        click.echo(f"{name}: left out, {NO_TESTS}: {', '.join(paths)}")


def write_text(file: Path, text: str) -> None:
    """Write a file, in a folder that need not be there yet."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def counted(number: int, noun: str, plural: str = "") -> str:
    """As in ``1 patch`` and ``2 patches``."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def plot_option(help_text: str) -> Callable[[Any], Any]:
    """``--plot FILE``, refused before long work if its folder is not there."""

    def check(context: click.Context, option: click.Parameter, file: Optional[Path]) -> Any:
        if file and not file.absolute().parent.is_dir():
            raise UsageError(f"--plot: there is no folder {file.absolute().parent}")
        return file

    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option(
        "--plot", "plot_file", type=kind, metavar="FILE", callback=check, help=help_text
    )


def one_form(as_json: bool, markdown: bool) -> None:
    """Refuse two ways to print a result."""
    if markdown and as_json:
        raise UsageError("--json and --markdown are two ways to print it: choose one")
