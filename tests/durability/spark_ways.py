"""The ways of writing that go through Spark, each into a place of its own below a folder.

Run as ``python -m tests.durability.spark_ways FOLDER``; sources and what is read go beside that folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.durability.tracing import returned
from tests.spark import drivers
from tests.spark.frames import new_repository

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SPARK_WAYS"]


def tour(spark: Any, root: Path, beside: Path) -> None:
    """Rows by function and by format, chunks, a Zarr store, NetCDF files copied and referred to."""
    from tests.spark.test_tour import make_sources

    new_repository(root)
    sources = make_sources(beside / "sources")
    drivers.tour(spark, str(root), sources.as_uri(), str(beside / "result"), "", "{}")
    returned()


def references(spark: Any, root: Path, beside: Path) -> None:
    """Many references, in tasks that write between each other's."""
    from icechunk_arrow.spark import write_references

    repo = new_repository(root, a=(1000,))
    frame = spark.range(1000).selectExpr(
        "array(int(id)) AS index",
        "'s3://bucket/key' AS location",
        "id AS offset",
        "1L AS length",
    )
    write_references(frame, repo, "/a")
    returned()
    write_references(frame.repartition(3), repo, "/a", shuffle=False)
    returned()


def _stream(spark: Any, root: Path, beside: Path, way: str) -> None:
    new_repository(root, a=(100,))
    source = beside / f"{way} in"
    source.mkdir()
    for number in range(2):
        table = pa.table(
            {
                "index": pa.array([[number * 10 + n] for n in range(10)], pa.list_(pa.int32())),
                "location": [f"s3://b/{number}"] * 10,
                "offset": pa.array(range(10), pa.int64()),
                "length": pa.array([1] * 10, pa.int64()),
            }
        )
        pq.write_table(table, source / f"{number}.parquet")
    drivers.stream(spark, str(root), str(source), str(beside / f"{way} checkpoint"), way)
    returned()


def stream_by_format(spark: Any, root: Path, beside: Path) -> None:
    """Batches of a stream through the data source, which commits in a process of its own."""
    _stream(spark, root, beside, "format")


def stream_by_function(spark: Any, root: Path, beside: Path) -> None:
    """Batches of a stream through ``foreachBatch``."""
    _stream(spark, root, beside, "function")


SPARK_WAYS: dict[str, Callable[[Any, Path, Path], None]] = {
    way.__name__: way for way in (tour, references, stream_by_format, stream_by_function)
}


def main(folder: str) -> None:
    """Go all ways with one Spark session."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    spark = drivers.session_of({"spark.master": "local[2]", "spark.driver.host": "127.0.0.1"})
    for name, way in SPARK_WAYS.items():
        way(spark, Path(folder) / name, Path(folder).parent)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
