"""What a session has staged of one array: a list of segments, each over those before it, and all over the base.

A segment never changes. There are bulk writes (rows in memory, and manifests that no snapshot names yet), single
writes that something newer came over, and tombstones: an array that shrank. On top stand the single writes that
still go on. Newer wins. Reading goes through the list from its end (:meth:`StagedChunks.find`), and a caller that
needs each chunk once keeps what is newer beside what is older (:class:`Newer`); ``engine.merging`` makes one of
many.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import inside, points_of
from icechunk_arrow.core.chunk_set import ChunkSet
from icechunk_arrow.core.chunks import (
    CHUNK_SCHEMA,
    ChunkRef,
    extent_of,
    keep_rows,
    member_mask,
    ref_of_row,
    rows_of_arrays,
)
from icechunk_arrow.core.columns import distinct, from_values, indices, one_array, to_numpy
from icechunk_arrow.core.ids import ID_PATTERN
from icechunk_arrow.core.inventory import NO_INVENTORY
from icechunk_arrow.engine.lookup import find_ref
from icechunk_arrow.engine.manifest_file import rows_not_of, wrong_file
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats.layout import FileKind, key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.boxes import Boxes
    from icechunk_arrow.core.inventory import Inventory, InventoryEntry
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.files import Files

    Mask = npt.NDArray[np.bool_]

__all__ = [
    "UNSAID",
    "Bulk",
    "Memory",
    "Newer",
    "Segment",
    "Shrunk",
    "Staged",
    "StagedChunks",
    "coordinates_within",
    "entry_coordinates",
    "entry_rows",
    "entry_tables",
    "keys_of",
]

Staged = ChunkRef | bytes | None
"""A reference, bytes that are not written yet, or None for a deleted chunk."""
_Unsaid = type("_Unsaid", (), {"__repr__": lambda _: "UNSAID"})
UNSAID = _Unsaid()
"""In place of a staged value: a segment says nothing of the chunk."""
_BATCH_ROWS = 100_000
_COORDINATES = ("array_id", "coord")


class Memory(Struct, frozen=True, eq=False):
    """Single writes and deletions."""

    singles: Mapping[bytes, Staged]

    def find(self, _: Files, key: bytes, __: tuple[int, ...]) -> object:
        """Tell what is said of a chunk."""
        return self.singles.get(key, UNSAID)


class Bulk(Struct, frozen=True, kw_only=True, eq=False):
    """Many references at once: manifests, and rows that are left to the commit; no chunk stands there twice."""

    tables: tuple[pa.Table, ...] = ()
    """Sorted rows in memory."""
    inventory: Inventory = NO_INVENTORY
    """Manifests that were written, and that no snapshot names yet."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of these manifests."""
    array_id: int = 0
    """The array that their rows are marked with; after a rebase the array may have another id."""
    tenants: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Of manifests that hold rows of several arrays, which arrays these are."""

    def find(self, files: Files, key: bytes, coord: tuple[int, ...]) -> object:
        """Tell what is said of a chunk."""
        for table in self.tables:
            column = one_array(table["coord"])
            row = bisect_left(range(len(column)), key, key=lambda i: column[i].as_py())
            if row < len(column) and column[row].as_py() == key:
                return ref_of_row(table, row)
        if not len(self.inventory):
            return UNSAID
        ref = find_ref(files, self.array_id, self.inventory, coord)
        return UNSAID if ref is None else ref


class Shrunk(Struct, frozen=True, eq=False):
    """A tombstone: nothing below counts outside a grid of so many chunks along each dimension."""

    counts: tuple[int, ...]

    def find(self, _: Files, __: bytes, coord: tuple[int, ...]) -> object:
        """Tell what is said of a chunk."""
        is_left = all(i < count for i, count in zip(coord, self.counts, strict=True))
        return UNSAID if is_left else None


Segment = Memory | Bulk | Shrunk


def keys_of(singles: Mapping[bytes, Staged]) -> pa.Array:
    """Give the encoded coordinates of single writes."""
    return from_values(list(singles), CHUNK_SCHEMA.field("coord").type)


class StagedChunks(Struct, eq=False):
    """Uncommitted chunks of one array."""

    segments: tuple[Segment, ...] = ()
    """Oldest first."""
    singles: dict[bytes, Staged] = field(default_factory=dict)
    """Single writes, over all segments."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is staged."""
        return not (self.singles or self.segments)

    def copy(self) -> StagedChunks:
        """Give the same, to go back to."""
        singles = dict(self.singles)  # first, as a reader that looks for a chunk does
        return StagedChunks(self.segments, singles)

    def newest_first(self) -> list[Segment]:
        """Give all segments, single writes first."""
        # in this order: a reader in another thread may see something twice, and never nothing
        top = [Memory(self.singles)] if self.singles else []
        return [*top, *reversed(self.segments)]

    def find(self, files: Files, coord: tuple[int, ...]) -> object:
        """Tell what is staged of a chunk; ``UNSAID`` if nothing, so that the base counts."""
        key = coords.encode_one(coord)
        found: object = self.singles.get(key, UNSAID)
        if found is not UNSAID:
            return found
        for segment in reversed(self.segments):
            found = segment.find(files, key, coord)
            if found is not UNSAID:
                return found
        return UNSAID

    def add(self, bulk: Bulk) -> None:
        """Lay a bulk write over everything.

        Single writes that it has no chunk of may as well stay on top. Those of which only its rows could tell
        become a segment below it.
        """
        covered = unsure = np.zeros(0, np.bool_)
        keys = keys_of(self.singles)
        if len(keys):
            ndim = len(coords.decode_one(keys[0].as_py()))
            chunks = ChunkSet.of(ndim, inventory=bulk.inventory)
            covered = chunks.mask(keys)
            for table in bulk.tables:
                covered |= member_mask(keys, one_array(table["coord"]))
            unsure = np.zeros(len(keys), np.bool_)
            if len(chunks.sparse):
                unsure = ~covered & chunks.sparse.boxes.inside(coords.decode(keys, ndim))
        below = (Memory(dict(compress(self.singles.items(), unsure.tolist()))),)
        # segments first: a reader in another thread then sees each single write at least once
        self.segments = (*self.segments, *(below if unsure.any() else ()), bulk)
        for key in compress(keys.to_pylist(), (covered | unsure).tolist()):
            del self.singles[key]

    def spill(self, bulk: Bulk) -> None:
        """Put a bulk write in place of the single writes that it was made of; deletions stay."""
        self.segments = (*self.segments, bulk)
        self.singles = {key: value for key, value in self.singles.items() if value is None}

    def shrink(self, counts: tuple[int, ...]) -> None:
        """Drop what lies outside a smaller grid, for ever."""
        self.singles = {
            key: value
            for key, value in self.singles.items()
            if all(i < n for i, n in zip(coords.decode_one(key), counts, strict=True))
        }
        cut = (_within(segment, counts) for segment in self.segments)
        segments = [segment for segment in cut if segment is not None]
        if segments and isinstance(last := segments[-1], Shrunk):
            segments[-1] = Shrunk(tuple(map(min, last.counts, counts)))
        else:
            segments.append(Shrunk(counts))
        self.segments = tuple(segments)

    @property
    def kept(self) -> tuple[int, ...] | None:
        """The grid outside of which nothing of the base counts; None where the array did not shrink."""
        grids = [each.counts for each in self.segments if isinstance(each, Shrunk)]
        return tuple(map(min, *grids)) if len(grids) > 1 else grids[0] if grids else None


