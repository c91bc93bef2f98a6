"""Frames of references and of encoded chunks, written by the functions."""

from __future__ import annotations

import functools
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from icechunk_arrow import Repository
from icechunk_arrow.core.splits import box_numbers, box_of
from icechunk_arrow.engine.bulk import Layout
from icechunk_arrow.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NodeNotFoundError,
    RebaseFailedError,
    RefNotFoundError,
    RepositoryNotFoundError,
)
from icechunk_arrow.spark import write_chunks, write_references
from icechunk_arrow.spark.writing import chunks as writing_chunks
from icechunk_arrow.spark.writing.chunks import GridTasks, by_grid
from icechunk_arrow.spark.writing.tasks import unlimited_batches
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

SHAPE = (40, 25)


@pytest.mark.parametrize("shuffle", [True, False])
def test_references_are_those_of_one_process(spark: Any, tmp_path: Path, shuffle: bool) -> None:
    """Shuffled rows of several arrays, in any partitions, become what set_references makes of them."""
    repository = new_repository(tmp_path / "r", a=SHAPE, b=(500,))
    table = pa.concat_tables(
        [
            reference_table(SHAPE, seed=1, path="/a"),
            reference_table((500,), seed=2, count=300, path="/b"),
        ]
    )
    table = table.take(np.random.default_rng(3).permutation(table.num_rows))
    frame = spark.createDataFrame(table).repartition(5)

    result = write_references(
        frame, tmp_path / "r", shuffle=shuffle, message="both", metadata={"k": 1}
    )

    assert result.totals.chunk_count == 1300
    assert result.totals.paths == {"/a", "/b"}
    assert result.snapshot_id == repository.lookup_branch("main")
    info = repository.lookup_snapshot(result.snapshot_id)
    assert (info.message, dict(info.metadata)) == ("both", {"k": 1})
    other = single_process(tmp_path / "s", repository.readonly_session("main"), table, None)
    for path in ("/a", "/b"):
        assert references_of(repository, path) == references_of(other, path)
    check_manifests(tmp_path / "r", repository)


@pytest.mark.parametrize("names", [("index_0", "index_1"), ("y", "x"), ("y", "index_1")])
def test_places_as_columns(spark: Any, tmp_path: Path, names: tuple[str, str]) -> None:
    """A column per dimension says the same as a list, under either name."""
    spec = {"shape": SHAPE, "chunks": (1, 1), "dtype": "u1", "dimension_names": ("y", "x")}
    table = reference_table(SHAPE)
    index = np.array(table["index"].to_pylist())
    columns = table.drop_columns("index").append_column(names[0], pa.array(index[:, 0]))
    columns = columns.append_column(names[1], pa.array(index[:, 1]))
    Repository.create(tmp_path / "r")

    write_references(
        spark.createDataFrame(columns), tmp_path / "r", "/deep/er/a", arrays={"/deep/er/a": spec}
    )

    repository = Repository.open(tmp_path / "r")
    other = single_process(tmp_path / "s", repository.readonly_session("main"), table, "/deep/er/a")
    assert references_of(repository, "/deep/er/a") == references_of(other, "/deep/er/a")


def test_arrays_are_made_from_documents(spark: Any, tmp_path: Path) -> None:
    """A Zarr document is an array too; an array that is there stays, whatever is said of it."""
    repository = new_repository(tmp_path / "r", a=(4,))
    session = repository.readonly_session("main")
    node = session.find_node("/a")
    assert node is not None
    document = json.loads(session.document(node))
    table = reference_table((4,), path="/b")
    ignored = {"shape": (9,), "chunks": (9,), "dtype": "f8"}

    write_references(
        spark.createDataFrame(table), repository, arrays={"/b": document, "/a": ignored}
    )

    assert len(references_of(repository, "/b")) == 4
    assert zarr.open_array(repository.readonly_session("main").store, path="a").shape == (4,)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("no", "give a Zarr v3 document"),
        ({"shape": (4,)}, "cannot be made as described"),
        ({"zarr_format": 3}, "/x"),
    ],
)
def test_arrays_that_cannot_be_made(spark: Any, tmp_path: Path, spec: Any, said: str) -> None:
    """What is no description of an array is refused, by the array's name, and nothing is changed."""
    repository = new_repository(tmp_path / "r", a=(4,))
    before = repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match="/x") as caught:
        write_references(
            spark.createDataFrame(reference_table((4,))), repository, "/a", arrays={"/x": spec}
        )
    assert said in str(caught.value)
    assert repository.lookup_branch("main") == before


