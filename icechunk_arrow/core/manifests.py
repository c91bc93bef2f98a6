"""Which manifests a commit reads, rewrites and merges: pure decisions on what is live.

Specification: schemas/README.md#manifests-of-a-snapshot
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icechunk_arrow.core import coords
from icechunk_arrow.core.chunks import (
    DENSE,
    Extent,
    content_flags,
    extent_of,
    form_flags,
    keep_rows,
    member_mask,
    volume,
)
from icechunk_arrow.core.columns import one_array, to_numpy
from icechunk_arrow.core.snapshot import InventoryEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from icechunk_arrow.core.snapshot import Inventories

__all__ = [
    "MAX_MANIFEST_ROWS",
    "affected_entries",
    "entries_of",
    "is_covered",
    "merge_groups",
    "subtract",
]

MAX_MANIFEST_ROWS = 1_000_000
MERGE_FAN = 8
"""How many manifests of one size class make a larger one: each row is rewritten once a class."""
_SMALLEST_CLASS_ROWS = 1024


def affected_entries(
    inventories: Inventories, written: Extent | None, deleted: Extent | None, kept: Extent | None
) -> list[int]:
    """Entries that may hold a chunk that goes: where extents meet."""
    found: set[int] = set()
    for extent in (written, deleted):
        if extent is not None:
            found.update(inventories.overlapping(extent))
    if kept is not None:
        limit = np.array([stop for _, stop in kept], np.uint64)
        found.update(np.flatnonzero((inventories.stops > limit).any(axis=1)).tolist())
    return sorted(found)


def is_covered(
    entry: InventoryEntry, written: Extent | None, written_count: int, kept: Extent | None
) -> bool:
    """Whether all rows of an entry go, as its extent shows without reading them."""
    if kept is not None and any(
        start >= stop for (start, _), (_, stop) in zip(entry.extent, kept, strict=True)
    ):
        return True
    return (
        written is not None
        and volume(written) == written_count
        and all(a[0] >= b[0] and a[1] <= b[1] for a, b in zip(entry.extent, written, strict=True))
    )


def subtract(
    table: pa.Table, gone: Mapping[int, tuple[pa.Array, Extent | None]], removed: Iterable[int]
) -> pa.Table:
    """Take rows out: those of removed arrays, and per array some coordinates and all outside an extent."""
    ids = to_numpy(table["array_id"])
    mask = ~np.isin(ids, np.fromiter(removed, np.uint32))
    for array_id, (coordinates, kept) in gone.items():
        rows = np.flatnonzero(ids == array_id)
        if not len(rows):
            continue
        start, count = int(rows[0]), len(rows)
        column = one_array(table["coord"]).slice(start, count)
        mask[start : start + count] &= ~member_mask(column, coordinates)
        if kept is not None:
            limit = np.array([stop for _, stop in kept], np.uint64)
            inside = (coords.decode(column, len(kept)) < limit).all(axis=1)
            mask[start : start + count] &= inside
    return keep_rows(table, mask)


def entries_of(
    table: pa.Table, manifest: str, ndims: Mapping[int, int]
) -> dict[int, InventoryEntry]:
    """Describe what a manifest holds of each array."""
    ids = to_numpy(table["array_id"])
    if not len(ids):
        return {}
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    form = form_flags(table)
    column = one_array(table["coord"])
    found = {}
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(ids)], strict=True):
        array_id, count = int(ids[start]), stop - start
        extent = extent_of(column.slice(start, count), ndims[array_id])
        dense = DENSE if volume(extent) == count else 0
        found[array_id] = InventoryEntry(
            manifest=manifest,
            row=start,
            extent=extent,
            flags=form | dense | content_flags(table.slice(start, count)),
            row_count=count,
        )
    return found


def merge_groups(row_counts: Mapping[str, int]) -> list[list[str]]:
    """Choose small manifests to be merged: whenever enough of one size class have gathered.

    A thousand appends of one row thus write each row a handful of times, and leave tens of manifests.
    """
    classes: dict[int, list[str]] = {}
    for name, count in row_counts.items():
        if count * 2 > MAX_MANIFEST_ROWS:
            continue
        size_class = 0
        while count > _SMALLEST_CLASS_ROWS * MERGE_FAN**size_class:
            size_class += 1
        classes.setdefault(size_class, []).append(name)
    return [sorted(names) for _, names in sorted(classes.items()) if len(names) >= MERGE_FAN]
