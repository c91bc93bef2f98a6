"""Packing: every array in exactly one manifest, within what the settings allow, in few manifests."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from icechunk_arrow.core import packing
from icechunk_arrow.core.manifest_settings import ManifestRule, ManifestSet, ManifestSettings
from icechunk_arrow.core.packing import (
    Pack,
    PlainShape,
    bin_pack,
    choose_set,
    choose_sets,
    closure,
    ordered_sets,
)
from icechunk_arrow.engine.config import RepositoryConfig
from tests.core.test_manifest_settings import EXAMPLE

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTINGS = RepositoryConfig.from_yaml(EXAMPLE).chunk_manifests


class Array(NamedTuple):
    """An array to be packed."""

    id: int
    size: int
    shape: PlainShape


def facts(
    number: int, size: int, *, path: str = "", chunks: int | None = None, present: int | None = None
) -> Array:
    """An array whose grid has as many chunks as it has references, unless said otherwise."""
    shape = PlainShape(
        path=path or f"/a{number}",
        chunk_counts=(size if chunks is None else chunks,),
        dimension_names=None,
        chunk_count=size if present is None else present,
    )
    return Array(number, size, shape)


def pack(settings: ManifestSettings, arrays: Sequence[Array]) -> list[Pack]:
    """Pack some arrays."""
    shapes = {each.id: each.shape for each in arrays}
    return packing.pack(settings, {each.id: each.size for each in arrays}, shapes)


def by_set(packs: Sequence[Pack]) -> dict[str, list[tuple[int, ...]]]:
    """The packs of each set."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for each in packs:
        found.setdefault(each.set_name, []).append(each.array_ids)
    return found


# Rules


@pytest.mark.parametrize(
    ("path", "chunks", "name"),
    [
        ("/time", 0, "coord1"),
        ("/a/latitude", 499, "coord1"),
        ("/time", 500, "default"),
        ("/times", 100, "coord2"),
        ("/x/timer/y", 199, "coord2"),
        ("/temperature", 200, "default"),
        ("/time", 1_999_999, "default"),
        ("/temperature", 2_000_000, "big-array"),
        ("/time", 10**30, "big-array"),
    ],
)
def test_the_first_rule_that_matches_decides(path: str, chunks: int, name: str) -> None:
    """All conditions of a rule hold; ranges are half-open; ``default`` where no rule matches."""
    assert choose_set(SETTINGS, facts(1, 5, path=path, chunks=chunks).shape).name == name


def test_rules_by_chunks_that_are_there() -> None:
    """A large grid of which little is written is told from one that is full."""
    settings = ManifestSettings(
        sets=(ManifestSet(name="sparse"),),
        rules=(
            ManifestRule(
                metadata_chunks=(1000, None), initialized_chunks=(None, 10), target="sparse"
            ),
        ),
    )

    assert choose_set(settings, facts(1, 5, chunks=1000, present=9).shape).name == "sparse"
    assert choose_set(settings, facts(1, 5, chunks=1000, present=10).shape).name == "default"
    assert choose_set(settings, facts(1, 5, chunks=999, present=9).shape).name == "default"


# Order of sets


def sets_of(*links: tuple[str, str | None]) -> ManifestSettings:
    """Settings with these sets and overflows."""
    return ManifestSettings(
        sets=tuple(
            ManifestSet(name=name)
            if name == "default"
            else ManifestSet(name=name, overflow_to=to, cardinality=None)
            for name, to in links
        ),
        rules=(),
    )


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ([], "default"),
        ([("a", "default"), ("b", "default")], "a b default"),
        ([("b", "default"), ("a", "default")], "b a default"),
        ([("a", "default"), ("b", "a")], "b a default"),
        ([("default", None), ("a", "default"), ("b", None)], "a default b"),
        ([("a", "c"), ("c", "default"), ("b", "c"), ("d", None)], "a b c d default"),
        ([("x", None), ("default", None), ("a", "x")], "default a x"),
    ],
    ids=str,
)
def test_sets_come_before_those_that_they_overflow_to(
    links: list[tuple[str, str | None]], expected: str
) -> None:
    """Ties are broken by the place in the configuration."""
    assert [each.name for each in ordered_sets(sets_of(*links))] == expected.split()


# The example configuration, worked out by hand


