"""What casting the inputs of a forward costs, and what becomes of them: stock torch and the series.

All is measured in one run, in turn, so that a machine that slows down slows all of it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Optional

from overlay import operations, runtime
from overlay.errors import TargetError, UsageError
from overlay.series import Series
from overlay.targets import find_target
from overlay.weave import State

WORKER = Path(__file__).with_name("cast_worker.py")
MODULE = "torch/distributed/fsdp/_forward_inputs.py"
BLOCKS = 60
MODEL_BLOCKS = 30
MODEL_CALLS = 10
SHARE_GOAL = 5.0
MANY = "cast 100"
LINES_SHOWN = 10
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
# What of a profile tells that the device was given work, or waited for.
DEVICE_WORK = ("Launch", "Synchronize", "Memcpy", "Memset", "aten::")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Goal:
    """Inputs, as the worker knows them, and how many times faster than stock they are to be."""

    name: str
    inputs: str
    times: float


GOALS = (
    Goal("1 tensor, right dtype", "right 1", 10),
    Goal("4 tensors, right dtype", "right 4", 10),
    Goal("a list of 100 tensors, right dtype", "list 100", 10),
    Goal("a dict of 10 with 2 to cast", "dict 10", 2.5),
    Goal("1 tensor to cast", "cast 1", 1.2),
)


@dataclass(frozen=True)
class Spread:
    """The median of some blocks, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values."""
        low, median, high = statistics.quantiles(values, n=4)
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.1f} ({self.low:.1f} to {self.high:.1f})"


@dataclass(frozen=True)
class Row:
    """Microseconds of each way to treat the same inputs, and how many times faster ours is."""

    goal: Goal
    stock: Spread
    ours: Spread
    bare: Optional[Spread]
    ratio: Spread

    @property
    def met(self) -> bool:
        """Whether it is as fast as it should be."""
        return self.ratio.median >= self.goal.times


@dataclass(frozen=True)
class Share:
    """Microseconds of a layer's forward, and what of it goes to casting where there is no cast."""

    stock: Spread
    ours: Spread
    stock_share: Spread
    ours_share: Spread

    @property
    def met(self) -> bool:
        """Whether it is as little as it should be."""
        return self.ours_share.median <= SHARE_GOAL


@dataclass(frozen=True)
class CastBench:
    """What was found with one torch."""

    torch: str
    device: str
    rows: Sequence[Row]
    share: Optional[Share]
    no_share: str
    device_work: Sequence[str]
    many: dict[str, Spread]
    by_count: dict[int, dict[str, float]]
    contract: dict[str, dict[str, dict[str, str]]]

    @property
    def met(self) -> bool:
        """Whether all goals are met, and nothing reaches the device where nothing is cast."""
        share_is_met = self.share is None or self.share.met
        return all(row.met for row in self.rows) and share_is_met and not self.device_work


