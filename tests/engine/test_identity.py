"""Whose files these are: one key says who made a repository, and no handle writes into another one."""

from __future__ import annotations

import json
import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import zarr

from icechunk_arrow import (
    AlreadyExistsError,
    ConflictDetector,
    ConflictError,
    CorruptFileError,
    InvalidInputError,
    RefNotFoundError,
    Repository,
    RepositoryNotFoundError,
    SnapshotNotFoundError,
    StorageError,
)
from icechunk_arrow.core.ids import sequence_name
from icechunk_arrow.engine import commit
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.formats import hint, ledger
from icechunk_arrow.formats.ledger import Ledger, LedgerEntry
from icechunk_arrow.storage.local import LocalStorage
from icechunk_arrow.storage.memory import MemoryStorage
from tests.faults.repositories import through
from tests.faults.storage_wrappers import WrappedStorage
from tests.places import read_array, written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from icechunk_arrow.storage.port import ObjectInfo

MAIN = "refs/branch.main/{}.json"


def entry(root: Path, number: int) -> Path:
    """An entry of main."""
    return root / MAIN.format(sequence_name(number))


def history(repo: Repository) -> list[str]:
    """Messages of the newest snapshot and all before it."""
    return [info.message for info in repo.ancestry(branch="main")]


def remade(root: Path, commits: int, **options: Any) -> Repository:
    """Delete a repository, and make another one in its place."""
    shutil.rmtree(root)
    repo = Repository.create(root, **options)
    for number in range(commits):
        written(repo, number, f"new{number}")
    return repo


@pytest.mark.parametrize("catalog", ["branches", "state"])
@pytest.mark.parametrize("commits", [0, 1, 2, 5])
def test_a_stale_handle_cannot_write_into_another_repository(
    tmp_path: Path, catalog: str, commits: int
) -> None:
    """Whatever is there instead, the commit is refused by name, and the new repository stays as it was."""
    root = tmp_path / "repo"
    stale = Repository.create(root, catalog=catalog)
    written(stale, 1, "a")
    written(stale, 1, "b")
    session = stale.writable_session("main")
    zarr.open_array(session.store, path="a")[...] = 2
    repo = remade(root, commits, catalog=catalog)
    before = history(repo)

    with pytest.raises(RepositoryNotFoundError, match="not there any more"):
        session.commit("old")
    with pytest.raises(RepositoryNotFoundError, match="not there any more"):
        session.commit("old", rebase_with=ConflictDetector())
    gone = (RepositoryNotFoundError, SnapshotNotFoundError, CorruptFileError)
    with pytest.raises(gone):
        stale.create_tag("t", session.snapshot_id)
    with pytest.raises(gone):
        stale.create_branch("b", session.snapshot_id)
    with pytest.raises(gone):
        stale.reset_branch("main", session.snapshot_id)
    with pytest.raises(RepositoryNotFoundError):
        stale.save_config()
    if catalog == "branches":
        with pytest.raises(gone):
            stale.export_state()
    assert not (root / "config.yaml").exists()
    assert (root / "state.json").exists() == (catalog == "state")

    assert history(Repository.open(root)) == before
    written(repo, 3, "more")
    assert history(Repository.open(root))[1:] == before
    assert not repo.list_tags()


@pytest.mark.parametrize("catalog", ["branches", "state"])
def test_a_stale_handle_does_not_speak_of_damage(tmp_path: Path, catalog: str) -> None:
    """What its commit has to read is gone with the old repository; the new one is whole."""
    root = tmp_path / "repo"
    stale = Repository.create(root, catalog=catalog)
    written(stale, 1, "a")
    session = stale.writable_session("main")
    zarr.open_array(session.store, path="a")[0, 0] = 2
    remade(root, 1, catalog=catalog)

    with pytest.raises(RepositoryNotFoundError, match="not there any more"):
        session.commit("old")


