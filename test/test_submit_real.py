"""The series' own patches for 1.13.1, on the real source."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from expecttest import assert_expected_inline

from fake_github import TOKEN, FakeGitHub
from overlay.bases import fetch, find_base
from overlay.series import own_series
from stacks import CONFIG, Stacked, github, user

__all__ = ["github", "user"]


@pytest.fixture
def real(user: Path, tmp_path: Path, github: FakeGitHub) -> Stacked:
    """A clone of a repository that has PyTorch 1.13.1, and a copy of the series."""
    source = fetch(find_base("v1.13.1"), source_only=True).source
    assert source is not None
    push = ["git", "push", "--quiet", "--force", str(github.repository)]
    subprocess.run([*push, f"{source.commit}:refs/heads/main"], cwd=source.folder, check=True)
    case = Stacked.__new__(Stacked)
    case.folder, case.github = tmp_path, github
    (tmp_path / ".ghstackrc").write_text(CONFIG.format(host=github.host, token=TOKEN))
    for name in ("patches", "torch_overlay"):
        shutil.copytree(own_series() / name, tmp_path / "series" / name)
    return case.clone()


def test_the_whole_series_for_1_13(real: Stacked) -> None:
    real.overlay("apply", str(real.tree))
    assert_expected_inline(real.submit("--despite", "lint"), """""")
    assert_expected_inline(real.github.shown(), """""")
    assert_expected_inline(real.identities(), """""")
    assert_expected_inline(real.overlay("status", str(real.tree)), """""")
    assert_expected_inline(real.github.pulls[-1].body, """""")
