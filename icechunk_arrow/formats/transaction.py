"""Transaction logs (``t/<id>.parquet``): what the commit of the snapshot with the same id did.

Specification: schemas/README.md#transaction-log

One row per operation, in the order snapshot, nodes, chunks, notes. The first row repeats the snapshot's facts, for
readers that see no footers. Each row says its effect, so that a reader knows what becomes of values even where it
does not know the operation.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.boxes import grid_box
from icechunk_arrow.core.columns import (
    alike,
    from_numpy,
    from_values,
    indices,
    one_array,
    run_edges,
    to_numpy,
    validity,
)
from icechunk_arrow.core.coords import decode_lists
from icechunk_arrow.core.json_values import decode_strict_json
from icechunk_arrow.core.log import (
    NO_SINGLES,
    BulkWrite,
    ChunkLog,
    Cleared,
    NodeName,
    NodeUpdate,
    Resize,
    Shift,
    Singles,
    TakenSource,
    TransactionLog,
)
from icechunk_arrow.errors import CorruptFileError, UnsupportedFormatError
from icechunk_arrow.formats import envelope
from icechunk_arrow.formats.budget import DECODE_LIMIT_BYTES, Budget
from icechunk_arrow.formats.facts import JSON_SCHEMA as SNAPSHOT_FACTS
from icechunk_arrow.formats.facts import extra_facts
from icechunk_arrow.formats.layout import FileKind, file_id, file_name
from icechunk_arrow.formats.times import encode_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.boxes import Box
    from icechunk_arrow.core.snapshot import SnapshotFacts

__all__ = [
    "EFFECTS",
    "FACTS_JSON_SCHEMA",
    "FULL_SCHEMA",
    "KIND",
    "OPERATIONS",
    "SCHEMA",
    "check_rows",
    "decode",
    "encode",
    "read_rows",
    "write_rows",
]

KIND = FileKind.TRANSACTION
CONTENT, PLACEMENT, NOTE = "content", "placement", "note"
EFFECTS = {
    "snapshot": NOTE,
    "create_node": CONTENT,
    "delete_node": CONTENT,
    "move_node": CONTENT,
    "update_metadata": CONTENT,
    "update_attributes": CONTENT,
    "resize_array": CONTENT,
    "truncate_chunks": CONTENT,
    "delete_chunks": CONTENT,
    "shift_chunks": CONTENT,
    "write_chunks": CONTENT,
    "write_chunk": CONTENT,
    "delete_chunk": CONTENT,
    "relocate_chunks": PLACEMENT,
    "annotate_chunks": PLACEMENT,
    "take_source": NOTE,
}
"""What each operation of a commit does to values, in the order of the operations."""
OPERATIONS = tuple(EFFECTS)
_OF_CHUNKS = OPERATIONS[OPERATIONS.index("truncate_chunks") : OPERATIONS.index("take_source")]

_OF_NODES = ("node_id", "node_type", "path")
_AT_ONCE = ("manifest", "extent", "chunk_count")
_MORE = {
    "snapshot": ("snapshot",),
    "move_node": ("from_path",),
    "update_metadata": ("keys",),
    "update_attributes": ("keys",),
    "resize_array": ("shape_before", "shape_after"),
    "truncate_chunks": ("extent",),
    "delete_chunks": ("extent", "chunk_count"),
    "shift_chunks": ("chunk_offset",),
    "write_chunks": _AT_ONCE,
    "write_chunk": ("coord",),
    "delete_chunk": ("coord",),
    "relocate_chunks": _AT_ONCE,
    "annotate_chunks": _AT_ONCE,
    "take_source": ("location",),
}
_NEEDED = {
    word: (*(() if word in {"snapshot", "take_source"} else _OF_NODES), *_MORE.get(word, ()))
    for word in OPERATIONS
}
"""Columns of which the rows of an operation have a value each."""

SCHEMA = pa.schema(
    [
        pa.field("id", pa.uint32(), nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("effect", pa.string(), nullable=False),
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
FULL_SCHEMA = pa.schema(
    [
        *SCHEMA,
        pa.field("keys", pa.list_(pa.string())),
        pa.field("shape_before", pa.list_(pa.uint64())),
        pa.field("shape_after", pa.list_(pa.uint64())),
        pa.field("chunk_offset", pa.list_(pa.int64())),
        pa.field("location", pa.string()),
        pa.field("etag", pa.string()),
        pa.field("last_modified", pa.timestamp("us", "UTC")),
        pa.field("size_bytes", pa.uint64()),
        pa.field("of_snapshot", pa.string()),
        pa.field("other_snapshot", pa.string()),
        pa.field("census", pa.string()),
    ]
)
"""With the columns that only logs have in which a row needs them: most logs are small."""

A = TypeVar("A")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ID = {"$ref": "#/$defs/id"}
FACTS_JSON_SCHEMA: dict[str, Any] = {
    "$schema": SNAPSHOT_FACTS["$schema"],
    "title": "Facts in a transaction log",
    "description": "The column snapshot of the first row of a commit's log.",
    "type": "object",
    "required": [
        "id",
        "parent_id",
        "repository",
        "written_at",
        "started_at",
        "message",
        "properties",
        "total_parents",
        "next_node_id",
        "branch",
        "sequence",
    ],
    "properties": {
        "id": {**_ID, "description": "The snapshot whose commit this is."},
        "parent_id": {
            "anyOf": [_ID, {"type": "null"}],
            "description": "The snapshot that the log is relative to.",
        },
        "written_at": {"$ref": "#/$defs/time"},
        "message": {"type": "string"},
        **{
            name: SNAPSHOT_FACTS["properties"][name]
            for name in (
                "repository",
                "started_at",
                "properties",
                "total_parents",
                "next_node_id",
                "branch",
                "sequence",
                "made_from",
                "author",
                "synced",
            )
        },
    },
    "$defs": {name: SNAPSHOT_FACTS["$defs"][name] for name in ("id", "time")},
}
_ROW_BYTES, _NODE_BYTES, _BOUND_BYTES = 2500, 300, 60
"""What a row, the name of a node and a number of an extent take in memory as values."""
_Spans = dict[str, "Sequence[Any] | pa.Array"]


def _rows(log: TransactionLog) -> pa.Table:
    """Give a log's rows, column by column: each node is named once, and a row says which it is of."""
    assert log.facts is not None
    chunks = log.chunks
    of_nodes = (
        log.created,
        log.deleted,
        [node for node, _ in log.moved],
        [node for node, _ in log.updated_metadata],
        [node for node, _ in log.updated_attributes],
        [each.node for each in log.resized],
    )
    cleared, bulk = _pairs(chunks.cleared), _pairs(chunks.bulk)
    relocated, annotated = _pairs(log.relocated), _pairs(log.annotated)
    of_chunks = (
        np.fromiter(chunks.kept, np.uint32, len(chunks.kept)),
        _owners(cleared),
        np.array([each.node.id for each in log.shifted], np.uint32),
        _owners(bulk),
        chunks.written.node_ids,
        chunks.deleted.node_ids,
        _owners(relocated),
        _owners(annotated),
    )
    counts = [1, *map(len, of_nodes), *map(len, of_chunks), len(log.sources)]
    starts = dict(zip(OPERATIONS, accumulate(counts, initial=0), strict=False))
    count = sum(counts)
    named = [*chain.from_iterable(of_nodes)]
    changed = sorted(log.names)
    nodes = [*named, *map(log.names.__getitem__, changed)]
    owners = len(named) + np.searchsorted(changed, np.concatenate(of_chunks))
    notes = np.full(len(log.sources), len(nodes))
    rows = np.concatenate([np.zeros(1, np.int64), np.arange(len(named)), owners, notes])
    numbers = np.arange(count)
    has_node = (numbers > 0) & (numbers < count - len(notes))
    of_rows = from_numpy(rows, pa.int64(), has_node)
    codes = indices(np.repeat(np.arange(len(OPERATIONS)), counts))
    columns = {
        "operation": from_values(OPERATIONS, pa.string()).take(codes),
        "effect": from_values(list(EFFECTS.values()), pa.string()).take(codes),
        "node_id": from_values([node.id for node in nodes], pa.uint32()).take(of_rows),
        "node_type": from_values([node.type for node in nodes], pa.string()).take(of_rows),
        "path": from_values([node.path for node in nodes], pa.string()).take(of_rows),
    }
    at_once = {"write_chunks": bulk, "relocate_chunks": relocated, "annotate_chunks": annotated}
    of_some: dict[str, _Spans] = {
        "from_path": {"move_node": [path for _, path in log.moved]},
        "coord": {"write_chunk": chunks.written.coords, "delete_chunk": chunks.deleted.coords},
        "manifest": {
            word: [file_name(each.manifest) for _, each in some] for word, some in at_once.items()
        },
        "extent": {
            "truncate_chunks": [*map(grid_box, chunks.kept.values())],
            "delete_chunks": [each.extent for _, each in cleared],
            **{word: [each.extent for _, each in some] for word, some in at_once.items()},
        },
        "chunk_count": {
            "delete_chunks": [each.chunk_count for _, each in cleared],
            **{word: [each.chunk_count for _, each in some] for word, some in at_once.items()},
        },
        "snapshot": {"snapshot": [_facts_json(log.facts)]},
        "keys": {
            "update_metadata": [keys for _, keys in log.updated_metadata],
            "update_attributes": [keys for _, keys in log.updated_attributes],
        },
        "shape_before": {"resize_array": [each.before for each in log.resized]},
        "shape_after": {"resize_array": [each.after for each in log.resized]},
        "chunk_offset": {"shift_chunks": [each.offset for each in log.shifted]},
        "location": {"take_source": [each.location for each in log.sources]},
        "etag": {"take_source": [each.etag for each in log.sources]},
        "last_modified": {"take_source": [each.last_modified for each in log.sources]},
        "size_bytes": {"take_source": [each.size_bytes for each in log.sources]},
    }
    for name, values in of_some.items():
        if name in SCHEMA.names or any(map(len, values.values())):
            spans = ((starts[operation], some) for operation, some in values.items())
            columns[name] = _spread(spans, count, FULL_SCHEMA.field(name).type)
    if (rows[1:] < rows[:-1]).any():  # grouped by array; those of one stay as they come
        order = indices(np.argsort(rows, kind="stable"))
        columns = {name: each.take(order) for name, each in columns.items()}
    columns["id"] = from_numpy(np.arange(count, dtype=np.uint32), pa.uint32())
    schema = pa.schema([field for field in FULL_SCHEMA if field.name in columns])
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _pairs(by_node: Mapping[int, tuple[Any, ...]]) -> list[tuple[int, Any]]:
    return [(node_id, each) for node_id, some in sorted(by_node.items()) for each in some]


