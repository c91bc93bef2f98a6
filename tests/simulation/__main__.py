"""`python -m tests.simulation --help`."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from multiprocessing import get_context

from tests.simulation.running import Figures, Outcome, shrunk, simulated, storm


def _told(outcome: Outcome) -> str:
    """A failure: its seed, and the short schedule."""
    with simulated():
        short = shrunk(outcome)
    found = short.failure
    lines = "".join(traceback.format_exception(found)) if found is not None else "it went away"
    return f"FAILED: seed {outcome.schedule.seed}\n{outcome.failure}\nshort:\n{short.schedule}\n{lines}\n{short.schedule.to_json()}"


def _part(given: tuple[int, int, str]) -> Figures:
    seed, count, catalog = given
    return storm(seed, count, catalog=catalog)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--catalog", default="")
    given = parser.parse_args()
    figures = storm(given.seed, given.schedules, catalog=given.catalog)
    print(figures)
    for failure in figures.failures[:3]:
        print(_told(failure))
    print([(f.schedule.seed, f.rule) for f in figures.failures])
    return 1 if figures.failures else 0


if __name__ == "__main__":
    sys.exit(main())

_ = (time, get_context)
