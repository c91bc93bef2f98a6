"""What `make demo` shows: Spark writes weather into a repository; Zarr, xarray, DuckDB and Spark SQL read it.

Everything happens on the local disk, in a temporary folder; nothing is left behind.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import xarray as xr
import zarr
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import icechunk_arrow.duckdb
import icechunk_arrow.spark
from icechunk_arrow import IcechunkArrowError, Repository

if TYPE_CHECKING:
    from collections.abc import Callable

LATITUDES = np.linspace(75.0, -75.0, 21)
LONGITUDES = np.arange(0.0, 360.0, 7.5)
DAYS = 8
HOURS = 4 * DAYS
"""Of fields every six hours."""


def say(title: str) -> None:
    """Print a heading."""
    print(f"\n\033[1m{title}\033[0m")


def show(text: Any) -> None:
    """Print something, indented."""
    print("\n".join(f"    {line}" for line in str(text).splitlines()))


def picture(values: np.ndarray) -> str:
    """Draw a field as characters, low to high; its rows come from south to north."""
    shades = np.array(list(" .:-=+*#%@"))
    low, high = float(values.min()), float(values.max())
    levels = ((values - low) / (high - low or 1.0) * (len(shades) - 1)).astype(int)
    return "\n".join("".join(row) for row in shades[levels][::-1])


def start_spark(folder: Path) -> Any:
    """Start Spark in this process' own folder, without noise."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        sys.exit("The demo runs Spark, which needs Java 17 or later: install it, and try again.")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def weather(spark: Any) -> Any:
    """Make a long table: one row for each time, latitude and longitude, in no order."""
    count = HOURS * len(LATITUDES) * len(LONGITUDES)
    cell = sf.col("id")
    lat = sf.lit(75.0) - 7.5 * (sf.floor(cell / len(LONGITUDES)) % len(LATITUDES))
    lon = 7.5 * (cell % len(LONGITUDES))
    hour = 6 * sf.floor(cell / (len(LATITUDES) * len(LONGITUDES)))
    wave = sf.cos(sf.radians(lat)) * sf.sin(sf.radians(3 * lon + 4 * hour))
    warm = 28 * sf.cos(sf.radians(lat)) - 8
    return (
        spark.range(count)
        .select(
            (
                sf.lit("2026-01-01").cast("timestamp") + sf.make_dt_interval(hours=hour.cast("int"))
            ).alias("time"),
            lat.alias("lat"),
            lon.alias("lon"),
            (warm + 9 * wave).cast("float").alias("t2m"),
        )
        .orderBy(sf.rand(2026))
    )


def write_archive(folder: Path) -> Path:
    """Write what an archive might have: a file of each day's four fields, behind a header."""
    folder.mkdir()
    lat, lon = np.meshgrid(np.radians(LATITUDES), np.radians(LONGITUDES), indexing="ij")
    for day in range(DAYS):
        fields = [
            np.maximum(np.sin(2 * lon + day + hour / 4) * np.cos(3 * lat), 0) for hour in range(4)
        ]
        data = np.stack(fields).astype("<f4").tobytes()
        (folder / f"rain-2026-01-{day + 1:02d}.bin").write_bytes(b"HEADER".ljust(512) + data)
    return folder


def references(spark: Any, archive: Path) -> Any:
    """Say where the fields are: a row for each chunk, and nothing is copied."""
    step = sf.col("id")
    size = 4 * len(LATITUDES) * len(LONGITUDES)
    name = sf.format_string("rain-2026-01-%02d.bin", sf.floor(step / 4).cast("int") + 1)
    return spark.range(HOURS).select(
        sf.lit("/rain").alias("path"),
        sf.array(step, sf.lit(0), sf.lit(0)).alias("index"),
        sf.concat(sf.lit(f"{archive.as_uri()}/"), name).alias("location"),
        (512 + size * (step % 4)).alias("offset"),
        sf.lit(size).alias("length"),
    )


def write(spark: Any, repo: Repository, archive: Path) -> None:
    """Two writes by Spark, one commit each."""
    say("Spark writes a table of weather rows into an array: one commit")
    rows = weather(spark)
    rows.show(3)
    icechunk_arrow.spark.write_rows(
        rows,
        repo,
        ["t2m"],
        dimensions=["time", "lat", "lon"],
        chunks={"time": 8, "lat": 11, "lon": 24},
        message="Temperatures from a long table",
    )

    say("Spark writes a table of references to files that exist: one commit, no byte copied")
    found = references(spark, archive)
    found.select("path", "index", "offset", "length").show(3)
    icechunk_arrow.spark.write_references(
        found,
        repo,
        arrays={
            "/rain": {
                "shape": (HOURS, len(LATITUDES), len(LONGITUDES)),
                "chunks": (1, len(LATITUDES), len(LONGITUDES)),
                "dtype": "float32",
                "compressors": None,
                "dimension_names": ["time", "lat", "lon"],
            }
        },
        message="Rain, from the archive's own files",
    )


