"""One small snapshot, array and log that tests alter."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from icechunk_arrow.core import coords
from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.documents import split_document
from icechunk_arrow.core.inventory import Inventory, InventoryEntry
from icechunk_arrow.core.log import BulkWrite, ChunkChanges, ChunkLog, NodeName, TransactionLog
from icechunk_arrow.core.snapshot import Node, Snapshot, SnapshotFacts
from icechunk_arrow.formats import structure
from tests.core.zarr_documents import plain

MANIFEST = "5R1J2Y5Q8Z5Y2B3C4D5G"
FACTS = SnapshotFacts(
    id="VY76P925PRY57WFEK410",
    repository="VY76P925PRY57WFEK410",
    message="measure",
    written_at=datetime(2026, 11, 18, 12, 0, 0, 5, tzinfo=UTC),
    started_at=datetime(2026, 11, 18, 11, tzinfo=UTC),
    properties={"author": "Ann"},
    history=(),
    total_parents=0,
    next_node_id=3,
)


def array_node(
    *,
    shape: tuple[int, ...] = (100, 100),
    chunk_shape: tuple[int, ...] = (10, 10),
    node_id: int = 2,
    path: str = "/a",
    entry: dict[str, Any] | None = None,
    **more: Any,
) -> Node:
    """An array with one inventory entry."""
    grid = {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}}
    columns, _, extension = split_document(plain(shape=list(shape), chunk_grid=grid))
    held = InventoryEntry(
        **{
            "manifest": MANIFEST,
            "row": 0,
            "extent": tuple((0, 10) for _ in shape),
            "flags": 5,
            "row_count": 100,
            "stored_bytes": 5000,
            **(entry or {}),
        }
    )
    return Node(
        id=node_id,
        path=path,
        columns=columns,
        attributes=b'{"units":"K"}',
        extension=extension,
        inventories=Inventory.of([held], len(shape)),
    )


def snapshot_of(*nodes: Node, base: Snapshot | None = None) -> Snapshot:
    """A snapshot of these nodes."""
    names = {name for node in nodes for name in node.inventories.names}
    sizes = {**(base.manifest_sizes if base else {}), **dict.fromkeys(names, 1234)}
    facts = replace(FACTS, next_node_id=1 + max((2, *(node.id for node in nodes))))
    return structure.with_changes(base, facts, removed=(), changed=nodes, manifest_sizes=sizes)


ROOT = Node(id=1, path="/", columns=None, attributes=b"{}")
SNAPSHOT = snapshot_of(ROOT, array_node())
ARRAY = NodeName(id=2, path="/a", type="array")
LOG = TransactionLog(
    facts=FACTS,
    created=(NodeName(id=1, path="/", type="group"), ARRAY),
    chunks=ChunkLog.of(
        {
            2: ChunkChanges(
                written=from_values([coords.encode_one((3, 4))], pa.binary()),
                bulk=(BulkWrite(manifest=MANIFEST, extent=((0, 10), (0, 10)), chunk_count=100),),
            )
        }
    ),
    names={2: ARRAY},
)
BARE_LOG = replace(LOG, facts=None)
