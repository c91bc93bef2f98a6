"""Snapshots and nodes: what a structure file says, as values.

A snapshot may have a hundred thousand nodes, and a node a thousand manifests: nodes are made when asked for,
and the inventories of a node stay columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from icechunk_arrow.core.chunks import DENSE
from icechunk_arrow.core.documents import join_document
from icechunk_arrow.core.grid import Grid, grid_of
from icechunk_arrow.core.html import html_of
from icechunk_arrow.core.keys import ChunkKeys, chunk_keys_of
from icechunk_arrow.errors import NodeNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    import numpy.typing as npt
    import pyarrow as pa

    from icechunk_arrow.core.chunks import Extent
    from icechunk_arrow.core.documents import ArrayColumns

__all__ = [
    "HISTORY_LENGTH",
    "NO_INVENTORIES",
    "AttributesRef",
    "Inventories",
    "InventoryEntry",
    "Node",
    "Snapshot",
    "SnapshotFacts",
    "SnapshotInfo",
]

HISTORY_LENGTH = 16
"""How many ancestors a snapshot remembers."""
_FEW = 16
"""Up to so many entries are looked through one by one faster than as columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """One snapshot in a history."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        facts = {
            "id": self.id,
            "parent": self.parent_id or "",
            "written": f"{self.written_at:%Y-%m-%d %H:%M:%S} UTC",
            "message": self.message,
            "metadata": "\n".join(f"{name}: {value}" for name, value in self.metadata.items()),
        }
        return html_of("SnapshotInfo", facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """All that a structure file says beside its nodes."""

    id: str
    message: str
    written_at: datetime
    started_at: datetime
    properties: Mapping[str, Any]
    history: tuple[SnapshotInfo, ...]
    """The nearest ancestors, newest first, without this snapshot; at most :data:`HISTORY_LENGTH`."""
    total_parents: int
    next_node_id: int
    branch: str | None = None
    """The branch that the snapshot was made for."""
    sequence: int | None = None
    """Number of the entry that was to name it there; None where branches have no sequences."""

    @property
    def parent_id(self) -> str | None:
        """The snapshot before this one."""
        return self.history[0].id if self.history else None

    @property
    def info(self) -> SnapshotInfo:
        """This snapshot as an entry of a history."""
        return SnapshotInfo(
            id=self.id,
            parent_id=self.parent_id,
            written_at=self.written_at,
            message=self.message,
            metadata=dict(self.properties),
        )

    def history_of_child(self) -> tuple[SnapshotInfo, ...]:
        """Give the history that a snapshot made on this one has."""
        return (replace(self.info, metadata={}), *self.history)[:HISTORY_LENGTH]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributesRef:
    """Where attributes stand that are too large for the structure file."""

    identifier: str
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryEntry:
    """One array's rows in one manifest."""

    manifest: str
    row: int
    extent: Extent
    flags: int
    row_count: int

    @property
    def is_dense(self) -> bool:
        """Whether every coordinate of the extent has a row, in order."""
        return bool(self.flags & DENSE)

    def spans(self, coord: Sequence[int]) -> bool:
        """Whether a coordinate lies in the extent."""
        # A generator inside all() would cost twice as much, on every read of a chunk.
        for index, (start, stop) in zip(coord, self.extent, strict=True):  # noqa: SIM110
            if not start <= index < stop:
                return False
        return True


