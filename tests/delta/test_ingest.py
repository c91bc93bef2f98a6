"""Rows of Delta tables become arrays, and each row is taken once."""

from __future__ import annotations

import shutil
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icechunk_arrow import InvalidInputError, Repository, ingest
from tests.places import make_array, read_array

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.delta
SHAPE = (8, 6)
Cells = dict[tuple[int, int], float]


def repository(tmp_path: Path) -> Repository:
    """Make a repository with an array whose dimensions are counted."""
    repo = Repository.create(tmp_path / "r")
    with repo.transaction("main", message="make") as store:
        zarr.create_array(
            store,
            name="v",
            shape=SHAPE,
            chunks=(4, 3),
            dtype="f8",
            fill_value=np.nan,
            dimension_names=("y", "x"),
        )
    return repo


def frame(spark: Any, cells: Cells) -> Any:
    """Make a frame of cells."""
    rows = [(y, x, value) for (y, x), value in cells.items()]
    return spark.createDataFrame(rows, "y BIGINT, x BIGINT, v DOUBLE").coalesce(1)


def append(spark: Any, table: Path, cells: Cells) -> None:
    """Append cells to a table."""
    frame(spark, cells).write.format("delta").mode("append").save(str(table))


def check(repo: Repository, cells: Cells) -> None:
    """Compare the array with the cells that it should have."""
    wanted = np.full(SHAPE, np.nan)
    for place, value in cells.items():
        wanted[place] = value
    np.testing.assert_array_equal(read_array(repo, "v"), wanted)


def test_appended_rows_are_taken_once(spark: Any, tmp_path: Path) -> None:
    """Each run takes what was added since the last, and a run with nothing new makes no commit."""
    repo, table = repository(tmp_path), tmp_path / "t"
    cells: Cells = {(0, 0): 1.0, (7, 5): 2.0}
    append(spark, table, cells)
    first = ingest.delta(spark, table, repo, ["v"])
    more: Cells = {(0, 1): 3.0, (7, 5): 4.0}
    append(spark, table, more)
    append(spark, table, {(3, 3): 5.0})
    cells |= more | {(3, 3): 5.0}

    assert (first.since_version, first.version, first.arrays) == (None, 0, ("/v",))
    with repo.transaction("main", message="somebody else") as store:
        make_array(store, "other")[...] = 1
    second = ingest.delta(spark, table, repo, ["v"])
    head = repo.lookup_branch("main")
    assert (second.since_version, second.version) == (0, 2)
    assert second.snapshot_id == head
    check(repo, cells)
    again = ingest.delta(spark, table, Repository.open(tmp_path / "r"), ["v"])
    assert (again.snapshot_id, again.version, again.chunk_count) == (None, 2, 0)
    assert repo.lookup_branch("main") == head
    spark.sql(f"OPTIMIZE delta.`{table}`")
    assert ingest.delta(spark, table, repo, ["v"]).chunk_count == 0
    append(spark, table, {(4, 4): 6.0})
    third = ingest.delta(spark, table, repo, ["v"])
    assert third.chunk_count == 1
    assert third.version == 4
    check(repo, cells | {(4, 4): 6.0})
    with repo.transaction("main", message="wiped") as store:
        array: Any = zarr.open_array(store, path="v")
        array[...] = 0
    assert ingest.delta(spark, table, repo, ["v"]).snapshot_id is None
    assert not read_array(repo, "v").any()


def test_changed_rows_are_no_appends(spark: Any, tmp_path: Path) -> None:
    """A table in which rows were changed is refused, nothing is written, and all rows can be taken again."""
    repo, table = repository(tmp_path), tmp_path / "t"
    append(spark, table, {(0, 0): 1.0, (1, 1): 2.0})
    ingest.delta(spark, table, repo, ["v"])
    head = repo.lookup_branch("main")
    spark.sql(f"UPDATE delta.`{table}` SET v = 7 WHERE y = 1")

    with pytest.raises(InvalidInputError, match="after version 0: rows were changed or deleted"):
        ingest.delta(spark, table, repo, ["v"])
    assert repo.lookup_branch("main") == head
    with pytest.raises(InvalidInputError, match="no change feed"):
        ingest.delta(spark, table, repo, ["v"], take="changes")
    assert ingest.delta(spark, table, repo, ["v"], take="all").version == 1
    check(repo, {(0, 0): 1.0, (1, 1): 7.0})
    assert ingest.delta(spark, table, repo, ["v"], take="all").snapshot_id is None
    append(spark, table, {(9, 9): 1.0})
    with pytest.raises(InvalidInputError, match="9"):
        ingest.delta(spark, table, repo, ["v"])
    check(repo, {(0, 0): 1.0, (1, 1): 7.0})