def test_the_example_configuration_by_hand() -> None:
    """Overflow by size and by cardinality, arrays per manifest, and large arrays alone."""
    found = by_set(
        pack(
            SETTINGS,
            [
                # coord1 takes two manifests of 10,000: 1 and 2 fill one each, 3 joins 2, and 4 has no place
                facts(1, 9_900, path="/time", chunks=400),
                facts(2, 9_000, path="/latitude", chunks=400),
                facts(3, 900, path="/longitude", chunks=400),
                facts(4, 800, path="/b/time", chunks=400),
                # this one is above the limit of coord1 and of coord2, and fits into default
                facts(5, 10_001, path="/c/time", chunks=400),
                # coord2 takes one manifest of 10,000: 6 fills most of it, 4 comes along, 7 goes to default
                facts(6, 9_100, chunks=100),
                facts(7, 700, chunks=100),
                # each one its own manifest, however large
                facts(8, 3_000_000),
                facts(9, 10, chunks=2_000_000),
                # no rule: default, of at most 65,536; the last one is larger, and there alone
                facts(10, 60_000),
                facts(11, 5_000),
                facts(12, 70_000),
            ],
        )
    )

    assert found == {
        "coord1": [(1,), (2, 3)],
        "coord2": [(4, 6)],
        "big-array": [(8,), (9,)],
        "default": [(5, 7), (10, 11), (12,)],
    }


def test_a_last_set_keeps_what_is_above_its_limit() -> None:
    """As ``default`` does, a set that overflows nowhere takes larger arrays, each alone."""
    found = by_set(
        pack(ManifestSettings(), [facts(1, 30_000_000), facts(2, 20_000_000), facts(3, 70_000)])
    )

    assert found == {"large": [(1,), (2,)], "default": [(3,)]}


def test_what_is_written_counts_and_not_the_grid() -> None:
    """Sparse arrays share a manifest, as many as their references allow."""
    settings = ManifestSettings(
        sets=(ManifestSet(name="default", max_manifest_size=100),), rules=()
    )
    arrays = [facts(number, 25, chunks=10**9) for number in range(1, 9)]

    assert by_set(pack(settings, arrays)) == {"default": [(1, 2, 3, 4), (5, 6, 7, 8)]}


@pytest.mark.parametrize("cardinality", [1, 2, 3])
def test_the_fullest_manifests_stay(cardinality: int) -> None:
    """What goes on to the next set is the least."""
    settings = ManifestSettings(
        sets=(ManifestSet(name="a", max_manifest_size=10, cardinality=cardinality),),
        rules=(ManifestRule(target="a"),),
    )
    found = by_set(pack(settings, [facts(1, 6), facts(2, 9), facts(3, 8)]))

    assert found.get("a") == [(1,), (2,), (3,)][3 - cardinality :] if cardinality == 3 else True
    stay = {1: [(2,)], 2: [(2,), (3,)], 3: [(1,), (2,), (3,)]}[cardinality]
    assert found["a"] == stay
    rest = tuple(sorted({1, 2, 3} - set(chain.from_iterable(stay))))
    assert found.get("default", []) == ([rest] if rest else [])


