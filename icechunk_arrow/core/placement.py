"""Which rows stand together in a manifest, and which live manifests a commit writes again.

Pure decisions from row counts, arrays' shapes and settings. Every reading and writing of manifests follows
what is decided here.

Specification: schemas/README.md#manifests-of-a-snapshot
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from icechunk_arrow.core import coords
from icechunk_arrow.core.chunks import rows_of_arrays, sort_rows
from icechunk_arrow.core.columns import indices, one_array, to_numpy
from icechunk_arrow.core.packing import choose_sets, closure, pack
from icechunk_arrow.core.splits import axis_of, box_numbers, box_of, cuts, keeps_order

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from icechunk_arrow.core.manifest_settings import ManifestSet, ManifestSettings
    from icechunk_arrow.core.packing import ArrayShape, Pack

__all__ = [
    "MAX_MANIFEST_ROWS",
    "MERGE_FAN",
    "SMALL_ROWS",
    "Live",
    "Unknown",
    "choose_units",
    "groups_of",
    "limit_of",
    "place",
    "place_additions",
    "set_for_size",
    "sizes_after",
    "to_be_known",
]

MAX_MANIFEST_ROWS = 1 << 22
"""No manifest has more rows, whatever the settings say: the process that rewrites one holds it in memory."""
SMALL_ROWS = 1024
"""Up to so many added rows of all arrays together go into one manifest, and are the smallest size class."""
MERGE_FAN = 8
"""How many manifests of one size class make a larger one: each row is rewritten once a class."""
_GAIN = 4
"""A merge leaves at most a quarter as many manifests of the class, or it would be done again and again."""


def limit_of(chosen: ManifestSet) -> int:
    """How many rows a manifest of a set may have."""
    return min(chosen.max_manifest_size or MAX_MANIFEST_ROWS, MAX_MANIFEST_ROWS)


def set_for_size(settings: ManifestSettings, chosen: ManifestSet, size: int) -> ManifestSet:
    """Follow the overflow from a set to the one that takes an array of so many references."""
    while chosen.overflow_to is not None and size > limit_of(chosen):
        chosen = settings.get_set(chosen.overflow_to)
    return chosen


def _packs(
    settings: ManifestSettings, sizes: Mapping[int, int], shapes: Mapping[int, ArrayShape]
) -> list[tuple[ManifestSet, Pack]]:
    sets = {each.name: each for each in settings.sets}
    return [(sets[each.set_name], each) for each in pack(settings, sizes, shapes)]


def groups_of(
    settings: ManifestSettings, sizes: Mapping[int, int], shapes: Mapping[int, ArrayShape]
) -> Iterator[tuple[ManifestSet, tuple[int, ...]]]:
    """Say which arrays share a manifest; one that is larger than its set's limit stands alone, to be cut."""
    for chosen, each in _packs(settings, sizes, shapes):
        limit = limit_of(chosen)
        together: list[int] = []
        rows = 0
        for array_id in sorted(each.array_ids):
            size = sizes[array_id]
            if size > limit:
                yield chosen, (array_id,)
                continue
            if rows + size > limit:
                yield chosen, tuple(together)
                together, rows = [], 0
            together.append(array_id)
            rows += size
        if together:
            yield chosen, tuple(together)


def place(
    table: pa.Table, settings: ManifestSettings, shapes: Mapping[int, ArrayShape]
) -> Iterator[pa.Table]:
    """Split sorted rows of some arrays into manifests, as the settings want it."""
    ids, starts, counts = rows_of_arrays(table)
    if not len(ids):
        return
    sizes = dict(zip(ids.tolist(), counts.tolist(), strict=True))
    first = dict(zip(ids.tolist(), starts.tolist(), strict=True))
    for chosen, members in groups_of(settings, sizes, shapes):
        array_id = members[0]
        if len(members) == 1 and sizes[array_id] > limit_of(chosen):
            part = table.slice(first[array_id], sizes[array_id])
            yield from _split(part, shapes[array_id], chosen)
        else:
            yield _rows_of(table, members)


def _rows_of(table: pa.Table, array_ids: tuple[int, ...]) -> pa.Table:
    chosen = np.isin(to_numpy(table["array_id"]), np.array(array_ids, np.uint32))
    rows = np.flatnonzero(chosen)
    if len(rows) == int(rows[-1]) - int(rows[0]) + 1:
        return table.slice(int(rows[0]), len(rows))
    return table.take(indices(rows))


