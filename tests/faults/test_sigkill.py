"""A writer killed, or told to end, at any moment: the repository opens, and nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow import Repository
from icechunk_arrow.core.ids import sequence_name
from icechunk_arrow.formats.layout import hint_key
from icechunk_arrow.storage.open import open_storage
from tests.faults.repositories import (
    CONFIG,
    INLINE,
    OWN,
    PACKED,
    array_document,
    check_layout,
    contents,
    payload,
)
from tests.faults.signals import ENDS, HANDLERS

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

CHUNKS = 10_000
SIZES = (INLINE, PACKED, OWN)


@dataclass(frozen=True)
class Place:
    """Where the writer writes, and how often it is killed: 50 times in all places."""

    url: str
    kills: int
    catalog: str = "branches"
    options: dict[str, Any] = field(default_factory=dict)

    def open(self) -> Repository:
        return Repository.open(self.url, self.options)


@pytest.fixture(
    params=["local", "local, state file", pytest.param("s3", marks=pytest.mark.s3)],
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "s3":
        server = request.getfixturevalue("s3")
        return Place(
            request.getfixturevalue("s3_url"), kills=10, options=dict(server.storage_options)
        )
    if request.param == "local":
        return Place(str(tmp_path / "repository"), kills=30)
    return Place(str(tmp_path / "repository"), kills=10, catalog="state")


def expected_chunk(number: int, which: int) -> bytes:
    return payload(f"commit {number}, chunk {which}", SIZES[which])


def write_until_killed(place: Place, tell: Connection, way: str = "default") -> None:
    """Commit again and again, and tell of each commit after it was acknowledged."""
    signal.signal(signal.SIGTERM, HANDLERS[way])
    repo = place.open()
    tell.send("ready")
    while True:
        session = repo.writable_session("main")
        number = 1 + int(next(repo.ancestry(branch="main")).message or 0)
        for which in range(3):
            coord = (3 * number + which,)
            session.write_chunk("/a", coord, expected_chunk(number, which))
        # every commit also overwrites what the one before wrote into a chunk of its own
        session.write_chunk("/a", (0,), expected_chunk(number, 1))
        snapshot_id = session.commit(str(number))
        tell.send((number, snapshot_id))


def acknowledged(listen: Connection) -> list[tuple[int, str]]:
    """What a writer told before it was killed, and nobody has listened to."""
    found = []
    try:
        while listen.poll():
            found.append(listen.recv())
    except (EOFError, OSError):
        pass
    return found


def kill_once(place: Place, commits: int, seconds: float, way: str = "") -> list[tuple[int, str]]:
    """Start a writer, end it a while after some commits, and give what it had acknowledged.

    ``way`` is what it does about ``SIGTERM``; without one it is killed.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.test_sigkill"])
    listen, tell = context.Pipe(duplex=False)
    process = context.Process(
        target=write_until_killed, args=(place, tell, way or "default"), daemon=True
    )
    process.start()
    tell.close()
    try:
        told = []
        for _ in range(1 + commits):
            assert listen.poll(60), "the writer does not begin, or does not go on"
            told.append(listen.recv())
        time.sleep(seconds)
        assert process.is_alive(), "the writer ended by itself"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGTERM if way else signal.SIGKILL)
        process.join(60)
        assert process.exitcode == (ENDS | {"raises": 1}).get(way, -signal.SIGKILL)
        return told[1:] + acknowledged(listen)
    finally:
        process.kill()
        process.join()
        process.close()
        listen.close()


def check(place: Place, known: dict[int, str]) -> dict[int, str]:
    """Check the repository as the next process finds it; give its history."""
    repo = place.open()
    history = list(repo.ancestry(branch="main"))
    commits = {int(info.message): info.id for info in history if info.message.isdigit()}
    assert sorted(commits) == list(range(len(history) - 1)), "the history has a gap"
    assert known.items() <= commits.items(), "an acknowledged commit is lost"
    newest = len(history) - 2
    found = contents(repo.readonly_session("main"))
    assert newest == 0 or found.pop("/a/c/0") == expected_chunk(newest, 1)
    for number in range(1, newest + 1):
        for which in range(3):
            key = f"/a/c/{3 * number + which}"
            assert found.pop(key) == expected_chunk(number, which), key
    assert not [key for key in found if key.startswith("/a/c/")]
    storage = open_storage(place.url, place.options)
    check_layout(repo, storage)
    if place.catalog == "branches":
        listed = (info.key for info in storage.list("refs/branch.main/"))
        names = [key for key in listed if key != hint_key("main")]
        wanted = [f"refs/branch.main/{sequence_name(n)}.json" for n in range(len(history))]
        assert sorted(names) == sorted(wanted)
    return commits


def check_kills(place: Place, ways: tuple[str, ...]) -> None:
    """End writers again and again, and see what each has left."""
    repo = Repository.create(place.url, place.options, config=CONFIG, catalog=place.catalog)
    session = repo.writable_session("main")
    session.set_document("/a", array_document(CHUNKS))
    session.commit("0")
    chance = random.Random(50)
    known: dict[int, str] = {}
    longest = 0.3 if place.options else 0.06
    for number in range(place.kills):
        way = ways[number % len(ways)]
        told = kill_once(place, chance.choice([0, 0, 1, 2]), chance.random() * longest, way)
        known.update(told)
        commits = check(place, known)
        assert len(commits) - 1 <= max(known, default=0) + 1, "one more than was told, at most"
        known = commits
    assert len(known) > place.kills // 2, "the writer was always killed before it did anything"


@pytest.mark.storm
def test_killed_at_random_moments(place: Place) -> None:
    """After each SIGKILL: it opens, no gap, every acknowledged commit, every chunk right."""
    check_kills(place, ("",))


@pytest.mark.storm
def test_told_to_end_at_random_moments(place: Place) -> None:
    """The same of SIGTERM, whatever the writer does about it: nothing, ``sys.exit``, an error of its own."""
    check_kills(place, tuple(HANDLERS))
