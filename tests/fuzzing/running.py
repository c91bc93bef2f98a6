"""Many cases, by processes that have little memory and not much time, and are replaced when they hang or die.

Owns the processes, what is counted, and the tables that are printed.
"""

from __future__ import annotations

import resource
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fuzzing.damage import Case
from tests.fuzzing.judging import FAILED, LEGITIMATE, OUTCOMES, REFUSED, Verdict, judge
from tests.fuzzing.rules import rule_of
from tests.fuzzing.samples import KINDS, samples_of
from tests.fuzzing.trees import UnfitError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["Result", "Run", "run", "try_case"]

SPARE_BYTES = 512 << 20
"""How much more memory than at the beginning a process may take: the default limit for a file, and some."""
TIME_OUT_SECONDS = 30
"""A case takes a tenth of a second; on a machine with other work, one."""
BATCH = 25
CASES_OF_A_PROCESS = 1500


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a number."""

    number: int
    case: Case
    outcome: str
    done: str = ""
    """What was done to the file, by the mutations that it needs."""
    told: str = ""


@dataclass
class Run:
    """What came of many."""

    seed: int
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By kind, mutation and outcome; of two mutations the first."""
    rules: Counter[str] = field(default_factory=Counter)
    """How often what breaks a rule was refused."""
    failures: list[Result] = field(default_factory=list)
    cases: int = 0

    def add(self, result: Result) -> None:
        """Count a result."""
        self.cases += 1
        self.counts[result.case.kind, result.case.steps[0][0], result.outcome] += 1
        if result.outcome == FAILED:
            self.failures.append(result)
        if result.outcome == REFUSED:
            rule = rule_of(result.case, result.done)
            if rule is not None:
                self.rules[rule] += 1

    def totals(self) -> dict[str, int]:
        """How often each outcome was."""
        found: Counter[str] = Counter()
        for (_, _, outcome), number in self.counts.items():
            found[outcome] += number
        return {outcome: found[outcome] for outcome in OUTCOMES}

    def table(self) -> str:
        """Kind and mutation by outcome."""
        lines = [f"{'kind':12} {'mutation':16} " + " ".join(f"{each:>10}" for each in OUTCOMES)]
        for kind, way in sorted({(kind, way) for kind, way, _ in self.counts}):
            numbers = " ".join(f"{self.counts[kind, way, each]:10}" for each in OUTCOMES)
            lines.append(f"{kind:12} {way:16} {numbers}")
        lines.append(f"{'all':29} " + " ".join(f"{each:10}" for each in self.totals().values()))
        return "\n".join(lines)

    def told(self) -> str:
        """All failures, in words, of those that are alike one."""
        alike: dict[str, list[Result]] = {}
        for each in self.failures:
            alike.setdefault(each.told[-70:], []).append(each)
        return "\n".join(
            f"{len(some)} times, first seed {self.seed} number {some[0].number}: {some[0].case.key} "
            f"({some[0].case.kind} of {some[0].case.sample}), "
            f"{', '.join(step[0] for step in some[0].case.steps)}: {some[0].done}\n    {some[0].told}\n"
            f"    for the corpus: {some[0].case.as_line()}"
            for some in alike.values()
        )


def try_case(number: int, case: Case) -> Result | None:
    """Judge a case; where it fails, give the smallest part of it that does. None where nothing can be done."""
    try:
        data, done = case.damage()
    except UnfitError:
        return None
    ways = {way for way, _ in case.steps}
    verdict = judge(case.sample, case.kind, {case.key: data}, ways)
    if verdict.outcome == FAILED:
        alone = [each for each in (try_case(number, part) for part in case.parts()) if each]
        for smaller in alone:
            if smaller.outcome == FAILED:
                return smaller
        if "the second reader refuses" in verdict.told and len(alone) > 1:
            # one is refused by whoever sees it, the other is what the file says now
            verdict = Verdict(LEGITIMATE, verdict.told)
    return Result(number=number, case=case, outcome=verdict.outcome, done=done, told=verdict.told)


