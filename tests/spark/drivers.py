"""Jobs that tests run as drivers of their own: ``python -m tests.spark.drivers JOB ARGUMENT … -- NAME=VALUE …``.

A job's frame is made in tasks, which tell of themselves by files in a folder and wait there for others, so that a
test can kill at a moment of its choice.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CHUNK_BYTES", "PARTITIONS", "PER_PARTITION", "SlowChunks", "array_spec"]

PARTITIONS = 2
FIRST = 80
"""Chunks of a partition that come at once: more than a task gathers before it writes."""
PER_PARTITION = FIRST + 4
CHUNK_BYTES = 1 << 20


def array_spec() -> dict[str, Any]:
    """The array that the chunks are of."""
    return {
        "shape": (PARTITIONS * PER_PARTITION * CHUNK_BYTES,),
        "chunks": (CHUNK_BYTES,),
        "dtype": "u1",
        "compressors": None,
        "fill_value": 255,
    }


@dataclass(frozen=True)
class SlowChunks:
    """Makes the chunks of a partition: most of them, then a file that says so, and the rest once it may."""

    folder: str
    waits: bool = True
    only_one: bool = False
    """Whether none but the first attempt at the first partition waits."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        for _ in batches:
            pass
        partition, attempt = task.partitionId(), task.attemptNumber()
        start = partition * PER_PARTITION
        yield _chunks(range(start, start + FIRST))
        place = Path(self.folder)
        mark = place / f"at-{partition}-{attempt}"
        mark.with_suffix(".tmp").write_text(str(os.getpid()))
        mark.with_suffix(".tmp").rename(mark)
        if self.waits and not (self.only_one and (partition, attempt) != (0, 0)):
            while not (place / "go").exists():
                time.sleep(0.02)
        yield _chunks(range(start + FIRST, start + PER_PARTITION))


def _chunks(numbers: range) -> pa.RecordBatch:
    data = [np.full(CHUNK_BYTES, number % 251, "u1").tobytes() for number in numbers]
    return pa.record_batch(
        {
            "index": pa.array([[number] for number in numbers], pa.list_(pa.int32())),
            "data": pa.array(data, pa.binary()),
        }
    )


