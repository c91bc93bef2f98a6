"""Chunk manifests: the documented schema, optional columns, both widths, row groups, refusals."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icechunk_arrow.core.chunks import (
    CHUNK_SCHEMA,
    CODED_SCHEMA,
    ChunkRef,
    concat_sorted,
    with_coded_files,
)
from icechunk_arrow.core.coords import encode_one
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats import envelope, manifest
from icechunk_arrow.formats.layout import FileKind
from tests.formats.arrow_print import as_printed
from tests.formats.kinds import ID
from tests.formats.strategies import rows_and_groups
from tests.refs import table_of_refs

DOCUMENTED = """\
id: uint32 not null
array_id: uint32 not null
coord: binary not null
inline_data: binary
chunk_file: string
offset: uint64
length: uint32 not null"""
WIDE = DOCUMENTED.replace("length: uint32", "length: uint64")
CHECKS = """
etag: string
last_modified: timestamp[us, tz=UTC]"""
CRC = """
crc32c: uint32"""
NATIVE = ChunkRef(file=ID, offset=5, length=10)
VIRTUAL = ChunkRef(file="s3://b/k", offset=5, length=10)


def on_disk(*refs: ChunkRef) -> tuple[str, str, pa.Table]:
    """Write references: the schema that a plain reader sees, the stated width, what we read."""
    table = table_of_refs(7, {encode_one((n,)): ref for n, ref in enumerate(refs)})
    data = manifest.encode(table, ID)
    schema = pq.read_schema(io.BytesIO(data)).remove_metadata()
    width = pq.read_metadata(io.BytesIO(data)).metadata[b"icechunk.width"].decode()
    found = manifest.decode(data, ID)
    assert found.equals(table)
    return as_printed(schema), width, found


def test_the_schema_is_the_documented_one() -> None:
    """Names, order, types and nullability, in the module and in a written file."""
    assert as_printed(manifest.SCHEMA) == DOCUMENTED
    assert on_disk(NATIVE, VIRTUAL, ChunkRef(inline=b"x", length=1))[:2] == (DOCUMENTED, "narrow")


def test_optional_columns_are_there_only_where_used() -> None:
    """An etag or a time brings both columns, a checksum its own, at the end."""
    etag = ChunkRef(file="s3://b/k", offset=0, length=1, etag="x")
    time = ChunkRef(file="s3://b/k", offset=0, length=1, last_modified=5)
    crc = ChunkRef(file=ID, offset=0, length=1, crc32c=0)

    assert on_disk(etag)[0] == DOCUMENTED + CHECKS
    assert on_disk(time, NATIVE)[0] == DOCUMENTED + CHECKS
    assert on_disk(crc)[0] == DOCUMENTED + CRC
    assert on_disk(crc, etag)[0] == DOCUMENTED + CHECKS + CRC


def test_narrow_wherever_it_fits_wide_otherwise() -> None:
    """4 GiB less one byte fits the documented length, 4 GiB does not; both read."""
    for length, width, schema in (
        (2**32 - 1, "narrow", DOCUMENTED),
        (2**32, "wide", WIDE),
        (2**63, "wide", WIDE),
    ):
        found = on_disk(NATIVE, ChunkRef(file="s3://b/k", offset=2**63, length=length))
        assert found[:2] == (schema, width)


def test_id_is_the_ordinal() -> None:
    """Rows are numbered from 0, through all row groups."""
    table = pq.read_table(io.BytesIO(manifest.encode(rows_and_groups(20_000), ID)))

    assert table["id"].to_pylist() == list(range(20_000))


def test_writer_settings() -> None:
    """Small row groups, statistics, page index, delta and dictionary encodings: part of the format."""
    metadata = pq.read_metadata(io.BytesIO(manifest.encode(rows_and_groups(40_000), ID)))
    group = metadata.row_group(1)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}

    assert [metadata.row_group(i).num_rows for i in range(3)] == [16_384, 16_384, 7_232]
    assert all(c.has_offset_index for c in columns.values())
    assert {n for n, c in columns.items() if c.has_column_index} == {"array_id", "coord"}
    assert {n for n, c in columns.items() if c.is_stats_set} == {"array_id", "coord"}
    assert {c.compression for c in columns.values()} == {"ZSTD"}
    assert {"DELTA_BINARY_PACKED"} <= set(columns["id"].encodings)
    assert {"DELTA_BYTE_ARRAY"} <= set(columns["coord"].encodings)
    assert {"DELTA_BINARY_PACKED"} <= set(columns["offset"].encodings)
    assert {"DELTA_BINARY_PACKED"} <= set(columns["length"].encodings)
    assert {"RLE_DICTIONARY"} <= set(columns["chunk_file"].encodings)
    assert {"RLE_DICTIONARY"} <= set(columns["array_id"].encodings)
    found = columns["coord"].statistics
    assert (found.min, found.max) == (encode_one((16_384,)), encode_one((32_767,)))


def a_file_each(row_count: int, **more: ChunkRef) -> pa.Table:
    """References of which each names a file of its own, and others at the end."""
    refs = {
        encode_one((n,)): ChunkRef(file=f"s3://bucket/tile-{n}.tif", offset=7, length=n)
        for n in range(row_count)
    }
    refs |= {encode_one((row_count + n,)): ref for n, ref in enumerate(more.values())}
    return table_of_refs(1, refs)


def sealed_of(data: bytes) -> envelope.Sealed:
    """The end of a manifest, checked."""
    return envelope.open_seal(data, len(data), FileKind.MANIFEST, ID)


@pytest.mark.parametrize("table", [rows_and_groups(300), a_file_each(300, native=NATIVE)])
def test_names_of_their_own_take_no_dictionary(table: pa.Table) -> None:
    """A name that comes once is shortest as what differs from the one before it, others as a number."""
    data = manifest.encode(table, ID)
    encodings = pq.read_metadata(io.BytesIO(data)).row_group(0).column(4).encodings
    own = table["chunk_file"][0] != table["chunk_file"][1]

    assert ("DELTA_BYTE_ARRAY" in encodings) == own
    assert ("RLE_DICTIONARY" in encodings) == (not own)
    assert manifest.decode(data, ID).equals(table)


FILES = {
    "a file for many": lambda: rows_and_groups(40_000),
    "a file each": lambda: a_file_each(20_000, inline=ChunkRef(inline=b"x", length=1)),
    "few rows": lambda: a_file_each(3),
    "inline alone": lambda: table_of_refs(1, {b"": ChunkRef(inline=b"x", length=1)}),
    "of every kind": lambda: table_of_refs(
        1,
        {
            encode_one((n,)): (NATIVE, VIRTUAL, ChunkRef(inline=b"x", length=1))[n % 3]
            for n in range(300)
        },
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_coded_files_give_the_same_bytes(name: str) -> None:
    """However the names stand in memory, the file is the same, and either form is read from it."""
    table = FILES[name]()
    coded = with_coded_files(table)
    # names in other orders and in pieces, some of which no row uses
    pieces = pa.concat_tables(
        [with_coded_files(table.slice(1)).slice(0, 0), coded.slice(0, 2), coded.slice(2)]
    )
    data = manifest.encode(table, ID)

    assert coded.schema.equals(CODED_SCHEMA)
    assert manifest.encode(coded, ID) == data
    assert manifest.encode(pieces, ID) == data
    assert manifest.decode(data, ID).equals(table)
    found = manifest.decode(data, ID, coded=True)
    repeats = name in {"a file for many", "of every kind"}
    assert found.schema.equals(CODED_SCHEMA if repeats else CHUNK_SCHEMA)
    assert found.cast(CHUNK_SCHEMA).equals(table)
    rows = manifest.decode_rows(sealed_of(data), [0], data[4 : sealed_of(data).byte_range(0, 0)[1]])
    assert rows["chunk_file"].to_pylist() == table["chunk_file"].slice(0, len(rows)).to_pylist()


def test_small_files_have_little_around_them() -> None:
    """A commit of one chunk writes kilobytes: no statistics of a single row group, no Arrow schema."""
    data = manifest.encode(rows_and_groups(1), ID)
    metadata = pq.read_metadata(io.BytesIO(data))
    columns = [metadata.row_group(0).column(i) for i in range(metadata.num_columns)]

    assert len(data) < 1800
    assert b"ARROW:schema" not in metadata.metadata
    assert not any(c.is_stats_set or c.has_offset_index for c in columns)
    assert {c.compression for c in columns} == {"UNCOMPRESSED"}
    assert pq.read_metadata(io.BytesIO(manifest.encode(rows_and_groups(257), ID))).row_group(
        0
    ).column(2).statistics.max == encode_one((256,))


def test_inline_chunks_make_row_groups_smaller() -> None:
    """A row group holds about a mebibyte of inline chunks at most, so that one look-up stays cheap."""
    refs = {encode_one((n,)): ChunkRef(inline=bytes(300_000), length=300_000) for n in range(9)}
    data = manifest.encode(table_of_refs(1, refs), ID)
    metadata = pq.read_metadata(io.BytesIO(data))

    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [4, 3, 2]
    assert manifest.decode(data, ID).num_rows == 9


def test_row_groups_are_read_alone() -> None:
    """Any run of row groups is decoded from its own bytes; files stay dictionary encoded."""
    table = rows_and_groups(40_000)
    data = manifest.encode(table, ID)
    needs = envelope.seal_needs(data, len(data), "")
    sealed = envelope.open_seal(data[-needs:], len(data), FileKind.MANIFEST, ID)
    for first, last, rows in (
        (0, 0, (0, 16_384)),
        (1, 2, (16_384, 40_000)),
        (2, 2, (32_768, 40_000)),
    ):
        start, stop = sealed.byte_range(first, last)
        found = manifest.decode_rows(sealed, range(first, last + 1), data[start:stop])
        assert pa.types.is_dictionary(found["chunk_file"].type)
        assert (
            found["coord"].to_pylist()
            == table["coord"].slice(rows[0], rows[1] - rows[0]).to_pylist()
        )
        with pytest.raises(CorruptFileError, match="ends within row group"):
            manifest.decode_rows(sealed, range(first, last + 1), data[start : stop - 1])


def test_narrow_and_wide_become_one_form() -> None:
    """Rows of both widths can be united in memory."""
    narrow = on_disk(NATIVE)[2]
    wide = on_disk(ChunkRef(file="s3://b/k", offset=0, length=2**40))[2]
    both = concat_sorted([narrow, table_of_refs(9, {b"\x01": NATIVE})])

    assert narrow.schema.equals(wide.schema)
    assert manifest.decode(manifest.encode(both, ID), ID).num_rows == 2


def sealed_by_another(table: pa.Table) -> bytes:
    """A file with a good seal around rows that our writer would not write."""
    return envelope.write(
        table,
        kind=FileKind.MANIFEST,
        identifier=ID,
        facts={"icechunk.width": "narrow"},
        boundaries=[table.num_rows],
        settings={},
    )


def rows(**changes: Any) -> pa.Table:
    """Two rows as they stand on disk, with changed columns."""
    columns = {
        "id": [0, 1],
        "array_id": [7, 7],
        "coord": [b"\x00", b"\x01"],
        "inline_data": [b"x", None],
        "chunk_file": [None, ID],
        "offset": [None, 3],
        "length": [1, 10],
        **changes,
    }
    fields = [f.with_nullable(True) for f in manifest.SCHEMA]
    return pa.table(columns, schema=pa.schema(fields))


def test_columns_that_nobody_knows_are_ignored() -> None:
    """A later writer may add columns."""
    data = sealed_by_another(rows().append_column("colour", pa.array(["blue", "red"])))

    assert manifest.decode(data, ID).column_names == CHUNK_SCHEMA.names


UNSOUND = {
    "not sorted": lambda: rows(coord=[b"\x01", b"\x00"]),
    "a chunk twice": lambda: rows(coord=[b"\x01", b"\x01"]),
    "arrays not sorted": lambda: rows(array_id=[8, 7]),
    "inline and in a file": lambda: rows(inline_data=[b"x", b"y"]),
    "nowhere": lambda: rows(inline_data=[None, None]),
    "no offset": lambda: rows(offset=[None, None]),
    "an offset of an inline chunk": lambda: rows(offset=[0, 3]),
    "no coordinate": lambda: rows(coord=[None, b"\x01"]),
    "no length": lambda: rows(length=[1, None]),
    "no ordinal": lambda: rows().drop_columns(["id"]),
    "no column": lambda: rows().drop_columns(["offset"]),
    "no required column": lambda: rows().drop_columns(["coord"]),
    "another type": lambda: rows().set_column(6, "length", pa.array(["1", "x"])),
    "negative": lambda: rows().set_column(6, "length", pa.array([1, -1])),
}


@pytest.mark.parametrize("fault", UNSOUND)
def test_unsound_rows_are_refused(fault: str) -> None:
    """Sealed or not, rows that contradict the format are an error that names the file."""
    with pytest.raises(CorruptFileError, match=f"i/{ID}.parquet"):
        manifest.decode(sealed_by_another(UNSOUND[fault]()), ID)


def test_the_writer_refuses_rows_out_of_order() -> None:
    """Order is the writer's promise, checked just before writing."""
    table = rows_and_groups(3)

    with pytest.raises(AssertionError, match="sorted"):
        manifest.encode(table.take(pa.array([1, 0, 2])), ID)
    with pytest.raises(AssertionError, match="sorted"):
        manifest.encode(pa.concat_tables([table, table]), ID)
