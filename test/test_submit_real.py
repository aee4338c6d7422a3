"""The series' own patches for 1.13.1, on the real source."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fake_github import TOKEN, FakeGitHub
from overlay.bases import fetch, find_base
from overlay.series import own_series
from overlay.stack.identity import Identity, identity_of
from stacks import CONFIG, Stacked, github, user

__all__ = ["github", "user"]


@pytest.fixture
def real(user: Path, tmp_path: Path, github: FakeGitHub) -> Stacked:
    """A clone of a repository that has PyTorch 1.13.1, and a copy of the series."""
    source = fetch(find_base("v1.13.1"), source_only=True).source
    assert source is not None
    # Without a copy of all that it holds.
    (github.repository / "objects" / "info" / "alternates").write_text(
        f"{source.folder}/.git/objects\n"
    )
    github.git("update-ref", "refs/heads/main", source.commit)
    case = Stacked.__new__(Stacked)
    case.folder, case.github = tmp_path, github
    (tmp_path / ".ghstackrc").write_text(CONFIG.format(host=github.host, token=TOKEN))
    for name in ("patches", "torch_overlay"):
        shutil.copytree(own_series() / name, tmp_path / "series" / name)
    return case.clone()


def test_the_whole_series_for_1_13(real: Stacked) -> None:
    real.overlay("apply", str(real.tree))
    # Which linters run there, and what they find, is PyTorch's and the machine's.
    real.submit("--despite", "lint")
    patches = [patch for patch in real.patches.patches if patch.takes("1.13.1")]
    pulls = real.github.pulls
    assert len(pulls) == len(patches) == 7
    for patch, pull, commit in zip(patches, pulls, reversed(range(len(pulls)))):
        assert pull.title == patch.message.subject
        assert patch.message.body.strip() in pull.body
        tree = real.git("rev-parse", f"HEAD~{commit}^{{tree}}")
        assert real.github.git("rev-parse", f"{pull.headRefName}^{{tree}}") == tree
        url = f"https://{real.github.host}/pytorch/pytorch/pull/{pull.number}"
        assert identity_of(patch.message) == Identity(url, tree)
    status = real.overlay("status", str(real.tree))
    assert [line.strip() for line in status.splitlines() if "/pull/" in line] == [
        f"https://github.example/pytorch/pytorch/pull/{pull.number}" for pull in pulls
    ]
    others = [patch for patch in real.patches.patches if patch not in patches]
    assert {identity_of(patch.message) for patch in others} == {Identity()}
