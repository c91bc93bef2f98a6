"""Races between real processes: one creator wins, nobody sees a part, no update is lost."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow.errors import (
    AlreadyExistsError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from icechunk_arrow.storage import disk
from icechunk_arrow.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icechunk_arrow.storage.port import Storage

PROCESSES = 4
SECONDS = 120


@dataclass(frozen=True)
class Place:
    url: str
    options: dict[str, Any]
    rounds: int
    links: bool = True

    def open(self) -> Storage:
        if not self.links:
            import os

            def no_links(*_: object, **__: object) -> None:
                raise PermissionError(1, "Operation not permitted")

            os.link = no_links  # in this process, which is the test's own
        return open_storage(self.url, self.options)


@pytest.fixture(params=["local", "local without links", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "s3":
        server = request.getfixturevalue("s3")
        return Place(request.getfixturevalue("s3_url"), server.storage_options, 15)
    return Place(str(tmp_path / "root"), {}, 80, links=request.param == "local")


def sealed(writer: int, round_number: int) -> bytes:
    """Content that tells whether it is whole, and whose it is."""
    body = random.Random(f"{writer} {round_number}").randbytes(random.randrange(1, 300_000))
    body = bytes([writer]) + body
    return hashlib.sha256(body).digest() + body


def unseal(data: bytes) -> int:
    assert hashlib.sha256(data[32:]).digest() == data[:32], f"a part of {len(data)} bytes was seen"
    return data[32]


def create_in_turns(place: Place, writer: int, barrier: Any, answers: Any) -> None:
    storage = place.open()
    won = []
    for number in range(place.rounds):
        data = sealed(writer, number)
        barrier.wait(SECONDS)
        try:
            storage.create(f"refs/{number}", data)
        except AlreadyExistsError:
            unseal(storage.get(f"refs/{number}"))  # whoever lost sees the winner's, whole
        else:
            won.append(number)
    answers.put((writer, won))


def read_all_the_time(place: Place, over: Any, answers: Any) -> None:
    storage = place.open()
    seen = number = 0
    while number < place.rounds and not over.is_set():
        try:
            unseal(storage.get(f"refs/{number}"))
        except ObjectNotFoundError:
            continue
        sizes = {found.key: found.size_bytes for found in storage.list("refs/")}
        data, size = storage.get_tail(f"refs/{number}", 2**30)
        assert sizes[f"refs/{number}"] == size == len(data)
        unseal(data)
        seen += 1
        number += 1
    answers.put(("reader", seen))


def count_up(place: Place, times: int, answers: Any) -> None:
    storage = place.open()
    refusals = 0
    for _ in range(times):
        while True:
            data, token = storage.get_versioned("state.json")
            try:
                storage.replace("state.json", str(int(data) + 1).encode(), token)
            except PreconditionFailedError:
                refusals += 1
            else:
                break
    answers.put(refusals)


def run(jobs: list[tuple[Callable[..., None], tuple[Any, ...]]], answers: Any) -> list[Any]:
    """Run processes that have nothing in common but the place, and collect an answer of each."""
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=job, args=arguments, daemon=True) for job, arguments in jobs
    ]
    for process in processes:
        process.start()
    try:
        found = [answers.get(timeout=SECONDS) for _ in processes]
        for process in processes:
            process.join(SECONDS)
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
        answers.close()
        answers.join_thread()
    return found


def test_of_many_creators_one_wins_and_nobody_sees_a_part(place: Place) -> None:
    """In each round one of four processes creates the name; readers see all of it or nothing."""
    context = multiprocessing.get_context("spawn")
    answers, barrier, over = context.Queue(), context.Barrier(PROCESSES), context.Event()
    jobs: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        (create_in_turns, (place, writer, barrier, answers)) for writer in range(PROCESSES)
    ]
    jobs.append((read_all_the_time, (place, over, answers)))

    found = dict(run(jobs, answers))

    assert found.pop("reader") == place.rounds
    winners = {number: writer for writer, won in found.items() for number in won}
    assert sum(map(len, found.values())) == place.rounds == len(winners)
    storage = place.open() if place.links else open_storage(place.url, place.options)
    for number, writer in winners.items():
        assert writer == unseal(storage.get(f"refs/{number}"))


def test_no_replacement_is_lost(place: Place) -> None:
    """Four processes count up one object, each as often as it says, and the sum is right."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    times = place.rounds // 2
    open_storage(place.url, place.options).create("state.json", b"0")

    run([(count_up, (place, times, answers))] * PROCESSES, answers)

    assert int(open_storage(place.url, place.options).get("state.json")) == PROCESSES * times


def test_renaming_refuses_to_replace(tmp_path: Path) -> None:
    """The fall-back for volumes without links stands on this one call."""
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)

    with pytest.raises(FileExistsError):
        disk.rename_new(str(tmp_path / "first"), str(tmp_path / "second"))

    assert (tmp_path / "second").read_text() == "second"
