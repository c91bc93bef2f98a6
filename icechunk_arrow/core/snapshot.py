"""Snapshots and nodes: what a structure file says, as values.

A snapshot may have a hundred thousand nodes, and a session that looks for one chunk needs one of them. So rows are
held as the file has them (``NodeRows``): nodes are made, and columns brought into another width, when a reader
asks.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from icechunk_arrow.core.columns import conformed, to_numpy
from icechunk_arrow.core.documents import join_document
from icechunk_arrow.core.grid import Grid, grid_of
from icechunk_arrow.core.html import html_of
from icechunk_arrow.core.inventory import NO_INVENTORY, Inventory
from icechunk_arrow.core.keys import ChunkKeys, chunk_keys_of
from icechunk_arrow.core.lazy import lazy
from icechunk_arrow.errors import NodeNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    import numpy.typing as npt

    from icechunk_arrow.core.boxes import Box
    from icechunk_arrow.core.documents import ArrayColumns

__all__ = [
    "ENTRY_BYTES",
    "HISTORY_LENGTH",
    "NODE_BYTES",
    "NODE_IDS_END",
    "AttributesRef",
    "MadeFrom",
    "Node",
    "NodeRows",
    "Snapshot",
    "SnapshotFacts",
    "SnapshotInfo",
]

HISTORY_LENGTH = 16
"""How many ancestors a snapshot remembers."""
NODE_IDS_END = 1 << 32
"""Ids of nodes are below it, from 1 on."""
NODE_BYTES = 350
ENTRY_BYTES = 200
"""What a node and an inventory entry take in memory beside the rows of the file, measured."""
_SINGLY = 16
"""A reader that has asked for so many nodes will ask for more, and is given those beside them too."""
_BLOCK = 256


class NodeRows:
    """Columns in one of several widths.

    Parameters
    ----------
    held
        The rows, with the names of ``schema``.
    schema
        The width in which they are asked for.
    """

    def __init__(self, held: pa.Table, schema: pa.Schema) -> None:
        self.held = held
        self._schema = schema
        self._conformed: dict[pa.Schema, list[pa.Array] | None] = {}

    @classmethod
    def of(cls, table: pa.Table) -> NodeRows:
        """Hold rows that were made here, in the schema in which they are asked for."""
        rows = cls(table, table.schema)
        rows.table = table
        return rows

    @lazy
    def ids(self) -> npt.NDArray[np.uint32]:
        """The nodes' ids, which no other column has to be brought into shape for."""
        return to_numpy(self.held["id"]).astype(np.uint32)

    @lazy
    def table(self) -> pa.Table:
        """The rows in their one schema."""
        columns = self.in_width(self._schema)
        assert columns is not None, "the one schema has room for everything"
        return pa.Table.from_arrays(columns, schema=self._schema)

    def in_width(self, schema: pa.Schema) -> Sequence[pa.Array] | None:
        """Give the columns in the width of a schema; None where it is too narrow."""
        if schema not in self._conformed:
            try:
                self._conformed[schema] = conformed(self.held, schema)
            except pa.ArrowInvalid:
                self._conformed[schema] = None
        return self._conformed[schema]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """One snapshot in a history."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def _repr_html_(self) -> str:
        facts = {
            "id": self.id,
            "parent": self.parent_id or "",
            "written": f"{self.written_at:%Y-%m-%d %H:%M:%S} UTC",
            "message": self.message,
            "metadata": "\n".join(f"{name}: {value}" for name, value in self.metadata.items()),
        }
        return html_of("SnapshotInfo", facts)


class MadeFrom(Struct, frozen=True, kw_only=True):
    """A snapshot, beside its parent, that another one was made from: named, and not kept alive by it."""

    kind: str
    """merge, cherry_pick, revert, amend or rewrite."""
    snapshot: str


class SnapshotFacts(Struct, frozen=True, kw_only=True):
    """All that a structure file says beside its nodes."""

    id: str
    repository: str
    """The first snapshot of the repository: what tells it from every other."""
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
    made_from: tuple[MadeFrom, ...] = ()
    author: str | None = None
    synced: bool = True
    """Whether all that the snapshot needs survives a power cut, as the session that committed it knows."""

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
        return (dataclasses.replace(self.info, metadata={}), *self.history)[:HISTORY_LENGTH]


class AttributesRef(Struct, frozen=True, kw_only=True):
    """Where attributes stand that are too large for the structure file."""

    identifier: str
    row: int


@lru_cache(maxsize=1000)
def _grid_and_keys(columns: ArrayColumns) -> tuple[Grid, ChunkKeys]:
    """Work out what a document says of chunks; many arrays are alike, and every session asks again."""
    document = join_document(columns, None, None)
    return grid_of(document), chunk_keys_of(document)


class Node(Struct, frozen=True, kw_only=True):
    """One array or group; ``columns`` is None for a group."""

    id: int
    path: str
    columns: ArrayColumns | None
    attributes: bytes | None
    """JSON, or None where the document has none or they stand elsewhere."""
    attributes_ref: AttributesRef | None = None
    extension: dict[str, Any] | None = None
    inventories: Inventory = NO_INVENTORY

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


class Snapshot(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """A structure file's contents; nodes are decoded when asked for."""

    facts: SnapshotFacts
    rows: NodeRows
    """The rows without their inventories."""
    entries: Inventory
    extensions: Mapping[int, dict[str, Any]]
    manifest_sizes: Mapping[str, int]
    """Bytes of every live manifest, in the order in which the rows name them first."""
    rows_by_path: Mapping[str, int]
    rows_by_id: Mapping[int, int]
    decode_nodes: Callable[[Snapshot, range], list[Node]]
    known: Mapping[int, Node] = field(default_factory=dict)
    """By row: nodes of an earlier snapshot that have other inventories now and are the same otherwise."""
    decoded: dict[int, Node] = field(default_factory=dict)
    """By row: nodes that a reader has asked for."""

    @property
    def table(self) -> pa.Table:
        """The rows without their inventories, as columns of the wide schema."""
        return self.rows.table

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        rows = self.rows.held
        return int(rows.nbytes) + NODE_BYTES * int(rows.num_rows) + ENTRY_BYTES * len(self.entries)

    @lazy
    def paths(self) -> tuple[str, ...]:
        """Paths of all nodes, sorted."""
        return tuple(self.rows_by_path)

    @property
    def id(self) -> str:
        """The snapshot's id."""
        return self.facts.id

    def tenants(self, manifests: Iterable[str]) -> dict[str, dict[int, int]]:
        """Tell which arrays have rows in each of some live manifests, by id, and how many."""
        by_manifest: dict[str, dict[int, int]] = {name: {} for name in manifests}
        if not by_manifest:
            return by_manifest
        chosen = np.flatnonzero(self.entries.of_manifests(by_manifest))
        owners = self.rows.ids[self.entries.owners[chosen]]
        codes, counts = self.entries.codes[chosen], self.entries.row_counts[chosen]
        for code, owner, count in zip(
            codes.tolist(), owners.tolist(), counts.tolist(), strict=True
        ):
            by_manifest[self.entries.manifests[code]][owner] = count
        return by_manifest

    def extents_in(self, manifest: str) -> dict[int, Box]:
        """Give the extents of a live manifest's rows, by array."""
        entries = self.entries.chosen(self.entries.of_manifests([manifest]))
        owners = self.rows.ids[entries.owners].tolist()
        return {owner: entry.extent for owner, entry in zip(owners, entries, strict=True)}

    @property
    def manifest_row_counts(self) -> dict[str, int]:
        """How many rows each live manifest has."""
        return dict(zip(self.entries.manifests, self.entries.row_sums().tolist(), strict=True))

    def _node_at(self, row: int) -> Node:
        node = self.decoded.get(row)
        if node is not None:
            return node
        known = self.known.get(row)
        if known is not None:
            node = self.decoded[row] = replace(known, inventories=self.entries.of_owner(row))
            return node
        rows = range(row, row + 1)
        if len(self.decoded) >= _SINGLY:
            first = row - row % _BLOCK
            rows = range(first, min(first + _BLOCK, self.rows.held.num_rows))
        for at, node in zip(rows, self.decode_nodes(self, rows), strict=True):
            self.decoded.setdefault(at, node)
        return self.decoded[row]

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
        return (self._node_at(row) for row in range(self.rows.held.num_rows))
