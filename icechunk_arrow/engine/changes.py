"""What a session wants to commit: nodes, and the chunks of all its arrays at once, put into columns.

Owns how single writes, bulk writes and deletions of many arrays become sorted rows, and which bytes that waited in
memory go into chunk files on the way. The arrays' segments are merged before (``engine.merging``).
"""

from __future__ import annotations

import os
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from icechunk_arrow.core.chunk_set import ChunkSet
from icechunk_arrow.core.chunks import (
    CHUNK_SCHEMA,
    ChunkRef,
    chunk_table,
    concat_sorted,
    rows_of_refs,
    with_array_id,
)
from icechunk_arrow.core.columns import empty_table, from_numpy, from_values, one_array, to_numpy
from icechunk_arrow.core.inventory import NO_INVENTORY
from icechunk_arrow.core.lazy import lazy
from icechunk_arrow.core.log import NO_SINGLES, Singles
from icechunk_arrow.engine.segments import Bulk
from icechunk_arrow.storage.forked_children import refuse_child

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy.typing as npt

    from icechunk_arrow.core.boxes import Box
    from icechunk_arrow.core.inventory import Inventory
    from icechunk_arrow.core.snapshot import Node
    from icechunk_arrow.engine.payloads import PayloadWriter, PlacedPayloads
    from icechunk_arrow.engine.segments import StagedChunks

__all__ = ["ChangedChunks", "Changes", "PendingFiles", "in_columns"]

_BINARY = CHUNK_SCHEMA.field("coord").type


class PendingFiles(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """Bytes that waited in memory, on their way into chunk files; sorted by (array_id, coord)."""

    array_ids: npt.NDArray[np.uint32]
    coords: Sequence[bytes]
    payloads: PlacedPayloads
    process: int = field(default_factory=os.getpid)
    """Whose threads write them."""

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
        # a thread that forked, and goes on, would wait for ever
        refuse_child(self.process, "wrote chunk files")
        self.payloads.written.result()

    def is_written(self) -> bool:
        """Wait until the writing has ended, and tell whether it went well."""
        return self.payloads.written.exception() is None

    def take_over(self, arrays: Mapping[int, StagedChunks]) -> None:
        """Stage the references in place of the bytes."""
        refs = self.payloads.refs()
        for array_id, coord, ref in zip(self.array_ids.tolist(), self.coords, refs, strict=True):
            arrays[array_id].singles[coord] = ref


class ChangedChunks(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """What a session did to the chunks of all its arrays, as columns."""

    array_ids: tuple[int, ...] = ()
    """All arrays that something happened to, rising."""
    rows: pa.Table = field(default_factory=lambda: empty_table(CHUNK_SCHEMA))
    """References of all arrays that no manifest holds yet, sorted by (array_id, coord)."""
    deleted: Singles = NO_SINGLES
    """Chunks that were deleted, whether the base has them or not."""
    present: Singles | None = None
    """Those of them that the base has; None where that was not looked at."""
    inventories: Mapping[int, Inventory] = field(default_factory=dict)
    """By array: manifests that the session wrote already; they hold none of the rows' chunks."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of these manifests."""
    kept: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By array: chunks of the base outside this many along each dimension go."""
    pending: PendingFiles | None = None
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
        held = self.inventories.get(array_id, NO_INVENTORY).chunk_count
        return self.written.counts.get(array_id, 0) + held

    def chunk_set(self, array_id: int, grid: Box) -> ChunkSet:
        """Tell which chunks of the base go: those that are written or deleted, or no longer kept."""
        return ChunkSet.of(
            len(grid),
            written=self.written.of_node(array_id),
            within=grid,
            deleted=self.gone.of_node(array_id),
            inventory=self.inventories.get(array_id, NO_INVENTORY),
            kept=self.kept.get(array_id),
        )


def in_columns(
    arrays: Mapping[int, StagedChunks],
    writer: PayloadWriter | None = None,
    *,
    aside: bool = False,
) -> ChangedChunks:
    """Put everything staged into columns, all arrays at once; their segments are merged.

    Bytes in memory count as inline; a ``writer`` puts those that are too long for that into chunk files, ``aside``
    while the caller goes on.
    """
    array_ids = sorted(arrays)
    owners, keys, staged, deleted = _single_writes(array_ids, arrays)
    waits = [False] * len(staged) if writer is None else writer.waiting(staged)
    pending = None
    tables = []
    if any(waits):
        assert writer is not None
        pending = PendingFiles(
            array_ids=owners[waits],
            coords=list(compress(keys, waits)),
            payloads=writer.start(list(compress(staged, waits)), aside=aside),  # type: ignore[arg-type]
        )
        tables.append(pending.rows())
    if not all(waits):
        stays = [not each for each in waits]
        refs = [
            ChunkRef(inline=each, length=len(each)) if isinstance(each, bytes) else each
            for each in compress(staged, stays)
        ]
        tables.append(rows_of_refs(owners[stays], list(compress(keys, stays)), refs))
    bulks = {i: each for i in array_ids for each in arrays[i].segments if isinstance(each, Bulk)}
    tables += (with_array_id(rows, i) for i, bulk in bulks.items() for rows in bulk.tables)
    return ChangedChunks(
        array_ids=tuple(array_ids),
        rows=concat_sorted(tables),
        deleted=Singles.of(deleted),
        inventories={i: bulk.inventory for i, bulk in bulks.items() if len(bulk.inventory)},
        sizes={name: size for bulk in bulks.values() for name, size in bulk.sizes.items()},
        kept={i: counts for i in array_ids if (counts := arrays[i].kept) is not None},
        pending=pending,
    )


def _single_writes(
    array_ids: Sequence[int], arrays: Mapping[int, StagedChunks]
) -> tuple[npt.NDArray[np.uint32], list[bytes], list[ChunkRef | bytes], dict[int, pa.Array]]:
    """Give what was staged one by one, in order: arrays, coordinates, what is there; and what was deleted."""
    keys: list[bytes] = []
    staged: list[Any] = []
    counts: list[int] = []
    deleted: dict[int, pa.Array] = {}
    for array_id in array_ids:
        singles = arrays[array_id].singles
        present = sorted(singles)
        values = list(map(singles.__getitem__, present))
        if None in values:
            gone = [key for key in present if singles[key] is None]
            deleted[array_id] = from_values(gone, _BINARY)
            present = [key for key in present if singles[key] is not None]
            values = list(map(singles.__getitem__, present))
        keys += present
        staged += values
        counts.append(len(present))
    owners = np.repeat(np.array(array_ids, np.uint32), np.array(counts, np.int64))
    return owners, keys, staged, deleted


class Changes(Struct, frozen=True, kw_only=True, eq=False):
    """What a session wants to commit on a base."""

    overlay: Mapping[str, Node | None]
    chunks: ChangedChunks
    next_node_id: int
    attributes_before: Mapping[int, bytes | None] = field(default_factory=dict)
    """By node, of those whose attributes changed and stood in an attributes file: what stood there."""
    is_placement: bool = False
    """Whether every reference that is staged names the bytes that the chunk has already."""
