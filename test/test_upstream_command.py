"""``torch-overlay test`` as a person runs it, on a made-up base whose runtime is the real torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from expecttest import assert_expected_inline

from upstream_world import BASE, World


def statuses(side: dict[str, Any]) -> dict[str, str]:
    return {o["test"].rsplit("::")[-1]: o["status"] for o in side["outcomes"]}


def test_before_and_after(world: World, tmp_path: Path) -> None:
    """One story, since each run imports torch twice."""
    files = {name: tmp_path / name for name in ("run.json", "junit.xml", "page.html", "sum.md")}
    step_summary = tmp_path / "step.md"
    step_summary.write_text("before\n")
    done = world.run(
        *("test", "--junit", str(files["junit.xml"]), "--html", str(files["page.html"])),
        *("--summary", str(files["sum.md"]), "--json", str(files["run.json"])),
        code=1,
        GITHUB_STEP_SUMMARY=str(step_summary),
    )
    assert all(file.stat().st_size for file in files.values())
    assert step_summary.read_text() == "before\n" + files["sum.md"].read_text()
    run = json.loads(files["run.json"].read_text())
    assert run["device"] == "cpu, CUDA stand-in"
    assert statuses(run["before"]) == {
        "test_is_broken": "passed",
        "test_is_fixed": "failed",
        "test_is_newly_skipped": "passed",
        "test_is_skipped": "skipped",
        "test_passes": "passed",
    }
    assert statuses(run["after"]) == {
        "test_is_broken": "failed",
        "test_is_fixed": "passed",
        "test_is_newly_skipped": "skipped",
        "test_is_skipped": "skipped",
        "test_passes": "passed",
        "test_is_new": "passed",
    }
    assert "broken" in done.stdout and "newly skipped" in done.stdout

    # Stock results are kept, also when the series changes, and not when the tests do.
    kept = ["test/distributed/fsdp/test_small.py"]
    world.series("Tests: test/distributed/fsdp/test_small.py\n", "ADDED = 2\n")
    again = world.json()
    assert (
        again["before"]["kept"] == kept and again["before"]["outcomes"] == run["before"]["outcomes"]
    )
    assert statuses(again["after"])["test_is_new"] == "failed"
    assert again["tree"] != run["tree"]

    skipped = world.json("test_small.py", "-k", "is_skipped", "--fresh")
    assert skipped["before"]["kept"] == []
    assert statuses(skipped["after"]) == {"test_is_skipped": "skipped"}
    assert [p["what"] for p in skipped["after"]["problems"]] == [
        "all of its tests were skipped on cpu, CUDA stand-in"
    ]

    # A shard must not change how the others are dealt.
    durations = next(world.folder.rglob("seconds-*.json"))
    before = durations.read_text()
    shard = world.json("--all", "--shard", "1/2")
    assert re.search(r", shard 1/2 of plan \w{8}$", shard["selection"])
    assert 0 < len(shard["after"]["outcomes"]) < 11
    assert durations.read_text() == before


def test_wrong_use(world: World) -> None:
    nothing = world.json("--all", "-k", "no_such_test")
    assert [p["what"] for p in nothing["after"]["problems"]] == ["selects no test"]
    text = ""
    for arguments in (
        ["test_none.py"],
        ["v9.9.9", "test_small"],
        ["--all", "test_small.py"],
        ["--shard", "3/2"],
        ["--device", "cuda"],
    ):
        text += f"$ test {' '.join(arguments)}\n{world.errors(*arguments)}"
    assert_expected_inline(
        re.sub(r"2\.13\.0\+?\w*", "2.13.0", text),
        """\
$ test test_none.py
torch-overlay: no test file 'test_none.py' in v2.13.0
  name one by its path in PyTorch, as in test/distributed/fsdp/test_wrap.py
$ test v9.9.9 test_small
torch-overlay: v9.9.9 is not fetched: run `torch-overlay base fetch v9.9.9`
$ test --all test_small.py
torch-overlay: files, --all and --related are three ways to choose tests: use one
$ test --shard 3/2
torch-overlay: --shard 3/2: write it as K/N, with K from 1 to N, as in 1/4
$ test --device cuda
torch-overlay: --device cuda: torch 2.13.0 sees no CUDA device, and FSDP's tests need 2: leave --device out to run them on the CPU
""",
    )


def test_without_upstreams_tests_the_series_own_run(world: World) -> None:
    world.stamp(has_tests=False)
    run = world.json(code=0)
    assert run["device"] == "cpu"
    assert run["selection"] == "the series' own tests; PyTorch's are not there"
    assert statuses(run["after"]) == {"test_is_new": "passed"}
    assert_expected_inline(
        world.errors("--all") + world.errors("test_small"),
        """\
torch-overlay: the source of v2.13.0 came from a wheel, which has no tests: fetch it from a checkout ('torch-overlay base fetch v2.13.0 --anew --source PATH')
torch-overlay: no test file 'test_small' in v2.13.0
  the source of v2.13.0 came from a wheel, which has no tests: fetch it from a checkout ('torch-overlay base fetch v2.13.0 --anew --source PATH')
""",
    )


def test_bench_compares_verdicts(world: World) -> None:
    done = world.run("bench", "tests", BASE, "test_small", "--json", code=1)
    made = json.loads(done.stdout)
    # Tests without ranks gain little from forking.
    assert not made["good"] and len(made["rows"]) == 5
    assert all(row["forked"]["status"] == row["isolated"]["status"] for row in made["rows"])
    assert made["forked_seconds"] > 0 and made["isolated_seconds"] > 0


def test_a_base_must_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_OVERLAY_CACHE", str(tmp_path))
    command = [sys.executable, "-m", "overlay", "test", "v1.13.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert_expected_inline(
        done.stderr,
        """\
torch-overlay: v1.13.1 is not fetched: run `torch-overlay base fetch v1.13.1`
""",
    )