def test_an_array_where_a_group_is(spark: Any, tmp_path: Path) -> None:
    """A group does not become an array."""
    repository = new_repository(tmp_path / "r", a=(4,))
    session = repository.writable_session("main")
    zarr.create_group(session.store, path="g")
    session.commit("group")
    with pytest.raises(InvalidInputError, match=r"'/g' is to be an array, and there is a group"):
        write_references(
            spark.createDataFrame(reference_table((4,))), repository, "/a", arrays={"/g": {}}
        )


def test_chunks(spark: Any, tmp_path: Path) -> None:
    """Encoded chunks of every size, inline, packed and alone, are read back as they are."""
    spec = {"shape": (6, 30_000), "chunks": (1, 30_000), "dtype": "u1", "compressors": None}
    Repository.create(tmp_path / "r")
    small = {"shape": (64,), "chunks": (4,), "dtype": "<i4", "compressors": None}
    big = np.arange(6 * 30_000).reshape(6, 30_000).astype("u1")
    few = np.arange(64, dtype="<i4")
    rows = [("/big", [row, 0], big[row].tobytes()) for row in range(6)]
    rows += [("/g/few", [n], few[4 * n : 4 * n + 4].tobytes()) for n in range(16)]
    frame = spark.createDataFrame(rows, "path string, index array<int>, data binary").repartition(4)

    result = write_chunks(frame, str(tmp_path / "r"), arrays={"/big": spec, "/g/few": small})

    repository = Repository.open(tmp_path / "r")
    assert result.totals.chunk_count == 22
    assert (read_array(repository, "big") == big).all()
    assert (read_array(repository, "g/few") == few).all()
    made = {key for key in files_of(tmp_path / "r") if key.startswith("c/")}
    assert made
    assert not {key for key in check_only_orphans(tmp_path / "r", repository, set()) if key in made}


def test_modes(spark: Any, tmp_path: Path) -> None:
    """Append writes over, overwrite empties the arrays that rows are for, error and ignore leave all as it is."""
    repository = new_repository(tmp_path / "r", a=(100,), b=(10,))
    first = spark.createDataFrame(reference_table((100,), seed=1))
    write_references(first, repository, "/a")
    write_references(spark.createDataFrame(reference_table((10,))), repository, "/b")
    half = reference_table((50,), seed=2)
    frame = spark.createDataFrame(half)
    before = repository.lookup_branch("main")
    olds = references_of(repository, "/a")

    with pytest.raises(AlreadyExistsError, match=r"'/a' in .* have chunks already"):
        write_references(frame, repository, "/a", mode="error")
    assert write_references(frame, repository, "/a", mode="ignore").snapshot_id is None
    assert repository.lookup_branch("main") == before

    write_references(frame, repository, "/a", mode="append")
    appended = references_of(repository, "/a")
    assert [row["index"] for row in appended] == [[n] for n in range(100)]
    assert appended[50:] == olds[50:]
    news = {tuple(row["index"]): row["offset"] for row in half.to_pylist()}
    assert [row["offset"] for row in appended[:50]] == [news[n,] for n in range(50)]

    write_references(frame, repository, "/a", mode="overwrite")
    assert references_of(repository, "/a") == appended[:50]
    assert len(references_of(repository, "/b")) == 10
    check_manifests(tmp_path / "r", repository)

    for mode in ("error", "ignore"):
        empty = {"shape": (100,), "chunks": (1,), "dtype": "u1"}
        made = write_references(
            frame, repository, f"/{mode}", arrays={f"/{mode}": empty}, mode=mode
        )
        assert made.snapshot_id is not None
        assert len(references_of(repository, f"/{mode}")) == 50

    with pytest.raises(
        InvalidInputError, match="mode must be one of append, overwrite, error, ignore"
    ):
        write_references(frame, repository, "/a", mode="replace")