@pytest.mark.parametrize(
    ("sizes", "number", "expected"),
    [
        ([8, 7, 6, 5, 4, 3, 2, 1], 2, [9, 9, 9, 9]),
        ([8, 7, 6, 5, 4, 3, 2, 1], 4, [18, 18]),
        ([100, 100, 1, 1, 1, 1], 3, [102, 102]),
        ([10, 4, 3, 2, 1], 2, [10, 5, 5]),
        ([5, 5, 5], 1, [5, 5, 5]),
        ([5, 5, 5], 7, [15]),
        ([], 3, []),
    ],
)
def test_arrays_per_manifest_makes_manifests_of_one_size(
    sizes: list[int], number: int, expected: list[int]
) -> None:
    """The largest with the smallest; one may have fewer arrays."""
    settings = ManifestSettings(
        sets=(ManifestSet(name="default", arrays_per_manifest=number),), rules=()
    )
    packs = pack(settings, [facts(place, size) for place, size in enumerate(sizes)])
    totals = [sum(sizes[place] for place in each.array_ids) for each in packs]

    assert sorted(totals, reverse=True) == expected


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 6), st.integers(1, 4))
def test_arrays_per_manifest_counts(sizes: list[int], number: int, cardinality: int) -> None:
    """Every manifest but one has exactly so many, within the cardinality; the rest overflows."""
    settings = ManifestSettings(
        sets=(ManifestSet(name="a", arrays_per_manifest=number, cardinality=cardinality),),
        rules=(ManifestRule(target="a"),),
    )
    found = by_set(pack(settings, [facts(place, size) for place, size in enumerate(sizes)]))
    counts = sorted((len(each) for each in found.get("a", [])), reverse=True)
    needed = -(-len(sizes) // number)

    assert len(counts) == min(needed, cardinality)
    assert all(count == number for count in counts[:-1])
    assert ("default" in found) == (needed > cardinality)
    everything = sorted(chain.from_iterable(chain.from_iterable(found.values())))
    assert everything == list(range(len(sizes)))


# Any settings, any arrays

names = ["a", "b", "c", "default"]
limits = st.integers(1, 60)


@st.composite
def configurations(draw: st.DrawFn) -> ManifestSettings:
    """Sets of both kinds that overflow to any later one of a random order."""
    order = draw(st.permutations(["a", "b", "c"]))
    sets = []
    for place, name in enumerate(order):
        to = draw(st.sampled_from([*order[place + 1 :], "default", None]))
        by_size = draw(st.booleans())
        sets.append(
            ManifestSet(
                name=name,
                max_manifest_size=draw(limits) if by_size else None,
                arrays_per_manifest=None if by_size else draw(st.integers(1, 4)),
                overflow_to=to,
                cardinality=None if to is None else draw(st.none() | st.integers(1, 3)),
            )
        )
    sets.append(ManifestSet(name="default", max_manifest_size=draw(limits)))
    rules = [
        ManifestRule(target=name, initialized_chunks=(low, low + width))
        for name, low, width in draw(
            st.lists(
                st.tuples(st.sampled_from(names), st.integers(0, 50), st.integers(1, 60)),
                max_size=3,
            )
        )
    ]
    return ManifestSettings(sets=tuple(draw(st.permutations(sets))), rules=tuple(rules))


@hypothesis_settings(max_examples=400)
@given(
    configurations(),
    st.lists(st.integers(0, 100), max_size=25),
    st.randoms(use_true_random=False),
)
def test_packing_keeps_to_the_settings(
    settings: ManifestSettings, sizes: list[int], rng: random.Random
) -> None:
    """Nothing lost, nothing twice, no limit passed, no cardinality passed, overflow only onwards."""
    arrays = [facts(place * 7 % 101, size) for place, size in enumerate(sizes)]
    by_id = {each.id: each for each in arrays}
    packs = pack(settings, arrays)
    shuffled = list(arrays)
    rng.shuffle(shuffled)

    assert pack(settings, shuffled) == packs
    assert Counter(chain.from_iterable(each.array_ids for each in packs)) == Counter(by_id.keys())
    used = Counter(each.set_name for each in packs)
    following = {each.name: each.overflow_to for each in settings.sets}
    for each in packs:
        chosen = settings.get_set(each.set_name)
        assert each.array_ids == tuple(sorted(each.array_ids))
        assert each.array_ids
        total = sum(by_id[number].size for number in each.array_ids)
        limit, number = chosen.max_manifest_size, chosen.arrays_per_manifest
        alone = len(each.array_ids) == 1 and chosen.overflow_to is None
        assert limit is None or total <= limit or alone
        assert number is None or len(each.array_ids) <= number
        assert chosen.cardinality is None or used[chosen.name] <= chosen.cardinality
        for array_id in each.array_ids:
            on_the_way: str | None = choose_set(settings, by_id[array_id].shape).name
            while on_the_way != each.set_name:
                assert on_the_way is not None
                passed = settings.get_set(on_the_way)
                too_large = by_id[array_id].size > (passed.max_manifest_size or 10**9)
                assert too_large or used[on_the_way] == passed.cardinality
                on_the_way = following[on_the_way]


# Bin packing


def fewest_bins(sizes: list[int], limit: int) -> int:
    """The optimum, by trying everything: the best (bins, room taken in the last) for each subset."""
    best = [(1, 0)] + [(len(sizes) + 1, 0)] * (2 ** len(sizes) - 1)
    for subset in range(1, 2 ** len(sizes)):
        for place, size in enumerate(sizes):
            if subset >> place & 1:
                bins, taken = best[subset ^ 1 << place]
                more = (bins, taken + size) if taken + size <= limit else (bins + 1, size)
                best[subset] = min(best[subset], more)
    return best[-1][0] if sizes else 0


@hypothesis_settings(max_examples=300)
@given(st.lists(st.integers(1, 30), max_size=9), st.integers(30, 60))
@example([6, 6, 5, 5, 5, 4, 4, 4, 4], 30)
def test_bin_packing_against_the_optimum(sizes: list[int], limit: int) -> None:
    """Never more than first-fit decreasing may take; never fewer than is possible."""
    bins, optimum = len(bin_pack(sizes, limit)), fewest_bins(sizes, limit)

    assert optimum <= bins <= (11 * optimum + 6) // 9


@pytest.mark.parametrize(
    ("sizes", "limit", "bins"),
    [
        ([5, 5, 5, 5], 10, 2),
        ([6, 4, 6, 4, 6, 4], 10, 3),
        ([1] * 1000, 100, 10),
        ([3, 3, 2, 2, 2], 6, 2),  # two bins of 6 need luck: {3, 3}, {2, 2, 2}
        ([10], 10, 1),
        ([0, 0, 0], 10, 1),
        ([0, 10, 10], 10, 2),
        ([], 10, 0),
    ],
)
def test_bin_packing_of_easy_cases_is_perfect(sizes: list[int], limit: int, bins: int) -> None:
    """Cases whose optimum is plain."""
    assert len(bin_pack(sizes, limit)) == bins


def first_fit_decreasing(sizes: list[int], limit: int) -> list[list[int]]:
    """The same in the slowest and plainest way."""
    bins: list[list[int]] = []
    for row in sorted(range(len(sizes)), key=lambda row: (-sizes[row], row)):
        for each in bins:
            if sum(sizes[other] for other in each) + sizes[row] <= limit:
                each.append(row)
                break
        else:
            bins.append([row])
    return bins


@given(st.integers(1, 100).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n)))))
def test_bin_packing_is_first_fit_decreasing(case: tuple[int, list[int]]) -> None:
    """The tree and the equal sizes at once change how long it takes, and nothing else."""
    limit, sizes = case

    assert bin_pack(sizes, limit) == first_fit_decreasing(sizes, limit)


