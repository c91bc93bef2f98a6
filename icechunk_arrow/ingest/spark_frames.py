"""Small tables of work as Spark frames, and Spark's answers as Arrow: what all ingests do with Spark.

Owns how work is cut into tasks. Works on classic sessions and on Spark Connect.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import from_numpy
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.spark.writing.tasks import error_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "check_choice",
    "frame_of",
    "is_frame",
    "kept",
    "rows_of",
    "run_over",
    "spark_type",
    "task_count",
]

_MOST_TASKS = 10_000
_LEAST_TASKS = 24
"""How many cores there are is not asked: Spark Connect does not say."""
_ITEMS_PER_TASK = 16
_ROW = "_icechunk_row"


def check_choice(option: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Refuse a word that is none of the known ones."""
    if value not in choices:
        raise InvalidInputError(f"{option} must be one of {list(choices)}, not {value!r}")


def task_count(rows: int) -> int:
    """Cut work so that all cores have some, and a task that fails is not much."""
    return max(1, min(rows, max(_LEAST_TASKS, rows // _ITEMS_PER_TASK), _MOST_TASKS))


def is_frame(source: Any) -> bool:
    """Whether something is a DataFrame of Spark's, classic or of Spark Connect."""
    return hasattr(source, "mapInArrow") and hasattr(source, "columns")


def frame_of(spark: Any, table: pa.Table) -> Any:
    """Make a frame of a table of work, in tasks that have neighbouring rows, in order."""
    from pyspark.sql import functions as sf  # noqa: PLC0415  (an extra, and slow to import)

    rows = table.num_rows
    count = task_count(rows)
    numbered = table.append_column(_ROW, from_numpy(np.arange(rows), pa.int64()))
    task = sf.floor(sf.col(_ROW) * count / max(rows, 1)).cast("int")
    whole = numbered.combine_chunks()  # Spark loses rows behind an empty chunk
    frame = spark.createDataFrame(whole).repartitionById(count, task)
    return frame.sortWithinPartitions(_ROW).drop(_ROW)


def spark_type(schema: pa.Schema) -> Any:
    """Say an Arrow schema in Spark's words."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  (an extra, and slow)

    return from_arrow_schema(schema)


def run_over(frame: Any, work: Callable[..., Any], schema: pa.Schema) -> pa.Table:
    """Run a function of Arrow batches over a frame, and collect its rows, which are few."""
    with _ours():
        found: pa.Table = frame.mapInArrow(work, spark_type(schema)).toArrow()
    return found.cast(schema)


def rows_of(frame: Any) -> list[Any]:
    """Collect the rows of a frame that has few."""
    with _ours():
        found: list[Any] = frame.collect()
    return found


@contextmanager
def _ours() -> Iterator[None]:
    """Let an error of ours come home as it was raised on an executor."""
    try:
        yield
    except Exception as error:
        ours = error_of(error)
        if ours is None:
            raise
        raise ours from error


@contextmanager
def kept(frame: Any) -> Iterator[Any]:
    """Let Spark keep a frame that is read more than once."""
    persisted = frame.persist()
    try:
        yield persisted
    finally:
        persisted.unpersist()