@pytest.mark.alone
def test_a_handle_on_a_place_that_is_empty_now_says_so(tmp_path: Path) -> None:
    """Nothing is made anew by a commit."""
    stale = Repository.create(tmp_path / "repo")
    session = stale.writable_session("main")
    zarr.create_group(session.store)
    shutil.rmtree(tmp_path / "repo")
    with pytest.raises(RepositoryNotFoundError, match="not there any more"):
        session.commit("old")

    assert not Repository.exists(tmp_path / "repo")


def test_foreign_entries_are_passed_over(tmp_path: Path) -> None:
    """A writer that looked a moment too early uses up a number, and that is all."""
    other = Repository.create(tmp_path / "other")
    foreign = written(other, 9, "foreign")
    repo = Repository.create(tmp_path / "repo")
    written(repo, 1, "a")
    shutil.copy(tmp_path / f"other/s/{foreign}.parquet", tmp_path / f"repo/s/{foreign}.parquet")
    for number in (2, 3):
        entry(tmp_path / "repo", number).write_text(json.dumps({"snapshot": foreign}))

    for handle in (repo, Repository.open(tmp_path / "repo")):
        assert history(handle) == ["write a", "Repository created"]
        assert (read_array(handle) == 1).all()
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[...] = 2
    session.commit("two")

    fresh = Repository.open(tmp_path / "repo")
    assert history(fresh) == ["two", "write a", "Repository created"]
    assert entry(tmp_path / "repo", 4).exists()


class _Late(WrappedStorage):
    """Has something happen just before an entry is created."""

    happens: Callable[[], object] | None = None

    def _run(self, operation: str, key: str, effect: Callable[[], Any]) -> Any:
        if operation == "create" and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()
        return effect()


def test_a_handle_that_was_late_once_is_not_late_for_ever(tmp_path: Path) -> None:
    """Its own entry, which stands in another repository, does not tell it that the place is still its own."""
    root = tmp_path / "repo"
    with through(_Late):
        stale = Repository.create(root)
    written(stale, 1, "a")
    session = stale.writable_session("main")
    zarr.open_array(session.store, path="a")[...] = 2
    storage = stale._context.storage
    assert isinstance(storage, _Late)
    storage.happens = lambda: remade(root, 1)
    session.commit("a moment too late")
    assert entry(root, 2).exists()

    another = stale.writable_session("main")
    zarr.open_array(another.store, path="a")[...] = 3
    with pytest.raises(RepositoryNotFoundError, match="not there any more"):
        another.commit("much too late")
    assert not entry(root, 3).exists()


class _Old(WrappedStorage):
    """Shows one listing as it was before."""

    before: list[ObjectInfo] | None = None

    def list(self, prefix: str = "", *, limit: int | None = None) -> Iterator[ObjectInfo]:
        before, self.before = self.before, None
        return self.inner.list(prefix, limit=limit) if before is None else iter(before[:limit])

    def _run(self, operation: str, key: str, effect: Callable[[], Any]) -> Any:
        return effect()


def test_a_listing_from_before_a_place_was_made_anew_misleads_nobody() -> None:
    """It shows entries that are gone: where the branch stands is then asked for, entry by entry."""
    place = MemoryStorage(secrets.token_hex(6))
    old = Repository.create(place.url)
    for number in range(3):
        written(old, number, f"a{number}")
    before = [*place.list("refs/branch.main/")]
    place.delete([info.key for info in place.list()])
    written(Repository.create(place.url), 1, "b")
    with through(_Old):
        repo = Repository.open(place.url)
        storage = repo._context.storage
        assert isinstance(storage, _Old)
        storage.before = before

        assert history(repo) == ["write b", "Repository created"]
    assert storage.before is None, "the old listing was asked for"


