"""Snapshots and nodes: what a structure file says, as values.

A snapshot may have a hundred thousand nodes, and a node a thousand manifests: nodes are made when asked for,
and the inventories of a node stay columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from icechunk_arrow.core.chunks import DENSE
from icechunk_arrow.core.documents import join_document
from icechunk_arrow.core.grid import Grid, grid_of
from icechunk_arrow.core.html import html_of
from icechunk_arrow.core.keys import ChunkKeys, chunk_keys_of
from icechunk_arrow.errors import NodeNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
        low, high = 0, len(self.manifests)
        if coord:  # entries stand in the order of their starts
            low = int(self._reach.searchsorted(coord[0], "right"))
            high = int(self._first.searchsorted(coord[0], "right"))
        point = np.array(coord, np.uint64)
        starts, stops = self.starts[low:high], self.stops[low:high]
        mask = ((starts <= point) & (point < stops)).all(axis=1)
        return [self[low + index] for index in np.flatnonzero(mask).tolist()]

    @cached_property
    def _first(self) -> npt.NDArray[np.uint64]:
        """Where entries begin along the first dimension, rising."""
        return np.ascontiguousarray(self.starts[:, 0])

    @cached_property
    def _reach(self) -> npt.NDArray[np.uint64]:
        """How far along the first dimension any entry up to this one goes."""
        return np.maximum.accumulate(self.stops[:, 0])

    def overlapping(self, extent: Extent) -> list[int]:
        """Entries whose extent has a coordinate in common with this one."""
        if not self.manifests:
            return []
        box = np.array(extent, np.uint64).reshape(-1, 2)
        mask = ((self.starts < box[:, 1]) & (box[:, 0] < self.stops)).all(axis=1)
        return np.flatnonzero(mask).tolist()

    def chosen(self, which: npt.NDArray[Any]) -> Inventories:
        """Some of the entries, by mask or by number."""
        rows = np.flatnonzero(which) if which.dtype == np.bool_ else which
        return Inventories(
            manifests=tuple(map(self.manifests.__getitem__, rows.tolist())),
            rows=self.rows[rows],
            starts=self.starts[rows],
            stops=self.stops[rows],
            flags=self.flags[rows],
            row_counts=self.row_counts[rows],
        )

    def without(self, manifests: Collection[str]) -> Inventories:
        """Leave out the entries of some manifests."""
        if not manifests:
            return self
        kept = [i for i, name in enumerate(self.manifests) if name not in manifests]
        return self if len(kept) == len(self) else self.chosen(np.array(kept, np.int64))

    def united(self, *others: Inventories) -> Inventories:
        """Add entries, in the order of their extents."""
        parts = [each for each in (self, *others) if len(each)]
        if len(parts) < 2:
            return parts[0] if parts else self
        both = Inventories(
            manifests=tuple(name for each in parts for name in each.manifests),
            rows=np.concatenate([each.rows for each in parts]),
            starts=np.concatenate([each.starts for each in parts]),
            stops=np.concatenate([each.stops for each in parts]),
            flags=np.concatenate([each.flags for each in parts]),
            row_counts=np.concatenate([each.row_counts for each in parts]),
        )
        return both.in_order()

    def in_order(self) -> Inventories:
        """Order entries by their extents."""
        if len(self) < 2:
            return self
        keys: list[npt.NDArray[Any]] = [np.array(self.manifests, "S")]
        for d in reversed(range(self.starts.shape[1])):
            keys += [self.stops[:, d], self.starts[:, d]]
        return self.chosen(np.lexsort(keys))

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

    @classmethod
    def of_extents(cls, extents: Sequence[Extent], ndim: int) -> Inventories:
        """Put mere extents into columns, in their order: for questions of what meets what."""
        box = np.array(extents, np.uint64).reshape(len(extents), ndim, 2)
        none = np.zeros(len(extents), np.uint64)
        return cls(
            manifests=("",) * len(extents),
            rows=none,
            starts=box[:, :, 0],
            stops=box[:, :, 1],
            flags=none.astype(np.uint16),
            row_counts=none,
        )


NO_INVENTORIES = Inventories.of((), 0)


@lru_cache(maxsize=1000)
def _grid_and_keys(columns: ArrayColumns) -> tuple[Grid, ChunkKeys]:
    """Work out what a document says of chunks; many arrays are alike, and every session asks again."""
    document = join_document(columns, None, None)
    return grid_of(document), chunk_keys_of(document)


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
        if self.columns is not None and self.extension is None:
            return _grid_and_keys(self.columns)[0]
        return grid_of(self.document(None))

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        """How many chunks an array's grid has along each dimension."""
        columns = self.columns
        plain = columns is not None and columns.grid_name == "regular" and self.extension is None
        if columns is not None and plain and all(columns.chunk_shape):
            pairs = zip(columns.shape, columns.chunk_shape, strict=True)
            return tuple(-(-length // size) for length, size in pairs)
        return self.grid.chunk_counts

    @property
    def chunk_keys(self) -> ChunkKeys:
        """How an array names its chunks."""
        if self.columns is not None and self.extension is None:
            return _grid_and_keys(self.columns)[1]
        return chunk_keys_of(self.document(None))


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """A structure file's contents; nodes are decoded when asked for."""

    facts: SnapshotFacts
    table: pa.Table
    """The rows, as the structure module keeps them in memory."""
    extensions: Mapping[int, dict[str, Any]]
    manifest_sizes: Mapping[str, int]
    """Bytes of every live manifest, in the order in which the rows name them first."""
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
