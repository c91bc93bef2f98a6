"""SQL over ten million references: DuckDB on the views of an attached repository, against one plain file.

The floor is ``read_parquet`` of one file that has all rows of all manifests, encoded as manifests are and in row
groups of the same size, in a connection of its own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow.parquet as pq

import icechunk_arrow
import icechunk_arrow.duckdb
from icechunk_arrow.core.coords import encode_one
from tests.benchmarks import references_data
from tests.benchmarks.harness import Stopwatch, alternate, print_figures
from tests.benchmarks.peers import start_worker
from tests.benchmarks.subjects import built

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.benchmarks.harness import Bench

__all__ = ["sql"]

_FLOOR = "floor: one Parquet file"
_DISTINCT = "floor, count(DISTINCT)"
_OF_CHUNKS = "ours, of chunks"
_SCHEMA = "weather"
_PATH = "/a"


def sql(bench: Bench) -> None:
    """DuckDB on ten million references: counting, finding, attaching, decoding.

    Files lie in the page cache for all, and a connection is open before the clock starts, but for attaching.
    """
    count = bench.sizes[:2][-1]
    repository = built(bench, "ours", count)
    floor = _one_file(bench, repository, count)
    with duckdb.connect() as con, duckdb.connect() as plain:
        icechunk_arrow.duckdb.attach(con, repository, _SCHEMA)
        _counting(bench, con, plain, floor, count)
        _finding(bench, con, plain, floor, count)
        _decoding(bench, con, count)
    _attaching(bench, repository, count)
    _first_query(bench, repository, floor, count)


def _one_file(bench: Bench, repository: Path, count: int) -> Path:
    """Put all rows into one file; the extents of manifests say in which order these come."""
    path = bench.built_folder / f"one-file-{count}.parquet"
    manifests = icechunk_arrow.Repository.open(repository).tables("manifests").to_pylist()
    manifests.sort(key=lambda row: [each["start"] for each in row["arrays"][0]["extent"]])
    encodings = {"coord": "DELTA_BYTE_ARRAY"} | dict.fromkeys(
        ("id", "offset", "length"), "DELTA_BINARY_PACKED"
    )
    writer = None
    for row in manifests:
        with pq.ParquetFile(repository / "i" / f"{row['manifest']}.parquet") as file:
            if writer is None:
                writer = pq.ParquetWriter(
                    path,
                    file.schema_arrow,
                    compression="zstd",
                    use_dictionary=["array_id", "chunk_file"],
                    column_encoding=encodings,
                    write_page_index=True,
                )
            for group in range(file.num_row_groups):
                writer.write_table(file.read_row_group(group))
    assert writer is not None
    writer.close()
    return path


def _asked(
    con: Any,
    query: str,
    expected: Any = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Callable[[], float]:
    """Make what asks a query and takes its rows."""

    def ask() -> float:
        began = clock()
        rows = con.execute(query).fetchall()
        seconds = clock() - began
        assert expected is None or rows == expected, rows
        return seconds

    return ask


def _counting(bench: Bench, con: Any, plain: Any, floor: Path, count: int) -> None:
    """Chunks, bytes and distinct files of each array: ``weather.arrays``, and the same asked of ``weather.chunks``.

    The floor is asked in two ways: grouped by file first, as ``weather.arrays`` does, and as one would write it,
    ``count(DISTINCT chunk_file)``. Threads wait for each other, and longer where others take their cores: so the
    seconds of all threads stand beside the time that passed.
    """
    files = f"read_parquet('{floor}')"
    totals = "count(*), sum(length), count(DISTINCT {})"
    grouped = (
        "SELECT array_id, sum(chunks)::BIGINT, sum(bytes)::BIGINT, count(*) FROM (SELECT array_id, chunk_file, "
        f"count(*) AS chunks, sum(length)::BIGINT AS bytes FROM {files} GROUP BY ALL) GROUP BY array_id"
    )
    [(_, *expected)] = plain.execute(grouped).fetchall()
    assert expected[::2] == [count, count // references_data.COLUMNS]
    row = tuple(expected)
    queries: dict[str, tuple[Any, str]] = {
        "ours": (con, f"SELECT chunk_count, stored_bytes, files FROM {_SCHEMA}.arrays"),
        _OF_CHUNKS: (
            con,
            f"SELECT {totals.format('location')} FROM {_SCHEMA}.chunks GROUP BY path",
        ),
        _FLOOR: (plain, grouped.replace("SELECT array_id, ", "SELECT ", 1)),
        _DISTINCT: (
            plain,
            f"SELECT {totals.format('chunk_file')} FROM {files} GROUP BY array_id",
        ),
    }
    aims = {_FLOOR: 1.5, _DISTINCT: 1.5}
    for clock, unit in ((time.perf_counter, ""), (time.process_time, ", processor time")):
        found = alternate(
            {name: _asked(*asked, expected=[row], clock=clock) for name, asked in queries.items()},
            bench.choose(15, 3),
        )
        title = f"chunks, bytes and distinct files per array, of {count:,} references"
        print_figures(title + unit, found, aims=aims, leave_out=_OF_CHUNKS)
        title = "the same, written over the view chunks"
        print_figures(title + unit, found, ours=_OF_CHUNKS, aims=aims, leave_out="ours")


def _finding(bench: Bench, con: Any, plain: Any, floor: Path, count: int) -> None:
    """One chunk by its index, each time another one."""
    random = np.random.default_rng(count)
    rows = count // references_data.COLUMNS

    def place() -> tuple[int, int]:
        return int(random.integers(rows)), int(random.integers(references_data.COLUMNS))

    def in_views(form: str) -> Callable[[], float]:
        def ask() -> float:
            row, column = place()
            query = form.format(row=row, column=column, row_after=row + 1, column_after=column + 1)
            return _asked(con, query, [(references_data.location(row),)])()

        return ask

    def in_floor() -> float:
        row, column = place()
        coord = encode_one([row, column]).hex()
        query = f"SELECT chunk_file FROM read_parquet('{floor}') WHERE coord = unhex('{coord}')"
        return _asked(plain, query, [(references_data.location(row),)])()

    start = f"SELECT location FROM {_SCHEMA}."
    box = f"('{_PATH}', [{{row}}, {{column}}], [{{row_after}}, {{column_after}}])"
    where = f" WHERE path = '{_PATH}' AND coord = {_SCHEMA}.coord_encode([{{row}}, {{column}}])"
    found = alternate(
        {
            "ours": in_views(f"{start}chunks_in{box}"),
            "ours, by coord": in_views(f"{start}chunks{where}"),
            _FLOOR: in_floor,
        },
        bench.choose(41, 5),
    )
    title = f"one of {count:,} chunks by its index, "
    aims = {_FLOOR: 3.0}
    print_figures(f"{title}chunks_in", found, aims=aims, leave_out="ours, by coord")
    print_figures(
        f"{title}coord = coord_encode",
        found,
        ours="ours, by coord",
        aims=aims,
        leave_out="ours",
    )


def _first_query(bench: Bench, repository: Path, floor: Path, count: int) -> None:
    """One chunk by its index, as the first query of a process that has attached, and has imported everything."""
    random = np.random.default_rng(count)

    def asked(path: Path) -> Callable[[], float]:
        def ask() -> float:
            row = int(random.integers(count // references_data.COLUMNS))
            column = int(random.integers(references_data.COLUMNS))
            with start_worker() as worker:
                found: dict[str, Any] = worker(
                    "first_query", path=str(path), row=row, column=column
                )
            assert found["location"] == references_data.location(row), found
            return float(found["seconds"])

        return ask

    found = alternate({"ours": asked(repository), _FLOOR: asked(floor)}, bench.choose(11, 3))
    title = f"one of {count:,} chunks by its index, the first query of a process"
    print_figures(title, found, aims={_FLOOR: 2.0})


def _decoding(bench: Bench, con: Any, count: int) -> None:
    """All coordinates as indices: from the files through the column ``index``, and of a table in memory."""
    by_rank, alone = "coord_decode(coord, 2)", "coord_decode(coord)"
    con.execute(f"CREATE TEMP TABLE held AS SELECT coord FROM {_SCHEMA}.chunks")
    for title, relation, ours in (
        ("from the files", f"{_SCHEMA}.chunks", {"index": "index"}),
        ("in memory", "held", {each: f"{_SCHEMA}.{each}" for each in (by_rank, alone)}),
    ):
        expressions = {**ours, "hex(coord)": "hex(coord)"}
        found = alternate(
            {
                name: _asked(con, f"SELECT max({expression}) IS NULL FROM {relation}", [(False,)])
                for name, expression in expressions.items()
            },
            bench.choose(9, 3),
        )
        for name in ours:
            print_figures(
                f"{count:,} coordinates of two dimensions decoded, {title}",
                {each: found[each] for each in (name, "hex(coord)")},
                ours=name,
                aims={"hex(coord)": 8.0},
            )
    con.execute("DROP TABLE held")


def _attaching(bench: Bench, repository: Path, count: int) -> None:
    """A schema with all views, in a new connection: of a repository that is open, and by path."""
    opened = icechunk_arrow.Repository.open(repository)

    def attached(place: Any) -> Callable[[], float]:
        def attach() -> float:
            with duckdb.connect() as con, Stopwatch() as watch:
                icechunk_arrow.duckdb.attach(con, place, _SCHEMA)
            return watch.seconds

        return attach

    def bare() -> float:
        with Stopwatch() as watch:
            con = duckdb.connect()
        con.close()
        return watch.seconds

    found = alternate(
        {
            "ours": attached(opened),
            "ours, by path": attached(repository),
            "duckdb.connect()": bare,
        },
        bench.choose(41, 5),
    )
    aims = {"duckdb.connect()": 4.0}
    title = f"attaching a repository of {count:,} references"
    print_figures(title, found, aims=aims, leave_out="ours, by path")
    print_figures(f"{title}, by path", found, ours="ours, by path", aims=aims, leave_out="ours")
