"""Which of some chunks an array has: extents decide where they can, and rows are read where they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import inside
from icechunk_arrow.core.chunk_set import ChunkSet
from icechunk_arrow.core.chunks import member_mask
from icechunk_arrow.core.columns import from_numpy, indices, one_array
from icechunk_arrow.core.log import Singles
from icechunk_arrow.engine.lookup import find_ref

if TYPE_CHECKING:
    import numpy.typing as npt

    from icechunk_arrow.core.inventory import Inventory
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.files import Files

__all__ = ["present_chunks", "present_in"]

_FEW = 32
"""Up to so many chunks are looked up one by one: that reads a row group each, not a whole manifest."""


def present_in(
    files: Files, array_id: int, inventories: Inventory, column: pa.Array
) -> npt.NDArray[np.bool_]:
    """For each encoded coordinate of an array, whether one of its manifests has the chunk."""
    found = np.zeros(len(column), np.bool_)
    if not len(column) or not len(inventories):
        return found
    ndim = inventories.boxes.ndim
    points = coords.decode(column, ndim)
    for number in ChunkSet.of(ndim, deleted=column).touching(inventories.boxes):
        entry = inventories[number]
        held = inside(entry.extent, points)
        if entry.is_dense:
            found |= held
            continue
        rows = np.flatnonzero(held & ~found)
        if len(rows) <= _FEW:
            alone = inventories.chosen(np.arange(len(inventories)) == number)
            for row in rows.tolist():
                found[row] = find_ref(files, array_id, alone, points[row].tolist()) is not None
            continue
        some = column.take(indices(rows))
        first, last = entry.row, entry.row + entry.row_count
        for table in files.scan_rows(
            entry.manifest, array_id, first, last, columns=("array_id", "coord")
        ):
            found[rows] |= member_mask(some, one_array(table["coord"]))
    return found


def present_chunks(files: Files, base: Snapshot, deleted: Singles) -> Singles:
    """Keep those of some deleted chunks that a snapshot has."""
    masks = []
    for node_id, span in deleted.spans.items():
        node = base.find_node_by_id(node_id)
        column = deleted.coords[span]
        masks.append(
            np.zeros(len(column), np.bool_)
            if node is None
            else present_in(files, node_id, node.inventories, column)
        )
    if not masks:
        return deleted
    mask = np.concatenate(masks)
    if mask.all():
        return deleted
    return Singles(deleted.node_ids[mask], deleted.coords.filter(from_numpy(mask, pa.bool_())))
