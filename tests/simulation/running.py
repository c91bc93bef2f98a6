"""Runs schedules, judges the end, and makes failing ones short."""

from __future__ import annotations

import hashlib
import sys
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow import Repository
from icechunk_arrow.engine import compaction, opening, rewriting
from icechunk_arrow.engine.catalog import SequenceCatalog
from icechunk_arrow.storage import chance, clock
from tests.simulation.actors import CONFIG, Actor, contents, perform
from tests.simulation.model import SETUP, Attempt, Model
from tests.simulation.planted import plant
from tests.simulation.schedule import Dice, Schedule, Script, drawn
from tests.simulation.storage import URL, Item, Shared, SimulatedStorage, worlds
from tests.simulation.watching import Watch
from tests.simulation.world import Violation, VirtualClock, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

__all__ = ["Figures", "Outcome", "run", "shrunk", "simulated", "storm"]

LOADED = (compaction, rewriting)
"""Imported before their threads are replaced."""


class Inline:
    """In place of the package's pools of threads: does at once what it is given."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], *args: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **more))
        except BaseException as error:
            future.set_exception(error)
        return future

    def map(self, function: Callable[..., Any], *parts: Any) -> Iterator[Any]:
        return map(function, *parts)

    def shutdown(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextmanager
def simulated() -> Iterator[pytest.MonkeyPatch]:
    """Have no threads in the package, and places of the simulation behind its URL."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("icechunk_arrow.") and "ThreadPoolExecutor" in vars(module):
                patch.setattr(module, "ThreadPoolExecutor", Inline)
        for name, ends in (("confirm", False), ("check_identity", False), ("_create", True)):
            original = vars(SequenceCatalog)[name]
            patch.setattr(SequenceCatalog, name, _marked(original, ends=ends))
        yield patch


def _marked(method: Callable[..., Any], *, ends: bool) -> Callable[..., Any]:
    """Have it known who looks a last time, and who has created."""

    def marked(self: SequenceCatalog, *args: Any) -> Any:
        world = getattr(self._storage, "_world", None)
        thread = None if world is None else world.running
        try:
            found = method(self, *args)
        except BaseException:
            if thread is not None:
                thread.is_publishing = False
            raise
        if thread is not None:
            thread.is_publishing = not ends
        return found

    return marked


_images: dict[tuple[str, int], tuple[dict[str, Item], str]] = {}


def _image(catalog: str, number: int) -> dict[str, Item]:
    """A repository as it is made; every schedule begins with a copy."""
    found = _images.get((catalog, number))
    if found is None:
        world = World(Schedule(seed=number, catalog=catalog, actors={}), Script({}))
        world.tick = number
        shared = Shared(world)
        with _in(shared, lambda: SimulatedStorage(shared, None)) as _:
            draws = iter(range(10**6))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    chance, "draw", lambda n: _drawn(f"{catalog}{number}", next(draws), n)
                )
                Repository.create(URL, catalog=catalog)  # without settings: to read YAML takes long
                repo = Repository.open(URL, config=CONFIG)
                session = repo.writable_session("main")
                for operation in SETUP:
                    perform(session, operation)
                session.commit("set up", {"sim": "setup"})
        shared.make_durable(None)
        found = _images[catalog, number] = shared.objects, "setup"
    return found[0]


def _drawn(what: str, number: int, count: int) -> bytes:
    return hashlib.shake_256(f"{what}/{number}".encode()).digest(count)


@contextmanager
def _in(shared: Shared, storage: Callable[[], SimulatedStorage]) -> Iterator[None]:
    """Give the package a world: its time, its chance, its place."""
    worlds[id(shared.world)] = shared
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "in_use", VirtualClock(shared.world))
        patch.setattr(chance, "draw", shared.world.random_bytes)
        patch.setattr(opening, "open_storage", lambda *_, **__: storage())
        try:
            yield
        finally:
            del worlds[id(shared.world)]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a schedule."""

    schedule: Schedule
    """Written down."""
    failure: BaseException | None
    trace: list[str]
    commits: int
    faults: dict[str, int]
    switches: int

    @property
    def rule(self) -> str:
        """Which invariant does not hold; empty where all do."""
        if self.failure is None:
            return ""
        return getattr(self.failure, "rule", type(self.failure).__name__)

    def without_traceback(self) -> Outcome:
        """The same for another process."""
        return replace(self, failure=Violation(self.rule, str(self.failure)), trace=[])

    @property
    def digest(self) -> str:
        """The trace of calls, short."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]


