"""Running an inspection query over a snapshot, in a DuckDB of its own; and what it joins beside the tables.

Owns what stands for the relations and parameters that queries name: views, and Arrow tables that are read off
structure files and listings, for the former; prepared parameters for the latter. A value never becomes part of
a text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import empty_table, from_numpy, from_values, indices, one_array
from icechunk_arrow.engine.history import ancestors, find_tip_to_read
from icechunk_arrow.errors import InvalidInputError, NodeNotFoundError
from icechunk_arrow.formats.layout import FileKind, file_id, key_of
from icechunk_arrow.formats.structure import sound_array
from icechunk_arrow.tables.columns import repeated, table_of
from icechunk_arrow.tables.inspections import OBSERVED, checked_parameters, find_inspection
from icechunk_arrow.tables.nodes import inventory_table
from icechunk_arrow.tables.queries import manifest_rows, root_uri
from icechunk_arrow.tables.reading import read_table
from icechunk_arrow.tables.scans import plan_some_scans
from icechunk_arrow.tables.schemas import INVENTORY
from icechunk_arrow.tables.sql import DUCKDB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.tables.inspections import Inspection
    from icechunk_arrow.tables.scans import Scan

__all__ = ["inspect_snapshot", "made_relations", "reached_by"]

_START = "inspected_"
"""What the names of relations that are Arrow begin with; no table of a repository does."""
_ALL = {"all_rows", "all_entries", "live_files"}
_LARGEST = 2**63 - 1
_CHUNKS = "c/"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _with_numbers(known: Iterable[str], *numbers: str) -> pa.Schema:
    return pa.schema([*map(INVENTORY.field, known), *((name, pa.int64()) for name in numbers)])


_DIMENSIONS = _with_numbers(("path", "node_id"), "dimension", "index_count", "chunks_per_index")
_EXTENTS = _with_numbers(("node_id", "manifest", "ndim"), "dimension", "first_index", "stop_index")
_ENTRIES = pa.schema(
    [
        ("snapshot", pa.string()),
        *_with_numbers(("path", "node_id", "manifest", "chunk_count", "stored_bytes")),
    ]
)
_REF_SNAPSHOTS = pa.schema(
    [("type", pa.string()), ("name", pa.string()), ("snapshot", pa.string()), ("age", pa.int64())]
)
_LOCATIONS = pa.schema([("location", pa.string())])


def inspect_snapshot(
    context: Context, name: str, snapshot_id: str, given: Mapping[str, Any]
) -> pa.Table:
    """Run a query of ``sql/inspect/`` over a snapshot, and give its rows in declared columns."""
    # icechunk_arrow.duckdb begins with what callers attach, and that is repositories, which inspect
    from icechunk_arrow.duckdb.reading import (  # noqa: PLC0415
        CheckedSource,
        checked_files,
        private_schema,
    )

    inspection = find_inspection(name)
    values = checked_parameters(inspection, given)
    _check_places(context, snapshot_id, inspection, values)
    relations, held = made_relations(context, inspection, snapshot_id, values)
    files = checked_files(context.storage)
    bound = {}
    with private_schema(context, snapshot_id, files=files) as (con, tables):
        names = {**tables, "item_at": DUCKDB.item_at}
        for relation, rows in relations.items():
            names[relation] = _START + relation
            con.register(names[relation], rows)
        if held is not None:
            snapshot = context.files.read_snapshot(snapshot_id)
            owners = {"a snapshot of a branch or tag": held.sizes}
            source = CheckedSource(files, context, snapshot, tables, owners)
            names["all_rows"] = f"({manifest_rows(source, held.scans)})"
        for parameter in inspection.parameters:
            if parameter.sql_type is not None:
                names[parameter.name] = f"CAST(${parameter.name} AS {parameter.sql_type})"
                bound[parameter.name] = values[parameter.name]
        table = con.sql(inspection.query(names), params=bound or None).to_arrow_table()
        return table.select(inspection.columns.names).cast(inspection.columns)


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


def made_relations(
    context: Context, inspection: Inspection, snapshot_id: str, values: Mapping[str, Any]
) -> tuple[dict[str, pa.Table], Reached | None]:
    """Make the relations of a query that are no views, and find the manifests of other snapshots."""
    wanted = set(inspection.relations)
    relations: dict[str, pa.Table] = {}
    held = None
    if "observed_files" in values:
        observed = values["observed_files"]
        relations["observed_files"] = _observed_storage(context) if observed is None else observed
    if "changes" in wanted:
        relations["changes"] = read_table(context, "changes", snapshot_id, values["since"])
    snapshot = context.files.read_snapshot(snapshot_id)
    if "dimensions" in wanted:
        relations["dimensions"] = _dimension_table(snapshot, values["path"])
    if "extents" in wanted:
        relations["extents"] = _extent_table(snapshot)
    if "history_entries" in wanted:
        relations["history_entries"] = reached_by(context, _history(context, snapshot_id)).entries
    if wanted & _ALL:
        relations["ref_snapshots"] = _ref_snapshot_table(context)
        reached: Sequence[str] = relations["ref_snapshots"]["snapshot"].to_pylist()
        held = reached_by(context, reached)
        relations["all_entries"] = held.entries
        if "live_files" in wanted:
            relations["live_files"] = _live_file_table(context, reached)
    return relations, held


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reached:
    """What several snapshots have in manifests."""

    entries: pa.Table
    """A row for each snapshot, array and manifest."""
    scans: tuple[Scan, ...]
    """Each manifest once."""
    sizes: Mapping[str, int]
    """Bytes of each manifest."""


def reached_by(context: Context, snapshots: Iterable[str]) -> Reached:
    """Gather the inventories of several snapshots, no manifest of which is opened; each is scanned once."""
    parts = [empty_table(_ENTRIES)]
    sizes: dict[str, int] = {}
    kinds: dict[Scan, list[str]] = {}
    for snapshot_id in dict.fromkeys(snapshots):
        snapshot = context.files.read_snapshot(snapshot_id)
        inventory = inventory_table(snapshot)
        columns = [inventory[each] for each in _ENTRIES.names[1:]]
        parts.append(table_of(_ENTRIES, [repeated(snapshot_id, len(inventory)), *columns]))
        fresh = {name: size for name, size in snapshot.manifest_sizes.items() if name not in sizes}
        sizes |= fresh
        for scan in plan_some_scans(snapshot, fresh) if fresh else ():
            kind = replace(scan, manifests=(), ndim=None)
            kinds.setdefault(kind, []).extend(scan.manifests)
    scans = tuple(replace(kind, manifests=tuple(names)) for kind, names in kinds.items())
    return Reached(entries=pa.concat_tables(parts), scans=scans, sizes=sizes)


def _dimension_table(snapshot: Snapshot, path: str | None = None) -> pa.Table:
    """Say how many chunk indices each dimension of arrays has, and how many chunks each of these."""
    rows: list[tuple[str, int, int, int, int | None]] = []
    for node in snapshot.nodes() if path is None else [snapshot.get_node(path)]:
        if node.is_array:
            with sound_array(node.path, snapshot.id):
                counts, total = node.grid.chunk_counts, node.grid.chunk_count
            for dimension, count in enumerate(counts):
                each = total // count if total else _others(counts, dimension)
                known = each if max(total, each) <= _LARGEST else None
                rows.append((node.path, node.id, dimension, count, known))
    return _table(_DIMENSIONS, rows)


def _others(counts: Sequence[int], dimension: int) -> int:
    """Multiply the numbers of indices of all dimensions but one."""
    product = 1
    for place, count in enumerate(counts):
        product *= 1 if place == dimension else count
    return product


def _extent_table(snapshot: Snapshot) -> pa.Table:
    """Say within which indices each manifest has chunks of each array, dimension by dimension."""
    entries = snapshot.entries
    of_entry = np.repeat(np.arange(len(entries)), entries.ranks)
    firsts = np.cumsum(entries.ranks) - entries.ranks
    inventory = inventory_table(snapshot).select(["node_id", "manifest", "ndim"])
    columns = [
        *inventory.take(indices(of_entry)).columns,
        from_numpy(np.arange(len(of_entry)) - firsts[of_entry], pa.int64()),
        *(from_numpy(entries.pairs[:, which], pa.int64()) for which in (0, 1)),
    ]
    return table_of(_EXTENTS, columns)


def _ref_snapshot_table(context: Context) -> pa.Table:
    """Give every snapshot that a branch or tag reaches, and how many commits it is behind."""
    catalog = context.catalog
    rows = []
    for kind, names in (("branch", catalog.list_branches()), ("tag", catalog.list_tags())):
        for name in sorted(names):
            if kind == "tag":
                snapshot_id = catalog.find_tag(name)
            else:
                tip = find_tip_to_read(context, name)
                snapshot_id = None if tip is None else tip.snapshot_id
            if snapshot_id is not None:
                rows += [
                    (kind, name, each, age)
                    for age, each in enumerate(_history(context, snapshot_id))
                ]
    return _table(_REF_SNAPSHOTS, rows)


def _history(context: Context, snapshot_id: str) -> list[str]:
    """Give the ids of a snapshot and all before it, newest first."""
    return [info.id for info in ancestors(context.files, snapshot_id)]


def _live_file_table(context: Context, snapshots: Iterable[str]) -> pa.Table:
    """Give all files but those of chunks that snapshots are made of."""
    keys: dict[str, None] = {}
    for snapshot_id in dict.fromkeys(snapshots):
        snapshot = context.files.read_snapshot(snapshot_id)
        keys[key_of(FileKind.STRUCTURE, snapshot_id)] = None
        keys[key_of(FileKind.TRANSACTION, snapshot_id)] = None
        keys.update((key_of(FileKind.MANIFEST, each), None) for each in snapshot.manifest_sizes)
        references = one_array(snapshot.table["attrs_reference"]).drop_null()
        for name in references.field("attrs_file").unique().to_pylist():
            keys[key_of(FileKind.ATTRIBUTES, file_id(name))] = None
    root = root_uri(context.storage.url)
    return _table(_LOCATIONS, [(f"{root}/{key}",) for key in keys])


def _observed_storage(context: Context) -> pa.Table:
    """List the files of a repository, without its branches, tags and settings."""
    root = root_uri(context.storage.url)
    folders = [_CHUNKS, *(f"{kind.value}/" for kind in FileKind)]
    rows = [
        (f"{root}/{info.key}", info.size_bytes, None, _moment(info.modified))
        for folder in folders
        for info in context.storage.list(folder)
    ]
    return _table(OBSERVED, rows)


def _moment(time: datetime | None) -> int | None:
    return None if time is None else (time - _EPOCH) // _MICROSECOND


def _table(schema: pa.Schema, rows: Sequence[Sequence[object]]) -> pa.Table:
    columns = [
        from_values([row[place] for row in rows], field.type) for place, field in enumerate(schema)
    ]
    return pa.Table.from_arrays(columns, schema=schema)
