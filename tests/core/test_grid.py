"""A grid knows exactly the chunks that zarr would write."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core.coords import MAX_INDEX
from icechunk_arrow.core.grid import MAX_CHUNK_INDEX, Grid, grid_of
from icechunk_arrow.errors import InvalidInputError
from tests.core.strategies import grids
from tests.core.zarr_documents import HAS_RECTILINEAR, plain, rectilinear_documents


def regular(shape: list[int], edges: list[int]) -> Grid:
    """A regular grid."""
    configuration = {"chunk_shape": edges}
    return grid_of(
        plain(shape=shape, chunk_grid={"name": "regular", "configuration": configuration})
    )


def rectilinear(shape: list[int], specs: list[Any]) -> Grid:
    """A rectilinear grid."""
    configuration = {"kind": "inline", "chunk_shapes": specs}
    return grid_of(
        plain(shape=shape, chunk_grid={"name": "rectilinear", "configuration": configuration})
    )


small_shapes = st.lists(st.integers(0, 12), max_size=3)
small_grids = small_shapes.flatmap(
    lambda shape: grids(shape).map(lambda grid: grid_of(plain(shape=shape, chunk_grid=grid)))
)


@given(small_grids)
def test_chunks_cover_the_array_without_overlap(grid: Grid) -> None:
    """Every element lies in exactly the chunk that chunk_of names, and no chunk is empty."""
    shape = tuple(axis.extent for axis in grid.axes)
    owner = {position: grid.chunk_of(position) for position in np.ndindex(shape)}
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for coord in itertools.product(*map(range, grid.chunk_counts)):
        origin, edges = grid.chunk_origin_and_shape(coord)
        inside = [
            range(start, min(start + edge, extent))
            for start, edge, extent in zip(origin, edges, shape, strict=True)
        ]
        assert all(inside)
        for position in itertools.product(*inside):
            assert position not in found
            found[position] = coord
    assert found == owner


@given(small_grids, st.data())
def test_contains_one_by_one_and_all_at_once(grid: Grid, data: st.DataObject) -> None:
    """The mask of many coordinates is the answer for each."""
    ndim = len(grid.axes)
    index = st.integers(0, 13) | st.integers(0, 2**64 - 1)
    rows = data.draw(st.lists(st.lists(index, min_size=ndim, max_size=ndim), max_size=8))
    coords = np.array(rows, dtype=np.uint64).reshape(len(rows), ndim)
    mask = grid.contains_all(coords)
    assert mask.dtype == np.bool_
    assert mask.tolist() == [grid.contains(row) for row in rows]
    inside = list(itertools.product(*map(range, grid.chunk_counts)))
    assert all(map(grid.contains, inside))
    assert grid.chunk_count == len(inside)


def test_contains_refuses_other_numbers_of_indexes_and_negative_ones() -> None:
    """A coordinate of another array's rank or below zero is in no chunk."""
    grid = regular([4, 4], [2, 2])
    assert grid.contains((1, 1))
    for coord in ((), (1,), (1, 1, 0), (-1, 0), (0, 2), (2, 0)):
        assert not grid.contains(coord)
    for coords in (np.zeros((2, 1), "u8"), np.zeros(2, "u8"), np.zeros((2, 2), "i8")):
        with pytest.raises(InvalidInputError, match="uint64 array of n rows and 2 columns"):
            grid.contains_all(coords)


@pytest.mark.parametrize(
    ("shape", "edges", "counts", "total"),
    [
        ([], [], (), 1),
        ([0], [5], (0,), 0),
        ([7, 0], [2, 3], (4, 0), 0),
        ([7], [7], (1,), 1),
        ([8], [7], (2,), 2),
        ([3], [10**12], (1,), 1),
        ([2**62], [1], (2**62,), 2**62),
        ([2**63 - 1, 2**63 - 1], [2, 4], (2**62, 2**61), 2**123),
    ],
)
def test_counts(shape: list[int], edges: list[int], counts: tuple[int, ...], total: int) -> None:
    """Scalars have one chunk, empty arrays none, and totals may pass 64 bits."""
    grid = regular(shape, edges)
    assert (grid.chunk_counts, grid.chunk_count) == (counts, total)
    assert grid.contains(tuple(count - 1 for count in counts)) is (total > 0)


def test_the_greatest_chunk_index_is_that_of_the_coord_encoding() -> None:
    """What a grid allows, a manifest can hold."""
    assert MAX_CHUNK_INDEX == MAX_INDEX
    with pytest.raises(InvalidInputError, match="use larger chunks"):
        regular([2**62 + 1], [1])


def test_positions_and_coordinates_outside_are_refused() -> None:
    """There is no guess about what lies beyond the array."""
    grid = regular([5, 4], [2, 2])
    assert grid.chunk_of((4, 3)) == (2, 1)
    assert grid.chunk_origin_and_shape((2, 1)) == ((4, 2), (2, 2))
    for position in ((5, 0), (-1, 0), (0,)):
        with pytest.raises(InvalidInputError, match=r"no element .* shape \(5, 4\)"):
            grid.chunk_of(position)
    for coord in ((3, 0), (0, -1), (0,)):
        with pytest.raises(InvalidInputError, match=r"no chunk .* \(3, 2\) chunks"):
            grid.chunk_origin_and_shape(coord)


