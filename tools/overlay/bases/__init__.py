"""Bases: pinned PyTorch versions, whose source and runtime are fetched, proven and kept.

A base's source is a git repository in the cache folder, its runtime a virtual environment there.
"""

from __future__ import annotations

from overlay.bases.catalog import BASES, DEFAULT_BASE, Base, Runtime, find_base
from overlay.bases.errors import BaseError, FingerprintError
from overlay.bases.fetch import BaseState, Fetched, fetch, fetch_runtime, path_of, state_of

__all__ = [
    "BASES",
    "DEFAULT_BASE",
    "Base",
    "BaseError",
    "BaseState",
    "Fetched",
    "FingerprintError",
    "Runtime",
    "fetch",
    "fetch_runtime",
    "find_base",
    "path_of",
    "state_of",
]
