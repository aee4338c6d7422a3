"""The errors that reach a user: each says what, where and what to do in its first line."""

from __future__ import annotations

from collections.abc import Sequence


class OverlayError(Exception):
    """An error for the user: one clear line, then optional further lines.

    The command line prints it on standard error and exits with ``exit_code``.
    """

    exit_code = 2

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.details = tuple(details)


class UsageError(OverlayError):
    """Wrong use, or a series that cannot be read."""


class TargetError(OverlayError):
    """The target is not what the command needs: nothing was changed."""


class PatchError(OverlayError):
    """A patch does not fit the target, or a check of the result failed."""

    exit_code = 1
