"""The plan of a commit: which files, in which order, then the one entry that decides.

Pure: everything that has to be read, every id and the time are arguments. What becomes of the nodes, which
manifests hold what the session wrote, and which live ones are read and written again stands in it from the start
(:class:`CommitPlan`); ``engine.commit`` carries it out. Only how large files became, and what is left of manifests
that were read, goes into the last two files, which :func:`last_files` makes. So a dry run is a plan that is not
carried out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import grid_box, volume
from icechunk_arrow.core.chunk_set import subtract
from icechunk_arrow.core.chunks import (
    DENSE,
    concat_sorted,
    extent_of,
    keep_rows,
    rows_of_arrays,
)
from icechunk_arrow.core.columns import bytes_at, to_numpy
from icechunk_arrow.core.inventory import NO_INVENTORY, Inventory
from icechunk_arrow.core.json_values import changed_members, decode_json
from icechunk_arrow.core.log import (
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
    to_be_known,
)
from icechunk_arrow.core.snapshot import AttributesRef, Node, SnapshotFacts
from icechunk_arrow.core.stream_marks import carried
from icechunk_arrow.formats import attributes, structure, transaction
from icechunk_arrow.formats.envelope import header_metadata
from icechunk_arrow.formats.layout import FileKind, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from typing import Any

    import pyarrow as pa

    from icechunk_arrow.core.boxes import Box
    from icechunk_arrow.core.chunk_set import ChunkSet
    from icechunk_arrow.core.inventory import InventoryEntry
    from icechunk_arrow.core.manifest_settings import ManifestSettings
    from icechunk_arrow.core.packing import ArrayShape
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.changes import Changes

__all__ = [
    "NOTHING_WRITTEN",
    "UNCOMMITTED",
    "ArrayShapes",
    "CommitPlan",
    "FileToWrite",
    "FinishedCommit",
    "ManifestToWrite",
    "Rewrite",
    "WrittenManifests",
    "last_files",
    "log_of",
    "plan_commit",
    "plan_manifests",
    "rewritten",
]

UNCOMMITTED = ""
"""Stands for the manifest of a bulk write that is not committed yet."""
LOGGED_COORDS = 1000
"""Up to so many chunks of an array are logged one by one; more are logged as manifest and extent."""
MANY_COORDS = 16
"""From so many on, chunks that fill their extent are logged by it."""


class FileToWrite(Struct, frozen=True, kw_only=True):
    """One file of a commit."""

    key: str
    data: bytes
    metadata: Mapping[str, str]


class ManifestToWrite(Struct, frozen=True, kw_only=True, eq=False):
    """Sorted rows of one or many arrays that become a manifest."""

    name: str
    rows: pa.Table
    ndims: Mapping[int, int]
    """How many dimensions the arrays have."""
    within: Mapping[int, Box]
    """Extents that the rows of some arrays do not leave, where that is known."""


class WrittenManifests(Struct, frozen=True, kw_only=True):
    """Manifests that have been written, and that no snapshot names yet."""

    entries: Inventory
    """What each holds of each array, in the order written."""
    sizes: Mapping[str, int]
    """Bytes by manifest id."""
    held: Mapping[str, bytes] = field(default_factory=dict)
    """A single manifest that is encoded and not put, to be put with the other files of its commit."""


NOTHING_WRITTEN = WrittenManifests(entries=NO_INVENTORY, sizes={})


class Rewrite(Struct, frozen=True, kw_only=True):
    """Live manifests that are read, and written again without what goes; those of several are placed anew."""

    manifests: tuple[str, ...]
    sparse: Mapping[int, Sequence[str]]
    """By array: manifests of the session to be read to know what goes."""


class CommitPlan(Struct, frozen=True, kw_only=True, eq=False):
    """What becomes of a snapshot by a commit, as far as it is known before anything is read or written."""

    base: Snapshot
    changes: Changes
    settings: ManifestSettings
    shapes: ArrayShapes
    facts: SnapshotFacts
    nodes: Sequence[Node]
    """All that are new or changed, as the snapshot has them."""
    attributes: tuple[FileToWrite, ...]
    """The file that holds large attributes, if any are new."""
    delta: tuple[ManifestToWrite, ...]
    """What the session wrote and no manifest holds yet."""
    rewrites: tuple[Rewrite, ...]
    going: Mapping[int, ChunkSet]
    """By array: what the manifests that are written again lose."""
    removed: frozenset[int]
    """Arrays that are no more: all their rows go."""
    dropped: frozenset[str]
    """Manifests of which nothing is left, or in whose place others stand."""
    linked: WrittenManifests = NOTHING_WRITTEN
    """Manifests that stand in the place of dropped ones, written before."""

    @property
    def base_synced(self) -> bool:
        """Whether what the commit stands on survives a power cut."""
        return self.base.facts.synced


class FinishedCommit(Struct, frozen=True, kw_only=True, eq=False):
    """The last files of a commit in order, and the snapshot that the branch entry will name.

    Manifests are among the files only where one is all there is; many are written before.
    """

    files: tuple[FileToWrite, ...]
    snapshot: Snapshot
    log: TransactionLog


def _touched(base: Snapshot, changes: Changes) -> tuple[dict[int, Node], set[int]]:
    """Nodes that are new or changed, by id, and ids of the base that are no more."""
    changed = {node.id: node for node in changes.overlay.values() if node is not None}
    before = {base.get_node(path).id for path in changes.overlay if path in base.rows_by_path}
    return changed, before - changed.keys()


class _NodeShape(NamedTuple):
    """A node's shape, with so many chunks that are not committed yet."""

    node: Node
    base_id: str
    """The snapshot by which changes go; what it says of a node is believed until it is asked for."""
    added: int

    @property
    def path(self) -> str:
        return self.node.path

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        with structure.sound_array(self.path, self.base_id):
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

    def of(self, node_ids: Iterable[int]) -> dict[int, ArrayShape]:
        """Give the shapes of some arrays."""
        count_of, base_id = self._chunks.chunk_count, self._base.id
        return {i: _NodeShape(self._node(i), base_id, count_of(i)) for i in node_ids}

    def of_rows(self, table: pa.Table) -> dict[int, ArrayShape]:
        """Give the shapes of the arrays of some sorted rows."""
        return self.of(rows_of_arrays(table)[0].tolist())

    def manifest(self, name: str, rows: pa.Table) -> ManifestToWrite:
        """Make a manifest of sorted rows."""
        ndims, within = self._ranks(rows), self._bounds(rows)
        return ManifestToWrite(name=name, rows=rows, ndims=ndims, within=within)

    def grid(self, node_id: int) -> Box:
        """Give the extent of an array's grid, which its chunks do not leave."""
        return grid_box(self._node(node_id).chunk_counts)

    def _ranks(self, table: pa.Table) -> dict[int, int]:
        """Tell how many dimensions the arrays of some rows have."""
        ids, _, _ = rows_of_arrays(table)
        columns = ((array_id, self._node(array_id).columns) for array_id in ids.tolist())
        return {array_id: len(known.shape) for array_id, known in columns if known is not None}

    def _bounds(self, table: pa.Table) -> dict[int, Box]:
        """Give the extent of the grid where all of some rows are one array's: there it pays to know it."""
        ids = to_numpy(table["array_id"])
        return {int(ids[0]): self.grid(int(ids[0]))} if ids[0] == ids[-1] else {}


