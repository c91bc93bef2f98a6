"""Which arrays share a manifest: pure decisions from their sizes and the settings.

Knows neither references nor files. Arrays and packs come out the same in whatever order arrays are given.

Specification: schemas/README.md#configuration
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Protocol

from icechunk_arrow.core.manifest_settings import DEFAULT_SET

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from icechunk_arrow.core.manifest_settings import ManifestSet, ManifestSettings, Range

__all__ = [
    "ArrayShape",
    "Pack",
    "PlainShape",
    "bin_pack",
    "choose_set",
    "closure",
    "ordered_sets",
    "pack",
]


class ArrayShape(Protocol):
    """What packing and placement ask of an array; rules seldom ask for all of it, and arrays may be many."""

    @property
    def path(self) -> str:
        """The whole path, beginning with ``/``."""

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        """How many chunks its grid has along each dimension."""

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None:
        """What its dimensions are called."""

    @property
    def chunk_count(self) -> int:
        """How many chunks it has, in all manifests."""


class PlainShape(NamedTuple):
    """An array's shape of which all is known."""

    path: str
    chunk_counts: tuple[int, ...]
    dimension_names: tuple[str | None, ...] | None
    chunk_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """The arrays of one manifest, and the set that it belongs to.

    An array above the set's limit has a pack of its own, which is cut along the array's grid.
    """

    set_name: str
    array_ids: tuple[int, ...]


def choose_set(settings: ManifestSettings, shape: ArrayShape) -> ManifestSet:
    """The set that an array is meant for: that of the first rule that matches, or the default one."""
    return _choose_sets(settings, [shape])[0]


def _choose_sets(settings: ManifestSettings, arrays: Sequence[ArrayShape]) -> list[ManifestSet]:
    """Choose the set of each array; patterns see all paths at once."""
    sets = {each.name: each for each in settings.sets}
    found = [DEFAULT_SET] * len(arrays)
    undecided = list(range(len(arrays)))
    for rule in settings.rules:
        candidates = undecided
        if rule.initialized_chunks is not None:
            wanted = rule.initialized_chunks
            candidates = [row for row in candidates if _is_within(arrays[row].chunk_count, wanted)]
        if rule.metadata_chunks is not None:
            wanted = rule.metadata_chunks
            candidates = [
                row for row in candidates if _is_within(prod(arrays[row].chunk_counts), wanted)
            ]
        if rule.pattern is not None and candidates:
            matches = rule.pattern.matches_all([arrays[row].path for row in candidates])
            candidates = [row for row, ok in zip(candidates, matches, strict=True) if ok]
        for row in candidates:
            found[row] = rule.target
        decided = set(candidates)
        undecided = [row for row in undecided if row not in decided]
    return [sets[name] for name in found]


def _is_within(count: int, wanted: Range) -> bool:
    start, stop = wanted
    return (start is None or start <= count) and (stop is None or count < stop)


def ordered_sets(settings: ManifestSettings) -> tuple[ManifestSet, ...]:
    """Order sets so that each stands before the one it overflows to; ties as configured."""
    places = {each.name: place for place, each in enumerate(settings.sets)}
    before = dict.fromkeys(places, 0)
    for each in settings.sets:
        if each.overflow_to is not None:
            before[each.overflow_to] += 1
    ready = [places[name] for name, count in before.items() if not count]
    heapq.heapify(ready)
    order: list[ManifestSet] = []
    while ready:
        order.append(settings.sets[heapq.heappop(ready)])
        after = order[-1].overflow_to
        if after is not None:
            before[after] -= 1
            if not before[after]:
                heapq.heappush(ready, places[after])
    return tuple(order)


def pack(
    settings: ManifestSettings, sizes: Mapping[int, int], shapes: Callable[[int], ArrayShape]
) -> list[Pack]:
    """Assign every array to one manifest of one set; ``sizes`` are references to be placed, by array id.

    An array that is larger than its set's limit, and the arrays of manifests beyond a set's cardinality (the
    fullest manifests stay), go to the set that is overflowed to. In a last set, which overflows nowhere, a
    larger array has a pack of its own.

    What counts against a limit is the references that are to be placed. The chunks of the array's grid
    would count what is not there: a sparse array would fill manifests with nothing, and an array of a million
    chunks, of which ten are written, would be cut. Rules may go by either.
    """
    waiting: dict[str, list[int]] = defaultdict(list)
    homes = _choose_sets(settings, [shapes(array_id) for array_id in sizes])
    for array_id, chosen in zip(sizes, homes, strict=True):
        waiting[chosen.name].append(array_id)
    packs = []
    for each in ordered_sets(settings):
        found, overflow = _pack_set(each, waiting.pop(each.name, []), sizes)
        if each.overflow_to is not None:
            waiting[each.overflow_to] += overflow
        ids = sorted(tuple(sorted(group)) for group in found)
        packs += [Pack(set_name=each.name, array_ids=group) for group in ids]
    assert not waiting, "a set overflows to one that comes later"
    return packs


