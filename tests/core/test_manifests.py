"""What a commit does to live manifests: taking rows out, describing what is left, merging."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core import coords, manifests
from icechunk_arrow.core.chunks import (
    DENSE,
    ChunkRef,
    concat_sorted,
    content_flags,
    form_flags,
    table_of_refs,
    volume,
)
from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.snapshot import Inventories, InventoryEntry
from tests.formats.kinds import ID
from tests.formats.strategies import chunk_tables, ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icechunk_arrow.core.chunks import Extent

Place = tuple[int, ...]
small = st.integers(0, 5)


@st.composite
def boxes(draw: st.DrawFn, ndim: int) -> Extent:
    """A small half-open range per dimension, never empty."""
    return tuple(
        (start, start + draw(st.integers(1, 4))) for start in [draw(small) for _ in range(ndim)]
    )


def inside(extent: Extent) -> set[Place]:
    """All coordinates of an extent."""
    return set(itertools.product(*(range(start, stop) for start, stop in extent)))


def table_of(array_id: int, places: Sequence[Place]) -> pa.Table:
    """References at these coordinates."""
    refs = {coords.encode_one(p): ChunkRef(file=ID, offset=0, length=1) for p in places}
    return table_of_refs(array_id, refs)


def places_of(table: pa.Table) -> list[tuple[int, Place]]:
    """Array and coordinates of every row."""
    return [(row["array_id"], coords.decode_one(row["coord"])) for row in table.to_pylist()]


def binary(places: Sequence[Place]) -> pa.Array:
    """Encoded coordinates."""
    return from_values([coords.encode_one(p) for p in places], pa.binary())


arrays = st.dictionaries(
    st.integers(1, 4),
    st.lists(st.tuples(small, small), min_size=1, max_size=12, unique=True),
    min_size=1,
    max_size=3,
)


@given(arrays, st.data())
def test_subtraction_takes_out_what_goes_and_nothing_else(
    held: dict[int, list[Place]], data: st.DataObject
) -> None:
    """Rows of removed arrays, of overwritten and deleted coordinates, and outside what is kept."""
    table = concat_sorted([table_of(i, places) for i, places in sorted(held.items())])
    removed = data.draw(st.sets(st.integers(1, 5), max_size=2))
    gone: dict[int, tuple[list[Place], Place | None]] = {
        array_id: (
            data.draw(st.lists(st.tuples(small, small), max_size=8)),
            data.draw(st.none() | st.tuples(small, small)),
        )
        for array_id in data.draw(st.sets(st.integers(1, 5), max_size=3))
    }
    left = manifests.subtract(
        table,
        {
            array_id: (
                binary(places),
                None if kept is None else tuple((0, stop) for stop in kept),
            )
            for array_id, (places, kept) in gone.items()
        },
        removed,
    )

    def stays(array_id: int, place: Place) -> bool:
        places, kept = gone.get(array_id, ([], None))
        return (
            array_id not in removed
            and place not in places
            and (kept is None or all(i < n for i, n in zip(place, kept, strict=True)))
        )

    assert places_of(left) == [each for each in places_of(table) if stays(*each)]


def test_subtraction_from_a_scalar() -> None:
    """The one chunk of an array without dimensions goes when it is named, and not by shrinking."""
    table = table_of(1, [()])

    assert manifests.subtract(table, {1: (binary([()]), None)}, ()).num_rows == 0
    assert manifests.subtract(table, {1: (binary([]), ())}, ()).num_rows == 1


@given(chunk_tables(), st.data())
def test_entries_describe_each_array(table: pa.Table, data: st.DataObject) -> None:
    """First row, number of rows, smallest extent and flags of every array in a manifest."""
    rows = table.to_pylist()
    ndims = {row["array_id"]: len(coords.decode_one(row["coord"])) for row in rows}
    found = manifests.entries_of(table, ID, ndims)

    assert found.keys() == ndims.keys()
    for array_id, entry in found.items():
        mine = [n for n, row in enumerate(rows) if row["array_id"] == array_id]
        part = table.slice(mine[0], len(mine))
        places = [coords.decode_one(rows[n]["coord"]) for n in mine]
        extent = tuple((min(i), max(i) + 1) for i in zip(*places, strict=True))
        assert (entry.manifest, entry.row, entry.row_count) == (ID, mine[0], len(mine))
        assert mine == list(range(mine[0], mine[0] + len(mine)))
        assert entry.extent == extent
        assert entry.is_dense == (volume(extent) == len(mine))
        assert entry.flags & ~DENSE == form_flags(table) | content_flags(part)


@given(st.integers(0, 3).flatmap(boxes))
def test_a_full_box_is_dense_and_rows_are_arithmetic(extent: Extent) -> None:
    """In a dense entry the row of a coordinate is its place in the extent, last index fastest."""
    table = concat_sorted([table_of(1, [(9,)]), table_of(2, sorted(inside(extent)))])
    entry = manifests.entries_of(table, ID, {1: 1, 2: len(extent)})[2]

    assert entry.is_dense
    assert entry.extent == extent
    for place in inside(extent):
        row = 0
        for index, (start, stop) in zip(place, extent, strict=True):
            row = row * (stop - start) + index - start
        assert places_of(table)[entry.row + row] == (2, place)
    if volume(extent) > 2:
        holed = table_of(2, [min(inside(extent)), max(inside(extent))])
        assert not manifests.entries_of(holed, ID, {2: len(extent)})[2].is_dense


def test_an_empty_manifest_has_no_entries() -> None:
    """Nothing is left, nothing is described."""
    assert manifests.entries_of(table_of(1, [(1,)]).slice(0, 0), ID, {}) == {}


def entry_of(extent: Extent, manifest: str = ID) -> InventoryEntry:
    """A dense entry."""
    return InventoryEntry(manifest=manifest, row=0, extent=extent, flags=5, row_count=1)


@st.composite
def questions(
    draw: st.DrawFn,
) -> tuple[list[Extent], Extent | None, Extent | None, Extent | None]:
    """Live extents, and what is written, deleted and kept."""
    ndim = draw(st.integers(0, 3))
    kept = st.tuples(*[st.tuples(st.just(0), small)] * ndim)
    return (
        draw(st.lists(boxes(ndim), min_size=1, max_size=5)),
        draw(st.none() | boxes(ndim)),
        draw(st.none() | boxes(ndim)),
        draw(st.none() | kept),
    )


@given(questions(), st.data())
def test_affected_entries_are_those_that_may_lose_a_chunk(
    question: tuple[list[Extent], Extent | None, Extent | None, Extent | None],
    data: st.DataObject,
) -> None:
    """An entry is affected exactly where a coordinate of its extent goes."""
    extents, written, deleted, kept = question
    names = data.draw(st.lists(ids, min_size=len(extents), max_size=len(extents), unique=True))
    entries = [entry_of(e, n) for e, n in zip(extents, names, strict=True)]
    inventories = Inventories.of(entries, len(extents[0]))
    going = set().union(*(inside(e) for e in (written, deleted) if e is not None))
    found = manifests.affected_entries(inventories, written, deleted, kept)

    for index, entry in enumerate(inventories):
        own = inside(entry.extent)
        outside = set() if kept is None else own - inside(kept)
        assert (index in found) == bool(own & going or outside)


@given(questions(), st.integers(0, 70))
def test_covered_entries_lose_everything(
    question: tuple[list[Extent], Extent | None, Extent | None, Extent | None], less: int
) -> None:
    """An entry that is dropped unread has no coordinate that stays, whatever its rows are."""
    extents, written, _, kept = question
    count = 0 if written is None else max(volume(written) - less, 1)
    dense = written is not None and count == volume(written)
    for extent in extents:
        own = inside(extent)
        stays = own if kept is None else own & inside(kept)
        if manifests.is_covered(entry_of(extent), written, count, kept):
            assert not stays or (dense and written is not None and own <= inside(written))
        elif dense and written is not None:
            assert not own <= inside(written)


counts = st.dictionaries(ids, st.integers(1, 3000) | st.integers(1, 2_000_000), max_size=60)


def class_of(count: int) -> int:
    """Size class: 1,024 rows, then eight times as many each."""
    return next(n for n in range(40) if count <= 1024 * 8**n)


@given(counts)
def test_merging_unites_manifests_of_one_size_class(row_counts: dict[str, int]) -> None:
    """Eight or more of one class are merged, all of them; fewer and large ones are left alone."""
    groups = manifests.merge_groups(row_counts)
    merged = [name for group in groups for name in group]

    assert len(merged) == len(set(merged))
    assert set(merged) <= row_counts.keys()
    for group in groups:
        assert len(group) >= manifests.MERGE_FAN
        assert group == sorted(group)
        assert len({class_of(row_counts[name]) for name in group}) == 1
    rest = [n for n in row_counts if n not in merged and 2 * row_counts[n] <= 1_000_000]
    for size_class in {class_of(row_counts[name]) for name in rest}:
        same = [name for name in rest if class_of(row_counts[name]) == size_class]
        assert len(same) < manifests.MERGE_FAN
    assert all(2 * row_counts[name] <= manifests.MAX_MANIFEST_ROWS for name in merged)


def test_a_thousand_appends_rewrite_each_row_a_few_times() -> None:
    """Merging keeps the number of manifests small at a cost that does not grow with each append."""
    live: dict[str, int] = {}
    numbers = itertools.count()
    rewritten = most = 0
    for _ in range(1000):
        for group in manifests.merge_groups(live):
            rows = sum(live.pop(name) for name in group)
            rewritten += rows
            live[f"{next(numbers):06}"] = rows
        live[f"{next(numbers):06}"] = 100
        most = max(most, len(live))

    assert sum(live.values()) == 100_000
    assert most <= 24
    assert rewritten <= 6 * 100_000


def test_numpy_rows_of_many_arrays() -> None:
    """Arrays whose ids do not fit a byte keep their own rows."""
    table = concat_sorted([table_of(i, [(0,), (1,)]) for i in (3, 300, 70_000)])
    found = manifests.entries_of(table, ID, dict.fromkeys((3, 300, 70_000), 1))

    assert {i: (e.row, e.row_count) for i, e in found.items()} == {
        3: (0, 2),
        300: (2, 2),
        70_000: (4, 2),
    }
    assert np.unique([e.manifest for e in found.values()]).tolist() == [ID]
