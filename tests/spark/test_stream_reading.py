"""``readStream.format("icechunk")``: commits of a branch, batch by batch, across restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icechunk_arrow import Repository
from icechunk_arrow.errors import IcechunkArrowError
from icechunk_arrow.spark import register

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


class Follower:
    """A query that can be run to the end, and again from its checkpoint."""

    def __init__(self, spark: Any, url: str, checkpoint: Path, **options: str) -> None:
        register(spark)
        self._spark, self._url, self._checkpoint = spark, url, checkpoint
        self._options = options

    def run(self) -> list[list[dict[str, Any]]]:
        """Give the rows of each batch up to what is there now."""
        batches: dict[int, list[dict[str, Any]]] = {}

        def keep(frame: Any, number: int) -> None:
            batches[number] = [row.asDict() for row in frame.collect()]

        stream = self._spark.readStream.format("icechunk").options(**self._options).load(self._url)
        query = (
            stream.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(300)
        assert not query.isActive
        self.progress = [each["sources"][0] for each in query.recentProgress]
        return [batches[number] for number in sorted(batches)]


def write(repo: Repository, where: Any, value: int) -> str:
    """Commit some elements of the array ``a``."""
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[where] = value
    return session.commit(f"{value}")


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """An array of four by three chunks, none of them written."""
    repo = Repository.create(tmp_path / "repo")
    session = repo.writable_session("main")
    zarr.create_array(
        session.store,
        name="a",
        shape=(8, 6),
        chunks=(2, 2),
        dtype="i4",
        fill_value=0,
        dimension_names=["y", "x"],
    )
    session.commit("made")
    return repo


def test_commits_arrive_once_within_limits(spark: Any, repo: Repository, tmp_path: Path) -> None:
    """Each commit's chunks come once, at most so many commits in a batch, also when the query is started again."""
    ids = [write(repo, (2 * n, 0), n + 1) for n in range(4)]
    follower = Follower(
        spark,
        repo.url,
        tmp_path / "checkpoint",
        starting="earliest",
        max_commits_per_trigger="2",
    )
    batches = follower.run()

    assert [[row["snapshot"] for row in batch] for batch in batches] == [ids[:1], ids[1:3], ids[3:]]
    assert [row["index"] for batch in batches for row in batch] == [[n, 0] for n in range(4)]
    assert {row["operation"] for batch in batches for row in batch} == {"write_chunk"}
    assert follower.run() == []
    session = repo.writable_session("main")
    session.delete_chunk("/a", (0, 0))
    zarr.open_array(session.store, path="a").resize((6, 6))
    last = session.commit("less")
    (rows,) = follower.run()
    assert sorted((row["index"], row["operation"], row["snapshot"]) for row in rows) == [
        ([0, 0], "delete_chunk", last),
        ([3, 0], "delete_chunk", last),
    ]
    repo.reset_branch("main", ids[1])
    with pytest.raises(Exception, match=f"{last}.*was reset"):
        follower.run()


def test_rows_of_changed_chunks(spark: Any, repo: Repository, tmp_path: Path) -> None:
    """A stream of an array gives the elements of what changed since a tag, as they were behind each commit."""
    repo.create_tag("begin", write(repo, (slice(None), slice(None)), 1))
    follower = Follower(
        spark,
        repo.url,
        tmp_path / "checkpoint",
        array="/a",
        since="begin",
        columns="y,x,a,_snapshot",
        where="y <> 2",
        max_commits_per_trigger="1",
        partition_bytes="16",
    )
    assert [batch for batch in follower.run() if batch] == []
    ids = [write(repo, (slice(2, 4), slice(1, 3)), 5), write(repo, (7, 5), 6)]
    batches = [batch for batch in follower.run() if batch]

    expected = np.array([[1, 5, 5, 1]])
    assert [{row["_snapshot"] for row in batch} for batch in batches] == [{each} for each in ids]
    assert sorted((row["y"], row["x"], row["a"]) for row in batches[0]) == [
        (3, x, value) for x, value in enumerate(expected[0].tolist())
    ]
    assert sorted((row["y"], row["x"], row["a"]) for row in batches[1]) == [
        (6, 4, 1),
        (6, 5, 1),
        (7, 4, 1),
        (7, 5, 6),
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "chunks"}, "leave out the option table"),
        ({"tag": "t"}, "which tag is not"),
        ({"starting": "now"}, "one of latest, earliest"),
        ({"starting": "earliest", "since": "t"}, "give one of them"),
        ({"since": "nothing"}, "'nothing' is no snapshot, branch or tag"),
        ({"max_commits_per_triger": "1"}, "unknown options for a stream: 'max_commits_per_triger'"),
        ({"branch": "none"}, "none"),
    ],
)
def test_wrong_options_are_refused(repo: Repository, options: dict[str, str], says: str) -> None:
    """What is wrong is said at the latest when a query begins."""
    pytest.importorskip("pyspark")
    from icechunk_arrow.spark.source.reading import schema_of, stream_reader_of

    asked = {"path": repo.url, **options}
    schema = schema_of({"path": repo.url})
    with pytest.raises(IcechunkArrowError, match=says):
        stream_reader_of(asked, schema).initialOffset()


def test_a_query_ends_with_what_is_wrong(spark: Any, repo: Repository, tmp_path: Path) -> None:
    """Spark passes the text on."""
    with pytest.raises(Exception, match="'nothing' is no snapshot, branch or tag"):
        Follower(spark, repo.url, tmp_path / "checkpoint", since="nothing").run()
