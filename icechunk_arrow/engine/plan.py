"""The plan of a commit: which files, in which order, then the one entry that decides.

Pure: everything that has to be read, every id and the time are arguments. Dry runs, crash tests and
whoever drives executors use the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import grid_box, volume
from icechunk_arrow.core.chunks import (
    DENSE,
    extent_of,
    keep_rows,
    rows_of_arrays,
)
from icechunk_arrow.core.columns import bytes_at, to_numpy
from icechunk_arrow.core.inventory import Inventory
from icechunk_arrow.core.json_values import changed_members, decode_json
from icechunk_arrow.core.log import (
    NO_SINGLES,
    BulkWrite,
    ChunkLog,
    Cleared,
    NodeName,
    NodeUpdate,
    Resize,
    Singles,
    TransactionLog,
)
from icechunk_arrow.core.placement import (
    Live,
    choose_units,
    place,
    place_additions,
)
from icechunk_arrow.core.snapshot import AttributesRef, Node, SnapshotFacts
from icechunk_arrow.core.stream_marks import carried
from icechunk_arrow.formats import attributes, structure, transaction
from icechunk_arrow.formats.envelope import header_metadata
from icechunk_arrow.formats.layout import FileKind, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime
    from typing import Any

    from icechunk_arrow.core.chunk_set import ChunkSet
    from icechunk_arrow.core.boxes import Box
    from icechunk_arrow.core.inventory import InventoryEntry
    from icechunk_arrow.core.manifest_settings import ManifestSettings
    from icechunk_arrow.core.packing import ArrayShape
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.manifest_writer import WrittenManifests
    from icechunk_arrow.engine.settling import Settled

__all__ = [
    "UNCOMMITTED",
    "ArrayShapes",
    "Changes",
    "CommitPlan",
    "PlannedFile",
    "Reading",
    "log_of",
    "plan_commit",
    "plan_delta",
    "plan_reading",
]

UNCOMMITTED = ""
"""Stands for the manifest of a bulk write that is not committed yet."""
LOGGED_COORDS = 1000
"""Up to so many chunks of an array are logged one by one; more are logged as manifest and extent."""
MANY_COORDS = 16
"""From so many on, chunks that fill their extent are logged by it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """What a session wants to commit on a base."""

    overlay: Mapping[str, Node | None]
    chunks: Settled
    next_node_id: int
    attributes_before: Mapping[int, bytes | None] = field(default_factory=dict)
    """By node, of those whose attributes changed and stood in an attributes file: what stood there."""
    is_placement: bool = False
    """Whether every reference that is staged names the bytes that the chunk has already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """One file of a commit."""

    key: str
    data: bytes
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommitPlan:
    """The files of a commit in order, and the snapshot that the branch entry will name.

    Manifests are among the files only where one is all there is; many are written before.
    """

    files: tuple[PlannedFile, ...]
    snapshot: Snapshot
    log: TransactionLog
    base_synced: bool
    """Whether what it stands on survives a power cut."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """What becomes of the live manifests: which are read and written again, and without which rows."""

    units: tuple[tuple[str, ...], ...]
    """Manifests to be read and written again without what goes; those of one unit are placed anew."""
    dropped: frozenset[str]
    """Manifests of which nothing is left."""
    going: Mapping[int, ChunkSet]
    """What goes of arrays that stay."""
    removed: frozenset[int]
    """Arrays of which everything goes."""

    def sparse_manifests(self, base: Snapshot, unit: tuple[str, ...]) -> dict[int, list[str]]:
        """Manifests of the session to be read to know what goes from a unit, by array."""
        found = {}
        for node_id, chunks in self.going.items():
            node = base.find_node_by_id(node_id)
            if not len(chunks.sparse) or node is None:
                continue
            held = [entry for entry in node.inventories if entry.manifest in unit]
            names = {n for entry in held for n in chunks.sparse_manifests(entry.extent)}
            if names:
                found[node_id] = sorted(names)
        return found


def _touched(base: Snapshot, changes: Changes) -> tuple[dict[int, Node], set[int]]:
    """Nodes that are new or changed, by id, and ids of the base that are no more."""
    changed = {node.id: node for node in changes.overlay.values() if node is not None}
    before = {base.get_node(path).id for path in changes.overlay if path in base.rows_by_path}
    return changed, before - changed.keys()


class _NodeShape(NamedTuple):
    """A node's shape, with so many chunks that are not committed yet."""

    node: Node
    added: int

    @property
    def path(self) -> str:
        return self.node.path

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        return self.node.chunk_counts

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None:
        assert self.node.columns is not None
        return self.node.columns.dimension_names

    @property
    def chunk_count(self) -> int:
        return self.node.inventories.chunk_count + self.added


