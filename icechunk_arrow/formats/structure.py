"""Structure files (``s/<id>.parquet``): one snapshot, one row per node.

Specification: schemas/README.md#structure-file

Owns the schema in both widths, the writer's settings, and the snapshot's facts in the footer. Rows are in the
order of their paths. In memory the rows are always of the wide schema, and the inventories beside them; whatever
a commit does not touch goes from file to file as columns.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import (
    conform,
    from_values,
    indices,
    one_array,
    to_numpy,
    validity,
)
from icechunk_arrow.core.documents import ArrayColumns
from icechunk_arrow.core.inventories import NO_ENTRIES, Entries
from icechunk_arrow.core.json_values import decode_json
from icechunk_arrow.core.snapshot import AttributesRef, Node, Snapshot, SnapshotFacts
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats import envelope
from icechunk_arrow.formats import facts as facts_format
from icechunk_arrow.formats.layout import FileKind, file_id, file_name, key_of
from icechunk_arrow.formats.live_manifests import (
    check_extents,
    entries_column,
    read_entries,
    with_entries,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from icechunk_arrow.formats.envelope import Sealed
    from icechunk_arrow.formats.facts import PackedNumbers

__all__ = [
    "KIND",
    "SCHEMA",
    "WIDE_SCHEMA",
    "decode",
    "decode_facts",
    "decode_numbers",
    "empty_snapshot",
    "encode",
    "with_changes",
]

KIND = FileKind.STRUCTURE
_FACTS = "icechunk.snapshot"
_EXTENSIONS = "icechunk.extensions"
_WIDTH = "icechunk.width"
_ARRAY = from_values(["array"], pa.string())[0]


def _make_schema(number: pa.DataType, identifier: pa.DataType) -> pa.Schema:
    numbers = pa.list_(number)
    grid = pa.struct(
        [
            pa.field("name", pa.string(), nullable=False),
            pa.field(
                "configuration",
                pa.struct([pa.field("chunk_shape", numbers, nullable=False)]),
                nullable=False,
            ),
        ]
    )
    key_encoding = pa.struct(
        [
            pa.field("name", pa.string(), nullable=False),
            pa.field(
                "configuration",
                pa.struct([pa.field("separator", pa.string(), nullable=False)]),
                nullable=False,
            ),
        ]
    )
    codec = pa.struct(
        [pa.field("name", pa.string(), nullable=False), pa.field("configuration", pa.binary())]
    )
    array = pa.struct(
        [
            pa.field("shape", numbers, nullable=False),
            pa.field("data_type", pa.string(), nullable=False),
            pa.field("fill_value", pa.binary()),
            pa.field("dimension_names", pa.list_(pa.string())),
            pa.field("chunk_grid", grid),
            pa.field("chunk_key_encoding", key_encoding),
            pa.field("codecs", pa.list_(codec)),
        ]
    )
    attributes = pa.struct(
        [
            pa.field("attrs_file", pa.string(), nullable=False),
            pa.field("row", number, nullable=False),
            pa.field("flags", pa.uint16()),
        ]
    )
    inventory = pa.struct(
        [
            pa.field("inventory_file", pa.string(), nullable=False),
            pa.field("row", number, nullable=False),
            pa.field("extent", pa.list_(pa.list_(number, 2)), nullable=False),
            pa.field("flags", pa.uint16()),
        ]
    )

    def column(name: str, arrow_type: pa.DataType, meaning: str, *, null: bool = True) -> pa.Field:
        metadata = {"description": meaning} if meaning else None
        return pa.field(name, arrow_type, nullable=null, metadata=metadata)

    return pa.schema(
        [
            column("id", identifier, "unique identifier for the node", null=False),
            column("type", pa.string(), "array or group", null=False),
            column("path", pa.string(), "path to the node within the store", null=False),
            column("array_metadata", array, "All the Zarr array metadata"),
            column("inline_attrs", pa.binary(), "user-defined attributes, stored inline with this entry"),
            column(
                "attrs_reference",
                attributes,
                "user-defined attributes, stored in a separate attributes file",
            ),
            column("inventories", pa.list_(inventory), ""),
        ]
    )  # fmt: skip


SCHEMA = _make_schema(pa.uint16(), pa.uint16())
WIDE_SCHEMA = _make_schema(pa.uint64(), pa.uint32())
_INVENTORIES = SCHEMA.get_field_index("inventories")
_NARROW_NODES = SCHEMA.remove(_INVENTORIES)
_MEMORY_SCHEMA = WIDE_SCHEMA.remove(_INVENTORIES)


def _array_metadata(columns: ArrayColumns) -> dict[str, Any]:
    return {
        "shape": columns.shape,
        "data_type": columns.data_type,
        "fill_value": columns.fill_value,
        "dimension_names": columns.dimension_names,
        "chunk_grid": {
            "name": columns.grid_name,
            "configuration": {"chunk_shape": columns.chunk_shape},
        },
        "chunk_key_encoding": {
            "name": columns.key_encoding_name,
            "configuration": {"separator": columns.separator},
        },
        "codecs": [{"name": name, "configuration": value} for name, value in columns.codecs],
    }


def _rows_of(nodes: Sequence[Node]) -> pa.Table:
    """Put nodes into rows of the memory schema."""
    arrays = {
        "id": from_values([n.id for n in nodes], pa.uint32()),
        "type": from_values([n.type for n in nodes], pa.string()),
        "path": from_values([n.path for n in nodes], pa.string()),
        "array_metadata": _metadata_column(nodes),
        "inline_attrs": from_values([n.attributes for n in nodes], pa.binary()),
        "attrs_reference": from_values(
            [
                None if ref is None
                else {"attrs_file": file_name(ref.identifier), "row": ref.row, "flags": None}
                for ref in (n.attributes_ref for n in nodes)
            ],
            _MEMORY_SCHEMA.field("attrs_reference").type,
        ),
    }  # fmt: skip
    return pa.Table.from_arrays([arrays[f.name] for f in _MEMORY_SCHEMA], schema=_MEMORY_SCHEMA)


def _metadata_column(nodes: Sequence[Node]) -> pa.Array:
    """Put arrays' metadata into a column; arrays often come in crowds of the same kind."""
    kinds: dict[ArrayColumns | None, int] = {}
    rows = [kinds.setdefault(node.columns, len(kinds)) for node in nodes]
    values = [None if each is None else _array_metadata(each) for each in kinds]
    column = from_values(values, _MEMORY_SCHEMA.field("array_metadata").type)
    return column if len(kinds) == len(nodes) else column.take(indices(np.array(rows, np.int64)))


