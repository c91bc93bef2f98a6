"""The first chunk among very many references, and what memory stays when all of them were read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.benchmarks import references_data
from tests.benchmarks.harness import (
    alternate,
    mebibytes,
    print_figures,
    print_flatness,
    print_line,
    verdict,
)
from tests.benchmarks.peers import start_icechunk, start_worker
from tests.benchmarks.subjects import SPLIT, built

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.harness import Bench

__all__ = ["first_chunk", "memory"]

_FLOOR = "floor: one Parquet file"
_MiB = 1 << 20


def first_chunk(bench: Bench) -> None:
    """A new process opens the repository and finds one chunk among a million, ten, a hundred million.

    Opening, a session and ``store.getsize`` of one chunk, which finds its reference; icechunk split the same.
    The clock starts when everything is imported and the event loop runs. The floor opens the Parquet file of the
    same references, finds the row group by its statistics, reads it and finds the row. Files lie in the page
    cache for all.
    """
    sizes = bench.sizes
    names = ["ours", *([SPLIT] if bench.icechunk is not None else []), _FLOOR]
    subjects: dict[str, Callable[[], float]] = {}
    for count in sizes:
        for name in names:
            subjects[f"{name} {count}"] = _finder(bench, name, count)
    measured = alternate(subjects, bench.choose(11, 3))
    found = {name: {count: measured[f"{name} {count}"] for count in sizes} for name in names}
    for count in sizes:
        print_figures(
            f"cold open and one of {count:,} chunks found",
            {name: by_size[count] for name, by_size in found.items()},
            aims={SPLIT: 0.9, _FLOOR: 2.0},
        )
    print_flatness(found, aims={"ours": 1.5})


def _finder(bench: Bench, name: str, count: int) -> Callable[[], float]:
    """Make what finds one chunk in a fresh process; each time another one."""
    path = str(built(bench, name, count))
    random = np.random.default_rng(count)

    def find() -> float:
        row = int(random.integers(count // references_data.COLUMNS))
        place = {"row": row, "column": int(random.integers(references_data.COLUMNS))}
        answer: dict[str, Any]
        if name == SPLIT:
            with start_icechunk(bench.peer_python) as peer:
                split = references_data.split_rows()
                answer = peer("first_chunk", path=path, split=split, **place)
        else:
            with start_worker() as worker:
                call = "first_chunk" if name == "ours" else "first_in_floor"
                answer = worker(call, path=path, **place)
        assert 58_000 <= answer["size_bytes"] < 62_000, answer
        return float(answer["seconds"])

    return find


def memory(bench: Bench) -> None:
    """Every one of ten million references read once, 20,000 looked up at random: what memory stays.

    In a fresh process: coordinates and whole references in batches, then single look-ups. What stays is the
    resident memory over what the imports hold, after garbage collection and after pyarrow's pool gave back
    what it does not use; the bound is the cache's.
    """
    count = bench.sizes[:2][-1]
    rows = count // references_data.COLUMNS
    path = built(bench, "ours", count)
    look_ups = bench.choose(20_000, 2_000)
    with start_worker() as worker:
        answer = worker("read_everything", path=str(path), rows=rows, look_ups=look_ups)
    print(f"\n{count:,} references read once, {look_ups:,} looked up")
    assert answer["coordinates"] == answer["described"] == count, answer
    print_line(
        f"ours: coordinates {answer['streamed']:.2f} s, whole references {answer['iterated']:.2f} s, "
        f"a look-up {answer['looked_up'] / look_ups * 1e6:.0f} us"
    )
    bound = answer["cache_bytes"]
    print_line(
        f"ours: {mebibytes(answer['kept'])} stay, of a cache of {mebibytes(bound)}, "
        f"{verdict(answer['kept'] / _MiB, bound / _MiB)}; at most "
        f"{mebibytes(answer['beyond_imports'])} beyond the imports meanwhile"
    )
    print_line(
        f"ours: {mebibytes(answer['kept_afterwards'])} after the look-ups, which fill the cache"
    )
