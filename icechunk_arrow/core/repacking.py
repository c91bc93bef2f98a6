"""What it takes to bring a snapshot's manifests into the shape that the settings ask for.

A pure decision: manifests that are as wanted stay, all others are read and placed again.

Specification: schemas/README.md#manifests-of-a-snapshot
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from icechunk_arrow.core.boxes import Boxes
from icechunk_arrow.core.placement import groups_of, limit_of
from icechunk_arrow.core.splits import axis_of, box_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from icechunk_arrow.core.inventory import Inventory
    from icechunk_arrow.core.manifest_settings import ManifestSet, ManifestSettings
    from icechunk_arrow.core.packing import ArrayShape

__all__ = ["Cut", "Repacking", "plan_repacking"]

_FAR = np.uint64(2**64 - 1)


class Cut(Struct, frozen=True, kw_only=True):
    """How an array is cut again."""

    home: ManifestSet
    """The set whose manifests its rows fill."""
    parts: tuple[tuple[str, ...], ...]
    """Manifests to be replaced. The rows of each part are cut by themselves: others stand between."""


class Repacking(Struct, frozen=True, kw_only=True):
    """Which manifests stay, and what the rows of all others become."""

    kept: frozenset[str]
    replaced: frozenset[str]
    together: tuple[tuple[int, ...], ...]
    """Arrays that share a manifest, for each new manifest of whole arrays."""
    cut: Mapping[int, Cut]
    """Arrays that are cut along their grid; only rows of replaced manifests move."""
    row_count: int
    """How many rows are written again."""


def plan_repacking(
    arrays: Mapping[int, Inventory],
    settings: ManifestSettings,
    shapes: Mapping[int, ArrayShape],
) -> Repacking:
    """Compare live manifests with what the settings would make of the same rows."""
    sizes = {array_id: each.chunk_count for array_id, each in arrays.items() if len(each)}
    tenants: dict[str, set[int]] = {}
    for array_id in sizes:
        for name in arrays[array_id].names:
            tenants.setdefault(name, set()).add(array_id)
    kept: set[str] = set()
    together: list[tuple[int, ...]] = []
    cut: dict[int, Cut] = {}
    for chosen, members in groups_of(settings, sizes, shapes):
        first = arrays[members[0]]
        if len(members) == 1 and sizes[members[0]] > limit_of(chosen):
            alone = np.array([len(tenants[name]) == 1 for name in first.names], np.bool_)
            parts = _parts_to_cut(first, alone, chosen, shapes[members[0]])
            kept.update(set(first.names).difference(*parts))
            if parts:
                cut[members[0]] = Cut(home=chosen, parts=parts)
        elif {name for each in members for name in arrays[each].names} == {
            first.names[0]
        } and tenants[first.names[0]] == set(members):
            kept.add(first.names[0])
        else:
            together.append(members)
    replaced = frozenset(tenants.keys() - kept)
    moved = sum(sizes[each] for members in together for each in members)
    for array_id in cut:
        again = np.array([name in replaced for name in arrays[array_id].names], np.bool_)
        moved += int(arrays[array_id].row_counts[again].sum())
    return Repacking(
        kept=frozenset(kept),
        replaced=replaced,
        together=tuple(together),
        cut=cut,
        row_count=moved,
    )


def _parts_to_cut(
    found: Inventory, alone: npt.NDArray[np.bool_], chosen: ManifestSet, shape: ArrayShape
) -> tuple[tuple[str, ...], ...]:
    """Find what is to be cut again of an array: groups of neighbouring parts; all others may stay.

    Parts that share a slice along the cut axis stay together, or are cut together: only so what comes out has
    nothing in common with what stays. A part must go that another one cuts into, that is too large, or small
    beside a small one; and where neighbours are cut a small one goes as well, so that once is enough.

    Why that is right: in the order of their places, parts fall into groups with no slice of the cut axis in common
    (a group begins where a part begins behind the reach of all before it). A group is cut as a whole or not at all,
    so whatever is cut fills slices of its own, and rows that are cut again meet no part that stays. What is cut
    ends in a manifest that may be small; beside a small part that stays it would have to be merged the next time.
    So a small part at the edge of a group goes with a neighbour that goes, forwards and then backwards, which
    reaches every such part because each pass hands on what it decided.
    """
    limit = limit_of(chosen)
    places, slices = _places(found, limit, shape, chosen)
    wrong = ~alone | (found.row_counts > limit) | places.meet_one_another()
    keys = [
        side[:, d] for d in reversed(range(places.ndim)) for side in (places.stops, places.starts)
    ]
    order = np.lexsort(keys)
    wrong, small, slices = wrong[order], found.row_counts[order] * 2 <= limit, slices[order]
    reach = np.maximum.accumulate(slices[:, 1])
    begins = np.flatnonzero(np.r_[True, slices[1:, 0] > reach[:-1]])
    pairs = small[1:] & small[:-1]
    wrong |= np.r_[pairs, False] | np.r_[False, pairs]
    again = np.logical_or.reduceat(wrong, begins)
    ends = np.r_[begins[1:], len(wrong)]
    first_small, last_small = small[begins], small[ends - 1]
    for group in range(1, len(begins)):
        again[group] |= again[group - 1] & first_small[group]
    for group in range(len(begins) - 1, 0, -1):
        again[group - 1] |= again[group] & last_small[group - 1]
    edges = np.flatnonzero(np.diff(np.r_[False, again, False])).reshape(-1, 2)
    return tuple(
        tuple(found.names[row] for row in order[begins[start] : ends[stop - 1]].tolist())
        for start, stop in edges.tolist()
    )


def _places(
    found: Inventory, limit: int, shape: ArrayShape, chosen: ManifestSet
) -> tuple[Boxes, npt.NDArray[np.uint64]]:
    """Where parts stand among the boxes of the cut grid, as boxes of these; and first and last slice.

    The cut axis comes first. A part goes on from box to box, so neighbours may share its first and last slice
    along an axis: of one over several slices only what lies between counts, for which they are numbered by
    twos. Only within a single slice do the axes that follow tell parts from one another.
    """
    ndim = len(shape.chunk_counts)
    axis = axis_of(chosen.split_along, shape.dimension_names, ndim)
    box = np.array(box_of(shape.chunk_counts, limit, axis), np.uint64)
    one, two = np.uint64(1), np.uint64(2)
    held = found.boxes
    first, last = held.starts // box, (held.stops - one) // box
    places = Boxes(*np.zeros((2, len(found), ndim), np.uint64))
    free = np.zeros(len(found), np.bool_)
    axes = [axis, *(each for each in range(ndim) if each != axis)]
    for number, each in enumerate(axes):
        several = first[:, each] < last[:, each]
        start = first[:, each] * two + several
        stop = np.where(several, last[:, each] * two, start + one)
        places.starts[:, number] = np.where(free, np.uint64(0), start)
        places.stops[:, number] = np.where(free, _FAR, stop)
        free |= several
    cut = next((each for each in axes if int(last[:, each].max())), axis)
    return places, np.stack([first[:, cut], last[:, cut]], axis=1)
