"""Cuts of large arrays: boxes that fit, every chunk in one, and manifests of whole boxes."""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core.splits import axis_of, box_numbers, box_of, cuts, keeps_order

if TYPE_CHECKING:
    import numpy.typing as npt

Numbers = np.ndarray[Any, np.dtype[np.uint64]]


def whole_grid(counts: tuple[int, ...]) -> Numbers:
    """The coordinates of all chunks, in order."""
    found = list(itertools.product(*map(range, counts)))
    return np.array(found, np.uint64).reshape(len(found), len(counts))


@pytest.mark.parametrize(
    ("along", "names", "ndim", "axis"),
    [
        (None, None, 3, 0),
        (None, ("x", "y"), 2, 0),
        (0, None, 1, 0),
        (2, None, 3, 2),
        (2, None, 2, 0),
        (0, None, 0, 0),
        (5, None, 0, 0),
        ("y", ("t", "y", "x"), 3, 1),
        ("y", ("t", None, "y"), 3, 2),
        ("z", ("t", "y"), 2, 0),
        ("y", None, 2, 0),
    ],
)
def test_the_axis_that_is_named_or_else_the_slowest(
    along: int | str | None, names: tuple[str | None, ...] | None, ndim: int, axis: int
) -> None:
    """A set is for many arrays: those without the axis are cut along the slowest."""
    assert axis_of(along, names, ndim) == axis


@pytest.mark.parametrize(
    ("counts", "limit", "axis", "box"),
    [
        ((10, 10), 100, 0, (10, 10)),
        ((10, 10), 99, 0, (9, 10)),
        ((10, 10), 99, 1, (10, 9)),
        ((1000, 4, 4), 64, 0, (4, 4, 4)),
        ((1000, 4, 4), 63, 0, (3, 4, 4)),
        ((1000, 100, 100), 100, 0, (1, 1, 100)),
        ((1000, 100, 100), 250, 0, (1, 2, 100)),
        ((1000, 100, 100), 99, 0, (1, 1, 99)),
        ((1000, 100, 10), 5000, 2, (50, 100, 1)),
        ((1000, 100, 10), 1, 2, (1, 1, 1)),
        ((2**62, 2**62), 2**16, 0, (1, 2**16)),
        ((2**62, 3), 2**16, 0, (21845, 3)),
        ((0, 5), 100, 0, (1, 5)),
        ((), 5, 0, ()),
        ((7,), 100, 0, (7,)),
    ],
)
def test_boxes_by_hand(
    counts: tuple[int, ...], limit: int, axis: int, box: tuple[int, ...]
) -> None:
    """The whole grid where it fits; else the axis is reduced; else the other ones too."""
    assert box_of(counts, limit, axis) == box


grids = st.lists(st.integers(0, 7), min_size=1, max_size=4).map(tuple)


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    """A small grid, a limit and an axis."""
    counts = draw(grids)
    return counts, draw(st.integers(1, 60)), draw(st.integers(0, len(counts) - 1))


