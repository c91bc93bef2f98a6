"""Chunk coordinates as sortable bytes: whole columns at a time, both ways.

A coordinate is written as one variable-length integer (RFC 9000, section 16) per dimension, each in its shortest
form: 1, 2, 4 or 8 bytes, big endian, the top two bits saying which. Shortest form makes the order of the bytes the
order of the tuples, and a fixed leading index a prefix. ``()`` is ``b""``.

A coordinate itself says how many indices it has, so columns that hold chunks of many arrays, such as those of a
log, become lists of indices (``decode_lists``). Where the rank is known, ``decode`` is faster and stricter.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided

from icechunk_arrow.core.columns import (
    binary_from_numpy,
    bitmap,
    from_numpy,
    offsets_and_data,
    offsets_of,
    validity,
)
from icechunk_arrow.errors import CorruptFileError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]

__all__ = [
    "INDEX_LIST",
    "MAX_INDEX",
    "as_words",
    "decode",
    "decode_lists",
    "decode_one",
    "encode",
    "encode_one",
]

MAX_INDEX = 2**62 - 1
_FORMS = ((1, 0), (2, 1 << 14), (4, 2 << 30), (8, 3 << 62))
"""Bytes of the four forms, and what their top two bits say."""
_LIMITS = (1 << 6, 1 << 14, 1 << 30)
"""Where the next longer form begins."""
_SMALL = tuple(bytes([value]) for value in range(64))
_WORD = 8
_BLOCK_ROWS = 1 << 15
"""So many rows are worked on at once that what lies between two steps stays in the processor's cache."""
_MASKS = (np.arange(_WORD) < np.arange(_WORD + 1)[:, None]).view(np.uint64)[:, 0]
"""By size: which bytes of a word are kept, first ones first."""
INDEX_LIST = pa.list_(pa.int64())
"""Type of a chunk's place along each dimension."""


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


def encode(indices: npt.NDArray[np.uint64]) -> pa.Array:
    """Encode an ``n × dimensions`` array of indices as a binary column.

    Raises
    ------
    InvalidInputError
        An index is 2**62 or more.
    """
    count, ndim = indices.shape
    lengths = np.zeros(count, np.uint16)
    if not count or not ndim:
        return binary_from_numpy(offsets_of(lengths), b"", pa.binary())
    parts = []
    for start in range(0, count, _BLOCK_ROWS):
        block = np.ascontiguousarray(indices[start : start + _BLOCK_ROWS].T, np.uint64)
        data, sizes = _encode_block(block)
        lengths[start : start + _BLOCK_ROWS] = sizes
        parts.append(data)
    return binary_from_numpy(offsets_of(lengths), np.concatenate(parts), pa.binary())


def _encode_block(columns: Words) -> tuple[npt.NDArray[np.uint8], Any]:
    """Encode some rows: their bytes, and how many each takes (one number if all take the same)."""
    groups: list[
        tuple[Words, Any, int]
    ] = []  # dimensions that share a word: it, sizes, the largest
    for column in columns:
        word, size, largest = _words(column)
        if groups and groups[-1][2] + largest <= _WORD:
            before, before_size, before_largest = groups.pop()
            word = before << np.uint64(8) * size | word
            size, largest = before_size + size, before_largest + largest
        groups.append((word, size, largest))
    aligned = np.empty((columns.shape[1], len(groups)), np.uint64)
    wanted = np.empty_like(aligned)
    for place, (word, size, _) in enumerate(groups):
        aligned[:, place] = word << np.uint64(8) * (np.uint64(_WORD) - size)
        wanted[:, place] = _MASKS[size]
    every = aligned.byteswap(inplace=True).reshape(-1).view(np.uint8)
    data = np.compress(wanted.reshape(-1).view(np.bool_), every)
    return data, sum(size for _, size, _ in groups)


def _words(column: Words) -> tuple[Words, Any, int]:
    """Tag the indices of one dimension; with the bytes that each takes, and the most that one takes.

    The bytes are one number where all take the same.
    """
    low, high = int(column.min()), int(column.max())
    if high > MAX_INDEX:
        raise InvalidInputError(f"chunk index {high} is too large: at most {MAX_INDEX}")
    first = sum(low >= limit for limit in _LIMITS)
    last = sum(high >= limit for limit in _LIMITS)
    size: Any = np.uint64(_FORMS[first][0])
    word = column | np.uint64(_FORMS[first][1])
    for form in range(first + 1, last + 1):
        longer = column >= np.uint64(_LIMITS[form - 1])
        size = np.where(longer, np.uint64(_FORMS[form][0]), size)
        word = np.where(longer, column | np.uint64(_FORMS[form][1]), word)
    return word, size, _FORMS[last][0]


def as_words(coords: pa.Array) -> Words | None:
    """Give each coordinate as a number, in the same order among those of one rank; None if one is too long."""
    offsets, data = offsets_and_data(coords)
    lengths = np.diff(offsets)
    if int(lengths.max(initial=0)) > _WORD:
        return None
    words = np.empty(len(coords), np.uint64)
    for start in range(0, len(words), _BLOCK_ROWS):
        ends = offsets[start : start + _BLOCK_ROWS + 1]
        block = _words_at(ends, data, 1)[ends[:-1] - ends[0]].byteswap(inplace=True)
        spare = np.uint64(8) * (_WORD - lengths[start : start + _BLOCK_ROWS]).astype(np.uint64)
        words[start : start + _BLOCK_ROWS] = (block >> spare) << spare
    return words


