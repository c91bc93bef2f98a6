"""Boxes of a grid: every question about them, of one box or of many at once.

A box is a half-open range per dimension: the extent of some rows, a block of chunks, a grid. Many of them are
columns (:class:`Boxes`), so that a question about a hundred thousand is a few operations of numpy. Without
dimensions there is one cell, and every box has it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    Points = npt.NDArray[np.uint64]
    Mask = npt.NDArray[np.bool_]

__all__ = [
    "Box",
    "Boxes",
    "around",
    "boxes_of_run",
    "contains",
    "cut",
    "grid_box",
    "inside",
    "place_of",
    "point_at",
    "points_of",
    "volume",
]

Box = tuple[tuple[int, int], ...]
"""A half-open range per dimension."""
_PAIRS = 1 << 20
"""How many pairs of boxes, or of a box and a point, are compared at once."""


# -- one box


def volume(box: Box) -> int:
    """How many cells a box has."""
    total = 1
    for start, stop in box:
        total *= max(stop - start, 0)
    return total


def grid_box(counts: Sequence[int]) -> Box:
    """Give the box of a whole grid with so many cells along each dimension."""
    return tuple((0, count) for count in counts)


def contains(box: Box, point: Sequence[int]) -> bool:
    """Whether a point lies in a box."""
    # A generator inside all() would cost twice as much, on every read of a chunk.
    for index, (start, stop) in zip(point, box, strict=True):  # noqa: SIM110
        if not start <= index < stop:
            return False
    return True


def point_at(box: Box, place: int) -> tuple[int, ...]:
    """Give the point at a place of a box that is gone through in C order."""
    point = []
    for start, stop in reversed(box):
        place, step = divmod(place, stop - start)
        point.append(start + step)
    return tuple(reversed(point))


def place_of(box: Box, point: Sequence[int]) -> int:
    """Give the place of a point of a box that is gone through in C order."""
    place = 0
    for index, (start, stop) in zip(point, box, strict=True):
        place = place * (stop - start) + index - start
    return place


def points_of(box: Box, start: int, stop: int) -> Points:
    """Give the points at some places of a box that is gone through in C order, as n × dimensions."""
    places = np.arange(start, stop)
    if not box:
        return np.zeros((len(places), 0), np.uint64)
    lengths = tuple(high - low for low, high in box)
    offsets = np.stack(np.unravel_index(places, lengths), axis=1).astype(np.uint64)
    return offsets + np.array([low for low, _ in box], np.uint64)


def around(points: Points) -> Box:
    """Find the smallest box around some points, of which there is at least one."""
    low, high = points.min(axis=0).tolist(), points.max(axis=0).tolist()
    return tuple((a, b + 1) for a, b in zip(low, high, strict=True))


def inside(box: Box, points: npt.NDArray[Any]) -> Mask:
    """For each of some points, whether it lies in a box."""
    within = np.ones(len(points), np.bool_)
    for d, (start, stop) in enumerate(box):
        within &= (points[:, d] >= start) & (points[:, d] < stop)
    return within


def boxes_of_run(counts: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Take a run of a grid in C order apart into boxes, in its order: at most two for each dimension, and one.

    A run ``start`` to ``stop`` is all that says which part of the work a task has, however many dimensions and
    chunks there are.

    Why that is right: in C order the ``below`` cells of one index of the first dimension follow one another. A run
    within one index is a run of a grid with one dimension less. Any other is the rest of the index in which it
    begins, a box of whole indices, and the beginning of the index in which it ends. The rest goes up to the end of
    the smaller grid and the beginning starts at its 0, so neither has both again: each gives one box a dimension.
    """
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
        yield ((first, last), *grid_box(counts[1:]))
        start = last * below
    if rest and start < stop:
        for box in boxes_of_run(counts[1:], 0, rest):
            yield ((last, last + 1), *box)


def cut(box: Box, most: int, steps: Sequence[int] | None = None) -> Iterator[Box]:
    """Cut a box into boxes of at most so many cells, in C order where it can be.

    With ``steps`` cuts lie only at multiples of these, so that a box may stay larger.

    Why that is right: the box is cut along the first dimension that can be cut at all, into parts of as many whole
    steps as ``most`` takes, at least one. A part that is still too large is one step wide: it cannot be cut along
    this dimension any more, and goes on with the next one. So every call has a dimension less to cut.
    """
    steps = steps if steps is not None else (1,) * len(box)
    if volume(box) <= most:
        yield box
        return
    for d, (start, stop) in enumerate(box):
        below = volume(box[d + 1 :])
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


