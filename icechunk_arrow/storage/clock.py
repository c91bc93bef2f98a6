"""What time it is: the one place where the package asks the machine for it, or waits.

The linter refuses clocks everywhere else, so that a test which puts another :class:`Clock` here knows of every
moment that the package sees.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

__all__ = ["Clock", "now", "pause", "seconds"]


class Clock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Tell the time, in UTC."""
        return datetime.now(UTC)

    def seconds(self) -> float:
        """Count seconds, from any moment on; nobody sets this clock."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


in_use = Clock()


def now() -> datetime:
    """Tell the time, in UTC."""
    return in_use.now()


def seconds() -> float:
    """Count seconds, to see how long something takes."""
    return in_use.seconds()


def pause(length: float) -> None:
    """Wait for some seconds."""
    in_use.pause(length)
