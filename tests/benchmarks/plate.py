"""Very many small arrays in one commit."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import icechunk_arrow
from tests.benchmarks import plate_data
from tests.benchmarks.harness import Stopwatch, alternate, print_figures, print_line, verdict
from tests.benchmarks.subjects import file_count, live_manifests
from tests.servers import ServerUnavailableError, s3_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.benchmarks.harness import Bench
    from tests.servers import S3Server

__all__ = ["plate"]


@dataclass(kw_only=True)
class _Place:
    """Where plates are written, each to a fresh name: a folder, or a bucket of a server on this machine."""

    folder: Path
    server: S3Server | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    written: dict[str, Path] = field(default_factory=dict)
    """Where the files of each subject's newest plate lie."""

    def new(self, subject: str) -> str:
        """Name a place for a subject's next plate; its last one goes, as it is large."""
        if subject in self.written:
            shutil.rmtree(self.written[subject])
        name = f"{subject}-{next(self._numbers)}"
        inside = self.folder if self.server is None else self.server.folder / self.server.bucket
        self.written[subject] = inside / name
        return str(self.folder / name) if self.server is None else name

    def create(self) -> icechunk_arrow.Repository:
        """Make a repository of ours at a new place."""
        name = self.new("ours")
        if self.server is None:
            return icechunk_arrow.Repository.create(name)
        url, options = f"{self.server.url}/{name}", self.server.storage_options
        return icechunk_arrow.Repository.create(url, options)

    def for_peer(self) -> dict[str, Any]:
        """Name a new place, as the peer wants it."""
        server = self.server
        if server is None:
            return {"path": self.new("icechunk")}
        facts = {"endpoint": server.endpoint, "key": server.key, "secret": server.secret}
        return {"path": self.new("icechunk"), "server": {**facts, "bucket": server.bucket}}


def plate(bench: Bench) -> None:
    """5,000 arrays of four chunks of 1 KiB, created and filled through zarr, and committed.

    All of it, and the commit alone, on the local disk (ours is durable, icechunk does not sync) and in a bucket
    of an S3 server on this machine, where each request costs a millisecond or so and not the tens that a real
    one takes. zarr's own share is the same for both. How many manifests and files that makes.
    """
    _measure(bench, _Place(folder=bench.new_folder("plate")), "on the local disk")
    try:
        with s3_server(bench.new_folder("server")) as server:
            _measure(bench, _Place(folder=bench.folder, server=server), "in a bucket")
    except ServerUnavailableError as error:
        print_line(f"SKIPPED, in a bucket: {error}")


def _measure(bench: Bench, place: _Place, where: str) -> None:
    arrays = bench.choose(5_000, 200)
    size = {"arrays": arrays, "chunks": 4, "chunk_bytes": 1024}
    commits: dict[str, list[float]] = {"ours": [], "icechunk": []}
    made: list[icechunk_arrow.Repository] = []

    def ours() -> float:
        made[:] = [place.create()]
        session = made[0].writable_session("main")
        part = Stopwatch()
        with Stopwatch() as whole:
            plate_data.write(session.store, **size)
            with part:
                session.commit("plate")
        commits["ours"].append(part.seconds)
        return whole.seconds

    def icechunk() -> float:
        assert bench.icechunk is not None
        answer = bench.icechunk("write_plate", **place.for_peer(), **size)
        commits["icechunk"].append(answer["commit"])
        return float(answer["all"])

    subjects: dict[str, Callable[[], float]] = {"ours": ours}
    if bench.icechunk is not None:
        subjects["icechunk"] = icechunk
    rounds = bench.choose(3, 2)
    found = alternate(subjects, rounds)
    print_figures(f"{arrays:,} arrays of four chunks {where}: created, filled, committed", found)
    alone = {name: commits[name][-rounds:] for name in found}
    print_figures(f"the commit alone, {where}", alone, aims={"icechunk": 0.1})
    for name in found:
        files = file_count(place.written[name])
        print_line(f"{name}: {files} files" + (f", {verdict(files, 100)}" * (name == "ours")))
    print_line(f"ours: {len(live_manifests(made[0].readonly_session('main')))} manifests")
