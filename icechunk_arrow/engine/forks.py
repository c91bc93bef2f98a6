"""Work that other processes do for a session: what they are given, what they bring back, and what is deleted of it.

Owns the columns in which a fork says what it wrote, and how several of these are laid over a session: manifests
that have no chunk in common are linked, those that may have are merged row by row. What forks wrote is deleted
only when it is certain that no snapshot names it and none will.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from icechunk_arrow.core import coords
from icechunk_arrow.core.chunk_set import ChunkSet
from icechunk_arrow.core.chunks import is_virtual, rows_of_array
from icechunk_arrow.core.columns import empty_table, from_numpy, one_array, run_edges, to_numpy
from icechunk_arrow.core.inventory import NO_INVENTORY, Inventory
from icechunk_arrow.core.placement import place
from icechunk_arrow.engine.bulk import BulkReferences, BulkSettings, StagedReferences
from icechunk_arrow.engine.commit import plan, write_unseen
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.engine.manifest_writer import ManifestWriter
from icechunk_arrow.engine.plan import ArrayShapes
from icechunk_arrow.engine.segments import Bulk
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError, NotDurableError
from icechunk_arrow.formats.layout import FileKind, chunk_key, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.bulk import Layout
    from icechunk_arrow.engine.catalog import Tip
    from icechunk_arrow.engine.changes import Changes
    from icechunk_arrow.engine.context import ArrayView, Context
    from icechunk_arrow.storage.port import Storage


__all__ = [
    "WrittenChunks",
    "arrays_of",
    "combine",
    "discard_written",
    "refuse_deleted",
    "require_synced",
    "uncommitted_snapshot",
    "write_out",
]

_log = logging.getLogger(__name__)
_told: WeakSet[Storage] = WeakSet()
"""Handles whose users were told that what they commit is not durable."""
_DELETED = pa.schema(
    [
        pa.field("array_id", pa.uint32(), nullable=False),
        pa.field("coord", pa.binary(), nullable=False),
    ]
)


class WrittenChunks(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """What a fork wrote: manifests, told by columns; nothing in it grows with the number of chunks."""

    synced: bool
    """Whether all of it, chunk files and manifests, survives a power cut; only its writer can know."""
    base_id: str
    """The snapshot on which the session stood that was forked."""
    entries: Inventory = NO_INVENTORY
    """What each manifest holds of each array, by the array's id."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes by manifest id."""
    deleted: pa.Table = field(default_factory=lambda: empty_table(_DELETED))
    """Chunks that were there and are not any more."""
    paths: Mapping[int, str] = field(default_factory=dict)
    """The arrays, by their ids."""

    @property
    def chunk_count(self) -> int:
        """How many chunks were written."""
        return self.entries.chunk_count


def uncommitted_snapshot(
    context: Context, tip: Tip, base: Snapshot, changes: Changes, started_at: datetime
) -> str:
    """Write what a session has so far as a snapshot that no branch names, for forks to stand on."""
    planned = plan(context, tip, base, changes, message="", properties={}, started_at=started_at)
    return write_unseen(context, planned)


def write_out(
    context: Context, base: Snapshot, changes: Changes, *, forked_at: str
) -> WrittenChunks:
    """Write everything that a fork has staged as manifests, as the settings want it."""
    chunks, shapes = changes.chunks, ArrayShapes(base, changes)
    settings = context.config.chunk_manifests
    with ManifestWriter(context.storage, new_id) as writer:
        for rows in place(chunks.rows, settings, shapes.of_rows(chunks.rows)):
            writer.write_planned(shapes.manifest(new_id(), rows))
        written = writer.finish()
    gone = from_numpy(chunks.deleted.node_ids, pa.uint32())
    context.storage.sync()  # once, however many files: nothing else does it
    own = [held.owned_by(i) for i, held in chunks.inventories.items()]
    return WrittenChunks(
        synced=context.storage.syncs,
        base_id=forked_at,
        entries=Inventory.united([written.entries, *own]),
        sizes={**written.sizes, **chunks.sizes},
        deleted=pa.Table.from_arrays([gone, chunks.deleted.coords], schema=_DELETED),
        paths={i: shape.path for i, shape in shapes.of(chunks.array_ids).items()},
    )


