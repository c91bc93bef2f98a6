"""Forks of a session write for it elsewhere: together they are one session, whoever wrote what."""

from __future__ import annotations

import pickle
import secrets
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_arrow import (
    ConflictDetector,
    ForkSession,
    InvalidInputError,
    ReadOnlyError,
    RebaseFailedError,
    Repository,
    RepositoryConfig,
)
from icechunk_arrow.core.manifest_settings import ManifestSet, ManifestSettings
from icechunk_arrow.engine.bulk import BulkSettings
from icechunk_arrow.engine.forks import combine
from icechunk_arrow.storage.open import open_storage
from tests.conformance.live_manifests import LiveManifests

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from icechunk_arrow.session import OpenSession

SHAPE = (3, 5)
PATHS = ("/a", "/b/c", "/d")
Key = tuple[str, tuple[int, ...]]


def make(url: str | Path, config: RepositoryConfig | None = None) -> Repository:
    """Make a repository with three arrays, each cell of them a chunk of four plain bytes."""
    repo = Repository.create(url, config=config)
    session = repo.writable_session("main")
    for path in PATHS:
        zarr.create_array(
            session.store,
            name=path,
            shape=SHAPE,
            chunks=(1, 1),
            dtype="i4",
            fill_value=-1,
            compressors=None,
        )
    session.commit("arrays")
    return repo


def in_memory(config: RepositoryConfig | None = None) -> Repository:
    """Make a repository that pickles."""
    return make(f"memory://{secrets.token_hex(8)}", config)


def table_of(rows: Mapping[Key, int]) -> pa.Table:
    """Put the numbers of cells into rows of encoded chunks."""
    return pa.table(
        {
            "path": pa.array([path for path, _ in rows], pa.string()),
            "index": pa.array([list(place) for _, place in rows], pa.list_(pa.int64())),
            "data": pa.array([n.to_bytes(4, "little") for n in rows.values()], pa.binary()),
        }
    )


def content(session: OpenSession) -> dict[Key, int]:
    """Tell the number in each cell that is filled."""
    found = {}
    for path in PATHS:
        values = np.asarray(zarr.open_array(session.store, path=path, mode="r")[:])
        for place in np.argwhere(values != -1).tolist():
            found[path, tuple(place)] = int(values[tuple(place)])
    return found


def check_live(repo: Repository, expected: Mapping[Key, int]) -> None:
    """Each chunk stands in one manifest, where the structure file says."""
    session = repo.readonly_session("main")
    storage = open_storage(session.storage_url)
    live = LiveManifests.read(storage.get, session.snapshot_id, {})
    live.check({p: {place for path, place in expected if path == p} for p in PATHS})


cells = st.tuples(
    st.sampled_from(PATHS), st.tuples(*(st.integers(0, length - 1) for length in SHAPE))
)
writes = st.dictionaries(cells, st.integers(0, 1000), max_size=12)


@settings(max_examples=25)
@given(st.lists(writes, min_size=1, max_size=3), writes, writes, st.data())
def test_forks_together_are_one_session(
    parts: list[dict[Key, int]], committed: dict[Key, int], before: dict[Key, int], data: Any
) -> None:
    """What forks wrote, over what the session had: of two the later wins where that is asked for."""
    repo = in_memory()
    first = repo.writable_session("main")
    first.set_encoded_chunks(None, table_of(committed))
    if first.has_uncommitted_changes:
        first.commit("before")
    session = repo.writable_session("main")
    session.set_encoded_chunks(None, table_of(before))
    expected = committed | before
    forks = []
    for part in parts:
        fork = session.fork()
        if data.draw(st.booleans()):
            fork = pickle.loads(pickle.dumps(fork))
        fork.set_encoded_chunks(None, table_of(part))
        assert content(fork) == expected | part
        forks.append(pickle.loads(pickle.dumps(fork)) if data.draw(st.booleans()) else fork)
    if sum(map(len, parts)) > len({place for part in parts for place in part}):
        with pytest.raises(InvalidInputError, match="two of the writers"):
            session.merge(*forks)
        assert content(session) == expected
    session.merge(*forks, duplicates="last")
    for part in parts:
        expected |= part
    assert content(session) == expected
    if session.has_uncommitted_changes:
        session.commit("all of it")
    check_live(repo, expected)
    assert content(repo.readonly_session("main")) == expected


def _write(fork: ForkSession, row: int) -> ForkSession:
    array = zarr.open_array(fork.store, path="/a", mode="r+")
    array[row] = np.arange(SHAPE[1]) + 10 * row
    return fork


