"""A script for the ``duckdb`` command line that makes the same schema, without Python and this package.

Owns what such a script must hold itself: names of files, and the small tables, which cannot be read off files by
SQL alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from icechunk_arrow.duckdb.definitions import (
    ENTRY_COLUMNS,
    RUN_COLUMNS,
    Source,
    change_query,
    names_in,
    no_rows,
    pathed_rows_sql,
    repository_statements,
    shared_statements,
    sql_columns,
)
from icechunk_arrow.duckdb.quoting import identifier, literal, plain_pattern, text
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.sql_texts import fill, statement
from icechunk_arrow.tables.attaching import context_of
from icechunk_arrow.tables.differences import NODE_CHANGES, later_paths, node_changes, own_manifests
from icechunk_arrow.tables.entries import entry_table, grid_run_table
from icechunk_arrow.tables.facts import fact_table
from icechunk_arrow.tables.manifests import entries_of
from icechunk_arrow.tables.places import root_uri
from icechunk_arrow.tables.scans import plan_scans, plan_scans_by_array, plan_some_scans
from icechunk_arrow.tables.schemas import FACTS
from icechunk_arrow.tables.selection import Selection, find_earlier

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.repository import Repository
    from icechunk_arrow.tables.scans import Scan

__all__ = ["sql_script"]

_ROWS = 500
_OWN_SCANS = 8


def sql_script(
    repository: str | os.PathLike[str] | Repository,
    name: str = "icechunk",
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    since: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Write SQL that makes a schema with the tables of a snapshot, for DuckDB alone.

    Parameters
    ----------
    repository
        A path, URL or open repository.
    name
        Name of the schema.
    branch, tag, snapshot_id, as_of
        Which snapshot; ``main`` if nothing is named.
    since
        The snapshot, branch or tag that the macro ``changes`` compares with; the parent if nothing is named.
    storage_options
        What the file system of a URL takes. None of it gets into the script.

    Returns
    -------
    str
        The script: ``duckdb my.db < script.sql``.
    """
    if not name.isprintable() or not name:
        raise InvalidInputError(
            f"{name!r} cannot name a schema in a script, which is read line by line; choose a name that "
            f"can be printed"
        )
    context = context_of(repository, storage_options)
    if context.storage.url.startswith("memory:"):
        raise InvalidInputError(
            f"{context.storage.url} is in the memory of this process, where no script can read it"
        )
    found = Selection(branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of).resolve(context)
    snapshot = context.files.read_snapshot(found)
    before = context.files.read_snapshot(find_earlier(context, found, since))
    lines = [
        f"-- snapshot {found} of {json.dumps(context.storage.url)}",
        "-- made by icechunk_arrow; read by DuckDB alone, such as: duckdb my.db < this.sql",
        "BEGIN TRANSACTION",
        f"CREATE SCHEMA {identifier(name)}",
        *shared_statements(identifier(name)),
        *_Script(context, identifier(name), snapshot, before).statements(),
        "COMMIT",
        "",
    ]
    comments, statements = lines[:2], lines[2:]
    return "\n".join([*comments, ";\n".join(statements)])


