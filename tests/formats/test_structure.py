"""Structure files: the documented schema, both widths, what a reader refuses."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from icechunk_arrow.core.inventory import Inventory
from icechunk_arrow.core.snapshot import AttributesRef, Node
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats import envelope, structure
from icechunk_arrow.formats.layout import FileKind
from tests.formats.arrow_print import as_printed
from tests.formats.examples import FACTS, MANIFEST, ROOT, SNAPSHOT, array_node, snapshot_of

DOCUMENTED = """\
id: uint16 not null
  -- field metadata --
  description: 'unique identifier for the node'
type: string not null
  -- field metadata --
  description: 'array or group'
path: string not null
  -- field metadata --
  description: 'path to the node within the store'
array_metadata: struct<shape: list<item: uint16> not null, data_type: string not null, fill_value: binary, dimension_names: list<item: string>, chunk_grid: struct<name: string not null, configuration: struct<chunk_shape: list<item: uint16> not null> not null>, chunk_key_encoding: struct<name: string not null, configuration: struct<separator: string not null> not null>, codecs: list<item: struct<name: string not null, configuration: binary>>>
  child 0, shape: list<item: uint16> not null
      child 0, item: uint16
  child 1, data_type: string not null
  child 2, fill_value: binary
  child 3, dimension_names: list<item: string>
      child 0, item: string
  child 4, chunk_grid: struct<name: string not null, configuration: struct<chunk_shape: list<item: uint16> not null> not null>
      child 0, name: string not null
      child 1, configuration: struct<chunk_shape: list<item: uint16> not null> not null
          child 0, chunk_shape: list<item: uint16> not null
              child 0, item: uint16
  child 5, chunk_key_encoding: struct<name: string not null, configuration: struct<separator: string not null> not null>
      child 0, name: string not null
      child 1, configuration: struct<separator: string not null> not null
          child 0, separator: string not null
  child 6, codecs: list<item: struct<name: string not null, configuration: binary>>
      child 0, item: struct<name: string not null, configuration: binary>
          child 0, name: string not null
          child 1, configuration: binary
  -- field metadata --
  description: 'All the Zarr array metadata'
inline_attrs: binary
  -- field metadata --
  description: 'user-defined attributes, stored inline with this entry'
attrs_reference: struct<attrs_file: string not null, row: uint16 not null, flags: uint16>
  child 0, attrs_file: string not null
  child 1, row: uint16 not null
  child 2, flags: uint16
  -- field metadata --
  description: 'user-defined attributes, stored in a separate attributes file'
inventories: list<item: struct<inventory_file: string not null, row: uint16 not null, extent: list<item: fixed_size_list<item: uint16>[2]> not null, flags: uint16>>
  child 0, item: struct<inventory_file: string not null, row: uint16 not null, extent: list<item: fixed_size_list<item: uint16>[2]> not null, flags: uint16>
      child 0, inventory_file: string not null
      child 1, row: uint16 not null
      child 2, extent: list<item: fixed_size_list<item: uint16>[2]> not null
          child 0, item: fixed_size_list<item: uint16>[2]
              child 0, item: uint16
      child 3, flags: uint16"""  # noqa: E501 -- as documented


def widened(text: str) -> str:
    """The documented print with the wide version's types."""
    wide = text.replace("id: uint16 not null", "id: uint32 not null", 1)
    for name in (
        "shape: list<item: ",
        "chunk_shape: list<item: ",
        "row: ",
        "fixed_size_list<item: ",
    ):
        wide = wide.replace(f"{name}uint16", f"{name}uint64")
    return wide.replace("item: uint16", "item: uint64")


def schema_on_disk(data: bytes) -> pa.Schema:
    """The Arrow schema that a plain reader sees, without what is not a column."""
    return pq.read_schema(io.BytesIO(data)).remove_metadata()


def width_of(data: bytes) -> str:
    """What the footer says, which must be what the columns are."""
    said: str = pq.read_metadata(io.BytesIO(data)).metadata[b"icechunk.width"].decode()
    expected = {"narrow": DOCUMENTED, "wide": widened(DOCUMENTED)}[said]
    assert as_printed(schema_on_disk(data)) == expected
    return said


