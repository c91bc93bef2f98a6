# ruff: noqa: S608  (making SQL is what this does; the dialect quotes, tests/sql attack it)
"""Tables as SQL: how a row of a manifest becomes a row of ``chunks``, and the query for each table of a snapshot.

A column that manifests have by its name in ``schemas`` comes over by itself. Owned here are the others (what a
chunk's kind and location are, how a row gets the path of its array and the place of the chunk), and which
relations the texts in ``sql/tables/`` are given. What runs the queries, or writes them down, is a
:class:`Source`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.chunks import (
    HAS_INLINE,
    HAS_NATIVE,
    HAS_VIRTUAL,
    IS_VIRTUAL_SQL,
    are_virtual,
    kind_column,
)
from icechunk_arrow.core.columns import (
    distinct,
    from_numpy,
    from_values,
    indices,
    one_array,
    to_numpy,
)
from icechunk_arrow.core.coords import decode_lists
from icechunk_arrow.core.manifest_columns import schema_of
from icechunk_arrow.tables.columns import int64, repeated, table_of
from icechunk_arrow.tables.node_changes import later_paths, node_changes, own_manifests
from icechunk_arrow.tables.scans import plan_some_scans
from icechunk_arrow.tables.schemas import CHUNK_ROWS, CHUNK_TABLES, INVENTORY, MANIFEST_ROWS, TABLES
from icechunk_arrow.tables.sql import fill, statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.files import Files
    from icechunk_arrow.engine.manifest_file import ManifestFile
    from icechunk_arrow.tables.scans import Scan
    from icechunk_arrow.tables.sql import Dialect

__all__ = [
    "Source",
    "change_query",
    "chunk_query",
    "chunk_relations",
    "chunk_tables",
    "chunks_of_group",
    "manifest_rows",
    "pathed_rows",
    "root_uri",
]

_HINT = "/*+ BROADCAST(p) */"
"""What knows paths is small: DuckDB sees that by itself, and takes the hint for a comment."""


def root_uri(url: str) -> str:
    """Give the place of a repository as a URI: paths of a local disk as they are, behind ``file://``."""
    return url.rstrip("/") if "://" in url else "file://" + url.rstrip("/")


class Source(ABC):
    """Where an engine finds what queries are made of: manifests and small tables; in a session, or for a script."""

    dialect: Dialect
    root: str
    """URI of the repository."""
    names: Mapping[str, str]
    """What relations and macros of the texts in ``sql/`` are called."""

    @abstractmethod
    def files(self, scan: Scan, *, named: bool) -> str:
        """Give a relation of the rows of manifests as they are on disk; if wanted with the names of the files."""

    @abstractmethod
    def table(self, name: str, rows: pa.Table) -> str:
        """Give a relation of a small table; ``name`` shows in scripts."""


# -- in SQL


def manifest_rows(source: Source, scans: Iterable[Scan], *, named: bool = False) -> str:
    """Read manifests, all arrays together, without their paths; if wanted with the names of manifests."""
    return _united(source, MANIFEST_ROWS, (_scanned(source, scan, named=named) for scan in scans))


def pathed_rows(
    source: Source,
    scans: Iterable[Scan],
    paths: str,
    *,
    indexed: bool = True,
    by_file: bool = False,
) -> str:
    """Read manifests with the paths of their arrays, and if wanted the places of chunks and names of manifests.

    ``paths`` has an array's path by ``node_id``; and where comparing those leaves out files, by ``file`` too.
    """
    dialect = source.dialect
    parts: list[str] = []
    shared: dict[str, list[Scan]] = {}  # by what decodes their coordinates
    for scan in scans:
        decode = source.names.get(f"decode_{scan.ndim}", source.names["decode_any"])
        if scan.owner is None:
            shared.setdefault(decode if indexed else "", []).append(scan)
            continue
        path = f"CAST({dialect.text(scan.owner.path)} AS {dialect.type(pa.string())}) AS path"
        more = (path, f"{decode}(coord) AS index") if indexed else (path,)
        parts.append(_scanned(source, scan, *more, named=indexed))
    on = f"{'p.file = r.file AND ' if by_file else ''}p.node_id = r.node_id"
    for decode, some in shared.items():
        index = f"{decode}(r.coord) AS index, " if indexed else ""
        rows = manifest_rows(source, some, named=indexed)
        parts.append(
            f"SELECT {_HINT} p.path, {index}r.* FROM ({rows}) AS r JOIN {paths} AS p ON {on}"
        )
    schema = CHUNK_ROWS if indexed else pa.schema([CHUNK_ROWS.field("path"), *MANIFEST_ROWS])
    return _united(source, schema, parts)


