"""What a footer says of column chunks, looked at before pyarrow does.

pyarrow checks sizes and encryption of a column chunk in a place from which no error comes back: where they make no
sense it ends the process. So nobody asks it for a column before that one was looked at here: quickly where the
footer has the form that writers give it, else member by member.

Knows Parquet's footer (Thrift's compact protocol); knows nothing of our files.
"""

from __future__ import annotations

import itertools
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from icechunk_arrow.core.lazy import lazy
from icechunk_arrow.formats.page_walk import UnsoundParquetError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow.parquet as pq

__all__ = ["ColumnGuard"]

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_FLAGS = (1, 2)
_NUMBERS = (4, _I32, _I64)
_NUMBER = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_NATURAL = rb"(?:[%b]|[%b][\x80-\xff]{0,8}+[\x00-\x7f])" % tuple(
    b"".join(rb"\x%02x" % n for n in range(start, start + 128, 2)) for start in (0, 128)
)
"""A number that is not below zero: its sign is the last bit of its first byte."""


def _list_of(kind: int, item: bytes, most: int) -> bytes:
    """Match a short list, behind the kind of its member."""
    some = (rb"\x%02x(?:%b){%d}" % (16 * n + kind, item, n) for n in range(most + 1))
    return rb"(?:" + b"|".join(some) + rb")"


_LEVELS = _list_of(_I64, _NUMBER, 8)
_SIZES = (
    rb"(\x16" + _NUMBER + rb")?"
    rb"((?(3)\x19|\x29)(" + _LEVELS + rb"))?((?(4)\x19|(?(3)\x29|\x39))(" + _LEVELS + rb"))?\x00"
)


class _Forms(NamedTuple):
    """The form that writers give to the parts of a footer."""

    number: re.Pattern[bytes]
    groups: re.Pattern[bytes]
    begin: re.Pattern[bytes]
    """Of a column: file_offset; meta_data with type, encodings, path_in_schema."""
    middle: re.Pattern[bytes]
    """Its codec, num_values, two sizes, data_page_offset, dictionary_page_offset, and where statistics begin."""
    ends: tuple[re.Pattern[bytes], ...]
    """Its encoding_stats and size_statistics, and the places of the page index: after data_page_offset,
    dictionary_page_offset, and statistics."""
    group_end: re.Pattern[bytes]


@cache
def _forms() -> _Forms:
    """Make the patterns, which takes milliseconds, when a file is read first."""
    ends = (
        re.compile(
            rb"(\x%02x" % encodings + _list_of(_STRUCT, (rb"[\x15]" + _NUMBER) * 3 + rb"\x00", 5) + rb")?"
            rb"((?(1)\x3c|\x%02x)" % sizes + _SIZES + rb")?\x00"
            rb"(?:\x16" + _NUMBER + rb"\x15" + _NUMBER + rb")?"
            rb"(?:[\x16\x36]" + _NUMBER + rb"\x15" + _NUMBER + rb")?\x00", re.DOTALL
        )
        for encodings, sizes in ((0x49, 0x7C), (0x29, 0x5C), (0x19, 0x4C))
    )  # fmt: skip
    return _Forms(
        number=re.compile(_NUMBER),
        groups=re.compile(rb"\x16" + _NUMBER + rb"\x19"),
        begin=re.compile(
            rb"\x26" + _NATURAL + rb"\x1c\x15([\x00-\x7f])\x19" + _list_of(_I32, _NUMBER, 5)
            + rb"\x19([\x18\x28\x38\x48\x58\x68\x78\x88])", re.DOTALL
        ),
        middle=re.compile(
            rb"\x15[\x00\x02\x04\x06\x08\x0a\x0c\x0e]" + (rb"\x16" + _NATURAL) * 3 + rb"\x26" + _NATURAL
            + rb"(\x26" + _NATURAL + rb")?((?(1)\x1c|\x3c))?", re.DOTALL
        ),
        ends=tuple(ends),
        group_end=re.compile(
            rb"\x16" + _NATURAL + rb"\x16" + _NATURAL
            + rb"(?:\x26" + _NATURAL + rb"(?:\x16" + _NATURAL + rb")?(?:[\x14\x24]" + _NUMBER + rb")?)?\x00",
            re.DOTALL,
        ),
    )  # fmt: skip


