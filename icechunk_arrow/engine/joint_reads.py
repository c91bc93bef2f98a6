"""Reads that are asked for at the same time: neighbours in one file are fetched with one request.

Owns the order of things: all chunks are looked up side by side, then their ranges are joined and
fetched side by side. One that is slow to be found, one that fails and one that no caller waits for any more
do not touch the others. What is joined is decided by :mod:`icechunk_arrow.engine.chunk_bytes`.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.engine.chunk_bytes import Group, plan_ranges
from icechunk_arrow.errors import CorruptFileError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_arrow.engine.chunk_bytes import Part
    from icechunk_arrow.engine.keyspace import Found

__all__ = ["PATIENCE_SECONDS", "JointReads"]

PATIENCE_SECONDS = 0.005
"""So long a chunk that is found waits for others that are still looked up."""

FileVersion = tuple[str, str | None, int | None]
"""A file, and the ETag or time that it must still have: only reads that agree in all are joined."""
Answer = Future[bytes | memoryview | None]


class _Wanted(Struct, frozen=True, eq=False):
    """A part of a chunk that was found, and the answer that waits for it."""

    ref: ChunkRef
    start: int
    stop: int
    part: Part | None
    answer: Answer

    @property
    def range(self) -> tuple[int, int]:
        """What of the file is needed: as much as can be checked."""
        if self.part is not None:
            return self.part.range
        return self.ref.offset + self.start, self.stop - self.start

    def cut(self, data: memoryview, at: int) -> bytes | None:
        """Take this part out of a joined range that begins at a byte of the file; None if it is not right."""
        first, length = self.range
        piece = data[first - at : first - at + length]
        if len(piece) != length:
            return None
        try:
            return bytes(piece if self.part is None else self.part.checked(piece))
        except CorruptFileError:
            return None


class JointReads:
    """Reads that are asked for at the same time, each a lookup and then a range.

    Parameters
    ----------
    read
        Reads a part of a chunk that was found.
    part
        Says what of a file is fetched for such a part, to be checked; None where it is not checked.
    submit
        Has a function run in another thread.
    later
        Has a function called after so many seconds.
    """

    def __init__(
        self,
        read: Callable[[bytes | ChunkRef, int, int], bytes | memoryview],
        part: Callable[[ChunkRef, int, int], Part | None],
        submit: Callable[..., Any],
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._read = read
        self._part = part
        self._submit = submit
        self._later = later
        self._lock = threading.Lock()
        self._asked: list[
            tuple[Callable[[], Found | None], Callable[[int], tuple[int, int]], Answer]
        ] = []
        self._looking = 0
        self._found: dict[FileVersion, list[_Wanted]] = {}

    def ask(
        self, look: Callable[[], Found | None], bounds: Callable[[int], tuple[int, int]]
    ) -> Answer:
        """Ask for a part of what ``look`` will find; None where it finds nothing."""
        answer: Answer = Future()
        self._asked.append((look, bounds, answer))
        return answer

    def start(self) -> None:
        """Begin: nothing more is asked for."""
        self._looking = len(self._asked)
        for look, bounds, answer in self._asked:
            if not self._go(self._look, look, bounds, answer, waiting=[answer]):
                self._looked_up(None)

    def _go(self, function: Callable[..., None], *args: Any, waiting: list[Answer]) -> bool:
        try:
            self._submit(function, *args)
        except RuntimeError:  # no more work is taken
            for answer in waiting:
                _fail(answer, StorageError("the store was closed while it was read"))
            return False
        return True

    def _look(
        self,
        look: Callable[[], Found | None],
        bounds: Callable[[int], tuple[int, int]],
        answer: Answer,
    ) -> None:
        wanted = None
        try:
            if not answer.cancelled():
                wanted = self._look_up(look, bounds, answer)
        except BaseException as error:  # noqa: BLE001 -- the caller that waits is told
            _fail(answer, error)
        self._looked_up(wanted)

    def _looked_up(self, wanted: _Wanted | None) -> None:
        with self._lock:
            self._looking -= 1
            is_last = self._looking == 0
            is_first = wanted is not None and not self._found
            if wanted is not None:
                ref = wanted.ref
                assert ref.file is not None
                source = (ref.file, ref.etag, ref.last_modified)
                self._found.setdefault(source, []).append(wanted)
        if is_last:
            self._fetch_found()
        elif is_first:
            self._later(PATIENCE_SECONDS, self._fetch_found)

    def _look_up(
        self,
        look: Callable[[], Found | None],
        bounds: Callable[[int], tuple[int, int]],
        answer: Answer,
    ) -> _Wanted | None:
        """Look a chunk up; give what of it must be fetched, if anything."""
        found = look()
        if found is None:
            _give(answer, None)
            return None
        content, size_bytes = found
        start, stop = bounds(size_bytes)
        if isinstance(content, bytes) or content.inline is not None or start >= stop:
            _give(answer, self._read(content, start, stop))
            return None
        return _Wanted(content, start, stop, self._part(content, start, stop), answer)

    def _fetch_found(self) -> None:
        with self._lock:
            by_file, self._found = self._found, {}
        for each in by_file.values():
            wanted = [one for one in each if not one.answer.cancelled()]
            for group in plan_ranges([one.range for one in wanted]):
                members = [wanted[number] for number in group.members]
                self._go(self._fetch, group, members, waiting=[one.answer for one in members])

    def _fetch(self, group: Group, members: list[_Wanted]) -> None:
        if len(members) > 1:
            members = self._fetch_joined(group, members)
        for one in members[1:]:  # not joined after all: side by side
            self._go(self._fetch, group, [one], waiting=[one.answer])
        for one in members[:1]:
            try:
                _give(one.answer, self._read(one.ref, one.start, one.stop))
            except BaseException as error:  # noqa: BLE001 -- the caller that waits is told
                _fail(one.answer, error)

    def _fetch_joined(self, group: Group, members: list[_Wanted]) -> list[_Wanted]:
        """Fetch a range for all; give those that must be read by themselves, to learn their own truth."""
        first = members[0].ref
        whole = ChunkRef(
            file=first.file,
            offset=group.start,
            length=group.length,
            etag=first.etag,
            last_modified=first.last_modified,
        )
        try:
            data = memoryview(self._read(whole, 0, group.length))
        except Exception:  # noqa: BLE001 -- each is asked for alone, and says what is wrong with it
            return members
        left = []
        for one in members:
            part = one.cut(data, group.start)
            if part is None:
                left.append(one)
            else:
                _give(one.answer, part)
        return left


def _give(answer: Answer, value: bytes | memoryview | None) -> None:
    if answer.set_running_or_notify_cancel():
        answer.set_result(value)


def _fail(answer: Answer, error: BaseException) -> None:
    if not answer.done() and answer.set_running_or_notify_cancel():
        answer.set_exception(error)