def _united(source: Source, schema: pa.Schema, queries: Iterable[str]) -> str:
    """Put queries together; where there are none, give no rows in the same columns."""
    query = "\nUNION ALL\n".join(queries)
    if query:
        return query
    files = ("manifest", "file") if source.dialect.joins_files else ()
    more = (INVENTORY.field(name) for name in files if name not in schema.names)
    return source.dialect.no_rows(pa.schema([*schema, *more]))


def _scanned(source: Source, scan: Scan, *more: str, named: bool = False) -> str:
    """Read the manifests of one scan, with more columns before the others."""
    dialect = source.dialect
    named = named or dialect.joins_files
    expressions = {
        "node_id": "CAST(array_id AS BIGINT)"
        if scan.owner is None
        else f"CAST({scan.owner.node_id} AS BIGINT)",
        **_kind_and_location(scan, dialect.text(source.root + "/c/"), dialect),
    }
    if not scan.has(HAS_INLINE):
        expressions["inline_data"] = dialect.null(pa.binary())
    held = schema_of(scan.form)
    for field in MANIFEST_ROWS:
        if field.name in expressions:
            continue
        column, place = dialect.identifier(field.name), held.get_field_index(field.name)
        if place < 0:
            expressions[field.name] = dialect.null(field.type)
        elif not pa.types.is_integer(field.type):
            expressions[field.name] = column
        elif held.field(place).type == pa.uint64():
            expressions[field.name] = dialect.signed.format(column, field.name)
        else:
            expressions[field.name] = f"CAST({column} AS BIGINT)"
    columns = [f"{expressions[name]} AS {dialect.identifier(name)}" for name in MANIFEST_ROWS.names]
    files = [dialect.file_columns] if named else []
    listed = ", ".join([*more, *columns, *files])
    return f"SELECT {listed} FROM {source.files(scan, named=named)}"


def _kind_and_location(scan: Scan, folder: str, dialect: Dialect) -> dict[str, str]:
    """Say of which kind a row's chunk is, and the URI of its file.

    ``folder`` is what URIs of native chunks begin with.
    """
    virtual = IS_VIRTUAL_SQL
    native = f"{folder} || chunk_file"
    if scan.has(HAS_NATIVE) and scan.has(HAS_VIRTUAL):
        kind = f"CASE WHEN {virtual} THEN 'virtual' ELSE 'native' END"
        location = f"CASE WHEN {virtual} THEN chunk_file ELSE {native} END"
    elif scan.has(HAS_NATIVE):
        kind, location = "'native'", native
    elif scan.has(HAS_VIRTUAL):
        kind, location = "'virtual'", "chunk_file"
    else:
        return {"kind": "'inline'", "location": dialect.null(pa.string())}
    if scan.has(HAS_INLINE):
        kind = f"CASE WHEN chunk_file IS NULL THEN 'inline' ELSE {kind} END"
    return {"kind": kind, "location": location}


# -- in Arrow


def chunks_of_group(
    rows: pa.Table, snapshot: Snapshot, opened: ManifestFile, manifest: str, root: str
) -> pa.Table:
    """Turn rows of a manifest into those of the table ``chunks``."""
    count = rows.num_rows
    schema = TABLES["chunks"]
    held = {name: one_array(rows[name]) for name in rows.column_names}
    kind, location = _places(held["chunk_file"], count, root)
    columns = {
        "path": _paths(held["array_id"], snapshot, opened),
        "node_id": int64(held["array_id"]),
        "index": decode_lists(held["coord"]),
        "kind": kind,
        "location": location,
        "manifest": repeated(manifest, count),
        "snapshot": repeated(snapshot.id, count),
    }
    for field in schema:
        if field.name in columns:
            continue
        if field.name not in held:
            columns[field.name] = pa.nulls(count, field.type)
        else:
            column = held[field.name]
            columns[field.name] = int64(column) if field.type == pa.int64() else column
    return table_of(schema, [columns[name] for name in schema.names])


