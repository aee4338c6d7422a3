"""Shards, known failures, and what is kept of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from expecttest import assert_expected_inline
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import UsageError
from overlay.upstream import known, store
from overlay.upstream.results import Outcome, Problem, Run, Side, Status
from overlay.upstream.runner import Unit, UnitResult
from overlay.upstream.selection import parse_shard, plan_name, plan_shards, weights

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
