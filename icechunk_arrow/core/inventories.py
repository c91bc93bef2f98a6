"""Which rows of which manifests are whose: the inventories of one array, and the entries of a whole snapshot.

A snapshot may have a hundred thousand arrays, and an array a thousand manifests: all of it stays columns, and one
entry as an object (:class:`InventoryEntry`) exists only where one is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icechunk_arrow.core.boxes import Boxes, contains
from icechunk_arrow.core.chunks import DENSE
from icechunk_arrow.core.columns import distinct
from icechunk_arrow.core.lazy import lazy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.boxes import Box

__all__ = ["NO_ENTRIES", "NO_INVENTORIES", "Entries", "Inventories", "InventoryEntry"]

_FEW = 16
"""Up to so many entries are looked through one by one faster than as columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryEntry:
    """One array's rows in one manifest."""

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Inventories:
    """An array's entries, as columns: ``starts`` and ``stops`` are entries × dimensions."""

    manifests: tuple[str, ...]
    rows: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.uint64]
    stops: npt.NDArray[np.uint64]
    flags: npt.NDArray[np.uint16]
    row_counts: npt.NDArray[np.uint64]
    stored_bytes: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.manifests)

    def __getitem__(self, index: int) -> InventoryEntry:
        return InventoryEntry(
            manifest=self.manifests[index],
            row=int(self.rows[index]),
            extent=self.boxes[index],
            flags=int(self.flags[index]),
            row_count=int(self.row_counts[index]),
            stored_bytes=int(self.stored_bytes[index]),
        )

    def __iter__(self) -> Iterator[InventoryEntry]:
        return (self[index] for index in range(len(self)))

    @property
    def chunk_count(self) -> int:
        """How many chunks there are in all."""
        return int(self.row_counts.sum()) if self.manifests else 0

    @property
    def boxes(self) -> Boxes:
        """The extents."""
        return Boxes(self.starts, self.stops)

    @lazy
    def _listed(self) -> tuple[InventoryEntry, ...]:
        return tuple(self)

    def holding(self, coord: Sequence[int]) -> list[InventoryEntry]:
        """Entries whose extent contains a coordinate."""
        if len(self.manifests) <= _FEW:
            return [entry for entry in self._listed if contains(entry.extent, coord)]
        low, high = 0, len(self.manifests)
        if coord:  # entries stand in the order of their starts
            low = int(self._reach.searchsorted(coord[0], "right"))
            high = int(self._first.searchsorted(coord[0], "right"))
        mask = Boxes(self.starts[low:high], self.stops[low:high]).hold(coord)
        return [self[low + index] for index in np.flatnonzero(mask).tolist()]

    @lazy
    def _first(self) -> npt.NDArray[np.uint64]:
        """Where entries begin along the first dimension, rising."""
        return np.ascontiguousarray(self.starts[:, 0])

    @lazy
    def _reach(self) -> npt.NDArray[np.uint64]:
        """How far along the first dimension any entry up to this one goes."""
        return np.maximum.accumulate(self.stops[:, 0])

    def chosen(self, which: npt.NDArray[Any]) -> Inventories:
        """Some of the entries, by mask or by number."""
        rows = np.flatnonzero(which) if which.dtype == np.bool_ else which
        return Inventories(
            manifests=tuple(map(self.manifests.__getitem__, rows.tolist())),
            rows=self.rows[rows],
            starts=self.starts[rows],
            stops=self.stops[rows],
            flags=self.flags[rows],
            row_counts=self.row_counts[rows],
            stored_bytes=self.stored_bytes[rows],
        )

    def without(self, manifests: Collection[str]) -> Inventories:
        """Leave out the entries of some manifests."""
        if not manifests:
            return self
        kept = [i for i, name in enumerate(self.manifests) if name not in manifests]
        return self if len(kept) == len(self) else self.chosen(np.array(kept, np.int64))

    def united(self, *others: Inventories) -> Inventories:
        """Add entries, in the order of their extents."""
        parts = [each for each in (self, *others) if len(each)]
        if len(parts) < 2:
            return parts[0] if parts else self
        both = Inventories(
            manifests=tuple(name for each in parts for name in each.manifests),
            rows=np.concatenate([each.rows for each in parts]),
            starts=np.concatenate([each.starts for each in parts]),
            stops=np.concatenate([each.stops for each in parts]),
            flags=np.concatenate([each.flags for each in parts]),
            row_counts=np.concatenate([each.row_counts for each in parts]),
            stored_bytes=np.concatenate([each.stored_bytes for each in parts]),
        )
        return both.in_order()

    def in_order(self) -> Inventories:
        """Order entries by their extents."""
        if len(self) < 2:
            return self
        keys: list[npt.NDArray[Any]] = [np.array(self.manifests, "S")]
        for d in reversed(range(self.starts.shape[1])):
            keys += [self.stops[:, d], self.starts[:, d]]
        return self.chosen(np.lexsort(keys))

    @classmethod
    def of(cls, entries: Sequence[InventoryEntry], ndim: int) -> Inventories:
        """Put entries into columns, in the order of their extents."""
        ordered = sorted(entries, key=lambda e: (e.extent, e.manifest))
        box = np.array([e.extent for e in ordered], np.uint64).reshape(len(ordered), ndim, 2)
        return cls(
            manifests=tuple(e.manifest for e in ordered),
            rows=np.array([e.row for e in ordered], np.uint64),
            starts=box[:, :, 0],
            stops=box[:, :, 1],
            flags=np.array([e.flags for e in ordered], np.uint16),
            row_counts=np.array([e.row_count for e in ordered], np.uint64),
            stored_bytes=np.array([e.stored_bytes for e in ordered], np.uint64),
        )


