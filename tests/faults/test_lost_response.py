"""What was written is recognised as one's own although the answer was lost; what is not, is not."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from icechunk_arrow import (
    AlreadyExistsError,
    ConflictDetector,
    ConflictError,
    RefNotFoundError,
    Repository,
    StorageError,
)
from icechunk_arrow.core.ids import sequence_name
from icechunk_arrow.formats.layout import STATE_KEY
from icechunk_arrow.storage.memory import MemoryStorage
from tests.faults.repositories import (
    CONFIG,
    PACKED,
    array_document,
    check_layout,
    contents,
    group_document,
    make_base,
    payload,
    picture,
    through,
)
from tests.faults.storage_wrappers import LosingStorage

if TYPE_CHECKING:
    from collections.abc import Callable

LOST = ["lost", "twice"]
OTHER_CONFIG = CONFIG.to_yaml().replace("2000", "2001").encode()


class Place:
    """A repository whose answers can be lost, and another process's view of it."""

    def __init__(self, catalog: str) -> None:
        self.url = f"memory://{secrets.token_hex(6)}"
        self.catalog = catalog
        self.operation = "replace" if catalog == "state" else "create"
        make_base(self.url, catalog=catalog)
        wrappers: list[LosingStorage] = []

        def wrap(storage: object) -> LosingStorage:
            assert isinstance(storage, MemoryStorage)
            wrappers.append(LosingStorage(storage))
            return wrappers[-1]

        with through(wrap):
            self.repo = Repository.open(self.url, config=CONFIG)
        (self.storage,) = wrappers
        self.first = [info.id for info in self.repo.ancestry(branch="main")][-1]

    def arm(self, way: str | Callable[[], object], key: str = "") -> None:
        self.storage.arm(self.operation, way, key)

    def assert_fired(self) -> None:
        assert len(self.storage.fired) == 1

    @property
    def theirs(self) -> Repository:
        """The repository as somebody else has it open."""
        return Repository.open(self.url)


@pytest.fixture(params=["branches", "state"])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param)


def write_group(repo: Repository, path: str) -> str:
    session = repo.writable_session("main")
    session.set_document(path, group_document())
    return session.commit(f"write {path}")


@pytest.mark.parametrize("way", LOST)
def test_a_commit_is_recognised(place: Place, way: str) -> None:
    """The commit is there once, and the session is the one that made it."""
    place.arm(way)
    session = place.repo.writable_session("main")
    session.set_document("/new", group_document())

    snapshot_id = session.commit("new")

    place.assert_fired()
    assert session.read_only
    assert place.theirs.lookup_branch("main") == snapshot_id
    messages = [info.message for info in place.theirs.ancestry(branch="main")]
    assert messages.count("new") == 1
    check_layout(place.theirs, place.storage.inner)


def test_a_commit_is_recognised_under_others() -> None:
    """In a state file, a commit is found although two more came before anybody looked."""
    place = Place("state")
    session = place.repo.writable_session("main")
    session.set_document("/new", group_document())

    def theirs() -> None:
        write_group(place.theirs, "/theirs")
        write_group(place.theirs, "/theirs-too")

    # the effect, then two commits on top, then the error
    inner_replace = place.storage.inner.replace
    armed: list[int] = []

    def lost(key: str, data: bytes, token: str) -> None:
        inner_replace(key, data, token)
        if not armed:
            armed.append(1)
            theirs()
            raise StorageError("no answer")

    place.storage.inner.replace = lost  # type: ignore[method-assign]

    snapshot_id = session.commit("new")

    history = [info.id for info in place.theirs.ancestry(branch="main")]
    assert history.index(snapshot_id) == 2


@pytest.mark.parametrize("way", LOST)
def test_branches_are_recognised(place: Place, way: str) -> None:
    """Branches made, made again, reset and deleted, each with its answer lost."""
    repo = place.repo
    changes: list[Callable[[], None]] = [
        lambda: repo.create_branch("new", place.first),
        lambda: repo.create_branch("gone", place.first),
        lambda: repo.reset_branch("new", repo.lookup_branch("main")),
        lambda: repo.delete_branch("gone"),
    ]
    for change in changes:
        place.storage.fired.clear()
        place.arm(way)
        change()
        place.assert_fired()

    theirs = place.theirs
    assert theirs.list_branches() == {"main", "other", "new"}
    assert theirs.lookup_branch("new") == theirs.lookup_branch("main")
    check_layout(theirs, place.storage.inner)
    with pytest.raises(RefNotFoundError):
        theirs.lookup_branch("gone")


@pytest.mark.parametrize("way", LOST)
def test_each_change_of_a_branch_is_one_entry(way: str) -> None:
    """A lost answer makes no second entry."""
    place = Place("branches")
    place.arm(way)
    place.repo.reset_branch("other", place.repo.lookup_branch("main"))
    place.arm(way)
    place.repo.delete_branch("other")

    names = sorted(info.key for info in place.storage.inner.list("refs/branch.other/"))
    assert names == [f"refs/branch.other/{sequence_name(n)}.json" for n in (2, 1, 0)]


