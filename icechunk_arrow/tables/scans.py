"""Which manifests a query engine reads together: pure decisions from a snapshot's inventories.

Manifests of one form on disk and one kind of contents make one scan, so that columns need no looking at: a
structure file says both. Engines differ in how a scan is written down, not in what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icechunk_arrow.core.chunks import (
    HAS_INLINE,
    HAS_NATIVE,
    HAS_VIRTUAL,
    IS_VIRTUAL_SQL,
    WIDE,
)
from icechunk_arrow.core.manifest_columns import TABLES_FORM

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from icechunk_arrow.tables.manifests import Entries

__all__ = [
    "FORM",
    "Owner",
    "Scan",
    "kind_and_location",
    "plan_scans",
    "plan_scans_by_array",
    "plan_some_scans",
]

FORM = WIDE | TABLES_FORM
"""The flags that matter to whoever reads manifests for the tables."""
_CONTENTS = HAS_INLINE | HAS_NATIVE | HAS_VIRTUAL
_FEWEST_OWN = 4
"""An array with fewer manifests of its own is read with the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The one array that all rows of a scan belong to."""

    node_id: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Manifests of one form, whose rows are of the same kinds."""

    manifests: tuple[str, ...]
    form: int
    """Form flags: which columns they have, and in which width."""
    has_inline: bool
    has_native: bool
    has_virtual: bool
    ndim: int | None = None
    """How many dimensions all arrays have; None where it differs, or was not asked for."""
    owner: Owner | None = None


def plan_scans(entries: Entries) -> tuple[Scan, ...]:
    """Group the live manifests by form and contents."""
    count = len(entries.manifests)
    return tuple(_grouped(entries, np.ones(count, np.bool_), np.full(count, -1)))


def plan_some_scans(entries: Entries, manifests: Iterable[str]) -> tuple[Scan, ...]:
    """Group some of the live manifests by form, contents and rank."""
    wanted = set(manifests)
    chosen = np.array([name in wanted for name in entries.manifests], np.bool_)
    return tuple(_grouped(entries, chosen, _common_ranks(entries)))


def plan_scans_by_array(entries: Entries, *, most_arrays: int) -> tuple[Scan, ...]:
    """Group the live manifests by form, contents and rank, and those of the largest arrays by array too.

    Only manifests that an array has for itself count. What is not of one array has no owner. A condition on the
    path then leaves out the files of all other large arrays before any is opened.
    """
    count = len(entries.manifests)
    ranks = _common_ranks(entries)
    tenants = np.bincount(entries.codes, minlength=count)
    single = tenants[entries.codes] == 1
    arrays, places, per_array = np.unique(
        entries.owners[single], return_inverse=True, return_counts=True
    )
    rows = np.bincount(places, weights=entries.row_counts[single], minlength=len(arrays))
    large = np.flatnonzero(per_array >= _FEWEST_OWN)
    large = large[np.argsort(-rows[large], kind="stable")][:most_arrays]
    scans: list[Scan] = []
    left = np.ones(count, np.bool_)
    for array in arrays[large].tolist():
        mine = single & (entries.owners == array)
        chosen = np.zeros(count, np.bool_)
        chosen[entries.codes[mine]] = True
        left &= ~chosen
        first = int(np.flatnonzero(mine)[0])
        owner = Owner(
            node_id=int(entries.node_ids[first]),
            path=entries.paths[first].as_py(),
        )
        scans += _grouped(entries, chosen, ranks, owner)
    return (*scans, *_grouped(entries, left, ranks))


def kind_and_location(scan: Scan, folder: str) -> tuple[str, str]:
    """Write as SQL of which kind a row's chunk is, and the URI of its file.

    ``folder`` is what URIs of native chunks begin with, as the engine quotes a text.
    """
    virtual = IS_VIRTUAL_SQL
    native = f"{folder} || chunk_file"
    if scan.has_native and scan.has_virtual:
        kind = f"CASE WHEN {virtual} THEN 'virtual' ELSE 'native' END"
        location = f"CASE WHEN {virtual} THEN chunk_file ELSE {native} END"
    elif scan.has_native:
        kind, location = "'native'", native
    elif scan.has_virtual:
        kind, location = "'virtual'", "chunk_file"
    else:
        return "'inline'", "CAST(NULL AS STRING)"
    if scan.has_inline:
        kind = f"CASE WHEN chunk_file IS NULL THEN 'inline' ELSE {kind} END"
    return kind, location


def _grouped(
    entries: Entries,
    chosen: npt.NDArray[np.bool_],
    ranks: npt.NDArray[np.int64],
    owner: Owner | None = None,
) -> Sequence[Scan]:
    flags = np.zeros(len(chosen), np.uint16)
    np.bitwise_or.at(flags, entries.codes, _known(entries.flags))
    flags &= np.uint16(FORM | _CONTENTS)
    kinds = flags.astype(np.int64) << 32 | (ranks + 1)
    scans = []
    for kind in np.unique(kinds[chosen]).tolist():
        found, rank = kind >> 32, (kind & 0xFFFFFFFF) - 1
        places = np.flatnonzero(chosen & (kinds == kind)).tolist()
        scans.append(
            Scan(
                manifests=tuple(entries.manifests[place] for place in places),
                form=found & FORM,
                has_inline=bool(found & HAS_INLINE),
                has_native=bool(found & HAS_NATIVE),
                has_virtual=bool(found & HAS_VIRTUAL),
                ndim=None if rank < 0 else rank,
                owner=owner,
            )
        )
    return scans


def _common_ranks(entries: Entries) -> npt.NDArray[np.int64]:
    """Tell for each manifest how many dimensions its arrays have; -1 where it differs."""
    low = np.full(len(entries.manifests), np.iinfo(np.int64).max)
    high = np.full(len(entries.manifests), -1)
    np.minimum.at(low, entries.codes, entries.ranks)
    np.maximum.at(high, entries.codes, entries.ranks)
    return np.where(low == high, high, -1)


def _known(flags: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """Take an entry that says nothing of its contents to have all kinds."""
    silent = (flags & np.uint16(_CONTENTS)) == 0
    return np.where(silent, flags | np.uint16(_CONTENTS), flags)
