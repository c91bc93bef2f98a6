"""Arrays through zarr: large chunks, small chunks, and what plain files cost."""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.storage import LocalStore, MemoryStore

import icechunk_arrow
from icechunk_arrow import RepositoryConfig, StorageSettings
from tests.benchmarks.harness import alternate, print_figures, print_line, timed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.benchmarks.harness import Bench

__all__ = ["checksums", "large_chunks", "small_chunks"]

_MiB = 1 << 20
_KiB = 1 << 10
FLOOR = "floor: plain files"
_AIMS_OF_SMALL = {
    ("BatchedCodecPipeline", "written"): {"icechunk": 0.45},
    ("BatchedCodecPipeline", "read"): {"icechunk": 0.4},
    ("FusedCodecPipeline", "written"): {"MemoryStore": 1.5},
    ("FusedCodecPipeline", "read"): {"MemoryStore": 1.5},
}


def _pipelines() -> list[str]:
    """Name the codec pipelines that the installed zarr has, its default first."""
    from zarr.core import codec_pipeline

    names = ("BatchedCodecPipeline", "FusedCodecPipeline")
    return [name for name in names if hasattr(codec_pipeline, name)]


def _use(pipeline: str) -> None:
    zarr.config.set({"codec_pipeline.path": f"zarr.core.codec_pipeline.{pipeline}"})


def _ours(*, durable: bool, checked: bool = True) -> str:
    """Name the folder of a repository of ours."""
    return "ours" + (", durable" if durable else "") + ("" if checked else ", unchecked")


class _Arrays:
    """One size of array and chunk, written and read by every subject in folders of its own."""

    def __init__(self, bench: Bench, name: str, size_bytes: int, chunk_bytes: int) -> None:
        self.bench = bench
        self.folder = bench.new_folder(name)
        self.size_bytes, self.chunk_bytes = size_bytes, chunk_bytes
        self.data = np.resize(np.arange(251, dtype=np.uint8), size_bytes)
        self.memory: dict[str, Any] = {}

    def _fresh(self, subject: str) -> Path:
        path = self.folder / subject
        shutil.rmtree(path, ignore_errors=True)
        os.sync()  # what others left to be written is not ours to pay for
        return path

    def _array(self, store: Any) -> Any:
        return zarr.create_array(
            store,
            name="a",
            shape=(self.size_bytes,),
            chunks=(self.chunk_bytes,),
            dtype="u1",
            compressors=None,
        )

    def _check(self, data: Any) -> None:
        assert data[-1] == self.data[-1]
        assert len(data) == self.size_bytes

    def write_ours(self, pipeline: str, *, durable: bool, checked: bool = True) -> float:
        path = self._fresh(_ours(durable=durable, checked=checked))
        repo = icechunk_arrow.Repository.create(
            path,
            config=RepositoryConfig(checksum_chunks=checked),
            storage_settings=StorageSettings(durable=durable),
        )
        first = repo.writable_session("main")
        self._array(first.store)
        first.commit("create")
        session = repo.writable_session("main")
        array = zarr.open_array(session.store, path="a")
        _use(pipeline)

        def fill() -> None:
            array[:] = self.data
            session.commit("filled")

        return timed(fill)

    def read_ours(self, pipeline: str, *, durable: bool = True, checked: bool = True) -> float:
        _use(pipeline)
        path = self.folder / _ours(durable=durable, checked=checked)
        repo = icechunk_arrow.Repository.open(path)
        array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
        return self._timed_read(lambda: array[:])

    def _timed_read(self, read: Callable[[], Any]) -> float:
        kept = []
        seconds = timed(lambda: kept.append(read()))
        self._check(kept[0])
        return seconds

    def write_store(self, pipeline: str, *, in_memory: bool = False) -> float:
        _use(pipeline)
        if in_memory:
            store: Any = MemoryStore()
            self.memory["store"] = store
        else:
            store = LocalStore(self._fresh("LocalStore"))
        array = self._array(store)

        def fill() -> None:
            array[:] = self.data

        return timed(fill)

    def read_store(self, pipeline: str, *, in_memory: bool = False) -> float:
        _use(pipeline)
        store = self.memory["store"] if in_memory else LocalStore(self.folder / "LocalStore")
        array = zarr.open_array(store, path="a", mode="r")
        return self._timed_read(lambda: array[:])

    def write_icechunk(self, pipeline: str) -> float:
        assert self.bench.icechunk is not None
        seconds: float = self.bench.icechunk(
            "write_array",
            path=str(self._fresh("icechunk")),
            size_bytes=self.size_bytes,
            chunk_bytes=self.chunk_bytes,
            pipeline=pipeline,
        )
        return seconds

    def read_icechunk(self, pipeline: str) -> float:
        assert self.bench.icechunk is not None
        path = str(self.folder / "icechunk")
        seconds: float = self.bench.icechunk("read_array", path=path, pipeline=pipeline)
        return seconds

    def write_files(self) -> float:
        folder = self._fresh("files")
        folder.mkdir()

        def fill() -> None:
            view = self.data.data
            for start in range(0, self.size_bytes, self.chunk_bytes):
                with open(f"{folder}/{start}", "wb", buffering=0) as file:  # noqa: PTH123
                    file.write(view[start : start + self.chunk_bytes])

        return timed(fill)

    def read_files(self) -> float:
        folder = self.folder / "files"

        def fill() -> Any:
            data = np.empty(self.size_bytes, np.uint8)
            view = data.data
            for start in range(0, self.size_bytes, self.chunk_bytes):
                with open(f"{folder}/{start}", "rb", buffering=0) as file:  # noqa: PTH123
                    file.readinto(view[start : start + self.chunk_bytes])
            return data

        return self._timed_read(fill)

    def remove(self) -> None:
        self.memory.clear()
        shutil.rmtree(self.folder)