@pytest.mark.parametrize("way", LOST)
def test_tags_are_recognised(place: Place, way: str) -> None:
    """Tags made and withdrawn, each with its answer lost."""
    place.arm(way)
    place.repo.create_tag("v2", place.first)
    place.assert_fired()
    assert place.theirs.lookup_tag("v2") == place.first
    place.arm(way)
    place.repo.delete_tag("v2")

    assert len(place.storage.fired) == 2
    assert place.theirs.list_tags() == {"v1"}
    with pytest.raises(AlreadyExistsError, match="withdrawn"):
        place.theirs.create_tag("v2", place.first)


@pytest.mark.parametrize("way", LOST)
@pytest.mark.parametrize("catalog", ["branches", "state"])
def test_a_new_repository_is_recognised(catalog: str, way: str) -> None:
    """The creation of a repository succeeds although its last answer was lost."""
    url = f"memory://{secrets.token_hex(6)}"
    wrappers: list[LosingStorage] = []

    def wrap(storage: object) -> LosingStorage:
        assert isinstance(storage, MemoryStorage)
        wrappers.append(LosingStorage(storage))
        wrappers[-1].arm("create", way, "refs/" if catalog == "branches" else STATE_KEY)
        return wrappers[-1]

    with through(wrap):
        repo = Repository.create(url, catalog=catalog)

    assert len(wrappers[0].fired) == 1
    assert write_group(repo, "/")
    assert len(list(Repository.open(url).ancestry(branch="main"))) == 2


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("way", LOST)
def test_an_export_is_recognised(way: str, exists: bool) -> None:
    """``export_state`` succeeds, and writes one generation, not two."""
    place = Place("branches")
    if exists:
        place.repo.export_state()
    place.storage.arm("replace" if exists else "create", way, STATE_KEY)

    place.repo.export_state()

    place.assert_fired()
    assert b'"generation": %d' % exists in place.storage.inner.get(STATE_KEY)


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("way", LOST)
def test_saved_settings_are_recognised(way: str, exists: bool) -> None:
    """``save_config`` succeeds."""
    place = Place("branches")
    assert place.repo.config == CONFIG
    place.storage.inner.delete(["config.yaml"])
    if exists:
        place.storage.inner.put("config.yaml", OTHER_CONFIG)
    place.storage.arm("replace" if exists else "create", way, "config.yaml")

    place.repo.save_config()

    place.assert_fired()
    assert place.theirs.config == CONFIG


@pytest.mark.parametrize("what", ["export_state", "save_config"])
@pytest.mark.parametrize("exists", [False, True])
def test_what_was_not_written_is_an_error(what: str, exists: bool) -> None:
    """An error without effect stays one."""
    place = Place("branches")
    place.storage.inner.delete(["config.yaml"])
    if exists:
        place.storage.inner.put("config.yaml", OTHER_CONFIG)
        place.repo.export_state()
    place.storage.arm("replace" if exists else "create", "failed")

    with pytest.raises(StorageError, match="no answer"):
        getattr(place.repo, what)()


def test_somebody_elses_commit_is_a_conflict(place: Place) -> None:
    """Our request failed and somebody else's entry stands in its place: a conflict, no success."""
    session = place.repo.writable_session("main")
    before = session.snapshot_id
    session.set_document("/ours", group_document())
    made: list[str] = []
    place.arm(lambda: made.append(write_group(place.theirs, "/theirs")))

    with pytest.raises((ConflictError, StorageError)) as caught:
        session.commit("ours")

    if isinstance(caught.value, ConflictError):
        assert caught.value.expected_parent == before
        assert caught.value.actual_parent == made[0]
    assert place.theirs.lookup_branch("main") == made[0]
    assert session.has_uncommitted_changes
    session.commit("ours", rebase_with=ConflictDetector())
    found = contents(place.theirs.readonly_session("main"))
    assert {"/ours", "/theirs"} <= found.keys()


@pytest.mark.parametrize("what", ["branch", "branch again", "tag"])
def test_somebody_elses_name_is_taken(place: Place, what: str) -> None:
    """Our request failed and somebody else took the name: an error, and theirs stays."""
    tip = place.repo.lookup_branch("main")
    name = "gone" if what == "branch again" else "new"

    def make(repo: Repository, snapshot_id: str) -> None:
        if what == "tag":
            repo.create_tag(name, snapshot_id)
        else:
            repo.create_branch(name, snapshot_id)

    place.arm(lambda: make(place.theirs, place.first))

    with pytest.raises((AlreadyExistsError, StorageError)):
        make(place.repo, tip)

    theirs = place.theirs
    assert (theirs.lookup_tag(name) if what == "tag" else theirs.lookup_branch(name)) == place.first


def test_somebody_elses_name_is_taken_however_much_happened_since() -> None:
    """In a state file, a name that somebody took is not ours because the file moved on."""
    for what in ("branch", "tag"):
        place = Place("state")
        tip = place.repo.lookup_branch("main")

        def theirs(place: Place = place, what: str = what) -> None:
            if what == "branch":
                place.theirs.create_branch("new", place.first)
            else:
                place.theirs.create_tag("new", place.first)
            write_group(place.theirs, "/more")

        place.arm(theirs)

        create = place.repo.create_branch if what == "branch" else place.repo.create_tag
        with pytest.raises((AlreadyExistsError, StorageError)):
            create("new", tip)


