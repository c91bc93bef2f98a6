"""Structure files (``s/<id>.parquet``): one snapshot, one row per node.

Specification: schemas/README.md#structure-file

Owns the schema in both widths, the writer's settings, and the snapshot's facts in the footer. Rows are in the
order of their paths. In memory the rows are always of the wide schema, with the row counts of the inventories
beside them; whatever a commit does not touch goes from file to file as columns.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.chunks import DENSE
from icechunk_arrow.core.columns import (
    bitmap,
    conform,
    from_numpy,
    from_values,
    indices,
    one_array,
    to_numpy,
    validity,
)
from icechunk_arrow.core.documents import ArrayColumns
from icechunk_arrow.core.json_values import decode_json
from icechunk_arrow.core.snapshot import (
    NO_INVENTORIES,
    AttributesRef,
    Inventories,
    Node,
    Snapshot,
    SnapshotFacts,
)
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats import envelope
from icechunk_arrow.formats import facts as facts_format
from icechunk_arrow.formats.layout import FileKind, file_id, file_name, key_of
from icechunk_arrow.formats.live_manifests import (
    ROW_COUNTS,
    flat_entries,
    manifests_of,
    owner_rows,
    with_entries,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from icechunk_arrow.formats.envelope import Sealed

__all__ = [
    "KIND",
    "SCHEMA",
    "WIDE_SCHEMA",
    "decode",
    "decode_facts",
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
_MEMORY_SCHEMA = WIDE_SCHEMA.append(pa.field(ROW_COUNTS, pa.list_(pa.uint64())))


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
        "inventories": _inventory_column(nodes),
        ROW_COUNTS: _row_count_column(nodes),
    }  # fmt: skip
    return pa.Table.from_arrays([arrays[f.name] for f in _MEMORY_SCHEMA], schema=_MEMORY_SCHEMA)


def _metadata_column(nodes: Sequence[Node]) -> pa.Array:
    """Put arrays' metadata into a column; arrays often come in crowds of the same kind."""
    kinds: dict[ArrayColumns | None, int] = {}
    rows = [kinds.setdefault(node.columns, len(kinds)) for node in nodes]
    values = [None if each is None else _array_metadata(each) for each in kinds]
    column = from_values(values, _MEMORY_SCHEMA.field("array_metadata").type)
    return column if len(kinds) == len(nodes) else column.take(indices(np.array(rows, np.int64)))


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype, copy=False)


