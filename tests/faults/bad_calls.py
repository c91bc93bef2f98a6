"""Operations on a local disk of which any one system call goes wrong, once or from then on, and what comes of it.

Owns the operations, how each is tried again when the place is well, and what has to hold. A run has a base of its
own, and is told by operation, trouble, call and how long it lasts, which is all that decides it.
"""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import pickle
import shutil
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from icechunk_arrow import ConflictDetector, Repository, StorageError
from icechunk_arrow.errors import IcechunkArrowError
from icechunk_arrow.formats.layout import STATE_KEY
from icechunk_arrow.storage.local import LocalStorage
from icechunk_arrow.storage.scratch import SCRATCH
from tests.faults.calls import TROUBLES, Calls, misbehaving
from tests.faults.repositories import (
    CONFIG,
    INLINE,
    OWN,
    PACKED,
    array_document,
    group_document,
    make_base,
    payload,
    picture,
    referenced_keys,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.repositories import Picture

    Attempt = Callable[[], object]

__all__ = [
    "ANEW",
    "OPERATIONS",
    "USERS",
    "Run",
    "attempted_again",
    "check_left_over",
    "check_run",
    "count_calls",
    "storm",
]

USERS = {
    "letter.txt": b"dear reader",
    "c/main.c": b"int x;",
    f"{SCRATCH}/notes.txt": b"what I thought",
}
"""Files of somebody else, beside those of the repository."""
ANEW = "open the place anew"
"""What is said where a handle cannot be trusted any more."""


# -- operations: each gives what is called, and called again when the place is well


def _stage(session: Any) -> None:
    session.set_document("/new", group_document(long="y" * 300))
    session.set_document("/new/x", array_document(30, attributes={"note": "z" * 300}))
    for index, size in enumerate([INLINE, PACKED, OWN] * 5):
        session.write_chunk("/new/x", (index,), payload(f"new {index}", size))
    session.write_chunk("/a", (2,), payload("over", PACKED))
    session.delete_chunk("/a", (4,))
    session.delete_nodes(["/b"])


def _in_session(repo: Repository, stage: Callable[[Any], None], **how: Any) -> Attempt:
    """Try in one session; what it staged before a failure is not staged again."""
    known: dict[str, Any] = {"staged": False}

    def attempt() -> None:
        session = known.get("session") or repo.writable_session("main")
        known["session"] = session
        if session.read_only:  # an earlier attempt was made
            return
        if not known["staged"]:
            stage(session)
            known["staged"] = True
        session.commit("ours", **how)

    return attempt


def commit(repo: Repository) -> Attempt:
    return _in_session(repo, _stage)


def rebase(repo: Repository) -> Attempt:
    """Somebody was faster."""

    def stage(session: Any) -> None:
        other = Repository.open(repo.url).writable_session("main")
        if "theirs" not in [info.message for info in repo.ancestry(branch="main")]:
            other.write_chunk("/b", (3,), payload("theirs", PACKED))
            other.commit("theirs")
        session.write_chunk("/a", (33,), payload("late", OWN))

    return _in_session(repo, stage, rebase_with=ConflictDetector())


def forks(repo: Repository) -> Attempt:
    """Forks write: one here, one that comes back pickled, and one that says on finishing what it wrote."""

    def stage(session: Any) -> None:
        session.write_chunk("/a", (30,), payload("own", PACKED))
        here, far, told = session.fork(), session.fork(), session.fork()
        for number, fork in enumerate([here, pickle.loads(pickle.dumps(far)), told]):
            fork.write_chunk("/a", (31 + number,), payload(f"fork {number}", PACKED))
            fork.write_chunk("/b", (number,), payload(f"fork b {number}", OWN))
            if fork is told:
                session.merge_written([fork.finish()], duplicates="last")
            elif fork is here:
                session.merge(fork, duplicates="last")
            else:
                session.merge(pickle.loads(pickle.dumps(fork)), duplicates="last")

    return _in_session(repo, stage)


def create_branch(repo: Repository) -> Attempt:
    return lambda: repo.create_branch("new", repo.lookup_branch("other"))


def reset_branch(repo: Repository) -> Attempt:
    return lambda: repo.reset_branch("main", repo.lookup_branch("other"))


def delete_branch(repo: Repository) -> Attempt:
    return lambda: repo.delete_branch("other")


def create_tag(repo: Repository) -> Attempt:
    return lambda: repo.create_tag("v2", repo.lookup_branch("other"))


def delete_tag(repo: Repository) -> Attempt:
    return lambda: repo.delete_tag("v1")


def save_config(repo: Repository) -> Attempt:
    return repo.save_config


def rewrite(repo: Repository) -> Attempt:
    return lambda: repo.rewrite_manifests("main", "arranged")


def compact(repo: Repository) -> Attempt:
    return lambda: repo.compact_chunks("main", "gathered")


def read(repo: Repository) -> Attempt:
    """Everything, by a handle of its own."""
    wanted = picture(repo)

    def attempt() -> None:
        assert picture(Repository.open(repo.url)) == wanted

    return attempt


def query(repo: Repository) -> Attempt:
    """Tables of all snapshots and chunks by DuckDB, and a listing of the files."""
    wanted = _answers(repo)

    def attempt() -> None:
        assert _answers(Repository.open(repo.url)) == wanted

    return attempt


def _answers(repo: Repository) -> list[Any]:
    import duckdb

    from icechunk_arrow.duckdb import attach

    with duckdb.connect() as connection:
        attach(connection, repo, "r")
        try:
            counted = [
                connection.execute(f"SELECT count(*) FROM r.{table}").fetchone()
                for table in ("chunks", "snapshots", "refs", "operations")
            ]
        except duckdb.Error as error:  # it passes on the text of what we told it
            _, ours, said = str(error).rpartition("StorageError: ")
            if not ours:
                raise
            raise StorageError(said) from error
    unnamed = repo.inspect("unreferenced_files").num_rows
    return [counted, unnamed]


OPERATIONS: dict[str, Callable[[Repository], Attempt]] = {
    each.__name__: each
    for each in (
        commit,
        rebase,
        forks,
        create_branch,
        reset_branch,
        delete_branch,
        create_tag,
        delete_tag,
        save_config,
        rewrite,
        compact,
        read,
        query,
    )
}
LOOKS = {"read", "query"}


# -- a run


@dataclass(frozen=True, kw_only=True)
class Run:
    """What goes wrong in which operation."""

    operation: str
    catalog: str = "branches"
    trouble: str = ""
    call: int = 0
    lasts: int | None = None
    links: bool = True

    def __str__(self) -> str:
        return json.dumps(self.__dict__)


@cache
def _base(catalog: str) -> Path:
    """A repository to begin with, and files of somebody else in it."""
    folder = Path(mkdtemp(prefix="bad-calls-")) / catalog
    atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    make_base(str(folder), catalog=catalog, config=CONFIG)
    for name, data in USERS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def _copy(catalog: str) -> Path:
    root = Path(mkdtemp(prefix="bad-calls-")) / "r"
    shutil.copytree(_base(catalog), root)
    return root


def _picture(root: Path) -> Picture:
    found = picture(Repository.open(root))
    found["config"] = (root / "config.yaml").read_bytes()
    return found


@cache
def _expected(operation: str, catalog: str) -> Picture:
    """What is there when nothing goes wrong."""
    root = _copy(catalog)
    OPERATIONS[operation](Repository.open(root, config=CONFIG))()
    return _picture(root)


def count_calls(run: Run) -> int:
    """Tell how many calls of an operation a trouble may meet."""
    root = _copy(run.catalog)
    attempt = OPERATIONS[run.operation](Repository.open(root, config=CONFIG))
    with misbehaving(Calls(run.trouble, begins_at=1 << 60), links=run.links) as calls:
        attempt()
    shutil.rmtree(root.parent)
    return calls.count


@dataclass
class Figures:
    """What came of some runs."""

    runs: int = 0
    met: Counter[str] = field(default_factory=Counter)
    """Calls that went wrong, by trouble."""
    errors: Counter[str] = field(default_factory=Counter)
    anew: int = 0
    """How often the place had to be opened anew."""

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {sum(self.met.values())} calls went wrong ({dict(self.met)}), errors "
            f"{dict(self.errors)}, place opened anew {self.anew} times"
        )


