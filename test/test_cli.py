"""What a user reads and gets from the commands, on a small source tree and on real torches."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest
from expecttest import assert_expected_inline

from case import ARGUMENTS, RUNTIME, Case


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_round_trip(case: Case) -> None:
    before = case.files()
    tree = str(case.tree)
    assert_expected_inline(
        case.run("status", tree),
        """\
torch 2.13.0a0 in FOLDER/pytorch
pending       Arguments
""",
    )
    assert_expected_inline(
        re.sub("^ $", "", case.run("diff", tree), flags=re.MULTILINE),
        """\
--- a/torch/runtime.py
+++ b/torch/runtime.py
@@ -2,8 +2,8 @@
     return x


-def pre_forward(state, unused):
-    y = cast(unused)  # keep this
+def pre_forward(state, args):
+    y = cast(args)  # keep this
     return y


""",
    )
    assert_expected_inline(
        case.run("apply", tree, "--dry-run"),
        """\
  torch/runtime.py
torch 2.13.0a0 in FOLDER/pytorch: 1 patch would be applied, nothing was written
""",
    )
    assert case.files() == before
    assert_expected_inline(
        case.run("apply", tree),
        """\
  torch/runtime.py
torch 2.13.0a0 in FOLDER/pytorch: 1 patch applied, 1 file written
""",
    )
    after = case.files()
    assert after["torch/runtime.py"] == before["torch/runtime.py"].replace(b"unused", b"args")
    assert_expected_inline(
        case.run("status", tree),
        """\
torch 2.13.0a0 in FOLDER/pytorch
applied       Arguments
""",
    )
    assert case.run("diff", tree) == ""
    assert_expected_inline(
        case.run("apply", tree),
        """\
torch 2.13.0a0 in FOLDER/pytorch: nothing to change, the series is applied
""",
    )
    assert case.files() == after
    assert_expected_inline(
        case.run("revert", tree),
        """\
  torch/runtime.py
torch 2.13.0a0 in FOLDER/pytorch: reverted, 1 file restored
""",
    )
    assert case.files() == before
    assert_expected_inline(
        case.run("revert", tree),
        """\
torch 2.13.0a0 in FOLDER/pytorch: nothing to revert, this tool has applied nothing there
""",
    )


def test_diff_is_what_git_apply_makes_of_it(case: Case) -> None:
    case.write("torch/runtime.py", RUNTIME.rstrip("\n"))
    case.series({"arguments.apatch": ARGUMENTS}, {"torch/added.py": "arguments.apatch"})
    diff = case.run_raw("diff", str(case.tree)).stdout
    copy = case.folder / "copy"
    subprocess.run(["cp", "-r", str(case.tree), str(copy)], check=True)
    subprocess.run(["git", "apply"], cwd=copy, input=diff, text=True, check=True)
    case.run("apply", str(case.tree))
    for path, content in case.files().items():
        assert (copy / path).read_bytes() == content


def test_json_is_one_value(case: Case) -> None:
    tree = str(case.tree)
    for command in (["status"], ["verify"], ["apply", "--dry-run"], ["apply"]):
        done = case.run_raw(*command, "--json", tree)
        value = json.loads(done.stdout)
        assert value["kind"] == "tree"
        assert [patch["subject"] for patch in value["patches"]] == ["Arguments"]
    assert json.loads(case.run_raw("revert", "--json", tree).stdout)["files"] == [
        "torch/runtime.py"
    ]


def test_a_patch_that_does_not_fit_changes_nothing(case: Case) -> None:
    misfit = ARGUMENTS.replace("cast(", "convert(")
    case.series({"arguments.apatch": ARGUMENTS, "misfit.apatch": misfit})
    before = case.files()
    assert_expected_inline(
        case.run("apply", str(case.tree), code=1),
        """\
torch-overlay: misfit.apatch: torch/runtime.py: @@ pre_forward: matches nowhere in pre_forward
  matched so far: def pre_forward ( ... ,
  then expected: unused
  line 5 has: state , args ) : y = cast ( args ) return
""",
    )
    assert case.files() == before
    assert "in conflict   Misfit" in case.run("status", str(case.tree), code=1)


def test_a_call_that_would_not_bind_is_refused(case: Case) -> None:
    extra = ARGUMENTS.replace("+    args\n", "+    args, kwargs\n", 1)
    case.series({"arguments.apatch": extra})
    before = case.files()
    output = case.run("apply", str(case.tree), code=1)
    assert output.startswith("torch-overlay: verify: torch/runtime.py:11: ")
    assert "kwargs" in output
    assert case.run("verify", str(case.tree), code=1) == output
    assert case.files() == before


def test_a_result_that_does_not_compile_is_refused(case: Case) -> None:
    broken = """\
