"""Which rows of which manifests are whose: one entry for each array and manifest, as columns.

A snapshot may have a hundred thousand arrays, and an array a thousand manifests. The inventory of a whole snapshot,
of one array, of what a commit wrote: all are one kind of columns, of which an array's inventory is a slice. One
entry as an object (:class:`InventoryEntry`) exists only where a single one is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import Boxes, around, contains
from icechunk_arrow.core.chunks import (
    DENSE,
    extent_within,
    form_flags,
    kinds_of_rows,
    rows_of_arrays,
)
from icechunk_arrow.core.columns import distinct, indices, one_array, run_edges, to_numpy
from icechunk_arrow.core.lazy import lazy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from icechunk_arrow.core.boxes import Box

    Rows = npt.NDArray[np.int64]

__all__ = ["NO_INVENTORY", "Inventory", "InventoryEntry", "describe"]

_FEW = 16
"""Up to so many entries are looked through one by one faster than as columns."""
_MOST = (1 << 64) - 1
_COLUMNS = ("codes", "owners", "rows", "row_counts", "stored_bytes", "flags", "ranks")


class InventoryEntry(Struct, frozen=True, kw_only=True):
    """One array's rows in one manifest: a view, for look-ups."""

    manifest: str
    row: int
    extent: Box
    flags: int
    row_count: int
    stored_bytes: int
    """Bytes that these chunks take where they are stored."""

    @property
    def is_dense(self) -> bool:
        """Whether every coordinate of the extent has a row, in order."""
        return bool(self.flags & DENSE)


