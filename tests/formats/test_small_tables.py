"""Attributes files and transaction logs: their schemas and what a reader refuses."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from icechunk_arrow.core import coords
from icechunk_arrow.core.log import ChunkChanges, ChunkLog, NodeName, Resize, TransactionLog
from icechunk_arrow.errors import CorruptFileError, UnsupportedFormatError
from icechunk_arrow.formats import attributes, envelope, transaction
from icechunk_arrow.formats.layout import FileKind
from tests.formats.arrow_print import as_printed
from tests.formats.examples import BARE_LOG, FACTS, LOG, MANIFEST
from tests.formats.kinds import ID

ATTRIBUTES = """\
id: uint32 not null
attributes: binary not null"""
TRANSACTION = [
    ("id", "uint32", False),
    ("operation", "string", False),
    ("effect", "string", False),
    ("node_id", "uint32", True),
    ("node_type", "string", True),
    ("path", "string", True),
    ("from_path", "string", True),
    ("coord", "binary", True),
    ("manifest", "string", True),
    ("extent", "list<item: list<item: uint64>>", True),
    ("chunk_count", "uint64", True),
    ("snapshot", "string", True),
]


def schema_on_disk(data: bytes) -> pa.Schema:
    """The Arrow schema that a plain reader sees."""
    return pq.read_schema(io.BytesIO(data)).remove_metadata()


def sealed_by_another(table: pa.Table, kind: FileKind, identifier: str) -> bytes:
    """A file with a good seal around rows that our writer would not write."""
    return envelope.write(
        table,
        kind=kind,
        identifier=identifier,
        facts={},
        boundaries=[table.num_rows],
        settings={},
    )


def test_attributes_have_their_schema() -> None:
    """Id and attributes, in a written file."""
    data = attributes.encode([(1, b"{}")], ID)

    assert as_printed(schema_on_disk(data)) == ATTRIBUTES


def test_attributes_of_another_node_are_refused() -> None:
    """A row number that leads to somebody else's attributes is damage, not an answer."""
    table = attributes.decode(attributes.encode([(1, b"{}"), (5, b'{"a":1}')], ID), ID)

    assert attributes.row_of(table, 1, 5, ID) == b'{"a":1}'
    for row, node_id in ((0, 5), (2, 5)):
        with pytest.raises(CorruptFileError, match=f"a/{ID}.parquet has no attributes of node 5"):
            attributes.row_of(table, row, node_id, ID)


def test_attributes_with_more_or_other_columns() -> None:
    """Unknown columns are ignored, missing or mistyped ones refused."""
    columns = {"id": pa.array([1], pa.uint32()), "attributes": pa.array([b"{}"])}
    more = pa.table({"colour": ["blue"], **columns})
    kind = FileKind.ATTRIBUTES

    found = attributes.decode(sealed_by_another(more, kind, ID), ID)
    assert found.column_names == ["id", "attributes"]
    for wrong in (
        more.drop_columns(["attributes"]),
        more.set_column(2, "attributes", pa.array(["{}"])),
    ):
        with pytest.raises(CorruptFileError, match="no column 'attributes'"):
            attributes.decode(sealed_by_another(wrong, kind, ID), ID)


def test_logs_have_their_schema() -> None:
    """Names, order, types and nullability, in a written file, without an Arrow schema beside them."""
    schema = schema_on_disk(transaction.encode(LOG))

    assert [(f.name, str(f.type), f.nullable) for f in schema] == TRANSACTION
    assert schema.equals(transaction.SCHEMA, check_metadata=True)


def test_a_log_is_one_row_per_operation() -> None:
    """In SQL's eyes: the snapshot first, nodes next, then chunks, numbered."""
    rows = pq.read_table(io.BytesIO(transaction.encode(LOG))).to_pylist()

    assert [(row["id"], row["operation"], row["path"]) for row in rows] == [
        (0, "snapshot", None),
        (1, "create_node", "/"),
        (2, "create_node", "/a"),
        (3, "write_chunks", "/a"),
        (4, "write_chunk", "/a"),
    ]
    assert json.loads(rows[0]["snapshot"]) == {
        "id": FACTS.id,
        "parent_id": None,
        "repository": FACTS.repository,
        "written_at": "2026-11-18T12:00:00.000005+00:00",
        "started_at": "2026-11-18T11:00:00.000000+00:00",
        "message": "measure",
        "properties": {"author": "Ann"},
        "total_parents": 0,
        "next_node_id": 3,
        "branch": None,
        "sequence": None,
    }
    assert (rows[3]["manifest"], rows[3]["extent"], rows[3]["chunk_count"]) == (
        f"{MANIFEST}.parquet",
        [[0, 10], [0, 10]],
        100,
    )
    assert rows[4]["coord"] == b"\x03\x04"


def test_single_chunks_stay_columns() -> None:
    """A log of very many holds no Python object for each after it is read."""
    arrays, count = 50, 4000
    places = coords.encode(np.arange(count, dtype=np.uint64)[:, None])
    changes = {
        number: ChunkChanges(written=places.slice(0, 3000), deleted=places.slice(3000))
        for number in range(arrays)
    }
    names = {number: NodeName(id=number, path=f"/{number}", type="array") for number in changes}
    log = TransactionLog(facts=FACTS, chunks=ChunkLog.of(changes), names=names)
    before = sys.getallocatedblocks()
    found = transaction.decode(transaction.encode(log), FACTS.id)
    made = sys.getallocatedblocks() - before

    assert found == replace(log, facts=None)
    assert made < arrays * count / 10


