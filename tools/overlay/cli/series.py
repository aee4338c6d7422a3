"""Commands that carry the series somewhere else, or in from there: export, build, import, drift."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import click

from overlay.cli.common import (
    BASE_HELP,
    TARGET_HELP,
    counted,
    json_option,
    load,
    main,
    markdown_option,
    one_form,
    plot_option,
    print_json,
    say,
    say_left_out,
    target_argument,
    working,
)

if TYPE_CHECKING:
    from overlay.export import Exported

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

    patches = load(series)
    with working("weaving and verifying"):
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

    patches = load(series)
    with working("weaving and verifying"):
        made = exports.build(exports.source_of(target), patches, output)
    _say_exported(made, output, output / "mails", as_json)


def _say_exported(made: Exported, output: Path, mails: Path, as_json: bool) -> None:
    if as_json:
        print_json(
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
    say_left_out(made.left_out)
    click.echo(
        f"{made.target}: {counted(len(made.mails), 'mail')} written to {output};"
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

    with working("finding anchors"):
        done = import_commits(checkout, revisions, output)
    if as_json:
        print_json(
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
    click.echo(f"{output}: {counted(sum(len(each.patches) for each in done), 'patch', 'patches')}")


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
@markdown_option
@plot_option("Draw an SVG picture of the comparison.")
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

    one_form(as_json, markdown)
    if plot_file and not compare:
        raise UsageError("--plot draws the comparison: add --compare")

    found = find_drift(load(series), specifier, compare, say, base)
    if plot_file:
        plot_file.write_text(report.plot(found), encoding="utf-8")
    if as_json:
        print_json(report.to_json(found))
    else:
        for line in report.markdown_lines(found) if markdown else report.text_lines(found):
            click.echo(line)
    sys.exit(1 if found.failed else 0)