def _owners(pairs: Sequence[tuple[int, Any]]) -> npt.NDArray[np.uint32]:
    return np.array([node_id for node_id, _ in pairs], np.uint32)


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
            part = values if isinstance(values, pa.Array) else from_values(values, arrow_type)
            parts.append(part)
        done = row + len(values)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _facts_json(facts: SnapshotFacts) -> str:
    members = {
        "id": facts.id,
        "parent_id": facts.parent_id,
        "repository": facts.repository,
        "written_at": encode_time(facts.written_at),
        "started_at": encode_time(facts.started_at),
        "message": facts.message,
        "properties": dict(facts.properties),
        "total_parents": facts.total_parents,
        "next_node_id": facts.next_node_id,
        "branch": facts.branch,
        "sequence": facts.sequence,
        **extra_facts(facts),
    }
    return json.dumps(members, separators=(",", ":"))


def encode(log: TransactionLog) -> bytes:
    """Encode what a commit did."""
    assert log.facts is not None
    return write_rows(_rows(log), log.facts.id)


def write_rows(rows: pa.Table, identifier: str) -> bytes:
    """Write the rows of a log as a file."""
    words = ["operation", "effect", "node_type", "path", "from_path", "manifest"]
    return envelope.write(
        rows,
        kind=KIND,
        identifier=identifier,
        facts={},
        boundaries=[rows.num_rows],
        settings={
            "use_dictionary": words,
            "column_encoding": {"id": "DELTA_BINARY_PACKED", "coord": "DELTA_BYTE_ARRAY"},
            "write_statistics": False,
        },
    )