def _lists(nodes: Sequence[Node], child: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Split a column of all nodes' inventory entries into one list per array; groups have null."""
    offsets = np.zeros(len(nodes) + 1, np.int32)
    np.cumsum([len(node.inventories) for node in nodes], out=offsets[1:])
    valid = np.array([node.is_array for node in nodes], np.bool_)
    return pa.Array.from_buffers(
        arrow_type, len(nodes), [bitmap(valid), pa.py_buffer(offsets)], children=[child]
    )


def _row_count_column(nodes: Sequence[Node]) -> pa.Array:
    counts = _joined([node.inventories.row_counts for node in nodes], np.uint64)
    return _lists(nodes, from_numpy(counts, pa.uint64()), pa.list_(pa.uint64()))


def _inventory_column(nodes: Sequence[Node]) -> pa.Array:
    kinds = [node.inventories for node in nodes]
    count = sum(len(inventories) for inventories in kinds)
    struct_type = _MEMORY_SCHEMA.field("inventories").type.value_type
    extents = [np.stack([i.starts, i.stops], axis=2) for i in kinds if len(i)]
    lengths = _joined([np.full(len(i), i.starts.shape[1]) for i in kinds], np.int64)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    numbers = from_numpy(_joined([e.reshape(-1) for e in extents], np.uint64), pa.uint64())
    pairs = pa.Array.from_buffers(
        pa.list_(pa.uint64(), 2), int(offsets[-1]), [None], children=[numbers]
    )
    extent_type = pa.list_(pa.list_(pa.uint64(), 2))
    children = [
        from_values([file_name(m) for i in kinds for m in i.manifests], pa.string()),
        from_numpy(_joined([i.rows for i in kinds], np.uint64), pa.uint64()),
        pa.Array.from_buffers(extent_type, count, [None, pa.py_buffer(offsets)], children=[pairs]),
        from_numpy(_joined([i.flags for i in kinds], np.uint16), pa.uint16()),
    ]
    entries = pa.Array.from_buffers(struct_type, count, [None], children=children)
    return _lists(nodes, entries, pa.list_(struct_type))


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
    removed = set(removed)
    if base is None:
        table = _rows_of(changed)
        table = table.take(pc.sort_indices(table["path"]))
    elif changed or removed:
        table = _with_nodes(base.table, removed, changed)
    else:
        table = base.table
    table = with_entries(table, replaced, added)
    extensions = dict(base.extensions) if base is not None else {}
    for node in changed:
        extensions.pop(node.id, None)
        if node.extension is not None:
            extensions[node.id] = node.extension
    live = set(to_numpy(table["id"]).tolist())
    return _snapshot(
        table,
        facts,
        {i: e for i, e in extensions.items() if i in live},
        {name: manifest_sizes[name] for name in manifests_of(table)},
    )


def _with_nodes(table: pa.Table, removed: Iterable[int], changed: Sequence[Node]) -> pa.Table:
    gone = np.fromiter({*removed, *(node.id for node in changed)}, np.uint32)
    kept = table.take(indices(np.flatnonzero(~np.isin(to_numpy(table["id"]), gone))))
    both = pa.concat_tables([kept, _rows_of(changed)]).combine_chunks()
    return both.take(pc.sort_indices(both["path"])).combine_chunks()


def empty_snapshot(facts: SnapshotFacts) -> Snapshot:
    """Make a snapshot without nodes: how a repository begins."""
    return with_changes(None, facts, removed=(), changed=(), manifest_sizes={})


def _snapshot(
    table: pa.Table,
    facts: SnapshotFacts,
    extensions: Mapping[int, dict[str, Any]],
    manifest_sizes: Mapping[str, int],
) -> Snapshot:
    return Snapshot(
        facts=facts,
        table=table,
        extensions=extensions,
        manifest_sizes=manifest_sizes,
        rows_by_path={path: row for row, path in enumerate(table["path"].to_pylist())},
        rows_by_id={i: row for row, i in enumerate(to_numpy(table["id"]).tolist())},
        decode_node=_decode_node,
    )


def _facts_json(snapshot: Snapshot) -> str:
    references = one_array(snapshot.table["attrs_reference"]).drop_null()
    return facts_format.encode(
        snapshot.facts,
        attribute_files=references.field("attrs_file").unique().to_pylist(),
        manifest_sizes=np.array(list(snapshot.manifest_sizes.values()), np.uint64),
        row_counts=to_numpy(one_array(snapshot.table[ROW_COUNTS]).flatten()),
    )


def encode(snapshot: Snapshot) -> bytes:
    """Encode a snapshot as a structure file, in the documented widths if every value fits them."""
    table = snapshot.table.drop_columns([ROW_COUNTS])
    try:
        table, width = _conform(table, SCHEMA), "narrow"
    except pa.ArrowInvalid:
        width = "wide"
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


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [conform(one_array(table[field.name]), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def decode_facts(sealed: Sealed) -> SnapshotFacts:
    """Read the snapshot's facts from a structure file's footer alone."""
    facts = facts_format.decode(sealed.fact(_FACTS), sealed.key)
    if sealed.key != key_of(KIND, facts.id):
        raise _unsound(sealed.key, f"it holds the facts of snapshot {facts.id}")
    return facts


def _unsound(key: str, fact: object) -> CorruptFileError:
    return CorruptFileError(f"{key} is no sound structure file: {fact}", key=key)


def decode(data: bytes, identifier: str) -> Snapshot:
    """Decode a whole structure file."""
    sealed, table = envelope.read_whole(data, KIND, identifier)
    facts = decode_facts(sealed)
    try:
        table = _conform(table, WIDE_SCHEMA)
        manifests = manifests_of(table)
        extensions = _decode_extensions(sealed)
    except (KeyError, ValueError, TypeError, pa.ArrowNotImplementedError) as error:
        raise _unsound(sealed.key, error) from error
    sizes, counts = facts_format.decode_numbers(
        sealed.fact(_FACTS),
        sealed.key,
        manifest_count=len(manifests),
        entry_count=len(flat_entries(table)),
    )
    buffers = one_array(table["inventories"]).buffers()[:2]
    children = [from_numpy(counts, pa.uint64())]
    lists = pa.Array.from_buffers(pa.list_(pa.uint64()), table.num_rows, buffers, children=children)
    table = table.append_column(_MEMORY_SCHEMA.field(ROW_COUNTS), lists)
    sizes_by_name = dict(zip(manifests, sizes.tolist(), strict=True))
    snapshot = _snapshot(table, facts, extensions, sizes_by_name)
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
    lists = one_array(table["inventories"])
    owners = owner_rows(table)
    ranks = to_numpy(pc.list_value_length(metadata.field("shape")))
    lengths = to_numpy(pc.list_value_length(lists.flatten().field("extent")))
    if len(owners) and (~arrays[owners] | (ranks[owners] != lengths)).any():
        raise _unsound(key, "an inventory's extent has another rank than its array")


def _decode_node(snapshot: Snapshot, row: int) -> Node:
    try:
        return _node_of(snapshot, row)
    except ValueError as error:
        raise _unsound(key_of(KIND, snapshot.id), error) from error


def _node_of(snapshot: Snapshot, row: int) -> Node:
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
        inventories=NO_INVENTORIES if found is None else _inventories(line, len(found["shape"])),
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


def _inventories(line: pa.Table, ndim: int) -> Inventories:
    entries = line["inventories"].chunk(0).flatten()
    if not len(entries):
        return NO_INVENTORIES
    pairs = entries.field("extent").flatten().flatten()
    flags = entries.field("flags")
    box = to_numpy(pairs).reshape(len(entries), ndim, 2)
    found = Inventories(
        manifests=tuple(file_id(name) for name in entries.field("inventory_file").to_pylist()),
        rows=to_numpy(entries.field("row")),
        starts=box[:, :, 0],
        stops=box[:, :, 1],
        flags=np.where(validity(flags), to_numpy(flags), np.uint16(0)),
        row_counts=to_numpy(line[ROW_COUNTS].chunk(0).flatten()),
    )
    _check_extents(found)
    if ndim and (found.starts[1:, 0] < found.starts[:-1, 0]).any():
        return found.in_order()  # look-ups rely on it
    return found


def _check_extents(found: Inventories) -> None:
    """Check what look-ups by arithmetic rely on: as many rows as there is room for, or exactly so many."""
    if (found.starts >= found.stops).any():
        raise ValueError("an inventory's extent is empty")
    room = (found.stops - found.starts).astype(np.float64).prod(axis=1)
    dense = (found.flags & DENSE) != 0
    if (found.row_counts > room).any() or (found.row_counts != room)[dense].any():
        raise ValueError("an inventory's extent does not go with its number of rows")
