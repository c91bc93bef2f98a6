"""Touched is touched: what a session said of a chunk counts, whether there was one or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icechunk_arrow import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictType,
    RebaseFailedError,
    Repository,
    VersionSelection,
)
from icechunk_arrow.engine import compaction
from tests.places import make_array, read_array

if TYPE_CHECKING:
    from collections.abc import Callable

FILLER, VALUE = 0, 5


@pytest.fixture
def repo() -> Repository:
    """A repository in memory with an array of 64 chunks, none of which is there."""
    repo = Repository.create("memory://")
    with repo.transaction("main", message="an empty array") as store:
        make_array(store, "a", (16, 16))
    return repo


def writes(repo: Repository, value: int, *where: slice) -> Any:
    """A session that has written a value."""
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[where] = value
    return session


def operations(repo: Repository) -> list[dict[str, Any]]:
    """What the newest commit did."""
    rows = repo.tables("operations").to_pylist()
    newest = repo.lookup_branch("main")
    return [row for row in rows if row["snapshot"] == newest]


@pytest.mark.parametrize("first", [FILLER, VALUE])
@pytest.mark.parametrize("count", [1, 8])
def test_a_filler_where_nothing_was_is_a_write(repo: Repository, first: int, count: int) -> None:
    """Zarr stores no chunk of fill values, and yet who wrote them said what the value is: from both sides."""
    where = slice(0, 2 * count), slice(0, 2 * count)
    later = writes(repo, VALUE + FILLER - first, *where)
    writes(repo, first, *where).commit("first")

    with pytest.raises(RebaseFailedError) as caught:
        later.commit("later", rebase_with=ConflictDetector())

    (conflict,) = caught.value.conflicts
    assert conflict.conflict_type is ConflictType.ChunkDoubleUpdate
    assert conflict.chunk_count == count * count
    assert conflict.conflicted_chunks is not None
    assert set(conflict.conflicted_chunks) == set(np.ndindex(count, count))
    assert read_array(repo)[0, 0] == first
    later.commit(
        "ours", rebase_with=BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
    )
    assert (read_array(repo)[where] == VALUE + FILLER - first).all()


def test_writing_nothing_but_fillers_is_a_transaction(repo: Repository) -> None:
    """It is committed and logged, and no manifest knows of it."""
    before = repo.tables("manifests")
    with repo.transaction("main", message="zeros") as store:
        zarr.open_array(store, path="a")[0:2, 0:2] = FILLER

    (row,) = operations(repo)
    assert (row["operation"], row["index"], row["effect"]) == ("delete_chunk", [0, 0], "content")
    assert repo.tables("manifests").equals(before) or not repo.tables("manifests").num_rows


def test_deletions_that_fill_a_box_are_one_row(repo: Repository) -> None:
    """With the number of chunks that were there."""
    writes(repo, VALUE, slice(0, 2), slice(0, 6)).commit("three chunks")
    writes(repo, FILLER, slice(0, 8), slice(0, 16)).commit("half of the array")

    (row,) = operations(repo)
    assert row["operation"] == "delete_chunks"
    assert row["extent"] == [{"start": 0, "stop": 4}, {"start": 0, "stop": 8}]
    assert row["chunk_count"] == 3
    assert not repo.tables("chunks").num_rows


def test_a_new_array_logs_no_deletions(repo: Repository) -> None:
    """Nobody else can know it."""
    with repo.transaction("main", message="new") as store:
        make_array(store, "b", (16, 16))[...] = FILLER

    assert [row["operation"] for row in operations(repo)] == ["create_node"]


def test_deleting_what_is_not_there_rewrites_no_manifest(repo: Repository) -> None:
    """A manifest with holes keeps its name when only the holes are spoken of."""
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="a")
    array[0:2, 0:2] = VALUE
    array[14:16, 14:16] = VALUE
    session.commit("two corners")
    before = repo.tables("manifests")["manifest"].to_pylist()
    writes(repo, FILLER, slice(4, 8), slice(4, 8)).commit("the middle")

    assert repo.tables("manifests")["manifest"].to_pylist() == before
    assert read_array(repo)[0, 0] == read_array(repo)[15, 15] == VALUE


def test_forks_bring_their_fillers_along(repo: Repository) -> None:
    """What a worker said of a chunk that was not there meets what others did to it."""
    session = repo.writable_session("main")
    fork = session.fork()
    zarr.open_array(fork.store, path="a")[0:2, 0:2] = FILLER
    session.merge(fork)
    writes(repo, VALUE, slice(0, 2), slice(0, 2)).commit("theirs")

    with pytest.raises(RebaseFailedError):
        session.commit("ours", rebase_with=ConflictDetector())


def test_one_fork_fills_what_another_writes(repo: Repository) -> None:
    """They disagree, and are told."""
    session = repo.writable_session("main")
    one, other = session.fork(), session.fork()
    zarr.open_array(one.store, path="a")[0:2, 0:2] = FILLER
    zarr.open_array(other.store, path="a")[0:2, 0:2] = VALUE

    with pytest.raises(ValueError, match="disagree about '/a'"):
        session.merge(one, other)


def test_attributes_and_documents_log_what_changed(repo: Repository) -> None:
    """The top-level members that differ, whatever the size; a new shape alone is a resize."""
    with repo.transaction("main", message="large") as store:
        zarr.open_array(store, path="a").update_attributes({"units": "K", "notes": "x" * 10_000})
    with repo.transaction("main", message="all") as store:
        array = zarr.open_array(store, path="a")
        array.update_attributes({"units": "C"})
        array.resize((4, 16))

    rows = {row["operation"]: row for row in operations(repo)}
    assert rows["update_attributes"]["keys"] == ["units"]
    assert rows["resize_array"]["shape_before"] == [16, 16]
    assert rows["resize_array"]["shape_after"] == [4, 16]
    assert rows["truncate_chunks"]["extent"] == [{"start": 0, "stop": 2}, {"start": 0, "stop": 8}]
    assert "update_metadata" not in rows


@pytest.fixture
def scattered(tmp_path: Any) -> Repository:
    """A repository whose chunks stand in a file each."""
    repo = Repository.create(tmp_path / "repo")
    for row in range(8):
        with repo.transaction("main", message=f"row {row}") as store:
            if not row:
                make_array(store, "a", (16, 1024), chunks=(2, 1024))
            zarr.open_array(store, path="a")[2 * row : 2 * row + 2] = row + 1
    return repo


def test_compaction_makes_nobody_s_commit_conflict(scattered: Repository) -> None:
    """It changes no value, so a session that began before it is rebased over it, whatever that wrote."""
    session = scattered.writable_session("main")
    zarr.open_array(session.store, path="a")[0:4] = 100
    compacted = scattered.compact_chunks("main", "gather")
    assert compacted.snapshot_id is not None
    session.commit("later", rebase_with=ConflictDetector())

    found = read_array(scattered)[::2, 0]
    assert found.tolist() == [100, 100, 3, 4, 5, 6, 7, 8]
    rows = scattered.tables("operations").to_pylist()
    placed = {row["operation"] for row in rows if row["snapshot"] == compacted.snapshot_id}
    assert placed == {"relocate_chunks"}
    assert {row["effect"] for row in rows if row["operation"] == "relocate_chunks"} == {"placement"}


def while_it_copies(
    monkeypatch: pytest.MonkeyPatch, repo: Repository, theirs: Callable[[Any], None]
) -> None:
    """Have somebody else commit between a compaction's copying and its commit."""
    copy = compaction._copy

    def meanwhile(*arguments: Any) -> Any:
        made = copy(*arguments)
        with repo.transaction("main", message="meanwhile") as store:
            theirs(store)
        return made

    monkeypatch.setattr(compaction, "_copy", meanwhile)


