"""Storms that go on for as long as one likes: ``make soak``, or ``python -m tests.soak --help``.

A storm is a function of a folder, a seed and a count: it does something random that often, asserts, and says what
came of it. The tests run each with few; here they run with many, and then again with other seeds while there is
time. What one finds is told with its seed, and the others go on. To add one, write it where its tests are, and put
it into :data:`STORMS`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults import (
    bad_calls,
    bad_places,
    flips,
    network_storm,
    signal_storms,
    spark_storm,
)
from tests.fuzzing import running as fuzzing
from tests.fuzzing.samples import KINDS
from tests.processes import running as processes
from tests.replay.running import by_processes, in_turns
from tests.servers import s3_server
from tests.simulation import storms as simulation
from tests.spark_session import JAVA_OPTIONS, spark_session
from tests.storage.fake_s3 import fake_s3

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STORMS", "Storm", "main"]

CATALOGS = ("branches", "state")


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
    figures = simulation.by_processes(seed * 1_000_000, count, catalog=catalog)
    found = [(each.schedule.seed, str(each.failure)) for each in figures.failures]
    assert not found, (
        f"python -m tests.simulation --seed {found[0][0]} --schedules 1 tells more: {found}"
    )
    return figures


def _fuzz(kind: str, folder: Path, seed: int, count: int) -> object:
    found = fuzzing.run(seed, count, kind=kind)
    assert not found.failures, found.told()
    return found.totals()


def _network(catalog: str, folder: Path, seed: int, count: int) -> object:
    return network_storm.storm(folder, seed, count, catalog=catalog)


def _network_and_spark(folder: Path, seed: int, count: int) -> object:
    (folder / "server").mkdir()
    with s3_server(folder / "server") as server, spark_session(folder / "warehouse") as spark:
        return spark_storm.storm(folder, seed, count, spark=spark, server=server)


def _in_a_bad_place(kind: str, folder: Path, seed: int, count: int) -> object:
    try:
        return bad_places.run(folder / "place", kind, seed, count)
    except bad_places.NoMountsError as error:
        return f"left out: {error}"


def _bad_calls(folder: Path, seed: int, count: int) -> object:
    return bad_calls.storm(seed, count)


def _by_all_means(place: str, catalog: str, folder: Path, seed: int, count: int) -> object:
    run = partial(processes.run, folder, seed, count, catalog=catalog)
    if place == "connections":
        with fake_s3() as server:
            return run(url="s3://bucket/r", options=server.storage_options)
    return run(url=f"memory://{seed}" if place == "memory" else "")


def _at_any_moment(name: str, catalog: str, folder: Path, seed: int, count: int) -> object:
    return {"interrupted": signal_storms.at_any_moment(name, catalog, seed, count)}


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
        for catalog in CATALOGS
    },
    **{
        f"storms on the network, {catalog}": Storm(run=partial(_network, catalog), count=100)
        for catalog in CATALOGS
    },
    "storms on the network, Spark": Storm(run=_network_and_spark, count=15),
    **{
        f"bad places, {kind}": Storm(run=partial(_in_a_bad_place, kind), count=100)
        for kind in bad_places.KINDS
    },
    "bad calls": Storm(run=_bad_calls, count=500),
    **{
        f"processes by all means on {place}, {catalog}": Storm(
            run=partial(_by_all_means, place, catalog), count=20
        )
        for place in ("a disk", "memory", "connections")
        for catalog in CATALOGS
    },
    **{
        f"signals at any moment of {name}, {catalog}": Storm(
            run=partial(_at_any_moment, name, catalog), count=100
        )
        for name in signal_storms.OPERATIONS
        for catalog in CATALOGS
    },
    **{
        f"simulated schedules, {catalog}": Storm(run=partial(_simulate, catalog), count=1000)
        for catalog in CATALOGS
    },
}


def _tried(name: str, seed: int, count: int) -> bool:
    """Run a storm, and print what came of it."""
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
            told = STORMS[name].run(Path(folder), seed, count)
    except Exception:
        traceback.print_exc()
        print(f"{name}, seed {seed}, count {count}: FAILED", flush=True)
        return False
    print(f"{name}, seed {seed}: {told} ({time.monotonic() - began:.0f} s)", flush=True)
    return True


def main() -> int:
    """Run storms, one after the other; tell how many found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--only", default="", help="storms whose names have this in them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, help="how often, instead of each storm's own number")
    parser.add_argument(
        "--minutes", type=float, default=0, help="go on with other seeds until so long has passed"
    )
    given = parser.parse_args()
    os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)
    began = time.monotonic()
    chosen = [name for name in STORMS if given.only in name]
    if not chosen:
        parser.error(f"no storm has {given.only!r} in its name; there are: {', '.join(STORMS)}")
    runs, failed, seed = 0, [], given.seed
    while runs == 0 or time.monotonic() < began + 60 * given.minutes:
        for name in chosen:
            if not _tried(name, seed, given.count or STORMS[name].count):
                failed.append(f"{name}, seed {seed}")
            runs += 1
            if given.minutes and time.monotonic() >= began + 60 * given.minutes:
                break
        seed += 1
    minutes = (time.monotonic() - began) / 60
    print(
        f"{runs} storms in {minutes:.0f} minutes, seeds {given.seed} to {seed - 1}, {len(failed)} found something"
    )
    print(*failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