@pytest.mark.parametrize("kind", ["equal", "random", "more than half"])
def test_bin_packing_of_a_hundred_thousand_is_quick(kind: str) -> None:
    """A plate of many small arrays, and the worst that can be thought of."""
    rng = random.Random(5)
    count, limit = 100_000, 65_536
    sizes = {
        "equal": [4] * (count - 10) + [1000] * 10,
        "random": [rng.randrange(1, limit) for _ in range(count)],
        "more than half": [limit // 2 + 1 + place % (limit // 2) for place in range(count)],
    }[kind]
    start = time.process_time()
    bins = bin_pack(sizes, limit)
    seconds = time.process_time() - start

    assert sum(map(len, bins)) == count
    assert len(bins) <= 1.23 * max(sum(sizes) / limit, sum(2 * s > limit for s in sizes)) + 1
    assert seconds < 5  # measured: below 1; quadratic would take minutes


def test_arrays_that_are_neighbours_share_a_manifest() -> None:
    """Equal sizes are packed in order of ids, so what was made together is read together."""
    arrays = [facts(number, 4) for number in range(5000)]

    packs = pack(ManifestSettings(), arrays)

    assert [each.array_ids for each in packs] == [tuple(range(5000))]
    small = ManifestSettings(sets=(ManifestSet(name="default", max_manifest_size=400),), rules=())
    assert [each.array_ids for each in pack(small, arrays)] == [
        tuple(range(start, start + 100)) for start in range(0, 5000, 100)
    ]


# Closure

TENANTS = {"1": {1, 2}, "2": {1, 2, 3}, "3": {3}, "4": {4}, "5": {5, 6}}


@pytest.mark.parametrize("modified", [{1}, {1, 2}, {1, 2, 3}, {3}])
def test_the_closure_of_the_example(modified: set[int]) -> None:
    """Manifests with (a, b), (a, b, c) and (c): each of them draws in the other ones."""
    assert closure(modified, TENANTS) == {1, 2, 3}


def test_closures_of_others() -> None:
    """Arrays that share nothing stay where they are; a created one draws in nothing."""
    assert closure(set(), TENANTS) == set()
    assert closure({4}, TENANTS) == {4}
    assert closure({4, 5}, TENANTS) == {4, 5, 6}
    assert closure({9}, TENANTS) == {9}
    assert closure({1}, TENANTS, created={1}) == {1}
    assert closure({1, 5}, TENANTS, created={1}) == {1, 5, 6}
    assert closure({1}, {"x": {1, 2}, "y": {2, 3}, "z": {3, 4}, "w": {5}}) == {1, 2, 3, 4}


@given(
    st.dictionaries(st.text(max_size=2), st.sets(st.integers(0, 12), max_size=4), max_size=8),
    st.sets(st.integers(0, 12), max_size=3),
)
def test_the_closure_is_the_least_set_that_no_manifest_crosses(
    tenants: dict[str, set[int]], modified: set[int]
) -> None:
    """A manifest is inside or outside, never both: those outside are linked as they are."""
    found = closure(modified, tenants)
    slow = set(modified)
    for _ in tenants:
        for arrays in tenants.values():
            slow |= arrays if arrays & slow else set()

    assert found == slow
    assert all(arrays <= found or not arrays & found for arrays in tenants.values())


PATTERNS = ["/a", "/a.*", ".*/(x|y)", "/[ab]/x+", "(?i)/B/.*", "/b|/a/x", None]
RULES = st.builds(
    ManifestRule,
    target=st.sampled_from(["one", "two", "default"]),
    path=st.sampled_from(PATTERNS),
    metadata_chunks=st.sampled_from([None, (0, 5), (5, None), (None, 3)]),
    initialized_chunks=st.sampled_from([None, (2, 4), (1, None)]),
)
SHAPES = st.builds(
    PlainShape,
    path=st.sampled_from(["/a", "/b", "/a/x", "/a/xx", "/b/y", "/B/z", "/c", "/ab"]),
    chunk_counts=st.lists(st.integers(0, 9), max_size=2).map(tuple),
    dimension_names=st.none(),
    chunk_count=st.integers(0, 5),
)


def first_rule(rule: ManifestRule, shape: PlainShape) -> bool:
    """Whether all conditions of a rule hold, by the letter."""
    pairs = [
        (rule.metadata_chunks, math.prod(shape.chunk_counts)),
        (rule.initialized_chunks, shape.chunk_count),
    ]
    inside = all(
        wanted is None or ((wanted[0] or 0) <= count and (wanted[1] is None or count < wanted[1]))
        for wanted, count in pairs
    )
    return inside and (rule.pattern is None or rule.pattern.matches(shape.path))


@given(st.lists(RULES, max_size=40), st.lists(SHAPES, max_size=12))
def test_many_rules_at_once_choose_as_one_by_one(
    rules: list[ManifestRule], shapes: list[PlainShape]
) -> None:
    """The first rule of which all conditions hold, however many rules and arrays there are."""
    sets = tuple(ManifestSet(name=name) for name in ("one", "two"))
    settings = ManifestSettings(sets=sets, rules=tuple(rules))
    expected = [
        next((rule.target for rule in rules if first_rule(rule, shape)), "default")
        for shape in shapes
    ]

    assert [each.name for each in choose_sets(settings, shapes)] == expected


@pytest.mark.parametrize("path", ["/[n]one{n}.*x+", "/group[0-9]+/array_{n}[05]?", ".*/x{n}", None])
def test_a_thousand_rules_are_no_burden(path: str | None) -> None:
    """The most rules that settings may have, on 5,000 arrays, within the two seconds of anything hostile."""
    rules = tuple(
        ManifestRule(
            target="default", path=path and path.format(n=n), metadata_chunks=(n, n + 1001)
        )
        for n in range(1000)
    )
    settings = ManifestSettings(rules=rules)
    shapes = [PlainShape(f"/group{n // 100}/array_{n}", (10, 100), None, 5) for n in range(5000)]
    begun = time.process_time()
    choose_sets(settings, shapes)

    assert time.process_time() - begun < 2
