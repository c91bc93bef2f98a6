"""Small changes among very many references: appended, overwritten, and appended a thousand times."""

from __future__ import annotations

import os
import shutil
import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.benchmarks import references_data, references_input
from tests.benchmarks.harness import (
    alternate,
    folder_bytes,
    print_figures,
    print_flatness,
    print_line,
    timed,
    verdict,
)
from tests.benchmarks.subjects import SPLIT, Icechunk, Ours, copied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.benchmarks.harness import Bench

__all__ = ["append", "appends", "overwrite"]

_COUNT = 100
_MANY_COMMITS = 1000
_FLOOR = "floor: synced Parquet files"
_IN_MEMORY = 50_000
"""Rows of a thousand references: two gigabytes."""


def _subjects(bench: Bench) -> list[str]:
    return ["ours"] if bench.icechunk is None else ["ours", SPLIT]


class _Turns:
    """Every subject at every size in turn, each with rows of its own to change; times and bytes."""

    def __init__(self, bench: Bench, what: str, sizes: list[int]) -> None:
        folder = bench.new_folder(what)
        self.held: dict[tuple[str, int], Any] = {
            (name, count): copied(bench, name, count, folder / f"{name}-{count}")
            for count in sizes
            for name in _subjects(bench)
        }
        self.bytes: dict[tuple[str, int], list[int]] = {place: [] for place in self.held}

    def measure(self, chosen: Callable[[int], Iterator[int]], rounds: int) -> dict[str, Any]:
        """Set the first 100 references of the next chosen row, in turn; times by subject and size."""
        subjects: dict[str, Callable[[], float]] = {
            f"{name} {count}": partial(self._one, name, count, chosen(count))
            for name, count in self.held
        }
        found = alternate(subjects, rounds)
        by_name: dict[str, dict[int, list[float]]] = {}
        for name, count in self.held:
            by_name.setdefault(name, {})[count] = found[f"{name} {count}"]
        return by_name

    def _one(self, name: str, count: int, rows: Iterator[int]) -> float:
        held = self.held[name, count]
        before = folder_bytes(held.path)
        seconds: float = held.set(rows=1, first_row=next(rows), columns=_COUNT)
        self.bytes[name, count].append(folder_bytes(held.path) - before)
        return seconds