def test_forks_write_through_zarr_in_other_processes(tmp_path: Path) -> None:
    """Each gets a fork, writes with zarr, and sends it back; one commit has all of it."""
    repo = make(tmp_path)
    session = repo.writable_session("main")
    fork = session.fork()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        back = list(pool.map(_write, [fork] * SHAPE[0], range(SHAPE[0])))
    assert not session.has_uncommitted_changes
    session.merge(*back)
    session.commit("from three processes")
    wanted = np.add.outer(np.arange(SHAPE[0]) * 10, np.arange(SHAPE[1]))
    assert np.array_equal(zarr.open_array(session.store, path="/a")[:], wanted)


def test_forks_see_what_the_session_has_not_committed(tmp_path: Path) -> None:
    """Arrays made and chunks written in the session are in its forks, and in no branch."""
    repo = make(tmp_path)
    session = repo.writable_session("main")
    new = zarr.create_array(session.store, name="/new", shape=4, chunks=(2,), dtype="i4")
    new[:2] = 7
    fork = pickle.loads(pickle.dumps(session.fork()))
    array = zarr.open_array(fork.store, path="/new", mode="r+")
    assert np.asarray(array[:]).tolist() == [7, 7, 0, 0]
    array[2:] = 8
    assert repo.readonly_session("main").find_node("/new") is None
    session.merge(fork)
    session.commit("the new array, from both")
    found = zarr.open_array(repo.readonly_session("main").store, path="/new")
    assert np.asarray(found[:]).tolist() == [7, 7, 8, 8]
    assert [log.message for log in repo.ancestry(branch="main")][:1] == ["the new array, from both"]


def test_a_manifest_of_many_arrays_that_a_fork_wrote_is_cut_when_one_changes() -> None:
    """Before the commit, rows of one array go away from a manifest that others have rows in, too."""
    together = ManifestSettings(
        sets=(ManifestSet(name="default", max_manifest_size=100),), rules=()
    )
    repo = in_memory(RepositoryConfig(chunk_manifests=together))
    session = repo.writable_session("main")
    fork = session.fork()
    rows: dict[Key, int] = {(path, (0, n)): n for path in PATHS for n in range(4)}
    fork.set_encoded_chunks(None, table_of(rows))
    assert len(fork.finish().sizes) == 1
    session.merge(fork)
    session.clear_array("/a")
    zarr.open_array(session.store, path="/d", mode="r+")[0, :2] = [41, 42]
    expected = {key: n for key, n in rows.items() if key[0] != "/a"}
    expected |= {("/d", (0, 0)): 41, ("/d", (0, 1)): 42}
    assert content(session) == expected
    session.commit("after the merge")
    check_live(repo, expected)
    assert content(repo.readonly_session("main")) == expected


def test_deletions_of_forks() -> None:
    """They count as writes do: two that disagree are refused, or the later one wins."""
    repo = in_memory()
    session = repo.writable_session("main")
    session.set_encoded_chunks(None, table_of({("/a", (0, n)): n for n in range(5)}))
    session.commit("five")
    deleting, writing = session_forks(repo, 2)
    zarr.open_array(deleting.store, path="/a", mode="r+").set_basic_selection((0, 1), -1)
    deleting.delete_chunk("/a", (0, 2))
    writing.set_encoded_chunks(None, table_of({("/a", (0, 2)): 92, ("/a", (0, 4)): 94}))
    session = repo.writable_session("main")
    with pytest.raises(InvalidInputError, match=r"'/a': one deleted chunk \(0, 2\)"):
        session.merge(deleting, writing)
    session.merge(writing, deleting, duplicates="last")
    assert content(session) == {
        ("/a", (0, 0)): 0,
        ("/a", (0, 3)): 3,
        ("/a", (0, 4)): 94,
    }
    session = repo.writable_session("main")
    session.merge(deleting, writing, duplicates="last")
    assert content(session)["/a", (0, 2)] == 92


def session_forks(repo: Repository, count: int) -> list[ForkSession]:
    """Fork one session several times."""
    session = repo.writable_session("main")
    return [session.fork() for _ in range(count)]


def test_a_fork_writes_chunks_and_nothing_else() -> None:
    repo = in_memory()
    session = repo.writable_session("main")
    fork = session.fork()
    attempts: dict[str, Any] = {
        "create or change '/x'": lambda: zarr.create_group(fork.store, path="/x"),
        "delete '/a'": lambda: fork.delete_nodes(["/a"]),
        "move '/a'": lambda: fork.move("/a", "/x"),
        "commit": lambda: fork.commit("no"),
        "rebase": lambda: fork.rebase(ConflictDetector()),
        "be forked": fork.fork,
    }
    for told, attempt in attempts.items():
        with pytest.raises(InvalidInputError, match=f"a fork writes chunks and cannot {told}"):
            attempt()
    assert fork.finish().chunk_count == 0
    with pytest.raises(ReadOnlyError, match="fork the session again"):
        fork.set_encoded_chunks(None, table_of({("/a", (0, 0)): 1}))
    with pytest.raises(ReadOnlyError):
        repo.readonly_session("main").fork()
    with pytest.raises(InvalidInputError, match="duplicates must be"):
        session.merge(duplicates="first")


