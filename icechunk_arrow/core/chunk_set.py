"""A set of chunks of one array, known by coordinates and boxes: what was written, or goes.

Whether it touches a manifest is decided on extents; rows are looked at only where that does not tell. What a commit
takes out of manifests is such a set of each array.

Specification: schemas/README.md#manifests-of-a-snapshot
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import Boxes, volume
from icechunk_arrow.core.chunks import (
    DENSE,
    extent_of,
    extent_within,
    keep_rows,
    member_mask,
    rows_of_arrays,
)
from icechunk_arrow.core.columns import empty, from_values, indices, one_array, to_numpy
from icechunk_arrow.core.inventory import NO_INVENTORY
from icechunk_arrow.core.lazy import lazy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.boxes import Box
    from icechunk_arrow.core.inventory import Inventory, InventoryEntry

__all__ = ["ChunkSet", "subtract"]


class ChunkSet(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """Chunks of one array: single ones, all of some boxes, all outside a smaller grid."""

    ndim: int
    coordinates: pa.Array
    """Encoded, one by one."""
    boxes: Boxes
    """No two of them have a chunk in common."""
    kept: Sequence[int] | None = None
    """Everything outside of a grid with so many chunks along each dimension belongs to the set."""
    sparse: Inventory = NO_INVENTORY
    """Manifests whose rows belong to the set too; they have to be read to know them."""

    @classmethod
    def of(
        cls,
        ndim: int,
        *,
        written: pa.Array | None = None,
        deleted: pa.Array | None = None,
        inventory: Inventory = NO_INVENTORY,
        boxes: Sequence[Box] = (),
        kept: Sequence[int] | None = None,
        within: Box | None = None,
    ) -> ChunkSet:
        """Gather what was done to an array; what fills a box is known by the box.

        Written chunks are sorted where it is known ``within`` which extent they lie.
        """
        filled = list(boxes)
        single = [deleted] if deleted is not None else []
        if written is not None and len(written):
            extent = extent_of(written, ndim) if within is None else extent_within(written, within)
            if volume(extent) == len(written):
                filled.append(extent)
            else:
                single.append(written)
        full, sparse = Boxes.of(filled, ndim), NO_INVENTORY
        if len(inventory):
            dense = (inventory.flags & DENSE) != 0
            full = full.and_also(inventory.boxes.chosen(dense))
            sparse = inventory.chosen(~dense)
        return cls(
            ndim=ndim,
            coordinates=pa.concat_arrays([empty(pa.binary()), *single]),
            boxes=full,
            kept=kept,
            sparse=sparse,
        )

    @lazy
    def _points(self) -> npt.NDArray[np.uint64]:
        return coords.decode(self.coordinates, self.ndim)

    def touching(self, held: Boxes) -> list[int]:
        """Tell in which of some extents there may be a chunk of the set: where they meet."""
        if not len(held):
            return []
        mask = held.meet_any(self.boxes)
        if self.kept is not None:
            mask |= held.leave(self.kept)
        if len(self.coordinates):
            mask |= held.hold_any(self._points)
        if len(self.sparse):
            mask |= held.meet_any(self.sparse.boxes)
        return np.flatnonzero(mask).tolist()

    def covers(self, entry: InventoryEntry) -> bool:
        """Whether all rows of an entry belong to the set, as its extent shows without reading them."""
        if self.kept is not None and any(
            start >= count for (start, _), count in zip(entry.extent, self.kept, strict=True)
        ):
            return True
        return self.boxes.cover(entry.extent)

    def sparse_manifests(self, extent: Box) -> list[str]:
        """Manifests to be read to know which chunks within an extent belong to the set."""
        if not len(self.sparse):
            return []
        met = np.flatnonzero(self.sparse.boxes.meet(extent)).tolist()
        return [self.sparse.names[number] for number in met]

    def with_coordinates(self, more: list[pa.Array]) -> ChunkSet:
        """Add coordinates that were read."""
        return replace(self, coordinates=pa.concat_arrays([self.coordinates, *more]))

    def mask(self, column: pa.Array) -> npt.NDArray[np.bool_]:
        """For each coordinate of a column, whether its chunk belongs to the set."""
        members = np.zeros(len(column), np.bool_)
        if not len(column):
            return members
        if len(self.coordinates):
            members |= member_mask(column, self.coordinates)
        if self.kept is not None:
            points = coords.decode(column, self.ndim)
            members |= (points >= np.array(self.kept, np.uint64)).any(axis=1)
            return members | self.boxes.inside(points)
        if len(self.boxes):
            rows = self._between_boxes(column)
            members[rows] |= self.boxes.inside(coords.decode(column.take(indices(rows)), self.ndim))
        return members

    def _between_boxes(self, column: pa.Array) -> npt.NDArray[np.int64]:
        """Rows between the first and the last coordinate of the boxes: no other has to be decoded."""
        around = self.boxes.around()
        first = coords.encode_one([start for start, _ in around])
        last = coords.encode_one([stop - 1 for _, stop in around])
        ends = from_values([first, last], pa.binary())
        behind = to_numpy(pc.greater_equal(column, ends[0]))
        return np.flatnonzero(behind & to_numpy(pc.less_equal(column, ends[1])))


def subtract(
    table: pa.Table, removals: Mapping[int, ChunkSet], removed: Collection[int]
) -> pa.Table:
    """Take rows out: all of removed arrays, and of others the chunks of a set."""
    ids, starts, counts = rows_of_arrays(table)
    stays = np.ones(table.num_rows, np.bool_)
    column = one_array(table["coord"])
    for array_id, start, count in zip(ids.tolist(), starts.tolist(), counts.tolist(), strict=True):
        if array_id in removed:
            stays[start : start + count] = False
        elif array_id in removals:
            gone = removals[array_id].mask(column.slice(start, count))
            stays[start : start + count] = ~gone
    return keep_rows(table, stays)
