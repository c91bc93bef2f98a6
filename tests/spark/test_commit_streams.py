"""What commits changed, without Spark: the pieces of a stream against the chunks that there are."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icechunk_arrow import Repository
from icechunk_arrow.errors import InvalidInputError, SnapshotNotFoundError
from icechunk_arrow.spark.reading import commit_stream
from icechunk_arrow.spark.reading.arrays import plan_read
from icechunk_arrow.spark.reading.commit_stream import CommitStream, Place

if TYPE_CHECKING:
    from pathlib import Path

    from icechunk_arrow.session import Session

Chunk = tuple[int, tuple[int, ...]]


def stored_chunks(session: Session) -> set[Chunk]:
    """All chunks of a snapshot, by node id and place."""
    return {
        (session.get_array(path).node.id, tuple(coord))
        for path in session.array_paths()
        for some in session.chunk_coordinates(path)
        for coord in some.tolist()
    }


def changes_of(stream: CommitStream, start: Place, end: Place) -> list[dict[str, Any]]:
    """All rows between two places, through a pickle as tasks have it."""
    again: CommitStream = pickle.loads(pickle.dumps(stream))
    parts = list(stream.parts(start, end))
    batches = [batch for part in parts for batch in again.read_part(part)]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, stream.schema).to_pylist()
    return rows


def make(
    session: Session, name: str, shape: tuple[int, ...], dtype: str = "i4", **more: Any
) -> Any:
    return zarr.create_array(
        session.store,
        name=name,
        shape=shape,
        chunks=(1,) * len(shape),
        dtype=dtype,
        fill_value=0,
        overwrite=True,
        **more,
    )


ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 8), st.integers(0, 4)),
    st.tuples(st.just("fill"), st.integers(1, 8), st.integers(1, 4)),
    st.tuples(st.just("delete"), st.integers(0, 8), st.integers(0, 4)),
    st.tuples(st.just("resize"), st.integers(0, 9), st.integers(0, 5)),
    st.tuples(st.just("remove"), st.just(0), st.just(0)),
    st.tuples(st.just("references"), st.integers(1, 8), st.integers(1, 4)),
)


def act(session: Session, path: str, action: tuple[str, int, int]) -> None:
    """Do one thing to an array of two dimensions, which is made where it is not there."""
    what, row, column = action
    if session.find_array(path) is None:
        make(session, path, (9, 5))
    array = zarr.open_array(session.store, path=path)
    rows, columns = array.shape
    inside = row < rows and column < columns
    if what == "write" and inside:
        array[row, column] = row + 1
    elif what == "fill":
        array[:row, :column] = 7
    elif what == "delete" and inside:
        session.delete_chunk(path, (row, column))
    elif what == "resize":
        array.resize((row, column))
    elif what == "remove":
        session.delete_nodes([path])
    elif what == "references":
        places = [
            [a, b] for a in range(min(row, rows)) for b in range(min(column, columns)) if a != b
        ]
        table = {
            "index": pa.array(places, pa.list_(pa.int64())),
            "location": ["s3://bucket/file"] * len(places),
            "offset": pa.array(range(len(places)), pa.int64()),
            "length": pa.array([4] * len(places), pa.int64()),
        }
        session.set_references(path, pa.table(table))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for the repositories of many examples."""
    return tmp_path_factory.mktemp("streams")


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["/a", "/b"]), ACTIONS), min_size=1, max_size=5),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 4),
    st.integers(1, 30),
)
def test_changes_add_up_to_the_chunks(
    folder: Path, commits: list[list[tuple[str, Any]]], most: int, part: int
) -> None:
    """Followed commit by commit, writes and deletions give exactly the chunks of every snapshot, each told once."""
    repo = Repository.open_or_create(folder / "repo")
    session = repo.writable_session("main")
    zarr.create_group(session.store, overwrite=True)
    base = session.commit("empty")
    made = []
    for actions in commits:
        session = repo.writable_session("main")
        for path, action in actions:
            act(session, path, action)
        if session.has_uncommitted_changes:
            made.append(session.commit("did something"))
    stream = CommitStream(context=repo._context, branch="main", since=base)
    known: set[Chunk] = set()
    place, tip = stream.first(), stream.tip()
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_stream, "_PART_CHUNKS", part)
        while place != tip:
            after = stream.next(place, tip, most)
            rows = changes_of(stream, place, after)
            for snapshot in dict.fromkeys(row["snapshot"] for row in rows):
                mine = [row for row in rows if row["snapshot"] == snapshot]
                places = [(row["node_id"], tuple(row["index"])) for row in mine]
                assert len(set(places)) == len(places)
                for row, chunk in zip(mine, places, strict=True):
                    (known.add if row["operation"] == "write_chunk" else known.discard)(chunk)
            assert known == stored_chunks(repo.readonly_session(snapshot_id=after.snapshot_id))
            seen.append(after)
            place = after

    assert [each.snapshot_id for each in seen][-1:] == made[-1:]
    assert len(seen) == -(-len(made) // most)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(["/a", "/b"]), st.integers(0, 5), st.integers(0, 3)),
            min_size=1,
            max_size=6,
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["rows", "chunks"]),
    st.integers(1, 200),
)
def test_rows_of_changed_chunks_keep_a_copy_right(
    folder: Path, commits: list[list[tuple[str, int, int]]], layout: str, part_bytes: int
) -> None:
    """A copy into which the elements of changed chunks are put is equal to the arrays, and nothing comes twice."""
    repo = Repository.open_or_create(folder / "copies")
    session = repo.writable_session("main")
    zarr.create_group(session.store, overwrite=True)
    for name in ("a", "b"):
        zarr.create_array(
            session.store, name=name, shape=(11, 7), chunks=(2, 2), dtype="i4", fill_value=0
        )
    base = session.commit("empty")
    for number, writes in enumerate(commits):
        session = repo.writable_session("main")
        for path, down, right in writes:
            array = zarr.open_array(session.store, path=path)
            array[2 * down : 2 * down + 2, 2 * right : 2 * right + 1] = 10 * number + down + 1
        session.commit("written")
    reader = repo.readonly_session(branch="main")
    columns = ["dim_0", "dim_1", "b", "a", "_snapshot"] if layout == "rows" else None
    read = plan_read(reader, ["/a", "/b"], layout=layout, columns=columns, part_bytes=part_bytes)
    stream = CommitStream(context=repo._context, branch="main", since=base, read=read)
    copies = {name: np.zeros((11, 7), "i4") for name in ("a", "b")}
    for start, end in _steps(stream):
        rows = changes_of(stream, start, end)
        if layout == "rows":
            places = [(row["dim_0"], row["dim_1"]) for row in rows]
            assert len(set(places)) == len(places)
            assert {row["_snapshot"] for row in rows} == {end.snapshot_id}
            for row, place in zip(rows, places, strict=True):
                copies["a"][place], copies["b"][place] = row["a"], row["b"]
        else:
            keys = [(row["path"], tuple(row["index"])) for row in rows]
            assert len(set(keys)) == len(keys)
            for row in rows:
                box = tuple(
                    slice(o, o + n) for o, n in zip(row["origin"], row["shape"], strict=True)
                )
                copies[row["path"][1:]][box] = np.reshape(row["values"], row["shape"])
        session = repo.readonly_session(snapshot_id=end.snapshot_id)
        for name, copy in copies.items():
            assert (copy == zarr.open_array(session.store, path=name, mode="r")[...]).all()