class _Run:
    def __init__(self, schedule: Schedule) -> None:
        decisions = schedule.decisions
        decider = Dice(schedule) if decisions is None else Script(decisions)
        self.schedule = schedule
        self.world = World(schedule, decider)
        self.shared = Shared(self.world)
        self.model = Model(self.shared)
        self.model.attempts["setup"] = Attempt("setup", SETUP)
        self.watch = Watch(self.shared, self.model)
        self.made = 0
        self.actors = {
            name: Actor(number, ops, self.shared, self.model, self.watch, self.make)
            for number, (name, ops) in enumerate(schedule.actors.items())
        }

    def make(self, _: object = None) -> None:
        """Make the place anew: nobody sees it half done, and nobody is just about to create an entry."""
        if self.made and not self.schedule.late_wipes:
            self.world.let_publish()
            self.world.due.clear()
        self.shared.is_being_made = True
        for key in list(self.shared.objects):
            self.shared.remove(key)
        for key, item in _image(self.schedule.catalog, self.made).items():
            self.shared.set(key, item)
        self.shared.is_being_made = False
        self.made += 1
        self.watch.begin()

    def _open(self) -> SimulatedStorage:
        running = self.world.running
        return SimulatedStorage(self.shared, None if running is None else running.process)

    def run(self) -> Outcome:
        with _in(self.shared, self._open):
            self.make()
            self.world.run({name: actor.act for name, actor in self.actors.items()})
            if not self.world.is_over:
                try:
                    self._check_end()
                except BaseException as error:
                    self.world.fail(error)
        world = self.world
        return Outcome(
            schedule=self.schedule.written_down(world.decisions),
            failure=world.failure,
            trace=world.trace,
            commits=len(self.watch.commits),
            faults=world.faults,
            switches=world.switches,
        )

    def _check_end(self) -> None:
        """Cut the power everywhere, and look at all that is left as somebody who comes anew."""
        self.shared.lose(None)
        repo = Repository.open(URL, config=CONFIG)
        tips = {name: moves[-1][1] for name, moves in self.watch.tips.items()}
        branches = {name for name, tip in tips.items() if tip is not None}
        if repo.list_branches() != branches:
            raise Violation("history", f"branches are {repo.list_branches()}, not {branches}")
        tags = {name for name in self.watch.tags if self.watch.tag_at(name) is not None}
        if repo.list_tags() != tags:
            raise Violation("tag", f"tags are {repo.list_tags()}, not {tags}")
        for tag in tags:
            if repo.lookup_tag(tag) != self.watch.tag_at(tag):
                raise Violation("tag", f"{tag} is at {repo.lookup_tag(tag)}")
        for branch in branches:
            found = [info.id for info in repo.ancestry(branch=branch)]
            if found != list(self.model.ancestors(tips[branch])):
                raise Violation("history", f"{branch} is {found}, and ends in {tips[branch]}")
        for actor in self.actors.values():
            for snapshot_id in actor.acknowledged:
                if snapshot_id not in self.watch.commits and not self.made > 1:
                    raise Violation("acknowledged", f"{snapshot_id} is gone")
        for snapshot_id in self.watch.commits:
            found_contents = contents(repo.readonly_session(snapshot_id=snapshot_id))
            wanted = self.model.tree_of(snapshot_id).contents()
            if found_contents != wanted:
                fact = f"after a power cut {snapshot_id} shows {found_contents}, and has {wanted}"
                raise Violation("content", fact)


def run(schedule: Schedule) -> Outcome:
    """Run a schedule; within :func:`simulated`."""
    return _Run(schedule).run()


