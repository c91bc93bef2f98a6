"""The plan of a commit: which files, in which order, then the one entry that decides.

Pure: everything that has to be read, every id and the time are arguments. Dry runs, crash tests and
whoever drives executors use the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import coords
from icechunk_arrow.core.chunks import concat_sorted, extent_of
from icechunk_arrow.core.columns import one_array, to_numpy
from icechunk_arrow.core.log import BulkWrite, ChunkChanges, NodeName, TransactionLog
from icechunk_arrow.core.manifests import (
    MAX_MANIFEST_ROWS,
    affected_entries,
    entries_of,
    is_covered,
    merge_groups,
    subtract,
)
from icechunk_arrow.core.snapshot import AttributesRef, Inventories, Node, SnapshotFacts
from icechunk_arrow.formats import attributes, manifest, structure, transaction
from icechunk_arrow.formats.envelope import header_metadata
from icechunk_arrow.formats.layout import FileKind, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime
    from typing import Any

    from icechunk_arrow.core.chunks import Extent
    from icechunk_arrow.core.snapshot import InventoryEntry, Snapshot
    from icechunk_arrow.engine.staging import Delta

__all__ = [
    "UNCOMMITTED",
    "Changes",
    "CommitPlan",
    "PlannedFile",
    "Reading",
    "describe",
    "log_of",
    "plan_commit",
    "plan_reading",
]

UNCOMMITTED = ""
"""Stands for the manifest of a bulk write that is not committed yet."""
LOGGED_COORDS = 1000
"""Up to so many chunks of an array are logged one by one; more are logged as manifest and extent."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """What a session wants to commit on a base."""

    overlay: Mapping[str, Node | None]
    deltas: Mapping[int, Delta]
    next_node_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """One file of a commit."""

    key: str
    data: bytes
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommitPlan:
    """The files of a commit in order, and the snapshot that the branch entry will name."""

    files: tuple[PlannedFile, ...]
    snapshot: Snapshot
    log: TransactionLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What must be read before a commit can be planned, and what becomes of the live manifests."""

    units: tuple[tuple[str, ...], ...]
    """Manifests to be read and written again without what goes; those of one unit become one."""
    dropped: frozenset[str]
    """Manifests of which nothing is left."""


def _touched(base: Snapshot, changes: Changes) -> tuple[dict[int, Node], set[int]]:
    """Nodes that are new or changed, by id, and ids of the base that are no more."""
    changed = {node.id: node for node in changes.overlay.values() if node is not None}
    before = {base.get_node(path).id for path in changes.overlay if path in base.rows_by_path}
    return changed, before - changed.keys()


def _extents(delta: Delta, ndim: int) -> tuple[Extent | None, Extent | None, Extent | None]:
    written = one_array(delta.written["coord"]) if delta.written.num_rows else None
    return (
        None if written is None else extent_of(written, ndim),
        extent_of(delta.deleted, ndim) if len(delta.deleted) else None,
        delta.kept_extent,
    )


def plan_reading(base: Snapshot, changes: Changes) -> Reading:
    """Decide which live manifests lose rows, and which are merged because many small ones gathered."""
    _, removed = _touched(base, changes)
    losing: set[str] = set()
    covered: dict[str, set[int]] = {}
    for node_id in removed:
        gone = base.find_node_by_id(node_id)
        for name in gone.inventories.manifests if gone else ():
            losing.add(name)
            covered.setdefault(name, set()).add(node_id)
    for node_id, delta in changes.deltas.items():
        node = base.find_node_by_id(node_id)
        if node is None or not len(node.inventories):
            continue
        written, deleted, kept = _extents(delta, node.inventories.starts.shape[1])
        for index in affected_entries(node.inventories, written, deleted, kept):
            entry = node.inventories[index]
            losing.add(entry.manifest)
            if is_covered(entry, written, delta.written.num_rows, kept):
                covered.setdefault(entry.manifest, set()).add(node_id)
    tenants = structure.tenants(base, losing)
    dropped = {name for name in losing if covered.get(name, set()) >= tenants[name]}
    counts = structure.manifest_row_counts(base)
    groups = merge_groups({n: c for n, c in counts.items() if n not in dropped})
    merged = {name for group in groups for name in group}
    single = [(name,) for name in sorted(losing - dropped - merged)]
    return Reading(units=(*map(tuple, groups), *single), dropped=frozenset(dropped))


