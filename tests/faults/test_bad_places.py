"""Places that misbehave: operations end right or with an error that says why, and are done when all is well."""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.faults import bad_calls
from tests.faults.bad_calls import Run, check_run, count_calls
from tests.faults.bad_places import KINDS, MOUNTED, NoMountsError, run
from tests.faults.planted_places import DEFECTS, plant
from tests.promises import required

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises import Tell

pytestmark = pytest.mark.alone  # a place has old files of its own here
SEED = 14


def _storm(folder: Path, kind: str, count: int, planted: str = "") -> object:
    try:
        return run(folder / "place", kind, SEED, count, planted)
    except NoMountsError as error:
        if required("root"):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("kind", [each for each in KINDS if each not in MOUNTED])
def test_a_history_in_a_bad_place(tmp_path: Path, kind: str) -> None:
    """Limits of the process, and single calls: what is acknowledged stays, the rest is told and done again."""
    _storm(tmp_path, kind, 4)


@pytest.mark.root
@pytest.mark.parametrize("kind", MOUNTED)
def test_a_history_on_a_bad_volume(tmp_path: Path, kind: str) -> None:
    """The same on a volume that is full, or becomes one to be read only, in the midst of an operation."""
    _storm(tmp_path, kind, 4)


@pytest.mark.storm
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.root if kind in MOUNTED else ()) for kind in KINDS],
)
def test_a_long_history_in_a_bad_place(tmp_path: Path, kind: str, tell: Tell) -> None:
    """The same for longer."""
    tell(SEED, _storm(tmp_path, kind, 25))


def test_any_call_of_an_operation_may_go_wrong(tell: Tell) -> None:
    """Whichever call it is, once or for good: done or not, never half, nothing left over, and again it is done."""
    tell(SEED, bad_calls.storm(SEED, 15))


@pytest.mark.storm
def test_many_calls_of_operations_may_go_wrong(tell: Tell) -> None:
    """The same with more of all the runs that there are."""
    tell(SEED + 1, bad_calls.storm(SEED + 1, 150))


FOUND_BY = {
    "unchecked short write": (Run(operation="commit", trouble="short"), "damaged"),
    "forgotten failure": (
        Run(operation="commit", trouble="unsynced", lasts=1),
        "a power cut would take",
    ),
    "believed": (Run(operation="create_branch", trouble="answered late"), "a power cut would take"),
    "raw errors": (Run(operation="read", trouble="descriptors", lasts=1), "Too many open files"),
    "no unlinking": (Run(operation="create_tag", trouble="full", lasts=1), "left over"),
}
"""Which runs see a planted defect, at some call, and what they say."""


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name: str) -> None:
    """What the package could have done wrong is seen by a run at one call or another."""
    kind, said = FOUND_BY[name]
    check_run(Run(operation=kind.operation))
    calls = list(range(count_calls(kind)))
    Random(SEED).shuffle(calls)
    with plant(name):
        for call in calls:
            found = _finding(Run(**{**vars(kind), "call": call}))
            if found is not None:
                assert re.search(said, found)
                return
    pytest.fail(f"nothing was found at {len(calls)} calls")


def _finding(run: Run) -> str | None:
    try:
        check_run(run)
    except Exception as error:
        return str(error)
    return None


def test_a_planted_defect_is_found_in_a_history(tmp_path: Path) -> None:
    """A process of its own sees it too, and says with which seed."""
    with pytest.raises(AssertionError, match=rf"kind 'calls: short', seed {SEED}, step \d+"):
        _storm(tmp_path, "calls: short", 6, "unchecked short write")
