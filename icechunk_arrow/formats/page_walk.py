"""What decoding a column will take in memory, found out before anything is decoded.

A Parquet file says large things in few bytes: a run of a million equal values, a page that unpacks to gigabytes, a
list without end, a string of a megabyte that a dictionary repeats. What a footer says of all this may be made up.
So the headers of a column's pages are read here, each against what the footer promised, and give an upper bound.

Knows Parquet's page headers (Thrift's compact protocol); knows nothing of our files, and decodes no page.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from icechunk_arrow.core.columns import to_numpy, validity

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ColumnCost",
    "UnsoundParquetError",
    "column_cost",
    "count_structs",
    "delta_text_bytes",
    "longest_entry",
]

_NUMBER = rb"\x15([\x80-\xff]{0,4}[\x00-\x7f])"
_SMALL = rb"\x15([\x00\x02\x04\x06\x08\x0a\x0c\x0e\x10\x12])"
_USUAL_HEADER = re.compile(
    rb"\x15([\x00\x04])" + _NUMBER + _NUMBER + rb"(?:\x15[\x80-\xff]{0,4}[\x00-\x7f])?"
    rb"(?:[\x1c\x2c]" + _NUMBER + _SMALL + rb"\x15[\x00-\x7f]\x15[\x00-\x7f](?:\x1c\x00)?\x00"
    rb"|[\x3c\x4c]" + _NUMBER + rb"\x15[\x00-\x7f](?:[\x11\x12]|)\x00)\x00",
    re.DOTALL,
)  # fmt: skip
"""Headers as Arrow writes them: data pages of the first version, and dictionaries, without statistics."""
_PARQUET_MAGIC = b"PAR1"
_DATA, _INDEX, _DICTIONARY, _DATA_2 = range(4)
_PLAIN, _PLAIN_DICTIONARY, _DELTA_BYTE_ARRAY, _RLE_DICTIONARY = 0, 2, 7, 8
_CODED = (_PLAIN_DICTIONARY, _RLE_DICTIONARY)
_OFFSET = 5
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": _OFFSET}
"""What a value takes, of a binary one its offset."""
_MOST_ENTRIES = 1 << 20
_POINTER = 16
"""What a value of a dictionary takes beside its bytes while a column is decoded."""
_MAX_DEPTH = 16


class UnsoundParquetError(ValueError):
    """Bytes are no sound page header, or contradict the footer."""


class ColumnCost(NamedTuple):
    """What decoding a column chunk takes, at most."""

    fixed: int
    """Values of fixed width, offsets, levels, pages."""
    texts: int
    """Bytes of binary values."""
    longest: int
    """Bytes of one binary value."""


def column_cost(
    column: pq.ColumnChunkMetaData,
    data: memoryview,
    base: int,
    *,
    levels: int,
    stays_coded: bool = False,
    longest_entry: int | None = None,
) -> ColumnCost:
    """Give an upper bound for a column chunk, from its page headers.

    ``data`` begins at ``base`` of the file; ``levels`` is how many kinds of levels each value has. With
    ``stays_coded`` values that a dictionary holds stay codes; ``longest_entry`` says how long the longest of them
    is, where that is known.

    Why that is an upper bound: a decoder holds one unpacked page, the dictionary unpacked and as values (a pointer
    each), and of each value its width and two bytes for each level. Texts of a plain page all stand in it, so they
    are no longer than it. A delta encoded text is a part of the one before and something new: it may be as long as
    all that is new in its page, and so may every other one there. A coded value is an entry of the dictionary: each
    may be the longest, which is no longer than the dictionary. Pages whose values do not add up to the footer's are
    refused, so no page is left out.

    Raises
    ------
    UnsoundParquetError
        The headers are none, or do not go with the footer.
    """
    width = _WIDTHS.get(column.physical_type)
    if width is None:
        raise UnsoundParquetError(
            f"a column is of the type {column.physical_type}, which no column of ours is"
        )
    values: int = column.num_values
    seen = largest = dictionary = entries = texts = longest = 0
    for kind, unpacked, count, encoding, _ in _pages(column, data, base):
        if kind == _DICTIONARY:
            if dictionary or count > unpacked:
                raise UnsoundParquetError("a dictionary of a column is longer than its page")
            dictionary, entries = unpacked, count
            continue
        seen += count
        largest = max(largest, unpacked)
        if encoding in _CODED:
            most = dictionary if longest_entry is None else longest_entry
            texts += 0 if stays_coded else count * most
        else:
            most = unpacked
            texts += count * most if encoding == _DELTA_BYTE_ARRAY else most
        longest = max(longest, most)
    if seen != values:
        raise UnsoundParquetError(f"a column has {seen} values where the footer says {values}")
    fixed = largest + 2 * dictionary + _POINTER * entries + values * (width + 2 * levels)
    return ColumnCost(fixed, texts, longest) if width == _OFFSET else ColumnCost(fixed, 0, 0)


def longest_entry(column: pq.ColumnChunkMetaData, data: memoryview, base: int) -> int:
    """Unpack a column's dictionary, and tell how long the longest text in it is.

    Raises
    ------
    UnsoundParquetError
        It is none, or has too many entries to look at them all.
    """
    for kind, unpacked, count, _, at in _pages(column, data, base):
        if kind == _DICTIONARY:
            packed = data[at[0] : at[1]]
            page = packed if column.compression == "UNCOMPRESSED" else _unpacked(packed, unpacked)
            return _longest_text(bytes(page), count)
    return 0


def _unpacked(packed: memoryview, size: int) -> Any:
    try:
        return pa.decompress(pa.py_buffer(packed), size, codec="zstd")
    except (pa.ArrowInvalid, OSError) as error:
        raise UnsoundParquetError(f"a dictionary cannot be unpacked: {error}") from error


def _longest_text(page: bytes, count: int) -> int:
    """Look at texts that stand one after the other, each behind its length."""
    if count > _MOST_ENTRIES:
        raise UnsoundParquetError(f"a dictionary has {count} entries")
    at = longest = 0
    for _ in range(count):
        length = int.from_bytes(page[at : at + 4], "little")
        at += 4 + length
        longest = max(longest, length)
    if at > len(page):
        raise UnsoundParquetError("a dictionary ends within a text")
    return longest


def delta_text_bytes(
    columns: Sequence[pq.ColumnChunkMetaData], data: memoryview, base: int, *, nullable: bool
) -> int | None:
    """Count the bytes of delta encoded texts exactly; None where there are other pages too.

    Each text is stored as how much it shares with the one before, and the rest; a page begins with the former, as
    a column of numbers would. So Parquet itself reads those from the very same bytes, under another name of type
    and encoding, before a text is put together.
    """
    parts: list[bytes | memoryview] = [_PARQUET_MAGIC]
    values = unpacked_bytes = 0
    codec = columns[0].compression
    for column in columns:
        for kind, unpacked, count, encoding, (at, end) in _pages(column, data, base):
            if kind != _DATA or encoding != _DELTA_BYTE_ARRAY or column.compression != codec:
                return None
            numbers: tuple[int | bytes, ...] = (
                b"\x15",
                unpacked,
                b"\x15",
                end - at,
                b"\x2c\x15",
                count,
            )
            parts += [
                b"\x15\x00",
                *map(_encoded, numbers),
                b"\x15\x0a\x15\x06\x15\x06\x00\x00",
                data[at:end],
            ]
            values += count
            unpacked_bytes += unpacked
    size = sum(map(len, parts)) - len(_PARQUET_MAGIC)
    footer_parts: tuple[int | bytes, ...] = (
        b"\x15\x02\x19\x2c\x48\x01r\x15\x02\x00\x15\x02\x25", int(nullable), b"\x18\x01l\x00",
        b"\x16", values, b"\x19\x1c\x19\x1c\x26\x08\x1c\x15\x02\x19\x15\x0a\x19\x18\x01l",
        b"\x15", 6 if codec == "ZSTD" else 0, b"\x16", values, b"\x16", size, b"\x16", size,
        b"\x26\x08\x00\x00\x16", size, b"\x16", values, b"\x00\x00",
    )  # fmt: skip
    footer = b"".join(map(_encoded, footer_parts))
    parts += [footer, len(footer).to_bytes(4, "little"), _PARQUET_MAGIC]
    table = pq.ParquetFile(pa.BufferReader(b"".join(parts)), pre_buffer=False).read(
        use_threads=False
    )
    shared = table.column(0)
    lengths = np.where(validity(shared), to_numpy(shared), 0)
    return unpacked_bytes + int(np.maximum(lengths, 0).sum(dtype=np.int64))


def _encoded(part: int | bytes) -> bytes:
    """Write a number as Thrift's compact protocol does."""
    if isinstance(part, bytes):
        return part
    number = 2 * part
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_Page = tuple[int, int, int, int, tuple[int, int]]
"""Kind, bytes unpacked, number of values, encoding, and where it stands in the data."""