def _split(table: pa.Table, shape: ArrayShape, chosen: ManifestSet) -> Iterator[pa.Table]:
    """Cut one array's rows along its grid."""
    limit, ndim = limit_of(chosen), len(shape.chunk_counts)
    axis = axis_of(chosen.split_along, shape.dimension_names, ndim)
    box = box_of(shape.chunk_counts, limit, axis)
    index = coords.decode(one_array(table["coord"]), ndim)
    numbers = box_numbers(index, shape.chunk_counts, box, axis)
    in_order = keeps_order(box, shape.chunk_counts, axis)
    if not in_order:
        order = np.argsort(numbers, kind="stable")
        table, numbers = table.take(indices(order)), numbers[order]
    start = 0
    for stop in cuts(numbers, limit, last=True):
        part = table.slice(start, stop - start)
        yield part if in_order else sort_rows(part)
        start = stop


def place_additions(
    table: pa.Table, settings: ManifestSettings, shapes: Mapping[int, ArrayShape]
) -> Iterator[pa.Table]:
    """Split rows added to arrays that have manifests already: few of them stay together."""
    if not table.num_rows:
        return
    if table.num_rows <= SMALL_ROWS:
        yield table
        return
    yield from place(table, settings, shapes)


def sizes_after(
    settings: ManifestSettings, sizes: Mapping[int, int], shapes: Mapping[int, ArrayShape]
) -> Iterator[tuple[int, int]]:
    """How many rows the manifests would have that :func:`place` makes of so many rows an array, and their limits.

    An array that is cut counts as full manifests and a rest: what its grid allows may be a little less.
    """
    for chosen, members in groups_of(settings, sizes, shapes):
        limit = limit_of(chosen)
        full, rest = divmod(sum(sizes[each] for each in members), limit)
        yield from [(limit, limit)] * full
        if rest:
            yield rest, limit


class Live(Struct, frozen=True, kw_only=True):
    """The live manifests of a snapshot: rows of each, and by array as far as :func:`to_be_known` asks for it."""

    row_counts: Mapping[str, int]
    tenants: Mapping[str, Mapping[int, int]]


class Unknown(Struct, frozen=True, kw_only=True):
    """What :func:`choose_units` has to know of live manifests."""

    with_shapes: frozenset[str]
    """Manifests whose rows by array must be known, and the shapes of these arrays."""
    without: frozenset[str]
    """Manifests whose rows by array must be known."""


def to_be_known(
    row_counts: Mapping[str, int],
    losing: Collection[str],
    dropped: Collection[str],
    settings: ManifestSettings,
) -> Unknown:
    """Ask for what it takes to choose the manifests that are written again; usually that is nothing."""
    left = {name: count for name, count in row_counts.items() if name not in dropped}
    shared = _largest_limit(settings) // 2
    small = any(left[name] <= shared for name in losing if name in left)
    near = {name for name, count in left.items() if count <= shared} if small else ()
    return Unknown(with_shapes=frozenset(_classes_of_many(left, settings)), without=frozenset(near))


def choose_units(
    live: Live,
    losing: Collection[str],
    dropped: Collection[str],
    settings: ManifestSettings,
    shapes: Mapping[int, ArrayShape],
) -> tuple[tuple[str, ...], ...]:
    """Group the manifests that are written again; those of one unit are read and placed together.

    ``losing`` may lose rows, ``dropped`` lose all. Costs: a merge rewrites each row once per size class; a
    manifest that loses rows is rewritten whole; small ones that share arrays with it come along where that
    at most doubles the rows written.

    Why that is right: no manifest is in two units, so each can be read and placed without a look at the others, and
    no row is lost or comes twice. Those that are merged are left out of all that follows, and closures are
    the connected parts of what manifests share, so two of them have none in common. Merging ends: a group is merged
    only where at most a quarter as many small manifests of its class come of it (``_GAIN``). What came of a merge
    would come of it again, which is no gain until others are added.
    """
    left = {name: count for name, count in live.row_counts.items() if name not in dropped}
    merges = _choose_merges(left, live, settings, shapes)
    merged = {name for group in merges for name in group}
    alone = sorted(set(losing) - set(dropped) - merged)
    if not alone:
        return tuple(merges)
    shared = _largest_limit(settings) // 2
    small = {name for name in alone if left[name] <= shared}
    units = [*merges, *((name,) for name in alone if name not in small)]
    if small:
        near = {n for n, count in left.items() if count <= shared and n not in merged}
        units += _closures(small, near, left, live)
    return tuple(units)


