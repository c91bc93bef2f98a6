"""Interrupts at chosen lines, as Ctrl-C, a signal's handler or a full memory can bring them.

Owns how lines of the package are counted and one of them raises; only the thread that asks is watched,
as signals reach the main thread alone.
"""

from __future__ import annotations

import dis
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import icechunk_arrow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType
    from typing import Any

__all__ = ["Interrupt", "Interrupter", "interrupting"]

_PACKAGE = str(Path(icechunk_arrow.__file__).parent)
_PURE = (f"{_PACKAGE}/core/", f"{_PACKAGE}/formats/")
"""What changes nothing may as well be interrupted where it is called."""


_BY_THE_COLLECTOR = {"__del__", "forget_collected"}
"""What Python calls when it lets things go, whenever that is: what is raised there reaches nobody."""


class Interrupt(BaseException):
    """What nobody expects: no ``except Exception`` sees it."""


@cache
def _unreachable(code: CodeType) -> frozenset[int]:
    """Tell where tracing would raise and no signal is ever looked at.

    That is between a ``with`` block and the call of what ends it, and where nothing is done: there locks
    written in C cannot be left held.
    """
    found = list(dis.get_instructions(code))
    ends = {each.offset for each in found if each.opname == "NOP"}
    for number in range(len(found) - 2):
        if all(each.argval is None and each.opname == "LOAD_CONST" for each in found[number:][:3]):
            ends.add(found[number].offset)
            if found[number - 1].opname == "SWAP":  # a value that is returned is put aside first
                ends.add(found[number - 1].offset)
    return frozenset(ends)


class Interrupter:
    """Counts the lines that are executed, and raises at one of them."""

    def __init__(self, stop_at: int | None) -> None:
        self._stop_at = stop_at
        self._seen: dict[tuple[str, int], tuple[int, int]] = {}
        self._count = 0
        self._closing: FrameType | None = None
        self.place = ""

    @property
    def steps(self) -> list[int]:
        """Tell when each line of the source came first and last."""
        return sorted({step for steps in self._seen.values() for step in steps})

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        """See a function called."""
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE) or file.startswith(_PURE):
            return None
        if frame.f_code.co_name in _BY_THE_COLLECTOR:
            return None
        return self._line if event == "call" else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "exception" and argument[0] is GeneratorExit and self._closing is None:
            # a generator that is let go before its end: as with ``__del__``, what is raised reaches nobody
            self._closing = frame
        elif event == "return" and frame is self._closing:
            self._closing = None
        elif self._closing is not None:
            pass
        elif event == "line" and frame.f_lasti not in _unreachable(frame.f_code):
            place, step = (frame.f_code.co_filename, frame.f_lineno), self._count
            self._seen[place] = self._seen.get(place, (step,))[0], step
            self._count += 1
            if step == self._stop_at:
                self.place = f"{place[0]}:{place[1]}"
                self.stop()
        return self._line

    def stop(self) -> None:
        """Do what ends the block."""
        raise Interrupt(self.place)


@contextmanager
def interrupting(stop_at: int | None = None) -> Iterator[Interrupter]:
    """Interrupt the block at its n-th line within the package; without a number only count."""
    interrupter = Interrupter(stop_at)
    before = sys.gettrace()
    sys.settrace(interrupter)
    try:
        yield interrupter
    except Interrupt as interrupt:
        interrupt.__traceback__ = (
            None  # what its frames hold is let go, as where somebody handles it
        )
    finally:
        sys.settrace(before)