@dataclass(frozen=True, kw_only=True, eq=False)
class Inventories:
    """An array's entries, as columns: ``starts`` and ``stops`` are entries × dimensions."""

    manifests: tuple[str, ...]
    rows: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.uint64]
    stops: npt.NDArray[np.uint64]
    flags: npt.NDArray[np.uint16]
    row_counts: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.manifests)

    def __getitem__(self, index: int) -> InventoryEntry:
        starts, stops = self.starts[index].tolist(), self.stops[index].tolist()
        return InventoryEntry(
            manifest=self.manifests[index],
            row=int(self.rows[index]),
            extent=tuple(zip(starts, stops, strict=True)),
            flags=int(self.flags[index]),
            row_count=int(self.row_counts[index]),
        )

    def __iter__(self) -> Iterator[InventoryEntry]:
        return (self[index] for index in range(len(self)))

    @property
    def chunk_count(self) -> int:
        """How many chunks there are in all."""
        return int(self.row_counts.sum())

    @cached_property
    def _listed(self) -> tuple[InventoryEntry, ...]:
        return tuple(self)

    def holding(self, coord: Sequence[int]) -> list[InventoryEntry]:
        """Entries whose extent contains a coordinate."""
        if len(self.manifests) <= _FEW:
            return [entry for entry in self._listed if entry.spans(coord)]
        point = np.array(coord, np.uint64)
        mask = ((self.starts <= point) & (point < self.stops)).all(axis=1)
        return [self[index] for index in np.flatnonzero(mask).tolist()]

    def overlapping(self, extent: Extent) -> list[int]:
        """Entries whose extent has a coordinate in common with this one."""
        if not self.manifests:
            return []
        box = np.array(extent, np.uint64).reshape(-1, 2)
        mask = ((self.starts < box[:, 1]) & (box[:, 0] < self.stops)).all(axis=1)
        return np.flatnonzero(mask).tolist()

    @classmethod
    def of(cls, entries: Sequence[InventoryEntry], ndim: int) -> Inventories:
        """Put entries into columns, in the order of their extents."""
        ordered = sorted(entries, key=lambda e: (e.extent, e.manifest))
        box = np.array([e.extent for e in ordered], np.uint64).reshape(len(ordered), ndim, 2)
        return cls(
            manifests=tuple(e.manifest for e in ordered),
            rows=np.array([e.row for e in ordered], np.uint64),
            starts=box[:, :, 0],
            stops=box[:, :, 1],
            flags=np.array([e.flags for e in ordered], np.uint16),
            row_counts=np.array([e.row_count for e in ordered], np.uint64),
        )


NO_INVENTORIES = Inventories.of((), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One array or group; ``columns`` is None for a group."""

    id: int
    path: str
    columns: ArrayColumns | None
    attributes: bytes | None
    """JSON, or None where the document has none or they stand elsewhere."""
    attributes_ref: AttributesRef | None = None
    extension: dict[str, Any] | None = None
    inventories: Inventories = NO_INVENTORIES

    @property
    def is_array(self) -> bool:
        """Whether this is an array."""
        return self.columns is not None

    @property
    def type(self) -> str:
        """The word for it: array or group."""
        return "array" if self.is_array else "group"

    def document(self, attributes: bytes | None) -> dict[str, Any]:
        """Give the Zarr document, with these attributes."""
        return join_document(self.columns, attributes, self.extension)

    @property
    def grid(self) -> Grid:
        """The chunk grid of an array."""
        return grid_of(self.document(None))

    @property
    def chunk_keys(self) -> ChunkKeys:
        """How an array names its chunks."""
        return chunk_keys_of(self.document(None))


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """A structure file's contents; nodes are decoded when asked for."""

    facts: SnapshotFacts
    table: pa.Table
    """The rows, as the structure module keeps them in memory."""
    extensions: Mapping[int, dict[str, Any]]
    manifest_sizes: Mapping[str, int]
    """Bytes of every live manifest."""
    rows_by_path: Mapping[str, int]
    rows_by_id: Mapping[int, int]
    decode_node: Callable[[Snapshot, int], Node]
    _nodes: dict[int, Node] = field(default_factory=dict)

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Paths of all nodes, sorted."""
        return tuple(self.rows_by_path)

    @property
    def id(self) -> str:
        """The snapshot's id."""
        return self.facts.id

    def _node_at(self, row: int) -> Node:
        node = self._nodes.get(row)
        if node is None:
            node = self._nodes[row] = self.decode_node(self, row)
        return node

    def find_node(self, path: str) -> Node | None:
        """Find the node at a path, or None."""
        row = self.rows_by_path.get(path)
        return None if row is None else self._node_at(row)

    def find_node_by_id(self, node_id: int) -> Node | None:
        """Find the node with an id, or None."""
        row = self.rows_by_id.get(node_id)
        return None if row is None else self._node_at(row)

    def get_node(self, path: str) -> Node:
        """Give the node at a path."""
        node = self.find_node(path)
        if node is None:
            raise NodeNotFoundError(f"there is no node {path!r} in snapshot {self.id}", path=path)
        return node

    def nodes(self) -> Iterator[Node]:
        """All nodes, in the order of their paths."""
        return (self._node_at(row) for row in range(self.table.num_rows))
