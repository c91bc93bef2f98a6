"""Runs schedules and prints what came of them; a failure with its seed and a short schedule.

`python -m tests.simulation --seed 1 --schedules 1000 --workers 2`
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.simulation.planted import DEFECTS, plant
from tests.simulation.running import run, simulated
from tests.simulation.schedule import Schedule
from tests.simulation.storms import by_processes


def main() -> int:
    """Run, print, and say whether all went well."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=1, help="the first one; each schedule has its own"
    )
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--catalog", choices=["branches", "state"], default="")
    parser.add_argument(
        "--planted", choices=[*DEFECTS], default="", help="a defect that is to be found"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--kept", type=Path, help="run a schedule that was written down")
    given = parser.parse_args()
    if given.kept is not None:
        with simulated(), plant(given.planted):
            outcome = run(Schedule.from_json(given.kept.read_text()))
        print(outcome.schedule, outcome.failure or "nothing was found", *outcome.trace, sep="\n")
        return 1 if outcome.failure else 0
    began = time.monotonic()
    total = by_processes(
        given.seed,
        given.schedules,
        workers=given.workers,
        catalog=given.catalog,
        planted=given.planted,
        tell=lambda text: print(text, flush=True),
    )
    print(f"seeds from {given.seed}: {total}; {time.monotonic() - began:.1f} s")
    for outcome in total.failures:
        print(f"seed {outcome.schedule.seed}: {outcome.rule}")
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