class Inventory(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """Entries as columns.

    Those of a snapshot stand array by array, in the order of its rows; those of one array in the order of their
    extents, which look-ups rely on.
    """

    manifests: tuple[str, ...]
    """Ids of manifests, each once; some may be there that no entry names (see :meth:`named`)."""
    codes: npt.NDArray[np.int64]
    """By entry: which of the manifests it is of."""
    owners: npt.NDArray[np.int64]
    """By entry: whose it is. In a snapshot the row of the array's node, everywhere else the node's id."""
    rows: npt.NDArray[np.uint64]
    """By entry: the number of the array's first row in the manifest."""
    row_counts: npt.NDArray[np.uint64]
    stored_bytes: npt.NDArray[np.uint64]
    """By entry: bytes that its chunks take where they are stored; the largest number stands for more than it."""
    flags: npt.NDArray[np.uint16]
    """By entry: density, contents, and form of the file."""
    ranks: npt.NDArray[np.int64]
    """By entry: how many dimensions its array has."""
    pairs: npt.NDArray[np.uint64]
    """Start and stop of every dimension of every extent, one after the other, as an n × 2 array."""

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, number: int) -> InventoryEntry:
        first = int(self._firsts[number])
        pairs = self.pairs[first : first + int(self.ranks[number])].tolist()
        return InventoryEntry(
            manifest=self.manifests[self.codes[number]],
            row=int(self.rows[number]),
            extent=tuple(map(tuple, pairs)),
            flags=int(self.flags[number]),
            row_count=int(self.row_counts[number]),
            stored_bytes=int(self.stored_bytes[number]),
        )

    def __iter__(self) -> Iterator[InventoryEntry]:
        return (self[number] for number in range(len(self)))

    @lazy
    def _firsts(self) -> Rows:
        """By entry: where its pairs begin."""
        return np.cumsum(self.ranks) - self.ranks

    # -- made

    def _with(self, function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Inventory:
        """Do the same to all columns that have a number for each entry."""
        columns: dict[str, Any] = {name: function(getattr(self, name)) for name in _COLUMNS}
        return replace(self, **columns)

    @classmethod
    def of(cls, entries: Sequence[InventoryEntry], ndim: int, owner: int = 0) -> Inventory:
        """Put entries of one array into columns, in the order of their extents."""
        ordered = sorted(entries, key=lambda e: (e.extent, e.manifest))
        index: dict[str, int] = {}
        codes = [index.setdefault(each.manifest, len(index)) for each in ordered]
        return cls(
            manifests=tuple(index),
            codes=np.array(codes, np.int64),
            owners=np.full(len(ordered), owner, np.int64),
            rows=np.array([each.row for each in ordered], np.uint64),
            row_counts=np.array([each.row_count for each in ordered], np.uint64),
            stored_bytes=np.array([each.stored_bytes for each in ordered], np.uint64),
            flags=np.array([each.flags for each in ordered], np.uint16),
            ranks=np.full(len(ordered), ndim, np.int64),
            pairs=np.array([each.extent for each in ordered], np.uint64).reshape(-1, 2),
        )

    @classmethod
    def united(cls, parts: Iterable[Inventory]) -> Inventory:
        """Put entries one part behind the other."""
        full = [each for each in parts if len(each)]
        if len(full) < 2:
            return full[0] if full else NO_INVENTORY
        index: dict[str, int] = {}
        codes = []
        for part in full:
            each = part.named() if len(part) < len(part.manifests) else part
            known = [index.setdefault(name, len(index)) for name in each.manifests]
            codes.append(np.array(known, np.int64)[each.codes])
        columns = {
            name: np.concatenate([getattr(each, name) for each in full])
            for name in (*_COLUMNS, "pairs")
        }
        return cls(manifests=tuple(index), **{**columns, "codes": np.concatenate(codes)})

    # -- some of the entries

    def chosen(self, which: npt.NDArray[Any]) -> Inventory:
        """Some of the entries, by mask or by number, or all in another order."""
        rows = np.flatnonzero(which) if which.dtype == np.bool_ else which
        ranks = self.ranks[rows]
        if not len(rows):
            pairs = self.pairs[:0]
        elif len(ranks) and int(self.ranks.min()) == int(self.ranks.max()):
            pairs = self.pairs.reshape(len(self), -1)[rows].reshape(-1, 2)
        else:
            starts = self._firsts[rows] - (np.cumsum(ranks) - ranks)
            pairs = self.pairs[np.repeat(starts, ranks) + np.arange(int(ranks.sum()))]
        return replace(self._with(lambda column: column[rows]), pairs=pairs)

    def of_owner(self, owner: int) -> Inventory:
        """Give one array's entries, of entries that stand array by array: a slice, in the order of extents."""
        low, high = self.owners.searchsorted((owner, owner + 1)).tolist()
        if low == high:
            return NO_INVENTORY
        first, last = int(self._firsts[low]), int(self._firsts[high - 1] + self.ranks[high - 1])
        part = replace(self._with(lambda column: column[low:high]), pairs=self.pairs[first:last])
        first_of = part.pairs[:: int(part.ranks[0]), 0] if part.ranks[0] else part.pairs[:0, 0]
        if (first_of[1:] < first_of[:-1]).any():
            return part.in_order()
        return part

    def by_owner(self) -> dict[int, Inventory]:
        """Give each array's entries, in the order of their extents."""
        ordered = self.in_order()
        return {owner: ordered.of_owner(owner) for owner in distinct(ordered.owners).tolist()}

    def without(self, manifests: Collection[str]) -> Inventory:
        """Leave out the entries of some manifests."""
        gone = self.of_manifests(manifests) if manifests else None
        return self if gone is None or not gone.any() else self.chosen(~gone)

    def of_manifests(self, manifests: Collection[str]) -> npt.NDArray[np.bool_]:
        """Mark the entries of some manifests."""
        chosen = np.zeros(len(self.manifests), np.bool_)
        chosen[[self._code_of[name] for name in manifests if name in self._code_of]] = True
        return chosen[self.codes]

    @lazy
    def _code_of(self) -> Mapping[str, int]:
        return {name: code for code, name in enumerate(self.manifests)}

    # -- the same entries otherwise

    def named(self) -> Inventory:
        """Bring the manifests into the order in which the entries name them; forget those that none names."""
        order = np.argsort(self.codes, kind="stable")
        held = self.codes[order]
        new = np.append(True, held[1:] != held[:-1])[: len(held)]
        firsts = order[new]  # of each code that is used, the first entry
        place = np.empty(len(firsts), np.int64)
        place[np.argsort(firsts)] = np.arange(len(firsts))
        used = held[new][np.argsort(firsts)]
        if len(used) == len(self.manifests) and bool((used[1:] > used[:-1]).all()):
            return self
        codes = np.empty(len(order), np.int64)
        codes[order] = place[np.cumsum(new) - 1]
        names = tuple(map(self.manifests.__getitem__, used.tolist()))
        return replace(self, manifests=names, codes=codes)

    def owned_by(self, owner: int) -> Inventory:
        """Give all entries to one array."""
        return replace(self, owners=np.full(len(self), owner, np.int64))

    def moved(self, rows: Rows) -> Inventory:
        """Give the entries of each owner to another one; those that go to a negative one are left out."""
        owners = rows[self.owners]
        order = np.argsort(owners, kind="stable")
        order = order[int((owners < 0).sum()) :]
        return replace(self, owners=owners).chosen(order)

    def in_order(self, touched: Rows | None = None) -> Inventory:
        """Order entries by array and extent; with ``touched``, arrays that are not among these stay as they are."""
        if len(self) < 2:
            return self
        order = np.argsort(self.owners, kind="stable")
        held = self.owners[order]
        edges = run_edges(held)
        several = edges[1:] - edges[:-1] > 1
        if touched is not None:
            several &= np.isin(held[edges[:-1]], touched)
        places = np.flatnonzero(np.repeat(several, edges[1:] - edges[:-1]))
        if len(places):
            some = order[places]
            ranks = self.ranks[some]
            numbers = np.zeros((len(some), int(ranks.max(initial=0)), 2), np.uint64)
            inside = np.arange(numbers.shape[1]) < ranks[:, None]
            where = self._firsts[some][:, None] + np.arange(numbers.shape[1])
            numbers[inside] = self.pairs[where[inside]]
            names = np.array(self.manifests, "S")[self.codes[some]]
            keys = [names, *numbers.reshape(len(some), -1).T[::-1], held[places]]
            order[places] = some[np.lexsort(keys)]
        return self if bool((order[1:] > order[:-1]).all()) else self.chosen(order)

    # -- questions

    @property
    def chunk_count(self) -> int:
        """How many chunks there are in all."""
        return int(self.row_counts.sum())

    @lazy
    def names(self) -> tuple[str, ...]:
        """By entry: the id of its manifest."""
        return tuple(map(self.manifests.__getitem__, self.codes.tolist()))

    @lazy
    def boxes(self) -> Boxes:
        """The extents of one array's entries."""
        rank = int(self.ranks[0]) if len(self) else 0
        pairs = self.pairs.reshape(len(self), rank, 2)
        return Boxes(pairs[:, :, 0], pairs[:, :, 1])

    def boxes_by_rank(self) -> Iterator[tuple[Rows, Boxes]]:
        """Entries of arrays of each rank: which they are, and their extents."""
        for rank in distinct(self.ranks).tolist():
            which = np.flatnonzero(self.ranks == rank)
            yield which, (self if len(which) == len(self) else self.chosen(which)).boxes

    def row_sums(self) -> npt.NDArray[np.int64]:
        """How many rows each manifest has."""
        counts = np.bincount(self.codes, weights=self.row_counts, minlength=len(self.manifests))
        return counts.astype(np.int64)

    def holding(self, coord: Sequence[int]) -> list[InventoryEntry]:
        """Entries of one array whose extent contains a coordinate."""
        if len(self) <= _FEW:
            return [entry for entry in self._listed if contains(entry.extent, coord)]
        low, high = 0, len(self)
        if coord:  # entries stand in the order of their starts
            low = int(self._reach.searchsorted(coord[0], "right"))
            high = int(self._begin.searchsorted(coord[0], "right"))
        near = Boxes(self.boxes.starts[low:high], self.boxes.stops[low:high])
        return [self[low + number] for number in np.flatnonzero(near.hold(coord)).tolist()]

    @lazy
    def _listed(self) -> tuple[InventoryEntry, ...]:
        return tuple(self)

    @lazy
    def _begin(self) -> npt.NDArray[np.uint64]:
        """Where entries begin along the first dimension, rising."""
        return np.ascontiguousarray(self.boxes.starts[:, 0])

    @lazy
    def _reach(self) -> npt.NDArray[np.uint64]:
        """How far along the first dimension any entry up to this one goes."""
        return np.maximum.accumulate(self.boxes.stops[:, 0])


NO_INVENTORY = Inventory.of((), 0)


# -- of rows


def describe(
    table: pa.Table,
    manifest: str,
    ndims: Mapping[int, int],
    within: Mapping[int, Box] | None = None,
) -> Inventory:
    """Describe what a manifest of sorted rows holds of each array, all arrays at once.

    Where the rows of an array are known to lie ``within`` an extent, no more of them are decoded than it takes to
    know that they need all of it.
    """
    owners, rows, counts = rows_of_arrays(table)
    ranks = np.fromiter((ndims[i] for i in owners.tolist()), np.int64, len(owners))
    column = one_array(table["coord"])
    bounds = None if within is None or len(owners) != 1 else within.get(int(owners[0]))
    if bounds is not None:
        pairs = np.array(extent_within(column, bounds), np.uint64).reshape(-1, 2)
    else:
        pairs = _extents(column, ranks, counts)
    kinds = np.bitwise_or.reduceat(kinds_of_rows(table), rows) if len(rows) else np.empty(0, "u1")
    inventory = Inventory(
        manifests=(manifest,),
        codes=np.zeros(len(owners), np.int64),
        owners=owners.astype(np.int64),
        rows=rows.astype(np.uint64),
        row_counts=counts.astype(np.uint64),
        stored_bytes=_sums_of_lengths(table, rows),
        flags=kinds.astype(np.uint16) | np.uint16(form_flags(table)),
        ranks=ranks,
        pairs=pairs,
    )
    for which, boxes in inventory.boxes_by_rank():
        # exact wherever it can equal a number of rows, which is below 2**32
        inventory.flags[which[boxes.volumes() == counts[which]]] |= np.uint16(DENSE)
    return inventory


def _extents(column: pa.Array, ranks: Rows, counts: Rows) -> npt.NDArray[np.uint64]:
    """Find the smallest extent of each array's rows: their pairs, one after the other."""
    if len(ranks) == 1:
        box = around(coords.decode(column, int(ranks[0])))
        return np.array(box, np.uint64).reshape(-1, 2)
    pairs = np.empty((int(ranks.sum()), 2), np.uint64)
    firsts = np.cumsum(ranks) - ranks
    for ndim in distinct(ranks).tolist():
        chosen = np.flatnonzero(ranks == ndim)
        some = column
        if len(chosen) < len(ranks):
            some = column.take(indices(np.flatnonzero(np.repeat(ranks == ndim, counts))))
        decoded = coords.decode(some, ndim)
        first = np.cumsum(counts[chosen]) - counts[chosen]
        where = firsts[chosen][:, None] + np.arange(ndim)
        pairs[where, 0] = np.minimum.reduceat(decoded, first, axis=0)
        pairs[where, 1] = np.maximum.reduceat(decoded, first, axis=0) + np.uint64(1)
    return pairs


def _sums_of_lengths(table: pa.Table, firsts: Rows) -> npt.NDArray[np.uint64]:
    """Add up the lengths from each of these rows up to the next."""
    lengths = to_numpy(table["length"])
    if not len(firsts):
        return np.empty(0, np.uint64)
    sums = np.add.reduceat(lengths, firsts)
    if int(lengths.max()) <= _MOST // len(lengths):
        return sums
    half = np.uint64(32)
    low = np.add.reduceat(lengths & np.uint64((1 << 32) - 1), firsts)
    high = np.add.reduceat(lengths >> half, firsts) + (low >> half)
    return np.where(high >> half, np.uint64(_MOST), sums)
