"""Frames written by ``format("icechunk")``: two phases, any partitioning, one commit or nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

import icechunk_arrow.spark
from icechunk_arrow import Repository
from tests.places import read_array
from tests.spark.frames import (
    check_manifests,
    check_only_orphans,
    files_of,
    new_repository,
    reference_table,
    references_of,
    single_process,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

SHAPE = (60, 20)


@pytest.fixture(scope="module", autouse=True)
def registered(spark: Any) -> None:
    """The format is known to the session."""
    icechunk_arrow.spark.register(spark)


def save(frame: Any, root: Path, mode: str = "append", **options: str) -> None:
    """Write a frame."""
    frame.write.format("icechunk").mode(mode).options(**options).save(str(root))


def test_partitions_in_any_order_become_sorted_manifests(spark: Any, tmp_path: Path) -> None:
    """Chunks of two arrays strewn over tasks end as manifests that are sorted and have none in common."""
    repository = new_repository(tmp_path / "r", a=SHAPE, b=(500,))
    table = pa.concat_tables(
        [
            reference_table(SHAPE, seed=1, path="/a"),
            reference_table((500,), seed=2, count=300, path="/b"),
        ]
    )
    table = table.take(np.random.default_rng(3).permutation(table.num_rows))
    before = files_of(tmp_path / "r")

    save(
        spark.createDataFrame(table).repartition(4),
        tmp_path / "r",
        message="strewn",
        metadata=json.dumps({"who": "me"}),
    )

    other = single_process(tmp_path / "s", repository.readonly_session("main"), table, None)
    for path in ("/a", "/b"):
        assert references_of(repository, path) == references_of(other, path)
    info = repository.lookup_snapshot(repository.lookup_branch("main"))
    assert (info.message, dict(info.metadata)) == ("strewn", {"who": "me"})
    assert check_manifests(tmp_path / "r", repository) <= 2
    check_only_orphans(tmp_path / "r", repository, before)


def test_partitions_in_order_are_linked_as_they_are(spark: Any, tmp_path: Path) -> None:
    """What tasks wrote side by side stays: the commit reads and writes no manifest again."""
    repository = new_repository(tmp_path / "r", a=(400,))
    table = reference_table((400,), seed=1)
    frame = spark.createDataFrame(table)
    frame = frame.repartitionByRange(4, frame["index"][0])
    save(frame, tmp_path / "r", array="/a")

    assert [row["index"] for row in references_of(repository, "/a")] == [[n] for n in range(400)]
    check_manifests(tmp_path / "r", repository)
    assert check_only_orphans(tmp_path / "r", repository, set()) == set()


def test_chunks(spark: Any, tmp_path: Path) -> None:
    """Encoded chunks, into an array that the options describe."""
    Repository.create(tmp_path / "r")
    few = np.arange(64, dtype="<i4")
    rows = [([n], few[4 * n : 4 * n + 4].tobytes()) for n in range(16)]
    frame = spark.createDataFrame(rows, "index array<int>, data binary").repartition(3)
    spec = {"shape": [64], "chunks": [4], "dtype": "<i4", "compressors": None}

    save(frame, tmp_path / "r", table="chunks", array="/g/few", arrays=json.dumps({"/g/few": spec}))

    repository = Repository.open(tmp_path / "r")
    assert (read_array(repository, "g/few") == few).all()
    assert len(list(repository.ancestry(branch="main"))) == 2


def test_modes(spark: Any, tmp_path: Path) -> None:
    """Spark's append and overwrite, and error and ignore as an option, since Spark keeps those to itself."""
    repository = new_repository(tmp_path / "r", a=(40,))
    save(spark.createDataFrame(reference_table((40,), seed=1)), tmp_path / "r", array="/a")
    half = spark.createDataFrame(reference_table((20,), seed=2))
    before, files = repository.lookup_branch("main"), files_of(tmp_path / "r")

    with pytest.raises(Exception, match=r"AlreadyExistsError.*'/a' in .* have chunks already"):
        half.write.format("icechunk").mode("append").option("mode", "error").option(
            "array", "/a"
        ).save(str(tmp_path / "r"))
    half.write.format("icechunk").mode("append").option("mode", "ignore").option(
        "array", "/a"
    ).save(str(tmp_path / "r"))
    assert repository.lookup_branch("main") == before
    assert files_of(tmp_path / "r") == files, "what was refused is cleaned up"

    save(half, tmp_path / "r", array="/a")
    assert len(references_of(repository, "/a")) == 40
    save(half, tmp_path / "r", "overwrite", array="/a")
    assert [row["index"] for row in references_of(repository, "/a")] == [[n] for n in range(20)]
    for mode in ("error", "ignore"):
        with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            save(half, tmp_path / "r", mode, array="/a")
    with pytest.raises(Exception, match="the option 'mode' is 'ignore'; it takes one of overwrite"):
        half.write.format("icechunk").mode("overwrite").option("mode", "ignore").save(
            str(tmp_path / "r")
        )


