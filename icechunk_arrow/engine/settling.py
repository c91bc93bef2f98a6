"""What a session has staged, put into columns: all arrays at once, for a commit, a log or a listing.

Owns how entries, tables and deletions of many arrays become sorted rows, and which bytes that waited in memory
go into chunk files on the way. What is staged, and how newer covers older, is the business of ``engine.staging``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.chunk_set import ChunkSet
from icechunk_arrow.core.chunks import (
    CHUNK_SCHEMA,
    ChunkRef,
    chunk_table,
    concat_sorted,
    keep_rows,
    rows_of_array,
    rows_of_refs,
)
from icechunk_arrow.core.columns import (
    empty,
    empty_table,
    from_numpy,
    from_values,
    one_array,
    to_numpy,
)
from icechunk_arrow.core.inventory import NO_INVENTORY
from icechunk_arrow.core.lazy import lazy
from icechunk_arrow.core.log import NO_SINGLES, Singles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy.typing as npt

    from icechunk_arrow.core.boxes import Box
    from icechunk_arrow.core.inventory import Inventory
    from icechunk_arrow.engine.payloads import PayloadWriter, PlacedPayloads
    from icechunk_arrow.engine.staging import ArrayDelta, Runs

__all__ = ["Gathered", "Settled", "settle"]

_BINARY = CHUNK_SCHEMA.field("coord").type


@dataclass(frozen=True, kw_only=True, eq=False)
class Gathered:
    """Bytes that waited in memory, on their way into chunk files; sorted by (array_id, coord)."""

    array_ids: npt.NDArray[np.uint32]
    coords: Sequence[bytes]
    payloads: PlacedPayloads

    def rows(self) -> pa.Table:
        """Give their references."""
        columns = {
            "array_id": from_numpy(self.array_ids, pa.uint32()),
            "coord": from_values(self.coords, _BINARY),
            **self.payloads.columns(),
        }
        return chunk_table(columns, len(self.coords))

    def finish(self) -> None:
        """Return when all of them are written; raise what went wrong."""
        self.payloads.written.result()

    def is_written(self) -> bool:
        """Wait until the writing has ended, and tell whether it went well."""
        return self.payloads.written.exception() is None

    def take_over(self, deltas: Mapping[int, ArrayDelta]) -> None:
        """Stage the references in place of the bytes."""
        refs = self.payloads.refs()
        for array_id, coord, ref in zip(self.array_ids.tolist(), self.coords, refs, strict=True):
            deltas[array_id].entries[coord] = ref


@dataclass(frozen=True, kw_only=True, eq=False)
class Settled:
    """What a session did to the chunks of all its arrays, as columns."""

    array_ids: tuple[int, ...] = ()
    """All arrays that something happened to, rising."""
    rows: pa.Table = field(default_factory=lambda: empty_table(CHUNK_SCHEMA))
    """References of all arrays, without those in runs, sorted by (array_id, coord)."""
    deleted: Singles = NO_SINGLES
    """Chunks that were deleted, whether the base has them or not."""
    present: Singles | None = None
    """Those of them that the base has; None where that was not looked at."""
    runs: Mapping[int, Runs] = field(default_factory=dict)
    """By array: manifests that the session wrote already; they hold none of the rows' chunks."""
    kept: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By array: chunks of the base outside this many along each dimension go."""
    gathered: Gathered | None = None
    """Where bytes went that waited in memory; None where that was not asked for, or none did."""

    @lazy
    def written(self) -> Singles:
        """The chunks of the rows."""
        return Singles(to_numpy(self.rows["array_id"]), one_array(self.rows["coord"]))

    @property
    def gone(self) -> Singles:
        """Deleted chunks that manifests may hold."""
        return self.deleted if self.present is None else self.present

    def chunk_count(self, array_id: int) -> int:
        """How many chunks of an array are written."""
        runs = self.runs.get(array_id)
        own = self.written.counts.get(array_id, 0)
        return own + (0 if runs is None else runs.inventories.chunk_count)

    def chunk_set(self, array_id: int, grid: Box) -> ChunkSet:
        """Tell which chunks of the base go: those that are written or deleted, or no longer kept."""
        runs = self.runs.get(array_id)
        return ChunkSet.of(
            len(grid),
            written=self.written.of_node(array_id),
            within=grid,
            deleted=self.gone.of_node(array_id),
            runs=NO_INVENTORY if runs is None else runs.inventories,
            kept=self.kept.get(array_id),
        )

    @property
    def run_sizes(self) -> dict[str, int]:
        """Bytes of the manifests among the runs."""
        return {name: size for runs in self.runs.values() for name, size in runs.sizes.items()}

    @property
    def run_entries(self) -> list[Inventory]:
        """Inventory entries of the runs."""
        return [runs.inventories.owned_by(i) for i, runs in self.runs.items()]


def settle(
    deltas: Mapping[int, ArrayDelta], writer: PayloadWriter | None = None, *, aside: bool = False
) -> Settled:
    """Put everything staged into columns, all arrays at once.

    Bytes in memory count as inline; a ``writer`` puts those that are too long for that into chunk files, ``aside``
    while the caller goes on.
    """
    array_ids = sorted(deltas)
    owners, keys, staged, deleted = _entries_of(array_ids, deltas)
    waits = [False] * len(staged) if writer is None else writer.waiting(staged)
    gathered = None
    tables = []
    if any(waits):
        assert writer is not None
        gathered = Gathered(
            array_ids=owners[waits],
            coords=list(compress(keys, waits)),
            payloads=writer.start(list(compress(staged, waits)), aside=aside),  # type: ignore[arg-type]
        )
        tables.append(gathered.rows())
    if not all(waits):
        stays = [not each for each in waits]
        refs = [
            ChunkRef(inline=each, length=len(each)) if isinstance(each, bytes) else each
            for each in compress(staged, stays)
        ]
        tables.append(rows_of_refs(owners[stays], list(compress(keys, stays)), refs))
    return Settled(
        array_ids=tuple(array_ids),
        rows=_with_tables(concat_sorted(tables), deltas, deleted),
        deleted=Singles.of(deleted),
        runs={i: deltas[i].runs for i in array_ids if len(deltas[i].runs)},
        kept={i: kept for i in array_ids if (kept := deltas[i].kept) is not None},
        gathered=gathered,
    )


def _entries_of(
    array_ids: Sequence[int], deltas: Mapping[int, ArrayDelta]
) -> tuple[npt.NDArray[np.uint32], list[bytes], list[ChunkRef | bytes], dict[int, pa.Array]]:
    """Give what was staged one by one, in order: arrays, coordinates, what is there; and what was deleted."""
    keys: list[bytes] = []
    staged: list[Any] = []
    counts: list[int] = []
    deleted: dict[int, pa.Array] = {}
    for array_id in array_ids:
        entries = deltas[array_id].entries
        present = sorted(entries)
        values = list(map(entries.__getitem__, present))
        if None in values:
            gone = [key for key in present if entries[key] is None]
            deleted[array_id] = from_values(gone, _BINARY)
            present = [key for key in present if entries[key] is not None]
            values = list(map(entries.__getitem__, present))
        keys += present
        staged += values
        counts.append(len(present))
    owners = np.repeat(np.array(array_ids, np.uint32), np.array(counts, np.int64))
    return owners, keys, staged, deleted


def _with_tables(
    rows: pa.Table, deltas: Mapping[int, ArrayDelta], deleted: Mapping[int, pa.Array]
) -> pa.Table:
    """Lay rows that were staged one by one over those that came in tables."""
    bulk = sorted(array_id for array_id, delta in deltas.items() if delta.tables)
    if not bulk:
        return rows
    none = empty(_BINARY)
    merged = [deltas[i].merged(i, rows_of_array(rows, i), deleted.get(i, none)) for i in bulk]
    others = ~np.isin(to_numpy(rows["array_id"]), np.array(bulk, np.uint32))
    return concat_sorted([keep_rows(rows, others), *merged])
