"""Ctrl-C while DuckDB works: it works in a thread of its own, and is told to stop.

DuckDB looks for signals now and then only, and misses those that come while it is deep in a query.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

__all__ = ["InterruptibleRows", "interruptible"]

_T = TypeVar("_T")
_AGAIN_SECONDS = 0.1


def interruptible(con: Any, work: Callable[[], _T]) -> _T:
    """Do what takes a connection long; an interrupt ends it, and is raised when it has ended."""
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(work)
        try:
            return under_way.result()
        except KeyboardInterrupt:
            while not under_way.done():
                con.interrupt()  # one that comes between two statements is forgotten
                wait([under_way], _AGAIN_SECONDS)
            raise


class InterruptibleRows:
    """The rows of a query that runs while they are read."""

    def __init__(self, con: Any, reader: pa.RecordBatchReader) -> None:
        self._con = con
        self._reader = reader
        self.schema: pa.Schema = reader.schema

    def read_next_batch(self) -> pa.RecordBatch:
        """Give the next rows."""
        return interruptible(self._con, self._reader.read_next_batch)
