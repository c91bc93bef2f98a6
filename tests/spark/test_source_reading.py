"""``format("icechunk")``, read: options, tables, arrays, and frames that may be asked again and again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icechunk_arrow import Repository, RepositoryConfig
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from icechunk_arrow.spark import register
from icechunk_arrow.spark.source import reading as source_tables
from icechunk_arrow.spark.source.options import Options

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

TABLES = (
    "chunks",
    "nodes",
    "arrays",
    "manifests",
    "files",
    "snapshots",
    "refs",
    "operations",
    "config",
    "changes",
)


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Inline, native and virtual chunks in several manifests, arrays of several ranks, three commits and a tag."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=16)
    repo = Repository.create(tmp_path_factory.mktemp("source") / "repo", config=config)
    session = repo.writable_session("main")
    group = zarr.create_group(session.store, path="g")
    time = group.create_array("time", shape=(6,), chunks=(6,), dtype="i4", dimension_names=["time"])
    time[...] = range(6)
    time.attrs["units"] = "days since 2024-01-01"
    for name, factor in (("a", 1), ("b", -1)):
        array = group.create_array(
            name, shape=(6, 8), chunks=(2, 4), dtype="i4", dimension_names=["time", "x"]
        )
        array[...] = factor * np.arange(48).reshape(6, 8)
    zarr.create_array(session.store, name="scalar", shape=(), dtype="f8")[...] = 2.5
    zarr.create_array(session.store, name="far", shape=(50,), chunks=(1,), dtype="u1")
    repo.create_tag("first", session.commit("one"))
    session = repo.writable_session("main")
    index = [[n] for n in range(50)]
    session.set_references(
        "/far",
        _references(index, [f"s3://bucket/{n % 3}.nc" for n in range(50)]),
    )
    session.commit("two")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="g/a")[0, 0] = 100
    session.commit("three")
    return repo


def _references(index: Any, location: list[str]) -> Any:
    import pyarrow as pa

    count = len(location)
    return pa.table(
        {
            "index": pa.array(index, pa.list_(pa.int64())),
            "location": location,
            "offset": pa.array(range(count), pa.int64()),
            "length": pa.array([1] * count, pa.int64()),
            "etag": [f"tag {n}" if n % 2 else None for n in range(count)],
        }
    )


@pytest.fixture
def source(spark: Any, repo: Repository) -> Any:
    """What makes a reader of the repository with some options."""
    register(spark)

    def load(**options: Any) -> Any:
        return spark.read.format("icechunk").options(**options).load(repo.url)

    return load


def plain(value: Any) -> Any:
    """Rows of Spark and of Arrow as the same plain values."""
    if hasattr(value, "asDict"):
        return plain(value.asDict())
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytearray):
        return bytes(value)
    return value.timestamp() if hasattr(value, "timestamp") else value


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_those_of_the_session(source: Any, repo: Repository, name: str) -> None:
    """Each table has the columns and rows that a session gives."""
    expected = repo.readonly_session(branch="main").table(name)
    frame = source(table=name)
    rows = [plain(row) for row in frame.collect()]

    assert frame.columns == expected.column_names
    assert sorted(map(repr, rows)) == sorted(repr(plain(row)) for row in expected.to_pylist())
    assert len(rows) > 0


def test_chunks_come_by_manifests(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts have different manifests and together all; the rows are those of the whole."""
    session = repo.readonly_session(branch="main")
    read = source_tables.TableRead(
        context=session._context, name="chunks", snapshot_id=session.snapshot_id
    )
    monkeypatch.setattr(source_tables, "_PART_BYTES", 1)
    parts = read.parts()
    rows = [row for part in parts for batch in read.read_part(part) for row in batch.to_pylist()]

    assert len(parts) == session.table("manifests").num_rows > 1
    expected = session.table("chunks").to_pylist()
    assert sorted(map(repr, rows)) == sorted(map(repr, expected))
    monkeypatch.setattr(source_tables, "_PART_BYTES", 1 << 30)
    assert len(read.parts()) == 1


