"""Which arrays share a manifest: pure decisions from their sizes and the settings.

Knows neither references nor files. Arrays and packs come out the same in whatever order arrays are given.

Specification: schemas/README.md#configuration
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from msgspec import Struct

from icechunk_arrow.core.columns import from_values, indices
from icechunk_arrow.core.lazy import lazy
from icechunk_arrow.core.manifest_settings import DEFAULT_SET
from icechunk_arrow.core.paths import may_match

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    import numpy.typing as npt

    from icechunk_arrow.core.manifest_settings import (
        ManifestRule,
        ManifestSet,
        ManifestSettings,
        Range,
    )

__all__ = [
    "ArrayShape",
    "Pack",
    "PlainShape",
    "bin_pack",
    "choose_set",
    "choose_sets",
    "closure",
    "ordered_sets",
    "pack",
]

_RULES_AT_ONCE = 8
_UNKNOWN = -1
_LARGEST = 2**63 - 1


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


class Pack(Struct, frozen=True, kw_only=True):
    """The arrays of one manifest, and the set that it belongs to.

    An array above the set's limit has a pack of its own, which is cut along the array's grid.
    """

    set_name: str
    array_ids: tuple[int, ...]


def choose_set(settings: ManifestSettings, shape: ArrayShape) -> ManifestSet:
    """The set that an array is meant for: that of the first rule that matches, or the default one."""
    return choose_sets(settings, [shape])[0]


def choose_sets(settings: ManifestSettings, arrays: Sequence[ArrayShape]) -> list[ManifestSet]:
    """Choose the set of each array; however many rules there are, all at once is much less than one by one."""
    sets = {each.name: each for each in settings.sets}
    targets = [*(rule.target for rule in settings.rules), DEFAULT_SET]
    first = _Choice(settings.rules, arrays).first_rules()
    return [sets[targets[number]] for number in first.tolist()]


class _Choice:
    """The first rule that matches, for many arrays and rules at once.

    Those without an expression are applied first. Of the others a block at a time is asked whether any of its
    expressions matches, and only arrays for which one may are taken into it: an array meets few rules, however many
    there are.
    """

    def __init__(self, rules: Sequence[ManifestRule], arrays: Sequence[ArrayShape]) -> None:
        self._rules = rules
        self._arrays = arrays
        self._grid_sizes = np.full(len(arrays), _UNKNOWN)
        self._counts = np.full(len(arrays), _UNKNOWN)
        self._first = np.full(len(arrays), len(rules))

    @lazy
    def _paths(self) -> pa.Array:
        return from_values([array.path for array in self._arrays], pa.string())

    def first_rules(self) -> npt.NDArray[np.int64]:
        """Give the number of the first rule that matches each array; that behind the last where none does."""
        with_pattern = []
        for number, rule in enumerate(self._rules):
            if rule.pattern is not None:
                with_pattern.append(number)
            else:
                rows = np.flatnonzero(self._first == len(self._rules))
                self._first[self._within(rule, rows)] = number
        self._choose(with_pattern, np.arange(len(self._arrays)))
        return self._first

    def _choose(self, numbers: Sequence[int], rows: npt.NDArray[np.int64]) -> None:
        """Apply some rules that have expressions to some arrays."""
        if not numbers:
            return
        rows = rows[self._first[rows] > numbers[0]]
        if not len(rows):
            return
        if len(numbers) == 1:
            self._apply(numbers[0], rows)
            return
        if len(numbers) > _RULES_AT_ONCE // 2:
            patterns = [self._rules[number].pattern for number in numbers]
            rows = rows[may_match(patterns, self._paths.take(indices(rows)))]
        step = -(-len(numbers) // _RULES_AT_ONCE)
        for start in range(0, len(numbers), step):
            self._choose(numbers[start : start + step], rows)

    def _apply(self, number: int, rows: npt.NDArray[np.int64]) -> None:
        """Apply one rule; what costs least comes first."""
        rule = self._rules[number]
        rows = self._within(rule, rows)
        if rule.pattern is not None and len(rows):
            paths = [self._arrays[row].path for row in rows.tolist()]
            rows = rows[np.array(rule.pattern.matches_all(paths), np.bool_)]
        self._first[rows] = number

    def _within(self, rule: ManifestRule, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Choose the arrays whose numbers of chunks are as a rule wants them."""
        if rule.initialized_chunks is not None:
            counts = self._known(self._counts, rows, lambda array: array.chunk_count)
            rows = rows[_are_within(counts, rule.initialized_chunks)]
        if rule.metadata_chunks is not None:
            sizes = self._known(self._grid_sizes, rows, lambda array: prod(array.chunk_counts))
            rows = rows[_are_within(sizes, rule.metadata_chunks)]
        return rows

    def _known(
        self,
        numbers: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        count: Callable[[ArrayShape], int],
    ) -> npt.NDArray[np.int64]:
        """Give a number of each of some arrays, found out when it is first wanted."""
        for row in rows[numbers[rows] == _UNKNOWN].tolist():
            numbers[row] = min(count(self._arrays[row]), _LARGEST)
        return numbers[rows]


def _are_within(counts: npt.NDArray[np.int64], wanted: Range) -> npt.NDArray[np.bool_]:
    start, stop = wanted
    return (counts >= (start or 0)) & (np.True_ if stop is None else counts < stop)


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
    settings: ManifestSettings, sizes: Mapping[int, int], shapes: Mapping[int, ArrayShape]
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
    homes = choose_sets(settings, [shapes[array_id] for array_id in sizes])
    for array_id, chosen in zip(sizes, homes, strict=True):
        waiting[chosen.name].append(array_id)
    packs = []
    for each in ordered_sets(settings):
        groups, overflow = _pack_set(each, waiting.pop(each.name, []), sizes)
        if each.overflow_to is not None:
            waiting[each.overflow_to] += overflow
        ids = sorted(tuple(sorted(group)) for group in groups)
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
    reached = set(modified)
    waiting = list(reached - created)
    seen: set[str] = set()
    while waiting:
        for manifest in manifests.get(waiting.pop(), ()):
            if manifest not in seen:
                seen.add(manifest)
                fresh = tenants[manifest] - reached - created
                reached |= fresh
                waiting += fresh
    return reached
