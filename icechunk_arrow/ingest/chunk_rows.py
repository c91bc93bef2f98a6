"""Rows of chunks of somebody else's, on their way into a repository: referred to, or copied byte for byte.

Owns the columns of such rows, and the jobs that take them in. Where rows come from is the business of each ingest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.core.columns import to_numpy
from icechunk_arrow.ingest.progress import Amount
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
                    "data": pa.array(data, pa.large_binary()),
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
                sf.coalesce(sf.sum("length"), sf.lit(0)).alias("bytes"),
            )
        )
    count = 0
    if found["there"]:
        chosen = rows.where(sf.col("location").isNotNull())
        amount = Amount(chunks=found["there"], bytes=found["bytes"])
        if virtual:
            placed = by_grid(chosen.select(*_REFERENCE), session, paths, None)
            work: Any = StageRows(kind="references", array_path=None)
        else:
            tasks = _copying_tasks(found["there"], found["bytes"])
            placed = chosen.select(*_REFERENCE[:5]).repartitionByRange(tasks, "path", "index")
            work = CopyChunks(files=files)
        with reporter.stage("referring to chunks" if virtual else "copying chunks", amount):
            count += run_tasks(placed, session, work).chunk_count
    if found["inline"]:
        chosen = rows.where(sf.col("data").isNotNull()).select("path", "index", "data")
        placed = by_grid(chosen, session, paths, None)
        with reporter.stage("writing chunks", Amount(chunks=found["inline"])):
            staging = StageRows(kind="chunks", array_path=None)
            count += run_tasks(placed, session, staging).chunk_count
    return count