def _paths(ids: pa.Array, snapshot: Snapshot, opened: ManifestFile) -> pa.Array:
    arrays = distinct(to_numpy(ids))
    rows = [snapshot.rows_by_id.get(node_id) for node_id in arrays.tolist()]
    if None in rows:
        raise opened.wrong(f"it has rows of arrays that the snapshot {snapshot.id} has not")
    paths = one_array(snapshot.table["path"]).take(from_values(rows, pa.int64()))
    return paths.take(indices(np.searchsorted(arrays, to_numpy(ids))))


def _places(files: pa.Array, count: int, root: str) -> tuple[pa.Array, pa.Array]:
    """Say of which kind each chunk is, and the URI of the file that it is in."""
    if not pa.types.is_dictionary(files.type):
        files = files.dictionary_encode()
    names = files.dictionary
    if not len(names):
        return kind_column(files), pa.nulls(count, pa.string())
    far = are_virtual(names)
    native = pc.binary_join_element_wise(f"{root}/c", names, "/")
    location = pc.take(pc.if_else(from_numpy(far, pa.bool_()), names, native), files.indices)
    return kind_column(files), location


def chunk_relations(
    source: Source,
    snapshot_id: str,
    *,
    together: Iterable[Scan],
    by_array: Iterable[Scan],
    entries: str,
    paths: str,
) -> dict[str, str]:
    """Say what stands for those relations of the texts that are about the manifests of a snapshot.

    ``entries`` has a row for each array in each manifest, ``paths`` one for each array.
    """
    by_file = source.dialect.joins_files
    rows = {
        "manifest_rows": manifest_rows(source, together),
        "array_rows": pathed_rows(source, by_array, paths, indexed=False),
        "chunk_rows": pathed_rows(source, by_array, entries if by_file else paths, by_file=by_file),
    }
    return _of_snapshot(source, snapshot_id) | {
        "entries": entries,
        **{name: f"({query})" for name, query in rows.items()},
    }


def _of_snapshot(source: Source, snapshot_id: str) -> dict[str, str]:
    names = (name for name in TABLES["chunks"].names if name != "snapshot")
    return {
        "snapshot": source.dialect.text(snapshot_id),
        "chunk_columns": ", ".join(map(source.dialect.identifier, names)),
    }


def chunk_tables(relations: Mapping[str, str]) -> dict[str, str]:
    """Give queries for the tables over chunks; ``nodes`` is among the relations."""
    return {name: fill(statement(f"tables/{name}.sql"), relations) for name in CHUNK_TABLES}


def chunk_query(source: Source, snapshot: Snapshot, manifests: Iterable[str]) -> str:
    """Read those rows of the table ``chunks`` that are in some manifests of a snapshot."""
    rows = _rows_with_paths(source, "paths", snapshot, snapshot, manifests)
    relations = _of_snapshot(source, snapshot.id) | {"chunk_rows": f"({rows})"}
    return fill(statement("tables/chunks.sql"), relations)


def change_query(source: Source, files: Files, before: Snapshot, after: Snapshot) -> str:
    """Compare two snapshots: rows of manifests that one of them has alone, and what became of nodes."""
    relations = {
        "node_changes": source.table("node_changes", node_changes(files, before, after)),
        "from_snapshot": source.dialect.text(before.id),
        "to_snapshot": source.dialect.text(after.id),
    }
    for side, snapshot, other in (("before", before, after), ("after", after, before)):
        own = own_manifests(snapshot, other)
        rows = _rows_with_paths(source, f"{side}_paths", snapshot, after, own)
        relations[f"{side}_rows"] = f"({rows})"
    return fill(statement("tables/changes.sql"), relations)


def _rows_with_paths(
    source: Source, name: str, snapshot: Snapshot, later: Snapshot, manifests: Iterable[str]
) -> str:
    """Read some manifests of a snapshot; arrays have the paths of a later one."""
    scans = plan_some_scans(snapshot, manifests)
    paths = source.table(name, later_paths(snapshot, later)) if scans else ""
    return pathed_rows(source, scans, paths)
