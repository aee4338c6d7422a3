"""Virtual environments with a given torch, kept in a cache folder and used again.

``TORCH_OVERLAY_CACHE`` names the folder; ``TORCH_OVERLAY_PIP_ARGS`` (split as a shell would) is
passed to ``pip install``, for another index or a folder of wheels. Linux's default torch is a CUDA
build of several gigabytes; PyTorch's own index of CPU builds, which its install page names, has a
small one::

    export TORCH_OVERLAY_PIP_ARGS="--extra-index-url ADDRESS"
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Callable, Optional

from filelock import FileLock, Timeout
from packaging.version import InvalidVersion, Version

from overlay.errors import OverlayError, UsageError

Progress = Callable[[str], None]

DEFAULT_TORCH = "2.13.0"
TEST_PACKAGES = ("numpy", "pytest", "expecttest")

_STAMP = "torch-overlay.json"
_COPY_MARK = ".torch-overlay-copy"
_LINES_SHOWN = 15
_HEARTBEAT_SECONDS = 10

# Runs a module, and ends it with all that it started once our end of its standard input closes:
# a pip that outlives a killed parent would go on writing into a folder that the next run rebuilds.
_WATCHED = """
import os, runpy, signal, sys, threading
def watch():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


class RuntimeSetupError(OverlayError):
    """A virtual environment with the wanted torch could not be made."""


