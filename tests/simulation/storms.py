"""Very many schedules, by several processes; what fails is told with its seed and a short schedule."""

from __future__ import annotations

import traceback
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

from tests.simulation.planted import plant
from tests.simulation.running import Figures, Outcome, shrunk, simulated, storm

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["by_processes"]

SHOWN = 3
BATCH = 25


def _told(outcome: Outcome, planted: str) -> str:
    """A failure: its seed, what it was, the short schedule, and that as JSON to be kept."""
    with simulated(), plant(planted):
        short = shrunk(outcome)
    assert outcome.failure is not None
    return "\n".join(
        [
            f"--- seed {outcome.schedule.seed}: {outcome.failure}",
            str(short.schedule),
            "".join(traceback.format_exception(short.failure))
            if short.failure
            else "(it went away)",
            "to be kept in tests/simulation/kept:",
            short.schedule.to_json(),
        ]
    )


def _batch(planted: str, catalog: str, seed: int, count: int) -> tuple[Figures, list[str]]:
    figures = storm(seed, count, catalog=catalog, planted=planted, until_failure=bool(planted))
    told = [_told(outcome, planted) for outcome in figures.failures[:1]]
    figures.failures = [outcome.without_traceback() for outcome in figures.failures]
    return figures, told


def by_processes(
    seed: int,
    count: int,
    *,
    workers: int = 2,
    catalog: str = "",
    planted: str = "",
    tell: Callable[[str], object] = print,
) -> Figures:
    """Run the schedules of so many seeds; where a defect is planted, until it is found."""
    total, shown = Figures(), 0
    starts = range(seed, seed + count, BATCH)
    sizes = [min(BATCH, seed + count - start) for start in starts]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for figures, told in pool.map(partial(_batch, planted, catalog), starts, sizes):
            total.join(figures)
            for text in told[: SHOWN - shown]:
                shown += 1
                tell(text)
            if planted and total.failures:
                pool.shutdown(cancel_futures=True)
                break
    return total
