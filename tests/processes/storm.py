"""Threads that are busy with one repository, and workers that come in every way while they are.

Owns the matrix: what is done × how the worker comes × where. A seed decides the order of acts, the ways and the
lines at which processes fork; what other threads are just doing then, the machine decides.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import multiprocessing
import os
import pickle
import sys
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Self

from icechunk_arrow import ConflictDetector
from icechunk_arrow.errors import IcechunkArrowError
from tests.processes.acts import ACTS, BY_ITSELF, READS, SIMPLE, Hands, act
from tests.processes.children import SECONDS, ForkAt, end_if_it_hangs, fork, live
from tests.processes.ledger import Place, begin, check_end, write_row
from tests.processes.planted import plant

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WAYS", "storm"]

DEEP = 2
"""So many generations of children."""


class House:
    """What the process has that starts all others."""

    def __init__(self, place: Place, seed: int, busy: int) -> None:
        self.place = place
        self.folder = Path(place.folder)
        self.chance = Random(f"{seed} main")
        self.seed = seed
        self.hands = [Hands.of(place, self.chance), Hands.of(place, self.chance)]
        """Two handles on one place."""
        self.figures: Counter[str] = Counter()
        self._over = threading.Event()
        self._failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._be_busy, args=(number,), daemon=True)
            for number in range(busy)
        ]
        self._lines: dict[str, int] = {}

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(4 * SECONDS)
        assert not self._failures, self._failures[0]
        assert not any(thread.is_alive() for thread in self._threads), (
            "a thread of the parent hangs"
        )

    def check(self) -> None:
        """Fail if a thread has."""
        assert not self._failures, self._failures[0]

    def _be_busy(self, number: int) -> None:
        chance = Random(f"{self.seed} thread {number}")
        process, log = os.getpid(), None
        try:
            while not self._over.is_set():
                if chance.random() < 0.15:  # a new session for all to hold
                    self.hands[chance.randrange(2)] = Hands.of(self.place, chance)
                hands = self.hands[chance.randrange(2)].beside(chance)
                name = chance.choice(sorted(ACTS))
                if name == "in_threads" or chance.random() < 0.6:
                    self.figures[act(hands, name)] += 1
                else:
                    log = self._fork_within(hands, name)
                    if os.getpid() != process:
                        assert log is not None
                        live(log, partial(_live, hands, chance.random(), 1))
        except BaseException:
            self._failures.append(traceback.format_exc())
            if os.getpid() != process:
                print(traceback.format_exc(), file=sys.stderr)
                os._exit(1)

    def _fork_within(self, hands: Hands, name: str) -> Path | None:
        """Fork in this thread, at a random line of an act."""
        process, random = os.getpid(), hands.chance.random()
        step = int(hands.chance.random() * self._lines.get(name, 300))
        able = name in BY_ITSELF and hands.repo._context.storage.capabilities.fast
        goes_on = able and hands.chance.random() < 0.5
        life = None if goes_on else (lambda: _live(hands, random, 1))
        with ForkAt(step, self.folder, life) as forking:
            try:
                how = act(hands, name)
            except BaseException as error:
                if os.getpid() != process:
                    assert forking.log is not None
                    forking.log.write_text(traceback.format_exc())
                    os._exit(1)
                if not goes_on or not isinstance(error, IcechunkArrowError):
                    raise
                # two processes are at one thing; the ledger tells whether it was done as it should
                how = f"beside a child that goes on: {type(error).__name__}"
        if os.getpid() == process:
            self._lines[name] = forking.count
            self.figures[how] += 1
            if forking.child is not None:
                self.figures[f"forked at a line, {'going on' if goes_on else 'living there'}"] += 1
                forking.child.wait()
        return forking.log


def _live(hands: Hands, random: float, depth: int) -> None:
    """Do some things with what was inherited, with what is opened anew, and perhaps in a child of one's own."""
    chance = Random(random)
    hands = hands.beside(chance)
    for _ in range(chance.randrange(1, 4)):
        if chance.random() < 0.4:
            hands = Hands.of(hands.place, chance)
        act(hands, chance.choice(sorted(ACTS)))
        hands.goes_on = False
        if depth < DEEP and chance.random() < 0.2:
            more = chance.random()
            fork(
                Path(hands.place.folder),
                "a child of a child",
                lambda mine=hands, seed=more: _live(mine, seed, depth + 1),  # type: ignore[misc]
                SECONDS,
            ).wait()


# -- ways in which workers come


def by_fork(house: House) -> None:
    """``os.fork`` in the main thread, whatever the others are at."""
    children = []
    for _ in range(2):
        time.sleep(house.chance.random() * 0.03)
        hands, random = house.hands[house.chance.randrange(2)], house.chance.random()
        children.append(fork(house.folder, "a child", lambda: _live(hands, random, 1)))  # noqa: B023
    for child in children:
        child.wait()


