"""One pipeline on Spark of every kind: rows, chunks, files of other people and streams, in and out again.

What is asked of each part stands in the tests of that part, on ``local[2]``; here the same parts run with executors
in processes of their own, on two hosts, behind Spark Connect, and with everything in a bucket.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr

from icechunk_arrow import Repository
from tests.ingest.files import equal_trees, opened, reopened, weather_file
from tests.spark.clusters import connect_server, package_zip, standalone, start_driver

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.servers import S3Server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]

OLD = np.arange(24, dtype="i4").reshape(6, 4)


def make_sources(folder: Path) -> Path:
    """Write what the tour brings in."""
    folder.mkdir()
    weather_file(folder / "weather.nc")
    old = zarr.create_array(
        str(folder / "old.zarr"), shape=OLD.shape, chunks=(2, 4), dtype="i4", zarr_format=2
    )
    old[...] = OLD
    return folder


def take_tour(
    tmp_path: Path,
    *,
    settings: Mapping[str, str],
    url: str | None = None,
    source: str | None = None,
    options: Mapping[str, Any] | None = None,
    archive: str = "",
    **environment: str,
) -> None:
    """Take the tour with a driver of its own, and compare what it left and what it read with numpy and xarray."""
    files = make_sources(tmp_path / "sources")
    storage = dict(options or {})
    place = url or str(tmp_path / "repo")
    where = source or f"file://{files}"
    if source is not None:
        fs, root = fsspec.url_to_fs(source, **storage)
        fs.put(f"{files}/", f"{root}/", recursive=True)
    repo = Repository.create(
        place, storage or None, authorize_virtual_chunk_access={f"{where}/": storage}
    )
    result = tmp_path / "result.json"
    arguments = (place, where, str(result), archive, json.dumps(storage))
    with start_driver(tmp_path, "tour", *arguments, settings=settings, **environment) as driver:
        said = driver.wait()

    assert "refused: " in said
    hour, station = np.meshgrid(np.arange(20), np.arange(6), indexing="ij")
    wind = hour * 10.0 + station + (hour + station) % 2
    np.testing.assert_array_equal(opened(repo, "wind")[...], wind)
    data = b"".join(b"%04d" % number for number in range(24))
    assert opened(repo, "bytes")[...].tobytes() == data
    np.testing.assert_array_equal(opened(repo, "copied")[...], OLD)
    expected = xr.open_dataset(files / "weather.nc").load()
    equal_trees(reopened(repo, "values"), expected)
    equal_trees(reopened(repo, "referred"), expected)

    found = json.loads(result.read_text())
    rows = [[h, s, wind[h, s]] for h in range(3, 20) for s in (0, 5)]
    assert found["rows"] == rows
    assert found["chunks"] == [[[n], list(data[4 * n : 4 * n + 4])] for n in range(24)]
    table = repo.tables("arrays")
    counts = zip(table["path"].to_pylist(), table["chunk_count"].to_pylist(), strict=True)
    assert found["counts"] == {path: count for path, count in counts if count}
    assert found["streamed"] == 3
    messages = [info.message for info in repo.ancestry(branch="main")]
    assert len(messages) == 8, messages


@pytest.mark.storm
def test_separate_executors(tmp_path: Path) -> None:
    """Executors are processes of their own and have the package from a zip."""
    settings = {
        "spark.master": "local-cluster[2,1,1024]",
        "spark.submit.pyFiles": str(package_zip(tmp_path)),
    }
    take_tour(tmp_path, settings=settings)


@pytest.mark.storm
def test_two_hosts(tmp_path: Path) -> None:
    """A standalone cluster with a worker on each of two addresses."""
    with standalone(tmp_path / "cluster") as (master, _):
        take_tour(tmp_path, settings={"spark.master": master, "spark.executor.memory": "512m"})


@pytest.mark.storm
def test_connect(tmp_path: Path) -> None:
    """A client of Spark Connect, which sends the package along."""
    with connect_server(tmp_path / "server") as url:
        take_tour(
            tmp_path,
            settings={"spark.remote": url},
            archive=str(package_zip(tmp_path)),
            PYSPARK_PYTHON=sys.executable,
        )


@pytest.mark.s3
def test_in_a_bucket(tmp_path: Path, s3: S3Server, s3_url: str) -> None:
    """Repository and sources stand in a bucket; executors are processes of their own."""
    take_tour(
        tmp_path,
        settings={"spark.master": "local-cluster[2,1,1024]"},
        url=f"{s3_url}/repo",
        source=f"{s3_url}/sources",
        options=s3.storage_options,
    )
