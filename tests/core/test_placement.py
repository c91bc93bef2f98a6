"""Where rows stand: how additions become manifests, and which live manifests are written again."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_arrow.core import coords, placement
from icechunk_arrow.core.chunks import concat_sorted, is_sorted
from icechunk_arrow.core.columns import one_array
from icechunk_arrow.core.manifest_settings import ManifestRule, ManifestSet, ManifestSettings
from icechunk_arrow.core.packing import PlainShape, choose_set, closure, pack
from icechunk_arrow.core.placement import Live
from icechunk_arrow.core.splits import axis_of, box_of
from tests.core.appends import Appends
from tests.core.chunk_rows import Place, places_of, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

Shapes = dict[int, PlainShape]
NAMES = ("x", "y", "z")


def limit_of(chosen: ManifestSet) -> int:
    """The most rows of a manifest of a set."""
    return min(chosen.max_manifest_size or placement.MAX_MANIFEST_ROWS, placement.MAX_MANIFEST_ROWS)


@st.composite
def manifest_settings(draw: st.DrawFn) -> ManifestSettings:
    """Up to three sets with small limits, and rules by path and by the chunks of the grid."""
    names = ["one", "two", "default"][draw(st.integers(0, 2)) :]
    sets = []
    for number, name in enumerate(names):
        size = draw(st.none() | st.integers(1, 12))
        later: list[str | None] = [None, *names[number + 1 :]]
        overflow = draw(st.sampled_from(later)) if name != "default" else None
        sets.append(
            ManifestSet(
                name=name,
                max_manifest_size=size,
                arrays_per_manifest=None if size else draw(st.integers(1, 3)),
                overflow_to=overflow,
                cardinality=draw(st.none() | st.integers(1, 2)) if overflow else None,
                split_along=draw(st.sampled_from([None, 0, 1, 2, *NAMES])),
            )
        )
    rules = [
        ManifestRule(
            target=name,
            path=draw(st.sampled_from([None, "/1.*", "/.*[02468]"])),
            metadata_chunks=draw(st.sampled_from([None, (0, 9), (5, None)])),
        )
        for name in draw(st.lists(st.sampled_from(names), max_size=3))
    ]
    return ManifestSettings(sets=tuple(sets), rules=tuple(rules))


@st.composite
def arrays(draw: st.DrawFn) -> tuple[pa.Table, Shapes]:
    """Sorted rows of some arrays of up to three dimensions, and the arrays' shapes."""
    tables, shapes = [], {}
    for array_id in sorted(draw(st.sets(st.integers(1, 300), min_size=1, max_size=6))):
        counts = tuple(draw(st.lists(st.integers(1, 7), max_size=3)))
        grid = list(itertools.product(*map(range, counts)))
        places = draw(st.lists(st.sampled_from(grid), min_size=1, max_size=40, unique=True))
        if draw(st.booleans()):
            places = grid[: len(places)]
        tables.append(table_of(array_id, places))
        shapes[array_id] = PlainShape(
            path=f"/{array_id}",
            chunk_counts=counts,
            dimension_names=draw(st.sampled_from([None, NAMES[::-1][: len(counts)]])),
            chunk_count=len(places),
        )
    return concat_sorted(tables), shapes


def packs_of(
    table: pa.Table, chosen: ManifestSettings, shapes: Shapes
) -> list[tuple[ManifestSet, tuple[int, ...]]]:
    """What `pack` says of these rows."""
    sets = {each.name: each for each in chosen.sets}
    packs = pack(chosen, sizes_of(table), shapes)
    return [(sets[each.set_name], each.array_ids) for each in packs]


def sizes_of(table: pa.Table) -> dict[int, int]:
    """Rows by array."""
    ids = table["array_id"].to_pylist()
    return {array_id: ids.count(array_id) for array_id in sorted(set(ids))}