class _LiveManifests(NamedTuple):
    """What becomes of the live manifests."""

    rewrites: tuple[Rewrite, ...]
    dropped: frozenset[str]
    going: Mapping[int, ChunkSet]


def _plan_live_manifests(
    base: Snapshot,
    changes: Changes,
    removed: set[int],
    settings: ManifestSettings,
    shapes: ArrayShapes,
) -> _LiveManifests:
    """Decide which live manifests lose rows, and which are merged because many small ones gathered."""
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
    row_counts = base.manifest_row_counts
    unknown = to_be_known(row_counts, losing, dropped, settings)
    known = base.tenants(unknown.with_shapes | unknown.without)
    units = choose_units(
        Live(row_counts=row_counts, tenants=known),
        losing,
        dropped,
        settings,
        shapes.of({node_id for name in unknown.with_shapes for node_id in known[name]}),
    )
    rewrites = (Rewrite(manifests=unit, sparse=_sparse(base, going, unit)) for unit in units)
    return _LiveManifests(tuple(rewrites), frozenset(dropped), going)


def _sparse(
    base: Snapshot, going: Mapping[int, ChunkSet], manifests: tuple[str, ...]
) -> dict[int, list[str]]:
    """Manifests of the session to be read to know what goes from some live ones, by array."""
    sparse = {}
    for node_id, chunks in going.items():
        node = base.find_node_by_id(node_id)
        if not len(chunks.sparse) or node is None:
            continue
        held = [entry for entry in node.inventories if entry.manifest in manifests]
        names = {n for entry in held for n in chunks.sparse_manifests(entry.extent)}
        if names:
            sparse[node_id] = sorted(names)
    return sparse


