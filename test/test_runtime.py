"""The runtime against real pip and venv, with small wheels in the place of torch's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from overlay import runtime
from overlay.errors import UsageError
from overlay.runtime import RuntimeSetupError, copy_of, interpreter, site_packages, torch_venv

VERSION = runtime.DEFAULT_TORCH
BUILD = f"""
import os, signal, sys
from overlay.runtime import torch_venv
def progress(line):
    print(line, flush=True)
    if len(sys.argv) > 1 and sys.argv[1] in line:
        os.kill(os.getpid(), signal.SIGKILL)
print(torch_venv("{VERSION}", progress=progress))
"""


def write_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{info}/RECORD"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
        wheel.writestr(record, "".join(f"{path},,\n" for path in [*files, record]))


def write_torch(folder: Path, version: str, says: str) -> None:
    files = {
        "torch/__init__.py": "",
        "torch/version.py": f"__version__ = '{says}'\n",
        "torch/distributed/__init__.py": "VALUE = 'stock'\n",
    }
    write_wheel(folder, "torch", version, files)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    write_torch(folder, f"{VERSION}+cpu", f"{VERSION}+cpu")
    write_torch(folder, "1.0.0", "2.0.0")
    for name in ("numpy", "pytest", "expecttest"):
        write_wheel(folder, name, "1.0", {f"{name}.py": ""})
    return folder


@pytest.fixture(scope="module")
def built(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that no test changes."""
    with pytest.MonkeyPatch.context() as patch:
        use(patch, wheels, tmp_path_factory.mktemp("built"))
        return torch_venv()


