"""One snapshot of one repository, ready to be read by DuckDB.

Owns the names under which DuckDB finds manifests and tables, and what is made when it opens one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from icechunk_arrow.core.columns import empty_table
from icechunk_arrow.core.manifest_columns import TABLES_FORM
from icechunk_arrow.duckdb.changing import change_table
from icechunk_arrow.duckdb.definitions import (
    Source,
    names_in,
    repository_statements,
)
from icechunk_arrow.duckdb.quoting import text
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.formats.manifest import schema_of
from icechunk_arrow.storage.table_files import FileGroup, TableFiles
from icechunk_arrow.tables.entries import entry_table, grid_run_table
from icechunk_arrow.tables.facts import fact_table
from icechunk_arrow.tables.manifests import entries_of
from icechunk_arrow.tables.parquet import parquet_of
from icechunk_arrow.tables.places import root_uri
from icechunk_arrow.tables.scans import plan_scans, plan_scans_by_array
from icechunk_arrow.tables.schemas import CHANGES, FACTS
from icechunk_arrow.tables.selection import find_named

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa

    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.tables.scans import Scan

__all__ = ["FileSource", "Prepared", "prepare"]

_OWN_SCANS = 8
"""So many arrays are read apart from the others: each costs the opening of a file in every query's planning."""
_CHANGES, _ENTRIES, _RUNS = "changes", "entries", "grid_runs"
_MANIFESTS = "manifests-"
_EVERY_COLUMN = schema_of(TABLES_FORM)
"""Whatever a view asks of a manifest; each type becomes the view's own."""


class FileSource(Source):
    """Finds everything in a :class:`TableFiles`."""

    def __init__(self, start: str, snapshot: str, root: str, scans: dict[Scan, str]) -> None:
        self.start = start
        self.snapshot = snapshot
        self.root = root
        self._scans = scans

    def files(self, scan: Scan) -> str:
        """Name the group of files."""
        return text(self.start + self._scans[scan])

    def fact(self, name: str) -> str:
        """Read a file that is made when it is opened."""
        columns = ", ".join(f'"{each}"' for each in FACTS[name].names)
        return f"SELECT {columns} FROM read_parquet({text(self.start + name)}, hive_partitioning = false)"

    def changes(self) -> str:
        """Read a file that is made when it is opened; its name says of which snapshots."""
        columns = ", ".join(f'"{each}"' for each in CHANGES.names)
        between = "coalesce(hex(earlier::VARCHAR) || '/' || hex(later::VARCHAR), '')"
        return (
            f"SELECT {columns} FROM read_parquet({text(self.start + _CHANGES + '/')} || {between}, "
            f"hive_partitioning = false)"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """What the statements for one snapshot are made of."""

    source: FileSource
    together: Sequence[Scan]
    by_array: Sequence[Scan]
    held: Collection[str]
    """What the connection gets as tables of its own, because nearly every query joins it."""

    def statements(self, schema: str, prefix: str = "") -> Iterator[str]:
        """Make the relations and macros of this repository in a schema."""
        names = names_in(schema, prefix)
        for name in self.held:
            file = text(self.source.start + name)
            yield (
                f"CREATE OR REPLACE TABLE {names[name]} AS "
                f"FROM read_parquet({file}, hive_partitioning = false)"
            )
        yield from repository_statements(
            schema,
            self.source,
            self.together,
            self.by_array,
            prefix=prefix,
            grid_runs=_RUNS in self.held,
        )


def prepare(files: TableFiles, context: Context, snapshot_id: str) -> Prepared:
    """Name a snapshot's files; of its tables nothing is made, and of its history nothing read."""
    snapshot = context.files.read_snapshot(snapshot_id)
    entries = entries_of(snapshot)
    together = plan_scans(entries)
    by_array = plan_scans_by_array(entries, most_arrays=_OWN_SCANS)
    scans = {scan: f"{_MANIFESTS}{number}" for number, scan in enumerate({*together, *by_array})}
    keys = {each: key_of(FileKind.MANIFEST, each) for each in entries.manifests}
    owner = f"the snapshot {snapshot_id}"
    groups = {
        name: FileGroup(
            sizes={keys[each]: snapshot.manifest_sizes[each] for each in scan.manifests},
            owner=owner,
        )
        for scan, name in scans.items()
    }

    held: dict[str, bytes] = {}

    def make(name: str, describing: bool) -> bytes:
        if name in held:
            return held[name]
        return _described(name) if describing else parquet_of(_made(context, snapshot_id, name))

    start = files.add_generation(groups, make)
    held[_ENTRIES] = parquet_of(entry_table(entries, [start + key for key in keys.values()]))
    runs = grid_run_table(snapshot)
    if runs.num_rows:
        held[_RUNS] = parquet_of(runs)
    return Prepared(
        source=FileSource(start, snapshot_id, root_uri(context.storage.url), scans),
        together=together,
        by_array=by_array,
        held=held.keys(),
    )


@cache
def _described(name: str) -> bytes:
    if name.startswith(_MANIFESTS):
        return parquet_of(empty_table(_EVERY_COLUMN))
    return parquet_of(empty_table(CHANGES if name.startswith(_CHANGES) else FACTS[name]))


def _made(context: Context, snapshot_id: str, name: str) -> pa.Table:
    kind, _, between = name.partition("/")
    if kind != _CHANGES:
        return fact_table(context, name, snapshot_id)
    if not between:
        return empty_table(CHANGES)
    before, after = (
        find_named(context, bytes.fromhex(each).decode()) for each in between.split("/")
    )
    return change_table(context, before, after)