NO_INVENTORIES = Inventories.of((), 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Entries:
    """The inventory entries of all arrays of a snapshot, array by array in the order of the nodes' rows."""

    manifests: tuple[str, ...]
    """Ids of the live manifests, in the order in which the entries name them first."""
    codes: npt.NDArray[np.int64]
    """By entry: which of the manifests it is of."""
    owners: npt.NDArray[np.int64]
    """By entry: the row of its array's node."""
    rows: npt.NDArray[np.uint64]
    row_counts: npt.NDArray[np.uint64]
    stored_bytes: npt.NDArray[np.uint64]
    flags: npt.NDArray[np.uint16]
    ranks: npt.NDArray[np.int64]
    """By entry: how many pairs it has."""
    pairs: npt.NDArray[np.uint64]
    """Start and stop of every dimension of every extent, as an n × 2 array."""

    def __len__(self) -> int:
        return len(self.codes)

    @lazy
    def code_of(self) -> Mapping[str, int]:
        """The code of each manifest."""
        return {name: code for code, name in enumerate(self.manifests)}

    @lazy
    def first_pairs(self) -> npt.NDArray[np.int64]:
        """By entry: where its pairs begin."""
        return np.cumsum(self.ranks) - self.ranks

    def sums(self) -> npt.NDArray[np.int64]:
        """How many rows each manifest has."""
        counts = np.bincount(self.codes, weights=self.row_counts, minlength=len(self.manifests))
        return counts.astype(np.int64)

    def boxes(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
        """Entries of each rank: which they are, and their extents as entries × rank × 2."""
        if not len(self):
            return
        low, high = int(self.ranks.min()), int(self.ranks.max())
        if low == high:
            yield np.arange(len(self)), self.pairs.reshape(len(self), low, 2)
            return
        for rank in distinct(self.ranks).tolist():
            which = np.flatnonzero(self.ranks == rank)
            yield which, self.pairs[self.first_pairs[which][:, None] + np.arange(rank)]

    def of_row(self, row: int) -> Inventories:
        """Give the inventories of the node at a row."""
        low, high = self.owners.searchsorted((row, row + 1)).tolist()
        if low == high:
            return NO_INVENTORIES
        first, rank = int(self.first_pairs[low]), int(self.ranks[low])
        box = self.pairs[first : first + (high - low) * rank].reshape(high - low, rank, 2)
        found = Inventories(
            manifests=tuple(map(self.manifests.__getitem__, self.codes[low:high].tolist())),
            rows=self.rows[low:high],
            starts=box[:, :, 0],
            stops=box[:, :, 1],
            flags=self.flags[low:high],
            row_counts=self.row_counts[low:high],
            stored_bytes=self.stored_bytes[low:high],
        )
        if rank and (found.starts[1:, 0] < found.starts[:-1, 0]).any():
            return found.in_order()  # look-ups rely on it
        return found

    @classmethod
    def of(cls, held: Iterable[tuple[int, Inventories]]) -> Entries:
        """Put the inventories of some nodes together, each with its node's row."""
        parts = [(row, each) for row, each in held if len(each)]
        if not parts:
            return NO_ENTRIES
        index: dict[str, int] = {}
        codes = [index.setdefault(name, len(index)) for _, each in parts for name in each.manifests]
        counts = [len(each) for _, each in parts]
        boxes = [np.stack([each.starts, each.stops], axis=2).reshape(-1, 2) for _, each in parts]
        return cls(
            manifests=tuple(index),
            codes=np.array(codes, np.int64),
            owners=np.repeat(np.array([row for row, _ in parts], np.int64), counts),
            rows=np.concatenate([each.rows for _, each in parts]),
            row_counts=np.concatenate([each.row_counts for _, each in parts]),
            stored_bytes=np.concatenate([each.stored_bytes for _, each in parts]),
            flags=np.concatenate([each.flags for _, each in parts]),
            ranks=np.repeat([each.starts.shape[1] for _, each in parts], counts).astype(np.int64),
            pairs=np.concatenate(boxes),
        )

    def taken(self, order: npt.NDArray[np.int64]) -> Entries:
        """Some of the entries, or all in another order, without the manifests that none of them names."""
        if len(order) == len(self) and bool((order[1:] > order[:-1]).all()):
            return self.named()
        ranks = self.ranks[order]
        starts = self.first_pairs[order] - (np.cumsum(ranks) - ranks)
        pairs = np.repeat(starts, ranks) + np.arange(int(ranks.sum()))
        some = Entries(
            manifests=self.manifests,
            codes=self.codes[order],
            owners=self.owners[order],
            rows=self.rows[order],
            row_counts=self.row_counts[order],
            stored_bytes=self.stored_bytes[order],
            flags=self.flags[order],
            ranks=ranks,
            pairs=self.pairs[pairs],
        )
        return some.named()

    def named(self) -> Entries:
        """Bring the manifests into the order in which the entries name them; forget those that none names."""
        firsts = np.full(len(self.manifests), len(self))
        firsts[self.codes[::-1]] = np.arange(len(self) - 1, -1, -1)
        order = np.argsort(firsts)[: int((firsts < len(self)).sum())]
        if len(order) == len(firsts) and bool((order[1:] > order[:-1]).all()):
            return self
        place = np.zeros(len(firsts), np.int64)
        place[order] = np.arange(len(order))
        names = tuple(map(self.manifests.__getitem__, order.tolist()))
        return replace(self, manifests=names, codes=place[self.codes])

    def of_manifests(self, manifests: Collection[str]) -> npt.NDArray[np.bool_]:
        """Mark the entries of some manifests."""
        chosen = np.zeros(len(self.manifests), np.bool_)
        chosen[[self.code_of[name] for name in manifests if name in self.code_of]] = True
        return chosen[self.codes]

    def without(self, manifests: Collection[str]) -> Entries:
        """Leave out the entries of some manifests."""
        if not manifests:
            return self
        return self.taken(np.flatnonzero(~self.of_manifests(manifests)))

    def moved(self, rows: npt.NDArray[np.int64]) -> Entries:
        """Give the entries of each row to another one; those that go to a negative one are left out."""
        owners = rows[self.owners]
        order = np.argsort(owners, kind="stable")
        order = order[int((owners < 0).sum()) :]
        return replace(self, owners=owners).taken(order)

    def united(self, other: Entries) -> Entries:
        """Add entries, whose owners need not rise: each array's in the order of their extents."""
        if not len(other):
            return self
        index = {
            name: code
            for code, name in enumerate(dict.fromkeys((*self.manifests, *other.manifests)))
        }
        codes = np.array([index[name] for name in other.manifests], np.int64)[other.codes]
        both = Entries(
            manifests=tuple(index),
            codes=np.concatenate([self.codes, codes]),
            owners=np.concatenate([self.owners, other.owners]),
            rows=np.concatenate([self.rows, other.rows]),
            row_counts=np.concatenate([self.row_counts, other.row_counts]),
            stored_bytes=np.concatenate([self.stored_bytes, other.stored_bytes]),
            flags=np.concatenate([self.flags, other.flags]),
            ranks=np.concatenate([self.ranks, other.ranks]),
            pairs=np.concatenate([self.pairs, other.pairs]),
        )
        return both.taken(both._order(distinct(other.owners)))

    def _order(self, touched: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Order entries by array; among those of a touched one by extent, the others stay as they are."""
        order = np.argsort(self.owners, kind="stable")
        held = self.owners[order]
        several = touched[np.bincount(held)[touched] > 1]
        places = np.flatnonzero(np.isin(held, several))
        if not len(places):
            return order
        some = order[places]
        ranks = self.ranks[some]
        numbers = np.zeros((len(some), int(ranks.max(initial=0)), 2), np.uint64)
        inside = np.arange(numbers.shape[1]) < ranks[:, None]
        where = self.first_pairs[some][:, None] + np.arange(numbers.shape[1])
        numbers[inside] = self.pairs[where[inside]]
        names = np.array(self.manifests, "S")[self.codes[some]]
        keys = [names, *numbers.reshape(len(some), -1).T[::-1], held[places]]
        order[places] = some[np.lexsort(keys)]
        return order


NO_ENTRIES = Entries(
    manifests=(),
    codes=np.empty(0, np.int64),
    owners=np.empty(0, np.int64),
    rows=np.empty(0, np.uint64),
    row_counts=np.empty(0, np.uint64),
    stored_bytes=np.empty(0, np.uint64),
    flags=np.empty(0, np.uint16),
    ranks=np.empty(0, np.int64),
    pairs=np.empty((0, 2), np.uint64),
)
