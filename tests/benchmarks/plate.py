"""Very many small arrays in one commit."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import icechunk_arrow
from tests.benchmarks import plate_data
from tests.benchmarks.harness import Stopwatch, alternate, print_figures, print_line, verdict
from tests.benchmarks.subjects import file_count, live_manifests

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.harness import Bench

__all__ = ["plate"]


def plate(bench: Bench) -> None:
    """5,000 arrays of four chunks of 1 KiB, created and filled through zarr, and committed.

    All of it, and the commit alone; ours is durable, icechunk does not sync. zarr's own share is the same for
    both. How many manifests and files that makes.
    """
    arrays = bench.choose(5_000, 200)
    size = {"arrays": arrays, "chunks": 4, "chunk_bytes": 1024}
    folder = bench.new_folder("plate")
    commits: dict[str, list[float]] = {"ours": [], "icechunk": []}

    def ours() -> float:
        shutil.rmtree(folder / "ours", ignore_errors=True)
        session = icechunk_arrow.Repository.create(folder / "ours").writable_session("main")
        part = Stopwatch()
        with Stopwatch() as whole:
            plate_data.write(session.store, **size)
            with part:
                session.commit("plate")
        commits["ours"].append(part.seconds)
        return whole.seconds

    def icechunk() -> float:
        assert bench.icechunk is not None
        shutil.rmtree(folder / "icechunk", ignore_errors=True)
        answer = bench.icechunk("write_plate", path=str(folder / "icechunk"), **size)
        commits["icechunk"].append(answer["commit"])
        return float(answer["all"])

    subjects: dict[str, Callable[[], float]] = {"ours": ours}
    if bench.icechunk is not None:
        subjects["icechunk"] = icechunk
    rounds = bench.choose(3, 2)
    found = alternate(subjects, rounds)
    print_figures(f"{arrays:,} arrays of four chunks: created, filled, committed", found)
    alone = {name: commits[name][-rounds:] for name in found}
    print_figures("the commit alone", alone, aims={"icechunk": 0.1})
    for name in found:
        files = file_count(folder / name)
        print_line(f"{name}: {files} files" + (f", {verdict(files, 100)}" * (name == "ours")))
    session = icechunk_arrow.Repository.open(folder / "ours").readonly_session("main")
    print_line(f"ours: {len(live_manifests(session))} manifests")