class ArrayShapes:
    """What placement asks of arrays, as they stand after some changes."""

    def __init__(self, base: Snapshot, changes: Changes) -> None:
        self._base = base
        self._changed, _ = _touched(base, changes)
        self._chunks = changes.chunks

    def _node(self, node_id: int) -> Node:
        node = self._changed.get(node_id) or self._base.find_node_by_id(node_id)
        assert node is not None
        return node

    def __call__(self, node_id: int) -> ArrayShape:
        """Give the shape of an array."""
        return _NodeShape(self._node(node_id), self._chunks.chunk_count(node_id))

    def grid(self, node_id: int) -> Box:
        """Give the extent of an array's grid, which its chunks do not leave."""
        return grid_box(self._node(node_id).chunk_counts)

    def ranks(self, table: pa.Table) -> dict[int, int]:
        """Tell how many dimensions the arrays of some rows have."""
        ids, _, _ = rows_of_arrays(table)
        columns = ((array_id, self._node(array_id).columns) for array_id in ids.tolist())
        return {array_id: len(found.shape) for array_id, found in columns if found is not None}

    def bounds(self, table: pa.Table) -> dict[int, Box]:
        """Give the extent of the grid where all of some rows are one array's: there it pays to know it."""
        ids = to_numpy(table["array_id"])
        return {int(ids[0]): self.grid(int(ids[0]))} if ids[0] == ids[-1] else {}


def plan_reading(
    base: Snapshot,
    changes: Changes,
    settings: ManifestSettings,
    shapes: ArrayShapes,
) -> Reading:
    """Decide which live manifests lose rows, and which are merged because many small ones gathered."""
    _, removed = _touched(base, changes)
    going: dict[int, ChunkSet] = {}
    losing: set[str] = set()
    covered: dict[str, set[int]] = {}
    for node_id in removed:
        gone = base.find_node_by_id(node_id)
        for name in gone.inventories.names if gone else ():
            losing.add(name)
            covered.setdefault(name, set()).add(node_id)
    for node_id in changes.chunks.array_ids:
        node = base.find_node_by_id(node_id)
        if node is None or not len(node.inventories):
            continue
        chunks = changes.chunks.chunk_set(node_id, shapes.grid(node_id))
        affected = chunks.touching(node.inventories.boxes)
        if affected:
            going[node_id] = chunks
        for index in affected:
            entry = node.inventories[index]
            losing.add(entry.manifest)
            if chunks.covers(entry):
                covered.setdefault(entry.manifest, set()).add(node_id)
    tenants = base.tenants(losing)
    dropped = {name for name in losing if covered.get(name, set()) >= tenants[name].keys()}
    units = choose_units(
        Live(
            row_counts=base.manifest_row_counts,
            tenants=base.tenants,
        ),
        losing,
        dropped,
        settings,
        shapes,
    )
    return Reading(
        units=units,
        dropped=frozenset(dropped),
        going=going,
        removed=frozenset(removed),
    )