# -- many boxes


class Boxes(Struct, frozen=True, eq=False):
    """Boxes of one grid as columns."""

    starts: Points
    """The first cell of each along each dimension: boxes × dimensions."""
    stops: Points
    """The one behind the last."""

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> Box:
        low, high = self.starts[number].tolist(), self.stops[number].tolist()
        return tuple(zip(low, high, strict=True))

    def __iter__(self) -> Iterator[Box]:
        pairs = np.stack([self.starts, self.stops], axis=2).tolist()
        return (tuple((low, high) for low, high in box) for box in pairs)

    @property
    def ndim(self) -> int:
        """How many dimensions the grid has."""
        return int(self.starts.shape[1])

    @classmethod
    def of(cls, boxes: Sequence[Box], ndim: int) -> Boxes:
        """Put boxes into columns."""
        pairs = np.array(boxes, np.uint64).reshape(len(boxes), ndim, 2)
        return cls(pairs[:, :, 0], pairs[:, :, 1])

    @classmethod
    def of_cells(cls, cells: npt.NDArray[Any]) -> Boxes:
        """Unite cells, each given once, n × dimensions, into few boxes: neighbours, axis by axis."""
        starts = cells.astype(np.uint64)
        stops = starts + np.uint64(1)
        for d in reversed(range(cells.shape[1])):
            others = [e for e in range(cells.shape[1]) if e != d]
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
        return cls(starts, stops)

    def chosen(self, which: npt.NDArray[Any]) -> Boxes:
        """Some of the boxes, by mask or by number."""
        return Boxes(self.starts[which], self.stops[which])

    def and_also(self, *others: Boxes) -> Boxes:
        """These boxes, and others behind them."""
        starts = [self.starts, *(each.starts for each in others)]
        return Boxes(
            np.concatenate(starts), np.concatenate([self.stops, *(e.stops for e in others)])
        )

    # of each box

    def volumes(self) -> npt.NDArray[np.float64]:
        """How many cells each has: exactly, where that is below 2**53."""
        return np.asarray((self.stops - self.starts).astype(np.float64).prod(axis=1))

    def meet(self, box: Box) -> Mask:
        """For each, whether it has a cell in common with a box."""
        other = np.array(box, np.uint64).reshape(-1, 2)
        return _every((self.starts < other[:, 1]) & (other[:, 0] < self.stops))

    def hold(self, point: Sequence[int]) -> Mask:
        """For each, whether a point lies in it."""
        one = np.array(point, np.uint64)
        return _every((self.starts <= one) & (one < self.stops))

    def leave(self, counts: Sequence[int]) -> Mask:
        """For each, whether it reaches out of a grid of so many cells along each dimension."""
        return ~_every(self.stops <= np.array(counts, np.uint64))

    def meet_any(self, others: Boxes) -> Mask:
        """For each, whether it has a cell in common with one of some others."""
        return self._met_by(others.starts, others.stops)

    def hold_any(self, points: Points) -> Mask:
        """For each, whether one of some points lies in it."""
        return self._met_by(points, points + np.uint64(1))

    def meet_ranges(self, ranges: Sequence[npt.NDArray[np.int64]]) -> Mask:
        """For each, whether along every dimension it meets one of the ranges given for it, which rise."""
        meets = np.ones(len(self), np.bool_)
        for d, each in enumerate(ranges if len(self) else ()):
            starts, stops = (side[:, d].astype(np.int64) for side in (self.starts, self.stops))
            first = np.searchsorted(each[:, 1], starts, "right")
            meets &= first < np.searchsorted(each[:, 0], stops, "left")
        return meets

    def _met_by(self, starts: Points, stops: Points) -> Mask:
        """For each, whether it meets one of some boxes.

        Those that do not even meet the box around all of them are left out first; the others are compared with
        each, a block of pairs at a time.
        """
        met = np.zeros(len(self), np.bool_)
        if not len(starts) or not len(self):
            return met
        low, high = starts.min(axis=0), stops.max(axis=0)
        near = np.flatnonzero(((self.starts < high) & (low < self.stops)).all(axis=1))
        step = max(_PAIRS // len(starts), 1)
        for first in range(0, len(near), step):
            some = near[first : first + step]
            low, high = self.starts[some][:, None], self.stops[some][:, None]
            pairs = _every((low < stops[None]) & (starts[None] < high))
            met[some] = pairs.any(axis=1)
        return met

    # of all of them

    def around(self) -> Box:
        """Find the smallest box around all of them; there is at least one."""
        low, high = self.starts.min(axis=0).tolist(), self.stops.max(axis=0).tolist()
        return tuple(zip(low, high, strict=True))

    def inside(self, points: Points) -> Mask:
        """For each of some points, whether it lies in one of the boxes."""
        within = np.zeros(len(points), np.bool_)
        if len(points) and len(self):
            for number in np.flatnonzero(self.meet(around(points))).tolist():
                within |= inside(self[number], points)
        return within

    def cover(self, box: Box) -> bool:
        """Whether every cell of a box lies in one of these boxes, which have no cell in common."""
        if not len(self):
            return False
        return sum(map(volume, Boxes.of([box], len(box)).common(self))) == volume(box)

    def common(self, others: Boxes) -> Boxes:
        """Give what each of these boxes has in common with each of some others, where it is anything."""
        parts = [Boxes(self.starts[:0], self.stops[:0])]
        for start, stop in zip(self.starts, self.stops, strict=True):
            low, high = np.maximum(others.starts, start), np.minimum(others.stops, stop)
            meets = (low < high).all(axis=1)
            parts.append(Boxes(low[meets], high[meets]))
        return parts[0].and_also(*parts[1:])

    def meet_one_another(self) -> Mask:
        """For each, whether it has a cell in common with another one of them."""
        count, ndim = self.starts.shape
        met = np.zeros(count, np.bool_)
        if ndim == 0:
            return np.full(count, count > 1)
        order = np.argsort(self.starts[:, 0], kind="stable")
        low, high = self.starts[order], self.stops[order]
        after = np.searchsorted(low[:, 0], high[:, 0])  # whatever begins before this one ends
        partners = after - np.arange(count) - 1
        begin = 0
        while begin < count:
            ends = np.cumsum(partners[begin:])
            stop = begin + max(int(np.searchsorted(ends, _PAIRS, side="right")), 1)
            some = partners[begin:stop]
            a = np.repeat(np.arange(begin, stop), some)
            b = a + 1 + np.arange(len(a)) - np.repeat(np.cumsum(some) - some, some)
            meets = ((low[a] < high[b]) & (low[b] < high[a])).all(axis=1)
            met[order[a[meets]]] = True
            met[order[b[meets]]] = True
            begin = stop
        return met

    def labels(self) -> npt.NDArray[np.int64]:
        """Label boxes so that two with different labels have no cell in common.

        Boxes are told apart along one dimension after the other, for as long as that divides a group. Boxes of
        one label need not all meet: what is cut along its grid falls apart, and what is not stays together.

        Why that is right: where no box of a group crosses a place along one dimension, those on its two sides have
        no cell in common, whatever they are along the others; so a group may be divided there. It ends when all
        dimensions, one after the other, have divided nothing: what is left then goes by its groups alone.
        """
        count, ndim = self.starts.shape
        labels = np.zeros(count, np.int64)
        idle = 0
        dimension = 0
        while idle < ndim and count:
            before = int(labels.max())
            labels = _divided(labels, self.starts[:, dimension], self.stops[:, dimension])
            idle = idle + 1 if int(labels.max()) == before else 0
            dimension = (dimension + 1) % ndim
        return labels


def _every(sides: Mask) -> Mask:
    """Tell of what holds along each dimension, the last axis, whether it holds along all."""
    return np.asarray(sides.all(axis=-1))


def _divided(
    labels: npt.NDArray[np.int64], starts: npt.NDArray[Any], stops: npt.NDArray[Any]
) -> npt.NDArray[np.int64]:
    """Divide groups where no interval of theirs crosses a place between two of them."""
    order = np.lexsort([starts, labels])
    group, first, last = labels[order], starts[order], stops[order]
    new_group = np.r_[True, group[1:] != group[:-1]]
    # the reach so far, within a group: ranks make groups follow one another in one running maximum
    ranks = np.unique(np.r_[first, last], return_inverse=True)[1]
    base = group * (len(ranks) + 1)
    reach = np.maximum.accumulate(base + ranks[len(first) :])
    begins = base + ranks[: len(first)]
    gap = np.r_[True, begins[1:] >= reach[:-1]]
    pieces = np.empty(len(labels), np.int64)
    pieces[order] = np.cumsum(new_group | gap) - 1
    return pieces