def read_rows(
    data: bytes, identifier: str, limit_bytes: int = DECODE_LIMIT_BYTES
) -> tuple[str, pa.Table]:
    """Check a log's file and its columns; give its key and its rows, with all columns there are."""
    sealed, table = envelope.read_whole(
        data, KIND, identifier, limit_bytes, columns=FULL_SCHEMA.names
    )
    for field in FULL_SCHEMA:
        stored = table.schema.field(field.name) if field.name in table.column_names else None
        if stored is None and field.name not in SCHEMA.names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        elif stored is None or not alike(stored.type, field.type):
            raise CorruptFileError(
                f"{sealed.key} is no sound log: its column {field.name!r} is missing or of another type",
                key=sealed.key,
            )
        elif not field.nullable and table[field.name].null_count:
            raise CorruptFileError(
                f"{sealed.key} is no sound log: it has a row without {field.name!r}", key=sealed.key
            )
    if not table.num_rows:
        raise CorruptFileError(f"{sealed.key} is no sound log: it has no rows", key=sealed.key)
    return sealed.key, table.select(FULL_SCHEMA.names)


def decode(data: bytes, identifier: str, limit_bytes: int = DECODE_LIMIT_BYTES) -> TransactionLog:
    """Decode a whole transaction log; its ``facts`` stay in the structure file."""
    key, table = read_rows(data, identifier, limit_bytes)
    try:
        rows = _Rows(table)
        budget = Budget(key, limit_bytes)
        budget.check(rows.size_bytes)
        budget.check_json(str(rows.first["snapshot"]).encode())
        return _log_of(rows, identifier)
    except UnsupportedFormatError as error:
        raise UnsupportedFormatError(f"{key}: {error}", key=key) from error
    except (KeyError, ValueError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise CorruptFileError(f"{key} is no sound log: {error}", key=key) from error


def check_rows(key: str, table: pa.Table) -> None:
    """Check the order of a log's rows, and that each has what its operation needs, for whoever shows them all."""
    try:
        rows = _Rows(table)
        for operation in ("write_chunk", "delete_chunk"):
            rows.singles(operation)
        rows.check_manifests()
    except UnsupportedFormatError as error:
        raise UnsupportedFormatError(f"{key}: {error}", key=key) from error
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise CorruptFileError(f"{key} is no sound log: {error}", key=key) from error


class _Rows:
    """The rows of a log that is read: those that name one chunk stay columns, however many they are."""

    def __init__(self, table: pa.Table) -> None:
        words, ranks = _codes(table["operation"], OPERATIONS)
        effect_words, effects = _codes(table["effect"], (CONTENT, PLACEMENT, NOTE))
        unknown = np.array([word not in EFFECTS for word in words])[ranks]
        passed = np.isin(effects, [effect_words.index(PLACEMENT), effect_words.index(NOTE)])
        if (unknown & ~passed).any():
            word = words[int(ranks[unknown & ~passed][0])]
            raise UnsupportedFormatError(
                f"this commit did something that this version does not know ({word!r}); a newer version "
                f"reads it"
            )
        if (to_numpy(table["id"]) != np.arange(len(table))).any():
            raise ValueError("its rows are not numbered from 0")
        known = ~unknown
        expected = np.array([effect_words.index(EFFECTS.get(word, NOTE)) for word in words])
        if (expected[ranks] != effects)[known].any():
            raise ValueError("an operation has an effect that it cannot have")
        self._table = table.filter(from_numpy(known, pa.bool_())) if unknown.any() else table
        self._ranks = ranks[known]
        self._check_order()
        self._check_needed()

    def _check_needed(self) -> None:
        """Refuse a row that lacks a value which its operation needs."""
        for rank in np.unique(self._ranks).tolist():
            places = None
            for name in _NEEDED.get(OPERATIONS[rank], ()):
                column = self._table[name]
                if not column.null_count:
                    continue
                places = np.flatnonzero(self._ranks == rank) if places is None else places
                if not validity(one_array(column))[places].all():
                    raise ValueError(f"a row of {OPERATIONS[rank]!r} has no {name!r}")

    def check_manifests(self) -> None:
        """Refuse a row whose operation needs a manifest, and whose manifest is no name of a file."""
        ranks = [rank for rank, word in enumerate(OPERATIONS) if "manifest" in _NEEDED[word]]
        names = self._table["manifest"].filter(from_numpy(np.isin(self._ranks, ranks), pa.bool_()))
        for name in names.unique().to_pylist():
            file_id(name)

    def _check_order(self) -> None:
        """Rows are in the order of operations, those on chunks by array."""
        first, last = (OPERATIONS.index(word) for word in (_OF_CHUNKS[0], _OF_CHUNKS[-1]))
        ranks = self._ranks
        if not len(ranks) or ranks[0] != 0 or (ranks[1:] == 0).any():
            raise ValueError("its first row, and no other, must be the snapshot's")
        ids = one_array(self._table["node_id"])
        nodes = np.where(validity(ids), to_numpy(ids), 0).astype(np.int64)
        of_chunks = (ranks >= first) & (ranks <= last)
        order = np.where(of_chunks, (nodes << 8) + 256, 0) + ranks
        order[ranks > last] += 1 << 48
        if (np.diff(order) < 0).any():
            raise ValueError("its rows are not in order")
        of_nodes = (ranks > 0) & (ranks < first)
        paths = one_array(self._table["path"].filter(from_numpy(of_nodes, pa.bool_())))
        same = ranks[of_nodes][1:] == ranks[of_nodes][:-1]
        if paths.null_count or not to_numpy(pc.less(paths[:-1], paths[1:]))[same].all():
            raise ValueError("its nodes are not in the order of their paths")

    @property
    def size_bytes(self) -> int:
        """About what the rows take as values: those of single chunks stay columns, but for their nodes."""
        table = self._table
        single = [OPERATIONS.index(word) for word in ("write_chunk", "delete_chunk")]
        others = len(self._ranks) - int(np.isin(self._ranks, single).sum())
        nodes = to_numpy(one_array(table["node_id"]))
        runs = int((nodes[1:] != nodes[:-1]).sum())
        bounds = sum(len(part.flatten().flatten()) for part in table["extent"].chunks)
        return int(table.nbytes) + _ROW_BYTES * others + _NODE_BYTES * runs + _BOUND_BYTES * bounds

    @property
    def first(self) -> dict[str, Any]:
        """The row that all others follow."""
        row: dict[str, Any] = self._table.slice(0, 1).to_pylist()[0]
        return row

    def _places(self, operation: str) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self._ranks == OPERATIONS.index(operation))

    def of(self, operation: str) -> list[dict[str, Any]]:
        """Give the rows of an operation."""
        places = self._places(operation)
        rows: list[dict[str, Any]] = self._table.take(indices(places)).to_pylist()
        return rows

    def singles(self, operation: str) -> tuple[Singles, list[NodeName]]:
        """Give the chunks that an operation names one by one, and their arrays."""
        rows = self._table.select(["node_id", "path", "node_type", "coord"])
        rows = rows.take(indices(self._places(operation)))
        nodes, coords = one_array(rows["node_id"]), one_array(rows["coord"])
        if nodes.null_count or coords.null_count:
            raise ValueError(f"a row of {operation!r} has no node or no coordinate")
        if not len(nodes):
            return NO_SINGLES, []
        ids = to_numpy(nodes)
        same = ids[1:] == ids[:-1]
        if not to_numpy(pc.less(coords[:-1], coords[1:]))[same].all():
            raise ValueError(f"the chunks of {operation!r} are not in order")
        try:
            decode_lists(coords)
        except CorruptFileError as error:
            raise ValueError(str(error)) from error
        firsts = rows.drop_columns("coord").take(indices(run_edges(ids)[:-1]))
        names = zip(*(column.to_pylist() for column in firsts.columns), strict=True)
        return Singles(ids, coords), [NodeName(*each) for each in names]


