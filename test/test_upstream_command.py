"""``torch-overlay test`` as a person runs it, on a made-up base whose runtime is the real torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from expecttest import assert_expected_inline

from case import MAIL

BASE = "v2.13.0"
VERSION = "__version__ = '2.13.0'\n"
UPSTREAM_TEST = """\
import importlib.util
import unittest


class TestSmall(unittest.TestCase):
    marked = importlib.util.find_spec("torch.overlay_marker") is not None

    def test_is_broken(self):
        self.assertFalse(self.marked)

    def test_is_fixed(self):
        self.assertTrue(self.marked)

    def test_passes(self):
        pass

    @unittest.skipIf(marked, "marked")
    def test_is_newly_skipped(self):
        pass

    @unittest.skip("not today")
    def test_is_skipped(self):
        pass
"""
OWN_TEST = """\
import torch.overlay_marker
import unittest


class TestOwn(unittest.TestCase):
    def test_is_new(self):
        self.assertEqual(torch.overlay_marker.ADDED, 1)
"""


class World:
    """A cache folder with a fetched base, and a series for it."""

    def __init__(self, folder: Path, stock: Path) -> None:
        self.folder = folder
        (folder / stock.name).symlink_to(stock)
        self.source = folder / "bases" / BASE / "source"
        for path, text in (
            ("version.txt", "2.13.0\n"),
            ("torch/version.py", VERSION),
            ("test/distributed/fsdp/test_small.py", UPSTREAM_TEST),
            ("test/distributed/fsdp/test_other.py", UPSTREAM_TEST),
        ):
            self.write(self.source / path, text)
        git = ["git", "-C", str(self.source), "-c", "user.name=x", "-c", "user.email=x@localhost"]
        for command in ("init -q", "add --all", "commit -q -m base"):
            subprocess.run([*git, *command.split()], check=True)
        self.commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
        self.stamp(has_tests=True)
        self.series("Tests: test/distributed/fsdp/test_small.py\n")

    def stamp(self, has_tests: bool) -> None:
        names = ("folder", "commit", "way", "proof")
        stamp = {**dict.fromkeys(names, ""), "commit": self.commit, "has_tests": has_tests}
        self.write(self.source / ".git" / "torch-overlay-base.json", json.dumps(stamp))

    def series(self, fields: str, marker: str = "ADDED = 1\n") -> None:
        self.write(self.folder / "series/patches/series", "marker.apatch\n")
        added = {
            "torch/overlay_marker.py": marker,
            "test/distributed/fsdp/test_own.py": OWN_TEST,
        }
        for path, text in added.items():
            self.write(self.folder / "series/torch_overlay" / path, text)
        fields += "".join(f"Adds: {path}\n" for path in added)
        mail = MAIL.format(subject="Mark", versions=">=2.1", adds=fields, hunks="")
        self.write(self.folder / "series/patches/marker.apatch", mail)

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, *arguments: str, code: int, **variables: str) -> subprocess.CompletedProcess[str]:
        series = str(self.folder / "series")
        done = subprocess.run(
            [sys.executable, "-m", "overlay", "--series", series, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={
                **os.environ,
                "TORCH_OVERLAY_CACHE": str(self.folder),
                "TORCH_OVERLAY_PYTHON": sys.executable,
                "COLUMNS": "100",
                **variables,
            },
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def errors(self, *arguments: str) -> str:
        done = self.run("test", *arguments, code=2)
        assert done.stdout == ""
        lines = [line for line in done.stderr.splitlines() if not line.startswith(f"{BASE}: ")]
        return "\n".join(lines).replace(str(self.folder), "FOLDER") + "\n"

    def json(self, *arguments: str, code: int = 1) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(
            self.run("test", *arguments, "--json", "-", code=code).stdout
        )
        return value


@pytest.fixture
def world(stock_venv: Path) -> Iterator[World]:
    # Hard links do not cross file systems, so it lies beside the stock environment.
    folder = Path(tempfile.mkdtemp(prefix="test-", dir=stock_venv.parent))
    yield World(folder, stock_venv)
    shutil.rmtree(folder)


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
    world.series("Tests: test/distributed/fsdp/test_gone.py\n")
    text += f"$ test\n{world.errors()}"
    world.stamp(has_tests=False)
    text += f"$ test --all\n{world.errors('--all')}"
    text += f"$ test test_small\n{world.errors('test_small')}"
    assert_expected_inline(re.sub(r"2\.13\.0\+?\w*", "2.13.0", text), """""")


def test_without_upstreams_tests_the_series_own_run(world: World) -> None:
    world.stamp(has_tests=False)
    run = world.json(code=0)
    assert run["device"] == "cpu"
    assert run["selection"] == "the series' own tests; PyTorch's are not there"
    assert statuses(run["after"]) == {"test_is_new": "passed"}


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
