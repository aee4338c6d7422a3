"""Drift on small releases, served as a package index serves wheels, with real git and patch."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import test_bases
from overlay import drift_report
from overlay.bases import BaseError, FingerprintError, releases, wheels
from overlay.cli import main
from overlay.drift import Drift, Outcome, drift
from overlay.errors import TargetError, UsageError
from overlay.rivals import Verdict
from overlay.series import load_series, own_series
from test_runtime import write_wheel

FUNCTION = """\
def {name}(state, unused):
    a = 1
    b = 2
    c = 3
    first = 1
    second = 2
    third = 3
    y = cast(unused)
    fourth = 4
    fifth = 5
    sixth = 6
    return y
"""
TOP = "# One\n# Two\n# Three\nimport os\n\n\n\ndef cast(x):\n    return x\n\n\n"
STOCK = TOP + FUNCTION.format(name="forward")
HELPER = "def helper(x):\n    return x\n"
RELEASES: Mapping[str, Mapping[str, str]] = {
    "1.9.0": {"torch/old.py": ""},
    "2.5.0": {"torch/runtime.py": STOCK.replace("sixth = 6", "sixth = 66")},
    "2.6.0": {"torch/runtime.py": STOCK},
    "2.7.0": {"torch/runtime.py": "# More\n" * 40 + STOCK},
    # At the old line stands the same code, in a function that is not meant.
    "2.8.0": {
        "torch/runtime.py": STOCK.replace("forward", "decoy")
        + "\n\n"
        + FUNCTION.format(name="forward")
    },
    "2.9.0": {"torch/runtime.py": STOCK.replace("    y = cast(unused)", "    y = cast( unused )")},
    "2.10.0": {"torch/runtime.py": STOCK.replace("y = cast(unused)", "y = cast(state)")},
    "2.11.0": {"torch/runtime.py": STOCK.replace("cast", "convert")},
}
PATCHES = {
    "cast.apatch": ">=2.5\n---\ntorch/runtime.py\n@@ forward\n cast(\n-unused\n+state\n )\n",
    "helper.apatch": ">=2.5\nAdds: torch/helper.py\n---\n",
    "use.apatch": (
        ">=2.5\n---\ntorch/runtime.py\n@@ <module>\n import os\n+from torch.helper import helper\n"
        "@@ forward\n first =\n-1\n+helper(1)\n"
    ),
    "tests.apatch": ">=2.5\nAdds: test/test_it.py\n---\n",
    "later.apatch": ">=3\nAdds: torch/later.py\n---\n",
}


def write_series(folder: Path, patches: Mapping[str, str]) -> Path:
    (folder / "patches").mkdir(parents=True)
    (folder / "patches" / "series").write_text("".join(f"{name}\n" for name in patches))
    for name, text in patches.items():
        mail = f"From: Ada <a@example.com>\nSubject: {name}\n\nWhy.\n\nTorch-Version: {text}"
        (folder / "patches" / name).write_text(mail)
    for path in ("torch/helper.py", "test/test_it.py", "torch/later.py"):
        place = folder / "torch_overlay" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(HELPER)
    return folder


@pytest.fixture
def series(tmp_path: Path) -> Path:
    return write_series(tmp_path / "series", PATCHES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The wheels that the index has."""
    folder = tmp_path / "index"
    folder.mkdir()
    for version, files in RELEASES.items():
        write_wheel(folder, "torch", version, {"torch/__init__.py": "", **files})
        made = folder / f"torch-{version}-py3-none-any.whl"
        made.rename(folder / f"torch-{version}-cp311-cp311-manylinux1_x86_64.whl")
    return folder


