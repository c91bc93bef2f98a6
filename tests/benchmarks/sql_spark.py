"""SQL over ten million references in Spark: views of an attached repository, against a scan of the same files.

The floor is what Spark itself makes of the live manifests as plain Parquet: the same question of raw columns.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

import icechunk_arrow
import icechunk_arrow.spark
from icechunk_arrow.core.coords import encode_one
from tests.benchmarks import references_data
from tests.benchmarks.harness import Stopwatch, alternate, print_figures
from tests.benchmarks.subjects import built

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.benchmarks.harness import Bench

__all__ = ["sql_spark"]

_FLOOR = "floor: the same files"
_NAME = "weather"


def sql_spark(bench: Bench) -> None:
    """Spark on ten million references: counting, finding, attaching.

    Files lie in the page cache for all, and Spark has run each question once before the clock starts.
    """
    count = bench.sizes[:2][-1]
    repository = built(bench, "ours", count)
    with _session() as spark:
        icechunk_arrow.spark.attach(spark, repository, _NAME)
        manifests = [
            row[0] for row in spark.sql(f"SELECT manifest FROM {_NAME}_manifests").collect()
        ]
        paths = [str(repository / "i" / f"{each}.parquet") for each in manifests]
        spark.read.parquet(*paths).createOrReplaceTempView("plain")
        _counting(bench, spark, count)
        _finding(bench, spark, count)
        icechunk_arrow.spark.detach(spark, _NAME)
        _attaching(bench, spark, repository, paths, count)


@contextmanager
def _session() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.sources.parallelPartitionDiscovery.threshold", "1000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


def _asked(spark: Any, query: str, expected: list[tuple[Any, ...]]) -> float:
    with Stopwatch() as watch:
        rows = [tuple(row) for row in spark.sql(query).collect()]
    assert rows == expected, rows
    return watch.seconds


def _counting(bench: Bench, spark: Any, count: int) -> None:
    """Chunks, bytes and distinct files of each array: the view ``arrays``, and the same asked of ``chunks``."""
    totals = "count(*), CAST(sum(length) AS BIGINT), count(DISTINCT {})"
    floor = f"SELECT {totals.format('chunk_file')} FROM plain GROUP BY array_id"
    expected = [tuple(row) for row in spark.sql(floor).collect()]
    assert expected[0][::2] == (count, count // references_data.COLUMNS)
    queries = {
        "ours": f"SELECT chunk_count, stored_bytes, files FROM {_NAME}_arrays",
        "ours, of chunks": f"SELECT {totals.format('location')} FROM {_NAME}_chunks GROUP BY path",
        _FLOOR: floor,
    }
    found = alternate(
        {
            name: lambda query=query: _asked(spark, query, expected)  # type: ignore[misc]
            for name, query in queries.items()
        },
        bench.choose(9, 3),
        warm_up=3,
    )
    title = f"chunks, bytes and distinct files per array, of {count:,} references"
    aims = {_FLOOR: 1.5}
    print_figures(title, found, aims=aims, leave_out="ours, of chunks")
    print_figures(
        f"{title}, asked of chunks", found, ours="ours, of chunks", aims=aims, leave_out="ours"
    )


def _finding(bench: Bench, spark: Any, count: int) -> None:
    """One chunk by its index, each time another one."""
    random = np.random.default_rng(count)
    rows = count // references_data.COLUMNS

    def looking(form: str) -> Callable[[], float]:
        def look() -> float:
            row, column = int(random.integers(rows)), int(random.integers(references_data.COLUMNS))
            coord = encode_one([row, column]).hex()
            query = form.format(row=row, column=column, next=row + 1, after=column + 1, coord=coord)
            return _asked(spark, query, [(references_data.location(row),)])

        return look

    box = "('/a', array({row}, {column}), array({next}, {after}))"
    where = f"path = '/a' AND coord = {_NAME}_coord_encode(array({{row}}, {{column}}))"
    found = alternate(
        {
            "ours, chunks_in": looking(f"SELECT location FROM {_NAME}_chunks_in{box}"),
            "ours, coord_encode": looking(f"SELECT location FROM {_NAME}_chunks WHERE {where}"),
            _FLOOR: looking("SELECT chunk_file FROM plain WHERE coord = X'{coord}'"),
        },
        bench.choose(11, 3),
        warm_up=3,
    )
    title = f"one of {count:,} chunks by its index"
    print_figures(title, found, ours="ours, chunks_in", leave_out="ours, coord_encode")
    print_figures(title, found, ours="ours, coord_encode", leave_out="ours, chunks_in")


def _attaching(bench: Bench, spark: Any, repository: Path, paths: list[str], count: int) -> None:
    """All views, of a repository by path; beside it one view of the same files, as plain Parquet."""

    def attach() -> float:
        with Stopwatch() as watch:
            icechunk_arrow.spark.attach(spark, repository, _NAME)
        icechunk_arrow.spark.detach(spark, _NAME)
        return watch.seconds

    def plain() -> float:
        with Stopwatch() as watch:
            spark.read.parquet(*paths).createOrReplaceTempView("plain")
        return watch.seconds

    found = alternate(
        {"ours": attach, "one view of the files": plain}, bench.choose(9, 3), warm_up=3
    )
    print_figures(f"attaching a repository of {count:,} references", found)
