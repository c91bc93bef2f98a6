"""Two sessions on one branch: what goes together, what does not, and how it is settled."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from icechunk_arrow import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictError,
    ConflictType,
    RebaseFailedError,
    Repository,
    VersionSelection,
)
from tests.places import make_array, read_array, written


@pytest.fixture
def repo() -> Repository:
    """A repository in memory with an array full of ones."""
    repo = Repository.create("memory://")
    written(repo, 1)
    return repo


def kinds(error: RebaseFailedError) -> set[ConflictType]:
    """Which conflicts a failed rebase names."""
    return {conflict.conflict_type for conflict in error.conflicts}


def test_changes_to_different_chunks_both_stay(repo: Repository) -> None:
    """Two writers of one array that touch different chunks both succeed."""
    ours, theirs = repo.writable_session("main"), repo.writable_session("main")
    zarr.open_array(ours.store, path="a")[0:2, 0:2] = 2
    zarr.open_array(theirs.store, path="a")[4:6, 4:6] = 3
    theirs.commit("theirs")
    ours.commit("ours", rebase_with=ConflictDetector())
    found = read_array(repo)

    assert (found[0:2, 0:2] == 2).all()
    assert (found[4:6, 4:6] == 3).all()
    assert found.sum() == 4 * 2 + 4 * 3 + (64 - 8)


@pytest.mark.parametrize("catalog", ["branches", "state"])
def test_half_a_rebase_brings_nothing_back(catalog: str) -> None:
    """A session that stands on a commit which the branch has left again makes it no part of the branch."""
    repo = Repository.create("memory://", catalog=catalog)
    first = written(repo, 1)
    ours = repo.writable_session("main")
    zarr.open_array(ours.store, path="a")[0, 0] = 2
    written(repo, 1, "b")
    theirs = repo.writable_session("main")
    zarr.open_array(theirs.store, path="a")[0, 0] = 3
    theirs.commit("theirs")
    with pytest.raises(RebaseFailedError):
        ours.rebase(ConflictDetector())
    repo.reset_branch("main", first)

    with pytest.raises(ConflictError):
        ours.commit("ours")
    assert repo.lookup_branch("main") == first


def test_new_nodes_get_ids_of_their_own(repo: Repository) -> None:
    """Two sessions that each create arrays give out the same ids; after a rebase each has its own."""
    ours, theirs = repo.writable_session("main"), repo.writable_session("main")
    make_array(ours.store, "ours")[...] = 5
    make_array(theirs.store, "theirs")[...] = 6
    theirs.commit("theirs")
    ours.rebase(ConflictDetector())
    assert np.all(zarr.open_array(ours.store, path="ours")[...] == 5)
    assert np.all(zarr.open_array(ours.store, path="theirs")[...] == 6)
    ours.commit("ours")

    assert (read_array(repo, "ours") == 5).all()
    assert (read_array(repo, "theirs") == 6).all()
    assert (read_array(repo, "a") == 1).all()


def test_the_same_chunk_is_a_conflict_that_can_be_settled(repo: Repository) -> None:
    """Both wrote one chunk: the detector names it, the solver keeps one side's."""
    for selection, value in ((VersionSelection.UseOurs, 2), (VersionSelection.UseTheirs, 3)):
        ours, theirs = repo.writable_session("main"), repo.writable_session("main")
        zarr.open_array(ours.store, path="a")[0:4, 0:2] = 2
        zarr.open_array(theirs.store, path="a")[0:2, 0:2] = 3
        theirs.commit("theirs")
        with pytest.raises(RebaseFailedError) as caught:
            ours.rebase(ConflictDetector())
        assert kinds(caught.value) == {ConflictType.ChunkDoubleUpdate}
        assert caught.value.conflicts[0].conflicted_chunks == ((0, 0),)
        ours.commit("ours", rebase_with=BasicConflictSolver(on_chunk_conflict=selection))
        found = read_array(repo)
        assert (found[0:2, 0:2] == value).all()
        assert (found[2:4, 0:2] == 2).all()


def test_a_failed_rebase_keeps_the_changes(repo: Repository) -> None:
    """After RebaseFailedError the session reads and holds what it did before."""
    ours, theirs = repo.writable_session("main"), repo.writable_session("main")
    zarr.open_array(ours.store, path="a")[0:2, 0:2] = 2
    zarr.open_array(theirs.store, path="a").attrs["x"] = 1
    theirs.commit("theirs")
    with pytest.raises(RebaseFailedError) as caught:
        ours.commit("ours", rebase_with=ConflictDetector())

    assert kinds(caught.value) == {ConflictType.ChunksUpdatedInUpdatedArray}
    assert np.all(zarr.open_array(ours.store, path="a")[0:2, 0:2] == 2)


def test_deleting_what_they_wrote(repo: Repository) -> None:
    """Deleting an array that somebody wrote to is a conflict, unless the solver allows it."""
    ours, theirs = repo.writable_session("main"), repo.writable_session("main")
    ours.delete_nodes(["/a"])
    zarr.open_array(theirs.store, path="a")[0:2, 0:2] = 3
    theirs.commit("theirs")
    with pytest.raises(RebaseFailedError) as caught:
        ours.rebase(BasicConflictSolver(fail_on_delete_of_updated_array=True))
    assert kinds(caught.value) == {ConflictType.DeleteOfUpdatedArray}
    ours.commit("ours", rebase_with=BasicConflictSolver())

    assert repo.readonly_session("main").node_paths() == ["/"]


def test_many_commits_in_between(repo: Repository) -> None:
    """A session rebases over more commits than a snapshot remembers."""
    ours = repo.writable_session("main")
    make_array(ours.store, "ours")[...] = 5
    for n in range(20):
        written(repo, n, f"theirs{n}")
    ours.commit("ours", rebase_with=ConflictDetector())

    assert (read_array(repo, "ours") == 5).all()
    assert (read_array(repo, "theirs19") == 19).all()


def test_a_reset_branch_cannot_be_rebased_onto(repo: Repository) -> None:
    """Where the session's base left the history, the error says that the branch was reset."""
    first = list(repo.ancestry(branch="main"))[-1].id
    ours = repo.writable_session("main")
    make_array(ours.store, "ours")
    repo.reset_branch("main", first)
    with pytest.raises(Exception, match="was reset"):
        ours.commit("ours", rebase_with=ConflictDetector())
