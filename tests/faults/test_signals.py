"""A signal that arrives at any line or moment ends what is done, and hurts neither the repository nor others."""

from __future__ import annotations

import pickle
import random
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow import (
    AlreadyExistsError,
    RefNotFoundError,
    Repository,
)
from icechunk_arrow.errors import IcechunkArrowError
from icechunk_arrow.storage.open import open_storage
from tests.faults.interrupts import interrupting
from tests.faults.repositories import (
    CONFIG,
    INLINE,
    OWN,
    PACKED,
    check_layout,
    copy_objects,
    payload,
    picture,
)
from tests.faults.signals import ENDS, after, at_line, ended_by, handled
from tests.faults.test_interrupts import (
    CATALOGS,
    fresh,
    some_of,
    somebody_commits,
    stage,
    unhindered,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    # what is raised while Python lets things go reaches nobody
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


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


@pytest.mark.parametrize("catalog", CATALOGS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_handler_that_raises_at_a_line(name: str, catalog: str) -> None:
    """``SIGTERM`` at a line: it is made once or not at all, and the same handle does it again."""
    steps = list(what_it_does(name, catalog)[2])
    made = []
    with handled("raises"):
        for stop_at in some_of(8, steps):
            repo = begun(name, catalog)
            given = OPERATIONS[name].prepare(repo)
            with at_line(stop_at) as signaller:
                OPERATIONS[name].do(repo, given)
            where = f"a signal at {signaller.place}"
            made.append(check_and_go_on(name, catalog, repo, given, where))
    assert not all(made), "none came before the deciding step"


@pytest.mark.storm
@pytest.mark.parametrize("catalog", CATALOGS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_handler_that_raises_at_more_lines(name: str, catalog: str) -> None:
    """The same at more of them."""
    with handled("raises"):
        for stop_at in some_of(60, list(what_it_does(name, catalog)[2])):
            repo = begun(name, catalog)
            given = OPERATIONS[name].prepare(repo)
            with at_line(stop_at) as signaller:
                OPERATIONS[name].do(repo, given)
            check_and_go_on(name, catalog, repo, given, f"a signal at {signaller.place}")


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


@pytest.mark.parametrize("catalog", CATALOGS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_handler_that_raises_at_any_moment(name: str, catalog: str) -> None:
    """Wherever Python is just then, not only between lines: it is made once or not at all."""
    assert at_any_moment(name, catalog, 1, 10), "the signal always came too late"


def ended_at(name: str, catalog: str, way: str, stop_at: int, folder: Path) -> bool:
    """Have a child end by a signal while it does something on a disk; tell whether it was made."""
    place, operation = folder / secrets.token_hex(8), OPERATIONS[name]
    copy_objects(open_storage(base(name, catalog).url), open_storage(str(place)))
    repo = Repository.open(str(place), config=CONFIG)
    before, then, *_ = what_it_does(name, catalog)
    where = f"{name}, {way} at step {stop_at} of a child"
    mine = Repository.open(str(place), config=CONFIG)
    code = ended_by(way, stop_at, lambda: operation.prepare(mine), partial(operation.do, mine))
    assert code in {0, ENDS[way]}, (code, where)
    found = picture(repo)
    assert found in (before, then), where
    check_layout(repo, open_storage(str(place)))
    if found == before:
        unhindered(lambda: operation.do(repo, operation.prepare(repo)), where)
        assert picture(Repository.open(str(place))) == then, where
    unhindered(partial(somebody_commits, repo), where)
    check_layout(repo, open_storage(str(place)))
    shutil.rmtree(place)
    return bool(found == then)


@pytest.mark.storm
@pytest.mark.parametrize("way", ["exits", "default"])
@pytest.mark.parametrize("catalog", CATALOGS)
def test_a_process_that_ends_at_a_line(catalog: str, way: str, tmp_path: Path) -> None:
    """``sys.exit`` in a handler, or none: what a process leaves on a disk is whole, and hinders nobody."""
    for name in OPERATIONS:
        steps = list(what_it_does(name, catalog)[2])
        made = [
            ended_at(name, catalog, way, stop_at, tmp_path) for stop_at in some_of(3, [0, *steps])
        ]
        assert not all(made)
