"""Chunk references as columns: order, extents, flags, set operations."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_arrow.core import chunks, coords
from icechunk_arrow.core.boxes import volume
from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.inventory import describe
from tests.core.chunk_rows import content_flags
from tests.formats.kinds import ID
from tests.formats.strategies import (
    chunk_refs,
    chunk_tables,
    refs_of,
    rows_and_groups,
)
from tests.refs import table_of_refs

if TYPE_CHECKING:
    from random import Random

    import numpy.typing as npt

    from icechunk_arrow.core.boxes import Box

NATIVE = ChunkRef(file=ID, offset=5, length=10)
VIRTUAL = ChunkRef(file="s3://b/k", offset=5, length=10)
INLINE = ChunkRef(inline=b"x", length=1)


def keys_of(table: pa.Table) -> list[tuple[int, bytes]]:
    """Array and coordinate of every row."""
    return [(row["array_id"], row["coord"]) for row in table.to_pylist()]


def table_of(*refs: ChunkRef) -> pa.Table:
    """References of one array."""
    return table_of_refs(1, {coords.encode_one((n,)): r for n, r in enumerate(refs)})


@given(st.integers(0, 3).flatmap(refs_of))
def test_references_become_sorted_rows(refs: dict[bytes, ChunkRef]) -> None:
    """Each reference is a row with all that it says; offset is null for inline chunks alone."""
    table = table_of_refs(7, refs)

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
    full = chunks.by_first_row([part for part in reversed(parts) if part.num_rows])
    assert chunks.concat_sorted(full).equals(table)
    assert [keys_of(part)[0] for part in full] == sorted(keys_of(part)[0] for part in full)
    assert chunks.concat_sorted([]).equals(chunks.CHUNK_SCHEMA.empty_table())


@given(st.lists(st.binary(max_size=2)), st.lists(st.binary(max_size=2)))
def test_membership(column: list[bytes], values: list[bytes]) -> None:
    """The mask says of each value whether it is among the others."""
    binary = pa.binary()
    mask = chunks.member_mask(from_values(column, binary), from_values(values, binary))

    assert mask.tolist() == [value in values for value in column]


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

    assert content_flags(table_of(*refs)) == sum({bits[ref.kind] for ref in refs})


@given(chunk_tables(), st.data())
def test_coded_files_are_the_same_references(table: pa.Table, data: st.DataObject) -> None:
    """Sorting, uniting, picking and describing do not ask how files' names stand in memory."""
    coded = chunks.with_coded_files(table)
    cut = data.draw(st.integers(0, table.num_rows))
    parts = [chunks.with_coded_files(table.slice(cut)), table.slice(0, cut)]
    mask = np.array([data.draw(st.booleans()) for _ in range(table.num_rows)], np.bool_)

    assert coded.schema.equals(chunks.CODED_SCHEMA)
    assert chunks.with_coded_files(coded) is coded
    assert content_flags(coded) == content_flags(table)
    assert chunks.concat_sorted(parts).cast(chunks.CHUNK_SCHEMA).equals(table)
    assert chunks.sort_rows(coded).cast(chunks.CHUNK_SCHEMA).equals(table)
    kept = chunks.keep_rows(chunks.concat_sorted(parts), mask)
    assert kept.cast(chunks.CHUNK_SCHEMA).equals(chunks.keep_rows(table, mask))


@given(st.integers(1, 90), st.randoms())
def test_keeping_rows(count: int, random: Random) -> None:
    """Few neighbouring parts or many: the rows where the mask is True."""
    table = rows_and_groups(count)
    for share in (0.02, 0.5, 0.98):
        mask = np.array([random.random() < share for _ in range(count)], np.bool_)
        kept = chunks.keep_rows(table, mask)
        assert kept.schema.equals(table.schema)
        assert keys_of(kept) == [k for k, m in zip(keys_of(table), mask, strict=True) if m]


@given(
    st.lists(
        st.sampled_from([ID, "x" * 19, "ä" * 10, "", "s3://b/k", "mem:5678901234567890", "a/b"])
        | st.text(st.sampled_from("ab:/é"), max_size=24),
        min_size=1,
    )
)
def test_native_or_virtual_is_one_rule(names: list[str]) -> None:
    """One name, a column of names, coded or not, and SQL say the same; of bare names that are no ids too."""
    expected = [chunks.is_virtual(name) for name in names]
    column = from_values(names, pa.string())
    named = pa.table({"chunk_file": column})

    assert chunks.are_virtual(column).tolist() == expected
    assert chunks.are_virtual(column.slice(1)).tolist() == expected[1:]
    found = duckdb.connect().sql(f"SELECT {chunks.IS_VIRTUAL_SQL} FROM named")
    assert [row[0] for row in found.fetchall()] == expected
    rows = table_of(*(ChunkRef(file=name, length=1) for name in names))
    assert named.num_rows == rows.num_rows
    flags = [8 if each else 4 for each in expected]
    assert chunks.kinds_of_rows(rows).tolist() == flags
    assert chunks.kinds_of_rows(chunks.with_coded_files(rows)).tolist() == flags
    assert [ChunkRef(file=name).kind == "virtual" for name in names] == expected