def plan_commit(
    base: Snapshot,
    changes: Changes,
    *,
    reading: Reading,
    tables: Mapping[str, pa.Table],
    new_ids: Iterator[str],
    started_at: datetime,
    written_at: datetime,
    message: str,
    properties: Mapping[str, Any],
    branch: str,
    sequence: int | None,
    inline_attributes_bytes: int,
) -> CommitPlan:
    """Plan a commit; ``tables`` holds the manifests that ``reading`` names."""
    changed, removed = _touched(base, changes)
    identifier = next(new_ids)
    files: list[PlannedFile] = []
    sizes = dict(base.manifest_sizes)

    def add(kind: FileKind, name: str, data: bytes) -> None:
        files.append(PlannedFile(key=key_of(kind, name), data=data, metadata=header_metadata(kind)))

    def write_manifests(table: pa.Table) -> None:
        ids = np.unique(to_numpy(table["array_id"])).tolist()
        ndims = {i: len(_shape(base, changed, i)) for i in ids}
        for start in range(0, table.num_rows, MAX_MANIFEST_ROWS):
            part, name = table.slice(start, MAX_MANIFEST_ROWS), next(new_ids)
            data = manifest.encode(part, name)
            add(FileKind.MANIFEST, name, data)
            sizes[name] = len(data)
            for array_id, entry in entries_of(part, name, ndims).items():
                new_entries.setdefault(array_id, []).append(entry)

    new_entries: dict[int, list[InventoryEntry]] = {}
    written = concat_sorted([d.written for _, d in sorted(changes.deltas.items())])
    write_manifests(written)
    delta_entries = {array_id: list(entries) for array_id, entries in new_entries.items()}

    gone = _gone(base, changes)
    rewritten = set(reading.dropped)
    for unit in reading.units:
        before = [tables[name] for name in unit]
        after = [subtract(table, gone, removed) for table in before]
        if len(unit) == 1 and after[0].num_rows == before[0].num_rows:
            continue
        rewritten.update(unit)
        write_manifests(concat_sorted(after))

    for node_id in {*new_entries, *structure.tenant_ids(base, rewritten)} - removed:
        node = changed.get(node_id) or base.find_node_by_id(node_id)
        assert node is not None
        changed[node_id] = node
    for node_id, node in changed.items():
        if node.columns is None:
            continue
        old = base.find_node_by_id(node_id)
        kept = [] if old is None else [e for e in old.inventories if e.manifest not in rewritten]
        entries = [*kept, *new_entries.get(node_id, [])]
        inventories = Inventories.of(entries, len(node.columns.shape))
        changed[node_id] = replace(node, inventories=inventories)

    _plan_attributes(changed, inline_attributes_bytes, new_ids, add)
    facts = SnapshotFacts(
        id=identifier,
        message=message,
        written_at=written_at,
        started_at=started_at,
        properties=properties,
        history=base.facts.history_of_child(),
        total_parents=base.facts.total_parents + 1,
        next_node_id=max(changes.next_node_id, base.facts.next_node_id),
        branch=branch,
        sequence=sequence,
    )
    log = log_of(base, changes, facts=facts, delta_entries=delta_entries)
    snapshot = structure.with_changes(
        base, facts, removed=removed, changed=list(changed.values()), manifest_sizes=sizes
    )
    add(FileKind.TRANSACTION, identifier, transaction.encode(log))
    add(FileKind.STRUCTURE, identifier, structure.encode(snapshot))
    return CommitPlan(files=tuple(files), snapshot=snapshot, log=log)


def _shape(base: Snapshot, changed: Mapping[int, Node], node_id: int) -> tuple[int, ...]:
    """Shape of an array, for its number of dimensions."""
    node = changed.get(node_id) or base.find_node_by_id(node_id)
    if node is None or node.columns is None:
        return ()
    return node.columns.shape


