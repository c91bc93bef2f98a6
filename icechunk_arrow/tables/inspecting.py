"""Running an inspection query over a snapshot, in a DuckDB of its own.

Owns what stands for the relations and parameters that queries name: views and Arrow tables for the former, and
prepared parameters for the latter. A value never becomes part of a text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icechunk_arrow.errors import InvalidInputError, NodeNotFoundError
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.storage.table_files import FileGroup
from icechunk_arrow.tables.inspection_facts import (
    dimension_table,
    entries_of_snapshots,
    extent_table,
    held_by,
    history_of,
    live_file_table,
    observed_storage,
    ref_snapshot_table,
)
from icechunk_arrow.tables.inspections import checked_parameters, find_inspection
from icechunk_arrow.tables.places import root_uri
from icechunk_arrow.tables.reading import read_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.storage.table_files import TableFiles
    from icechunk_arrow.tables.inspection_facts import Held
    from icechunk_arrow.tables.inspections import Inspection

__all__ = ["inspect_snapshot"]

_SCHEMA = "main"
_START = "inspected_"
"""What the names of relations that are Arrow begin with; no table of a repository does."""
_ALL = {"all_rows", "all_entries", "live_files"}


def inspect_snapshot(
    context: Context, name: str, snapshot_id: str, given: Mapping[str, Any]
) -> pa.Table:
    """Run a query of ``sql/inspect/`` over a snapshot, and give its rows in declared columns."""
    # DuckDB takes a while to load and is an extra
    from icechunk_arrow.duckdb.definitions import names_in, shared_statements  # noqa: PLC0415
    from icechunk_arrow.duckdb.prepared import prepare  # noqa: PLC0415
    from icechunk_arrow.duckdb.private import connection, new_files  # noqa: PLC0415

    inspection = find_inspection(name)
    values = checked_parameters(inspection, given)
    _check_places(context, snapshot_id, inspection, values)
    files = new_files(context.storage)
    prepared = prepare(files, context, snapshot_id)
    made, held = _made(context, inspection, snapshot_id, values)
    names = names_in(_SCHEMA) | {"item_at": "list_extract"}
    names |= {relation: _START + relation for relation in made}
    if held is not None:
        names["all_rows"] = _rows(files, context, held)
    bound = {}
    for parameter in inspection.parameters:
        if parameter.sql_type is not None:
            names[parameter.name] = f"CAST(${parameter.name} AS {parameter.sql_type})"
            bound[parameter.name] = values[parameter.name]
    with connection(files) as con:
        with files.describing():
            con.execute(";\n".join([*shared_statements(_SCHEMA), *prepared.statements(_SCHEMA)]))
        for relation, table in made.items():
            con.register(_START + relation, table)
        found = con.sql(inspection.query(names), params=bound or None).to_arrow_table()
        return found.select(inspection.columns.names).cast(inspection.columns)


def _check_places(
    context: Context, snapshot_id: str, inspection: Inspection, values: Mapping[str, Any]
) -> None:
    """Refuse a path that is no array's, and a dimension that this array has not."""
    named = {each.kind: values[each.name] for each in inspection.parameters}
    path, dimension = named.get("array"), named.get("dimension")
    if path is None:
        return
    node = context.files.read_snapshot(snapshot_id).find_node(path)
    if node is None or not node.is_array:
        fact = "is no node" if node is None else "is a group"
        raise NodeNotFoundError(
            f"{path!r} {fact} of snapshot {snapshot_id}; the inspection {inspection.name!r} asks for the "
            f"path of an array, such as the table 'arrays' lists",
            path=path,
        )
    ndim = len(node.chunk_counts)
    if dimension is not None and dimension >= ndim:
        raise InvalidInputError(
            f"the array {path!r} has {ndim} dimensions, counted from 0: there is no dimension {dimension}"
        )


def _made(
    context: Context, inspection: Inspection, snapshot_id: str, values: Mapping[str, Any]
) -> tuple[dict[str, pa.Table], Held | None]:
    """Make the relations of a query that are no views, and find the manifests of other snapshots."""
    wanted = set(inspection.relations)
    made: dict[str, pa.Table] = {}
    held = None
    if "observed_files" in values:
        observed = values["observed_files"]
        made["observed_files"] = observed_storage(context) if observed is None else observed
    if "changes" in wanted:
        made["changes"] = read_table(context, "changes", snapshot_id, values["since"])
    snapshot = context.files.read_snapshot(snapshot_id)
    if "dimensions" in wanted:
        made["dimensions"] = dimension_table(snapshot, values["path"])
    if "extents" in wanted:
        made["extents"] = extent_table(snapshot)
    if "history_entries" in wanted:
        past = history_of(context, snapshot_id)
        made["history_entries"] = entries_of_snapshots(context, past)
    if wanted & _ALL:
        made["ref_snapshots"] = ref_snapshot_table(context)
        reached: Sequence[str] = made["ref_snapshots"]["snapshot"].to_pylist()
        held = held_by(context, reached)
        made["all_entries"] = held.entries
        if "live_files" in wanted:
            made["live_files"] = live_file_table(context, reached)
    return made, held


def _rows(files: TableFiles, context: Context, held: Held) -> str:
    """Read the rows of all manifests that several snapshots have."""
    from icechunk_arrow.duckdb.definitions import Places, rows_sql  # noqa: PLC0415
    from icechunk_arrow.duckdb.quoting import text  # noqa: PLC0415

    scans = {scan: f"held-{number}" for number, scan in enumerate(held.scans)}
    groups = {
        name: FileGroup(
            sizes={key_of(FileKind.MANIFEST, each): held.sizes[each] for each in scan.manifests},
            owner="a snapshot of a branch or tag",
        )
        for scan, name in scans.items()
    }
    start = files.add_generation(groups, _nothing)

    class Everywhere(Places):
        """Finds the manifests of all these snapshots."""

        root = root_uri(context.storage.url)

        def files(self, scan: Any) -> str:
            return text(start + scans[scan])

    return f"({rows_sql(held.scans, Everywhere())})"


def _nothing(name: str, describing: bool) -> bytes:
    raise AssertionError((name, describing))
