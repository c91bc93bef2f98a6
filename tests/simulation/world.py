"""One world: a virtual clock, actors of which exactly one runs, and the calls at which another one may go on.

Every actor is a thread that waits for the baton. Whoever has it gives it away at calls of the storage, and between
two operations, as the schedule says; so nothing else decides the order of things.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

from icechunk_arrow.storage.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.schedule import Decision, Dice, Schedule, Script

__all__ = ["Died", "Over", "Process", "Thread", "Violation", "VirtualClock", "World"]

MOST_CALLS = 5000
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)


class Violation(AssertionError):  # noqa: N818 -- it is a finding
    """An invariant does not hold."""

    def __init__(self, rule: str, fact: str) -> None:
        super().__init__(f"{rule}: {fact}")
        self.rule = rule
        self.fact = fact

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        return Violation, (self.rule, self.fact)


class Died(BaseException):
    """The machine of an actor has stopped."""


class Over(BaseException):
    """The world ends: something was found."""


class Process:
    """A machine with one process: what it has put and not synced goes with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.offset = timedelta()


class Thread:
    """Somebody who acts, in turn with others."""

    def __init__(self, world: World, name: str, act: Callable[[Thread], None]) -> None:
        self.world = world
        self.name = name
        self.process = Process(name)
        self.step = 0
        self.calls = 0
        self.suffered: set[str] = set()
        """What went wrong for this actor in the operation that it is at."""
        self.is_publishing = False
        """Whether it has looked a last time and not yet created its entry."""
        self.is_done = False
        self.waits_for: list[Thread] = []
        self.rng = Random(name)
        self._act = act
        self.baton = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def can_go_on(self) -> bool:
        """Whether it is not waiting for others."""
        return not self.is_done and all(each.is_done for each in self.waits_for)

    def _run(self) -> None:
        self.baton.acquire()
        try:
            if not self.world.is_over:
                self._act(self)
        except (Over, Died):
            pass
        except BaseException as error:
            self.world.fail(error)
        finally:
            self.is_done, self.is_publishing = True, False
            self.world.hand_on(self)

    def begin(self, step: int) -> None:
        """Begin an operation: ids that are drawn in it depend on nothing before."""
        self.step, self.calls, self.suffered = step, 0, set()
        self.is_publishing = False
        self.rng = Random(f"{self.world.schedule.seed}/{self.name}/{step}")

    def wait(self, others: list[Thread]) -> None:
        """Let others come to their end."""
        self.waits_for = others
        while not self.can_go_on:
            self.world.give_to(self, self.world.next_after(self))
        self.waits_for = []


