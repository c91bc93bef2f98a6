"""From a chunk's coordinate to its reference: extents, then one row group of one manifest.

Whether there is a chunk at all, for many of them at once: extents decide where they can, and rows are read where
they do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import inside, place_of
from icechunk_arrow.core.chunk_set import ChunkSet
from icechunk_arrow.core.chunks import member_mask
from icechunk_arrow.core.columns import from_numpy, indices, one_array
from icechunk_arrow.core.log import Singles

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.chunks import ChunkRef
    from icechunk_arrow.core.inventory import Inventory, InventoryEntry
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.files import Files
    from icechunk_arrow.engine.manifest_file import ManifestFile

__all__ = ["find_ref", "present_chunks", "present_in"]

_FEW = 32
"""Up to so many chunks are looked up one by one: that reads a row group each, not a whole manifest."""


def find_ref(
    files: Files, array_id: int, inventories: Inventory, coord: Sequence[int]
) -> ChunkRef | None:
    """Find the reference of a chunk in an array's manifests, or None."""
    entries = inventories.holding(coord)
    if (
        len(entries) > 1
    ):  # what fills its extent has it for certain, and small ones were made for holes
        entries.sort(key=lambda entry: (not entry.is_dense, entry.row_count))
    for entry in entries:
        ref = _find_dense(files, array_id, entry, coord) if entry.is_dense else None
        if ref is None and not entry.is_dense:
            ref = _find_sorted(files, array_id, entry, coords.encode_one(coord))
        if ref is not None:
            return ref
    return None


def _find_dense(
    files: Files, node_id: int, entry: InventoryEntry, coord: Sequence[int]
) -> ChunkRef:
    """Every coordinate of the extent is there, so the row is arithmetic."""
    place = place_of(entry.extent, coord)
    rows, row = files.rows_at(entry.manifest, entry.row + place)
    if not rows.is_part_of(entry) and rows.coord_at(row) != coords.encode_one(coord):
        raise rows.wrong(f"row {entry.row + place} is not chunk {tuple(coord)} of array {node_id}")
    return rows.ref_at(row, node_id)


def _find_sorted(
    files: Files, node_id: int, entry: InventoryEntry, coord: bytes
) -> ChunkRef | None:
    opened = files.open_manifest(entry.manifest)
    first, last = entry.row, entry.row + entry.row_count
    for group in _groups_for(opened, first, last, coord):
        start = opened.group_starts[group]
        rows = files.read_rows(entry.manifest, group)
        low, high = max(first - start, 0), min(last, opened.group_starts[group + 1]) - start
        row = rows.find(coord, low, high)
        if row is not None:
            return rows.ref_at(row, node_id)
        rows.check_absence(node_id, len(entry.extent), low, high)
    return None


def _groups_for(opened: ManifestFile, first: int, last: int, coord: bytes) -> list[int]:
    """Row groups that can hold a coordinate of an array whose rows are ``first`` to ``last``.

    Statistics speak for groups that hold this array alone; those at its ends may hold others too.
    """
    low, high = opened.group_of(first), opened.group_of(last - 1)
    ends = sorted({low, high})
    inner_low, inner_high = low + 1, high - 1
    while inner_low <= inner_high:
        middle = (inner_low + inner_high) >> 1
        bounds = opened.coord_range(middle)
        if bounds is None:
            return list(range(low, high + 1))
        if coord < bounds[0]:
            inner_high = middle - 1
        elif coord > bounds[1]:
            inner_low = middle + 1
        else:
            return [middle]
    # not within any inner group: then in the end that is on its side of them
    if high - low < 2:
        return ends
    return [low] if inner_high < low + 1 else [high] if inner_low > high - 1 else []


def present_in(
    files: Files, array_id: int, inventories: Inventory, column: pa.Array
) -> npt.NDArray[np.bool_]:
    """For each encoded coordinate of an array, whether one of its manifests has the chunk."""
    present = np.zeros(len(column), np.bool_)
    if not len(column) or not len(inventories):
        return present
    ndim = inventories.boxes.ndim
    points = coords.decode(column, ndim)
    for number in ChunkSet.of(ndim, deleted=column).touching(inventories.boxes):
        entry = inventories[number]
        held = inside(entry.extent, points)
        if entry.is_dense:
            present |= held
            continue
        rows = np.flatnonzero(held & ~present)
        if len(rows) <= _FEW:
            alone = inventories.chosen(np.arange(len(inventories)) == number)
            for row in rows.tolist():
                present[row] = find_ref(files, array_id, alone, points[row].tolist()) is not None
            continue
        some = column.take(indices(rows))
        first, last = entry.row, entry.row + entry.row_count
        for table in files.scan_rows(
            entry.manifest, array_id, first, last, columns=("array_id", "coord")
        ):
            present[rows] |= member_mask(some, one_array(table["coord"]))
    return present


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