@pytest.mark.parametrize("shuffle", [True, False])
def test_duplicates(spark: Any, tmp_path: Path, shuffle: bool) -> None:
    """A chunk that comes twice is refused by name, in one partition or two; or one of its rows is taken."""
    repository = new_repository(tmp_path / "r", a=(100,))
    before = repository.lookup_branch("main")
    table = reference_table((100,))
    twice = table.append_column("n", pa.array(range(100)))
    again = twice.slice(17, 1).set_column(2, "offset", pa.array([5]))
    chunk = twice["index"][17].as_py()[0]
    frame = spark.createDataFrame(pa.concat_tables([twice, again])).repartition(3).drop("n")

    with pytest.raises(
        InvalidInputError, match=rf"chunk \({chunk},\) stands there twice"
    ) as caught:
        write_references(frame, repository, "/a", shuffle=shuffle)
    assert "'/a'" in str(caught.value)
    assert repository.lookup_branch("main") == before

    three = [table, table.slice(17, 1).set_column(2, "offset", pa.array([5])), table.slice(3, 1)]
    last = functools.reduce(lambda a, b: a.union(b), map(spark.createDataFrame, three)).coalesce(2)
    write_references(last, repository, "/a", shuffle=shuffle, duplicates="last")
    rows = references_of(repository, "/a")
    assert [row["index"] for row in rows] == [[n] for n in range(100)]
    assert rows[chunk]["offset"] == 5, "the last in the frame's order"


@pytest.mark.parametrize("axis", [0, 1])
def test_tasks_have_whole_boxes(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, axis: int
) -> None:
    """Boxes are those of manifests, and numpy and Spark's expressions send them to the same tasks, in order."""
    monkeypatch.setattr(writing_chunks, "_TASK_CHUNKS", 200)
    repository = new_repository(tmp_path / "r", a=SHAPE, b=(30,), c=(20,))
    session = repository.writable_session("main")

    def layout_of(view: Any) -> Layout:
        return Layout(limit=60, axis=min(axis, len(view.grid.axes) - 1))

    monkeypatch.setattr(session, "layout_of", layout_of)
    rows = pa.concat_tables(
        reference_table(shape, path=path).select(["path", "index"])
        for path, shape in (("/a", SHAPE), ("/b", (30,)), ("/c", (20,)))
    ).combine_chunks()
    (batch,) = rows.to_batches()
    tasks = GridTasks.of(session, ["/a", "/b", "/c"])

    task, box, number = tasks.locate(batch, None)

    index = np.array([each for each in batch.column("index").to_pylist() if len(each) == 2], "u8")
    expected = box_numbers(index, SHAPE, box_of(SHAPE, 60, axis), axis)
    np.testing.assert_array_equal(box[: len(index)], expected)
    np.testing.assert_array_equal(
        number[: len(index)], np.ravel_multi_index(tuple(index.T.astype(int)), SHAPE)
    )
    order = np.argsort(expected, kind="stable")
    assert (np.diff(task[: len(index)][order]) >= 0).all()
    assert tasks.count == 7
    assert set(task[: len(index)].tolist()) == set(range(6)), "a large array has tasks of its own"
    assert set(task[len(index) :].tolist()) == {6}, "small ones share one"
    placed = by_grid(spark.createDataFrame(rows), session, ["/a", "/b", "/c"], None)
    found = placed.selectExpr("path", "index", "spark_partition_id()").collect()
    mine = zip(rows["path"].to_pylist(), map(tuple, rows["index"].to_pylist()), task, strict=True)
    assert {(path, tuple(place)): part for path, place, part in found} == {
        (path, place): part for path, place, part in mine
    }


FAULTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"index": [7]}, InvalidInputError, r"chunk \(7,\) is outside the grid"),
    (
        {"location": "../etc/passwd"},
        InvalidInputError,
        r"the location '\.\./etc/passwd' cannot be used",
    ),
    ({"location": None}, InvalidInputError, "the location is missing"),
    ({"offset": -1}, InvalidInputError, "offset"),
    ({"length": None}, InvalidInputError, "length"),
    ({"path": "/nowhere"}, NodeNotFoundError, "there is no array '/nowhere'"),
    ({"path": None}, InvalidInputError, "the path is missing"),
    ({"index": [1, 2]}, InvalidInputError, "index"),
    ({"index": None}, InvalidInputError, "index"),
]


