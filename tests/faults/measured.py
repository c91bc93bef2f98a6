"""A process that reads what may do harm, and says how long it took and how much memory.

Owns the process and the measuring; what is read is the caller's.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icechunk_arrow import IcechunkArrowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

__all__ = ["Measured", "MeasuredReader", "reading_process"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a call."""

    error: BaseException | None
    """One of ours, or a ``RuntimeError`` that holds the words of another one."""
    seconds: float
    """Of work, since other processes may have the processor meanwhile."""
    peak_bytes: int
    """How much more memory there was than before, at most."""


@dataclass(frozen=True, slots=True)
class MeasuredReader:
    """The process, as the tests see it."""

    connection: Connection

    def call(self, function: Callable[..., object], *arguments: Any) -> Measured:
        """Have a function called there."""
        self.connection.send((function, arguments))
        assert self.connection.poll(60), "it takes for ever"
        found: Measured = self.connection.recv()
        return found


@contextmanager
def reading_process() -> Iterator[MeasuredReader]:
    """Start the process, and end it."""
    context = get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer_calls, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    yield MeasuredReader(ours)
    process.kill()
    process.join()
    process.close()


def _answer_calls(connection: Connection) -> None:
    while True:
        function, arguments = connection.recv()
        Path("/proc/self/clear_refs").write_text("5")
        before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        begun = time.process_time()
        error: BaseException | None = None
        try:
            function(*arguments)
        except BaseException as found:
            error = found if isinstance(found, IcechunkArrowError) else RuntimeError(repr(found))
        seconds = time.process_time() - begun
        connection.send(Measured(error, seconds, _peak_bytes() - before))


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")
