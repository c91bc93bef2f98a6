"""The live manifests of a snapshot, and what each has of each array: read off the structure file.

Manifests themselves are not opened. Nothing is looped over manifests: there may be a hundred thousand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.chunks import DENSE, HAS_INLINE, HAS_NATIVE, HAS_VIRTUAL
from icechunk_arrow.core.columns import (
    distinct,
    from_numpy,
    from_values,
    indices,
    one_array,
    to_numpy,
    validity,
)
from icechunk_arrow.core.packing import PlainShape, choose_sets
from icechunk_arrow.core.placement import limit_of, set_for_size
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.tables.columns import int64, lists_of, repeated, table_of
from icechunk_arrow.tables.nodes import grid_chunk_counts
from icechunk_arrow.tables.schemas import EXTENT, INVENTORY, METADATA_TABLES

if TYPE_CHECKING:
    import numpy.typing as npt

    from icechunk_arrow.core.manifest_settings import ManifestSettings
    from icechunk_arrow.core.snapshot import Snapshot

__all__ = ["inventory_table", "manifest_table"]

_LARGEST = 2**63 - 1


def inventory_table(snapshot: Snapshot, folder: str = "") -> pa.Table:
    """Make the table of what each manifest has of each array; ``file`` is a manifest's key below a folder."""
    entries = snapshot.entries
    files = [f"{folder}{key_of(FileKind.MANIFEST, name)}" for name in entries.manifests]
    codes = indices(entries.codes)
    columns = [
        _paths(snapshot, entries.owners),
        from_numpy(snapshot.rows.ids[entries.owners], pa.int64()),
        from_numpy(entries.ranks, pa.int64()),
        from_values(entries.manifests, pa.string()).take(codes),
        from_values(files, pa.string()).take(codes),
        _signed(entries.row_counts),
        from_numpy(entries.stored_bytes, pa.int64(), entries.stored_bytes <= np.uint64(_LARGEST)),
        *(lists_of(each, entries.ranks) for each in _bounds(entries.pairs)),
    ]
    return table_of(INVENTORY, columns)


def _paths(snapshot: Snapshot, owners: npt.NDArray[np.int64]) -> pa.Array:
    return one_array(snapshot.table["path"]).take(indices(owners))


def _signed(numbers: npt.NDArray[np.uint64]) -> pa.Array:
    """Bring numbers to 64 bits with a sign, or fail."""
    return int64(from_numpy(numbers, pa.uint64()))


def _bounds(pairs: npt.NDArray[np.uint64]) -> list[pa.Array]:
    """Give where extents start and where they stop, dimension by dimension."""
    return [_signed(pairs[:, which]) for which in (0, 1)]


def manifest_table(snapshot: Snapshot, settings: ManifestSettings) -> pa.Table:
    """Make the table of the live manifests."""
    entries = snapshot.entries
    count = len(entries.manifests)
    row_counts = to_numpy(_signed(entries.row_counts))
    per_manifest = np.bincount(entries.codes, minlength=count)
    rows = _sums(entries.codes, row_counts, count)
    sets, limits = _sets(snapshot, row_counts, settings)
    sizes = [snapshot.manifest_sizes[name] for name in entries.manifests]
    kind = METADATA_TABLES["manifests"].field("arrays").type
    structs = pa.Array.from_buffers(
        kind.value_type, len(entries), [None], children=_of_arrays(snapshot)
    )
    columns = [
        from_values(entries.manifests, pa.string()),
        from_numpy(np.array(sizes, np.int64), pa.int64()),
        from_numpy(rows, pa.int64()),
        from_numpy(per_manifest.astype(np.int64), pa.int64()),
        lists_of(structs, per_manifest),
        sets,
        from_numpy(rows / np.maximum(limits, 1), pa.float64()),
        repeated(snapshot.id, count),
    ]
    return table_of(METADATA_TABLES["manifests"], columns)


def _of_arrays(snapshot: Snapshot) -> list[pa.Array]:
    """What manifests have of arrays, manifest by manifest, in the order of their rows."""
    entries = snapshot.entries
    order = np.lexsort([entries.rows, entries.codes])
    owners, flags = entries.owners[order], entries.flags[order]
    ranges = pa.Array.from_buffers(
        EXTENT.value_type, len(entries.pairs), [None], children=_bounds(entries.pairs)
    )
    marks = [
        from_numpy((flags & bit) != 0, pa.bool_())
        for bit in (DENSE, HAS_INLINE, HAS_NATIVE, HAS_VIRTUAL)
    ]
    return [
        _paths(snapshot, owners),
        from_numpy(snapshot.rows.ids[owners], pa.int64()),
        _signed(entries.rows[order]),
        _signed(entries.row_counts[order]),
        lists_of(ranges, entries.ranks).take(indices(order)),
        *marks,
    ]


def _sums(
    codes: npt.NDArray[np.int64], values: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.int64]:
    found = np.zeros(count, np.int64)
    np.add.at(found, codes, values)
    return found


def _sets(
    snapshot: Snapshot, row_counts: npt.NDArray[np.int64], settings: ManifestSettings
) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Tell the set of each manifest, null where arrays of several sets share it, and the most rows it may have."""
    entries = snapshot.entries
    arrays = distinct(entries.owners)
    totals = _sums(np.searchsorted(arrays, entries.owners), row_counts, len(arrays))
    names = [each.name for each in settings.sets]
    number_of = {name: number for number, name in enumerate(names)}
    most = np.array([limit_of(each) for each in settings.sets], np.int64)
    chosen = np.empty(len(arrays), np.int64)
    grid_counts, fit = (
        each[_array_places(snapshot)[arrays]] for each in grid_chunk_counts(snapshot)
    )
    shapes = [
        PlainShape(path=path, chunk_counts=(grid,), dimension_names=None, chunk_count=total)
        for path, grid, total in zip(
            _paths(snapshot, arrays).to_pylist(),
            np.where(fit, grid_counts, _LARGEST).tolist(),
            totals.tolist(),
            strict=True,
        )
    ]
    for place, meant in enumerate(choose_sets(settings, shapes)):
        home = set_for_size(settings, meant, shapes[place].chunk_count)
        chosen[place] = number_of[home.name]
    of_entry = chosen[np.searchsorted(arrays, entries.owners)]
    count = len(entries.manifests)
    low, high = np.full(count, len(names)), np.full(count, -1)
    limits = np.zeros(count, np.int64)
    np.minimum.at(low, entries.codes, of_entry)
    np.maximum.at(high, entries.codes, of_entry)
    np.maximum.at(limits, entries.codes, most[of_entry] if len(of_entry) else np.empty(0, np.int64))
    texts = from_values(names, pa.string())
    return texts.take(from_numpy(np.where(low == high, low, 0), pa.int64(), low == high)), limits


def _array_places(snapshot: Snapshot) -> npt.NDArray[np.int64]:
    """Give for each node that is an array its place among the arrays."""
    return np.cumsum(validity(one_array(snapshot.table["array_metadata"]))) - 1
