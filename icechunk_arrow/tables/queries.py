"""A query for each table of a snapshot: the texts in ``sql/tables/``, filled for a dialect and a place.

Owns which relations the texts are given, and what those are made of. Whoever runs the queries, or writes them down,
is a :class:`~icechunk_arrow.tables.chunk_rows.Source`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_arrow.sql_texts import fill, statement
from icechunk_arrow.tables.chunk_rows import manifest_rows, pathed_rows
from icechunk_arrow.tables.node_changes import later_paths, node_changes, own_manifests
from icechunk_arrow.tables.scans import plan_some_scans
from icechunk_arrow.tables.schemas import CHUNK_TABLES, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.files import Files
    from icechunk_arrow.tables.chunk_rows import Source
    from icechunk_arrow.tables.scans import Scan

__all__ = ["change_query", "chunk_query", "chunk_relations", "chunk_tables"]


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
