"""Making, opening and finding one's way in a repository, with either catalog."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotAuthorizedError,
    ReadOnlyError,
    RefNotFoundError,
    Repository,
    RepositoryNotFoundError,
    SnapshotNotFoundError,
)
from tests.places import make_array, read_array, written

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["branches", "state"])
def repo(request: Any, tmp_path: Path) -> Repository:
    """A fresh repository on local disk, with each catalog."""
    return Repository.create(tmp_path / "repo", catalog=request.param)


def test_create_refuses_a_place_that_is_taken(repo: Repository) -> None:
    """A second repository cannot be made over the first, whatever its catalog."""
    for catalog in ("branches", "state"):
        with pytest.raises(AlreadyExistsError, match="already"):
            Repository.create(repo.url, catalog=catalog)


def test_open_finds_what_create_made(repo: Repository) -> None:
    """A repository opens by its place alone; ``exists`` says the same."""
    written(repo, 7)

    assert Repository.exists(repo.url)
    assert (read_array(Repository.open(repo.url)) == 7).all()
    assert (read_array(Repository.open_or_create(repo.url)) == 7).all()


def test_open_says_that_there_is_none(tmp_path: Path) -> None:
    """Opening an empty place names it, and makes nothing."""
    with pytest.raises(RepositoryNotFoundError, match="nowhere"):
        Repository.open(tmp_path / "nowhere")
    assert not Repository.exists(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_branches_are_created_reset_and_deleted(repo: Repository) -> None:
    """A branch goes through its whole life, and may begin again under its name."""
    one, two = written(repo, 1, "a"), written(repo, 2, "b")
    repo.create_branch("dev", one)

    assert repo.list_branches() == {"main", "dev"}
    assert repo.lookup_branch("dev") == one
    with pytest.raises(AlreadyExistsError):
        repo.create_branch("dev", two)
    repo.reset_branch("dev", two, from_snapshot_id=one)
    with pytest.raises(ConflictError) as caught:
        repo.reset_branch("dev", one, from_snapshot_id=one)
    assert caught.value.actual_parent == two
    repo.delete_branch("dev")
    assert repo.list_branches() == {"main"}
    with pytest.raises(RefNotFoundError, match="dev"):
        repo.lookup_branch("dev")
    with pytest.raises(RefNotFoundError):
        repo.delete_branch("dev")
    repo.create_branch("dev", one)
    assert repo.lookup_branch("dev") == one


def test_main_cannot_be_deleted(repo: Repository) -> None:
    """The branch by which a repository is recognised stays."""
    with pytest.raises(InvalidInputError, match="main"):
        repo.delete_branch("main")


def test_tags_do_not_move_and_keep_their_names(repo: Repository) -> None:
    """A tag is made once; withdrawn, its name stays reserved for ever."""
    one, two = written(repo, 1, "a"), written(repo, 2, "b")
    repo.create_tag("v1", one)

    with pytest.raises(AlreadyExistsError, match="do not move"):
        repo.create_tag("v1", two)
    assert repo.lookup_tag("v1") == one
    repo.delete_tag("v1")
    assert repo.list_tags() == set()
    with pytest.raises(RefNotFoundError):
        repo.lookup_tag("v1")
    with pytest.raises(AlreadyExistsError, match="reserved"):
        repo.create_tag("v1", two)


def test_a_branch_and_a_tag_may_share_a_name(repo: Repository) -> None:
    """The two kinds of names do not meet."""
    one = written(repo)
    repo.create_branch("x", one)
    repo.create_tag("x", one)

    assert repo.list_branches() == {"main", "x"}
    assert repo.list_tags() == {"x"}


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", " a", "a" * 300, "a\\b", "\ud800"])
def test_odd_names_are_refused(repo: Repository, name: str) -> None:
    """A name that could lead elsewhere or not be written is refused, for branches and tags."""
    one = repo.lookup_branch("main")
    with pytest.raises(InvalidInputError):
        repo.create_branch(name, one)
    with pytest.raises(InvalidInputError):
        repo.create_tag(name, one)


@pytest.mark.parametrize("name", ["a b", "ü", "'", '"', "[x]", "*", "%2e", "..", "日本"])
def test_strange_names_are_plain_names(repo: Repository, name: str) -> None:
    """Anything else is just a name."""
    one = written(repo)
    repo.create_branch(name, one)
    repo.create_tag(name, one)

    assert repo.list_branches() == {"main", name}
    assert repo.list_tags() == {name}
    assert (read_array(repo, tag=name) == 1).all()


def test_unknown_snapshots_are_refused(repo: Repository) -> None:
    """A name cannot point to nothing."""
    missing = "0" * 20
    with pytest.raises(SnapshotNotFoundError, match=missing):
        repo.create_branch("dev", missing)
    with pytest.raises(SnapshotNotFoundError):
        repo.readonly_session(snapshot_id=missing)
    with pytest.raises(InvalidInputError, match="snapshot id"):
        repo.create_tag("t", "nonsense")


def test_history_is_complete_beyond_what_a_snapshot_remembers(repo: Repository) -> None:
    """Ancestry walks to the first snapshot, in order, with messages and metadata."""
    made = []
    for n in range(40):
        session = repo.writable_session("main")
        made.append(session.commit(f"commit {n}", {"n": n}, allow_empty=True))
    history = list(repo.ancestry(branch="main"))

    assert [info.id for info in history[:-1]] == made[::-1]
    assert [info.metadata["n"] for info in history[:-1]] == list(range(39, -1, -1))
    assert history[-1].parent_id is None
    assert all(a.parent_id == b.id for a, b in pairwise(history))
    assert all(a.written_at > b.written_at for a, b in pairwise(history))


def test_time_travel(repo: Repository) -> None:
    """A session reads a branch, a tag, a snapshot, or a branch as it was."""
    one, two = written(repo, 1, "a"), written(repo, 2, "b")
    repo.create_tag("v1", one)
    then = repo.lookup_snapshot(one).written_at

    assert repo.readonly_session("main").snapshot_id == two
    assert repo.readonly_session(tag="v1").snapshot_id == one
    assert repo.readonly_session(snapshot_id=one).snapshot_id == one
    assert repo.readonly_session("main", as_of=then).snapshot_id == one
    assert repo.readonly_session("main", as_of=datetime.now(UTC)).snapshot_id == two
    with pytest.raises(SnapshotNotFoundError, match="at or before"):
        repo.readonly_session("main", as_of=then - timedelta(days=1))
    with pytest.raises(InvalidInputError, match="zone"):
        repo.readonly_session("main", as_of=datetime(2020, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidInputError, match="exactly one"):
        repo.readonly_session("main", tag="v1")
    with pytest.raises(InvalidInputError, match="exactly one"):
        repo.readonly_session()


def test_a_lost_race_names_both_parents_and_keeps_the_changes(repo: Repository) -> None:
    """Of two sessions the second gets a ConflictError and can still read what it wrote."""
    base = written(repo, 1, "a")
    first, second = repo.writable_session("main"), repo.writable_session("main")
    make_array(first.store, "b")
    make_array(second.store, "c")[...] = 3
    winner = first.commit("b")
    with pytest.raises(ConflictError) as caught:
        second.commit("c")

    assert (caught.value.expected_parent, caught.value.actual_parent) == (base, winner)
    assert second.has_uncommitted_changes
    assert second.status().new_arrays == {"/c"}


def test_nothing_to_commit_is_said(repo: Repository) -> None:
    """An empty commit is refused unless it is asked for."""
    session = repo.writable_session("main")
    with pytest.raises(InvalidInputError, match="allow_empty"):
        session.commit("nothing")
    assert session.commit("nothing", allow_empty=True) == repo.lookup_branch("main")


def test_a_session_commits_once(repo: Repository) -> None:
    """After a commit the session reads the new snapshot and writes no more."""
    session = repo.writable_session("main")
    array = make_array(session.store)
    array[...] = 5
    snapshot_id = session.commit("five")

    assert session.read_only
    assert session.snapshot_id == snapshot_id
    with pytest.raises(ReadOnlyError, match="writable_session"):
        session.commit("again")


def test_transactions_commit_on_a_clean_exit_only(repo: Repository) -> None:
    """The block's changes are committed when it ends well, and none of them when it raises."""
    with repo.transaction("main", message="good", metadata={"by": "test"}) as store:
        make_array(store, "good")
    with pytest.raises(RuntimeError), repo.transaction("main", message="bad") as store:  # noqa: PT012
        make_array(store, "bad")
        raise RuntimeError

    tip = next(iter(repo.ancestry(branch="main")))
    assert (tip.message, tip.metadata) == ("good", {"by": "test"})


