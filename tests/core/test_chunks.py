"""Chunk references as columns: order, extents, flags, set operations."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core import chunks, coords
from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.core.columns import from_values
from tests.formats.kinds import ID
from tests.formats.strategies import chunk_refs, chunk_tables, extents, refs_of

NATIVE = ChunkRef(file=ID, offset=5, length=10)
VIRTUAL = ChunkRef(file="s3://b/k", offset=5, length=10)
INLINE = ChunkRef(inline=b"x", length=1)


def keys_of(table: pa.Table) -> list[tuple[int, bytes]]:
    """Array and coordinate of every row."""
    return [(row["array_id"], row["coord"]) for row in table.to_pylist()]


def table_of(*refs: ChunkRef) -> pa.Table:
    """References of one array."""
    return chunks.table_of_refs(1, {coords.encode_one((n,)): r for n, r in enumerate(refs)})


@given(st.integers(0, 3).flatmap(refs_of))
def test_references_become_sorted_rows(refs: dict[bytes, ChunkRef]) -> None:
    """Each reference is a row with all that it says; offset is null for inline chunks alone."""
    table = chunks.table_of_refs(7, refs)

    assert table.schema.equals(chunks.CHUNK_SCHEMA)
    assert keys_of(table) == [(7, key) for key in sorted(refs)]
    for row in table.to_pylist():
        ref = refs[row["coord"]]
        assert (row["inline_data"], row["chunk_file"]) == (ref.inline, ref.file)
        assert row["offset"] == (None if ref.inline is not None else ref.offset)
        assert (row["length"], row["etag"], row["crc32c"]) == (ref.length, ref.etag, ref.crc32c)
        modified = row["last_modified"]
        assert (modified is None) == (ref.last_modified is None)


@given(chunk_tables(), st.randoms())
def test_sorting_rows(table: pa.Table, random: object) -> None:
    """Any order of rows becomes the order by array and coordinate."""
    order = list(range(table.num_rows))
    random.shuffle(order)  # type: ignore[attr-defined]
    mixed = table.take(pa.array(order))

    assert chunks.is_sorted(table)
    assert chunks.is_sorted(mixed) == (order == sorted(order))
    assert chunks.sort_rows(mixed).equals(table)


@given(chunk_tables())
def test_rows_that_come_twice_are_not_sorted(table: pa.Table) -> None:
    """Sorted means strictly rising, so a chunk stands there once."""
    assert not chunks.is_sorted(pa.concat_tables([table, table]))
    assert not chunks.is_sorted(pa.concat_tables([table.slice(0, 1), table]))


@given(chunk_tables(), st.data())
def test_uniting_tables(table: pa.Table, data: st.DataObject) -> None:
    """Parts that have no row in common become the whole again, in order."""
    mask = np.array([data.draw(st.booleans()) for _ in range(table.num_rows)], np.bool_)
    parts = [chunks.keep_rows(table, mask), chunks.keep_rows(table, ~mask)]

    assert keys_of(parts[0]) == [k for k, m in zip(keys_of(table), mask, strict=True) if m]
    assert chunks.concat_sorted(parts).equals(table)
    assert chunks.concat_sorted([]).equals(chunks.CHUNK_SCHEMA.empty_table())


@given(st.lists(st.binary(max_size=2)), st.lists(st.binary(max_size=2)))
def test_membership(column: list[bytes], values: list[bytes]) -> None:
    """The mask says of each value whether it is among the others."""
    binary = pa.binary()
    mask = chunks.member_mask(from_values(column, binary), from_values(values, binary))

    assert mask.tolist() == [value in values for value in column]


@given(st.integers(0, 3).flatmap(extents))
def test_volume(extent: chunks.Extent) -> None:
    """How many coordinates there are; a scalar's extent has one."""
    assert chunks.volume(extent) == math.prod(stop - start for start, stop in extent)
    assert chunks.volume(()) == 1
    assert chunks.volume(((5, 3), (0, 2))) == 0


@given(st.integers(1, 3).flatmap(refs_of))
def test_the_smallest_extent(refs: dict[bytes, ChunkRef]) -> None:
    """Half-open, around all coordinates, and no smaller one is."""
    places = [coords.decode_one(key) for key in refs]
    extent = chunks.extent_of(from_values(list(refs), pa.binary()), len(places[0]))

    assert extent == tuple((min(i), max(i) + 1) for i in zip(*places, strict=True))


def test_the_extent_of_a_scalar() -> None:
    """One chunk, no dimensions."""
    assert chunks.extent_of(from_values([b""], pa.binary()), 0) == ()


@given(st.lists(chunk_refs(), min_size=1, max_size=5))
def test_flags_of_contents(refs: list[ChunkRef]) -> None:
    """Which kinds there are, as their bits: 2 inline, 4 native, 8 virtual."""
    bits = {"inline": 2, "native": 4, "virtual": 8}

    assert chunks.content_flags(table_of(*refs)) == sum({bits[ref.kind] for ref in refs})


@given(st.lists(chunk_refs(), min_size=1, max_size=5))
def test_flags_of_the_form(refs: list[ChunkRef]) -> None:
    """Which columns a file of these rows has: 16 wide, 32 etag and time, 64 checksum."""
    checks = any(ref.etag is not None or ref.last_modified is not None for ref in refs)
    crc = any(ref.crc32c is not None for ref in refs)
    wide = any(ref.length >= 2**32 for ref in refs)

    assert chunks.form_flags(table_of(*refs)) == 16 * wide + 32 * checks + 64 * crc


def test_flags_have_their_documented_values() -> None:
    """They stand on disk."""
    assert (
        chunks.DENSE,
        chunks.HAS_INLINE,
        chunks.HAS_NATIVE,
        chunks.HAS_VIRTUAL,
        chunks.WIDE,
        chunks.HAS_CHECKS,
        chunks.HAS_CRC,
    ) == (1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize(
    ("ref", "kind"), [(NATIVE, "native"), (VIRTUAL, "virtual"), (INLINE, "inline")]
)
def test_kinds_of_references(ref: ChunkRef, kind: str) -> None:
    """Bytes are inline, an absolute location is virtual, a bare name native."""
    assert ref.kind == kind


def test_giving_rows_to_an_array() -> None:
    """Only the array changes."""
    table = table_of(NATIVE, VIRTUAL)
    other = chunks.with_array_id(table, 9)

    assert other.schema.equals(chunks.CHUNK_SCHEMA)
    assert keys_of(other) == [(9, key) for _, key in keys_of(table)]
    assert chunks.with_array_id(other, 1).equals(table)
