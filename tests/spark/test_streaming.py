"""Streams into a repository: every batch once, whatever is repeated."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import icechunk_arrow.spark
from icechunk_arrow import ConflictDetector, Repository
from icechunk_arrow.core.stream_marks import LAST_BATCHES, THIS_BATCH, Batch, Query
from icechunk_arrow.errors import InvalidInputError, RebaseFailedError
from icechunk_arrow.spark import each_batch, write_chunks, write_references
from icechunk_arrow.spark.writing.row_arrays import named_paths
from icechunk_arrow.spark.writing.streams import commit_batch, is_committed
from tests.spark.frames import (
    check_manifests,
    check_only_orphans,
    new_repository,
    reference_table,
    references_of,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

SCHEMA = "index array<int>, location string, offset long, length long"


@pytest.fixture(scope="module", autouse=True)
def registered(spark: Any) -> None:
    """The format is known to the session."""
    icechunk_arrow.spark.register(spark)


def add_file(source: Path, number: int, size: int = 10) -> pa.Table:
    """Let a file arrive: references to the next so many chunks."""
    source.mkdir(exist_ok=True)
    table = pa.table(
        {
            "index": pa.array(
                [[n] for n in range(number * size, number * size + size)], pa.list_(pa.int32())
            ),
            "location": [f"s3://b/{number}"] * size,
            "offset": pa.array(range(size), pa.int64()),
            "length": pa.array([number + 1] * size, pa.int64()),
        }
    )
    pq.write_table(table, source / f".{number}.tmp")
    (source / f".{number}.tmp").rename(source / f"{number:04}.parquet")
    return table


def arriving(spark: Any, source: Path) -> Any:
    """Give the stream of files, one in each batch."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(source))


def run(stream: Any, checkpoint: Path) -> str:
    """Write all that there is, and give the query's id."""
    query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert not query.isActive
    return str(query.id)


def by_format(spark: Any, root: Path, source: Path, **options: str) -> Any:
    """A stream to the format."""
    writer = arriving(spark, source).writeStream.format("icechunk")
    return writer.option("path", str(root)).option("array", "/a").options(**options)


def by_function(spark: Any, root: Path, source: Path, **options: Any) -> Any:
    """The same through foreachBatch."""
    return arriving(spark, source).writeStream.foreachBatch(
        each_batch(write_references, root, array_path="/a", **options)
    )