def check_run(run: Run, figures: Figures | None = None) -> None:
    """Do an operation while a call of it goes wrong, then again when the place is well, and see what there is."""
    figures = figures or Figures()
    expected, before = _expected(run.operation, run.catalog), _picture(_base(run.catalog))
    root = _copy(run.catalog)
    repo = Repository.open(root, config=CONFIG)
    attempt = OPERATIONS[run.operation](repo)
    calls = Calls(run.trouble, run.call, run.lasts)
    logging.disable()  # whoever keeps records keeps errors, and with them what they were about
    try:
        failure = _try(calls, attempt, run)
        figures.runs += 1
        figures.met[run.trouble] += sum(calls.met.values())
        if failure is not None:
            figures.errors[type(failure).__name__] += 1
            _check_words(failure, run, root)
        _acknowledged_or_not(root, failure, expected, before, calls, run)
        calls.trouble = ""
        if failure is not None:
            figures.anew += _again(root, attempt, expected, calls, run)
            assert _picture(root) == expected, "what is there when the place was well again"
        del repo, attempt, failure
        check_left_over(root)
    except BaseException as error:
        error.add_note(f"run {run}")
        raise
    finally:
        logging.disable(logging.NOTSET)
    shutil.rmtree(root.parent)


def _try(calls: Calls, attempt: Attempt, run: Run) -> IcechunkArrowError | None:
    with misbehaving(calls, links=run.links):
        try:
            attempt()
        except IcechunkArrowError as error:
            error.__traceback__ = None
            return error
    return None