def append(bench: Bench) -> None:
    """100 references appended behind a million, ten, a hundred million: session, set, commit; bytes; flat?

    Ours (durable) and icechunk split, sizes in turn too. The repository of ours is open; opening icechunk's
    does not count. What is appended begins a new split of icechunk's, the best that can happen to it. Bytes
    are those that the commit adds to the folder.
    """
    sizes = bench.sizes
    turns = _Turns(bench, "append", sizes)
    rounds = bench.choose(20, 5)
    found = turns.measure(lambda count: iter(range(count // 1000, 1 << 60)), rounds)
    for count in sizes:
        print_figures(
            f"{_COUNT} references appended to {count:,}",
            {name: by_size[count] for name, by_size in found.items()},
            aims={SPLIT: 1.0},
        )
        most = 64_000 if count == 100_000_000 else 20_000
        for name in found:
            written = turns.bytes[name, count][-rounds:]
            median = statistics.median(written)
            aim = f", {verdict(median, most)}" if name == "ours" else ""
            print_line(
                f"{name}: {median:,.0f} bytes written each time (median{aim}; at most "
                f"{max(written):,})"
            )
    print_flatness(found, aims={"ours": 2.0 if len(sizes) > 2 else 1.2})


def overwrite(bench: Bench) -> None:
    """100 references set anew within a million and ten million: neighbours, then scattered ones.

    Against icechunk split. Of scattered ones: how many manifests hold one of them, and how many were replaced.
    """
    sizes = bench.sizes[:2]
    turns = _Turns(bench, "overwrite", sizes)
    rounds = bench.choose(20, 5)
    found = turns.measure(lambda count: iter(range(count // 2000, 1 << 60, 2)), rounds)
    for count in sizes:
        print_figures(
            f"{_COUNT} neighbouring references overwritten within {count:,}",
            {name: by_size[count] for name, by_size in found.items()},
            aims={SPLIT: 0.2},
        )
        for name in found:
            written = turns.bytes[name, count][-rounds:]
            print_line(
                f"{name}: {statistics.median(written):,.0f} bytes written each time (median)"
            )
    print_flatness(found, aims={"ours": 1.2})
    for count in sizes:
        _scattered(turns, count, bench.choose(5, 3))


def _places(count: int, seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    chosen = random.choice(count, _COUNT, replace=False)
    chosen.sort()
    return [[int(place) // 1000, int(place) % 1000] for place in chosen]


def _scattered(turns: _Turns, count: int, rounds: int) -> None:
    seeds = {name: iter(range(1 << 60)) for name, _ in turns.held}
    counted: list[str] = []

    def ours() -> float:
        held: Ours = turns.held["ours", count]
        places = _places(count, next(seeds["ours"]))
        touched = _holding(held, places)
        before = set(held.manifests())
        size = folder_bytes(held.path)
        table = _table_of(places)
        seconds = held.set_references(table)
        after = set(held.manifests())
        counted.append(
            f"of {len(before)} manifests {len(touched)} may hold one of them, {len(before - after)} "
            f"went and {len(after - before)} came; {folder_bytes(held.path) - size:,} bytes"
        )
        return seconds

    def icechunk() -> float:
        held: Icechunk = turns.held[SPLIT, count]
        return held.set_scattered(_places(count, next(seeds[SPLIT])))

    subjects: dict[str, Callable[[], float]] = {"ours": ours}
    if (SPLIT, count) in turns.held:
        subjects[SPLIT] = icechunk
    print_figures(
        f"{_COUNT} scattered references overwritten within {count:,}", alternate(subjects, rounds)
    )
    print_line(f"ours: {counted[-1]}")


def _holding(held: Ours, places: list[list[int]]) -> set[str]:
    """Find the manifests whose extent holds one of these places."""
    session = held.repo.readonly_session("main")
    inventories = session.get_array("/a").node.inventories
    return {entry.manifest for place in places for entry in inventories.holding(place)}


def _table_of(places: list[list[int]]) -> Any:
    index = np.array(places)
    return references_input.table_of(
        references_data.Box(
            rows=index[:, 0],
            columns=index[:, 1],
            files=index[:, 0],
            offsets=np.full(_COUNT, 20_000, np.uint64),
            lengths=np.full(_COUNT, 60_000, np.uint64),
        )
    )


def appends(bench: Bench) -> None:
    """A thousand appends of 5,000 references one after the other, against one bulk write of them all by us.

    Total time and bytes, the last hundred against the first, and the live manifests at the end. Ours durable
    and not; icechunk split does the same appends, in turn, for comparison. The floor makes each append a plain
    Parquet file of its own and syncs that: what no commit that is durable can be below. Then a thousand of 50,000,
    by us and the floor; with ``--scale 100`` a thousand of a million too.
    """
    _appends(bench, 5, with_peer=True)
    _appends(bench, 50, with_peer=False)
    if len(bench.sizes) > 2:
        _appends(bench, 1000, with_peer=False)


def _appends(bench: Bench, each: int, *, with_peer: bool) -> None:
    commits = bench.choose(_MANY_COMMITS, 50)
    rows = commits * each
    folder = bench.new_folder(f"appends-{each}")
    ours = {
        "ours": Ours.create(folder / "ours", rows),
        "ours, not durable": Ours.create(folder / "not durable", rows, durable=False),
    }
    subjects: dict[str, Any] = {**ours, _FLOOR: _PlainFiles(folder / "floor")}
    if with_peer and bench.icechunk is not None:
        split = references_data.split_rows()
        subjects[SPLIT] = Icechunk.create(bench, folder / SPLIT, rows, split=split)
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for number in range(commits):
        box = {"rows": each, "first_row": number * each, "columns": references_data.COLUMNS}
        for name, subject in subjects.items():
            times[name].append(subject.set(**box))
    bulk, bulk_bytes = _bulk(folder / "bulk", rows)
    window = max(1, commits // 10)
    count = rows * references_data.COLUMNS
    print(f"\n{commits:,} appends of {each * references_data.COLUMNS:,} references: {count:,}")
    for name, seconds in times.items():
        total, size = sum(seconds), folder_bytes(subjects[name].path)
        first, last = (statistics.median(part) for part in (seconds[:window], seconds[-window:]))
        text = f"{name}: {total:.2f} s, {size:,} bytes"
        if name == _FLOOR:
            text += f"; {total / statistics.median(bulk['ours']):.2f} x the time of one bulk write of ours"
        if name in ours:
            slower, larger = total / statistics.median(bulk[name]), size / bulk_bytes[name]
            text += (
                f"; {slower:.2f} x the time of one bulk write ({verdict(slower, 3)}), "
                f"{larger:.2f} x its bytes ({verdict(larger, 3)})"
            )
        print_line(text)
        print_line(
            f"  the first {window} {first * 1e3:.1f} ms each, the last {window} {last * 1e3:.1f} ms: "
            f"{last / first:.2f} x; the slowest {max(seconds) * 1e3:.1f} ms"
        )
        if name in ours:
            print_line(f"  {len(ours[name].manifests())} live manifests at the end")
    shutil.rmtree(folder)


class _PlainFiles:
    """Each append a Parquet file, written by pyarrow and synced, and nothing that says what belongs together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir()

    def set(self, *, rows: int, first_row: int, columns: int) -> float:
        """Write the references of some rows; making them does not count."""
        table = references_input.table(rows=rows, first_row=first_row, columns=columns)

        def write() -> None:
            path = self.path / f"{first_row}.parquet"
            references_input.write_floor(path, table)
            for each in (path, self.path):
                descriptor = os.open(each, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)

        return timed(write)


def _bulk(folder: Path, rows: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Write the same references at once, durable and not, through a reader.

    What fits into memory is made before, the rest when asked for: then making them is not counted, although
    manifests are encoded meanwhile.
    """
    ready = list(references_input.batches(rows)) if rows <= _IN_MEMORY else None
    sizes: dict[str, int] = {}

    def once(name: str, *, durable: bool) -> float:
        shutil.rmtree(folder / name, ignore_errors=True)
        batches = references_input.batches(rows) if ready is None else ready
        reader, making = references_input.as_reader(batches)
        seconds = Ours.create(folder / name, rows, durable=durable).set_references(reader)
        if ready is None:
            seconds -= making.seconds
        sizes[name] = folder_bytes(folder / name)
        return seconds

    names = {"ours": True, "ours, not durable": False}
    subjects = {name: partial(once, name, durable=durable) for name, durable in names.items()}
    return alternate(subjects, 3 if ready else 1, warm_up=1 if ready else 0), sizes
