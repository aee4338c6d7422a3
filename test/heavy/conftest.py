from __future__ import annotations

from typing import Optional

import pytest


def pytest_ignore_collect(config: pytest.Config) -> Optional[bool]:
    """These tests download gigabytes, so they run only where they are asked for by their path."""
    return None if any("heavy" in argument for argument in config.args) else True
