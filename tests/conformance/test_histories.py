"""Random histories of repositories, and the promises about their manifests one by one."""

from __future__ import annotations

import itertools
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from icechunk_arrow import (
    BasicConflictSolver,
    ConflictDetector,
    RebaseFailedError,
    Repository,
    RepositoryConfig,
    VersionSelection,
)
from icechunk_arrow.core import placement
from icechunk_arrow.core.manifest_settings import ManifestSet, ManifestSettings
from icechunk_arrow.engine.segments import Bulk
from icechunk_arrow.storage.open import open_storage
from tests.conformance.history_machine import (
    GROUP,
    Hand,
    HistoryMachine,
    ReadingStorage,
    compare,
    document,
    make_tiny,
)
from tests.conformance.live_manifests import LiveManifests
from tests.faults.repositories import through

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conformance.history_model import Model, Place

EXAMPLES = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


class OnDisk(HistoryMachine):
    """The same on local disk."""

    on_disk = True


def test_each_chunk_stands_in_exactly_one_live_manifest() -> None:
    """Whatever is done on whatever branch, files, counts and contents agree after every commit."""
    run_state_machine_as_test(HistoryMachine, settings=EXAMPLES)


def test_the_same_on_local_disk() -> None:
    """Histories do not depend on the storage."""
    run_state_machine_as_test(OnDisk, settings=settings(EXAMPLES, max_examples=4))


class Repo:
    """A repository with one branch, its model, and what was read since somebody looked."""

    def __init__(self, manifests: ManifestSettings | None = None) -> None:
        config = RepositoryConfig(
            chunk_manifests=manifests or ManifestSettings(),
            inline_chunk_threshold_bytes=16,
        )
        self.url = f"memory://{secrets.token_hex(8)}"
        Repository.create(self.url, config=config)
        self.numbers = itertools.count(1)
        self.known: dict[str, list[tuple[int, Place]]] = {}
        self.read: list[str] = []
        self.model: Model = {}
        hand = self.begin()
        for path in ("/", "/g"):
            hand.session.set_document(path, GROUP)
        self.live = self.commit(hand)

    def open(self) -> Repository:
        """A repository as a new process has it, with nothing cached."""
        with through(lambda inner: ReadingStorage(inner, self.read)):
            return Repository.open(self.url)

    def begin(self) -> Hand:
        """A new session on the newest snapshot."""
        return Hand(self.open().writable_session("main"), self.model, self.numbers)

    def commit(self, hand: Hand, **how: Any) -> LiveManifests:
        """Commit, look at the files, and read everything again."""
        self.read.clear()
        snapshot_id = hand.session.commit("a step", **how)
        self.commit_read = list(self.read)
        self.model = hand.model
        get = open_storage(self.url).get
        self.live = LiveManifests.read(get, snapshot_id, self.known)
        self.live.check({path: set(array.chunks) for path, array in hand.model.items()})
        compare(self.open().readonly_session("main"), self.model)
        return self.live

    def manifests_read(self) -> set[str]:
        """The manifests that the last commit read."""
        return {key.removeprefix("i/") for key in self.commit_read if key.startswith("i/")}


def row(start: int, stop: int) -> list[Place]:
    """Neighbouring chunks of an array of one dimension."""
    return [(n,) for n in range(start, stop)]


SMALL = ManifestSettings(sets=(ManifestSet(name="default", max_manifest_size=10),), rules=())


@pytest.fixture
def tiny() -> Iterator[None]:
    """Every limit of the engine is small."""
    with pytest.MonkeyPatch.context() as patch:
        make_tiny(patch)
        yield


