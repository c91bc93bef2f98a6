"""Bringing manifests into the shape that settings ask for: what stays, what moves, and that it ends."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core import placement
from icechunk_arrow.core.chunks import concat_sorted
from icechunk_arrow.core.inventory import Inventory, describe
from icechunk_arrow.core.manifest_settings import ManifestRule, ManifestSet, ManifestSettings
from icechunk_arrow.core.packing import PlainShape
from icechunk_arrow.core.placement import groups_of, limit_of
from icechunk_arrow.core.repacking import plan_repacking
from tests.core.chunk_rows import Place, places_of, table_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from icechunk_arrow.core.repacking import Repacking

NAMES = ("x", "y", "z")
Manifests = dict[str, "pa.Table"]
Shapes = dict[int, PlainShape]


@st.composite
def manifest_settings(draw: st.DrawFn) -> ManifestSettings:
    """A default set and perhaps another one, packed either way, cut along any axis."""
    along = st.sampled_from([None, 0, 1, 2, *NAMES])
    last = ManifestSet(
        name="default", max_manifest_size=draw(st.integers(1, 12)), split_along=draw(along)
    )
    if draw(st.booleans()):
        return ManifestSettings(sets=(last,), rules=())
    size = draw(st.none() | st.integers(1, 8))
    overflow = draw(st.sampled_from([None, "default"]))
    first = ManifestSet(
        name="first",
        max_manifest_size=size,
        arrays_per_manifest=None if size else draw(st.integers(1, 3)),
        overflow_to=overflow,
        cardinality=draw(st.none() | st.integers(1, 2)) if overflow else None,
        split_along=draw(along),
    )
    rules = (ManifestRule(target="first", path=draw(st.sampled_from([None, "/[12]"]))),)
    return ManifestSettings(sets=(first, last), rules=rules)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Manifests, Shapes]:
    """Rows of some arrays, spread over manifests in any way: at random, by blocks, mixed."""
    rows: list[tuple[int, Place]] = []
    shapes = {}
    for array_id in range(1, draw(st.integers(1, 4)) + 1):
        counts = tuple(draw(st.lists(st.integers(1, 6), max_size=3)))
        grid = list(itertools.product(*map(range, counts)))
        places = draw(st.lists(st.sampled_from(grid), max_size=40, unique=True))
        if draw(st.booleans()):
            places = grid[: len(places)]
        rows += [(array_id, place) for place in sorted(places)]
        shapes[array_id] = PlainShape(
            path=f"/{array_id}",
            chunk_counts=counts,
            dimension_names=draw(st.sampled_from([None, NAMES[::-1][: len(counts)]])),
            chunk_count=len(places),
        )
    parts = draw(st.integers(1, 6))
    if draw(st.booleans()):
        homes = [draw(st.integers(0, parts - 1)) for _ in rows]
    else:
        homes = [number * parts // len(rows) for number in range(len(rows))]
    manifests = {}
    for home in sorted(set(homes)):
        mine = [row for row, where in zip(rows, homes, strict=True) if where == home]
        manifests[f"m{home}"] = of_rows(mine)
    return manifests, shapes


def of_rows(rows: Sequence[tuple[int, Place]]) -> pa.Table:
    """A manifest's rows."""
    by_array: dict[int, list[Place]] = {}
    for array_id, place in rows:
        by_array.setdefault(array_id, []).append(place)
    return concat_sorted([table_of(i, places) for i, places in sorted(by_array.items())])


def inventories_of(manifests: Manifests, shapes: Shapes) -> dict[int, Inventory]:
    """What a structure file says of manifests."""
    ndims = {i: len(shape.chunk_counts) for i, shape in shapes.items()}
    parts = [describe(table, name, ndims) for name, table in manifests.items()]
    found = Inventory.united(parts).by_owner()
    return {i: found.get(i, Inventory.of((), ndim)) for i, ndim in ndims.items()}


def applied(manifests: Manifests, shapes: Shapes, plan: Repacking) -> Manifests:
    """Do what a plan says, with the rows of the replaced manifests."""

    def rows(names: Iterable[str], members: Sequence[int]) -> pa.Table:
        table = concat_sorted([manifests[name] for name in sorted(names)])
        return table.take(np.flatnonzero(np.isin(table["array_id"].to_numpy(), members)))

    new = [rows(plan.replaced, members) for members in plan.together]
    for array_id, cut in plan.cut.items():
        for part in cut.parts:
            new += placement._split(rows(part, [array_id]), shapes[array_id], cut.home)
    after = {name: manifests[name] for name in plan.kept}
    fresh = (f"n{n}" for n in itertools.count())
    for table in new:
        after[next(name for name in fresh if name not in manifests)] = table
    return after


def rows_of(manifests: Manifests) -> list[tuple[int, Place]]:
    """All rows, sorted."""
    return sorted(row for table in manifests.values() for row in places_of(table))


def planned(manifests: Manifests, shapes: Shapes, chosen: ManifestSettings) -> Repacking:
    """The plan for a layout."""
    return plan_repacking(inventories_of(manifests, shapes), chosen, shapes)


