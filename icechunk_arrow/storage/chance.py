"""Random bytes: the one place where the package draws them.

The linter refuses generators everywhere else, so that a test which puts another :data:`draw` here knows every id.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["fraction", "random_bytes", "token"]

draw: Callable[[int], bytes] = os.urandom
"""Gives so many bytes."""


def random_bytes(count: int) -> bytes:
    """Give bytes that nobody can guess."""
    return draw(count)


def token() -> str:
    """Make a name that nobody else makes."""
    return random_bytes(12).hex()


def fraction() -> float:
    """Give a number from 0 up to 1."""
    return int.from_bytes(random_bytes(6), "big") / (1 << 48)
