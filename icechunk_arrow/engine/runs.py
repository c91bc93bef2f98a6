"""Runs: manifests that a session wrote before its commit, and what becomes of their rows afterwards.

Owns the rewriting of runs when something newer covers some of their rows, when the array shrinks, and when a
rebase gives the array another id. Their first writing is the business of ``engine.bulk``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from icechunk_arrow.core import coords
from icechunk_arrow.core.chunk_set import ChunkSet
from icechunk_arrow.core.chunks import keep_rows, rows_of_array, with_array_id
from icechunk_arrow.core.columns import bytes_at, one_array
from icechunk_arrow.core.inventory import NO_INVENTORY, Inventory
from icechunk_arrow.core.packing import PlainShape, choose_set
from icechunk_arrow.core.placement import limit_of, set_for_size
from icechunk_arrow.core.splits import axis_of
from icechunk_arrow.engine.bulk import Layout
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.engine.manifest_writer import ManifestWriter
from icechunk_arrow.engine.settling import settle
from icechunk_arrow.engine.staging import NO_RUNS, ArrayDelta, Runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icechunk_arrow.core.manifest_settings import ManifestSettings
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.staging import Staging
    from icechunk_arrow.engine.view import ArrayView

__all__ = ["add_runs", "layout_of", "settle_runs", "take_out", "unshare", "write_entries"]

_ROWS = 1 << 16
"""How many references that were staged one by one make a manifest."""


def layout_of(settings: ManifestSettings, view: ArrayView) -> Layout:
    """How the references of an array are cut where they are too many for one manifest.

    Whether a rule about initialized chunks applies is not known before they are all there: what the grid
    allows is taken.
    """
    node, counts = view.node, view.grid.chunk_counts
    assert node.columns is not None
    names = node.columns.dimension_names
    shape = PlainShape(
        path=node.path,
        chunk_counts=counts,
        dimension_names=names,
        chunk_count=view.grid.chunk_count,
    )
    chosen = set_for_size(settings, choose_set(settings, shape), view.grid.chunk_count)
    axis = axis_of(chosen.split_along, names, len(counts))
    return Layout(limit=limit_of(chosen), axis=axis)


def settle_runs(context: Context, deltas: Mapping[int, ArrayDelta]) -> None:
    """Make every row of the runs count: without what is void, and marked with the array's id."""
    for array_id, delta in deltas.items():
        if delta.runs is not NO_RUNS:
            delta.runs = _settled(context, delta, array_id)


def _settled(context: Context, delta: ArrayDelta, array_id: int) -> Runs:
    if not len(delta.runs):
        return delta.runs
    return replace(_without(context, delta.runs, delta.void_in_runs(), array_id), kept=None)


def take_out(context: Context, delta: ArrayDelta, chunks: ChunkSet, array_id: int) -> None:
    """Forget what is staged of some chunks."""
    delta.runs = _without(context, _settled(context, delta, array_id), chunks, array_id)
    delta.forget(chunks)


def _without(context: Context, runs: Runs, chunks: ChunkSet, array_id: int) -> Runs:
    """Write those runs again that hold rows that go, or rows marked with another array's id."""
    if not len(runs):
        return runs
    found = runs.inventories
    touched = set(chunks.touching(found.boxes))
    again = range(len(found)) if runs.array_id != array_id else sorted(touched)
    replaced = set()
    ndim = found.boxes.ndim
    with ManifestWriter(context.storage, new_id) as writer:
        for number in again:
            name = found.names[number]
            table = rows_of_array(context.files.read_manifest(name, coded=True), runs.array_id)
            if number in touched:
                mask = chunks.mask(one_array(table["coord"]))
                if runs.array_id == array_id and not mask.any():
                    continue
                table = keep_rows(table, ~mask)
            replaced.add(name)
            if table.num_rows:
                writer.write(with_array_id(table, array_id), {array_id: ndim})
        written = writer.finish()
    sizes = {name: size for name, size in runs.sizes.items() if name not in replaced}
    return replace(
        runs,
        inventories=Inventory.united([found.without(replaced).owned_by(array_id), written.entries]).in_order(),
        sizes={**sizes, **written.sizes},
        array_id=array_id,
    )


def add_runs(
    context: Context,
    delta: ArrayDelta,
    array_id: int,
    new: Inventory,
    sizes: Mapping[str, int],
) -> None:
    """Lay manifests that were just written over everything that the session has of an array."""
    covered = [] if delta.is_empty else list(_covered_by(context, array_id, new))
    runs = _settled(context, delta, array_id)
    for chunks in covered:
        runs = _without(context, runs, chunks, array_id)
    # in one step, so that a reader in another thread sees a chunk's old reference or its new one
    delta.runs = Runs(
        inventories=Inventory.united([runs.inventories, new]).in_order(),
        sizes={**runs.sizes, **sizes},
        array_id=array_id,
    )
    for chunks in covered:
        delta.forget(chunks)


def _covered_by(context: Context, array_id: int, new: Inventory) -> Iterator[ChunkSet]:
    """Give the chunks of some manifests; those with holes are read."""
    ndim = new.boxes.ndim
    chunks = ChunkSet.of(ndim, runs=new)
    yield replace(chunks, sparse=NO_INVENTORY)
    for name in chunks.sparse.names:
        table = rows_of_array(context.files.read_manifest(name), array_id)
        yield ChunkSet.of(ndim, written=one_array(table["coord"]))


def unshare(context: Context, staging: Staging) -> None:
    """Take manifests of several arrays apart when one of these has no use for its rows any more.

    Nothing may stand in a live manifest that does not count. What the other arrays have there is left to the
    commit, in memory.
    """
    for name, tenants in list(staging.shared_runs.items()):
        holders = {
            node_id: delta
            for node_id, delta in staging.deltas.items()
            if name in delta.runs.sizes and delta.runs.array_id == node_id
        }
        if holders.keys() == tenants:
            continue
        table = context.files.read_manifest(name) if holders else None
        for node_id, delta in holders.items():
            delta.tables.insert(0, rows_of_array(table, node_id))
            delta.runs = replace(
                delta.runs,
                inventories=delta.runs.inventories.without({name}),
                sizes={each: size for each, size in delta.runs.sizes.items() if each != name},
            )
        del staging.shared_runs[name]


def write_entries(context: Context, delta: ArrayDelta, array_id: int) -> None:
    """Make runs of the references that were staged one by one, because they have become many."""
    rows = settle({array_id: ArrayDelta(entries=delta.entries)}).rows
    if not rows.num_rows:
        return
    column = one_array(rows["coord"])
    ndim = len(coords.decode_one(bytes_at(column, 0)))
    with ManifestWriter(context.storage, new_id) as writer:
        for start in range(0, rows.num_rows, _ROWS):
            writer.write(rows.slice(start, _ROWS), {array_id: ndim})
        written = writer.finish()
    add_runs(context, delta, array_id, written.entries.in_order(), written.sizes)