def test_discard_forgets_everything(repo: Repository) -> None:
    """Discarded changes are gone from reading and from the next commit."""
    written(repo, 1, "a")
    session = repo.writable_session("main")
    make_array(session.store, "b")
    session.discard_changes()

    assert not session.has_uncommitted_changes
    assert session.status().is_empty()
    assert session.node_paths() == ["/", "/a"]


def test_readonly_sessions_pickle_and_writable_ones_refuse(repo: Repository) -> None:
    """A read-only session and its store travel; a writable one says why it does not."""
    written(repo, 4)
    session = repo.readonly_session("main")
    copy = pickle.loads(pickle.dumps(session))
    store = pickle.loads(pickle.dumps(session.store))

    assert copy.snapshot_id == session.snapshot_id
    assert store == session.store
    assert pickle.loads(pickle.dumps(repo)).lookup_branch("main") == session.snapshot_id
    with pytest.raises(ReadOnlyError, match="pickle"):
        pickle.dumps(repo.writable_session("main"))
    with pytest.raises(ReadOnlyError, match="pickle"):
        pickle.dumps(repo.writable_session("main").store)


def test_handles_show_what_they_are(repo: Repository) -> None:
    """Representations name the place, the branch and the state, safely in HTML."""
    session = repo.writable_session("main")
    make_array(session.store, "<b>")

    assert repo.url in repr(repo)
    assert "main" in repr(session)
    assert "uncommitted" in repr(session)
    assert "writable" in repr(session.store)
    assert "&lt;b&gt;" in session._repr_html_()
    assert "<table>" in repo._repr_html_()
    assert "<table>" in repo.lookup_snapshot(repo.lookup_branch("main"))._repr_html_()


