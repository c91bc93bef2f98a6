"""The columns of a manifest, each declared once: what it is in memory, in files, and in the tables of SQL.

All else derives from here: the schemas in memory and of both widths of a file, the flags that say which columns a
file has, how a file is encoded, the published schema, and the columns of the table ``chunks``. A new column is a
new line in :data:`COLUMNS`.

Specification: schemas/README.md#chunk-manifest
"""

from __future__ import annotations

from enum import Enum
from functools import cache, reduce
from operator import or_

import pyarrow as pa
from msgspec import Struct

__all__ = [
    "CHUNK_SCHEMA",
    "COLUMNS",
    "DENSE",
    "HAS_CHECKS",
    "HAS_CRC",
    "HAS_INLINE",
    "HAS_NATIVE",
    "HAS_STATISTICS",
    "HAS_SUMS",
    "HAS_VIRTUAL",
    "IN_TABLES",
    "MISSING",
    "STATISTICS",
    "STATISTICS_COLUMNS",
    "TABLES_FORM",
    "WIDE",
    "About",
    "Column",
    "schema_of",
]

DENSE, HAS_INLINE, HAS_NATIVE, HAS_VIRTUAL, WIDE, HAS_CHECKS, HAS_CRC = 1, 2, 4, 8, 16, 32, 64
HAS_STATISTICS, HAS_SUMS = 128, 256
"""Flags of an inventory entry: what the rows are like, and which form the manifest file has."""


class About(Enum):
    """What a column tells of a chunk, and so what becomes of it when rows move or bytes are copied."""

    CHUNK = "which chunk it is, or how many bytes it has: stays"
    PLACE = "where its bytes are: new where they are copied"
    SOURCE = "what the file of somebody else must be like: goes where they are copied"
    BYTES = "the bytes themselves, or the values in them: stays wherever the same bytes are"


class Column(Struct, frozen=True, kw_only=True):
    """One column of a manifest."""

    name: str
    type: pa.DataType
    """In memory, and in wide files."""
    meaning: str
    """Its description in the published schema."""
    about: About
    narrow: pa.DataType | None = None
    """In narrow files, where it is another one."""
    nullable: bool = True
    held: bool = True
    """Whether it stands in memory, by itself or as a member of ``statistics``."""
    flag: int = 0
    """The form flag of files that have it, since some row has a value; 0 where every file has it."""
    implied: int = 0
    """The flag of another column that brings this one along."""
    encoding: str | None = None
    """How a file encodes it, where that is not the default."""
    dictionary: bool = False
    """Whether a file writes each value once."""
    indexed: bool = False
    """Whether a file has its least and greatest values, for look-ups."""
    in_tables: pa.DataType | None = None
    """Its type in the table ``chunks``; None where it is not there, or only as ``kind`` and ``location``."""
    in_words: str = ""
    """Its description there."""

    def is_in(self, form: int) -> bool:
        """Whether files with these form flags have it."""
        return not self.flag or bool(form & (self.flag | self.implied))


_PACKED = "DELTA_BINARY_PACKED"
_TIME = pa.timestamp("us", "UTC")


def _statistic(name: str, kind: pa.DataType, meaning: str) -> Column:
    return Column(name=name, type=kind, meaning=meaning, about=About.BYTES, flag=HAS_STATISTICS)


