"""What threads and processes do with a repository, with handles that they were given or open themselves.

Owns the acts, each of which compares what it sees; what of a process is inherited; and which errors an act may end
with. An act that commits says so in the ledger as soon as it was told.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pickle
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype

import icechunk_arrow.duckdb
from icechunk_arrow import (
    AlreadyExistsError,
    ConflictDetector,
    InvalidInputError,
    ReadOnlyError,
    StorageError,
)
from icechunk_arrow.errors import IcechunkArrowError
from tests.processes.ledger import VALUES, WIDE, check, row, write_row

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from icechunk_arrow import Repository, Session
    from icechunk_arrow.session import ForkSession
    from tests.processes.ledger import Place

__all__ = ["ACTS", "BY_ITSELF", "READS", "SIMPLE", "Hands", "act"]

SECONDS = 60


@dataclass(kw_only=True)
class Hands:
    """What a thread holds: shared with all others of its process, and inherited by children."""

    place: Place
    chance: Random
    repo: Repository
    reader: Session
    """Reads one snapshot for as long as the process lives."""
    held: Session
    """A writable session in which something is staged: only one process may commit it."""
    held_token: int
    fork: ForkSession | None = None
    owner: int = field(default_factory=os.getpid)
    """The process that opened all this."""
    goes_on: bool = False
    """Whether this process was forked in the middle of the act that it is at."""

    @classmethod
    def of(cls, place: Place, chance: Random) -> Hands:
        """Open everything."""
        repo = place.open()
        token = place.new_token()
        held = repo.writable_session("main")
        write_row(held, token)
        reader = repo.readonly_session("main")
        return cls(
            place=place, chance=chance, repo=repo, reader=reader, held=held, held_token=token
        )

    @property
    def inherited(self) -> bool:
        return os.getpid() != self.owner

    @property
    def far_from_home(self) -> bool:
        """Whether the place is the memory of another process, where nothing can be written."""
        if not self.place.is_memory:
            return False
        storage: Any = self.repo._context.storage
        return bool(storage._place.process_id != os.getpid())

    def beside(self, chance: Random) -> Hands:
        """Give another thread the same things."""
        return Hands(**{**vars(self), "chance": chance})


# -- reading


def _box(hands: Hands) -> tuple[slice, slice]:
    row, column = (hands.chance.randrange(45) for _ in range(2))
    return slice(row, row + 15), slice(column, column + 15)


def read(hands: Hands) -> None:
    """Read through zarr, as it reads this place."""
    box = _box(hands)
    array = zarr.open_array(hands.reader.store, path="a", mode="r")
    assert (np.asarray(array[box]) == VALUES[box]).all()


def read_by_threads(hands: Hands) -> None:
    """Read through zarr's loop and the store's threads, as it reads places that are far."""
    box = _box(hands)
    store = hands.repo.readonly_session("main").store
    store._sync = False
    try:
        array = zarr.open_array(store, path="a", mode="r")
        assert (np.asarray(array[box]) == VALUES[box]).all()
    finally:
        store.close()


def read_in_own_loop(hands: Hands) -> None:
    """Read keys of the shared store on a loop of this thread's own."""
    wanted = [(hands.chance.randrange(6), hands.chance.randrange(6)) for _ in range(5)]
    store = hands.reader.store
    prototype = default_buffer_prototype()

    async def read_some() -> list[Any]:
        assert {name async for name in store.list_dir("")} >= {"a", "w"}
        keys = [f"a/c/{y}/{x}" for y, x in wanted]
        return list(await asyncio.gather(*(store.get(key, prototype) for key in keys)))

    for (y, x), found in zip(wanted, asyncio.run(read_some()), strict=True):
        assert found is not None
        values = np.frombuffer(found.to_bytes(), VALUES.dtype).reshape(10, 10)
        assert (values == VALUES[10 * y : 10 * y + 10, 10 * x : 10 * x + 10]).all()


def look(hands: Hands) -> None:
    """Compare the newest snapshot, and the one that is held, with their histories."""
    check(hands.repo, hands.repo.readonly_session("main"), some=5)
    check(hands.repo, hands.reader, some=5)


def look_anew(hands: Hands) -> None:
    """Open the repository again, and compare."""
    repo = hands.place.open()
    check(repo, repo.readonly_session("main"), some=20)


def query(hands: Hands) -> None:
    """Ask the tables, as Arrow and by DuckDB, which has not more rows than were committed."""
    session = hands.repo.readonly_session("main")
    nodes = session.table("nodes")
    assert {"/a", "/big", "/w"} <= set(nodes["path"].to_pylist())
    with duckdb.connect() as con:
        con.execute("SET threads TO 1")
        icechunk_arrow.duckdb.attach(con, hands.repo, name="repo", snapshot_id=session.snapshot_id)
        counts = dict(con.execute("SELECT path, chunk_count FROM repo.arrays").fetchall())
        icechunk_arrow.duckdb.detach(con, "repo")
    assert counts["/a"] == VALUES.size // 100
    assert counts["/w"] == len(check(hands.repo, session, some=0))


def copy_reader(hands: Hands) -> None:
    """Pickle the reader to oneself."""
    copied = pickle.loads(pickle.dumps(hands.reader))
    box = _box(hands)
    assert (np.asarray(zarr.open_array(copied.store, path="a", mode="r")[box]) == VALUES[box]).all()


# -- writing


