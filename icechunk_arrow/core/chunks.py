"""Chunk references: where the bytes of chunks are, as columns.

Owns the in-memory table of references and the operations on it that a commit needs: order, extents, set
differences. One reference as an object (:class:`ChunkRef`) exists only at the edge, where one chunk is asked for.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import around
from icechunk_arrow.core.columns import (
    empty_table,
    from_numpy,
    from_values,
    indices,
    offsets_and_data,
    one_array,
    to_numpy,
    validity,
)
from icechunk_arrow.core.manifest_columns import (
    CHUNK_SCHEMA,
    COLUMNS,
    DENSE,
    HAS_CHECKS,
    HAS_CRC,
    HAS_INLINE,
    HAS_NATIVE,
    HAS_STATISTICS,
    HAS_SUMS,
    HAS_VIRTUAL,
    MISSING,
    STATISTICS,
    WIDE,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.boxes import Box

__all__ = [
    "CHUNK_SCHEMA",
    "CODED_SCHEMA",
    "DENSE",
    "HAS_CHECKS",
    "HAS_CRC",
    "HAS_INLINE",
    "HAS_NATIVE",
    "HAS_STATISTICS",
    "HAS_SUMS",
    "HAS_VIRTUAL",
    "IS_VIRTUAL_SQL",
    "KINDS",
    "STATISTICS",
    "WIDE",
    "ChunkRef",
    "are_virtual",
    "by_first_row",
    "chunk_table",
    "columns_of",
    "concat_rows",
    "concat_sorted",
    "extent_of",
    "extent_within",
    "form_flags",
    "is_chunk_table",
    "is_sorted",
    "is_virtual",
    "keep_rows",
    "kind_column",
    "kinds_of_rows",
    "known_statistics",
    "member_mask",
    "newest_rows",
    "ref_of_row",
    "rows_of_array",
    "rows_of_arrays",
    "rows_of_refs",
    "sort_rows",
    "with_array_id",
    "with_coded_files",
]

_FILE = CHUNK_SCHEMA.get_field_index("chunk_file")
CODED_SCHEMA = CHUNK_SCHEMA.set(
    _FILE, pa.field("chunk_file", pa.dictionary(pa.int32(), pa.string()))
)
"""The same with each file's name only once: smaller, and cheaper to take rows of, to write and to read."""

_NATIVE_NAME = 20
"""A native file's name has so many characters, unless a writer was wrong."""
KINDS = {HAS_INLINE: "inline", HAS_NATIVE: "native", HAS_VIRTUAL: "virtual"}
"""The word for each kind of reference, by its flag."""
_FEW_PARTS = 16
_SOME_ROWS = 1 << 12


class ChunkRef(NamedTuple):
    """Where one chunk's bytes are: in ``inline``, or in a range of a file.

    A tuple, because every read of a chunk makes one, and a frozen dataclass takes three times as long.
    """

    inline: bytes | None = None
    file: str | None = None
    """An id for a file under ``c/``; an absolute URI for a virtual chunk."""
    offset: int = 0
    length: int = 0
    etag: str | None = None
    last_modified: int | None = None
    """Microseconds since 1970, UTC."""
    crc32c: int | None = None
    sums_crc32c: int | None = None
    """Of the sums of blocks that stand behind the chunk in its file; None where there are none."""

    @property
    def kind(self) -> str:
        """One of inline, native or virtual."""
        if self.inline is not None:
            return "inline"
        return "virtual" if self.file is not None and is_virtual(self.file) else "native"


# What has a colon or a slash in it is the URI of a virtual chunk's file, and anything else a native one's name. The
# same for one name, for a column of them, and for SQL:


def is_virtual(file: str) -> bool:
    """Whether a ``chunk_file`` is an absolute URI rather than a bare name."""
    return ":" in file or "/" in file


IS_VIRTUAL_SQL = "(contains(chunk_file, ':') OR contains(chunk_file, '/'))"


