"""What it takes to bring a snapshot's manifests into the shape that the settings ask for.

A pure decision: manifests that are as wanted stay, all others are read and placed again.

Specification: schemas/README.md#manifests-of-a-snapshot
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icechunk_arrow.core.placement import groups_of, limit_of
from icechunk_arrow.core.splits import axis_of, box_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from icechunk_arrow.core.manifest_settings import ManifestSet, ManifestSettings
    from icechunk_arrow.core.placement import ArrayShape
    from icechunk_arrow.core.snapshot import Inventories

__all__ = ["Repacking", "meeting", "plan_repacking"]

_PAIRS = 1 << 20
"""How many pairs of extents are compared at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repacking:
    """Which manifests stay, and what the rows of all others become."""

    kept: frozenset[str]
    replaced: frozenset[str]
    together: tuple[tuple[int, ...], ...]
    """Arrays that share a manifest, for each new manifest of whole arrays."""
    cut: Mapping[int, ManifestSet]
    """Arrays that are cut along their grid, each with its set; only rows of replaced manifests move."""
    row_count: int
    """How many rows are written again."""


def plan_repacking(
    arrays: Mapping[int, Inventories],
    settings: ManifestSettings,
    shapes: Callable[[int], ArrayShape],
) -> Repacking:
    """Compare live manifests with what the settings would make of the same rows."""
    sizes = {array_id: each.chunk_count for array_id, each in arrays.items() if len(each)}
    tenants: dict[str, set[int]] = {}
    for array_id in sizes:
        for name in arrays[array_id].manifests:
            tenants.setdefault(name, set()).add(array_id)
    kept: set[str] = set()
    together: list[tuple[int, ...]] = []
    cut: dict[int, ManifestSet] = {}
    for chosen, members in groups_of(settings, sizes, shapes):
        first = arrays[members[0]]
        if len(members) == 1 and sizes[members[0]] > limit_of(chosen):
            alone = np.array([len(tenants[name]) == 1 for name in first.manifests], np.bool_)
            fine = _well_cut(first, alone, chosen, shapes(members[0]))
            kept.update(name for name, good in zip(first.manifests, fine, strict=True) if good)
            if not fine.all():
                cut[members[0]] = chosen
        elif {name for each in members for name in arrays[each].manifests} == {
            first.manifests[0]
        } and tenants[first.manifests[0]] == set(members):
            kept.add(first.manifests[0])
        else:
            together.append(members)
    replaced = frozenset(tenants.keys() - kept)
    moved = sum(sizes[each] for members in together for each in members)
    for array_id in cut:
        again = np.array([name in replaced for name in arrays[array_id].manifests], np.bool_)
        moved += int(arrays[array_id].row_counts[again].sum())
    return Repacking(
        kept=frozenset(kept),
        replaced=replaced,
        together=tuple(together),
        cut=cut,
        row_count=moved,
    )


def _well_cut(
    found: Inventories, alone: npt.NDArray[np.bool_], chosen: ManifestSet, shape: ArrayShape
) -> npt.NDArray[np.bool_]:
    """Tell which parts of an array may stay: of the right size, and with boxes of their own."""
    limit, ndim = limit_of(chosen), len(shape.chunk_counts)
    axis = axis_of(chosen.split_along, shape.dimension_names, ndim)
    box = np.array(box_of(shape.chunk_counts, limit, axis), np.uint64)
    first, last = found.starts // box, (found.stops - np.uint64(1)) // box + np.uint64(1)
    right = alone & (found.row_counts <= limit) & ~meeting(first, last)
    small = found.row_counts * 2 <= limit
    wrong = ~right | small
    rows = int(found.row_counts[wrong].sum())
    if right.all() and -(-rows // limit) == np.count_nonzero(wrong):
        return right  # the small ones cannot become fewer
    return ~wrong


def meeting(starts: npt.NDArray[np.uint64], stops: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Tell which extents have a coordinate in common with another one."""
    count, ndim = starts.shape
    found = np.zeros(count, np.bool_)
    if ndim == 0:
        return np.full(count, count > 1)
    order = np.argsort(starts[:, 0], kind="stable")
    low, high = starts[order], stops[order]
    after = np.searchsorted(low[:, 0], high[:, 0])  # whoever begins before this one ends
    partners = after - np.arange(count) - 1
    begin = 0
    while begin < count:
        ends = np.cumsum(partners[begin:])
        stop = begin + max(int(np.searchsorted(ends, _PAIRS, side="right")), 1)
        some = partners[begin:stop]
        a = np.repeat(np.arange(begin, stop), some)
        b = a + 1 + np.arange(len(a)) - np.repeat(np.cumsum(some) - some, some)
        meets = ((low[a] < high[b]) & (low[b] < high[a])).all(axis=1)
        found[order[a[meets]]] = True
        found[order[b[meets]]] = True
        begin = stop
    return found