def test_settings_come_back(spark: Any, tmp_path: Path) -> None:
    """What a write sets for its time is as before behind it, whatever else goes on and however it ends."""
    name = "spark.sql.execution.arrow.maxBytesPerBatch"
    default = spark.conf.get(name)
    for before in (default, "12345"):
        if before != default:
            spark.conf.set(name, before)
        with ExitStack() as one, ExitStack() as other:
            one.enter_context(unlimited_batches(spark))
            assert spark.conf.get(name) == str(2**31 - 1)
            other.enter_context(unlimited_batches(spark))
            one.close()
            assert spark.conf.get(name) == str(2**31 - 1)
        assert spark.conf.get(name) == before
        with pytest.raises(KeyError), unlimited_batches(spark):
            raise KeyError
        assert spark.conf.get(name) == before
    repository = new_repository(tmp_path / "r", a=(4, 5))
    table = reference_table((4, 5))
    frame = spark.createDataFrame(pa.concat_tables([table, table]).combine_chunks())
    with pytest.raises(InvalidInputError):
        write_references(frame, repository, "/a")
    assert spark.conf.get(name) == "12345"
    spark.conf.set(name, default)


def test_a_wrong_row(spark: Any, tmp_path: Path) -> None:
    """The error of an executor arrives as ours, names row and array, and nothing is changed."""
    repository = new_repository(tmp_path / "r", a=(4,))
    before = repository.lookup_branch("main")
    good: dict[str, Any] = {
        "path": "/a",
        "index": [1],
        "location": "s3://b/f",
        "offset": 1,
        "length": 2,
    }
    schema = "path string, index array<int>, location string, offset long, length long"
    for number, (change, kind, fact) in enumerate(FAULTS):
        row = good | change
        rows = [tuple((good | {"index": [0]}).values()), tuple(row.values())]
        frame = spark.createDataFrame(rows, schema).coalesce(1)
        with pytest.raises(kind, match=fact) as caught:
            write_references(frame, repository, shuffle=not number)
        if kind is InvalidInputError:
            shown = ", ".join(f"{name}={value!r}" for name, value in row.items())
            assert shown in str(caught.value), (change, str(caught.value))
        assert repository.lookup_branch("main") == before
    assert not [key for key in files_of(tmp_path / "r") if key.startswith("i/")]


def test_wrong_columns(spark: Any, tmp_path: Path) -> None:
    """A column that is missing or of another type is named."""
    repository = new_repository(tmp_path / "r", a=(4,))
    frame = spark.createDataFrame(reference_table((4,)))
    for wrong, fact in (
        (frame.drop("location"), "no column 'location'"),
        (frame.drop("index"), "neither a column 'index' nor one of"),
        (frame.withColumn("offset", frame["location"]), "offset"),
    ):
        with pytest.raises(InvalidInputError, match=fact):
            write_references(wrong, repository, "/a")
    with pytest.raises(InvalidInputError, match="which array"):
        write_references(frame, repository)
    with pytest.raises(NodeNotFoundError, match="there is no array '/b'"):
        write_references(frame, repository, "/b")


@pytest.mark.parametrize("shuffle", [True, False])
def test_unsigned_numbers(spark: Any, tmp_path: Path, shuffle: bool) -> None:
    """Spark reads unsigned columns of 64 bits as decimals: they mean the same, and are checked the same."""
    repository = new_repository(tmp_path / "r", a=(20,))
    table = reference_table((20,))
    unsigned = {"offset": table["offset"].cast("uint64"), "length": table["length"].cast("uint64")}
    places = pa.array([each[0] for each in table["index"].to_pylist()], pa.uint64())
    columns = {"index_0": places, "location": table["location"], "etag": table["etag"], **unsigned}
    pq.write_table(pa.table(columns), tmp_path / "unsigned.parquet")
    frame = spark.read.parquet(str(tmp_path / "unsigned.parquet"))
    assert dict(frame.dtypes)["offset"] == "decimal(20,0)"

    write_references(frame, repository, "/a", shuffle=shuffle)
    other = single_process(tmp_path / "s", repository.readonly_session("main"), table, "/a")
    assert references_of(repository, "/a") == references_of(other, "/a")

    for number, fact in (
        (2**64 - 1, "lead beyond the largest file"),
        (10**19 * 9, "lead beyond the largest file"),
        (-1, "the offset is negative"),
        (None, "the offset is missing"),
    ):
        said = "NULL" if number is None else str(number)
        wrong = frame.selectExpr(
            "index_0", "location", f"cast({said} as decimal(20,0)) offset", "length"
        )
        with pytest.raises(InvalidInputError, match=fact):
            write_references(wrong, repository, "/a", shuffle=shuffle)