def read(repo: Repository) -> None:
    """Zarr and xarray read what Spark wrote."""
    store = repo.readonly_session("main").store
    say("Zarr reads it")
    show(zarr.open_group(store, mode="r").tree())
    say("xarray reads it: the temperature at midnight of 5 January")
    weather_set = xr.open_zarr(store, consolidated=False)
    show(picture(weather_set["t2m"].sel(time="2026-01-05T00").values))
    show(
        f"\nmean temperature {float(weather_set['t2m'].mean()):.2f}, "
        f"mean rain {float(weather_set['rain'].mean()):.4f}"
    )


def ask(spark: Any, repo: Repository) -> None:
    """DuckDB and Spark SQL answer questions about the chunk inventory."""
    say("DuckDB, about the chunk inventory: how much of each array is there, and where")
    con = duckdb.connect()
    icechunk_arrow.duckdb.attach(con, repo, "weather")
    show(
        con.sql("""
            SELECT path, kind, count(*) AS chunks, sum(length) AS bytes,
                   count(DISTINCT location) AS files
            FROM weather.chunks GROUP BY ALL ORDER BY path, kind
        """)
    )
    say("Spark SQL, about the same: which file holds the rain of which days")
    icechunk_arrow.spark.attach(spark, repo, "weather")
    spark.sql("""
        SELECT regexp_extract(location, '[^/]+$', 0) AS file, count(*) AS chunks,
               min(index[0]) AS first_step, max(index[0]) AS last_step
        FROM weather_chunks WHERE path = '/rain' GROUP BY location ORDER BY file LIMIT 4
    """).show(truncate=False)


def refuse(spark: Any, repo: Repository) -> None:
    """A batch with a mistake in it changes nothing."""
    say("A bad batch: one of its rows lies outside the grid")
    before = repo.lookup_branch("main")
    batch = (
        weather(spark).limit(1000).union(weather(spark).limit(1).withColumn("lat", sf.lit(91.0)))
    )
    try:
        icechunk_arrow.spark.write_rows(batch, repo, ["t2m"], message="Never committed")
    except IcechunkArrowError as error:
        show(f"{type(error).__name__}: {error}")
    same = repo.lookup_branch("main") == before
    show(f"The branch is where it was: {same}")


def travel(spark: Any, repo: Repository) -> None:
    """A correction is a commit; both versions can be read."""
    say("A correction, and time travel: both versions are there")
    repo.create_tag("first-release", repo.lookup_branch("main"))
    heat = (
        weather(spark)
        .where("time = timestamp '2026-01-05' AND lat BETWEEN 30 AND 60 AND lon BETWEEN 90 AND 180")
        .withColumn("t2m", sf.lit(45.0).cast("float"))
    )
    icechunk_arrow.spark.write_rows(heat, repo, ["t2m"], message="A heat wave that was overlooked")
    versions: dict[str, Callable[[], Any]] = {
        "first-release": lambda: repo.readonly_session(tag="first-release"),
        "main": lambda: repo.readonly_session("main"),
    }
    for name, session in versions.items():
        field = np.asarray(zarr.open_array(session().store, path="t2m", mode="r")[16])
        show(f"\n{name}: the highest temperature is {field.max():.1f}")
        show(picture(field))


def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        spark = start_spark(folder)
        archive = write_archive(folder / "archive")
        Repository.create(folder / "weather")
        repo = Repository.open(
            folder / "weather", authorize_virtual_chunk_access=[f"{archive.as_uri()}/"]
        )
        try:
            write(spark, repo, archive)
            read(repo)
            ask(spark, repo)
            refuse(spark, repo)
            travel(spark, repo)
        finally:
            spark.stop()
        say("The history")
        for info in repo.ancestry(branch="main"):
            show(f"{info.id}  {info.written_at:%H:%M:%S}  {info.message}")
        files = [path for path in (folder / "weather").rglob("*") if path.is_file()]
        stored = sum(path.stat().st_size for path in files)
        show(f"\n{len(files)} files, {stored:,} bytes; the rain stays in its {DAYS} files.")


if __name__ == "__main__":
    main()
