"""What a run promises to test: a skip for want of it is then an error."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["Tell", "required"]

Tell = Callable[[int, object], None]
"""What a storm calls with its seed and its figures: the fixture ``tell``."""


def required(what: str) -> bool:
    """Whether ``ICECHUNK_ARROW_REQUIRE`` names a thing: s3, spark, delta, strace, root, faketime, other-python."""
    return what in os.environ.get("ICECHUNK_ARROW_REQUIRE", "").split(",")