def with_changes(
    base: Snapshot | None,
    facts: SnapshotFacts,
    *,
    removed: Iterable[int],
    changed: Sequence[Node],
    manifest_sizes: Mapping[str, int],
    replaced: Collection[str] = (),
    added: pa.Table | None = None,
) -> Snapshot:
    """Make the snapshot after ``base``: without removed node ids, with changed or new nodes.

    The entries of ``replaced`` manifests go, and ``added`` ones come. ``manifest_sizes`` names at least every
    manifest that the new snapshot refers to.
    """
    nodes_change = base is None or bool(changed) or bool(removed)
    table = _rows_of(()) if base is None else base.table
    entries = NO_ENTRIES if base is None else base.entries
    if nodes_change:
        table, entries = _with_nodes(table, entries, removed, changed)
    entries, touched = with_entries(entries, table["id"], replaced, added)
    sizes = {name: manifest_sizes[name] for name in entries.manifests}
    if base is not None and not nodes_change:
        return replace(
            base,
            facts=facts,
            entries=entries,
            manifest_sizes=sizes,
            known={**base.known, **base.decoded},
            decoded={row: node for row, node in base.decoded.items() if row not in touched},
        )
    extensions = dict(base.extensions) if base is not None else {}
    for node in changed:
        extensions.pop(node.id, None)
        if node.extension is not None:
            extensions[node.id] = node.extension
    live = set(to_numpy(table["id"]).tolist())
    extensions = {node_id: patch for node_id, patch in extensions.items() if node_id in live}
    return _snapshot(table, entries, facts, extensions, sizes)


def _with_nodes(
    table: pa.Table, entries: Entries, removed: Iterable[int], changed: Sequence[Node]
) -> tuple[pa.Table, Entries]:
    gone = np.fromiter({*removed, *(node.id for node in changed)}, np.uint32)
    kept = np.flatnonzero(~np.isin(to_numpy(table["id"]), gone))
    both = pa.concat_tables([table.take(indices(kept)), _rows_of(changed)]).combine_chunks()
    order = pc.sort_indices(both["path"])
    places = to_numpy(order).astype(np.int64)
    rows = np.empty(len(places), np.int64)
    rows[places] = np.arange(len(places))
    moved = np.full(table.num_rows, -1)
    moved[kept] = rows[: len(kept)]
    come = zip(rows[len(kept) :].tolist(), (node.inventories for node in changed), strict=True)
    return both.take(order).combine_chunks(), entries.moved(moved).united(Entries.of(come))