def plan_delta(
    base: Snapshot,
    changes: Changes,
    settings: ManifestSettings,
    shapes: Callable[[int], ArrayShape],
) -> Iterator[pa.Table]:
    """Decide which manifests the session's own references become."""
    chunks = changes.chunks
    known = [
        node_id
        for node_id in chunks.array_ids
        if node_id in chunks.runs
        or ((node := base.find_node_by_id(node_id)) is not None and len(node.inventories))
    ]
    more = np.isin(chunks.written.node_ids, np.array(known, np.uint32))
    yield from place(keep_rows(chunks.rows, ~more), settings, shapes)
    yield from place_additions(keep_rows(chunks.rows, more), settings, shapes)


def plan_commit(
    base: Snapshot,
    changes: Changes,
    *,
    delta: WrittenManifests,
    rewritten: WrittenManifests,
    replaced: frozenset[str],
    new_ids: Iterator[str],
    started_at: datetime,
    written_at: datetime,
    message: str,
    properties: Mapping[str, Any],
    branch: str,
    sequence: int | None,
    inline_attributes_bytes: int,
    synced: bool,
) -> CommitPlan:
    """Plan a commit of what the session wrote (``delta``) on a base.

    ``rewritten`` are manifests that stand for the ``replaced`` ones; together they hold no chunk twice.
    """
    changed, removed = _touched(base, changes)
    identifier = next(new_ids)
    files: list[PlannedFile] = []

    def add(kind: FileKind, name: str, data: bytes) -> None:
        files.append(PlannedFile(key=key_of(kind, name), data=data, metadata=header_metadata(kind)))

    for name, data in delta.held.items():
        add(FileKind.MANIFEST, name, data)
    added = Inventory.united([delta.entries, *changes.chunks.run_entries])
    _plan_attributes(changed, inline_attributes_bytes, new_ids, add)
    facts = SnapshotFacts(
        id=identifier,
        repository=base.facts.repository,
        message=message,
        written_at=written_at,
        started_at=started_at,
        properties=carried(base.facts.properties, properties),
        history=base.facts.history_of_child(),
        total_parents=base.facts.total_parents + 1,
        next_node_id=max(changes.next_node_id, base.facts.next_node_id),
        branch=branch,
        sequence=sequence,
        synced=synced,
    )
    log = log_of(base, changes, facts=facts, delta_entries=_logged(changes, added))
    own = changes.chunks.run_sizes
    sizes = {**base.manifest_sizes, **delta.sizes, **rewritten.sizes, **own}
    snapshot = structure.with_changes(
        base,
        facts,
        removed=removed,
        changed=list(changed.values()),
        manifest_sizes=sizes,
        replaced=replaced,
        added=Inventory.united([added, rewritten.entries]),
    )
    add(FileKind.TRANSACTION, identifier, transaction.encode(log))
    add(FileKind.STRUCTURE, identifier, structure.encode(snapshot))
    return CommitPlan(files=tuple(files), snapshot=snapshot, log=log, base_synced=base.facts.synced)


def _logged(changes: Changes, added: Inventory) -> dict[int, Inventory]:
    """Give the entries of arrays whose writes are logged by manifest and extent."""
    chunks = changes.chunks
    if changes.is_placement:
        return added.by_owner()
    dense = added.flags & DENSE != 0
    owners, counts = added.owners[dense], added.row_counts[dense]
    boxes = dict(zip(owners.tolist(), counts.tolist(), strict=True))
    some = [
        node_id
        for node_id, count in chunks.written.counts.items()
        if count > LOGGED_COORDS or MANY_COORDS <= count == boxes.get(node_id)
    ]
    some += chunks.runs
    if not some:
        return {}
    return added.chosen(np.isin(added.owners, np.array(some, np.int64))).by_owner()


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
    delta_entries: Mapping[int, Inventory] | None = None,
) -> TransactionLog:
    """Tell what changes do to a base; without ``delta_entries`` every written chunk is named."""
    changed, removed = _touched(base, changes)
    created, moved = [], []
    metadata: list[NodeUpdate] = []
    attrs: list[NodeUpdate] = []
    resized: list[Resize] = []
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
            keys = changed_members(old.document(None), node.document(None))
            if keys == ("shape",):
                resized.append(Resize(name, _shape(old), _shape(node)))
            else:
                metadata.append(NodeUpdate(name, keys))
        if (old.attributes, old.attributes_ref) != (node.attributes, node.attributes_ref):
            before = changes.attributes_before.get(node.id, old.attributes)
            attrs.append(NodeUpdate(name, _changed_attributes(before, node.attributes)))
    deleted = [n for n in map(base.find_node_by_id, removed) if n is not None]
    chunks = _chunk_log(changes, delta_entries, {node.id for node in created})
    relocated: Mapping[int, tuple[BulkWrite, ...]] = {}
    if changes.is_placement:
        relocated = chunks.bulk
        chunks = replace(chunks, written=NO_SINGLES, bulk={})
    spoken_of = {*chunks, *relocated}
    for node_id in spoken_of - names.keys():
        known = base.find_node_by_id(node_id)
        assert known is not None
        names[node_id] = NodeName(id=node_id, path=known.path, type="array")
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
        resized=tuple(resized),
        chunks=chunks,
        relocated=relocated,
        names={node_id: names[node_id] for node_id in spoken_of},
    )