class _Script(Source):
    """One snapshot, with everything under names that DuckDB finds by itself."""

    def __init__(self, context: Context, schema: str, snapshot: Snapshot, before: Snapshot) -> None:
        self.snapshot = snapshot.id
        self.root = root_uri(context.storage.url)
        self._context = context
        self._schema = schema
        self._after = snapshot
        self._before = before
        self._names = names_in(schema)

    def _own(self, name: str) -> str:
        return f"{self._schema}.{identifier('_' + name)}"

    def _path(self, kind: FileKind, identifier_: str) -> str:
        return f"{self._context.storage.url.rstrip('/')}/{key_of(kind, identifier_)}"

    def _patterns(self, kind: FileKind, ids: Sequence[str]) -> str:
        return "[" + ", ".join(text(plain_pattern(self._path(kind, each))) for each in ids) + "]"

    def files(self, scan: Scan) -> str:
        """List the files."""
        return self._patterns(FileKind.MANIFEST, scan.manifests)

    def fact(self, name: str) -> str:
        """Read a table that the script holds; operations are read off their logs."""
        if name != "operations":
            return f"SELECT * FROM {self._own(name)}"
        history = fact_table(self._context, "snapshots", self.snapshot)
        logged = [row["snapshot"] for row in history.to_pylist() if row["parent"] is not None]
        if not logged:
            return no_rows(sql_columns(FACTS[name]))
        logs = (  # columns that few logs have are there all the same
            f"(SELECT *, filename FROM read_parquet({self._patterns(FileKind.TRANSACTION, logged)}, "
            f"hive_partitioning = false, union_by_name = true) UNION ALL BY NAME "
            f"SELECT NULL::VARCHAR[] AS keys, NULL::UBIGINT[] AS shape_before, "
            f"NULL::UBIGINT[] AS shape_after WHERE false)"
        )
        return fill(statement("tables/operations.duckdb.sql"), self._names | {"logs": logs})

    def changes(self) -> str:
        """Compare the two snapshots that the script knows, and no others."""
        ids = text(self._before.id), text(self._after.id)
        wrong = text(
            f"this script knows the changes from {self._before.id} to {self._after.id} only"
        )
        return (
            f"SELECT c.* FROM (SELECT CASE WHEN earlier = {ids[0]} AND later = {ids[1]} "
            f"THEN 1 ELSE error({wrong}) END AS known) AS k, {self._own('changes')} AS c WHERE k.known = 1"
        )

    def statements(self) -> Iterator[str]:
        """Make everything that is of this repository."""
        entries = entries_of(self._after)
        files = [self._path(FileKind.MANIFEST, each) for each in entries.manifests]
        yield from _filled(self._names["entries"], ENTRY_COLUMNS, entry_table(entries, files))
        runs = grid_run_table(self._after)
        if runs.num_rows:
            yield from _filled(self._names["grid_runs"], RUN_COLUMNS, runs)
        for name, schema in FACTS.items():
            if name != "operations":
                table = fact_table(self._context, name, self.snapshot)
                yield from _filled(self._own(name), sql_columns(schema), table)
        yield from self._change_statements()
        yield from repository_statements(
            self._schema,
            self,
            plan_scans(entries),
            plan_scans_by_array(entries, most_arrays=_OWN_SCANS),
            grid_runs=runs.num_rows > 0,
        )

    def _change_statements(self) -> Iterator[str]:
        changes = node_changes(self._context.files, self._before, self._after)
        yield from _filled(self._own("node_changes"), sql_columns(NODE_CHANGES), changes)
        rows = []
        for side, snapshot, other in (
            ("before", self._before, self._after),
            ("after", self._after, self._before),
        ):
            paths = later_paths(snapshot, self._after)
            relation = self._own(f"{side}_paths")
            yield from _filled(relation, sql_columns(paths.schema), paths)
            own = own_manifests(snapshot, other)
            scans = plan_some_scans(entries_of(snapshot), own)
            rows.append(pathed_rows_sql(scans, self, self._names, relation))
        query = change_query(
            rows[0],
            rows[1],
            self._own("node_changes"),
            from_snapshot=self._before.id,
            to_snapshot=self._after.id,
        )
        yield f"CREATE OR REPLACE VIEW {self._own('changes')} AS {query}"


def _filled(relation: str, columns: Sequence[tuple[str, str]], table: pa.Table) -> Iterator[str]:
    """Make a table with rows."""
    described = ", ".join(f"{identifier(name)} {kind}" for name, kind in columns)
    yield f"CREATE OR REPLACE TABLE {relation} ({described})"
    names = [name for name, _ in columns]
    for batch in table.select(names).to_batches(max_chunksize=_ROWS):
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        written = ",\n".join("(" + ", ".join(map(literal, row)) + ")" for row in rows)
        if written:
            yield f"INSERT INTO {relation} VALUES {written}"
