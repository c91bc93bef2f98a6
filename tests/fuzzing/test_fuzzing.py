"""Files that are sealed rightly and say something else: the same answer, an error by name, or what is said."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn
from unittest.mock import patch

import pytest

from icechunk_arrow.formats import manifest, structure, transaction
from tests.fuzzing.corpus import corpus
from tests.fuzzing.damage import Case, mutations_of
from tests.fuzzing.judging import FAILED, LEGITIMATE, REFUSED, SAME
from tests.fuzzing.rules import REQUIRED, refused_of_the_kit
from tests.fuzzing.running import run, try_case
from tests.fuzzing.samples import KINDS, keys_of_kind, sample, samples_of
from tests.fuzzing.trees import UnfitError

if TYPE_CHECKING:
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
    found = refused_of_the_kit()

    assert len(REQUIRED) > 35
    assert [rule for rule, names in found.items() if not names] == []


@pytest.mark.parametrize("case", corpus(), ids=lambda case: f"{case.kind}-{case.steps[0][0]}")
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


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_only_written_anew_is_the_same(kind: str) -> None:
    """A sound file that is taken apart and put together again is taken: what is refused is so for its damage."""
    for name in dict.fromkeys(samples_of(kind)):
        for key in keys_of_kind(name, kind)[:2]:
            result = try_case(0, Case(name, kind, key, ()))
            assert result is not None
            assert (result.outcome, result.told) == (SAME, "")


DEFECTS: dict[str, tuple[object, str, str, str]] = {
    "nobody compares rows": (structure, "_check_rows", "structure", "doubled row"),
    "any order will do": (transaction._Rows, "_check_order", "log", "rows' order"),
    "any place will do": (manifest, "_check_places", "manifest", "value"),
    "any type will do": (manifest, "check_form", "manifest", "type"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_are_found(defect: str) -> None:
    """A check that is taken away shows within some files."""
    owner, name, kind, way = DEFECTS[defect]
    assert way in mutations_of(kind)
    key = keys_of_kind("plain", kind)[-1]
    with patch.object(owner, name, lambda *_: None):
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
