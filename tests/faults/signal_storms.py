"""What a signal may come into: operations that are made once or not at all; and storms of signals at any moment."""

from __future__ import annotations

import pickle
import random
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from icechunk_arrow import AlreadyExistsError, RefNotFoundError, Repository
from icechunk_arrow.errors import IcechunkArrowError
from icechunk_arrow.storage.open import open_storage
from tests.faults.interrupts import interrupting
from tests.faults.repositories import CONFIG, INLINE, OWN, PACKED, copy_objects, payload, picture
from tests.faults.signals import after
from tests.faults.test_interrupts import fresh, somebody_commits, stage, unhindered

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OPERATIONS", "at_any_moment", "base", "begun", "check_and_go_on", "what_it_does"]


@dataclass(frozen=True)
class Operation:
    """Something that is made once, or not at all."""

    do: Callable[[Repository, Any], object]
    prepare: Callable[[Repository], Any] = lambda _: None
    begin: Callable[[Repository], Any] = lambda _: None
    """What was committed before."""
    done: tuple[type[Exception], ...] = ()
    """What is said when it is done again, where it was made."""


def _staged(repo: Repository) -> Any:
    session = repo.writable_session("main")
    stage(session)
    return session


def _forked(repo: Repository) -> Any:
    session = repo.writable_session("main")
    forks = [session.fork(), session.fork()]
    for number, fork in enumerate(forks):
        for index, size in enumerate((INLINE, PACKED, OWN)):
            fork.write_chunk("/a", (30 + 3 * number + index,), payload(f"{number} {index}", size))
    return session, forks


def _merge(repo: Repository, given: Any) -> None:
    session, forks = given
    if not session.has_uncommitted_changes:
        copied = [pickle.loads(pickle.dumps(fork)) for fork in forks]
        session.merge(*copied)
    session.commit("ours")


def _many_small(repo: Repository) -> None:
    for number in range(4):
        session = repo.writable_session("main")
        session.write_chunk("/a", (30 + number,), payload(f"more {number}", PACKED))
        session.commit(f"more {number}")


def _oldest(repo: Repository) -> str:
    return list(repo.ancestry(branch="main"))[-2].id


OPERATIONS: dict[str, Operation] = {
    "commit": Operation(lambda _, session: session.commit("ours"), _staged),
    "merge": Operation(_merge, _forked),
    "create_branch": Operation(
        lambda repo, _: repo.create_branch("more", _oldest(repo)), done=(AlreadyExistsError,)
    ),
    "create_tag": Operation(
        lambda repo, _: repo.create_tag("v2", _oldest(repo)), done=(AlreadyExistsError,)
    ),
    "reset_branch": Operation(lambda repo, _: repo.reset_branch("other", _newest(repo))),
    "delete_branch": Operation(
        lambda repo, _: repo.delete_branch("other"), done=(RefNotFoundError,)
    ),
    "delete_tag": Operation(lambda repo, _: repo.delete_tag("v1"), done=(RefNotFoundError,)),
    "rewrite_manifests": Operation(
        lambda repo, _: repo.rewrite_manifests("main", "ours"), begin=_many_small
    ),
    "compact_chunks": Operation(
        lambda repo, _: repo.compact_chunks("main", "ours"), begin=_many_small
    ),
}


@cache
def base(name: str, catalog: str) -> Repository:
    """A repository to which an operation may come."""
    repo = fresh(catalog)
    OPERATIONS[name].begin(repo)
    return repo


def begun(name: str, catalog: str) -> Repository:
    """A copy of it."""
    url = f"memory://{secrets.token_hex(8)}"
    copy_objects(open_storage(base(name, catalog).url), open_storage(url))
    return Repository.open(url, config=CONFIG)


def _newest(repo: Repository) -> str:
    return repo.lookup_branch("main")


@cache
def what_it_does(name: str, catalog: str) -> tuple[Any, Any, tuple[int, ...], float]:
    """What a repository shows before and after an operation, the steps of its lines, and its seconds."""
    operation, repo = OPERATIONS[name], begun(name, catalog)
    before = picture(Repository.open(repo.url))
    given = operation.prepare(repo)
    with interrupting() as counted:
        operation.do(repo, given)
    then = picture(Repository.open(repo.url))
    assert then != before
    repo = begun(name, catalog)
    given, began = operation.prepare(repo), time.perf_counter()
    operation.do(repo, given)
    return before, then, tuple(counted.steps), time.perf_counter() - began


def check_and_go_on(name: str, catalog: str, repo: Repository, given: Any, where: str) -> bool:
    """See that an operation was made or not, do it again, and see that it is made once. Tell which."""
    operation = OPERATIONS[name]
    before, then, *_ = what_it_does(name, catalog)
    found = picture(Repository.open(repo.url))
    assert found in (before, then), where
    if name in {"commit", "merge"}:
        session = given if name == "commit" else given[0]
        with suppress(IcechunkArrowError):  # it was about to give the id
            operation.do(repo, given)
        assert session.read_only, where
    else:
        with suppress(*operation.done):
            operation.do(repo, given)
    assert picture(Repository.open(repo.url)) == then, where
    unhindered(partial(somebody_commits, repo), where)
    return bool(found == then)


def at_any_moment(name: str, catalog: str, seed: int, count: int) -> int:
    """Have a handler raise after random times; tell how often that was before the end."""
    chance, seconds = random.Random(f"{seed} {name}"), what_it_does(name, catalog)[3]
    hit = 0
    for number in range(count):
        repo = begun(name, catalog)
        given = OPERATIONS[name].prepare(repo)
        moment = max(1e-6, chance.random() * 1.2 * seconds)
        came = after(moment, lambda: OPERATIONS[name].do(repo, given))  # noqa: B023
        hit += came == "interrupted"
        where = f"{name} with seed {seed}, number {number}, after {moment * 1000:.3f} ms: {came}"
        check_and_go_on(name, catalog, repo, given, where)
    return hit