_MOST_DEPTH = 16
_SCHEMA, _ROW_GROUPS = 2, 4
_PLAIN: Mapping[int, Any] = {}
_SIZE_LISTS = {2: (_I64, _PLAIN), 3: (_I64, _PLAIN)}
_OF_COLUMN = {2: (_I32, _PLAIN), 3: (_BINARY, _PLAIN), 13: (_STRUCT, _PLAIN), 16: _SIZE_LISTS}
_OF_GROUP = {1: (_STRUCT, {3: _OF_COLUMN}), 4: (_STRUCT, _PLAIN)}
_OF_FOOTER = {_SCHEMA: (_STRUCT, _PLAIN), _ROW_GROUPS: (_STRUCT, _OF_GROUP)}
"""By number the members that count: structures, and lists with the kind of their items (pyarrow never asks)."""
_ENCRYPTED = {8, 9}
_CODECS = range(8)


class _Levels(NamedTuple):
    """What the schema says of a column."""

    lists: int
    nulls: int
    kind: str


class _Column(NamedTuple):
    """What a footer says of a column chunk: its type, how many levels its sizes count, and whether texts."""

    kind: int
    lists: int = 0
    nulls: int = 0
    texts: bool = False


_KINDS = (
    *("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE"),
    *("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"),
)


class _Schema(NamedTuple):
    """What a footer says of all row groups."""

    levels: tuple[_Levels, ...]
    names: tuple[str, ...]
    members: frozenset[int]
    """Members of the footer up to it."""
    begin: int
    """Where those behind it begin."""


_known: dict[bytes, _Schema] = {}
"""By what a footer begins with, up to its number of rows: the same in nearly all files of a kind."""
_MOST_KNOWN = 32
_looks = itertools.count()
_FIRST_WALKED = 8
"""A process that reads a few files walks through them, as making the patterns takes longer."""


class _UnusualError(Exception):
    """A footer is not in the form that writers give it."""


class ColumnGuard:
    """A footer, whose row groups are looked at one after the other, as far as somebody wants them."""

    def __init__(self, footer: bytes, metadata: pq.FileMetaData) -> None:
        self._footer = footer
        self._metadata = metadata
        self._next = 0
        """Where the first row group begins that was not looked at."""
        self._seen: list[list[_Column]] = []
        self._checked: set[int] = set()

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return len(self._footer)

    @property
    def names(self) -> tuple[str, ...]:
        """The column that each leaf belongs to.

        Raises
        ------
        UnsoundParquetError
            A column comes twice, or its name is no text.
        """
        return self._schema.names

    @lazy
    def _schema(self) -> _Schema:
        begin = next(filter(self._footer.startswith, [*_known]), None)
        known = None if begin is None else _known.get(begin)
        if known is not None:
            return known
        schema = _schema_of(self._metadata, *_behind_schema(self._footer))
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[self._footer[: schema.begin]] = schema
        return schema

    def check(self, group: int) -> None:
        """Look at the columns of a row group.

        Raises
        ------
        UnsoundParquetError
            pyarrow would end the process over them.
        """
        if group in self._checked:
            return
        if len(self._seen) <= group:
            self._look_up_to(group)
        columns = self._seen[group] if group < len(self._seen) else []
        if len(columns) != len(self._schema.levels):
            raise UnsoundParquetError(f"row group {group} has {len(columns)} columns")
        for found, levels in zip(columns, self._schema.levels, strict=True):
            if (
                _KINDS[found.kind : found.kind + 1] != (levels.kind,)
                or found.lists not in {0, levels.lists + 1}
                or found.nulls not in {0, levels.nulls + 1}
                or (found.texts and levels.kind != "BYTE_ARRAY")
            ):
                raise UnsoundParquetError("what is said of a column does not go with its type")
        self._checked.add(group)

    def _look_up_to(self, group: int) -> None:
        if next(_looks) >= _FIRST_WALKED:
            try:
                while len(self._seen) <= group:
                    self._look()
            except (_UnusualError, IndexError):
                pass
            else:
                return
        self._seen = _row_groups(self._footer, self._schema)

    def _look(self) -> None:
        """Look at the next row group, in the form that writers give it."""
        footer = self._footer
        if not self._next:
            self._begin()
        if footer[self._next] != 0x19:
            raise _UnusualError
        head = footer[self._next + 1]
        at = self._next + 2
        count = head >> 4
        if count == 15:
            count, at = footer[at], at + 1
        if head & 15 != _STRUCT or count > 127:
            raise _UnusualError
        columns = []
        for _ in range(count):
            at, column = _usual_column(footer, at)
            columns.append(column)
        end = _forms().group_end.match(footer, at)
        if end is None:
            raise _UnusualError
        self._next = end.end()
        self._seen.append(columns)

    def _begin(self) -> None:
        """Find the first row group, behind the schema."""
        rows = _forms().groups.match(self._footer, self._schema.begin)
        if rows is None or self._footer[rows.end()] & 15 != _STRUCT:
            raise _UnusualError
        at = rows.end()
        if self._footer[at] >> 4 == 15:
            while self._footer[at + 1] & 128:
                at += 1
            at += 1
        self._next = at + 1