def _pages(column: pq.ColumnChunkMetaData, data: memoryview, base: int) -> list[_Page]:
    """Read the headers of a column's pages, as far as its values go."""
    start: int = column.data_page_offset
    if column.has_dictionary_page:
        start = min(start, column.dictionary_page_offset)
    stop = start + column.total_compressed_size
    values: int = column.num_values
    if not base <= start < stop <= base + len(data):
        raise UnsoundParquetError("a column does not stand within its row group")
    at, end, seen = start - base, stop - base, 0
    pages = []
    while at < end and seen < values:
        usual = _USUAL_HEADER.match(data, at, end)
        if usual is None:
            at, (kind, unpacked, packed, count, encoding) = _any_header(data, at, end)
        else:
            kind, encoding = _KINDS[usual[1]], _KINDS[usual[5] or b"\x00"]
            unpacked, packed, count = (
                _number(usual[2]),
                _number(usual[3]),
                _number(usual[4] or usual[6]),
            )
            at = usual.end()
        stop = at + packed
        if unpacked < 0 or packed < 0 or count < 0 or stop > end:
            raise UnsoundParquetError("a page does not stand within its column")
        if kind != _DICTIONARY:
            seen += count
        if kind != _INDEX:
            pages.append((kind, unpacked, count, encoding, (at, stop)))
        at = stop
    return pages


