"""Where an interpreter finds torch, without importing it.

The text of this module is also run by the interpreters of other environments, so it needs no
other module of the project.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Optional


def torch_init() -> Optional[str]:
    """The path of ``torch/__init__.py``, or None if this interpreter has no torch."""
    here, found = os.getcwd(), sys.path
    # A folder named torch in the working directory is not what is installed.
    sys.path = [entry for entry in found if entry and os.path.abspath(entry) != here]
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    finally:
        sys.path = found
    return spec.origin if spec else None


if __name__ == "__main__":
    print(json.dumps(torch_init()))