def _schema_of(metadata: pq.FileMetaData, members: frozenset[int], begin: int) -> _Schema:
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    try:
        paths = [each.path for each in columns]
        top = metadata.schema.to_arrow_schema().names
    except (UnicodeDecodeError, pa.ArrowException) as error:
        raise UnsoundParquetError(f"its columns are none: {error}") from error
    if len({*top}) < len(top) or len({*paths}) < len(paths):
        raise UnsoundParquetError("a column comes twice")
    levels = (
        _Levels(
            each.max_repetition_level,
            each.max_definition_level,
            each.physical_type,
        )
        for each in columns
    )
    return _Schema(tuple(levels), tuple([path.partition(".")[0] for path in paths]), members, begin)


def _usual_column(footer: bytes, at: int) -> tuple[int, _Column]:
    """Look at a column in the form that writers give it; tell where it ends."""
    begin = _forms().begin.match(footer, at)
    if begin is None:
        raise _UnusualError
    at = begin.end()
    for _ in range(footer[at - 1] >> 4):
        at = _behind_text(footer, at)
    middle = _forms().middle.match(footer, at)
    if middle is None:
        raise _UnusualError
    at = middle.end()
    last = 1 if middle[1] else 0
    if middle[2]:
        at, last = _behind_statistics(footer, at), 2
    end = _forms().ends[last].match(footer, at)
    if end is None:
        raise _UnusualError
    kind = begin[1][0] >> 1 if begin[1][0] & 1 == 0 else -1
    if not end[2]:
        return end.end(), _Column(kind)
    lists, nulls = end[5], end[7]
    column = _Column(
        kind, lists[0] >> 4 if lists else 0, nulls[0] >> 4 if nulls else 0, texts=end[3] is not None
    )
    return end.end(), column


def _behind_text(footer: bytes, at: int) -> int:
    length = footer[at]
    if length > 127:
        raise _UnusualError
    return at + 1 + length


def _behind_statistics(footer: bytes, at: int) -> int:
    """Pass over texts, numbers and flags."""
    while footer[at]:
        head = footer[at]
        kind = head & 15
        if head < 16 or kind not in {1, 2, _I32, _I64, _BINARY}:
            raise _UnusualError
        at += 1
        if kind == _BINARY:
            at = _behind_text(footer, at)
        elif kind > 2:
            number = _forms().number.match(footer, at)
            if number is None:
                raise _UnusualError
            at = number.end()
    return at + 1


def _behind_schema(footer: bytes) -> tuple[frozenset[int], int]:
    """Tell which members of a footer come up to its schema, and where those behind it begin."""
    members, behind = _members(footer, _SCHEMA)
    if _SCHEMA not in members:
        raise UnsoundParquetError("a footer has no schema")
    return frozenset(members), behind


def _row_groups(footer: bytes, schema: _Schema) -> list[list[_Column]]:
    """Give what each column of each row group says, member by member."""
    groups = _members(footer, _ROW_GROUPS, schema)[0].get(_ROW_GROUPS)
    if not isinstance(groups, list):
        return []
    columns = [group.get(1) for group in groups]
    if not all(isinstance(each, list) for each in columns):
        raise UnsoundParquetError("a row group has no columns")
    return [[_column_of(each) for each in of_group] for of_group in columns]