@pytest.fixture(autouse=True)
def cache(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use(monkeypatch, wheels, tmp_path / "cache")


def use(patch: pytest.MonkeyPatch, wheels: Path, cache: Path) -> Path:
    patch.setenv("TORCH_OVERLAY_CACHE", str(cache))
    patch.setenv("TORCH_OVERLAY_PIP_ARGS", f"--no-index --find-links '{wheels}'")
    patch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        patch.delenv(name, raising=False)
    return cache


def value_in(venv: Path) -> str:
    code = "import torch.distributed as d; print(d.VALUE, d.__file__)"
    command = [interpreter(venv), "-I", "-c", code]
    value, path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert Path(path).is_relative_to(venv)
    return value


def replace(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert runtime.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("TORCH_OVERLAY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert runtime.cache_folder() == tmp_path / "xdg" / "torch-overlay"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert runtime.cache_folder() == tmp_path / "home" / ".cache" / "torch-overlay"


def test_builds_once_and_adds_packages_to_what_is_there() -> None:
    lines: list[str] = []
    venv = torch_venv(progress=lines.append)
    assert [line.split(": ")[1].split(" [")[0].split(" /")[0] for line in lines] == [
        "creating",
        "asking pip for it",
        "unpacking its wheel, which is on this machine",
        "installing 2 packages",
        "ready",
    ]
    assert value_in(venv) == "stock"
    marker = site_packages(venv) / "marker"
    marker.touch()

    lines.clear()
    assert torch_venv(progress=lines.append) == venv
    assert lines == []

    torch_venv(progress=lines.append, packages=runtime.TEST_PACKAGES)
    assert "installing 2 packages" in "\n".join(lines)
    assert (site_packages(venv) / "expecttest.py").exists()
    assert marker.exists()

    lines.clear()
    torch_venv(progress=lines.append)
    assert lines == []


@pytest.mark.parametrize("stage", ["creating", "installing"])
def test_a_killed_build_is_not_taken_for_complete(stage: str) -> None:
    killed = subprocess.run([sys.executable, "-c", BUILD, stage], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL
    lines: list[str] = []
    venv = torch_venv(progress=lines.append)
    assert value_in(venv) == "stock"
    assert lines[-1].startswith(f"torch {VERSION}: ready")
    if stage != "creating":
        assert "interrupted" in lines[0]


def test_what_a_killed_process_started_ends_with_it() -> None:
    code = """
import os, signal, sys
from pathlib import Path
from overlay import runtime
def on_line(line):
    print(line, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
runtime._run(Path(sys.executable), ["http.server", "0", "--bind", "127.0.0.1"], on_line)
"""
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL
    port = int(killed.stdout.split(" port ")[1].split()[0])
    for _ in range(100):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.1)
    pytest.fail("the server still runs")


def test_two_at_once_build_it_once() -> None:
    both = [
        subprocess.Popen([sys.executable, "-c", BUILD], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0].splitlines()[-1] == outputs[1].splitlines()[-1]
    assert "".join(outputs).count("creating") == 1
    assert "".join(outputs).count("ready") == 1


def test_a_spoilt_environment_is_noticed(cache: Path, built: Path) -> None:
    venv = cache / built.name

    def fresh() -> Path:
        copy_of(built, venv)
        (venv / runtime._STAMP).write_text((built / runtime._STAMP).read_text())
        assert runtime._installed(venv, Version(VERSION), print) == ["numpy"]
        return site_packages(venv)

    replace(next(fresh().glob("torch-*/RECORD")), "torch/added.py,,\n")
    assert runtime._installed(venv, Version(VERSION), print) is None
    (fresh() / "torch" / "version.py").unlink()
    assert runtime._installed(venv, Version(VERSION), print) is None
    fresh()
    interpreter(venv).unlink()
    assert runtime._installed(venv, Version(VERSION), print) is None

    replace(fresh() / "torch" / "distributed" / "__init__.py", "VALUE = 'other'\n")
    lines: list[str] = []
    assert torch_venv(progress=lines.append) == venv
    assert "its torch has been changed, building anew" in lines[0]
    assert value_in(venv) == "stock"


def test_a_copy_shares_files_and_keeps_changes_to_itself(built: Path, tmp_path: Path) -> None:
    copy = copy_of(built, tmp_path / "copy")
    source = Path("torch", "distributed", "__init__.py")
    assert (site_packages(copy) / source).samefile(site_packages(built) / source)
    assert value_in(copy) == "stock"

    replace(site_packages(copy) / source, "VALUE = 'patched'\n")
    assert value_in(copy) == "patched"
    assert value_in(built) == "stock"

    assert value_in(copy_of(built, copy)) == "stock"


def test_a_copy_works_without_hard_links(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    copy = copy_of(built, tmp_path / "copy")
    source = Path("torch", "version.py")
    assert not (site_packages(copy) / source).samefile(site_packages(built) / source)
    assert value_in(copy) == "stock"


def test_a_copy_does_not_replace_what_is_not_one(built: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(RuntimeSetupError, match="is not a copy made here"):
        copy_of(built, tmp_path)
    assert (tmp_path / "mine").exists()
    with pytest.raises(RuntimeSetupError, match="is not a virtual environment"):
        copy_of(tmp_path, tmp_path / "copy")


def test_no_such_wheel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_OVERLAY_PIP_ARGS", "--no-index")
    assert runtime.main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        f"error: cannot install torch {VERSION} numpy pytest expecttest: pip finds no fitting wheel"
        in err
    )
    assert f"ERROR: No matching distribution found for torch=={VERSION}" in err


def test_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    args = "--index-url http://127.0.0.1:9/simple --retries 1"
    monkeypatch.setenv("TORCH_OVERLAY_PIP_ARGS", args)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeSetupError, match="no connection"):
        torch_venv()


def test_another_torch_than_asked_for() -> None:
    with pytest.raises(RuntimeSetupError, match=r"torch 2\.0\.0 in .* where 1\.0\.0 was asked for"):
        torch_venv("1.0.0")


def test_wrong_use(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    with pytest.raises(UsageError, match="'latest' is not a torch version"):
        torch_venv("latest")
    cache.write_text("a file")
    with pytest.raises(RuntimeSetupError, match="set TORCH_OVERLAY_CACHE"):
        torch_venv()


def test_arguments_for_pip_that_cannot_be_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_OVERLAY_PIP_ARGS", "'--no-index")
    with pytest.raises(UsageError, match="TORCH_OVERLAY_PIP_ARGS cannot be split"):
        torch_venv()
