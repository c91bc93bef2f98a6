"""Spark's views have the rows of the Arrow tables, and their plans read what they must, without Python."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

import icechunk_arrow.spark
from icechunk_arrow.core.coords import encode_one
from icechunk_arrow.errors import (
    AlreadyExistsError,
    CorruptFileError,
    InvalidInputError,
    NotFoundError,
)
from icechunk_arrow.spark.quoting import spark_root
from icechunk_arrow.tables.schemas import TABLES, with_repository
from tests.promises import required
from tests.sql.model import in_order
from tests.sql.repositories import Filled, add_array, fill, new_repository, refer
from tests.sql.test_pruning import LARGE_FILES
from tests.sql.test_pruning import fill as fill_large

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

pytestmark = [
    pytest.mark.spark,
    # what Spark says of a library that it is not asked to use here
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
GROUP_ROWS = 16_384
LITERAL = "${spark.app.name} ' \"`a`*[b]\n;-- ß"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    if importlib.util.find_spec("pyspark") is None:
        assert not required("spark"), "pyspark is not installed, and this run promises Spark"
        pytest.skip("pyspark is not installed")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.adaptive.enabled", "false")  # its plans hide their counts
        .config("spark.sql.session.timeZone", "Asia/Kathmandu")
        .config("spark.sql.files.ignoreMissingFiles", "true")  # no view may believe this
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module", params=["narrow", "wide"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    folder = tmp_path_factory.mktemp("spark") / "it's [a] *; {x}? \\ ${y}" / "year=2024"
    folder.parent.mkdir()
    return fill(folder, wide=request.param == "wide")


@pytest.fixture(scope="module")
def attached(spark: Any, filled: Filled) -> Iterator[str]:
    icechunk_arrow.spark.attach(spark, filled.repository, "varied")
    yield "varied"
    icechunk_arrow.spark.detach(spark, "varied")


@pytest.fixture(scope="module")
def large(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    repository = fill_large(tmp_path_factory.mktemp("pruning") / "r")
    icechunk_arrow.spark.attach(spark, repository, "w")
    yield spark
    icechunk_arrow.spark.detach(spark, "w")


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return in_order(table.to_pylist())


def _plain(kind: pa.DataType) -> str:
    """A type without the names of list items and of the zone, which Spark chooses."""
    return re.sub(r"list<\w+: ", "list<", str(kind)).replace(" not null", "").split(", tz=")[0]


def by_view(spark: Any, view: str, schema: pa.Schema) -> pa.Table:
    """Rows of a view in declared types; a view with others does not pass."""
    table = spark.table(view).toArrow()
    assert table.column_names == schema.names
    assert [_plain(kind) for kind in table.schema.types] == [_plain(kind) for kind in schema.types]
    return table.cast(schema)


def scanned(frame: Any) -> tuple[int, int]:
    """Files and rows that a query's scans read, by Spark's own counts."""
    frame.collect()
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    counts = [0, 0]
    for place in range(leaves.size()):
        metrics = leaves.apply(place).metrics()
        if metrics.contains("numFiles"):
            counts[0] += metrics.apply("numFiles").value()
            counts[1] += metrics.apply("numOutputRows").value()
    return counts[0], counts[1]


@pytest.mark.parametrize("name", TABLES)
def test_views_hold_what_arrow_tables_hold(
    spark: Any, filled: Filled, attached: str, name: str
) -> None:
    """Every table has the same rows, columns and types in Spark as in Arrow."""
    table = by_view(spark, f"{attached}_{name}", TABLES[name])

    assert table.num_rows > 0
    assert rows_of(table) == rows_of(filled.repository.tables(name))


@pytest.mark.parametrize("name", TABLES)
def test_plans_have_no_python(spark: Any, attached: str, name: str) -> None:
    """Rows are read and made by Spark itself, manifests by its vectorised reader."""
    [(plan,)] = spark.sql(f"EXPLAIN EXTENDED SELECT * FROM {attached}_{name}").collect()

    assert not re.search("python|pandas|arroweval|externalrdd", plan, re.IGNORECASE)
    assert ("FileScan parquet" in plan) == (name in {"chunks", "arrays", "files", "changes"})
    assert "Batched: false" not in plan


def test_snapshots_and_changes_can_be_chosen(spark: Any, filled: Filled) -> None:
    """By tag and since a branch; by id, as of a time, and the first, which has nothing."""
    repository = filled.repository
    times = {
        row["snapshot"]: row["written_at"] for row in repository.tables("snapshots").to_pylist()
    }
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({"tag": "after chunks"}, "side; drop"),
        ({"as_of": times[filled.snapshots[3]]}, None),
        ({"snapshot_id": filled.snapshots[0]}, None),
    ]
    for chosen, since in cases:
        shown = icechunk_arrow.spark.attach(spark, filled.root, "then", **chosen, since=since)
        for name in ("chunks", "arrays", "files", "nodes", "snapshots"):
            table = by_view(spark, f"then_{name}", TABLES[name])
            assert rows_of(table) == rows_of(repository.tables(name, **chosen)), name
        changes = by_view(spark, "then_changes", TABLES["changes"])
        assert rows_of(changes) == rows_of(repository.tables("changes", **chosen, since=since))
        assert set(shown.snapshots) == {str(filled.root)}
        icechunk_arrow.spark.detach(spark, "then")


def test_casts_are_checked_whatever_the_session_says(spark: Any, filled: Filled) -> None:
    """Where Spark does not check casts, the views do, and have the same rows."""
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        icechunk_arrow.spark.attach(spark, filled.repository, "lax")
        [(plan,)] = spark.sql("EXPLAIN EXTENDED SELECT offset FROM lax_chunks").collect()
        found = by_view(spark, "lax_chunks", TABLES["chunks"])
        icechunk_arrow.spark.detach(spark, "lax")
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")

    assert "raise_error" in plan
    assert rows_of(found) == rows_of(filled.repository.tables("chunks"))


def test_several_repositories_are_united(spark: Any, filled: Filled, tmp_path: Path) -> None:
    """Every view of several repositories begins with the name of the row's."""
    other = new_repository(tmp_path / "other")
    session = other.writable_session("main")
    add_array(session, "few", (20,))
    refer(session, "/few", [(n,) for n in range(20)])
    session.commit("some")
    places: dict[str, Any] = {LITERAL: filled.repository, "other": tmp_path / "other"}
    icechunk_arrow.spark.attach(spark, places, "both")
    for name in TABLES:
        found = rows_of(by_view(spark, f"both_{name}", with_repository(TABLES[name])))
        expected = [
            {"repository": label, **row}
            for label, each in ((LITERAL, filled.repository), ("other", other))
            for row in each.tables(name).to_pylist()
        ]
        assert found == in_order(expected), name
    icechunk_arrow.spark.detach(spark, "both")


