"""A Spark frame of rows into arrays: what ``write_rows`` does, told as the other ingests tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icechunk_arrow.ingest.progress import Amount, Ingested, Reporter
from icechunk_arrow.spark.writing.rows import write_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from icechunk_arrow.ingest.progress import Progress
    from icechunk_arrow.spark.writing.targets import Target

__all__ = ["dataframe"]


def dataframe(
    spark: Any,
    df: Any,
    target: Target,
    arrays: str | Sequence[str] | Mapping[str, str | Mapping[str, Any]] | None = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Ingested:
    """Bring the rows of a frame into arrays, as one commit.

    This is :func:`icechunk_arrow.spark.write_rows`, with progress and an answer like those of the other ingests.

    Parameters
    ----------
    spark
        The session that the frame is of.
    df
        A column of coordinates for each dimension, and a column of values for each array.
    target
        A repository, its path or URL, or a writable session, which is then not committed here.
    arrays, options
        What ``write_rows`` takes: ``dimensions``, ``coordinates``, ``duplicates``, ``outside``, ``branch``, ….
    on_progress
        Called now and then with how far it has come.
    """
    with Reporter(spark, "icechunk_arrow: rows of a frame", on_progress).stage("rows", Amount()):
        done = write_rows(df, target, arrays, **options)
    return Ingested(
        snapshot_id=done.snapshot_id,
        arrays=tuple(sorted(done.totals.paths)),
        file_count=0,
        chunk_count=done.totals.chunk_count,
    )
