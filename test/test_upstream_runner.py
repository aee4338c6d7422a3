"""The runner of upstream's tests, on made-up test files that end in every way."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import overlay.upstream
from overlay.upstream import events
from overlay.upstream.inside.overlay_inside.processes import children
from overlay.upstream.results import Outcome, Status
from overlay.upstream.runner import Half, Settings, Unit, UnitResult, run_units

FILES = Path(__file__).with_name("upstream_files")
INSIDE = Path(overlay.upstream.__file__).with_name("inside")


@pytest.fixture(scope="module")
def half(stock_venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Half:
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(FILES, tree / "test")
    return Half("stock", (), stock_venv, tree)


class Ran:
    """Results by file, and what was told while they came."""

    def __init__(self, half: Half, *names: str, **settings: Any) -> None:
        units = [Unit(f"test/{name}.py") for name in names]
        self.events: list[events.Event] = []
        results = run_units(half, units, Settings(**settings), self.events.append)
        self.results = dict(zip(names, results.values()))

    def problems(self) -> list[str]:
        return [f"{p.where}: {p.what}" for r in self.results.values() for p in r.problems]


# As few runs as can be, since each imports torch.
GIVE_NOTHING = ("test_import_error", "test_import_crashes", "test_nothing")


@pytest.fixture(scope="module")
def forked(half: Half) -> Ran:
    return Ran(half, "test_ranks", "test_plain", "test_threads", *GIVE_NOTHING)


@pytest.fixture(scope="module")
def isolated(half: Half) -> Ran:
    return Ran(half, "test_plain", *GIVE_NOTHING, isolate=True)


@pytest.fixture(scope="module", params=[False, True], ids=["forked", "isolated"])
def either(request: pytest.FixtureRequest) -> Ran:
    ran: Ran = request.getfixturevalue("isolated" if request.param else "forked")
    return ran


def by_name(result: UnitResult) -> dict[str, Outcome]:
    return {outcome.test.rsplit("::", 1)[1]: outcome for outcome in result.outcomes}


def fates(result: UnitResult) -> dict[str, tuple[Status, str]]:
    return {name: (o.status, o.reason) for name, o in by_name(result).items()}


def test_ranks_end_in_every_way(forked: Ran) -> None:
    ranks = forked.results["test_ranks"]
    found = fates(ranks)
    drew = found.pop("test_draws_as_a_new_interpreter_does")
    assert drew[0] is Status.FAILED and re.match(r"rank \d: AssertionError: drew 0\.", drew[1])
    assert found == {
        "test_passes": (Status.PASSED, ""),
        "test_fails_in_one_rank": (
            Status.FAILED,
            "rank 1: AssertionError: Scalars are not equal!",
        ),
        "test_is_skipped_in_its_ranks": (Status.SKIPPED, "Skipped due to small world size."),
        "test_is_skipped_by_a_decorator": (Status.SKIPPED, "Need at least 7 CUDA devices"),
        "test_loses_a_rank": (Status.FAILED, "rank 1 died of SIGKILL"),
        "test_loses_a_rank_and_skips_in_the_other": (Status.FAILED, "rank 1 died of SIGKILL"),
    }
    assert ranks.problems == ()
    assert [outcome.test for outcome in ranks.outcomes] == list(ranks.tests)


def test_a_failure_ends_with_what_its_ranks_printed(forked: Ran) -> None:
    tail = by_name(forked.results["test_ranks"])["test_fails_in_one_rank"].tail
    assert "AssertionError: Scalars are not equal!" in tail
    assert "rank 0 prints this" in tail and "rank 1 prints this" in tail


def test_spawned_ranks_end_alike(half: Half, forked: Ran) -> None:
    keyword = "test_passes or draws or loses_a_rank_and"
    ran = Ran(half, "test_ranks", isolate=True, keyword=keyword, timeout=250)
    spawned = ran.results["test_ranks"]
    found, expected = fates(spawned), fates(forked.results["test_ranks"])
    for each in (found, expected):  # either rank may be the first to end
        status, reason = each["test_draws_as_a_new_interpreter_does"]
        each["test_draws_as_a_new_interpreter_does"] = status, re.sub(r"^rank \d", "", reason)
    assert found == {name: expected[name] for name in found}
    assert len(spawned.outcomes) == 3


def test_the_rest_goes_on_after_a_crash(either: Ran) -> None:
    found = fates(either.results["test_plain"])
    found.pop("test_leaves_things_behind")
    alone = found.pop("test_b_sees_nothing_of_others")
    assert found == {
        "test_a_passes_alone": (Status.PASSED, ""),
        "test_crashes": (Status.DIED, "its process died of SIGSEGV"),
        "test_ends_its_process": (Status.DIED, "its process ended with exit code 0"),
        "test_fails_as_expected": (Status.PASSED, "fails as expected"),
        "test_is_skipped": (Status.SKIPPED, "not today"),
    }
    # Forked tests have a process each, so they cannot lean on one another.
    assert (alone[0] is Status.PASSED) == ("test_ranks" in either.results)
    assert "about to crash" in by_name(either.results["test_plain"])["test_crashes"].tail


def test_what_others_use_stays() -> None:
    program = """
