"""Chunk references: where the bytes of chunks are, as columns.

Owns the in-memory table of references and the operations on it that a commit needs: order, extents, set
differences. One reference as an object (:class:`ChunkRef`) exists only at the edge, where one chunk is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core import coords
from icechunk_arrow.core.columns import (
    empty_table,
    from_numpy,
    from_values,
    indices,
    to_numpy,
    validity,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

__all__ = [
    "CHUNK_SCHEMA",
    "DENSE",
    "HAS_CHECKS",
    "HAS_CRC",
    "HAS_INLINE",
    "HAS_NATIVE",
    "HAS_VIRTUAL",
    "WIDE",
    "ChunkRef",
    "Extent",
    "chunk_table",
    "concat_sorted",
    "content_flags",
    "extent_of",
    "form_flags",
    "is_sorted",
    "is_virtual",
    "keep_rows",
    "member_mask",
    "sort_rows",
    "table_of_refs",
    "volume",
    "with_array_id",
]

Extent = tuple[tuple[int, int], ...]
"""A half-open range per dimension."""

DENSE, HAS_INLINE, HAS_NATIVE, HAS_VIRTUAL, WIDE, HAS_CHECKS, HAS_CRC = 1, 2, 4, 8, 16, 32, 64
"""Flags of an inventory entry: what the rows are like, and which form the manifest file has."""

CHUNK_SCHEMA = pa.schema(
    [
        pa.field("array_id", pa.uint32(), nullable=False),
        pa.field("coord", pa.binary(), nullable=False),
        pa.field("inline_data", pa.binary()),
        pa.field("chunk_file", pa.string()),
        pa.field("offset", pa.uint64()),
        pa.field("length", pa.uint64(), nullable=False),
        pa.field("etag", pa.string()),
        pa.field("last_modified", pa.timestamp("us", "UTC")),
        pa.field("crc32c", pa.uint32()),
    ]
)
"""References in memory, sorted by (array_id, coord); every column is there, null where unused."""


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """Where one chunk's bytes are: in ``inline``, or in a range of a file."""

    inline: bytes | None = None
    file: str | None = None
    """An id for a file under ``c/``; an absolute URI for a virtual chunk."""
    offset: int = 0
    length: int = 0
    etag: str | None = None
    last_modified: int | None = None
    """Microseconds since 1970, UTC."""
    crc32c: int | None = None

    @property
    def kind(self) -> str:
        """One of inline, native or virtual."""
        if self.inline is not None:
            return "inline"
        return "virtual" if self.file is not None and is_virtual(self.file) else "native"


def is_virtual(file: str) -> bool:
    """Whether a ``chunk_file`` is an absolute URI rather than a bare name."""
    return ":" in file or "/" in file


def chunk_table(columns: Mapping[str, pa.Array], count: int) -> pa.Table:
    """Make a table of references; columns that are not given are null."""
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(count, field.type)
        for field in CHUNK_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=CHUNK_SCHEMA)


def table_of_refs(array_id: int, refs: Mapping[bytes, ChunkRef]) -> pa.Table:
    """Put single references of one array into a sorted table."""
    keys = sorted(refs)
    ordered = [refs[key] for key in keys]
    count = len(keys)
    inline = np.fromiter((ref.inline is not None for ref in ordered), np.bool_, count)
    columns: dict[str, pa.Array] = {
        "array_id": from_numpy(np.full(count, array_id, np.uint32), pa.uint32()),
        "coord": from_values(keys, pa.binary()),
        "chunk_file": from_values([ref.file for ref in ordered], pa.string()),
        "offset": from_numpy(
            np.fromiter((ref.offset for ref in ordered), np.uint64, count), pa.uint64(), ~inline
        ),
        "length": from_numpy(
            np.fromiter((ref.length for ref in ordered), np.uint64, count), pa.uint64()
        ),
    }
    if inline.any():
        columns["inline_data"] = from_values([ref.inline for ref in ordered], pa.binary())
    optional: tuple[tuple[str, list[Any]], ...] = (
        ("etag", [ref.etag for ref in ordered]),
        ("last_modified", [ref.last_modified for ref in ordered]),
        ("crc32c", [ref.crc32c for ref in ordered]),
    )
    for name, values in optional:
        if any(value is not None for value in values):
            columns[name] = from_values(values, CHUNK_SCHEMA.field(name).type)
    return chunk_table(columns, count)