def test_names_as_long_as_a_native_one() -> None:
    """Of 20 characters, a name is native unless it has a colon or a slash."""
    names = [ID, "s3://b/5678901234567", ID, "file:///a/b/c/d/efgh", "mem:5678901234567890"]
    assert {len(name) for name in names} == {20}
    for name, flag in zip(names, [4, 8, 4, 8, 8], strict=True):
        assert content_flags(table_of(ChunkRef(file=name, length=1))) == flag
    assert content_flags(table_of(*(ChunkRef(file=n, length=1) for n in names))) == 12
    assert content_flags(table_of(VIRTUAL, NATIVE, INLINE)) == 14


@st.composite
def tables_and_ranks(draw: st.DrawFn) -> tuple[pa.Table, dict[int, int]]:
    """Rows of several arrays of several ranks, some of them boxes without holes."""
    ranks = draw(st.dictionaries(st.integers(1, 300), st.integers(0, 3), min_size=1, max_size=5))
    tables = []
    for array_id, ndim in sorted(ranks.items()):
        refs = draw(refs_of(ndim))
        if draw(st.booleans()):
            sides = [
                range(s, s + n)
                for s, n in draw(
                    st.lists(
                        st.tuples(st.integers(50, 70), st.integers(1, 3)),
                        min_size=ndim,
                        max_size=ndim,
                    )
                )
            ]
            ref = next(iter(refs.values()))
            refs = {coords.encode_one(place): ref for place in itertools.product(*sides)}
        tables.append(table_of_refs(array_id, refs))
    return chunks.concat_sorted(tables), ranks


@given(tables_and_ranks())
def test_describing_all_arrays_at_once(given: tuple[pa.Table, dict[int, int]]) -> None:
    """The same as array by array: rows, extents, density, contents, form."""
    table, ranks = given
    found = describe(table, ID, ranks)
    ids = table["array_id"].to_pylist()

    assert found.owners.tolist() == sorted(ranks)
    assert found.ranks.tolist() == [ranks[i] for i in sorted(ranks)]
    for entry, array_id in zip(found, sorted(ranks), strict=True):
        first, count = ids.index(array_id), ids.count(array_id)
        rows = table.slice(first, count)
        extent = chunks.extent_of(rows["coord"].combine_chunks(), ranks[array_id])
        assert (entry.manifest, entry.row, entry.row_count) == (ID, first, count)
        assert entry.extent == extent
        assert entry.stored_bytes == min(sum(rows["length"].to_pylist()), 2**64 - 1)
        assert entry.flags == (
            content_flags(rows)
            | chunks.form_flags(table)
            | chunks.DENSE * (volume(extent) == count)
        )


@st.composite
def holed_boxes(draw: st.DrawFn) -> tuple[npt.NDArray[np.uint64], Box]:
    """Many sorted places within a box, which they need not fill up to its sides."""
    ndim = draw(st.integers(0, 3))
    sides = [(draw(st.integers(0, 100)), draw(st.integers(1, 30))) for _ in range(ndim)]
    if ndim:
        sides[0] = sides[0][0], 10_000 // math.prod(size for _, size in sides[1:])
    grid = np.meshgrid(*(np.arange(start, start + size) for start, size in sides), indexing="ij")
    index = np.stack(grid, -1).reshape(-1, ndim) if ndim else np.zeros((1, 0), np.int64)
    stays = np.ones(len(index), np.bool_)
    for d, (start, size) in enumerate(sides):
        first = draw(st.integers(start, start + size))
        stays &= (index[:, d] < first) | (index[:, d] >= first + draw(st.integers(0, 3)))
    stays[draw(st.integers(0, len(index) - 1))] = True
    extent = tuple((start, start + size) for start, size in sides)
    return index[stays].astype(np.uint64), extent


@settings(max_examples=30)
@given(holed_boxes(), st.booleans())
def test_describing_rows_that_lie_within_an_extent(
    given: tuple[npt.NDArray[np.uint64], Box], second: bool
) -> None:
    """The extent that rows are known not to leave says how far to look, and is never taken for theirs."""
    index, within = given
    refs = dict.fromkeys(coords.encode(index).to_pylist(), NATIVE)
    table = table_of_refs(7, refs)
    if second:
        table = chunks.concat_sorted([table, table_of_refs(9, {b"\x01": NATIVE})])
    found = describe(table, ID, {7: len(within), 9: 1}, {7: within})

    assert found[0].extent == tuple((int(i.min()), int(i.max()) + 1) for i in index.T)


def test_describing_nothing() -> None:
    """No rows, no arrays."""
    found = describe(chunks.CHUNK_SCHEMA.empty_table(), ID, {})

    assert len(found) == len(found.rows) == len(found.flags) == 0


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
