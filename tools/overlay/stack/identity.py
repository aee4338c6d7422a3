"""Which pull request a patch is: ghstack's trailers, in a commit's message and a patch's header."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Optional

from overlay.apatch import Message, parse_message
from overlay.errors import TargetError, UsageError
from overlay.series import Series
from overlay.targets.journal import Change, Journal
from overlay.targets.lock import lock_file

SOURCE_ID, COMMENT_ID, PULL_REQUEST = "ghstack-source-id", "ghstack-comment-id", "Pull-Request"
FIELDS = (SOURCE_ID, COMMENT_ID, PULL_REQUEST)
TRAILERS = tuple(f"{name}: " for name in FIELDS)
_STATE = ".torch-overlay"


@dataclass(frozen=True)
class Identity:
    """What ghstack knows a commit by; all None where it was never submitted."""

    pull_request: Optional[str] = None
    """The address of its pull request."""
    source_id: Optional[str] = None
    """The tree that was submitted last."""
    comment_id: Optional[str] = None

    @property
    def fields(self) -> dict[str, str]:
        """The trailers, in ghstack's order."""
        values = (self.source_id, self.comment_id, self.pull_request)
        return {name: value for name, value in zip(FIELDS, values) if value is not None}


def identity_of(message: Message) -> Identity:
    """What a patch's header says."""
    return _identity({name: values[-1] for name in _NAMES if (values := message.field(name))})


def identity_in(text: str) -> Identity:
    """What a commit's message says, read as ghstack reads it."""
    found = re.findall(rf"^({'|'.join(_NAMES)}): (\S+)", text, re.M)
    return _identity(dict(found))


# The release before the oldest that submit takes wrote the last one.
_NAMES = (*FIELDS, "Pull-Request-resolved")


def _identity(fields: Mapping[str, str]) -> Identity:
    pull_request = fields.get(PULL_REQUEST) or fields.get("Pull-Request-resolved")
    return Identity(pull_request, fields.get(SOURCE_ID), fields.get(COMMENT_ID))


# What ghstack takes for its own, wherever it stands in a message; of several it takes the first.
_TAKEN = re.compile(
    r"(?:Pull Request resolved|Pull-Request-resolved|Pull-Request): "
    r"(https://(?P<host>[^/\s]+)/[^/\s]+/[^/\s]+/pull/\d+)"
    r"|(gh-metadata: \S+ \S+ \d+ gh/[\w-]+/\d+/head)"
    rf"|^(?:{SOURCE_ID}|{COMMENT_ID}): (.+)",
    re.M,
)


def misleading(message: str, identity: Identity, host: str) -> Optional[str]:
    """What ghstack would take for a commit's identity on a host, and is not."""
    fields = identity.fields if identity.pull_request else {}
    own = {value.rstrip("/") for value in fields.values()}
    for match in _TAKEN.finditer(message):
        if match["host"] in (None, host) and not own.intersection(match.groups()):
            return match[0]
    return None


def with_identity(text: str, name: str, identity: Identity) -> str:
    """A patch's text with ghstack's trailers; nothing else in it changes."""
    message, lines = parse_message(text, name)
    wanted = identity.fields
    # One that is there keeps its place; all others come last.
    fields = [(key, wanted.pop(key, value)) for key, value in message.fields]
    fields += wanted.items()
    body = message.body
    if not message.fields and body.strip() and not body.endswith("\n\n"):
        body += "\n"
    rest = text.split("\n")[lines - 1 :]
    return str(replace(message, body=body, fields=tuple(fields))) + "\n".join(rest)


class PatchFiles:
    """The files of a series' patches, changed all or none."""

    def __init__(self, series: Series) -> None:
        self._series = series
        self._root = series.root
        self._journal = Journal(self._root, self._root / _STATE / "journal")

    def refusal(self) -> Optional[str]:
        """Why trailers cannot be written there, in one line; None if they can."""
        if self._root.name == "_series":
            return (
                f"{self._root} belongs to the installed tool, and the next install replaces it:"
                " name a series of your own with --series"
            )
        folders = {(self._root / "patches" / p.name).parent for p in self._series.patches}
        for folder in (self._root, *sorted(folders)):
            if not os.access(folder, os.W_OK | os.X_OK):
                return f"{folder} is not writable: pull requests are noted in the patches there"
        return None

    def recover(self) -> None:
        """Undo what a killed run left half written."""
        if (self._root / _STATE).exists():
            with lock_file(self._root / _STATE / "lock", 10.0):
                self._journal.recover()

    def write(self, identities: Mapping[str, Identity]) -> None:
        """Write trailers into patches, by name; TargetError, and nothing written, if that fails.

        Raises UsageError if one of them was edited since the series was read.
        """
        changes = []
        with lock_file(self._root / _STATE / "lock", 10.0):
            self._journal.recover()
            for patch in self._series.patches:
                if patch.name not in identities:
                    continue
                place = self._root / "patches" / patch.name
                try:
                    now = place.read_bytes().decode("utf-8")
                except (OSError, UnicodeDecodeError) as error:
                    raise TargetError(f"{place} cannot be read: {error}") from None
                if now != patch.text:
                    raise UsageError(f"{place} was edited meanwhile: run it again")
                text = with_identity(now, patch.name, identities[patch.name])
                if text != now:
                    changes.append(Change(f"patches/{patch.name}", text.encode()))
            if changes:
                self._journal.run(changes)
