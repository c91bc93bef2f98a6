"""An interrupt at any line of a commit leaves a session that knows whether it committed."""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from icechunk_arrow import (
    AlreadyExistsError,
    ConflictDetector,
    ReadOnlyError,
    Repository,
    StorageError,
)
from icechunk_arrow.errors import PreconditionFailedError
from icechunk_arrow.storage.memory import MemoryStorage
from icechunk_arrow.storage.open import open_storage
from tests.faults.interrupts import interrupting
from tests.faults.repositories import (
    CONFIG,
    INLINE,
    OWN,
    PACKED,
    array_document,
    contents,
    copy_objects,
    group_document,
    make_base,
    payload,
    through,
)
from tests.faults.storage_wrappers import WrappedStorage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icechunk_arrow import Session
    from icechunk_arrow.storage.port import Capabilities, Storage

CATALOGS = ["branches", "state"]


def opened(url: str, catalog: str) -> Repository:
    make_base(url, catalog=catalog, manifest_count=2)
    return Repository.open(url, config=CONFIG)


@cache
def base(catalog: str) -> Storage:
    url = f"memory://{secrets.token_hex(8)}"
    make_base(url, catalog=catalog, manifest_count=2)
    return open_storage(url)


def fresh(catalog: str) -> Repository:
    """Give a copy of a repository of a few commits."""
    url = f"memory://{secrets.token_hex(8)}"
    copy_objects(base(catalog), open_storage(url))
    return Repository.open(url, config=CONFIG)


def stage(session: Session) -> None:
    """Change a bit of everything."""
    session.set_document("/new", group_document(long="y" * 300))
    session.set_document("/new/x", array_document(30))
    session.set_document("/b", array_document(2, attributes={"unit": "K"}))
    for index, size in enumerate([INLINE, PACKED, OWN] * 3):
        session.write_chunk("/new/x", (index,), payload(f"new {index}", size))
    session.write_chunk("/a", (2,), payload("over", PACKED))
    session.delete_chunk("/a", (4,))


