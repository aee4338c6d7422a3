"""The linter of a series' own files: each fault that it is there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.lint import lint_series
from overlay.series import own_series

HEAD = "From: A <a@example.com>\nDate: Mon, 5 Dec 2022 10:00:00 +0000\nSubject: Title\n\nWhy.\n\n"
FIELDS = "Torch-Version: >=2.1\n"
HUNK = "torch/a.py\n@@ f\n x =\n-1\n+2\n"


def messages(folder: Path, text: str, more: dict[str, str] = {}) -> list[str]:  # noqa: B006
    """What the linter says of a series with one patch, ``a.apatch``, and more files."""
    files = {"patches/series": "a.apatch\n", "patches/a.apatch": text, **more}
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return [f"{finding.path}: {finding.message}" for finding in lint_series(folder)]


def test_own_series_is_clean() -> None:
    assert lint_series(own_series()) == []


def test_a_good_patch_is_clean(tmp_path: Path) -> None:
    assert messages(tmp_path, HEAD + FIELDS + "---\n" + HUNK) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD.replace("From: A <a@example.com>\n", "") + FIELDS + "---\n" + HUNK, "no From"),
        (HEAD.replace("Mon, 5 Dec 2022 10:00:00 +0000", "today") + FIELDS + "---\n" + HUNK, "Date"),
        (HEAD.replace("Why.\n", "") + FIELDS + "---\n" + HUNK, "no message"),
        (HEAD + "Origin: somewhere\n---\n" + HUNK, "no Torch-Version"),
        (HEAD + FIELDS + "Orgin: somewhere\n---\n" + HUNK, "field Orgin is not known"),
        (HEAD + FIELDS + "Tests: ../x.py\n---\n" + HUNK, "not written plainly"),
        (HEAD + FIELDS + "Last-Update: lately\n---\n" + HUNK, "Last-Update: 'lately' is not a day"),
        (HEAD + "Torch-Version: 2.1 or so\n---\n" + HUNK, "not a version specifier"),
        (HEAD + FIELDS + "---\n" + "torch/a.py\n@@ f\n x\n y\n", "changes nothing"),
        (
            HEAD + FIELDS + "---\n" + HUNK.replace(" x =", " a(b, c, d, e, f, g)\n x ="),
            "quotes 16 tokens in a row",
        ),
        (
            HEAD + FIELDS + "---\n" + HUNK.replace("-1\n+2\n", "-a.b(c, 1)\n+a.b(c, 2)\n"),
            "takes 6 tokens away only to put them back",
        ),
        (HEAD + FIELDS + "---\n" + HUNK.replace(" x =", " # why\n x ="), "quotes a comment"),
    ],
)
def test_faults_of_a_patch(tmp_path: Path, text: str, message: str) -> None:
    found = messages(tmp_path, text)
    assert len(found) == 1, found
    assert message in found[0]


def test_files_that_belong_to_no_patch(tmp_path: Path) -> None:
    more = {"patches/b.apatch": "", "torch_overlay/torch/c.py": "", "torch_overlay/.cache/d": ""}
    assert messages(tmp_path, HEAD + FIELDS + "---\n" + HUNK, more) == [
        "patches/b.apatch: not listed in patches/series: list or remove it",
        "torch_overlay/torch/c.py: no patch adds it: name it in an Adds field",
    ]


def test_a_file_added_twice(tmp_path: Path) -> None:
    text = HEAD + FIELDS + "Adds: torch/c.py\n---\n"
    more = {
        "patches/series": "a.apatch\nb.apatch\n",
        "patches/b.apatch": text,
        "torch_overlay/torch/c.py": "",
    }
    assert messages(tmp_path, text, more) == [
        "patches/b.apatch: Adds: torch/c.py: a.apatch adds it too: leave it to one of them"
    ]


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("==1.13.*", ">=2.1", False),
        ("==1.13.*", "==2.0.0a0", False),
        ("==2.0.0a0", ">=2.1", False),
        ("<2.1", ">=2.1", False),
        ("<=2.1", ">=2.1", True),
        ("<2.0", ">=2.1", False),
        ("==2.0.0a0", ">=2.0", True),
        ("==1.13.*", "==1.13.1", True),
        (">=1.13,<2.1", ">2.0", True),
        ("~=2.1", "==2.9.1", True),
        ("!=2.1", ">=2.0", True),
    ],
)
def test_a_file_added_for_different_versions(
    tmp_path: Path, one: str, other: str, meet: bool
) -> None:
    """Only where a version gets both patches are they in each other's way."""
    adds = "Adds: torch/c.py\nAdds: torch/d.py\n---\n"
    more = {
        "patches/series": "a.apatch\nb.apatch\n",
        "patches/b.apatch": HEAD + f"Torch-Version: {other}\n" + adds,
        "torch_overlay/torch/c.py": "import torch.d\n",
        "torch_overlay/torch/d.py": "",
    }
    text = HEAD + f"Torch-Version: {one}\n" + adds
    assert messages(tmp_path, text, more) == [
        f"patches/b.apatch: Adds: torch/{name}.py: a.apatch adds it too: leave it to one of them"
        for name in "cd"
        if meet
    ]


@pytest.mark.parametrize(
    "line", ["import torch.c", "from torch.c import f", "from torch import b, c"]
)
def test_a_module_that_a_later_patch_adds(tmp_path: Path, line: str) -> None:
    more = {
        "patches/series": "a.apatch\nb.apatch\n",
        "patches/b.apatch": HEAD + FIELDS + "Adds: torch/c.py\n---\n",
        "torch_overlay/torch/c.py": "",
    }
    hunk = HUNK.replace("-1\n+2\n", f"-1\n+2\n+{line}\n")
    assert messages(tmp_path, HEAD + FIELDS + "---\n" + hunk, more) == [
        "patches/a.apatch: imports torch.c, which b.apatch adds later: put that one first"
    ]


def test_a_name_that_a_later_patch_imports(tmp_path: Path) -> None:
    imports = "torch/a.py\n@@ <module>\n+from torch.c import (\n+    f,\n+    g as h,\n+)\n x\n"
    more = {
        "patches/series": "a.apatch\nb.apatch\n",
        "patches/b.apatch": HEAD + FIELDS + "---\n" + imports,
    }
    hunk = HUNK.replace("+2\n", "+h(2)\n")
    assert messages(tmp_path, HEAD + FIELDS + "---\n" + hunk, more) == [
        "patches/a.apatch: uses h, which b.apatch imports later: put that one first"
    ]
    hunk += "@@ <module>\n+from torch.d import h\n x\n"
    assert messages(tmp_path, HEAD + FIELDS + "---\n" + hunk, more) == []
