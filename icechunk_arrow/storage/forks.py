"""What a forked child must not take over: locks held by threads that it does not have.

Owns the list of live places and their renewal; knows nothing else of them.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["Renewable", "renew_in_forks"]


class Renewable(Protocol):
    """Something with locks or connections."""

    def renew_after_fork(self) -> None:
        """Make locks and connections anew; called in the child, before anything else runs."""


_live: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_forks(place: Renewable) -> None:
    """Have a place renewed in every forked child."""
    _live.add(place)


def _renew() -> None:
    for place in list(_live):
        place.renew_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
