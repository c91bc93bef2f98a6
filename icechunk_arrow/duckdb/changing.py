"""What changed between two snapshots, chunk by chunk: only manifests that one of the two has alone are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_arrow.duckdb.definitions import (
    Places,
    change_query,
    names_in,
    pathed_rows_sql,
    shared_statements,
)
from icechunk_arrow.duckdb.private import arrow_table, connection, new_files
from icechunk_arrow.duckdb.quoting import text
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.storage.table_files import FileGroup
from icechunk_arrow.tables.differences import later_paths, node_changes, own_manifests
from icechunk_arrow.tables.manifests import entries_of
from icechunk_arrow.tables.places import root_uri
from icechunk_arrow.tables.scans import plan_some_scans
from icechunk_arrow.tables.schemas import CHANGES

if TYPE_CHECKING:
    import pyarrow as pa

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.tables.scans import Scan

__all__ = ["change_table", "later_paths"]

_SCHEMA = "main"


class _OwnFiles(Places):
    """Finds the manifests that one of two snapshots has alone."""

    def __init__(self, start: str, root: str, names: dict[Scan, str]) -> None:
        self.root = root
        self._start = start
        self._names = names

    def files(self, scan: Scan) -> str:
        """Name the group of files."""
        return text(self._start + self._names[scan])


def change_table(context: Context, before_id: str, after_id: str) -> pa.Table:
    """Make the table of what changed from one snapshot to another, whatever lies between them."""
    before, after = (context.files.read_snapshot(each) for each in (before_id, after_id))
    plans = [
        (snapshot, plan_some_scans(entries_of(snapshot), own_manifests(snapshot, other)))
        for snapshot, other in ((before, after), (after, before))
    ]
    files = new_files(context.storage)
    names = [
        {scan: f"{side}-{number}" for number, scan in enumerate(scans)}
        for side, (_, scans) in zip(("before", "after"), plans, strict=True)
    ]
    groups = {
        name: _group(snapshot, scan)
        for (snapshot, _), named in zip(plans, names, strict=True)
        for scan, name in named.items()
    }
    start = files.add_generation(groups, _nothing)
    root = root_uri(context.storage.url)
    macros = names_in(_SCHEMA)
    with connection(files) as con:
        con.register("node_changes", node_changes(context.files, before, after))
        sides = []
        for side, (snapshot, scans), named in zip(("before", "after"), plans, names, strict=True):
            con.register(f"{side}_paths", later_paths(snapshot, after))
            sides.append(
                pathed_rows_sql(scans, _OwnFiles(start, root, named), macros, f"{side}_paths")
            )
        con.execute(";\n".join(shared_statements(_SCHEMA)))
        query = change_query(
            sides[0], sides[1], "node_changes", from_snapshot=before_id, to_snapshot=after_id
        )
        return arrow_table(con, query, CHANGES)


def _group(snapshot: Snapshot, scan: Scan) -> FileGroup:
    return FileGroup(
        sizes={
            key_of(FileKind.MANIFEST, name): snapshot.manifest_sizes[name]
            for name in scan.manifests
        },
        owner=f"the snapshot {snapshot.id}",
    )


def _nothing(name: str, describing: bool) -> bytes:
    raise AssertionError((name, describing))