def are_virtual(names: pa.Array) -> npt.NDArray[np.bool_]:
    """For each text of a column, whether it is an absolute URI rather than a bare name; of a null either."""
    offsets, data = offsets_and_data(names)
    short = (
        np.diff(offsets) == _NATIVE_NAME
    )  # names of native files, nearly always: told by their letters at once
    virtual = np.empty(len(names), np.bool_)
    others = np.flatnonzero(~short)
    if len(others):
        some = names if len(others) == len(names) else names.take(indices(others))
        marked = to_numpy(pc.match_substring(some, ":"))
        virtual[others] = (
            marked if marked.all() else marked | to_numpy(pc.match_substring(some, "/"))
        )
    rows = np.flatnonzero(short)
    if len(rows):
        if len(others):
            letters = data[offsets[rows].astype(np.int64)[:, None] + np.arange(_NATIVE_NAME)]
        else:
            letters = data[offsets[0] : offsets[-1]].reshape(-1, _NATIVE_NAME)
        text = letters.tobytes()
        virtual[rows] = False
        if b":" in text or b"/" in text:
            virtual[rows] = np.isin(letters, np.frombuffer(b":/", np.uint8)).any(axis=1)
    return virtual


def chunk_table(columns: Mapping[str, pa.Array], count: int) -> pa.Table:
    """Make a table of references, coded if its files are; columns that are not given are null.

    Statistics are a column only where they are given.
    """
    files = columns.get("chunk_file")
    coded = files is not None and pa.types.is_dictionary(files.type)
    schema = CODED_SCHEMA if coded else CHUNK_SCHEMA
    if STATISTICS.name in columns:
        schema = schema.append(STATISTICS)
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def is_chunk_table(table: pa.Table) -> bool:
    """Whether a table is one of references, coded or not, with statistics or without."""
    fields = list(table.schema)
    if len(fields) > len(CHUNK_SCHEMA) and fields[-1].equals(STATISTICS):
        fields.pop()
    schema = pa.schema(fields)
    return bool(schema.equals(CHUNK_SCHEMA) or schema.equals(CODED_SCHEMA))


def _is_coded(table: pa.Table) -> bool:
    return bool(pa.types.is_dictionary(table.schema.field(_FILE).type))


def with_coded_files(table: pa.Table) -> pa.Table:
    """Bring a table of references into the form of :data:`CODED_SCHEMA`, all of it with the same codes."""
    files = table["chunk_file"]
    if not _is_coded(table):
        return table.set_column(_FILE, CODED_SCHEMA.field(_FILE), files.dictionary_encode())
    places = [[b and b.address for b in part.dictionary.buffers()] for part in files.chunks]
    if all(place == places[0] for place in places):
        return table
    return table.set_column(_FILE, CODED_SCHEMA.field(_FILE), files.unify_dictionaries())


_REF_COLUMNS = CHUNK_SCHEMA.names[2:]
"""The columns that a reference's members stand in, in their order."""


def rows_of_refs(
    array_ids: npt.NDArray[np.uint32], coord: Sequence[bytes], refs: Sequence[ChunkRef]
) -> pa.Table:
    """Put single references into a table; array ids and coordinates are in order."""
    count = len(refs)
    if not count:
        return empty_table(CHUNK_SCHEMA)
    # not by zip(*refs), which makes an iterator for each
    members = ([ref[place] for ref in refs] for place in range(len(_REF_COLUMNS)))
    by_column: dict[str, list[Any]] = dict(zip(_REF_COLUMNS, members, strict=True))
    in_file = np.fromiter((data is None for data in by_column["inline_data"]), np.bool_, count)
    offsets = np.array(by_column.pop("offset"), np.uint64)
    columns = {
        name: from_values(values, CHUNK_SCHEMA.field(name).type)
        for name, values in by_column.items()
        if values.count(None) < count
    }
    columns |= {
        "array_id": from_numpy(array_ids, pa.uint32()),
        "coord": from_values(coord, pa.binary()),
        "offset": from_numpy(offsets, pa.uint64(), in_file),
    }
    return chunk_table(columns, count)


def ref_of_row(table: pa.Table, row: int) -> ChunkRef:
    """Read one reference of a table."""
    members = dict(zip(ChunkRef._fields, (table[name][row] for name in _REF_COLUMNS), strict=True))
    modified = members.pop("last_modified")
    ref = ChunkRef(**{name: value.as_py() for name, value in members.items()})
    return ref._replace(
        offset=ref.offset or 0, last_modified=modified.value if modified.is_valid else None
    )