def test_a_change_feed_makes_the_array_what_the_table_is(spark: Any, tmp_path: Path) -> None:
    """After random inserts, updates (of places too) and deletions the array has the table's rows and no other."""
    repo, table, random = repository(tmp_path), tmp_path / "t", Random(7)
    relation = f"delta.`{table}`"
    spark.sql(
        f"CREATE TABLE {relation} (y BIGINT, x BIGINT, v DOUBLE) USING delta "
        f"TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    cells: Cells = {}
    for _ in range(3):
        for _ in range(4):
            what = random.choice(["insert", "insert", "update", "delete", "move"])
            place = random.choice(list(cells)) if cells else (0, 0)
            free = random.choice(
                [(y, x) for y in range(8) for x in range(6) if (y, x) not in cells]
            )
            where = f"WHERE y = {place[0]} AND x = {place[1]}"
            value = float(random.randrange(100))
            if what == "insert" or not cells:
                append(spark, table, {free: value})
                cells[free] = value
            elif what == "update":
                spark.sql(f"UPDATE {relation} SET v = {value} {where}")
                cells[place] = value
            elif what == "delete":
                spark.sql(f"DELETE FROM {relation} {where}")
                del cells[place]
            else:
                spark.sql(f"UPDATE {relation} SET y = {free[0]}, x = {free[1]} {where}")
                cells[free] = cells.pop(place)
        done = ingest.delta(spark, table, repo, ["v"], take="changes")
        assert done.snapshot_id is not None
        check(repo, cells)
        assert ingest.delta(spark, table, repo, ["v"], take="changes").snapshot_id is None


def test_two_ingests_of_one_table_have_names(spark: Any, tmp_path: Path) -> None:
    """One table goes into two groups, each with a memory of its own."""
    repo, table = repository(tmp_path), tmp_path / "t"
    with repo.transaction("main", message="make") as store:
        zarr.create_array(
            store,
            name="g/v",
            shape=SHAPE,
            chunks=(4, 3),
            dtype="f8",
            fill_value=np.nan,
            dimension_names=("y", "x"),
        )
    append(spark, table, {(0, 0): 1.0})

    for name, group in (("one", "/"), ("two", "/g")):
        done = ingest.delta(spark, table, repo, ["v"], name=name, group=group)
        assert done.snapshot_id is not None
    np.testing.assert_array_equal(read_array(repo, "v"), read_array(repo, "g/v"))


def test_what_does_not_go_together_is_refused(spark: Any, tmp_path: Path) -> None:
    """Words that contradict each other, and a session for what a commit has to remember."""
    repo, table = repository(tmp_path), tmp_path / "t"
    append(spark, table, {(0, 0): 1.0})
    session = repo.writable_session("main")

    with pytest.raises(InvalidInputError, match="session's owner"):
        ingest.delta(spark, table, session, ["v"])
    with pytest.raises(InvalidInputError, match="take='appends'"):
        ingest.delta(spark, table, repo, ["v"], version=0)
    with pytest.raises(InvalidInputError, match="duplicates='mean'"):
        ingest.delta(spark, table, repo, ["v"], take="changes", duplicates="mean")
    with pytest.raises(InvalidInputError, match="must be one of"):
        ingest.delta(spark, table, repo, ["v"], take="some")  # type: ignore[arg-type]
    ingest.delta(spark, table, session, ["v"], take="all")
    session.commit("by its owner")
    check(repo, {(0, 0): 1.0})


def test_a_frame_of_rows(spark: Any, tmp_path: Path) -> None:
    """A frame is written as write_rows does, and says how far it has come."""
    repo = repository(tmp_path)
    seen: list[ingest.Progress] = []
    cells: Cells = {(0, 0): 1.0, (5, 5): 2.0}

    done = ingest.dataframe(spark, frame(spark, cells), repo, ["v"], on_progress=seen.append)

    assert (done.snapshot_id, done.arrays) == (repo.lookup_branch("main"), ("/v",))
    assert done.chunk_count == 2
    assert seen[-1].share == 1
    check(repo, cells)


def add_array(repo: Repository, path: str) -> None:
    """Make another array with the same dimensions."""
    with repo.transaction("main", message="make") as store:
        zarr.create_array(
            store,
            name=path,
            shape=SHAPE,
            chunks=(4, 3),
            dtype="f8",
            fill_value=np.nan,
            dimension_names=("y", "x"),
        )


def test_every_array_remembers_for_itself(spark: Any, tmp_path: Path) -> None:
    """A second group, a second array, one that was deleted: each gets all rows, and then what is new."""
    repo, table = repository(tmp_path), tmp_path / "t"
    for path in ("g/v", "w"):
        add_array(repo, path)
    frame(spark, {(0, 0): 1.0}).selectExpr("*", "-v AS w").write.format("delta").save(str(table))
    ingest.delta(spark, table, repo, ["v"])

    assert ingest.delta(spark, table, repo, ["v"], group="/g").chunk_count == 1
    np.testing.assert_array_equal(read_array(repo, "v"), read_array(repo, "g/v"))
    more = frame(spark, {(7, 5): 2.0}).selectExpr("*", "-v AS w")
    more.write.format("delta").mode("append").save(str(table))
    with repo.transaction("main", message="by hand") as store:
        array: Any = zarr.open_array(store, path="v")
        array[0, 0] = 100.0
    done = ingest.delta(spark, table, repo, ["v", "w"])
    assert (done.since_version, done.version, done.arrays) == (None, 1, ("/v", "/w"))
    wanted = {(0, 0): 100.0, (7, 5): 2.0}
    check(repo, wanted)
    assert read_array(repo, "w")[0, 0] == -1.0, "what had come before is not lost to a new array"
    assert read_array(repo, "w")[7, 5] == -2.0
    assert ingest.delta(spark, table, repo, ["w"]).snapshot_id is None
    assert ingest.delta(spark, table, repo, ["v"], group="/g").since_version == 0
    assert read_array(repo, "g/v")[7, 5] == 2.0

    session = repo.writable_session("main")
    session.delete_nodes(["/w"])
    session.commit("gone")
    dims: dict[str, Any] = {"dimensions": ["y", "x"], "coordinates": {"y": "index", "x": "index"}}
    ingest.delta(spark, table, repo, ["w"], **dims)
    assert (read_array(repo, "w")[0, 0], read_array(repo, "w")[7, 5]) == (-1.0, -2.0)


def test_a_table_that_was_made_anew_is_another_one(spark: Any, tmp_path: Path) -> None:
    """Its versions begin again, and its rows are taken, also under a name; an older version is refused."""
    repo, table = repository(tmp_path), tmp_path / "t"
    for number in range(3):
        append(spark, table, {(0, number): 1.0})
    ingest.delta(spark, table, repo, ["v"], name="mine")
    shutil.rmtree(table)
    append(spark, table, {(7, 5): 3.0})

    done = ingest.delta(spark, table, repo, ["v"], name="mine")

    assert (done.since_version, done.version) == (None, 0)
    assert read_array(repo, "v")[7, 5] == 3.0
    append(spark, table, {(7, 4): 4.0})
    ingest.delta(spark, table, repo, ["v"], name="mine")
    with pytest.raises(InvalidInputError, match="version 1 of the table already"):
        ingest.delta(spark, table, repo, ["v"], name="mine", take="all", version=0)
    other = Repository.create(tmp_path / "other")
    assert ingest.delta(
        spark, table, other, ["v"], dimensions=["y", "x"], coordinates={"y": "index", "x": "index"}
    ).chunk_count