class Worker:
    """A process that measures in one torch."""

    def __init__(self, venv: Path, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self.venv = venv
        self.process = process
        self.errors = errors

    def ask(self, name: str, *arguments: object) -> Any:
        """The answer to one request."""
        assert self.process.stdin is not None and self.process.stdout is not None
        answer = ""
        with suppress(BrokenPipeError):
            print(json.dumps([name, arguments]), file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        if not answer:
            self.process.wait()
            self.errors.seek(0)
            lines = self.errors.read().splitlines()[-LINES_SHOWN:]
            raise TargetError(f"cannot measure with the torch in {self.venv}: {name} failed", lines)
        return json.loads(answer)


@contextmanager
def _worker(venv: Path, series: Series, device: str) -> Iterator[Worker]:
    ours = series.root / "torch_overlay" / MODULE
    if not ours.is_file():
        raise UsageError(f"the series in {series.root} has no torch_overlay/{MODULE} to measure")
    command = [runtime.interpreter(venv), "-I", "-W", "ignore", WORKER, ours, device]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        with process:
            try:
                yield Worker(venv, process, errors)
            finally:
                process.kill()


def bench_cast(series: Series, venv: Path, device: str, counts: bool, say: Say) -> CastBench:
    """Measure one stock torch and the series beside it; ``counts`` is for the plot."""
    target = find_target(str(venv))
    standing = operations.standing(target, series)
    if standing.patches(State.APPLIED):
        raise UsageError(f"{target} has the series already; name a stock torch to measure it with")
    with _worker(venv, series, device) as stock:
        version = stock.ask("versions")["torch"]
        if device == "cuda" and not stock.ask("has_cuda"):
            raise UsageError(f"torch {version} in {venv} finds no CUDA device; use --device cpu")
        say(f"torch {version}: the contract")
        contract = stock.ask("contract")
        rows = []
        for goal in GOALS:
            say(f"torch {version}: {goal.name}")
            rows.append(_row(stock, goal))
        say(f"torch {version}: {MANY.split()[1]} tensors to cast")
        ways = ("each", "foreach") if stock.ask("has_foreach") else ("each",)
        many = {name: Spread.of(values) for name, values in _blocks(stock, MANY, ways).items()}
        by_count: dict[int, dict[str, float]] = {}
        for count in COUNTS if counts else ():
            say(f"torch {version}: {count} tensors")
            found = _blocks(stock, f"right {count}", ("FSDP1", "ours", "bare"))
            by_count[count] = {name: statistics.median(values) for name, values in found.items()}
        settled = [name for goal in GOALS[:3] for name in stock.ask("events", goal.inputs, "ours")]
        device_work = [name for name in settled if any(part in name for part in DEVICE_WORK)]
        no_share = stock.ask("has_fsdp2")
        share = None
        if not no_share:
            say(f"torch {version}: a model with FSDP2, with the series in a copy of it")
            share = _share(stock, series, venv, device)
    return CastBench(version, device, rows, share, no_share, device_work, many, by_count, contract)


def _blocks(worker: Worker, inputs: str, names: Sequence[str]) -> dict[str, list[float]]:
    """Microseconds of each way, block by block, in turn."""
    calls = {}
    for name in names:
        worker.ask("time_row", inputs, name, 20)
        calls[name] = max(1, int(1000 / worker.ask("time_row", inputs, name, 20)))
    blocks: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(BLOCKS):
        for name in names:
            blocks[name].append(worker.ask("time_row", inputs, name, calls[name]))
    return blocks


def _row(worker: Worker, goal: Goal) -> Row:
    bare = ("bare",) if goal.inputs.startswith(("right", "list")) else ()
    blocks = _blocks(worker, goal.inputs, ("FSDP1", "ours", *bare))
    ratios = [stock / ours for stock, ours in zip(blocks["FSDP1"], blocks["ours"])]
    return Row(
        goal,
        Spread.of(blocks["FSDP1"]),
        Spread.of(blocks["ours"]),
        Spread.of(blocks["bare"]) if bare else None,
        Spread.of(ratios),
    )


def _share(stock: Worker, series: Series, venv: Path, device: str) -> Share:
    # Hard links do not cross file systems, so the copy lies beside the original.
    with tempfile.TemporaryDirectory(prefix="bench-", dir=venv.resolve().parent) as folder:
        copy = runtime.copy_of(venv, Path(folder, "venv"))
        operations.apply(find_target(str(copy)), series)
        with _worker(copy, series, device) as ours:
            workers = (stock, ours)
            pairs: dict[Worker, list[list[float]]] = {worker: [] for worker in workers}
            for block in range(MODEL_BLOCKS + 1):
                for worker in workers:
                    found = worker.ask("time_model", MODEL_CALLS)
                    if block:  # the first one builds the model
                        pairs[worker] += found

    def shares(worker: Worker) -> Spread:
        return Spread.of([cast - without for cast, without in pairs[worker]])

    def whole(worker: Worker) -> Spread:
        return Spread.of([cast for cast, _ in pairs[worker]])

    return Share(whole(stock), whole(ours), shares(stock), shares(ours))