Attempt = Callable[[int, Case], "Result | None"]


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a process is told to do."""

    seed: int
    kind: str | None
    attempt: Attempt


def _memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _work(order: Order, numbers: Connection, answers: Connection) -> None:
    seed, kind = order.seed, order.kind
    for each in KINDS if kind is None else (kind,):  # what is loaded late is loaded now
        for name in samples_of(each):
            judge(name, each, {"x/none": None})
    limit = _memory_bytes() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    answers.send(("ready", None))
    with suppress(EOFError):  # nobody has more
        while True:
            for number in numbers.recv():
                answers.send(("begin", number))
                tried = (
                    order.attempt(number, Case.drawn(seed, number, kind, again))
                    for again in count()
                )
                answers.send(("end", next(filter(None, tried))))
            answers.send(("ready", None))


class _Worker:
    """One process, the numbers that it has, and since when it is silent."""

    def __init__(self, order: Order) -> None:
        context = get_context("spawn")
        theirs, self.numbers = context.Pipe(duplex=False)
        self.answers, to_us = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(order, theirs, to_us), daemon=True)
        self.process.start()
        theirs.close()
        to_us.close()
        self.given: deque[int] = deque()
        self.current: int | None = None
        self.is_ready = False
        self.done = 0
        self.silent = -60.0
        """For how long nothing was heard while it could run, in seconds; to begin takes longer."""

    def is_stopped(self) -> bool:
        """Whether somebody has stopped the process, to let it go on later."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in {"T", "t"}

    def end(self) -> int | None:
        """Stop the process; tell how it ended, if it did by itself."""
        self.numbers.close()
        self.process.join(0.5)
        self.process.kill()
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        self.answers.close()
        return code


def run(
    seed: int,
    files: int,
    *,
    kind: str | None = None,
    workers: int = 2,
    seconds: float | None = None,
    attempt: Attempt = try_case,
    time_out_seconds: float = TIME_OUT_SECONDS,
) -> Run:
    """Try so many damaged files, or as many as there is time for."""
    order = Order(seed=seed, kind=kind, attempt=attempt)
    found = Run(seed)
    end = None if seconds is None else time.monotonic() + seconds
    waiting = deque(range(files))
    pool = [_Worker(order) for _ in range(min(workers, max(files // BATCH, 1)))]
    try:
        while pool:
            asked = time.monotonic()
            ready = wait([each.answers for each in pool], timeout=1)
            passed = min(time.monotonic() - asked, 1.0)  # this process may be stopped too
            for worker in [*pool]:
                if worker.answers in ready:
                    lost = _hear(worker, waiting, found, end)
                else:
                    worker.silent += 0 if worker.is_stopped() else passed
                    if worker.silent < time_out_seconds:
                        continue
                    lost = f"it hangs: nothing was heard for {time_out_seconds} seconds"
                if lost is None:
                    continue
                pool.remove(worker)
                code = worker.end()
                if not worker.is_ready:  # another would not begin either
                    raise RuntimeError(f"a process did not begin: {lost or f'exit code {code}'}")
                if worker.current is not None:
                    told = lost or f"the interpreter dies, exit code {code}"
                    case = Case.drawn(seed, worker.current, kind)
                    found.add(Result(number=worker.current, case=case, outcome=FAILED, told=told))
                waiting.extendleft(reversed(worker.given))
                if waiting and (end is None or time.monotonic() < end):
                    pool.append(_Worker(order))
    finally:
        for worker in pool:
            worker.end()
    return found


def _hear(worker: _Worker, waiting: deque[int], found: Run, end: float | None) -> str | None:
    """Take one message of a worker; text where it is to be replaced."""
    try:
        what, said = worker.answers.recv()
    except EOFError:
        return ""
    worker.silent = 0
    if what == "begin":
        worker.current = said
        worker.given.remove(said)
    elif what == "end":
        worker.current = None
        worker.done += 1
        found.add(said)
    else:
        worker.is_ready = True
        over = end is not None and time.monotonic() >= end
        if over:
            waiting.clear()
        if not waiting or worker.done >= CASES_OF_A_PROCESS:
            return ""
        batch = [waiting.popleft() for _ in range(min(BATCH, len(waiting)))]
        worker.given = deque(batch)
        worker.numbers.send(batch)
    return None