def cache_folder() -> Path:
    """The folder that everything fetched or built is kept in."""
    named = os.environ.get("TORCH_OVERLAY_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "torch-overlay"


def interpreter(venv: Path) -> Path:
    """The Python of a virtual environment."""
    return venv / "bin" / "python"


def site_packages(venv: Path) -> Path:
    """The folder that a virtual environment's packages are installed in."""
    for folder in venv.glob("lib/python3*/site-packages"):
        return folder
    raise RuntimeSetupError(f"{venv} is not a virtual environment: it has no site-packages")


def torch_venv(
    version: str = DEFAULT_TORCH,
    purpose: str = "stock",
    progress: Progress = lambda line: None,
    packages: Sequence[str] = ("numpy",),
    python: Optional[Path] = None,
) -> Path:
    """A virtual environment with this torch, unchanged, and these packages.

    Its Python is ``python``, by default the running one. It is built on first use, and anew if a
    build was interrupted or its torch has been changed since. ``purpose`` keeps environments of one
    version apart. Safe to call from several processes.
    """
    try:
        wanted = Version(version)
    except InvalidVersion:
        raise UsageError(f"'{version}' is not a torch version; write it like 2.13.0") from None
    python = python or Path(sys.executable)
    venv = cache_folder() / f"torch-{wanted}-py{_python_version(python)}-{purpose}"
    try:
        wait = f"waiting for another process that is building {venv}"
        with locked(venv, lambda: progress(wait)):
            _bring_up_to_date(venv, wanted, packages, python, progress)
    except OSError as error:
        raise RuntimeSetupError(
            f"cannot build {venv}: {error}; set TORCH_OVERLAY_CACHE to a folder you can write to"
        ) from error
    return venv


def copy_of(venv: Path, folder: Path) -> Path:
    """Make ``folder`` a copy of ``venv`` whose packages share their files with it by hard links.

    An earlier copy there is replaced. As with any hard-linked package, a file must be replaced and
    never edited in place. Scripts are not copied: use ``python -m``.
    """
    if folder.exists() and not (folder / _COPY_MARK).exists():
        raise RuntimeSetupError(f"{folder} exists and is not a copy made here; choose another")
    source = site_packages(venv)
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / _COPY_MARK).touch()
        # From inside a virtual environment this makes a sibling of it, not a child.
        made = subprocess.run(
            [interpreter(venv), "-I", "-m", "venv", "--without-pip", folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if made.returncode:
            raise RuntimeSetupError(f"cannot create {folder}", made.stdout.splitlines())
        shutil.copytree(
            source,
            folder / source.relative_to(venv),
            symlinks=True,
            copy_function=_link_or_copy,
            dirs_exist_ok=True,
        )
    except (OSError, shutil.Error) as error:
        raise RuntimeSetupError(f"cannot copy {venv} to {folder}: {error}") from error
    return folder


def is_complete(venv: Path) -> bool:
    """Whether this is an environment made here whose build was not interrupted."""
    return (venv / _STAMP).exists()


def _python_version(python: Path) -> str:
    """As in 3.11, with the ABI's flags."""
    if python == Path(sys.executable):
        return f"{sys.version_info.major}.{sys.version_info.minor}{sys.abiflags}"
    code = "import sys; print('%d.%d' % sys.version_info[:2] + sys.abiflags)"
    try:
        answer = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeSetupError(f"{python} is not a Python that runs: {error}") from None
    return answer.stdout.strip()


def _bring_up_to_date(
    venv: Path, wanted: Version, packages: Sequence[str], python: Path, progress: Progress
) -> None:
    installed = _installed(venv, wanted, progress)
    missing = [package for package in packages if package not in (installed or ())]
    if installed is not None and not missing:
        return
    start = time.monotonic()

    def report(stage: str) -> None:
        progress(f"torch {wanted}: {stage} [{time.monotonic() - start:.0f} s]")

    stamp = venv / _STAMP
    if installed is None:
        if venv.exists():
            shutil.rmtree(venv)
        report(f"creating {venv}")
        code, lines = _run(python, ["venv", str(venv)])
        if code:
            raise RuntimeSetupError(
                f"{python} cannot create a virtual environment in {venv}; "
                "on Debian and Ubuntu install python3-venv",
                lines[-_LINES_SHOWN:],
            )
    else:
        # Whoever interrupts us from here on leaves a folder without a stamp, hence no doubt.
        stamp.unlink()
    _pip_install(venv, wanted, missing, report)
    found = _torch_version(venv)
    if found is None or not _is(found, wanted):
        raise RuntimeSetupError(f"pip put torch {found} in {venv} where {wanted} was asked for")
    content = {
        "torch": found,
        "fingerprint": _fingerprint(venv),
        "packages": sorted({*(installed or ()), *packages}),
    }
    part = stamp.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.replace(stamp)
    report("ready")


def _installed(venv: Path, wanted: Version, progress: Progress) -> Optional[list[str]]:
    """The packages that a complete, unchanged environment has beside torch, or None."""
    if not venv.exists():
        return None
    try:
        stamp = json.loads((venv / _STAMP).read_text(encoding="utf-8"))
        packages = [str(package) for package in stamp["packages"]]
        fingerprint = stamp["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        progress(f"{venv}: an earlier build was interrupted, building anew")
        return None
    try:
        runs = subprocess.run(
            [interpreter(venv), "-I", "-S", "-c", ""], capture_output=True, check=False
        )
        usable = runs.returncode == 0
    except OSError:
        usable = False
    if not usable:
        progress(f"{venv}: its Python does not run any more, building anew")
        return None
    found = _torch_version(venv)
    if found is None or not _is(found, wanted) or _fingerprint(venv) != fingerprint:
        progress(f"{venv}: its torch has been changed, building anew")
        return None
    return packages


def _torch_version(venv: Path) -> Optional[str]:
    """What torch/version.py says, without running it."""
    try:
        text = (site_packages(venv) / "torch" / "version.py").read_text(encoding="utf-8")
    except (OSError, OverlayError):
        return None
    match = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match[1] if match else None


def _is(found: str, wanted: Version) -> bool:
    try:
        version = Version(found)
    except InvalidVersion:
        return False
    return version == wanted or (wanted.local is None and version.public == wanted.public)


def _fingerprint(venv: Path) -> str:
    """Changes when somebody applies patches to this torch, by whatever means."""
    site = site_packages(venv)
    digest = hashlib.sha256()
    for path in sorted([*site.glob("torch-*.dist-info/RECORD"), *_distributed_sources(site)]):
        digest.update(str(path.relative_to(site)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _distributed_sources(site: Path) -> Iterator[Path]:
    return (site / "torch" / "distributed").rglob("*.py")


def _pip_install(
    venv: Path, wanted: Version, packages: Sequence[str], report: Callable[[str], None]
) -> None:
    extra = os.environ.get("TORCH_OVERLAY_PIP_ARGS", "")
    try:
        extra_args = shlex.split(extra)
    except ValueError as error:
        raise UsageError(f"TORCH_OVERLAY_PIP_ARGS cannot be split: {error}: {extra}") from None
    scratch = venv / "tmp"
    scratch.mkdir()
    with _heartbeat(report) as say:
        say("asking pip for it")
        code, lines = _run(
            interpreter(venv),
            [
                *("pip", "install", "--no-input", "--progress-bar=off"),
                # Compiling all of torch takes longer than all that is ever imported is worth.
                *("--disable-pip-version-check", "--no-compile"),
                *(*extra_args, f"torch=={wanted}", *packages),
            ],
            lambda line: _report_stage(line, say),
            # A small /tmp has no room for torch, and what a killed pip leaves here goes too.
            {"TMPDIR": str(scratch)},
        )
    shutil.rmtree(scratch)
    if code == 0:
        return
    output = "\n".join(lines)
    what = " ".join([f"torch {wanted}", *packages])
    python = f"Python {_python_version(interpreter(venv))}"
    if re.search("connection broken|Max retries exceeded", output):
        message = f"cannot download {what}: no connection; check the network or a proxy's settings"
    elif re.search("No matching distribution found|ResolutionImpossible", output):
        message = (
            f"cannot install {what}: pip finds no fitting wheel for {python} on "
            f"{sysconfig.get_platform()}; use another Python, or name a place that has it in "
            "TORCH_OVERLAY_PIP_ARGS"
        )
    else:
        message = f"cannot install {what} for {python}: pip failed with status {code}, saying:"
    raise RuntimeSetupError(message, lines[-_LINES_SHOWN:])


def _report_stage(line: str, report: Callable[[str], None]) -> None:
    download = re.match(r"\s*Downloading (\S+\.whl) \((.*[MG]B)\)", line)
    if download:
        report(f"downloading {download[1]} ({download[2]})")
    elif re.match(r"\s*(Processing|Using cached) \S*torch-", line):
        report("unpacking its wheel, which is on this machine")
    elif line.startswith("Installing collected packages:"):
        report(f"installing {line.count(',') + 1} packages")


def _run(
    python: Path,
    module_and_args: Sequence[str],
    on_line: Callable[[str], None] = lambda line: None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, list[str]]:
    """Run a module, telling of each line it prints; its status and all lines."""
    unwanted = {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV"}
    lines = []
    with subprocess.Popen(
        [python, "-I", "-u", "-c", _WATCHED, *module_and_args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**{k: v for k, v in os.environ.items() if k not in unwanted}, **variables},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            on_line(line)
        return process.wait(), lines


@contextmanager
def _heartbeat(report: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Repeats what was reported last while nothing new is said for a while."""
    said = threading.Event()
    done = threading.Event()
    last = ""

    def say(line: str) -> None:
        nonlocal last
        last = line
        said.set()
        report(line)

    def beat() -> None:
        while not done.is_set():
            if not said.wait(_HEARTBEAT_SECONDS) and last:
                report(f"still {last}")
            said.clear()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield say
    finally:
        done.set()
        said.set()
        thread.join()


@contextmanager
def locked(folder: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a folder in the cache, after waiting for whoever holds it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _link_or_copy(source: str, destination: str) -> None:
    try:
        os.link(source, destination)
    except OSError:
        # Another file system, or one without hard links.
        shutil.copy2(source, destination)


def main() -> int:
    """Build the environment that the tests use; print its folder."""

    def show(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        print(torch_venv(progress=show, packages=TEST_PACKAGES))
    except OverlayError as error:
        for line in ("error: " + error.message, *error.details):
            show(line)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
