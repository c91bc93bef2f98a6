"""Rows of references on their way to the task that has their chunks: packed, so that Spark moves few rows.

Owns the form in which they travel: neighbours of one task, as the bytes of an Arrow batch whose texts are coded.
Spark spends more on single rows than we do on all our work. What a row says is not checked here: where it has no
place it goes to some task, which says what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import (
    from_numpy,
    from_values,
    indices,
    one_array,
    run_edges,
    to_numpy,
)
from icechunk_arrow.spark.quoting import identifier
from icechunk_arrow.spark.writing.partitioning import grid_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from icechunk_arrow.session import Session
    from icechunk_arrow.spark.writing.partitioning import GridTasks

__all__ = ["packed_by_grid", "unpacked"]

_PACKED = pa.schema(
    [
        pa.field("task", pa.int32(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("second", pa.int64(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
_DDL = "task int, first bigint, second bigint, data binary"
_ROWS_AT_ONCE = 1 << 17
_LARGEST = (1 << 62) - 1
_CODED = ("location", "etag")
"""Texts that many rows share."""
_OPTIONS = pa.ipc.IpcWriteOptions(
    compression="lz4"
)  # a fifth of the whole time is saved by moving less

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pack:
    """Turns rows into packed ones."""

    tasks: GridTasks
    path: str | None
    keeps_order: bool
    """Whether what is packed is to be read in the frame's order, and not in the order of chunks."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415  (where this runs it is there)

        task = TaskContext.get()
        source = 0 if task is None else task.partitionId()
        for number, rows in enumerate(_joined(batches)):
            yield self._packed(rows, source, number)

    def _packed(self, rows: pa.Table, source: int, number: int) -> pa.RecordBatch:
        """Bring rows of a task together, in their order, and write them as bytes."""
        places = self._places(rows)
        array = self._arrays(rows)
        box = self.tasks.boxes(array, places)
        task = self.tasks.tasks(array, box)
        if bool((task[1:] < task[:-1]).any()):
            order = np.argsort(task.astype(np.uint16), kind="stable")  # sorted by counting
            task, box, places = task[order], box[order], [each[order] for each in places]
            array, rows = array[order], rows.take(indices(order))
        coded = _coded(rows)
        edges = run_edges(task)
        starts = edges[:-1]
        parts = [
            _as_bytes(coded.slice(start, stop - start))
            for start, stop in zip(starts.tolist(), edges[1:].tolist(), strict=True)
        ]
        first, second = box[starts], self.tasks.linear(array[starts], [p[starts] for p in places])
        if self.keeps_order:
            first, second = np.full(len(starts), source), np.full(len(starts), number)
        return pa.RecordBatch.from_arrays(
            [
                from_numpy(task[starts].astype(np.int32), pa.int32()),
                from_numpy(first, pa.int64()),
                from_numpy(second, pa.int64()),
                from_values(parts, pa.binary()),
            ],
            schema=_PACKED,
        )

    def _arrays(self, rows: pa.Table) -> Numbers:
        """Give the number of each row's array; 0 where it is unknown."""
        if self.path is not None or "path" not in rows.column_names:
            return np.zeros(rows.num_rows, np.int64)
        column = one_array(rows["path"])
        if not pa.types.is_string(column.type):
            return np.zeros(rows.num_rows, np.int64)
        coded = column.dictionary_encode()
        known = pc.index_in(
            coded.dictionary, value_set=from_values(list(self.tasks.paths), pa.string())
        )
        numbers = np.append(to_numpy(known.fill_null(0)).astype(np.int64), 0)
        found: Numbers = numbers[to_numpy(coded.indices.fill_null(len(numbers) - 1))]
        return found

    def _places(self, rows: pa.Table) -> list[Numbers]:
        """Give the rows' places along each dimension; 0 where there is none."""
        if "index" in rows.column_names:
            return _of_lists(one_array(rows["index"]), self.tasks.dimensions)
        found = []
        for names in self.tasks.columns:
            here = [name for name in names if name in rows.column_names]
            parts = [rows[name] for name in here]
            column = (pc.coalesce(*parts) if len(parts) > 1 else parts[0]) if parts else None
            found.append(_numbers(column, rows.num_rows))
        return found


def _as_bytes(batch: pa.RecordBatch) -> bytes:
    """Write a batch as a stream, since codes need their dictionary."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join Spark's batches, which are small."""
    some: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        some.append(batch)
        count += batch.num_rows
        if count >= _ROWS_AT_ONCE:
            yield pa.Table.from_batches(some).combine_chunks()
            some, count = [], 0
    if count:
        yield pa.Table.from_batches(some).combine_chunks()


def _coded(rows: pa.Table) -> pa.RecordBatch:
    """Write texts as codes, and give all as one batch."""
    columns = [
        column.dictionary_encode() if name in _CODED and pa.types.is_string(column.type) else column
        for name, column in zip(rows.column_names, map(one_array, rows.columns), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.column_names)


def _of_lists(lists: pa.Array, dimensions: int) -> list[Numbers]:
    """Give the items of lists, dimension by dimension; 0 where a list is too short, or none."""
    if not (pa.types.is_list(lists.type) and pa.types.is_integer(lists.type.value_type)):
        return [np.zeros(len(lists), np.int64) for _ in range(dimensions)]
    offsets = np.frombuffer(lists.buffers()[1], np.int32)[
        lists.offset : lists.offset + len(lists) + 1
    ]
    items = _numbers(lists.values, len(lists.values))
    found = []
    for d in range(dimensions):
        there = offsets[1:] - offsets[:-1] > d
        values = np.zeros(len(lists), np.int64)
        values[there] = items[offsets[:-1][there] + d]
        found.append(values)
    return found


def _numbers(column: Any, count: int) -> Numbers:
    """Give whole numbers from 0 as they are, and 0 for everything else."""
    if column is None:
        return np.zeros(count, np.int64)
    kind = column.type
    if not (pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)):
        return np.zeros(count, np.int64)
    whole = pc.cast(column, pa.int64(), safe=False)
    values = to_numpy(pc.fill_null(whole, 0))
    clipped: Numbers = np.clip(values, 0, _LARGEST)
    return clipped


def packed_by_grid(
    df: Any,
    session: Session,
    paths: Sequence[str],
    path: str | None,
    *,
    known: Iterable[str],
    keeps_order: bool = False,
) -> Any:
    """Bring rows of neighbouring chunks into one partition, packed; to be read with :func:`unpacked`.

    Parameters
    ----------
    df, session, paths, path
        As :func:`by_grid` takes them.
    known
        Columns that mean something, beside those of places.
    keeps_order
        Whether a partition has its rows in the frame's order; else they come as nearly in the order of chunks as
        can be had for nothing.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415  (an extra, and slow to import)

    tasks = grid_tasks(session, paths)
    wanted = {*known, *(name for names in tasks.columns for name in names)}
    rows = df.select(*[sf.col(identifier(name)) for name in df.columns if name in wanted])
    pack = _Pack(tasks=tasks, path=path, keeps_order=keeps_order)
    placed = rows.mapInArrow(pack, _DDL).repartitionById(tasks.count, sf.col("task"))
    return placed.sortWithinPartitions("first", "second").select("data")


def unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read packed rows again."""
    for batch in batches:
        for data in batch.column("data"):
            yield from pa.ipc.open_stream(data.as_buffer())