def _gone(base: Snapshot, changes: Changes) -> dict[int, tuple[pa.Array, Extent | None]]:
    """Per array of the base: coordinates whose old rows go, and the extent outside which all go."""
    found = {}
    for node_id, delta in changes.deltas.items():
        if node_id in base.rows_by_id:
            written = one_array(delta.written["coord"])
            found[node_id] = (pa.concat_arrays([written, delta.deleted]), delta.kept_extent)
    return found


def _plan_attributes(
    changed: dict[int, Node],
    inline_bytes: int,
    new_ids: Iterator[str],
    add: Callable[[FileKind, str, bytes], None],
) -> None:
    """Move large attributes into one attributes file; those that stand in one already stay there."""
    large = [
        node
        for _, node in sorted(changed.items())
        if node.attributes is not None and len(node.attributes) > inline_bytes
    ]
    if not large:
        return
    name = next(new_ids)
    rows = [(node.id, node.attributes or b"") for node in large]
    add(FileKind.ATTRIBUTES, name, attributes.encode(rows, name))
    for row, node in enumerate(large):
        reference = AttributesRef(identifier=name, row=row)
        changed[node.id] = replace(node, attributes=None, attributes_ref=reference)


def log_of(
    base: Snapshot,
    changes: Changes,
    *,
    facts: SnapshotFacts | None = None,
    delta_entries: Mapping[int, list[InventoryEntry]] | None = None,
) -> TransactionLog:
    """Tell what changes do to a base; without ``delta_entries`` every written chunk is named."""
    changed, removed = _touched(base, changes)
    created, moved, metadata, attrs = [], [], [], []
    names = {}
    for node in sorted(changed.values(), key=lambda n: n.path):
        name = NodeName(id=node.id, path=node.path, type=node.type)
        names[node.id] = name
        old = base.find_node_by_id(node.id)
        if old is None:
            created.append(name)
            continue
        if old.path != node.path:
            moved.append((name, old.path))
        if (old.columns, old.extension) != (node.columns, node.extension):
            metadata.append(name)
        if (old.attributes, old.attributes_ref) != (node.attributes, node.attributes_ref):
            attrs.append(name)
    deleted = [n for n in map(base.find_node_by_id, removed) if n is not None]
    chunks = {}
    for node_id, delta in changes.deltas.items():
        entries = None if delta_entries is None else delta_entries.get(node_id)
        found = _chunk_changes(delta, entries)
        if found.is_empty:
            continue
        chunks[node_id] = found
        if node_id not in names:
            node_ = base.find_node_by_id(node_id)
            assert node_ is not None
            names[node_id] = NodeName(id=node_id, path=node_.path, type="array")
    return TransactionLog(
        facts=facts,
        created=tuple(created),
        deleted=tuple(
            NodeName(id=n.id, path=n.path, type=n.type)
            for n in sorted(deleted, key=lambda n: n.path)
        ),
        moved=tuple(moved),
        updated_metadata=tuple(metadata),
        updated_attributes=tuple(attrs),
        chunks=chunks,
        names={node_id: names[node_id] for node_id in chunks},
    )


def _chunk_changes(delta: Delta, entries: list[InventoryEntry] | None) -> ChunkChanges:
    written: tuple[bytes, ...] = ()
    bulk: tuple[BulkWrite, ...] = ()
    if delta.written.num_rows <= LOGGED_COORDS:
        written = tuple(delta.written["coord"].to_pylist())
    elif entries is not None:
        bulk = tuple(
            BulkWrite(manifest=e.manifest, extent=e.extent, chunk_count=e.row_count)
            for e in entries
        )
    else:
        column = one_array(delta.written["coord"])
        extent = extent_of(column, len(coords.decode_one(column[0].as_py())))
        bulk = (BulkWrite(manifest=UNCOMMITTED, extent=extent, chunk_count=len(column)),)
    return ChunkChanges(
        written=written, deleted=tuple(delta.deleted.to_pylist()), bulk=bulk, kept=delta.kept
    )


def describe(plan: CommitPlan, reading: Reading) -> list[str]:
    """Say in lines what a plan would do."""
    lines = [f"read {key_of(FileKind.MANIFEST, n)}" for unit in reading.units for n in unit]
    lines += [f"write {file.key} ({len(file.data)} bytes)" for file in plan.files]
    return [*lines, f"create the branch entry for snapshot {plan.snapshot.id}"]