torch/runtime.py
@@ pre_forward
 return
-y
+y = 3
"""
    case.series({"broken.apatch": broken})
    before = case.files()
    output = case.run("apply", str(case.tree), code=1)
    assert output.startswith(
        "torch-overlay: torch/runtime.py:7: would not compile for the target's Python: "
    )
    assert case.files() == before


def test_half_a_series_that_is_there_is_refused(case: Case) -> None:
    second = """\
torch/runtime.py
@@ forward
 pre_forward(state,
-None
+()
 )
"""
    case.series({"arguments.apatch": ARGUMENTS, "call.apatch": second})
    case.write("torch/runtime.py", RUNTIME.replace("unused", "args"))
    assert_expected_inline(
        case.run("apply", str(case.tree), code=1),
        """\
torch-overlay: torch 2.13.0a0 in FOLDER/pytorch: only a part of the series is there, not by this tool: take it out first, or bring in the rest as it came
  there: arguments.apatch
  missing: call.apatch
""",
    )
    assert_expected_inline(
        case.run("status", str(case.tree)),
        """\
torch 2.13.0a0 in FOLDER/pytorch
applied       Arguments
              not by this tool, and not the whole series
pending       Call
""",
    )


def test_half_a_patch_that_is_there_is_refused(case: Case) -> None:
    case.series({"arguments.apatch": ARGUMENTS}, {"torch/added.py": "arguments.apatch"})
    case.write("torch/added.py", "ADDED = 1\n")
    assert_expected_inline(
        case.run("apply", str(case.tree), code=1),
        """\
torch-overlay: arguments.apatch: only a part of it is there
  there: torch/added.py
  missing: torch/runtime.py: hunk 1, @@ pre_forward
""",
    )


def test_an_edited_series_is_brought_up_to_date(case: Case) -> None:
    tree = str(case.tree)
    before = case.files()
    case.run("apply", tree)
    case.series({"arguments.apatch": ARGUMENTS.replace("+    args", "+    inputs")})
    assert_expected_inline(
        case.run("status", tree),
        """\
torch 2.13.0a0 in FOLDER/pytorch
pending       Arguments
              applied as it was before it was edited: apply it again
""",
    )
    case.run("apply", tree)
    assert b"inputs" in case.files()["torch/runtime.py"]
    case.run("revert", tree)
    assert case.files() == before


def test_a_file_edited_since_is_not_lost(case: Case) -> None:
    tree = str(case.tree)
    case.run("apply", tree)
    edited = (case.tree / "torch/runtime.py").read_text() + "# mine\n"
    case.write("torch/runtime.py", edited)
    assert "torch/runtime.py" in case.run("revert", tree, code=2)
    assert "torch/runtime.py has changes" in case.run("apply", tree, code=2)
    assert "torch/runtime.py has changes" in case.run("status", tree, code=1)
    assert (case.tree / "torch/runtime.py").read_text() == edited


def test_what_was_put_back_does_not_count_as_applied(case: Case) -> None:
    """As git restores files that it knows, and not the record, which it ignores."""
    tree = str(case.tree)
    case.series({"arguments.apatch": ARGUMENTS}, {"torch/added.py": "arguments.apatch"})
    before = case.files()
    case.run("apply", tree)
    case.write("torch/runtime.py", RUNTIME)
    assert_expected_inline(
        case.run("status", tree),
        """\
torch 2.13.0a0 in FOLDER/pytorch
pending       Arguments
              was applied, but torch/runtime.py was put back since: apply it again
""",
    )
    case.run("apply", tree)
    (case.tree / "torch/added.py").unlink()
    assert "torch/added.py was put back" in case.run("status", tree)
    case.run("apply", tree)
    assert "applied  " in case.run("status", tree)
    case.run("revert", tree)
    assert case.files() == before


def test_versions_select(case: Case) -> None:
    case.series({"arguments.apatch": ARGUMENTS}, versions="<2.1")
    assert_expected_inline(
        case.run("apply", str(case.tree), code=1),
        """\
torch-overlay: torch 2.13.0a0 in FOLDER/pytorch: no patch of the series is for it (they are for <2.1)
""",
    )
    assert_expected_inline(
        case.run("status", str(case.tree)),
        """\
