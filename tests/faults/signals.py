"""Signals that arrive while something is done: at a line of the package, or at any moment.

Owns the handlers that people have for ``SIGTERM`` and how a signal is sent at a line or after a while; and children
in which that happens, so that they may end by it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.faults.interrupts import Interrupter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ENDS", "HANDLERS", "Terminated", "after", "at_line", "ended_by", "handled"]

SECONDS = 60


class Terminated(BaseException):
    """What a handler raises: no ``except Exception`` sees it."""


def _raises(*_: object) -> None:
    raise Terminated


def _exits(*_: object) -> None:
    sys.exit(7)


HANDLERS: dict[str, Any] = {"raises": _raises, "exits": _exits, "default": signal.SIG_DFL}
"""What people do about ``SIGTERM``."""
ENDS = {"exits": 7, "default": -signal.SIGTERM}
"""How a process ends by them."""


class _Signaller(Interrupter):
    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def handled(way: str, number: int = signal.SIGTERM) -> Iterator[None]:
    """Have a signal handled so."""
    before = signal.signal(number, HANDLERS[way])
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def at_line(stop_at: int) -> Iterator[_Signaller]:
    """Send ``SIGTERM`` at the n-th line within the package."""
    signaller = _Signaller(stop_at)
    before = sys.gettrace()
    sys.settrace(signaller)
    try:
        yield signaller
    except Terminated as error:
        error.__traceback__ = None  # what its frames hold is let go
    finally:
        sys.settrace(before)


def after(seconds: float, work: Callable[[], Any]) -> str:
    """Do something, and have a handler raise after a while, wherever Python is then; tell what came of it."""
    before = signal.signal(signal.SIGALRM, _raises)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        work()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Terminated as error:
        error.__traceback__ = None
        return "interrupted"
    finally:
        signal.signal(signal.SIGALRM, before)
    return "done"


def ended_by(
    way: str, stop_at: int, prepare: Callable[[], Any], work: Callable[[Any], object]
) -> int:
    """Have a forked child do something, to which ``SIGTERM`` comes at a line; give how it ended."""
    child = os.fork()
    if not child:
        code = 1
        try:
            given = prepare()
            signal.signal(signal.SIGTERM, HANDLERS[way])
            sys.settrace(_Signaller(stop_at))
            work(given)
            code = 0
        except SystemExit as error:
            code = error.code  # type: ignore[assignment]
        finally:
            sys.settrace(None)
            os._exit(code)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("a child that was told to end hangs")