def boxes_of(table: pa.Table, shape: PlainShape, chosen: ManifestSet) -> set[Place]:
    """The boxes of the cut grid that the rows of one array are in."""
    ndim = len(shape.chunk_counts)
    axis = axis_of(chosen.split_along, shape.dimension_names, ndim)
    box = box_of(shape.chunk_counts, limit_of(chosen), axis)
    assert all(
        box[axis] == 1 or box[other] == shape.chunk_counts[other]
        for other in range(ndim)
        if other != axis
    )
    index = coords.decode(one_array(table["coord"]), ndim).tolist()
    return {tuple(i // step for i, step in zip(place, box, strict=True)) for place in index}


@given(arrays(), manifest_settings(), st.sampled_from([10, 1 << 22]))
def test_placing_loses_nothing_and_keeps_to_the_settings(
    held: tuple[pa.Table, Shapes], chosen: ManifestSettings, ceiling: int
) -> None:
    """Each row stands in one sorted table, arrays share one as `pack` says, none is above its limit."""
    table, shapes = held
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "MAX_MANIFEST_ROWS", ceiling)
        placed = list(placement.place(table, chosen, shapes))
        assert all(each.num_rows and is_sorted(each) for each in placed)
        rows = [row for each in placed for row in places_of(each)]
        assert sorted(rows) == places_of(table)
        sizes = sizes_of(table)
        waiting = [(set(sizes_of(each)), each) for each in placed]
        for home, ids in packs_of(table, chosen, shapes):
            mine = [each for members, each in waiting if members <= set(ids)]
            waiting = [(members, each) for members, each in waiting if not members <= set(ids)]
            limit = limit_of(home)
            assert all(each.num_rows <= limit for each in mine)
            if sum(map(sizes.__getitem__, ids)) <= limit:
                assert [set(sizes_of(each)) for each in mine] == [set(ids)]
            for array_id in ids:
                own = [each for each in mine if array_id in sizes_of(each)]
                if sizes[array_id] <= limit:
                    assert len(own) == 1
                    continue
                assert all(set(sizes_of(each)) == {array_id} for each in own)
                found = [boxes_of(each, shapes[array_id], home) for each in own]
                assert sum(map(len, found)) == len(set().union(*found))
        assert not waiting


@given(arrays(), manifest_settings(), st.integers(0, 60))
def test_few_additions_stay_together(
    held: tuple[pa.Table, Shapes], chosen: ManifestSettings, few: int
) -> None:
    """Up to so many rows make one manifest, whatever the settings; more are placed like any others."""
    table, shapes = held
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "SMALL_ROWS", few)
        found = list(placement.place_additions(table, chosen, shapes))
    expected = [table]
    if table.num_rows > few:
        expected = list(placement.place(table, chosen, shapes))

    assert [places_of(each) for each in found] == [places_of(each) for each in expected]


def test_nothing_added_is_no_manifest() -> None:
    """A commit without references writes none."""
    nothing = table_of(1, [(0,)]).slice(0, 0)
    chosen, shapes = ManifestSettings(), {1: shape_of(1)}

    assert list(placement.place(nothing, chosen, shapes)) == []
    assert list(placement.place_additions(nothing, chosen, shapes)) == []
    assert list(placement.sizes_after(chosen, {}, shapes)) == []


@given(arrays(), manifest_settings(), st.sampled_from([10, 1 << 22]))
def test_sizes_are_known_before_placing(
    held: tuple[pa.Table, Shapes], chosen: ManifestSettings, ceiling: int
) -> None:
    """Exactly for arrays that are not cut; where one is cut there may be more manifests, not fewer."""
    table, shapes = held
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "MAX_MANIFEST_ROWS", ceiling)
        sizes = sizes_of(table)
        said = [rows for rows, _ in placement.sizes_after(chosen, sizes, shapes)]
        placed = list(placement.place(table, chosen, shapes))
        limits = {i: limit_of(home) for home, ids in packs_of(table, chosen, shapes) for i in ids}
    uncut = [each for each in placed if all(sizes[i] <= limits[i] for i in sizes_of(each))]
    counts = sorted(each.num_rows for each in placed)

    assert sum(said) == table.num_rows
    assert len(said) <= len(placed)
    if len(uncut) == len(placed):
        assert sorted(said) == counts


