"""Batches of streaming queries, each applied exactly once: what is in a branch stands in its snapshots.

Owns the question whether a batch is there, and the commit that answers it again whenever it loses a race. After a
crash Spark repeats the last batch; whether that one was committed before the crash, only the branch knows.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.conflict import ConflictDetector
from icechunk_arrow.core.keys import node_path
from icechunk_arrow.core.stream_marks import Query
from icechunk_arrow.engine.commit import check_message
from icechunk_arrow.errors import ConflictError, InvalidInputError, RebaseFailedError
from icechunk_arrow.repository import Repository
from icechunk_arrow.session import Session
from icechunk_arrow.spark.writing.chunks import write_chunks, write_references
from icechunk_arrow.spark.writing.row_arrays import named_paths
from icechunk_arrow.spark.writing.rows import write_rows
from icechunk_arrow.storage.secrets import Entrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from icechunk_arrow.core.stream_marks import Marks

__all__ = ["EachBatch", "commit_batch", "each_batch", "is_committed", "running_query"]

_QUERY_ID = "sql.streaming.queryId"


def is_committed(repository: Repository, branch: str, batch: Marks) -> bool:
    """Whether a branch has a batch."""
    return batch.is_in(_properties(repository, repository.lookup_branch(branch)))


def _properties(repository: Repository, snapshot_id: str) -> Mapping[str, Any]:
    return repository.lookup_snapshot(snapshot_id).metadata


def commit_batch(
    repository: Repository,
    session: Session,
    batch: Marks,
    message: str,
    metadata: Mapping[str, Any],
) -> str | None:
    """Commit a session with what a batch brings; None where the branch has the batch already.

    Another driver that commits the same batch (one that was given up and is not dead) loses the race for the
    branch's next entry, and finds the batch there.
    """
    branch = session.branch
    assert branch is not None, "a session that only reads has a batch to commit"
    while True:
        properties = _properties(repository, session.snapshot_id)
        if batch.is_in(properties):
            return None
        try:
            marked = {**metadata, **batch.marks(properties)}
            return session.commit(message, marked, allow_empty=True)
        except ConflictError:
            pass
        try:
            session.rebase(ConflictDetector())
        except RebaseFailedError:
            if is_committed(repository, branch, batch):
                return None
            raise


def running_query() -> str | None:
    """Give the id of the streaming query that a task runs for, inside the task."""
    from pyspark import TaskContext  # noqa: PLC0415  (an extra, and slow to import)

    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(_QUERY_ID)


def _tell_query(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        query = from_values([running_query()], pa.string())
        yield pa.RecordBatch.from_arrays([query], names=["query"])


@dataclass(frozen=True, kw_only=True)
class EachBatch:
    """What ``foreachBatch`` calls: see :func:`each_batch`."""

    write: Callable[..., Any]
    target: str | Repository
    query_id: str | None
    branch: str
    message: str
    metadata: Mapping[str, Any]
    storage_options: Mapping[str, Any] | None = field(repr=False)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "target": Entrusted(self.target)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "target": state["target"].value})

    def __call__(self, df: Any, batch_id: int) -> None:
        """Write a batch, unless it is in the branch."""
        kind, targets = _into(self.write, self.arguments)
        query = Query(
            kind=kind,
            targets=tuple(targets),
            checkpoint=_checkpoint_of(df.sparkSession),
            name=self.query_id,
        )
        if query.name is None and query.checkpoint is None:
            raise InvalidInputError(
                "Spark does not say here which streaming query this is; give query_id, a name that stays with the "
                "query's checkpoint"
            )
        batch = query.batch(batch_id)
        repository = self.target
        if not isinstance(repository, Repository):
            repository = Repository.open(repository, self.storage_options)
        session = repository.writable_session(self.branch)
        if batch.is_in(_properties(repository, session.snapshot_id)):
            return
        self.write(df, session, **self.arguments)
        if session.has_uncommitted_changes:
            commit_batch(repository, session, batch, self.message, self.metadata)


def each_batch(
    write: Callable[..., Any],
    target: str | os.PathLike[str] | Repository,
    *,
    query_id: str | None = None,
    branch: str = "main",
    message: str = "a batch of a stream",
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> EachBatch:
    """Give what ``writeStream.foreachBatch`` takes to write every batch exactly once, in a commit of its own.

    >>> stream.writeStream.foreachBatch(
    ...     each_batch(write_rows, "s3://bucket/weather", arrays=["t2m"])
    ... ).option("checkpointLocation", "s3://bucket/checkpoints/weather").start()  # doctest: +SKIP

    Parameters
    ----------
    write
        ``write_references``, ``write_chunks``, ``write_rows``, or a function of your own: it is called with the
        batch's frame, a session, and ``arguments``. All that it writes into the session is one commit.
    target
        A URL or a repository.
    query_id
        What the query is called in the branch's snapshots. Without it the id that Spark keeps in the query's
        checkpoint is taken. On Spark Connect that cannot be seen, so a name must be given; it belongs to one
        checkpoint, and a query that begins with a new one needs a new name. What is written belongs to the name:
        the arrays or the group of our functions, the name and the plain arguments of one of your own. Where
        one query calls several of these with the same, such as two lambdas, each needs a ``query_id`` of its own.
    branch, message, metadata, storage_options
        As for the writers.
    """
    if isinstance(target, Session):
        raise InvalidInputError(
            "every batch of a stream is a commit of its own, so a session cannot take it; give the URL or the "
            "repository"
        )
    check_message(message, metadata)
    return EachBatch(
        write=write,
        target=target if isinstance(target, Repository) else os.fspath(target),
        query_id=query_id,
        branch=branch,
        message=message,
        metadata=dict(metadata or {}),
        storage_options=storage_options,
        arguments=arguments,
    )


def _into(write: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Say what a function writes, as far as can be told: two of them in one query are not one."""
    for kind, known in (("references", write_references), ("chunks", write_chunks)):
        if write is known:
            path = arguments.get("array_path")
            return kind, [] if path is None else [node_path(path)]
    if write is write_rows:
        return "rows", named_paths(arguments.get("arrays"), arguments.get("group", "/"))
    name = getattr(write, "__qualname__", type(write).__qualname__)
    plain = json.dumps(arguments, sort_keys=True, default=lambda other: type(other).__qualname__)
    # a digest: names stand in snapshots for every reader to see, and arguments may hold secrets
    return name, [hashlib.sha256(plain.encode()).hexdigest()[:16]] if arguments else []


def _checkpoint_of(spark: Any) -> str | None:
    """Ask a task which streaming query runs here: the id in its checkpoint; None where none can be seen."""
    row = spark.range(1, numPartitions=1).mapInArrow(_tell_query, "query string").first()
    return None if row is None or row.query is None else str(row.query)
