"""Which chunks commits changed, read off their transaction logs: in pieces that tasks share out.

Owns what counts as a change: a chunk that was written, or that there is no longer because it was deleted, or lay
outside of an array that shrank, or belonged to one that was deleted. Each changed chunk of a commit comes once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import inside, points_of
from icechunk_arrow.core.chunks import member_mask
from icechunk_arrow.core.columns import from_numpy, one_array
from icechunk_arrow.core.lazy import lazy
from icechunk_arrow.core.log import ChunkChanges
from icechunk_arrow.engine.lookup import present_in
from icechunk_arrow.errors import CorruptFileError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from icechunk_arrow.core.inventory import InventoryEntry
    from icechunk_arrow.core.log import BulkWrite, NodeName
    from icechunk_arrow.core.snapshot import Node, Snapshot
    from icechunk_arrow.engine.context import Context

    Coordinates = npt.NDArray[np.uint64]
    Mask = npt.NDArray[np.bool_]

__all__ = ["ArrayChanges", "Piece", "arrays_changed"]

DELETE, WRITE = "delete_chunk", "write_chunk"
"""Words of the transaction log."""
_BATCH = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some of the changes of one array in one commit: a run of what one item of its log says."""

    snapshot_id: str
    node: NodeName
    source: str
    """``written`` and ``deleted``, the log's lists; ``bulk``, a bulk write; ``before``, entries of the parent."""
    item: int = 0
    """Which bulk write, or entry."""
    start: int = 0
    stop: int = 0

    @property
    def operation(self) -> str:
        """What happened to the chunks."""
        return WRITE if self.source in {"written", "bulk"} else DELETE