# -- which manifests are written again

Tenants = dict[str, dict[int, int]]


def live_of(manifests: Tenants) -> Live:
    """Live manifests, as the engine knows them."""
    return Live(
        row_counts={name: sum(held.values()) for name, held in manifests.items()},
        tenants=manifests,
    )


@st.composite
def lives(draw: st.DrawFn) -> tuple[Tenants, set[str], set[str], ManifestSettings, Shapes]:
    """Live manifests, those that lose rows, those that lose all, settings and shapes."""
    counts = st.integers(1, 6) | st.integers(1, 60)
    held = draw(
        st.lists(
            st.dictionaries(st.integers(1, 5), counts, min_size=1, max_size=3),
            min_size=1,
            max_size=25,
        )
    )
    manifests = {f"m{number:02}": each for number, each in enumerate(held)}
    losing = draw(st.sets(st.sampled_from(sorted(manifests)), max_size=4))
    dropped = draw(st.sets(st.sampled_from(sorted(losing)))) if losing else set()
    total = {i: sum(each.get(i, 0) for each in held) for i in range(1, 6)}
    shapes = {
        i: PlainShape(path=f"/{i}", chunk_counts=(n + 1,), dimension_names=None, chunk_count=n)
        for i, n in total.items()
    }
    return manifests, losing, dropped, draw(manifest_settings()), shapes


def size_class(rows: int) -> int:
    """The class of a manifest: the smallest rows, then so many times as many each."""
    return next(
        n for n in range(60) if rows <= placement.SMALL_ROWS * placement.MERGE_FAN**n
    )  # fmt: skip


def home_of(chosen: ManifestSettings, shape: PlainShape) -> ManifestSet:
    """Where an array stands: in the set that it is meant for, or where it overflows to by its size."""
    sets = {each.name: each for each in chosen.sets}
    home = choose_set(chosen, shape)
    while home.overflow_to is not None and shape.chunk_count > limit_of(home):
        home = sets[home.overflow_to]
    return home


@given(lives())
def test_units_hold_what_loses_rows_and_merge_only_what_pays(
    question: tuple[Tenants, set[str], set[str], ManifestSettings, Shapes],
) -> None:
    """Each manifest once; losing ones in some unit; others only by a merge or a cheap closure."""
    manifests, losing, dropped, chosen, shapes = question
    rows = live_of(manifests).row_counts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "SMALL_ROWS", 4)
        patch.setattr(placement, "MERGE_FAN", 3)
        units = placement.choose_units(live_of(manifests), losing, dropped, chosen, shapes)
        names = [name for unit in units for name in unit]
        assert len(names) == len(set(names))
        assert set(names) <= manifests.keys() - dropped
        assert losing - dropped <= set(names)
        assert all(unit for unit in units)
        homes = {i: home_of(chosen, shape) for i, shape in shapes.items()}
        largest = max(map(limit_of, chosen.sets))
        for unit in units:
            if len(unit) == 1:
                assert unit[0] in losing
                continue
            assert all(2 * rows[name] <= largest for name in unit)
            lost = sum(rows[name] for name in unit if name in losing)
            whole = sum(rows[name] for name in unit)
            tenants = {name: set(manifests[name]) for name in manifests}
            seed = next((name for name in unit if name in losing), unit[0])
            reach = closure(tenants[seed], {name: tenants[name] for name in unit})
            near = all(tenants[name] <= reach for name in unit)
            if lost and near and whole <= 2 * lost + placement.SMALL_ROWS:
                continue
            assert len(unit) >= placement.MERGE_FAN
            assert len({size_class(rows[name]) for name in unit}) == 1
            sets = [frozenset(homes[i].name for i in manifests[name]) for name in unit]
            assert len(set(sets)) == 1 or all(len(each) > 1 for each in sets)
            assert all(
                2 * rows[name] <= max(limit_of(homes[i]) for i in manifests[name]) for name in unit
            )


