"""Making one segment of all that a session has staged of an array: of a chunk that comes twice the newest stays.

Owns the rewriting of manifests that were written before their commit, when something newer covers some of their
rows, when the array shrinks, and when a rebase gives the array another id. What several writers did beside each
other is put together by ``engine.forks``.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from msgspec.structs import replace

from icechunk_arrow.core import coords
from icechunk_arrow.core.chunks import (
    keep_rows,
    newest_rows,
    rows_of_array,
    with_array_id,
)
from icechunk_arrow.core.columns import one_array
from icechunk_arrow.core.inventory import Inventory
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.engine.manifest_writer import ManifestWriter
from icechunk_arrow.engine.segments import Bulk, Memory, Newer, Shrunk, keys_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from icechunk_arrow.core.chunk_set import ChunkSet
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.segments import Segment, Staged, StagedChunks

__all__ = ["merge", "merge_all"]


def merge_all(context: Context, arrays: Mapping[int, StagedChunks]) -> None:
    """Leave each array, given by its id, at most one of each kind of segment, all of whose rows count."""
    for array_id, staged in arrays.items():
        merge(context, staged, array_id)
    _take_apart(context, arrays)


def merge(
    context: Context, staged: StagedChunks, array_id: int, without: ChunkSet | None = None
) -> None:
    """Unite the segments of one array; what is staged of a set of chunks is forgotten.

    Manifests are written again of which rows do not count, or whose rows are marked with another array's id; one
    that boxes of newer writes cover is not even read.

    Why that is right: segments are gone through from the newest to the oldest, and ``newer`` has every chunk that
    one of those before says anything of. What is left of a segment is what nothing newer speaks of, so each chunk
    stays once, with its newest value, and the parts need no order among each other any more. A deletion stays
    among the single writes, because the base may have the chunk. A tombstone takes from what is older
    all outside its grid; what is left to it is the base, for which the smallest grid of all is kept, at the bottom.
    """
    segments = staged.newest_first()
    if without is None and _is_merged(segments, array_id):
        return
    segments = _joined(segments)
    newer = Newer(context.files, _rank(segments))
    if without is not None:
        newer.add_set(without)
    singles: dict[bytes, Staged] = {}
    bulks: list[Bulk] = []
    tables: list[pa.Table] = []
    with ManifestWriter(context.storage, new_id) as writer:
        for segment in segments:
            if isinstance(segment, Memory):
                gone = newer.mask(keys_of(segment.singles)).tolist()
                stays = zip(segment.singles.items(), gone, strict=True)
                singles.update(item for item, is_gone in stays if not is_gone)
            elif isinstance(segment, Bulk):
                tables += _left(segment.tables, newer)
                if len(segment.inventory):
                    bulks.append(_left_of_manifests(context, writer, segment, newer, array_id))
            if segment is not segments[-1]:
                newer.add(segment)
        written = writer.finish()
    bulk = Bulk(
        tables=tuple(tables),
        inventory=Inventory.united(
            [*(each.inventory for each in bulks), written.entries]
        ).in_order(),
        sizes={**{n: s for each in bulks for n, s in each.sizes.items()}, **written.sizes},
        array_id=array_id,
        tenants={name: ids for each in bulks for name, ids in each.tenants.items()},
    )
    counts = staged.kept
    # in this order: a reader in another thread sees a chunk's old value or its new one
    staged.singles = singles
    below = () if counts is None else (Shrunk(counts),)
    staged.segments = (*below, bulk) if bulk.tables or len(bulk.inventory) else below


def _is_merged(segments: list[Segment], array_id: int) -> bool:
    """Whether nothing covers anything: but for a tombstone below all there is one segment, or none."""
    if segments and isinstance(segments[-1], Shrunk):
        segments = segments[:-1]
    if not segments:
        return True
    only = segments[0]
    marked = not isinstance(only, Bulk) or not len(only.inventory) or only.array_id == array_id
    return len(segments) == 1 and marked and not isinstance(only, Shrunk)


def _joined(segments: list[Segment]) -> list[Segment]:
    """Unite bulk writes that follow one another and are all in memory; there may be thousands."""
    joined: list[Segment] = []
    for in_memory, group in groupby(
        segments, lambda each: isinstance(each, Bulk) and not each.sizes
    ):
        if in_memory:
            tables = [table for each in reversed([*group]) for table in each.tables]  # type: ignore[union-attr]
            joined.append(Bulk(tables=(newest_rows(tables),)))
        else:
            joined += group
    return joined


def _rank(segments: list[Segment]) -> int:
    """Tell how many dimensions the array has."""
    for segment in segments:
        if isinstance(segment, Shrunk):
            return len(segment.counts)
        if isinstance(segment, Memory):
            return len(coords.decode_one(next(iter(segment.singles))))
        if len(segment.inventory):
            return segment.inventory.boxes.ndim
        return len(coords.decode_one(segment.tables[0]["coord"][0].as_py()))
    return 0


def _left(tables: tuple[pa.Table, ...], newer: Newer) -> list[pa.Table]:
    """Leave out rows that something newer covers."""
    masks = [~newer.mask(one_array(table["coord"])) for table in tables]
    return [keep_rows(table, mask) for table, mask in zip(tables, masks, strict=True) if mask.any()]


def _left_of_manifests(
    context: Context, writer: ManifestWriter, bulk: Bulk, newer: Newer, array_id: int
) -> Bulk:
    """Leave out manifests of which not all rows count; what counts of them is written anew."""
    inventory = bulk.inventory
    touched = newer.touching(inventory.boxes)
    again = range(len(inventory)) if bulk.array_id != array_id else sorted(touched)
    replaced = set()
    for number in again:
        entry = inventory[number]
        if number in touched and newer.covers(entry):
            replaced.add(entry.manifest)
            continue
        table = context.files.read_manifest(entry.manifest, coded=True)
        rows = rows_of_array(table, bulk.array_id)
        if number in touched:
            gone = newer.mask(one_array(rows["coord"]))
            if bulk.array_id == array_id and not gone.any():
                continue
            rows = keep_rows(rows, ~gone)
        replaced.add(entry.manifest)
        if rows.num_rows:
            writer.write(with_array_id(rows, array_id), {array_id: inventory.boxes.ndim})
    return replace(
        bulk,
        inventory=inventory.without(replaced).owned_by(array_id),
        sizes={name: size for name, size in bulk.sizes.items() if name not in replaced},
        tenants={name: ids for name, ids in bulk.tenants.items() if name not in replaced},
    )


def _take_apart(context: Context, arrays: Mapping[int, StagedChunks]) -> None:
    """Take manifests of several arrays apart when one of these has no use for its rows any more.

    Nothing may stand in a live manifest that does not count. What the other arrays have there is left to the
    commit, in memory.
    """
    holders: dict[str, dict[int, Bulk]] = {}
    for array_id, staged in arrays.items():
        for segment in staged.segments:
            if isinstance(segment, Bulk):
                for name in segment.tenants:
                    holders.setdefault(name, {})[array_id] = segment
    for name, held in holders.items():
        tenants = next(iter(held.values())).tenants[name]
        if held.keys() == tenants:
            continue
        table = context.files.read_manifest(name)
        for array_id in held:
            staged = arrays[array_id]
            staged.segments = tuple(
                _in_memory(each, name, rows_of_array(table, array_id)) for each in staged.segments
            )


def _in_memory(segment: Segment, name: str, rows: pa.Table) -> Segment:
    """Hold the rows of a manifest in memory instead."""
    if not isinstance(segment, Bulk) or name not in segment.tenants:
        return segment
    return replace(
        segment,
        tables=(*segment.tables, rows),
        inventory=segment.inventory.without({name}),
        sizes={each: size for each, size in segment.sizes.items() if each != name},
        tenants={each: ids for each, ids in segment.tenants.items() if each != name},
    )