def test_somebody_elses_repository_is_taken() -> None:
    """Our creation failed and somebody else's repository stands there: it is theirs."""
    for catalog in ("branches", "state"):
        url = f"memory://{secrets.token_hex(6)}"

        def wrap(storage: object, catalog: str = catalog, url: str = url) -> LosingStorage:
            assert isinstance(storage, MemoryStorage)
            wrapper = LosingStorage(storage)

            def theirs() -> None:
                with through(lambda _: storage):
                    write_group(Repository.create(url, catalog=catalog), "/theirs")

            wrapper.arm("create", theirs, "refs/")
            return wrapper

        with through(wrap), pytest.raises(AlreadyExistsError):
            Repository.create(url, catalog=catalog)

        assert contents(Repository.open(url).readonly_session("main")).keys() == {"/theirs"}


@pytest.mark.parametrize("operation", ["put", "sync", "commit", "read"])
def test_a_session_keeps_its_changes(place: Place, operation: str) -> None:
    """After any StorageError the session still has its changes, and a later commit brings them in."""
    session = place.repo.writable_session("main")
    session.set_document("/new", array_document(8, attributes={"long": "x" * 300}))
    for index in range(4):
        session.write_chunk("/new", (index,), payload(f"new {index}", PACKED))
    session.write_chunk("/a", (2,), payload("over", PACKED))
    expected = contents(session)
    fails = {
        "put": ("put", ""),
        "sync": ("sync", ""),
        "commit": (place.operation, ""),
        "read": ("get", "i/"),
    }[operation]
    committed = 0
    while not committed:
        place.storage.arm(fails[0], "failed", fails[1])
        fired = len(place.storage.fired)
        try:
            session.commit("new")
        except StorageError:
            assert session.has_uncommitted_changes
            assert not session.read_only
            assert contents(session) == expected
            assert "/new" not in contents(place.theirs.readonly_session("main"))
            place.storage._armed.clear()
            session.commit("new")
        assert len(place.storage.fired) == fired + 1
        committed += 1

    assert contents(place.theirs.readonly_session("main")) == expected
    messages = [info.message for info in place.theirs.ancestry(branch="main")]
    assert messages.count("new") == 1


def test_every_file_may_fail_once(place: Place) -> None:
    """Whichever of a commit's writes fails, the next try succeeds, and then everything is there."""
    for turn in range(40):
        session = place.repo.writable_session("main")
        session.set_document(f"/t{turn}", array_document(30, attributes={"long": "x" * 300}))
        for index in range(30):
            session.write_chunk(f"/t{turn}", (index,), payload(f"{turn} {index}", PACKED))
        expected = contents(session)
        # the turn-th put from here fails
        seen = [0]
        run = place.storage._run

        def counting(  # type: ignore[no-untyped-def]
            operation: str, key: str, effect, run=run, seen=seen, turn=turn
        ):
            if operation == "put":
                seen[0] += 1
                if seen[0] == turn + 1:
                    raise StorageError(f"no room for {key}")
            return run(operation, key, effect)

        place.storage._run = counting  # type: ignore[method-assign]
        try:
            session.commit("turn")
        except StorageError:
            assert contents(session) == expected
            session.commit("turn")
        finally:
            place.storage._run = run  # type: ignore[method-assign]
        assert contents(place.theirs.readonly_session("main")) == expected
        if seen[0] <= turn:
            return
    raise AssertionError("a commit has more files than expected")


def test_after_a_conflict_the_session_can_still_commit(place: Place) -> None:
    """A lost race leaves the changes; rebased, they come in."""
    session = place.repo.writable_session("main")
    session.write_chunk("/a", (30,), payload("ours", PACKED))
    write_group(place.theirs, "/theirs")

    with pytest.raises(ConflictError) as caught:
        session.commit("ours")

    assert caught.value.actual_parent == place.theirs.lookup_branch("main")
    assert session.has_uncommitted_changes
    session.rebase(ConflictDetector())
    session.commit("ours")
    found = contents(place.theirs.readonly_session("main"))
    assert found["/a/c/30"] == payload("ours", PACKED)
    assert "/theirs" in found


def test_reading_fails_as_itself(place: Place) -> None:
    """A failed read is a StorageError and is not remembered: the next one succeeds."""
    expected = picture(place.theirs)
    for operation in ("get", "get_range", "get_tail", "list", "list_folders"):
        repo = place.theirs
        repo._context.files.storage = place.storage
        repo._context.catalog._storage = place.storage  # type: ignore[attr-defined]
        place.storage.fired.clear()
        place.storage.arm(operation, "failed")
        try:
            assert picture(repo) == expected
        except StorageError:
            assert place.storage.fired
        else:
            assert not place.storage.fired
        place.storage._armed.clear()
        assert picture(repo) == expected
