"""Labels of boxes: none that share a cell are told apart, and what is cut along a grid falls apart."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core.overlaps import overlapping
from tests.core.chunk_rows import boxes, meets


@given(st.integers(1, 3).flatmap(lambda ndim: st.lists(boxes(ndim), min_size=1, max_size=12)))
def test_boxes_with_a_cell_in_common_have_one_label(found: list[Any]) -> None:
    array = np.array(found, np.uint64)
    labels = overlapping(array[:, :, 0], array[:, :, 1])
    assert sorted(set(labels.tolist())) == list(range(labels.max() + 1))
    for one, other in itertools.combinations(range(len(found)), 2):
        if meets(found[one], found[other]):
            assert labels[one] == labels[other]


@given(st.lists(boxes(1), min_size=1, max_size=12))
def test_along_one_dimension_labels_are_the_connected_groups(found: list[Any]) -> None:
    array = np.array(found, np.uint64)
    labels = overlapping(array[:, :, 0], array[:, :, 1])
    groups = 0
    reach = -1
    for ((start, stop),) in sorted(found):
        groups += start >= reach
        reach = max(reach, stop)
    assert len(set(labels.tolist())) == groups


def test_boxes_of_a_grid_all_fall_apart() -> None:
    """Also where one dimension divides only what another one has divided before."""
    cells = np.array(list(itertools.product(range(4), range(3), range(2))), np.uint64)
    labels = overlapping(cells * 10, cells * 10 + 10)
    assert len(set(labels.tolist())) == len(cells)


def test_no_boxes_and_boxes_without_dimensions() -> None:
    none = np.zeros((0, 2), np.uint64)
    assert overlapping(none, none).tolist() == []
    scalars = np.zeros((3, 0), np.uint64)
    assert overlapping(scalars, scalars).tolist() == [0, 0, 0]
