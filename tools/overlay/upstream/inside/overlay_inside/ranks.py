"""The ranks of upstream's multi-process tests: forked instead of spawned, and never lost.

Upstream starts a fresh interpreter for each rank, which imports torch and the test's file again.
Without a real GPU a fork of the test's own process, which has them, does the same.
"""

from __future__ import annotations

import multiprocessing.connection
import os
import signal
import sys
import time
from multiprocessing.context import ForkProcess
from typing import Any, Callable

from . import processes


class RankDied(AssertionError):
    """A rank ended without a result."""


_in_each_rank: list[Callable[[], None]] = []


def watch() -> None:
    """Let no test pass or be skipped whose rank died of a signal, unless it expects that."""
    case = _test_case()
    join = case._join_processes

    def join_processes(self: Any, fn: Any) -> None:
        error = None
        try:
            join(self, fn)
        except BaseException as raised:
            error = raised
        expected = fn in self.skip_return_code_checks or fn in getattr(
            self, "special_return_code_checks", ()
        )
        died = [
            f"rank {rank} died of {processes.signal_name(-process.exitcode)}"
            for rank, process in enumerate(self.processes)
            # SIGTERM is how upstream ends the others after a failure.
            if process.exitcode and process.exitcode < 0 and process.exitcode != -signal.SIGTERM
        ]
        if died and not expected:
            raise RankDied(", ".join(died)) from error
        if error is not None:
            raise error

    case._join_processes = join_processes


def fork(in_each: Callable[[], None]) -> None:
    """Fork the ranks of every test from now on; call ``in_each`` first in each of them."""
    _in_each_rank.append(in_each)
    case = _test_case()
    module = sys.modules[case.__module__]
    spawn, join = case._spawn_processes, case._join_processes

    def spawn_processes(self: Any) -> None:
        if processes.has_threads():
            spawn(self)  # A lock that another thread holds would stay held in the fork.
        else:
            self._start_processes(_Rank)

    def join_processes(self: Any, fn: Any) -> None:
        module.time = _Waits(self)  # type: ignore[attr-defined]
        try:
            join(self, fn)
        finally:
            module.time = time  # type: ignore[attr-defined]

    case._spawn_processes, case._join_processes = spawn_processes, join_processes


def _test_case() -> Any:
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    return MultiProcessTestCase


class _Rank(ForkProcess):
    """A rank that begins as a fresh interpreter would that has just imported the test's file."""

    def run(self) -> None:
        processes.end_with_parent()
        for function in _in_each_rank:
            function()
        super().run()


class _Waits:
    """The ``time`` module where upstream waits for ranks: it wakes as soon as one ends."""

    def __init__(self, test: Any) -> None:
        self._test = test

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        running = [p.sentinel for p in self._test.processes if p.exitcode is None]
        multiprocessing.connection.wait(running, seconds)


def fresh_random_state() -> Callable[[], None]:
    """Remember torch's random state now; what is returned brings it back, in a rank.

    What is not torch's has another state in every new interpreter.
    """
    import torch

    state = torch.get_rng_state()

    def restore() -> None:
        torch.set_rng_state(state)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed()

    return restore


def own_streams() -> None:
    """Print where a new interpreter prints, which is not where pytest may have pointed."""
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    os.environ.pop("PYTEST_CURRENT_TEST", None)
