"""Commands on bases: list, fetch, path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Optional

import click

from overlay.cli.common import json_option, main, print_json, say

if TYPE_CHECKING:
    from overlay.bases import BaseState


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
        print_json([state.to_json() for state in states])
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

    state = fetch(find_base(name), source, anew, source_only, say)
    if as_json:
        print_json(state.to_json())
    else:
        click.echo(f"{state.base.name:14}{state.base.version:10}{state.base.about}")
        _print_base(state)


@base.command(name="path")
@click.argument("name")
def base_path(name: str) -> None:
    """Print the folder of a fetched base's source."""
    from overlay.bases import find_base, path_of

    click.echo(path_of(find_base(name)))
