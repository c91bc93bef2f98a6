"""Inventories: what manifests hold of arrays, put together, taken apart, and looked into."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import volume
from icechunk_arrow.core.chunk_set import ChunkSet, subtract
from icechunk_arrow.core.chunks import (
    DENSE,
    concat_sorted,
    form_flags,
    rows_of_arrays,
)
from icechunk_arrow.core.inventory import NO_INVENTORY, Inventory, InventoryEntry, describe
from tests.core.chunk_rows import (
    Place,
    binary,
    boxes,
    content_flags,
    entry_of,
    extent_around,
    inside,
    places_of,
    small,
    table_of,
)
from tests.formats.kinds import ID
from tests.formats.strategies import chunk_tables

if TYPE_CHECKING:
    import pyarrow as pa

    from icechunk_arrow.core.boxes import Box

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
    """Rows of removed arrays; of others what is written, in a box, or outside what is kept."""
    table = concat_sorted([table_of(i, places) for i, places in sorted(held.items())])
    removed = data.draw(st.sets(st.integers(1, 5), max_size=2))
    gone: dict[int, tuple[set[Place], Box, Place | None]] = {
        array_id: (
            data.draw(st.sets(st.tuples(small, small), max_size=8)),
            data.draw(boxes(2)),
            data.draw(st.none() | st.tuples(small, small)),
        )
        for array_id in data.draw(st.sets(st.integers(1, 5), max_size=3))
    }
    left = subtract(
        table,
        {
            array_id: ChunkSet.of(
                2,
                written=binary(sorted(places)),
                boxes=[box for box in [block] if not inside(box) & set(places)],
                kept=kept,
            )
            for array_id, (places, block, kept) in gone.items()
        },
        removed,
    )

    def stays(array_id: int, place: Place) -> bool:
        if array_id not in gone:
            return array_id not in removed
        places, block, kept = gone[array_id]
        return (
            array_id not in removed
            and place not in places
            and (bool(inside(block) & places) or place not in inside(block))
            and (kept is None or all(i < n for i, n in zip(place, kept, strict=True)))
        )

    assert places_of(left) == [each for each in places_of(table) if stays(*each)]


def test_subtraction_from_a_scalar() -> None:
    """The one chunk of an array without dimensions goes when it is named, and not by shrinking."""
    table = table_of(1, [()])

    written, shrunk = ChunkSet.of(0, written=binary([()])), ChunkSet.of(0, kept=())
    assert subtract(table, {1: written}, ()).num_rows == 0
    assert subtract(table, {1: shrunk}, ()).num_rows == 1
    assert subtract(table, {2: written}, {3}).equals(table)


def described(table: pa.Table, ndims: dict[int, int]) -> dict[int, InventoryEntry]:
    """What a manifest holds, as an entry for each array."""
    found = describe(table, ID, ndims).by_owner()
    assert all(len(held) == 1 for held in found.values())
    return {array_id: held[0] for array_id, held in found.items()}


@given(chunk_tables(), st.data())
def test_entries_describe_each_array(table: pa.Table, data: st.DataObject) -> None:
    """First row, number of rows, smallest extent and flags of every array in a manifest."""
    rows = table.to_pylist()
    ndims = {row["array_id"]: len(coords.decode_one(row["coord"])) for row in rows}
    found = described(table, ndims)

    assert found.keys() == ndims.keys()
    for array_id, entry in found.items():
        mine = [n for n, row in enumerate(rows) if row["array_id"] == array_id]
        part = table.slice(mine[0], len(mine))
        places = [coords.decode_one(rows[n]["coord"]) for n in mine]
        extent = extent_around(places)
        assert (entry.manifest, entry.row, entry.row_count) == (ID, mine[0], len(mine))
        assert mine == list(range(mine[0], mine[0] + len(mine)))
        assert entry.extent == extent
        assert entry.is_dense == (volume(extent) == len(mine))
        assert entry.flags & ~DENSE == form_flags(table) | content_flags(part)


@given(st.integers(0, 3).flatmap(boxes))
def test_a_full_box_is_dense_and_rows_are_arithmetic(extent: Box) -> None:
    """In a dense entry the row of a coordinate is its place in the extent, last index fastest."""
    table = concat_sorted([table_of(1, [(9,)]), table_of(2, sorted(inside(extent)))])
    entry = described(table, {1: 1, 2: len(extent)})[2]

    assert entry.is_dense
    assert entry.extent == extent
    for place in inside(extent):
        row = 0
        for index, (start, stop) in zip(place, extent, strict=True):
            row = row * (stop - start) + index - start
        assert places_of(table)[entry.row + row] == (2, place)
    if volume(extent) > 2:
        holed = table_of(2, [min(inside(extent)), max(inside(extent))])
        assert not described(holed, {2: len(extent)})[2].is_dense


def test_an_empty_manifest_has_no_entries() -> None:
    """Nothing is left, nothing is described."""
    assert described(table_of(1, [(1,)]).slice(0, 0), {}) == {}


def test_rows_of_arrays() -> None:
    """Sorted rows fall into one run for each array."""
    table = concat_sorted([table_of(5, [(0,), (3,)]), table_of(2, [()]), table_of(9, [(1, 1)])])
    found = [column.tolist() for column in rows_of_arrays(table)]

    assert found == [[2, 5, 9], [0, 1, 3], [1, 2, 1]]
    assert [len(each) for each in rows_of_arrays(table.slice(0, 0))] == [0, 0, 0]


def test_numpy_rows_of_many_arrays() -> None:
    """Arrays whose ids do not fit a byte keep their own rows."""
    table = concat_sorted([table_of(i, [(0,), (1,)]) for i in (3, 300, 70_000)])
    found = described(table, dict.fromkeys((3, 300, 70_000), 1))

    assert {i: (e.row, e.row_count) for i, e in found.items()} == {
        3: (0, 2),
        300: (2, 2),
        70_000: (4, 2),
    }
    assert np.unique([e.manifest for e in found.values()]).tolist() == [ID]


@given(st.data())
def test_entries_of_many_manifests_are_sorted_by_array(data: st.DataObject) -> None:
    """Descriptions of several manifests put together are the inventories of each array."""
    ndims = {1: 0, 2: 1, 3: 3}
    held: dict[int, list[InventoryEntry]] = {array_id: [] for array_id in ndims}
    parts = []
    for number in range(data.draw(st.integers(0, 4))):
        chosen = sorted(data.draw(st.sets(st.sampled_from(sorted(ndims)), min_size=1)))
        extents = {i: data.draw(boxes(ndims[i])) for i in chosen}
        table = concat_sorted([table_of(i, sorted(inside(extents[i]))) for i in chosen])
        parts.append(describe(table, f"m{number}", ndims))
        row = 0
        for i in chosen:
            held[i].append(replace(entry_of(extents[i], f"m{number}"), row=row, flags=DENSE | 4))
            row += volume(extents[i])
    together = Inventory.united([NO_INVENTORY, *parts])
    found = together.by_owner()

    assert {i: list(each) for i, each in found.items()} == {
        i: list(Inventory.of(entries, ndims[i])) for i, entries in held.items() if entries
    }
    ordered = together.in_order()
    for i, ndim in ndims.items():
        mine = ordered.of_owner(i)
        assert list(mine) == list(found.get(i, NO_INVENTORY))
        assert list(mine.boxes) == [entry.extent for entry in mine]
        assert mine.names == tuple(entry.manifest for entry in mine)
        for place in data.draw(st.lists(st.tuples(*[small] * ndim), max_size=3)):
            expected = [e for e in mine if place in inside(e.extent)]
            assert mine.holding(place) == expected


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    """Entries of several arrays of several ranks, in no order."""
    parts = []
    for owner in draw(st.lists(st.integers(0, 4), max_size=8)):
        extent = draw(boxes(owner % 3))
        entry = entry_of(extent, draw(st.sampled_from("abcd")), draw(st.none() | st.just(1)))
        parts.append(Inventory.of([entry], owner % 3, owner))
    return Inventory.united(parts)


def listed(found: Inventory) -> list[tuple[int, InventoryEntry]]:
    """Owners and entries."""
    return list(zip(found.owners.tolist(), found, strict=True))


@given(inventories(), inventories(), st.data())
def test_inventories_as_lists_of_entries(
    one: Inventory, other: Inventory, data: st.DataObject
) -> None:
    """Whatever is done to the columns is what would be done to a list of entries."""
    numbers = np.array(data.draw(st.permutations(range(len(one)))), np.int64)
    numbers = numbers[: data.draw(st.integers(0, len(one)))]
    some = one.chosen(numbers)
    assert listed(some) == [listed(one)[number] for number in numbers.tolist()]
    assert listed(some.named()) == listed(some)
    assert some.named().manifests == tuple(dict.fromkeys(some.names))
    both = Inventory.united([one, some, other])
    assert listed(both) == [*listed(one), *listed(some), *listed(other)]
    assert sorted(both.manifests) == sorted(set(both.names))
    ordered = sorted(listed(both), key=lambda e: (e[0], e[1].extent, e[1].manifest))
    assert [(e[0], e[1].extent) for e in listed(both.in_order())] == [
        (e[0], e[1].extent) for e in ordered
    ]
    assert listed(both.without({"a", "c"})) == [
        each for each in listed(both) if each[1].manifest not in {"a", "c"}
    ]
    assert one.chunk_count == sum(entry.row_count for entry in one)
    sums = dict.fromkeys(one.manifests, 0)
    for entry in one:
        sums[entry.manifest] += entry.row_count
    assert one.row_sums().tolist() == list(sums.values())
    places = np.array([3, -1, 0, 4, 1], np.int64)
    assert listed(one.moved(places)) == sorted(
        ((int(places[owner]), entry) for owner, entry in listed(one) if places[owner] >= 0),
        key=lambda each: each[0],
    )
    touched = {2, 3}
    by_owner = sorted(listed(both), key=lambda each: each[0])
    expected = [
        each
        for owner in range(5)
        for each in (
            sorted(
                (e for e in by_owner if e[0] == owner), key=lambda e: (e[1].extent, e[1].manifest)
            )
            if owner in touched
            else [e for e in by_owner if e[0] == owner]
        )
    ]
    found = listed(both.in_order(touched=np.array(sorted(touched))))
    assert [(owner, e.extent, e.manifest) for owner, e in found] == [
        (owner, e.extent, e.manifest) for owner, e in expected
    ]
