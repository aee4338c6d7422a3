"""Puts the series into the wheel, but not into an editable install, which reads the checkout's."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SeriesHook(BuildHookInterface):
    """Adds ``patches/`` and ``torch_overlay/`` below the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            for folder in ("patches", "torch_overlay"):
                build_data["force_include"][folder] = f"overlay/_series/{folder}"
