"""Attached views where executors are processes of their own, and where files are in a bucket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.feather
import pyspark
import pytest

from icechunk_arrow import Repository
from icechunk_arrow.tables.schemas import TABLES
from tests.sql.model import in_order
from tests.sql.repositories import add_array, new_repository, refer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.servers import S3Server

HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.5.0"
PROGRAM = """
import json, sys
import pyarrow.feather
import icechunk_arrow.spark
from icechunk_arrow.tables.schemas import TABLES
from pyspark.sql import SparkSession

url, out, options, settings = sys.argv[1:]
builder = SparkSession.builder
for name, value in json.loads(settings).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
icechunk_arrow.spark.attach(spark, url, "w", storage_options=json.loads(options))
for name, schema in TABLES.items():
    found = spark.table(f"w_{name}").toArrow().cast(schema)
    pyarrow.feather.write_feather(found, f"{out}/{name}.arrow")
box = spark.sql("SELECT index, location FROM w_chunks_in('/a', array(41), array(44))")
print(json.dumps(sorted(list(row) for row in box.collect())))
script = icechunk_arrow.spark.sql_script(url, "s", storage_options=json.loads(options))
for statement in script.split(";\\n"):
    if statement.strip():
        spark.sql(statement).collect()
print(spark.table("s_chunks").count())
spark.stop()
"""


def filled(repository: Repository) -> Repository:
    """Give a repository chunks of one array in several manifests, and of others in one."""
    for name in ("a", "b", "c"):
        session = repository.writable_session("main")
        add_array(session, name, (60,))
        refer(session, f"/{name}", [(n,) for n in range(60 if name == "a" else 5)])
        session.commit(name)
    return repository


def check(
    repository: Repository,
    url: str,
    folder: Path,
    settings: Mapping[str, str],
    options: Mapping[str, Any] | None = None,
) -> None:
    """All tables are the Arrow tables."""
    chosen = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.memory": "512m",
        **settings,
    }
    done = subprocess.run(
        [
            *(sys.executable, "-c", PROGRAM, url, str(folder)),
            *(json.dumps(options), json.dumps(chosen)),
        ],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
        },
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = repository.tables("chunks").to_pylist()
    box = [
        [r["index"], r["location"]]
        for r in rows
        if r["path"] == "/a" and r["index"][0] in {41, 42, 43}
    ]
    assert json.loads(done.stdout.splitlines()[-2]) == sorted(box)
    assert int(done.stdout.splitlines()[-1]) == len(rows) == 70
    for name in TABLES:
        found = pyarrow.feather.read_table(folder / f"{name}.arrow").to_pylist()
        assert in_order(found) == in_order(repository.tables(name).to_pylist()), name


@pytest.mark.spark
@pytest.mark.storm
def test_executors_of_their_own(tmp_path: Path) -> None:
    """On a local cluster executors read the manifests, and have no part in anything else."""
    repository = filled(new_repository(tmp_path / "it's a [repository]", rows=8))
    (tmp_path / "out").mkdir()
    check(
        repository,
        str(tmp_path / "it's a [repository]"),
        tmp_path / "out",
        {"spark.master": "local-cluster[2,1,1024]"},
    )


@pytest.mark.spark
@pytest.mark.s3
def test_buckets(s3: S3Server, s3_url: str, tmp_path: Path) -> None:
    """Spark reads manifests by ``s3a`` from where ``s3`` says that they are."""
    repository = filled(Repository.create(s3_url, s3.storage_options))
    cache = Path(os.environ.get("ICECHUNK_ARROW_CACHE") or Path(__file__).parents[2] / ".cache")
    settings = {
        "spark.master": "local[2]",
        "spark.jars.packages": HADOOP_AWS,
        "spark.jars.ivy": str(cache / "ivy"),
        "spark.hadoop.fs.s3a.access.key": s3.key,
        "spark.hadoop.fs.s3a.secret.key": s3.secret,
        "spark.hadoop.fs.s3a.endpoint": s3.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }
    check(repository, s3_url, tmp_path, settings, s3.storage_options)
