"""Bytes of native chunks, each checked before it is given out.

Owns what of a chunk file is fetched so that a part of a chunk can be checked, and the sums of blocks that are kept
for it. A part is one request: the sums stand behind the chunk, where the index of a shard is fetched anyway, and
come with that. Where no reader has asked for the end of a large chunk yet, its first part takes one more.

Which ranges of one file are fetched with one request is a pure decision (``plan_ranges``), measured where requests
are slow: an object store answers after some 25 ms, and then sends 50 to 100 MB a second on one connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from icechunk_arrow.core.checksums import (
    BLOCK_BYTES,
    block_sums,
    crc32c,
    size_of_sums,
)
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats.layout import chunk_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icechunk_arrow.core.checksums import Sums
    from icechunk_arrow.core.chunks import ChunkRef
    from icechunk_arrow.engine.files import Files

__all__ = ["MAX_GAP_BYTES", "MAX_JOINED_BYTES", "ChunkBytes", "Group", "Part", "plan_ranges"]

MAX_GAP_BYTES = 256 << 10
"""Bytes that no caller asked for, between two that one did: they take a fifth of a request's wait."""
MAX_JOINED_BYTES = 4 << 20
"""Beyond this the bytes take longer than the wait, and two connections bring them sooner than one."""


class Group(Struct, frozen=True, kw_only=True):
    """One range to fetch, and the numbers of the requests that lie in it."""

    start: int
    length: int
    members: tuple[int, ...]


def plan_ranges(
    requests: Sequence[tuple[int, int]],
    *,
    max_gap_bytes: int = MAX_GAP_BYTES,
    max_size_bytes: int = MAX_JOINED_BYTES,
) -> list[Group]:
    """Join ranges of one file, each given as start and length, where little lies between them.

    A range that is larger than a joined one may be stays by itself.
    """
    groups: list[Group] = []
    members: list[int] = []
    start = stop = 0
    for number in sorted(range(len(requests)), key=requests.__getitem__):
        first, length = requests[number]
        last = max(stop, first + length)
        if members and (first - stop > max_gap_bytes or last - start > max_size_bytes):
            groups.append(Group(start=start, length=stop - start, members=tuple(members)))
            members = []
        if not members:
            start, last = first, first + length
        members.append(number)
        stop = last
    if members:
        groups.append(Group(start=start, length=stop - start, members=tuple(members)))
    return groups


class Part(NamedTuple):
    """A part of a chunk that a caller wants, and what is fetched for it, counted from the chunk's first byte."""

    ref: ChunkRef
    start: int
    stop: int
    first: int
    last: int
    """Behind the chunk's end where its sums come along."""
    files: Files
    sums: Sums | None = None
    """Of the blocks that are fetched, where they are known."""

    @property
    def range(self) -> tuple[int, int]:
        """What of the file is fetched: start and length."""
        return self.ref.offset + self.first, self.last - self.first

    def checked(self, data: bytes | memoryview) -> bytes | memoryview:
        """Give what is wanted of what was fetched, or raise."""
        ref = self.ref
        if len(data) != self.last - self.first:
            raise _cut(ref)
        if ref.crc32c is None or self.start == self.stop:
            return data
        if (self.first, self.last) == (0, ref.length):
            if crc32c(data) != ref.crc32c:
                raise _damaged(ref)
            return data if self.stop - self.start == ref.length else data[self.start : self.stop]
        view = memoryview(data)
        sums = self.sums
        if sums is None:
            end = ref.length - self.first
            known = _keep_sums(self.files, ref, view[end:])
            sums, view = known[self.first // BLOCK_BYTES :], view[:end]
        if not np.array_equal(block_sums(view), sums):
            raise _damaged(ref)
        return view[self.start - self.first : self.stop - self.first]


class ChunkBytes:
    """Reads of a repository's chunk files."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self, ref: ChunkRef, start: int, stop: int) -> bytes | memoryview:
        """Read a part of a native chunk."""
        length = ref.length
        if stop - start == length:  # nearly always; what is wrong with it is told below
            data = self._read(ref, 0, length)
            if len(data) == length and (ref.crc32c is None or crc32c(data) == ref.crc32c):
                return data
        part = self.part(ref, start, stop)
        return part.checked(self._read(ref, part.first, part.last))

    def part(self, ref: ChunkRef, start: int, stop: int) -> Part:
        """Say what must be fetched; the sums of a large chunk are, if they neither are known nor stand near."""
        first, last = start, stop
        sums = None
        if ref.crc32c is not None and start < stop:
            first, last = 0, ref.length
            if ref.sums_crc32c is not None and (start, stop) != (0, ref.length):
                first = start // BLOCK_BYTES * BLOCK_BYTES
                last = min(-(-stop // BLOCK_BYTES) * BLOCK_BYTES, ref.length)
                known = self._files.cache.find(_key(ref))
                if known is None and ref.length - last > MAX_GAP_BYTES:
                    known = self._fetch_sums(ref)
                if known is None:
                    last = ref.length + size_of_sums(ref.length)
                elif (first, last) != (0, ref.length):
                    sums = known[first // BLOCK_BYTES : -(-last // BLOCK_BYTES)]
        return Part(
            ref=ref, start=start, stop=stop, first=first, last=last, files=self._files, sums=sums
        )

    def _fetch_sums(self, ref: ChunkRef) -> Sums:
        stop = ref.length + size_of_sums(ref.length)
        return _keep_sums(self._files, ref, memoryview(self._read(ref, ref.length, stop)))

    def _read(self, ref: ChunkRef, first: int, last: int) -> bytes:
        assert ref.file is not None
        return self._files.read_range(chunk_key(ref.file), ref.offset + first, last - first)


def _key(ref: ChunkRef) -> tuple[str, str | None, int, int, int | None]:
    return "b", ref.file, ref.offset, ref.length, ref.sums_crc32c


def _keep_sums(files: Files, ref: ChunkRef, data: memoryview) -> Sums:
    """Check the sums of a chunk's blocks, and keep them for the next reader of a part of it."""
    if len(data) != size_of_sums(ref.length):
        raise _cut(ref)
    if crc32c(data) != ref.sums_crc32c:
        raise _damaged(ref, "has sums of blocks that do not match their checksum")
    sums = np.frombuffer(bytes(data), "<u4")
    known: Sums = files.cache.get(_key(ref), lambda: (sums, sums.nbytes + 300))
    return known


def _cut(ref: ChunkRef) -> CorruptFileError:
    key = f"c/{ref.file}"
    return CorruptFileError(
        f"{key} is cut: a chunk of {ref.length} bytes should begin at {ref.offset}", key=key
    )


def _damaged(ref: ChunkRef, fact: str = "does not match its checksum") -> CorruptFileError:
    key = f"c/{ref.file}"
    return CorruptFileError(
        f"{key} is damaged: the chunk of {ref.length} bytes at {ref.offset} {fact}. Restore the "
        f"file from a copy, or open an earlier snapshot.",
        key=key,
    )