def empty_snapshot(facts: SnapshotFacts) -> Snapshot:
    """Make a snapshot without nodes: how a repository begins."""
    return with_changes(None, facts, removed=(), changed=(), manifest_sizes={})


def _snapshot(
    table: pa.Table,
    entries: Entries,
    facts: SnapshotFacts,
    extensions: Mapping[int, dict[str, Any]],
    manifest_sizes: Mapping[str, int],
) -> Snapshot:
    return Snapshot(
        facts=facts,
        table=table,
        entries=entries,
        extensions=extensions,
        manifest_sizes=manifest_sizes,
        rows_by_path={path: row for row, path in enumerate(table["path"].to_pylist())},
        rows_by_id={i: row for row, i in enumerate(to_numpy(table["id"]).tolist())},
        decode_node=_decode_node,
    )


def _facts_json(snapshot: Snapshot) -> str:
    references = one_array(snapshot.table["attrs_reference"])
    files: list[str] = []
    if references.null_count < len(references):
        files = references.drop_null().field("attrs_file").unique().to_pylist()
    return facts_format.encode(
        snapshot.facts,
        attribute_files=files,
        manifest_sizes=np.fromiter(snapshot.manifest_sizes.values(), np.uint64),
        row_counts=snapshot.entries.row_counts,
        stored_bytes=snapshot.entries.stored_bytes,
    )


def encode(snapshot: Snapshot) -> bytes:
    """Encode a snapshot as a structure file, in the documented widths if every value fits them."""
    table, width = _file_table(snapshot)
    facts = {_FACTS: _facts_json(snapshot), _WIDTH: width}
    if snapshot.extensions:
        facts[_EXTENSIONS] = json.dumps(
            {str(node_id): patch for node_id, patch in sorted(snapshot.extensions.items())},
            separators=(",", ":"),
        )
    return envelope.write(
        table,
        kind=KIND,
        identifier=snapshot.id,
        facts=facts,
        boundaries=[table.num_rows] if table.num_rows else [],
        settings={"use_dictionary": True, "write_statistics": False, "store_schema": True},
    )


def _file_table(snapshot: Snapshot) -> tuple[pa.Table, str]:
    """Make the table that is written, and tell its width."""
    arrays = validity(snapshot.table["array_metadata"])
    nodes = _narrow_columns(snapshot)
    lists = entries_column(snapshot.entries, arrays, SCHEMA.field(_INVENTORIES).type)
    if nodes and lists is not None:
        return pa.Table.from_arrays([*nodes, lists], schema=SCHEMA), "narrow"
    lists = entries_column(snapshot.entries, arrays, WIDE_SCHEMA.field(_INVENTORIES).type)
    return pa.Table.from_arrays([*snapshot.table.columns, lists], schema=WIDE_SCHEMA), "wide"


def _narrow_columns(snapshot: Snapshot) -> list[pa.Array]:
    """Bring the nodes into the narrow form; nothing where it has no room for them."""
    if not snapshot.narrow_columns:
        try:
            snapshot.narrow_columns.extend(_conform(snapshot.table, _NARROW_NODES))
        except pa.ArrowInvalid:
            return []
    return snapshot.narrow_columns


def _conform(table: pa.Table, schema: pa.Schema) -> list[pa.Array]:
    return [conform(one_array(table[field.name]), field.type) for field in schema]


def decode_facts(sealed: Sealed) -> SnapshotFacts:
    """Read the snapshot's facts from a structure file's footer alone."""
    facts = facts_format.decode(sealed.fact(_FACTS), sealed.key)
    if sealed.key != key_of(KIND, facts.id):
        raise _unsound(sealed.key, f"it holds the facts of snapshot {facts.id}")
    return facts


def decode_numbers(sealed: Sealed) -> PackedNumbers:
    """Read the packed numbers from a structure file's footer alone."""
    return facts_format.decode_numbers(sealed.fact(_FACTS), sealed.key)


def _unsound(key: str, fact: object) -> CorruptFileError:
    return CorruptFileError(f"{key} is no sound structure file: {fact}", key=key)


