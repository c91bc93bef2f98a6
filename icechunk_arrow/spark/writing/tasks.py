"""Work on executors that writes into a session: a fork for each task, one small row back from each.

Owns how a piece of work goes out and how its result, or its error, comes home. What the work does, and how rows
come to be in the right task, is the business of the caller.
"""

from __future__ import annotations

import base64
import json
import pickle
import re
import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from icechunk_arrow import errors
from icechunk_arrow.core.columns import from_values, indices
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from icechunk_arrow.storage.forked_children import run_in_forks
from icechunk_arrow.storage.secrets import Entrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from icechunk_arrow.engine.forks import WrittenChunks
    from icechunk_arrow.session import ForkSession, Session

__all__ = [
    "RecentRows",
    "TaskTotals",
    "check_reachable",
    "error_of",
    "job_description",
    "marking_errors",
    "run_tasks",
    "totals_of",
    "unlimited_batches",
    "work_on",
]

_RESULT = pa.schema([pa.field("written", pa.binary(), nullable=False)])
_MARK = re.compile(r"\[icechunk_arrow error ([A-Za-z0-9+/=]+)\]")
_RECENT_ROWS = 1 << 20
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = str((1 << 31) - 1)
_lock = threading.Lock()
_unlimited: WeakKeyDictionary[Any, tuple[int, str | None]] = WeakKeyDictionary()
"""Of each session how many go on at once, and the setting that it had before."""
_SHOWN = ("path", "index", "location", "offset", "length")


@run_in_forks
def _renew() -> None:
    global _lock  # noqa: PLW0603 - a lock cannot be renewed in its place
    _lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTotals:
    """What all tasks of a piece of work wrote."""

    tasks: int = 0
    """Tasks that wrote anything."""
    chunk_count: int = 0
    manifest_count: int = 0
    paths: frozenset[str] = frozenset()
    """The arrays."""

    def __add__(self, other: TaskTotals) -> TaskTotals:
        """Add what another piece of work wrote."""
        return TaskTotals(
            tasks=self.tasks + other.tasks,
            chunk_count=self.chunk_count + other.chunk_count,
            manifest_count=self.manifest_count + other.manifest_count,
            paths=self.paths | other.paths,
        )


@dataclass(frozen=True, slots=True)
class _Task:
    """What runs on an executor, for one partition."""

    fork: Entrusted[ForkSession]
    work: Callable[[ForkSession, Iterator[pa.RecordBatch]], None]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marking_errors():
            written = work_on(self.fork.value, self.work, batches)
        if written is not None:
            data = from_values([pickle.dumps(written)], pa.binary())
            yield pa.RecordBatch.from_arrays([data], schema=_RESULT)


def work_on(
    fork: ForkSession,
    work: Callable[[ForkSession, Iterator[pa.RecordBatch]], None],
    batches: Iterator[pa.RecordBatch],
) -> WrittenChunks | None:
    """Do a piece of work with what a partition brings; None where that is nothing."""
    rows = (batch for batch in batches if batch.num_rows)
    first = next(rows, None)
    if first is None:
        return None
    work(fork, _with_first(first, rows))
    return fork.finish()