def test_the_state_file_may_live_apart(tmp_path: Path) -> None:
    """Data in one place and the state file in another; a root that leads outside needs permission."""
    data, state = tmp_path / "data", tmp_path / "elsewhere"
    repo = Repository.create(data, catalog="state", state_url=state)
    written(repo, 9)

    assert (state / "state.json").exists()
    assert not (data / "state.json").exists()
    assert (read_array(Repository.open(data, state_url=state)) == 9).all()
    with pytest.raises(NotAuthorizedError, match="outside"):
        Repository.open(state)
    trusted = Repository.open(state, authorize_virtual_chunk_access=[f"file://{data}"])
    assert (read_array(trusted) == 9).all()


def test_state_is_exported_for_other_readers(tmp_path: Path) -> None:
    """``export_state`` publishes what the branches and tags say, in a growing generation."""
    import json

    repo = Repository.create(tmp_path / "repo")
    one = written(repo)
    repo.create_tag("v1", one)
    repo.export_state()
    repo.export_state()
    state = json.loads((tmp_path / "repo" / "state.json").read_text())

    assert state["generation"] == 1
    assert state["refs"]["branch.main"]["snapshot-id"] == one
    assert state["refs"]["tag.v1"] == {"name": "v1", "snapshot-id": one, "type": "tag"}
    assert [s["structure-file"] for s in state["snapshots"]][-1] == f"{one}.parquet"
    assert Repository.open(tmp_path / "repo").lookup_branch("main") == one
    written(repo, 2, "b")
    assert Repository.open(tmp_path / "repo").lookup_branch("main") != one


@pytest.mark.parametrize(
    "metadata",
    [{"x": object()}, {"x": float("nan")}, {1: {2: {3}}}, "deep"],
    ids=["an object", "no number", "a set", "deep"],
)
def test_metadata_that_cannot_be_read_back_is_refused(metadata: Any) -> None:
    """What is no JSON, or nested beyond reading, is refused before anything is written."""
    if metadata == "deep":
        metadata = {}
        for _ in range(600):
            metadata = {"x": metadata}
    repo = Repository.create("memory://")
    session = repo.writable_session("main")
    make_array(session.store)
    with pytest.raises(InvalidInputError, match="metadata"):
        session.commit("x", metadata)
    session.commit("x", {"fine": [1, None, "ü"]})

    assert len(list(repo.ancestry(branch="main"))) == 2
