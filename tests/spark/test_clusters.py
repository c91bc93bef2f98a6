"""Writing on Spark of every kind: separate executors that lack the package, Connect, two hosts, S3."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import zarr

from icechunk_arrow import Repository
from icechunk_arrow.errors import InvalidInputError
from tests.spark.clusters import connect_server, package_zip, standalone, start_driver
from tests.spark.frames import (
    check_manifests,
    new_repository,
    reference_table,
    references_of,
    single_process,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import S3Server

pytestmark = pytest.mark.spark

SHAPE = (40, 25)


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """An interpreter with all libraries and without this package, as executors have it that are not ours.

    Links to the folder of an editable install stand in files that only ``site`` reads.
    """
    script = tmp_path / "bare-python"
    folder = sysconfig.get_path("purelib")
    script.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{folder}"\nexec {sys.executable} -S "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """References in two Parquet files."""
    folder = tmp_path / "source"
    folder.mkdir()
    table = reference_table(SHAPE, seed=1)
    pq.write_table(table.slice(0, 400), folder / "1.parquet")
    pq.write_table(table.slice(400), folder / "2.parquet")
    return folder


def check(root: Path, tmp_path: Path) -> None:
    """The array is the one that a single process makes."""
    repository = Repository.open(root)
    other = single_process(
        tmp_path / "single",
        repository.readonly_session("main"),
        reference_table(SHAPE, seed=1),
        "/a",
    )
    assert references_of(repository, "/a") == references_of(other, "/a")
    assert len(list(repository.ancestry(branch="main"))) == 3
    check_manifests(root, repository)


@pytest.mark.storm
@pytest.mark.parametrize("way", ["function", "format"])
def test_executors_get_the_package(
    tmp_path: Path, source: Path, bare_python: str, way: str
) -> None:
    """Executors of a cluster that lack the package write with a zip of it, and without say what is missing."""
    new_repository(tmp_path / "r", a=SHAPE)
    local_cluster = {"spark.master": "local-cluster[2,1,1024]"}
    with start_driver(
        tmp_path,
        "references",
        str(tmp_path / "r"),
        str(source),
        way,
        settings={**local_cluster, "spark.submit.pyFiles": str(package_zip(tmp_path))},
        PYSPARK_PYTHON=bare_python,
        PYSPARK_DRIVER_PYTHON=sys.executable,
    ) as driver:
        assert "committed" in driver.wait()
    check(tmp_path / "r", tmp_path)


@pytest.mark.storm
def test_executors_without_the_package(tmp_path: Path, source: Path, bare_python: str) -> None:
    """Without a zip the error names the package: the interpreter of the other test really lacks it."""
    repository = new_repository(tmp_path / "r", a=SHAPE)
    before = repository.lookup_branch("main")
    with start_driver(
        tmp_path,
        "references",
        str(tmp_path / "r"),
        str(source),
        "function",
        settings={"spark.master": "local-cluster[2,1,1024]"},
        PYSPARK_PYTHON=bare_python,
    ) as driver:
        assert driver.process.wait(280) != 0
    # of an editable installation there is a folder of this name with data in it, and no module
    assert re.search(r"No module named 'icechunk_arrow(\.spark)?'", driver.output())
    assert repository.lookup_branch("main") == before


@pytest.mark.storm
@pytest.mark.parametrize("way", ["function", "format"])
def test_two_hosts(tmp_path: Path, source: Path, way: str) -> None:
    """A standalone cluster with a worker on each of two addresses."""
    new_repository(tmp_path / "r", a=SHAPE)
    with (
        standalone(tmp_path / "cluster") as (master, _),
        start_driver(
            tmp_path,
            "references",
            str(tmp_path / "r"),
            str(source),
            way,
            settings={"spark.master": master, "spark.executor.memory": "512m"},
        ) as driver,
    ):
        driver.wait()
    check(tmp_path / "r", tmp_path)


CONNECT = """
import sys
import icechunk_arrow.spark
from icechunk_arrow.errors import InvalidInputError
from pyspark.sql import SparkSession