def with_array_id(table: pa.Table, array_id: int) -> pa.Table:
    """Give all rows to an array."""
    column = from_numpy(np.full(table.num_rows, array_id, np.uint32), pa.uint32())
    return table.set_column(0, CHUNK_SCHEMA.field(0), column)


def is_sorted(table: pa.Table) -> bool:
    """Whether rows strictly increase by (array_id, coord)."""
    if table.num_rows < 2:
        return True
    ids = to_numpy(table["array_id"])
    coord = one_array(table["coord"])
    rising = to_numpy(pc.less(coord.slice(0, len(coord) - 1), coord.slice(1)))
    if ids[0] == ids[-1]:
        return bool(rising.all()) and bool((ids == ids[0]).all())
    return bool(((ids[1:] > ids[:-1]) | ((ids[1:] == ids[:-1]) & rising)).all())


def sort_rows(table: pa.Table) -> pa.Table:
    """Order rows by (array_id, coord)."""
    if is_sorted(table):
        return table
    words = coords.as_words(one_array(table["coord"]))
    if words is None:
        order = pc.sort_indices(table, [("array_id", "ascending"), ("coord", "ascending")])
        return table.take(order)
    ids = to_numpy(table["array_id"])
    one = bool((ids == ids[0]).all())
    # stable, because that is quick where sorted parts follow one another
    order = np.argsort(words, kind="stable") if one else np.lexsort((words, ids))
    return table.take(indices(order))


