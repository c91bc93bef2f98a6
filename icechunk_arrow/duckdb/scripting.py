"""A script for the ``duckdb`` command line that makes the same schema, without Python and this package.

Owns what such a script must hold itself: names of files, and the small tables, which cannot be read off files by
SQL alone.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Unpack

from icechunk_arrow.duckdb.definitions import SnapshotSource, names_in, schema_statements
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.tables.attaching import Attachment
from icechunk_arrow.tables.metadata import metadata_table
from icechunk_arrow.tables.queries import change_query, root_uri
from icechunk_arrow.tables.schemas import METADATA_TABLES
from icechunk_arrow.tables.selection import Selection, Which
from icechunk_arrow.tables.sql import DUCKDB, fill, statement

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.repository import Repository
    from icechunk_arrow.tables.scans import Scan

__all__ = ["sql_script"]

_ROWS = 500
_WILD = re.compile(r"([*?\[])")


def sql_script(
    repository: str | os.PathLike[str] | Repository,
    name: str = "icechunk",
    *,
    since: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **which: Unpack[Which],
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
    attachment = Attachment.of(name, repository, storage_options, Selection(**which), since)
    if attachment.united:
        raise InvalidInputError("a script is about one repository; write one for each")
    [context] = attachment.contexts.values()
    if context.storage.url.startswith("memory:"):
        raise InvalidInputError(
            f"{context.storage.url} is in the memory of this process, where no script can read it"
        )
    [(_, _, snapshot_id, earlier)] = attachment.resolved()
    after, before = (context.files.read_snapshot(each) for each in (snapshot_id, earlier))
    schema = DUCKDB.identifier(name)
    source = _WrittenSource(context, schema, after, before)
    comments = [
        f"-- snapshot {snapshot_id} of {json.dumps(context.storage.url)}",
        "-- made by icechunk_arrow; read by DuckDB alone, such as: duckdb my.db < this.sql",
    ]
    statements = [
        "BEGIN TRANSACTION",
        f"CREATE SCHEMA {schema}",
        *schema_statements(schema, {"": source}, united=False),
        "COMMIT",
        "",
    ]
    return "\n".join([*comments, ";\n".join(statements)])


class _WrittenSource(SnapshotSource):
    """One snapshot, with everything under names that DuckDB finds by itself."""

    def __init__(self, context: Context, schema: str, snapshot: Snapshot, before: Snapshot) -> None:
        self.root = root_uri(context.storage.url)
        self.names = names_in(schema)
        self.snapshot = snapshot
        self.folder = f"{context.storage.url.rstrip('/')}/"
        self.statements = []
        self._context = context
        self._schema = schema
        self._before = before

    def _parquet(self, kind: FileKind, ids: Sequence[str], more: str = "") -> str:
        """List files, each as a pattern that matches nothing but it."""
        paths = (_WILD.sub(r"[\1]", self.folder + key_of(kind, each)) for each in ids)
        listed = ", ".join(map(DUCKDB.text, paths))
        return f"read_parquet([{listed}], hive_partitioning = false{more})"

    def files(self, scan: Scan, *, named: bool) -> str:  # noqa: ARG002 -- names of files come anyway
        """List the files."""
        return self._parquet(FileKind.MANIFEST, scan.manifests)

    def table(self, name: str, rows: pa.Table) -> str:
        """Fill a table with what the script holds."""
        relation = f"{self._schema}.{DUCKDB.identifier('_' + name)}"
        self.statements.append(
            f"CREATE OR REPLACE TABLE {relation} ({DUCKDB.columns(rows.schema)})"
        )
        for batch in rows.to_batches(max_chunksize=_ROWS):
            values = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            written = ",\n".join("(" + ", ".join(map(_literal, row)) + ")" for row in values)
            if written:
                self.statements.append(f"INSERT INTO {relation} VALUES {written}")
        return relation

    held = table

    def metadata(self, name: str) -> str:
        """Read a table that the script holds; operations are read off their logs."""
        if name == "operations":
            return self._operations()
        rows = metadata_table(self._context, name, self.snapshot.id)
        return f"SELECT * FROM {self.table(name, rows)}"

    def _operations(self) -> str:
        history = metadata_table(self._context, "snapshots", self.snapshot.id)
        logged = [row["snapshot"] for row in history.to_pylist() if row["parent"] is not None]
        if not logged:
            return DUCKDB.no_rows(METADATA_TABLES["operations"])
        logs = (  # columns that few logs have are there all the same
            f"(SELECT *, filename FROM {self._parquet(FileKind.TRANSACTION, logged, ', union_by_name = true')} "
            f"UNION ALL BY NAME SELECT NULL::VARCHAR[] AS keys, NULL::UBIGINT[] AS shape_before, "
            f"NULL::UBIGINT[] AS shape_after WHERE false)"
        )
        return fill(statement("tables/operations.duckdb.sql"), {**self.names, "logs": logs})

    def changes(self) -> str:
        """Compare the two snapshots that the script knows, and no others."""
        before, after = self._before, self.snapshot
        query = change_query(self, self._context.files, before, after)
        view = f"{self._schema}._changes"
        self.statements.append(f"CREATE OR REPLACE VIEW {view} AS {query}")
        earlier, later = DUCKDB.text(before.id), DUCKDB.text(after.id)
        wrong = f"this script knows the changes from {before.id} to {after.id} only"
        return (
            f"SELECT c.* FROM (SELECT CASE WHEN earlier = {earlier} AND later = {later} "
            f"THEN 1 ELSE error({DUCKDB.text(wrong)}) END AS known) AS k, {view} AS c WHERE k.known = 1"
        )


def _literal(value: Any) -> str:
    """Write a value of any type of our tables."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return DUCKDB.text(value)
        case bytes():
            return f"unhex('{value.hex()}')"
        case datetime():
            return f"TIMESTAMPTZ '{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00'"
        case list() | tuple():
            return "[" + ", ".join(map(_literal, value)) + "]"
        case dict():
            members = (
                f"{DUCKDB.identifier(name)} := {_literal(each)}" for name, each in value.items()
            )
            return f"struct_pack({', '.join(members)})"
        case _:
            raise AssertionError(type(value))