def _shape(node: Node) -> tuple[int, ...]:
    assert node.columns is not None, "an array's shape changed"
    return node.columns.shape


def _changed_attributes(before: bytes | None, after: bytes | None) -> tuple[str, ...]:
    one, other = ({} if data is None else decode_json(data) for data in (before, after))
    return changed_members(one, other)


def _chunk_log(
    changes: Changes, delta_entries: Mapping[int, Inventory] | None, created: set[int]
) -> ChunkLog:
    """Name chunks one by one where they are few, else by manifest and extent; of new arrays only what is there."""
    chunks = changes.chunks
    bulk = {i: [_bulk_write(e) for e in runs.inventories] for i, runs in chunks.runs.items()}
    at_once = set()
    if delta_entries is None:
        for node_id, count in chunks.written.counts.items():
            if count > LOGGED_COORDS or changes.is_placement:
                at_once.add(node_id)
                bulk.setdefault(node_id, []).append(_uncommitted(chunks.written.of_node(node_id)))
    else:
        in_runs = chunks.run_sizes
        for node_id, entries in delta_entries.items():
            own = [_bulk_write(entry) for entry in entries if entry.manifest not in in_runs]
            if own:
                at_once.add(node_id)
                bulk.setdefault(node_id, []).extend(own)
    deleted = chunks.deleted.without(created & chunks.deleted.spans.keys())
    cleared = _cleared(deleted, chunks.gone)
    return ChunkLog(
        written=chunks.written.without(at_once),
        deleted=deleted.without(cleared),
        cleared=cleared,
        bulk={node_id: tuple(writes) for node_id, writes in bulk.items()},
        kept={node_id: kept for node_id, kept in chunks.kept.items() if node_id not in created},
    )


def _cleared(deleted: Singles, gone: Singles) -> dict[int, tuple[Cleared, ...]]:
    """Give the boxes that deleted chunks fill, there or not: of each array one, where there are many."""
    found: dict[int, tuple[Cleared, ...]] = {}
    for node_id, count in deleted.counts.items():
        if count < MANY_COORDS:
            continue
        column = deleted.of_node(node_id)
        extent = extent_of(column, len(coords.decode_one(bytes_at(column, 0))))
        if volume(extent) == count:
            there = gone.counts.get(node_id, 0)
            found[node_id] = (Cleared(extent=extent, chunk_count=there),)
    return found


def _uncommitted(column: pa.Array) -> BulkWrite:
    extent = extent_of(column, len(coords.decode_one(bytes_at(column, 0))))
    return BulkWrite(manifest=UNCOMMITTED, extent=extent, chunk_count=len(column))


def _bulk_write(entry: InventoryEntry) -> BulkWrite:
    return BulkWrite(manifest=entry.manifest, extent=entry.extent, chunk_count=entry.row_count)