def by_first_row(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Order sorted tables, none empty: what then follows one another needs no sorting when it is united."""
    return sorted(
        tables, key=lambda table: (table["array_id"][0].as_py(), table["coord"][0].as_py())
    )


def newest_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """Unite sorted rows of one array, oldest table first; of a chunk in several of them the newest row stays."""
    full = [table for table in tables if table.num_rows]
    if len(full) < 2:
        return full[0] if full else empty_table(CHUNK_SCHEMA)
    rows = sort_rows(_put_together(full))  # equal ones stay in the order of their tables
    column = one_array(rows["coord"])
    is_last = ~to_numpy(pc.equal(column.slice(1), column.slice(0, len(column) - 1)))
    return keep_rows(rows, np.append(is_last, True))


def concat_sorted(tables: Sequence[pa.Table]) -> pa.Table:
    """Unite tables of references that have no row in common, in order; coded if one of them is."""
    full = [table for table in tables if table.num_rows]
    if len(full) == 1:
        return full[0]
    return sort_rows(_put_together(by_first_row(full))) if full else empty_table(CHUNK_SCHEMA)


def _put_together(tables: Sequence[pa.Table]) -> pa.Table:
    """Put tables one behind the other, coded if one of them is."""
    if not any(map(_is_coded, tables)):
        return concat_rows(tables).combine_chunks()
    coded = concat_rows([with_coded_files(table) for table in tables])
    return coded.unify_dictionaries().combine_chunks()


def concat_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """Put tables that are coded alike one behind the other; statistics are null where one has none."""
    mixed = len({table.num_columns for table in tables}) > 1
    return pa.concat_tables(tables, promote_options="default" if mixed else "none")


def member_mask(column: pa.Array | pa.ChunkedArray, values: pa.Array) -> npt.NDArray[np.bool_]:
    """For each value of a binary column, whether it is among ``values``."""
    return to_numpy(pc.is_in(column, value_set=values))


def keep_rows(table: pa.Table, mask: npt.NDArray[np.bool_]) -> pa.Table:
    """Rows where the mask is True, in their order."""
    if mask.all():
        return table
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    if len(edges) > 2 * _FEW_PARTS:
        return table.take(indices(np.flatnonzero(mask)))
    bounds = [0, *edges.tolist(), len(mask)]
    parts = [table.slice(a, b - a) for a, b in pairwise(bounds) if a < b and mask[a]]
    return pa.concat_tables(parts) if parts else table.slice(0, 0)


def extent_of(coord: pa.Array, ndim: int) -> Box:
    """Find the smallest extent around the coordinates of a column that is not empty."""
    return around(coords.decode(coord, ndim))


def extent_within(column: pa.Array, bounds: Box) -> Box:
    """Find the smallest extent around sorted coordinates within bounds, and stop where it reaches all of them."""
    ndim = len(bounds)
    first, last = coords.decode_one(column[0].as_py()), coords.decode_one(column[-1].as_py())
    extent: Box = tuple((min(a, b), max(a, b) + 1) for a, b in zip(first, last, strict=True))
    for start in range(0, len(column), _SOME_ROWS):
        if extent[1:] == bounds[1:]:  # the first dimension is that of the first and the last row
            break
        more = extent_of(column.slice(start, _SOME_ROWS), ndim)
        extent = tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(extent, more, strict=True))
    return extent


def _kinds_of_names(names: pa.Array) -> npt.NDArray[np.uint8]:
    """Tell of each file's name whether it is native or virtual, as its flag; 0 where it is null."""
    kinds = np.where(are_virtual(names), np.uint8(HAS_VIRTUAL), np.uint8(HAS_NATIVE))
    if names.null_count:
        kinds[~validity(names)] = 0
    return kinds


def _kinds_of_files(column: pa.ChunkedArray) -> npt.NDArray[np.uint8]:
    parts = []
    for part in column.chunks:
        if not pa.types.is_dictionary(part.type):
            parts.append(_kinds_of_names(part))
            continue
        known = _kinds_of_names(part.dictionary)
        kinds = known[to_numpy(part.indices)] if len(known) else np.zeros(len(part), np.uint8)
        parts.append(np.where(validity(part.indices), kinds, 0) if part.null_count else kinds)
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def kind_column(files: pa.Array) -> pa.Array:
    """Tell in a word of which kind each chunk is, by the file that it is in; null is inline."""
    flags = _kinds_of_files(pa.chunked_array([files]))
    kinds = np.searchsorted(list(KINDS), np.where(flags == 0, np.uint8(HAS_INLINE), flags))
    return from_values(list(KINDS.values()), pa.string()).take(indices(kinds))


def kinds_of_rows(table: pa.Table) -> npt.NDArray[np.uint8]:
    """Tell of each row whether it is inline, native or virtual, as its flag."""
    files = table["chunk_file"]
    count = table.num_rows
    kinds = np.zeros(count, np.uint8) if files.null_count == count else _kinds_of_files(files)
    if table["inline_data"].null_count < count:
        kinds |= validity(table["inline_data"]).astype(np.uint8) * np.uint8(HAS_INLINE)
    return kinds


def form_flags(table: pa.Table) -> int:
    """Flags that tell which form a manifest of these rows takes on disk."""
    count = table.num_rows
    plain = [each for each in COLUMNS if each.flag and each.flag != HAS_STATISTICS]
    form = HAS_STATISTICS if any(known_statistics(table)) else 0
    for each in plain:
        if table[each.name].null_count < count:
            form |= each.flag
    for each in plain:
        if form & each.implied:
            form |= each.flag
    lengths = to_numpy(table["length"])
    return form | (WIDE if count and int(lengths.max()) >= 1 << 32 else 0)


def columns_of(table: pa.Table, names: Iterable[str]) -> dict[str, pa.Array]:
    """Give some columns of a table; statistics are null where it has none."""
    return {
        name: pa.nulls(table.num_rows, STATISTICS.type)
        if name == STATISTICS.name and name not in table.column_names
        else one_array(table[name])
        for name in names
    }


def known_statistics(table: pa.Table) -> Iterator[tuple[str, pa.Array]]:
    """Give the statistics that some rows have, as columns."""
    if STATISTICS.name in table.column_names:
        column = one_array(table[STATISTICS.name])
        for field, values in zip(STATISTICS.type, column.flatten(), strict=True):
            if field.name != MISSING.name and values.null_count < len(values):
                yield field.name, values


def rows_of_arrays(
    table: pa.Table,
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Tell which arrays sorted rows belong to: ids, first rows, numbers of rows."""
    ids = to_numpy(table["array_id"])
    if not len(ids):
        return ids, np.empty(0, np.int64), np.empty(0, np.int64)
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    return ids[starts], starts, np.diff(np.r_[starts, len(ids)])


def rows_of_array(table: pa.Table, array_id: int) -> pa.Table:
    """Give the rows of one array, of sorted rows of several."""
    ids = to_numpy(table["array_id"])
    start, stop = np.searchsorted(ids, np.array([array_id, array_id + 1], np.int64)).tolist()
    return table if stop - start == len(ids) else table.slice(start, stop - start)
