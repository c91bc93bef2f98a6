"""Schedules of sessions, forks and readers over a storage that misbehaves: what was promised holds in every one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.simulation.planted import DEFECTS, plant
from tests.simulation.running import run, shrunk, simulated, storm
from tests.simulation.schedule import Schedule, drawn

if TYPE_CHECKING:
    from tests.promises import Tell

SEED = 20_261_120
KEPT = sorted((Path(__file__).parent / "kept").glob("*.json"))
FOUND = {
    "lost update": (SEED + 0, "acknowledged, refused, history"),
    "overrun state": (SEED + 4, "parent"),
    "missing sync": (SEED + 0, "durable"),
    "unsynced fork": (SEED + 1, "CorruptFileError, durable, content"),
    "stale handle": (SEED + 10, "gap, parent, identity"),
    "gap": (SEED + 0, "gap"),
    "entry first": (SEED + 0, "half visible"),
    "moving reader": (SEED + 0, "content"),
    "forgotten attempts": (SEED + 61, "refused, twice"),
    "impatience": (SEED + 44, "refused, twice"),
    "trusted clock": (SEED + 5, "identity, error"),
    "unchecked bytes": (SEED + 12, "content"),
    "old tip": (SEED + 0, "endless, currency"),
    "moving tag": (SEED + 2, "tag"),
    "careless reset": (SEED + 8, "expected"),
    "raw error": (SEED + 0, "ValueError"),
    "unseen conflicts": (SEED + 4, "conflict"),
    "reused ids": (SEED + 52, "identity"),
    "forgotten rows": (SEED + 0, "content"),
}
"""Of each planted defect: a seed from which on it is soon found, and which invariants then do not hold."""
ENOUGH = 150
"""Schedules."""


@pytest.mark.parametrize("catalog", ["branches", "state"])
def test_no_invariant_is_broken(catalog: str, tell: Tell) -> None:
    """Acknowledged commits are there, nothing is half visible, readers stand still, identities are consistent."""
    figures = storm(SEED, 30, catalog=catalog)
    tell(SEED, figures)
    assert [(each.schedule.seed, str(each.failure)) for each in figures.failures] == []
    assert figures.commits > 60
    assert len(figures.faults) > 5


def test_a_seed_is_a_schedule() -> None:
    """Whoever is told a seed sees the same calls in the same order, as often as it is run."""
    with simulated():
        first, second = (run(drawn(SEED + 3)) for _ in range(2))
    assert first.trace == second.trace
    assert first.schedule == second.schedule


CALLS = """
from tests.simulation.running import run, simulated
from tests.simulation.schedule import drawn
with simulated():
    print(*(run(drawn(seed)).digest for seed in range({seed}, {seed} + 6)))
"""


def test_a_seed_is_a_schedule_in_every_process() -> None:
    """Neither the order of sets nor anything else that differs between processes is in it."""
    code = CALLS.format(seed=SEED)
    digests = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": number},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for number in ("1", "2")
    ]
    assert digests[0] == digests[1]


def test_what_was_written_down_runs_the_same() -> None:
    """A schedule that was drawn decides while it runs; what it decided is the schedule."""
    with simulated():
        found = run(drawn(SEED + 4))
        again = run(Schedule.from_json(found.schedule.to_json()))
    assert again.trace == found.trace


def test_a_failing_schedule_becomes_short() -> None:
    """What it fails without is left out, and what is left fails in the same way."""
    seed, rule = FOUND["missing sync"]
    with simulated(), plant("missing sync"):
        found = next(o for o in map(run, map(drawn, range(seed, seed + ENOUGH))) if o.rule)
        short = shrunk(found)
        assert (short.rule, found.rule) == (rule, rule)
        again = run(Schedule.from_json(short.schedule.to_json()))
        assert again.rule == rule
    with simulated():
        assert run(replace(short.schedule)).rule == ""
    assert sum(map(len, short.schedule.actors.values())) == 1


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_schedules(path: Path) -> None:
    """What failed once does not any more."""
    with simulated():
        outcome = run(Schedule.from_json(path.read_text()))
    assert outcome.rule == "", str(outcome.failure)


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_are_found(defect: str) -> None:
    """A simulation that finds nothing proves nothing."""
    seed, rules = FOUND[defect]
    figures = storm(seed, ENOUGH, planted=defect, until_failure=True)
    found = [each.rule for each in figures.failures]
    assert len(found) == 1, f"not in {figures.schedules} schedules from seed {seed}"
    assert found[0] in rules.split(", ")
