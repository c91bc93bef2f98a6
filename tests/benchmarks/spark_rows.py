"""A long table into a chunked, compressed array: Spark with ours, against pandas and polars with numpy and zarr."""

from __future__ import annotations

import datetime as dt
import importlib.util
import os
import shutil
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

import icechunk_arrow
from tests.benchmarks.harness import Stopwatch, alternate, print_figures, print_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.harness import Bench

__all__ = ["spark_rows"]

_LATS, _LONS = 100, 200
_CHUNKS = (50, 50, 100)
_FILES = 8
_START = 1_704_067_200_000_000
_HOUR = 3_600_000_000
_NAMES = ("time", "lat", "lon")
_AIM = 1 / 3
_MOST_FOR_XARRAY = 10_000_000


def spark_rows(bench: Bench) -> None:
    """Rows of time, lat, lon and a value of 8 bytes, from eight Parquet files into an array of 2 MB chunks, zstd.

    Counted is the processor time of all processes, which is what a core gives: wall-clock times depend on how many
    are free. Spark runs on ``local[2]`` and is warm. All know the grid, but for ``sort`` and ``to_xarray``, which
    find out, as ours does with ``distinct``. ``arithmetic`` is the fastest that can be written for one known grid:
    places by hand, one assignment in numpy, no check of anything; all of the array is in memory.
    """
    for order in ("shuffled", "sorted"):
        for count in bench.sizes[1:] or bench.sizes:
            _compare(bench, order, count)


def _compare(bench: Bench, order: str, count: int) -> None:
    folder = bench.new_folder(f"rows-{order}-{count}")
    source = _write_source(folder / "source", order, count)
    spark = _running()
    walls: dict[Path, list[float]] = {}
    subjects: dict[str, Callable[[Path], None]] = {
        "ours": lambda place: _ours(spark, source, place, "grid"),
        "ours, distinct": lambda place: _ours(spark, source, place, "distinct"),
        "pandas, arithmetic": lambda place: _pandas_by_arithmetic(source, place),
    }
    if count <= _MOST_FOR_XARRAY:
        subjects["pandas, to_xarray"] = lambda place: _by_xarray(source, place)
    if importlib.util.find_spec("polars") is not None:
        subjects["polars, arithmetic"] = lambda place: _polars_by_arithmetic(source, place)
        subjects["polars, sort"] = lambda place: _polars_by_sort(source, place)
    else:
        print_line("polars is not installed: pandas only")
    places = {name: folder / f"to-{number}" for number, name in enumerate(subjects)}
    runs = {name: _counted(run, places[name], walls) for name, run in subjects.items()}
    try:
        found = alternate(runs, bench.choose(3, 1), warm_up=2)
        _check(places["ours"], places["pandas, arithmetic"])
    finally:
        spark.stop()
    print_figures(
        f"{count:,} rows, {order}: processor time",
        found,
        aims={name: _AIM for name in found if not name.startswith("ours")},
    )
    for name, seconds in found.items():
        rate = count / statistics.median(seconds) / 1e6
        wall = statistics.median(walls[places[name]][2:])
        print_line(
            f"{name:28}{rate:8.2f} million rows a second and core; {wall:.2f} s by the clock"
        )
    shutil.rmtree(folder)


