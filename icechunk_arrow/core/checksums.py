"""Checksums of chunks: CRC-32C of a whole, and of the blocks that a large one is read by.

Specification: schemas/README.md#chunk-manifest

Owns how blocks are cut and how their sums stand in a chunk file; knows no files.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import fastcrc
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Data = bytes | bytearray | memoryview
    Sums = npt.NDArray[np.uint32]

__all__ = [
    "BLOCK_BYTES",
    "SUM_BYTES",
    "WHOLE_BYTES",
    "Tally",
    "block_sums",
    "crc32c",
    "of_whole",
    "size_of_sums",
]

BLOCK_BYTES = 1 << 16
"""So many bytes have a sum of their own; fixed for all versions of the format."""
WHOLE_BYTES = 1 << 20
"""Chunks of up to so many bytes are read and checked whole: they need no sums of blocks."""
SUM_BYTES = 4
"""A sum stands behind a chunk as a little-endian number of so many bytes."""
_STORED = np.dtype("<u4")
_PIECE_BYTES = 1 << 18
"""So many bytes stay near the processor until they are written."""

crc32c = fastcrc.crc32.iscsi
"""CRC-32C of bytes. Measured: 60 GiB/s from memory near the processor, and other threads run meanwhile."""


def size_of_sums(size_bytes: int) -> int:
    """How many bytes the sums of the blocks of a chunk take."""
    return -(-size_bytes // BLOCK_BYTES) * SUM_BYTES


def block_sums(data: Data) -> Sums:
    """Give the CRC-32C of each block; the last one may be shorter."""
    view = memoryview(data)
    starts = range(0, len(view), BLOCK_BYTES)
    sums = (crc32c(view[start : start + BLOCK_BYTES]) for start in starts)
    return np.fromiter(sums, _STORED, len(starts))


def of_whole(sums: Sums, size_bytes: int) -> int:
    """Put the CRC-32C of a whole together from those of its blocks: its bytes are not gone through again."""
    if not len(sums):
        return 0
    *blocks, last = sums.tolist()
    first, second, third, fourth = _tables_of_block()
    crc = 0
    for each in blocks:
        crc = (
            first[crc & 255]
            ^ second[crc >> 8 & 255]
            ^ third[crc >> 16 & 255]
            ^ fourth[crc >> 24]
            ^ each
        )
    return _behind(crc, size_bytes - len(blocks) * BLOCK_BYTES) ^ int(last)


class Tally:
    """A large chunk and the sums of its blocks behind it, in pieces that are summed as they are given out.

    A caller that writes a piece at once finds its bytes near the processor: memory is gone through once. Measured
    on chunks of 16 MiB that go into the page cache: 1.02 to 1.08 times writing alone, where summing first takes
    1.23.
    """

    crc: int
    """Of the chunk, once all pieces were given out."""
    crc_of_sums: int

    def __init__(self, data: Data) -> None:
        self._data = memoryview(data)

    def __iter__(self) -> Iterator[memoryview | bytes]:
        piece_sums = []
        for start in range(0, len(self._data), _PIECE_BYTES):
            piece = self._data[start : start + _PIECE_BYTES]
            piece_sums.append(block_sums(piece))
            yield piece
        sums = np.concatenate([np.empty(0, _STORED), *piece_sums])
        stored = sums.tobytes()
        self.crc, self.crc_of_sums = of_whole(sums, len(self._data)), crc32c(stored)
        yield stored


def _behind(found: int, size_bytes: int) -> int:
    """What becomes of a sum when so many zero bytes follow: it is linear in the bits of the sum."""
    for power in range(size_bytes.bit_length()):
        if size_bytes >> power & 1:
            found = _times(_zeros(power), found)
    return found


Matrix = tuple[int, ...]
"""For each bit of a sum what it becomes."""


@cache
def _zeros(power: int) -> Matrix:
    """What ``2 ** power`` zero bytes make of a sum."""
    if power:
        half = _zeros(power - 1)
        return tuple(_times(half, column) for column in half)
    matrix = tuple(0x82F63B78 if bit == 0 else 1 << (bit - 1) for bit in range(32))
    for _ in range(3):  # of one bit two, then four, then the eight of a byte
        matrix = tuple(_times(matrix, column) for column in matrix)
    return matrix


def _times(matrix: Matrix, vector: int) -> int:
    product = 0
    for column in matrix:
        if vector & 1:
            product ^= column
        vector >>= 1
    return product


@cache
def _tables_of_block() -> list[tuple[int, ...]]:
    """What a block of zeros makes of a sum, by the values of its four bytes."""
    matrix = [_behind(1 << bit, BLOCK_BYTES) for bit in range(32)]
    tables = []
    for place in range(0, 32, 8):
        table = [0]
        for column in matrix[place : place + 8]:
            table += [value ^ column for value in table]
        tables.append(tuple(table))
    return tables
