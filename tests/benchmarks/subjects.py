"""Repositories full of references, ours and icechunk's, as the cases about references handle them.

Owns how one is made, changed and looked at; and those that are built once and used by several cases.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import zarr

import icechunk_arrow
from icechunk_arrow import StorageSettings
from tests.benchmarks import references_data, references_input
from tests.benchmarks.harness import timed
from tests.benchmarks.peers import start_icechunk, start_worker

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from tests.benchmarks.harness import Bench

__all__ = ["SPLIT", "Icechunk", "Ours", "built", "copied", "file_count", "live_manifests"]

SPLIT = "icechunk, split"
"""icechunk, told to cut manifests at 100,000 references."""
_ROWS_PER_COMMIT = 10_000


class Ours:
    """A repository of ours, which stays open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.repo = icechunk_arrow.Repository.open(path)

    @classmethod
    def create(cls, path: Path, rows: int, *, dimensions: int = 2, durable: bool = True) -> Ours:
        """Make a repository with an empty array."""
        settings = StorageSettings(durable=durable)
        repo = icechunk_arrow.Repository.create(path, storage_settings=settings)
        session = repo.writable_session("main")
        shape = references_data.grid(rows + references_data.SPARE_ROWS, dimensions)
        zarr.create_array(
            session.store,
            name="a",
            shape=shape,
            chunks=(1,) * len(shape),
            dtype="u1",
            compressors=None,
        )
        session.commit("create")
        return cls(path)

    def set_references(self, references: pa.Table | pa.RecordBatchReader) -> float:
        """Set references and commit them."""

        def run() -> None:
            session = self.repo.writable_session("main")
            session.set_references("/a", references)
            session.commit("references")

        return timed(run)

    def set(self, *, dimensions: int = 2, **box: int) -> float:
        """Set the references of a box; making them does not count."""
        return self.set_references(references_input.table(dimensions=dimensions, **box))

    def manifests(self) -> list[str]:
        """Ids of the live manifests."""
        return live_manifests(self.repo.readonly_session("main"))


class Icechunk:
    """One of icechunk's, in the peer's process; it is opened anew each time, which does not count."""

    def __init__(self, bench: Bench, path: Path, split: int = 0) -> None:
        assert bench.icechunk is not None
        self._call = bench.icechunk
        self.path = path
        self._split = split

    @classmethod
    def create(
        cls, bench: Bench, path: Path, rows: int, *, dimensions: int = 2, split: int = 0
    ) -> Icechunk:
        """Make a repository with an empty array."""
        made = cls(bench, path, split)
        shape = references_data.grid(rows + references_data.SPARE_ROWS, dimensions)
        made._call(
            "create", path=str(path), shape=list(shape), chunks=[1] * len(shape), split=split
        )
        return made

    def set(self, **box: int) -> float:
        """Set the references of a box; making them does not count."""
        answer = self._call("set_references", path=str(self.path), split=self._split, **box)
        return float(answer["seconds"])

    def set_scattered(self, places: list[list[int]]) -> float:
        """Set single references anew."""
        answer = self._call("set_scattered", path=str(self.path), places=places, split=self._split)
        return float(answer["seconds"])


def live_manifests(session: icechunk_arrow.Session) -> list[str]:
    """Ids of the manifests that a snapshot refers to."""
    found: dict[str, None] = {}
    for node in session._staging.base.nodes():
        if node.is_array:
            found |= dict.fromkeys(node.inventories.names)
    return list(found)


def file_count(folder: Path) -> int:
    """How many files there are below a folder."""
    return sum(1 for path in folder.rglob("*") if path.is_file())


def built(bench: Bench, subject: str, count: int) -> Path:
    """Give a repository (or the floor's file) of so many references, made once in a run; not to be changed.

    It is made in a process of its own; icechunk's in commits of ten million.
    """
    path = bench.built_folder / f"{subject.replace(', ', '-')}-{count}"
    if path.exists():
        return path
    rows = count // references_data.COLUMNS
    if subject == SPLIT:
        split = references_data.split_rows()
        Icechunk.create(bench, path, rows, split=split)
        with start_icechunk(bench.peer_python) as peer:
            peer("fill", path=str(path), rows=rows, split=split, rows_per_commit=_ROWS_PER_COMMIT)
        return path
    with start_worker() as worker:
        if subject == "ours":
            worker("set_references", path=str(path), rows=rows, given=given(count))
        else:
            worker("stream_floor", path=str(path), rows=rows)
    return path


def given(count: int) -> str:
    """Say how so many references are given to us: as a table up to a million, by a reader beyond."""
    return "table" if count <= 1_000_000 else "reader"


def copied(bench: Bench, subject: str, count: int, to: Path) -> Any:
    """Give a copy of a built repository, which may be changed."""
    shutil.copytree(built(bench, subject, count), to)
    if subject == SPLIT:
        return Icechunk(bench, to, references_data.split_rows())
    return Ours(to)
