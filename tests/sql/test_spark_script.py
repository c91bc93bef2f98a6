"""The generated script is all that a plain Spark needs, and says nothing that it should not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import icechunk_arrow.spark
from icechunk_arrow import InvalidInputError
from icechunk_arrow.spark import sql_script
from icechunk_arrow.tables.inspecting import made_relations
from icechunk_arrow.tables.inspections import (
    checked_parameters,
    find_inspection,
    list_inspections,
)
from icechunk_arrow.tables.schemas import TABLES, with_repository
from tests.sql.answers import ANSWERS
from tests.sql.model import Model, in_order
from tests.sql.repositories import STRANGE, add_array, fill, new_repository, refer
from tests.sql.test_inspect_spark import relation
from tests.sql.test_script import _given
from tests.sql.test_spark_views import scanned
from tests.sql.test_tables import NOT_OF_THE_MODEL, rows_of

if TYPE_CHECKING:
    from tests.sql.repositories import Filled

pytestmark = pytest.mark.spark
SQL = Path(__file__).parents[2] / "sql" / "inspect"
ALONE = """
import json, re, sys
for name in ("icechunk_arrow", "zarr", "fsspec", "duckdb"):
    sys.modules[name] = None  # whoever imports it fails
from pyspark.sql import SparkSession
import pyarrow.parquet

script, asked, out = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.sql.session.timeZone", "Asia/Kathmandu")
    .getOrCreate()
)
for statement in open(script).read().split(";\\n"):
    if statement.strip():
        spark.sql(statement).collect()
for name, text, names, values in json.load(open(asked)):
    query = re.sub("{([a-z_]+)}", lambda found: names[found[1]], text)
    pyarrow.parquet.write_table(spark.sql(query, args=values).toArrow(), f"{out}/{name}.parquet")
