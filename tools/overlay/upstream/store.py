"""What is kept of runs in the cache folder: stock results, durations, and whole runs."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Optional

from overlay.runtime import cache_folder
from overlay.upstream.results import Outcome, Run, outcomes_from_json, run_from_json
from overlay.upstream.runner import INSIDE, UnitResult

_FORMAT = 1


def folder() -> Path:
    """Where all of it lies, with what the tests run on."""
    return cache_folder() / "upstream"


def fingerprint_of(changes: Mapping[str, Optional[bytes]]) -> str:
    """Of what a series makes of a base: the files that it changes, by path, None if removed."""
    digest = hashlib.sha256()
    for path, content in sorted(changes.items()):
        of_content = "" if content is None else hashlib.sha256(content).hexdigest()
        digest.update(f"{path}\0{of_content}\0".encode())
    return digest.hexdigest()


def key_of(*parts: object) -> str:
    """A short name for what depends on all of the parts, which JSON knows."""
    text = json.dumps([_FORMAT, *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@cache
def inside_fingerprint() -> str:
    """Of the code that runs inside the base's interpreter, the stand-in for CUDA with it."""
    return fingerprint_of(
        {str(path.relative_to(INSIDE)): path.read_bytes() for path in INSIDE.rglob("*.py")}
    )


class Results:
    """Results of files on the stock torch, each by a key of all that they depend on."""

    def __init__(self, base: str) -> None:
        self._folder = folder() / base / "stock-results"

    def load(self, key: str) -> Optional[UnitResult]:
        """What was kept, or None."""
        try:
            value = json.loads((self._folder / f"{key}.json").read_text(encoding="utf-8"))
            outcomes = tuple(outcomes_from_json(value["outcomes"]))
            return UnitResult(tuple(value["tests"]), outcomes, ())
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, key: str, result: UnitResult) -> None:
        """Keep it, if another run would give the same."""
        if result.is_settled:
            value = {"tests": result.tests, "outcomes": [asdict(o) for o in result.outcomes]}
            write_json(self._folder / f"{key}.json", value)


class Durations:
    """How many seconds each test took when it last ran on this base and device."""

    def __init__(self, base: str, device: str) -> None:
        self._path = folder() / base / f"seconds-{re.sub('[^a-z0-9]+', '-', device.lower())}.json"

    def load(self) -> dict[str, dict[str, float]]:
        """By file and test."""
        try:
            value = json.loads(self._path.read_text(encoding="utf-8"))
            return {
                file: {test: float(seconds) for test, seconds in tests.items()}
                for file, tests in value.items()
            }
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def keep(self, outcomes: Iterable[Outcome]) -> None:
        """Remember how long these took."""
        known = self.load()
        for outcome in outcomes:
            known.setdefault(outcome.file, {})[outcome.test] = outcome.seconds
        write_json(self._path, known)


def keep_run(run: Run) -> Path:
    """Keep a whole run, for ``last_run``."""
    path = folder() / "runs" / run.tree / f"{run.started.replace(':', '')}-{os.getpid()}.json"
    write_json(path, run.as_json())
    return path


def last_run(tree: str) -> Optional[Run]:
    """The newest kept run of what a series makes of a base (``fingerprint_of``)."""
    for path in sorted((folder() / "runs" / tree).glob("*.json"), reverse=True):
        try:
            return run_from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def write_json(path: Path, value: Any) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
