"""Chunk manifests (``i/<id>.parquet``): one row per chunk.

Specification: schemas/README.md#chunk-manifest

Owns the schema, the writer's settings and the reader's checks. Rows are sorted by (array_id, coord), so a
chunk is found in one small row group. Does not know where files live.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.chunks import (
    CHUNK_SCHEMA,
    STATISTICS,
    WIDE,
    chunk_table,
    form_flags,
    is_chunk_table,
    is_sorted,
    known_statistics,
    rows_of_arrays,
    with_coded_files,
)
from icechunk_arrow.core.columns import (
    from_numpy,
    from_values,
    offsets_and_data,
    one_array,
    resized,
    to_numpy,
    validity,
)
from icechunk_arrow.core.manifest_columns import (
    COLUMNS,
    MISSING,
    STATISTICS_COLUMNS,
    schema_of,
)
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats import envelope
from icechunk_arrow.formats.budget import DECODE_LIMIT_BYTES
from icechunk_arrow.formats.layout import FileKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from icechunk_arrow.formats.envelope import Sealed

__all__ = [
    "DICTIONARY_COLUMNS",
    "KIND",
    "MAX_ROWS",
    "ROW_GROUP_ROWS",
    "SCHEMA",
    "STATISTICS_COLUMNS",
    "WIDE_SCHEMA",
    "decode",
    "decode_coords",
    "decode_rows",
    "decode_values",
    "encode",
    "schema_of",
]

KIND = FileKind.MANIFEST
MAX_ROWS = 2**32 - 1
ROW_GROUP_ROWS = 16_384
"""Measured on a million references: a cold look-up costs 1.3 ms at this size, 3.6 ms at four times it."""
_ROW_GROUP_BYTES = 1 << 20
DICTIONARY_COLUMNS = tuple(each.name for each in COLUMNS if each.dictionary)
_ENCODINGS = {each.name: each.encoding for each in COLUMNS if each.encoding is not None}
_INDEXED = [each.name for each in COLUMNS if each.indexed]
_PACKED = "DELTA_BINARY_PACKED"
_PLACES = ("inline_data", "chunk_file", "offset")
_WIDTH = "icechunk.width"
_MARKERS = "icechunk.missing-markers"


SCHEMA = schema_of(0)
WIDE_SCHEMA = schema_of(WIDE)


def _boundaries(table: pa.Table) -> list[int]:
    """Row numbers at which row groups end: by rows, and by bytes of what makes rows large."""
    rows = table.num_rows
    ends = set(range(ROW_GROUP_ROWS, rows, ROW_GROUP_ROWS)) | {rows}
    large = [one_array(table["inline_data"])] if table["inline_data"].null_count < rows else []
    large += [values for _, values in known_statistics(table)]
    if large:
        size = np.sum([_running_size(values) for values in large], axis=0)
        steps = np.arange(_ROW_GROUP_BYTES, int(size[-1]), _ROW_GROUP_BYTES)
        ends |= {int(row) + 1 for row in np.searchsorted(size, steps)}
    return sorted(ends)


def _running_size(values: pa.Array) -> npt.NDArray[np.int64]:
    """How many bytes the values up to each row take."""
    if not pa.types.is_binary(values.type):
        each: int = values.type.bit_width // 8
        return np.arange(each, each * len(values) + 1, each)
    offsets = offsets_and_data(values)[0].astype(np.int64)
    sizes: npt.NDArray[np.int64] = offsets[1:] - offsets[0]
    return sizes


def _differ(files: pa.ChunkedArray) -> bool:
    first = one_array(files)
    names = first.indices if pa.types.is_dictionary(first.type) else first
    return 2 * int(pc.count_distinct(names).as_py()) > len(names)


def _file_groups(files: pa.ChunkedArray, boundaries: Sequence[int]) -> tuple[pa.ChunkedArray, bool]:
    """Bring names into the form that is written, and tell whether dictionaries make them shorter.

    They do not where more than half of the first rows name a file of their own. Of coded names each row group is
    given those that occur in it, in the order in which they do.
    """
    coded = pa.types.is_dictionary(files.type)
    if boundaries[-1] <= envelope.FEW_ROWS or _differ(files.slice(0, boundaries[0])):
        return (files.cast(pa.string()) if coded else files), False
    if not coded:
        return files, True
    groups = []
    start = 0
    for stop in boundaries:
        part = one_array(files.slice(start, stop - start))
        used = part.indices.dictionary_encode()
        names = part.dictionary.take(used.dictionary)
        groups.append(pa.DictionaryArray.from_arrays(used.indices, names))
        start = stop
    return pa.chunked_array(groups), True


def encode(table: pa.Table, identifier: str) -> bytes:
    """Encode sorted references, their files coded or not, as a manifest file."""
    assert is_chunk_table(table)
    assert 0 < table.num_rows <= MAX_ROWS
    assert is_sorted(table), "references must be sorted by (array_id, coord), without duplicates"
    schema = schema_of(form_flags(table))
    width = schema.field("length").type
    boundaries = _boundaries(table)
    files, use_dictionary = _file_groups(table["chunk_file"], boundaries)
    encoded = {
        "id": from_numpy(np.arange(table.num_rows, dtype=np.uint32), pa.uint32()),
        "length": table["length"].cast(width),
        "chunk_file": files,
    }
    fields = [
        field.with_type(encoded[field.name].type) if field.name in encoded else field
        for field in schema
    ]
    columns = [encoded[name] if name in encoded else table[name] for name in schema.names]
    facts = {_WIDTH: "wide" if width == pa.uint64() else "narrow"}
    statistics, markers = _settled(table)
    if markers:
        facts[_MARKERS] = markers
    fields += [pa.field(name, values.type) for name, values in statistics.items()]
    columns += statistics.values()
    encodings = dict(_ENCODINGS)
    if not use_dictionary:
        encodings["chunk_file"] = "DELTA_BYTE_ARRAY"
    return envelope.write(
        pa.Table.from_arrays(columns, schema=pa.schema(fields)),
        kind=KIND,
        identifier=identifier,
        facts=facts,
        boundaries=boundaries,
        settings={
            # packed numbers are as small as they get; level 1 finds those that are all alike
            "compression_level": {
                field.name: 1 if encodings.get(field.name) == _PACKED else 3 for field in fields
            },
            "use_dictionary": [name for name in DICTIONARY_COLUMNS if name not in encodings],
            "column_encoding": encodings,
            "write_statistics": _INDEXED,
            "write_page_index": True,
        },
    )


def _settled(table: pa.Table) -> tuple[dict[str, pa.Array], str]:
    """Give the statistics of rows as a file has them, and what counted as missing, for each array.

    A file has room for one such mark of each array. Where rows that came together have several, only those with
    the first one keep their statistics.
    """
    columns = dict(known_statistics(table))
    if not columns:
        return {}, ""
    marks = one_array(table[STATISTICS.name]).field(MISSING.name)
    if marks.null_count == len(marks):
        return columns, ""
    ids = to_numpy(table["array_id"])
    described = np.logical_or.reduce([validity(values) for values in columns.values()])
    codes = to_numpy(marks.dictionary_encode("encode").indices)
    markers: dict[str, Any] = {}
    void = np.zeros(len(ids), np.bool_)
    runs = (each.tolist() for each in rows_of_arrays(table))
    for array_id, start, count in zip(*runs, strict=True):
        rows = np.flatnonzero(described[start : start + count]) + start
        if len(rows):
            void[rows[codes[rows] != codes[rows[0]]]] = True
            mark = marks[int(rows[0])].as_py()
            if mark is not None:
                markers[str(array_id)] = json.loads(mark)
    if void.any():
        columns = {
            name: values.take(from_numpy(np.arange(len(ids)), pa.int64(), ~void))
            for name, values in columns.items()
        }
    return columns, json.dumps(markers) if markers else ""


def _statistics(table: pa.Table, sealed: Sealed) -> pa.Array | None:
    """Gather the statistics of rows, with what counted as missing, in one column; None where there are none."""
    held = [field.name for field in STATISTICS_COLUMNS if field.name in table.column_names]
    if not held:
        return None
    columns = {
        field.name: one_array(_cast(table[field.name], field, sealed.key))
        if field.name in held
        else pa.nulls(table.num_rows, field.type)
        for field in STATISTICS_COLUMNS
    }
    columns[MISSING.name] = _marks(table, sealed)
    return pa.StructArray.from_arrays(
        [columns[f.name] for f in STATISTICS.type], fields=list(STATISTICS.type)
    )


def _marks(table: pa.Table, sealed: Sealed) -> pa.Array:
    text = sealed.facts.get(_MARKERS, "{}")
    try:
        markers = json.loads(text)
        known = [(int(array_id), json.dumps(mark).encode()) for array_id, mark in markers.items()]
    except (ValueError, AttributeError, RecursionError) as error:
        raise CorruptFileError(
            f"{sealed.key} is damaged: its footer has no right {_MARKERS!r}", key=sealed.key
        ) from error
    if not known:
        return pa.nulls(table.num_rows, pa.binary())
    ids = to_numpy(table["array_id"])
    places = np.full(len(ids), -1, np.int64)
    for place, (array_id, _) in enumerate(known):
        places[ids == array_id] = place
    marks = from_values([mark for _, mark in known], pa.binary())
    return marks.take(from_numpy(np.maximum(places, 0), pa.int64(), places >= 0))


def _canonical(table: pa.Table, key: str) -> dict[str, pa.ChunkedArray]:
    """Bring the columns of either width into the in-memory form."""
    stored = dict(zip(table.column_names, table.columns, strict=True))
    columns = {
        field.name: _cast(stored[field.name], field, key)
        for field in CHUNK_SCHEMA
        if field.name in stored
    }
    if columns.keys() >= {*_PLACES, "length"}:
        _check_places(columns, key)
    return columns


def _cast(column: pa.ChunkedArray, field: pa.Field, key: str) -> pa.ChunkedArray:
    wanted = field.type
    if field.name == "length" and column.type == pa.uint32():
        column = pa.chunked_array([resized(part, wanted) for part in column.chunks], wanted)
    if pa.types.is_dictionary(column.type):
        wanted = pa.dictionary(pa.int32(), field.type)
    if not field.nullable and column.null_count:
        raise CorruptFileError(f"{key} has a row without {field.name!r}", key=key)
    if column.type != wanted:
        raise CorruptFileError(
            f"{key} has a wrong column {field.name!r}: it is {column.type}, not {field.type}",
            key=key,
        )
    return column


def _check_places(columns: Mapping[str, pa.ChunkedArray], key: str) -> None:
    """Check that every chunk is in one place: inline with its length, or in a range of a file."""
    inline, file, offset = (columns[name] for name in _PLACES)
    rows = len(file)
    if inline.null_count == rows and file.null_count == offset.null_count == 0:
        return
    in_file = validity(file)
    if (in_file == validity(inline)).any() or (in_file != validity(offset)).any():
        raise CorruptFileError(
            f"{key} has a row that is not either inline or in a file, with an offset", key=key
        )
    lengths = to_numpy(columns["length"])[~in_file]
    if (lengths != to_numpy(pc.binary_length(inline.drop_null()))).any():
        raise CorruptFileError(
            f"{key} is damaged: an inline chunk has another length than its row says", key=key
        )


_TYPES = {field.name: field.type for field in (*SCHEMA, *CHUNK_SCHEMA, *STATISTICS_COLUMNS)}
_LENGTHS = {"narrow": pa.uint32(), "wide": pa.uint64()}


def _check_columns(sealed: Sealed) -> list[str]:
    """Check that a file has the columns it must have; give those that are kept in memory."""
    names = sealed.columns
    for name in SCHEMA.names:
        if name not in names:
            raise CorruptFileError(f"{sealed.key} has no column {name!r}", key=sealed.key)
    return [name for name in CHUNK_SCHEMA.names if name in names]


def check_form(sealed: Sealed) -> None:
    """Check that the columns of a manifest are there, and of the right types; in which order is all the same."""
    found = sealed.metadata.schema.to_arrow_schema()
    _check_columns(sealed)
    width = sealed.fact(_WIDTH)
    if width not in _LENGTHS:
        raise CorruptFileError(f"{sealed.key} is damaged: its width is {width!r}", key=sealed.key)
    if ("etag" in sealed.columns) != ("last_modified" in sealed.columns):
        raise CorruptFileError(
            f"{sealed.key} is damaged: 'etag' and 'last_modified' go together", key=sealed.key
        )
    for name, wanted in (_TYPES | {"length": _LENGTHS[width]}).items():
        if name in sealed.columns and found.field(name).type != wanted:
            raise CorruptFileError(
                f"{sealed.key} has a wrong column {name!r}: it is {found.field(name).type}, not {wanted}",
                key=sealed.key,
            )


def decode(
    data: bytes,
    identifier: str,
    limit_bytes: int = DECODE_LIMIT_BYTES,
    *,
    coded: bool = False,
) -> pa.Table:
    """Decode a whole manifest file into a table of references.

    With ``coded``, files' names are coded if they are in the file; there they are unless most rows have their own.
    """
    sealed = envelope.open_whole(data, KIND, identifier, limit_bytes)
    check_form(sealed)
    names = sealed.columns
    table = envelope.read_rows(
        sealed,
        data,
        columns=_check_columns(sealed) + [f.name for f in STATISTICS_COLUMNS if f.name in names],
        dictionaries=["chunk_file"] if coded else [],
    )
    columns = _canonical(table, sealed.key)
    statistics = _statistics(table, sealed)
    if statistics is not None:
        columns[STATISTICS.name] = statistics
    table = chunk_table(columns, table.num_rows)
    if not is_sorted(table):
        raise CorruptFileError(
            f"{sealed.key} is not sorted by (array_id, coord), or names a chunk twice",
            key=sealed.key,
        )
    is_coded = pa.types.is_dictionary(table.schema.field("chunk_file").type)
    return with_coded_files(table) if is_coded else table


def _table(columns: Mapping[str, pa.ChunkedArray]) -> pa.Table:
    fields = [CHUNK_SCHEMA.field(name).with_type(column.type) for name, column in columns.items()]
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))


def decode_values(sealed: Sealed, group: int, data: bytes) -> tuple[pa.Table, envelope.KeptColumn]:
    """Decode a row group but for its coordinates, as :func:`decode_rows` does; they take half the time.

    :func:`decode_coords` decodes them where they are needed.
    """
    names = [name for name in _check_columns(sealed) if name != "coord"]
    table = envelope.read_row_groups(
        sealed, [group], data, columns=names, dictionaries=["chunk_file"]
    )
    return _table(_canonical(table, sealed.key)), envelope.keep_column(sealed, group, data, "coord")


def decode_coords(kept: envelope.KeptColumn) -> pa.Array:
    """Decode the coordinates of a row group."""
    return one_array(_canonical(kept.decode(), kept.sealed.key)["coord"])


def decode_rows(sealed: Sealed, groups: Sequence[int], data: bytes) -> pa.Table:
    """Decode neighbouring row groups; files stay dictionary encoded, to be small in a cache.

    The table has no columns that the file does not have.
    """
    names = _check_columns(sealed)
    table = envelope.read_row_groups(
        sealed, groups, data, columns=names, dictionaries=["chunk_file"]
    )
    return _table(_canonical(table, sealed.key))