print([row.viewName for row in spark.sql("SHOW VIEWS").collect()])
"""
Query = tuple[str, str, dict[str, str], dict[str, Any]]


def run(spark: Any, script: str) -> None:
    """One statement at a time, as Spark takes them."""
    for statement in script.split(";\n"):
        if statement.strip():
            spark.sql(statement).collect()


def question(filled: Filled, folder: Path, name: str) -> Query:
    """A query of ``sql/inspect``; what the script has no view of is put into files."""
    inspection = find_inspection(name)
    values = checked_parameters(inspection, _given(filled, name))
    made, _ = made_relations(filled.repository._context, inspection, filled.snapshots[-1], values)
    made.pop("changes", None)
    names = {"item_at": "try_element_at"}
    for each in {*inspection.relations, *({"observed_files"} & set(values))}:
        if each in TABLES:
            names[each] = f"weather_{each}"
            continue
        pq.write_table(relation(filled, each, made), folder / f"{name}-{each}.parquet")
        names[each] = f"parquet.`{folder}/{name}-{each}.parquet`"
    bound = {}
    for parameter in inspection.parameters:
        if parameter.sql_type is not None:
            names[parameter.name] = f"CAST(:{parameter.name} AS {parameter.sql_type})"
            bound[parameter.name] = values[parameter.name]
    text = (SQL / f"{name}.sql").read_text()
    return name, re.sub("^--.*\n", "", text, flags=re.MULTILINE), names, bound


@pytest.mark.storm
def test_every_query_runs_without_this_package(tmp_path: Path) -> None:
    """Spark alone runs the texts of ``sql/inspect`` on the script's views, and finds the model's rows."""
    filled = fill(tmp_path / "it's [a] *; {x} ${y} folder", wide=True)
    (filled.root / "c" / "stray").write_bytes(b"abc")
    parent, snapshot = filled.snapshots[-2:]
    script, asked, out = (tmp_path / name for name in ("script.sql", "asked.json", "out"))
    out.mkdir()
    script.write_text(sql_script(filled.repository, "weather"))
    plan: list[Query] = [(f"table-{name}", f"TABLE weather_{name}", {}, {}) for name in TABLES]
    plan += [question(filled, tmp_path, name) for name in list_inspections()]
    box = "SELECT index FROM weather_chunks_in('/virtual', array(2), array(4))"
    plan.append(("box", box, {}, {}))
    place = "SELECT weather_chunk_of('/unequal', array(9, 6)) AS chunk"
    plan.append(("place", place, {}, {}))
    asked.write_text(json.dumps(plan))
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(script), str(asked), str(out)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1].replace("'", '"')) == sorted(
        f"weather_{name}" for name in TABLES
    )

    model = Model(filled.root)
    for name, schema in TABLES.items():
        found = pq.read_table(out / f"table-{name}.parquet").cast(schema)
        assert rows_of(found) == in_order(model.table(name, snapshot, parent)), name
    for name, answer in ANSWERS.items():
        given = {"since": parent} if name == "changes_by_array" else _given(filled, name)
        found = pq.read_table(out / f"{name}.parquet").cast(find_inspection(name).columns)
        hidden = NOT_OF_THE_MODEL | ({"last_modified"} if name == "unreferenced_files" else set())
        rows = [{k: v for k, v in row.items() if k not in hidden} for row in found.to_pylist()]
        if name == "gaps":
            rows = [row for row in rows if row["path"] not in {"/far", "/too many"}]
        assert rows, name
        assert in_order(rows) == in_order(list(answer(model, snapshot, **given))), name
    assert pq.read_table(out / "box.parquet").num_rows == 60
    assert pq.read_table(out / "place.parquet")["chunk"].to_pylist() == [[4, 2]]


@pytest.fixture
def small(tmp_path: Path) -> Any:
    """Two arrays with manifests of their own."""
    repository = new_repository(tmp_path / "a`b${z}; --[c]", rows=10)
    session = repository.writable_session("main")
    for name in "ab":
        add_array(session, name, (60,))
        refer(session, f"/{name}", [(n,) for n in range(60)])
    session.commit("chunks")
    return repository


def test_views_of_a_script_are_pruned_and_pinned(spark: Any, small: Any, tmp_path: Path) -> None:
    """They leave out files as attached views do; a file that goes is an error, before the script runs and after."""
    script = sql_script({"one": small}, "s")
    run(spark, script)
    found = spark.table("s_chunks").toArrow().cast(with_repository(TABLES["chunks"]))
    assert rows_of(found.drop_columns(["repository"])) == rows_of(small.tables("chunks"))
    assert scanned(spark.sql("SELECT location FROM s_chunks WHERE path = '/a'")) == (6, 60)
    box = spark.sql("SELECT location FROM s_chunks_in('/b', array(3), array(12))")
    assert scanned(box)[0] == 2
    assert spark.conf.get("spark.sql.legacy.storeAnalyzedPlanForView") == "false"

    lost = min((tmp_path / "a`b${z}; --[c]" / "i").iterdir())
    lost.unlink()
    with pytest.raises(Exception, match=lost.name):
        spark.sql("SELECT sum(length) FROM s_chunks").collect()
    with pytest.raises(Exception, match=f"{lost.name} has gone"):
        run(spark, script)
    spark.sql("RESET spark.sql.legacy.storeAnalyzedPlanForView")
    for row in spark.sql("SHOW VIEWS").collect():
        if row["viewName"].startswith("s_"):
            spark.catalog.dropTempView(row["viewName"])


def test_a_script_holds_harmless_characters(tmp_path: Path) -> None:
    """Nothing of a repository can end a statement, or be replaced by a session, or be no line of its own."""
    filled = fill(tmp_path / "new\nline ${x};", wide=True)
    lines = sql_script(filled.repository).split("\n")
    comments = [line for line in lines if line.startswith("--")]
    rest = "\n".join(line for line in lines if not line.startswith("--"))

    assert len(comments) == 2
    assert rest.isascii()
    assert "$" not in rest
    assert not re.search(";(?!\n)", rest)
    assert STRANGE not in rest


def test_places_that_no_script_can_read_are_refused(tmp_path: Path) -> None:
    """What is in this process's memory, and what has a colon, which Spark's patterns cannot have."""
    with pytest.raises(InvalidInputError, match="memory"):
        sql_script(new_repository("memory://spark-script"))
    with pytest.raises(InvalidInputError, match=r"icechunk_arrow\.spark\.attach"):
        sql_script(new_repository(tmp_path / "a:b"))
    with pytest.raises(InvalidInputError, match="letters"):
        icechunk_arrow.spark.sql_script(new_repository(tmp_path / "r"), "a b")