class Own:
    """A session, what it has to commit, and the process that may."""

    def __init__(self, hands: Hands) -> None:
        self.place = hands.place
        self.session = hands.repo.writable_session("main")
        # after that: a child that was forked before has a session, and a token, of its own
        self.process = os.getpid()
        self.tokens = [self.place.new_token()]

    def commit(self) -> None:
        """Commit on top of whatever others did."""
        message = " ".join(map(str, self.tokens))
        try:
            snapshot_id = self.session.commit(message, rebase_with=ConflictDetector())
        except AlreadyExistsError:  # a child that went on had written a file of the same name
            snapshot_id = self.session.commit(message, rebase_with=ConflictDetector())
        assert os.getpid() == self.process, "a child committed what its parent had staged"
        assert self.session.snapshot_id == snapshot_id
        self.place.acknowledge(*self.tokens)


def commit(hands: Hands) -> None:
    """Write a row and commit it."""
    own = Own(hands)
    write_row(own.session, own.tokens[0], is_large=hands.chance.random() < 0.3)
    own.commit()


def commit_through_zarr(hands: Hands) -> None:
    """The same, written through zarr's loop and the store's threads."""
    own = Own(hands)
    (token,) = own.tokens
    store = own.session.store
    store._sync = False
    zarr.open_array(store, path="w", mode="r+")[token] = np.full(WIDE, token + 1)
    own.commit()
    store.close()


def rebase(hands: Hands) -> None:
    """Lose a race to oneself, rebase by hand, and commit."""
    own = Own(hands)
    write_row(own.session, own.tokens[0])
    commit(hands)
    own.session.rebase(ConflictDetector())
    own.commit()


def fork_and_merge(hands: Hands) -> None:
    """Fork a session, have the forks written here and in a copy, and merge them."""
    own = Own(hands)
    own.tokens += [hands.place.new_token(), hands.place.new_token()]
    write_row(own.session, own.tokens[0])
    forks = [own.session.fork(), own.session.fork()]
    if not hands.far_from_home:
        forks[0] = pickle.loads(pickle.dumps(forks[0]))
    for fork, each in zip(forks, own.tokens[1:], strict=True):
        write_row(fork, each, is_large=True)
    own.session.merge(*forks)
    own.commit()


def name_things(hands: Hands) -> None:
    """Make a branch and a tag, and take them away again."""
    snapshot_id = hands.repo.lookup_branch("main")
    name = f"n{hands.place.new_token()}"
    hands.repo.create_branch(name, snapshot_id)
    hands.repo.create_tag(name, snapshot_id)
    assert hands.repo.lookup_branch(name) == hands.repo.lookup_tag(name) == snapshot_id
    hands.repo.delete_tag(name)
    hands.repo.delete_branch(name)


def keep_house(hands: Hands) -> None:
    """Rewrite the manifests, while others commit."""
    hands.repo.rewrite_manifests("main", "house")


def add_to_held(hands: Hands) -> None:
    """Stage something in the session that all share; in a child it is refused."""
    try:
        write_row(hands.held, hands.held_token)
    except ReadOnlyError:
        assert hands.inherited or hands.held.read_only
    except StorageError:
        assert hands.inherited


def commit_held(hands: Hands) -> None:
    """Commit the session that all share: once, by the process that opened it."""
    token = hands.held_token
    try:
        snapshot_id = hands.held.commit(str(token), rebase_with=ConflictDetector())
    except ReadOnlyError:
        return  # another thread was faster, or this is another process
    except StorageError:
        assert hands.inherited or hands.far_from_home
        return
    if hands.inherited:  # it may be told of what the parent did, and do nothing itself
        assert not hands.held._is_copy
    assert hands.repo.lookup_snapshot(snapshot_id).message == str(token)
    hands.place.acknowledge(token)


def read_held(hands: Hands) -> None:
    """Read what is staged: as it was at the fork, or not at all."""
    held, token = hands.held, hands.held_token
    assert repr(held)
    try:
        found = held.find_chunk(held.get_array("/w"), (token, 0))
    except StorageError:
        assert hands.inherited
        return
    assert found is not None
    length = len(found) if isinstance(found, bytes) else found.length
    assert bytes(held.read_chunk(found, 0, length)) == row(token)


def in_threads(hands: Hands) -> None:
    """Do two things at a time."""
    failures: list[BaseException] = []
    names = [hands.chance.choice(sorted(SIMPLE)) for _ in range(2)]

    def run(name: str) -> None:
        try:
            act(hands, name)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        if thread.is_alive():
            faulthandler.dump_traceback()
            raise AssertionError(f"one of {names} hangs")
    for failure in failures:
        raise failure


READS: dict[str, Callable[[Hands], None]] = {
    each.__name__: each
    for each in (
        read,
        read_by_threads,
        read_in_own_loop,
        look,
        look_anew,
        query,
        copy_reader,
        read_held,
    )
}
SIMPLE: dict[str, Callable[[Hands], None]] = {
    **READS,
    **{
        each.__name__: each
        for each in (
            commit,
            commit_through_zarr,
            rebase,
            fork_and_merge,
            name_things,
            keep_house,
            add_to_held,
            commit_held,
        )
    },
}
ACTS = {**SIMPLE, "in_threads": in_threads}

BY_ITSELF = frozenset(SIMPLE) - {
    *("query", "read_by_threads", "read_in_own_loop", "commit_through_zarr")
}
"""Where no other thread, no loop and no connection of DuckDB is needed: there a child can go on."""


def act(hands: Hands, name: str) -> str:
    """Do something; tell whether it went well, or which error of ours there was and had to be."""
    process = os.getpid()
    try:
        ACTS[name](hands)
    except IcechunkArrowError as error:
        hands.goes_on |= os.getpid() != process
        if not _may_fail(hands, name, error):
            raise
        return type(error).__name__
    return "well"


def _may_fail(hands: Hands, name: str, error: IcechunkArrowError) -> bool:
    """Whether an act may end so."""
    if hands.goes_on:
        return True
    return hands.far_from_home and isinstance(error, StorageError | InvalidInputError)