@pytest.fixture
def index(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TORCH_OVERLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_OVERLAY_PIP_ARGS", "--no-index")
    for name in ("PIP_FIND_LINKS", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    # These releases carry the versions of pinned bases without being them.
    monkeypatch.setattr(releases, "BASES", {})
    with test_bases.serving(folder) as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        yield url


def outcomes(found: Drift, name: str) -> dict[str, Outcome]:
    number = [patch.name for patch in found.series.patches].index(name)
    return {release.version: release.patches[number].outcome for release in found.releases}


def verdicts(found: Drift, tool: str) -> dict[str, Verdict]:
    return {a.version: a.verdict for a in found.attempts if a.tool == tool}


def command(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> tuple[str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    output = capsys.readouterr()
    assert ended.value.code == code, output
    return output.out, output.err


@pytest.mark.usefixtures("index")
def test_each_patch_alone_and_the_series_on_every_release(series: Path) -> None:
    found = drift(load_series(series))
    # From the first that a patch is for to the last: 1.9.0 is none of them.
    assert [r.version for r in found.releases] == [v for v in RELEASES if v != "1.9.0"]
    whole = {r.version: r.series for r in found.releases}
    held = dict.fromkeys(["2.5.0", "2.6.0", "2.7.0", "2.8.0", "2.9.0"], Outcome.HOLDS)
    wanted = {**held, "2.10.0": Outcome.UPSTREAMED, "2.11.0": Outcome.FAILED}
    assert outcomes(found, "cast.apatch") == wanted
    assert set(outcomes(found, "helper.apatch").values()) == {Outcome.HOLDS}
    assert set(outcomes(found, "use.apatch").values()) == {Outcome.NEEDS_EARLIER}
    assert set(outcomes(found, "tests.apatch").values()) == {Outcome.NOT_SELECTED}
    assert set(outcomes(found, "later.apatch").values()) == {Outcome.NOT_SELECTED}
    assert {v: cell.outcome for v, cell in whole.items()} == {
        **held,
        "2.10.0": Outcome.HOLDS,
        "2.11.0": Outcome.FAILED,
    }
    assert whole["2.11.0"].reason.startswith("cast.apatch: torch/runtime.py: @@ forward: ")
    assert found.failed


@pytest.mark.usefixtures("index")
def test_a_series_that_verify_rejects_fails(tmp_path: Path) -> None:
    broken = "\n---\ntorch/runtime.py\n@@ forward\n cast(\n-unused\n+nothing\n )\n"
    root = write_series(tmp_path / "broken", {"broken.apatch": broken})
    (release,) = drift(load_series(root), "==2.6.0").releases
    assert release.series.outcome is release.patches[0].outcome is Outcome.FAILED
    assert release.series.reason == "verify: torch/runtime.py:19: nothing is not defined"


@pytest.mark.usefixtures("index")
def test_a_release_that_has_all_of_the_series(tmp_path: Path) -> None:
    root = write_series(tmp_path / "one", {"cast.apatch": PATCHES["cast.apatch"]})
    found = drift(load_series(root), ">=2.9,<2.11")
    assert [r.series.outcome for r in found.releases] == [Outcome.HOLDS, Outcome.UPSTREAMED]
    assert not found.failed


@pytest.mark.usefixtures("index")
def test_other_tools_are_compared_with_what_the_series_makes(series: Path) -> None:
    found = drift(load_series(series), ">=1", compare=True)
    same, refused = Verdict.SAME, Verdict.REFUSED
    # 1.9.0 gets no patch, and the diff names a file that it lacks; the series does not fit 2.11.0.
    common = {"1.9.0": refused, "2.7.0": same, "2.8.0": Verdict.DIFFERENT, "2.11.0": refused}
    assert verdicts(found, "git apply") == {
        **common,
        **dict.fromkeys(["2.5.0", "2.9.0", "2.10.0"], refused),
    }
    three_way = verdicts(found, "git apply --3way")
    # A line of the context is another one there; three ways know which side changed it.
    assert three_way["2.5.0"] is three_way["2.7.0"] is same
    assert three_way["2.9.0"] is refused
    for fuzz in (2, 3):
        fuzzy = verdicts(found, f"patch --fuzz={fuzz}")
        assert {v: fuzzy[v] for v in common} == common
    assert set(verdicts(found, "mpatch").values()) == {Verdict.ABSENT}
    reasons = {a.reason for a in found.attempts if a.tool == "mpatch"}
    assert all(reason.startswith("pip cannot install mpatch==") for reason in reasons)
    # Made on another release, it is another diff, and the same change.
    other = drift(load_series(series), "==2.6.0", compare=True, base="2.5.0")
    assert verdicts(other, "git apply") == {"2.6.0": refused}
    assert verdicts(other, "patch --fuzz=2") == {"2.6.0": same}
    moved = [a.reason for a in found.attempts if a.tool == "git apply" and a.version == "2.8.0"]
    assert moved == ["in torch/runtime.py"]


@pytest.mark.usefixtures("index")
def test_what_both_releases_get_is_compared(tmp_path: Path) -> None:
    patches = {
        "cast.apatch": PATCHES["cast.apatch"],
        "use.apatch": PATCHES["use.apatch"].replace(">=2.5", "==2.6.0"),
        "helper.apatch": PATCHES["helper.apatch"].replace(">=2.5", "==2.6.0"),
    }
    found = drift(load_series(write_series(tmp_path / "one", patches)), "==2.7.0", compare=True)
    alone = {"cast.apatch": PATCHES["cast.apatch"]}
    expected = drift(load_series(write_series(tmp_path / "two", alone)), "==2.7.0", compare=True)
    assert found.attempts == expected.attempts
    assert verdicts(found, "git apply") == {"2.7.0": Verdict.SAME}


@pytest.mark.usefixtures("index")
def test_where_other_patches_are_for_a_release_nothing_is_judged(tmp_path: Path) -> None:
    patches = {
        "cast.apatch": PATCHES["cast.apatch"].replace(">=2.5", ">=2.6,!=2.7.0"),
        "use.apatch": PATCHES["use.apatch"].replace(">=2.5", "==2.7.0"),
        "helper.apatch": PATCHES["helper.apatch"].replace(">=2.5", "==2.7.0"),
    }
    root = write_series(tmp_path / "two", patches)
    found = drift(load_series(root), ">=2.6,<2.9", compare=True)
    judged = {"2.7.0": Verdict.UNJUDGED, "2.8.0": Verdict.DIFFERENT}
    assert verdicts(found, "git apply") == judged
    # Only 2.8.0 counts.
    lines = list(drift_report.markdown_lines(found))
    assert "Of the other releases, 1 get patches of it, which are compared:" in lines
    assert "| git apply | 0 | 1 | 0 |" in lines


def test_what_a_user_reads(
    index: str, series: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["--series", str(series), "drift"]
    out, err = command(capsys, *start, code=1)
    lines = out.splitlines()
    assert lines[:4] == [
        "the whole series",
        "  2.5.0 to 2.10.0   holds",
        "  2.11.0            failed: cast.apatch: torch/runtime.py: @@ forward:"
        " matches nowhere in forward",
        lines[3],
    ]
    place = lines.index("use.apatch")
    assert lines[place + 1 :] == [
        "  2.5.0 to 2.11.0   holds, needs the earlier ones",
        "for none of these releases",
        "  tests.apatch",
        "  later.apatch",
    ]
    progress = err.splitlines()
    assert progress[:2] == ["torch 2.5.0, 1 of 7", "  reading the Python of its wheel"]
    assert progress[2].startswith("torch 2.6.0, 2 of 7, about ")
    again = command(capsys, *start, "--releases", "<2.11,>2", code=0)[1]
    assert "reading" not in again

    picture = tmp_path / "plot.svg"
    options = ["--releases", ">=2.6,<2.9", "--compare"]
    out, _ = command(capsys, *start, *options, "--markdown", "--plot", str(picture), code=0)
    assert "| patch | 2.6.0 to 2.8.0 |\n" in out
    assert "| tool | 2.7.0 | 2.8.0 |\n" in out
    assert "| torch-overlay | holds | holds |\n" in out
    assert "| git apply | applied, same bytes | applied, different code |\n" in out
    assert "| tool | applied, same bytes | applied, different code | not tried |\n" in out
    assert "| git apply | 1 | 1 | 0 |\n" in out
    drawn = ElementTree.parse(picture).getroot()
    kinds = [use.get("href") for use in drawn.iter("{http://www.w3.org/2000/svg}use")]
    # Ours on three releases, then git apply on the two others.
    assert kinds[:5] == ["#same", "#same", "#same", "#same", "#other"]

    out, _ = command(capsys, *start, *options, "--json", code=0)
    value: dict[str, Any] = json.loads(out)
    assert [r["version"] for r in value["releases"]] == ["2.6.0", "2.7.0", "2.8.0"]
    assert value["releases"][0]["patches"]["use.apatch"]["outcome"] == Outcome.NEEDS_EARLIER.value
    assert {c["tool"] for c in value["compared"]} >= {"git apply", "patch --fuzz=3", "mpatch"}
    assert value["failed"] is False


def test_wrong_use(
    index: str, series: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["--series", str(series), "drift"]
    for options, message in (
        (["--releases", "new"], "--releases: 'new' is not a version specifier, such as >=2.1,<3"),
        (
            ["--releases", ">9"],
            "the package index has no release of torch >9: it has 1.9.0 to 2.11.0",
        ),
        (["--json", "--markdown"], "--json and --markdown are two ways to print it: choose one"),
        (
            ["--compare", "--diff-on", "2.7"],
            "the package index has no release 2.7 of torch to make a diff on",
        ),
        (["--plot", "x.svg"], "--plot draws the comparison: add --compare"),
    ):
        assert command(capsys, *start, *options, code=2)[1].splitlines()[0] == (
            f"torch-overlay: {message}"
        )
    nowhere = tmp_path / "nowhere"
    options = ["--releases", "==2.7.0", "--compare", "--plot", str(nowhere / "x.svg")]
    assert command(capsys, *start, *options, code=2)[1] == (
        f"torch-overlay: --plot: there is no folder {nowhere}\n"
    )


@pytest.mark.usefixtures("index")
def test_a_series_with_nothing_on_the_diffs_release_cannot_be_compared(tmp_path: Path) -> None:
    root = write_series(tmp_path / "one", {"later.apatch": PATCHES["later.apatch"]})
    with pytest.raises(UsageError, match=r"makes nothing of torch 2\.6\.0 to compare with"):
        drift(load_series(root), ">=1", compare=True)
    with pytest.raises(UsageError, match=r"no release of torch that a patch of the series is for"):
        drift(load_series(root))


def test_a_release_is_read_once_and_only_whole(
    index: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "cache" / "wheels" / "torch-2.6.0.zip"
    archive.parent.mkdir(parents=True)
    # What an earlier run left that was ended in the middle.
    archive.with_suffix(".part").write_bytes(b"PK")
    files = releases.release_files("2.6.0")
    assert files == {"torch/__init__.py": b"", "torch/runtime.py": STOCK.encode()}
    assert not archive.with_suffix(".part").exists()

    lines: list[str] = []
    archive.write_bytes(archive.read_bytes()[:-10])
    assert releases.release_files("2.6.0", lines.append) == files
    assert lines == ["reading the Python of its wheel"]
    for wheel in folder.iterdir():
        wheel.unlink()
    assert releases.release_files("2.6.0", lines.append) == files
    assert len(lines) == 1
    # A bit that flipped is noticed, and there is no wheel any more to read it anew.
    with zipfile.ZipFile(archive) as opened:
        place = opened.getinfo("torch/runtime.py").header_offset + 30 + len("torch/runtime.py")
    content = bytearray(archive.read_bytes())
    content[place + 5] ^= 255
    archive.write_bytes(content)
    with pytest.raises(BaseError, match=r"the package index has no wheel of torch 2\.6\.0"):
        releases.release_files("2.6.0")


def test_a_pinned_release_is_proven(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from overlay.bases import BASES

    monkeypatch.setattr(releases, "BASES", BASES)
    with pytest.raises(FingerprintError, match=r"wheel of torch 2\.6\.0 is not an unchanged v2"):
        releases.release_files("2.6.0")
    assert not (tmp_path / "cache" / "wheels" / "torch-2.6.0.zip").exists()


def test_a_cache_that_cannot_be_written(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCH_OVERLAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(BaseError, match="TORCH_OVERLAY_CACHE names another folder"):
        releases.release_files("2.7.0")


def test_yanked_releases_are_no_releases(
    index: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Yanking(test_bases.Index):
        def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            yanked = content.replace(b'">torch-2.7.0-', b'" data-yanked="">torch-2.7.0-')
            super().answer(status, yanked, headers)

    assert wheels.releases() == list(RELEASES)
    monkeypatch.setattr(test_bases, "Index", Yanking)
    with test_bases.serving(folder) as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        assert wheels.releases() == [version for version in RELEASES if version != "2.7.0"]


def test_without_the_other_tools(
    index: str, series: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = shutil.which("git")
    assert git
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(git)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    found = drift(load_series(series), "==2.7.0", compare=True)
    assert verdicts(found, "git apply") == {"2.7.0": Verdict.SAME}
    assert verdicts(found, "patch --fuzz=2") == {"2.7.0": Verdict.ABSENT}
    (tmp_path / "bin" / "git").unlink()
    with pytest.raises(TargetError, match="git is not installed"):
        drift(load_series(series), "==2.7.0", compare=True)


def test_on_real_releases() -> None:
    """The series holds where a line-numbered diff of it, made on 2.6.0, does not."""
    found = drift(load_series(own_series()), "==2.11.0", compare=True)
    (release,) = found.releases
    assert release.series.outcome is Outcome.HOLDS
    assert {a.tool: a.verdict for a in found.attempts} == {
        "git apply": Verdict.REFUSED,
        "git apply --3way": Verdict.REFUSED,
        "patch --fuzz=2": Verdict.REFUSED,
        "patch --fuzz=3": Verdict.REFUSED,
        "mpatch": Verdict.BROKEN,
    }