import multiprocessing, os, uuid
from overlay_inside import processes

before = processes.shared_memory()
lock = multiprocessing.get_context("spawn").Lock()  # as torch's own spawned ranks have
leaked = f"torch_{uuid.uuid4().hex}"
open(f"/dev/shm/{leaked}", "w").close()
made = processes.shared_memory() - before
assert leaked in made and any(name.startswith("sem.mp-") for name in made), made
processes.remove_shared_memory(before)
left = processes.shared_memory()
assert leaked not in left
assert made - {leaked} <= left
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=INSIDE)


def test_nothing_is_left_behind(either: Ran) -> None:
    reason = fates(either.results["test_plain"])["test_leaves_things_behind"][1]
    pid, port, memory, folder = reason.rsplit(": ", 1)[1].split()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("localhost", int(port)))
    assert not Path("/dev/shm", memory).exists()
    assert not Path(folder).exists()


def test_a_file_that_gives_nothing_is_a_problem(either: Ran) -> None:
    assert either.problems() == [
        "test/test_import_error.py: cannot be imported:"
        " ModuleNotFoundError: No module named 'no_such_module'",
        "test/test_import_crashes.py: cannot be imported: its process died of SIGKILL",
        "test/test_nothing.py: no test in it was collected",
    ]
    told = [event for event in either.events if isinstance(event, events.ProblemFound)]
    assert [f"{e.problem.where}: {e.problem.what}" for e in told] == either.problems()


def test_a_file_that_runs_threads_is_not_forked(forked: Ran) -> None:
    # A lock that a thread holds would stay held in the fork: it gets a new interpreter.
    assert fates(forked.results["test_threads"]) == {"test_passes": (Status.PASSED, "")}


def test_what_hangs_is_stopped(half: Half) -> None:
    ran = Ran(half, "test_hangs", "test_import_hangs", timeout=3, import_timeout=10)
    assert fates(ran.results["test_hangs"]) == {
        "test_a_hangs": (Status.TIMED_OUT, "took longer than 3 s"),
        "test_b_passes": (Status.PASSED, ""),
    }
    tail = by_name(ran.results["test_hangs"])["test_a_hangs"].tail
    assert "waiting for nothing" in tail
    assert re.search(r'test_hangs.py", line 8 in test_a_hangs', tail)
    assert ran.problems() == [
        "test/test_import_hangs.py: cannot be imported: took longer than 10 s"
    ]


def test_what_hangs_in_one_process_is_stopped(half: Half) -> None:
    ran = Ran(half, "test_hangs", timeout=3, isolate=True)
    assert fates(ran.results["test_hangs"]) == {
        "test_a_hangs": (Status.TIMED_OUT, "took longer than 3 s"),
        "test_b_passes": (Status.PASSED, ""),
    }


def test_events_tell_all_in_order(forked: Ran) -> None:
    file = "test/test_plain.py"
    tests = forked.results["test_plain"].tests
    first = forked.events.index(events.FileStarted(file))
    last = forked.events.index(events.FileFinished(file))
    expected: list[object] = [events.FileStarted(file), events.Collected(file, tests)]
    for outcome in forked.results["test_plain"].outcomes:
        expected += [events.TestStarted(outcome.test), events.TestFinished(outcome)]
    assert forked.events[first : last + 1] == [*expected, events.FileFinished(file)]


def test_parts_of_a_file_are_all_of_it(half: Half, forked: Ran) -> None:
    units = [Unit("test/test_plain.py", (number, 3)) for number in (1, 2, 3)]
    results = run_units(half, units, Settings(workers=2), lambda event: None)
    tests = [test for result in results.values() for test in result.tests]
    assert sorted(tests) == sorted(forked.results["test_plain"].tests)
    assert len(set(tests)) == len(tests)


def test_a_listener_that_fails_leaves_nothing_running(half: Half) -> None:
    def fail(event: events.Event) -> None:
        if isinstance(event, events.TestStarted):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_units(half, [Unit("test/test_hangs.py")], Settings(), fail)
    assert running(half) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_killed_takes_its_tests_with_it(half: Half, number: int) -> None:
    def kill(event: events.Event) -> None:
        if isinstance(event, events.TestStarted):
            os.kill(next(pid for pid in running(half) if pid in children(os.getpid())), number)

    (result,) = run_units(half, [Unit("test/test_hangs.py")], Settings(), kill).values()
    assert [problem.what for problem in result.problems] == [
        f"the process that runs it ended with exit code -{number}",
        "2 of its tests have no outcome, test/test_hangs.py::TestHangs::test_a_hangs first",
    ]
    deadline = time.monotonic() + 10
    while running(half) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert running(half) == []


def running(half: Half) -> list[int]:
    """The processes that run tests of this tree."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = command.read_bytes()
            if b"overlay_inside" in words and str(half.tree).encode() in words:
                found.append(int(command.parent.name))
    return found