def _write_source(folder: Path, order: str, count: int) -> Path:
    folder.mkdir()
    random = np.random.default_rng(1)
    cells = np.arange(count // (_LATS * _LONS) * _LATS * _LONS)
    if order == "shuffled":
        random.shuffle(cells)
    for number, some in enumerate(np.array_split(cells, _FILES)):
        t, y, x = some // (_LATS * _LONS), some // _LONS % _LATS, some % _LONS
        values = 280 + 10 * np.sin(t / 12 * np.pi) - y * 0.3 + random.standard_normal(len(some))
        table = pa.table(
            {
                "time": pa.array(_START + t * _HOUR, pa.timestamp("us", "UTC")),
                "lat": 90 - y * 0.25,
                "lon": x * 0.25,
                "t2m": values.round(2),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet")
    return folder


def _running() -> Any:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


# -- the subjects


def _ours(spark: Any, source: Path, place: Path, how: str) -> None:
    from icechunk_arrow.spark import RegularGrid, write_rows

    start, hour = dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.timedelta(hours=1)
    grids = {
        "time": RegularGrid(start=start, step=hour),
        "lat": RegularGrid(start=90.0, step=-0.25, count=_LATS),
        "lon": RegularGrid(start=0.0, step=0.25, count=_LONS),
    }
    repository = icechunk_arrow.Repository.create(place)
    write_rows(
        spark.read.parquet(str(source)),
        repository,
        coordinates=grids if how == "grid" else dict.fromkeys(_NAMES, "distinct"),
        chunks=dict(zip(_NAMES, _CHUNKS, strict=True)),
    )


def _store(place: Path, values: Any, *sides: Any) -> None:
    group = zarr.open_group(str(place), mode="w")
    array = group.create_array(
        "t2m",
        shape=values.shape,
        chunks=_CHUNKS,
        dtype="f8",
        dimension_names=_NAMES,
        fill_value=np.nan,
    )
    array[:] = values
    for name, side in zip(_NAMES, sides, strict=True):
        group.create_array(name, data=side, dimension_names=(name,))


def _sides(times: int) -> tuple[Any, ...]:
    return (
        _START + np.arange(times) * _HOUR,
        90 - np.arange(_LATS) * 0.25,
        np.arange(_LONS) * 0.25,
    )


def _pandas_by_arithmetic(source: Path, place: Path) -> None:
    import pandas as pd

    rows = pd.read_parquet(source)
    moments = rows["time"].dt.tz_localize(None).to_numpy().astype("M8[us]").astype(np.int64)
    t = (moments - _START) // _HOUR
    y = np.rint((90 - rows["lat"].to_numpy()) * 4).astype(np.int64)
    x = np.rint(rows["lon"].to_numpy() * 4).astype(np.int64)
    values = np.full((int(t.max()) + 1, _LATS, _LONS), np.nan)
    values[t, y, x] = rows["t2m"].to_numpy()
    _store(place, values, *_sides(len(values)))


def _by_xarray(source: Path, place: Path) -> None:
    import pandas as pd

    rows = pd.read_parquet(source)
    rows["time"] = rows["time"].dt.tz_localize(None)
    data = rows.set_index(list(_NAMES)).to_xarray()
    times = data["time"].to_numpy().astype("M8[us]").astype(np.int64)
    _store(place, data["t2m"].to_numpy(), times, data["lat"].to_numpy(), data["lon"].to_numpy())


def _polars_by_arithmetic(source: Path, place: Path) -> None:
    pl: Any = importlib.import_module("polars")
    steps = (pl.col("time").dt.timestamp("us") - _START) // _HOUR
    y = ((90 - pl.col("lat")) * 4).round().cast(pl.Int64)
    x = (pl.col("lon") * 4).round().cast(pl.Int64)
    rows = pl.read_parquet(f"{source}/*.parquet").select(
        ((steps * _LATS + y) * _LONS + x).alias("cell"), "t2m"
    )
    cells = rows["cell"].to_numpy()
    times = int(cells.max()) // (_LATS * _LONS) + 1
    values = np.full(times * _LATS * _LONS, np.nan)
    values[cells] = rows["t2m"].to_numpy()
    _store(place, values.reshape(times, _LATS, _LONS), *_sides(times))


def _polars_by_sort(source: Path, place: Path) -> None:
    pl: Any = importlib.import_module("polars")
    rows = pl.read_parquet(f"{source}/*.parquet").sort(*_NAMES)
    sides = [rows[name].unique().sort().to_numpy() for name in _NAMES]
    sides[0] = sides[0].astype("M8[us]").astype(np.int64)
    values = rows["t2m"].to_numpy().reshape([len(side) for side in sides])
    _store(place, values, *sides)


# -- measuring


def _counted(
    run: Callable[[Path], None], place: Path, walls: dict[Path, list[float]]
) -> Callable[[], float]:
    def seconds() -> float:
        shutil.rmtree(place, ignore_errors=True)
        before = _processor_seconds()
        with Stopwatch() as watch:
            run(place)
        walls.setdefault(place, []).append(watch.seconds)
        return _processor_seconds() - before

    return seconds


def _processor_seconds() -> float:
    """Add up what this process, Spark's and its workers' have used."""
    ticks: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    wanted, total = {os.getpid()}, 0
    while wanted:
        total += sum(ticks[pid][1] for pid in wanted if pid in ticks)
        wanted = {pid for pid, (parent, _) in ticks.items() if parent in wanted}
    return total / os.sysconf("SC_CLK_TCK")


def _check(mine: Path, theirs: Path) -> None:
    """See that both wrote the same."""
    store = icechunk_arrow.Repository.open(mine).readonly_session("main").store
    found = zarr.open_array(store=store, path="t2m", mode="r")[:50]
    assert np.array_equal(found, zarr.open_array(str(theirs / "t2m"), mode="r")[:50])