def arrays_changed(context: Context, snapshot_id: str) -> list[ArrayChanges]:
    """Give the arrays whose chunks a commit changed, in the order of their ids."""
    facts = context.files.read_facts(snapshot_id)
    if facts.parent_id is None:
        return []
    log = context.files.read_log(snapshot_id)
    if log.shifted:
        raise UnsupportedFormatError(
            f"the commit {snapshot_id} gave all chunks of {log.shifted[0].node.path!r} other coordinates, "
            f"which this version cannot follow chunk by chunk; begin behind it"
        )
    names = {**log.names, **{node.id: node for node in log.deleted if node.type == "array"}}
    gone = {node.id for node in log.deleted}
    return [
        ArrayChanges(
            context=context,
            snapshot_id=snapshot_id,
            parent_id=facts.parent_id,
            node=names[node_id],
            changes=log.chunks.get(node_id, ChunkChanges()),
            is_gone=node_id in gone,
        )
        for node_id in sorted(names)
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrayChanges:
    """What one commit did to the chunks of one array."""

    context: Context
    snapshot_id: str
    parent_id: str
    node: NodeName
    changes: ChunkChanges
    is_gone: bool

    # -- pieces

    def pieces(self, most: int) -> Iterator[Piece]:
        """Divide the changes into pieces of at most so many chunks, and one array's removal by manifests."""
        sources: list[tuple[str, int, int]] = [
            ("deleted", 0, len(self._deleted)),
            *(("before", number, entry.row_count) for number, entry in self._entries_that_go()),
            ("written", 0, len(self.changes.written)),
            *(("bulk", number, each.chunk_count) for number, each in enumerate(self.changes.bulk)),
        ]
        for source, item, count in sources:
            for start in range(0, count, most):
                yield Piece(
                    snapshot_id=self.snapshot_id,
                    node=self.node,
                    source=source,
                    item=item,
                    start=start,
                    stop=min(start + most, count),
                )

    def coordinates(self, piece: Piece) -> Iterator[Coordinates]:
        """Give the chunks of a piece, as n × dimensions arrays."""
        if piece.source in {"written", "deleted"}:
            column = self.changes.written if piece.source == "written" else self._deleted
            yield self._decoded(column[piece.start : piece.stop])
        elif piece.source == "bulk":
            yield from self._bulk(self.changes.bulk[piece.item], piece.start, piece.stop)
        else:
            entry = self._before.inventories[piece.item]
            for places in self._rows(entry, piece.start, piece.stop):
                yield places[self._goes(places)]

    # -- what was there before

    def _snapshot(self, identifier: str) -> Snapshot:
        return self.context.files.read_snapshot(identifier)

    @lazy
    def _before(self) -> Node:
        node = self._snapshot(self.parent_id).find_node_by_id(self.node.id)
        assert node is not None, "an array that shrinks or goes was there"
        return node

    @lazy
    def _after(self) -> Node:
        node = self._snapshot(self.snapshot_id).find_node_by_id(self.node.id)
        assert node is not None, "an array that is written to is there"
        return node

    @lazy
    def _ndim(self) -> int:
        return len((self._before if self.is_gone else self._after).grid.axes)

    @lazy
    def _deleted(self) -> pa.Array:
        """Chunks that were deleted one by one, and were there."""
        column = self.changes.deleted
        known = self._snapshot(self.parent_id).find_node_by_id(self.node.id)
        if known is None or not len(column):
            return column[:0]
        present = present_in(self.context.files, known.id, known.inventories, column)
        return column.filter(from_numpy(present, pa.bool_()))

    def _entries_that_go(self) -> list[tuple[int, InventoryEntry]]:
        """Give the parent's entries with chunks that there may be no more, by number."""
        kept, cleared = self.changes.kept, self.changes.cleared
        known = self._snapshot(self.parent_id).find_node_by_id(self.node.id)
        if known is None or not len(known.inventories):
            return []
        entries = known.inventories
        chosen = np.full(len(entries), self.is_gone)
        if kept is not None:
            chosen |= entries.boxes.leave(kept)
        for each in cleared:
            chosen |= entries.boxes.meet(each.extent)
        return [(number, entries[number]) for number in np.flatnonzero(chosen).tolist()]

    def _goes(self, places: Coordinates) -> Mask:
        """Tell which chunks of the parent are gone for good, and are not among those that the log lists."""
        if self.is_gone:
            return np.ones(len(places), np.bool_)
        gone: Mask = np.zeros(len(places), np.bool_)
        if self.changes.kept is not None:
            gone |= (places >= np.array(self.changes.kept, np.uint64)).any(axis=1)
        for each in self.changes.cleared:
            gone |= inside(each.extent, places)
        return np.asarray(gone & ~self.holds(places))

    # -- what the log says

    def holds(self, places: Coordinates) -> Mask:
        """Tell of chunks whether the log says that they were written or deleted one by one, or written in bulk."""
        held: Mask = np.zeros(len(places), np.bool_)
        if not len(places):
            return held
        listed = self.changes.single
        if len(listed):
            held |= member_mask(coords.encode(places), listed)
        for bulk in self.changes.bulk:
            within = inside(bulk.extent, places)
            if bulk.is_dense or not within.any():
                held |= within
                continue
            encoded = coords.encode(places)
            for rows in self._bulk(bulk, 0, bulk.chunk_count):
                held |= member_mask(encoded, coords.encode(rows))
        return held

    def touches(self, places: Coordinates) -> Mask:
        """Tell of chunks of the array whether the commit changed them."""
        changed = self.holds(places)
        for _, entry in self._entries_that_go():
            if inside(entry.extent, places)[~changed].any():
                encoded = coords.encode(places)
                for rows in self._rows(entry, 0, entry.row_count):
                    changed |= member_mask(encoded, coords.encode(rows[self._goes(rows)]))
        return changed

    def _bulk(self, bulk: BulkWrite, start: int, stop: int) -> Iterator[Coordinates]:
        if not bulk.is_dense:
            entries = self._after.inventories
            for number, name in enumerate(entries.names):
                if name == bulk.manifest:
                    yield from self._rows(entries[number], start, stop)
                    return
            raise CorruptFileError(
                f"the transaction log of {self.snapshot_id} says that {bulk.manifest} has chunks of "
                f"{self.node.path}, and the snapshot does not; restore them from a copy"
            )
        for begin in range(start, stop, _BATCH):
            yield points_of(bulk.extent, begin, min(begin + _BATCH, stop))

    def _rows(self, entry: InventoryEntry, start: int, stop: int) -> Iterator[Coordinates]:
        for table in self.context.files.scan_rows(
            entry.manifest,
            self.node.id,
            entry.row + start,
            entry.row + stop,
            columns=("array_id", "coord"),
        ):
            yield self._decoded(one_array(table["coord"]))

    def _decoded(self, encoded: pa.Array) -> Coordinates:
        return coords.decode(encoded, self._ndim)
