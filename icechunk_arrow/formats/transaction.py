"""Transaction logs (``t/<id>.parquet``): what the commit of the snapshot with the same id did.

Specification: schemas/README.md#transaction-log

One row per operation, in the order snapshot, nodes, chunks. The first row repeats the snapshot's facts, for
readers that see no footers.
"""

from __future__ import annotations

import json
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.chunks import extent_of_grid
from icechunk_arrow.core.columns import (
    from_numpy,
    from_values,
    indices,
    one_array,
    run_edges,
    to_numpy,
)
from icechunk_arrow.core.log import (
    NO_SINGLES,
    BulkWrite,
    ChunkLog,
    NodeName,
    Singles,
    TransactionLog,
)
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats import envelope
from icechunk_arrow.formats.layout import FileKind, file_id, file_name
from icechunk_arrow.formats.times import encode_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

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


def _rows(log: TransactionLog) -> pa.Table:
    """Give a log's rows, column by column: each node is named once, and a row says which it is of."""
    assert log.facts is not None
    chunks = log.chunks
    moved = [node for node, _ in log.moved]
    of_nodes = (log.created, log.deleted, moved, log.updated_metadata, log.updated_attributes)
    bulk = [(node_id, each) for node_id, writes in chunks.bulk.items() for each in writes]
    of_chunks = (
        np.fromiter(chunks.kept, np.uint32, len(chunks.kept)),
        np.array([node_id for node_id, _ in bulk], np.uint32),
        chunks.written.node_ids,
        chunks.deleted.node_ids,
    )
    counts = [1, *map(len, of_nodes), *map(len, of_chunks)]
    starts = dict(zip(OPERATIONS, accumulate(counts, initial=0), strict=False))
    count = sum(counts)
    named = [*chain.from_iterable(of_nodes)]
    changed = [*chunks]
    nodes = [*named, *map(log.names.__getitem__, changed)]
    owners = len(named) + np.searchsorted(changed, np.concatenate(of_chunks))
    rows = np.concatenate([np.zeros(1, np.int64), np.arange(len(named)), owners])
    of_rows = from_numpy(rows, pa.int64(), np.arange(count) > 0)  # the snapshot's row has no node
    codes = np.repeat(np.arange(len(OPERATIONS)), counts)
    columns = {
        "operation": from_values(OPERATIONS, pa.string()).take(indices(codes)),
        "node_id": from_values([node.id for node in nodes], pa.uint32()).take(of_rows),
        "node_type": from_values([node.type for node in nodes], pa.string()).take(of_rows),
        "path": from_values([node.path for node in nodes], pa.string()).take(of_rows),
    }
    of_some: dict[str, dict[str, Sequence[Any] | pa.Array]] = {
        "from_path": {"move_node": [path for _, path in log.moved]},
        "coord": {"write_chunk": chunks.written.coords, "delete_chunk": chunks.deleted.coords},
        "manifest": {"write_chunks": [file_name(each.manifest) for _, each in bulk]},
        "extent": {
            "truncate_chunks": [*map(extent_of_grid, chunks.kept.values())],
            "write_chunks": [each.extent for _, each in bulk],
        },
        "chunk_count": {"write_chunks": [each.chunk_count for _, each in bulk]},
        "snapshot": {"snapshot": [_facts_json(log.facts)]},
    }
    for name, values in of_some.items():
        spans = ((starts[operation], some) for operation, some in values.items())
        columns[name] = _spread(spans, count, SCHEMA.field(name).type)
    if (rows[1:] < rows[:-1]).any():  # grouped by array; those of one stay as they come
        order = indices(np.argsort(rows, kind="stable"))
        columns = {name: each.take(order) for name, each in columns.items()}
    columns["id"] = from_numpy(np.arange(count, dtype=np.uint32), pa.uint32())
    return pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _spread(
    spans: Iterable[tuple[int, Sequence[Any] | pa.Array]], count: int, arrow_type: pa.DataType
) -> pa.Array:
    """Put values into the rows from which on they stand; every other row is null."""
    parts = []
    done = 0
    for row, values in (*spans, (count, ())):
        if row > done:
            parts.append(pa.nulls(row - done, arrow_type))
        if len(values):
            found = values if isinstance(values, pa.Array) else from_values(values, arrow_type)
            parts.append(found)
        done = row + len(values)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


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
    try:
        return _log_of(_Rows(table), identifier)
    except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{sealed.key} is no sound log: {error}", key=sealed.key) from error


