"""Files that are sealed rightly and say something else: the same answer, an error by name, or what is said."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, NoReturn
from unittest.mock import patch

import pyarrow as pa
import pytest

from icechunk_arrow import CorruptFileError
from icechunk_arrow.formats import bounded_parquet, manifest, structure, transaction
from tests.conformance.kit.workshop import Seal
from tests.fuzzing import thrift
from tests.fuzzing.corpus import corpus
from tests.fuzzing.damage import Case, mutations_of
from tests.fuzzing.finished import unpacks_to
from tests.fuzzing.judging import FAILED, LEGITIMATE, REFUSED, SAME, expected, shortcuts_of
from tests.fuzzing.looks import LOOKS, look, views_of
from tests.fuzzing.naming import named_rightly
from tests.fuzzing.rules import (
    ELSEWHERE,
    REQUIRED,
    refused_at_hand,
    refused_of_the_kit,
    said_to_readers,
)
from tests.fuzzing.running import run, try_case
from tests.fuzzing.samples import KINDS, keys_of_kind, sample, samples_of
from tests.fuzzing.trees import MUTATIONS, OTHERS, UnfitError, dump, parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzzing.looks import Answer
    from tests.fuzzing.running import Result
    from tests.promises import Tell

SEED, COUNT = 14, 200


def test_some_hundred_files(tell: Tell) -> None:
    """None is taken for what it is not, makes anything but an error of ours, hangs or takes much memory."""
    found = run(SEED, COUNT)
    tell(SEED, found.totals())

    assert not found.failures, found.told()
    totals = found.totals()
    assert totals[SAME] + totals[REFUSED] + totals[LEGITIMATE] >= COUNT * 9 // 10
    assert totals[REFUSED] > COUNT // 4
    assert totals[SAME] > COUNT // 10


def test_every_rule_that_a_reader_must_check_is_hit() -> None:
    """Of each there is a repository that breaks it, and a way to look at it that refuses it."""
    found = {**refused_of_the_kit(), **refused_at_hand()}

    assert len(REQUIRED) > 40
    assert [rule for rule in REQUIRED if not found[rule]] == []


def test_every_rule_that_speaks_to_readers_is_among_them() -> None:
    """A new rule with a MUST for readers needs a case, or a reason why no file can break it."""
    said = said_to_readers()

    assert said - {*REQUIRED, *ELSEWHERE} == set()
    assert {*ELSEWHERE} - said == set()


@pytest.mark.parametrize("case", corpus(), ids=lambda case: f"{case.kind}-{case.steps[0][1]}")
def test_what_was_found_once(case: Case) -> None:
    """It comes to a right end now."""
    result = try_case(0, case)

    assert result is not None
    assert result.outcome != FAILED, f"{result.done}: {result.told}"


def test_a_seed_says_all() -> None:
    """The same seed and number make the same bytes, also of samples that are made anew."""
    numbers = range(40)

    def made() -> list[bytes]:
        found = []
        for number in numbers:
            with suppress(UnfitError):
                found.append(Case.drawn(3, number, "structure").damage()[0])
        return found

    before = made()
    sample.cache_clear()
    assert made() == before
    assert len(before) > 30


def test_what_is_put_into_a_tree_is_its_own() -> None:
    """Damage to one file changes nothing of what others are damaged with, and no tree holds itself."""
    before = repr(OTHERS)
    for seed in range(400):
        draw, tree = Random(seed), parse('{"a": [[]], "b": {"c": [1]}}')
        for _ in range(12):
            with suppress(UnfitError):
                draw.choice(list(MUTATIONS.values()))(tree, draw, ())
        assert dump(tree)
    assert repr(OTHERS) == before


def test_what_is_left_out_is_not_missed() -> None:
    """Decoding sound files once, and views that nobody asks for not at all, changes no answer."""

    def seen(case: Case, data: bytes) -> dict[str, Answer]:
        of = sample(case.sample)
        found = {}
        for way in set(LOOKS) - {"commit"}:
            of.lay_out({case.key: data})
            found[way] = look(way, of.url, case.kind)
        return found

    for kind in KINDS:
        for number in range(6):
            case = Case.drawn(11, number, kind)
            try:
                data, _ = case.damage()
            except UnfitError:
                continue
            plainly = seen(case, data)
            with shortcuts_of(case.sample).taken(views_of(kind)):
                assert seen(case, data) == plainly, case.as_line()


def test_looks_see_something() -> None:
    """Arrays are read through zarr, views and tables have rows, and a commit has a place for its chunk."""
    found = expected("plain", "manifest")

    assert all(len(found["zarr"].value[path]) == 4 for path in ("/d", "/n", "/s"))
    assert all(found["duckdb"].value.values())
    assert all(found["tables"].value.values())
    assert found["commit"].value["where"] is not None


@pytest.mark.parametrize("name", ["plain", "statistics", "row-groups", "wide", "ledger"])
def test_footers_are_read_and_written_alike(name: str) -> None:
    """What is altered in one is all that is altered."""
    footers = [
        Seal.of(data).footer
        for key, data in sample(name).objects.items()
        if key.endswith(".parquet")
    ]

    assert len(footers) > 3
    for footer in footers:
        assert thrift.write(thrift.parse(footer)[0]) == footer


def test_a_small_frame_unpacks_to_much() -> None:
    """It is one that a reader of Zstandard takes."""
    size = (1 << 20) + 17

    assert len(unpacks_to(size)) < 100
    assert pa.decompress(unpacks_to(size), size, codec="zstd", asbytes=True) == bytes(size)


def test_which_files_an_error_may_name() -> None:
    """The damaged one, and those that it names or that name it; no others."""
    of = sample("plain")
    manifest_key = of.keys["manifest"][0]
    changes = {manifest_key: b""}
    users = {key for key, data in of.objects.items() if manifest_key[2:22].encode() in data}
    strangers = [
        key for key in of.keys["attributes"] if manifest_key[2:22].encode() not in of.objects[key]
    ]

    assert named_rightly("plain", f"{manifest_key} is damaged", changes)
    assert users
    assert all(named_rightly("plain", f"{key} does not go with another", changes) for key in users)
    assert not any(named_rightly("plain", f"{key} is damaged", changes) for key in strangers)
    assert not named_rightly("plain", "something is damaged", changes)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_only_written_anew_is_the_same(kind: str) -> None:
    """A sound file that is taken apart and put together again is taken: what is refused is so for its damage."""
    for name in dict.fromkeys(samples_of(kind)):
        for key in keys_of_kind(name, kind)[:2]:
            result = try_case(0, Case(name, kind, key, ()))
            assert result is not None
            assert (result.outcome, result.told) == (SAME, "")


def refuse(*_: object, **more: object) -> NoReturn:
    raise CorruptFileError(
        "i/VY76P925PRY57WFEK410.parquet is damaged", key="i/VY76P925PRY57WFEK410.parquet"
    )


def take_all(*_: object, **more: object) -> NoReturn:
    raise MemoryError("malloc of size 4294967296 failed")


def pass_over(*_: object, **more: object) -> None:
    pass


DEFECTS: dict[str, tuple[object, str, Callable[..., None], str, str]] = {
    "nobody compares rows": (structure, "_check_rows", pass_over, "structure", "doubled row"),
    "any order will do": (transaction._Rows, "_check_order", pass_over, "log", "rows' order"),
    "any place will do": (manifest, "_check_places", pass_over, "manifest", "value"),
    "any type will do": (manifest, "check_form", pass_over, "manifest", "type"),
    "another order of columns is refused": (
        manifest,
        "check_form",
        refuse,
        "manifest",
        "columns' order",
    ),
    "errors name another file": (transaction, "check_rows", refuse, "log", "rows' order"),
    "pages may unpack to anything": (
        bounded_parquet,
        "_bound",
        take_all,
        "structure",
        "compression",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_are_found(defect: str) -> None:
    """A check that is taken away shows within some files."""
    owner, name, instead, kind, way = DEFECTS[defect]
    assert way in mutations_of(kind)
    key = keys_of_kind("plain", kind)[-1]
    expected("plain", kind)
    with patch.object(owner, name, instead):
        results = (
            try_case(number, Case("plain", kind, key, ((way, f"{number}"),)))
            for number in range(60)
        )
        assert any(result is not None and result.outcome == FAILED for result in results)


def third_hangs(number: int, case: Case) -> Result | None:
    if number == 3:
        time.sleep(600)
    return try_case(number, case)


def third_dies(number: int, case: Case) -> Result | None:
    if number == 3:
        os._exit(7)
    return try_case(number, case)


def third_takes_all_memory(number: int, case: Case) -> Result | None:
    if number == 3:
        _take(4 << 30)
    return try_case(number, case)


def _take(size_bytes: int) -> NoReturn:
    raise AssertionError(len(bytearray(size_bytes)))


@pytest.mark.parametrize(
    ("attempt", "told"),
    [(third_hangs, "hangs"), (third_dies, "exit code 7"), (third_takes_all_memory, "exit code 1")],
)
def test_processes_are_replaced(attempt: object, told: str) -> None:
    """One that hangs, dies or asks for too much memory is a failure of its number, and the others go on."""
    found = run(1, 6, kind="hint", workers=1, attempt=attempt, time_out_seconds=4)  # type: ignore[arg-type]

    assert [each.number for each in found.failures] == [3]
    assert told in found.failures[0].told
    assert found.cases == 6
