"""PyTorch's source from Debian's archive, with apt in folders of its own.

Apt downloads and verifies it as it does for the system, from the mirrors that the system's own
sources name, but reads and writes no lists or caches of the system's. It needs no root.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

from overlay.bases.errors import BaseError
from overlay.bases.process import Outcome, run

PACKAGE = "pytorch"

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SUITE = re.compile(
    r"(stable|oldstable|oldoldstable|testing|unstable|sid|buster|bullseye|bookworm|trixie|forky|duke)"
    r"(-updates|-backports)?"
)
_SETTINGS = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
"""


@dataclass(frozen=True)
class Mirror:
    """Where an archive is, and the keys that sign it."""

    url: str
    signed_by: str


def download(
    release: str, folder: Path, progress: Callable[[str], None], sources: Path = Path("/etc/apt")
) -> Path:
    """The tarball of PyTorch in a Debian release, put below ``folder``.

    A download that was interrupted there is taken up again.
    """
    if shutil.which("apt-get") is None:
        raise BaseError("this system has no apt-get")
    mirrors = mirrors_of(sources)
    if not mirrors:
        raise BaseError(f"the sources in {sources} name no mirror of Debian's archive")
    reasons = []
    for number, mirror in enumerate(mirrors):
        try:
            return _download(mirror, release, folder / str(number), progress)
        except BaseError as error:
            reasons.append(error)
    raise BaseError(reasons[0].message, [line for error in reasons for line in error.details])


def mirrors_of(sources: Path) -> list[Mirror]:
    """The mirrors of Debian's main archive that apt's sources in this folder name."""
    found: dict[Mirror, None] = {}
    files = [sources / "sources.list", *sorted((sources / "sources.list.d").glob("*"))]
    for file in files:
        if file.is_file() and file.suffix in (".list", ".sources"):
            text = file.read_text(encoding="utf-8", errors="replace")
            read = _from_stanzas if file.suffix == ".sources" else _from_lines
            found.update(dict.fromkeys(read(text)))
    return list(found)


def _from_lines(text: str) -> Iterator[Mirror]:
    entry = re.compile(r"deb(?:-src)?\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#]*)")
    for line in text.splitlines():
        match = entry.match(line.strip())
        if match:
            keys = re.search(r"(?i)signed-by=(\S+)", match[1] or "")
            yield from _mirrors([match[2]], [match[3]], match[4].split(), keys[1] if keys else None)


def _from_stanzas(text: str) -> Iterator[Mirror]:
    uncommented = re.sub(r"(?m)^#.*\n?", "", text)
    for stanza in re.split(r"\n\s*\n", uncommented):
        fields = {
            name.lower(): value.strip()
            for name, value in re.findall(r"(?m)^([\w-]+):((?:.*)(?:\n[ \t].*)*)", stanza)
        }
        if fields.get("enabled", "yes").lower() not in ("no", "false", "off", "0"):
            yield from _mirrors(
                fields.get("uris", "").split(),
                fields.get("suites", "").split(),
                fields.get("components", "").split(),
                fields.get("signed-by"),
            )


def _mirrors(
    urls: list[str], suites: list[str], components: list[str], signed_by: Optional[str]
) -> Iterator[Mirror]:
    if "main" in components and any(_SUITE.fullmatch(suite) for suite in suites):
        # A key written into the sources may not be that of the other release.
        keys = signed_by if signed_by and signed_by.startswith("/") else _KEYRING
        for url in urls:
            yield Mirror(url, keys)


def _download(mirror: Mirror, release: str, folder: Path, progress: Callable[[str], None]) -> Path:
    for name in ("lists/partial", "cache/archives/partial", "sources", "result"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    (folder / "sources" / "debian.sources").write_text(
        f"Types: deb-src\nURIs: {mirror.url}\nSuites: {release}\nComponents: main\n"
        f"Signed-By: {mirror.signed_by}\n",
        encoding="utf-8",
    )
    places = {
        "Dir::State": "",
        "Dir::State::lists": "lists",
        "Dir::State::status": "status",
        "Dir::Cache": "cache",
        "Dir::Etc::sourceparts": "sources",
    }
    settings = [f'{key} "{folder / place}";\n' for key, place in places.items()]
    configuration = folder / "apt.conf"
    configuration.write_text(
        _SETTINGS + "".join(settings) + 'Dir::Etc::sourcelist "/dev/null";\n', encoding="utf-8"
    )

    def apt(*arguments: str) -> Outcome:
        command = ["apt-get", "-c", str(configuration), "--quiet", *arguments]
        return run(command, folder / "result", on_line=report)

    def report(line: str) -> None:
        # "Get:2 URL RELEASE/main PACKAGE VERSION (tar) [18.3 MB]"
        match = re.match(r"Get:\d+ \S+ (.*)", line)
        if match:
            progress(f"apt is downloading {match[1]}")

    for arguments in (["update"], ["source", "--tar-only", PACKAGE]):
        outcome = apt(*arguments)
        if outcome.status != 0:
            raise BaseError(
                f"apt-get {arguments[0]} failed for Debian's {release}: {outcome.reason()}",
                outcome.lines,
            )
    tarballs = list((folder / "result").glob(f"{PACKAGE}_*.orig.tar.*"))
    if not tarballs:
        raise BaseError(f"Debian's {release} has no tarball of {PACKAGE}")
    return max(tarballs, key=lambda tarball: tarball.stat().st_mtime)