# -- shorter


def shrunk(outcome: Outcome, most: int = 400) -> Outcome:
    """Leave out of a failing schedule what it fails without."""
    best, left = outcome, most
    rule = outcome.rule

    def better(schedule: Schedule) -> bool:
        nonlocal best, left
        if left <= 0:
            return False
        left -= 1
        found = run(schedule)
        if found.rule != rule:
            return False
        # what was decided and never came up goes, too
        best = replace(found, schedule=schedule.written_down(found.schedule.decisions or {}))
        return True

    size = None
    while size != (size := _size(best.schedule)) and left:
        _shrink_actors(lambda: best.schedule, better)
        _shrink_operations(lambda: best.schedule, better)
        _shrink_decisions(lambda: best.schedule, better)
    return best


def _size(schedule: Schedule) -> tuple[int, int]:
    return sum(map(len, schedule.actors.values())), len(schedule.decisions or {})


def _shrink_actors(current: Callable[[], Schedule], better: Callable[[Schedule], bool]) -> None:
    for name in list(current().actors):
        rest = {key: ops for key, ops in current().actors.items() if key != name}
        if rest:
            # numbers of actors are part of what they write: one who does nothing stays
            better(replace(current(), actors={**current().actors, name: []}))


def _parts(items: list[Any]) -> Iterator[list[Any]]:
    """Halves, quarters, … and single ones."""
    size = len(items)
    while size:
        yield from (items[i : i + size] for i in range(0, len(items), size))
        if size == 1:
            return
        size = (size + 1) // 2


def _shrink_operations(current: Callable[[], Schedule], better: Callable[[Schedule], bool]) -> None:
    for name in list(current().actors):
        for part in list(_parts(current().actors[name])):
            ids = {each["id"] for each in part}
            now = current().actors[name]
            rest = [each for each in now if each["id"] not in ids]
            if len(rest) < len(now):
                better(replace(current(), actors={**current().actors, name: rest}))


def _shrink_decisions(current: Callable[[], Schedule], better: Callable[[Schedule], bool]) -> None:
    for part in list(_parts(sorted(current().decisions or {}))):
        now = current().decisions or {}
        rest = {point: each for point, each in now.items() if point not in part}
        if len(rest) < len(now):
            better(replace(current(), decisions=rest))


# -- many


@dataclass
class Figures:
    """What a storm was."""

    schedules: int = 0
    operations: int = 0
    calls: int = 0
    commits: int = 0
    switches: int = 0
    seconds: float = 0.0
    """Of the processor."""
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one more."""
        self.schedules += 1
        self.operations += sum(map(len, outcome.schedule.actors.values()))
        self.calls += len(outcome.trace)
        self.commits += outcome.commits
        self.switches += outcome.switches
        self.faults.update(outcome.faults)
        if outcome.failure is not None:
            self.failures.append(outcome)

    def join(self, other: Figures) -> None:
        """Count what others did, too."""
        for name in ("schedules", "operations", "calls", "commits", "switches", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults.update(other.faults)
        self.failures += other.failures

    def __str__(self) -> str:
        each = 1000 * self.seconds / max(self.schedules, 1)
        return (
            f"{self.schedules} schedules, {self.operations} operations, {self.calls} calls, "
            f"{self.commits} commits, {self.switches} switches, {self.faults.total()} faults "
            f"{dict(sorted(self.faults.items()))}, {len(self.failures)} failures, {each:.0f} ms of a processor each"
        )


def storm(
    seed: int, count: int, *, catalog: str = "", planted: str = "", until_failure: bool = False
) -> Figures:
    """Run the schedules of so many seeds, one after the other."""
    figures, began = Figures(), time.process_time()
    with simulated():
        for kind in ("branches", "state"):  # without what is planted
            _image(kind, 0)
            _image(kind, 1)
        with plant(planted):
            for number in range(seed, seed + count):
                figures.add(run(drawn(number, catalog)))
                if until_failure and figures.failures:
                    break
    figures.seconds = time.process_time() - began
    return figures
