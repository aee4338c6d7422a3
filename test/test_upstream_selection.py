"""Shards, known failures, and what is kept of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from expecttest import assert_expected_inline
from hypothesis import given
from hypothesis import strategies as st

from overlay.bases import find_base
from overlay.errors import UsageError
from overlay.upstream import compare, known, store
from overlay.upstream.compare import Request
from overlay.upstream.halves import Halves
from overlay.upstream.results import Outcome, Problem, Run, Side, Status
from overlay.upstream.runner import Half, Unit, UnitResult, UpstreamTestsError
from overlay.upstream.selection import (
    needing_several_devices,
    parse_shard,
    plan_name,
    plan_shards,
    select,
    weights,
)

FILES = [f"test/test_{name}.py" for name in "abcdefgh"]
WEIGHTS = st.dictionaries(st.sampled_from(FILES), st.floats(0.1, 1000), min_size=1)


@given(WEIGHTS, st.integers(1, 9))
def test_shards_together_are_all_tests(weight: dict[str, float], count: int) -> None:
    shares = plan_shards(weight, count)
    assert len(shares) == count
    for file in weight:
        parts = sorted(
            unit.part or (1, 1) for share in shares for unit in share if unit.file == file
        )
        # A part is every so-many-th test, so that these are each test once.
        assert parts == [(number, len(parts)) for number in range(1, len(parts) + 1)]
    # No share is longer than an even one and one more unit, and a unit is at most an even share.
    even = sum(weight.values()) / count
    seconds = [sum(weight[u.file] / (u.part or (1, 1))[1] for u in share) for share in shares]
    assert max(seconds) <= 2 * even + 1e-6


def test_a_file_that_dominates_is_split() -> None:
    shares = plan_shards({"test/long.py": 90.0, "test/a.py": 5.0, "test/b.py": 5.0}, 2)
    assert shares == [
        [Unit("test/long.py", (1, 2)), Unit("test/a.py")],
        [Unit("test/long.py", (2, 2)), Unit("test/b.py")],
    ]
    assert plan_name(shares) == plan_name(
        plan_shards({"test/long.py": 9, "test/a.py": 0.5, "test/b.py": 0.5}, 2)
    )
    assert plan_name(shares) != plan_name(plan_shards({"test/long.py": 9, "test/a.py": 9}, 2))


def test_which_tests_need_two_devices(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text(
        """
class Some:
    @skip_if_lt_x_gpu(2)
    @parametrize("x", [1])
    def test_two(self, x): ...
    @common_distributed.skip_if_lt_x_gpu(DEVICES)
    def test_as_many(self): ...
    @skip_if_lt_x_gpu(1)
    def test_one(self): ...
    def test_none(self): ...
"""
    )
    found = needing_several_devices(["some.py", "gone.py"], [tmp_path, tmp_path / "other"])
    assert found == ["some.py::Some::test_two", "some.py::Some::test_as_many"]


def test_a_file_weighs_what_it_took_or_how_many_tests_it_has(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(
        "class T:\n    def test_a(self): ...\n    def test_b(self): ...\n"
    )
    durations = {"old.py": {"old.py::T::test_a": 3.0, "old.py::T::test_b": 1.5}}
    assert weights(["old.py", "new.py", "gone.py"], tmp_path, durations) == {
        "old.py": 4.5,
        "new.py": 2.0,
        "gone.py": 1.0,
    }


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b"])
def test_a_shard_is_one_of_several(text: str) -> None:
    with pytest.raises(UsageError, match="write it as K/N"):
        parse_shard(text)
    assert parse_shard("2/3") == (2, 3)


def known_file(folder: Path, text: str) -> Path:
    file = folder / "v1-cpu.txt"
    file.write_text(text)
    return file


def test_known_failures_are_read(tmp_path: Path) -> None:
    text = "# Why: because\n\ntest/a.py::T::test_x[1]: needs NCCL: really\n"
    assert known.load(known_file(tmp_path, text)) == {
        "test/a.py::T::test_x[1]": "needs NCCL: really"
    }
    assert known.load(tmp_path / "absent.txt") == {}


@pytest.mark.parametrize("base", ["v1.13.1", "v2.6.0"])
def test_our_known_failures_can_be_read(base: str) -> None:
    path = known.path_for(base, "cpu")
    assert path.is_file()
    known.load(path)


def test_wrong_known_failures_are_named(tmp_path: Path) -> None:
    messages = []
    for text in ("test/a.py::T::test_x", "test/a.py: no test", "a::b: c\na::b: d\n"):
        with pytest.raises(UsageError) as raised:
            known.load(known_file(tmp_path, text))
        messages.append(raised.value.message.replace(str(tmp_path), "FOLDER"))
    assert_expected_inline(
        "\n".join(messages),
        """\
