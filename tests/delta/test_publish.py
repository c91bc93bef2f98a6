"""A Delta table shows the chunks of a snapshot, whatever happened before it was published."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import zarr

import icechunk_arrow.delta
from icechunk_arrow import InvalidInputError, NotFoundError, Repository, SnapshotNotFoundError
from icechunk_arrow.delta import Publication, publish, published, snapshot_of, version_of
from icechunk_arrow.delta.notes import app_id, encode, shown_after
from icechunk_arrow.delta.publishing import _note, _place, _rows, everything
from icechunk_arrow.delta.tables import delta_table
from tests.delta.inventories import (
    COLUMNS,
    check_shows,
    rows_of_repository,
    rows_of_table,
    rows_read_by_duckdb,
)
from tests.places import make_array, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icechunk_arrow import Session

pytestmark = pytest.mark.delta


def set_values(repo: Repository, where: Any, value: int, path: str = "a") -> str:
    """Commit other values of a part of an array."""
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path=path)
    array[where] = value
    return session.commit(f"set {where}")


def one(spark: Any, repo: Repository, table: Any, **which: Any) -> Publication:
    """Publish a single repository."""
    return publish(spark, repo, table, **which)[repo.url]


def references(*locations: str) -> pa.Table:
    """Make references to chunks of the first row of an array."""
    return pa.table(
        {
            "index": [[0, place] for place in range(len(locations))],
            "location": list(locations),
            "offset": [100] * len(locations),
            "length": [16] * len(locations),
            "etag": [f"e{place}" for place in range(len(locations))],
        }
    )


def changed(repo: Repository, change: Callable[[Session], None]) -> str:
    """Commit what a function does to a session."""
    session = repo.writable_session("main")
    change(session)
    return session.commit("change")


def manifests_of(repo: Repository, snapshot_id: str, path: str) -> set[str]:
    """Give the manifests that have chunks of an array."""
    rows = rows_of_repository(repo, snapshot_id)
    return {row[COLUMNS.index("manifest")] for row in rows if row[0] == path}


def rows_in(repo: Repository, snapshot_id: str, manifests: set[str]) -> int:
    """Count the rows of a snapshot that are in some manifests."""
    rows = rows_of_repository(repo, snapshot_id)
    return sum(row[COLUMNS.index("manifest")] in manifests for row in rows)


def rows_in_other_manifests(repo: Repository, before: str, after: str) -> int:
    """Count the rows of a snapshot that stand in manifests which an earlier one has not."""
    found = repo.tables("manifests", snapshot_id=after)["manifest"].to_pylist()
    known = repo.tables("manifests", snapshot_id=before)["manifest"].to_pylist()
    return rows_in(repo, after, set(found) - set(known))


def test_a_table_follows_a_repository(spark: Any, tmp_path: Path) -> None:
    """After every kind of commit the table has the repository's rows, written by what changed alone."""
    repo, table = Repository.create(tmp_path / "r"), tmp_path / "t"
    written(repo, name="a")
    session = repo.writable_session("main")
    make_array(session.store, "g/v", shape=(4, 8))
    session.set_references("/g/v", references("s3://bucket/one.nc", "https://host/b[x]%20.nc"))
    first = session.commit("virtual")
    steps: list[tuple[str, int]] = []

    def step(snapshot_id: str, *, rows: int | None = None, whole: bool = False) -> None:
        if rows is None:
            rows = rows_in_other_manifests(repo, steps[-1][0], snapshot_id)
        done = one(spark, repo, table)
        assert (done.snapshot_id, done.changed, done.whole) == (snapshot_id, True, whole)
        assert done.rows_written == rows
        check_shows(spark, table, repo, snapshot_id)
        steps.append((snapshot_id, done.version))

    step(first, rows=18, whole=True)
    with repo.transaction("main", message="append") as store:
        array: Any = zarr.open_array(store, path="a")
        array.resize((12, 8))
        array[8:] = 5
    step(repo.lookup_branch("main"), rows=8)
    step(set_values(repo, slice(0, 2), 9))
    attributes = b'{"zarr_format": 3, "node_type": "group", "attributes": {"x": 1}}'
    step(changed(repo, lambda session: session.set_document("/g", attributes)), rows=0)
    step(changed(repo, lambda session: session.delete_chunk("/g/v", (0, 1))))
    moved = changed(repo, lambda session: session.move("/g", "/h"))
    step(moved, rows=rows_in(repo, moved, manifests_of(repo, moved, "/h/v")))
    removed = changed(repo, lambda session: session.delete_nodes(["/a"]))
    step(removed)
    assert rows_read_by_duckdb(table) == rows_of_repository(repo, removed)
    repo.reset_branch("main", steps[1][0])
    step(steps[1][0])
    assert rows_read_by_duckdb(table) == rows_of_repository(repo, steps[1][0])
    again = one(spark, repo, table)
    assert again == Publication(
        repository=repo.url, snapshot_id=steps[1][0], version=steps[-1][1], changed=False
    )

    for snapshot_id, version in steps:
        assert snapshot_of(spark, table, version) == snapshot_id
        found = rows_of_table(spark, table, repo.url, version)
        assert found == rows_of_repository(repo, snapshot_id)
    assert version_of(spark, table, steps[2][0]) == steps[2][1]
    assert version_of(spark, table, steps[1][0]) == steps[-1][1]
    assert [version for _, version in steps] == list(range(1, len(steps) + 1))
    with pytest.raises(SnapshotNotFoundError, match="published says"):
        version_of(spark, table, "00000000000000000000")


