"""The cases on icechunk's side: a program that imports nothing of the package that is measured.

It reads calls as lines of JSON, does them, and answers in lines of JSON. Whatever is a time is in seconds.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from typing import Any

import icechunk
import numpy as np
import zarr

from tests.benchmarks import crowd_data, plate_data, references_data
from tests.benchmarks.memory_use import Meter
from tests.benchmarks.peers import answer_calls


def _storage(path: str, server: dict[str, str] | None) -> icechunk.Storage:
    """A folder, or on an S3 server a prefix."""
    if server is None:
        return icechunk.local_filesystem_storage(path)
    return icechunk.s3_storage(
        bucket=server["bucket"],
        prefix=path,
        region="us-east-1",
        endpoint_url=server["endpoint"],
        allow_http=True,
        access_key_id=server["key"],
        secret_access_key=server["secret"],
        force_path_style=True,
    )


def _repo(
    path: str, *, create: bool = False, split: int = 0, server: dict[str, str] | None = None
) -> icechunk.Repository:
    storage = _storage(path, server)
    config = icechunk.RepositoryConfig.default()
    container = icechunk.VirtualChunkContainer("s3://bucket/", icechunk.s3_store(region="here"))
    config.set_virtual_chunk_container(container)
    if split:
        every = {icechunk.ManifestSplitDimCondition.Axis(0): split}
        cut = {icechunk.ManifestSplitCondition.AnyArray(): every}
        config.manifest = icechunk.ManifestConfig(
            splitting=icechunk.ManifestSplittingConfig.from_dict(cut)
        )
    if create:
        return icechunk.Repository.create(storage, config)
    return icechunk.Repository.open(storage, config)


def _use(pipeline: str) -> None:
    zarr.config.set({"codec_pipeline.path": f"zarr.core.codec_pipeline.{pipeline}"})


def versions() -> str:
    return (
        f"icechunk {icechunk.__version__}, zarr {zarr.__version__}, Python {sys.version.split()[0]}"
    )


def create(path: str, *, shape: list[int], chunks: list[int], split: int = 0) -> None:
    session = _repo(path, create=True, split=split).writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=shape, chunks=tuple(chunks), dtype="u1", compressors=None
    )
    session.commit("create")


def commit_chunk(path: str, *, index: int, size_bytes: int) -> dict[str, float]:
    """Write one chunk and commit it, on a repository that stays open."""
    repo = _held(path)
    payload = np.full(size_bytes, index % 250 + 1, np.uint8)
    began = time.perf_counter()
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="a")
    array[index * size_bytes : (index + 1) * size_bytes] = payload
    written = time.perf_counter()
    session.commit("one chunk")
    ended = time.perf_counter()
    return {"cycle": ended - began, "commit": ended - written}


_open: dict[str, icechunk.Repository] = {}


def _held(path: str) -> icechunk.Repository:
    if path not in _open:
        _open[path] = _repo(path)
    return _open[path]


def grow_history(path: str, *, commits: int) -> None:
    repo = _repo(path)
    for number in range(commits):
        repo.writable_session("main").commit(f"commit {number}", allow_empty=True)


def open_repository(path: str) -> float:
    began = time.perf_counter()
    _repo(path).readonly_session("main")
    return time.perf_counter() - began


def write_array(path: str, *, size_bytes: int, chunk_bytes: int, pipeline: str) -> float:
    """Make a repository with an array, fill it and commit; the making does not count."""
    _use(pipeline)
    create(path, shape=[size_bytes], chunks=[chunk_bytes])
    data = np.resize(np.arange(251, dtype=np.uint8), size_bytes)
    session = _repo(path).writable_session("main")
    array = zarr.open_array(session.store, path="a")
    began = time.perf_counter()
    array[:] = data
    session.commit("filled")
    return time.perf_counter() - began


def read_array(path: str, *, pipeline: str) -> float:
    _use(pipeline)
    array = zarr.open_array(_repo(path).readonly_session("main").store, path="a", mode="r")
    began = time.perf_counter()
    data = np.asarray(array[:])
    seconds = time.perf_counter() - began
    assert data[-1] == (len(data) - 1) % 251
    return seconds


def set_references(
    path: str,
    *,
    rows: int,
    first_row: int,
    columns: int,
    split: int,
    dimensions: int = 2,
    rows_per_file: int = 1,
) -> dict[str, float]:
    """Point a box of chunks at ranges of files, and commit; preparing the input does not count."""
    box = references_data.box(
        rows=rows, first_row=first_row, columns=columns, rows_per_file=rows_per_file
    )
    whole = columns == references_data.COLUMNS
    shape = references_data.grid(rows, dimensions) if whole else (rows, columns)
    locations = _locations(box)
    repo = _repo(path, split=split)
    began = time.perf_counter()
    session = repo.writable_session("main")
    session.store.set_virtual_refs_arr(
        "a",
        shape,
        locations,
        box.offsets,
        box.lengths,
        arr_offset=references_data.corner(first_row, dimensions),
        validate_containers=False,
    )
    session.commit("references")
    return {"seconds": time.perf_counter() - began}


def _locations(box: references_data.Box) -> list[str]:
    """Name the file of each chunk; chunks of one file share a text."""
    names = {file: references_data.location(file) for file in np.unique(box.files).tolist()}
    return [names[file] for file in box.files.tolist()]


def fill(path: str, *, rows: int, split: int, rows_per_commit: int = 0) -> dict[str, Any]:
    """Set the references of so many rows, box by box, in one commit or in several.

    Making them does not count; peak memory is told with it, as only a fresh process can.
    """
    meter = Meter()
    seconds = 0.0
    repo = _repo(path, split=split)
    session = repo.writable_session("main")
    for first_row, box in references_data.boxes(rows):
        locations = _locations(box)
        count = len(locations) // references_data.COLUMNS
        began = time.perf_counter()
        session.store.set_virtual_refs_arr(
            "a",
            references_data.grid(count),
            locations,
            box.offsets,
            box.lengths,
            arr_offset=references_data.corner(first_row),
            validate_containers=False,
        )
        if rows_per_commit and (first_row + count) % rows_per_commit == 0:
            session.commit("references")
            session = repo.writable_session("main")
        seconds += time.perf_counter() - began
    began = time.perf_counter()
    if session.has_uncommitted_changes:
        session.commit("references")
    return {"seconds": seconds + time.perf_counter() - began, **meter.figures()}


def set_scattered(path: str, *, places: list[list[int]], split: int) -> dict[str, float]:
    """Set single references anew, wherever they are."""
    repo = _repo(path, split=split)
    specs = [
        icechunk.VirtualChunkSpec(
            index=place, location=references_data.location(place[0]), offset=20_000, length=60_000
        )
        for place in places
    ]
    began = time.perf_counter()
    session = repo.writable_session("main")
    session.store.set_virtual_refs("a", specs, validate_containers=False)
    session.commit("scattered")
    return {"seconds": time.perf_counter() - began}


def first_chunk(path: str, *, row: int, column: int, split: int) -> dict[str, Any]:
    """Open a repository and find one chunk's reference; the event loop is there already."""

    async def find() -> dict[str, Any]:
        began = time.perf_counter()
        store = _repo(path, split=split).readonly_session("main").store
        size_bytes = await store.getsize(f"a/c/{row}/{column}")
        return {"seconds": time.perf_counter() - began, "size_bytes": size_bytes}

    gc.collect()
    return asyncio.run(find())