def _steps(stream: CommitStream) -> list[tuple[Place, Place]]:
    """Go through a branch commit by commit."""
    found = []
    place, tip = stream.first(), stream.tip()
    while place != tip:
        after = stream.next(place, tip, 1)
        found.append((place, after))
        place = after
    return found


def test_large_commits_come_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bulk writes with and without holes, of more chunks than a log lists, are divided, and told once each."""
    repo = Repository.create(tmp_path / "repo")
    session = repo.writable_session("main")
    make(session, "/a", (100, 60))
    session.commit("made")
    session = repo.writable_session("main")
    act(session, "/a", ("references", 100, 60))
    session.commit("holes")
    session = repo.writable_session("main")
    act(session, "/a", ("fill", 50, 40))
    session.commit("dense")
    monkeypatch.setattr(commit_stream, "_PART_CHUNKS", 500)
    stream = CommitStream(context=repo._context, branch="main", from_beginning=True)
    (_, made), (_, holes), (_, dense) = _steps(stream)

    assert list(stream.parts(stream.first(), made)) == []
    for start, end, expected in ((made, holes, 6000 - 60), (holes, dense, 2000)):
        rows = changes_of(stream, start, end)
        assert len(list(stream.parts(start, end))) >= expected / 500
        assert len({tuple(row["index"]) for row in rows}) == len(rows) == expected
        assert {row["operation"] for row in rows} == {"write_chunk"}


def test_a_branch_that_was_reset(tmp_path: Path) -> None:
    """A query that stands behind a commit which is no more in the branch fails, and says what to do."""
    repo = Repository.create(tmp_path / "repo")
    ids = []
    for name in ("/a", "/b", "/c"):
        session = repo.writable_session("main")
        make(session, name, (2,))
        ids.append(session.commit(name))
    stream = CommitStream(context=repo._context, branch="main", since=ids[1])
    stood = stream.first()
    ahead = stream.tip()
    repo.reset_branch("main", ids[0])
    for _ in range(2):
        for place in (stood, ahead):
            with pytest.raises(SnapshotNotFoundError, match="which was reset") as error:
                stream.next(place, stream.tip(), None)
            assert place.snapshot_id in str(error.value)
            assert "option since" in str(error.value)
        with pytest.raises(SnapshotNotFoundError):
            stream.first()
        for name in ("/d", "/e", "/f"):
            session = repo.writable_session("main")
            make(session, name, (2,))
            session.commit(name)


def test_columns_that_change_end_a_query(tmp_path: Path) -> None:
    """An array that is not there yet, of another type or chunked unlike the others is an error."""
    repo = Repository.create(tmp_path / "repo")
    ids = []
    for number, dtype in enumerate(("f4", "f8")):
        session = repo.writable_session("main")
        make(session, "/a", (2,), dtype)[...] = number + 1
        if number:
            make(session, "/b", (2,))[...] = 1
            zarr.create_array(session.store, name="/c", shape=(2,), chunks=(2,), dtype="i4")[
                ...
            ] = 1
        ids.append(session.commit("made"))
    reader = repo.readonly_session(branch="main")
    for paths, says in (
        (["/a"], rf"(?s){ids[0]}.*a float.*a double.*since={ids[0]}"),
        (["/a", "/b"], rf"(?s)'/b'.*since={ids[0]}|{ids[0]}.*/b"),
        (["/c", "/b"], "not chunked alike"),
    ):
        stream = CommitStream(
            context=repo._context,
            branch="main",
            from_beginning=True,
            read=plan_read(reader, paths),
        )
        with pytest.raises(InvalidInputError, match=says):
            changes_of(stream, stream.first(), stream.tip())
