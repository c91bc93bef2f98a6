"""What a forked child must not take over: locks and pending answers of threads that it does not have.

Owns the list of live things that have such, and their renewal; knows nothing else of them. Whatever keeps
a lock, a pool of threads or a future beyond one call belongs in the list. A value that is made on first use
is made without a lock (:mod:`icechunk_arrow.core.lazy`).
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Renewable", "renew_in_forks", "run_in_forks"]


class Renewable(Protocol):
    """Something with locks, threads or connections."""

    def renew_after_fork(self) -> None:
        """Make them anew; called in the child, before anything else runs. It must not fail."""


_live: dict[int, weakref.ref[Renewable]] = {}
_functions: list[Callable[[], None]] = []


def renew_in_forks(thing: Renewable) -> None:
    """Have a thing renewed in every forked child."""
    # by identity: some of these are equal to others, or have no hash
    number = id(thing)

    def forget_collected(_: weakref.ref[Renewable]) -> None:
        _live.pop(number, None)

    _live[number] = weakref.ref(thing, forget_collected)


def run_in_forks(function: Callable[[], None]) -> Callable[[], None]:
    """Have a function called in every forked child: for what belongs to a module."""
    _functions.append(function)
    return function


def _renew() -> None:
    for function in _functions:
        function()
    for reference in list(_live.values()):
        thing = reference()
        if thing is not None:
            thing.renew_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
