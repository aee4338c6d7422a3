"""Made-up runs of upstream's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from overlay.upstream.results import Outcome, Problem, Run, Side, Status

FSDP = "test/distributed/fsdp"
TAIL = """\
Traceback (most recent call last):
  File "test_core.py", line 7, in test_step
AssertionError: \x1b[31mfloat32 is not bfloat16\x1b[0m
"""
SKIPPED_LONG = "Need at least 4 CUDA devices"


def outcome(
    test: str, status: Status, seconds: float = 1.0, reason: str = "", tail: str = ""
) -> Outcome:
    return Outcome(f"{FSDP}/{test}", status, seconds, reason, tail)


def a_run(
    before: Sequence[Outcome],
    after: Sequence[Outcome],
    problems: Sequence[Problem] = (),
    known: Optional[dict[str, str]] = None,
    name: str = "stock",
) -> Run:
    return Run(
        base="v1.13.1",
        torch="1.13.1+cu117",
        python="3.11.2",
        platform="Linux x86_64",
        device="cpu, CUDA stand-in",
        selection=FSDP,
        tree="0123456789abcdef",
        started="2024-01-02T03:04:05+00:00",
        before=Side(name, (), tuple(before), (), 61.5, ()),
        after=Side(
            "with the series",
            ("1.13/cast.apatch", "1.13/flags.apatch"),
            tuple(after),
            tuple(problems),
            64.2,
        ),
        known=known or {},
    )


def every_verdict() -> Run:
    """A run with each verdict, a known failure and problems, some with hostile names."""
    passed, failed, skipped = Status.PASSED, Status.FAILED, Status.SKIPPED
    core, wrap = "test_core.py::TestCore", "test_wrap.py::TestWrap"
    before = [
        outcome(f"{core}::test_step", passed),
        outcome(f"{core}::test_gone", passed),
        outcome(f"{core}::test_cast", failed, reason="RuntimeError: mat1 and mat2"),
        outcome(f"{core}::test_hangs", failed),
        outcome(f"{core}::test_memory", failed, reason="0 != 4096"),
        outcome(f"{wrap}::test_a[torch.float16|<None>-`x*y`]", passed),
        outcome(f"{wrap}::test_b", passed),
        outcome(f"{wrap}::test_c", skipped, reason=SKIPPED_LONG),
        outcome(f"{wrap}::test_d", skipped, reason=SKIPPED_LONG),
        outcome(f"{wrap}::test_e", skipped, reason="CUDA <-> NCCL only"),
    ]
    after = [
        outcome(
            f"{core}::test_step", failed, 2.25, "AssertionError: float32 is not bfloat16", TAIL
        ),
        outcome(f"{core}::test_cast", passed, 1.5),
        outcome(
            f"{core}::test_hangs", Status.TIMED_OUT, 120.0, "longer than 120 s", "rank 1: ...\n"
        ),
        outcome(f"{core}::test_memory", failed, reason="0 != 4096", tail="0 != 4096\n"),
        outcome(f"{wrap}::test_a[torch.float16|<None>-`x*y`]", skipped, reason="not @here #1"),
        outcome(f"{wrap}::test_b", passed),
        outcome(f"{wrap}::test_c", passed),
        outcome(f"{wrap}::test_d", skipped, reason=SKIPPED_LONG),
        outcome(f"{wrap}::test_e", skipped, reason="CUDA <-> NCCL only"),
        outcome("test_nested.py::TestNested::test_new", passed, 3.0),
        outcome("test_nested.py::TestNested::test_dies", Status.DIED, 0.5, "rank 0 died: SIGKILL"),
    ]
    problem = Problem(
        f"{FSDP}/test_comm.py",
        "cannot be imported: ModuleNotFoundError: No module named 'x'",
        "import x\nModuleNotFoundError: No module named 'x'\n",
    )
    known = {f"{FSDP}/{core}::test_memory": "memory figures: the CPU has none"}
    return a_run(before, after, [problem], known, "import fix alone")


def green() -> Run:
    """The same tests pass on both sides."""
    outcomes = [outcome(f"test_wrap.py::TestWrap::test_{name}", Status.PASSED) for name in "ab"]
    return a_run(outcomes, outcomes)


def large() -> Run:
    """1500 tests of 40 files, with names and reasons as long as upstream's longest."""
    ways = [
        (Status.PASSED, Status.FAILED),
        (Status.FAILED, Status.PASSED),
        (Status.SKIPPED, Status.SKIPPED),
        *[(Status.PASSED, Status.PASSED)] * 7,
    ]
    before, after = [], []
    for number in range(1500):
        parameters = "sharding_strategy_ShardingStrategy.FULL_SHARD_" * 4
        test = (
            f"test_{number % 40}_of_a_file_with_a_long_name.py::TestIt::test_{number}_{parameters}"
        )
        for side, status in zip((before, after), ways[number % len(ways)]):
            reason = "" if status is Status.PASSED else f"</script>{'x' * 200} {SKIPPED_LONG}"
            tail = f"{'y' * 300}\nlast" if status is Status.FAILED else ""
            side.append(outcome(test, status, number / 7, reason, tail))
    return a_run(before, after)