class World:
    """Everything of one run."""

    def __init__(self, schedule: Schedule, decider: Dice | Script) -> None:
        self.schedule = schedule
        self.tick = 0
        self.elapsed = timedelta()
        self.threads: dict[str, Thread] = {}
        self.running: Thread | None = None
        self.failure: BaseException | None = None
        self.trace: list[str] = []
        self.decisions: dict[str, Decision] = {}
        self.faults: dict[str, int] = {}
        self.switches = 0
        self._decider = decider
        self._ended = threading.Semaphore(0)
        self.due: list[tuple[int, Callable[[], None]]] = []
        """What is under way, and when it arrives."""

    @property
    def is_over(self) -> bool:
        """Whether something was found."""
        return self.failure is not None

    def now(self) -> datetime:
        """What time it really is."""
        return BEGIN + self.elapsed

    # -- turns

    def run(self, acts: dict[str, Callable[[Thread], None]]) -> None:
        """Let actors act, until all are at their end."""
        for name, act in acts.items():
            self.spawn(name, act)
        self.running = next(iter(self.threads.values()))
        self.running.baton.release()
        self._ended.acquire()
        for each in list(self.threads.values()):
            each.thread.join()
        self.running = None
        while self.due and not self.is_over:
            self._arrive(self.due[0][0])

    def spawn(self, name: str, act: Callable[[Thread], None]) -> Thread:
        """Add an actor."""
        thread = self.threads[name] = Thread(self, name, act)
        thread.thread.start()
        return thread

    def next_after(self, thread: Thread) -> Thread:
        """Say who goes on when nobody said who shall."""
        able = [each for each in self.threads.values() if each is not thread and each.can_go_on]
        assert able, "all wait for each other"
        return able[0]

    def give_to(self, thread: Thread, other: Thread) -> None:
        """Let another one go on, and wait for one's turn."""
        self.switches += 1
        self.running = other
        other.baton.release()
        thread.baton.acquire()
        if self.is_over:
            raise Over

    def hand_on(self, thread: Thread) -> None:
        """Let another one go on at one's own end."""
        able = [each for each in self.threads.values() if not each.is_done]
        if not self.is_over:
            able = [each for each in able if each.can_go_on]
        if not able:
            self._ended.release()
            return
        decision = None
        if not self.is_over and len(able) > 1:
            names = [each.name for each in able]
            decision = self._decide(f"{thread.name}/end", "", names)
        chosen = able[0]
        if decision is not None:
            chosen = next((each for each in able if each.name == decision.get("to")), chosen)
        self.running = chosen
        chosen.baton.release()

    def fail(self, error: BaseException) -> None:
        """Keep what was found first."""
        if self.failure is None:
            self.failure = error

    def let_publish(self) -> None:
        """Let all others come out of the moment between their last look and their entry."""
        thread = self.running
        assert thread is not None
        while True:
            able = [e for e in self.threads.values() if e.is_publishing and e is not thread]
            if not able:
                return
            self.give_to(thread, able[0])

    # -- calls

    def between(self, thread: Thread) -> None:
        """Maybe let another one go on between two operations."""
        self._point(thread, f"{thread.name}/{thread.step}/between", "", "")

    def call(self, method: str, key: str) -> Decision:
        """Be at a call; say what happens to it."""
        thread = self.running
        assert thread is not None
        if threading.current_thread() is not thread.thread:
            self.fail(Violation("turns", f"a thread of the package's own called {method} of {key}"))
            raise Over
        thread.calls += 1
        return self._point(thread, f"{thread.name}/{thread.step}/{thread.calls}", method, key)

    def _decide(self, point: str, method: str, others: list[str]) -> Decision | None:
        decision = self._decider.decide(point, method, others)
        if decision is not None:
            self.decisions[point] = decision
        return decision

    def _point(self, thread: Thread, point: str, method: str, key: str) -> Decision:
        if self.is_over:
            raise Over
        if thread.process.is_dead:
            raise Died
        self.tick += 1
        if self.tick > MOST_CALLS:
            self.fail(Violation("endless", f"{MOST_CALLS} calls, and {thread.name} is still at it"))
            raise Over
        self.elapsed += timedelta(milliseconds=1)
        able = [e for e in self.threads.values() if e is not thread and e.can_go_on]
        decision = self._decide(point, method, [each.name for each in able]) or {}
        fault = decision.get("fault", "")
        self.trace.append(f"{point} {method} {key} {fault}")
        if fault:
            self.faults[fault] = self.faults.get(fault, 0) + 1
        other = decision.get("to")
        if other is not None:
            for each in able:
                if each.name == other:
                    self.give_to(thread, each)
        while self.due and self.due[0][0] <= self.tick:
            self._arrive(self.due[0][0])
        if fault:
            thread.suffered.add(fault)
        if fault == "clock":
            thread.process.offset = timedelta(seconds=decision["seconds"])
        elif fault == "delay":
            self.elapsed += timedelta(seconds=decision["seconds"])
        return decision

    def later(self, ticks: int, effect: Callable[[], None]) -> None:
        """Have something arrive later."""
        self.due.append((self.tick + ticks, effect))
        self.due.sort(key=lambda each: each[0])

    def _arrive(self, _: int) -> None:
        _, effect = self.due.pop(0)
        effect()

    # -- what the package is given

    def random_bytes(self, count: int) -> bytes:
        """Draw bytes for whoever acts."""
        if self.running is None:
            return Random(f"{self.tick}").randbytes(count)
        return self.running.rng.randbytes(count)


class VirtualClock(Clock):
    """What time it is for whoever acts."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        thread = self._world.running
        return self._world.now() + (timedelta() if thread is None else thread.process.offset)

    def seconds(self) -> float:
        return self._world.elapsed.total_seconds()

    def pause(self, seconds: float) -> None:
        self._world.elapsed += timedelta(seconds=seconds)