@given(cases())
def test_every_chunk_is_in_one_box_and_no_box_is_too_large(
    case: tuple[tuple[int, ...], int, int],
) -> None:
    """Numbers tell boxes apart exactly, and are counted with the axis slowest."""
    counts, limit, axis = case
    box = box_of(counts, limit, axis)
    index = whole_grid(counts)
    numbers = box_numbers(index, counts, box, axis)
    order = [axis, *(each for each in range(len(counts)) if each != axis)]
    places = [tuple(int(row[each]) // box[each] for each in order) for row in index]

    assert math.prod(box) <= limit
    assert numbers.dtype == np.uint64
    by_place = dict(zip(places, numbers.tolist(), strict=True))
    assert [by_place[place] for place in places] == numbers.tolist()
    assert [by_place[place] for place in sorted(by_place)] == list(range(len(by_place)))


@given(
    st.lists(st.integers(1, 2**62), min_size=1, max_size=4).map(tuple),
    st.integers(1, 2**22),
    st.integers(0, 3),
)
def test_no_box_is_too_large_or_needlessly_small(
    counts: tuple[int, ...], limit: int, axis: int
) -> None:
    """One step more along an axis that is cut would be too much."""
    axis = min(axis, len(counts) - 1)
    box = box_of(counts, limit, axis)

    assert math.prod(box) <= limit
    assert all(step <= count for step, count in zip(box, counts, strict=True))
    for each, (step, count) in enumerate(zip(box, counts, strict=True)):
        if step < count:
            assert math.prod(box) // step * (step + 1) > limit, each


@given(cases(), st.integers(0, 50))
def test_an_array_that_grows_keeps_its_cuts(
    case: tuple[tuple[int, ...], int, int], more: int
) -> None:
    """Along the axis of the cuts: a chunk that shared a box with another still does."""
    counts, limit, axis = case
    grown = tuple(count + more * (each == axis) for each, count in enumerate(counts))
    box, later = box_of(counts, limit, axis), box_of(grown, limit, axis)

    if box[axis] < counts[axis]:
        assert later == box
    index = whole_grid(counts)
    before = box_numbers(index, counts, box, axis)
    after = box_numbers(index, grown, later, axis)
    assert len(set(zip(before.tolist(), after.tolist(), strict=True))) == len(set(before.tolist()))


@given(cases())
def test_keeps_order_is_what_sorting_shows(case: tuple[tuple[int, ...], int, int]) -> None:
    """True exactly if boxes follow each other in the order of coordinates."""
    counts, limit, axis = case
    for box in (box_of(counts, limit, axis), tuple(max(1, (c + limit) // 3) for c in counts)):
        numbers = box_numbers(whole_grid(counts), counts, box, axis)

        in_order = bool((numbers[1:] >= numbers[:-1]).all())
        assert keeps_order(box, counts, axis) == in_order or not math.prod(counts)


def test_usual_cuts_keep_the_order() -> None:
    """Along the slowest axis nothing has to be sorted again."""
    assert keeps_order(box_of((1000, 100, 100), 2500, 0), (1000, 100, 100))
    assert keeps_order(box_of((10, 10), 100, 1), (10, 10), 1)
    assert not keeps_order(box_of((10, 10), 50, 1), (10, 10), 1)
    assert keeps_order((), ())


# Numbers of very large grids


HUGE = 2**62


@given(
    st.lists(st.integers(1, HUGE), min_size=1, max_size=4).map(tuple),
    st.integers(1, 2**22),
    st.data(),
)
def test_numbers_of_any_grid_can_be_sorted(
    counts: tuple[int, ...], limit: int, data: st.DataObject
) -> None:
    """Where 64 bits are too few, neighbours share a number: order and boxes are never torn."""
    axis = data.draw(st.integers(0, len(counts) - 1))
    rows = data.draw(
        st.lists(
            st.tuples(*(st.integers(0, c - 1) | st.sampled_from([0, c - 1]) for c in counts)),
            max_size=8,
        )
    )
    box = box_of(counts, limit, axis)
    numbers = box_numbers(np.array(rows, np.uint64).reshape(-1, len(counts)), counts, box, axis)
    order = [axis, *(each for each in range(len(counts)) if each != axis)]
    places = [tuple(row[each] // box[each] for each in order) for row in rows]
    boxes = math.prod(-(-count // step) for count, step in zip(counts, box, strict=True))

    found = sorted(zip(places, numbers.tolist(), strict=True))
    assert [number for _, number in found] == sorted(numbers.tolist())
    if boxes <= 2**64:
        assert len(set(numbers.tolist())) == len(set(places))
    else:
        assert len({number for _, number in found}) <= len(set(places))


def test_a_grid_beyond_64_bits_is_still_told_apart() -> None:
    """Sharing begins with the fastest axis, and takes no more than is needed."""
    counts = (HUGE, HUGE)
    index = np.array([[0, 0], [0, HUGE - 1], [1, 0], [HUGE - 1, HUGE - 1]], np.uint64)
    numbers = box_numbers(index, counts, (1, 1), 0).tolist()

    assert numbers == [0, 3, 4, 2**64 - 1]
    limit = 2**16
    box = box_of((2**40, 2**40), limit, 0)
    assert box_numbers(index[:1], (2**40, 2**40), box, 0).tolist() == [0]
    assert box_numbers(np.array([[2**40 - 1] * 2], np.uint64), (2**40, 2**40), box, 0) == 2**64 - 1


def test_scalars_have_one_box() -> None:
    """An array without dimensions has one chunk."""
    assert box_numbers(np.zeros((1, 0), np.uint64), (), (), 0).tolist() == [0]


# Cuts


def plain_cuts(numbers: list[int], limit: int) -> list[int]:
    """The same in the plainest way: box by box."""
    found, start, row = [], 0, 0
    for _, group in itertools.groupby(numbers):
        count = len(list(group))
        if row + count - start > limit and row > start:
            found.append(row)
            start = row
        while row + count - start > limit:
            start += limit
            found.append(start)
        row += count
    return found + [row] * (row > start)


runs = st.lists(st.integers(1, 9), max_size=20).map(
    lambda counts: np.repeat(np.arange(len(counts), dtype=np.uint64), counts)
)


@given(runs, st.integers(1, 12))
def test_manifests_are_whole_boxes_as_many_as_fit(
    numbers: npt.NDArray[np.uint64], limit: int
) -> None:
    """No manifest above the limit, all rows in one; a cut within a box only where it is too large."""
    found = cuts(numbers, limit, last=True)
    sizes = np.diff([0, *found])

    assert found == plain_cuts(numbers.tolist(), limit)
    assert sizes.sum() == len(numbers)
    assert all(0 < size <= limit for size in sizes)
    largest = int(np.bincount(numbers.astype(int)).max()) if len(numbers) else 0
    if largest <= limit:
        assert all(numbers[row] != numbers[row - 1] for row in found[:-1])
        two = sizes[:-1] + sizes[1:]
        assert (two + largest > limit).all()


@given(runs, st.integers(1, 12), st.lists(st.integers(0, 200), max_size=6))
def test_cuts_of_a_stream_are_those_of_the_whole(
    numbers: npt.NDArray[np.uint64], limit: int, ends: list[int]
) -> None:
    """Wherever batches end; and what is kept back stays within the limit and one batch."""
    found: list[int] = []
    start = 0
    for end in sorted(min(end, len(numbers)) for end in ends):
        batch = cuts(numbers[start:end], limit, last=False)
        found += [start + row for row in batch]
        start = found[-1] if found else 0
        assert end - start <= limit
    found += [start + row for row in cuts(numbers[start:], limit, last=True)]

    assert found == cuts(numbers, limit, last=True)


@pytest.mark.parametrize("last", [True, False])
def test_nothing_has_no_cuts(*, last: bool) -> None:
    """No rows, no manifests."""
    assert cuts(np.zeros(0, np.uint64), 5, last=last) == []


def test_a_full_manifest_waits_for_the_next_row() -> None:
    """It is not known yet whether the box goes on."""
    numbers = np.array([0, 0, 1, 1], np.uint64)

    assert cuts(numbers, 4, last=False) == []
    assert cuts(numbers, 3, last=False) == [2]
    assert cuts(numbers, 4, last=True) == [4]


def test_ten_million_rows_of_a_sparse_array_are_cut_at_once() -> None:
    """Each row in a box of its own: the work is that of manifests, not of boxes."""
    numbers = np.arange(0, 10**8, 10, dtype=np.uint64)
    start = time.process_time()
    found = cuts(numbers, 65_536, last=True)
    seconds = time.process_time() - start

    assert len(found) == -(-len(numbers) // 65_536)
    assert seconds < 3  # measured: 0.1


def test_cut_manifests_are_boxes_apart() -> None:
    """A dense array cut by column: manifests do not overlap, and each is within the limit."""
    counts, limit = (40, 30), 100
    axis = axis_of("x", ("y", "x"), 2)
    box = box_of(counts, limit, axis)
    index = whole_grid(counts)
    numbers = box_numbers(index, counts, box, axis)
    order = np.argsort(numbers, kind="stable")
    stops = cuts(numbers[order], limit, last=True)
    parts = [index[order][a:b] for a, b in itertools.pairwise([0, *stops])]
    extents = [(part.min(axis=0), part.max(axis=0)) for part in parts]

    assert box == (40, 2)
    assert [len(part) for part in parts] == [80] * 15
    for (low, high), (other_low, other_high) in itertools.combinations(extents, 2):
        assert (high < other_low).any() or (other_high < low).any()
