"""The live manifests of a snapshot, and what each has of each array: read off the structure file.

Manifests themselves are not opened. Nothing is looped over manifests: there may be a hundred thousand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.chunks import DENSE, HAS_INLINE, HAS_NATIVE, HAS_VIRTUAL
from icechunk_arrow.core.columns import (
    from_numpy,
    from_values,
    indices,
    one_array,
    to_numpy,
    validity,
)
from icechunk_arrow.core.packing import PlainShape, choose_sets
from icechunk_arrow.core.placement import limit_of, set_for_size
from icechunk_arrow.formats.live_manifests import extent_lists
from icechunk_arrow.tables.columns import extents, int64, lists_of, repeated, table_of
from icechunk_arrow.tables.nodes import grid_chunk_counts
from icechunk_arrow.tables.schemas import EXTENT, FACTS

if TYPE_CHECKING:
    import numpy.typing as npt

    from icechunk_arrow.core.manifest_settings import ManifestSettings
    from icechunk_arrow.core.snapshot import Snapshot

__all__ = ["Entries", "entries_of", "manifest_table"]

_LARGEST = 2**63 - 1
_PAIRS = pa.list_(pa.list_(pa.uint64(), 2))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entries:
    """All inventory entries of a snapshot as columns, in the order of the structure file."""

    manifests: tuple[str, ...]
    """Ids of the live manifests, in the order in which the rows name them first."""
    codes: npt.NDArray[np.int64]
    """For each entry the place of its manifest among these."""
    owners: npt.NDArray[np.int64]
    """For each entry the row of its array among the snapshot's nodes."""
    node_ids: npt.NDArray[np.int64]
    paths: pa.Array
    rows: npt.NDArray[np.int64]
    row_counts: npt.NDArray[np.int64]
    stored_bytes: pa.Array
    """Null for a number that is too large."""
    flags: npt.NDArray[np.uint16]
    extents: pa.Array
    """Lists of ``start`` and ``stop``."""
    ranks: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.codes)

    def bound(self, name: str) -> pa.Array:
        """Give the extents' ``start`` or ``stop`` as lists of numbers."""
        return lists_of(self.extents.flatten().field(name), self.ranks)


def entries_of(snapshot: Snapshot) -> Entries:
    """Read the inventory entries of a snapshot."""
    found = snapshot.entries
    return Entries(
        manifests=found.manifests,
        codes=found.codes,
        owners=found.owners,
        node_ids=snapshot.rows.ids.astype(np.int64)[found.owners],
        paths=one_array(snapshot.table["path"]).take(indices(found.owners)),
        rows=to_numpy(int64(from_numpy(found.rows, pa.uint64()))),
        row_counts=to_numpy(int64(from_numpy(found.row_counts, pa.uint64()))),
        stored_bytes=_known(found.stored_bytes),
        flags=found.flags,
        extents=extents(extent_lists(found, _PAIRS)),
        ranks=found.ranks,
    )


def _known(numbers: npt.NDArray[np.uint64]) -> pa.Array:
    fits = numbers <= np.iinfo(np.int64).max
    return from_numpy(numbers.astype(np.int64), pa.int64(), fits)


def manifest_table(snapshot: Snapshot, settings: ManifestSettings) -> pa.Table:
    """Make the table of the live manifests."""
    entries = entries_of(snapshot)
    count = len(entries.manifests)
    order = np.lexsort([entries.rows, entries.codes])
    per_manifest = np.bincount(entries.codes, minlength=count)
    rows = _sums(entries.codes, entries.row_counts, count)
    sets, limits = _sets(snapshot, entries, settings)
    sizes = [snapshot.manifest_sizes[name] for name in entries.manifests]
    kind = FACTS["manifests"].field("arrays").type
    structs = pa.Array.from_buffers(
        kind.value_type, len(entries), [None], children=_held(entries, order)
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
    return table_of(FACTS["manifests"], columns)


def _held(entries: Entries, order: npt.NDArray[np.int64]) -> list[pa.Array]:
    """What manifests have of arrays, manifest by manifest, in the order of their rows."""
    some = indices(order)
    flags = entries.flags[order]
    marks = [
        from_numpy((flags & bit) != 0, pa.bool_())
        for bit in (DENSE, HAS_INLINE, HAS_NATIVE, HAS_VIRTUAL)
    ]
    return [
        entries.paths.take(some),
        from_numpy(entries.node_ids[order], pa.int64()),
        from_numpy(entries.rows[order], pa.int64()),
        from_numpy(entries.row_counts[order], pa.int64()),
        entries.extents.take(some).cast(EXTENT),
        *marks,
    ]


def _sums(
    codes: npt.NDArray[np.int64], values: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.int64]:
    found = np.zeros(count, np.int64)
    np.add.at(found, codes, values)
    return found


def _sets(
    snapshot: Snapshot, entries: Entries, settings: ManifestSettings
) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Tell the set of each manifest, null where arrays of several sets share it, and the most rows it may have."""
    arrays, first = np.unique(entries.owners, return_index=True)
    totals = _sums(np.searchsorted(arrays, entries.owners), entries.row_counts, len(arrays))
    names = [each.name for each in settings.sets]
    known = {name: place for place, name in enumerate(names)}
    most = np.array([limit_of(each) for each in settings.sets], np.int64)
    chosen = np.empty(len(arrays), np.int64)
    grid_counts, fit = (
        each[_array_places(snapshot)[arrays]] for each in grid_chunk_counts(snapshot)
    )
    shapes = [
        PlainShape(path=path, chunk_counts=(grid,), dimension_names=None, chunk_count=total)
        for path, grid, total in zip(
            entries.paths.take(indices(first)).to_pylist(),
            np.where(fit, grid_counts, _LARGEST).tolist(),
            totals.tolist(),
            strict=True,
        )
    ]
    for place, meant in enumerate(choose_sets(settings, shapes)):
        home = set_for_size(settings, meant, shapes[place].chunk_count)
        chosen[place] = known[home.name]
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
