"""How ghstack is configured, read as it reads it; nothing is asked and nothing is written."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from overlay.errors import TargetError

ORIGIN = "origin"
"""The remote that ghstack takes if none is named."""
_DOCUMENT = "see docs/submitting.md"


@dataclass(frozen=True)
class Config:
    """What ghstack goes by."""

    place: str
    """Where it is written."""
    host: str
    user: str
    token: str = field(repr=False)
    remote: str = ORIGIN
    proxy: Optional[str] = None
    reviewer: Optional[str] = None
    label: Optional[str] = None

    def redact(self, text: str) -> str:
        """A text without the token, and without what addresses have before their @."""
        return re.sub(r"(?<=://)[^/@\s]+@", "", text.replace(self.token, "<token>"))


def read_config(folder: Path) -> Config:
    """The configuration for a checkout; TargetError with what ghstack would stop to ask for."""
    place = _place(folder)
    options = _options(place)
    host = options.get("github_url")
    if not host:
        raise TargetError(
            f"ghstack is not configured: write [ghstack] and github_url = github.com into {place},"
            f" {_DOCUMENT}"
        )
    if not re.fullmatch(r"[\w.-]+(:\d+)?", host):
        raise TargetError(f"{place}: github_url is {host}: write the host alone, as in github.com")
    token = (
        os.environ.get("OAUTH_TOKEN")
        or options.get("github_oauth")
        or _ask_gh("auth", "token", "--hostname", host)
    )
    if not token:
        raise TargetError(
            f"ghstack has no token for {host}: write github_oauth into {place}, or log in with"
            f" 'gh auth login', {_DOCUMENT}"
        )
    user = options.get("github_username") or _ask_gh(
        "api", "user", "--jq", ".login", "--hostname", host
    )
    if not user:
        raise TargetError(
            f"ghstack does not know your name on {host}: write github_username into {place}"
        )
    if not re.fullmatch(r"[\w-]+", user):
        raise TargetError(
            f"{place}: github_username is {user}: write your name as addresses on {host} have it"
        )
    return Config(
        str(place),
        host,
        user,
        token,
        options.get("remote_name", ORIGIN),
        options.get("proxy"),
        options.get("reviewer"),
        options.get("label"),
    )


def remote_name(folder: Path) -> str:
    """The remote that ghstack submits to, whether all else is configured or not."""
    return _options(_place(folder)).get("remote_name", ORIGIN)


def _options(place: Path) -> dict[str, str]:
    parser = configparser.ConfigParser()
    try:
        parser.read(place, encoding="utf-8")
    except (OSError, configparser.Error, UnicodeDecodeError):
        # What the parser says quotes the line, which may be the one with the token.
        raise TargetError(f"{place} cannot be read: mend it, {_DOCUMENT}") from None
    return dict(parser.items("ghstack", raw=True)) if parser.has_section("ghstack") else {}


def _place(folder: Path) -> Path:
    for above in (folder, *folder.parents):
        if (above / ".ghstackrc").exists():
            return above / ".ghstackrc"
    named = os.environ.get("GHSTACKRC_PATH")
    return Path(named).expanduser() if named else Path.home() / ".ghstackrc"


def _ask_gh(*arguments: str) -> Optional[str]:
    """What GitHub's own command line says, where it is installed and logged in."""
    try:
        done = subprocess.run(
            ["gh", *arguments], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