def session_of(settings: dict[str, str]) -> Any:
    """Start Spark."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    if "spark.remote" in settings:  # of Spark Connect: all else is the server's to say
        return builder.remote(settings["spark.remote"]).getOrCreate()
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
        "spark.driver.bindAddress": "127.0.0.1",
        **settings,
    }
    for name, value in chosen.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def say(text: str) -> None:
    print(text, flush=True)


def chunks(spark: Any, root: str, folder: str, way: str, waits: str = "wait") -> None:
    """Write the array of slow chunks, by the function or the format."""
    import icechunk_arrow.spark

    work = SlowChunks(folder, waits=waits != "go", only_one=waits == "first")
    frame = spark.range(PARTITIONS, numPartitions=PARTITIONS).mapInArrow(
        work, "index array<int>, data binary"
    )
    say(f"app {spark.sparkContext.applicationId}")
    if way == "function":
        icechunk_arrow.spark.write_chunks(frame, root, "/a", shuffle=False)
    else:
        icechunk_arrow.spark.register(spark)
        writer = frame.write.format("icechunk").mode("append").option("table", "chunks")
        writer.option("array", "/a").save(root)
    say("committed")
    if waits == "stay":
        time.sleep(600)


def references(spark: Any, root: str, source: str, way: str, *settings: str) -> None:
    """Write the references of Parquet files."""
    import icechunk_arrow.spark

    frame = spark.read.parquet(source)
    options = dict(each.split("=", 1) for each in settings)
    if way == "function":
        icechunk_arrow.spark.write_references(frame, root, "/a", storage_options=options or None)
    else:
        icechunk_arrow.spark.register(spark)
        writer = frame.repartition(3).write.format("icechunk").mode("append").option("array", "/a")
        writer.options(**{f"storage.{name}": value for name, value in options.items()}).save(root)
    say("committed")


def stream(spark: Any, root: str, source: str, checkpoint: str, way: str) -> None:
    """Write a stream of Parquet files, one in each batch, until all are there."""
    import icechunk_arrow.spark

    icechunk_arrow.spark.register(spark)
    reader = spark.readStream.schema("index array<int>, location string, offset long, length long")
    writer = reader.option("maxFilesPerTrigger", 1).parquet(source).writeStream
    if way == "format":
        writer = writer.format("icechunk").option("path", root).option("array", "/a")
    else:
        writer = writer.foreachBatch(
            icechunk_arrow.spark.each_batch(
                icechunk_arrow.spark.write_references, root, array_path="/a"
            )
        )
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    say("started")
    query.awaitTermination()
    say("ended")


def tour(spark: Any, root: str, source: str, result: str, archive: str, options: str) -> None:
    """Do everything once that a pipeline does: rows, chunks, files of other people, streams, and all of it back.

    ``source`` is a folder with ``weather.nc`` and ``old.zarr``; what was read goes to the file ``result``.
    """
    import icechunk_arrow.spark as ias
    from icechunk_arrow import Repository, ingest
    from icechunk_arrow.errors import InvalidInputError

    if archive:
        spark.addArtifacts(archive, pyfile=True)
    ias.register(spark)
    storage: dict[str, Any] = json.loads(options)
    repo = Repository.open(root, storage, authorize_virtual_chunk_access={source: storage})
    words: dict[str, Any] = {"source_options": storage}
    spelled = {
        f"storage.{name}": value if isinstance(value, str) else json.dumps(value)
        for name, value in storage.items()
    }

    def written(frame: Any, **more: str) -> None:
        frame.write.format("icechunk").mode("append").options(**spelled, **more).save(root)

    def read(**more: str) -> Any:
        return spark.read.format("icechunk").options(**spelled, **more).load(root)

    rows = tour_rows(spark)
    first, second = (
        rows.where("pmod(hour + station, 2) = 0"),
        rows.where("pmod(hour + station, 2) = 1"),
    )
    grid: dict[str, Any] = {"dimensions": ["hour", "station"], "chunks": {"hour": 7, "station": 4}}
    ias.write_rows(rows.limit(0).unionByName(first), repo, ["wind"], **grid)
    ias.write_rows(second, repo, ["wind"])
    try:
        ias.write_rows(second.union(second), repo, ["wind"])
    except InvalidInputError as error:
        say(f"refused: {error}")
    written(
        second.selectExpr("hour", "station", "wind + 1 AS wind").coalesce(1),
        table="rows",
        columns="wind",
        duplicates="last",
    )
    chunks = spark.range(24).selectExpr(
        "array(cast(id AS int)) AS index",
        "cast(lpad(cast(id AS string), 4, '0') AS binary) AS data",
    )
    spec = {"shape": (96,), "chunks": (4,), "dtype": "u1", "compressors": None}
    ias.write_chunks(chunks, repo, arrays={"/bytes": spec}, array_path="/bytes")
    ingest.zarr(spark, f"{source}/old.zarr", repo, group="copied", **words)
    ingest.netcdf(spark, f"{source}/weather.nc", repo, group="values", virtual=False, **words)
    ingest.netcdf(spark, f"{source}/weather.nc", repo, group="referred", virtual=True, **words)

    found: dict[str, Any] = {}
    back = ias.read_array(spark, repo, ["/wind"], where="hour >= 3 and station in (0, 5)")
    found["rows"] = sorted(map(list, back.collect()))
    shown = read(array="/bytes", layout="chunks")
    found["chunks"] = sorted([list(row["index"]), list(row["values"])] for row in shown.collect())
    counted = read(table="chunks").groupBy("path").count()
    found["counts"] = {row["path"]: row["count"] for row in counted.collect()}
    stream = spark.readStream.format("icechunk").options(**spelled, starting="earliest").load(root)
    query = stream.writeStream.format("parquet").option("path", f"{result}-stream")
    query = query.option("checkpointLocation", f"{result}-checkpoint").trigger(availableNow=True)
    query.start().awaitTermination()
    streamed = spark.read.parquet(f"{result}-stream").where("path = '/wind'")
    found["streamed"] = streamed.select("snapshot").distinct().count()
    Path(result).write_text(json.dumps(found))
    say("ended")


def tour_rows(spark: Any) -> Any:
    """Give the rows of the tour: 20 hours of 6 stations, shuffled."""
    return spark.sql("""
        SELECT hour, station, cast(hour * 10 + station AS double) AS wind
        FROM (SELECT explode(sequence(0, 19)) AS hour)
        CROSS JOIN (SELECT explode(sequence(0, 5)) AS station) ORDER BY hash(hour, station)
    """)


def main() -> None:
    """Run one job."""
    job, *rest = sys.argv[1:]
    cut = rest.index("--")
    settings = dict(each.split("=", 1) for each in rest[cut + 1 :])
    jobs: dict[str, Any] = {
        "chunks": chunks,
        "references": references,
        "stream": stream,
        "tour": tour,
    }
    spark = session_of(settings)
    jobs[job](spark, *rest[:cut])
    spark.stop()


if __name__ == "__main__":
    main()