def some_of(count: int, steps: list[int]) -> list[int]:
    """Some steps, others in each run of the suite."""
    stride = max(1, len(steps) // count)
    return steps[secrets.randbelow(stride) :: stride]


def messages(repo: Repository) -> list[str]:
    return [info.message for info in repo.ancestry(branch="main")]


def unhindered(act: Callable[[], Any], where: str) -> None:
    """Do something in another thread, which no lock may keep from it."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # told below
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), f"a lock is held, {where}"
    assert not failures, (failures, where)


def somebody_commits(repo: Repository) -> None:
    other = Repository.open(repo.url).writable_session("main")
    other.set_document("/theirs", group_document(turn=secrets.token_hex(4)))
    other.commit("theirs")


def again(repo: Repository, session: Session) -> str:
    return session.commit("ours", rebase_with=ConflictDetector())


def ask_then_again(repo: Repository, session: Session) -> str:
    """Looking at the session first takes nothing away."""
    committed = "ours" in messages(repo)
    assert session.has_uncommitted_changes is not committed
    assert session.read_only is committed
    assert (session.snapshot_id == repo.lookup_branch("main")) is committed or not committed
    assert "/new/x" in contents(session)
    return session.commit("ours", rebase_with=ConflictDetector())


def somebody_first(repo: Repository, session: Session) -> str:
    somebody_commits(repo)
    return session.commit("ours", rebase_with=ConflictDetector())


def write_on(repo: Repository, session: Session) -> str:
    """What is written afterwards is refused where the commit was made, and else part of it."""
    try:
        session.write_chunk("/a", (30,), payload("late", INLINE))
    except ReadOnlyError:
        assert "ours" in messages(repo)
        snapshot_id = session.commit("ours")
        more = repo.writable_session("main")
        more.write_chunk("/a", (30,), payload("late", INLINE))
        more.commit("late")
        return snapshot_id
    return session.commit("ours", rebase_with=ConflictDetector())


AFTERWARDS = [again, ask_then_again, somebody_first, write_on]


def check_interrupts(
    make: Callable[[], Repository], count: int | None, *, last: int | None = None
) -> None:
    """Interrupt commits at some lines or at all, or of the last ones, and see what becomes of them."""
    repo = make()
    session = repo.writable_session("main")
    stage(session)
    with interrupting() as counted:
        session.commit("ours")
    expected = contents(session)
    steps = counted.steps[-last:] if last else counted.steps
    ends = steps[-1]
    if count is not None:
        steps = some_of(count, steps)
    made = 0
    for turn, stop_at in enumerate(steps):
        repo = make()
        session = repo.writable_session("main")
        stage(session)
        with interrupting(stop_at) as interrupter:
            session.commit("ours")
        made += "ours" in messages(Repository.open(repo.url))
        afterwards = AFTERWARDS[turn % len(AFTERWARDS)]
        where = f"{afterwards.__name__} after an interrupt at {interrupter.place}"
        was_told = False
        try:
            snapshot_id = afterwards(repo, session)
        except ReadOnlyError:  # the first call was just about to give it
            was_told, snapshot_id = True, session.snapshot_id
            assert stop_at >= ends - 2, where
        assert session.read_only, where
        found = Repository.open(repo.url)
        assert messages(found).count("ours") == 1, where
        assert snapshot_id == session.snapshot_id, where
        assert snapshot_id in {info.id for info in found.ancestry(branch="main")}, where
        assert found.lookup_snapshot(snapshot_id).message == "ours", where
        now = contents(found.readonly_session("main"))
        now.pop("/theirs", None)
        if afterwards is write_on and not was_told:
            assert now.pop("/a/c/30") == payload("late", INLINE), where
        assert now == expected, where
        unhindered(partial(contents, session), where)
        unhindered(partial(somebody_commits, repo), where)
    if count is None:
        assert 0 < made < len(steps), "interrupts before and behind the deciding step"


@pytest.mark.parametrize("catalog", CATALOGS)
def test_an_interrupted_commit_is_made_once(catalog: str) -> None:
    """Committing again returns the commit that was made, or makes it: once, with all that was staged."""
    check_interrupts(lambda: fresh(catalog), 30)


@pytest.mark.parametrize("catalog", CATALOGS)
def test_a_commit_may_be_interrupted_around_its_entry(catalog: str) -> None:
    """From the deciding step on, at every line: learning that the commit was made may be cut short as well."""
    check_interrupts(lambda: fresh(catalog), 30, last=45)


@pytest.mark.storm
@pytest.mark.parametrize("catalog", CATALOGS)
def test_any_line_of_a_commit_may_be_interrupted(catalog: str, tmp_path: Path) -> None:
    """At every line, and on a local disk, where locks and unfinished files are left behind."""
    check_interrupts(lambda: fresh(catalog), None)
    check_interrupts(lambda: opened(str(tmp_path / secrets.token_hex(8)), catalog), 100)


def deciding(repo: Repository, session: Session, *, after: bool) -> None:
    """Interrupt a commit right before its deciding step, or right behind it."""
    catalog = repo._context.catalog
    advance = catalog.advance

    def cut(tip: Any, snapshot: Any) -> Any:
        if after:
            advance(tip, snapshot)
        raise KeyboardInterrupt

    with patch.object(catalog, "advance", cut), pytest.raises(KeyboardInterrupt):
        session.commit("ours")


@pytest.mark.parametrize("catalog", CATALOGS)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("afterwards", AFTERWARDS)
def test_an_interrupt_around_the_deciding_step(
    catalog: str, after: bool, afterwards: Callable[[Repository, Session], str]
) -> None:
    """Right before it nothing is committed, right behind it all is, and the session knows."""
    repo = fresh(catalog)
    session = repo.writable_session("main")
    stage(session)
    deciding(repo, session, after=after)

    snapshot_id = afterwards(repo, session)

    assert messages(Repository.open(repo.url)).count("ours") == 1
    assert session.snapshot_id == snapshot_id
    with pytest.raises(ReadOnlyError):
        session.commit("and again")


@pytest.mark.parametrize("catalog", CATALOGS)
def test_a_rebase_may_be_interrupted(catalog: str) -> None:
    """Half a rebase is none: what is staged stands on the old base or on the new one, whole."""

    def begin() -> tuple[Repository, Session]:
        repo = fresh(catalog)
        session = repo.writable_session("main")
        stage(session)
        for name in ("/theirs", "/theirs/too"):
            other = Repository.open(repo.url).writable_session("main")
            other.set_document(
                name, array_document(3) if name.endswith("too") else group_document()
            )
            other.commit("theirs")
        return repo, session

    repo, session = begin()
    contents(session)
    with interrupting() as counted:
        session.rebase(ConflictDetector())
    session.commit("ours")
    expected = contents(repo.readonly_session("main"))
    for stop_at in some_of(30, counted.steps):
        repo, session = begin()
        staged = contents(session)
        with interrupting(stop_at) as interrupter:
            session.rebase(ConflictDetector())
        now = contents(session)
        assert {key: now[key] for key in staged} == staged, interrupter.place
        session.commit("ours", rebase_with=ConflictDetector())
        assert contents(repo.readonly_session("main")) == expected, interrupter.place
        assert messages(repo).count("ours") == 1


def test_a_merge_may_be_interrupted() -> None:
    """Half a merge is none: the session has what it had, and takes the forks again."""

    def begin() -> tuple[Repository, Session, list[Any]]:
        repo = fresh("branches")
        session = repo.writable_session("main")
        session.write_chunk("/a", (30,), payload("own", PACKED))
        forks = [session.fork() for _ in range(2)]
        for number, fork in enumerate(forks):
            fork.write_chunk("/a", (31 + number,), payload(f"fork {number}", PACKED))
            fork.write_chunk("/b", (number,), payload(f"fork b {number}", PACKED))
        return repo, session, forks

    before = contents(begin()[1])
    repo, session, forks = begin()
    with interrupting() as counted:
        session.merge(*forks)
    expected = contents(session)
    for stop_at in some_of(30, counted.steps):
        repo, session, forks = begin()
        with interrupting(stop_at) as interrupter:
            session.merge(*forks)
        assert contents(session) in (before, expected), interrupter.place
        session.merge(*forks, duplicates="last")
        session.commit("ours")
        assert contents(repo.readonly_session("main")) == expected, interrupter.place


def test_a_transaction_may_be_interrupted() -> None:
    """The store that the block was given leads to a session that knows whether it committed."""

    def run(repo: Repository, seen: list[Any]) -> None:
        with repo.transaction("main", message="ours") as store:
            seen.append(store)
            stage(store.session)  # type: ignore[arg-type]

    repo = fresh("branches")
    with interrupting() as counted:
        run(repo, [])
    for stop_at in some_of(30, counted.steps):
        seen: list[Any] = []
        repo = fresh("branches")
        with interrupting(stop_at):
            run(repo, seen)
        made = messages(repo).count("ours")
        if seen:
            assert seen[0].session.read_only is (made == 1)
            assert seen[0].session.has_uncommitted_changes is (made == 0) or not made


@pytest.mark.parametrize("catalog", CATALOGS)
def test_housekeeping_may_be_interrupted(catalog: str) -> None:
    """Done again it ends what was begun: one commit, or none where the first was made."""
    for name in ("compact_chunks", "rewrite_manifests"):

        def begin() -> Repository:
            repo = fresh(catalog)
            for number in range(4):
                session = repo.writable_session("main")
                session.write_chunk("/a", (30 + number,), payload(f"more {number}", PACKED))
                session.commit(f"more {number}")
            return repo

        repo = begin()
        expected = contents(repo.readonly_session("main"))
        with interrupting() as counted:
            getattr(repo, name)("main", "ours")
        assert messages(repo).count("ours") == 1
        for stop_at in some_of(15, counted.steps):
            repo = begin()
            with interrupting(stop_at) as interrupter:
                getattr(repo, name)("main", "ours")
            getattr(repo, name)("main", "ours")
            assert messages(repo).count("ours") == 1, (name, interrupter.place)
            assert contents(repo.readonly_session("main")) == expected, (name, interrupter.place)


class Lingering(WrappedStorage):
    """Sends what decides a commit, and is interrupted before it is carried out: that comes later."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.operation = ""
        self.under_way: list[Callable[[], Any]] = []
        self.arrives_first = False

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, lingering=True)

    def _run(self, operation: str, key: str, effect: Callable[[], Any]) -> Any:
        if operation == self.operation:
            self.operation = ""
            self.under_way.append(effect)
            raise KeyboardInterrupt
        if operation in {"create", "replace"} and self.arrives_first:
            self.arrive()
        return effect()

    def arrive(self) -> None:
        """Carry out what was under way."""
        for effect in self.under_way:
            with suppress(AlreadyExistsError, PreconditionFailedError):
                effect()
        self.under_way.clear()


