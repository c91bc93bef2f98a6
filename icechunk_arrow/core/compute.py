"""Arrow's compute functions, imported when the first is used: they take a tenth of our import time."""

from __future__ import annotations

import importlib
from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    """Give the function of this name from ``pyarrow.compute``."""
    return getattr(importlib.import_module("pyarrow.compute"), name)
