"""A small source tree and a series, as the tests of the commands use them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

MAIL = """\
From: Ada Example <ada@example.com>
Date: Mon, 5 Dec 2022 10:00:00 +0000
Subject: {subject}

Why.

Torch-Version: {versions}
{adds}---
{hunks}"""

RUNTIME = """\
def cast(x):
    return x


def pre_forward(state, unused):
    y = cast(unused)  # keep this
    return y


def forward(state):
    return pre_forward(state, None)
"""

ARGUMENTS = """\
torch/runtime.py
@@ pre_forward
 def pre_forward(
     ...,
-    unused
+    args
 ):
     ... = cast(
-    unused
+    args
 )
"""


class Case:
    """A source tree and a series, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = folder / "pytorch"
        self.write("torch/__init__.py", "from torch.runtime import forward\n")
        self.write("torch/version.py", "__version__ = '2.13.0a0'\n")
        self.write("version.txt", "2.13.0a0\n")
        self.write("torch/runtime.py", RUNTIME)
        self.series({"arguments.apatch": ARGUMENTS})

    def write(self, path: str, content: str) -> None:
        place = self.tree / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)

    def series(
        self,
        patches: Mapping[str, str],
        added: Mapping[str, str] = {},
        versions: str = ">=2.1",
        mail: str = MAIL,
    ) -> None:
        """Patches by name with their hunks; each adds the files of ``added`` under its name."""
        folder = self.folder / "series" / "patches"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "series").write_text("".join(f"{name}\n" for name in patches))
        for name, hunks in patches.items():
            adds = "".join(f"Adds: {path}\n" for path, owner in added.items() if owner == name)
            subject = name.split(".")[0].replace("-", " ").capitalize()
            (folder / name).write_text(
                mail.format(subject=subject, versions=versions, adds=adds, hunks=hunks)
            )
        for path in added:
            place = self.folder / "series" / "torch_overlay" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("ADDED = 1\n")

    def run(self, *arguments: str, code: int = 0) -> str:
        """What a command prints, with this case's folder named FOLDER; its exit code is checked."""
        done = self.run_raw(*arguments)
        assert done.returncode == code, done.stdout + done.stderr
        # Errors go to standard error alone.
        assert not (done.stdout and code == 2)
        return (done.stdout + done.stderr).replace(str(self.folder.resolve()), "FOLDER")

    def run_raw(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        series = str(self.folder / "series")
        command = [sys.executable, "-m", "overlay", "--series", series, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def files(self) -> dict[str, bytes]:
        """All files of the tree but the tool's own."""
        return {
            path.relative_to(self.tree).as_posix(): path.read_bytes()
            for path in sorted(self.tree.rglob("*"))
            if path.is_file() and ".torch-overlay" not in path.parts
        }
