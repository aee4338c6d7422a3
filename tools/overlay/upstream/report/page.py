"""A run as one self-contained HTML page."""

from __future__ import annotations

import html as markup
import json
from importlib import resources
from string import Template
from typing import Any, Optional

from overlay.upstream.report import words
from overlay.upstream.results import Change, Outcome, Run


def html(run: Run) -> str:
    """The page: verdict, files by verdicts, and every test before and after, with filters.

    It asks for nothing from outside itself, and its own policy forbids it to.
    """
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    head = words.headline(run)
    return Template(template).substitute(
        title=markup.escape(f"{run.base}: {head}"),
        verdict=markup.escape(head),
        verdict_class="green" if run.is_green else "red",
        data=_script_json(_data(run)),
    )


def _script_json(value: object) -> str:
    """JSON that cannot end the script element that it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _data(run: Run) -> dict[str, Any]:
    return {
        "facts": [
            ["Base", run.base],
            ["torch", run.torch],
            ["Device", run.device],
            ["Python", run.python],
            ["Platform", run.platform],
            ["Tests", run.selection],
            ["Started", run.started],
            ["Before", words.side_in_words(run.before)],
            ["After", words.side_in_words(run.after)],
            ["Patches before", ", ".join(run.before.patches) or "none"],
            ["Patches after", ", ".join(run.after.patches) or "none"],
            ["Tree", run.tree],
        ],
        "folder": words.shared_folder(run),
        "labels": list(words.LABELS),
        "bad": list(words.BAD_LABELS),
        "problems": [
            {"where": each.where, "what": words.one_line(each.what), "tail": words.plain(each.tail)}
            for each in run.problems
        ],
        "known": list(words.known_by_reason(run).items()),
        "skipped": list(words.skipped_by_reason(run).items()),
        "tests": [_test(change) for change in run.changes],
    }


def _test(change: Change) -> dict[str, Any]:
    return {
        "test": change.test,
        "file": change.file,
        "label": words.label(change),
        "known": change.known,
        "before": _outcome(change.before),
        "after": _outcome(change.after),
    }


def _outcome(outcome: Optional[Outcome]) -> Optional[dict[str, Any]]:
    if outcome is None:
        return None
    return {
        "status": outcome.status.value,
        "seconds": round(outcome.seconds, 2),
        "reason": words.one_line(outcome.reason),
        "tail": words.plain(outcome.tail),
    }