def large_chunks(bench: Bench) -> None:
    """1 GiB in chunks of 1 MiB without codecs, written (and committed) and read: every byte once.

    Ours durable and not; zarr's LocalStore and icechunk, neither of which syncs; plain files one after the
    other. What is read lies in the system's page cache for all.
    """
    arrays = _Arrays(bench, "large", bench.choose(1 << 30, 1 << 27), _MiB)
    rounds = bench.choose(5, 3)
    for pipeline in _pipelines():
        writers: dict[str, Callable[[], float]] = {
            "ours": partial(arrays.write_ours, pipeline, durable=False),
            "ours, durable": partial(arrays.write_ours, pipeline, durable=True),
            "LocalStore": partial(arrays.write_store, pipeline),
            FLOOR: arrays.write_files,
        }
        readers: dict[str, Callable[[], float]] = {
            "ours": partial(arrays.read_ours, pipeline),
            "LocalStore": partial(arrays.read_store, pipeline),
            FLOOR: arrays.read_files,
        }
        if bench.icechunk is not None:
            writers["icechunk"] = partial(arrays.write_icechunk, pipeline)
            readers["icechunk"] = partial(arrays.read_icechunk, pipeline)
        written = alternate(writers, rounds)
        title = f"{arrays.size_bytes >> 20} MiB in 1 MiB chunks, {pipeline}"
        aims = {"LocalStore": 1.0}
        print_figures(
            f"{title}: written, not durable", written, aims=aims, leave_out="ours, durable"
        )
        print_figures(
            f"{title}: written, durable",
            written,
            ours="ours, durable",
            aims=aims,
            leave_out="ours",
        )
        read = alternate(readers, rounds)
        print_figures(f"{title}: read", read, aims={"LocalStore": 1.0})
    arrays.remove()


def small_chunks(bench: Bench) -> None:
    """20,000 chunks of 1 KiB, written (and committed) and read, cost of each; on both codec pipelines.

    Against icechunk and zarr's LocalStore and MemoryStore on the same pipeline; plain files as floor. The aims
    are multiples of icechunk on zarr's default pipeline, and of MemoryStore on the synchronous one.
    """
    count = bench.choose(20_000, 2_000)
    arrays = _Arrays(bench, "small", count * _KiB, _KiB)
    rounds = bench.choose(5, 3)
    for pipeline in _pipelines():
        writers: dict[str, Callable[[], float]] = {
            "ours": partial(arrays.write_ours, pipeline, durable=True),
            "ours, not durable": partial(arrays.write_ours, pipeline, durable=False),
            "LocalStore": partial(arrays.write_store, pipeline),
            "MemoryStore": partial(arrays.write_store, pipeline, in_memory=True),
            FLOOR: arrays.write_files,
        }
        readers: dict[str, Callable[[], float]] = {
            "ours": partial(arrays.read_ours, pipeline),
            "LocalStore": partial(arrays.read_store, pipeline),
            "MemoryStore": partial(arrays.read_store, pipeline, in_memory=True),
            FLOOR: arrays.read_files,
        }
        if bench.icechunk is not None:
            writers["icechunk"] = partial(arrays.write_icechunk, pipeline)
            readers["icechunk"] = partial(arrays.read_icechunk, pipeline)
        title = f"{count:,} chunks of 1 KiB, {pipeline}"
        for what, subjects in (("written", writers), ("read", readers)):
            aims = _AIMS_OF_SMALL.get((pipeline, what))
            found = alternate(subjects, rounds)
            print_figures(f"{title}: {what}, each", found, aims=aims, per=count)
    files = sum(1 for path in (arrays.folder / _ours(durable=True)).rglob("*") if path.is_file())
    print_line(f"our repository of {count:,} chunks is {files} files")
    arrays.remove()


def checksums(bench: Bench) -> None:
    """1 GiB in chunks of 64 KiB, 1 MiB and 16 MiB, written (and committed) and read, with checksums and without.

    Without codecs, not durable, on zarr's default pipeline: nothing else is done to the bytes, so this is the most
    that checking can cost. By the clock, and in processor time of all threads.
    """
    rounds = bench.choose(7, 3)
    pipeline = _pipelines()[0]
    for chunk_bytes in (64 * _KiB, _MiB, 16 * _MiB):
        size = f"{chunk_bytes >> 10:,} KiB"
        arrays = _Arrays(bench, size, bench.choose(1 << 30, 1 << 27), chunk_bytes)
        for what, act in (("written", arrays.write_ours), ("read", arrays.read_ours)):
            busy: dict[str, list[float]] = {"ours": [], "unchecked": []}

            def run(act: Callable[..., float], name: str, busy: dict[str, list[float]]) -> float:
                before = time.process_time()
                seconds = act(pipeline, durable=False, checked=name == "ours")
                busy[name].append(time.process_time() - before)
                return seconds

            found = alternate({name: partial(run, act, name, busy) for name in busy}, rounds)
            title = f"{arrays.size_bytes >> 20} MiB in chunks of {size}, {what}"
            aims = {"unchecked": 1.05}
            print_figures(title, found, aims=aims)
            later = {name: seconds[-rounds:] for name, seconds in busy.items()}
            print_figures(f"{title}, processor time", later, aims=aims)
        arrays.remove()
