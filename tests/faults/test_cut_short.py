"""What is cut short while a repository is made, files are taken in or a loop waits is done, or not at all."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icechunk_arrow import AlreadyExistsError, Repository
from tests.faults.interrupts import interrupting
from tests.faults.repositories import CONFIG, contents, through
from tests.faults.signals import after, at_line, handled
from tests.faults.storage_wrappers import WrappedStorage
from tests.faults.test_interrupts import CATALOGS, messages, some_of, unhindered
from tests.ingest.files import new_repository, weather_files
from tests.ingest.test_executor import by_threads
from tests.places import make_array

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("catalog", CATALOGS)
def test_a_repository_that_was_about_to_be_made(catalog: str) -> None:
    """After a signal at a line there is one or there is none: opening or creating it gives one, which works."""

    def create(url: str) -> Repository:
        return Repository.create(url, config=CONFIG, catalog=catalog)

    with interrupting() as counted:
        create(f"memory://{secrets.token_hex(8)}")
    made = []
    with handled("raises"):
        for stop_at in some_of(25, counted.steps):
            url = f"memory://{secrets.token_hex(8)}"
            with at_line(stop_at) as signaller:
                create(url)
            where = f"a signal at {signaller.place}"
            made.append(Repository.exists(url))
            if made[-1]:
                with pytest.raises(AlreadyExistsError):
                    create(url)
            repo = Repository.open_or_create(url, config=CONFIG, catalog=catalog)
            session = repo.writable_session("main")
            make_array(session.store)
            unhindered(partial(session.commit, "first"), where)
            assert messages(Repository.open(url)) == ["first", "Repository created"], where
    assert not all(made)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_ingest_without_spark(tmp_path: Path) -> None:
    """After a signal at any moment all files are in, or none is, and they are taken in then."""
    paths = weather_files(tmp_path, 2)
    began = time.perf_counter()
    whole = new_repository(tmp_path / "whole", tmp_path)
    by_threads(paths, whole)
    seconds, chance = time.perf_counter() - began, Random(1)
    expected = contents(whole.readonly_session("main"))
    hit = 0
    for number in range(6):
        repo = new_repository(tmp_path / f"r{number}", tmp_path)
        moment = max(1e-6, chance.random() * seconds)
        hit += after(moment, lambda: by_threads(paths, repo)) == "interrupted"  # noqa: B023
        where = f"number {number}, after {moment * 1000:.3f} ms"
        found = contents(repo.readonly_session("main"))
        assert found in ({}, expected), where
        if not found:
            unhindered(lambda: by_threads(paths, repo), where)  # noqa: B023
            assert contents(repo.readonly_session("main")) == expected, where
    assert hit


class Slow(WrappedStorage):
    """Counts as slow, so that the store asks it in threads, and now and then is."""

    def __init__(self, inner: Any, chance: Random) -> None:
        super().__init__(inner, fast=False)
        self._chance = chance

    def _run(self, operation: str, key: str, effect: Callable[[], Any]) -> Any:
        if self._chance.random() < 0.1:
            time.sleep(0.001)
        return effect()


async def _cancelled(work: Any, turns: int) -> bool:
    """Cancel a task after some turns of the loop; tell whether that was before its end."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
        return False
    return True


def test_tasks_that_are_cancelled() -> None:
    """A chunk that a task was writing is the old one or the new one, and the session goes on."""
    url, hit = f"memory://{secrets.token_hex(8)}", 0
    Repository.create(url, config=CONFIG)
    old, new = (np.full((40, 20), value, "i4") for value in (1, 2))
    for seed in range(12):
        chance = Random(seed)
        with through(partial(Slow, chance=chance)):
            repo = Repository.open(url, config=CONFIG)
        session = repo.writable_session("main")
        array = make_array(session.store, f"a{seed}", shape=old.shape, chunks=(2, 20))
        array[...] = old
        turns = chance.randrange(120)

        async def work(store: Any = session.store, seed: int = seed, turns: int = turns) -> int:
            mine = await zarr.api.asynchronous.open_array(store=store, path=f"a{seed}")
            cut = await _cancelled(mine.getitem(...), turns)
            return cut + await _cancelled(mine.setitem(..., new), turns)

        hit += asyncio.run(work())
        where = f"seed {seed}, cancelled after {turns} turns"
        session.store.close()  # its threads end what they were at
        found = np.asarray(array[...])
        assert set(np.unique(found)) <= {1, 2}, where
        assert all(len(set(found[row : row + 2].ravel().tolist())) == 1 for row in range(0, 40, 2))
        session.commit(f"{seed}")
        then = zarr.open_array(repo.readonly_session("main").store, path=f"a{seed}", mode="r")
        assert (np.asarray(then[...]) == found).all(), where
    assert hit
    assert not [thread for thread in threading.enumerate() if "chunk-files" in thread.name]
