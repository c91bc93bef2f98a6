"""Virtual references by the million: set, appended, overwritten; and the bytes that they take."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

import icechunk_arrow
from tests.benchmarks import references_data
from tests.benchmarks.harness import alternate, folder_bytes, print_figures, print_line, timed
from tests.benchmarks.references_data import COLUMNS, LOCATIONS, ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.benchmarks.harness import Bench

    Sized = Callable[[str, str, Path, Callable[[], float]], float]

__all__ = ["references"]

_FLOOR = "floor: one Parquet file"
_ICECHUNKS = {"icechunk": 0, "icechunk, split": 100_000 // COLUMNS}
"""As it comes, and told to cut manifests at so many rows: at 100,000 references."""


def _table(**box: int) -> pa.Table:
    """Give references as a person would have them: a row per chunk, two integer columns for its place."""
    found = references_data.box(**box)
    files = pa.DictionaryArray.from_arrays(pa.array(found.files, pa.int32()), pa.array(LOCATIONS))
    return pa.table(
        {
            "index_0": pa.array(found.rows),
            "index_1": pa.array(found.columns),
            "location": files.cast(pa.string()),
            "offset": pa.array(found.offsets),
            "length": pa.array(found.lengths),
        }
    )


def _floor(path: Path, table: pa.Table) -> float:
    """Sort and write the same references with pyarrow: delta encodings, zstd, nothing else."""

    def write() -> None:
        pq.write_table(
            table.sort_by([("index_0", "ascending"), ("index_1", "ascending")]),
            path,
            compression="zstd",
            compression_level=3,
            use_dictionary=["location"],
            column_encoding=dict.fromkeys(
                ("index_0", "index_1", "offset", "length"), "DELTA_BINARY_PACKED"
            ),
            row_group_size=16_384,
        )

    return timed(write)


class _Ours:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.repo = icechunk_arrow.Repository.create(path)
        session = self.repo.writable_session("main")
        shape = (ROWS, COLUMNS)
        zarr.create_array(
            session.store, name="a", shape=shape, chunks=(1, 1), dtype="u1", compressors=None
        )
        session.commit("create")

    def set(self, table: pa.Table) -> float:
        def run() -> None:
            session = self.repo.writable_session("main")
            session.set_references("/a", table)
            session.commit("references")

        return timed(run)


class _Icechunk:
    def __init__(self, bench: Bench, path: Path, split: int) -> None:
        assert bench.icechunk is not None
        self._call = bench.icechunk
        self.path = path
        self._call("create", path=str(path), shape=[ROWS, COLUMNS], chunks=[1, 1], split=split)
        self._split = split

    def set(self, **box: int) -> float:
        answer = self._call("set_references", path=str(self.path), split=self._split, **box)
        return float(answer["seconds"])


def references(bench: Bench) -> None:
    """A million virtual references set and committed, then 100 appended, then 100 within overwritten.

    Ours takes an Arrow table and syncs; icechunk takes numpy arrays and a list of locations
    (``set_virtual_refs_arr``) and does not sync, with one manifest and split at 100,000 references; the
    floor sorts the same table and writes it with pyarrow. Preparing the input does not count, opening of the
    peer's repository neither. Bytes are those that each operation adds to the folder.
    """
    folder = bench.new_folder("references")
    rows = bench.choose(1000, 100)
    rounds = bench.choose(5, 3)
    made: dict[str, list[Any]] = {}
    sizes: dict[str, dict[str, list[int]]] = {}

    def sized(name: str, what: str, path: Path, run: Callable[[], float]) -> float:
        before = folder_bytes(path)
        seconds = run()
        sizes.setdefault(what, {}).setdefault(name, []).append(folder_bytes(path) - before)
        return seconds

    table = _table(rows=rows)

    def bulk_ours() -> float:
        made.setdefault("ours", []).append(_Ours(folder / f"ours-{len(made.get('ours', []))}"))
        ours = made["ours"][-1]
        return sized("ours", "set", ours.path, lambda: ours.set(table))

    def bulk_icechunk(name: str, split: int) -> float:
        number = len(made.setdefault(name, []))
        made[name].append(_Icechunk(bench, folder / f"{name}-{number}", split))
        theirs = made[name][-1]
        return sized(
            name, "set", theirs.path, lambda: theirs.set(rows=rows, first_row=0, columns=COLUMNS)
        )

    subjects: dict[str, Callable[[], float]] = {"ours": bulk_ours}
    if bench.icechunk is not None:
        for name, split in _ICECHUNKS.items():
            subjects[name] = partial(bulk_icechunk, name, split)
    file = folder / "floor.parquet"
    subjects[_FLOOR] = partial(_floor, file, table)
    count = rows * COLUMNS
    found = alternate(subjects, rounds)
    aims = {"icechunk": 0.15, _FLOOR: 2.0}
    print_figures(f"{count:,} virtual references, set and committed", found, aims=aims)
    for name, values in sizes["set"].items():
        print_line(f"{name}: {values[-1] / count:.2f} bytes a reference, everything counted")
    print_line(f"{_FLOOR}: {file.stat().st_size / count:.2f} bytes a reference")
    _small_changes(bench, made, sized, sizes, rows)


def _turn(
    name: str, what: str, held: Any, chosen: Iterator[int], sized: Sized
) -> Callable[[], float]:
    """Make what sets 100 references of the next chosen row."""

    def run() -> float:
        place = {"rows": 1, "first_row": next(chosen), "columns": 100}
        if name == "ours":
            small = _table(**place)
            return sized(name, what, held.path, lambda: held.set(small))
        return sized(name, what, held.path, lambda: held.set(**place))

    return run


def _small_changes(
    bench: Bench,
    made: dict[str, list[Any]],
    sized: Sized,
    sizes: dict[str, dict[str, list[int]]],
    rows: int,
) -> None:
    """Append 100 references behind all others, and set 100 neighbouring ones in their midst anew."""
    rounds = bench.choose(20, 5)
    count = rows * COLUMNS
    plans = {
        "append": ("100 references appended to", range(rows, ROWS)),
        "overwrite": ("100 references overwritten within", range(rows // 2, rows, 2)),
    }
    for what, (title, chosen) in plans.items():
        turns = {
            name: _turn(name, what, repositories[-1], iter(chosen), sized)
            for name, repositories in made.items()
        }
        print_figures(f"{title} {count:,}", alternate(turns, rounds))
        for name, values in sizes[what].items():
            print_line(f"{name}: {int(np.median(values)):,} bytes written each time (median)")