FOLDER/v1-cpu.txt:1: not 'test id: reason': test/a.py::T::test_x
FOLDER/v1-cpu.txt:1: not 'test id: reason': test/a.py: no test
FOLDER/v1-cpu.txt:2: a::b stands twice: remove one""",
    )


def outcome(test: str, status: Status) -> Outcome:
    return Outcome(test, status, 0.5)


def test_known_failures_that_do_not_fail_are_problems() -> None:
    names = {f"test/a.py::{name}": "why" for name in ("fails", "passes", "skipped", "absent")}
    before = [
        outcome("test/a.py::fails", Status.FAILED),
        outcome("test/a.py::passes", Status.PASSED),
        outcome("test/a.py::skipped", Status.SKIPPED),
    ]
    found = known.check({**names, "test/b.py::not_selected": "why"}, before, ["test/a.py"])
    text = "\n".join(f"{problem.where}: {problem.what}" for problem in found)
    assert_expected_inline(
        text,
        """\
test/a.py::passes: is among the known failures, but passed: remove it there
test/a.py::skipped: is among the known failures, but skipped: remove it there
test/a.py::absent: is among the known failures, but there is no such test: remove it there""",
    )
    sometimes = {test: f"sometimes: {reason}" for test, reason in names.items()}
    assert [problem.where.rsplit("::")[-1] for problem in known.check(sometimes, before, [])] == [
        "skipped"
    ]
    # With -k, or in a shard, not every test of a file is there.
    assert len(known.check(names, before, [])) == 2


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_OVERLAY_CACHE", str(tmp_path))
    return tmp_path


def test_settled_results_are_kept(cache: Path) -> None:
    results = store.Results("v1")
    passed = UnitResult(("a::b",), (outcome("a::b", Status.PASSED),), ())
    results.keep("key", passed)
    assert results.load("key") == passed and results.load("other") is None
    for lost in (
        UnitResult(("a::b",), (outcome("a::b", Status.DIED),), ()),
        UnitResult(("a::b",), (outcome("a::b", Status.TIMED_OUT),), ()),
        UnitResult((), (), (Problem("a", "cannot be imported"),)),
    ):
        results.keep("lost", lost)
        assert results.load("lost") is None
    next(cache.rglob("key.json")).write_text("{}")
    assert results.load("key") is None


def test_durations_of_other_files_stay(cache: Path) -> None:
    durations = store.Durations("v1", "cpu, CUDA stand-in")
    durations.keep([outcome("a.py::x", Status.PASSED), outcome("b.py::y", Status.PASSED)])
    durations.keep([replace(outcome("a.py::x", Status.PASSED), seconds=2.0)])
    assert durations.load() == {"a.py": {"a.py::x": 2.0}, "b.py": {"b.py::y": 0.5}}
    assert store.Durations("v1", "cpu").load() == {}


def run(started: str, tree: str = "f00") -> Run:
    side = Side("stock", (), ())
    return Run("v1", "1.0", "3.11", "Linux", "cpu", "all", tree, started, side, side)


def test_the_last_run_of_a_tree_is_found(cache: Path) -> None:
    assert store.last_run("f00") is None
    for started in ("2026-01-02T00:00:00+00:00", "2026-01-01T00:00:00+00:00"):
        store.keep_run(run(started))
    store.keep_run(run("2026-01-03T00:00:00+00:00", "other"))
    last = store.last_run("f00")
    assert last == run("2026-01-02T00:00:00+00:00")


def test_a_fingerprint_is_of_paths_and_contents() -> None:
    one = store.fingerprint_of({"a": b"1", "b": None})
    assert one == store.fingerprint_of({"b": None, "a": b"1"}) and len(one) == 64
    others = ({"a": b"1"}, {"a": b"1", "b": b""}, {"a": b"2", "b": None}, {"b": b"1", "a": None})
    assert len({one, *map(store.fingerprint_of, others)}) == 5


def halves(folder: Path, *files: str, related: Sequence[str] = (), upstream: bool = True) -> Halves:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    half = Half("stock", (), folder, folder)
    own = ("test/distributed/fsdp/test_own.py",)
    names = ("tree", "torch", "python", "before_key")
    return Halves(
        base=find_base("v2.6.0"),
        before=half,
        after=half,
        own_tests=own,
        related=tuple(related),
        has_upstream_tests=upstream,
        **dict.fromkeys(names, ""),
    )


def test_files_are_named_by_path_or_among_fsdps(tmp_path: Path) -> None:
    own, wrap = "test/distributed/fsdp/test_own.py", "test/distributed/fsdp/test_wrap.py"
    c10d = "test/distributed/test_c10d.py"
    made = halves(tmp_path, own, wrap, c10d, related=[wrap])
    assert select(made, [], every=False) == ((wrap,), "tests that the patches name")
    assert select(made, [], every=True).files == (own, wrap)
    assert select(made, ["test_wrap", wrap, "test_wrap.py"], every=False).files == (wrap,)
    assert select(made, ["test/distributed/"], every=False).files == (own, wrap, c10d)
    for name in ("test_none", "../etc", "test/distributed/fsdp/test_none.py"):
        with pytest.raises(UsageError, match="no test file"):
            select(made, [wrap, name], every=False)


def test_a_named_test_that_is_not_there_is_refused(tmp_path: Path) -> None:
    own, gone = "test/distributed/fsdp/test_own.py", "test/distributed/fsdp/test_gone.py"
    with pytest.raises(UsageError, match=r"Tests field names .*test_gone.py, which is not there"):
        select(halves(tmp_path, own, related=[own, gone]), [], every=False)
    # Without upstream's tests it cannot be there, and the selection says so.
    chosen = select(halves(tmp_path, own, related=[own, gone], upstream=False), [], every=False)
    assert chosen == ((own,), "the series' own tests; PyTorch's are not there")
    with pytest.raises(UsageError, match="name no test that is there"):
        select(halves(tmp_path, related=[gone]), [], every=False)


def test_one_device_is_refused_where_tests_need_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "_cuda_devices", lambda venv: ["A100"])
    wrap = "test/distributed/fsdp/test_wrap.py"
    made = halves(tmp_path, wrap, related=[wrap])
    asked = Request(device="cuda")
    assert compare._device(made, asked, [wrap])[1] == "cuda (1 x A100)"
    tests = "".join(f"    @skip_if_lt_x_gpu(2)\n    def test_{n}(self): ...\n" for n in range(12))
    (tmp_path / wrap).write_text(f"class Wrap:\n{tests}")
    with pytest.raises(UpstreamTestsError) as refused:
        compare._device(made, asked, [wrap])
    assert_expected_inline(
        "\n".join([refused.value.message, *refused.value.details]),
        """\
--device cuda: there is 1 CUDA device, and 12 of the selected tests need 2: choose others, or leave these out with --one-device
test/distributed/fsdp/test_wrap.py::Wrap::test_0
test/distributed/fsdp/test_wrap.py::Wrap::test_1
test/distributed/fsdp/test_wrap.py::Wrap::test_2
test/distributed/fsdp/test_wrap.py::Wrap::test_3
test/distributed/fsdp/test_wrap.py::Wrap::test_4
test/distributed/fsdp/test_wrap.py::Wrap::test_5
test/distributed/fsdp/test_wrap.py::Wrap::test_6
test/distributed/fsdp/test_wrap.py::Wrap::test_7
test/distributed/fsdp/test_wrap.py::Wrap::test_8
test/distributed/fsdp/test_wrap.py::Wrap::test_9
and 2 more""",
    )
    assert compare._device(made, replace(asked, one_device=True), [wrap])[0].cuda
