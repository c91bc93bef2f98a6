"""Rows of chunks of somebody else's, on their way into a repository: referred to, or copied byte for byte.

Owns the columns of such rows, and the jobs that take them in. Where rows come from is the business of each ingest.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.core.columns import any_array, to_numpy
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.ingest.progress import Amount
from icechunk_arrow.ingest.source_facts import facts_added
from icechunk_arrow.ingest.spark_frames import rows_of
from icechunk_arrow.spark.writing.entries import StageRows
from icechunk_arrow.spark.writing.partitioning import by_grid
from icechunk_arrow.spark.writing.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icechunk_arrow.ingest.progress import Reporter
    from icechunk_arrow.session import ForkSession, Session
    from icechunk_arrow.storage.source_files import SourceFiles

__all__ = ["CHUNK_ROWS", "CopyChunks", "take_rows"]

CHUNK_ROWS = pa.schema(
    [
        ("path", pa.string()),
        ("index", pa.list_(pa.int64())),
        ("location", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("etag", pa.string()),
        ("last_modified", pa.timestamp("us", "UTC")),
        ("data", pa.binary()),
    ]
)
"""A chunk has either a location, or data."""
_REFERENCE = ("path", "index", "location", "offset", "length", "etag", "last_modified")
_BATCH_BYTES = 1 << 26
_BATCH_ROWS = 1 << 12
_LEAST_TASKS = 8
_MOST_TASKS = 10_000
_TASK_BYTES = 1 << 28
_TASK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyChunks:
    """The work of one task: reads chunks where they are, and stages their bytes."""

    files: SourceFiles

    def __call__(self, fork: ForkSession, batches: Iterator[pa.RecordBatch]) -> None:
        """Copy the chunks of one partition."""
        staging = StageRows(kind="chunks", array_path=None)
        staging(fork, (read for batch in batches for read in self._read(batch)))

    def _read(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Read some chunks at a time, so that memory does not depend on how many there are."""
        lengths = to_numpy(batch.column("length"))
        start = 0
        while start < batch.num_rows:
            stop, size_bytes = start, 0
            while stop < min(batch.num_rows, start + _BATCH_ROWS) and size_bytes < _BATCH_BYTES:
                size_bytes += int(lengths[stop])
                stop += 1
            some = batch.slice(start, stop - start)
            data = self.files.read_ranges(
                *(some.column(name).to_pylist() for name in ("location", "offset", "length"))
            )
            yield pa.RecordBatch.from_pydict(
                {
                    "path": some.column("path"),
                    "index": some.column("index"),
                    "data": any_array(data, pa.large_binary()),
                }
            )
            start = stop


def _copying_tasks(chunk_count: int, size_bytes: int) -> int:
    """Cut copying so that a task that fails is not much, and many cores have something to do."""
    wanted = max(_LEAST_TASKS, size_bytes // _TASK_BYTES, chunk_count // _TASK_ROWS)
    return max(1, min(chunk_count, wanted, _MOST_TASKS))


def take_rows(
    rows: Any,
    session: Session,
    *,
    paths: list[str],
    virtual: bool,
    detect_changes: bool,
    files: SourceFiles,
    reporter: Reporter,
) -> int:
    """Take chunks in, and tell how many they were.

    Parameters
    ----------
    rows
        A frame with the columns of ``CHUNK_ROWS``, in any order. It is read more than once: see ``kept``.
    session
        Has the arrays already.
    paths
        The arrays.
    virtual
        Refer to chunks that stand somewhere; otherwise copy them.
    detect_changes
        Record what files are now with references that do not say it.
    files
        Reads them.
    reporter
        Is told how far it has come.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415  (an extra, and slow to import)

    with reporter.stage("finding chunks", Amount()):
        (found,) = rows_of(
            rows.agg(
                sf.count("location").alias("there"),
                sf.count("data").alias("inline"),
                sf.count_if(sf.isnull("location") == sf.isnull("data")).alias("unclear"),
                sf.coalesce(sf.sum("length"), sf.lit(0)).alias("bytes"),
            )
        )
    if found["unclear"]:
        raise InvalidInputError(
            f"{found['unclear']} rows have neither a location nor data, or both; each row is one chunk, which "
            f"stands somewhere or in the row. Nothing was changed."
        )
    if found["there"] and found["inline"]:
        _check_once(rows)
    count = 0
    if found["there"]:
        chosen = rows.where(sf.col("location").isNotNull())
        amount = Amount(chunks=found["there"], bytes=found["bytes"])
        if virtual:
            count += _refer(
                chosen, session, paths, amount, reporter, files if detect_changes else None
            )
        else:
            tasks = _copying_tasks(found["there"], found["bytes"])
            placed = chosen.select(*_REFERENCE[:5]).repartitionByRange(tasks, "path", "index")
            with reporter.stage("copying chunks", amount):
                count += run_tasks(placed, session, CopyChunks(files=files)).chunk_count
    if found["inline"]:
        chosen = rows.where(sf.col("data").isNotNull()).select("path", "index", "data")
        placed = by_grid(chosen, session, paths, None)
        with reporter.stage("writing chunks", Amount(chunks=found["inline"])):
            staging = StageRows(kind="chunks", array_path=None)
            count += run_tasks(placed, session, staging).chunk_count
    return count


def _check_once(rows: Any) -> None:
    """Refuse chunks that are given twice, here and there: each is written by a job of its own, which sees one."""
    from pyspark.sql import functions as sf  # noqa: PLC0415

    named = rows.groupBy("path", "index").agg(
        sf.count("location").alias("there"), sf.count("data").alias("inline")
    )
    twice = rows_of(named.where("there > 0 AND inline > 0").limit(1))
    if twice:
        raise InvalidInputError(
            f"the chunk {twice[0]['index']} of {twice[0]['path']!r} comes twice: with a location, and as data. "
            f"Nothing was changed."
        )


def _refer(
    chosen: Any,
    session: Session,
    paths: list[str],
    amount: Amount,
    reporter: Reporter,
    files: SourceFiles | None,
) -> int:
    """Refer to chunks; with ``files``, of each the ETag or time that it has now is recorded."""
    rows = chosen.select(*_REFERENCE)
    with ExitStack() as stack:
        if files is not None:
            with reporter.stage("asking files", Amount()):
                rows = stack.enter_context(facts_added(rows, files))
        placed = by_grid(rows, session, paths, None)
        work = StageRows(kind="references", array_path=None)
        with reporter.stage("referring to chunks", amount):
            return run_tasks(placed, session, work).chunk_count
