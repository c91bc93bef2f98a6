"""Rows on their way to the task that they belong to: placed, packed, and brought there by Spark.

Owns the form in which rows travel: those of one group (a block of cells, the chunks of one task) as the bytes of an
Arrow batch, so that Spark moves few large rows in place of very many small ones, on each of which it spends more
than we do on all our work. What a row says, where its group goes, and what becomes of it there, a placement knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import (
    binary_from_numpy,
    from_numpy,
    indices,
    offsets_of,
    run_edges,
    to_numpy,
)
from icechunk_arrow.spark.writing.tasks import marking_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

__all__ = ["Placed", "Placement", "packed", "shuffled", "unpacked"]

_PACKED = pa.schema(
    [
        pa.field("task", pa.int32(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("second", pa.int64(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
_DDL = "task int, first bigint, second bigint, data binary"


class Placed(NamedTuple):
    """Rows, and where each belongs."""

    group: Numbers
    """Of each row: rows of one group travel together."""
    rows: pa.RecordBatch
    keys: tuple[Numbers, Numbers] | None = None
    """What a task sorts packs by; None for the group, and within it the order of the frame."""


class Placement(Protocol):
    """Says where rows belong, and how they are written; pickles."""

    rows_at_once: ClassVar[int]
    """So many rows are looked at together."""
    held_bytes: ClassVar[int]
    """So much is placed before it is packed."""
    pack_bytes: ClassVar[int]
    """The most that a pack has, more or less."""

    @property
    def task_count(self) -> int:
        """How many tasks there are."""
        ...

    def place(self, rows: pa.RecordBatch) -> Placed:
        """Find where rows belong."""
        ...

    def tasks_of(self, groups: Numbers) -> Sequence[int]:
        """Say which tasks some groups go to."""
        ...

    def write(self, rows: pa.RecordBatch) -> pa.Buffer:
        """Write the rows of a pack as bytes."""
        ...


def shuffled(rows: Any, placement: Placement) -> Any:
    """Give a frame of packs, each in the partition of its task and in order: what :func:`unpacked` reads."""
    from pyspark.sql import functions as sf  # noqa: PLC0415  (an extra, and slow to import)

    packs = rows.mapInArrow(_Pack(placement), _DDL)
    parted = packs.repartitionById(placement.task_count, sf.col("task"))
    return parted.sortWithinPartitions("first", "second").select("first", "data")


@dataclass(frozen=True, slots=True)
class _Pack:
    """What runs before the shuffle, for one partition."""

    placement: Placement

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415  (where this runs it is there)

        context = TaskContext.get()
        with marking_errors():
            yield from packed(self.placement, batches, context.partitionId() if context else 0)


def packed(
    placement: Placement, batches: Iterator[pa.RecordBatch], source: int = 0
) -> Iterator[pa.RecordBatch]:
    """Pack the rows of a partition, which has a number among those of its frame."""
    count = 0
    held: list[Placed] = []
    size_bytes = 0
    for batch in _joined(batches, placement.rows_at_once):
        held.append(placement.place(batch))
        size_bytes += held[-1].group.nbytes + held[-1].rows.nbytes
        if size_bytes >= placement.held_bytes:
            packs = _packs(placement, held, source, count)
            count += packs.num_rows
            held, size_bytes = [], 0
            yield packs
    if held:
        yield _packs(placement, held, source, count)


def unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Buffer]]:
    """Give the packs of a partition one by one: the number of what each is of, and its bytes."""
    for batch in batches:
        data = batch.column("data")
        for row, first in enumerate(to_numpy(batch.column("first")).tolist()):
            yield first, data[row].as_buffer()


def _packs(placement: Placement, held: list[Placed], source: int, number: int) -> pa.RecordBatch:
    """Bring rows of a group together, in their order, and write them as bytes."""
    group = np.concatenate([each.group for each in held])
    keys = held[0].keys
    if keys is not None:
        assert len(held) == 1, "rows with keys of their own are packed as they are placed"
    rows = _one([each.rows for each in held])
    if bool((group[1:] < group[:-1]).any()):
        order = _stable_order(group)
        group, rows = group[order], rows.take(indices(order))
        keys = None if keys is None else (keys[0][order], keys[1][order])
    edges = run_edges(group)
    most = max(placement.pack_bytes * len(group) // max(rows.nbytes, 1), 1)
    starts = np.concatenate([np.arange(a, b, most) for a, b in pairwise(edges.tolist())])
    stops = np.r_[starts[1:], len(group)]
    parts = [
        placement.write(rows.slice(start, stop - start))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]
    groups = group[starts]
    if keys is None:
        # partitions and packs of each are far fewer than 2**31
        first, second = groups, np.arange(number, number + len(starts)) + (source << 32)
    else:
        first, second = keys[0][starts], keys[1][starts]
    offsets = offsets_of(np.array([each.size for each in parts], np.int64))
    return pa.RecordBatch.from_arrays(
        [
            from_numpy(np.array(placement.tasks_of(groups), np.int32), pa.int32()),
            from_numpy(first, pa.int64()),
            from_numpy(second, pa.int64()),
            binary_from_numpy(offsets, b"".join(parts), pa.binary()),
        ],
        schema=_PACKED,
    )


def _stable_order(group: Numbers) -> Numbers:
    """Sort, rows of one group in their order; of 16 bits numpy sorts by counting, much faster."""
    low = int(group.min())
    if int(group.max()) - low < 1 << 16:
        return np.argsort((group - low).astype(np.uint16), kind="stable")
    return np.argsort(group, kind="stable")


def _joined(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Join Spark's batches, which are small."""
    some: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        some.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield _one(some)
            some, count = [], 0
    if count:
        yield _one(some)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch
