"""Our side and the floor's in a fresh process: spoken to like a peer, in lines of JSON.

For what only a new process can tell: peak memory, and how long the first chunk takes after the imports. Times
are in seconds, memory in bytes.
"""

from __future__ import annotations

import asyncio
import gc
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zarr

import icechunk_arrow
from icechunk_arrow import IcechunkStore, Repository
from icechunk_arrow.core.coords import encode_one
from tests.benchmarks import references_data, references_input
from tests.benchmarks.harness import Stopwatch, timed
from tests.benchmarks.memory_use import Meter, resident_bytes
from tests.benchmarks.peers import answer_calls
from tests.benchmarks.subjects import live_manifests

__all__: list[str] = []

_IMPORTED = (IcechunkStore, Repository)
"""Names come when they are asked for, and imports do not count here."""


def versions() -> str:
    return f"Python {platform.python_version()}, pyarrow {pa.__version__}"


def create(path: str, *, rows: int) -> None:
    """Make a repository with an empty array."""
    session = icechunk_arrow.Repository.create(path).writable_session("main")
    shape = references_data.grid(rows + references_data.SPARE_ROWS)
    zarr.create_array(
        session.store, name="a", shape=shape, chunks=(1, 1), dtype="u1", compressors=None
    )
    session.commit("create")


def set_references(path: str, *, rows: int, given: str, coded: bool = False) -> dict[str, Any]:
    """Set and commit the references of so many rows.

    They are given as one table, as a reader over batches that are ready, or as a reader that makes them when
    asked; that making is told apart.
    """
    create(path, rows=rows)
    meter = Meter()
    batches = references_input.batches(rows, coded=coded)
    references: Any
    if given == "table":
        references, making = pa.Table.from_batches(batches).combine_chunks(), Stopwatch()
    else:
        ready = list(batches) if given == "batches" else batches
        references, making = references_input.as_reader(ready, coded=coded)
    pa.default_memory_pool().release_unused()
    meter.input_ready()
    with Stopwatch() as watch:
        repo = icechunk_arrow.Repository.open(path)
        session = repo.writable_session("main")
        session.set_references("/a", references)
        session.commit("references")
    return {"seconds": watch.seconds, "making": making.seconds, **meter.figures()}


def make_references(rows: int, *, coded: bool = False) -> dict[str, Any]:
    """Only make the references, and forget them."""
    meter = Meter()
    reader, making = references_input.as_reader(
        references_input.batches(rows, coded=coded), coded=coded
    )
    for _ in reader:
        pass
    return {"seconds": making.seconds, **meter.figures()}


def write_floor(path: str, *, rows: int) -> dict[str, Any]:
    """Sort the references and write one Parquet file; all of them are ready in memory."""
    meter = Meter()
    references = pa.Table.from_batches(references_input.batches(rows))
    pa.default_memory_pool().release_unused()
    meter.input_ready()
    seconds = timed(lambda: references_input.write_floor(Path(path), references))
    return {"seconds": seconds, **meter.figures()}


def stream_floor(path: str, *, rows: int) -> None:
    references_input.stream_floor(Path(path), rows)


def _wake_arrow() -> None:
    """Call a compute function: the first one imports pandas where there is one, and imports do not count.

    Nor does collecting what they left, which would fall into one measurement in three.
    """
    pc.equal(pa.array([1, 2]), 1)
    gc.collect()


def first_chunk(path: str, *, row: int, column: int) -> dict[str, Any]:
    """Open a repository and find one chunk's reference; the file that it points to need not be there.

    The event loop is there already, as it is in a program that uses Zarr.
    """

    async def find() -> tuple[float, int]:
        with Stopwatch() as watch:
            store = icechunk_arrow.Repository.open(path).readonly_session("main").store
            size_bytes = await store.getsize(f"a/c/{row}/{column}")
        return watch.seconds, size_bytes

    _wake_arrow()
    meter = Meter()
    seconds, size_bytes = asyncio.run(find())
    return {"seconds": seconds, "size_bytes": size_bytes, **meter.figures()}


def first_in_floor(path: str, *, row: int, column: int) -> dict[str, Any]:
    """Find one reference in the floor's file."""
    _wake_arrow()
    with Stopwatch() as watch:
        size_bytes = references_input.find_in_floor(Path(path), row, column)
    return {"seconds": watch.seconds, "size_bytes": size_bytes}


def create_array(path: str, *, shape: list[int], chunks: list[int]) -> None:
    """Make a repository with an empty array of bytes."""
    with Repository.create(path).transaction("main", message="create") as store:
        zarr.create_array(
            store, name="a", shape=shape, chunks=tuple(chunks), dtype="u1", compressors=None
        )


def commit_chunk(path: str, *, index: int, size_bytes: int) -> dict[str, float]:
    """Write one chunk and commit it; opening the repository does not count."""
    repo = Repository.open(path)
    payload = np.full(size_bytes, index % 250 + 1, np.uint8)
    with Stopwatch() as watch:
        session = repo.writable_session("main")
        array = zarr.open_array(session.store, path="a")
        array[index * size_bytes : (index + 1) * size_bytes] = payload
        session.commit("one chunk")
    return {"seconds": watch.seconds}


def append(path: str, *, row: int, opening_counts: bool = True) -> dict[str, Any]:
    """Open a repository, append 100 references as a row's beginning, and commit them."""
    meter = Meter()
    table = references_input.table(rows=1, first_row=row, columns=100)
    repo = None if opening_counts else Repository.open(path)
    with Stopwatch() as watch:
        session = (repo or Repository.open(path)).writable_session("main")
        session.set_references("/a", table)
        session.commit("append")
    return {"seconds": watch.seconds, **meter.figures()}


def count(path: str) -> dict[str, Any]:
    """Have DuckDB count the rows of the live manifests, as plain Parquet files."""
    import duckdb

    meter = Meter()
    with Stopwatch() as watch:
        session = icechunk_arrow.Repository.open(path).readonly_session("main")
        files = [str(Path(path) / "i" / f"{name}.parquet") for name in live_manifests(session)]
        found = duckdb.execute("select count(*) from read_parquet($1)", [files]).fetchone()
    assert found is not None
    return {
        "seconds": watch.seconds,
        "count": found[0],
        "manifests": len(files),
        **meter.figures(),
    }


def first_query(path: str, *, row: int, column: int) -> dict[str, Any]:
    """Find one chunk in SQL: by the views of a repository that is attached already, or in the floor's file."""
    import duckdb

    import icechunk_arrow.duckdb

    with duckdb.connect() as con:
        if path.endswith(".parquet"):
            coord = encode_one([row, column]).hex()
            query = f"SELECT chunk_file FROM read_parquet('{path}') WHERE coord = unhex('{coord}')"
        else:
            icechunk_arrow.duckdb.attach(con, path, "w")
            box = f"[{row}, {column}], [{row + 1}, {column + 1}]"
            query = f"SELECT location FROM w.chunks_in('/a', {box})"
        with Stopwatch() as watch:
            [(location,)] = con.execute(query).fetchall()
    return {"seconds": watch.seconds, "location": location}


def read_everything(path: str, *, rows: int, look_ups: int) -> dict[str, Any]:
    """Read every reference once, look some up at random; and say what memory stays afterwards."""
    _forget_unused()
    before = resident_bytes()
    meter = Meter()
    session = icechunk_arrow.Repository.open(path).readonly_session("main")
    with Stopwatch() as streamed:
        found = sum(len(batch) for batch in session.chunk_coordinates("/a"))
    with Stopwatch() as iterated:
        described = _iterate(session)
    _forget_unused()
    kept = resident_bytes() - before
    random = np.random.default_rng(0)
    view = session.get_array("/a")
    wanted = np.column_stack(
        [random.integers(0, rows, look_ups), random.integers(0, references_data.COLUMNS, look_ups)]
    ).tolist()
    with Stopwatch() as looked_up:
        for row, column in wanted:
            assert session.find_chunk(view, (row, column)) is not None
    _forget_unused()
    return {
        "coordinates": found,
        "described": described,
        "streamed": streamed.seconds,
        "iterated": iterated.seconds,
        "looked_up": looked_up.seconds,
        "kept": kept,
        "kept_afterwards": resident_bytes() - before,
        "cache_bytes": session._context.files.cache.limit_bytes,
        **meter.figures(),
    }


def _iterate(session: icechunk_arrow.Session) -> int:
    """Go through all references with everything that they say; how many there were."""

    async def iterate() -> int:
        count = 0
        async for batch in session.store.array_chunk_iterator("a"):
            count += batch.num_rows
        return count

    return asyncio.run(iterate())


def _forget_unused() -> None:
    gc.collect()
    pa.default_memory_pool().release_unused()


if __name__ == "__main__":
    answer_calls(
        versions,
        create,
        set_references,
        make_references,
        write_floor,
        stream_floor,
        first_chunk,
        first_in_floor,
        create_array,
        commit_chunk,
        append,
        count,
        first_query,
        read_everything,
    )