def test_duplicates_of_two_tasks(spark: Any, tmp_path: Path) -> None:
    """A chunk that two tasks were given is found in commit; nothing is changed, and nothing stays behind."""
    repository = new_repository(tmp_path / "r", a=(30,))
    table = reference_table((30,))
    chunk = table["index"][4].as_py()[0]
    frame = spark.createDataFrame(table).repartition(2)
    twice = frame.union(spark.createDataFrame(table.slice(4, 1)))
    before, files = repository.lookup_branch("main"), files_of(tmp_path / "r")

    with pytest.raises(
        Exception, match=rf"InvalidInputError: .*chunk \({chunk},\) stands there twice"
    ):
        save(twice, tmp_path / "r", array="/a")
    assert repository.lookup_branch("main") == before
    assert files_of(tmp_path / "r") == files

    save(twice, tmp_path / "r", array="/a", duplicates="last")
    assert len(references_of(repository, "/a")) == 30


def test_a_task_that_fails(spark: Any, tmp_path: Path) -> None:
    """The text names row and array; history is as before, and the files that were written are cleaned up."""
    repository = new_repository(tmp_path / "r", a=(400,))
    rows = [([n], "s3://b/f", n, 1) for n in range(399)] + [([399], "s3://b/../f", 5, 1)]
    frame = spark.createDataFrame(
        rows, "index array<int>, location string, offset long, length long"
    )
    frame = frame.repartitionByRange(3, frame["index"][0]).cache()
    frame.count()
    before, files = repository.lookup_branch("main"), files_of(tmp_path / "r")

    with pytest.raises(
        Exception,
        match=r"InvalidInputError: the row index=\[399\].*for '/a': the location 's3://b/\.\./f'",
    ):
        save(frame, tmp_path / "r", array="/a")
    frame.unpersist()

    assert repository.lookup_branch("main") == before
    left = files_of(tmp_path / "r") - files
    assert left == check_only_orphans(tmp_path / "r", repository, files)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"arry": "/a"}, "unknown options for writing: 'arry'; there are array,"),
        ({}, "which array"),
        ({"array": "/b"}, "there is no array '/b'"),
        ({"array": "/a", "branch": "none"}, "'none'"),
        ({"array": "/a", "table": "nodes"}, "the option 'table' is 'nodes'; it takes one of"),
        ({"array": "/a", "table": "chunks"}, "no column 'data'"),
        ({"array": "/a", "metadata": "[1]"}, "it takes a JSON object"),
        ({"array": "/a", "query_id": "x"}, "unknown options for writing: 'query_id'"),
    ],
)
def test_wrong_options(spark: Any, tmp_path: Path, options: dict[str, str], said: str) -> None:
    """What is wrong with options or columns is said before any task runs."""
    new_repository(tmp_path / "r", a=(4,))
    ran = spark.sparkContext.accumulator(0)

    def count(batches: Any) -> Any:
        for batch in batches:
            ran.add(1)
            yield batch

    frame = spark.createDataFrame(reference_table((4,)))
    with pytest.raises(Exception, match=said):
        save(frame.mapInArrow(count, frame.schema), tmp_path / "r", **options)
    assert ran.value == 0


def test_an_empty_frame(spark: Any, tmp_path: Path) -> None:
    """Without rows there is no commit; arrays that the options describe are made."""
    repository = new_repository(tmp_path / "r", a=(4,))
    frame = spark.createDataFrame(reference_table((4,))).where("false")
    before = repository.lookup_branch("main")
    save(frame, tmp_path / "r", array="/a")
    assert repository.lookup_branch("main") == before
    spec = {"shape": [4], "chunks": [1], "dtype": "u1"}
    save(frame, tmp_path / "r", array="/z", arrays=json.dumps({"/z": spec}))
    assert repository.readonly_session("main").find_array("/z") is not None