def _with_first(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def run_tasks(
    df: Any,
    session: Session,
    work: Callable[[ForkSession, Iterator[pa.RecordBatch]], None],
    *,
    duplicates: str = "error",
    before_merge: Callable[[TaskTotals], bool] | None = None,
) -> TaskTotals:
    """Let every partition of a frame be worked on, each with a fork, and stage what all of them wrote.

    Parameters
    ----------
    df
        A Spark frame, classic or of Spark Connect; its partitions are the tasks.
    session
        The writable session that takes what was written. It is not committed.
    work
        Is given a fork and the batches of a partition that is not empty. It must pickle, and may run more than
        once for a partition: only what the winning attempt wrote counts.
    duplicates
        What becomes of a chunk that two tasks wrote, as in :meth:`Session.merge`.
    before_merge
        Is told what was written before anything is staged; if it says False, nothing is.
    """
    check_reachable(session)
    try:
        rows = df.mapInArrow(_Task(Entrusted(session.fork()), work), "written binary").collect()
    except Exception as error:
        ours = error_of(error)
        if ours is None:
            raise
        raise ours from error
    # these rows come from our own task, through Spark, which pickles its own messages as well
    parts = [pickle.loads(bytes(row.written)) for row in rows]  # noqa: S301
    totals = totals_of(parts)
    if before_merge is None or before_merge(totals):
        session.merge_written(parts, duplicates=duplicates)
    return totals


def totals_of(parts: Sequence[WrittenChunks]) -> TaskTotals:
    """Add up what was written."""
    return TaskTotals(
        tasks=len(parts),
        chunk_count=sum(part.chunk_count for part in parts),
        manifest_count=sum(len(part.sizes) for part in parts),
        paths=frozenset(path for part in parts for path in part.paths.values()),
    )


def check_reachable(session: Session) -> None:
    """Refuse a repository that other processes cannot see."""
    if session.storage_url.startswith("memory:"):
        raise InvalidInputError(
            f"{session.storage_url} is in the memory of this process, where Spark's executors cannot write"
        )


# -- errors on their way home


@contextmanager
def marking_errors() -> Iterator[None]:
    """Mark errors of ours, so that they can be told from the text of which Spark passes."""
    try:
        yield
    except IcechunkArrowError as error:
        plain = (str, int, float, bool, type(None))
        facts = {
            name: value
            for name, value in vars(error).items()
            if name != "message" and isinstance(value, plain)
        }
        carried = {"class": type(error).__name__, "message": error.message, "facts": facts}
        code = base64.b64encode(json.dumps(carried).encode()).decode()
        error.add_note(f"[icechunk_arrow error {code}]")
        raise


def error_of(error: BaseException) -> IcechunkArrowError | None:
    """Find the error of ours that made a Spark job fail, or None."""
    marked = _MARK.search(str(error))
    if marked is None:
        return None
    carried = json.loads(base64.b64decode(marked[1]))
    kind = getattr(errors, carried["class"], IcechunkArrowError)
    rebuilt: IcechunkArrowError = (
        kind.__new__(kind) if not issubclass(kind, OSError) else OSError.__new__(kind)
    )
    IcechunkArrowError.__init__(rebuilt, carried["message"], **carried["facts"])
    return rebuilt


@dataclass(slots=True)
class RecentRows:
    """Passes batches on, and remembers the last of them to say in an error which row was wrong."""

    batches: Iterator[pa.RecordBatch]
    _kept: deque[tuple[int, pa.RecordBatch]] = field(default_factory=deque)
    _row: int = 0

    def reader(self) -> pa.RecordBatchReader:
        """Give the batches, of which there is at least one."""
        first = next(self.batches)
        return pa.RecordBatchReader.from_batches(
            first.schema, self._noted(_with_first(first, self.batches))
        )

    def _noted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._kept.append((self._row, _shown(batch)))
            self._row += batch.num_rows
            while self._row - self._kept[0][0] > _RECENT_ROWS + self._kept[0][1].num_rows:
                self._kept.popleft()
            yield batch

    def name(self, number: int) -> str:
        """Show a row."""
        for first, batch in self._kept:
            if first <= number < first + batch.num_rows:
                row = batch.slice(number - first, 1).to_pylist()[0]
                return "the row " + ", ".join(f"{name}={row[name]!r}" for name in row)
        return "a row"


def _shown(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keep what an error shows of rows; not the bytes of chunks, which one buffer holds with the rest."""
    shown = batch.select([name for name in _SHOWN if name in batch.schema.names])
    if "data" not in batch.schema.names or not shown.num_columns:
        return shown
    return shown.take(indices(np.arange(shown.num_rows)))


@contextmanager
def unlimited_batches(spark: Any) -> Iterator[None]:
    """Let Spark not count the bytes of Arrow batches, row by row: for rows that are small, and bounded by number.

    The setting is the session's; it is what it was when the last of those that go on at once has ended.
    """
    with _lock:
        users, before = _unlimited.get(spark, (0, spark.conf.get(_BATCH_BYTES, None)))
        _unlimited[spark] = (users + 1, before)
        if not users:
            spark.conf.set(_BATCH_BYTES, _NO_LIMIT)
    try:
        yield
    finally:
        with _lock:
            users, before = _unlimited.pop(spark)
            if users > 1:
                _unlimited[spark] = (users - 1, before)
            elif before is None:
                spark.conf.unset(_BATCH_BYTES)
            else:
                spark.conf.set(_BATCH_BYTES, before)


@contextmanager
def job_description(spark: Any, text: str) -> Iterator[None]:
    """Let Spark's pages say of jobs what they are for; Spark Connect has no place for that."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)