def test_the_schema_is_the_documented_one() -> None:
    """Names, order, nesting, nullability and descriptions, in the module and in a written file."""
    assert as_printed(structure.SCHEMA) == DOCUMENTED
    assert as_printed(schema_on_disk(structure.encode(SNAPSHOT))) == DOCUMENTED


def test_the_wide_schema_differs_in_widths_alone() -> None:
    """uint64 for shape, chunk_shape, extent and row, uint32 for ids, and nothing else."""
    wide = widened(DOCUMENTED)

    assert as_printed(structure.WIDE_SCHEMA) == wide
    assert wide.count("uint32") == 1
    assert wide.count("uint16") == 5  # flags, in their own lines and in those of their parents
    assert DOCUMENTED.replace("uint16", "") == wide.replace("uint32", "").replace(
        "uint64", ""
    ).replace("uint16", "")


def test_the_stored_schema_is_the_one_that_pyarrow_stores() -> None:
    """A reader on Arrow finds the types that were written, for narrow and for wide files."""
    for schema in (structure.SCHEMA, structure.WIDE_SCHEMA):
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, schema, use_compliant_nested_type=False) as writer:
            writer.write_table(schema.empty_table())
        stored = pq.read_metadata(pa.BufferReader(sink.getvalue())).metadata[b"ARROW:schema"]
        assert envelope._stored_schema(schema) == stored.decode()


def test_list_items_have_their_documented_name_in_parquet() -> None:
    """Readers that do not know Arrow see ``item`` too, not ``element``."""
    columns = pq.read_metadata(io.BytesIO(structure.encode(SNAPSHOT))).schema
    names = [columns.column(i).path for i in range(len(columns))]

    assert "array_metadata.shape.list.item" in names
    assert "inventories.list.item.extent.list.item.list.item" in names


EXTENT = ((0, 10), (0, 10))
LARGE = 1 << 16
OVERFLOWING: dict[str, Any] = {
    "shape": lambda n: array_node(shape=(n, 10)),
    "chunk_shape": lambda n: array_node(chunk_shape=(10, n)),
    "extent": lambda n: array_node(entry={"extent": ((0, 10), (0, n)), "flags": 4}),
    "row": lambda n: array_node(entry={"row": n}),
    "node id": lambda n: array_node(node_id=n),
    "attrs row": lambda n: replace(
        array_node(), attributes=None, attributes_ref=AttributesRef(identifier=MANIFEST, row=n)
    ),
}


@pytest.mark.parametrize("place", OVERFLOWING)
def test_narrow_wherever_it_fits_wide_otherwise(place: str) -> None:
    """65,535 fits the documented widths, 65,536 does not, in each place by itself; both read."""
    for number, width in ((LARGE - 1, "narrow"), (LARGE, "wide"), (1 << 31, "wide")):
        node = OVERFLOWING[place](number)
        data = structure.encode(snapshot_of(ROOT, node))
        found = structure.decode(data, FACTS.id).get_node("/a")

        assert width_of(data) == width
        assert replace(found, inventories=node.inventories) == node
        assert list(found.inventories) == list(node.inventories)


def test_widths_follow_the_contents_from_snapshot_to_snapshot() -> None:
    """A narrow base with a wide node becomes wide, and narrow again when the node goes."""
    base = structure.decode(structure.encode(SNAPSHOT), FACTS.id)
    wide = structure.encode(
        snapshot_of(array_node(node_id=LARGE, path="/b", shape=(LARGE, 1)), base=base)
    )
    both = structure.decode(wide, FACTS.id)
    again = structure.with_changes(
        both, FACTS, removed=[LARGE], changed=(), manifest_sizes=both.manifest_sizes
    )

    assert width_of(wide) == "wide"
    assert [node.path for node in both.nodes()] == ["/", "/a", "/b"]
    assert both.get_node("/a").columns == SNAPSHOT.get_node("/a").columns
    assert width_of(structure.encode(again)) == "narrow"
    assert structure.encode(again) == structure.encode(SNAPSHOT)


def test_an_empty_snapshot_round_trips() -> None:
    """A repository begins with no nodes at all."""
    first = structure.empty_snapshot(FACTS)
    found = structure.decode(structure.encode(first), FACTS.id)

    assert width_of(structure.encode(first)) == "narrow"
    assert (found.facts, list(found.nodes()), dict(found.manifest_sizes)) == (FACTS, [], {})


