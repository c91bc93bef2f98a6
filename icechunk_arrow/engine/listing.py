"""Which chunks of an array there are: streamed in batches, base and uncommitted changes together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import coords
from icechunk_arrow.core.chunks import member_mask, volume
from icechunk_arrow.core.columns import one_array

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from icechunk_arrow.core.snapshot import InventoryEntry
    from icechunk_arrow.engine.files import Files
    from icechunk_arrow.engine.staging import ArrayDelta
    from icechunk_arrow.engine.view import ArrayView

__all__ = ["chunk_coordinates"]

_BATCH_ROWS = 100_000


def chunk_coordinates(
    files: Files, view: ArrayView, delta: ArrayDelta | None
) -> Iterator[npt.NDArray[np.uint64]]:
    """Give the coordinates of all chunks that there are, as n × dimensions arrays."""
    ndim = len(view.grid.chunk_counts)
    covered: pa.Array | None = None
    if delta is not None:
        present, gone = delta.coordinates()
        covered = pa.concat_arrays([present, gone])
        for start in range(0, len(present), _BATCH_ROWS):
            yield coords.decode(present.slice(start, _BATCH_ROWS), ndim)
    kept = None if delta is None else delta.kept
    for entry in view.node.inventories:
        for batch in _entry_batches(files, view.node.id, entry, ndim):
            rest = batch
            if kept is not None:
                rest = rest[(rest < np.array(kept, np.uint64)).all(axis=1)]
            if covered is not None and len(covered) and len(rest):
                rest = rest[~_among(rest, covered)]
            if len(rest):
                yield rest


def _among(batch: npt.NDArray[np.uint64], covered: pa.Array) -> npt.NDArray[np.bool_]:
    return member_mask(coords.encode(batch), covered)


def _entry_batches(
    files: Files, array_id: int, entry: InventoryEntry, ndim: int
) -> Iterator[npt.NDArray[np.uint64]]:
    if entry.is_dense:
        shape = tuple(stop - start for start, stop in entry.extent)
        first = np.array([start for start, _ in entry.extent], np.uint64)
        for start in range(0, volume(entry.extent), _BATCH_ROWS):
            places = np.arange(start, min(start + _BATCH_ROWS, volume(entry.extent)))
            if ndim == 0:
                yield np.zeros((len(places), 0), np.uint64)
                continue
            index = np.stack(np.unravel_index(places, shape), axis=1)
            yield index.astype(np.uint64) + first
        return
    opened = files.open_manifest(entry.manifest)
    first_row, last_row = entry.row, entry.row + entry.row_count
    for group in range(opened.group_of(first_row), opened.group_of(last_row - 1) + 1):
        rows = files.read_rows(entry.manifest, group)
        base = opened.group_starts[group]
        low, high = max(first_row - base, 0), min(last_row - base, rows.table.num_rows)
        rows.check_owner(array_id, low, high)
        yield coords.decode(one_array(rows.table["coord"]).slice(low, high - low), ndim)
