"""A whole run of upstream's tests: before the series and after it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Optional

from overlay.bases import Base
from overlay.errors import UsageError
from overlay.runtime import interpreter
from overlay.series import Series
from overlay.upstream import known as known_failures
from overlay.upstream import selection, store
from overlay.upstream.events import OnEvent, ProblemFound, SideFinished, SideStarted, Told
from overlay.upstream.halves import Halves, prepare
from overlay.upstream.results import Outcome, Problem, Run, Side, Status
from overlay.upstream.runner import (
    Half,
    Settings,
    Unit,
    UnitResult,
    UpstreamTestsError,
    environment,
    run_units,
)

RANKS = 2
_TESTS_SHOWN = 10
STANDIN = "cpu, CUDA stand-in"
_DEVICES = """
import json, torch
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps(names))
"""


@dataclass(frozen=True)
class Request:
    """What a person asks for."""

    files: tuple[str, ...] = ()
    keyword: str = ""
    every: bool = False
    """All of FSDP's tests, instead of those that the patches name."""
    device: str = "auto"
    shard: Optional[tuple[int, int]] = None
    workers: Optional[int] = None
    timeout: float = Settings.timeout
    isolate: bool = False
    fresh: bool = False
    """Run the stock half too if its results are kept."""
    one_device: bool = False
    """With a single CUDA device, run what it can instead of refusing."""