def _start(place: Place, random: float, given: bytes, log: str) -> None:
    """Live as a worker of ``multiprocessing``: with what came in a pickle, and what is opened anew."""

    def life() -> None:
        chance = Random(random)
        reader, fork_session, token = pickle.loads(given)
        hands = Hands.of(place, chance)
        hands.reader = reader
        for _ in range(chance.randrange(1, 3)):
            act(hands, chance.choice(sorted(ACTS)))
        write_row(fork_session, token)
        Path(f"{log}.fork").write_bytes(pickle.dumps(fork_session))

    live(Path(log), life)


def _through_multiprocessing(house: House, method: str) -> None:
    """Send forks of a session to workers, and merge what comes back."""
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])
    hands = house.hands[house.chance.randrange(2)]
    session = hands.repo.writable_session("main")
    tokens, logs, workers = [], [], []
    for _ in range(2):
        token, log = house.place.new_token(), house.folder / "children" / os.urandom(8).hex()
        log.touch()
        given = pickle.dumps((hands.reader, session.fork(), token))
        worker = context.Process(
            target=_start, args=(house.place, house.chance.random(), given, str(log)), daemon=True
        )
        tokens.append(token)
        logs.append(log)
        workers.append(worker)
        worker.start()
    for worker, log in zip(workers, logs, strict=True):
        worker.join(2 * SECONDS + 30)
        assert worker.exitcode == 0, f"{method}: {worker.exitcode}:\n{log.read_text()}"
    forks = [pickle.loads(Path(f"{log}.fork").read_bytes()) for log in logs]
    session.merge(*forks)
    session.commit(" ".join(map(str, tokens)), rebase_with=ConflictDetector())
    house.place.acknowledge(*tokens)


def by_multiprocessing_fork(house: House) -> None:
    """``multiprocessing``, forked from a busy process."""
    _through_multiprocessing(house, "fork")


def by_forkserver(house: House) -> None:
    """``multiprocessing``, forked from a quiet process."""
    _through_multiprocessing(house, "forkserver")


def by_spawn(house: House) -> None:
    """``multiprocessing``, begun from nothing."""
    _through_multiprocessing(house, "spawn")


_HELD: list[Hands] = []


def _work(random: float) -> str:
    """Do something in a worker of a pool, with what it inherited; it comes again."""
    end_if_it_hangs(SECONDS)
    chance = Random(random)
    try:
        return act(_HELD[0].beside(chance), chance.choice(sorted(SIMPLE)))
    finally:
        end_if_it_hangs(0)


def by_pool(house: House) -> None:
    """A pool of ``concurrent.futures``, forked from a busy process."""
    _HELD[:] = [house.hands[house.chance.randrange(2)]]
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        randoms = [house.chance.random() for _ in range(5)]
        for how in pool.map(_work, randoms, timeout=SECONDS + 30):
            house.figures[f"in a pool: {how}"] += 1


def by_thread(house: House) -> None:
    """Threads of the main thread, which fork from there."""

    def run(hands: Hands, random: float) -> None:
        try:
            fork(house.folder, "a thread's child", lambda: _live(hands, random, 1)).wait()
        except BaseException:
            house._failures.append(traceback.format_exc())

    threads = [
        threading.Thread(target=run, args=(hands, house.chance.random()), daemon=True)
        for hands in house.hands
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * SECONDS)


WAYS: dict[str, tuple[Callable[[House], None], int]] = {
    "fork": (by_fork, 12),
    "multiprocessing, fork": (by_multiprocessing_fork, 4),
    "forkserver": (by_forkserver, 2),
    "spawn": (by_spawn, 1),
    "pool": (by_pool, 3),
    "threads": (by_thread, 3),
}
"""How workers come, and how often of all times."""


def storm(place: Place, seed: int, count: int, busy: int = 2) -> dict[str, int]:
    """Have workers come so often, while threads are busy; give what happened."""
    begin(place)
    ways = sorted(WAYS)
    if place.is_memory:  # nobody else finds it
        ways = ["fork", "threads", "pool"]
    for name in sorted(
        READS
    ):  # what is imported when it is used; a lock of an import is not renewed in forks
        act(Hands.of(place, Random(seed)), name)
    sys.setswitchinterval(1e-4)
    with House(place, seed, busy) as house:
        for _ in range(count):
            (way,) = house.chance.choices(ways, [WAYS[name][1] for name in ways])
            try:
                WAYS[way][0](house)
            except BaseException as error:
                error.add_note(f"by {way}")
                raise
            house.check()
            house.figures[way] += 1
    return {**check_end(place), **house.figures}


def main() -> None:
    """Run one storm in this process: begun by :mod:`tests.processes.running`, which waits for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("url", "folder", "catalog", "options", "planted"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600)
    given = parser.parse_args()
    faulthandler.enable()
    end_if_it_hangs(given.seconds)
    place = Place(given.url, given.folder, given.catalog, json.loads(given.options or "{}"))
    with plant(given.planted):
        figures = storm(place, given.seed, given.count, given.busy)
    print(json.dumps(figures))
    sys.stdout.flush()
    with suppress(IcechunkArrowError):
        os._exit(0)  # daemons of a storm that is over hold up nobody


if __name__ == "__main__":
    main()
