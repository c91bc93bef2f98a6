"""Commits and openings: what one costs, and whether that grows with history."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import zarr

import icechunk_arrow
from icechunk_arrow import StorageSettings
from tests.benchmarks.harness import (
    Stopwatch,
    alternate,
    folder_bytes,
    print_figures,
    print_line,
    timed,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.benchmarks.harness import Bench

__all__ = ["commit", "growth", "opening"]

_CHUNK_BYTES = 256
_MOST_CHUNKS = 1 << 20


def _create(folder: Path, *, durable: bool) -> icechunk_arrow.Repository:
    settings = StorageSettings(durable=durable)
    repo = icechunk_arrow.Repository.create(folder, storage_settings=settings)
    session = repo.writable_session("main")
    zarr.create_array(
        session.store,
        name="a",
        shape=(_MOST_CHUNKS * _CHUNK_BYTES,),
        chunks=(_CHUNK_BYTES,),
        dtype="u1",
        compressors=None,
    )
    session.commit("create")
    return repo


class _Ours:
    """Our repository, to which chunk after chunk is committed."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self.repo = _create(folder, durable=durable)
        self.next_index = 0
        self.commits: list[float] = []

    def cycle(self) -> float:
        payload = np.full(_CHUNK_BYTES, self.next_index % 250 + 1, np.uint8)
        start = self.next_index * _CHUNK_BYTES
        self.next_index += 1
        part = Stopwatch()
        with Stopwatch() as whole:
            session = self.repo.writable_session("main")
            array = zarr.open_array(session.store, path="a")
            array[start : start + _CHUNK_BYTES] = payload
            with part:
                session.commit("one chunk")
        self.commits.append(part.seconds)
        return whole.seconds


class _Icechunk:
    """The same in icechunk."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        assert bench.icechunk is not None
        self._call = bench.icechunk
        self._path = str(folder)
        self.next_index = 0
        self.commits: list[float] = []
        shape = [_MOST_CHUNKS * _CHUNK_BYTES]
        self._call("create", path=self._path, shape=shape, chunks=[_CHUNK_BYTES])

    def cycle(self) -> float:
        found = self._call(
            "commit_chunk", path=self._path, index=self.next_index, size_bytes=_CHUNK_BYTES
        )
        self.next_index += 1
        self.commits.append(found["commit"])
        return float(found["cycle"])


def commit(bench: Bench) -> None:
    """One small chunk: a session on a branch, the chunk through zarr, the commit; and the commit alone.

    Ours durable (synced, as by default) and not; icechunk, which does not sync.
    """
    folder = bench.new_folder("commit")
    rounds = bench.choose(100, 20)
    subjects: dict[str, _Ours | _Icechunk] = {
        "ours": _Ours(folder / "durable", durable=True),
        "ours, not durable": _Ours(folder / "fast", durable=False),
    }
    if bench.icechunk is not None:
        subjects["icechunk"] = _Icechunk(bench, folder / "icechunk")
    cycles = alternate({name: s.cycle for name, s in subjects.items()}, rounds, warm_up=5)
    commits = {name: subject.commits[-rounds:] for name, subject in subjects.items()}
    aims = {"icechunk": 1.5}
    print_figures("session, one chunk, commit", cycles, aims=aims)
    print_figures("the commit alone", commits, aims=aims)
    print_figures(
        "the commit alone, not durable", commits, ours="ours, not durable", leave_out="ours"
    )


def growth(bench: Bench) -> None:
    """Bytes that a commit of one small chunk adds, and its time, early and late in a long history."""
    folder = bench.new_folder("growth")
    commits = bench.choose(2000, 300)
    window = commits // 10
    subjects: dict[str, tuple[_Ours | _Icechunk, Path]] = {
        "ours": (_Ours(folder / "ours", durable=False), folder / "ours")
    }
    if bench.icechunk is not None:
        subjects["icechunk"] = (_Icechunk(bench, folder / "icechunk"), folder / "icechunk")
    times: dict[str, list[float]] = {name: [] for name in subjects}
    sizes: dict[str, list[int]] = {name: [] for name in subjects}
    for number in range(commits + 1):
        if number % window == 0:
            for name, (_, path) in subjects.items():
                sizes[name].append(folder_bytes(path))
        for name, (subject, _) in subjects.items():
            times[name].append(subject.cycle())
    print(f"\n{commits} commits of one chunk of {_CHUNK_BYTES} bytes: the first tenth and the last")
    for name, seconds in times.items():
        first, last = (statistics.median(part) for part in (seconds[:window], seconds[-window:]))
        grown = [(b - a) / window for a, b in zip(sizes[name], sizes[name][1:], strict=False)]
        print_line(
            f"{name:12} {first * 1e3:.2f} ms, then {last * 1e3:.2f} ms ({last / first:.2f} x); "
            f"{grown[0]:,.0f} bytes a commit, then {grown[-1]:,.0f} ({grown[-1] / grown[0]:.2f} x); "
            f"{sizes[name][-1]:,} bytes in all"
        )


def opening(bench: Bench) -> None:
    """Opening and a read-only session on main after 10, 1,000 and 10,000 commits: flat or not?"""
    folder = bench.new_folder("opening")
    lengths = [10, 100, 1000] if bench.quick else [10, 1000, 10_000]
    subjects: dict[str, Callable[[], float]] = {}
    for length in lengths:
        path = folder / f"ours-{length}"
        repo = _create(path, durable=False)
        built = timed(partial(_grow, repo, length))
        subjects[f"ours, {length:,} commits"] = partial(timed, partial(_open, path))
        line = f"{length:,} empty commits made: ours {built / length * 1e3:.2f} ms each"
        if bench.icechunk is not None:
            theirs = str(folder / f"icechunk-{length}")
            call = bench.icechunk
            call("create", path=theirs, shape=[1024], chunks=[1024])
            seconds = timed(partial(call, "grow_history", path=theirs, commits=length))
            subjects[f"icechunk, {length:,} commits"] = partial(
                call, "open_repository", path=theirs
            )
            line += f", icechunk {seconds / length * 1e3:.2f} ms"
        print_line(line)
    measured = alternate(subjects, bench.choose(100, 20), warm_up=3)
    medians: dict[str, list[float]] = {}
    for length in lengths:
        figures = {
            name.partition(",")[0]: seconds
            for name, seconds in measured.items()
            if name.endswith(f", {length:,} commits")
        }
        print_figures(f"open and readonly_session after {length:,} commits", figures)
        for name, times in figures.items():
            medians.setdefault(name, []).append(statistics.median(times))
    for name, found in medians.items():
        shown = " : ".join(f"{median / found[0]:.2f}" for median in found)
        print_line(f"{name}: {shown} after {' : '.join(f'{n:,}' for n in lengths)} commits")


def _open(path: Path) -> None:
    icechunk_arrow.Repository.open(path).readonly_session("main")


def _grow(repo: icechunk_arrow.Repository, commits: int) -> None:
    for number in range(commits):
        repo.writable_session("main").commit(f"commit {number}", allow_empty=True)
