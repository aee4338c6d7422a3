"""'torch-overlay lint': the checkout's own linters, on what the series touches."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from expecttest import assert_expected_inline

from checkouts import Repository, repository, user

__all__ = ["repository", "user"]

# As PyTorch's adapters: a message a line, in lintrunner's form.
ADAPTER = """\
import json, sys
for path in sys.argv[2:]:
    for number, line in enumerate(open(path), 1):
        if sys.argv[1] in line:
            print(json.dumps(dict(path=path, line=number, char=None, code="{code}",
                severity="error", name="found", original=None, replacement=None,
                description="has " + sys.argv[1])))
"""
LINTER = """\
[[linter]]
code = '{code}'
include_patterns = ['{include}']
command = {command}
"""
PIP = """\
init_command = ['python3', 'pip_init.py', '--dry-run={{{{DRYRUN}}}}', {pins}]
"""


def linter(case: Repository, code: str, word: str, include: str = "**/*.py", pins: str = "") -> str:
    """A linter that finds a word."""
    adapter = f"tools/{code.lower()}.py"
    text = ADAPTER.replace("{code}", code)
    case.write(adapter, text.replace("sys.argv[2:]", "open(sys.argv[2][1:]).read().split()"))
    command = json.dumps(["python3", adapter, word, "@{{PATHSFILE}}"])
    entry = LINTER.format(code=code, include=include, command=command)
    return entry + (PIP.format(pins=pins) if pins else "")


@pytest.fixture
def linted(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A checkout with linters of its own, and the series applied."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    beside = Path(sys.executable).parent
    (tmp_path / "bin" / "lintrunner").symlink_to(beside / "lintrunner")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return repository


def configure(case: Repository, *linters: str) -> None:
    case.write(".lintrunner.toml", "\n".join(linters))
    case.commit("linters")
    case.apply()


def test_lint(linted: Repository) -> None:
    broken = LINTER.format(code="CRASH", include="**", command='["no-such-tool", "@{{PATHSFILE}}"]')
    configure(
        linted,
        linter(linted, "CLEAN", "nowhere to be found"),
        linter(linted, "ARGS", "args"),
        linter(linted, "KEPT", "keep this"),
        linter(linted, "DOCS", "x", "docs/**"),
        linter(linted, "OLD", "x", pins="'click==0.1'"),
        linter(linted, "PINNED", "x", pins="'no-such-package==1.0', 'click==8.0'"),
        broken,
    )
    out = linted.run("lint", str(linted.tree), code=1)
    assert_expected_inline(
        re.sub(r"click [\d.]+", "click VERSION", out),
        """\
torch/runtime.py:5: ARGS: found: has args
torch/runtime.py:6: ARGS: found: has args
torch/runtime.py:6: KEPT: found: has keep this
ran       CLEAN
ran       ARGS
ran       KEPT
ran       OLD (click VERSION in place of 0.1)
not run   PINNED: not installed: no-such-package
not run   CRASH: Failed to execute linter command no-such-tool
2 findings in lines that the series leaves alone
""",
    )
    value = json.loads(linted.run_raw("lint", str(linted.tree), "--json").stdout)
    assert sorted(value) == ["elsewhere", "findings", "not_run", "other_versions", "ran"]


def test_in_the_order_of_the_checkout(linted: Repository) -> None:
    codes = ["ZEBRA", "APE", "MULE", "BEAR", "CAT"]
    absent = [linter(linted, code, "x", pins="'no-such-package==1'") for code in codes]
    configure(linted, *absent, linter(linted, "CLEAN", "nowhere to be found"))
    out = linted.run("lint", str(linted.tree))
    assert re.findall(r"(\w+): not installed", out) == codes


def test_nothing_to_find(linted: Repository) -> None:
    configure(linted, linter(linted, "CLEAN", "nowhere to be found"))
    assert_expected_inline(
        linted.run("lint", str(linted.tree)),
        """\
ran       CLEAN
""",
    )


def test_nothing_ran(linted: Repository) -> None:
    configure(linted, linter(linted, "PINNED", "x", pins="'no-such-package==1.0'"))
    out = linted.run_raw("lint", str(linted.tree))
    assert out.returncode == 2
    assert_expected_inline(
        out.stderr,
        """\
torch-overlay: no linter of the checkout ran: 'lintrunner init' there installs them
  PINNED: not installed: no-such-package
""",
    )


def test_for_other_files_alone(linted: Repository) -> None:
    configure(linted, linter(linted, "DOCS", "x", "docs/**"))
    assert_expected_inline(
        linted.run("lint", str(linted.tree), code=2),
        """\
torch-overlay: no linter of the checkout is for the files that the series touches
""",
    )


def test_cannot_be_linted(linted: Repository) -> None:
    out = linted.run("lint", str(linted.tree), code=2)
    linted.apply()
    out += linted.run("lint", str(linted.tree), code=2)
    linted.write(".lintrunner.toml", "[[linter]\n")
    out += linted.run("lint", str(linted.tree), code=2)
    assert_expected_inline(
        re.sub(r"(cannot be read): .*", r"\1: WHY", out),
        """\
torch-overlay: torch 2.13.0a0 in FOLDER/pytorch: the series is not what the topmost commits do: 'torch-overlay apply FOLDER/pytorch' first
torch-overlay: FOLDER/pytorch has no .lintrunner.toml, so there is nothing to run
torch-overlay: FOLDER/pytorch/.lintrunner.toml cannot be read: WHY
""",
    )
