"""Names, columns and types of the tables, and of what queries join: the same in Arrow, DuckDB and Spark.

Counts, offsets and ids are ``int64`` throughout, whatever width they have in the files: of the three engines
one has no unsigned types. Times are microseconds in UTC.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from icechunk_arrow.core.manifest_columns import IN_TABLES

__all__ = [
    "CHANGES",
    "CHUNK_ROWS",
    "CHUNK_TABLES",
    "EXTENT",
    "GRID_RUNS",
    "INVENTORY",
    "MANIFEST_ROWS",
    "METADATA_TABLES",
    "NODE_CHANGES",
    "PATHS",
    "REPOSITORY",
    "TABLES",
    "with_repository",
]

_TEXT = pa.string()
_NUMBER = pa.int64()
_NUMBERS = pa.list_(pa.int64())
_TEXTS = pa.list_(pa.string())
_TIME = pa.timestamp("us", "UTC")
EXTENT = pa.list_(pa.struct([pa.field("start", _NUMBER), pa.field("stop", _NUMBER)]))
"""A half-open range of chunk indices for each dimension."""
_HELD = pa.list_(
    pa.struct(
        [
            pa.field("path", _TEXT),
            pa.field("node_id", _NUMBER),
            pa.field("row", _NUMBER),
            pa.field("row_count", _NUMBER),
            pa.field("extent", EXTENT),
            pa.field("dense", pa.bool_()),
            pa.field("has_inline", pa.bool_()),
            pa.field("has_native", pa.bool_()),
            pa.field("has_virtual", pa.bool_()),
        ]
    )
)
_SNAPSHOT = ("snapshot", _TEXT, "the snapshot that the row is about")


def _schema(*columns: tuple[str, pa.DataType, str]) -> pa.Schema:
    return pa.schema(
        [pa.field(name, kind, metadata={"description": text}) for name, kind, text in columns]
    )


_NODES = _schema(
    ("path", _TEXT, "the node's path, which begins with /"),
    ("name", _TEXT, "its last part; empty for the root"),
    ("parent", _TEXT, "the path above it; null for the root"),
    ("type", _TEXT, "array or group"),
    ("node_id", _NUMBER, "the node's id, which stays when its path changes"),
    ("shape", _NUMBERS, "length of each dimension; null for a group, as what follows"),
    ("chunk_shape", _NUMBERS, "shape of a chunk; of unequal ones the longest edges"),
    ("grid", _TEXT, "regular or rectilinear"),
    ("data_type", _TEXT, "name of the data type, or the JSON object where it is one"),
    ("codecs", _TEXT, "JSON"),
    ("fill_value", _TEXT, "JSON"),
    ("dimension_names", pa.list_(_TEXT), "null where there are none"),
    ("attributes", _TEXT, "JSON; null where the document has none"),
    ("grid_chunk_count", _NUMBER, "chunks of the grid, present or not; null beyond 2**63 - 1"),
    ("logical_bytes", _NUMBER, "bytes of all elements; null where elements have no fixed size"),
    _SNAPSHOT,
)
_OF_MANIFESTS = [(each.name, each.in_tables, each.in_words) for each in IN_TABLES]
_CHUNKS = _schema(
    ("path", _TEXT, "the array's path"),
    ("node_id", _NUMBER, "the array's id"),
    ("index", _NUMBERS, "place of the chunk in the grid, along each dimension"),
    _OF_MANIFESTS[0],
    ("kind", _TEXT, "inline, native or virtual"),
    ("location", _TEXT, "URI of the file that the bytes are in; null for an inline chunk"),
    *_OF_MANIFESTS[1:],
    ("manifest", _TEXT, "the manifest that says so"),
    _SNAPSHOT,
)
_ARRAYS = _schema(
    ("path", _TEXT, "the array's path"),
    ("node_id", _NUMBER, "the array's id"),
    ("grid_chunk_count", _NUMBER, "chunks of the grid; null beyond 2**63 - 1"),
    ("chunk_count", _NUMBER, "chunks that there are"),
    ("missing", _NUMBER, "chunks of the grid that there are not"),
    ("inline_chunks", _NUMBER, "of those that there are"),
    ("native_chunks", _NUMBER, "of those that there are"),
    ("virtual_chunks", _NUMBER, "of those that there are"),
    ("stored_bytes", _NUMBER, "bytes of all chunks as stored"),
    ("logical_bytes", _NUMBER, "bytes of all elements; null where they have no fixed size"),
    (
        "compression_ratio",
        pa.float64(),
        "bytes of the elements in the chunks that there are, by their share of the grid, over stored bytes",
    ),
    ("files", _NUMBER, "different files that the chunks are in"),
    ("manifests", _NUMBER, "manifests that have chunks of the array"),
    _SNAPSHOT,
)
_MANIFESTS = _schema(
    ("manifest", _TEXT, "id of the manifest"),
    ("size_bytes", _NUMBER, "size of its file"),
    ("row_count", _NUMBER, "chunks in it"),
    ("array_count", _NUMBER, "arrays in it"),
    ("arrays", _HELD, "what it has of each array, in the order of its rows"),
    ("manifest_set", _TEXT, "the set that its arrays belong to now; null where these differ"),
    ("fill", pa.float64(), "rows over the most rows of that set, or of the larger one"),
    _SNAPSHOT,
)
_FILES = _schema(
    ("location", _TEXT, "URI of a chunk file, or of somebody else's file"),
    ("kind", _TEXT, "native or virtual"),
    ("bytes_referenced", _NUMBER, "sum of the lengths of all chunks in it"),
    ("chunk_count", _NUMBER, "chunks in it"),
    ("array_count", _NUMBER, "arrays that these belong to"),
    ("first_byte", _NUMBER, "the least offset of a chunk"),
    ("last_byte", _NUMBER, "the last byte that a chunk takes"),
    _SNAPSHOT,
)
_SNAPSHOTS = _schema(
    ("snapshot", _TEXT, "id of a snapshot: the one in question, and all before it"),
    ("parent", _TEXT, "the snapshot before it; null for the first"),
    ("written_at", _TIME, "when it was committed"),
    ("message", _TEXT, "the commit's message"),
    ("properties", _TEXT, "what was stored with the commit, as JSON"),
    ("branch", _TEXT, "the branch that it was made for"),
    ("sequence", _NUMBER, "number of its entry there; null where the catalog has none"),
    ("chunk_count", _NUMBER, "chunks of all arrays"),
    ("stored_bytes", _NUMBER, "bytes that these take where they are stored"),
    ("manifest_count", _NUMBER, "live manifests"),
    ("manifest_bytes", _NUMBER, "bytes of their files"),
)
_REFS = _schema(
    ("type", _TEXT, "branch or tag"),
    ("name", _TEXT, "its name"),
    ("snapshot", _TEXT, "where it points"),
    ("sequence", _NUMBER, "number of a branch's newest entry; null where there is none"),
)
_OPERATIONS = _schema(
    ("snapshot", _TEXT, "the snapshot whose commit did it"),
    ("ordinal", _NUMBER, "place in the commit, from 1"),
    ("operation", _TEXT, "what was done, as schemas/README.md names it"),
    ("effect", _TEXT, "content (values differ), placement (the same bytes elsewhere) or note"),
    ("path", _TEXT, "the node's path after the commit; a deleted one's last"),
    ("from_path", _TEXT, "the path before a move"),
    ("node_id", _NUMBER, "the node's id"),
    ("node_type", _TEXT, "array or group"),
    ("index", _NUMBERS, "one chunk"),
    ("coord", pa.binary(), "the same as bytes"),
    ("manifest", _TEXT, "the manifest of chunks that were written at once"),
    ("extent", EXTENT, "within which these are, which was deleted, or to which an array shrank"),
    ("chunk_count", _NUMBER, "how many were written at once, or were there to be deleted"),
    ("keys", _TEXTS, "top-level members of a document or of attributes that changed"),
    ("shape_before", _NUMBERS, "an array's shape before it was resized"),
    ("shape_after", _NUMBERS, "its shape afterwards"),
)
CHANGES = _schema(
    ("path", _TEXT, "the node's path afterwards; a deleted one's last"),
    (
        "change",
        _TEXT,
        "created, deleted, moved, metadata, attributes, chunk_added, chunk_removed or chunk_replaced",
    ),
    ("node_id", _NUMBER, "the node's id"),
    ("node_type", _TEXT, "array or group"),
    ("from_path", _TEXT, "the path before a move"),
    ("index", _NUMBERS, "the chunk; null where the node itself changed, as what follows"),
    ("coord", pa.binary(), "the same as bytes"),
    ("before_kind", _TEXT, "inline, native or virtual; null where there was no chunk"),
    ("before_location", _TEXT, "as in chunks, of the earlier snapshot"),
    ("before_offset", _NUMBER, "the same"),
    ("before_length", _NUMBER, "the same"),
    ("after_kind", _TEXT, "inline, native or virtual; null where there is no chunk"),
    ("after_location", _TEXT, "as in chunks, of the later snapshot"),
    ("after_offset", _NUMBER, "the same"),
    ("after_length", _NUMBER, "the same"),
    ("from_snapshot", _TEXT, "the earlier snapshot"),
    ("to_snapshot", _TEXT, "the later snapshot"),
)
_CONFIG = _schema(
    ("key", _TEXT, "name of a setting, parts joined by dots"),
    ("value", _TEXT, "JSON"),
)

METADATA_TABLES = {
    "nodes": _NODES,
    "manifests": _MANIFESTS,
    "snapshots": _SNAPSHOTS,
    "refs": _REFS,
    "operations": _OPERATIONS,
    "config": _CONFIG,
}
"""Tables that the engine makes of structure files, logs, references and settings: no chunk manifest is read."""

CHUNK_TABLES = {"chunks": _CHUNKS, "arrays": _ARRAYS, "files": _FILES}
"""Tables that are SQL over the chunk manifests of one snapshot."""

TABLES: dict[str, pa.Schema] = {**METADATA_TABLES, **CHUNK_TABLES, "changes": CHANGES}
"""All tables, by name."""


# -- relations that are no tables for users: what the texts in ``sql/`` join

INVENTORY = pa.schema(
    [
        ("path", _TEXT),
        ("node_id", _NUMBER),
        ("ndim", _NUMBER),
        ("manifest", _TEXT),
        ("file", _TEXT),
        ("chunk_count", _NUMBER),
        ("stored_bytes", _NUMBER),
        ("starts", _NUMBERS),
        ("stops", _NUMBERS),
    ]
)
"""A row for each array in each live manifest: the relation ``entries``, and what others have of it."""

_OF_ARRAYS = ("path", "index")
_OF_SNAPSHOTS = ("manifest", "snapshot")

MANIFEST_ROWS = pa.schema(
    [
        *(each for each in _CHUNKS if each.name not in _OF_ARRAYS + _OF_SNAPSHOTS),
        ("inline_data", pa.binary()),
    ]
)
"""What a row of a manifest says of a chunk by itself."""

CHUNK_ROWS = pa.schema([*map(_CHUNKS.field, _OF_ARRAYS), *MANIFEST_ROWS, _CHUNKS.field("manifest")])
"""The same with what a snapshot knows of it."""

PATHS = pa.schema([("node_id", _NUMBER), ("path", _TEXT)])

NODE_CHANGES = pa.schema(
    [CHANGES.field(name) for name in ("path", "change", "node_id", "node_type", "from_path")]
)

GRID_RUNS = pa.schema(
    [
        ("node_id", _NUMBER),
        (
            "runs",
            pa.list_(
                pa.list_(pa.struct([("position", _NUMBER), ("chunk", _NUMBER), ("edge", _NUMBER)]))
            ),
        ),
    ]
)
"""Unequal chunks: for each dimension runs of equal edges, each with its first position and first chunk."""

REPOSITORY = pa.field(
    "repository", _TEXT, metadata={"description": "which repository the row is from"}
)


def with_repository(schema: pa.Schema) -> pa.Schema:
    """Put the column that tells several repositories apart before the others."""
    fields: list[Any] = [REPOSITORY, *schema]
    return pa.schema(fields)
