"""Runs schedules and prints what came of them; a failure with its seed and a short schedule.

`python -m tests.simulation --seed 1 --schedules 1000 --workers 2`
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.simulation.planted import DEFECTS, plant
from tests.simulation.running import Figures, Outcome, run, shrunk, simulated, storm
from tests.simulation.schedule import Schedule

SHOWN = 3
BATCH = 25


def _told(outcome: Outcome, planted: str) -> str:
    """A failure: its seed, what it was, the short schedule, and that as JSON to be kept."""
    with simulated(), plant(planted):
        short = shrunk(outcome)
    failure = outcome.failure
    assert failure is not None
    return "\n".join(
        [
            f"--- seed {outcome.schedule.seed}: {outcome.failure}",
            str(short.schedule),
            "".join(traceback.format_exception(short.failure)) if short.failure else "(it went away)",
            "to be kept in tests/simulation/kept:",
            short.schedule.to_json(),
        ]
    )


def _batch(planted: str, catalog: str, seed: int, count: int) -> tuple[Figures, list[str]]:
    figures = storm(seed, count, catalog=catalog, planted=planted, until_failure=bool(planted))
    told = [_told(outcome, planted) for outcome in figures.failures[:1]]
    figures.failures = [outcome.without_traceback() for outcome in figures.failures]
    return figures, told


def main() -> int:
    """Run, print, and say whether all went well."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first one; each schedule has its own")
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--catalog", choices=["branches", "state"], default="")
    parser.add_argument("--planted", choices=[*DEFECTS], default="", help="a defect that is to be found")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--kept", type=Path, help="run a schedule that was written down")
    given = parser.parse_args()
    if given.kept is not None:
        with simulated(), plant(given.planted):
            outcome = run(Schedule.from_json(given.kept.read_text()))
        print(outcome.schedule, outcome.failure or "nothing was found", *outcome.trace, sep="\n")
        return 1 if outcome.failure else 0
    total, began, shown = Figures(), time.monotonic(), 0
    starts = range(given.seed, given.seed + given.schedules, BATCH)
    sizes = [min(BATCH, given.seed + given.schedules - start) for start in starts]
    batch = partial(_batch, given.planted, given.catalog)
    with get_context("spawn").Pool(given.workers) as pool:
        running = [pool.apply_async(batch, part) for part in zip(starts, sizes, strict=True)]
        for each in running:
            figures, told = each.get()
            total.join(figures)
            for text in told[: SHOWN - shown]:
                shown += 1
                print(text, flush=True)
            if given.planted and total.failures:
                pool.terminate()
                break
    print(f"seeds from {given.seed}: {total}; {time.monotonic() - began:.1f} s")
    for outcome in total.failures:
        print(f"seed {outcome.schedule.seed}: {outcome.rule}")
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