def test_commits_of_others_meanwhile(spark: Any, tmp_path: Path) -> None:
    """A write goes on top of what others commit while its tasks run, arrays that it makes too; or it is refused."""
    repository = new_repository(tmp_path / "r", a=(40,), b=(40,))
    root = str(tmp_path / "r")
    table = reference_table((40,), seed=1)

    def commit_first(path: str) -> Any:
        def work(batches: Any) -> Any:
            from icechunk_arrow import Repository as Opened

            for batch in batches:
                session = Opened.open(root).writable_session("main")
                session.set_references(path, reference_table((40,), seed=8))
                session.set_document(
                    f"/made{path}", b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
                )
                session.commit("meanwhile")
                yield batch

        return work

    frame = spark.createDataFrame(table).coalesce(1)
    spec = {"shape": [40], "chunks": [1], "dtype": "u1"}
    save(
        frame.mapInArrow(commit_first("/b"), frame.schema),
        tmp_path / "r",
        array="/new",
        arrays=json.dumps({"/new": spec}),
    )
    messages = [info.message for info in repository.ancestry(branch="main")]
    assert messages[:2] == ["write references", "meanwhile"]
    assert len(references_of(repository, "/new")) == len(references_of(repository, "/b")) == 40

    with pytest.raises(Exception, match="RebaseFailedError"):
        save(frame.mapInArrow(commit_first("/a"), frame.schema), tmp_path / "r", array="/a")
    assert next(iter(repository.ancestry(branch="main"))).message == "meanwhile"
    check_only_orphans(tmp_path / "r", repository, set())


def grid(root: Path) -> np.ndarray:
    """Make an array of 6 times and 4 stations, in chunks of 2 by 4, with coordinates; give what rows will say."""
    session = Repository.create(root).writable_session("main")
    for name, values in (
        ("time", np.arange(6) * 10.0),
        ("station", np.arange(4, dtype="i4") + 100),
    ):
        made = zarr.create_array(
            session.store,
            name=name,
            shape=values.shape,
            dtype=values.dtype,
            dimension_names=(name,),
        )
        made[...] = values
    zarr.create_array(
        session.store,
        name="t",
        shape=(6, 4),
        chunks=(2, 4),
        dtype="f4",
        fill_value=np.nan,
        dimension_names=("time", "station"),
    )
    session.commit("create")
    return np.arange(24, dtype="f4").reshape(6, 4)


def test_rows(spark: Any, tmp_path: Path) -> None:
    """Rows become cells, whole chunks of a partition at once; what is stored beside them stays."""
    values = grid(tmp_path / "r")
    rows = [(t * 10.0, s + 100, float(values[t, s])) for t in range(6) for s in range(4)]
    frame = spark.createDataFrame(rows, "time double, station int, t float")
    frame = frame.repartitionByRange(3, (frame["time"] / 20).cast("int")).sortWithinPartitions("t")
    repository = Repository.open(tmp_path / "r")

    save(frame.where("station <> 102"), tmp_path / "r", table="rows")
    found = read_array(repository, "t")
    assert np.isnan(found[:, 2]).all()
    assert (np.delete(found, 2, axis=1) == np.delete(values, 2, axis=1)).all()
    save(
        frame.where("station = 102").selectExpr("time", "station", "t AS x"),
        tmp_path / "r",
        table="rows",
        columns='{"x": "/t"}',
    )
    assert (read_array(repository, "t") == values).all()
    save(
        frame.where("time = 0"),
        tmp_path / "r",
        "overwrite",
        table="rows",
        dimensions="time, station",
    )
    assert (read_array(repository, "t")[0] == values[0]).all()
    assert np.isnan(read_array(repository, "t")[1:]).all()


def test_rows_of_a_chunk_in_two_tasks(spark: Any, tmp_path: Path) -> None:
    """They are refused with the chunk and the function that brings them together; what is wrong otherwise too."""
    values = grid(tmp_path / "r")
    repository = Repository.open(tmp_path / "r")
    before = repository.lookup_branch("main")
    rows = [(t * 10.0, s + 100, float(values[t, s])) for t in range(6) for s in range(4)]
    frame = spark.createDataFrame(rows, "time double, station int, t float").repartition(2)

    with pytest.raises(
        Exception,
        match=r"Use icechunk_arrow\.spark\.write_rows,.*'/t': chunk \(\d, 0\) stands there twice",
    ):
        save(frame, tmp_path / "r", table="rows")
    one = frame.coalesce(1)
    for wrong, options, said in (
        (one.union(one).coalesce(1), {}, "duplicates= may be 'last', 'mean' or 'sum'"),
        (one.selectExpr("time + 1 AS time", "station", "t"), {}, "time"),
        (one.selectExpr("time", "station", "t AS u"), {"columns": "u"}, "there is no array '/u'"),
        (one.selectExpr("time", "station", "t AS u"), {}, "which columns are the dimensions"),
        (one.selectExpr("time", "t"), {"columns": "t"}, "the column 'station' is not there"),
        (one, {"order_by": "t"}, "it goes with duplicates=last"),
        (one, {"array": "/t"}, "unknown options for writing: 'array'"),
    ):
        with pytest.raises(Exception, match=said):
            save(wrong, tmp_path / "r", table="rows", **options)
    assert repository.lookup_branch("main") == before
    save(one.union(one).coalesce(1), tmp_path / "r", table="rows", duplicates="sum")
    assert (read_array(repository, "t") == 2 * values).all()