def decode(data: bytes, identifier: str) -> Snapshot:
    """Decode a whole structure file."""
    sealed, table = envelope.read_whole(data, KIND, identifier)
    facts = decode_facts(sealed)
    try:
        columns = _conform(table, WIDE_SCHEMA)
        entries = read_entries(columns[_INVENTORIES])
        extensions = _decode_extensions(sealed)
    except (KeyError, ValueError, TypeError, pa.ArrowNotImplementedError) as error:
        raise _unsound(sealed.key, error) from error
    numbers = facts_format.decode_numbers(
        sealed.fact(_FACTS),
        sealed.key,
        manifest_count=len(entries.manifests),
        entry_count=len(entries),
    )
    snapshot = _snapshot(
        pa.Table.from_arrays(columns[:_INVENTORIES], schema=_MEMORY_SCHEMA),
        replace(entries, row_counts=numbers.row_counts, stored_bytes=numbers.stored_bytes),
        facts,
        extensions,
        dict(zip(entries.manifests, numbers.size_bytes.tolist(), strict=True)),
    )
    _check_rows(snapshot, sealed.key)
    return snapshot


def _decode_extensions(sealed: Sealed) -> dict[int, dict[str, Any]]:
    found = decode_json(sealed.facts.get(_EXTENSIONS, "{}").encode())
    extensions = {int(node_id): patch for node_id, patch in found.items()}
    for patch in extensions.values():
        if not isinstance(patch["set"], dict) or not isinstance(patch["unset"], list):
            raise TypeError(f"{patch!r} is not a patch of a document")
    return extensions


def _check_rows(snapshot: Snapshot, key: str) -> None:
    """Check what every reader relies on: order, unique names, and extents of the arrays' rank."""
    table = snapshot.table
    paths = one_array(table["path"])
    rows = table.num_rows
    if rows > 1 and not to_numpy(pc.less(paths.slice(0, rows - 1), paths.slice(1))).all():
        raise _unsound(key, "its paths are not in order, or one comes twice")
    if len(snapshot.rows_by_id) != rows:
        raise _unsound(key, "a node id comes twice")
    metadata = one_array(table["array_metadata"])
    arrays = validity(metadata)
    if (to_numpy(pc.equal(table["type"], _ARRAY)) != arrays).any():
        raise _unsound(key, "a node's type does not go with its metadata")
    for name in ("chunk_grid", "chunk_key_encoding"):
        if (arrays & ~validity(metadata.field(name))).any():
            raise _unsound(key, f"an array has no {name}")
    ranks = to_numpy(pc.list_value_length(metadata.field("shape")))
    owners = snapshot.entries.owners
    if (~arrays[owners] | (ranks[owners] != snapshot.entries.ranks)).any():
        raise _unsound(key, "an inventory's extent has another rank than its array")
    try:
        check_extents(snapshot.entries)
    except ValueError as error:
        raise _unsound(key, error) from error


def _decode_node(snapshot: Snapshot, row: int) -> Node:
    try:
        return _node_of(snapshot, row)
    except ValueError as error:
        raise _unsound(key_of(KIND, snapshot.id), error) from error


def _node_of(snapshot: Snapshot, row: int) -> Node:
    inventories = snapshot.entries.of_row(row)
    if row in snapshot.known:
        return replace(snapshot.known[row], inventories=inventories)
    line = snapshot.table.slice(row, 1)
    node_id = line["id"][0].as_py()
    found = line["array_metadata"][0].as_py()
    reference = line["attrs_reference"][0].as_py()
    return Node(
        id=node_id,
        path=line["path"][0].as_py(),
        columns=None if found is None else _array_columns(found),
        attributes=line["inline_attrs"][0].as_py(),
        attributes_ref=None
        if reference is None
        else AttributesRef(identifier=file_id(reference["attrs_file"]), row=reference["row"]),
        extension=snapshot.extensions.get(node_id),
        inventories=inventories,
    )


def _array_columns(found: Mapping[str, Any]) -> ArrayColumns:
    names = found["dimension_names"]
    return ArrayColumns(
        shape=tuple(found["shape"]),
        data_type=found["data_type"],
        fill_value=found["fill_value"],
        dimension_names=None if names is None else tuple(names),
        grid_name=found["chunk_grid"]["name"],
        chunk_shape=tuple(found["chunk_grid"]["configuration"]["chunk_shape"]),
        key_encoding_name=found["chunk_key_encoding"]["name"],
        separator=found["chunk_key_encoding"]["configuration"]["separator"],
        codecs=tuple((c["name"], c["configuration"]) for c in found["codecs"] or ()),
    )