def require_synced(storage: Storage, parts: Iterable[WrittenChunks]) -> None:
    """Refuse to commit what may be lost in a power cut, unless the caller chose to live with that."""
    if all(part.synced for part in parts):
        return
    if storage.syncs:
        raise NotDurableError(
            f"what was written elsewhere for {storage.url} was not synced, because it was opened there with "
            f"durable=False, and a commit here promises to survive a power cut. Open the repository with the "
            f"same setting in both places, and write again; nothing was staged."
        )
    if storage not in _told:
        _told.add(storage)
        _log.warning(
            "what is committed to %s was not synced by those who wrote it: a power cut may take it",
            storage.url,
        )


def _shared_manifests(parts: Iterable[WrittenChunks]) -> dict[str, frozenset[int]]:
    """Tell which manifests hold rows of several arrays, and of which."""
    tenants: dict[str, frozenset[int]] = {}
    for part in parts:
        held = part.entries
        counts = np.bincount(held.codes, minlength=len(held.manifests))
        for code in np.flatnonzero(counts > 1).tolist():
            tenants[held.manifests[code]] = frozenset(held.owners[held.codes == code].tolist())
    return tenants


def refuse_deleted(
    context: Context, parts: Sequence[WrittenChunks], views: Mapping[int, ArrayView]
) -> None:
    """Refuse a chunk that one fork deleted and another one wrote."""
    entries = [part.entries.by_owner() for part in parts]
    for number, part in enumerate(parts):
        ids = to_numpy(part.deleted["array_id"])
        for node_id in np.unique(ids).tolist():
            mask = from_numpy(ids == node_id, pa.bool_())
            gone = one_array(part.deleted["coord"]).filter(mask)
            chunks = ChunkSet.of(len(views[node_id].grid.chunk_counts), deleted=gone)
            for other, theirs in enumerate(entries):
                held = theirs.get(node_id, NO_INVENTORY)
                if other == number:
                    continue
                for place_ in chunks.touching(held.boxes):
                    table = context.files.read_manifest(held.names[place_])
                    column = one_array(rows_of_array(table, node_id)["coord"])
                    both = np.flatnonzero(chunks.mask(column))
                    if len(both):
                        index = coords.decode_one(column[int(both[0])].as_py())
                        raise InvalidInputError(
                            f"two of the writers disagree about {views[node_id].node.path!r}: one deleted "
                            f"chunk {index} and another one wrote it; duplicates='last' takes what the later "
                            f"one did. Nothing was staged."
                        )