def _largest_limit(settings: ManifestSettings) -> int:
    return max(limit_of(each) for each in settings.sets)


def _closures(
    losing: set[str], near: set[str], row_counts: Mapping[str, int], live: Live
) -> Iterator[tuple[str, ...]]:
    tenants = {name: set(live.tenants[name]) for name in near}
    waiting = sorted(losing)
    while waiting:
        reach = closure(tenants[waiting[0]], tenants)
        everything = {name for name, arrays in tenants.items() if arrays & reach}
        needed = [name for name in waiting if name in everything]
        cost = sum(row_counts[name] for name in needed)
        whole = sum(row_counts[name] for name in everything)
        if whole <= 2 * cost + SMALL_ROWS:
            yield tuple(sorted(everything))
        else:
            yield from ((name,) for name in needed)
        waiting = [name for name in waiting if name not in everything]


def _size_class(count: int) -> int:
    size_class = 0
    while count > SMALL_ROWS * MERGE_FAN**size_class:
        size_class += 1
    return size_class


def _classes_of_many(row_counts: Mapping[str, int], settings: ManifestSettings) -> dict[str, int]:
    """Give the size classes of small manifests, where there are enough of one class to be merged."""
    if len(row_counts) < MERGE_FAN:
        return {}
    names = list(row_counts)
    counts = np.fromiter(row_counts.values(), np.int64, len(names))
    small = np.flatnonzero(counts * 2 <= _largest_limit(settings))
    ends = [SMALL_ROWS]
    while ends[-1] < _largest_limit(settings):
        ends.append(ends[-1] * MERGE_FAN)
    size_classes = np.searchsorted(ends, counts[small])
    many = np.bincount(size_classes, minlength=1)[size_classes] >= MERGE_FAN
    rows, classes = small[many].tolist(), size_classes[many].tolist()
    return {names[row]: each for row, each in zip(rows, classes, strict=True)}


def _choose_merges(
    row_counts: Mapping[str, int],
    live: Live,
    settings: ManifestSettings,
    shapes: Mapping[int, ArrayShape],
) -> list[tuple[str, ...]]:
    """Choose small manifests to be merged: whenever enough of one size class and set have gathered.

    A thousand appends of one row thus write each row a handful of times, and leave tens of manifests.
    """
    classes = _classes_of_many(row_counts, settings)
    if not classes:
        return []
    tenants = live.tenants
    held = {array_id: shapes[array_id] for name in classes for array_id in tenants[name]}
    meant = choose_sets(settings, list(held.values()))
    sets = {
        array_id: set_for_size(settings, chosen, shape.chunk_count)
        for (array_id, shape), chosen in zip(held.items(), meant, strict=True)
    }
    groups: dict[tuple[str, int], list[str]] = {}
    for name in classes:
        homes = {sets[array_id].name: sets[array_id] for array_id in tenants[name]}
        if row_counts[name] * 2 <= max(limit_of(each) for each in homes.values()):
            home = next(iter(homes)) if len(homes) == 1 else ""
            groups.setdefault((home, classes[name]), []).append(name)
    return [
        tuple(sorted(group))
        for (_, size_class), group in sorted(groups.items())
        if len(group) >= MERGE_FAN and _is_gain(group, size_class, tenants, settings, shapes)
    ]


def _is_gain(
    group: Sequence[str],
    size_class: int,
    tenants: Mapping[str, Mapping[int, int]],
    settings: ManifestSettings,
    shapes: Mapping[int, ArrayShape],
) -> bool:
    total: Counter[int] = Counter()
    for name in group:
        total.update(tenants[name])
    after = sizes_after(settings, total, shapes)
    again = sum(2 * rows <= limit and _size_class(rows) == size_class for rows, limit in after)
    return again * _GAIN <= len(group)
