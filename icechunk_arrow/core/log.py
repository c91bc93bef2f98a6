"""What one commit did: the value behind a transaction log, and what a session has done so far.

A bulk write is known by its manifest and extent, single writes by their coordinates. Conflicts, diffs and
``status`` are decided on these values alone.

What changes values stands apart from what only puts the same bytes elsewhere (*placement*): the latter gives way to
everything, and a reader that follows values does not see it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from icechunk_arrow.core.boxes import volume
from icechunk_arrow.core.columns import empty, indices, run_edges
from icechunk_arrow.core.lazy import lazy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import numpy.typing as npt

    from icechunk_arrow.core.boxes import Box
    from icechunk_arrow.core.snapshot import SnapshotFacts

__all__ = [
    "NO_SINGLES",
    "BulkWrite",
    "ChunkChanges",
    "ChunkLog",
    "Cleared",
    "NodeName",
    "NodeUpdate",
    "Resize",
    "Shift",
    "Singles",
    "TakenSource",
    "TransactionLog",
]


class NodeName(NamedTuple):
    """A node as a log speaks of it; a tuple, since a commit may make thousands."""

    id: int
    path: str
    type: str


class NodeUpdate(NamedTuple):
    """A node whose document or attributes changed, and the top-level members that differ."""

    node: NodeName
    keys: tuple[str, ...]


class Resize(NamedTuple):
    """An array of which nothing but the shape changed."""

    node: NodeName
    before: tuple[int, ...]
    after: tuple[int, ...]


class Shift(NamedTuple):
    """An array of which all chunks have other coordinates now."""

    node: NodeName
    offset: tuple[int, ...]
    """What was added to the index along each dimension."""


class TakenSource(NamedTuple):
    """A foreign file whose chunks a commit refers to or took over, as it was then."""

    location: str
    etag: str | None
    last_modified: int | None
    """Microseconds since 1970."""
    size_bytes: int | None


class Cleared(Struct, frozen=True, kw_only=True):
    """A box of chunks that were deleted at once, whether they were there or not."""

    extent: Box
    chunk_count: int
    """How many of them were there."""


class BulkWrite(Struct, frozen=True, kw_only=True):
    """Many chunks written at once: the rows of one array in one manifest."""

    manifest: str
    extent: Box
    chunk_count: int

    @property
    def is_dense(self) -> bool:
        """Whether the extent alone says which chunks: then no reader needs the manifest."""
        return volume(self.extent) == self.chunk_count


def _no_chunks() -> pa.Array:
    return empty(pa.binary())


class ChunkChanges(Struct, frozen=True, kw_only=True):
    """What happened to the chunks of one array."""

    written: pa.Array = field(default_factory=_no_chunks)
    """Encoded coordinates of chunks that were written one by one, sorted."""
    deleted: pa.Array = field(default_factory=_no_chunks)
    """Encoded coordinates of chunks that were deleted, there or not, sorted."""
    cleared: tuple[Cleared, ...] = ()
    """Boxes of chunks that were deleted, there or not."""
    bulk: tuple[BulkWrite, ...] = ()
    kept: tuple[int, ...] | None = None
    """Where the array shrank: chunks outside this many along each dimension are gone."""

    @property
    def at_once(self) -> tuple[BulkWrite | Cleared, ...]:
        """All that was written or deleted by extent."""
        return (*self.bulk, *self.cleared)

    @property
    def single(self) -> pa.Array:
        """Coordinates of all chunks that were written or deleted one by one, each once."""
        return pa.concat_arrays([self.written, self.deleted]).unique()


class Singles(Struct, frozen=True, eq=False, dict=True):
    """Chunks of many arrays, named one by one: columns, sorted by node and coordinate."""

    node_ids: npt.NDArray[np.uint32]
    coords: pa.Array
    """Encoded coordinates."""

    def __len__(self) -> int:
        return len(self.node_ids)

    @classmethod
    def of(cls, by_node: Mapping[int, pa.Array]) -> Singles:
        """Put columns of single nodes together."""
        full = [(node_id, coords) for node_id, coords in sorted(by_node.items()) if len(coords)]
        ids = [np.full(len(coords), node_id, np.uint32) for node_id, coords in full]
        if not full:
            return NO_SINGLES
        return cls(np.concatenate(ids), pa.concat_arrays([coords for _, coords in full]))

    @lazy
    def spans(self) -> Mapping[int, slice]:
        """Where each node's chunks stand, by its id; nodes without any are not there."""
        if not len(self):
            return {}
        edges = run_edges(self.node_ids)
        spans = map(slice, edges[:-1].tolist(), edges[1:].tolist())
        return dict(zip(self.node_ids[edges[:-1]].tolist(), spans, strict=True))

    @lazy
    def counts(self) -> Mapping[int, int]:
        """How many chunks of each node there are, as far as there are any."""
        return {node_id: span.stop - span.start for node_id, span in self.spans.items()}

    def of_node(self, node_id: int) -> pa.Array:
        """Give the coordinates of one node's chunks."""
        span = self.spans.get(node_id)
        return _no_chunks() if span is None else self.coords[span]

    def without(self, nodes: Collection[int]) -> Singles:
        """Leave out all chunks of some nodes."""
        if not nodes:
            return self
        gone = np.fromiter(nodes, np.uint32, len(nodes))
        rows = np.flatnonzero(~np.isin(self.node_ids, gone))
        return Singles(self.node_ids[rows], self.coords.take(indices(rows)))


