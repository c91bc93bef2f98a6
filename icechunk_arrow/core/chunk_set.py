"""A set of chunks of one array, known by coordinates and boxes: what was written, or goes.

Whether it touches a manifest is decided on extents; rows are looked at only where that does not tell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core import coords
from icechunk_arrow.core.chunks import DENSE, extent_of, extent_within, member_mask, volume
from icechunk_arrow.core.columns import empty, from_values, indices, to_numpy
from icechunk_arrow.core.inventories import NO_INVENTORIES
from icechunk_arrow.core.lazy import lazy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.chunks import Extent
    from icechunk_arrow.core.inventories import Inventories, InventoryEntry

__all__ = ["ChunkSet"]

_MATRIX = 1 << 22
"""How many pairs of a point and an extent are compared at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ChunkSet:
    """Chunks of one array: single ones, all of some boxes, all outside an extent."""

    ndim: int
    coordinates: pa.Array
    """Encoded, one by one."""
    boxes: npt.NDArray[np.uint64]
    """Boxes × dimensions × 2; no two of them have a chunk in common."""
    outside: Extent | None = None
    """Everything outside of it belongs to the set."""
    sparse: Inventories = NO_INVENTORIES
    """Manifests whose rows belong to the set too; they have to be read to know them."""

    @classmethod
    def of(
        cls,
        ndim: int,
        *,
        written: pa.Array | None = None,
        deleted: pa.Array | None = None,
        runs: Inventories = NO_INVENTORIES,
        boxes: Sequence[Extent] = (),
        outside: Extent | None = None,
        within: Extent | None = None,
    ) -> ChunkSet:
        """Gather what was done to an array; what fills a box is known by the box.

        Written chunks are sorted where it is known ``within`` which extent they lie.
        """
        found = [np.array(boxes, np.uint64).reshape(len(boxes), ndim, 2)]
        single = [deleted] if deleted is not None else []
        if written is not None and len(written):
            extent = extent_of(written, ndim) if within is None else extent_within(written, within)
            if volume(extent) == len(written):
                found.append(np.array(extent, np.uint64).reshape(1, ndim, 2))
            else:
                single.append(written)
        dense = (runs.flags & DENSE) != 0
        sparse = NO_INVENTORIES
        if len(runs):
            found.append(np.stack([runs.starts[dense], runs.stops[dense]], axis=2))
            sparse = runs.chosen(~dense)
        return cls(
            ndim=ndim,
            coordinates=pa.concat_arrays([empty(pa.binary()), *single]),
            boxes=np.concatenate(found),
            outside=outside,
            sparse=sparse,
        )

    @lazy
    def _points(self) -> npt.NDArray[np.uint64]:
        return coords.decode(self.coordinates, self.ndim)

    def touching(self, inventories: Inventories) -> list[int]:
        """Entries that may hold a chunk of the set: where extents meet."""
        if not len(inventories):
            return []
        mask = np.zeros(len(inventories), np.bool_)
        if self.outside is not None:
            limit = np.array([stop for _, stop in self.outside], np.uint64)
            mask |= (inventories.stops > limit).any(axis=1)
        if len(self.coordinates):
            mask |= _holding_points(inventories, self._points)
        for boxes in (self.boxes, np.stack([self.sparse.starts, self.sparse.stops], axis=2)):
            if len(boxes):
                mask |= _meeting_boxes(inventories, boxes)
        return np.flatnonzero(mask).tolist()

    def covers(self, entry: InventoryEntry) -> bool:
        """Whether all rows of an entry belong to the set, as its extent shows without reading them."""
        if self.outside is not None and any(
            start >= stop for (start, _), (_, stop) in zip(entry.extent, self.outside, strict=True)
        ):
            return True
        if not len(self.boxes):
            return False
        start = np.array([a for a, _ in entry.extent], np.uint64)
        stop = np.array([b for _, b in entry.extent], np.uint64)
        low, high = np.maximum(self.boxes[:, :, 0], start), np.minimum(self.boxes[:, :, 1], stop)
        meets = (low < high).all(axis=1)
        # boxes have nothing in common, so what they cover adds up
        covered = sum(
            volume(tuple(zip(a, b, strict=True)))
            for a, b in zip(low[meets].tolist(), high[meets].tolist(), strict=True)
        )
        return covered == volume(entry.extent)

    def sparse_manifests(self, extent: Extent) -> list[str]:
        """Manifests to be read to know which chunks within an extent belong to the set."""
        return [self.sparse.manifests[i] for i in self.sparse.overlapping(extent)]

    def with_coordinates(self, more: list[pa.Array]) -> ChunkSet:
        """Add coordinates that were read."""
        return replace(self, coordinates=pa.concat_arrays([self.coordinates, *more]))

    def mask(self, column: pa.Array) -> npt.NDArray[np.bool_]:
        """For each coordinate of a column, whether its chunk belongs to the set."""
        found = np.zeros(len(column), np.bool_)
        if not len(column):
            return found
        if len(self.coordinates):
            found |= member_mask(column, self.coordinates)
        if not len(self.boxes) and self.outside is None:
            return found
        if self.outside is not None:
            return found | self._mask_of(coords.decode(column, self.ndim))
        rows = self._between_boxes(column)
        if len(rows):
            found[rows] |= self._mask_of(coords.decode(column.take(indices(rows)), self.ndim))
        return found

    def _between_boxes(self, column: pa.Array) -> npt.NDArray[np.int64]:
        """Rows between the first and the last coordinate of the boxes: no other has to be decoded."""
        first = coords.encode_one(self.boxes[:, :, 0].min(axis=0).tolist())
        last = coords.encode_one((self.boxes[:, :, 1].max(axis=0) - np.uint64(1)).tolist())
        ends = from_values([first, last], pa.binary())
        behind = to_numpy(pc.greater_equal(column, ends[0]))
        return np.flatnonzero(behind & to_numpy(pc.less_equal(column, ends[1])))

    def _mask_of(self, index: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """For each of some indices, whether it is in a box or outside of what stays."""
        found = np.zeros(len(index), np.bool_)
        if self.outside is not None:
            found |= (index >= np.array([stop for _, stop in self.outside], np.uint64)).any(axis=1)
        low, high = index.min(axis=0), index.max(axis=0)
        near = ((self.boxes[:, :, 0] <= high) & (low < self.boxes[:, :, 1])).all(axis=1)
        for box in self.boxes[near]:
            found |= ((index >= box[:, 0]) & (index < box[:, 1])).all(axis=1)
        return found


def _holding_points(
    inventories: Inventories, points: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """Entries that have one of the points in their extent."""
    low, high = points.min(axis=0), points.max(axis=0)
    near = np.flatnonzero(((inventories.starts <= high) & (low < inventories.stops)).all(axis=1))
    found = np.zeros(len(inventories), np.bool_)
    step = max(_MATRIX // max(len(points) * points.shape[1], 1), 1)
    for first in range(0, len(near), step):
        chosen = near[first : first + step]
        starts, stops = inventories.starts[chosen][:, None], inventories.stops[chosen][:, None]
        within = np.all((points[None] >= starts) & (points[None] < stops), axis=2)
        found[chosen] = np.any(within, axis=1)
    return found


def _meeting_boxes(
    inventories: Inventories, boxes: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """Entries that have a coordinate in common with one of the boxes."""
    low, high = boxes[:, :, 0].min(axis=0), boxes[:, :, 1].max(axis=0)
    near = np.flatnonzero(((inventories.starts < high) & (low < inventories.stops)).all(axis=1))
    found = np.zeros(len(inventories), np.bool_)
    step = max(_MATRIX // max(boxes.shape[0] * boxes.shape[1], 1), 1)
    for first in range(0, len(near), step):
        chosen = near[first : first + step]
        starts, stops = inventories.starts[chosen][:, None], inventories.stops[chosen][:, None]
        meets = np.all((starts < boxes[None, :, :, 1]) & (boxes[None, :, :, 0] < stops), axis=2)
        found[chosen] = np.any(meets, axis=1)
    return found