def test_arrays_as_rows_and_chunks(source: Any) -> None:
    """Options say the same as the function: arrays, layout, condition, columns, nulls, parts."""
    rows = source(
        array="/g/a,g/b",
        where="time >= '2024-01-03' and x in (1, 5)",
        columns="b,x,a",
        partition_bytes="64",
    )
    chunks = source(array='["/g/b"]', layout="chunks", where="x >= 4 and time < '2024-01-02'")
    nulls = source(array="/g/b", nulls="TRUE", where="x = 0", columns="b")

    found = sorted(tuple(row) for row in rows.collect())
    assert found == sorted((-(8 * t + x), x, 8 * t + x) for t in range(2, 6) for x in (1, 5))
    assert rows.rdd.getNumPartitions() > 1
    assert [(row["index"], row["values"]) for row in chunks.collect()] == [
        ([0, 1], [-4, -5, -6, -7, -12, -13, -14, -15])
    ]
    assert nulls.sort("b").collect() == [(None,), *((-8 * t,) for t in range(5, 0, -1))]
    assert source(array="/scalar").collect()[0].scalar == 2.5


def test_one_frame_answers_many_queries(source: Any) -> None:
    """Filters of one query leave no mark on the next, with Spark's push-down to Python sources on or off."""
    frame = source(array="/g/b", where="x < 4")
    spark = frame.sparkSession
    for pushed in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
        try:
            three = frame.where("b = -3")
            either = frame.where("b = -3 or b = -2")
            assert [row.b for row in three.collect()] == [-3]
            assert sorted(row.b for row in either.collect()) == [-3, -2]
            assert three.count() == 1
            assert frame.count() == 24
            assert three.unionAll(either).unionAll(frame.where("x = 0")).count() == 1 + 2 + 6
            joined = three.alias("l").join(either.alias("r"), "time").select("l.b", "r.b")
            assert sorted(map(tuple, joined.collect())) == [(-3, -3), (-3, -2)]
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_schema_chooses_columns(spark: Any, source: Any, repo: Repository) -> None:
    """Only arrays that a schema names are read: the chunks of others may be gone."""
    reader = spark.read.format("icechunk").option("array", "/g/a,/far")
    frame = reader.option("layout", "rows").schema("x bigint, a int, _snapshot string")
    with pytest.raises(Exception, match="share no rows"):
        frame.load(repo.url).collect()
    frame = (
        spark.read.format("icechunk").option("array", "/g/a,/g/b").schema("b int NOT NULL, x long")
    )
    assert frame.load(repo.url).where("b = -9").collect() == [(-9, 1)]
    with pytest.raises(Exception, match="b is string; it is int: leave out the schema"):
        spark.read.format("icechunk").option("array", "/g/b").schema("b string").load(
            repo.url
        ).count()
    with pytest.raises(Exception, match="'c' cannot be chosen"):
        spark.read.format("icechunk").option("array", "/g/b").schema("c int").load(repo.url).count()
    far = spark.read.format("icechunk").option("table", "chunks").schema("path string, length long")
    assert far.load(repo.url).where("path = '/far'").groupBy().sum("length").collect() == [(50,)]