def test_names_are_plain_data(spark: Any, tmp_path: Path) -> None:
    """Paths and folders with whatever Spark replaces, escapes or ends a text at, are themselves."""
    repository = new_repository(tmp_path / "a`b${z}", rows=2)
    session = repository.writable_session("main")
    add_array(session, LITERAL, (20,))
    refer(session, f"/{LITERAL}", [(n,) for n in range(20)])
    session.commit(LITERAL)
    icechunk_arrow.spark.attach(spark, repository, "plain")
    chunks = spark.table("plain_chunks")
    found = chunks.where(chunks["path"] == f"/{LITERAL}").toArrow().cast(TABLES["chunks"])
    icechunk_arrow.spark.detach(spark, "plain")

    assert found.num_rows == 20
    assert rows_of(found) == rows_of(repository.tables("chunks"))


def test_a_path_leaves_out_files(large: Any) -> None:
    """A large array's query opens its own files, a small one's those that small ones share."""
    everything = scanned(large.sql("SELECT sum(offset) FROM w_chunks"))
    wind = scanned(large.sql("SELECT sum(length) FROM w_chunks WHERE path = '/wind'"))
    small = scanned(large.sql("SELECT sum(length) FROM w_chunks WHERE path = '/small-3-1'"))
    summary = scanned(large.sql("SELECT chunk_count FROM w_arrays WHERE path = '/wind'"))

    assert everything == (2 * LARGE_FILES + 6, 2 * 260_000 + 18 * 20)
    assert wind == (LARGE_FILES, 260_000)
    assert small == (6, 18 * 20)
    assert summary == wind


@pytest.mark.parametrize(
    "condition",
    [
        "coord = w_coord_encode(array(100, 7))",
        "coord >= w_coord_encode(array(100, 7)) AND coord < w_coord_encode(array(100, 8))",
    ],
)
def test_a_coordinate_leaves_out_row_groups(large: Any, condition: str) -> None:
    """Of sixteen row groups one is read; of an index, which cannot, all are."""
    query = f"SELECT index, location FROM w_chunks WHERE path = '/wind' AND {condition}"
    by_index = "SELECT index FROM w_chunks WHERE path = '/wind' AND index = array(100L, 7L)"
    files, rows = scanned(large.sql(query))

    assert (files, 0 < rows <= GROUP_ROWS) == (LARGE_FILES, True)
    assert [(row[0], row[1]) for row in large.sql(query).collect()] == [
        ([100, 7], "s3://b/wind/100.nc")
    ]
    assert scanned(large.sql(by_index)) == (LARGE_FILES, 260_000)
    assert [row[0] for row in large.sql(by_index).collect()] == [[100, 7]]


def test_counting_reads_no_columns(large: Any) -> None:
    """A count needs footers alone."""
    [(plan,)] = large.sql("EXPLAIN SELECT count(*) FROM w_chunks WHERE path = '/wind'").collect()

    assert "ReadSchema: struct<>" in plan


