"""References of very many arrays in one commit, and somebody else's session put on top of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import icechunk_arrow
from tests.benchmarks import crowd_data
from tests.benchmarks.harness import Stopwatch, alternate, folder_bytes, print_figures, print_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.benchmarks.harness import Bench

__all__ = ["crowd"]

_FLOOR = "floor: one Parquet file"


def crowd(bench: Bench) -> None:
    """1,000 arrays, 900 scattered references each: set and committed at once; a session rebased over that.

    Ours gets one table with a column ``path``, icechunk a list of specs for each array, the floor is pyarrow
    that sorts the table and writes one Parquet file; preparing these does not count. What is rebased is a
    session with one reference, which has to learn from the log what the other commit did. Ours is durable.
    """
    arrays, count = bench.choose(1_000, 50), 900
    folder = bench.new_folder("crowd")
    table = _table(arrays, count)
    rebases: dict[str, list[float]] = {"ours": [], "icechunk": []}
    sizes: dict[str, int] = {}
    numbers = iter(range(1_000))

    def ours() -> float:
        path = folder / f"ours-{next(numbers)}"
        repo = _create(path, arrays)
        before = folder_bytes(path)
        late = repo.writable_session("main")
        late.set_references(f"/{crowd_data.name(0)}", _late_reference(count))
        session = repo.writable_session("main")
        with Stopwatch() as watch:
            session.set_references(None, table)
            session.commit("references")
        sizes["ours"] = folder_bytes(path) - before
        with Stopwatch() as rebasing:
            late.rebase(icechunk_arrow.ConflictDetector())
        rebases["ours"].append(rebasing.seconds)
        return watch.seconds

    def icechunk() -> float:
        assert bench.icechunk is not None
        path = folder / f"icechunk-{next(numbers)}"
        answer = bench.icechunk("set_crowd", path=str(path), arrays=arrays, count=count)
        rebases["icechunk"].append(answer["rebase"])
        sizes["icechunk"] = folder_bytes(path)
        return float(answer["seconds"])

    def floor() -> float:
        path = folder / "floor.parquet"
        with Stopwatch() as watch:
            _write_floor(path, table)
        sizes[_FLOOR] = path.stat().st_size
        return watch.seconds

    subjects: dict[str, Callable[[], float]] = {"ours": ours, _FLOOR: floor}
    if bench.icechunk is not None:
        subjects["icechunk"] = icechunk
    rounds = bench.choose(3, 2)
    found = alternate(subjects, rounds)
    print_figures(f"{count} references in each of {arrays:,} arrays, set and committed", found)
    for name, size_bytes in sizes.items():
        print_line(f"{name}: {size_bytes / (arrays * count):.2f} bytes a reference")
    later = {name: seconds[-rounds:] for name, seconds in rebases.items() if seconds}
    print_figures("a session with one reference, rebased over that", later)


def _create(path: Path, arrays: int) -> icechunk_arrow.Repository:
    repo = icechunk_arrow.Repository.create(path)
    session = repo.writable_session("main")
    crowd_data.create(session.store, arrays)
    session.commit("create")
    return repo


def _table(arrays: int, count: int) -> pa.Table:
    numbers = np.repeat(np.arange(arrays), count)
    places = np.concatenate([crowd_data.places(number, count) for number in range(arrays)])
    rows = pa.array(numbers)
    return pa.table(
        {
            "path": pa.array([f"/{crowd_data.name(n)}" for n in range(arrays)]).take(rows),
            "index_0": pa.array(places),
            "location": pa.array([crowd_data.location(n) for n in range(arrays)]).take(rows),
            "offset": pa.array(np.tile(crowd_data.offsets(count), arrays)),
            "length": pa.array(np.full(arrays * count, crowd_data.LENGTH)),
        }
    )


def _late_reference(count: int) -> pa.Table:
    """A chunk that nobody else writes."""
    place = crowd_data.free_place(0, count)
    return pa.table(
        {"index_0": [place], "location": [crowd_data.location(0)], "offset": [0], "length": [1]}
    )


def _write_floor(path: Path, table: pa.Table) -> None:
    pq.write_table(
        table.sort_by([("path", "ascending"), ("index_0", "ascending")]),
        path,
        row_group_size=16_384,
        compression="zstd",
        use_dictionary=["path", "location"],
        column_encoding=dict.fromkeys(("index_0", "offset", "length"), "DELTA_BINARY_PACKED"),
    )
