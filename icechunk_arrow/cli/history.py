"""The commands about history: snapshots, branches and tags, and what changed between two."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.cli.consoles import working
from icechunk_arrow.cli.output import emit, pick
from icechunk_arrow.core.columns import from_values
from icechunk_arrow.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icechunk_arrow.cli.options import RowsTo
    from icechunk_arrow.tables.selection import Which

__all__ = ["branches", "diff", "log", "tags"]

_LOG = pa.schema(
    [
        ("snapshot", pa.string()),
        ("parent", pa.string()),
        ("written_at", pa.timestamp("us", "UTC")),
        ("message", pa.string()),
    ]
)


def log(
    url: str,
    *,
    limit: int | None,
    which: Which,
    to: RowsTo,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """List a snapshot and all before it, newest first."""
    with working(f"reading the history of {url}"):
        repository = Repository.open(url, storage_options)
        start = repository.readonly_session(**which).snapshot_id
        snapshots = islice(repository.ancestry(snapshot_id=start), limit)
        rows = [(each.id, each.parent_id, each.written_at, each.message) for each in snapshots]
    columns = [
        from_values([row[place] for row in rows], field.type) for place, field in enumerate(_LOG)
    ]
    emit(pa.Table.from_arrays(columns, schema=_LOG), to)


def branches(url: str, *, to: RowsTo, storage_options: Mapping[str, Any] | None) -> None:
    """List the branches as they stand now."""
    _emit_refs("branch", ["name", "snapshot", "sequence"], url, to, storage_options)


def tags(url: str, *, to: RowsTo, storage_options: Mapping[str, Any] | None) -> None:
    """List the tags as they stand now."""
    _emit_refs("tag", ["name", "snapshot"], url, to, storage_options)


def _emit_refs(
    kind: str,
    columns: list[str],
    url: str,
    to: RowsTo,
    storage_options: Mapping[str, Any] | None,
) -> None:
    with working(f"reading {url}"):
        table = Repository.open(url, storage_options).tables("refs")
    of_kind = [(row["name"], i) for i, row in enumerate(table.to_pylist()) if row["type"] == kind]
    emit(pick(table.select(columns), of_kind), to)


def diff(
    url: str,
    *,
    since: str | None,
    chunks: bool,
    which: Which,
    to: RowsTo,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Say what changed up to a snapshot, since another one."""
    with working(f"comparing snapshots of {url}"):
        changes = Repository.open(url, storage_options).tables("changes", since=since, **which)
    if not chunks:
        keys = ["path", "change", "node_type", "from_path"]
        changes = changes.group_by(keys).aggregate([([], "count_all")])
        changes = changes.rename_columns([*keys, "count"])
    emit(changes.sort_by([("path", "ascending"), ("change", "ascending")]), to)