@given(layouts(), manifest_settings())
def test_a_plan_accounts_for_every_manifest_and_row(
    layout: tuple[Manifests, Shapes], chosen: ManifestSettings
) -> None:
    """A manifest is kept or replaced; rows of replaced ones are counted and find a new place."""
    manifests, shapes = layout
    plan = planned(manifests, shapes, chosen)

    assert plan.kept.isdisjoint(plan.replaced)
    assert plan.kept | plan.replaced == manifests.keys()
    assert plan.row_count == sum(manifests[name].num_rows for name in plan.replaced)
    moving = {i for name in plan.replaced for i, _ in places_of(manifests[name])}
    together = [i for members in plan.together for i in members]
    assert len(together) == len(set(together))
    assert moving == {*together, *plan.cut}
    assert plan.cut.keys().isdisjoint(together)
    for array_id, cut in plan.cut.items():
        names = [name for part in cut.parts for name in part]
        assert len(names) == len(set(names))
        assert set(names) == plan.replaced & set(inventories_of(manifests, shapes)[array_id].names)
    assert rows_of(applied(manifests, shapes, plan)) == rows_of(manifests)


@given(layouts(), manifest_settings())
def test_afterwards_everything_is_as_wanted(
    layout: tuple[Manifests, Shapes], chosen: ManifestSettings
) -> None:
    """Arrays share manifests as the settings say, none is above its limit, and cut ones do not overlap."""
    manifests, shapes = layout
    after = applied(manifests, shapes, planned(manifests, shapes, chosen))
    held = inventories_of(after, shapes)
    sizes = {i: each.chunk_count for i, each in held.items() if len(each)}
    tenants = {name: {i for i, _ in places_of(table)} for name, table in after.items()}
    for home, members in groups_of(chosen, sizes, shapes):
        names = {name for i in members for name in held[i].names}
        if len(members) == 1 and sizes[members[0]] > limit_of(home):
            assert all(tenants[name] == set(members) for name in names)
            assert all(after[name].num_rows <= limit_of(home) for name in names)
            rows = [set(places_of(after[name])) for name in sorted(names)]
            assert sum(map(len, rows)) == len(set().union(*rows)) == sizes[members[0]]
        else:
            assert len(names) == 1
            assert tenants[names.pop()] == set(members)


@given(layouts(), manifest_settings())
def test_repacking_again_finds_nothing_to_do(
    layout: tuple[Manifests, Shapes], chosen: ManifestSettings
) -> None:
    """Once repacked, a plan keeps everything, whatever the layout was."""
    manifests, shapes = layout
    after = applied(manifests, shapes, planned(manifests, shapes, chosen))
    again = planned(after, shapes, chosen)

    assert again.kept == after.keys()
    assert (again.replaced, again.together, again.cut, again.row_count) == (frozenset(), (), {}, 0)


@given(layouts(), manifest_settings(), manifest_settings())
def test_other_settings_repack_once(
    layout: tuple[Manifests, Shapes], before: ManifestSettings, after: ManifestSettings
) -> None:
    """A layout made for other limits, sets or axes is brought into the new shape by one plan."""
    manifests, shapes = layout
    old = applied(manifests, shapes, planned(manifests, shapes, before))
    new = applied(old, shapes, planned(old, shapes, after))

    assert rows_of(new) == rows_of(manifests)
    assert planned(new, shapes, after).kept == new.keys()


@given(layouts(), manifest_settings())
def test_what_place_makes_stays(layout: tuple[Manifests, Shapes], chosen: ManifestSettings) -> None:
    """Manifests that a first commit makes are as wanted: there is nothing to repack."""
    manifests, shapes = layout
    everything = concat_sorted(list(manifests.values()))
    placed = placement.place(everything, chosen, shapes)
    made = {f"p{n:02}": table for n, table in enumerate(placed)}

    assert planned(made, shapes, chosen).kept == made.keys()


def test_appends_to_a_cut_array_move_only_the_end() -> None:
    """Full parts of a large array stay where they are; the small ones beside them become one."""
    shapes = {1: PlainShape(path="/1", chunk_counts=(100,), dimension_names=None, chunk_count=27)}
    chosen = ManifestSettings(sets=(ManifestSet(name="default", max_manifest_size=10),), rules=())
    manifests = {
        "full": table_of(1, [(n,) for n in range(10)]),
        "next": table_of(1, [(n,) for n in range(10, 20)]),
        **{f"new{n}": table_of(1, [(n,)]) for n in range(20, 27)},
    }
    plan = planned(manifests, shapes, chosen)

    assert plan.kept == {"full", "next"}
    assert plan.row_count == 7
    assert {name: table.num_rows for name, table in applied(manifests, shapes, plan).items()} == {
        "full": 10,
        "next": 10,
        "n0": 7,
    }


def test_an_empty_repository_has_nothing_to_repack() -> None:
    """Arrays without chunks have no manifest, and get none."""
    shapes = {1: PlainShape(path="/1", chunk_counts=(4,), dimension_names=None, chunk_count=0)}
    plan = planned({}, shapes, ManifestSettings())

    assert (plan.kept, plan.replaced, plan.together, plan.cut) == (frozenset(), frozenset(), (), {})
