"""What can go wrong with a base."""

from __future__ import annotations

from overlay.errors import OverlayError


class BaseError(OverlayError):
    """A base, or one way to it, could not be had."""


class FingerprintError(BaseError):
    """A source is not the base that it was taken for."""

    exit_code = 1
