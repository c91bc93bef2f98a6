"""Transaction logs (``t/<id>.parquet``): what the commit of the snapshot with the same id did.

Specification: schemas/README.md#transaction-log

One row per operation, in the order snapshot, nodes, chunks. The first row repeats the snapshot's facts, for
readers that see no footers.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.core.columns import table_from_rows
from icechunk_arrow.core.log import BulkWrite, ChunkChanges, NodeName, TransactionLog
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats import envelope
from icechunk_arrow.formats.layout import FileKind, file_id, file_name
from icechunk_arrow.formats.times import encode_time

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def _field(name: str, arrow_type: pa.DataType, meaning: str, *, null: bool = True) -> pa.Field:
    return pa.field(name, arrow_type, nullable=null, metadata={"description": meaning})


_EXTENT = pa.list_(pa.list_(pa.uint64(), 2))
SCHEMA = pa.schema(
    [
        _field("id", pa.uint32(), "place of the operation in the commit", null=False),
        _field("operation", pa.string(), "one of: " + ", ".join(OPERATIONS), null=False),
        _field("node_id", pa.uint32(), "id of the node; null for the snapshot"),
        _field("node_type", pa.string(), "array or group"),
        _field(
            "path", pa.string(), "path of the node after the commit; a deleted node's last path"
        ),
        _field("from_path", pa.string(), "path before a move"),
        _field("coord", pa.binary(), "the chunk that was written or deleted"),
        _field("manifest", pa.string(), "the manifest file that holds the chunks written at once"),
        _field(
            "extent",
            _EXTENT,
            "smallest extent around chunks written at once; the grid that is left by a truncation",
        ),
        _field("chunk_count", pa.uint64(), "how many chunks were written at once"),
        _field("snapshot", pa.string(), "facts of the snapshot as JSON, in the first row only"),
    ]
)
_BLANK: dict[str, Any] = dict.fromkeys(SCHEMA.names)


def _node_row(operation: str, node: NodeName, **more: Any) -> dict[str, Any]:
    return {
        **_BLANK,
        "operation": operation,
        "node_id": node.id,
        "node_type": node.type,
        "path": node.path,
        **more,
    }


def _rows(log: TransactionLog) -> Iterator[dict[str, Any]]:
    assert log.facts is not None
    facts = log.facts
    yield {
        **_BLANK,
        "operation": "snapshot",
        "snapshot": json.dumps(
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
        ),
    }
    for node in log.created:
        yield _node_row("create_node", node)
    for node in log.deleted:
        yield _node_row("delete_node", node)
    for node, from_path in log.moved:
        yield _node_row("move_node", node, from_path=from_path)
    for node in log.updated_metadata:
        yield _node_row("update_metadata", node)
    for node in log.updated_attributes:
        yield _node_row("update_attributes", node)
    for node_id, changes in sorted(log.chunks.items()):
        yield from _chunk_rows(log.names[node_id], changes)


def _chunk_rows(node: NodeName, changes: ChunkChanges) -> Iterator[dict[str, Any]]:
    if changes.kept is not None:
        kept = [(0, stop) for stop in changes.kept]
        yield _node_row("truncate_chunks", node, extent=kept)
    for bulk in changes.bulk:
        yield _node_row(
            "write_chunks",
            node,
            manifest=file_name(bulk.manifest),
            extent=bulk.extent,
            chunk_count=bulk.chunk_count,
        )
    for coord in changes.written:
        yield _node_row("write_chunk", node, coord=coord)
    for coord in changes.deleted:
        yield _node_row("delete_chunk", node, coord=coord)


def encode(log: TransactionLog) -> bytes:
    """Encode what a commit did."""
    assert log.facts is not None
    rows = [{**row, "id": number} for number, row in enumerate(_rows(log))]
    return envelope.write(
        table_from_rows(rows, SCHEMA),
        kind=KIND,
        identifier=log.facts.id,
        facts={},
        boundaries=[len(rows)],
        settings={
            "compression_level": 3,
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
