# ruff: noqa: S608  (making SQL is what this does; tests/sql attack it)
"""The tables of one snapshot as queries for Spark.

Owns which manifests and which small tables those need. How they become relations is a :class:`Maker`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import from_numpy, indices
from icechunk_arrow.spark.quoting import rows_text, text
from icechunk_arrow.spark.views.definitions import (
    CHUNK_ROWS,
    array_rows,
    chunk_rows,
    form_of,
    manifest_rows,
    pathed_rows,
)
from icechunk_arrow.spark.views.known import known_arrays
from icechunk_arrow.sql_texts import fill, statement
from icechunk_arrow.tables.differences import later_paths, node_changes, own_manifests
from icechunk_arrow.tables.facts import fact_table
from icechunk_arrow.tables.manifests import entries_of
from icechunk_arrow.tables.places import root_uri
from icechunk_arrow.tables.scans import plan_scans_by_array, plan_some_scans
from icechunk_arrow.tables.schemas import FACTS, OVER_CHUNKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.spark.views.definitions import Maker, Rows
    from icechunk_arrow.tables.manifests import Entries
    from icechunk_arrow.tables.scans import Scan

__all__ = ["Made", "chunk_query", "make_relations"]

_PATHS = pa.schema([("node_id", pa.int64()), ("path", pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What views of one repository are made of."""

    tables: Mapping[str, str]
    """A query for each table."""
    known: Mapping[str, Any]
    """What functions know of each array."""


def make_relations(
    maker: Maker,
    context: Context,
    snapshot_id: str,
    before_id: str,
    names: Mapping[str, str],
    *,
    own_scans: int,
) -> Made:
    """Make what the tables of a snapshot need, ``changes`` since another one.

    ``own_scans`` is how many arrays are read apart from the others, so that a condition on the path leaves out
    all but one of them.
    """
    snapshot, before = (context.files.read_snapshot(each) for each in (snapshot_id, before_id))
    entries = entries_of(snapshot)
    root = root_uri(context.storage.url)
    scans = plan_scans_by_array(entries, most_arrays=own_scans)
    rows = _opened(maker, root, scans, entries)
    facts = {name: fact_table(context, name, snapshot_id) for name in FACTS}
    tables = {name: f"SELECT * FROM {maker.table(table)}" for name, table in facts.items()}
    paths = _shared_paths(maker, entries, scans)
    checked = maker.checked
    relations = {
        "snapshot": text(snapshot_id),
        "nodes": f"({tables['nodes']})",
        "entries": f"(SELECT explode(m.arrays.path) AS path FROM ({tables['manifests']}) AS m)",
        "manifest_rows": manifest_rows(rows, root, checked=checked),
        "array_rows": array_rows(rows, root, paths, checked=checked),
        "chunk_rows": chunk_rows(rows, root, paths, names, checked=checked),
    }
    for name in OVER_CHUNKS:
        tables[name] = fill(statement(f"tables/{name}.sql"), relations)
    tables["changes"] = _changes(maker, context, before, snapshot, names)
    return Made(tables=tables, known=known_arrays(snapshot, facts["nodes"], entries))


def chunk_query(
    maker: Maker,
    context: Context,
    snapshot_id: str,
    manifests: Iterable[str],
    names: Mapping[str, str],
) -> str:
    """Read those rows of the table ``chunks`` that are in some manifests of a snapshot."""
    snapshot = context.files.read_snapshot(snapshot_id)
    entries = entries_of(snapshot)
    root = root_uri(context.storage.url)
    scans = plan_some_scans(entries, manifests)
    found = rows_text(CHUNK_ROWS.empty_table())
    if scans:
        paths = maker.table(later_paths(snapshot, snapshot))
        rows = _opened(maker, root, scans, entries)
        found = pathed_rows(rows, root, paths, names, checked=maker.checked)
    relations = {"snapshot": text(snapshot_id), "chunk_rows": f"({found})"}
    return fill(statement("tables/chunks.sql"), relations)


def _opened(maker: Maker, root: str, scans: Sequence[Scan], entries: Entries) -> dict[Scan, Rows]:
    return {scan: maker.rows(root, scan.manifests, form_of(entries, scan)) for scan in scans}


def _shared_paths(maker: Maker, entries: Entries, scans: Sequence[Scan]) -> str:
    """Give the paths of arrays that have rows in manifests without an owner.

    It is said which have none, too: that is how Spark leaves out the whole branch while it plans.
    """
    shared = [each for scan in scans if scan.owner is None for each in scan.manifests]
    if not shared:
        return f"({rows_text(_PATHS.empty_table())})"
    places = {each: place for place, each in enumerate(entries.manifests)}
    rows = np.flatnonzero(np.isin(entries.codes, [places[each] for each in shared]))
    found, first = np.unique(entries.node_ids[rows], return_index=True)
    columns = [from_numpy(found, pa.int64()), entries.paths.take(indices(rows[first]))]
    known = maker.table(pa.Table.from_arrays(columns, schema=_PATHS))
    here = set(found.tolist())
    owners = {scan.owner for scan in scans if scan.owner is not None}
    elsewhere = sorted(text(each.path) for each in owners if each.node_id not in here)
    where = f" WHERE path NOT IN ({', '.join(elsewhere)})" if elsewhere else ""
    return f"(SELECT * FROM {known}{where})"


def _changes(
    maker: Maker, context: Context, before: Snapshot, after: Snapshot, names: Mapping[str, str]
) -> str:
    root = root_uri(context.storage.url)
    nodes = node_changes(context.files, before, after)
    relations = {
        "node_changes": f"({rows_text(nodes)})" if not nodes.num_rows else maker.table(nodes),
        "from_snapshot": text(before.id),
        "to_snapshot": text(after.id),
    }
    for side, snapshot, other in (("before", before, after), ("after", after, before)):
        entries = entries_of(snapshot)
        scans = plan_some_scans(entries, own_manifests(snapshot, other))
        found = rows_text(CHUNK_ROWS.empty_table())
        if scans:
            paths = maker.table(later_paths(snapshot, after))
            rows = _opened(maker, root, scans, entries)
            found = pathed_rows(rows, root, paths, names, checked=maker.checked)
        relations[f"{side}_rows"] = f"({found})"
    return fill(statement("tables/changes.sql"), relations)
