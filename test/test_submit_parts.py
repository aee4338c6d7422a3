"""What submit is made of: trailers in patches, and the result of the tests in a text."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from expecttest import assert_expected_inline

from case import Case
from overlay.errors import PatchError, TargetError, UsageError
from overlay.series import load_series
from overlay.stack import evidence
from overlay.stack.identity import Identity, PatchFiles, identity_in, identity_of, with_identity
from overlay.targets.journal import Journal
from overlay.upstream.results import Outcome, Run, Side, Status

HEAD = "From: Ada <ada@example.com>\nSubject: Cast\n\n"
REST = "---\ntorch/runtime.py\n@@ <module>\n+import os\n \n"
PULL = "https://github.com/pytorch/pytorch/pull/5"
IDENTITY = Identity(PULL, "0123", None)


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (
            "Why.\n\nOrigin: x\nTorch-Version: >=2.1\n",
            f"Why.\n\nOrigin: x\nTorch-Version: >=2.1\nghstack-source-id: 0123\nPull-Request: {PULL}\n",
        ),
        ("Why.\n", f"Why.\n\nghstack-source-id: 0123\nPull-Request: {PULL}\n"),
        ("Why.\n\n\n", f"Why.\n\n\nghstack-source-id: 0123\nPull-Request: {PULL}\n"),
        ("", f"ghstack-source-id: 0123\nPull-Request: {PULL}\n"),
        (
            "Why.\n\nPull-Request: old\n more\nTests: a\nghstack-source-id: 9\n\n",
            f"Why.\n\nPull-Request: {PULL}\nTests: a\nghstack-source-id: 0123\n\n",
        ),
    ],
)
def test_trailers_change_nothing_else(message: str, wanted: str) -> None:
    text = with_identity(HEAD + message + REST, "x", IDENTITY)
    assert text == HEAD + wanted + REST
    assert with_identity(text, "x", IDENTITY) == text


def test_what_a_commit_says() -> None:
    text = f"Title\n\nghstack-source-id: 1\nghstack-comment-id: 7\nPull-Request: {PULL}\n"
    assert identity_in(text) == Identity(PULL, "1", "7")
    assert identity_in("Title\n") == Identity()
    # As the release before the oldest that submit takes wrote it.
    assert identity_in(f"T\n\nPull-Request-resolved: {PULL}\n").pull_request == PULL


@pytest.fixture
def case(tmp_path: Path) -> Case:
    made = Case(tmp_path)
    hunk = "torch/runtime.py\n@@ forward\n-None\n+()\n"
    made.series({"a.apatch": hunk})
    text = (tmp_path / "series" / "patches" / "a.apatch").read_text()
    (tmp_path / "series" / "patches" / "b.apatch").write_text(text)
    (tmp_path / "series" / "patches" / "series").write_text("a.apatch # why\n\nb.apatch\n")
    return made


def contents(case: Case) -> dict[str, bytes]:
    root = case.folder / "series"
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_all_patches_or_none(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    series = load_series(case.folder / "series")
    before = contents(case)
    identities = {"a.apatch": IDENTITY, "b.apatch": IDENTITY}
    renames = 0
    real = os.replace

    def second_fails(*paths: str) -> None:
        nonlocal renames
        renames += str(paths[1]).endswith(".apatch")
        if renames == 2:
            renames += 1
            raise OSError(28, "No space left on device", str(paths[1]))
        real(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", second_fails)
        with pytest.raises(TargetError, match="No space left"):
            PatchFiles(series).write(identities)
    assert contents(case) == before
    PatchFiles(series).write(identities)
    changed = contents(case)
    assert {path for path in before if before[path] != changed[path]} == {
        "patches/a.apatch",
        "patches/b.apatch",
    }
    assert set(changed) == set(before)
    loaded = load_series(case.folder / "series")
    assert [identity_of(patch.message) for patch in loaded.patches] == [IDENTITY] * 2


def test_killed_while_it_writes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    series = load_series(case.folder / "series")
    before = contents(case)
    real = os.replace

    def killed(*paths: str) -> None:
        real(*paths)
        if str(paths[1]).endswith("a.apatch"):
            raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        patch.setattr(Journal, "recover", lambda self: True)
        with pytest.raises(SystemExit):
            PatchFiles(series).write({"a.apatch": IDENTITY, "b.apatch": IDENTITY})
    assert contents(case) != before
    PatchFiles(series).recover()
    assert contents(case) == before


def test_edited_meanwhile(case: Case) -> None:
    series = load_series(case.folder / "series")
    place = case.folder / "series" / "patches" / "b.apatch"
    place.write_text(place.read_text().replace("Why.", "Because."))
    before = contents(case)
    with pytest.raises(UsageError, match="was edited meanwhile"):
        PatchFiles(series).write({"a.apatch": IDENTITY, "b.apatch": IDENTITY})
    assert contents(case) == before


TEST = "test/test_x.py::TestX::test_y"


def run(status: Status) -> Run:
    before = Side("stock", (), (Outcome(TEST, Status.PASSED, 1.0),))
    after = Side("with the series", ("a",), (Outcome(TEST, status, 1.0),))
    return Run(
        base="v2.6.0",
        torch="2.6.0",
        python="3.11",
        platform="Linux",
        device="cpu",
        selection="test/test_x.py",
        tree="0",
        started="2026-12-01T10:00:00Z",
        before=before,
        after=after,
    )


def test_a_result_in_one_line() -> None:
    assert_expected_inline(
        evidence.in_one_line(run(Status.PASSED)),
        """torch 2.6.0 on cpu, 1 tests, 2026-12-01T10:00:00Z""",
    )
    with pytest.raises(PatchError) as error:
        evidence.in_one_line(run(Status.FAILED))
    assert_expected_inline(
        "\n".join([error.value.message, *error.value.details]),
        """\
not green: torch 2.6.0 on cpu, 1 tests, 2026-12-01T10:00:00Z
test/test_x.py::TestX::test_y""",
    )
    with pytest.raises(PatchError, match="not green"):
        evidence.in_one_line(replace(run(Status.PASSED), after=Side("", (), ())))


def test_a_summary_replaces_the_one_before() -> None:
    first = evidence.with_summary("Why.\n\nTorch-Version: >=2\n", "Tests: 1\n")
    assert_expected_inline(
        first,
        """\
Why.

Torch-Version: >=2

<!-- torch-overlay: tests -->
Tests: 1
<!-- torch-overlay: end -->""",
    )
    second = evidence.with_summary(first + "\nMore.\n", "Tests: 2\n")
    assert_expected_inline(
        second,
        """\
Why.

Torch-Version: >=2

<!-- torch-overlay: tests -->
Tests: 2
<!-- torch-overlay: end -->
More.
""",
    )
    assert evidence.with_summary(second, "") == second