class _Rows:
    """The rows of a log that is read: those that name one chunk stay columns, however many they are."""

    def __init__(self, table: pa.Table) -> None:
        operations = one_array(table["operation"])
        if operations.type != pa.string() or operations.null_count:
            raise ValueError("a row has no operation")
        words = operations.dictionary_encode()
        self._words = words.dictionary.to_pylist()
        unknown = set(self._words) - set(OPERATIONS)
        if unknown:
            raise ValueError(f"unknown operations {sorted(unknown)}")
        self._codes = to_numpy(words.indices)
        self._table = table

    @property
    def first(self) -> dict[str, Any]:
        """The row that all others follow."""
        row: dict[str, Any] = self._table.slice(0, 1).to_pylist()[0]
        return row

    def _places(self, *operations: str) -> npt.NDArray[np.int64]:
        codes = [code for code, word in enumerate(self._words) if word in operations]
        return np.flatnonzero(np.isin(self._codes, np.array(codes, self._codes.dtype)))

    def of(self, *operations: str) -> list[dict[str, Any]]:
        """Give the rows of some operations."""
        places = self._places(*operations)
        found: list[dict[str, Any]] = self._table.take(indices(places)).to_pylist()
        return found

    def singles(self, operation: str) -> tuple[Singles, list[NodeName]]:
        """Give the chunks that an operation names one by one, and their arrays."""
        rows = self._table.select(["node_id", "path", "node_type", "coord"])
        rows = rows.take(indices(self._places(operation)))
        nodes, coords = one_array(rows["node_id"]), one_array(rows["coord"])
        if nodes.null_count or coords.null_count or coords.type != pa.binary():
            raise ValueError(f"a row of {operation!r} has no node or no coordinate")
        if not len(nodes):
            return NO_SINGLES, []
        ids = to_numpy(nodes)
        order = np.argsort(ids, kind="stable")
        singles = Singles(ids[order], coords.take(indices(order)))
        firsts = rows.drop_columns("coord").take(indices(order[run_edges(ids[order])[:-1]]))
        names = zip(*(column.to_pylist() for column in firsts.columns), strict=True)
        return singles, [NodeName(*each) for each in names]


def _log_of(rows: _Rows, identifier: str) -> TransactionLog:
    def name(row: dict[str, Any]) -> NodeName:
        return NodeName(id=row["node_id"], path=row["path"], type=row["node_type"])

    _check_facts(rows, identifier)
    written, of_written = rows.singles("write_chunk")
    deleted, of_deleted = rows.singles("delete_chunk")
    truncated, bulk = rows.of("truncate_chunks"), rows.of("write_chunks")
    names = [*of_deleted, *of_written, *map(name, bulk), *map(name, truncated)]
    return TransactionLog(
        created=tuple(map(name, rows.of("create_node"))),
        deleted=tuple(map(name, rows.of("delete_node"))),
        moved=tuple((name(row), row["from_path"]) for row in rows.of("move_node")),
        updated_metadata=tuple(map(name, rows.of("update_metadata"))),
        updated_attributes=tuple(map(name, rows.of("update_attributes"))),
        chunks=ChunkLog(
            written=written,
            deleted=deleted,
            bulk=_bulk_writes(bulk),
            kept={int(row["node_id"]): tuple(n for _, n in row["extent"]) for row in truncated},
        ),
        names={node.id: node for node in names},
    )


def _check_facts(rows: _Rows, identifier: str) -> None:
    first = rows.first
    if first["operation"] != "snapshot" or json.loads(first["snapshot"])["id"] != identifier:
        raise ValueError("the first row is not this snapshot's")


def _bulk_writes(rows: list[dict[str, Any]]) -> dict[int, tuple[BulkWrite, ...]]:
    found: dict[int, list[BulkWrite]] = {}
    for row in rows:
        found.setdefault(int(row["node_id"]), []).append(
            BulkWrite(
                manifest=file_id(row["manifest"]),
                extent=tuple((start, stop) for start, stop in row["extent"]),
                chunk_count=row["chunk_count"],
            )
        )
    return {node_id: tuple(writes) for node_id, writes in found.items()}