COLUMNS = (
    Column(
        name="id",
        type=pa.uint32(),
        meaning="the row's number in the file, from 0",
        about=About.CHUNK,
        nullable=False,
        held=False,
        encoding=_PACKED,
    ),
    Column(
        name="array_id",
        type=pa.uint32(),
        meaning="id of the array's node",
        about=About.CHUNK,
        nullable=False,
        dictionary=True,
        indexed=True,
    ),
    Column(
        name="coord",
        type=pa.binary(),
        meaning="the chunk's coordinate, as bytes whose order is that of the indices",
        about=About.CHUNK,
        nullable=False,
        encoding="DELTA_BYTE_ARRAY",
        indexed=True,
        in_tables=pa.binary(),
        in_words="the same as bytes, whose order is that of the indices",
    ),
    Column(
        name="inline_data",
        type=pa.binary(),
        meaning="the chunk's bytes, for an inline ref",
        about=About.PLACE,
    ),
    Column(
        name="chunk_file",
        type=pa.string(),
        meaning="the file, for a native or virtual ref",
        about=About.PLACE,
        dictionary=True,
    ),
    Column(
        name="offset",
        type=pa.uint64(),
        meaning="where the bytes begin in it",
        about=About.PLACE,
        encoding=_PACKED,
        in_tables=pa.int64(),
        in_words="where they begin in it; null for an inline chunk",
    ),
    Column(
        name="length",
        type=pa.uint64(),
        narrow=pa.uint32(),
        meaning="how many bytes",
        about=About.CHUNK,
        nullable=False,
        encoding=_PACKED,
        in_tables=pa.int64(),
        in_words="how many they are",
    ),
    Column(
        name="etag",
        type=pa.string(),
        meaning="the ETag that a virtual ref's file must still have",
        about=About.SOURCE,
        flag=HAS_CHECKS,
        in_tables=pa.string(),
        in_words="what a virtual chunk's file must still have",
    ),
    Column(
        name="last_modified",
        type=_TIME,
        meaning="a virtual ref's file must not have been modified after this time",
        about=About.SOURCE,
        flag=HAS_CHECKS,
        in_tables=_TIME,
        in_words="a virtual chunk's file must not be younger",
    ),
    Column(
        name="crc32c",
        type=pa.uint32(),
        meaning="CRC-32C of a native chunk's bytes",
        about=About.BYTES,
        flag=HAS_CRC,
        implied=HAS_SUMS,
        in_tables=pa.int64(),
        in_words="CRC-32C of a native chunk's bytes; null where none was stored",
    ),
    Column(
        name="sums_crc32c",
        type=pa.uint32(),
        meaning="CRC-32C of the sums of its blocks, which stand behind it in its file",
        about=About.BYTES,
        flag=HAS_SUMS,
    ),
    _statistic("value_count", pa.uint64(), "how many values the chunk holds"),
    _statistic("nan_count", pa.uint64(), "how many of them are NaN or NaT"),
    _statistic("missing_count", pa.uint64(), "how many of them count as missing"),
    _statistic("low_float", pa.float64(), "lower bound of the others, of floating-point arrays"),
    _statistic("high_float", pa.float64(), "upper bound of these"),
    _statistic(
        "low_int",
        pa.int64(),
        "lower bound of integers other than uint64, booleans (0 and 1), and times as they are stored",
    ),
    _statistic("high_int", pa.int64(), "upper bound of these"),
    _statistic("low_uint", pa.uint64(), "lower bound of uint64 arrays"),
    _statistic("high_uint", pa.uint64(), "upper bound of these"),
    _statistic("low_text", pa.binary(), "lower bound of texts (in UTF-8) and bytes, at most 64 bytes"),
    _statistic("high_text", pa.binary(), "upper bound of these"),
    _statistic("sum_float", pa.float64(), "sum of the others, of floating-point arrays"),
    _statistic("sum_int", pa.int64(), "the same of integers and booleans; null where it does not fit"),
    _statistic(
        "bounds_exact",
        pa.uint8(),
        "1: both bounds are values of the chunk; 0: they may lie outside",
    ),
    _statistic("clip", pa.binary(), "the shape of the part that is described; null for the whole chunk"),
)  # fmt: skip
"""All columns, in the order in which files have them."""

_PLAIN = tuple(each for each in COLUMNS if each.held and each.flag != HAS_STATISTICS)
CHUNK_SCHEMA = pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in _PLAIN])
"""References in memory, sorted by (array_id, coord); every column is there, null where unused.

Behind them stands :data:`STATISTICS` where some rows have any.
"""

STATISTICS_COLUMNS = tuple(
    pa.field(each.name, each.type) for each in COLUMNS if each.flag == HAS_STATISTICS
)
"""What may stand behind the other columns of a file, each where some row has it."""
MISSING = pa.field("missing", pa.binary())
STATISTICS = pa.field("statistics", pa.struct([*STATISTICS_COLUMNS, MISSING]))
"""What is known of chunks' values, in one column: what moves rows moves it along, and most tables do without.

The members stand in manifests as columns of their own; but :data:`MISSING`, what counted as missing when the chunk
was written, stands there once for each array.
"""

IN_TABLES = tuple(each for each in COLUMNS if each.in_tables is not None)
"""What the table ``chunks`` takes over, in its order; ``coord`` stands before ``kind`` and ``location``."""
TABLES_FORM = reduce(or_, (each.flag for each in IN_TABLES))
"""The flags of files that have all of these."""


@cache
def schema_of(form: int) -> pa.Schema:
    """Give the Arrow schema of a manifest file with these form flags, without statistics."""
    return pa.schema(
        [
            pa.field(
                each.name,
                each.type if form & WIDE or each.narrow is None else each.narrow,
                nullable=each.nullable,
            )
            for each in COLUMNS
            if each.flag != HAS_STATISTICS and each.is_in(form)
        ]
    )
