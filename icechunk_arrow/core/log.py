"""What one commit did: the value behind a transaction log, and what a session has done so far.

A bulk write is known by its manifest and extent, single writes by their coordinates. Conflicts, diffs and
``status`` are decided on these values alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from icechunk_arrow.core.chunks import volume
from icechunk_arrow.core.columns import empty

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icechunk_arrow.core.chunks import Extent
    from icechunk_arrow.core.snapshot import SnapshotFacts

__all__ = ["BulkWrite", "ChunkChanges", "NodeName", "TransactionLog"]


class NodeName(NamedTuple):
    """A node as a log speaks of it; a tuple, since a commit may make thousands."""

    id: int
    path: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkWrite:
    """Many chunks written at once: the rows of one array in one manifest."""

    manifest: str
    extent: Extent
    chunk_count: int

    @property
    def is_dense(self) -> bool:
        """Whether the extent alone says which chunks: then nobody needs the manifest."""
        return volume(self.extent) == self.chunk_count


def _no_chunks() -> pa.Array:
    return empty(pa.binary())


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkChanges:
    """What happened to the chunks of one array."""

    written: pa.Array = field(default_factory=_no_chunks)
    """Encoded coordinates of chunks that were written one by one, sorted."""
    deleted: pa.Array = field(default_factory=_no_chunks)
    """Encoded coordinates of chunks that were deleted, sorted."""
    bulk: tuple[BulkWrite, ...] = ()
    kept: tuple[int, ...] | None = None
    """Where the array shrank: chunks outside this many along each dimension are gone."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened."""
        single = len(self.written) + len(self.deleted)
        return not (single or self.bulk or self.kept is not None)

    @property
    def single(self) -> pa.Array:
        """Coordinates of all chunks that were written or deleted one by one, each once."""
        return pa.concat_arrays([self.written, self.deleted]).unique()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLog:
    """All that one commit did, by node; ``facts`` are None for a session's uncommitted changes."""

    facts: SnapshotFacts | None = None
    created: tuple[NodeName, ...] = ()
    deleted: tuple[NodeName, ...] = ()
    moved: tuple[tuple[NodeName, str], ...] = ()
    """Each node under its new path, with the path that it had."""
    updated_metadata: tuple[NodeName, ...] = ()
    updated_attributes: tuple[NodeName, ...] = ()
    chunks: Mapping[int, ChunkChanges] = field(default_factory=dict)
    names: Mapping[int, NodeName] = field(default_factory=dict)
    """The arrays that ``chunks`` speaks of."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was done."""
        return not (
            self.created
            or self.deleted
            or self.moved
            or self.updated_metadata
            or self.updated_attributes
            or self.chunks
        )