def _within(segment: Segment, counts: tuple[int, ...]) -> Segment | None:
    """Let go of what a segment has in memory outside a grid; None where nothing is left of it."""
    if isinstance(segment, Bulk):
        limit = np.array(counts, np.uint64)
        tables = []
        for table in segment.tables:
            points = coords.decode(one_array(table["coord"]), len(counts))
            mask = np.asarray((points < limit).all(axis=1))
            if mask.any():
                tables.append(keep_rows(table, mask))
        return (
            Bulk(
                tables=tuple(tables),
                inventory=segment.inventory,
                sizes=segment.sizes,
                array_id=segment.array_id,
                tenants=segment.tenants,
            )
            if tables or len(segment.inventory)
            else None
        )
    return segment


class Newer:
    """What newer segments say: which chunks of older ones, or of the base, do not count any more.

    Parameters
    ----------
    past_cache
        Whether manifests with holes, which have to be read, are read past the cache.
    """

    def __init__(self, files: Files, ndim: int, *, past_cache: bool = True) -> None:
        self._files = files
        self._ndim = ndim
        self._past_cache = past_cache
        self._sets: list[tuple[ChunkSet, int]] = []

    def add(self, segment: Segment) -> None:
        """Take in a segment that is older than those before."""
        ndim = self._ndim
        if isinstance(segment, Shrunk):
            self.add_set(ChunkSet.of(ndim, kept=segment.counts))
        elif isinstance(segment, Memory):
            self.add_set(ChunkSet.of(ndim, written=keys_of(segment.singles)))
        else:
            for table in segment.tables:
                self.add_set(ChunkSet.of(ndim, written=one_array(table["coord"])))
            if len(segment.inventory):
                self.add_set(ChunkSet.of(ndim, inventory=segment.inventory), segment.array_id)

    def add_set(self, chunks: ChunkSet, array_id: int = 0) -> None:
        """Take in any set of chunks, whose sparse manifests hold them as those of an array."""
        self._sets.append((chunks, array_id))

    @property
    def says_anything(self) -> bool:
        """Whether there is anything newer."""
        return bool(self._sets)

    def touching(self, boxes: Boxes) -> set[int]:
        """Tell in which of some extents something may not count."""
        return {number for chunks, _ in self._sets for number in chunks.touching(boxes)}

    def covers(self, entry: InventoryEntry) -> bool:
        """Whether nothing of an entry counts, as its extent shows without reading its rows."""
        return any(chunks.covers(entry) for chunks, _ in self._sets)

    def mask(self, column: pa.Array) -> Mask:
        """For each of some encoded coordinates, whether something newer says what there is in its place."""
        mask = np.zeros(len(column), np.bool_)
        if not len(column):
            return mask
        for chunks, array_id in self._sets:
            mask |= chunks.mask(column)
            if not len(chunks.sparse):
                continue
            met = np.flatnonzero(chunks.sparse.boxes.meet(extent_of(column, self._ndim)))
            for number in met.tolist():
                for some in self._coordinates(array_id, chunks.sparse[number]):
                    mask |= member_mask(column, coords.encode(some))
        return mask

    def _coordinates(
        self, array_id: int, entry: InventoryEntry
    ) -> Iterator[npt.NDArray[np.uint64]]:
        return entry_coordinates(self._files, array_id, entry, past_cache=self._past_cache)


