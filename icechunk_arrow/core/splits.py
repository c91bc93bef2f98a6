"""Where an array is cut when it has more references than a manifest takes: along its chunk grid.

The grid is divided into equal boxes of at most so many chunks; a manifest holds whole neighbouring boxes. Boxes
begin at the grid's origin, so an array that grows along the axis of the cuts keeps the cuts that it has.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["axis_of", "box_numbers", "box_of", "cuts", "keeps_order"]


def axis_of(
    split_along: int | str | None, dimension_names: Sequence[str | None] | None, ndim: int
) -> int:
    """The axis along which an array is cut.

    A set is for many arrays, and not each of them has the axis or the dimension that the set names: such an
    array is cut along its slowest axis, 0, as one is where nothing is named.
    """
    if isinstance(split_along, str):
        names = list(dimension_names or ())
        return names.index(split_along) if split_along in names else 0
    return split_along if split_along is not None and split_along < ndim else 0


def box_of(counts: Sequence[int], limit: int, axis: int) -> tuple[int, ...]:
    """The shape, in chunks, of boxes of at most ``limit`` chunks.

    The whole grid where it fits. Else it is reduced along the axis; where one chunk along it is too much, along
    the other axes as well, from the slowest on.

    Parameters
    ----------
    counts
        The chunks of the grid in each dimension.
    limit
        The most chunks of a box, from 1.
    axis
        The axis to be cut first. Where it is cut does not depend on how far the grid reaches along it.
    """
    assert limit > 0
    box = [max(count, 1) for count in counts]
    for each in _axis_first(axis, len(box)):
        rest = math.prod(box) // box[each]
        box[each] = min(box[each], max(limit // rest, 1))
    return tuple(box)


def box_numbers(
    index: npt.NDArray[np.uint64], counts: Sequence[int], box: Sequence[int], axis: int
) -> npt.NDArray[np.uint64]:
    """The number of the box of each chunk: counted along the axis slowest, then along the other ones in order.

    Numbers depend on grid and boxes alone, so those of several batches can be compared. In a grid with more
    boxes than 64 bits can number, neighbours along the fastest axes share a number.

    Parameters
    ----------
    index
        One row per chunk and one column per dimension.
    counts, box, axis
        As for :func:`box_of`.
    """
    numbers = np.zeros(len(index), np.uint64)
    used = 1
    for each in _axis_first(axis, len(box)):
        step = box[each]
        along = -(-counts[each] // step)
        if along <= 1:
            continue
        room = 2**64 // used
        if along > room:  # more than half of the room is used, so the axes after it have none
            step *= -(-along // room)
            along = -(-counts[each] // step)
        numbers *= np.uint64(along)
        numbers += index[:, each] // np.uint64(step)
        used *= along
    return numbers


def keeps_order(box: Sequence[int], counts: Sequence[int], axis: int = 0) -> bool:
    """Whether chunks in order of their coordinates are in order of their boxes too."""
    cut = [each for each, (step, count) in enumerate(zip(box, counts, strict=True)) if step < count]
    if not cut:
        return True
    before = range(cut[-1])
    return all(box[each] == 1 or counts[each] <= 1 for each in before) and not (
        axis in cut and cut[0] < axis
    )


def cuts(numbers: npt.NDArray[np.uint64], limit: int, *, last: bool) -> list[int]:
    """The rows at which manifests end: each takes as many whole boxes as fit, so sparse ones share one.

    A box with more rows than the limit (one number for several, see :func:`box_numbers`) is cut within.

    Parameters
    ----------
    numbers
        The box of each row; rows of a box are neighbours.
    limit
        The most rows of a manifest, from 1.
    last
        Whether no more rows follow. If they may, what follows the last cut is to be given again with them
        behind it, so that the cuts become those of all rows at once.
    """
    assert limit > 0
    count = len(numbers)
    edges = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    ends: list[int] = []
    start = 0
    while count - start > limit:
        place = int(np.searchsorted(edges, start + limit, side="right"))
        edge = int(edges[place - 1]) if place else 0
        start = edge if edge > start else start + limit
        ends.append(start)
    if last and count > start:
        ends.append(count)
    return ends


def _axis_first(axis: int, ndim: int) -> list[int]:
    return [axis, *(each for each in range(ndim) if each != axis)] if ndim else []
