"""One writer of a random history: sessions, branches, tags, compactions, in steps that others come between."""

from __future__ import annotations

import json
import pickle
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from icechunk_arrow import (
    AlreadyExistsError,
    BasicConflictSolver,
    ConflictDetector,
    ConflictError,
    InvalidInputError,
    RebaseFailedError,
    RefNotFoundError,
    Repository,
    StorageSettings,
    VersionSelection,
)
from icechunk_arrow.core.conflict import ConflictSolver, ConflictType
from icechunk_arrow.session import Session
from tests.replay.operations import draw, draw_in_fork, perform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icechunk_arrow.core.conflict import Conflict, Resolution
    from icechunk_arrow.session import ForkSession
    from tests.replay.model import Operation

__all__ = ["Place", "Writer", "work_on_fork"]

TRIES = 50


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a history is made: the repository, and a folder for what the writers keep."""

    url: str
    folder: str
    options: dict[str, Any] = field(default_factory=dict)
    catalog: str = "branches"
    source_url: str = ""
    """Where the file is too that virtual chunks refer to, if not only in the folder."""
    choices: dict[str, Any] = field(default_factory=dict)
    """How the repository is opened besides."""
    endured: tuple[type[Exception], ...] = ()
    """Errors with which an operation may end here."""

    @property
    def source(self) -> str:
        """The location of the file that virtual chunks refer to."""
        return self.source_url or (Path(self.folder) / "source" / "bytes").as_uri()

    def open(self) -> Repository:
        """Open the repository, as a new process does."""
        usual = {
            "storage_settings": StorageSettings(durable=False),
            "authorize_virtual_chunk_access": [self.source.rpartition("/")[0]],
        }
        return Repository.open(self.url, self.options, **{**usual, **self.choices})


class _UndoneError(Exception):
    """What ends a block that is to be undone."""


class _Settling(ConflictSolver):
    """Settles conflicts, and keeps which."""

    def __init__(self, selection: VersionSelection | None) -> None:
        self.ours: list[Any] = []
        self.theirs: list[Any] = []
        self.select(selection)

    def select(self, selection: VersionSelection | None) -> None:
        """Say whose chunks stay; None settles nothing."""
        self._into = self.theirs if selection is VersionSelection.UseTheirs else self.ours
        self._inner: ConflictSolver = ConflictDetector()
        if selection is not None:
            self._inner = BasicConflictSolver(on_chunk_conflict=selection)

    def solve(self, found: tuple[Conflict, ...]) -> Resolution:
        """Settle conflicts."""
        resolution = self._inner.solve(found)
        if not resolution.unsolved:
            self._into += [
                [each.path, each.conflicted_chunks]
                for each in found
                if each.conflict_type is ConflictType.ChunkDoubleUpdate
            ]
        return resolution


def work_on_fork(data: bytes, operations: list[Operation], source: str) -> bytes:
    """What another process does with a fork that it is sent."""
    fork = pickle.loads(data)
    for operation in operations:
        perform(fork, operation, source)
    return pickle.dumps(fork)


class Writer:
    """Does random things, the same ones for a seed as far as it finds the same."""

    def __init__(
        self,
        place: Place,
        seed: int,
        number: int,
        elsewhere: Callable[[bytes, list[Operation], str], bytes] = work_on_fork,
    ) -> None:
        self.place = place
        self.number = number
        self.commits = 0
        self.counts: dict[str, int] = {}
        self.errors: list[Exception] = []
        """What was endured."""
        self._seed = f"{seed}/{number}"
        self._elsewhere = elsewhere
        self._repo = place.open()
        self._acknowledged = Path(place.folder) / f"acknowledged-{number}"

    def steps(self) -> Iterator[None]:
        """Act for ever; others may come between two steps."""
        number = 0
        while True:
            rng = Random(f"{self._seed}/{number}")
            try:
                with suppress(RefNotFoundError):  # somebody ended the branch
                    yield from self._act(rng)
            except self.place.endured as error:
                self._endured(error)
            number += 1
            yield

    def _act(self, rng: Random) -> Iterator[None]:
        weights = {
            self._session: 70,
            self._transaction: 6,
            self._branch: 8,
            self._tag: 2,
            self._compact: 4,
            self._rewrite: 3,
            self._reopen: 3,
        }
        chosen = rng.choices(list(weights), list(weights.values()))[0]
        yield from chosen(rng)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _endured(self, error: Exception) -> None:
        self._count(type(error).__name__)
        self.errors.append(error)

    def _some_branch(self, rng: Random) -> str:
        number = rng.random()
        branches = sorted(self._repo.list_branches())
        return "main" if number < 0.6 else branches[int(number * len(branches))]

    # -- commits

    def _note(self, **more: Any) -> dict[str, Any]:
        """What a commit carries: its name, and what it did."""
        self.commits += 1
        note = {"name": f"{self.number}-{self.commits}", "operations": [], **more}
        return {"replay": note}

    def _acknowledge(self, note: dict[str, Any], kind: str) -> None:
        self._count(kind)
        with self._acknowledged.open("a") as file:
            file.write(json.dumps(note["replay"]["name"]) + "\n")

    @contextmanager
    def _leaving_open(self, note: dict[str, Any]) -> Iterator[None]:
        """Write down of which commit it is not known whether it was made, where that is so."""
        try:
            yield
        except self.place.endured:
            with (Path(self.place.folder) / f"open-{self.number}").open("a") as file:
                file.write(json.dumps(note["replay"]["name"]) + "\n")
            raise

    def _session(self, rng: Random) -> Iterator[None]:
        session = self._repo.writable_session(self._some_branch(rng))
        note = self._note(base=session.snapshot_id)
        operations = note["replay"]["operations"]
        for _ in range(rng.randint(1, 5)):
            self._one(rng, session, operations)
            yield
        if rng.random() < 0.06:
            session.discard_changes()
            operations.clear()
            self._one(rng, session, operations)
        if session.has_uncommitted_changes:
            yield from self._commit(rng, session, note)

    def _commit(self, rng: Random, session: Session, note: dict[str, Any]) -> Iterator[None]:
        way = rng.choice(["lose", "detect", "detect", "ours", "theirs", "detect, then ours"])
        select = {"ours": VersionSelection.UseOurs, "theirs": VersionSelection.UseTheirs}
        solver = _Settling(select.get(way))
        note["replay"].update(ours=solver.ours, theirs=solver.theirs)
        is_open = False
        for _ in range(TRIES):
            if not is_open and not session.has_uncommitted_changes:  # all of it gave way
                return
            try:
                with self._leaving_open(note):
                    session.commit(f"by {self.number}", note)
            except ConflictError:
                is_open = False
                if way == "lose":
                    self._count("lost")
                    return
            except self.place.endured as error:
                if rng.random() < 0.3:
                    raise
                self._endured(error)
                is_open = True
                yield
                continue
            else:
                self._acknowledge(note, "committed")
                return
            yield
            try:
                session.rebase(solver)
            except RebaseFailedError:
                if way != "detect, then ours":
                    self._count("conflicts")
                    return
                solver.select(VersionSelection.UseOurs)
            except ConflictError:  # the branch was reset
                return
            else:
                self._count("rebased")

    def _one(self, rng: Random, session: Session, operations: list[Operation]) -> None:
        """Do one thing in a session."""
        kind = rng.random()
        if kind < 0.06:
            self._in_forks(rng, session, operations)
        elif kind < 0.12:
            self._all_or_nothing(rng, session, operations)
        elif kind < 0.15:
            session.status()
        else:
            self._plain(rng, session, operations)

    def _plain(self, rng: Random, session: Session, operations: list[Operation]) -> None:
        operation = draw(rng, session)
        if operation is not None:
            perform(session, operation, self.place.source)
            operations.append(operation)

    def _all_or_nothing(self, rng: Random, session: Session, operations: list[Operation]) -> None:
        inside: list[Operation] = []
        fails = rng.random() < 0.5
        with suppress(_UndoneError), session.all_or_nothing():
            for _ in range(rng.randint(1, 3)):
                self._plain(rng, session, inside)
            if fails:
                raise _UndoneError
        if not fails:
            operations += inside

    def _in_forks(self, rng: Random, session: Session, operations: list[Operation]) -> None:
        forks = [session.fork() for _ in range(rng.randint(1, 3))]
        parts = [self._work(rng, fork) for fork in forks]
        between = draw_in_fork(rng, session)
        if between is not None:
            perform(session, between, self.place.source)
        done: Operation = {
            "op": "forks",
            "between": [] if between is None else [between],
            "parts": [operations for _, operations in parts],
        }
        try:
            session.merge(*(fork for fork, _ in parts), duplicates=rng.choice(["error", "last"]))
        except InvalidInputError:
            done["parts"] = []
            self._count("refused merges")
        else:
            self._count("merges")
        operations.append(done)

    def _work(self, rng: Random, fork: ForkSession) -> tuple[ForkSession, list[Operation]]:
        """Write to a fork, here or elsewhere."""
        here = rng.random() < 0.4
        done: list[Operation] = []
        for _ in range(rng.randint(1, 3)):
            operation = draw_in_fork(rng, fork)  # type: ignore[arg-type]
            if operation is not None:
                done.append(operation)
                if here:
                    perform(fork, operation, self.place.source)  # type: ignore[arg-type]
        if here:
            return fork, done
        data = self._elsewhere(pickle.dumps(fork), done, self.place.source)
        return pickle.loads(data), done

    def _transaction(self, rng: Random) -> Iterator[None]:
        note = self._note()
        operations = note["replay"]["operations"]
        rebase_with = rng.choice([None, ConflictDetector()])
        fails = rng.random() < 0.2
        with suppress(_UndoneError, ConflictError, RebaseFailedError):
            with (
                self._leaving_open(note),
                self._repo.transaction(
                    self._some_branch(rng),
                    message="transaction",
                    metadata=note,
                    rebase_with=rebase_with,
                ) as store,
            ):
                session = store._session
                assert isinstance(session, Session)
                note["replay"]["base"] = session.snapshot_id
                for _ in range(rng.randint(1, 3)):
                    self._plain(rng, session, operations)
                yield
                if fails or not session.has_uncommitted_changes:
                    raise _UndoneError
            self._acknowledge(note, "transactions")

    # -- branches, tags, housekeeping

    def _branch(self, rng: Random) -> Iterator[None]:
        kind, name = rng.random(), f"b{rng.randrange(3)}"
        branch, back = self._some_branch(rng), rng.randrange(6)
        infos = zip(self._repo.ancestry(branch=branch), range(6), strict=False)
        history = [info.id for info, _ in infos if info.parent_id is not None]
        snapshot_id = history[min(back, len(history) - 1)]
        with suppress(AlreadyExistsError, ConflictError):
            if kind < 0.5:
                self._repo.create_branch(name, snapshot_id)
            elif kind < 0.7:
                self._repo.reset_branch(branch, snapshot_id)
            elif kind < 0.8:
                self._repo.reset_branch(branch, snapshot_id, history[0])
            else:
                self._repo.delete_branch(name)
            self._count("branches")
        yield

    def _tag(self, rng: Random) -> Iterator[None]:
        name = f"t{rng.randrange(6)}"
        with suppress(AlreadyExistsError):
            if rng.random() < 0.8:
                self._repo.create_tag(name, self._repo.lookup_branch(self._some_branch(rng)))
            else:
                self._repo.delete_tag(name)
            self._count("tags")
        yield

    def _compact(self, rng: Random) -> Iterator[None]:
        note = self._note()
        with suppress(ConflictError), self._leaving_open(note):
            done = self._repo.compact_chunks(self._some_branch(rng), "gathered", metadata=note)
            if done.snapshot_id is not None:
                self._acknowledge(note, "compactions")
        yield

    def _rewrite(self, rng: Random) -> Iterator[None]:
        note = self._note()
        with suppress(ConflictError), self._leaving_open(note):
            done = self._repo.rewrite_manifests(self._some_branch(rng), "arranged", metadata=note)
            if done.snapshot_id is not None:
                self._acknowledge(note, "rewrites")
        yield

    def _reopen(self, _: Random) -> Iterator[None]:
        self._repo = self.place.open()
        yield