def _check_words(error: IcechunkArrowError, run: Run, root: Path) -> None:
    """Something legal is no error; and a message has the fact."""
    assert run.trouble != "short", f"a part that was taken is no failure: {error}"
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    numbers = {each.errno for each in causes if isinstance(each, OSError)}
    if TROUBLES[run.trouble][0] in numbers - {None, 0}:
        said = os.strerror(TROUBLES[run.trouble][0])
        assert said in str(error) or "hard links" in str(error), f"{said} is not in: {error}"


def _acknowledged_or_not(
    root: Path,
    failure: IcechunkArrowError | None,
    expected: Picture,
    before: Picture,
    calls: Calls,
    run: Run,
) -> None:
    """It is done or not, and where it is told to be done no power cut takes it back."""
    now = _picture(root)
    half = "theirs" in str(now["branches"]["main"]["history"])
    assert now in (expected, before) or half, "half an operation"
    if failure is None:
        assert now == expected, "acknowledged, and not there"
        if run.operation != "save_config" or run.catalog != "state":
            _check_durable(root, calls)


def _check_durable(root: Path, calls: Calls) -> None:
    repo = Repository.open(root)
    keys = referenced_keys(repo)
    keys |= {str(path.relative_to(root)) for path in (root / "refs").glob("*/*.json")}
    keys -= {key for key in keys if key.endswith("hint.json")}
    keys |= {key for key in (STATE_KEY,) if (root / key).exists()}
    gone = calls.book.would_go(root, keys)
    assert not gone, f"acknowledged, and a power cut would take {sorted(gone)}"


def _again(root: Path, attempt: Attempt, expected: Picture, calls: Calls, run: Run) -> bool:
    """Do it again in the same session, or in another one where the error said so; tell which."""
    is_done = _picture(root) == expected
    if is_done and run.operation not in LOOKS | {"commit", "rebase", "forks"}:
        return False
    with misbehaving(calls, links=run.links):
        if attempted_again(attempt):
            if run.operation not in LOOKS | {"save_config"}:
                _check_durable(root, calls)
            return False
        if _picture(root) != expected:
            OPERATIONS[run.operation](Repository.open(root, config=CONFIG))()
    return True


def attempted_again(attempt: Attempt) -> bool:
    """Do it again, the place being well: it goes well, or the error says that the place is to be opened anew."""
    try:
        attempt()
    except StorageError as error:
        if ANEW not in str(error):
            raise
        return False
    return True


def _held_below(root: Path) -> list[str]:
    """Give the files of a folder that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    held = []
    for link in links:
        with suppress(FileNotFoundError):  # closed since
            held.append(str(link.readlink()))
    return [path for path in held if path.startswith(str(root))]


def check_left_over(root: Path) -> None:
    """Nothing unfinished stays for ever, no file stays open, and what others put there is as it was."""
    gc.collect()
    end = time.monotonic() + 30  # a thread that reads ahead may not have ended yet
    while (held := _held_below(root)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not held, f"files are still open: {held}"
    scratch = root / SCRATCH
    for path in scratch.iterdir():
        os.utime(path, (time.time() - 200_000,) * 2)
    LocalStorage(root).tidy()
    left = {path.name for path in scratch.iterdir() if path.suffix != ".lock"}
    assert left == {"notes.txt"}, f"left over: {left}"
    for name, data in USERS.items():
        assert (root / name).read_bytes() == data


def runs(catalogs: tuple[str, ...] = ("branches", "state")) -> list[Run]:
    """All runs there are: each trouble at each call of each operation, once and for good."""
    found = []
    for catalog in catalogs:
        for operation in OPERATIONS:
            for trouble in TROUBLES:
                kind = Run(operation=operation, catalog=catalog, trouble=trouble)
                found += [
                    Run(
                        operation=operation,
                        catalog=catalog,
                        trouble=trouble,
                        call=call,
                        lasts=lasts,
                    )
                    for call in range(count_calls(kind))
                    for lasts in (1, None)
                ]
    return found


def storm(seed: int, count: int) -> Figures:
    """Do some of all runs."""
    rng = Random(f"{seed} bad calls")
    figures = Figures()
    some: dict[Any, int] = {}
    for _ in range(count):
        kind = Run(
            operation=rng.choice(sorted(OPERATIONS)),
            catalog=rng.choice(["branches", "state"]),
            trouble=rng.choice(sorted(TROUBLES)),
            links=rng.random() < 0.8,
        )
        if kind not in some:
            some[kind] = count_calls(kind)
        if not some[kind]:
            continue
        run = Run(
            **{
                **kind.__dict__,
                "call": rng.randrange(some[kind]),
                "lasts": rng.choice([1, 1, 2, 5, None]),
            }
        )
        check_run(run, figures)
    return figures