_KINDS = {bytes([2 * number]): number for number in range(64)}


@lru_cache(maxsize=4096)
def _number(varint: bytes) -> int:
    """Read a number that Thrift's compact protocol wrote; the same ones come again and again."""
    number = 0
    for byte in reversed(varint):
        number = number << 7 | byte & 127
    return number >> 1 ^ -(number & 1)


_Header = tuple[int, int, int, int, int]
"""Kind, bytes unpacked, bytes packed, number of values, encoding."""


def _any_header(data: memoryview, at: int, end: int) -> tuple[int, _Header]:
    """Read a page header as any writer may write it."""
    thrift = _Thrift(data, at, end)
    members = thrift.struct()
    kind = members.get(1, -1)
    inner = members.get({_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}.get(kind, 6), {})
    if not isinstance(inner, dict) or kind not in range(4):
        raise UnsoundParquetError("a page is of no kind")
    encoding = inner.get(4 if kind == _DATA_2 else 2, _PLAIN)
    numbers = (kind, members.get(2), members.get(3), inner.get(1, 0), encoding)
    if not all(type(each) is int for each in numbers):
        raise UnsoundParquetError("a page header lacks what every one has")
    return thrift.at, numbers  # type: ignore[return-value]


class _Thrift:
    """Reads values of Thrift's compact protocol; texts and lists are passed over."""

    def __init__(self, data: memoryview, at: int, end: int) -> None:
        self._data = data
        self.at = at
        self._end = end
        self.structs = 0
        self.most_structs = 1 << 16

    def _byte(self) -> int:
        if self.at >= self._end:
            raise UnsoundParquetError("a structure ends too soon")
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > 63:
                raise UnsoundParquetError("a number has more than 64 bits")

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Read the members of a structure, by their numbers: those that are numbers or structures."""
        self.structs += 1
        if depth > _MAX_DEPTH or self.structs > self.most_structs:
            raise UnsoundParquetError("it has too many structures, or too many in one another")
        members: dict[int, Any] = {}
        number = 0
        while True:
            byte = self._byte()
            if byte == 0:
                return members
            delta, kind = byte >> 4, byte & 15
            if delta:
                number += delta
            else:
                zigzag = self._varint()
                number = zigzag >> 1 ^ -(zigzag & 1)
            members[number] = self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> Any:
        if kind in {1, 2}:
            return kind == 1
        if kind in {4, 5, 6}:
            zigzag = self._varint()
            return zigzag >> 1 ^ -(zigzag & 1)
        if kind == 12:
            return self.struct(depth + 1)
        if kind in {9, 10}:
            return self._list(depth + 1)
        self._skip({3: 1, 7: 8}.get(kind) or (self._varint() if kind == 8 else self._end))
        return None

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > self._end:
            raise UnsoundParquetError("a structure ends too soon")

    def _list(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise UnsoundParquetError("it has too many lists in one another")
        byte = self._byte()
        count, kind = byte >> 4, byte & 15
        if count == 15:
            count = self._varint()
        if count > self._end - self.at:
            raise UnsoundParquetError("a list is longer than what is there")
        self.structs += count // 16  # numbers and texts take less room than structures
        for _ in range(count):
            if kind in {1, 2}:
                self._byte()
            else:
                self._value(kind, depth + 1)


def count_structs(data: memoryview, most: int) -> int:
    """Count the structures in a footer, up to ``most``.

    Raises
    ------
    UnsoundParquetError
        There are more, or it is no footer.
    """
    thrift = _Thrift(data, 0, len(data))
    thrift.most_structs = most
    thrift.struct()
    return thrift.structs