def test_several_repositories_share_a_table(spark: Any, tmp_path: Path) -> None:
    """Each has its partition and its commits; names may be any text, and tables those of a catalog."""
    names = ("plain", 'it\'s `${x}` \\ "ü"/=%20')
    repos = {name: Repository.create(tmp_path / f"r{n}") for n, name in enumerate(names)}
    for value, repo in enumerate(repos.values()):
        written(repo, value + 1)
    spark.sql("CREATE DATABASE IF NOT EXISTS lake")
    publish(spark, repos, "lake.chunks")
    later = set_values(repos[names[1]], slice(0, 2), 9)
    done = publish(spark, repos, "lake.chunks")

    assert [done[name].changed for name in names] == [False, True]
    for name, repo in repos.items():
        check_shows(spark, "lake.chunks", repo, repo.lookup_branch("main"), name)
    heads = {name: repo.lookup_branch("main") for name, repo in repos.items()}
    assert published(spark, "lake.chunks") == heads
    assert snapshot_of(spark, "lake.chunks", repository=names[1]) == later
    assert version_of(spark, "lake.chunks", later) == done[names[1]].version
    with pytest.raises(InvalidInputError, match="several repositories"):
        snapshot_of(spark, "lake.chunks")
    assert published(spark, "lake.chunks", 0) == {}
    detail = spark.sql("DESCRIBE DETAIL lake.chunks").first()
    assert detail.partitionColumns == ["repository"]
    spark.sql("DROP TABLE lake.chunks")


def test_what_others_did_to_the_table_is_put_right(spark: Any, tmp_path: Path) -> None:
    """Rows that others changed are written anew; OPTIMIZE changes none."""
    repo, table = Repository.create(tmp_path / "r"), tmp_path / "a table `with` [odd] name"
    head = written(repo)
    relation = delta_table(spark, table).relation
    one(spark, repo, table)
    spark.sql(f"OPTIMIZE {relation}")

    assert not one(spark, repo, table).changed
    spark.sql(f"DELETE FROM {relation} WHERE length > 0")
    assert published(spark, table) == {}
    with pytest.raises(NotFoundError, match="not known which snapshot"):
        snapshot_of(spark, table)
    assert one(spark, repo, table).whole
    check_shows(spark, table, repo, head)
    later = set_values(repo, slice(0, 2), 9)
    assert not one(spark, repo, table).whole
    spark.sql(f"RESTORE TABLE {relation} TO VERSION AS OF 1")
    assert one(spark, repo, table).whole
    check_shows(spark, table, repo, later)


def test_without_the_published_snapshot_all_is_written(spark: Any, tmp_path: Path) -> None:
    """A published snapshot that has expired, or another repository in its place, is no hindrance."""
    repo, table = Repository.create(tmp_path / "r"), tmp_path / "t"
    head = written(repo)
    one(spark, repo, table)
    later = set_values(repo, slice(0, 2), 9)
    (tmp_path / "r" / "s" / f"{head}.parquet").unlink()
    reopened = Repository.open(tmp_path / "r")

    assert one(spark, reopened, table).whole
    check_shows(spark, table, reopened, later)


def test_two_publishers_at_once_write_once(spark: Any, tmp_path: Path) -> None:
    """Of those who publish one snapshot at once one does, and the others see that it is done."""
    repo, table = Repository.create(tmp_path / "r"), tmp_path / "t"
    written(repo)
    one(spark, repo, table)
    head = set_values(repo, slice(0, 2), 9)
    together = threading.Barrier(3)

    def run(_: int) -> Publication:
        session = spark.newSession()
        together.wait()
        return one(session, Repository.open(tmp_path / "r"), table)

    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(run, range(3)))

    assert sum(each.changed for each in done) == 1
    assert {(each.snapshot_id, each.version) for each in done} == {(head, 2)}
    check_shows(spark, table, repo, head)


def test_a_publisher_that_comes_too_late_changes_nothing(spark: Any, tmp_path: Path) -> None:
    """What was worked out from a table that has moved on since is passed over, not written beside it."""
    repo, name = Repository.create(tmp_path / "r"), "r"
    old = written(repo)
    publish(spark, {name: repo}, tmp_path / "t")
    table = delta_table(spark, tmp_path / "t")
    commits = table.commits()
    late = _note(name, old, _place(repo._context), commits, shown_after(commits))
    head = set_values(repo, slice(0, 2), 9)
    publish(spark, {name: repo}, tmp_path / "t")
    change = everything(repo._context.files.read_snapshot(old))

    with _rows(spark, repo._context, late, change) as rows:
        table.write(
            rows,
            where=None,
            user_metadata=encode(late),
            app_id=app_id(name),
            number=late.number,
        )

    assert table.newest_version() == 2
    check_shows(spark, tmp_path / "t", repo, head, name)


def test_what_is_wrong_is_said(spark: Any, tmp_path: Path) -> None:
    """A table that is something else, a place that is none, and a snapshot whose file has gone."""
    repo = Repository.create(tmp_path / "r")
    written(repo)
    spark.range(3).write.format("delta").save(str(tmp_path / "other"))

    with pytest.raises(InvalidInputError, match="no chunk inventory"):
        publish(spark, repo, tmp_path / "other")
    with pytest.raises(InvalidInputError, match="names no table"):
        publish(spark, repo, "a table; DROP TABLE x")
    with pytest.raises(InvalidInputError, match="memory of this process"):
        publish(spark, Repository.create("memory://delta-publish"), tmp_path / "t")
    with pytest.raises(NotFoundError, match="no Delta table"):
        published(spark, tmp_path / "nothing")
    (manifest,) = (tmp_path / "r" / "i").iterdir()
    manifest.unlink()
    with pytest.raises(icechunk_arrow.CorruptFileError, match=manifest.name):
        publish(spark, Repository.open(tmp_path / "r"), tmp_path / "t")
    assert published(spark, tmp_path / "t") == {}
