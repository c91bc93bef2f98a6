"""What DuckDB reads of a repository through a file system of ours; and tables as Arrow, by a DuckDB of its own.

Owns the names under which DuckDB finds manifests and small tables, and what is made when it opens one.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from icechunk_arrow.core.columns import empty_table
from icechunk_arrow.core.manifest_columns import TABLES_FORM, schema_of
from icechunk_arrow.duckdb.definitions import (
    SnapshotSource,
    coordinate_macros,
    names_in,
    schema_statements,
)
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.engine.sealed_files import SealedFiles
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.storage.table_files import FileGroup, TableFiles
from icechunk_arrow.tables.chunk_rows import root_uri
from icechunk_arrow.tables.dialect import DUCKDB
from icechunk_arrow.tables.metadata import metadata_table
from icechunk_arrow.tables.queries import change_query
from icechunk_arrow.tables.schemas import CHANGES, CHUNK_TABLES, METADATA_TABLES
from icechunk_arrow.tables.selection import find_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.storage.port import Storage
    from icechunk_arrow.tables.scans import Scan

__all__ = [
    "CheckedSource",
    "change_table",
    "checked_files",
    "chunk_table",
    "private_schema",
]

_SCHEMA = "main"
_CHANGES, _MANIFESTS = "changes", "manifests-"
_EVERY_COLUMN = schema_of(TABLES_FORM)
"""Whatever a view asks of a manifest; each type becomes the view's own."""
_PARQUET_ROWS = 1 << 17


def checked_files(storage: Storage) -> TableFiles:
    """Make a file system for one storage that gives out nothing unchecked, with a protocol that no other has."""
    return TableFiles(storage, f"icechunk-{new_id().lower()}", SealedFiles(storage).read)


