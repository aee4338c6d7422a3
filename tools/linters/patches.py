"""Runs the series' own linter for lintrunner, on the series as a whole."""

from __future__ import annotations

from pathlib import Path

from command_linter import report
from overlay.lint import lint_series


def main() -> None:
    """Print a message for each fault of the series in the working folder."""
    for finding in lint_series(Path.cwd()):
        report("PATCHES", finding.message, finding.path)


if __name__ == "__main__":
    main()