def decode(coords: pa.Array, ndim: int) -> npt.NDArray[np.uint64]:
    """Decode a binary column into an ``n × ndim`` array of indices, one dimension after the other in memory.

    Raises
    ------
    CorruptFileError
        A value is not ``ndim`` integers in shortest form.
    """
    offsets, data = offsets_and_data(coords)
    indices = np.empty((ndim, len(offsets) - 1), np.uint64).T
    for start in range(0, len(indices), _BLOCK_ROWS):
        ends = offsets[start : start + _BLOCK_ROWS + 1]
        _decode_block(ends, data, indices[start : start + _BLOCK_ROWS])
    return indices


def _words_at(
    offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8], words: int
) -> npt.NDArray[np.uint64]:
    """View the bytes of some rows as the big-endian words that begin at each of them.

    A word may lead over the end; so does the place of a word, by as many as ``words``, where lengths are wrong.
    """
    low, high = int(offsets[0]), int(offsets[-1])
    padded = np.zeros(high - low + _WORD * (words + 1), np.uint8)
    padded[: high - low] = data[low:high]
    return as_strided(padded[:_WORD].view(np.uint64), (len(padded) - _WORD + 1,), (1,))


def _decode_block(
    offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8], into: npt.NDArray[np.uint64]
) -> None:
    """Decode some rows, dimension by dimension, from words that begin with the next index.

    Why that is right: ``word`` holds, from its top bit on, the bytes that begin with the next index of each
    row. The top two bits are its form; shifted out to the left and then down to its own width, what remains
    is the index, whatever follows it in the word. Where a whole coordinate fits one word, shifting by that
    width brings the next index to the top; else the next word is fetched from where the index ended. Bytes
    behind a row are those of the next one: they are cut off by the width of the index, and if a row is too
    short, or too long, the bytes used are not as many as it has. An index in too long a form is told by its
    upper bits, which are then zero.
    """
    ndim = into.shape[1]
    words = _words_at(offsets, data, ndim)
    start = offsets[:-1].astype(np.int64) - int(offsets[0])
    lengths = np.diff(offsets).astype(np.uint64)
    one_word = int(lengths.max()) <= _WORD
    used: Any = np.uint64(0)
    word = words[start].byteswap(inplace=True)
    for d in range(ndim):
        tag = word >> np.uint64(62)
        low, high = tag.min(), tag.max()
        bits: Any = np.uint64(8) << (tag if low != high else low)
        value = (word << np.uint64(2)) >> (np.uint64(66) - bits)
        if high:
            needless = value >> (bits // np.uint64(2) - np.uint64(2)) == 0
            if bool((needless & (tag != 0)).any()):
                _refuse(offsets, data, ndim)
        into[:, d] = value
        used = used + (bits >> np.uint64(3))
        if one_word:
            word = word << bits
        elif d + 1 < ndim:
            word = words[start + used.astype(np.int64)].byteswap(inplace=True)
    if bool((lengths != used).any()):
        _refuse(offsets, data, ndim)


def _refuse(offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8], ndim: int) -> NoReturn:
    """Say what is wrong with the first bad one of some rows."""
    for start, stop in pairwise(offsets.tolist()):
        fault = _fault(data[start:stop].tobytes(), ndim)
        if fault is not None:
            raise CorruptFileError(f"a chunk coordinate {fault}")
    raise AssertionError("no coordinate is at fault")


def _fault(coord: bytes, ndim: int) -> str | None:
    position = 0
    for _ in range(ndim):
        if position >= len(coord):
            return f"has fewer than {ndim} indices"
        size = 1 << (coord[position] >> 6)
        index = coord[position : position + size]
        if len(index) < size:
            return "ends within an index"
        if encode_one(decode_one(index)) != index:
            return "is not in its shortest form"
        position += size
    return f"has more than {ndim} indices" if position != len(coord) else None


def decode_lists(coords: pa.Array) -> pa.Array:
    """Decode a binary column into lists of indices; null stays null.

    Raises
    ------
    CorruptFileError
        A value ends within an index, or has one that is not in its shortest form.
    """
    offsets, data = offsets_and_data(coords)
    valid = validity(coords)
    place = offsets[:-1].astype(np.int64)
    stop = np.where(valid, offsets[1:], offsets[:-1]).astype(np.int64)
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    rows, parts = [], []
    waiting = np.flatnonzero(place < stop)
    while len(waiting):
        at = place[waiting]
        size = np.int64(1) << (padded[at] >> 6).astype(np.int64)
        value = (padded[at] & 63).astype(np.int64)
        for byte in range(1, int(size.max())):
            longer = size > byte
            value[longer] = value[longer] << 8 | padded[at[longer] + byte]
        place[waiting] = at + size
        if (place[waiting] > stop[waiting]).any():
            raise CorruptFileError("a chunk coordinate ends within an index")
        needless = value >> (np.int64(4) * size - np.int64(2)) == 0
        if bool((needless & (size > 1)).any()):
            raise CorruptFileError("a chunk coordinate is not in its shortest form")
        rows.append(waiting)
        parts.append(value)
        waiting = waiting[place[waiting] < stop[waiting]]
    every = np.concatenate([np.empty(0, np.int64), *rows])
    order = np.argsort(every, kind="stable")
    values = np.concatenate([np.empty(0, np.int64), *parts])[order]
    lengths = np.bincount(every, minlength=len(coords))
    nulls = bitmap(valid)
    return pa.Array.from_buffers(
        INDEX_LIST,
        len(coords),
        [nulls, pa.py_buffer(offsets_of(lengths))],
        children=[from_numpy(values, pa.int64())],
    )
