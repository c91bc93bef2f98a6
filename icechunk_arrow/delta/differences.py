"""Which rows of a published inventory change from one snapshot to another: pure, from two structure files.

Manifests never change, and every chunk stands in exactly one live manifest. So the rows of a manifest come and go
together, and no row has to be compared with any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icechunk_arrow.tables.node_changes import own_manifests

if TYPE_CHECKING:
    from icechunk_arrow.core.snapshot import Snapshot

__all__ = ["Replacement", "everything", "replacement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """Rows of these manifests go, and rows of those come; a manifest in both has other rows than before."""

    gone: frozenset[str]
    new: frozenset[str]
    row_count: int
    """Rows that come."""
    whole: bool = False
    """Whether all rows of the repository go, whatever manifests they are of."""


def everything(after: Snapshot) -> Replacement:
    """Put all rows of a snapshot in place of whatever is there."""
    new = frozenset(after.manifest_sizes)
    return Replacement(gone=frozenset(), new=new, row_count=_rows(after, new), whole=True)


def replacement(before: Snapshot, after: Snapshot) -> Replacement:
    """Tell what has to be done to rows of one snapshot for them to be those of another.

    The two may stand anywhere in the repository's history.
    """
    renamed = _renamed(before, after)
    gone = frozenset(own_manifests(before, after)) | renamed
    new = frozenset(own_manifests(after, before)) | renamed
    return Replacement(gone=gone, new=new, row_count=_rows(after, new))


def _renamed(before: Snapshot, after: Snapshot) -> frozenset[str]:
    """Find manifests that both have, with chunks of arrays whose paths differ."""
    moved = [
        node_id
        for node_id, row in before.rows_by_id.items()
        if node_id in after.rows_by_id
        and before.paths[row] != after.paths[after.rows_by_id[node_id]]
    ]
    if not moved:
        return frozenset()
    entries = after.entries
    rows = [after.rows_by_id[node_id] for node_id in moved]
    codes = np.unique(entries.codes[np.isin(entries.owners, rows)])
    names = (entries.manifests[code] for code in codes.tolist())
    return frozenset(name for name in names if name in before.manifest_sizes)


def _rows(snapshot: Snapshot, manifests: frozenset[str]) -> int:
    entries = snapshot.entries
    return int(entries.row_counts[entries.of_manifests(manifests)].sum())