def test_snapshots_are_chosen_and_kept(spark: Any, tmp_path: Path) -> None:
    """A frame shows the snapshot at which it was loaded; of one with a schema Spark asks when it is first used."""
    register(spark)
    place = Repository.create(tmp_path / "repo")

    def commit(value: int) -> str:
        session = place.writable_session("main")
        zarr.create_array(session.store, name="a", shape=(2,), dtype="i4", overwrite=True)[:] = (
            value
        )
        return session.commit(str(value))

    def load(**options: str) -> Any:
        return spark.read.format("icechunk").options(array="a", **options).load(place.url)

    first = commit(1)
    place.create_tag("one", first)
    written_at = place.lookup_snapshot(first).written_at.isoformat()
    asked, late = load(), load()
    given = spark.read.format("icechunk").schema("a int").option("array", "a").load(place.url)
    for frame in (asked, given):
        assert {row.a for row in frame.collect()} == {1}
    commit(2)
    for frame in (
        asked,
        late,
        given,
        load(tag="one"),
        load(snapshot_id=first),
        load(as_of=written_at, branch="main"),
    ):
        assert {row.a for row in frame.collect()} == {1}
    assert {row.a for row in load(branch="main").collect()} == {2}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"array": "/g/a", "wehre": "x = 1"}, "unknown options for reading arrays: 'wehre'"),
        (
            {"table": "chunks", "layout": "rows"},
            "unknown options for reading the table chunks: 'layout'",
        ),
        ({"table": "chunk"}, "'table' is 'chunk'; it takes one of nodes"),
        ({"array": "/g/a", "table": "chunks"}, "one of the options array.* and table"),
        ({"array": "/g/none"}, "there is no array '/g/none'"),
        ({"array": "/g/a", "where": "x == y"}, "has 'y' at 6"),
        ({"array": "/g/a", "nulls": "yes"}, "'nulls' is 'yes'"),
        ({"array": "/g/a", "partition_bytes": "1MB"}, "a whole number from 1"),
        ({"array": "/g/a", "branch": "none"}, "none"),
        ({"array": "/g/a", "as_of": "2024-01-01"}, "a time with its zone"),
        ({"array": "/g/a", "storage.nonsense": "1"}, "nonsense"),
        ({"table": "nodes", "columns": "path,what"}, "the table nodes has path"),
    ],
)
def test_wrong_options_are_refused(repo: Repository, options: dict[str, str], says: str) -> None:
    """What is wrong is named before anything is read, with what there is instead."""
    pytest.importorskip("pyspark")
    from icechunk_arrow.spark.source.reading import pinned, schema_of

    with pytest.raises(IcechunkArrowError, match=says):
        schema_of(pinned({"path": repo.url, **options}))


def test_spark_tells_what_is_wrong(source: Any) -> None:
    """The error arrives when a frame is loaded."""
    with pytest.raises(Exception, match="unknown options for reading arrays: 'wehre'"):
        source(array="/g/a", wehre="x = 1")


def test_options_are_texts_with_a_meaning() -> None:
    """Lists, flags, times and storage options are read as they are written down; nothing else is guessed."""
    asked = Options(
        {
            "A": "x, /y",
            "b": '["with, comma", "z"]',
            "storage.KEY": "007",
            "storage.anon": "true",
            "storage.client_kwargs": '{"retries": 3}',
            "storage.endpoint_url": "http://localhost:1",
            "authorize_virtual_chunk_access": '{"s3://b/": {"anon": true}}',
            "m": '{"a": [1]}',
            "icechunk.pinned": "X",
        }
    )
    assert asked.take_list("a") == ["x", "/y"]
    assert asked.take_list("b") == ["with, comma", "z"]
    assert asked.storage_options() == {
        "key": "007",
        "anon": True,
        "client_kwargs": {"retries": 3},
        "endpoint_url": "http://localhost:1",
    }
    assert asked.allowed() == {"s3://b/": {"anon": True}}
    assert asked.take_object("m") == {"a": [1]}
    assert asked.pinned == "X"
    asked.refuse_rest("a test")
    assert Options({"authorize_virtual_chunk_access": "s3://b/"}).allowed() == ["s3://b/"]
    for name, value, take in (
        ("m", "[1]", "take_object"),
        ("m", "{", "take_object"),
        ("l", "[1]", "take_list"),
        ("t", "monday", "take_time"),
        ("n", "0", "take_number"),
        ("n", "-1", "take_number"),
        ("f", "1", "take_flag"),
    ):
        with pytest.raises(InvalidInputError, match=f"the option '{name}' is "):
            getattr(Options({name: value}), take)(name)
    with pytest.raises(InvalidInputError, match="not a list"):
        Options({"paths": json.dumps(["a", "b"])})
    with pytest.raises(IcechunkArrowError, match="give the URL"):
        Options({}).need("path", "the URL")