@dataclass(frozen=True)
class Prepared:
    """All that is decided before the first test."""

    halves: Halves
    units: tuple[Unit, ...]
    words: str
    settings: Settings
    device: str
    """As in ``Run.device``."""
    durations: store.Durations
    keeps_durations: bool
    """Not in a shard: it would change how the next one is dealt."""

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``."""
        return "cuda" if self.settings.cuda else "cpu"


def prepare_run(base: Base, series: Series, request: Request, on_event: OnEvent) -> Prepared:
    """Bring both halves up to date, and choose device and files."""
    halves = prepare(base, series, lambda line: on_event(Told(line)))
    chosen = selection.select(halves, request.files, request.every)
    settings, device = _device(halves, request, chosen.files)
    on_event(Told(f"{base.name}: {chosen.words}, on {device}"))
    durations = store.Durations(base.name, device + (" isolated" if request.isolate else ""))
    units = tuple(Unit(file) for file in chosen.files)
    words = chosen.words
    if request.keyword:
        words += f" -k '{request.keyword}'"
    if request.shard:
        number, count = request.shard
        weight = selection.weights(chosen.files, halves.after.tree, durations.load())
        shares = selection.plan_shards(weight, count)
        units = tuple(shares[number - 1])
        words += f", shard {number}/{count} of plan {selection.plan_name(shares)}"
        if not units:
            raise UsageError(f"shard {number}/{count} is empty: there are fewer files than shards")
    return Prepared(halves, units, words, settings, device, durations, request.shard is None)


def _device(halves: Halves, request: Request, files: Sequence[str]) -> tuple[Settings, str]:
    names: Sequence[str] = ()
    if request.device == "cuda" or (request.device == "auto" and _has_driver()):
        names = _cuda_devices(halves.before.venv)
    if request.device == "cuda" and not names:
        raise UpstreamTestsError(
            f"--device cuda: torch {halves.torch} sees no CUDA device, and FSDP's tests need"
            f" {RANKS}: leave --device out to run them on the CPU"
        )
    cuda = request.device == "cuda" or (request.device == "auto" and len(names) >= RANKS)
    standin = not cuda and halves.has_upstream_tests
    workers = request.workers or max(1, (os.cpu_count() or 1) // RANKS)
    if cuda and request.workers is None:
        workers = 1  # Tests that share a device share its memory.
    settings = Settings(
        standin=standin,
        cuda=cuda,
        workers=workers,
        timeout=request.timeout,
        isolate=request.isolate,
        keyword=request.keyword,
    )
    if not cuda:
        return settings, STANDIN if standin else "cpu"
    if len(names) < RANKS and not request.one_device:
        _refuse_one_device(files, halves)
    return settings, f"cuda ({len(names)} x {names[0]})"


def _refuse_one_device(files: Sequence[str], halves: Halves) -> None:
    left_out = selection.needing_several_devices(files, (halves.after.tree, halves.before.tree))
    if left_out:
        more = len(left_out) - _TESTS_SHOWN
        raise UpstreamTestsError(
            f"--device cuda: there is 1 CUDA device, and {len(left_out)} of the selected tests need"
            f" {RANKS}: choose others, or leave these out with --one-device",
            [*left_out[:_TESTS_SHOWN], *([f"and {more} more"] if more > 0 else [])],
        )


def _has_driver() -> bool:
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))


def _cuda_devices(venv: Path) -> list[str]:
    done = subprocess.run(
        [str(interpreter(venv)), "-c", _DEVICES],
        capture_output=True,
        text=True,
        check=False,
        env=environment(Settings(cuda=True)),
    )
    try:
        return [str(name) for name in json.loads(done.stdout)]
    except ValueError:
        raise UpstreamTestsError(
            f"torch cannot be asked for CUDA devices with {interpreter(venv)}",
            done.stderr.splitlines()[-5:],
        ) from None


def run(base: Base, series: Series, request: Request, on_event: OnEvent) -> Run:
    """Run the tests that are asked for on both halves, and keep what they gave."""
    started = datetime.now(timezone.utc)
    ready = prepare_run(base, series, request, on_event)
    halves = ready.halves
    results = store.Results(base.name)
    kept: dict[Unit, UnitResult] = {}
    keys = {unit: _key(ready, unit) for unit in ready.units}
    units = [unit for unit in ready.units if (halves.before.tree / unit.file).is_file()]
    if not request.fresh:
        loaded = {unit: results.load(keys[unit]) for unit in units}
        kept = {unit: result for unit, result in loaded.items() if result is not None}
    before = _run_side(ready, halves.before, units, kept, on_event)
    for unit in units:
        results.keep(keys[unit], before.results[unit])
    there = [unit for unit in ready.units if (halves.after.tree / unit.file).is_file()]
    after = _run_side(ready, halves.after, there, {}, on_event)

    known = known_failures.load(known_failures.path_for(base.name, ready.kind))
    selected = {*before.results, *after.results}
    whole = {unit.file for unit in selected if unit.part is None and not request.keyword}
    outcomes = (*after.side.outcomes, *before.side.outcomes)
    problems = known_failures.check(known, outcomes, whole)
    if not outcomes:
        problems.append(Problem(ready.words, "selects no test"))
    elif all(outcome.status is Status.SKIPPED for outcome in outcomes):
        problems.append(Problem(ready.words, f"all of its tests were skipped on {ready.device}"))
    for problem in problems:
        on_event(ProblemFound(problem))
    ran = {outcome.test for outcome in outcomes}
    made = Run(
        base=base.name,
        torch=halves.torch,
        python=halves.python,
        platform=platform.platform(),
        device=ready.device,
        selection=ready.words,
        tree=halves.tree,
        started=started.isoformat(timespec="seconds"),
        before=before.side,
        after=_with_problems(after.side, problems),
        known={test: reason for test, reason in known.items() if test in ran},
    )
    store.keep_run(made)
    _say_left_out(ready, made, on_event)
    return made


def _with_problems(side: Side, problems: Iterable[Problem]) -> Side:
    return replace(side, problems=(*side.problems, *problems))


@dataclass(frozen=True)
class _Ran:
    side: Side
    results: Mapping[Unit, UnitResult]


def _run_side(
    ready: Prepared,
    half: Half,
    units: Sequence[Unit],
    kept: Mapping[Unit, UnitResult],
    on_event: OnEvent,
) -> _Ran:
    todo = [unit for unit in units if unit not in kept]
    files = tuple(dict.fromkeys(unit.file for unit in todo))
    on_event(SideStarted(half.name, files, _expected(ready, todo)))
    start = time.monotonic()
    ran = run_units(half, todo, ready.settings, on_event) if todo else {}
    seconds = time.monotonic() - start if todo else 0.0
    if ready.keeps_durations:
        ready.durations.keep(outcome for result in ran.values() for outcome in result.outcomes)
    results = {unit: kept[unit] if unit in kept else ran[unit] for unit in units}
    side = Side(
        name=half.name,
        patches=half.patches,
        outcomes=tuple(outcome for result in results.values() for outcome in result.outcomes),
        problems=tuple(problem for result in results.values() for problem in result.problems),
        seconds=round(seconds, 1),
        kept=tuple(dict.fromkeys(unit.file for unit in units if unit in kept)),
    )
    on_event(SideFinished(side))
    return _Ran(side, results)


def _expected(ready: Prepared, units: Sequence[Unit]) -> Optional[float]:
    """By what earlier runs took; a file that never ran is taken for an average one."""
    known = ready.durations.load()
    seconds = [
        sum(known[unit.file].values()) / (unit.part[1] if unit.part else 1)
        for unit in units
        if unit.file in known
    ]
    if not seconds:
        return None
    workers = min(ready.settings.workers, len(units))
    return sum(seconds) / len(seconds) * len(units) / workers


def _key(ready: Prepared, unit: Unit) -> str:
    """Changes with all that a stock result depends on."""
    path = ready.halves.before.tree / unit.file
    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    settings = ready.settings
    return store.key_of(
        *(ready.halves.before_key, ready.device, store.inside_fingerprint()),
        *(unit.file, unit.part, content),
        *(settings.isolate, settings.keyword, settings.timeout),
    )


def _say_left_out(ready: Prepared, made: Run, on_event: OnEvent) -> None:
    """On too few real devices, upstream's tests skip themselves."""
    if not ready.settings.cuda:
        return
    lacking = re.compile(r"Need at least \d+ CUDA devices")
    left_out = [
        outcome.test
        for outcome in made.after.outcomes
        if outcome.status is Status.SKIPPED and lacking.match(outcome.reason)
    ]
    if left_out:
        on_event(Told(f"{len(left_out)} tests need more devices: {', '.join(left_out)}"))


def outcomes_of(results: Mapping[Unit, UnitResult]) -> dict[str, Outcome]:
    """By test."""
    return {o.test: o for result in results.values() for o in result.outcomes}
