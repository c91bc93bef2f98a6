"""Arranging manifests anew: what the settings ask for, as one commit, whatever others do meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from icechunk_arrow import (
    ConflictDetector,
    ManifestSet,
    ManifestSettings,
    NodeNotFoundError,
    RefNotFoundError,
    Repository,
    RepositoryConfig,
)
from icechunk_arrow.engine.commit import publish
from tests.places import make_array

if TYPE_CHECKING:
    from pathlib import Path

    from icechunk_arrow import Session
    from icechunk_arrow.engine.plan import FinishedCommit


def settings(limit: int, **more: object) -> RepositoryConfig:
    """One set, with this limit."""
    only = ManifestSet(name="default", max_manifest_size=limit, **more)  # type: ignore[arg-type]
    return RepositoryConfig(chunk_manifests=ManifestSettings(sets=(only,), rules=()))


def references(first: int, count: int) -> pa.Table:
    """Virtual references to a row of chunks."""
    number = np.arange(first, first + count)
    return pa.table(
        {
            "index_0": number,
            "location": [f"s3://bucket/{n}" for n in number],
            "offset": number,
            "length": np.full(count, 10),
        }
    )


def grow(repo: Repository, path: str, first: int, count: int) -> None:
    """Commit some references."""
    session = repo.writable_session("main")
    if session.find_node(path) is None:
        make_array(session.store, path[1:], shape=(1000,), chunks=(1,))
    session.set_references(path, references(first, count))
    session.commit(f"{first}")


def held(session: Session, path: str = "/a") -> dict[int, str | None]:
    """Where every chunk of a one-dimensional array is."""
    found: dict[int, str | None] = {}
    for batch in session.chunk_references(path):
        for row in batch.to_pylist():
            found[row["index"][0]] = row["location"]
    return found


def sizes(repo: Repository) -> list[int]:
    """How many rows each live manifest has."""
    session = repo.readonly_session("main")
    return sorted(n for b in session.manifests() for n in b["chunk_count"].to_pylist())


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """Seven commits of five references each, in a repository whose manifests hold ten."""
    repo = Repository.create(tmp_path, config=settings(10))
    for number in range(7):
        grow(repo, "/a", 5 * number, 5)
    return repo


def test_small_manifests_are_gathered(repo: Repository) -> None:
    """Manifests come to hold what the settings allow; no reference is lost or changed."""
    before = held(repo.readonly_session("main"))
    found = repo.rewrite_manifests("main", "tidy", metadata={"why": "test"})

    assert (found.replaced, found.written, found.row_count) == (7, 4, 35)
    assert sizes(repo) == [5, 10, 10, 10]
    assert held(repo.readonly_session("main")) == before == held_by_number(35)
    info = next(iter(repo.ancestry(branch="main")))
    assert (info.id, info.message, info.metadata) == (found.snapshot_id, "tidy", {"why": "test"})


def held_by_number(count: int) -> dict[int, str | None]:
    """What ``references`` says."""
    return {n: f"s3://bucket/{n}" for n in range(count)}


def test_what_is_in_order_stays(repo: Repository) -> None:
    """A second time nothing is written, and there is no commit."""
    first = repo.rewrite_manifests("main", "tidy")
    again = repo.rewrite_manifests("main", "tidy")

    assert again.snapshot_id is None
    assert (again.kept, again.replaced, again.row_count) == (first.written, 0, 0)
    assert repo.lookup_branch("main") == first.snapshot_id


def test_a_dry_run_says_what_would_be(repo: Repository) -> None:
    """The same numbers as the run itself, and nothing written."""
    tip = repo.lookup_branch("main")
    before = sizes(repo)
    would = repo.rewrite_manifests("main", "tidy", dry_run=True)

    assert (repo.lookup_branch("main"), sizes(repo)) == (tip, before)
    done = repo.rewrite_manifests("main", "tidy")
    assert (would.kept, would.replaced, would.written, would.row_count) == (
        done.kept,
        done.replaced,
        done.written,
        done.row_count,
    )


def test_new_settings_take_hold(repo: Repository) -> None:
    """Other settings, saved or given to open, are what the manifests are arranged by."""
    repo.rewrite_manifests("main", "tidy")
    url = repo.url
    wider = Repository.open(url, config=settings(20))
    wider.rewrite_manifests("main", "wider")
    assert sizes(wider) == [15, 20]
    wider.save_config()
    grow(Repository.open(url), "/b", 0, 40)

    assert sizes(wider) == [15, 20, 20, 20]


def test_only_what_is_out_of_order_is_written(repo: Repository) -> None:
    """Full manifests stay; the rest that was appended is gathered."""
    repo.rewrite_manifests("main", "tidy")
    for number in range(35, 40):
        grow(repo, "/a", number, 1)
    found = repo.rewrite_manifests("main", "again")

    assert found.kept == 3
    assert found.row_count == 10
    assert sizes(repo) == [10, 10, 10, 10]
    assert held(repo.readonly_session("main")) == held_by_number(40)


def test_another_axis(tmp_path: Path) -> None:
    """Cut along the second axis, each manifest has its own columns of the grid."""
    repo = Repository.create(tmp_path, config=settings(32))
    session = repo.writable_session("main")
    make_array(session.store, "a", shape=(8, 16), chunks=(1, 1))
    index = np.indices((8, 16)).reshape(2, -1)
    table = pa.table(
        {
            "index_0": index[0],
            "index_1": index[1],
            "location": ["s3://bucket/x"] * 128,
            "offset": np.arange(128),
            "length": np.ones(128, np.int64),
        }
    )
    session.set_references("/a", table)
    session.commit("rows")
    other = Repository.open(tmp_path, config=settings(32, split_along=1))
    other.rewrite_manifests("main", "columns")
    boxes = [
        tuple(map(tuple, array["extent"]))
        for batch in other.readonly_session("main").manifests()
        for entry in batch["arrays"].to_pylist()
        for array in entry
    ]

    assert sorted(boxes) == [((0, 8), (4 * n, 4 * n + 4)) for n in range(4)]


@pytest.mark.parametrize("theirs", ["adds", "overwrites"])
def test_a_commit_in_between_is_kept(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, theirs: str
) -> None:
    """Somebody commits while manifests are written: both are there in the end."""
    waiting = [lambda: grow(repo, "/a", 35 if theirs == "adds" else 0, 3)]

    def late(context: object, tip: object, finished: FinishedCommit) -> object:
        if waiting:
            waiting.pop()()
        return publish(context, tip, finished)  # type: ignore[arg-type]

    monkeypatch.setattr("icechunk_arrow.engine.rewriting.publish", late)
    found = repo.rewrite_manifests("main", "tidy")
    messages = [info.message for info in repo.ancestry(branch="main")]

    assert messages[:2] == ["tidy", "35" if theirs == "adds" else "0"]
    assert found.snapshot_id == repo.lookup_branch("main")
    count = 38 if theirs == "adds" else 35
    assert held(repo.readonly_session("main")) == held_by_number(count)
    assert sum(sizes(repo)) == count


def test_it_is_in_nobodys_way(repo: Repository) -> None:
    """Whatever a session has done, a move too, can follow a commit that only arranged manifests."""
    session = repo.writable_session("main")
    session.move("/a", "/b")
    repo.rewrite_manifests("main", "tidy")
    session.commit("moved", rebase_with=ConflictDetector())

    assert held(repo.readonly_session("main"), "/b") == held_by_number(35)
    assert sizes(repo) == [5, 10, 10, 10]


def test_wrong_branches_are_named(repo: Repository) -> None:
    """There is nothing to rewrite on a branch that does not exist."""
    with pytest.raises(RefNotFoundError, match="nowhere"):
        repo.rewrite_manifests("nowhere", "tidy")
    with pytest.raises(NodeNotFoundError, match="/none"):
        list(repo.readonly_session("main").chunk_references("/none"))