NO_SINGLES = Singles(np.zeros(0, np.uint32), empty(pa.binary()))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ChunkLog(Mapping[int, ChunkChanges]):
    """What happened to the chunks of all arrays: by array a view, beneath it columns."""

    written: Singles = NO_SINGLES
    deleted: Singles = NO_SINGLES
    cleared: Mapping[int, tuple[Cleared, ...]] = dataclasses.field(default_factory=dict)
    bulk: Mapping[int, tuple[BulkWrite, ...]] = dataclasses.field(default_factory=dict)
    kept: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, by_node: Mapping[int, ChunkChanges]) -> ChunkLog:
        """Put what happened to single arrays together."""
        return cls(
            written=Singles.of({i: each.written for i, each in by_node.items()}),
            deleted=Singles.of({i: each.deleted for i, each in by_node.items()}),
            cleared={i: each.cleared for i, each in by_node.items() if each.cleared},
            bulk={i: each.bulk for i, each in by_node.items() if each.bulk},
            kept={i: each.kept for i, each in by_node.items() if each.kept is not None},
        )

    @lazy
    def node_ids(self) -> Mapping[int, None]:
        """The arrays to which something happened, rising."""
        spans = self.written.spans, self.deleted.spans
        ids = set().union(*spans, self.cleared, self.bulk, self.kept)
        return dict.fromkeys(sorted(ids))

    def __len__(self) -> int:
        return len(self.node_ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self.node_ids)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self.node_ids

    def __getitem__(self, node_id: int) -> ChunkChanges:
        if node_id not in self.node_ids:
            raise KeyError(node_id)
        return ChunkChanges(
            written=self.written.of_node(node_id),
            deleted=self.deleted.of_node(node_id),
            cleared=self.cleared.get(node_id, ()),
            bulk=self.bulk.get(node_id, ()),
            kept=self.kept.get(node_id),
        )


class TransactionLog(Struct, frozen=True, kw_only=True):
    """All that one commit did, by node; ``facts`` are None for a session's uncommitted changes."""

    facts: SnapshotFacts | None = None
    created: tuple[NodeName, ...] = ()
    deleted: tuple[NodeName, ...] = ()
    moved: tuple[tuple[NodeName, str], ...] = ()
    """Each node under its new path, with the path that it had."""
    updated_metadata: tuple[NodeUpdate, ...] = ()
    updated_attributes: tuple[NodeUpdate, ...] = ()
    resized: tuple[Resize, ...] = ()
    shifted: tuple[Shift, ...] = ()
    chunks: ChunkLog = field(default_factory=ChunkLog)
    relocated: Mapping[int, tuple[BulkWrite, ...]] = field(default_factory=dict)
    """Placement: chunks whose bytes, the same ones, stand elsewhere now."""
    annotated: Mapping[int, tuple[BulkWrite, ...]] = field(default_factory=dict)
    """Placement: chunks of which a manifest says more now, such as statistics."""
    sources: tuple[TakenSource, ...] = ()
    names: Mapping[int, NodeName] = field(default_factory=dict)
    """The arrays that are spoken of by id: ``chunks``, ``relocated``, ``annotated``."""

    @property
    def updated(self) -> dict[int, NodeName]:
        """All nodes whose documents changed or whose chunks have other coordinates, by id."""
        nodes = chain(
            (each.node for each in self.updated_metadata),
            (each.node for each in self.updated_attributes),
            (each.node for each in self.resized),
            (each.node for each in self.shifted),
        )
        return {node.id: node for node in nodes}

    @property
    def keeps_values(self) -> bool:
        """Whether every node and every value is what it was before."""
        return not (
            self.created
            or self.deleted
            or self.moved
            or self.updated_metadata
            or self.updated_attributes
            or self.resized
            or self.shifted
            or self.chunks
        )
