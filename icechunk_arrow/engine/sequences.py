"""The newest file of a sequence: files whose names count up without gaps.

Specification: schemas/README.md#references

Where a listing stops at a limit, one listing tells. Elsewhere numbers are asked for, in steps that double, and
side by side where an answer takes a while.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats.layout import parse_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icechunk_arrow.storage.port import Storage


__all__ = ["FileSequence", "all_together", "together"]

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


class FileSequence(Struct, frozen=True, kw_only=True):
    """A sequence of files in a folder."""

    storage: Storage
    folder: str
    key_of: Callable[[int], str]

    def newest(self, *, seen: int | None, hint: Callable[[], int | None]) -> int | None:
        """Find the number of the newest file; None where there is none.

        ``seen`` is a number that was there; the ``hint`` is asked for where that helps, and may be wrong.
        """
        if seen is not None:
            number = self._gallop(seen)
            if number is None:
                raise self._missing(seen)
            return number
        if self.storage.capabilities.limited_listing:
            for info in self.storage.list(self.folder, limit=1):
                parsed = parse_key(info.key)
                if parsed is not None and parsed.sequence is not None:
                    return parsed.sequence
                break
            else:
                return None
        hinted = hint()
        number = None if hinted is None else self._gallop(hinted)
        return self.asked() if number is None else number

    def asked(self) -> int | None:
        """Find it without a listing or a hint, which may be old."""
        return self._gallop(-1)

    def _there(self, *numbers: int) -> list[bool]:
        """Whether files of some numbers are there, asked for at once where that is slow."""
        questions = [
            lambda number=each: self.storage.exists(self.key_of(number)) for each in numbers
        ]
        return all_together(self.storage, questions)

    def _gallop(self, low: int) -> int | None:
        """Double the step until there is no file, then halve: sequences have no gaps.

        It begins at a file that should be there (-1 is always), and gives None where that is not. A gap behind the
        file found would hide what comes after it, so one more is asked for.
        """
        *first, after, behind = self._there(*([low] if low >= 0 else []), low + 1, low + 2)
        if not all(first):
            return None
        if not after and not behind:
            return low if low >= 0 else None
        if after:
            low = low + 2 if behind else low + 1
        step = 1
        while all(self._there(low + step)):
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if all(self._there(middle)) else (low, middle)
        if all(self._there(low + 2)):
            if all(self._there(low + 1)):  # another writer is committing just now
                return self._gallop(low + 1)
            raise self._missing(low + 1)
        return low if low >= 0 else None

    def _missing(self, number: int) -> CorruptFileError:
        key = self.key_of(number)
        return CorruptFileError(
            f"{key} is missing, although there was a later entry, or this one. Restore it from a copy.",
            key=key,
        )