def test_coordinates_are_encoded_and_decoded(spark: Any, attached: str) -> None:
    """As the files have them, in every width and with many dimensions; what cannot be is an error."""
    edges = (0, 63, 64, 16383, 16384, 2**30 - 1, 2**30, 2**62 - 1)
    for index in ((), *((each,) for each in edges), edges, (*edges, 5, 70, 2**40)):
        written = "array(" + ", ".join(f"{each}L" for each in index) + ")"
        query = f"SELECT {attached}_coord_encode({written}) AS c"
        [(coord, again)] = spark.sql(
            f"SELECT c, {attached}_coord_decode(c) FROM ({query})"
        ).collect()
        assert (bytes(coord), tuple(again)) == (encode_one(index), index)
    many = ", ".join("1" * 9)
    for wrong in ("-1", f"{2**62}L", "NULL", f"1, {2**62}L", f"{many}, -1"):
        with pytest.raises(Exception, match="a chunk index is a number from 0 to"):
            spark.sql(f"SELECT {attached}_coord_encode(array({wrong}))").collect()


def test_views_stay_until_they_are_refreshed(spark: Any, tmp_path: Path) -> None:
    """A commit is seen after ``refresh``, by frames made after it; ``detach`` leaves nothing."""
    before = {row["viewName"] for row in spark.sql("SHOW VIEWS").collect()}
    repository = new_repository(tmp_path / "r")
    icechunk_arrow.spark.attach(spark, tmp_path / "r", "live")
    for name in TABLES:
        empty = by_view(spark, f"live_{name}", TABLES[name])
        assert rows_of(empty) == rows_of(repository.tables(name)), name
    frame = spark.table("live_nodes")
    session = repository.writable_session("main")
    add_array(session, "new", (3,))
    newest = session.commit("a node")

    assert spark.table("live_nodes").count() == 0
    shown = icechunk_arrow.spark.refresh(spark, "live")
    assert list(shown.snapshots.values()) == [newest]
    assert spark.table("live_nodes").count() == 2
    assert frame.count() == 0
    assert spark.table("live_chunks").count() == spark.table("live_files").count() == 0
    icechunk_arrow.spark.detach(spark, "live")
    assert {row["viewName"] for row in spark.sql("SHOW VIEWS").collect()} == before
    assert not spark.catalog.functionExists("live_coord_encode")
    for action in (icechunk_arrow.spark.detach, icechunk_arrow.spark.refresh):
        with pytest.raises(NotFoundError, match="live"):
            action(spark, "live")


def test_a_file_that_has_gone_is_an_error(spark: Any, tmp_path: Path) -> None:
    """Even where the session ignores missing files: in a query, and with the snapshot's name in ``attach``."""
    repository = new_repository(tmp_path / "r")
    session = repository.writable_session("main")
    add_array(session, "a", (40,))
    refer(session, "/a", [(n,) for n in range(40)])
    found = session.commit("chunks")
    icechunk_arrow.spark.attach(spark, repository, "gone")
    manifest = repository.tables("manifests")["manifest"].to_pylist()[-1]
    (tmp_path / f"r/i/{manifest}.parquet").unlink()

    with pytest.raises(Exception, match=manifest):
        spark.sql("SELECT sum(length) FROM gone_chunks").collect()
    icechunk_arrow.spark.detach(spark, "gone")
    with pytest.raises(CorruptFileError, match=f"(?s){manifest}.*{found}"):
        icechunk_arrow.spark.attach(spark, repository, "gone")
    assert not spark.catalog.tableExists("gone_nodes")


def test_attaching_refuses_what_cannot_be(
    spark: Any, attached: str, filled: Filled, tmp_path: Path
) -> None:
    """Names that are taken or no names, nothing to attach, and places that Spark cannot read."""
    with pytest.raises(AlreadyExistsError, match="varied_nodes"):
        icechunk_arrow.spark.attach(spark, filled.repository, attached)
    for name in ("", "a b", "a`; drop", "${x}"):
        with pytest.raises(InvalidInputError, match="letters"):
            icechunk_arrow.spark.attach(spark, filled.repository, name)
    with pytest.raises(InvalidInputError, match="at least one"):
        icechunk_arrow.spark.attach(spark, {}, "none")
    held = new_repository(f"memory://{tmp_path.name}")
    with pytest.raises(InvalidInputError, match="memory"):
        icechunk_arrow.spark.attach(spark, held, "none")
    new_repository(tmp_path / "a:b[c]")
    with pytest.raises(InvalidInputError, match="colon"):
        icechunk_arrow.spark.attach(spark, tmp_path / "a:b[c]", "none")


def test_the_session_keeps_its_settings(spark: Any, tmp_path: Path) -> None:
    """Attaching sets how files are listed, and sets it back."""
    name = "spark.sql.sources.parallelPartitionDiscovery.threshold"
    before = spark.conf.get(name)
    new_repository(tmp_path / "r")
    icechunk_arrow.spark.attach(spark, tmp_path / "r", "settings")
    icechunk_arrow.spark.detach(spark, "settings")

    assert spark.conf.get(name) == before == "32"


def test_buckets_have_the_name_that_spark_knows() -> None:
    """What others call s3 is s3a to Spark; every other place stays."""
    assert spark_root("s3://bucket/s3://x") == "s3a://bucket/s3://x"
    assert spark_root("file:///s3") == "file:///s3"