torch 2.13.0a0 in FOLDER/pytorch
not selected  1 patch, for torch <2.1
""",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "nowhere"),
        ("apply", "nowhere", "--dry-run"),
        ("revert", "nowhere"),
        ("apply", "a", "b"),
        ("apply", "--unknown"),
        ("unknown",),
        ("status", ""),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(case: Case, arguments: tuple[str, ...]) -> None:
    done = case.run_raw(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("torch-overlay: ")
    assert "Traceback" not in done.stderr
    _, *details = done.stderr.splitlines()
    assert all(line.startswith("  ") for line in details)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda p: (p / "series").unlink(), "no series in"),
        (lambda p: (p / "series").write_text("gone.apatch\n"), "gone.apatch: cannot read"),
        (lambda p: (p / "series").write_text("../x.apatch\n"), "not written plainly"),
        (lambda p: (p / "series").write_text("x.diff\n"), "neither .apatch nor .patch"),
        (lambda p: (p / "arguments.apatch").write_bytes(b"\xff\n"), "cannot read the patch"),
        (lambda p: (p / "arguments.apatch").write_text("\n"), "arguments.apatch:1: "),
    ],
)
def test_a_series_that_cannot_be_read(
    case: Case, break_it: Callable[[Path], object], message: str
) -> None:
    break_it(case.folder / "series" / "patches")
    before = case.files()
    for command in ("status", "apply", "verify", "diff"):
        assert message in case.run(command, str(case.tree), code=2)
    assert case.files() == before


@pytest.mark.parametrize(
    "path",
    [
        "../evil.py",
        "/etc/evil.py",
        "setup.py",
        "torch/../../x.py",
        "torch/.git/x.py",
        "torch/x.pth",
    ],
)
def test_a_patch_cannot_reach_outside(case: Case, path: str) -> None:
    case.series({"arguments.apatch": ARGUMENTS}, {"torch/added.py": "arguments.apatch"})
    patch = case.folder / "series" / "patches" / "arguments.apatch"
    patch.write_text(patch.read_text().replace("Adds: torch/added.py", f"Adds: {path}"))
    assert f"'{path}'" in case.run("apply", str(case.tree), code=2)


@pytest.mark.parametrize("version", [b"\xff\xfe2", b"", b"2.13.0\nor so", b"trunk"])
def test_a_version_that_is_none(case: Case, version: bytes) -> None:
    (case.tree / "version.txt").write_bytes(version)
    output = case.run("status", str(case.tree), code=2)
    assert output.startswith("torch-overlay: FOLDER/pytorch: '")
    assert output.endswith("is not a version of PyTorch, such as 2.13.0a0\n")


def test_fields_among_the_text_are_refused(case: Case) -> None:
    patch = case.folder / "series" / "patches" / "arguments.apatch"
    patch.write_text(patch.read_text().replace("\n---\n", "\nSo much for that.\n---\n"))
    output = case.run("apply", str(case.tree), code=2)
    assert "'Torch-Version: >=2.1' is among the message's text" in output


def test_a_torch_that_nothing_proves(case: Case) -> None:
    (case.tree / "version.txt").unlink()
    assert "cannot be changed: torch in FOLDER/pytorch has no torch-*.dist-info" in case.run(
        "status", str(case.tree), code=1
    )
    for command in ("verify", "diff", "apply"):
        output = case.run(command, str(case.tree), code=2)
        assert output.startswith("torch-overlay: torch in FOLDER/pytorch has no torch-*.dist-info")


def test_a_series_without_patches(case: Case) -> None:
    case.series({})
    assert case.run("apply", str(case.tree), code=2).endswith("patches/series lists no patch\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written(case: Case) -> None:
    command = [sys.executable, "-m", "overlay", "status", str(case.tree)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "torch-overlay: No space left on device\n")


def test_without_arguments_it_says_how(case: Case) -> None:
    command = [sys.executable, "-m", "overlay"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout + done.stderr).startswith("Usage: ")


def test_torch_is_not_imported(case: Case) -> None:
    case.write("torch/__init__.py", "raise SystemExit('imported')\n")
    case.write("torch/version.py", "__version__ = '2.13.0'\nraise SystemExit('imported')\n")
    case.run("apply", str(case.tree))
    case.run("revert", str(case.tree))


def test_a_line_numbered_patch_goes_through_git(case: Case) -> None:
    diff = """\
--- a/torch/runtime.py
+++ b/torch/runtime.py
@@ -1,4 +1,4 @@
 def cast(x):
-    return x
+    return (x,)
"""
    diff += " \n" * 2
    case.series({"numbered.patch": diff, "arguments.apatch": ARGUMENTS})
    tree = str(case.tree)
    before = case.files()
    case.run("apply", tree)
    assert b"return (x,)" in case.files()["torch/runtime.py"]
    assert case.run("status", tree).count("applied") == 2
    case.run("revert", tree)
    assert case.files() == before
    case.write("torch/runtime.py", RUNTIME.replace("return x", "return x.y"))
    assert "numbered.patch: git apply does not take it" in case.run("apply", tree, code=1)
