"""Which manifests a query engine reads together: pure decisions from a snapshot's inventories.

Manifests of one form on disk and one kind of contents make one scan, so that columns need no looking at: a
structure file says both. Engines differ in how a scan is written down, not in what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icechunk_arrow.core.chunks import (
    KINDS,
    WIDE,
)
from icechunk_arrow.core.columns import distinct
from icechunk_arrow.core.manifest_columns import TABLES_FORM

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.snapshot import Snapshot

__all__ = [
    "Owner",
    "Scan",
    "owners_apart",
    "plan_scans",
    "plan_scans_by_array",
    "plan_some_scans",
]

_FORM = WIDE | TABLES_FORM
"""The flags that matter where manifests are read for the tables."""
_CONTENTS = sum(KINDS)
_FEWEST_OWN = 4
"""An array with fewer manifests of its own is read with the others."""


class Owner(NamedTuple):
    """The one array that all rows of a scan belong to."""

    node_id: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Manifests of one form, whose rows are of the same kinds."""

    manifests: tuple[str, ...]
    flags: int
    """Their form on disk, and which kinds of chunks they have."""
    ndim: int | None = None
    """How many dimensions all arrays have; None where it differs, or was not asked for."""
    owner: Owner | None = None

    @property
    def form(self) -> int:
        """What says which columns they have, and of which types."""
        return self.flags & _FORM

    def has(self, kinds: int) -> bool:
        """Whether rows may be of one of these kinds."""
        return bool(self.flags & kinds)


def plan_scans(snapshot: Snapshot) -> tuple[Scan, ...]:
    """Group the live manifests by form and contents."""
    count = len(snapshot.entries.manifests)
    return tuple(_grouped(snapshot, np.ones(count, np.bool_), np.full(count, -1)))


def plan_some_scans(snapshot: Snapshot, manifests: Iterable[str]) -> tuple[Scan, ...]:
    """Group some of the live manifests by form, contents and rank."""
    wanted = set(manifests)
    chosen = np.array([name in wanted for name in snapshot.entries.manifests], np.bool_)
    return tuple(_grouped(snapshot, chosen, _common_ranks(snapshot)))


def plan_scans_by_array(snapshot: Snapshot, *, most_arrays: int) -> tuple[Scan, ...]:
    """Group the live manifests by form, contents and rank, and those of the largest arrays by array too.

    Only manifests that an array has for itself count. What is not of one array has no owner. A condition on the
    path then leaves out the files of all other large arrays before any is opened.
    """
    entries = snapshot.entries
    count = len(entries.manifests)
    ranks = _common_ranks(snapshot)
    tenants = np.bincount(entries.codes, minlength=count)
    single = tenants[entries.codes] == 1
    arrays = distinct(entries.owners[single])
    places = np.searchsorted(arrays, entries.owners[single])
    rows = np.bincount(places, weights=entries.row_counts[single], minlength=len(arrays))
    large = np.flatnonzero(np.bincount(places, minlength=len(arrays)) >= _FEWEST_OWN)
    large = large[np.argsort(-rows[large], kind="stable")][:most_arrays]
    scans: list[Scan] = []
    left = np.ones(count, np.bool_)
    for array in arrays[large].tolist():
        chosen = np.zeros(count, np.bool_)
        chosen[entries.codes[single & (entries.owners == array)]] = True
        left &= ~chosen
        owner = Owner(node_id=int(snapshot.rows.ids[array]), path=snapshot.paths[array])
        scans += _grouped(snapshot, chosen, ranks, owner)
    return (*scans, *_grouped(snapshot, left, ranks))


def owners_apart(snapshot: Snapshot, scans: Iterable[Scan]) -> list[str]:
    """Give the paths of arrays that own scans, and have no rows in those without an owner."""
    owners: dict[str, int] = {}
    shared: list[str] = []
    for scan in scans:
        if scan.owner is None:
            shared += scan.manifests
        else:
            owners[scan.owner.path] = scan.owner.node_id
    entries = snapshot.entries
    elsewhere = set(snapshot.rows.ids[entries.owners[entries.of_manifests(shared)]].tolist())
    return sorted(path for path, node_id in owners.items() if node_id not in elsewhere)


def _grouped(
    snapshot: Snapshot,
    chosen: npt.NDArray[np.bool_],
    ranks: npt.NDArray[np.int64],
    owner: Owner | None = None,
) -> Sequence[Scan]:
    entries = snapshot.entries
    flags = np.zeros(len(chosen), np.uint16)
    silent = (entries.flags & np.uint16(_CONTENTS)) == 0  # what says nothing may have all kinds
    contents = np.where(silent, entries.flags | np.uint16(_CONTENTS), entries.flags)
    np.bitwise_or.at(flags, entries.codes, contents)
    flags &= np.uint16(_FORM | _CONTENTS)
    kinds = flags.astype(np.int64) << 32 | (ranks + 1)
    scans = []
    for kind in distinct(kinds[chosen]).tolist():
        rank = (kind & 0xFFFFFFFF) - 1
        places = np.flatnonzero(chosen & (kinds == kind)).tolist()
        scans.append(
            Scan(
                manifests=tuple(map(entries.manifests.__getitem__, places)),
                flags=kind >> 32,
                ndim=None if rank < 0 else rank,
                owner=owner,
            )
        )
    return scans


def _common_ranks(snapshot: Snapshot) -> npt.NDArray[np.int64]:
    """Tell for each manifest how many dimensions its arrays have; -1 where it differs."""
    entries = snapshot.entries
    low = np.full(len(entries.manifests), np.iinfo(np.int64).max)
    high = np.full(len(entries.manifests), -1)
    np.minimum.at(low, entries.codes, entries.ranks)
    np.maximum.at(high, entries.codes, entries.ranks)
    return np.where(low == high, high, -1)
