"""Relations that inspection queries join beside the tables: dimensions, extents, and what other snapshots hold.

All are Arrow, read off structure files and listings; no chunk manifest is opened for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.chunks import HAS_CRC, WIDE
from icechunk_arrow.core.columns import empty_table, from_numpy, from_values, indices, one_array
from icechunk_arrow.engine.history import ancestors
from icechunk_arrow.engine.timetravel import find_tip_to_read
from icechunk_arrow.formats.layout import FileKind, file_id, key_of
from icechunk_arrow.tables.columns import repeated
from icechunk_arrow.tables.inspections import OBSERVED
from icechunk_arrow.tables.manifests import entries_of
from icechunk_arrow.tables.places import root_uri
from icechunk_arrow.tables.scans import plan_some_scans

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.tables.manifests import Entries
    from icechunk_arrow.tables.scans import Scan

__all__ = [
    "Held",
    "dimension_table",
    "entries_of_snapshots",
    "extent_table",
    "held_by",
    "history_of",
    "live_file_table",
    "observed_storage",
    "ref_snapshot_table",
]

_LARGEST = 2**63 - 1
_CHUNKS = "c/"
_FORM = WIDE | HAS_CRC
"""What makes manifests differ on disk beside what a scan says."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DIMENSIONS = pa.schema(
    [
        ("path", pa.string()),
        ("node_id", pa.int64()),
        ("dimension", pa.int64()),
        ("index_count", pa.int64()),
        ("chunks_per_index", pa.int64()),
    ]
)
_EXTENTS = pa.schema(
    [
        ("node_id", pa.int64()),
        ("manifest", pa.string()),
        ("ndim", pa.int64()),
        ("dimension", pa.int64()),
        ("first_index", pa.int64()),
        ("stop_index", pa.int64()),
    ]
)
_ENTRIES = pa.schema(
    [
        ("snapshot", pa.string()),
        ("path", pa.string()),
        ("node_id", pa.int64()),
        ("manifest", pa.string()),
        ("chunk_count", pa.int64()),
        ("stored_bytes", pa.int64()),
    ]
)
_REF_SNAPSHOTS = pa.schema(
    [("type", pa.string()), ("name", pa.string()), ("snapshot", pa.string()), ("age", pa.int64())]
)
_LOCATIONS = pa.schema([("location", pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """What several snapshots have in manifests."""

    entries: pa.Table
    """A row for each snapshot, array and manifest."""
    scans: tuple[Scan, ...]
    """Each manifest once."""
    sizes: dict[str, int]
    """Bytes of each manifest."""


def dimension_table(snapshot: Snapshot, path: str | None = None) -> pa.Table:
    """Say how many chunk indices each dimension of arrays has, and how many chunks each of these."""
    rows: list[tuple[str, int, int, int, int | None]] = []
    for node in snapshot.nodes() if path is None else [snapshot.get_node(path)]:
        if node.is_array:
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


def extent_table(snapshot: Snapshot) -> pa.Table:
    """Say within which indices each manifest has chunks of each array, dimension by dimension."""
    entries = entries_of(snapshot)
    starts, stops = entries.bound("start").to_pylist(), entries.bound("stop").to_pylist()
    rows = [
        (node_id, entries.manifests[code], len(lower), dimension, first, stop)
        for node_id, code, lower, upper in zip(
            entries.node_ids.tolist(), entries.codes.tolist(), starts, stops, strict=True
        )
        for dimension, (first, stop) in enumerate(zip(lower, upper, strict=True))
    ]
    return _table(_EXTENTS, rows)


def ref_snapshot_table(context: Context) -> pa.Table:
    """Give every snapshot that a branch or tag reaches, and how many commits it is behind."""
    catalog = context.catalog
    rows = []
    for kind, names in (("branch", catalog.list_branches()), ("tag", catalog.list_tags())):
        for name in sorted(names):
            if kind == "tag":
                found = catalog.find_tag(name)
            else:
                tip = find_tip_to_read(context, name)
                found = None if tip is None else tip.snapshot_id
            if found is not None:
                rows += [
                    (kind, name, each, age) for age, each in enumerate(history_of(context, found))
                ]
    return _table(_REF_SNAPSHOTS, rows)


def history_of(context: Context, snapshot_id: str) -> list[str]:
    """Give the ids of a snapshot and all before it, newest first."""
    return [info.id for info in ancestors(context.files, snapshot_id)]


def entries_of_snapshots(context: Context, snapshots: Iterable[str]) -> pa.Table:
    """Give a row for each snapshot, array and manifest; no manifest is opened."""
    found = ((each, entries_of(context.files.read_snapshot(each))) for each in snapshots)
    parts = [_entry_rows(each, entries) for each, entries in found]
    return pa.concat_tables([empty_table(_ENTRIES), *parts])


def _entry_rows(snapshot_id: str, entries: Entries) -> pa.Table:
    columns = [
        repeated(snapshot_id, len(entries)),
        entries.paths,
        from_numpy(entries.node_ids, pa.int64()),
        from_values(entries.manifests, pa.string()).take(indices(entries.codes)),
        from_numpy(entries.row_counts, pa.int64()),
        entries.stored_bytes,
    ]
    return pa.Table.from_arrays(columns, schema=_ENTRIES)


def held_by(context: Context, snapshots: Iterable[str]) -> Held:
    """Gather the inventories of several snapshots; a manifest that many of them have is read once."""
    parts = [empty_table(_ENTRIES)]
    sizes: dict[str, int] = {}
    kinds: dict[tuple[Scan, int], list[str]] = {}
    for snapshot_id in dict.fromkeys(snapshots):
        snapshot = context.files.read_snapshot(snapshot_id)
        entries = entries_of(snapshot)
        parts.append(_entry_rows(snapshot_id, entries))
        fresh = [name for name in snapshot.manifest_sizes if name not in sizes]
        sizes.update((name, snapshot.manifest_sizes[name]) for name in fresh)
        forms = _forms(entries) if fresh else {}
        for scan in plan_some_scans(entries, fresh) if fresh else ():
            form = replace(scan, manifests=(), ndim=None, owner=None)
            kinds.setdefault((form, forms[scan.manifests[0]]), []).extend(scan.manifests)
    scans = tuple(replace(form, manifests=tuple(names)) for (form, _), names in kinds.items())
    return Held(entries=pa.concat_tables(parts), scans=scans, sizes=sizes)


def _forms(entries: Entries) -> dict[str, int]:
    """Tell of each manifest what form it has on disk."""
    flags = np.zeros(len(entries.manifests), np.uint16)
    np.bitwise_or.at(flags, entries.codes, entries.flags)
    return dict(zip(entries.manifests, (flags & np.uint16(_FORM)).tolist(), strict=True))


def live_file_table(context: Context, snapshots: Iterable[str]) -> pa.Table:
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


def observed_storage(context: Context) -> pa.Table:
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