@pytest.mark.parametrize("way", [by_format, by_function])
def test_every_batch_is_one_commit(spark: Any, tmp_path: Path, way: Any) -> None:
    """Batches become commits that say which they are; a restart goes on behind the last of them."""
    repository = new_repository(tmp_path / "r", a=(100,))
    for number in range(2):
        add_file(tmp_path / "in", number)
    query = run(way(spark, tmp_path / "r", tmp_path / "in"), tmp_path / "checkpoint")
    add_file(tmp_path / "in", 2)
    assert run(way(spark, tmp_path / "r", tmp_path / "in"), tmp_path / "checkpoint") == query

    history = list(repository.ancestry(branch="main"))[:3]
    for number, info in zip((2, 1, 0), history, strict=True):
        name = f"{query}:references:/a"
        assert info.metadata[THIS_BATCH] == {"query_id": name, "batch_id": number}
        assert info.metadata[LAST_BATCHES] == {name: number}
    rows = references_of(repository, "/a")
    assert [(row["index"], row["length"]) for row in rows] == [
        ([n], n // 10 + 1) for n in range(30)
    ]
    check_manifests(tmp_path / "r", repository)


@pytest.mark.parametrize("way", [by_format, by_function])
def test_a_repeated_batch_is_recognised(spark: Any, tmp_path: Path, way: Any) -> None:
    """A batch whose end the checkpoint does not know comes again, and is not applied a second time."""
    repository = new_repository(tmp_path / "r", a=(100,))
    for number in range(2):
        add_file(tmp_path / "in", number)
    run(way(spark, tmp_path / "r", tmp_path / "in"), tmp_path / "checkpoint")
    session = repository.writable_session("main")
    session.delete_chunk("/a", (15,))  # so that it would be seen
    after = session.commit("in between")
    assert LAST_BATCHES in repository.lookup_snapshot(after).metadata, "others carry it forward"

    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    run(way(spark, tmp_path / "r", tmp_path / "in"), tmp_path / "checkpoint")

    assert repository.lookup_branch("main") == after
    assert check_only_orphans(tmp_path / "r", repository, set()) == set()
    add_file(tmp_path / "in", 2)
    run(way(spark, tmp_path / "r", tmp_path / "in"), tmp_path / "checkpoint")
    assert [row["index"][0] for row in references_of(repository, "/a")] == [
        *range(15),
        *range(16, 30),
    ]


def test_another_checkpoint_under_the_same_name(spark: Any, tmp_path: Path) -> None:
    """A query that starts anew with a name that was used is refused, not passed over."""
    repository = new_repository(tmp_path / "r", a=(100,))
    add_file(tmp_path / "in", 0)
    query = run(
        by_format(spark, tmp_path / "r", tmp_path / "in", query_id="mine"), tmp_path / "one"
    )
    assert repository.lookup_snapshot(repository.lookup_branch("main")).metadata[LAST_BATCHES] == {
        f"mine@{query}:references:/a": 0
    }
    add_file(tmp_path / "in", 1)
    before = repository.lookup_branch("main")
    for way in (by_format, by_function):
        shutil.rmtree(tmp_path / "two", ignore_errors=True)
        with pytest.raises(Exception, match="of another checkpoint than those of"):
            run(way(spark, tmp_path / "r", tmp_path / "in", query_id="mine"), tmp_path / "two")
    assert repository.lookup_branch("main") == before


def test_a_query_that_cannot_be_named(spark: Any, tmp_path: Path) -> None:
    """Outside a query there is no id to be had, and a name is asked for."""
    new_repository(tmp_path / "r", a=(100,))
    frame = spark.createDataFrame(reference_table((10,)))
    with pytest.raises(InvalidInputError, match="give query_id"):
        each_batch(write_references, tmp_path / "r", array_path="/a")(frame, 0)
    session = Repository.open(tmp_path / "r").writable_session("main")
    with pytest.raises(InvalidInputError, match="a session cannot take it"):
        each_batch(write_references, session)  # type: ignore[arg-type]


def test_several_writes_of_a_batch(spark: Any, tmp_path: Path) -> None:
    """A function of one's own writes several frames in the batch's one commit."""
    repository = new_repository(tmp_path / "r", a=(100,), b=(100,))
    add_file(tmp_path / "in", 0)

    def both(frame: Any, session: Any) -> None:
        write_references(frame, session, "/a")
        write_chunks(frame.selectExpr("index", "binary('x') AS data"), session, "/b")

    stream = arriving(spark, tmp_path / "in").writeStream.foreachBatch(
        each_batch(both, repository, message="two arrays", metadata={"k": 1})
    )
    run(stream, tmp_path / "checkpoint")
    info = repository.lookup_snapshot(repository.lookup_branch("main"))
    assert (info.message, info.metadata["k"]) == ("two arrays", 1)
    assert len(references_of(repository, "/a")) == len(references_of(repository, "/b")) == 10


def test_one_query_into_several_places(spark: Any, tmp_path: Path) -> None:
    """What a batch brings to one array is not taken for what it brings to another: no rows are passed over."""
    repository = new_repository(tmp_path / "r", a=(100,), b=(100,))
    frame = spark.createDataFrame(reference_table((10,)))
    chunks = frame.selectExpr("index", "binary('x') AS data")

    def into_b(frame: Any, session: Any, path: str) -> None:
        write_chunks(frame, session, path)

    def quiet(frame: Any, session: Any, options: Any) -> None:
        write_chunks(frame, session, "/a")

    for number in range(2):
        for path in ("/a", "/b"):
            each_batch(write_references, repository, query_id="q", array_path=path)(frame, number)
        each_batch(write_chunks, repository, query_id="q", array_path="/b")(chunks, number)
        each_batch(into_b, repository, query_id="q", path="/a")(chunks, number)
    first = repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match="batch 0 of the query"):
        each_batch(into_b, repository, query_id="q", path="/a")(chunks, 0)
    info = repository.lookup_snapshot(first)
    assert set(info.metadata[LAST_BATCHES].values()) == {1}
    assert len(info.metadata[LAST_BATCHES]) == 4
    each_batch(quiet, repository, query_id="q", options={"secret": "hunter2"})(chunks, 0)
    told = repository.lookup_snapshot(repository.lookup_branch("main")).metadata
    assert any("quiet" in name for name in told[LAST_BATCHES])
    assert "hunter2" not in str(told)
    first = repository.lookup_branch("main")
    each_batch(into_b, repository, query_id="q", path="/a")(chunks, 1)
    each_batch(write_references, repository, query_id="q", array_path="/b")(frame, 1)
    assert repository.lookup_branch("main") == first
    assert {row["path"] for row in repository.tables("chunks").to_pylist()} == {"/a", "/b"}


