"""The algebra of boxes: every answer is that of sets of cells."""

from __future__ import annotations

import itertools
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icechunk_arrow.core import boxes as algebra
from icechunk_arrow.core.boxes import (
    Box,
    Boxes,
    around,
    boxes_of_run,
    contains,
    cut,
    grid_box,
    place_of,
    point_at,
    points_of,
    volume,
)
from tests.core.chunk_rows import Place, boxes, inside, meets

Cells = set[Place]
LARGEST = 2**62 - 1
ranks = st.integers(0, 3)


def rows(cells: Any, ndim: int) -> Any:
    """Cells as n × dimensions."""
    return np.array(list(cells), np.uint64).reshape(len(cells), ndim)


def several(ndim: int, most: int = 8) -> st.SearchStrategy[list[Box]]:
    return st.lists(boxes(ndim), max_size=most)


def some_cells(ndim: int) -> st.SearchStrategy[list[Place]]:
    return st.lists(st.tuples(*[st.integers(0, 9)] * ndim), max_size=20)


# -- one box


@given(ranks.flatmap(boxes), st.data())
def test_places_and_points_of_a_box(box: Box, data: st.DataObject) -> None:
    """A box is gone through in C order; a point is in it exactly if it is gone through."""
    cells = list(product(*(range(start, stop) for start, stop in box)))
    start = data.draw(st.integers(0, len(cells)))
    stop = data.draw(st.integers(start, len(cells)))

    assert volume(box) == len(cells)
    assert [point_at(box, place) for place in range(len(cells))] == cells
    assert [place_of(box, cell) for cell in cells] == list(range(len(cells)))
    assert list(map(tuple, points_of(box, start, stop).tolist())) == cells[start:stop]
    assert around(rows(cells, len(box))) == box
    other = data.draw(st.tuples(*[st.integers(0, 9)] * len(box)))
    assert contains(box, other) == (other in cells)


def test_an_empty_range_has_no_volume() -> None:
    assert volume(((5, 3), (0, 2))) == 0
    assert volume(()) == 1
    assert grid_box((3, 0)) == ((0, 3), (0, 0))


@given(
    st.lists(st.integers(0, 5), max_size=4),
    st.integers(0, 100),
    st.integers(0, 100),
    st.integers(1, 20),
)
@example([2, 3], 1, 5, 2)
def test_runs_come_apart_into_boxes(counts: list[int], start: int, stop: int, most: int) -> None:
    """Boxes hold the cells of a run, each once and in order; cut ones, too, and are not too large."""
    cells = list(product(*map(range, counts)))
    stop = min(stop, len(cells))
    start = min(start, stop)
    found = list(boxes_of_run(counts, start, stop))
    pieces = [piece for box in found for piece in cut(box, most)]

    assert [each for box in found for each in _cells(box)] == cells[start:stop]
    assert [each for piece in pieces for each in _cells(piece)] == cells[start:stop]
    assert all(len(_cells(piece)) <= most for piece in pieces)
    assert len(found) <= 2 * len(counts) + 1


def test_cuts_lie_at_steps() -> None:
    """A box is not cut through a step, even where it is too large."""
    pieces = list(cut(((3, 20), (0, 4)), 8, (5, 4)))

    assert pieces == [((low, high), (0, 4)) for low, high in ((3, 5), (5, 10), (10, 15), (15, 20))]


# -- many boxes


@given(ranks.flatmap(lambda n: st.tuples(st.just(n), several(n), several(n), boxes(n))))
def test_which_boxes_meet(question: tuple[int, list[Box], list[Box], Box]) -> None:
    """Boxes meet where they have a cell in common, and what they have in common is those cells."""
    ndim, ours, theirs, one = question
    found, others = Boxes.of(ours, ndim), Boxes.of(theirs, ndim)

    assert list(found) == ours == [found[number] for number in range(len(found))]
    assert found.volumes().tolist() == list(map(volume, ours))
    assert found.meet(one).tolist() == [meets(box, one) for box in ours]
    expected = [any(meets(box, other) for other in theirs) for box in ours]
    assert found.meet_any(others).tolist() == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algebra, "_PAIRS", 3)
        assert found.meet_any(others).tolist() == expected
    pairs = [inside(a) & inside(b) for a in ours for b in theirs if meets(a, b)]
    assert [inside(box) for box in found.common(others)] == pairs
    assert list(found.and_also(others)) == [*ours, *theirs]
    mask = found.meet(one)
    assert list(found.chosen(mask)) == [box for box in ours if meets(box, one)]
    if ours:
        assert found.around() == around(rows(set().union(*map(inside, ours)), ndim))


@given(ranks.flatmap(lambda n: st.tuples(st.just(n), several(n), some_cells(n))))
def test_which_points_lie_in_boxes(question: tuple[int, list[Box], list[Place]]) -> None:
    ndim, given_boxes, cells = question
    found, points = Boxes.of(given_boxes, ndim), rows(cells, ndim)
    sets = list(map(inside, given_boxes))

    assert found.hold_any(points).tolist() == [bool(each & set(cells)) for each in sets]
    assert found.inside(points).tolist() == [any(cell in each for each in sets) for cell in cells]
    for cell in cells:
        assert found.hold(cell).tolist() == [cell in each for each in sets]
        leaving = [
            any(i >= n for place in each for i, n in zip(place, cell, strict=True)) for each in sets
        ]
        assert found.leave(cell).tolist() == leaving