def with_array_id(table: pa.Table, array_id: int) -> pa.Table:
    """Give all rows to an array."""
    column = from_numpy(np.full(table.num_rows, array_id, np.uint32), pa.uint32())
    return table.set_column(0, CHUNK_SCHEMA.field(0), column)


def is_sorted(table: pa.Table) -> bool:
    """Whether rows strictly increase by (array_id, coord)."""
    if table.num_rows < 2:
        return True
    ids = to_numpy(table["array_id"])
    coord = table["coord"].combine_chunks()
    if isinstance(coord, pa.ChunkedArray):
        coord = pa.concat_arrays(coord.chunks)
    rising = pc.less(coord.slice(0, len(coord) - 1), coord.slice(1))
    return bool(((ids[1:] > ids[:-1]) | ((ids[1:] == ids[:-1]) & to_numpy(rising))).all())


def sort_rows(table: pa.Table) -> pa.Table:
    """Order rows by (array_id, coord)."""
    if is_sorted(table):
        return table
    order = pc.sort_indices(table, [("array_id", "ascending"), ("coord", "ascending")])
    return table.take(order)


def concat_sorted(tables: list[pa.Table]) -> pa.Table:
    """Unite tables of references that have no row in common, in order."""
    full = [table for table in tables if table.num_rows]
    if len(full) == 1:
        return full[0]
    return sort_rows(pa.concat_tables(full)) if full else empty_table(CHUNK_SCHEMA)


def member_mask(column: pa.Array | pa.ChunkedArray, values: pa.Array) -> npt.NDArray[np.bool_]:
    """For each value of a binary column, whether it is among ``values``."""
    return to_numpy(pc.is_in(column, value_set=values))


def keep_rows(table: pa.Table, mask: npt.NDArray[np.bool_]) -> pa.Table:
    """Rows where the mask is True, in their order."""
    return table if mask.all() else table.take(indices(np.flatnonzero(mask)))


def volume(extent: Extent) -> int:
    """How many coordinates an extent spans."""
    total = 1
    for start, stop in extent:
        total *= max(stop - start, 0)
    return total


def extent_of(coord: pa.Array, ndim: int) -> Extent:
    """Find the smallest extent around the coordinates of a column that is not empty."""
    decoded = coords.decode(coord, ndim)
    low, high = decoded.min(axis=0), decoded.max(axis=0)
    return tuple((int(a), int(b) + 1) for a, b in zip(low, high, strict=True))


def content_flags(table: pa.Table) -> int:
    """Flags that describe what kinds of references the rows are and which columns they use."""
    inline = validity(table["inline_data"])
    flags = HAS_INLINE if inline.any() else 0
    files = table["chunk_file"].drop_null()
    if len(files):
        virtual = to_numpy(pc.match_substring_regex(files, "[:/]"))
        flags |= (HAS_VIRTUAL if virtual.any() else 0) | (HAS_NATIVE if not virtual.all() else 0)
    return flags


def form_flags(table: pa.Table) -> int:
    """Flags that tell which form a manifest of these rows takes on disk."""
    checks = any(table[name].null_count < table.num_rows for name in ("etag", "last_modified"))
    crc = table["crc32c"].null_count < table.num_rows
    lengths = to_numpy(table["length"])
    wide = bool(len(lengths)) and int(lengths.max()) >= 1 << 32
    return (WIDE if wide else 0) | (HAS_CHECKS if checks else 0) | (HAS_CRC if crc else 0)
