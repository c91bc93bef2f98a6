"""Spark Connect: the same views, where there is no Spark context and no Java virtual machine to speak to."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from icechunk_arrow.tables.schemas import TABLES
from tests.promises import required
from tests.sql.model import in_order
from tests.sql.repositories import fill

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import sys
import pyarrow.feather
import icechunk_arrow.spark
from icechunk_arrow.tables.schemas import TABLES
from pyspark.sql import SparkSession

root, folder = sys.argv[1:]
spark = (
    SparkSession.builder.remote("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .getOrCreate()
)
icechunk_arrow.spark.attach(spark, root, "c", tag="after chunks")
icechunk_arrow.spark.detach(spark, "c")
icechunk_arrow.spark.attach(spark, root, "c")
icechunk_arrow.spark.refresh(spark, "c")
for name, schema in TABLES.items():
    found = spark.table(f"c_{name}").toArrow().cast(schema)
    pyarrow.feather.write_feather(found, f"{folder}/{name}.arrow")
(one,) = spark.sql("select index from c_chunks where coord = c_coord_encode(array(29, 29))").collect()
(two,) = spark.sql("select index from c_chunks_in('/virtual', array(29, 29), array())").collect()
((three,),) = spark.sql("select c_chunk_of('/virtual', array(29, 29))").collect()
assert one == two == (three,)
print(list(one[0]), type(spark).__module__)
icechunk_arrow.spark.detach(spark, "c")
print([row.viewName for row in spark.sql("show views").collect()])
spark.stop()
"""


@pytest.fixture
def connect_is_there() -> None:
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("grpc") is None:
        assert not required("spark"), "pyspark[connect] is not installed; this run promises Spark"
        pytest.skip("pyspark[connect] is not installed")


@pytest.mark.spark
@pytest.mark.storm
@pytest.mark.usefixtures("connect_is_there")
def test_a_remote_session_has_the_same_views(tmp_path: Path) -> None:
    """Every table has the rows of the Arrow tables, and coordinates can be looked for."""
    import pyarrow.feather

    filled = fill(tmp_path / "it's [a] *; folder", wide=True)
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(filled.root), str(out)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-2:] == [
        "[29, 29] pyspark.sql.connect.session",
        json.dumps([]),
    ]
    for name in TABLES:
        found = pyarrow.feather.read_table(out / f"{name}.arrow").to_pylist()
        assert in_order(found) == in_order(filled.repository.tables(name).to_pylist()), name
