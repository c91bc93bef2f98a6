"""An array as rows of Spark: ours, against what people write with pandas in it, opening Zarr in each task."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import zarr

import icechunk_arrow
import icechunk_arrow.spark
from tests.benchmarks.harness import Stopwatch, alternate, print_figures, print_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.benchmarks.harness import Bench

__all__ = ["spark_reading"]

_CHUNKS = (24, 90, 180)
_DAYS = "days since 2020-01-01"
_AIM = 0.2
_GROUPED = "applyInPandas, xarray"
_LISTS = "pandas UDF of chunks"
_PLACES = "pandas UDF of places"
_MAP = "mapInPandas, numpy"
_FLOOR = "floor: rows of nothing"


def spark_reading(bench: Bench) -> None:
    """All elements of an array with their coordinates, as rows of a Spark frame.

    Spark runs on ``local[2]`` and is warm; rows go to the sink ``noop``, which takes all columns. The array is of
    compressed float32 with three coordinates, one of them CF times. Every other subject opens the array in its
    tasks. ``applyInPandas`` gets the number of a chunk and makes a frame of it by xarray. One pandas UDF gives
    a chunk's elements as a list, which Spark explodes; the other the elements at places that it gets; both leave
    positions where others have coordinates. ``mapInPandas`` is as good as it gets with pandas: opened once in a
    task, frames put together from numpy. The floor reads nothing: tasks give one batch of the same columns over
    and over, and what is left is Spark taking rows from Python, which all pay.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    steps = bench.choose(96, 24)
    shape = (steps, 360, 720)
    place = bench.new_folder("reading") / "repo"
    _make(place, shape)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    count = int(np.prod(shape))
    try:
        makers = _subjects(spark, str(place), shape)
        for name, make in makers.items():
            assert make().count() == count, name
        found = alternate(
            {name: _timed(make) for name, make in makers.items()}, bench.choose(5, 3), warm_up=1
        )
    finally:
        spark.stop()
    print_figures(
        f"{count:,} elements as rows",
        found,
        aims={_GROUPED: _AIM, _LISTS: _AIM, _PLACES: _AIM, _FLOOR: 1.5},
    )
    rate = count / sorted(found["ours"])[len(found["ours"]) // 2]
    print_line(f"ours: {rate / 1e6:,.1f} million rows a second on two cores")


def _make(place: Path, shape: tuple[int, ...]) -> None:
    repository = icechunk_arrow.Repository.create(place)
    session = repository.writable_session("main")
    names = ["time", "lat", "lon"]
    sides = [
        np.arange(shape[0], dtype="i4"),
        np.linspace(90, -90, shape[1], dtype="f4"),
        np.linspace(0, 360, shape[2], endpoint=False, dtype="f4"),
    ]
    group = zarr.create_group(session.store)
    for name, values in zip(names, sides, strict=True):
        array = group.create_array(
            name, shape=values.shape, dtype=values.dtype, dimension_names=[name]
        )
        array[:] = values
        if name == "time":
            array.attrs.update(units=_DAYS, calendar="standard")
    array = group.create_array(
        "t2m", shape=shape, chunks=_CHUNKS, dtype="f4", dimension_names=names
    )
    random = np.random.default_rng(1)
    for start in range(0, shape[0], _CHUNKS[0]):
        some = random.normal(280, 10, (_CHUNKS[0], *shape[1:])).astype("f4")
        array[start : start + _CHUNKS[0]] = some.round(1)
    session.commit("made")


def _timed(make: Callable[[], Any]) -> Callable[[], float]:
    def run() -> float:
        with Stopwatch() as watch:
            make().write.format("noop").mode("overwrite").save()
        return watch.seconds

    return run


def _opened(url: str) -> Any:
    session = icechunk_arrow.Repository.open(url).readonly_session("main")
    return zarr.open_group(session.store, mode="r")


def _subjects(spark: Any, url: str, shape: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    import pandas as pd
    import xarray as xr
    from pyspark.sql import functions as sf
    from pyspark.sql.pandas import functions

    counts = [-(-n // edge) for n, edge in zip(shape, _CHUNKS, strict=True)]
    chunk_count = int(np.prod(counts))
    icechunk_arrow.spark.register(spark)
    tasks = max(icechunk_arrow.spark.read_array(spark, url, "t2m").rdd.getNumPartitions(), 2)
    below = int(np.prod(_CHUNKS))

    def box(number: int) -> tuple[slice, ...]:
        index = np.unravel_index(number, counts)
        return tuple(
            slice(int(i) * edge, min((int(i) + 1) * edge, n))
            for i, edge, n in zip(index, _CHUNKS, shape, strict=True)
        )

    def elements(batches: Iterator[Any]) -> Iterator[Any]:
        array = _opened(url)["t2m"]
        for numbers in batches:
            yield pd.Series([np.asarray(array[box(number)]).reshape(-1) for number in numbers])

    def at_places(batches: Iterator[Any]) -> Iterator[Any]:
        array = _opened(url)["t2m"]
        for places in batches:
            yield pd.Series(array.vindex[np.unravel_index(places.to_numpy(), shape)])

    def grouped(batch: Any) -> Any:
        session = icechunk_arrow.Repository.open(url).readonly_session("main")
        data = xr.open_zarr(session.store, consolidated=False, chunks=None)
        part = dict(zip(("time", "lat", "lon"), box(int(batch["id"].iloc[0])), strict=True))
        return data.isel(part).to_dataframe().reset_index()[["time", "lat", "lon", "t2m"]]

    def frames(batches: Iterator[Any]) -> Iterator[Any]:
        group = _opened(url)
        days = pd.Timestamp("2020-01-01") + pd.to_timedelta(group["time"][:], unit="D")
        lats, lons = group["lat"][:], group["lon"][:]
        for batch in batches:
            for number in batch["id"]:
                part = box(number)
                block = np.asarray(group["t2m"][part])
                sides = [
                    values[side] for values, side in zip((days, lats, lons), part, strict=True)
                ]
                index = pd.MultiIndex.from_product(sides, names=["time", "lat", "lon"])
                yield pd.DataFrame({"t2m": block.reshape(-1)}, index=index).reset_index()

    pandas_udf: Any = functions.pandas_udf
    for each in (elements, at_places):  # Spark tells the kind of a function by them
        each.__annotations__ = dict.fromkeys(("batches", "return"), Iterator[pd.Series])

    def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 1 << 17
        columns = {
            "time": pa.array(np.arange(rows).view("M8[us]"), pa.timestamp("us", "UTC")),
            "lat": pa.array(np.arange(rows, dtype="f4")),
            "lon": pa.array(np.arange(rows, dtype="f4")),
            "t2m": pa.array(np.arange(rows, dtype="f4")),
        }
        batch = pa.RecordBatch.from_pydict(columns)
        left = below * sum(each.num_rows for each in batches)
        while left > 0:
            yield batch.slice(0, left)
            left -= rows

    as_list = pandas_udf(elements, "array<float>")
    one = pandas_udf(at_places, "float")
    chunks = spark.range(0, chunk_count, 1, tasks)
    where = "time timestamp, lat float, lon float, t2m float"

    def exploded() -> Any:
        listed = chunks.select("id", sf.posexplode(as_list("id")).alias("at", "t2m"))
        return listed.selectExpr(
            f"id div {counts[1] * counts[2]} * {_CHUNKS[0]} + at div {_CHUNKS[1] * _CHUNKS[2]} AS time",
            f"id div {counts[2]} % {counts[1]} * {_CHUNKS[1]} + at div {_CHUNKS[2]} % {_CHUNKS[1]} AS lat",
            f"id % {counts[2]} * {_CHUNKS[2]} + at % {_CHUNKS[2]} AS lon",
            "t2m",
        )

    return {
        "ours": lambda: icechunk_arrow.spark.read_array(spark, url, "t2m"),
        "ours, format(icechunk)": lambda: (
            spark.read.format("icechunk").option("array", "t2m").load(url)
        ),
        _GROUPED: lambda: chunks.groupBy("id").applyInPandas(grouped, where),
        _LISTS: exploded,
        _PLACES: lambda: spark.range(0, chunk_count * below, 1, tasks).select(
            "id", one("id").alias("t2m")
        ),
        _MAP: lambda: chunks.mapInPandas(frames, where),
        _FLOOR: lambda: chunks.mapInArrow(nothing, where),
    }
