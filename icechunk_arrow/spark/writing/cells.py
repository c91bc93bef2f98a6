"""Rows as cells of arrays: placed and packed where they come from, assembled to chunks and encoded where they go.

Owns what both sides of the shuffle know, and what becomes of cells that no row names: they keep what is stored, or
become the fill value. Chunks of a task come in the order of their coordinates, and are staged as they come.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from icechunk_arrow.core.axis_lookup import canonical
from icechunk_arrow.core.cell_blocks import CellError, new_block
from icechunk_arrow.core.cell_values import ValueFault, arrow_of, elements_of
from icechunk_arrow.core.cf import missing_values
from icechunk_arrow.core.columns import from_numpy, to_numpy, validity
from icechunk_arrow.engine.encoded import staging_in_order
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.spark.columns import open_array
from icechunk_arrow.spark.writing.shuffle import Placed, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.cell_blocks import CellBlock, RowBlocks
    from icechunk_arrow.core.cell_values import CellType
    from icechunk_arrow.engine.encoded import TakeChunks
    from icechunk_arrow.session import ForkSession, OpenSession
    from icechunk_arrow.spark.writing.row_axes import RowAxis

    Places = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

__all__ = ["CellColumn", "CellRules", "Cells"]

_STAGED_BYTES = 64 << 20
"""So many encoded bytes are gathered before they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellColumn:
    """A column of values, and the array that it is for."""

    name: str
    path: str
    type: CellType
    carried: np.dtype[Any]
    """As what values travel."""

    @property
    def value_bytes(self) -> int:
        """What a value takes in memory, roughly where it is text."""
        return self.carried.itemsize if self.carried.kind not in "TO" else 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRules:
    """What becomes of rows of one cell, and of rows without a value: as ``write_rows`` says."""

    duplicates: str
    order_by: str | None
    skip_nulls: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Cells of arrays whose chunks are of one shape: where rows belong, and the work of the tasks that get them."""

    axes: tuple[RowAxis, ...]
    columns: tuple[CellColumn, ...]
    blocks: RowBlocks
    rules: CellRules
    order_type: pa.DataType | None
    """Of the column by which rows are later than others, in its canonical form."""
    merged: frozenset[str]
    """Arrays that have chunks already, which partial ones are laid over."""
    task_count: int

    rows_at_once: ClassVar[int] = 1 << 16
    """Enough that calls cost nothing, few enough for the processor's cache."""
    held_bytes: ClassVar[int] = 32 << 20
    pack_bytes: ClassVar[int] = 32 << 10
    """Spark puts thousands of packs into a batch, and may not look at their bytes."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of cells that travel."""
        address = pa.from_numpy_dtype(self.blocks.address_dtype)
        fields = [pa.field("address", address, nullable=False)]
        if self.order_type is not None:
            fields.append(pa.field("order", self.order_type, nullable=False))
        for number, each in enumerate(self.columns):
            fields.append(pa.field(f"values_{number}", arrow_of(each.carried)))
        return pa.schema(fields)

    # -- before the shuffle

    def place(self, rows: pa.RecordBatch) -> Placed:
        """Find for each row the block that its cell is in, and what travels there."""
        places = [axis.find(rows.column(axis.column)) for axis in self.axes]
        self._check_places(rows, places)
        block, address = self.blocks.locate(places, rows.num_rows)
        columns = [from_numpy(address, pa.from_numpy_dtype(address.dtype))]
        if self.order_type is not None:
            columns.append(self._order(rows))
        for each in self.columns:
            try:
                columns.append(each.type.encode(rows.column(each.name), each.carried))
            except ValueFault as fault:
                raise InvalidInputError(
                    f"{self._name(rows, fault.row)}: {each.name}={fault.value} does not go into "
                    f"{each.path!r}: {fault.why}. Nothing was changed.",
                    path=each.path,
                ) from None
        return Placed(group=block, rows=pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def tasks_of(self, groups: Places) -> list[int]:
        """Share blocks out so that tasks have neighbours."""
        count = self.blocks.block_count
        return [block * self.task_count // count for block in groups.tolist()]

    def write(self, rows: pa.RecordBatch) -> pa.Buffer:
        """Write cells without what all of them have in common, their schema."""
        return rows.serialize()

    def _check_places(self, rows: pa.RecordBatch, places: list[Places]) -> None:
        for axis, along in zip(self.axes, places, strict=True):
            if not len(along) or int(along.min()) >= 0:
                continue
            row = int(np.argmin(along))
            null = not rows.column(axis.column)[row].is_valid
            why = (
                "is missing" if null else f"is none of the {axis.length} places along {axis.name!r}"
            )
            raise InvalidInputError(
                f"{self._name(rows, row)}: the value of {axis.column!r} {why}. Nothing was changed.",
                column=axis.column,
            )

    def _order(self, rows: pa.RecordBatch) -> pa.Array:
        order = canonical(rows.column(self.rules.order_by))
        wrong = ~validity(order) if order.null_count else None
        if pa.types.is_floating(order.type):
            nan = np.isnan(to_numpy(order))
            wrong = nan if wrong is None else wrong | nan
        if wrong is not None and wrong.any():
            raise InvalidInputError(
                f"{self._name(rows, int(np.argmax(wrong)))}: {self.rules.order_by!r}, which says what is last, "
                f"is missing. Nothing was changed."
            )
        return order

    def _name(self, rows: pa.RecordBatch, row: int) -> str:
        names = [axis.column for axis in self.axes]
        names += [each.name for each in self.columns[:3]]
        values = rows.slice(row, 1).select(names).to_pylist()[0]
        return "the row " + ", ".join(f"{name}={values[name]!s}" for name in names)

    # -- behind it

    def __call__(self, fork: ForkSession, packs: Iterator[pa.RecordBatch]) -> None:
        """Write the chunks of some blocks, whose cells come packed, block after block."""
        codecs = [_Codecs(fork, each.path) for each in self.columns]
        schema = self.schema
        present: int | None = None
        cells: list[CellBlock] = []
        with staging_in_order(fork) as take:
            waiting = _Waiting(take=take)
            for block, data in unpacked(packs):
                if block != present:
                    if present is not None:
                        self._finish(present, cells, codecs, waiting)
                    present, cells = block, self._new_cells(codecs)
                self._add(block, cells, pa.ipc.read_record_batch(data, schema))
            if present is not None:
                self._finish(present, cells, codecs, waiting)
            waiting.pass_on()

    def _new_cells(self, codecs: list[_Codecs]) -> list[CellBlock]:
        count = self.blocks.chunks_per_block * self.blocks.cells_per_chunk
        return [
            new_block(count, each.type.dtype, self.rules.duplicates, codec.missing)
            for each, codec in zip(self.columns, codecs, strict=True)
        ]

    def _add(self, number_of_block: int, cells: list[CellBlock], rows: pa.RecordBatch) -> None:
        addresses = to_numpy(rows.column("address"))
        order = None if self.order_type is None else to_numpy(rows.column("order"))
        first = rows.num_columns - len(self.columns)
        for number, (block, each) in enumerate(zip(cells, self.columns, strict=True)):
            column = rows.column(first + number)
            values = elements_of(column, each.carried)
            valid = validity(column) if column.null_count else None
            try:
                if valid is None or not self.rules.skip_nulls:
                    block.add(addresses, values, valid, order)
                elif valid.any():
                    some = order[valid] if order is not None else None
                    block.add(addresses[valid], values[valid], None, some)
            except CellError as error:
                raise self._refusal(error, number_of_block, each) from None

    def _finish(
        self, block: int, cells: list[CellBlock], codecs: list[_Codecs], waiting: _Waiting
    ) -> None:
        for each, codec, column in zip(cells, codecs, self.columns, strict=True):
            try:
                values = each.finish()
            except CellError as error:
                raise self._refusal(error, block, column) from None
            self._encode(block, values, each.written, codec, waiting)

    def _refusal(self, error: CellError, block: int, column: CellColumn) -> InvalidInputError:
        cell = self.blocks.cell_at(block, error.address)
        where = ", ".join(axis.show(n) for axis, n in zip(self.axes, cell, strict=True))
        is_error = self.rules.duplicates == "error"
        way = "; duplicates= may be 'last', 'mean' or 'sum'" if is_error else ""
        return InvalidInputError(
            f"{column.path!r} at {where}: {error.fault}{way}. Nothing was changed.",
            path=column.path,
        )

    def _encode(
        self,
        block: int,
        values: npt.NDArray[Any],
        written: Mask,
        codec: _Codecs,
        waiting: _Waiting,
    ) -> None:
        size = self.blocks.cells_per_chunk
        counts = np.count_nonzero(written.reshape(-1, size), axis=1)
        touched = np.flatnonzero(counts)
        if not len(touched):
            return
        places = self.blocks.chunk_places(block, touched)
        edges = np.array(self.blocks.chunk_shape)
        inside = np.minimum(np.array(self.blocks.shape) - places * edges, edges).prod(axis=1)
        by_chunk, known = values.reshape(-1, size), written.reshape(-1, size)
        partial = counts[touched] < inside
        for chunk in touched[counts[touched] < size].tolist():
            by_chunk[chunk][~known[chunk]] = codec.fill
        if codec.path in self.merged and partial.any():
            codec.lay_under(by_chunk, known, touched[partial], places[partial])
        chunks = [by_chunk[chunk].reshape(self.blocks.chunk_shape) for chunk in touched.tolist()]
        waiting.add(codec.path, places, codec.encode(chunks))


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """Encoded chunks that wait until there are enough to be written."""

    take: TakeChunks
    places: dict[str, list[Places]] = field(default_factory=dict)
    data: dict[str, list[bytes]] = field(default_factory=dict)
    size_bytes: int = 0

    def add(self, path: str, places: Places, data: list[bytes]) -> None:
        self.places.setdefault(path, []).append(places)
        self.data.setdefault(path, []).extend(data)
        self.size_bytes += sum(map(len, data))
        if self.size_bytes >= _STAGED_BYTES:
            self.pass_on()

    def pass_on(self) -> None:
        """Let go of what waits."""
        for path, places in self.places.items():
            data = self.data[path]
            offsets = np.zeros(len(data) + 1, np.int64)
            np.cumsum([len(each) for each in data], out=offsets[1:])
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
            column = pa.Array.from_buffers(pa.large_binary(), len(data), buffers)
            self.take(path, np.concatenate(places).astype(np.uint64), column)
        self.places, self.data, self.size_bytes = {}, {}, 0


class _Codecs:
    """The codecs of one array, zarr's own: encodes many chunks at a time, and reads stored ones."""

    def __init__(self, session: OpenSession, path: str) -> None:
        self.path = path
        self._array = open_array(session, path)
        inner: Any = self._array.async_array
        meta: Any = self._array.metadata
        self._pipeline: Any = inner.codec_pipeline
        self._prototype = default_buffer_prototype()
        grid = session.get_array(path).grid
        self._chunk_shape = grid.chunk_shape
        self._spec = ArraySpec(
            shape=grid.chunk_shape,
            dtype=meta.data_type,
            fill_value=meta.fill_value,
            config=inner.config,
            prototype=self._prototype,
        )

    @property
    def fill(self) -> Any:
        """What is read where nothing was written."""
        return self._array.fill_value

    @property
    def missing(self) -> Any:
        """What stands for a value that is null.

        NaN or no time where there are such, else what the attributes say, else the fill value.
        """
        dtype = self._array.dtype
        match dtype.kind:
            case "f":
                return np.nan
            case "M":
                return np.datetime64("NaT", "us")
            case "i" | "u":
                limits = np.iinfo(dtype)
                for mark in reversed(missing_values(self._array.attrs.asdict())):
                    if isinstance(mark, np.integer) and limits.min <= mark <= limits.max:
                        return dtype.type(mark)
        return self.fill

    def encode(self, chunks: Sequence[npt.NDArray[Any]]) -> list[bytes]:
        """Encode chunks."""
        buffer = self._prototype.nd_buffer.from_numpy_array
        return sync(self._encode([buffer(chunk) for chunk in chunks]))

    async def _encode(self, buffers: Sequence[Any]) -> list[bytes]:
        encoded = await asyncio.gather(
            *(self._pipeline.encode([(buffer, self._spec)]) for buffer in buffers)
        )
        return [each.to_bytes() for (each,) in map(list, encoded)]

    def lay_under(
        self,
        cells: npt.NDArray[Any],
        known: npt.NDArray[np.bool_],
        rows: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
    ) -> None:
        """Give the cells of some chunks that are not known the values that are stored.

        Parameters
        ----------
        cells, known
            A row for each chunk of a block.
        rows, places
            Which rows these chunks are, and where in the grid.
        """
        edges = np.array(self._chunk_shape)
        low = places.min(axis=0) * edges
        high = np.minimum((places.max(axis=0) + 1) * edges, self._array.shape)
        box = tuple(slice(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True))
        stored = np.asarray(self._array[box])
        for row, first in zip(rows.tolist(), (places * edges - low).tolist(), strict=True):
            side = tuple(slice(a, a + n) for a, n in zip(first, self._chunk_shape, strict=True))
            under = stored[side]
            inside = tuple(slice(0, n) for n in under.shape)
            mine = cells[row].reshape(self._chunk_shape)[inside]
            unknown = ~known[row].reshape(self._chunk_shape)[inside]
            mine[unknown] = under[unknown]