def test_a_commit_that_only_adds_reads_no_manifest_and_links_all() -> None:
    """Chunks outside every extent, and new arrays, cost a new manifest and nothing else."""
    place = Repo(SMALL)
    hand = place.begin()
    hand.create("/a", (60,))
    hand.refer(["/a"], [row(0, 40)], last=False)
    before = place.commit(hand)
    assert sorted(map(len, before.rows.values())) == [10, 10, 10, 10]
    hand = place.begin()
    hand.write("/a", row(40, 43))
    hand.create("/b", (5,))
    hand.refer(["/b"], [row(0, 5)], last=False)
    after = place.commit(hand)

    assert place.manifests_read() == set()
    assert before.rows.keys() < after.rows.keys()
    assert len(after.rows) == 6


def test_an_overwrite_rewrites_what_holds_it() -> None:
    """One chunk in the middle: its manifest is read and written without it, all others stay."""
    place = Repo(SMALL)
    hand = place.begin()
    hand.create("/a", (60,))
    hand.refer(["/a"], [row(0, 50)], last=False)
    before = place.commit(hand)
    hand = place.begin()
    hand.write("/a", [(25,)])
    after = place.commit(hand)
    gone = before.rows.keys() - after.rows.keys()

    assert len(gone) == 1
    assert place.manifests_read() == gone
    assert sorted(map(len, after.rows.values())) == [1, 9, 10, 10, 10, 10]


def test_scattered_overwrites_touch_only_their_manifests() -> None:
    """Between two far chunks that are written, everything stays as it is."""
    place = Repo(SMALL)
    hand = place.begin()
    hand.create("/a", (100,))
    hand.refer(["/a"], [row(0, 100)], last=False)
    before = place.commit(hand)
    hand = place.begin()
    hand.write("/a", [(3,), (97,)])
    after = place.commit(hand)

    assert len(place.manifests_read()) == 2
    assert len(before.rows.keys() & after.rows.keys()) == 8


@pytest.mark.parametrize("how", ["write", "refer", "shrink", "drop"])
def test_what_is_covered_goes_unread(how: str) -> None:
    """Manifests of which every chunk is overwritten or cut off are dropped without being read."""
    place = Repo(SMALL)
    hand = place.begin()
    hand.create("/a", (60,))
    hand.refer(["/a"], [row(0, 50)], last=False)
    before = place.commit(hand)
    hand = place.begin()
    if how == "write":
        hand.write("/a", row(10, 30))
    elif how == "refer":
        hand.refer(["/a"], [row(10, 30)], last=False)
    elif how == "shrink":
        hand.resize("/a", (30,))
    else:
        hand.delete("/a")
    after = place.commit(hand)

    assert place.manifests_read() == set()
    assert len(before.rows.keys() & after.rows.keys()) == {"shrink": 3, "drop": 0}.get(how, 3)


def test_the_last_chunks_of_a_manifest_leave_no_empty_one() -> None:
    """A manifest that loses its rest in single deletions goes, though no box covers it."""
    place = Repo(SMALL)
    hand = place.begin()
    hand.create("/a", (60,))
    hand.refer(["/a"], [[(0,), (7,), (9,)]], last=False)
    place.commit(hand)
    hand = place.begin()
    hand.delete_chunks("/a", [(0,), (9,)])
    assert [len(rows) for rows in place.commit(hand).rows.values()] == [1]
    hand = place.begin()
    hand.delete_chunks("/a", [(7,)])
    assert place.commit(hand).rows == {}


def test_arrays_that_share_a_manifest_leave_it_one_by_one() -> None:
    """Deleting an array takes its rows out, so that counting rows counts chunks."""
    place = Repo()
    hand = place.begin()
    for path in ("/a", "/b", "/g/a"):
        hand.create(path, (4, 2))
        hand.refer([path], [hand.model[path].places], last=False)
    assert [len(rows) for rows in place.commit(hand).rows.values()] == [24]
    for left, path in ((16, "/b"), (8, "/a")):
        hand = place.begin()
        hand.delete(path)
        assert [len(rows) for rows in place.commit(hand).rows.values()] == [left]


