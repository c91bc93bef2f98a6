"""Storms that go on for as long as one likes: ``make soak``, or ``python -m tests.soak --help``.

A storm is a function of a folder, a seed and a count: it does something random that often, asserts, and says what
came of it. `make test` runs each with few; here they run with many, and then again with other seeds while there is
time. To add one, write it where its tests are, and put it into :data:`STORMS`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults import flips, network_storm
from tests.fuzzing import running as fuzzing
from tests.fuzzing.samples import KINDS
from tests.replay.running import by_processes, in_turns
from tests.simulation import running as simulation
from tests.spark_session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STORMS", "Storm", "main"]


@dataclass(frozen=True, kw_only=True)
class Storm:
    """Something random."""

    run: Callable[[Path, int, int], object]
    """Do it in an empty folder, with a seed, so often; give what is to be printed."""
    count: int = 500
    """How often at a time, where nothing else is said."""


def _flip(kind: str, way: str, folder: Path, seed: int, count: int) -> object:
    sample = flips.make_sample(folder / "r", "state" if kind == "state" else "branches")
    return flips.storm(sample, kind, way, count, seed)


def _flip_for_spark(kind: str, folder: Path, seed: int, count: int) -> object:
    with spark_session(folder / "warehouse") as spark:
        sample = flips.make_sample(folder / "r")
        return flips.storm(sample, kind, "spark", count, seed, flips.through_spark(spark))


def _by_processes(catalog: str, folder: Path, seed: int, count: int) -> object:
    return by_processes(folder, seed, catalog=catalog, steps=count)


def _in_turns(catalog: str, folder: Path, seed: int, count: int) -> object:
    return in_turns(folder, seed, catalog=catalog, steps=3 * count)


def _simulate(catalog: str, folder: Path, seed: int, count: int) -> object:
    figures = simulation.storm(seed * 1_000_000, count, catalog=catalog)
    found = [(each.schedule.seed, str(each.failure)) for each in figures.failures]
    assert not found, (
        f"python -m tests.simulation --seed {found[0][0]} --schedules 1 tells more: {found}"
    )
    return figures


def _network(catalog: str, folder: Path, seed: int, count: int) -> object:
    return network_storm.storm(folder, seed, count, catalog=catalog)


def _fuzz(kind: str, folder: Path, seed: int, count: int) -> object:
    found = fuzzing.run(seed, count, kind=kind)
    assert not found.failures, found.told()
    return found.totals()


STORMS: dict[str, Storm] = {
    **{
        f"flips of a {kind} through {way}": Storm(run=partial(_flip, kind, way))
        for kind in flips.KINDS
        for way in flips.LOOKS
        if flips.sees(way, kind)
    },
    **{
        f"flips of a {kind} through spark": Storm(run=partial(_flip_for_spark, kind), count=100)
        for kind in ("manifest", "large manifest", "structure", "log")
    },
    **{
        f"sealed files of kind {kind}": Storm(run=partial(_fuzz, kind), count=1000)
        for kind in KINDS
    },
    **{
        f"histories by {name}, {catalog}": Storm(run=partial(run, catalog), count=300)
        for name, run in (("processes", _by_processes), ("writers in turns", _in_turns))
        for catalog in ("branches", "state")
    },
    **{
        f"storms on the network, {catalog}": Storm(run=partial(_network, catalog), count=100)
        for catalog in ("branches", "state")
    },
    **{
        f"simulated schedules, {catalog}": Storm(run=partial(_simulate, catalog), count=1000)
        for catalog in ("branches", "state")
    },
}


def main() -> None:
    """Run storms, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--only", default="", help="storms whose names have this in them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, help="how often, instead of each storm's own number")
    parser.add_argument(
        "--minutes", type=float, default=0, help="go on with other seeds until so long has passed"
    )
    given = parser.parse_args()
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    end = time.monotonic() + 60 * given.minutes
    chosen = {name: storm for name, storm in STORMS.items() if given.only in name}
    seed = given.seed
    while chosen:
        for name, storm in chosen.items():
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="soak-") as folder:
                found = storm.run(Path(folder), seed, given.count or storm.count)
            print(f"{name}, seed {seed}: {found} ({time.monotonic() - began:.0f} s)", flush=True)
        seed += 1
        if time.monotonic() >= end:
            return


if __name__ == "__main__":
    main()