@given(lives())
def test_merging_comes_to_an_end(
    question: tuple[Tenants, set[str], set[str], ManifestSettings, Shapes],
) -> None:
    """Commits that change nothing merge a few times at most, and then never again."""
    manifests, _, _, chosen, shapes = question
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "SMALL_ROWS", 4)
        patch.setattr(placement, "MERGE_FAN", 3)
        appends = Appends(chosen, shapes, manifests)
        for _ in range(8):
            if not appends.merge():
                break
        else:
            pytest.fail("manifests are merged again and again")
        total: dict[int, int] = {}
        for held in appends.manifests.values():
            for array_id, count in held.items():
                total[array_id] = total.get(array_id, 0) + count
        assert total == {i: shape.chunk_count for i, shape in shapes.items() if shape.chunk_count}


def test_half_full_manifests_of_a_smaller_set_are_merged() -> None:
    """What is full for its own set counts as done, however large the manifests of other sets may be."""
    chosen, shapes = ManifestSettings(), {1: shape_of(1)}
    many: Tenants = {f"m{n}": {1: 20_000} for n in range(placement.MERGE_FAN)}

    assert placement.choose_units(live_of(many), (), (), chosen, shapes) == (tuple(sorted(many)),)


def test_what_overflows_is_merged_where_it_stands() -> None:
    """An array too large for the set it is meant for is merged up to the size of the one it stands in."""
    shapes = {1: shape_of(1)}
    many: Tenants = {f"m{n}": {1: 400} for n in range(placement.MERGE_FAN)}
    units = placement.choose_units(live_of(many), (), (), SMALL_COORDINATES, shapes)

    assert units == (tuple(sorted(many)),)
    fitting = {n: shape_of(n, 400) for n in range(1, placement.MERGE_FAN + 1)}
    full: Tenants = {f"m{n}": {n: 400} for n in fitting}
    paths = {n: PlainShape(path="/1", chunk_counts=(400,), dimension_names=None, chunk_count=400)
             for n in fitting}  # fmt: skip
    assert placement.choose_units(live_of(full), (), (), SMALL_COORDINATES, paths) == ()


def test_a_commit_without_losses_and_few_manifests_rewrites_nothing() -> None:
    """Appends are free until a fan of small manifests has gathered; then exactly those are merged."""
    shapes = {1: shape_of(1)}
    chosen = ManifestSettings()
    for count in range(1, placement.MERGE_FAN):
        live = live_of({f"m{n}": {1: 100} for n in range(count)})
        assert placement.choose_units(live, (), (), chosen, shapes) == ()
    many: Tenants = {f"m{n}": {1: 100} for n in range(placement.MERGE_FAN)}
    large = {"large": {1: 60_000}, "other": {1: 5_000}}
    units = placement.choose_units(live_of(many | large), (), (), chosen, shapes)
    assert units == (tuple(sorted(many)),)


def test_small_arrays_that_share_manifests_come_along_where_that_is_cheap() -> None:
    """The closure of a losing manifest is packed anew if that at most doubles what is written."""
    shapes = {i: shape_of(i) for i in range(1, 6)}
    chosen = ManifestSettings(sets=(ManifestSet(name="default", max_manifest_size=65_536),))
    manifests = {
        "a": {1: 4_000, 2: 4_000},
        "b": {2: 3_000},
        "c": {3: 3_000},
        "large": {1: 60_000},
    }

    def units(losing: set[str]) -> tuple[tuple[str, ...], ...]:
        return placement.choose_units(live_of(manifests), losing, (), chosen, shapes)

    assert units({"a"}) == (("a", "b"),)
    assert units({"b"}) == (("b",),)
    assert units({"c"}) == (("c",),)
    assert sorted(units({"large", "a"})) == [("a", "b"), ("large",)]


# -- a thousand appends


def shape_of(array_id: int, grid: int = 10_000_000) -> PlainShape:
    """A long array of one dimension."""
    return PlainShape(
        path=f"/{array_id}", chunk_counts=(grid,), dimension_names=None, chunk_count=grid
    )


