"""How a case is measured and printed: subjects in turn, medians, quartiles, ratios.

Owns the order of measurements and the arithmetic; knows neither cases nor peers. Nothing is asserted
here: figures are read by people.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import Self

    from tests.benchmarks.peers import Peer

__all__ = [
    "Bench",
    "Stopwatch",
    "alternate",
    "folder_bytes",
    "mebibytes",
    "print_figures",
    "print_flatness",
    "print_line",
    "timed",
    "verdict",
]

Seconds = float


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What every case gets: where to put files, how much to do, and the peer, if it is there."""

    folder: Path
    """Of one case; empty when it begins."""
    built_folder: Path
    """Where repositories are that several cases use."""
    quick: bool
    scale: int
    """The most references that a case has, in millions; a tenth of that where it is to be quick."""
    icechunk: Peer | None
    peer_python: str | None

    @property
    def sizes(self) -> list[int]:
        """Numbers of references: a million, ten, a hundred, up to the scale."""
        unit = self.choose(1_000_000, 100_000)
        return [unit * times for times in (1, 10, 100) if times <= self.scale]

    def new_folder(self, name: str) -> Path:
        """Make a folder of a case's own."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        return folder

    def choose(self, full: int, quick: int) -> int:
        """Pick a size or a number of rounds."""
        return quick if self.quick else full


@dataclass
class Stopwatch:
    """Adds up the parts of a run that count."""

    seconds: Seconds = 0.0
    _began: float = field(default=0.0, repr=False)

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


def timed(function: Callable[[], object]) -> Seconds:
    """Run once, and tell how long it took."""
    with Stopwatch() as watch:
        function()
    return watch.seconds


@contextmanager
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alternate(
    subjects: Mapping[str, Callable[[], Seconds]], rounds: int, *, warm_up: int = 1
) -> dict[str, list[Seconds]]:
    """Run all subjects once, then all again, and so on: what the machine does hits all alike.

    Each subject tells its own seconds, so that what it must prepare does not count.
    """
    found: dict[str, list[Seconds]] = {name: [] for name in subjects}
    for number in range(-warm_up, rounds):
        for name, run in subjects.items():
            with _without_collector():
                seconds = run()
            if number >= 0:
                found[name].append(seconds)
    return found


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _scaled(seconds: Seconds) -> tuple[float, str]:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return scale, unit
    return 1e-6, "us"


def print_figures(
    title: str,
    figures: Mapping[str, list[Seconds]],
    *,
    ours: str = "ours",
    aims: Mapping[str, float] | None = None,
    leave_out: str = "",
    per: int = 1,
) -> None:
    """Print a table: each subject's median and quartiles, and ``ours`` as a multiple of it.

    The multiple is the ratio of the medians; behind it stand the quartiles of the ratios within rounds.
    ``per`` divides times, for cost per chunk. ``aims`` are upper bounds of multiples.
    """
    scale, unit = _scaled(statistics.median(figures[ours]) / per)
    print(f"\n{title}")
    print(f"  {'':28}{f'median, {unit}':>12}{'quartiles':>20}   ours is")
    for name, seconds in figures.items():
        if name == leave_out:
            continue
        shown = [value / per / scale for value in seconds]
        low, high = _quartiles(shown)
        line = f"  {name:28}{statistics.median(shown):12.3g}{f'{low:.3g} - {high:.3g}':>20}"
        if name != ours:
            line += "   " + _multiple(figures[ours], seconds, (aims or {}).get(name))
        print(line.rstrip(), flush=True)


def _multiple(ours: list[Seconds], theirs: list[Seconds], aim: float | None) -> str:
    ratio = statistics.median(ours) / statistics.median(theirs)
    low, high = _quartiles([a / b for a, b in zip(ours, theirs, strict=True)])
    text = f"{ratio:.2f} x ({low:.2f} - {high:.2f})"
    if aim is not None:
        text += f", {verdict(ratio, aim)}"
    return text


def print_line(text: str) -> None:
    """Print a figure that is no time."""
    print(f"  {text}")
    sys.stdout.flush()


def print_flatness(
    figures: Mapping[str, Mapping[int, list[Seconds]]], *, aims: Mapping[str, float] | None = None
) -> None:
    """Print how the medians of a subject grow with size, as multiples of the first.

    ``aims`` are upper bounds of the last.
    """
    for name, by_size in figures.items():
        medians = [statistics.median(values) for values in by_size.values()]
        if len(medians) < 2:
            continue
        shown = " : ".join(f"{median / medians[0]:.2f}" for median in medians)
        text = f"{name}: {shown} at {' : '.join(f'{size:,}' for size in by_size)}"
        aim = (aims or {}).get(name)
        print_line(text + (f"; {verdict(medians[-1] / medians[0], aim)}" if aim else ""))


def verdict(value: float, aim: float) -> str:
    """Say whether a figure keeps to its upper bound."""
    return f"aim {aim:,g}: {'reached' if value <= aim else 'MISSED'}"


def mebibytes(size_bytes: float) -> str:
    """Write an amount of memory."""
    return f"{size_bytes / (1 << 20):,.0f} MiB"


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