def _codes(column: pa.ChunkedArray, known: Sequence[str]) -> tuple[list[str], npt.NDArray[Any]]:
    """Read a column of words as numbers; the known words come first, in their order."""
    words = one_array(column)
    if words.null_count:
        raise ValueError("a row has no operation or no effect")
    coded = words.dictionary_encode()
    there = coded.dictionary.to_pylist()
    all_words = [*known, *(word for word in there if word not in known)]
    return all_words, np.array([all_words.index(word) for word in there])[to_numpy(coded.indices)]


def _name(row: dict[str, Any]) -> NodeName:
    if row["node_id"] is None or not isinstance(row["path"], str):
        raise ValueError(f"a row of {row['operation']!r} names no node")
    return NodeName(id=row["node_id"], path=row["path"], type=row["node_type"])


def _log_of(rows: _Rows, identifier: str) -> TransactionLog:
    first = decode_strict_json(rows.first["snapshot"].encode())
    if first["id"] != identifier:
        raise ValueError("the first row is not this snapshot's")
    written, of_written = rows.singles("write_chunk")
    deleted, of_deleted = rows.singles("delete_chunk")
    truncated, cleared, bulk = map(rows.of, ("truncate_chunks", "delete_chunks", "write_chunks"))
    placed = relocated, annotated = rows.of("relocate_chunks"), rows.of("annotate_chunks")
    shifted = rows.of("shift_chunks")
    at_once = [*bulk, *truncated, *cleared, *shifted, *chain.from_iterable(placed)]
    names = [*of_deleted, *of_written, *map(_name, at_once)]
    return TransactionLog(
        created=tuple(map(_name, rows.of("create_node"))),
        deleted=tuple(map(_name, rows.of("delete_node"))),
        moved=tuple((_name(row), row["from_path"]) for row in rows.of("move_node")),
        updated_metadata=tuple(map(_update, rows.of("update_metadata"))),
        updated_attributes=tuple(map(_update, rows.of("update_attributes"))),
        resized=tuple(
            Resize(_name(row), tuple(row["shape_before"]), tuple(row["shape_after"]))
            for row in rows.of("resize_array")
        ),
        shifted=tuple(Shift(_name(row), tuple(row["chunk_offset"])) for row in shifted),
        chunks=ChunkLog(
            written=written,
            deleted=deleted,
            cleared=_by_node(cleared, _cleared),
            bulk=_by_node(bulk, _bulk_write),
            kept={int(row["node_id"]): tuple(n for _, n in row["extent"]) for row in truncated},
        ),
        relocated=_by_node(relocated, _bulk_write),
        annotated=_by_node(annotated, _bulk_write),
        sources=tuple(map(_source, rows.of("take_source"))),
        names={node.id: node for node in names},
    )


def _update(row: dict[str, Any]) -> NodeUpdate:
    return NodeUpdate(_name(row), tuple(row["keys"]))


def _source(row: dict[str, Any]) -> TakenSource:
    modified = row["last_modified"]
    return TakenSource(
        row["location"],
        row["etag"],
        None if modified is None else (modified - _EPOCH) // timedelta(microseconds=1),
        row["size_bytes"],
    )


def _cleared(row: dict[str, Any]) -> Cleared:
    return Cleared(extent=_extent(row), chunk_count=int(row["chunk_count"]))


def _bulk_write(row: dict[str, Any]) -> BulkWrite:
    return BulkWrite(
        manifest=file_id(row["manifest"]), extent=_extent(row), chunk_count=int(row["chunk_count"])
    )


def _extent(row: dict[str, Any]) -> Box:
    return tuple((start, stop) for start, stop in row["extent"])


def _by_node(
    rows: list[dict[str, Any]], value_of: Callable[[dict[str, Any]], A]
) -> dict[int, tuple[A, ...]]:
    values: dict[int, list[A]] = {}
    for row in rows:
        values.setdefault(int(row["node_id"]), []).append(value_of(row))
    return {node_id: tuple(some) for node_id, some in values.items()}
