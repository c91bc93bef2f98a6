"""Work elsewhere: an executor does the same with many parts, each anywhere, and brings back what is small.

Owns the interface, how work is cut, and what happens to what tasks write into a session. Spark's executor stands in
``ingest.spark``; that of this process is here.
"""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import indices
from icechunk_arrow.storage.secrets import Entrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from icechunk_arrow.session import ForkSession, Session

P = TypeVar("P")
R = TypeVar("R")

_MOST_PARTS = 10_000
_LEAST_PARTS = 24
"""How many cores there are is not asked: Spark Connect does not say."""
_ITEMS_PER_PART = 16


class Executor(Protocol):
    """Does work with parts of something, in this process or in others."""

    def map(self, function: Callable[[P], R], parts: Sequence[P]) -> Iterator[tuple[P, R]]:
        """Give each part with the value that a function has for it, in any order.

        Function, parts and values pickle, and values are small. A part may be worked on twice; of its values one is
        given, so that what the other attempt wrote, under ids of its own, counts for nothing.
        """

    def watched(
        self, description: str, report: Callable[[float], None] | None
    ) -> AbstractContextManager[None]:
        """Describe the work of a block, and say now and then which share of it is done."""

    def check_reachable(self, session: Session) -> None:
        """Refuse a session into which its tasks could not write."""


class Threads:
    """Works in this process, with some parts at a time: what is not worth a job, and tests.

    Parameters
    ----------
    count
        So many parts at a time.
    """

    def __init__(self, count: int = 4) -> None:
        self._count = count
        self._report: Callable[[float], None] | None = None

    def map(self, function: Callable[[P], R], parts: Sequence[P]) -> Iterator[tuple[P, R]]:
        """As :meth:`Executor.map`."""
        with ThreadPoolExecutor(self._count) as pool:
            under_way = {pool.submit(function, part): part for part in parts}
            try:
                for count, done in enumerate(as_completed(under_way), 1):
                    yield under_way[done], done.result()
                    if self._report is not None:
                        self._report(count / len(parts))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def watched(
        self,
        description: str,  # noqa: ARG002 -- threads have no pages
        report: Callable[[float], None] | None,
    ) -> Iterator[None]:
        """As :meth:`Executor.watched`."""
        self._report = report
        try:
            yield
        finally:
            self._report = None

    def check_reachable(self, session: Session) -> None:
        """Do nothing: what this process can reach, its threads can."""


def part_count(items: int) -> int:
    """Cut work so that all cores have some, and a part that fails is not much."""
    return max(1, min(items, max(_LEAST_PARTS, items // _ITEMS_PER_PART), _MOST_PARTS))


def cut(items: Any) -> list[Any]:
    """Cut a sequence, or the rows of a table, into parts of neighbours."""
    total = len(items)
    count = part_count(total)
    edges = [-(-number * total // count) for number in range(count + 1)]
    if isinstance(items, pa.Table):  # taken, as a slice pickles with all of the table
        return [items.take(indices(np.arange(*edge))) for edge in pairwise(edges) if total]
    return [items[start:stop] for start, stop in pairwise(edges) if total]


@dataclass(frozen=True, slots=True)
class _InFork:
    """Works on a part with a fork of a session, and brings back what that wrote."""

    fork: Entrusted[ForkSession]
    work: Callable[[ForkSession, Any], None]

    def __call__(self, part: Any) -> Any:
        copied: Entrusted[ForkSession] = pickle.loads(pickle.dumps(self.fork))  # noqa: S301 - made here
        self.work(copied.value, part)
        return copied.value.finish()


def write_parts(
    executor: Executor,
    session: Session,
    work: Callable[[ForkSession, P], None],
    parts: Sequence[P],
) -> int:
    """Let parts be worked on, each with a fork; stage what all of them wrote, and tell how many chunks that is."""
    executor.check_reachable(session)
    written = [each for _, each in executor.map(_InFork(Entrusted(session.fork()), work), parts)]
    session.merge_written(written)
    return sum(each.chunk_count for each in written)
