"""No garbage is collected while HDF5's lock may be held by a thread that waits for bytes.

The HDF5 library has one lock for everything, also for letting an object go. A thread that reads a far file has it
while it waits for the event loop, in another thread. If that one collects garbage just then, and an object of HDF5
is among it, each waits for the other for ever. So what is asked of HDF5 is asked by one thread at a time, which the
lock makes true anyway, and meanwhile Python does not collect by itself; in between it does.
"""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from icechunk_arrow.storage import clock
from icechunk_arrow.storage.forked_children import run_in_forks

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["uncollected"]

_LONGEST_SECONDS = 10.0
_turn = threading.RLock()
_is_paused = False
"""Whether it is here that collecting was switched off."""
_phases: OrderedDict[str, None] = OrderedDict.fromkeys(("start", "stop"))
"""The last of them is what Python's collector said last."""
# no function of ours: an interrupt that comes while the collector calls one would reach nobody
gc.callbacks.append(_phases.move_to_end)  # type: ignore[arg-type]


@run_in_forks
def _renew() -> None:
    """Go on in a child, where no other thread asks or collects."""
    global _turn, _is_paused  # noqa: PLW0603
    _turn = threading.RLock()
    _phases.move_to_end("stop")
    if _is_paused:
        _is_paused = False
        gc.enable()


@contextmanager
def uncollected() -> Iterator[None]:
    """Have nothing collected within this block, and no other thread in such a block."""
    global _is_paused  # noqa: PLW0603
    with _turn:
        is_ours = gc.isenabled()
        try:
            if is_ours:
                _is_paused = True
                gc.disable()
            end = clock.seconds() + _LONGEST_SECONDS
            # another thread may be at it, and may need the lock for that
            while next(reversed(_phases)) == "start" and clock.seconds() < end:
                clock.pause(0.0005)
            yield
        finally:
            if is_ours:
                gc.enable()
                _is_paused = False
