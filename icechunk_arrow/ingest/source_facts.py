"""What is recorded of files that are referred to: the ETag or the time that each has now, asked once per file.

Owns who asks (the driver where files are few, else executors), and what becomes of files that cannot be asked.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.core.columns import from_values
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from icechunk_arrow.ingest.spark_frames import (
    frame_of,
    kept,
    rows_of,
    run_over,
    spark_type,
    task_count,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from icechunk_arrow.storage.source_files import SourceFile, SourceFiles

__all__ = ["SOURCE_FACTS", "facts_added", "facts_of", "incomparable", "refusal"]

SOURCE_FACTS = pa.schema(
    [
        ("location", pa.string()),
        ("etag", pa.string()),
        ("last_modified", pa.timestamp("us", "UTC")),
        ("reason", pa.string()),
    ]
)
"""A row is a file; one that cannot be compared later has a reason."""
_FEW = 1 << 8
"""So many files are not worth a job."""
_BROADCAST = 1 << 16
_SHOWN = 3


def incomparable(url: str) -> str:
    """Say of a file that its place tells nothing by which a change could be noticed."""
    return f"{url} has neither an ETag nor a time"


def refusal(reasons: Sequence[str], failed: int, total: int) -> InvalidInputError:
    """Make the error for files that cannot be asked."""
    more = f" and {failed - _SHOWN} more" if failed > _SHOWN else ""
    return InvalidInputError(
        f"{failed} of {total} files that are to be referred to cannot be asked what they are now, so that a "
        f"change would not be noticed later: {'; '.join(reasons[:_SHOWN])}{more}. Nothing was changed. "
        f"detect_changes=False refers to files without asking."
    )


def facts_of(spark: Any, files: SourceFiles, urls: Sequence[str]) -> pa.Table:
    """Ask files, and give a row of ``SOURCE_FACTS`` for each; those that cannot be asked are an error."""
    if len(urls) <= _FEW:
        found = _table(files, urls)
    else:
        table = pa.Table.from_pydict({"location": from_values(urls, pa.string())})
        found = run_over(frame_of(spark, table), _TakeFacts(files=files), SOURCE_FACTS)
    reasons = found["reason"].drop_null().to_pylist()
    if reasons:
        raise refusal(reasons, len(reasons), len(urls))
    return found


@contextmanager
def facts_added(rows: Any, files: SourceFiles) -> Iterator[Any]:
    """Give a frame of references in which all rows say what their file was; those that do already keep it."""
    from pyspark.sql import functions as sf  # noqa: PLC0415  (an extra, and slow to import)

    blank = sf.col("etag").isNull() & sf.col("last_modified").isNull()
    asked = rows.where(blank).select("location").distinct()
    count = asked.count()
    if not count:
        yield rows
        return
    answers = asked.repartition(task_count(count)).mapInArrow(
        _TakeFacts(files=files), spark_type(SOURCE_FACTS)
    )
    with kept(answers) as facts:
        wrong = facts.where(sf.col("reason").isNotNull())
        (failed,) = rows_of(wrong.agg(sf.count("reason").alias("count")))
        if failed["count"]:
            some = [row["reason"] for row in rows_of(wrong.orderBy("location").limit(_SHOWN))]
            raise refusal(some, failed["count"], count)
        found = facts.select(
            "location",
            sf.col("etag").alias("_etag_now"),
            sf.col("last_modified").alias("_time_now"),
        )
        if count <= _BROADCAST:
            found = sf.broadcast(found)
        said = {"etag": "_etag_now", "last_modified": "_time_now"}
        yield rows.join(found, "location", "left").select(
            *(
                sf.when(blank, sf.col(said[name])).otherwise(sf.col(name)).alias(name)
                if name in said
                else name
                for name in rows.columns
            )
        )


@dataclass(frozen=True, kw_only=True)
class _TakeFacts:
    """Asks files: batches of ``location`` in, ``SOURCE_FACTS`` out."""

    files: SourceFiles

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from _table(self.files, batch.column("location").to_pylist()).to_batches()


def _table(files: SourceFiles, urls: Sequence[str]) -> pa.Table:
    found = files.facts_of_all(urls)
    reasons = [_reason(url, each) for url, each in zip(urls, found, strict=True)]
    times = [getattr(each, "last_modified", None) for each in found]
    columns = {
        "location": from_values(urls, pa.string()),
        "etag": from_values([getattr(each, "etag", None) for each in found], pa.string()),
        "last_modified": from_values(times, pa.int64()).view(pa.timestamp("us", "UTC")),
        "reason": from_values(reasons, pa.string()),
    }
    return pa.Table.from_pydict(columns, schema=SOURCE_FACTS)


def _reason(url: str, found: SourceFile | IcechunkArrowError) -> str | None:
    if isinstance(found, IcechunkArrowError):
        return found.message
    return None if found.can_be_compared else incomparable(url)