SMALL_COORDINATES = ManifestSettings(
    sets=(
        ManifestSet(name="tiny", max_manifest_size=500, cardinality=1, overflow_to="default"),
        ManifestSet(name="default", max_manifest_size=65_536),
    ),
    rules=(ManifestRule(target="tiny", path="/[12]"),),
)
ONE_EACH = ManifestSettings(
    sets=(ManifestSet(name="default", max_manifest_size=None, arrays_per_manifest=1),), rules=()
)
HISTORIES: dict[str, tuple[ManifestSettings, int, int, Callable[[int], Mapping[int, int]], int]] = {
    "one row of one array": (ManifestSettings(), 1, 4000, lambda n: {1: 1}, 20),
    "a hundred rows of one array": (ManifestSettings(), 1, 3000, lambda n: {1: 100}, 30),
    "several thousand rows": (ManifestSettings(), 1, 1000, lambda n: {1: 3000}, 80),
    "any number of rows": (ManifestSettings(), 1, 2000, lambda n: {1: 1 + n * n % 4099}, 100),
    "two arrays of different sets": (
        ManifestSettings(),
        2,
        2000,
        lambda n: {1: 200, 2: 1 + n % 3},
        40,
    ),
    "arrays in turn": (ManifestSettings(), 5, 2000, lambda n: {1 + n % 5: 20}, 25),
    "a set of one small manifest": (
        SMALL_COORDINATES,
        3,
        2000,
        lambda n: {1 + n % 3: 40 * (1 + n % 9)},
        40,
    ),
    "a manifest for each of a hundred arrays": (
        ONE_EACH,
        100,
        500,
        lambda n: {1 + (n * 37 + k) % 100: 1 + k % 5 for k in range(100)},
        600,
    ),
}
"""Settings, arrays, commits, rows by array of each commit, and the most manifests there may be."""


@pytest.mark.parametrize("name", HISTORIES)
def test_appends_cost_n_log_n(name: str) -> None:
    """Each row is rewritten at most twice a size class, beside a constant per commit, and few remain.

    The constant is what it takes to gather the smallest class anew: 1,024 rows every seven commits.
    """
    chosen, count, commits, rows_of, most = HISTORIES[name]
    shapes = {i: shape_of(i) for i in range(1, count + 1)}
    if name == "two arrays of different sets":
        shapes[2] = shape_of(2, 4000)
    appends = Appends(chosen, shapes)
    added = rewritten = 0
    spent = []
    for number in range(commits):
        rows = dict(rows_of(number))
        cost = appends.commit(rows)
        added += sum(rows.values())
        rewritten += cost
        spent.append(cost)
        classes = size_class(min(added, 65_536)) + 1
        assert rewritten <= 2 * added * classes + (number + 1) * placement.SMALL_ROWS / 4, number
        assert len(appends.manifests) <= most, number
    assert sum(sum(held.values()) for held in appends.manifests.values()) == added
    window = commits // 4
    later = [sum(spent[start : start + window]) for start in range(window, commits, window)]
    assert later[-1] <= 2 * max(later[:-1])


@settings(max_examples=30)
@given(manifest_settings(), st.lists(st.dictionaries(st.integers(1, 3), st.integers(1, 9),
       min_size=1), min_size=1, max_size=12))  # fmt: skip
def test_appends_under_any_settings(chosen: ManifestSettings, cycle: list[dict[int, int]]) -> None:
    """Whatever sets there are, manifests stay few and rows are not rewritten over and over."""
    shapes = {i: shape_of(i) for i in (1, 2, 3)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "SMALL_ROWS", 16)
        patch.setattr(placement, "MERGE_FAN", 4)
        appends = Appends(chosen, shapes)
        added = rewritten = 0
        for number in range(150):
            rows = cycle[number % len(cycle)]
            rewritten += appends.commit(rows)
            added += sum(rows.values())
        classes = size_class(added) + 1
        assert rewritten <= 4 * added * classes + 150 * placement.SMALL_ROWS
        full = added / min(map(limit_of, chosen.sets))
        assert len(appends.manifests) <= 4 * full + 16 * classes * len(chosen.sets)