class _Held(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """What all forks wrote of one array."""

    entries: Inventory
    owners: Mapping[str, int]
    """Which of the forks a manifest is from."""

    def groups(self) -> Iterator[list[str]]:
        """Manifests of different forks that may have a chunk in common, in the forks' order."""
        labels = self.entries.boxes.labels()
        owners = np.array([self.owners[name] for name in self.entries.names], np.int64)
        order = np.lexsort([owners, labels])
        for first, last in pairwise(run_edges(labels[order]).tolist()):
            some = order[first:last]
            if owners[some[0]] != owners[some[-1]]:
                yield [self.entries.names[row] for row in some.tolist()]


def combine(
    context: Context,
    parts: Sequence[WrittenChunks],
    views: Mapping[int, ArrayView],
    layout_of: Callable[[ArrayView], Layout],
    *,
    last_wins: bool,
    settings: BulkSettings | None = None,
) -> Iterator[StagedReferences]:
    """Unite what several forks wrote, array by array; a chunk that two of them wrote is found.

    Memory does not grow with the number of chunks: manifests that may have one in common are merged in
    streams, all others are only linked.
    """
    sizes = {name: size for part in parts for name, size in part.sizes.items()}
    owners = {name: number for number, part in enumerate(parts) for name in part.sizes}
    tenants = _shared_manifests(parts)
    entries = Inventory.united(part.entries for part in parts)
    for node_id, inventory in entries.by_owner().items():
        merged: set[str] = set()
        inventories: list[Inventory] = []
        tables: list[pa.Table] = []
        for names in _Held(entries=inventory, owners=owners).groups():
            merged.update(names)
            writer = ManifestWriter(context.storage, new_id)
            merging = BulkReferences(
                writer,
                layout_of,
                last_wins=last_wins,
                settings=settings or BulkSettings(),
                name_row=lambda _: "two of the writers",
            )
            with writer, merging:
                merging.add_manifests(context.files, views[node_id], inventory, names)
                (staged,) = merging.finish()
            sizes.update(staged.bulk.sizes)
            inventories.append(staged.bulk.inventory)
            tables += staged.bulk.tables
        united = Inventory.united([inventory.without(merged), *inventories]).in_order()
        bulk = Bulk(
            tables=tuple(tables),
            inventory=united,
            sizes={name: sizes[name] for name in united.names},
            array_id=node_id,
            tenants={name: tenants[name] for name in united.names if name in tenants},
        )
        yield StagedReferences(node_id=node_id, bulk=bulk)


def arrays_of(
    parts: Iterable[WrittenChunks], base_id: str, get_array: Callable[[str], ArrayView]
) -> dict[int, ArrayView]:
    """Find the arrays that forks wrote to, as long as they are those that the session has."""
    views: dict[int, ArrayView] = {}
    for part in parts:
        if part.paths and part.base_id != base_id:
            raise InvalidInputError(
                f"the session was rebased since it was forked: it stands on {base_id} now, and a fork saw "
                f"{part.base_id}, so what it wrote may lack what others did. Merge first and rebase then, or "
                f"fork the session again, and repeat the writing."
            )
        entries = part.entries.by_owner()
        for node_id, path in part.paths.items():
            view = views.get(node_id) or get_array(path)
            if view.node.id != node_id:
                raise InvalidInputError(
                    f"{path!r} is not the array any more that the fork wrote to: it was replaced. Fork the "
                    f"session again, and repeat the writing."
                )
            _refuse_outside(part, entries.get(node_id, NO_INVENTORY), view)
            views[node_id] = view
    return views


def _refuse_outside(part: WrittenChunks, written: Inventory, view: ArrayView) -> None:
    """Refuse chunks, written or deleted, for which an array has no place any more."""
    counts = view.grid.chunk_counts
    mine = from_numpy(to_numpy(part.deleted["array_id"]) == view.node.id, pa.bool_())
    gone = coords.decode(one_array(part.deleted["coord"]).filter(mine), len(counts))
    outside = (gone >= np.array(counts, np.uint64)).any()
    if outside or (len(written) and written.boxes.leave(counts).any()):
        raise InvalidInputError(
            f"{view.node.path!r} was made smaller meanwhile, and a fork wrote outside of it. Fork the session "
            f"again, and repeat the writing."
        )


def discard_written(context: Context, parts: Iterable[WrittenChunks]) -> int:
    """Delete the manifests of some forks, and the chunk files that these name; tell how many files.

    Only for a caller that knows that no commit of these parts was ever begun. What cannot be read or deleted is
    logged and stays: files that nothing names do no harm, and a listing finds them. One manifest is held at a time.
    """
    count = 0
    for part in parts:
        for name in part.sizes:
            try:
                chunk_files = _chunk_files(context, name)
                context.storage.delete(
                    [*map(chunk_key, chunk_files), key_of(FileKind.MANIFEST, name)]
                )
            except IcechunkArrowError as error:
                _log.warning(
                    "the manifest %s in %s, which nothing names, could not be deleted: %s",
                    name,
                    context.storage.url,
                    error,
                )
            else:
                count += len(chunk_files) + 1
    return count


def _chunk_files(context: Context, manifest: str) -> list[str]:
    """Give the chunk files of a manifest; a fork writes all of them itself."""
    names = one_array(context.files.read_manifest(manifest, coded=True)["chunk_file"]).unique()
    return [name for name in names.to_pylist() if name is not None and not is_virtual(name)]