def test_rows_stand_in_the_order_of_paths() -> None:
    """Whatever order nodes are made in, rows are sorted by the bytes of their paths."""
    paths = ["/b", "/a/b", "/a", "/ä", "/a-", "/"]
    nodes = [Node(id=n, path=p, columns=None, attributes=None) for n, p in enumerate(paths, 1)]
    data = structure.encode(snapshot_of(*nodes))

    assert pq.read_table(io.BytesIO(data))["path"].to_pylist() == sorted(paths, key=str.encode)


def test_a_thousand_manifests_stay_small() -> None:
    """What grows with the number of manifests is packed: near 30 kB for a thousand."""
    from icechunk_arrow.core.ids import encode_id
    from icechunk_arrow.core.inventory import InventoryEntry

    held = [
        InventoryEntry(
            manifest=encode_id(
                n.to_bytes(12, "big") if n % 2 else (n << 64).to_bytes(12, "little")
            ),
            row=0,
            extent=((n * 10, n * 10 + 10), (0, 10)),
            flags=5,
            row_count=100,
            stored_bytes=n * 9_999_991 % (1 << 20),
        )
        for n in range(1000)
    ]
    node = replace(array_node(shape=(65_000, 100)), inventories=Inventory.of(held, 2))
    data = structure.encode(snapshot_of(ROOT, node))

    assert len(data) < 30_000
    assert len(json.loads(facts_text(data))["manifest_files"]["size_bytes"]) < 400


def test_numbers_of_manifests_go_with_the_rows() -> None:
    """Row counts and sizes are found again at the right manifest."""
    snapshot = structure.decode(structure.encode(SNAPSHOT), FACTS.id)

    assert snapshot.manifest_row_counts == {MANIFEST: 100}
    assert snapshot.manifest_sizes == {MANIFEST: 1234}
    assert snapshot.tenants([MANIFEST]) == {MANIFEST: {2: 100}}


def facts_text(data: bytes) -> str:
    """The snapshot's facts, as they stand in the footer."""
    text: str = pq.read_metadata(io.BytesIO(data)).metadata[b"icechunk.snapshot"].decode()
    return text


def sealed_by_another(table: pa.Table, facts: str | None = None, **more: str) -> bytes:
    """A file with a good seal around contents that our writer would not write."""
    return envelope.write(
        table,
        kind=FileKind.STRUCTURE,
        identifier=FACTS.id,
        facts={
            "icechunk.snapshot": facts or facts_text(structure.encode(SNAPSHOT)),
            "icechunk.width": "narrow",
            **more,
        },
        boundaries=[table.num_rows],
        settings={},
    )


def rows() -> pa.Table:
    """The example's rows, as they stand on disk."""
    return pq.read_table(io.BytesIO(structure.encode(SNAPSHOT)))


def test_columns_that_nobody_knows_are_ignored() -> None:
    """A later writer may add columns; facts and footers may have more members too."""
    facts = {**json.loads(facts_text(structure.encode(SNAPSHOT))), "colour": "blue"}
    table = rows().append_column("colour", pa.array(["blue", "red"]))
    found = structure.decode(sealed_by_another(table, json.dumps(facts), colour="no"), FACTS.id)

    assert found.table.equals(SNAPSHOT.table)
    assert found.facts == FACTS


def test_flags_may_be_null() -> None:
    """The documented column is nullable: null means that nothing is known, so nothing is dense."""
    table = rows()
    values = table["inventories"].to_pylist()
    values[1][0]["flags"] = None
    column = pa.array(values, structure.SCHEMA.field("inventories").type)
    table = table.set_column(6, structure.SCHEMA.field("inventories"), column)
    found = structure.decode(sealed_by_another(table), FACTS.id).get_node("/a")

    assert [entry.flags for entry in found.inventories] == [0]


def _set(name: str, *values: Any) -> pa.Table:
    table = rows()
    field = structure.SCHEMA.field(name)
    return table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))


def _in_array(**changes: Any) -> pa.Table:
    metadata = rows()["array_metadata"].to_pylist()
    return _set("array_metadata", None, {**metadata[1], **changes})


def _entry(**changes: Any) -> pa.Table:
    entries = rows()["inventories"].to_pylist()[1]
    return _set("inventories", None, [{**entries[0], **changes}])


