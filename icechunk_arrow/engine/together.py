"""Two questions at once, where an answer takes a while: object stores, not memory and local disks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icechunk_arrow.storage.port import Storage

__all__ = ["all_together", "together"]

A = TypeVar("A")
B = TypeVar("B")


def together(storage: Storage, first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """Ask a storage two things, the second without waiting for the first where that is slow.

    Of two failures the first's is raised.
    """
    if storage.capabilities.fast:
        return first(), second()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second)
        answer = first()
        return answer, waiting.result()


def all_together(storage: Storage, questions: Sequence[Callable[[], A]]) -> list[A]:
    """Ask a storage some things, none of which waits for another where that is slow; in their order."""
    if storage.capabilities.fast or len(questions) < 2:
        return [ask() for ask in questions]
    with ThreadPoolExecutor(len(questions) - 1) as pool:
        waiting = [pool.submit(ask) for ask in questions[1:]]
        return [questions[0](), *(each.result() for each in waiting)]