# -- the rows of an inventory's entries


def entry_coordinates(
    files: Files, array_id: int, entry: InventoryEntry, *, past_cache: bool
) -> Iterator[npt.NDArray[np.uint64]]:
    """Give the coordinates of an entry's chunks; where they fill its extent, nothing is read."""
    if entry.is_dense:
        for start in range(0, entry.row_count, _BATCH_ROWS):
            yield points_of(entry.extent, start, min(start + _BATCH_ROWS, entry.row_count))
        return
    columns = _COORDINATES if past_cache else None
    for _, points in entry_rows(files, array_id, entry, past_cache=past_cache, columns=columns):
        yield points


def entry_rows(
    files: Files,
    array_id: int,
    entry: InventoryEntry,
    *,
    past_cache: bool,
    columns: Sequence[str] | None = None,
) -> Iterator[tuple[pa.Table, npt.NDArray[np.uint64]]]:
    """Give an entry's rows by row groups, and their coordinates; all of them rise."""
    last: npt.NDArray[np.uint64] | None = None
    for table in entry_tables(files, array_id, entry, past_cache=past_cache, columns=columns):
        points = coordinates_within(table, entry)
        if last is not None and not _rise(np.vstack([last, points[:1]])):
            raise _unsorted(key_of(FileKind.MANIFEST, entry.manifest))
        last = points[-1:]
        yield table, points


def coordinates_within(table: pa.Table, entry: InventoryEntry) -> npt.NDArray[np.uint64]:
    """Decode the coordinates of an entry's rows, which its extent must contain."""
    key = key_of(FileKind.MANIFEST, entry.manifest)
    points = _decoded(one_array(table["coord"]), len(entry.extent), key)
    if not inside(entry.extent, points).all():
        raise _outside(key)
    if not _rise(points):
        raise _unsorted(key)
    return points


def _decoded(column: pa.Array, rank: int, key: str) -> npt.NDArray[np.uint64]:
    try:
        return coords.decode(column, rank)
    except CorruptFileError as error:
        raise wrong_file(key, str(error)) from None


