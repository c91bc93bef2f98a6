# ruff: noqa: S608  (making SQL is what this does; quoting.py quotes, tests/sql attack it)
"""The tables of one snapshot as Spark data frames.

Owns how Spark reads manifests, and which relations stand for the names of the SQL texts. Those are views under
names of their own while the frames are made; afterwards nobody needs them, since Spark keeps what a view means.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.chunks import HAS_CHECKS, HAS_CRC, WIDE
from icechunk_arrow.core.columns import empty_table, from_values
from icechunk_arrow.duckdb.changing import later_paths
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.spark.quoting import file_pattern, identifier, spark_root, text
from icechunk_arrow.sql_texts import fill, statement
from icechunk_arrow.tables.differences import node_changes, own_manifests
from icechunk_arrow.tables.facts import fact_table
from icechunk_arrow.tables.manifests import entries_of
from icechunk_arrow.tables.places import root_uri
from icechunk_arrow.tables.scans import plan_scans_by_array, plan_some_scans
from icechunk_arrow.tables.schemas import FACTS, OVER_CHUNKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.tables.manifests import Entries
    from icechunk_arrow.tables.scans import Scan

__all__ = ["FUNCTIONS", "Relations", "function_names", "function_statements", "listing_here"]

FUNCTIONS = ("coord_encode", "coord_decode", "index_digits")
_OWN_SCANS = 32
"""So many arrays are read apart from the others: a condition on the path then leaves out all but one."""
_FORM = WIDE | HAS_CHECKS | HAS_CRC
_LISTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_LISTED_HERE = 1000
"""Up to so many files are asked for by the driver: a job for it takes longer."""
_ANSI = "spark.sql.ansi.enabled"
_LARGEST = 2**63 - 1
_ROWS = pa.schema(
    [
        ("node_id", pa.int64()),
        ("coord", pa.binary()),
        ("kind", pa.string()),
        ("location", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("etag", pa.string()),
        ("last_modified", pa.timestamp("us", "UTC")),
        ("inline_data", pa.binary()),
        ("manifest", pa.string()),
    ]
)
_PATHS = pa.schema([("node_id", pa.int64()), ("path", pa.string())])
_PATH_ROWS = pa.schema([("path", pa.string()), *_ROWS])
_CHUNK_ROWS = pa.schema([("path", pa.string()), ("index", pa.list_(pa.int64())), *_ROWS])


def function_names(name: str) -> dict[str, str]:
    """Say what the functions are called that go with an attached name."""
    return {each: identifier(f"{name}_{each}") for each in FUNCTIONS}


def function_statements(name: str) -> Iterator[str]:
    """Make these functions; Spark takes one statement at a time."""
    for each in ("coord_encode", "coord_decode"):
        whole = fill(statement(f"macros/{each}.spark.sql"), function_names(name))
        yield from whole.split(";\n")


@contextmanager
def listing_here(spark: Any) -> Iterator[None]:
    """Let the driver look up files itself while a snapshot is attached."""
    before = spark.conf.get(_LISTING)
    if int(before) >= _LISTED_HERE:
        yield
        return
    spark.conf.set(_LISTING, str(_LISTED_HERE))
    try:
        yield
    finally:
        spark.conf.set(_LISTING, before)


class Relations:
    """Makes the tables of one snapshot; :meth:`close` when they are views, or are not wanted any more."""

    def __init__(
        self, spark: Any, context: Context, snapshot_id: str, functions: dict[str, str]
    ) -> None:
        self.snapshot = context.files.read_snapshot(snapshot_id)
        self._spark = spark
        self._context = context
        self._functions = functions
        self._root = root_uri(context.storage.url)
        self._schemas: dict[int, Any] = {}
        self._views: list[str] = []
        self._checked = str(spark.conf.get(_ANSI)).lower() == "true"

    def close(self) -> None:
        """Remove the views that the tables were made of."""
        for view in self._views:
            self._spark.catalog.dropTempView(view)
        self._views.clear()

    def tables(self, before: Snapshot) -> dict[str, Any]:
        """Make all tables, ``changes`` since another snapshot."""
        context, found = self._context, self.snapshot.id
        frames = {name: self._frame(fact_table(context, name, found)) for name in FACTS}
        names = {
            "snapshot": text(found),
            "nodes": self._view(frames["nodes"]),
            "entries": self._view(self._frame(pa.table({"path": self._entries.paths}))),
            **self._row_views(),
        }
        for name in OVER_CHUNKS:
            frames[name] = self._spark.sql(fill(statement(f"tables/{name}.sql"), names))
        frames["changes"] = self._changes(before)
        return frames

    # -- rows of manifests

    @cached_property
    def _entries(self) -> Entries:
        return entries_of(self.snapshot)

    def _row_views(self) -> dict[str, str]:
        """Read the live manifests, each once, in the three ways that texts ask for."""
        scans = plan_scans_by_array(self._entries, most_arrays=_OWN_SCANS)
        rows, shared, paths, chunks = [], [], [], []
        for scan in scans:
            found = self._scan(scan, self._entries)
            rows.append(found)
            if scan.owner is None:
                shared.append(found)
                continue
            path = f"{text(scan.owner.path)} AS path"
            paths.append(found.selectExpr(path, "*"))
            chunks.append(found.selectExpr(path, f"{self._index} AS index", "*"))
        if shared:
            known = self._shared_paths(scans)
            paths.append(self._with_paths(shared, known, "p.path, r.*"))
            chunks.append(self._with_paths(shared, known, f"p.path, {self._index} AS index, r.*"))
        return {
            "manifest_rows": self._view(self._united(rows, _ROWS)),
            "array_rows": self._view(self._united(paths, _PATH_ROWS)),
            "chunk_rows": self._view(self._united(chunks, _CHUNK_ROWS)),
        }

    def _shared_paths(self, scans: Sequence[Scan]) -> Any:
        """Give the paths of arrays that have rows in manifests without an owner.

        It is said which have none, too: that is how Spark leaves out the whole branch while it plans.
        """
        entries = self._entries
        places = {each: place for place, each in enumerate(entries.manifests)}
        open_to_all = [
            places[each] for scan in scans if scan.owner is None for each in scan.manifests
        ]
        rows = np.flatnonzero(np.isin(entries.codes, open_to_all))
        found, first = np.unique(entries.node_ids[rows], return_index=True)
        ids = found.tolist()
        columns = [
            from_values(ids, pa.int64()),
            entries.paths.take(from_values(rows[first].tolist(), pa.int64())),
        ]
        known = self._frame(pa.Table.from_arrays(columns, schema=_PATHS))
        here = set(ids)
        owners = {scan.owner for scan in scans if scan.owner is not None}
        elsewhere = sorted(text(each.path) for each in owners if each.node_id not in here)
        return known.where(f"path NOT IN ({', '.join(elsewhere)})") if elsewhere else known

    @property
    def _index(self) -> str:
        return f"{self._functions['coord_decode']}(coord)"

    def _with_paths(self, rows: Sequence[Any], paths: Any, columns: str) -> Any:
        """Join rows with the paths of their arrays, which are few."""
        united = self._view(self._united(rows, _ROWS))
        return self._spark.sql(
            f"SELECT /*+ BROADCAST(p) */ {columns} "
            f"FROM {united} AS r JOIN {self._view(paths)} AS p ON p.node_id = r.node_id"
        )

    def _scan(self, scan: Scan, entries: Entries) -> Any:
        """Read the manifests of one scan; unsigned numbers get a sign."""
        kind, location = _kind_and_location(scan, self._root)
        owner = scan.owner
        # a query without the column manifest would else read all that Spark knows of a file, numbers of rows too
        files = self._read(scan, entries).where("_metadata.file_name <> ''")
        return files.selectExpr(
            f"{'CAST(array_id AS BIGINT)' if owner is None else f'{owner.node_id}L'} AS node_id",
            "coord",
            f"{kind} AS kind",
            f"{location} AS location",
            f"{self._signed('offset')} AS offset",
            f"{self._signed('length')} AS length",
            "etag" if scan.has_checks else "CAST(NULL AS STRING) AS etag",
            "last_modified" if scan.has_checks else "CAST(NULL AS TIMESTAMP) AS last_modified",
            "inline_data" if scan.has_inline else "CAST(NULL AS BINARY) AS inline_data",
            "replace(_metadata.file_name, '.parquet', '') AS manifest",
        )

    def _signed(self, column: str) -> str:
        """Bring a number to 64 bits with a sign, or fail, also where Spark is told not to check its casts."""
        if self._checked:
            return f"CAST({column} AS BIGINT)"
        wrong = text(f"{column} is above what a BIGINT holds")
        return f"CASE WHEN {column} > {_LARGEST} THEN raise_error({wrong}) ELSE CAST({column} AS BIGINT) END"

    def _read(self, scan: Scan, entries: Entries) -> Any:
        """Open files of one form, whose columns are looked up in the first."""
        root = spark_root(self._root)
        paths = [
            file_pattern(f"{root}/{key_of(FileKind.MANIFEST, each)}") for each in scan.manifests
        ]
        place = entries.manifests.index(scan.manifests[0])
        form = int(entries.flags[np.flatnonzero(entries.codes == place)[0]]) & _FORM
        if form not in self._schemas:
            self._schemas[form] = self._reader().parquet(paths[0]).schema
        return self._reader().schema(self._schemas[form]).parquet(*paths)

    def _reader(self) -> Any:
        """Make a reader to which a file that has gone, or is damaged, is an error whatever the session says."""
        return (
            self._spark.read.option("ignoreMissingFiles", "false")
            .option("ignoreCorruptFiles", "false")
            .option("mergeSchema", "false")
        )

    # -- two snapshots

    def _changes(self, before: Snapshot) -> Any:
        after = self.snapshot
        sides = {}
        for side, snapshot, other in (("before", before, after), ("after", after, before)):
            entries = entries_of(snapshot)
            scans = plan_some_scans(entries, own_manifests(snapshot, other))
            rows = [self._scan(each, entries) for each in scans]
            found = self._frame(empty_table(_CHUNK_ROWS))
            if rows:
                paths = self._frame(later_paths(snapshot, after))
                found = self._with_paths(rows, paths, f"p.path, {self._index} AS index, r.*")
            sides[f"{side}_rows"] = self._view(found)
        nodes = self._frame(node_changes(self._context.files, before, after))
        names = {
            **sides,
            "node_changes": self._view(nodes),
            "from_snapshot": text(before.id),
            "to_snapshot": text(after.id),
        }
        return self._spark.sql(fill(statement("tables/changes.sql"), names))

    # -- frames and views

    def _frame(self, table: pa.Table) -> Any:
        if table.num_rows:
            return self._spark.createDataFrame(table)
        columns = (
            f"CAST(NULL AS {_type(each.type)}) AS {identifier(each.name)}" for each in table.schema
        )
        return self._spark.sql(f"SELECT {', '.join(columns)} WHERE false")

    def _view(self, frame: Any) -> str:
        name = f"_icechunk_{new_id().lower()}"
        frame.createOrReplaceTempView(name)
        self._views.append(name)
        return name

    def _united(self, frames: Sequence[Any], schema: pa.Schema) -> Any:
        if not frames:
            return self._frame(empty_table(schema))
        return reduce(lambda left, right: left.unionAll(right), frames)


def _type(arrow_type: pa.DataType) -> str:
    """Name a type of our tables as Spark does."""
    kind = str(arrow_type)
    simple = {
        "string": "STRING",
        "int64": "BIGINT",
        "double": "DOUBLE",
        "bool": "BOOLEAN",
        "binary": "BINARY",
        "timestamp[us, tz=UTC]": "TIMESTAMP",
    }
    if kind in simple:
        return simple[kind]
    if kind.startswith("list"):
        return f"ARRAY<{_type(arrow_type.value_type)}>"
    fields = (arrow_type.field(place) for place in range(arrow_type.num_fields))
    return f"STRUCT<{', '.join(f'{identifier(each.name)}: {_type(each.type)}' for each in fields)}>"


def _kind_and_location(scan: Scan, root: str) -> tuple[str, str]:
    """Tell a virtual chunk's file from a native one; the length decides nearly always."""
    virtual = (
        "(octet_length(chunk_file) <> 20 OR contains(chunk_file, '/') OR contains(chunk_file, ':'))"
    )
    native = f"{text(root + '/c/')} || chunk_file"
    if scan.has_native and scan.has_virtual:
        kind = f"CASE WHEN {virtual} THEN 'virtual' ELSE 'native' END"
        location = f"CASE WHEN {virtual} THEN chunk_file ELSE {native} END"
    elif scan.has_native:
        kind, location = "'native'", native
    elif scan.has_virtual:
        kind, location = "'virtual'", "chunk_file"
    else:
        return "'inline'", "CAST(NULL AS STRING)"
    if scan.has_inline:
        kind = f"CASE WHEN chunk_file IS NULL THEN 'inline' ELSE {kind} END"
    return kind, location
