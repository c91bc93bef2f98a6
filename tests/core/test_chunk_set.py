"""Sets of chunks: what belongs to them, and what their extents alone tell about a manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import grid_box
from icechunk_arrow.core.chunk_set import ChunkSet
from icechunk_arrow.core.inventory import Inventory
from tests.core.chunk_rows import (
    Place,
    binary,
    boxes,
    entries,
    entry_of,
    extent_around,
    inside,
    meets,
    small,
)

if TYPE_CHECKING:
    from icechunk_arrow.core.boxes import Box

LARGEST = 2**62 - 1


@dataclass
class Parts:
    """What a set is made of, and the same as plain sets of places."""

    ndim: int
    written: set[Place]
    deleted: set[Place]
    boxes: list[Box]
    bulk: dict[str, tuple[Box, set[Place]]]
    kept: Place | None

    grid: Box | None = None
    """Something that no written place leaves; None where that is not said."""

    def chunk_set(self) -> ChunkSet:
        """The set, made as sessions and conflicts make it."""
        bulk = [entry_of(extent, name, len(rows)) for name, (extent, rows) in self.bulk.items()]
        return ChunkSet.of(
            self.ndim,
            written=binary(sorted(self.written)),
            deleted=binary(sorted(self.deleted)),
            inventory=Inventory.of(bulk, self.ndim),
            boxes=self.boxes,
            kept=self.kept,
            within=self.grid,
        )

    @property
    def sparse(self) -> dict[str, tuple[Box, set[Place]]]:
        """Runs with holes: which rows they have is not known without reading."""
        return {n: (e, rows) for n, (e, rows) in self.bulk.items() if rows != inside(e)}

    def known(self, place: Place) -> bool:
        """Whether a place belongs to the set by what is known without reading."""
        return (
            place in self.written
            or place in self.deleted
            or any(place in inside(box) for box in self.boxes)
            or any(place in rows for n, (_, rows) in self.bulk.items() if n not in self.sparse)
            or (
                self.kept is not None
                and any(i >= count for i, count in zip(place, self.kept, strict=True))
            )
        )

    def all_of(self, place: Place) -> bool:
        """Whether a place belongs to the set."""
        return self.known(place) or any(place in rows for _, rows in self.sparse.values())


def grids_around(places: set[Place], ndim: int) -> st.SearchStrategy[Box]:
    """Grids that hold some places: those that they fill to the end, and larger ones."""
    most = [max((place[d] for place in places), default=0) for d in range(ndim)]
    return st.tuples(*(st.tuples(st.just(0), st.integers(n + 1, n + 3)) for n in most))


@st.composite
def parts(draw: st.DrawFn) -> Parts:
    """Parts of a set; boxes, bulk and what is written have no chunk in common, as in a session."""
    ndim = draw(st.integers(0, 3))
    full = draw(boxes(ndim))
    some = st.sets(st.tuples(*[small] * ndim), max_size=8)
    written = inside(full) if draw(st.booleans()) else draw(some)
    taken = set(written)
    found, bulk = [], {}
    for number, extent in enumerate(draw(st.lists(boxes(ndim), max_size=4))):
        if inside(extent) & taken:
            continue
        if draw(st.booleans()):
            found.append(extent)
            taken |= inside(extent)
            continue
        rows = draw(st.sets(st.sampled_from(sorted(inside(extent))), min_size=1))
        around = extent_around(rows) if ndim else ()
        bulk[f"m{number}"] = (around, rows)
        taken |= inside(around)
    return Parts(
        ndim=ndim,
        written=written,
        deleted=draw(some),
        boxes=found,
        bulk=bulk,
        kept=draw(st.none() | st.tuples(*[small] * ndim)),
        grid=draw(st.none() | grids_around(written, ndim)),
    )


@given(parts(), st.data())
def test_membership(found: Parts, data: st.DataObject) -> None:
    """What was written, deleted, stands in a box or outside of what is kept: this, and nothing else."""
    where = st.tuples(*[st.integers(0, 9)] * found.ndim)
    places = data.draw(st.lists(where, unique=True, max_size=30)) + sorted(found.written)
    chunks = found.chunk_set()

    assert chunks.mask(binary(places)).tolist() == [found.known(p) for p in places]


@given(parts(), st.data())
def test_membership_with_what_was_read(found: Parts, data: st.DataObject) -> None:
    """Within an extent, reading the manifests that the set names is enough to know its members."""
    extent = data.draw(boxes(found.ndim))
    chunks = found.chunk_set()
    names = chunks.sparse_manifests(extent)
    assert sorted(names) == sorted(n for n, (e, _) in found.sparse.items() if meets(e, extent))
    chunks = chunks.with_coordinates([binary(found.bulk[name][1]) for name in names])
    places = sorted(inside(extent))

    assert chunks.mask(binary(places)).tolist() == [found.all_of(p) for p in places]


@given(parts(), st.data())
def test_touching_is_exact(found: Parts, data: st.DataObject) -> None:
    """An entry is touched where a place of its extent belongs to the set, or may by a run's extent."""
    held = entries(data.draw(st.lists(boxes(found.ndim), max_size=6)), found.ndim)
    touched = found.chunk_set().touching(held.boxes)

    assert touched == [
        number
        for number, entry in enumerate(held)
        if any(found.known(place) for place in inside(entry.extent))
        or any(meets(extent, entry.extent) for extent, _ in found.sparse.values())
    ]


