"""A billion references in one repository: made, opened, found, appended to and counted.

Not one of ``make bench``: a demonstration that is run by hand, step by step in fresh processes, and printed as
a table. ``python -m tests.benchmarks.billion --folder /a/fast/disk [--count 1_000_000_000]``.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zarr

from tests.benchmarks import references_data
from tests.benchmarks.harness import folder_bytes, print_line, verdict
from tests.benchmarks.peers import start_worker

__all__ = ["main"]

_BYTES_EACH = 4
"""What a reference takes on disk, and a little more."""
_MOST_SLOWER = 5
_MOST_GIBIBYTES = 4.0
_GiB = 1 << 30
_SMALL = 1_000_000
_OPENINGS = 9


class _Steps:
    """Steps of one repository, each in a process of its own, as lines of a table."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._highest = 0.0

    def run(self, title: str, call: str, **arguments: Any) -> dict[str, Any]:
        """Take a step, and print its time, the process's highest memory, and the bytes that it wrote."""
        before = folder_bytes(self._path) if self._path.exists() else 0
        with start_worker() as worker:
            answer: dict[str, Any] = worker(call, path=str(self._path), **arguments)
        written = folder_bytes(self._path) - before
        self.show(title, answer["seconds"], answer["peak"], f"{written:,}")
        return answer

    def show(self, title: str, seconds: float, peak: int, written: str) -> None:
        """Print a line."""
        self._highest = max(self._highest, peak / _GiB)
        shown = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
        print(f"| {title} | {shown} | {peak / _GiB:.2f} GiB | {written} |", flush=True)

    @property
    def highest(self) -> float:
        """The most memory that any step had, in GiB."""
        return self._highest


def _made(path: Path, rows: int) -> dict[str, Any]:
    with start_worker() as worker:
        answer: dict[str, Any] = worker(
            "set_references", path=str(path), rows=rows, given="reader", coded=True
        )
    return answer


def _openings(path: Path, rows: int, seed: int) -> tuple[float, int]:
    """Open cold and find one chunk, in fresh processes: the median time, the highest memory."""
    random = np.random.default_rng(seed)
    answers = []
    for _ in range(_OPENINGS):
        row, column = int(random.integers(rows)), int(random.integers(references_data.COLUMNS))
        with start_worker() as worker:
            answers.append(worker("first_chunk", path=str(path), row=row, column=column))
    return statistics.median(a["seconds"] for a in answers), max(a["peak"] for a in answers)


def _warn_of_room(folder: Path, count: int) -> None:
    free, wanted = shutil.disk_usage(folder).free, count * _BYTES_EACH
    if free < wanted:
        print(
            f"WARNING: {folder} has {free / _GiB:.1f} GiB left, and {count:,} references need about "
            f"{wanted / _GiB:.1f} GiB"
        )


def _demonstrate(folder: Path, count: int) -> None:
    rows = count // references_data.COLUMNS
    path = folder / "billion"
    steps = _Steps(path)
    print("\n| step | time | highest memory | bytes written |\n|---|---|---|---|")
    began = time.perf_counter()
    made = steps.run(
        f"{count:,} references set through a record batch reader, and committed",
        "set_references",
        rows=rows,
        given="reader",
        coded=True,
    )
    seconds, peak = _openings(path, rows, 1)
    steps.show("opened cold, one chunk found (median of fresh processes)", seconds, peak, "0")
    for number in range(2):
        title = "100 references appended, opening included" + (", again" if number else "")
        steps.run(title, "append", row=rows + number)
    counted = steps.run("counted by DuckDB over the live manifests", "count")
    whole = time.perf_counter() - began
    print()
    assert counted["count"] == rows * references_data.COLUMNS + 200, counted
    size = folder_bytes(path)
    print_line(f"making the references is {made['making']:.1f} s of the first step")
    print_line(
        f"{counted['manifests']:,} live manifests; {size:,} bytes in all, {size / count:.2f} a reference"
    )
    print_line(f"the whole took {whole:.0f} s with what starts and imports")
    print_line(
        f"highest memory of a step: {steps.highest:.2f} GiB, {verdict(steps.highest, _MOST_GIBIBYTES)}"
    )
    _made(folder / "million", _SMALL // references_data.COLUMNS)
    small, _ = _openings(folder / "million", _SMALL // references_data.COLUMNS, 2)
    again, _ = _openings(path, rows, 3)
    ratio = again / small
    print_line(
        f"cold chunk among {_SMALL:,}: {small * 1e3:.1f} ms; among {count:,} {again * 1e3:.1f} ms: "
        f"{ratio:.2f} x, {verdict(ratio, _MOST_SLOWER)}"
    )


def main() -> None:
    """Go through all steps and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.billion", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to write; without it a temporary folder")
    parser.add_argument("--count", type=int, default=1_000_000_000, help="thousands, please")
    chosen = parser.parse_args()
    if chosen.count <= 0 or chosen.count % references_data.COLUMNS:
        parser.error(f"--count must be a multiple of {references_data.COLUMNS:,}")
    print(
        f"Python {platform.python_version()}, zarr {zarr.__version__}, pyarrow {pa.__version__}, "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    )
    folder = Path(tempfile.mkdtemp(prefix="icechunk-arrow-billion-", dir=chosen.folder))
    try:
        _warn_of_room(folder, chosen.count)
        _demonstrate(folder, chosen.count)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