def test_compaction_gives_way_to_everything(
    scattered: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that others wrote, deleted or cut off while it copied are left alone; the rest is gathered."""

    def theirs(store: Any) -> None:
        array = zarr.open_array(store, path="a")
        array[0:2] = 100
        array[2:4] = FILLER
        array.resize((14, 1024))

    while_it_copies(monkeypatch, scattered, theirs)
    done = scattered.compact_chunks("main", "gather")

    assert done.snapshot_id == scattered.lookup_branch("main")
    assert read_array(scattered)[::2, 0].tolist() == [100, 0, 3, 4, 5, 6, 7]
    files = scattered.tables("chunks").to_pylist()
    assert len({row["location"] for row in files if row["index"][0] >= 2}) == 1
    assert np.array_equal(sorted(row["index"][0] for row in files), [0, 2, 3, 4, 5, 6])


def test_compaction_of_an_array_that_went_commits_nothing(
    scattered: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it gave way."""

    def theirs(store: Any) -> None:
        del zarr.open_group(store)["a"]

    while_it_copies(monkeypatch, scattered, theirs)

    assert scattered.compact_chunks("main", "gather").snapshot_id is None
    assert scattered.tables("nodes")["path"].to_pylist() == ["/"]


# -- what is cut off


def cut(repo: Repository, how: str) -> Any:
    """A session that has cut all chunks off, and left the document as it is."""
    session = repo.writable_session("main")
    if how == "clear":
        session.clear_array("/a")
    else:
        array = zarr.open_array(session.store, path="a")
        array.resize((2, 2) if how == "shrink" else (0, 0))
        if how != "shrink":
            array.resize((16, 16))
    return session


@pytest.fixture
def full(repo: Repository) -> Repository:
    """The same repository with a value everywhere."""
    writes(repo, 7, slice(None), slice(None)).commit("sevens")
    return repo


@pytest.mark.parametrize("how", ["clear", "shrink and grow"])
def test_a_part_of_a_chunk_does_not_bring_back_what_was_cut_off(full: Repository, how: str) -> None:
    """Whoever wrote a part of a chunk has the rest from before; that others cut it off is a conflict."""
    later = writes(full, VALUE, slice(4, 5), slice(4, 5))
    cut(full, how).commit("cut")

    with pytest.raises(RebaseFailedError) as caught:
        later.commit("later", rebase_with=ConflictDetector())

    assert {c.conflict_type for c in caught.value.conflicts} == {ConflictType.ChunkDoubleUpdate}
    assert not read_array(full)[2:, 2:].any()
    theirs = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs)
    later.commit("nothing is left of it", rebase_with=theirs)
    assert not read_array(full)[2:, 2:].any()


