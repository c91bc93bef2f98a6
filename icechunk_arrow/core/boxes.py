"""Boxes of a grid: a run of it in C order as few boxes, and boxes cut into smaller ones.

Owns how work on many chunks is laid out. A run ``start`` to ``stop`` is all that says which part of the work
somebody has, however many dimensions and chunks there are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

__all__ = ["Box", "boxes_of_places", "boxes_of_run", "cut"]

Box = tuple[tuple[int, int], ...]
"""A half-open range per dimension."""


def boxes_of_run(counts: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Take a run of a grid apart into boxes, in its order: at most two for each dimension, and one."""
    if start >= stop:
        return
    if not counts:
        yield ()
        return
    below = math.prod(counts[1:])
    first, rest = divmod(start, below)
    if rest:
        end = min(stop, (first + 1) * below)
        for box in boxes_of_run(counts[1:], rest, end - first * below):
            yield ((first, first + 1), *box)
        start, first = end, first + 1
    last, rest = divmod(stop, below)
    if first < last and start < stop:
        yield ((first, last), *((0, count) for count in counts[1:]))
        start = last * below
    if rest and start < stop:
        for box in boxes_of_run(counts[1:], 0, rest):
            yield ((last, last + 1), *box)


def cut(box: Box, most: int, steps: Sequence[int] | None = None) -> Iterator[Box]:
    """Cut a box into boxes of at most so many cells, in C order where it can be.

    With ``steps`` cuts lie only at multiples of these, so that a box may stay larger.
    """
    steps = steps if steps is not None else (1,) * len(box)
    if math.prod(stop - start for start, stop in box) <= most:
        yield box
        return
    for d, (start, stop) in enumerate(box):
        below = math.prod(b - a for a, b in box[d + 1 :])
        step = steps[d]
        if (start // step + 1) * step >= stop:
            continue
        width = max(most // below // step, 1) * step
        at = start
        while at < stop:
            end = min((at // step) * step + width, stop)
            yield from cut((*box[:d], (at, end), *box[d + 1 :]), most, steps)
            at = end
        return
    yield box


def boxes_of_places(places: npt.NDArray[Any]) -> list[Box]:
    """Unite cells, each given once as a row of its places, into boxes: neighbours, axis by axis."""
    starts = places.astype(np.int64)
    stops = starts + 1
    for d in reversed(range(places.shape[1])):
        others = [e for e in range(places.shape[1]) if e != d]
        sides = [side[:, e] for e in others for side in (starts, stops)]
        order = np.lexsort((starts[:, d], *sides))
        starts, stops = starts[order], stops[order]
        joined = starts[1:, d] == stops[:-1, d]
        for side in (starts, stops):
            joined &= (side[1:, others] == side[:-1, others]).all(axis=1)
        firsts = np.flatnonzero(np.concatenate([[True], ~joined])[: len(starts)])
        lasts = np.concatenate([firsts[1:] - 1, [len(starts) - 1]])[: len(firsts)]
        starts, ends = starts[firsts], stops[lasts, d]
        stops = stops[firsts]
        stops[:, d] = ends
    pairs = np.stack([starts, stops], axis=2).tolist()
    return [tuple((low, high) for low, high in box) for box in pairs]