def test_names_of_what_is_written() -> None:
    """The same arrays, however they are said, are the same query; others are another one."""
    assert (
        named_paths(["t", "u"], "/g")
        == ["/g/t", "/g/u"]
        == named_paths({"x": "t", "y": {"path": "/g/u"}}, "g")
    )
    assert named_paths("t", "/") == ["/t"] == named_paths({"t": {"dtype": "i4"}}, "/")
    assert named_paths(None, "/g") == ["/g/*"]
    query = Query(kind="rows", targets=("/b", "/a"), checkpoint="1", name="q")
    assert query.id == "q@1:rows:/a,/b"
    assert Query(kind="f", checkpoint="1").id == "1:f:"
    for other in ("q@2:rows:/a,/b", "q@1:rows:/a", "r@2:rows:/a,/b", "q:rows:/a,/b"):
        marks = {LAST_BATCHES: {other: 0}}
        if other.startswith("q@2"):
            with pytest.raises(InvalidInputError, match="of another checkpoint"):
                query.batch(7).is_in(marks)
        else:
            assert not query.batch(0).is_in(marks)
    assert query.batch(0).is_in({LAST_BATCHES: {query.id: 0}})


def test_two_drivers_with_one_batch(tmp_path: Path) -> None:
    """Of two that commit the same batch one does; also when the other one's base is older, or both race."""
    repository = new_repository(tmp_path / "r", a=(100,))
    batch = Batch(query_id="q", batch_id=4)
    sessions = [repository.writable_session("main") for _ in range(2)]
    for session in sessions:
        session.set_references("/a", reference_table((10,)))
    first = commit_batch(repository, sessions[0], batch, "one", {})
    assert first is not None
    assert is_committed(repository, "main", batch)
    assert commit_batch(repository, sessions[1], batch, "two", {}) is None
    assert repository.lookup_branch("main") == first

    late = repository.writable_session("main")
    late.set_references("/a", reference_table((10,)))
    other = repository.writable_session("main")
    other.set_references("/a", reference_table((10,), seed=2))
    tip = other.commit("others write the same chunks")
    with pytest.raises(RebaseFailedError):
        commit_batch(repository, late, Batch(query_id="q", batch_id=5), "late", {})
    assert repository.lookup_branch("main") == tip


def test_queries_side_by_side(tmp_path: Path) -> None:
    """The last batch of every query goes along with all commits: of others, of rewrites, on a new branch."""
    repository = new_repository(tmp_path / "r", a=(100,), b=(100,))
    for query, path, number in (("p", "/a", 0), ("q", "/b", 7), ("p", "/a", 1)):
        session = repository.writable_session("main")
        session.set_references(path, reference_table((10,)))
        commit_batch(repository, session, Batch(query_id=query, batch_id=number), query, {})
    repository.create_branch("side", repository.lookup_branch("main"))
    session = repository.writable_session("side")
    session.set_references("/a", reference_table((3,), seed=4))
    other = repository.writable_session("side")
    other.set_references("/b", reference_table((3,), seed=4))
    other.commit("other")
    session.commit("by hand", {"mine": 1}, rebase_with=ConflictDetector())
    repository.rewrite_manifests("side", "rewrite")
    found = repository.lookup_snapshot(repository.lookup_branch("side")).metadata
    assert found[LAST_BATCHES] == {"p": 1, "q": 7}
    assert THIS_BATCH not in found
    assert is_committed(repository, "side", Batch(query_id="q", batch_id=7))
    assert not is_committed(repository, "side", Batch(query_id="q", batch_id=8))
    with pytest.raises(InvalidInputError, match="batch 0 of the query 'p' comes after batch 1"):
        is_committed(repository, "side", Batch(query_id="p", batch_id=0))


def test_complete_output_overwrites(spark: Any, tmp_path: Path) -> None:
    """A stream of complete results replaces what the array had, batch by batch."""
    repository = new_repository(tmp_path / "r", a=(100,))
    for number in range(2):
        add_file(tmp_path / "in", number)
    counted = (
        arriving(spark, tmp_path / "in")
        .groupBy("location")
        .agg({"offset": "count"})
        .selectExpr(
            "array(int(`count(offset)`)) AS index", "location", "0L AS offset", "1L AS length"
        )
        .where("location = 's3://b/1'")
    )
    stream = counted.writeStream.format("icechunk").outputMode("complete")
    run(stream.option("path", str(tmp_path / "r")).option("array", "/a"), tmp_path / "checkpoint")
    rows = references_of(repository, "/a")
    assert [(row["index"], row["location"]) for row in rows] == [([10], "s3://b/1")]
