"""Benchmarks: what the tool's commands cost, as whole processes, in one run."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from overlay import operations, runtime
from overlay.errors import TargetError
from overlay.series import Series
from overlay.targets import find_target

RUNS = 7
KIB_PER_MIB = 1024

Say = Callable[[str], None]


@dataclass(frozen=True)
class Limit:
    """What a command may cost."""

    seconds: float
    mib: float = float("inf")


LIMITS = {"--help": Limit(0.3), "status": Limit(1.0), "apply": Limit(1.5, 150)}


@dataclass(frozen=True)
class Cost:
    """One command's runs: wall seconds of each, and the largest peak memory in MiB."""

    name: str
    seconds: Sequence[float]
    mib: float

    @property
    def median(self) -> float:
        """The median wall time, in seconds."""
        return statistics.median(self.seconds)

    @property
    def within_limit(self) -> bool:
        """Whether it keeps to its limit, if it has one."""
        limit = LIMITS.get(self.name)
        return limit is None or (self.median < limit.seconds and self.mib < limit.mib)


def bench_apply(series: Series, say: Say) -> list[Cost]:
    """Measure ``--help``, ``status``, ``apply``, and ``git am`` of the same change.

    Each is a process of its own, after one that is not counted. ``git am`` runs in a small
    repository that holds the touched files alone, which is the best case for it.
    """
    stock = runtime.torch_venv(progress=say, packages=runtime.TEST_PACKAGES)
    # Hard links do not cross file systems, so the copy lies beside the original.
    with tempfile.TemporaryDirectory(prefix="bench-", dir=stock.parent) as folder:
        copy = str(runtime.copy_of(stock, Path(folder, "venv")))
        tool = [sys.executable, "-m", "overlay", "--series", str(series.root)]
        repository, mail = _as_mail(copy, series, Path(folder, "git"))
        reset = ["git", "-C", str(repository), "reset", "--quiet", "--hard", "base"]
        revert = [*tool, "revert", copy]
        plans: list[tuple[str, list[str], Sequence[list[str]]]] = [
            ("--help", [*tool, "--help"], ()),
            ("status", [*tool, "status", copy], ()),
            ("apply", [*tool, "apply", copy], (revert,)),
            ("git am", ["git", "-C", str(repository), "am", "--quiet", str(mail)], (reset,)),
        ]
        costs: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in plans}
        # In turn, so that a machine that slows down slows all of them.
        for number in range(RUNS + 1):
            say(f"run {number} of {RUNS}" if number else "a run that is not counted")
            for name, command, afterwards in plans:
                cost = _measure(command)
                if number:
                    costs[name].append(cost)
                for step in afterwards:
                    _measure(step)
        return [
            Cost(name, [seconds for seconds, _ in runs], max(mib for _, mib in runs))
            for name, runs in costs.items()
        ]


# A process begins with the peak of the one that starts it, so something small does.
_MEASURE = """
import json, os, sys, time
report = os.fdopen(int(sys.argv[1]), "w")
started = time.perf_counter()
child = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(child, 0)
seconds = time.perf_counter() - started
json.dump([os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss], report)
"""


def _measure(command: Sequence[str]) -> tuple[float, float]:
    """Wall seconds and peak memory in MiB of a command, its own process alone."""
    reader, writer = os.pipe()
    with open(reader) as report:
        starter = [sys.executable, "-I", "-S", "-c", _MEASURE, str(writer), *command]
        done = subprocess.run(
            starter, pass_fds=[writer], capture_output=True, text=True, check=False
        )
        os.close(writer)
        code, seconds, kib = json.load(report)
    if code:
        raise TargetError(f"'{' '.join(command)}' exited with {code}", done.stderr.splitlines())
    return float(seconds), kib / KIB_PER_MIB


def _as_mail(target: str, series: Series, folder: Path) -> tuple[Path, Path]:
    """A repository with the files that the series touches, and its change as a mail."""
    made = operations.plan(find_target(target), series)
    root = made.standing.target.root
    repository = folder / "repository"
    git = ["git", "-C", str(repository)]
    for path in made.writes:
        place = repository / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if (root / path).is_file():
            shutil.copyfile(root / path, place)
    _run(["git", "init", "--quiet", str(repository)])
    for setting in ("user.name bench", "user.email bench@localhost", "commit.gpgsign false"):
        _run([*git, "config", *setting.split()])
    _run([*git, "add", "--all"])
    _run([*git, "commit", "--quiet", "--message", "base"])
    _run([*git, "tag", "base"])
    for path, content in made.writes.items():
        if content is not None:
            (repository / path).parent.mkdir(parents=True, exist_ok=True)
            (repository / path).write_bytes(content)
    _run([*git, "add", "--all"])
    _run([*git, "commit", "--quiet", "--message", "series"])
    mail = Path(_run([*git, "format-patch", "-1", "-o", str(folder)]).strip())
    _run([*git, "reset", "--quiet", "--hard", "base"])
    return repository, mail


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TargetError(f"'{' '.join(command)}' failed", done.stderr.splitlines())
    return done.stdout
