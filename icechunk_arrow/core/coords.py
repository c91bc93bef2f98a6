"""Chunk coordinates as sortable bytes: whole columns at a time, both ways.

A coordinate is written as one variable-length integer (RFC 9000, section 16) per dimension, each in its
shortest form: 1, 2, 4 or 8 bytes, big endian, the top two bits saying which. Shortest form makes the
order of the bytes the order of the tuples, and a fixed leading index a prefix. ``()`` is ``b""``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import binary_from_numpy, offsets_and_data, offsets_of
from icechunk_arrow.errors import CorruptFileError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["MAX_INDEX", "decode", "decode_one", "encode", "encode_one"]

MAX_INDEX = 2**62 - 1
_CLASSES = ((1, 0, 6), (2, 1, 14), (4, 2, 30), (8, 3, 62))
"""Bytes, tag and payload bits of the four forms."""
_SMALL = tuple(bytes([value]) for value in range(64))


def encode_one(coord: Sequence[int]) -> bytes:
    """Encode one coordinate whose indices are known to be in range."""
    return b"".join([_integer(index) for index in coord])


def _integer(value: int) -> bytes:
    if value < 64:
        return _SMALL[value]
    if value < 1 << 14:
        return (value | 1 << 14).to_bytes(2, "big")
    if value < 1 << 30:
        return (value | 2 << 30).to_bytes(4, "big")
    return (value | 3 << 62).to_bytes(8, "big")


def decode_one(data: bytes) -> tuple[int, ...]:
    """Decode one coordinate that :func:`encode_one` wrote."""
    indices = []
    position = 0
    while position < len(data):
        size = 1 << (data[position] >> 6)
        number = int.from_bytes(data[position : position + size], "big")
        indices.append(number & (1 << 8 * size - 2) - 1)
        position += size
    return tuple(indices)


def _sizes(column: npt.NDArray[np.uint64]) -> npt.NDArray[np.int8]:
    sizes = np.ones(len(column), np.int8)
    for size, _, bits in _CLASSES[:-1]:
        sizes[column >= np.uint64(1 << bits)] = 2 * size
    return sizes


def encode(indices: npt.NDArray[np.uint64]) -> pa.Array:
    """Encode an ``n × dimensions`` array of indices as a binary column.

    Raises
    ------
    InvalidInputError
        An index is 2**62 or more.
    """
    count, ndim = indices.shape
    if ndim == 0:
        return binary_from_numpy(np.zeros(count + 1, np.int32), b"", pa.binary())
    if count and int(indices.max()) > MAX_INDEX:
        raise InvalidInputError(f"chunk index {indices.max()} is too large: at most {MAX_INDEX}")
    columns = [np.ascontiguousarray(indices[:, d], np.uint64) for d in range(ndim)]
    sizes = [_sizes(column) for column in columns]
    if count and all(int(size[0]) == int(size.min()) == int(size.max()) for size in sizes):
        return _encode_uniform(columns, [int(size[0]) for size in sizes])
    total = np.zeros(count, np.int64)
    for size in sizes:
        total += size
    offsets = offsets_of(total)
    data = np.empty(int(offsets[-1]), np.uint8)
    start = offsets[:-1].astype(np.int64)
    for column, size in zip(columns, sizes, strict=True):
        for width, tag, bits in _CLASSES:
            rows = np.flatnonzero(size == width)
            if len(rows):
                words = (column[rows] | np.uint64(tag << bits)).astype(f">u{width}")
                into = start[rows]
                for byte, values in enumerate(words.view(np.uint8).reshape(-1, width).T):
                    data[into + byte] = values
        start += size
    return binary_from_numpy(offsets, data, pa.binary())


def _encode_uniform(columns: list[npt.NDArray[np.uint64]], widths: list[int]) -> pa.Array:
    """Encode where every row has the same widths: a plain matrix of bytes."""
    count, total = len(columns[0]), sum(widths)
    data = np.empty((count, total), np.uint8)
    position = 0
    for column, width in zip(columns, widths, strict=True):
        tag, bits = next((tag, bits) for size, tag, bits in _CLASSES if size == width)
        words = (column | np.uint64(tag << bits)).astype(f">u{width}")
        data[:, position : position + width] = words.view(np.uint8).reshape(count, width)
        position += width
    offsets = offsets_of(np.full(count, total, np.int64))
    return binary_from_numpy(offsets, data.reshape(-1), pa.binary())


def decode(coords: pa.Array, ndim: int) -> npt.NDArray[np.uint64]:
    """Decode a binary column into an ``n × ndim`` array of indices.

    Raises
    ------
    CorruptFileError
        A value is not ``ndim`` integers in shortest form.
    """
    offsets, data = offsets_and_data(coords)
    start, stop = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    indices = np.zeros((len(start), ndim), np.uint64)
    for d in range(ndim):
        if bool((start >= stop).any()):
            raise CorruptFileError(f"a chunk coordinate has fewer than {ndim} indices")
        tags = data[start] >> 6
        after = start + (1 << tags.astype(np.int64))
        if bool((after > stop).any()):
            raise CorruptFileError("a chunk coordinate ends within an index")
        for width, tag, bits in _CLASSES:
            rows = np.flatnonzero(tags == tag) if width > 1 else np.flatnonzero(tags == 0)
            if not len(rows):
                continue
            value = data[start[rows]].astype(np.uint64) & np.uint64(63)
            for byte in range(1, width):
                value = value << np.uint64(8) | data[start[rows] + byte]
            if width > 1 and bool((value < np.uint64(1 << (bits + 2) // 2 - 2)).any()):
                raise CorruptFileError("a chunk coordinate is not in its shortest form")
            indices[rows, d] = value
        start = after
    if bool((start != stop).any()):
        raise CorruptFileError(f"a chunk coordinate has more than {ndim} indices")
    return indices