def test_runs_are_never_written_out() -> None:
    """A grid of a million million chunks in a few bytes costs a few bytes."""
    grid = rectilinear([10**12 + 7], [[[1, 10**12], 3, [2, 2**62]]])
    assert grid.chunk_counts == (10**12 + 3,)
    assert grid.chunk_of((10**12 + 3,)) == (10**12 + 1,)
    assert grid.chunk_origin_and_shape((10**12 + 1,)) == ((10**12 + 3,), (2,))
    assert grid.chunk_shape == (3,)
    assert grid.axes[0].runs == ((1, 10**12), (3, 1), (2, 2**62))


@pytest.mark.skipif(not HAS_RECTILINEAR, reason="this zarr has no rectilinear grids")
def test_rectilinear_grids_agree_with_zarr() -> None:
    """Origins and lengths of all chunks are those that zarr itself computes."""
    found = rectilinear_documents()
    for data, sizes in found.values():
        grid = grid_of(json.loads(data))
        for axis, lengths in zip(grid.axes, sizes, strict=True):
            pairs = [axis.origin_and_edge(index) for index in range(axis.chunk_count)]
            assert [min(edge, axis.extent - origin) for origin, edge in pairs] == lengths
    grown, before, shrunk = (
        grid_of(json.loads(found[name][0])) for name in ("grown", "repeated", "shrunk")
    )
    assert grown.same_chunking(before)
    assert shrunk.same_chunking(before)


def test_same_chunking_looks_at_chunks_and_not_at_shapes() -> None:
    """A resized array keeps its chunks; another chunk shape or rank does not."""
    grid = regular([10, 10], [2, 5])
    assert grid.same_chunking(regular([0, 99], [2, 5]))
    assert not grid.same_chunking(regular([10, 10], [5, 2]))
    assert not grid.same_chunking(regular([10], [2]))
    assert regular([], []).same_chunking(regular([], []))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([[10, 3], 5], [[10, 3], 5, 6], True),  # as zarr grows one
        ([10, 10, [10, 1], 5], [[10, 3], 5], True),
        ([[10, 3], 5], [[10, 2], 5, 10], False),
        ([[10, 3], 5], 10, False),
        ([[10, 4]], 10, True),
        (10, 10, True),
        (10, 9, False),
        ([5], [6, 5], False),
    ],
)
def test_rectilinear_grids_keep_chunks_when_they_grow(one: Any, other: Any, same: bool) -> None:
    """Edges that only one of the two describes do not matter."""
    grids_ = (rectilinear([5], [one]), rectilinear([5], [other]))
    assert grids_[0].same_chunking(grids_[1]) is same
    assert grids_[1].same_chunking(grids_[0]) is same


@given(small_grids, small_grids)
def test_same_chunking_means_the_same_places(one: Grid, other: Grid) -> None:
    """Where it holds, chunks that both have begin at the same place and have the same length."""
    assert one.same_chunking(one)
    if one.same_chunking(other):
        counts = map(min, one.chunk_counts, other.chunk_counts)
        for coord in itertools.product(*map(range, counts)):
            assert one.chunk_origin_and_shape(coord) == other.chunk_origin_and_shape(coord)


@pytest.mark.parametrize(
    ("grid", "fact"),
    [
        (None, "must be an object"),
        ([], "must be an object"),
        ({}, "must be an object"),
        ("regular", "'regular' is not known here"),
        ({"name": "hexagonal", "configuration": {}}, "'hexagonal' is not known here"),
        ({"name": "regular"}, "'regular' needs the configuration"),
        ({"name": "regular", "configuration": {"chunk_shape": 2}}, "needs the configuration"),
        (
            {"name": "regular", "configuration": {"chunk_shape": [2, 3], "offset": 1}},
            "nothing else in it",
        ),
        ({"name": "regular", "configuration": {"chunk_shape": [2]}}, "has 1 entries"),
        ({"name": "regular", "configuration": {"chunk_shape": [2, 0]}}, "from 1 to .* not 0"),
        ({"name": "regular", "configuration": {"chunk_shape": [2, True]}}, "not True"),
        ({"name": "regular", "configuration": {"chunk_shape": [2, 3.0]}}, "not 3.0"),
        ({"name": "regular", "configuration": {"chunk_shape": [2, 2**63]}}, "from 1 to"),
        ({"name": "rectilinear", "configuration": {"chunk_shapes": [2, 3]}}, "needs the conf"),
        (
            {"name": "rectilinear", "configuration": {"kind": "file", "chunk_shapes": [2, 3]}},
            '"kind": "inline"',
        ),
        *(
            (
                {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": specs}},
                fact,
            )
            for specs, fact in (
                ([[], 3], "empty list of chunk edges"),
                ([[5], 3], "add up to 5, but its extent is 6"),
                ([[[3, 2, 1]], 3], r"not \[3, 2, 1\]"),
                ([[[3, 0], 9], 3], "not 0"),
                ([[0, 9], 3], "not 0"),
                ([["9"], 3], "not '9'"),
                ([[9]], "chunk_shapes has 1 entries"),
            )
        ),
    ],
)
def test_grids_whose_chunks_are_not_known_are_refused(grid: object, fact: str) -> None:
    """Every message says which rule the grid breaks."""
    with pytest.raises(InvalidInputError, match=fact) as caught:
        grid_of(plain(chunk_grid=grid))
    assert str(caught.value).startswith("chunk_grid")


def test_counts_multiply_as_python_integers() -> None:
    """No overflow, however many dimensions."""
    grid = regular([2**40] * 5, [1] * 5)
    assert grid.chunk_count == math.prod(grid.chunk_counts) == 2**200