def test_a_fork_of_an_array_that_was_replaced_meanwhile() -> None:
    repo = in_memory()
    session = repo.writable_session("main")
    fork = session.fork()
    fork.set_encoded_chunks(None, table_of({("/a", (0, 0)): 1}))
    zarr.create_array(session.store, name="/a", shape=(9,), dtype="i8", overwrite=True)
    with pytest.raises(InvalidInputError, match="is not the array any more that the fork wrote to"):
        session.merge(fork)


def test_a_session_with_merged_forks_is_rebased_as_any_other() -> None:
    """Over commits that changed other chunks; and refused where they changed the same."""
    repo = in_memory()
    mine, theirs = repo.writable_session("main"), repo.writable_session("main")
    fork = mine.fork()
    fork.set_encoded_chunks(None, table_of({("/a", (0, 0)): 1}))
    mine.merge(fork)
    theirs.set_encoded_chunks(None, table_of({("/a", (0, 1)): 2}))
    theirs.commit("theirs")
    mine.commit("mine", rebase_with=ConflictDetector())
    assert content(mine) == {("/a", (0, 0)): 1, ("/a", (0, 1)): 2}

    mine, theirs = repo.writable_session("main"), repo.writable_session("main")
    fork = mine.fork()
    fork.set_encoded_chunks(None, table_of({("/a", (2, 0)): 1}))
    mine.merge(fork)
    theirs.set_encoded_chunks(None, table_of({("/a", (2, 0)): 2}))
    theirs.commit("theirs")
    with pytest.raises(RebaseFailedError):
        mine.commit("mine", rebase_with=ConflictDetector())


@settings(max_examples=25)
@given(st.lists(writes, min_size=2, max_size=4))
def test_combining_in_slices_of_a_few_rows(parts: list[dict[Key, int]]) -> None:
    """What is larger than a slice goes through files; it is the same in the end."""
    session = in_memory().writable_session("main")
    written = []
    for part in parts:
        fork = session.fork()
        fork.set_encoded_chunks(None, table_of(part))
        written.append(fork.finish())
    tiny = BulkSettings(
        slice_rows=2,
        held_rows=3,
        held_rows_in_all=4,
        gather_rows=5,
        gather_bytes=1 << 30,
        run_batch_rows=2,
    )
    views = {session.get_array(path).node.id: session.get_array(path) for path in PATHS}
    session.stage(
        list(
            combine(
                session._context,
                written,
                views,
                session.layout_of,
                last_wins=True,
                settings=tiny,
            )
        )
    )
    expected: dict[Key, int] = {}
    for part in parts:
        expected |= part
    assert content(session) == expected


# -- what happens to a session between fork and merge


def test_a_fork_does_not_take_back_what_a_rebase_brought(tmp_path: Path) -> None:
    """It wrote a part of a chunk, and has the rest from before: it is refused, and nothing is changed."""
    repo = make(tmp_path / "repo")
    with repo.transaction("main", message="larger chunks") as store:
        zarr.create_array(store, name="e", shape=(4,), chunks=(2,), dtype="i4", compressors=None)
    session, theirs = repo.writable_session("main"), repo.writable_session("main")
    fork = session.fork()
    zarr.open_array(fork.store, path="e")[0] = 5
    zarr.open_array(theirs.store, path="e")[1] = 9
    theirs.commit("theirs")
    session.rebase(ConflictDetector())
    for each in (fork, pickle.loads(pickle.dumps(fork))):
        with pytest.raises(InvalidInputError, match="rebased since"):
            session.merge(each)

    assert not session.has_uncommitted_changes
    found = zarr.open_array(session.store, path="e")[...]
    assert np.array_equal(found, [0, 9, 0, 0])


@pytest.mark.parametrize("value", [7, -1])
@pytest.mark.parametrize("duplicates", ["error", "last"])
def test_a_fork_leaves_nothing_outside_of_an_array(
    tmp_path: Path, value: int, duplicates: str
) -> None:
    """What the session cut off meanwhile has no place any more, values and fill values alike."""
    repo = make(tmp_path / "repo")
    session = repo.writable_session("main")
    fork = session.fork()
    zarr.open_array(fork.store, path="a")[2, 4] = value
    zarr.open_array(session.store, path="a").resize((2, 5))
    with pytest.raises(InvalidInputError, match="smaller meanwhile"):
        session.merge(fork, duplicates=duplicates)
    session.commit("smaller")

    assert not repo.tables("chunks").num_rows


def test_a_fork_does_not_clear_arrays(tmp_path: Path) -> None:
    """It cannot say so to the session, so it does not pretend."""
    session = make(tmp_path / "repo").writable_session("main")
    fork = session.fork()
    with pytest.raises(InvalidInputError, match="cannot clear '/a'"):
        fork.clear_array("/a")