def start(stream, tries=5):
    # the server waits ten seconds for the worker of a function, whatever else the machine has to do
    try:
        return stream.start()
    except Exception as error:
        if tries == 1 or "failed to connect back" not in str(error):
            raise
        return start(stream, tries - 1)

url, root, source, archive, kind = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
spark.addArtifacts(archive, pyfile=True)
icechunk_arrow.spark.register(spark)
frame = spark.read.parquet(source)
try:
    wrong = frame.selectExpr("index", "'x' AS location", "offset", "length")
    icechunk_arrow.spark.write_references(wrong, root, "/a")
except InvalidInputError as error:
    print("refused:", error)
if kind == "function":
    icechunk_arrow.spark.write_references(frame, root, "/a")
elif kind == "format":
    frame.repartition(3).write.format("icechunk").mode("append").option("array", "/a").save(root)
else:
    stream = spark.readStream.schema(frame.schema).parquet(source).writeStream
    if kind == "stream":
        stream = stream.format("icechunk").option("path", root).option("array", "/a")
    else:
        from icechunk_arrow.spark import each_batch, write_references
        stream = stream.foreachBatch(each_batch(write_references, root, query_id="q", array_path="/a"))
    stream = stream.option("checkpointLocation", root + "-checkpoint").trigger(availableNow=True)
    for _ in range(2):
        query = start(stream)
        query.awaitTermination()
        print("stream:", query.exception())
print("committed")
spark.stop()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Spark Connect server."""
    with connect_server(tmp_path_factory.mktemp("connect") / "server") as url:
        yield url


@pytest.mark.storm
@pytest.mark.parametrize("kind", ["function", "format", "stream", "each batch"])
def test_connect(server: str, tmp_path: Path, source: Path, kind: str) -> None:
    """A client of Spark Connect writes in all ways; errors arrive as ours from the functions."""
    import subprocess

    new_repository(tmp_path / "r", a=SHAPE)
    script = tmp_path / "client.py"
    script.write_text(CONNECT)
    done = subprocess.run(
        [
            sys.executable,
            str(script),
            server,
            str(tmp_path / "r"),
            str(source),
            str(package_zip(tmp_path)),
            kind,
        ],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused: the row index=" in done.stdout
    assert "committed" in done.stdout
    check(tmp_path / "r", tmp_path)


@pytest.mark.s3
@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_s3(spark: Any, s3: S3Server, s3_url: str, scheme: str) -> None:
    """Executors write to a bucket, by the function and the format; both names of the scheme are one place."""
    import icechunk_arrow.spark

    options = s3.storage_options
    repository = Repository.create(s3_url, options)
    session = repository.writable_session("main")
    for name in "ab":
        zarr.create_array(session.store, name=name, shape=SHAPE, chunks=(1, 1), dtype="u1")
    session.commit("create")
    url = s3_url.replace("s3://", f"{scheme}://")
    table = reference_table(SHAPE, seed=1)
    frame = spark.createDataFrame(table).repartition(3)

    icechunk_arrow.spark.write_references(frame, url, "/a", storage_options=options)
    icechunk_arrow.spark.register(spark)
    writer = frame.write.format("icechunk").mode("append").option("array", "/b")
    writer = writer.option("storage.key", options["key"]).option(
        "storage.secret", options["secret"]
    )
    writer = writer.option("storage.endpoint_url", options["endpoint_url"])
    writer.option("storage.client_kwargs", '{"region_name": "us-east-1"}').save(url)

    rows = references_of(repository, "/a")
    assert len(rows) == table.num_rows
    assert rows == references_of(repository, "/b")
    with pytest.raises(
        InvalidInputError, match=r"chunk \(0, 0\) stands there twice|stands there twice"
    ):
        icechunk_arrow.spark.write_references(
            frame.union(frame), url, "/a", storage_options=options
        )