def _pack_set(
    chosen: ManifestSet, array_ids: Sequence[int], sizes: Mapping[int, int]
) -> tuple[list[list[int]], list[int]]:
    """Pack the members of one set: the groups that stay, and the arrays that do not fit."""
    members = sorted(array_ids)
    limit, number = chosen.max_manifest_size, chosen.arrays_per_manifest
    too_large = [] if limit is None else [each for each in members if sizes[each] > limit]
    fitting = members if limit is None else [each for each in members if sizes[each] <= limit]
    wanted = [sizes[each] for each in fitting]
    if limit is not None:
        bins = bin_pack(wanted, limit)
    else:
        assert number is not None, "a set packs by one of the two"
        bins = _spread(wanted, number)
    groups = [[fitting[row] for row in rows] for rows in bins]
    if chosen.overflow_to is None:
        return groups + [[each] for each in too_large], []
    if chosen.cardinality is None or len(groups) <= chosen.cardinality:
        return groups, too_large
    groups.sort(key=lambda group: (-sum(map(sizes.__getitem__, group)), min(group)))
    stay, beyond = groups[: chosen.cardinality], groups[chosen.cardinality :]
    return stay, too_large + [each for group in beyond for each in group]


def bin_pack(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Pack sizes, none above the limit, into few bins: the largest first, each into the first bin with room.

    Never uses more than 11/9 of the fewest bins possible and 6/9. A tree over the room that bins have finds the
    first one in logarithmic time, and equal sizes go into it together, so that neighbours stay neighbours.

    Returns
    -------
    list of list of int
        The places of the sizes in each bin.
    """
    assert limit > 0
    if not sizes:
        return []
    order = sorted(range(len(sizes)), key=lambda row: (-sizes[row], row))
    assert sizes[order[0]] <= limit, "larger ones are not for packing"
    # Two neighbouring bins hold more than the limit together, so this many are enough.
    enough = min(len(sizes), 2 * -(-sum(sizes) // limit) + 1)
    width = 1 << (enough - 1).bit_length()
    room = [limit] * (2 * width)  # of a bin from `width` on; below it the most of two children
    bins: list[list[int]] = [[] for _ in range(enough)]
    for size, rows in groupby(order, key=sizes.__getitem__):
        left = list(rows)
        start = 0
        while start < len(left):
            node = 1
            while node < width:
                node = 2 * node if room[2 * node] >= size else 2 * node + 1
            count = min(len(left) - start, room[node] // size if size else len(left))
            bins[node - width] += left[start : start + count]
            start += count
            room[node] -= count * size
            while node > 1:
                node //= 2
                room[node] = max(room[2 * node], room[2 * node + 1])
    return [each for each in bins if each]


def _spread(sizes: Sequence[int], arrays_per_manifest: int) -> list[list[int]]:
    """Make groups of so many, one of which may be smaller, with totals as equal as is easy.

    The largest first, each into the group with the least so far that has a place left: so the largest ends up with
    the smallest. The group that begins with the largest is the one with fewer places.
    """
    count = -(-len(sizes) // arrays_per_manifest)
    places = [arrays_per_manifest] * count
    if count:
        places[0] = len(sizes) - (count - 1) * arrays_per_manifest
    groups: list[list[int]] = [[] for _ in range(count)]
    order = sorted(range(len(sizes)), key=lambda row: (-sizes[row], row))
    open_groups = [(0, group) for group in range(count)]
    for row in order:
        total, group = heapq.heappop(open_groups)
        groups[group].append(row)
        if len(groups[group]) < places[group]:
            heapq.heappush(open_groups, (total + sizes[row], group))
    return groups


def closure(
    modified: Collection[int],
    tenants: Mapping[str, AbstractSet[int]],
    created: AbstractSet[int] = frozenset(),
) -> set[int]:
    """The arrays whose manifests would be rewritten if these were packed anew.

    Parameters
    ----------
    modified
        The arrays to begin with.
    tenants
        The arrays in each manifest.
    created
        Arrays that no manifest holds yet, whatever id they have: they draw in no other one.
    """
    manifests: dict[int, list[str]] = defaultdict(list)
    for manifest, arrays in tenants.items():
        for array_id in arrays:
            manifests[array_id].append(manifest)
    found = set(modified)
    waiting = list(found - created)
    seen: set[str] = set()
    while waiting:
        for manifest in manifests.get(waiting.pop(), ()):
            if manifest not in seen:
                seen.add(manifest)
                fresh = tenants[manifest] - found - created
                found |= fresh
                waiting += fresh
    return found