def test_targets(spark: Any, tmp_path: Path) -> None:
    """What cannot be written to is refused: no repository, no branch, memory, options of a session."""
    frame = spark.createDataFrame(reference_table((4,)))
    with pytest.raises(RepositoryNotFoundError):
        write_references(frame, tmp_path / "none", "/a")
    repository = new_repository(tmp_path / "r", a=(4,))
    with pytest.raises(RefNotFoundError):
        write_references(frame, repository, "/a", branch="none")
    with pytest.raises(InvalidInputError, match="storage_options go with a URL"):
        write_references(frame, repository, "/a", storage_options={})
    with pytest.raises(InvalidInputError, match="in the memory of this process"):
        write_references(frame, new_repository("memory://spark-entries", a=(4,)), "/a")


def test_several_writes_in_one_commit(spark: Any, tmp_path: Path) -> None:
    """A session gathers writes of Spark and of this process; its owner commits, or throws all away."""
    repository = new_repository(tmp_path / "r", a=(100,), b=(64,))
    before = repository.lookup_branch("main")
    session = repository.writable_session("main")
    session.set_references("/a", reference_table((100,), seed=9))
    zarr.create_array(session.store, name="c", shape=(4,), chunks=(1,), dtype="u1")
    data = spark.createDataFrame([([n], b"x") for n in range(64)], "index array<int>, data binary")

    one = write_references(spark.createDataFrame(reference_table((50,), seed=1)), session, "/a")
    write_chunks(data, session, "/b")
    write_references(spark.createDataFrame(reference_table((4,))), session, "/c")
    write_references(
        spark.createDataFrame(reference_table((10,), seed=5)), session, "/a", mode="append"
    )

    assert one.snapshot_id is None
    assert repository.lookup_branch("main") == before
    session.commit("all of it")
    assert len(list(repository.ancestry(branch="main"))) == 3
    rows = references_of(repository, "/a")
    for low, high, seed, size in ((0, 10, 5, 10), (10, 50, 1, 50), (50, 100, 9, 100)):
        told = {
            row["index"][0]: row["offset"]
            for row in reference_table((size,), seed=seed).to_pylist()
        }
        assert [row["offset"] for row in rows[low:high]] == [told[n] for n in range(low, high)]
    assert (read_array(repository, "b") == ord("x")).all()
    assert len(references_of(repository, "/c")) == 4
    check_manifests(tmp_path / "r", repository)

    session = repository.writable_session("main")
    write_chunks(data, session, "/b", mode="overwrite")
    session.discard_changes()
    assert not session.has_uncommitted_changes


def test_commits_of_others_meanwhile(spark: Any, tmp_path: Path) -> None:
    """A write goes on top of commits that changed other chunks, and loses against one of the same chunks."""
    repository = new_repository(tmp_path / "r", a=(100,), b=(100,))
    table = reference_table((100,), seed=1)
    for path, fails in (("/b", False), ("/a", True)):
        session = repository.writable_session("main")
        write_references(spark.createDataFrame(table), session, "/a")
        other = repository.writable_session("main")
        other.set_references(path, reference_table((100,), seed=7))
        tip = other.commit("meanwhile")
        from icechunk_arrow import ConflictDetector

        if fails:
            with pytest.raises(RebaseFailedError):
                session.commit("late", rebase_with=ConflictDetector())
            assert repository.lookup_branch("main") == tip
        else:
            session.commit("late", rebase_with=ConflictDetector())
            assert (
                len(references_of(repository, "/a")) == len(references_of(repository, "/b")) == 100
            )


def test_nothing_to_write(spark: Any, tmp_path: Path) -> None:
    """A frame without rows makes no commit; with arrays to make it makes these."""
    repository = new_repository(tmp_path / "r", a=(4,))
    before = repository.lookup_branch("main")
    frame = spark.createDataFrame(reference_table((4,))).where("false")
    assert write_references(frame, repository, "/a").snapshot_id is None
    assert repository.lookup_branch("main") == before
    spec = {"shape": (4,), "chunks": (1,), "dtype": "u1"}
    assert write_references(frame, repository, "/z", arrays={"/z": spec}).snapshot_id is not None
    assert repository.readonly_session("main").find_array("/z") is not None
