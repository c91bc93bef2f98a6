"""What forks hand over says that it was synced, and a commit that promises to stay takes nothing else."""

from __future__ import annotations

import logging
import pickle
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from icechunk_arrow import ForkSession, Repository, StorageError, StorageSettings
from icechunk_arrow.errors import NotDurableError
from tests.places import make_array, read_array, written

if TYPE_CHECKING:
    from pathlib import Path

    from icechunk_arrow import Session

CARELESS = StorageSettings(durable=False)


def sessions(root: Path, **settings: StorageSettings) -> tuple[Repository, Session]:
    repo = Repository.open(root, **settings)  # type: ignore[arg-type]
    return repo, repo.writable_session("main")


def handed_over(session: Session) -> ForkSession:
    """Let a fork write elsewhere, and come back."""
    import zarr

    fork = pickle.loads(pickle.dumps(session.fork()))
    zarr.open_array(fork.store, path="a", mode="r+")[:2] = 7
    back = pickle.loads(pickle.dumps(fork))
    assert isinstance(back, ForkSession)
    return back


@pytest.fixture
def root(tmp_path: Path) -> Path:
    written(Repository.create(tmp_path / "r"))
    return tmp_path / "r"


def test_what_a_fork_wrote_says_that_it_was_synced(root: Path) -> None:
    """It is the fork's handle that knows: one that is not durable says so."""
    assert handed_over(sessions(root)[1]).finish().synced
    _, careless = sessions(root, storage_settings=CARELESS)
    assert not handed_over(careless).finish().synced


def test_a_durable_commit_takes_nothing_that_was_not_synced(root: Path) -> None:
    """It is refused before anything is staged, with a way out."""
    repo, session = sessions(root)
    _, careless = sessions(root, storage_settings=CARELESS)

    with pytest.raises(NotDurableError, match="durable=False") as caught:
        session.merge(handed_over(careless))

    assert isinstance(caught.value, StorageError)
    assert not session.has_uncommitted_changes
    session.merge(handed_over(session))
    session.commit("synced")
    assert read_array(repo)[0, 0] == 7


def test_who_does_without_is_told_once(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody who chose not to be durable commits what was not synced, and the log says so once."""
    repo, session = sessions(root, storage_settings=CARELESS)
    with caplog.at_level(logging.WARNING):
        session.merge(handed_over(session))
        session.merge(handed_over(session), duplicates="last")
    session.commit("not synced")

    told = [each.getMessage() for each in caplog.records if "was not synced" in each.getMessage()]
    assert len(told) == 1
    assert str(root) in told[0]
    assert read_array(repo)[0, 0] == 7


def test_a_statement_cannot_be_left_out(root: Path) -> None:
    """Nothing that a fork hands over is without it."""
    part = handed_over(sessions(root)[1]).finish()
    assert replace(part, synced=False).synced is False
    with pytest.raises(TypeError, match="synced"):
        type(part)()  # type: ignore[call-arg]


def test_a_branch_may_begin_where_a_fork_stands(root: Path) -> None:
    """What a session has so far is a snapshot with everything that a snapshot has, its log included."""
    repo, session = sessions(root)
    make_array(session.store, "b")[...] = 3
    fork = session.fork()
    repo.create_branch("b", fork.snapshot_id)

    assert read_array(repo, "b", branch="b")[0, 0] == 3
    assert "/b" in repo.tables("operations", branch="b")["path"].to_pylist()
