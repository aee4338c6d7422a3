"""What PyTorch's own tests gave on the tree that is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Optional

from overlay.errors import PatchError
from overlay.series import SeriesPatch
from overlay.upstream import store
from overlay.upstream.report import short
from overlay.upstream.results import Run, Side

START, END = "<!-- torch-overlay: tests -->", "<!-- torch-overlay: end -->"


def last_result(changes: Mapping[str, Optional[bytes]]) -> Optional[Run]:
    """The last 'torch-overlay test' of the tree that these changes make; another's is not it."""
    return store.last_run(store.fingerprint_of(changes))


def in_one_line(run: Run) -> str:
    """A run as a finding; PatchError if it is not green."""
    text = f"torch {run.torch} on {run.device}, {len(run.after.outcomes)} tests, {run.started}"
    if not run.is_green:
        bad = [c.test for c in run.changes if c.verdict.is_bad]
        bad += [f"{problem.where}: {problem.what}" for problem in run.problems]
        raise PatchError(f"not green: {text}", bad[:10])
    return text


def summary(run: Run, patch: SeriesPatch) -> str:
    """The run as a part of a pull request's text: of the tests that the patch names, if any."""
    files = patch.message.field("Tests")
    if files:
        run = replace(run, before=_only(run.before, files), after=_only(run.after, files))
    return short(run) if run.after.outcomes else ""


def _only(side: Side, files: tuple[str, ...]) -> Side:
    return replace(side, outcomes=tuple(o for o in side.outcomes if o.file in files))


def with_summary(body: str, text: str) -> str:
    """A pull request's text with this summary in place of an earlier one, or at its end."""
    before, found, rest = body.partition(START)
    after = rest.partition(END)[2] if found else ""
    if not text:
        return body
    return f"{before.rstrip()}\n\n{START}\n{text.strip()}\n{END}{after}"