def test_hundreds_of_appends_leave_few_manifests() -> None:
    """With the constants as they are, small appends are merged as they gather."""
    place = Repo()
    hand = place.begin()
    hand.create("/a", (6000,))
    hand.refer(["/a"], [row(0, 10)], last=False)
    place.commit(hand)
    repository = place.open()
    most = 0
    for number in range(1, 150):
        session = repository.writable_session("main")
        hand = Hand(session, place.model, place.numbers)
        hand.refer(["/a"], [row(10 * number, 10 * number + 10)], last=False)
        snapshot_id = session.commit("ten more")
        place.model = hand.model
        most = max(most, len(repository._context.files.read_snapshot(snapshot_id).manifest_sizes))
    live = LiveManifests.read(open_storage(place.url).get, snapshot_id, place.known)

    assert most <= 2 * placement.MERGE_FAN
    live.check({"/a": set(row(0, 1500))})


def test_repacking_is_a_commit_like_any_other(tmp_path: Path) -> None:
    """Manifests take the shape that new settings ask for; contents and older snapshots stay."""
    place = Repo()
    hand = place.begin()
    hand.create("/a", (60,))
    for start in (0, 20, 40):
        hand.refer(["/a"], [row(start, start + 15)], last=False)
        place.commit(hand)
        hand = place.begin()
    before = place.open().lookup_branch("main")
    config = RepositoryConfig(chunk_manifests=SMALL)
    repository = Repository.open(place.url, config=config)
    asked = repository.rewrite_manifests("main", "smaller", dry_run=True)
    done = repository.rewrite_manifests("main", "smaller")
    assert (asked.snapshot_id, asked.replaced, asked.row_count) == (None, 3, 45)
    assert done.snapshot_id is not None
    get = open_storage(place.url).get
    live = LiveManifests.read(get, done.snapshot_id, place.known)
    live.check({"/a": set(place.model["/a"].chunks)})

    assert sorted(map(len, live.rows.values())) == [5, 5, 5, 10, 10, 10]
    assert live.count_by_duckdb(get, tmp_path) == (45, 45)
    for which in (before, done.snapshot_id):
        compare(place.open().readonly_session(snapshot_id=which), place.model)
    again = repository.rewrite_manifests("main", "again")
    assert (again.snapshot_id, again.replaced) == (None, 0)


# -- references that are written while they come in


@pytest.fixture
def running(tiny: None) -> tuple[Repo, Hand]:
    """A session that has written references as manifests already, over a base that has some too."""
    place = Repo(SMALL)
    hand = place.begin()
    hand.create("/a", (60,))
    hand.refer(["/a"], [row(15, 30)], last=False)
    place.commit(hand)
    hand = place.begin()
    hand.refer(["/a"], [row(0, 40)], last=False)
    (staged,) = hand.session._staging.arrays.values()
    (bulk,) = staged.segments
    assert isinstance(bulk, Bulk)
    assert len(bulk.inventory) > 1
    return place, hand


@pytest.mark.parametrize("then", ["shrink", "grow again", "overwrite", "run", "sparse", "delete",
                                  "nothing"])  # fmt: skip
def test_what_follows_a_run_in_the_same_session(running: tuple[Repo, Hand], then: str) -> None:
    """Newer wins, before the commit and after it, and no row of the run counts that does not exist."""
    place, hand = running
    if then in {"shrink", "grow again"}:
        hand.resize("/a", (22,))
    if then == "grow again":
        hand.compare()
        hand.resize("/a", (50,))
        hand.write("/a", [(30,)])
    elif then == "overwrite":
        hand.write("/a", [(3,), (21,)])
    elif then == "run":
        hand.write("/a", [(21,), (50,)])
        hand.refer(["/a"], [row(20, 60)], last=False)
    elif then == "sparse":
        hand.refer(["/a"], [[(n,) for n in range(0, 60, 2)]], last=True)
    elif then == "delete":
        hand.delete_chunks("/a", row(5, 33))
    hand.compare()
    assert hand.session.status()
    hand.compare()
    place.commit(hand)


