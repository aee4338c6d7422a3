"""What a run of upstream's tests gave, for people and for other tools.

Every report names the device of its results, and all of them call the same runs green.
"""

from __future__ import annotations

from overlay.upstream.report.junit import junit
from overlay.upstream.report.live import LiveView
from overlay.upstream.report.markdown import SUMMARY_LIMIT, markdown, short
from overlay.upstream.report.page import html
from overlay.upstream.report.table import table
from overlay.upstream.report.terminal import terminal

__all__ = [
    "SUMMARY_LIMIT",
    "LiveView",
    "html",
    "junit",
    "markdown",
    "short",
    "table",
    "terminal",
]