def test_whoever_asks_where_a_branch_stands_passes_over_foreign_entries(tmp_path: Path) -> None:
    """Exports, comparisons and resets mean the snapshot that a session would read."""
    root = tmp_path / "repo"
    foreign = written(Repository.create(tmp_path / "other"), 9, "foreign")
    repo = Repository.create(root)
    first = written(repo, 1, "a")
    stands = written(repo, 1, "b")
    repo.create_branch("ended", stands)
    repo.delete_branch("ended")
    shutil.copy(tmp_path / f"other/s/{foreign}.parquet", root / f"s/{foreign}.parquet")
    entry(root, 3).write_text(json.dumps({"snapshot": foreign}))
    late = root / f"refs/branch.ended/{sequence_name(2)}.json"
    late.write_text(json.dumps({"snapshot": foreign}))

    repo = Repository.open(root)
    repo.export_state()
    refs = json.loads((root / "state.json").read_text())["refs"]
    assert {name: ref["snapshot-id"] for name, ref in refs.items()} == {"branch.main": stands}
    assert not repo.tables("changes", since="main").num_rows
    with pytest.raises(RefNotFoundError):
        repo.tables("changes", since="ended")
    with pytest.raises(ConflictError):
        repo.reset_branch("main", first, first)
    repo.reset_branch("main", first, stands)
    assert Repository.open(root).lookup_branch("main") == first


@pytest.mark.alone
def test_of_racing_creators_one_wins_whatever_the_catalog(tmp_path: Path) -> None:
    """The first entry of main decides; whoever loses is told, and the winner's settings stay."""
    for attempt in range(30):
        root = tmp_path / str(attempt)

        def create(number: int, root: Path = root) -> str:
            try:
                repo = Repository.create(root, catalog=["branches", "state"][number % 2])
            except AlreadyExistsError:
                return ""
            return repo.lookup_branch("main")

        with ThreadPoolExecutor(4) as pool:
            made = [each for each in pool.map(create, range(4)) if each]

        assert len(made) == 1
        repo = Repository.open(root)
        assert repo.lookup_branch("main") == made[0]
        written(repo, 1)
        found = json.loads(entry(root, 0).read_bytes())
        assert found["snapshot"] == made[0]
        assert (root / "state.json").exists() is (found.get("catalog") == "state")


def test_an_interrupted_creation_is_finished(tmp_path: Path) -> None:
    """A first entry without its state file is nobody's repository yet: creating it again makes it whole."""
    root = tmp_path / "repo"
    Repository.create(root, catalog="state")
    (root / "state.json").unlink()
    assert not Repository.exists(root)
    with pytest.raises(RepositoryNotFoundError, match="create it again"):
        Repository.open(root)
    with pytest.raises(AlreadyExistsError):
        Repository.create(root)
    repo = Repository.create(root, catalog="state")

    written(repo, 1)
    assert history(Repository.open(root)) == ["write a", "Repository created"]
    (root / "state.json").unlink()
    with pytest.raises(CorruptFileError, match=r"state\.json.*restore it"):
        Repository.create(root, catalog="state")


def test_a_state_file_is_not_taken_for_the_catalog_where_it_is_an_export(tmp_path: Path) -> None:
    """The first entry says which it is."""
    repo = Repository.create(tmp_path / "repo")
    repo.export_state()
    with pytest.raises(InvalidInputError, match="open it without state_url"):
        Repository.open(tmp_path / "repo", state_url=tmp_path / "repo/state.json")


def test_a_state_file_apart_may_name_its_data_relative_to_itself(tmp_path: Path) -> None:
    """Both can be moved together."""
    root = tmp_path / "place"
    Repository.create(root / "data", catalog="state", state_url=root)
    state = json.loads((root / "state.json").read_bytes())
    state["store_root"] = "data"
    del state["crc32c"]
    (root / "state.json").write_text(json.dumps(state))
    root.rename(tmp_path / "moved")

    repo = Repository.open(tmp_path / "moved")
    written(repo, 1)
    assert (tmp_path / "moved/data/c").exists() or (tmp_path / "moved/data/i").exists()
    with pytest.raises(RepositoryNotFoundError, match="state_url"):
        Repository.open(tmp_path / "moved/data")


# -- the hint