def write_plate(
    path: str,
    *,
    arrays: int,
    chunks: int,
    chunk_bytes: int,
    server: dict[str, str] | None = None,
) -> dict[str, float]:
    """Create many small arrays through zarr, fill them and commit."""
    session = _repo(path, create=True, server=server).writable_session("main")
    began = time.perf_counter()
    plate_data.write(session.store, arrays=arrays, chunks=chunks, chunk_bytes=chunk_bytes)
    written = time.perf_counter()
    session.commit("plate")
    ended = time.perf_counter()
    return {"all": ended - began, "commit": ended - written}


def set_crowd(path: str, *, arrays: int, count: int) -> dict[str, float]:
    """Make arrays, set references of each and commit; then rebase a session that began before."""
    repo = _repo(path, create=True)
    session = repo.writable_session("main")
    crowd_data.create(session.store, arrays)
    session.commit("create")
    late = repo.writable_session("main")
    free = crowd_data.free_place(0, count)
    late.store.set_virtual_refs(crowd_data.name(0), _specs(0, [free]), validate_containers=False)
    given = {
        crowd_data.name(number): _specs(number, crowd_data.places(number, count).tolist())
        for number in range(arrays)
    }
    session = repo.writable_session("main")
    began = time.perf_counter()
    for name, specs in given.items():
        session.store.set_virtual_refs(name, specs, validate_containers=False)
    session.commit("references")
    ended = time.perf_counter()
    late.rebase(icechunk.ConflictDetector())
    return {"seconds": ended - began, "rebase": time.perf_counter() - ended}


def _specs(array: int, places: list[int]) -> list[icechunk.VirtualChunkSpec]:
    return [
        icechunk.VirtualChunkSpec(
            index=[place],
            location=crowd_data.location(array),
            offset=offset,
            length=crowd_data.LENGTH,
        )
        for place, offset in zip(places, crowd_data.offsets(len(places)).tolist(), strict=True)
    ]


if __name__ == "__main__":
    answer_calls(
        versions,
        create,
        commit_chunk,
        grow_history,
        open_repository,
        write_array,
        read_array,
        set_references,
        fill,
        set_scattered,
        first_chunk,
        write_plate,
        set_crowd,
    )