class CheckedSource(SnapshotSource):
    """One snapshot in such a file system.

    ``owners`` says whose manifests are read, for messages, and how many bytes each has: the snapshot's if it is not
    given.
    """

    def __init__(
        self,
        files: TableFiles,
        context: Context,
        snapshot: Snapshot,
        names: Mapping[str, str],
        owners: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self.root = root_uri(context.storage.url)
        self.names = names
        self.snapshot = snapshot
        self.folder = files.add_generation(self._content)
        self.statements = []
        self._files = files
        self._context = context
        self._owners = owners or _owner(snapshot)
        self._groups: dict[Scan, str] = {}
        self._tables: dict[str, bytes] = {}

    def files(self, scan: Scan, *, named: bool) -> str:  # noqa: ARG002 -- names of files come anyway
        """Name the group of files."""
        name = self._groups.get(scan)
        if name is None:
            found = (each for each in self._owners.items() if scan.manifests[0] in each[1])
            owner, sizes = next(found)
            keys = {key_of(FileKind.MANIFEST, each): sizes[each] for each in scan.manifests}
            group = FileGroup(sizes=keys, owner=owner)
            number = len(self._groups)
            name = self._files.add_group(self.folder, f"{_MANIFESTS}{number}", group)
            self._groups[scan] = name
        return f"read_parquet({DUCKDB.text(name)}, hive_partitioning = false)"

    def table(self, name: str, rows: pa.Table) -> str:
        """Make a file of the rows."""
        self._tables[name] = _parquet(rows)
        return self._made(name)

    def held(self, name: str, rows: pa.Table) -> str:
        """Fill a table from a file of the rows."""
        relation = self.names[name]
        self.statements.append(
            f"CREATE OR REPLACE TABLE {relation} AS FROM {self.table(name, rows)}"
        )
        return relation

    def metadata(self, name: str) -> str:
        """Read a file that is made when it is opened."""
        return f"SELECT {_listed(METADATA_TABLES[name])} FROM {self._made(name)}"

    def changes(self) -> str:
        """Read a file that is made when it is opened; its name says of which snapshots."""
        between = "coalesce(hex(earlier::VARCHAR) || '/' || hex(later::VARCHAR), '')"
        return f"SELECT {_listed(CHANGES)} FROM {self._made(_CHANGES + '/', f' || {between}')}"

    def _made(self, name: str, more: str = "") -> str:
        return f"read_parquet({DUCKDB.text(self.folder + name)}{more}, hive_partitioning = false)"

    def _content(self, name: str, describing: bool) -> bytes:
        """Make a file: of rows, or where only its columns are asked for without."""
        if name in self._tables:
            return self._tables[name]
        if describing:
            return _described(name)
        kind, _, between = name.partition("/")
        if kind != _CHANGES:
            return _parquet(metadata_table(self._context, name, self.snapshot.id))
        if not between:
            return _parquet(empty_table(CHANGES))
        before, after = (
            find_named(self._context, bytes.fromhex(each).decode()) for each in between.split("/")
        )
        return _parquet(change_table(self._context, before, after))


def _owner(*snapshots: Snapshot) -> dict[str, Mapping[str, int]]:
    return {f"the snapshot {each.id}": each.manifest_sizes for each in snapshots}


def _listed(schema: pa.Schema) -> str:
    return ", ".join(map(DUCKDB.identifier, schema.names))


@cache
def _described(name: str) -> bytes:
    if name.startswith(_MANIFESTS):
        return _parquet(empty_table(_EVERY_COLUMN))
    return _parquet(empty_table(CHANGES if name.startswith(_CHANGES) else METADATA_TABLES[name]))


def _parquet(table: pa.Table) -> bytes:
    """Write a table that is read soon and thrown away: little effort on being small."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="lz4") as writer:
        for start in range(0, max(table.num_rows, 1), _PARQUET_ROWS):
            writer.write_table(table.slice(start, _PARQUET_ROWS))
    data: bytes = sink.getvalue().to_pybytes()
    return data


# -- a DuckDB of its own


@contextmanager
def _connected(files: TableFiles) -> Iterator[Any]:
    """Give a connection to a DuckDB of its own; what its reads meet is raised as it is, not as a text."""
    try:
        import duckdb  # noqa: PLC0415  (an extra, and slow to import)
    except ImportError as error:
        raise InvalidInputError(
            "this table is SQL over chunk manifests and needs DuckDB: pip install 'icechunk-arrow[duckdb]'"
        ) from error
    with duckdb.connect() as con:
        con.register_filesystem(files)
        try:
            yield con
        except duckdb.Error as error:
            if files.failure is not None:
                raise files.failure from error
            raise
        finally:
            con.unregister_filesystem(files.protocol)


@contextmanager
def private_schema(
    context: Context, snapshot_id: str, *, files: TableFiles | None = None
) -> Iterator[tuple[Any, Mapping[str, str]]]:
    """Give a connection to a DuckDB of its own with the tables of a snapshot, and what these are called."""
    files = files or checked_files(context.storage)
    names = names_in(_SCHEMA)
    source = CheckedSource(files, context, context.files.read_snapshot(snapshot_id), names)
    statements = schema_statements(_SCHEMA, {"": source}, united=False)
    with _connected(files) as con:
        with files.describing():
            con.execute(";\n".join(statements))
        yield con, names


def chunk_table(context: Context, name: str, snapshot_id: str) -> pa.Table:
    """Make one of ``schemas.CHUNK_TABLES``: the view that ``attach`` makes, asked for all its rows."""
    with private_schema(context, snapshot_id) as (con, names):
        return _rows(con, f"SELECT * FROM {names[name]}", CHUNK_TABLES[name])


def change_table(context: Context, before_id: str, after_id: str) -> pa.Table:
    """Make the table of what changed from one snapshot to another, whatever lies between them."""
    before, after = (context.files.read_snapshot(each) for each in (before_id, after_id))
    files = checked_files(context.storage)
    source = CheckedSource(files, context, after, names_in(_SCHEMA), _owner(before, after))
    query = change_query(source, context.files, before, after)
    with _connected(files) as con:
        con.execute(";\n".join(coordinate_macros(_SCHEMA)))
        return _rows(con, query, CHANGES)


def _rows(con: Any, query: str, schema: pa.Schema) -> pa.Table:
    """Run a query and give its rows in the types of a schema."""
    found = con.sql(query).to_arrow_table()
    return found.select(schema.names).cast(schema)