class CountedStorage(WrappedStorage):
    """Counts questions."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.asked: list[str] = []

    def _run(self, operation: str, key: str, effect: Callable[[], Any]) -> Any:
        self.asked.append(f"{operation} {key}")
        return effect()


def long_branch(root: Path, commits: int) -> str:
    """A repository whose main has so many entries more; only the last snapshot is there."""
    repo = Repository.create(root)
    first = repo.lookup_branch("main")
    for number in range(1, commits):
        key = MAIN.format(sequence_name(number))
        there = {"snapshot": first, "write_id": new_id(), "key": key}
        entry(root, number).write_text(json.dumps(there))
    return written(Repository.open(root), 1)


def questions(root: Path) -> list[str]:
    """What a fresh reader asks below refs to find where main stands."""
    made: list[CountedStorage] = []

    def wrap(inner: Any) -> CountedStorage:
        made.append(CountedStorage(inner))
        return made[-1]

    with through(wrap):
        Repository.open(root).lookup_branch("main")
    return [each for each in made[-1].asked if " refs/" in each]


def test_a_hint_spares_a_reader_the_gallop(tmp_path: Path) -> None:
    """After ten thousand commits: the first entry and the hint, then three names at once, then the entry."""
    root = tmp_path / "repo"
    long_branch(root, 10_000)
    assert json.loads((root / "refs/branch.main/hint.json").read_bytes())["sequence"] == 10_000
    asked = questions(root)
    assert [each.split()[0] for each in asked] == ["get", "get", *["exists"] * 3, "get"]

    (root / "refs/branch.main/hint.json").unlink()
    assert len(questions(root)) > 20


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"sequence": -1, "snapshot": "VY76P925PRY57WFEK410"}',
        '{"sequence": 1e99, "snapshot": "VY76P925PRY57WFEK410"}',
        '{"sequence": true, "snapshot": "VY76P925PRY57WFEK410"}',
        '{"sequence": 1099511627776, "snapshot": "VY76P925PRY57WFEK410"}',
        '{"sequence": 1099511627775, "snapshot": "VY76P925PRY57WFEK410"}',
        '{"sequence": 77, "snapshot": "VY76P925PRY57WFEK410"}',
        '{"sequence": 0, "snapshot": "VY76P925PRY57WFEK410", "more": 1}',
    ],
)
def test_a_hint_decides_nothing(tmp_path: Path, text: str) -> None:
    """Wrong, old, or no hint at all: the branch stands where its entries say."""
    repo = Repository.create(tmp_path / "repo")
    for number in range(20):
        written(repo, number, f"a{number}")
    tip = repo.lookup_branch("main")
    (tmp_path / "repo/refs/branch.main/hint.json").write_text(text)

    assert Repository.open(tmp_path / "repo").lookup_branch("main") == tip


def test_hints_are_left_now_and_then(tmp_path: Path) -> None:
    """By the sixteenth entry, and by no other; a place that refuses them is committed to all the same."""
    repo = Repository.create(tmp_path / "repo")
    place = tmp_path / "repo/refs/branch.main/hint.json"
    for number in range(1, 16):
        written(repo, number, f"a{number}")
        assert not place.exists()
    sixteenth = written(repo, 16, "a16")

    assert hint.decode(place.read_bytes()) == hint.Hint(16, sixteenth)
    place.unlink()
    place.mkdir()
    for number in range(17, 34):
        written(repo, number, f"a{number}")
    assert len(history(Repository.open(tmp_path / "repo"))) == 34


def test_resets_leave_hints_too(tmp_path: Path) -> None:
    """Whatever makes the entry."""
    repo = Repository.create(tmp_path / "repo")
    first = repo.lookup_branch("main")
    for _ in range(16):
        repo.reset_branch("main", first)

    found = hint.decode((tmp_path / "repo/refs/branch.main/hint.json").read_bytes())
    assert found == hint.Hint(16, first)


# -- the ledger


def write_ledger(root: Path, repo: Repository, **says: Any) -> Ledger:
    """Append an entry to the ledger, as another writer of the format would."""
    storage = LocalStorage(root)
    number = len(list((root / "refs/ledger").glob("*"))) if (root / "refs/ledger").exists() else 0
    first = [info.id for info in repo.ancestry(branch="main")][-1]
    made = Ledger(id=new_id(), repository=first, written_at=datetime.now(UTC), **says)
    storage.put(f"t/{made.id}.parquet", ledger.encode(made))
    key = f"refs/ledger/{sequence_name(number)}.json"
    storage.create(key, ledger.encode_entry(LedgerEntry(log=made.id, write_id=new_id(), key=key)))
    return made


def test_the_ledger_says_the_same_again(tmp_path: Path) -> None:
    """``decode(encode(x)) == x``."""
    repo = Repository.create(tmp_path / "repo")
    ids = [new_id() for _ in range(6)]
    made = write_ledger(
        tmp_path / "repo",
        repo,
        retired={ids[0]: ids[1], ids[1]: None},
        rewritten={ids[2]: ids[3]},
        census=ids[4],
        verified=frozenset({ids[5]}),
    )

    assert ledger.decode(ledger.encode(made), made.id) == made


def test_a_retired_snapshot_is_not_called_damage(tmp_path: Path) -> None:
    """Its structure file is gone because the ledger says so; without the ledger it is missing."""
    repo = Repository.create(tmp_path / "repo")
    one = written(repo, 1, "a")
    repo.create_tag("one", one)
    written(repo, 2, "b")
    (tmp_path / f"repo/s/{one}.parquet").unlink()
    with pytest.raises(SnapshotNotFoundError, match="does not exist"):
        Repository.open(tmp_path / "repo").readonly_session(tag="one")
    write_ledger(tmp_path / "repo", repo, retired={one: None})

    with pytest.raises(SnapshotNotFoundError, match="was retired"):
        Repository.open(tmp_path / "repo").readonly_session(tag="one")


def test_ancestry_goes_over_retired_snapshots(tmp_path: Path) -> None:
    """To the next one that is kept, however many are gone on the way."""
    repo = Repository.create(tmp_path / "repo")
    made = [written(repo, number, f"a{number}") for number in range(40)]
    gone = {made[n]: made[n - 1] for n in range(5, 30)}
    for each in gone:
        (tmp_path / f"repo/s/{each}.parquet").unlink()
    with pytest.raises(SnapshotNotFoundError):
        list(Repository.open(tmp_path / "repo").ancestry(branch="main"))
    write_ledger(tmp_path / "repo", repo, retired=gone)

    found = [info.id for info in Repository.open(tmp_path / "repo").ancestry(branch="main")]
    assert [each for each in found if each not in gone] == [
        *made[:29:-1],
        *made[4::-1],
        found[-1],
    ]


def test_a_rewritten_snapshot_is_read_in_its_new_form(tmp_path: Path) -> None:
    """Entries and tags are never altered, so ids are looked up."""
    repo = Repository.create(tmp_path / "repo")
    old = written(repo, 1, "a")
    repo.create_tag("v1", old)
    new = written(repo, 2, "b")
    (tmp_path / f"repo/s/{old}.parquet").unlink()
    write_ledger(tmp_path / "repo", repo, retired={})
    write_ledger(tmp_path / "repo", repo, rewritten={old: new})

    fresh = Repository.open(tmp_path / "repo")
    assert (read_array(fresh, "b", tag="v1") == 2).all()


# -- clocks


@pytest.mark.parametrize("catalog", ["branches", "state"])
@pytest.mark.parametrize("off", [timedelta(days=3650), -timedelta(minutes=6), timedelta(minutes=6)])
def test_a_wrong_clock_dates_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalog: str, off: timedelta
) -> None:
    """All later snapshots would have to be later still: who cannot tell the time is refused, and keeps the work."""
    repo = Repository.create(tmp_path / "repo", catalog=catalog)
    session = repo.writable_session("main")
    zarr.create_group(session.store)
    with monkeypatch.context() as patch:
        patch.setattr(commit, "now", lambda: datetime.now(UTC) + off)
        with pytest.raises(StorageError, match="clock"):
            session.commit("in the future")

    session.commit("now")
    newest = next(iter(repo.ancestry(branch="main")))
    assert abs(newest.written_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_clock_that_is_a_little_off_is_no_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to five minutes."""
    repo = Repository.create(tmp_path / "repo")
    monkeypatch.setattr(commit, "now", lambda: datetime.now(UTC) + timedelta(minutes=4))
    written(repo, 1)

    assert len(history(repo)) == 2