def test_a_scalar_that_shrank_is_told_from_one_that_did_not() -> None:
    """No dimensions is not nothing."""
    names = BARE_LOG.names
    log = TransactionLog(facts=FACTS, chunks=ChunkLog.of({2: ChunkChanges(kept=())}), names=names)

    assert transaction.decode(transaction.encode(log), FACTS.id).chunks[2].kept == ()


def log_rows(**changes: Any) -> pa.Table:
    """The example's rows with changed columns."""
    table = pq.read_table(io.BytesIO(transaction.encode(LOG)))
    for name, change in changes.items():
        at = table.schema.get_field_index(name)
        field = table.schema.field(name)
        values = [change(row, value) for row, value in enumerate(table[name].to_pylist())]
        table = table.set_column(at, field, pa.array(values, field.type))
    return table


UNSOUND = {
    "an effect that is none": lambda: log_rows(effect=lambda r, v: "paint" if r == 1 else v),
    "the effect of another operation": lambda: log_rows(
        effect=lambda r, v: "placement" if r == 4 else v
    ),
    "shuffled": lambda: log_rows().take([0, 2, 3, 1, 4]),
    "chunks before nodes": lambda: log_rows().take([0, 4, 1, 2, 3]),
    "one chunk twice": lambda: log_rows().take([0, 1, 2, 3, 4, 4]),
    "two snapshots": lambda: log_rows().take([0, 0, 1, 2, 3, 4]),
    "no snapshot": lambda: log_rows().slice(1),
    "another snapshot": lambda: log_rows(snapshot=lambda r, v: v and v.replace(FACTS.id, MANIFEST)),
    "no facts": lambda: log_rows(snapshot=lambda *_: None),
    "facts are no object": lambda: log_rows(snapshot=lambda *_: "3"),
    "manifest elsewhere": lambda: log_rows(manifest=lambda _, v: v and "../x.parquet"),
    "no manifest": lambda: log_rows(manifest=lambda *_: None),
    "no extent": lambda: log_rows(extent=lambda *_: None),
    "no rows": lambda: log_rows().slice(0, 0),
    "no column": lambda: log_rows().drop_columns(["coord"]),
    "no operation": lambda: log_rows().set_column(
        1, "operation", pa.array(["snapshot", None, None, None, None], pa.string())
    ),
    "operations of another kind": lambda: log_rows().set_column(
        1, "operation", pa.array([[1], [2], [3], [4], [5]])
    ),
    "no coordinate": lambda: log_rows(coord=lambda *_: None),
    "no node": lambda: log_rows(node_id=lambda r, v: v if r < 4 else None),
    "coordinates of another kind": lambda: log_rows().set_column(
        7, "coord", pa.array(["a"] * 5, pa.string())
    ),
}


@pytest.mark.parametrize("fault", UNSOUND)
def test_unsound_logs_are_refused(fault: str) -> None:
    """Sealed or not, a log that contradicts itself is an error that names the file."""
    data = sealed_by_another(UNSOUND[fault](), FileKind.TRANSACTION, FACTS.id)

    with pytest.raises(CorruptFileError, match=f"t/{FACTS.id}.parquet"):
        transaction.decode(data, FACTS.id)


def with_operation(effect: str) -> bytes:
    """The example's log with one operation that no version knows."""
    rows = log_rows(
        operation=lambda r, v: "paint" if r == 4 else v, effect=lambda r, v: effect if r == 4 else v
    )
    return sealed_by_another(rows, FileKind.TRANSACTION, FACTS.id)


def test_unknown_operations_that_change_values_are_newer_than_this_version() -> None:
    """Whoever does not know what became of values says so, and does not call the file damaged."""
    with pytest.raises(UnsupportedFormatError, match=f"t/{FACTS.id}.parquet: .*'paint'"):
        transaction.decode(with_operation("content"), FACTS.id)


@pytest.mark.parametrize("effect", ["placement", "note"])
def test_unknown_operations_that_change_no_value_are_passed_over(effect: str) -> None:
    """The rest of the log says all that there is to know of values."""
    found = transaction.decode(with_operation(effect), FACTS.id)

    assert found.chunks[2].bulk == LOG.chunks[2].bulk
    assert not len(found.chunks[2].written)


def test_columns_that_no_row_needs_are_left_out() -> None:
    """A small log stays small: most say nothing of shapes, keys and sources."""
    sizes = TransactionLog(
        facts=FACTS, resized=(Resize(NodeName(id=2, path="/a", type="array"), (8,), (9,)),)
    )

    assert pq.read_schema(io.BytesIO(transaction.encode(LOG))).names == transaction.SCHEMA.names
    assert pq.read_schema(io.BytesIO(transaction.encode(sizes))).names == [
        *transaction.SCHEMA.names,
        "shape_before",
        "shape_after",
    ]