@pytest.mark.parametrize("how", ["clear", "shrink and grow", "shrink"])
@pytest.mark.parametrize("stop", [5, 16])
def test_what_others_wrote_is_not_cut_off(full: Repository, how: str, stop: int) -> None:
    """One chunk or many at once: who cuts off what he has not seen is told."""
    later = cut(full, how)
    writes(full, VALUE, slice(4, stop), slice(4, stop)).commit("theirs")

    with pytest.raises(RebaseFailedError) as caught:
        later.commit("later", rebase_with=ConflictDetector())

    assert {c.conflict_type for c in caught.value.conflicts} == {ConflictType.ChunkDoubleUpdate}
    theirs = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs)
    with pytest.raises(RebaseFailedError):  # what was cut off cannot be given back one by one
        later.commit("later", rebase_with=theirs)
    assert read_array(full)[4, 4] == VALUE
    later.commit("ours", rebase_with=BasicConflictSolver())
    assert not read_array(full)[4:, 4:].any()


def test_who_cuts_off_elsewhere_is_in_nobody_s_way(full: Repository) -> None:
    """Chunks within what stays are not touched, and cutting off twice is cutting off."""
    one, other = full.writable_session("main"), full.writable_session("main")
    for session, size in ((one, 8), (other, 10)):
        array = zarr.open_array(session.store, path="a")
        array.resize((size, 16))
        array.resize((16, 16))
    later = writes(full, VALUE, slice(0, 1), slice(0, 1))
    for session in (one, other, later):
        session.commit("one after the other", rebase_with=ConflictDetector())

    assert read_array(full)[:, 0].tolist() == [VALUE, *[7] * 7, *[0] * 8]


@pytest.mark.parametrize("later", ["fill", "write", "cut"])
@pytest.mark.parametrize("first", ["fill", "write", "cut"])
def test_many_chunks_at_once_that_do_not_meet(full: Repository, first: str, later: str) -> None:
    """Boxes of fill values, of values, and what is cut off go together where they have no chunk in common."""

    def begin(how: str, part: slice) -> Any:
        if how != "cut":
            return writes(full, VALUE if how == "write" else FILLER, part, slice(None))
        session = full.writable_session("main")
        array = zarr.open_array(session.store, path="a")
        array.resize((14, 16))
        array.resize((16, 16))
        return session

    one, other = begin(first, slice(0, 4)), begin(later, slice(8, 12))
    one.commit("first")
    other.commit("later", rebase_with=ConflictDetector())

    found = read_array(full)[:, 0]
    wanted = {"fill": FILLER, "write": VALUE, "cut": 7}
    assert (found[0], found[8]) == (wanted[first], wanted[later])


# -- in new arrays


@pytest.mark.parametrize("how", ["fork", "overwritten", "cut", "run"])
def test_a_new_array_logs_nothing_that_went(repo: Repository, how: str) -> None:
    """Whatever was written there and went again before the commit, in this session or in a fork of it."""
    session = repo.writable_session("main")
    array = make_array(session.store, "b", (16, 16))
    if how == "fork":
        fork = session.fork()
        zarr.open_array(fork.store, path="b")[...] = FILLER
        session.merge(fork)
    else:
        array[...] = VALUE
    if how == "overwritten":
        array[...] = FILLER
    elif how == "cut":
        array.resize((0, 16))
    elif how == "run":
        session.clear_array("/b")
    assert not session.status().updated_chunks
    session.commit("new")

    assert [row["operation"] for row in operations(repo)] == ["create_node"]
    assert not repo.tables("chunks").num_rows