def plan_manifests(
    base: Snapshot,
    changes: Changes,
    settings: ManifestSettings,
    shapes: ArrayShapes,
    new_ids: Iterator[str],
) -> Iterator[ManifestToWrite]:
    """Decide which manifests the session's own references become."""
    chunks = changes.chunks
    known = [
        node_id
        for node_id in chunks.array_ids
        if node_id in chunks.inventories
        or ((node := base.find_node_by_id(node_id)) is not None and len(node.inventories))
    ]
    more = np.isin(chunks.written.node_ids, np.array(known, np.uint32))
    first, rest = keep_rows(chunks.rows, ~more), keep_rows(chunks.rows, more)
    for rows in place(first, settings, shapes.of_rows(first)):
        yield shapes.manifest(next(new_ids), rows)
    for rows in place_additions(rest, settings, shapes.of_rows(rest)):
        yield shapes.manifest(next(new_ids), rows)


def plan_commit(
    base: Snapshot,
    changes: Changes,
    *,
    settings: ManifestSettings,
    new_ids: Iterator[str],
    started_at: datetime,
    written_at: datetime,
    message: str,
    properties: Mapping[str, Any],
    branch: str,
    sequence: int | None,
    inline_attributes_bytes: int,
    synced: bool,
    rearranged: tuple[frozenset[str], WrittenManifests] | None = None,
) -> CommitPlan:
    """Plan a commit of changes on a base.

    ``rearranged`` are live manifests and such as stand in their place: then nothing else becomes of live ones.
    """
    changed, removed = _touched(base, changes)
    facts = SnapshotFacts(
        id=next(new_ids),
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
    shapes = ArrayShapes(base, changes)
    delta = tuple(plan_manifests(base, changes, settings, shapes, new_ids))
    if rearranged is None:
        live = _plan_live_manifests(base, changes, removed, settings, shapes)
        linked = NOTHING_WRITTEN
    else:
        live, linked = _LiveManifests((), rearranged[0], {}), rearranged[1]
    file = _plan_attributes(changed, inline_attributes_bytes, new_ids)
    return CommitPlan(
        base=base,
        changes=changes,
        settings=settings,
        shapes=shapes,
        facts=facts,
        nodes=tuple(changed.values()),
        attributes=() if file is None else (file,),
        delta=delta,
        rewrites=live.rewrites,
        going=live.going,
        removed=frozenset(removed),
        dropped=live.dropped,
        linked=linked,
    )


def rewritten(
    plan: CommitPlan,
    rewrite: Rewrite,
    tables: Sequence[pa.Table],
    read: Mapping[int, Sequence[pa.Array]],
    new_ids: Iterator[str],
) -> list[ManifestToWrite] | None:
    """Say what manifests that were read become; None where they stay.

    ``read`` are the coordinates in the session's sparse manifests, by array.
    """
    going = dict(plan.going)
    for node_id, columns in read.items():
        going[node_id] = going[node_id].with_coordinates(list(columns))
    after = [subtract(table, going, plan.removed) for table in tables]
    if len(tables) > 1:
        rows, shapes = concat_sorted(after), plan.shapes
        placed = place(rows, plan.settings, shapes.of_rows(rows))
        return [shapes.manifest(next(new_ids), part) for part in placed]
    if after[0].num_rows == tables[0].num_rows:
        return None
    if not after[0].num_rows:
        return []
    # what loses rows stays as large as its set allows
    within = plan.base.extents_in(rewrite.manifests[0])
    ndims = {array_id: len(extent) for array_id, extent in within.items()}
    name = next(new_ids)
    return [ManifestToWrite(name=name, rows=after[0], ndims=ndims, within=within)]


def last_files(
    plan: CommitPlan,
    delta: WrittenManifests,
    again: WrittenManifests,
    replaced: frozenset[str],
) -> FinishedCommit:
    """Make the files that name all others, when it is known what these became.

    ``delta`` is what became of the plan's manifests, ``again`` of what it had rewritten, and ``replaced`` are all
    manifests that are not live any more; together they hold no chunk twice.
    """
    base, changes, facts = plan.base, plan.changes, plan.facts
    files = [_file(FileKind.MANIFEST, name, data) for name, data in delta.held.items()]
    files += plan.attributes
    own = changes.chunks
    added = Inventory.united(
        [delta.entries, *(held.owned_by(i) for i, held in own.inventories.items())]
    )
    log = log_of(base, changes, facts=facts, delta_entries=_logged(changes, added))
    snapshot = structure.with_changes(
        base,
        facts,
        removed=plan.removed,
        changed=plan.nodes,
        manifest_sizes={
            **base.manifest_sizes,
            **delta.sizes,
            **again.sizes,
            **plan.linked.sizes,
            **own.sizes,
        },
        replaced=replaced,
        added=Inventory.united([added, again.entries, plan.linked.entries]),
    )
    files.append(_file(FileKind.TRANSACTION, facts.id, transaction.encode(log)))
    files.append(_file(FileKind.STRUCTURE, facts.id, structure.encode(snapshot)))
    return FinishedCommit(files=tuple(files), snapshot=snapshot, log=log)


def _file(kind: FileKind, name: str, data: bytes) -> FileToWrite:
    return FileToWrite(key=key_of(kind, name), data=data, metadata=header_metadata(kind))


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
    some += chunks.inventories
    if not some:
        return {}
    return added.chosen(np.isin(added.owners, np.array(some, np.int64))).by_owner()


def _plan_attributes(
    changed: dict[int, Node], inline_bytes: int, new_ids: Iterator[str]
) -> FileToWrite | None:
    """Move large attributes into one attributes file; those that stand in one already stay there."""
    large = [
        node
        for _, node in sorted(changed.items())
        if node.attributes is not None and len(node.attributes) > inline_bytes
    ]
    if not large:
        return None
    name = next(new_ids)
    rows = [(node.id, node.attributes or b"") for node in large]
    for row, node in enumerate(large):
        reference = AttributesRef(identifier=name, row=row)
        changed[node.id] = replace(node, attributes=None, attributes_ref=reference)
    return _file(FileKind.ATTRIBUTES, name, attributes.encode(rows, name))


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
        chunks = ChunkLog(deleted=chunks.deleted, cleared=chunks.cleared, kept=chunks.kept)
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
    bulk = {i: [_bulk_write(e) for e in held] for i, held in chunks.inventories.items()}
    at_once = set()
    if delta_entries is None:
        for node_id, count in chunks.written.counts.items():
            if count > LOGGED_COORDS or changes.is_placement:
                at_once.add(node_id)
                bulk.setdefault(node_id, []).append(_uncommitted(chunks.written.of_node(node_id)))
    else:
        for node_id, entries in delta_entries.items():
            own = [_bulk_write(entry) for entry in entries if entry.manifest not in chunks.sizes]
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
        kept={node_id: counts for node_id, counts in chunks.kept.items() if node_id not in created},
    )


def _cleared(deleted: Singles, gone: Singles) -> dict[int, tuple[Cleared, ...]]:
    """Give the boxes that deleted chunks fill, there or not: of each array one, where there are many."""
    cleared: dict[int, tuple[Cleared, ...]] = {}
    for node_id, count in deleted.counts.items():
        if count < MANY_COORDS:
            continue
        column = deleted.of_node(node_id)
        extent = extent_of(column, len(coords.decode_one(bytes_at(column, 0))))
        if volume(extent) == count:
            there = gone.counts.get(node_id, 0)
            cleared[node_id] = (Cleared(extent=extent, chunk_count=there),)
    return cleared


def _uncommitted(column: pa.Array) -> BulkWrite:
    extent = extent_of(column, len(coords.decode_one(bytes_at(column, 0))))
    return BulkWrite(manifest=UNCOMMITTED, extent=extent, chunk_count=len(column))


def _bulk_write(entry: InventoryEntry) -> BulkWrite:
    return BulkWrite(manifest=entry.manifest, extent=entry.extent, chunk_count=entry.row_count)