UNSOUND = {
    "order": lambda: rows().take(pa.array([1, 0])),
    "path twice": lambda: _set("path", "/a", "/a"),
    "id twice": lambda: _set("id", 2, 2),
    "group with metadata": lambda: _set("type", "group", "group"),
    "array without metadata": lambda: _set("type", "array", "array"),
    "no grid": lambda: _in_array(chunk_grid=None),
    "no key encoding": lambda: _in_array(chunk_key_encoding=None),
    "column missing": lambda: rows().drop_columns(["inline_attrs"]),
    "column of another type": lambda: rows().set_column(2, "path", pa.array([1, 2])),
    "empty extent": lambda: _entry(extent=[[0, 10], [5, 5]]),
    "more rows than room": lambda: _entry(extent=[[0, 10], [0, 9]], flags=4),
    "dense with holes": lambda: _entry(extent=[[0, 10], [0, 11]], flags=5),
    "no entry": lambda: _set("inventories", None, [None]),
    "rank of an extent": lambda: _entry(extent=[[0, 1]]),
    "manifest elsewhere": lambda: _entry(inventory_file="../../etc/passwd.parquet"),
    "manifest without ending": lambda: _entry(inventory_file=MANIFEST),
    "more manifests than facts": lambda: _set("inventories", None, []),
    "inventories of a group": lambda: _set(
        "inventories", rows()["inventories"].to_pylist()[1], None
    ),
}


@pytest.mark.parametrize("fault", UNSOUND)
def test_unsound_rows_are_refused(fault: str) -> None:
    """Sealed or not, rows that contradict themselves are an error that names the file."""
    with pytest.raises(CorruptFileError, match=f"s/{FACTS.id}.parquet"):
        list(structure.decode(sealed_by_another(UNSOUND[fault]()), FACTS.id).nodes())


def facts_with(**changes: Any) -> str:
    """The example's facts with changed members; None removes one."""
    facts = {**json.loads(facts_text(structure.encode(SNAPSHOT))), **changes}
    return json.dumps({name: value for name, value in facts.items() if value is not None})


PACKED = json.loads(facts_text(structure.encode(SNAPSHOT)))["manifest_files"]
UNSOUND_FACTS = {
    "no JSON": "{",
    "deep": "[" * 100_000,
    "a list": "[]",
    "no metadata": facts_with(metadata=None),
    "another snapshot": facts_with(
        metadata={"id": MANIFEST, "written_at": "2026-11-18T12:00:00+00:00", "message": ""}
    ),
    "no zone": facts_with(started_at="2026-11-18T12:00:00"),
    "history": facts_with(short_term_history=[{"id": "x"}]),
    "properties": facts_with(properties=[1]),
    "negative": facts_with(total_parents=-1),
    "true is no number": facts_with(next_node_id=True),
    "no numbers": facts_with(manifest_files={}),
    "count": facts_with(manifest_files={**PACKED, "count": 10**12}),
    "entries": facts_with(manifest_files={**PACKED, "entries": 10**12}),
    "no base 64": facts_with(manifest_files={**PACKED, "row_counts": "a"}),
    "no zstd": facts_with(manifest_files={**PACKED, "row_counts": "AAAA"}),
    "another length": facts_with(
        manifest_files={**PACKED, "size_bytes": "KLUv/SAAAQAA"},
    ),
}


@pytest.mark.parametrize("fault", UNSOUND_FACTS)
def test_unsound_facts_are_refused(fault: str) -> None:
    """Facts that cannot be, in a sealed footer, are an error that names the file."""
    data = sealed_by_another(rows(), UNSOUND_FACTS[fault])

    with pytest.raises(CorruptFileError, match=f"s/{FACTS.id}.parquet"):
        structure.decode(data, FACTS.id)


@pytest.mark.parametrize("patch", ['{"2":{}}', '{"x":{"set":{},"unset":[]}}', '{"2":3}', "["])
def test_unsound_extensions_are_refused(patch: str) -> None:
    """What is no patch of a document is not taken for one."""
    data = sealed_by_another(rows(), **{"icechunk.extensions": patch})

    with pytest.raises(CorruptFileError, match=f"s/{FACTS.id}.parquet"):
        structure.decode(data, FACTS.id)
