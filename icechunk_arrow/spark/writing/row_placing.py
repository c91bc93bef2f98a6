"""Rows on their way to the task that has their chunks: places found, values brought to the array's type, packed.

Owns the form in which cells travel: those of one block of chunks, as the bytes of an Arrow batch, so that Spark
moves few large rows in place of very many small ones. Runs on executors.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.axis_lookup import canonical
from icechunk_arrow.core.cell_values import ValueFault, arrow_of
from icechunk_arrow.core.columns import (
    binary_from_numpy,
    from_numpy,
    indices,
    offsets_of,
    run_edges,
    to_numpy,
    validity,
)
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.spark.writing.tasks import telling_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from icechunk_arrow.core.cell_values import CellType
    from icechunk_arrow.core.row_blocks import RowBlocks
    from icechunk_arrow.spark.writing.row_axes import RowAxis

__all__ = ["PACKED", "PACKED_DDL", "CellColumn", "PlaceRows", "packed_schema"]

PACKED = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("block", pa.int64(), nullable=False),
        pa.field("source", pa.int32(), nullable=False),
        pa.field("number", pa.int32(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
PACKED_DDL = "part int, block bigint, source int, number int, data binary"
_ROWS_AT_ONCE = 1 << 16
"""So many rows are looked at together: enough that calls cost nothing, few enough for the processor's cache."""
_HELD_BYTES = 32 << 20
_PACK_BYTES = 32 << 10
"""Spark puts thousands of rows into a batch, and may not look at their bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellColumn:
    """A column of values, and the array that it is for."""

    name: str
    path: str
    cells: CellType
    carried: np.dtype[Any]
    """As what values travel."""

    @property
    def value_bytes(self) -> int:
        """What a value takes in memory, roughly where it is text."""
        return self.carried.itemsize if self.carried.kind not in "TO" else 32


def packed_schema(
    blocks: RowBlocks, columns: tuple[CellColumn, ...], order: pa.DataType | None
) -> pa.Schema:
    """Give the columns of cells that travel."""
    fields = [pa.field("address", pa.from_numpy_dtype(blocks.address_dtype), nullable=False)]
    if order is not None:
        fields.append(pa.field("order", order, nullable=False))
    fields += [pa.field(f"values_{n}", arrow_of(each.carried)) for n, each in enumerate(columns)]
    return pa.schema(fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRows:
    """Turns rows into packed cells."""

    axes: tuple[RowAxis, ...]
    columns: tuple[CellColumn, ...]
    blocks: RowBlocks
    part_count: int
    order_by: str | None
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the rows of a partition."""
        from pyspark import TaskContext  # noqa: PLC0415  (where this runs it is there)

        context = TaskContext.get()
        source = context.partitionId() if context is not None else 0
        with telling_errors():
            number = 0
            for held in self._held(batches):
                packed = self._packed(held, source, number)
                number += packed.num_rows
                yield packed

    def _held(
        self, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[list[tuple[npt.NDArray[np.int64], pa.RecordBatch]]]:
        """Place rows, and hold as many as memory may have."""
        held: list[tuple[npt.NDArray[np.int64], pa.RecordBatch]] = []
        size_bytes = 0
        for batch in _joined(batches):
            held.append(self.place(batch))
            size_bytes += sum(each.nbytes for each in held[-1])
            if size_bytes >= _HELD_BYTES:
                yield held
                held, size_bytes = [], 0
        if held:
            yield held

    def place(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], pa.RecordBatch]:
        """Find for each row the block that its cell is in, and what travels there."""
        places = [axis.find(batch.column(axis.column)) for axis in self.axes]
        self._check_places(batch, places)
        block, address = self.blocks.locate(places, batch.num_rows)
        columns = [_numbers(address)]
        if self.order_by is not None:
            columns.append(self._order(batch))
        for each in self.columns:
            try:
                columns.append(each.cells.encode(batch.column(each.name), each.carried))
            except ValueFault as fault:
                raise InvalidInputError(
                    f"{self._name(batch, fault.row)}: {each.name}={fault.value} does not go into "
                    f"{each.path!r}: {fault.why}. Nothing was changed.",
                    path=each.path,
                ) from None
        return block, pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _check_places(self, batch: pa.RecordBatch, places: list[npt.NDArray[np.int64]]) -> None:
        for axis, found in zip(self.axes, places, strict=True):
            if not len(found) or int(found.min()) >= 0:
                continue
            row = int(np.argmin(found))
            null = not batch.column(axis.column)[row].is_valid
            why = (
                "is missing" if null else f"is none of the {axis.length} places along {axis.name!r}"
            )
            raise InvalidInputError(
                f"{self._name(batch, row)}: the value of {axis.column!r} {why}. Nothing was changed.",
                column=axis.column,
            )

    def _order(self, batch: pa.RecordBatch) -> pa.Array:
        assert self.order_by is not None
        order = canonical(batch.column(self.order_by))
        wrong = ~validity(order) if order.null_count else None
        if pa.types.is_floating(order.type):
            nan = np.isnan(to_numpy(order))
            wrong = nan if wrong is None else wrong | nan
        if wrong is not None and wrong.any():
            raise InvalidInputError(
                f"{self._name(batch, int(np.argmax(wrong)))}: {self.order_by!r}, which says what is last, is "
                f"missing. Nothing was changed."
            )
        return order

    def _name(self, batch: pa.RecordBatch, row: int) -> str:
        names = [axis.column for axis in self.axes]
        names += [each.name for each in self.columns[:3]]
        values = batch.slice(row, 1).select(names).to_pylist()[0]
        return "the row " + ", ".join(f"{name}={values[name]!s}" for name in names)

    def _packed(
        self,
        held: list[tuple[npt.NDArray[np.int64], pa.RecordBatch]],
        source: int,
        number: int,
    ) -> pa.RecordBatch:
        """Bring rows of a block together, in their order, and write them as bytes."""
        block = np.concatenate([each for each, _ in held])
        rows = pa.Table.from_batches([each for _, each in held], schema=self.schema)
        if bool((block[1:] < block[:-1]).any()):
            order = _stable_order(block)
            block, rows = block[order], rows.combine_chunks().take(indices(order))
        cells = rows.combine_chunks().to_batches()[0]
        edges = run_edges(block)
        most = max(_PACK_BYTES * len(block) // max(cells.nbytes, 1), 1)
        starts = np.concatenate([np.arange(a, b, most) for a, b in pairwise(edges.tolist())])
        stops = np.r_[starts[1:], len(block)]
        parts = [
            cells.slice(start, stop - start).serialize()
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]
        offsets = offsets_of(np.array([each.size for each in parts], np.int64))
        blocks = block[starts]
        part = [each * self.part_count // self.blocks.block_count for each in blocks.tolist()]
        return pa.RecordBatch.from_arrays(
            [
                _numbers(np.array(part, np.int32)),
                _numbers(blocks),
                _numbers(np.full(len(starts), source, np.int32)),
                _numbers(np.arange(number, number + len(starts), dtype=np.int32)),
                binary_from_numpy(offsets, b"".join(parts), pa.binary()),
            ],
            schema=PACKED,
        )


def _numbers(values: npt.NDArray[Any]) -> pa.Array:
    return from_numpy(values, pa.from_numpy_dtype(values.dtype))


def _stable_order(block: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sort, rows of one block in their order; of 16 bits numpy sorts by counting, much faster."""
    low = int(block.min())
    if int(block.max()) - low < 1 << 16:
        return np.argsort((block - low).astype(np.uint16), kind="stable")
    return np.argsort(block, kind="stable")


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join Spark's batches, which are small."""
    some: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        some.append(batch)
        count += batch.num_rows
        if count >= _ROWS_AT_ONCE:
            yield _one(some)
            some, count = [], 0
    if count:
        yield _one(some)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (found,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found
