"""The command line: read arguments, call, print.

Everything that takes time to import is imported by the command that needs it.
"""

from overlay.cli import bases, measure, series, stack, targets, upstream
from overlay.cli.common import main

__all__ = ["bases", "main", "measure", "series", "stack", "targets", "upstream"]