@given(parts(), st.data())
def test_a_covered_entry_has_nothing_that_stays(found: Parts, data: st.DataObject) -> None:
    """An entry is dropped unread only if every place of its extent goes; and if boxes fill it, it is."""
    chunks = found.chunk_set()
    shown = data.draw(st.lists(boxes(found.ndim), max_size=4))
    shown += [extent for extent, _ in found.bulk.values()] + found.boxes
    dense = [e for n, (e, _) in found.bulk.items() if n not in found.sparse]
    filled = set().union(*map(inside, [*found.boxes, *dense]))
    if len(found.written) > 1 and found.written == inside(extent_around(found.written)):
        shown.append(extent_around(found.written))
        filled |= found.written
    for extent in shown:
        places = inside(extent)
        covered = chunks.covers(entry_of(extent, row_count=1))
        assert not covered or all(found.known(place) for place in places)
        assert covered or not places <= filled
        if found.kept is not None and not meets(extent, grid_box(found.kept)):
            assert covered


def test_what_fills_a_box_is_known_by_the_box() -> None:
    """A full block of written chunks covers a manifest of that block without its rows being read."""
    full = sorted(inside(((2, 5), (1, 4))))
    block = entry_of(((2, 5), (1, 4)), row_count=4)

    assert ChunkSet.of(2, written=binary(full)).covers(block)
    assert not ChunkSet.of(2, written=binary(full[:-1])).covers(block)
    assert not ChunkSet.of(2, written=binary([*full[:-1], (9, 9)])).covers(block)
    assert not ChunkSet.of(2, written=binary(full)).covers(entry_of(((2, 6), (1, 4))))


def test_several_boxes_cover_together() -> None:
    """What boxes of several bulk cover adds up."""
    halves = [entry_of(((0, 3), (0, 4)), "m1"), entry_of(((3, 6), (0, 4)), "m2")]
    both = ChunkSet.of(2, inventory=Inventory.of(halves, 2))

    assert both.covers(entry_of(((1, 5), (1, 4)), row_count=3))
    assert not both.covers(entry_of(((1, 7), (1, 4)), row_count=3))
    assert not ChunkSet.of(2, inventory=Inventory.of(halves[:1], 2)).covers(
        entry_of(((1, 5), (1, 4)))
    )


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_scattered_chunks_touch_only_what_holds_them(ndim: int) -> None:
    """A hundred chunks all over an array touch a hundred of a thousand manifests, not all of them."""
    count = 1000
    across = ((0, 4),) * (ndim - 1)
    held = entries([((n * 10, n * 10 + 10), *across) for n in range(count)], ndim)
    wanted = np.random.default_rng(7).choice(count, 100, replace=False)
    places = [(int(n) * 10 + int(n) % 10, *(3,) * (ndim - 1)) for n in wanted]
    touched = ChunkSet.of(ndim, written=binary(places)).touching(held.boxes)

    assert touched == sorted(int(held.boxes.starts[:, 0].searchsorted(n * 10)) for n in wanted)


def test_many_points_and_many_extents_are_compared_in_parts() -> None:
    """More pairs than are held at once give the same answer."""
    held = entries([((n * 8, n * 8 + 4),) for n in range(900)], 1)
    every = np.arange(0, 900 * 8, dtype=np.uint64)
    free = every[every % 8 >= 4]
    points = np.append(np.tile(free, 2), np.array([8 * 700 + 1], np.uint64)).reshape(-1, 1)
    chunks = ChunkSet.of(1, deleted=coords.encode(points))

    assert len(points) * 900 > 1 << 20
    assert [held[n].extent[0][0] for n in chunks.touching(held.boxes)] == [8 * 700]
    rows = [((n, n + 1),) for n in free.tolist()]
    boxed = ChunkSet.of(1, boxes=[*rows * 2, ((8 * 700, 8 * 700 + 1),)])
    assert boxed.touching(held.boxes) == chunks.touching(held.boxes)


def test_the_chunk_of_a_scalar() -> None:
    """An array without dimensions has one chunk, which is written or deleted, and never outside."""
    held = entries([()], 0)
    for chunks in (ChunkSet.of(0, written=binary([()])), ChunkSet.of(0, deleted=binary([()]))):
        assert chunks.touching(held.boxes) == [0]
        assert chunks.mask(binary([()])).tolist() == [True]
    bulk = ChunkSet.of(0, inventory=held)
    assert bulk.touching(held.boxes) == [0]
    assert bulk.covers(held[0])
    for chunks in (ChunkSet.of(0), ChunkSet.of(0, kept=())):
        assert chunks.touching(held.boxes) == []
        assert not chunks.covers(held[0])
        assert chunks.mask(binary([()])).tolist() == [False]


def test_places_far_out() -> None:
    """The largest index there is belongs to extents and boxes like any other."""
    extent = ((LARGEST - 1, LARGEST + 1), (0, 1))
    held = entries([extent, ((0, 1), (0, 1))], 2)
    far = next(n for n in range(2) if held[n].extent == extent)

    assert ChunkSet.of(2, deleted=binary([(LARGEST, 0)])).touching(held.boxes) == [far]
    box = ChunkSet.of(2, boxes=[extent])
    assert box.touching(held.boxes) == [far]
    assert box.covers(held[far])
    assert box.mask(binary([(0, 0), (LARGEST, 0)])).tolist() == [False, True]
    shrunk = ChunkSet.of(2, kept=(LARGEST, 1))
    assert shrunk.touching(held.boxes) == [far]
    assert not shrunk.covers(held[far])


def test_an_empty_set_touches_nothing() -> None:
    """Nothing written, nothing goes."""
    chunks = ChunkSet.of(2)

    assert chunks.touching(entries([((0, 9), (0, 9))], 2).boxes) == []
    assert ChunkSet.of(2, kept=(0, 0)).touching(entries([], 2).boxes) == []
