"""A made-up base whose runtime is the real torch, and a series for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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

    def add_patch(self, name: str, added: str) -> None:
        """One more patch, which adds a file."""
        mail = MAIL.format(subject=name, versions=">=2.1", adds=f"Adds: {added}\n", hunks="")
        self.write(self.folder / f"series/patches/{name}.apatch", mail)
        self.write(self.folder / "series/torch_overlay" / added, "ADDED = 1\n")
        with (self.folder / "series/patches/series").open("a") as series:
            series.write(f"{name}.apatch\n")

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
