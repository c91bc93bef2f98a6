"""Transaction logs (``t/<id>.parquet``): what the commit of the snapshot with the same id did.

Specification: schemas/README.md#transaction-log

One row per operation, in the order snapshot, nodes, chunks. The first row repeats the snapshot's facts, for
readers that see no footers.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import from_numpy, from_values, indices
from icechunk_arrow.core.log import BulkWrite, ChunkChanges, NodeName, TransactionLog
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats import envelope
from icechunk_arrow.formats.layout import FileKind, file_id, file_name
from icechunk_arrow.formats.times import encode_time

if TYPE_CHECKING:
    from icechunk_arrow.core.snapshot import SnapshotFacts

__all__ = ["KIND", "OPERATIONS", "SCHEMA", "decode", "encode"]

KIND = FileKind.TRANSACTION
OPERATIONS = (
    "snapshot",
    "create_node",
    "delete_node",
    "move_node",
    "update_metadata",
    "update_attributes",
    "truncate_chunks",
    "write_chunks",
    "write_chunk",
    "delete_chunk",
)


SCHEMA = pa.schema(
    [
        pa.field("id", pa.uint32(), nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("node_id", pa.uint32()),
        pa.field("node_type", pa.string()),
        pa.field("path", pa.string()),
        pa.field("from_path", pa.string()),
        pa.field("coord", pa.binary()),
        pa.field("manifest", pa.string()),
        pa.field("extent", pa.list_(pa.list_(pa.uint64()))),
        pa.field("chunk_count", pa.uint64()),
        pa.field("snapshot", pa.string()),
    ]
)
"""All that a plain reader sees without the Arrow schema, which would be more than half of a small log."""


class _Columns:
    """The rows of a log as they are put together, span by span: what a span does not name is null."""

    def __init__(self) -> None:
        self._operations: list[str] = []
        self._nodes: list[NodeName | None] = []
        self._counts: list[int] = []
        self._count = 0
        self._more: dict[str, list[Any]] = {}

    def add(self, operation: str, node: NodeName | None = None, **more: Any) -> None:
        """Add one row."""
        self.add_many(operation, node, 1, **{name: [value] for name, value in more.items()})

    def add_many(self, operation: str, node: NodeName | None, count: int, **more: Any) -> None:
        """Add rows of one operation on one node."""
        for name, values in more.items():
            column = self._more.setdefault(name, [])
            column.extend([None] * (self._count - len(column)))
            column.extend(values)
        self._operations.append(operation)
        self._nodes.append(node)
        self._counts.append(count)
        self._count += count

    def table(self) -> pa.Table:
        """Give the rows as columns."""
        nodes = self._nodes
        of_spans: dict[str, list[Any]] = {
            "operation": self._operations,
            "node_id": [None if node is None else node.id for node in nodes],
            "node_type": [None if node is None else node.type for node in nodes],
            "path": [None if node is None else node.path for node in nodes],
        }
        one_each = self._count == len(nodes)
        spans = None if one_each else indices(np.repeat(np.arange(len(nodes)), self._counts))
        columns = []
        for field in SCHEMA:
            name = field.name
            if name == "id":
                column = from_numpy(np.arange(self._count, dtype=np.uint32), field.type)
            elif name in of_spans:
                column = from_values(of_spans[name], field.type)
                column = column if spans is None else column.take(spans)
            elif name in self._more:
                values = self._more[name]
                values.extend([None] * (self._count - len(values)))
                column = from_values(values, field.type)
            else:
                column = pa.nulls(self._count, field.type)
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=SCHEMA)


def _rows(log: TransactionLog) -> pa.Table:
    assert log.facts is not None
    rows = _Columns()
    rows.add("snapshot", snapshot=_facts_json(log.facts))
    for node in log.created:
        rows.add("create_node", node)
    for node in log.deleted:
        rows.add("delete_node", node)
    for node, from_path in log.moved:
        rows.add("move_node", node, from_path=from_path)
    for node in log.updated_metadata:
        rows.add("update_metadata", node)
    for node in log.updated_attributes:
        rows.add("update_attributes", node)
    for node_id, changes in sorted(log.chunks.items()):
        _add_chunks(rows, log.names[node_id], changes)
    return rows.table()


def _facts_json(facts: SnapshotFacts) -> str:
    return json.dumps(
        {
            "id": facts.id,
            "parent_id": facts.parent_id,
            "written_at": encode_time(facts.written_at),
            "started_at": encode_time(facts.started_at),
            "message": facts.message,
            "properties": dict(facts.properties),
            "total_parents": facts.total_parents,
            "next_node_id": facts.next_node_id,
            "branch": facts.branch,
            "sequence": facts.sequence,
        },
        separators=(",", ":"),
    )


def _add_chunks(rows: _Columns, node: NodeName, changes: ChunkChanges) -> None:
    if changes.kept is not None:
        rows.add("truncate_chunks", node, extent=[(0, stop) for stop in changes.kept])
    if changes.bulk:
        rows.add_many(
            "write_chunks",
            node,
            len(changes.bulk),
            manifest=[file_name(bulk.manifest) for bulk in changes.bulk],
            extent=[bulk.extent for bulk in changes.bulk],
            chunk_count=[bulk.chunk_count for bulk in changes.bulk],
        )
    for operation, coords in (("write_chunk", changes.written), ("delete_chunk", changes.deleted)):
        if coords:
            rows.add_many(operation, node, len(coords), coord=coords)


def encode(log: TransactionLog) -> bytes:
    """Encode what a commit did."""
    assert log.facts is not None
    rows = _rows(log)
    return envelope.write(
        rows,
        kind=KIND,
        identifier=log.facts.id,
        facts={},
        boundaries=[rows.num_rows],
        settings={
            "use_dictionary": ["operation", "node_type", "path", "from_path", "manifest"],
            "column_encoding": {"id": "DELTA_BINARY_PACKED", "coord": "DELTA_BYTE_ARRAY"},
            "write_statistics": False,
        },
    )


def decode(data: bytes, identifier: str) -> TransactionLog:
    """Decode a whole transaction log; its ``facts`` stay in the structure file."""
    sealed, table = envelope.read_whole(data, KIND, identifier)
    rows = table.to_pylist()
    try:
        if (
            rows[0]["operation"] != "snapshot"
            or json.loads(rows[0]["snapshot"])["id"] != identifier
        ):
            raise ValueError("the first row is not this snapshot's")  # noqa: TRY301
        unknown = {row["operation"] for row in rows} - set(OPERATIONS)
        if unknown:
            raise ValueError(f"unknown operations {sorted(unknown)}")  # noqa: TRY301
        return _log_of(rows)
    except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{sealed.key} is no sound log: {error}", key=sealed.key) from error


def _log_of(rows: list[dict[str, Any]]) -> TransactionLog:
    def name(row: dict[str, Any]) -> NodeName:
        return NodeName(id=row["node_id"], path=row["path"], type=row["node_type"])

    def of(operation: str) -> list[dict[str, Any]]:
        return [row for row in rows if row["operation"] == operation]

    chunk_rows = [row for row in rows if row["operation"] in OPERATIONS[6:]]
    chunk_rows.sort(key=lambda row: (row["node_id"], row["id"]))
    chunks = {
        node_id: _chunk_changes(list(group))
        for node_id, group in groupby(chunk_rows, key=lambda row: int(row["node_id"]))
    }
    return TransactionLog(
        created=tuple(map(name, of("create_node"))),
        deleted=tuple(map(name, of("delete_node"))),
        moved=tuple((name(row), row["from_path"]) for row in of("move_node")),
        updated_metadata=tuple(map(name, of("update_metadata"))),
        updated_attributes=tuple(map(name, of("update_attributes"))),
        chunks=chunks,
        names={row["node_id"]: name(row) for row in chunk_rows},
    )


def _chunk_changes(rows: list[dict[str, Any]]) -> ChunkChanges:
    kept = next((row["extent"] for row in rows if row["operation"] == "truncate_chunks"), None)
    return ChunkChanges(
        written=tuple(row["coord"] for row in rows if row["operation"] == "write_chunk"),
        deleted=tuple(row["coord"] for row in rows if row["operation"] == "delete_chunk"),
        bulk=tuple(
            BulkWrite(
                manifest=file_id(row["manifest"]),
                extent=tuple((start, stop) for start, stop in row["extent"]),
                chunk_count=row["chunk_count"],
            )
            for row in rows
            if row["operation"] == "write_chunks"
        ),
        kept=None if kept is None else tuple(stop for _, stop in kept),
    )
