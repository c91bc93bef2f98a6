"""A signal that arrives at any line or moment ends what is done, and hurts neither the repository nor others."""

from __future__ import annotations

import secrets
import shutil
from functools import partial
from typing import TYPE_CHECKING

import pytest

from icechunk_arrow import Repository
from icechunk_arrow.storage.open import open_storage
from tests.faults.repositories import CONFIG, check_layout, copy_objects, picture
from tests.faults.signal_storms import (
    OPERATIONS,
    at_any_moment,
    base,
    begun,
    check_and_go_on,
    what_it_does,
)
from tests.faults.signals import ENDS, at_line, ended_by, handled
from tests.faults.test_interrupts import CATALOGS, some_of, somebody_commits, unhindered

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    # what is raised while Python lets things go reaches nobody
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


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