def test_a_discarded_run_is_as_if_it_had_not_been(running: tuple[Repo, Hand]) -> None:
    """Its manifests are named by nothing."""
    place, hand = running
    hand.session.discard_changes()
    compare(hand.session, place.model)
    hand = Hand(hand.session, place.model, place.numbers)
    hand.write("/a", [(59,)])
    assert len(place.commit(hand).rows) <= 3


@pytest.mark.parametrize("keep_ours", [True, False])
@pytest.mark.parametrize("many", [True, False])
def test_a_run_is_rebased(running: tuple[Repo, Hand], keep_ours: bool, many: bool) -> None:
    """Chunks that both wrote are those of the side that was chosen, in a run as elsewhere."""
    place, ours = running
    theirs = place.begin()
    theirs.create("/b", (3,))  # takes the id that ours would have given next
    theirs.write("/a", row(35, 45) if many else [(36,), (44,)])
    ours.create("/g/a", (30,))
    ours.refer(["/g/a"], [row(0, 30)], last=False)
    expected = {**theirs.changes.touched[theirs.model["/a"].uid]}
    place.commit(theirs)
    with pytest.raises(RebaseFailedError):
        ours.session.rebase(ConflictDetector())
    selection = VersionSelection.UseOurs if keep_ours else VersionSelection.UseTheirs
    ours.session.rebase(BasicConflictSolver(on_chunk_conflict=selection))
    for spot, value in expected.items():
        assert value is not None
        if not keep_ours or spot not in ours.model["/a"].chunks:
            ours.model["/a"].chunks[spot] = value
    ours.model["/b"] = theirs.model["/b"]
    ours.compare()
    place.commit(ours)


def test_deleting_an_array_does_not_delete_the_one_that_took_its_place() -> None:
    """Somebody replaced the array that we delete: theirs is another one, and stays or is a conflict."""
    place = Repo()
    hand = place.begin()
    hand.create("/a", (4,))
    place.commit(hand)
    ours, theirs = place.begin(), place.begin()
    theirs.delete("/a")
    theirs.create("/a", (4, 4))
    theirs.write("/a", [(1, 1)])
    place.commit(theirs)
    ours.delete("/a")
    ours.create("/b", (2,))
    try:
        ours.session.rebase(ConflictDetector())
    except RebaseFailedError:
        return
    ours.model["/a"] = theirs.model["/a"]
    ours.compare()
    place.commit(ours)


@pytest.mark.parametrize("how", ["move", "attributes"])
def test_a_change_that_was_taken_back_is_none(how: str) -> None:
    """Somebody deletes an array that we changed and changed back: nothing of ours is in the way."""
    place = Repo()
    hand = place.begin()
    hand.create("/a", (4,))
    place.commit(hand)
    ours, theirs = place.begin(), place.begin()
    if how == "move":
        ours.move("/a", "/g/a")
        ours.move("/g/a", "/a")
    else:
        plain = document((4,))
        ours.session.set_document("/a", plain[:-1] + b', "attributes": {"unit": "K"}}')
        ours.session.set_document("/a", plain)
    theirs.delete("/a")
    theirs.create("/b", (2,))
    place.commit(theirs)
    ours.session.rebase(ConflictDetector())
    compare(ours.session, theirs.model)


def test_deletions_beyond_what_a_session_holds_go_on(tiny: None) -> None:
    """Written references can be put aside as manifests; deletions stay, and do not keep it waiting."""
    place = Repo(SMALL)
    hand = place.begin()
    hand.create("/a", (60,))
    hand.refer(["/a"], [row(0, 50)], last=False)
    place.commit(hand)
    hand = place.begin()
    hand.delete_chunks("/a", row(0, 30))
    hand.write("/a", row(20, 40))
    hand.compare()
    assert len(place.commit(hand).rows) > 1