def _outside(key: str) -> CorruptFileError:
    return wrong_file(key, "a chunk lies outside of the extent that its snapshot says")


def _unsorted(key: str) -> CorruptFileError:
    return wrong_file(key, "its rows are not sorted, or it names a chunk twice")


def _rise(points: npt.NDArray[np.uint64]) -> bool:
    """Whether each point stands behind the one before, in C order."""
    behind = np.zeros(max(len(points) - 1, 0), np.bool_)
    same = ~behind
    for column in points.T:
        behind |= same & (column[1:] > column[:-1])
        same &= column[1:] == column[:-1]
    return bool(behind.all())


def check_rows(table: pa.Table, array_id: int, entry: InventoryEntry) -> None:
    """Check that rows are all that an entry says, and no others."""
    if table.num_rows != entry.row_count or (to_numpy(table["array_id"]) != array_id).any():
        raise wrong_file(key_of(FileKind.MANIFEST, entry.manifest), rows_not_of(array_id))
    coordinates_within(table, entry)


def _check_files(table: pa.Table, name: str) -> None:
    """Check that chunk files are named by ids, and all others by locations."""
    column = one_array(table["chunk_file"])
    names = column.dictionary if pa.types.is_dictionary(column.type) else column
    wrong = names.filter(pc.invert(pc.match_substring_regex(names, f"^{ID_PATTERN}$|[:/]")))
    if len(wrong) > wrong.null_count:
        raise wrong_file(
            key_of(FileKind.MANIFEST, name),
            f"it names the chunk file {wrong.drop_null()[0].as_py()!r}, which is no id",
        )


def check_live(table: pa.Table, name: str, base: Snapshot) -> pa.Table:
    """Check that all rows of a manifest are those that a snapshot says, before they are written elsewhere.

    What was written again from rows that nobody compared would be sound, and say something else.
    """
    key = key_of(FileKind.MANIFEST, name)
    _check_files(table, name)
    entries = base.entries.chosen(base.entries.of_manifests([name]))
    entries = entries.chosen(np.argsort(base.rows.ids[entries.owners]))
    ids, rows, counts = rows_of_arrays(table)
    if not (
        np.array_equal(ids, base.rows.ids[entries.owners])
        and np.array_equal(rows, entries.rows)
        and np.array_equal(counts, entries.row_counts)
    ):
        raise wrong_file(key, "its rows are not those of the arrays that it names")
    counts = counts.astype(np.int64)
    column = one_array(table["coord"])
    for rank in distinct(entries.ranks).tolist():
        some = np.flatnonzero(entries.ranks == rank)
        if len(some) == len(entries):
            _check_within(key, column, entries, counts)
        else:
            where = np.flatnonzero(np.repeat(entries.ranks, counts) == rank)
            part = column.take(indices(where))
            _check_within(key, part, entries.chosen(some), counts[some])
    return table


def _check_within(
    key: str, column: pa.Array, entries: Inventory, counts: npt.NDArray[np.int64]
) -> None:
    """Check that so many rows lie within each entry's extent; that they rise was seen when they were decoded."""
    rank = int(entries.ranks[0])
    points = _decoded(column, rank, key)
    pairs = entries.pairs.reshape(len(entries), rank, 2)
    for axis in range(rank):
        start, stop = pairs[:, axis, 0], pairs[:, axis, 1]
        if len(entries) > 1:
            start, stop = np.repeat(start, counts), np.repeat(stop, counts)
        if (points[:, axis] < start).any() or (points[:, axis] >= stop).any():
            raise _outside(key)


def entry_tables(
    files: Files,
    array_id: int,
    entry: InventoryEntry,
    *,
    past_cache: bool,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.Table]:
    """Give an array's rows in one manifest, by row groups, checked to be the array's."""
    first, last = entry.row, entry.row + entry.row_count
    if past_cache:
        yield from files.scan_rows(entry.manifest, array_id, first, last, columns=columns)
        return
    row = first
    while row < last:
        rows, at = files.rows_at(entry.manifest, row)
        stop = min(at + last - row, len(rows))
        rows.check_owner(array_id, at, stop)
        yield rows.table.slice(at, stop - at)
        row += stop - at
