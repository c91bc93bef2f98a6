"""Transaction logs (``t/<id>.parquet``): what the commit of the snapshot with the same id did.

Specification: schemas/README.md#transaction-log

One row per operation, in the order snapshot, nodes, chunks. The first row repeats the snapshot's facts, for
readers that see no footers.
"""

from __future__ import annotations

import json
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import (
    empty,
    from_numpy,
    from_values,
    indices,
    one_array,
    run_edges,
    to_numpy,
)
from icechunk_arrow.core.log import BulkWrite, ChunkChanges, NodeName, TransactionLog
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats import envelope
from icechunk_arrow.formats.layout import FileKind, file_id, file_name
from icechunk_arrow.formats.times import encode_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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


class _Columns:
    """The rows of a log as they are put together, span by span: what a span does not name is null."""

    def __init__(self) -> None:
        self._operations: list[str] = []
        self._nodes: list[NodeName | None] = []
        self._counts: list[int] = []
        self._count = 0
        self._more: dict[str, list[tuple[int, list[Any]]]] = {}
        self._coords: list[tuple[int, pa.Array]] = []

    def add(self, operation: str, node: NodeName | None = None, **more: Any) -> None:
        """Add one row."""
        self.add_many(operation, node, 1, **{name: [value] for name, value in more.items()})

    def add_nodes(self, operation: str, nodes: Sequence[NodeName]) -> None:
        """Add a row for each of some nodes."""
        self._operations += [operation] * len(nodes)
        self._nodes += nodes
        self._counts += [1] * len(nodes)
        self._count += len(nodes)

    def add_many(self, operation: str, node: NodeName | None, count: int, **more: Any) -> None:
        """Add rows of one operation on one node."""
        for name, values in more.items():
            self._more.setdefault(name, []).append((self._count, values))
        self._operations.append(operation)
        self._nodes.append(node)
        self._counts.append(count)
        self._count += count

    def add_coords(self, operation: str, node: NodeName, coords: pa.Array) -> None:
        """Add a row for each of some coordinates."""
        if len(coords):
            self._coords.append((self._count, coords))
            self.add_many(operation, node, len(coords))

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
            elif name == "coord":
                column = self._spread(self._coords, field.type)
            elif name in self._more:
                column = self._spread(_as_arrays(self._more[name], field.type), field.type)
            else:
                column = pa.nulls(self._count, field.type)
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=SCHEMA)

    def _spread(self, spans: Iterable[tuple[int, pa.Array]], arrow_type: pa.DataType) -> pa.Array:
        """Put values into the rows from which on they stand; every other row is null."""
        parts = []
        count = 0
        for row, values in spans:
            if row > count:
                parts.append(pa.nulls(row - count, arrow_type))
            parts.append(values)
            count = row + len(values)
        return pa.concat_arrays([*parts, pa.nulls(self._count - count, arrow_type)])


def _as_arrays(
    spans: list[tuple[int, list[Any]]], arrow_type: pa.DataType
) -> Iterator[tuple[int, pa.Array]]:
    column = from_values([value for _, values in spans for value in values], arrow_type)
    start = 0
    for row, values in spans:
        yield row, column.slice(start, len(values))
        start += len(values)


def _rows(log: TransactionLog) -> pa.Table:
    assert log.facts is not None
    rows = _Columns()
    rows.add("snapshot", snapshot=_facts_json(log.facts))
    rows.add_nodes("create_node", log.created)
    rows.add_nodes("delete_node", log.deleted)
    for node, from_path in log.moved:
        rows.add("move_node", node, from_path=from_path)
    rows.add_nodes("update_metadata", log.updated_metadata)
    rows.add_nodes("update_attributes", log.updated_attributes)
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
    rows.add_coords("write_chunk", node, changes.written)
    rows.add_coords("delete_chunk", node, changes.deleted)


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

    def coords(self, operation: str) -> dict[int, tuple[dict[str, Any], pa.Array]]:
        """Give the coordinates of an operation by node, in the order of their rows, with the node's first row."""
        rows = self._table.select(["node_id", "node_type", "path", "coord"])
        rows = rows.take(indices(self._places(operation)))
        nodes, coords = one_array(rows["node_id"]), one_array(rows["coord"])
        if nodes.null_count or coords.null_count or coords.type != pa.binary():
            raise ValueError(f"a row of {operation!r} has no node or no coordinate")
        if not len(nodes):
            return {}
        ids = to_numpy(nodes)
        order = np.argsort(ids, kind="stable")
        edges = run_edges(ids[order]).tolist()
        coords = coords.take(indices(order))
        firsts = rows.drop_columns("coord").take(indices(order[edges[:-1]])).to_pylist()
        return {
            first["node_id"]: (first, coords.slice(start, stop - start))
            for first, (start, stop) in zip(firsts, pairwise(edges), strict=True)
        }


def _log_of(rows: _Rows, identifier: str) -> TransactionLog:
    def name(row: dict[str, Any]) -> NodeName:
        return NodeName(id=row["node_id"], path=row["path"], type=row["node_type"])

    _check_facts(rows, identifier)
    written, deleted = rows.coords("write_chunk"), rows.coords("delete_chunk")
    spans = sorted(rows.of("truncate_chunks", "write_chunks"), key=lambda row: int(row["node_id"]))
    by_node = {node: list(some) for node, some in groupby(spans, lambda row: row["node_id"])}
    names = {
        **{node_id: name(row) for node_id, (row, _) in (*deleted.items(), *written.items())},
        **{row["node_id"]: name(row) for row in spans},
    }
    none = (None, empty(pa.binary()))
    return TransactionLog(
        created=tuple(map(name, rows.of("create_node"))),
        deleted=tuple(map(name, rows.of("delete_node"))),
        moved=tuple((name(row), row["from_path"]) for row in rows.of("move_node")),
        updated_metadata=tuple(map(name, rows.of("update_metadata"))),
        updated_attributes=tuple(map(name, rows.of("update_attributes"))),
        chunks={
            node_id: _chunk_changes(
                by_node.get(node_id, []),
                written=written.get(node_id, none)[1],
                deleted=deleted.get(node_id, none)[1],
            )
            for node_id in sorted(names)
        },
        names=names,
    )


def _check_facts(rows: _Rows, identifier: str) -> None:
    first = rows.first
    if first["operation"] != "snapshot" or json.loads(first["snapshot"])["id"] != identifier:
        raise ValueError("the first row is not this snapshot's")


def _chunk_changes(
    spans: list[dict[str, Any]], *, written: pa.Array, deleted: pa.Array
) -> ChunkChanges:
    kept = next((row["extent"] for row in spans if row["operation"] == "truncate_chunks"), None)
    return ChunkChanges(
        written=written,
        deleted=deleted,
        bulk=tuple(
            BulkWrite(
                manifest=file_id(row["manifest"]),
                extent=tuple((start, stop) for start, stop in row["extent"]),
                chunk_count=row["chunk_count"],
            )
            for row in spans
            if row["operation"] == "write_chunks"
        ),
        kept=None if kept is None else tuple(stop for _, stop in kept),
    )