@given(ranks.flatmap(lambda n: st.tuples(st.just(n), several(n), boxes(n))))
def test_what_boxes_cover_together(question: tuple[int, list[Box], Box]) -> None:
    ndim, given_boxes, box = question
    apart: list[Box] = []
    for each in given_boxes:
        if not any(meets(each, other) for other in apart):
            apart.append(each)

    expected = bool(apart) and inside(box) <= set().union(*map(inside, apart))
    assert Boxes.of(apart, ndim).cover(box) == expected
    if apart:
        assert Boxes.of(list(cut(box, 2)), ndim).cover(box)


@given(ranks.flatmap(lambda n: st.tuples(st.just(n), several(n), st.data())))
def test_ranges_along_each_dimension(question: tuple[int, list[Box], st.DataObject]) -> None:
    """A box meets the product of some ranges where it meets one of them along every dimension."""
    ndim, given_boxes, data = question
    edges = st.sets(st.integers(0, 10), max_size=6).map(sorted)
    chosen = [data.draw(edges) for _ in range(ndim)]
    ranges = [np.array(each[: len(each) // 2 * 2], np.int64).reshape(-1, 2) for each in chosen]
    wanted = set(product(*({i for a, b in each.tolist() for i in range(a, b)} for each in ranges)))

    found = Boxes.of(given_boxes, ndim).meet_ranges(ranges)
    assert found.tolist() == [bool(inside(box) & wanted) for box in given_boxes]


@given(ranks.flatmap(lambda n: st.tuples(st.just(n), several(n, 12))))
def test_boxes_that_meet_one_another(question: tuple[int, list[Box]]) -> None:
    """A box is named exactly if it has a cell in common with another one."""
    ndim, given_boxes = question
    expected = [
        any(meets(one, other) for n, other in enumerate(given_boxes) if n != number)
        for number, one in enumerate(given_boxes)
    ]
    assert Boxes.of(given_boxes, ndim).meet_one_another().tolist() == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algebra, "_PAIRS", 3)
        assert Boxes.of(given_boxes, ndim).meet_one_another().tolist() == expected


@given(
    ranks.flatmap(
        lambda ndim: st.sets(st.tuples(*[st.integers(0, 4)] * ndim), max_size=40).map(
            lambda cells: (ndim, sorted(cells))
        )
    ),
    st.randoms(use_true_random=False),
)
def test_cells_unite_to_boxes(cells: tuple[int, list[Place]], random: Any) -> None:
    """Boxes hold exactly the cells, each once; a full grid is one box."""
    ndim, places = cells
    found = Boxes.of_cells(rows(random.sample(places, len(places)), ndim))
    whole = rows(list(product(*[range(3)] * ndim)), ndim)

    assert sorted(each for box in found for each in _cells(box)) == places
    assert len(Boxes.of_cells(whole)) == 1


def test_the_largest_numbers() -> None:
    """The largest index there is lies in boxes like any other."""
    far: Box = ((LARGEST - 1, LARGEST + 1), (0, 1))
    found = Boxes.of([far, ((0, 1), (0, 1))], 2)

    assert list(found) == [far, ((0, 1), (0, 1))]
    assert found.hold((LARGEST, 0)).tolist() == [True, False]
    assert found.hold_any(rows([(LARGEST, 0)], 2)).tolist() == [True, False]
    assert found.inside(rows([(LARGEST, 0), (LARGEST, 1)], 2)).tolist() == [True, False]
    assert found.leave((LARGEST, 1)).tolist() == [True, False]
    assert found.cover(far)


# -- labels


@given(st.integers(1, 3).flatmap(lambda ndim: st.lists(boxes(ndim), min_size=1, max_size=12)))
def test_boxes_with_a_cell_in_common_have_one_label(found: list[Box]) -> None:
    labels = Boxes.of(found, len(found[0])).labels()
    assert sorted(set(labels.tolist())) == list(range(labels.max() + 1))
    for one, other in itertools.combinations(range(len(found)), 2):
        if meets(found[one], found[other]):
            assert labels[one] == labels[other]


@given(st.lists(boxes(1), min_size=1, max_size=12))
def test_along_one_dimension_labels_are_the_connected_groups(found: list[Box]) -> None:
    labels = Boxes.of(found, 1).labels()
    groups = 0
    reach = -1
    for ((start, stop),) in sorted(found):
        groups += start >= reach
        reach = max(reach, stop)
    assert len(set(labels.tolist())) == groups


def test_boxes_of_a_grid_all_fall_apart() -> None:
    """Also where one dimension divides only what another one has divided before."""
    cells = np.array(list(itertools.product(range(4), range(3), range(2))), np.uint64)
    labels = Boxes(cells * 10, cells * 10 + 10).labels()
    assert len(set(labels.tolist())) == len(cells)


def test_labels_of_no_boxes_and_of_boxes_without_dimensions() -> None:
    assert Boxes.of([], 2).labels().tolist() == []
    assert Boxes.of([(), (), ()], 0).labels().tolist() == [0, 0, 0]


def _cells(box: Box) -> list[Place]:
    return list(product(*(range(start, stop) for start, stop in box)))