@pytest.mark.parametrize("catalog", CATALOGS)
@pytest.mark.parametrize("moment", ["never", "at once", "before the next", "late"])
def test_a_request_may_arrive_when_nobody_waits_for_it(catalog: str, moment: str) -> None:
    """A store may carry out what was sent: nothing is added meanwhile, and one commit is made whenever it comes."""
    url = fresh(catalog).url
    places: list[Lingering] = []

    def wrap(storage: Storage) -> Lingering:
        places.append(Lingering(storage))
        return places[-1]

    with through(wrap):
        repo = Repository.open(url, config=CONFIG)
    (place,) = places
    session = repo.writable_session("main")
    stage(session)
    expected = contents(session)
    place.operation = "replace" if catalog == "state" else "create"
    with pytest.raises(KeyboardInterrupt):
        session.commit("sent")

    if moment == "at once":
        place.arrive()
        assert session.read_only
        assert session.commit("again") == session.snapshot_id
    else:
        with pytest.raises(StorageError, match="may still arrive"):
            session.write_chunk("/a", (30,), b"more")
        with pytest.raises(StorageError, match="may still arrive"):
            session.rebase(ConflictDetector())
        assert session.has_uncommitted_changes
        assert "cut short" in repr(session)
        assert contents(session) == expected
        place.arrives_first = moment == "before the next"
        assert session.commit("again") == session.snapshot_id
    if moment == "late":
        place.arrive()

    (made,) = {"sent", "again"} & set(messages(Repository.open(url)))
    assert made == ("sent" if moment in {"at once", "before the next"} else "again")
    assert Repository.open(url).lookup_branch("main") == session.snapshot_id
    assert contents(Repository.open(url).readonly_session("main")) == expected


def test_an_interrupted_write_in_memory_is_made_or_not() -> None:
    """Half of it is never listed: neither a name without an object, nor one that comes twice."""
    for stop_at in range(40):
        storage = MemoryStorage(secrets.token_hex(8))
        for number in (1, 3):
            storage.put(f"a/{number}", b"x")
        storage.delete(["a/3"])
        with interrupting(stop_at):
            storage.put("a/0", b"x")
            list(storage.list("a/", limit=1))
            storage.delete(["a/1"])
        assert [info.key for info in storage.list("a/")] == [
            key for key in ("a/0", "a/1") if storage.exists(key)
        ]
        with suppress(AlreadyExistsError):
            storage.put("a/0", b"x")
        storage.delete(["a/1"])
        assert [info.key for info in storage.list("a/", limit=5)] == ["a/0"]