def _members(
    footer: bytes, until: int, schema: _Schema | None = None
) -> tuple[dict[int, Any], int]:
    """Read a footer's members up to one of them, from its beginning or from behind its schema."""
    try:
        if schema is None:
            return _struct(footer, 0, _OF_FOOTER, until=until)
        seen: dict[int, Any] = dict.fromkeys(schema.members)
        return _struct(footer, schema.begin, _OF_FOOTER, number=_SCHEMA, members=seen, until=until)
    except IndexError as error:
        raise UnsoundParquetError("a footer ends too soon") from error


def _struct(
    data: bytes,
    at: int,
    shape: Mapping[int, Any],
    depth: int = 0,
    *,
    number: int = 0,
    members: dict[int, Any] | None = None,
    until: int | None = None,
) -> tuple[dict[int, Any], int]:
    """Read the members of a structure as Thrift's compact protocol has them, and tell where it ends.

    ``number`` and ``members`` are what came before, ``until`` the member that is the last one wanted. The first
    files of every process come through here, so bytes are taken one by one, without a call for each.
    """
    if depth > _MOST_DEPTH:
        raise UnsoundParquetError("a footer has too many structures in one another")
    found = {} if members is None else members
    while head := data[at]:
        at += 1
        if head > 15:
            number += head >> 4
        else:
            number, at = _varint(data, at)
            number = number >> 1 ^ -(number & 1)
        if number in found:  # nobody knows which one holds
            raise UnsoundParquetError("a member of a footer comes twice")
        kind = head & 15
        value: Any = None
        if kind in _NUMBERS:
            value = data[at]
            if value < 128:
                at += 1
            else:
                value, at = _varint(data, at)
            value = value >> 1 ^ -(value & 1)
        elif kind == _STRUCT:
            inner = shape.get(number)
            value, at = _struct(data, at, inner if isinstance(inner, dict) else _PLAIN, depth + 1)
        elif kind == _LIST:
            value, at = _list(data, at, shape.get(number), depth + 1)
        elif kind not in _FLAGS:
            at = _behind(data, at, kind)
        found[number] = value
        if number == until:
            return found, at
    return found, at + 1


def _list(data: bytes, at: int, shape: Any, depth: int) -> tuple[Any, int]:
    """Read a list: its structures, if somebody wants to know their members, or else how many items it has."""
    if depth > _MOST_DEPTH:
        raise UnsoundParquetError("a footer has too many lists in one another")
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    if count > len(data) - at:
        raise UnsoundParquetError("a list is longer than what is there")
    wanted, inner = shape if isinstance(shape, tuple) else (kind, _PLAIN)
    if kind != wanted:
        raise UnsoundParquetError("a list of a footer is of another kind than it should be")
    if kind != _STRUCT:
        for _ in range(count):
            at = _behind(data, at, kind, depth)
        return count, at
    items = []
    for _ in range(count):
        item, at = _struct(data, at, inner, depth + 1)
        items.append(item)
    return (items if inner else count), at


def _behind(data: bytes, at: int, kind: int, depth: int = 0) -> int:
    """Pass over a value of which nothing is wanted."""
    if kind in _NUMBERS:
        return at + 1 if data[at] < 128 else _varint(data, at)[1]
    if kind == _BINARY:
        length, at = _varint(data, at)
        return at + length
    if kind == _LIST:
        return _list(data, at, None, depth + 1)[1]
    return at + {1: 1, 2: 1, 3: 1, 7: 8}.get(kind, len(data))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise UnsoundParquetError("a number has more than 64 bits")


def _column_of(chunk: dict[int, Any]) -> _Column:
    column = chunk.get(3)
    if not isinstance(column, dict) or not _ENCRYPTED.isdisjoint(chunk):
        raise UnsoundParquetError("a column is encrypted, or not described")
    for each in column.values():
        if type(each) is int and each < 0:
            raise UnsoundParquetError("a column has numbers below zero")
    if column.get(4) not in _CODECS:
        raise UnsoundParquetError("a column is compressed in a way that nobody knows")
    kind = column.get(1)
    if type(kind) is not int:
        raise UnsoundParquetError("a column is of no type")
    sizes = column.get(16)
    if not isinstance(sizes, dict):
        return _Column(kind)
    return _Column(kind, sizes.get(2) or 0, sizes.get(3) or 0, texts=1 in sizes)
