"""Chunks assembled from cells that come packed, block after block, encoded, and staged in a fork.

Owns what becomes of cells that no row names: they keep what is stored, or become the fill value. Runs on executors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.cell_blocks import CellError, new_block
from icechunk_arrow.core.cell_values import elements_of
from icechunk_arrow.core.columns import from_numpy, to_numpy, validity
from icechunk_arrow.engine.encoded import encoded_chunks
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.spark.writing.chunk_codecs import ChunkCodecs

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from icechunk_arrow.core.cell_blocks import CellBlock
    from icechunk_arrow.core.row_blocks import RowBlocks
    from icechunk_arrow.session import ForkSession
    from icechunk_arrow.spark.writing.row_axes import RowAxis
    from icechunk_arrow.spark.writing.row_placing import CellColumn

__all__ = ["WriteCells"]

_STAGED_BYTES = 64 << 20
"""So many encoded bytes are gathered before they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCells:
    """The work of one task: packed cells of some blocks, sorted by block, become chunks."""

    axes: tuple[RowAxis, ...]
    columns: tuple[CellColumn, ...]
    blocks: RowBlocks
    schema: pa.Schema
    duplicates: str
    skip_nulls: bool
    merged: frozenset[str]
    """Arrays that have chunks already, which partial ones are laid over."""

    def __call__(self, fork: ForkSession, batches: Iterator[pa.RecordBatch]) -> None:
        """Write the chunks of one partition."""
        output = _Output(fork=fork)
        codecs = [ChunkCodecs(fork, each.path) for each in self.columns]
        block: int | None = None
        cells: list[CellBlock] = []
        for batch in batches:
            numbers, data = to_numpy(batch.column("block")), batch.column("data")
            for row, number in enumerate(numbers.tolist()):
                if number != block:
                    if block is not None:
                        self._finish(block, cells, codecs, output)
                    block, cells = number, self._new_cells(codecs)
                packed = pa.ipc.read_record_batch(data[row].as_buffer(), self.schema)
                self._add(number, cells, packed)
        if block is not None:
            self._finish(block, cells, codecs, output)
        output.stage()

    def _new_cells(self, codecs: list[ChunkCodecs]) -> list[CellBlock]:
        count = self.blocks.chunks_per_block * self.blocks.cells_per_chunk
        return [
            new_block(count, each.cells.dtype, self.duplicates, codec.missing)
            for each, codec in zip(self.columns, codecs, strict=True)
        ]

    def _add(self, number_of_block: int, cells: list[CellBlock], packed: pa.RecordBatch) -> None:
        addresses = to_numpy(packed.column("address"))
        order = to_numpy(packed.column("order")) if "order" in packed.schema.names else None
        first = packed.num_columns - len(self.columns)
        for number, (block, each) in enumerate(zip(cells, self.columns, strict=True)):
            column = packed.column(first + number)
            values = elements_of(column, each.carried)
            valid = validity(column) if column.null_count else None
            try:
                if valid is None or not self.skip_nulls:
                    block.add(addresses, values, valid, order)
                elif valid.any():
                    some = order[valid] if order is not None else None
                    block.add(addresses[valid], values[valid], None, some)
            except CellError as error:
                raise self._refusal(error, number_of_block, each) from None

    def _finish(
        self, block: int, cells: list[CellBlock], codecs: list[ChunkCodecs], output: _Output
    ) -> None:
        for each, codec, column in zip(cells, codecs, self.columns, strict=True):
            try:
                values = each.finish()
            except CellError as error:
                raise self._refusal(error, block, column) from None
            self._encode(block, values, each.written, codec, output)

    def _refusal(self, error: CellError, block: int, column: CellColumn) -> InvalidInputError:
        cell = self.blocks.cell_at(block, error.address)
        where = ", ".join(axis.show(n) for axis, n in zip(self.axes, cell, strict=True))
        way = "; duplicates= may be 'last', 'mean' or 'sum'" if self.duplicates == "error" else ""
        return InvalidInputError(
            f"{column.path!r} at {where}: {error.fault}{way}. Nothing was changed.",
            path=column.path,
        )

    def _encode(
        self,
        block: int,
        values: npt.NDArray[Any],
        written: npt.NDArray[np.bool_],
        codec: ChunkCodecs,
        output: _Output,
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
        output.add(codec.path, places, codec.encode(chunks))


@dataclass(slots=True)
class _Output:
    """Encoded chunks that wait to be written."""

    fork: ForkSession
    places: dict[str, list[npt.NDArray[np.int64]]] = field(default_factory=dict)
    data: dict[str, list[bytes]] = field(default_factory=dict)
    size_bytes: int = 0

    def add(self, path: str, places: npt.NDArray[np.int64], data: list[bytes]) -> None:
        self.places.setdefault(path, []).append(places)
        self.data.setdefault(path, []).extend(data)
        self.size_bytes += sum(map(len, data))
        if self.size_bytes >= _STAGED_BYTES:
            self.stage()

    def stage(self) -> None:
        """Write what waits."""
        for path, places in self.places.items():
            index = np.concatenate(places)
            columns = {
                f"index_{d}": from_numpy(index[:, d], pa.int64()) for d in range(index.shape[1])
            }
            columns["data"] = _bytes_column(self.data[path])
            table = pa.Table.from_pydict(columns)
            self.fork.stage_rows(path, table, encoded_chunks(self.fork.payload_writer))
        self.places, self.data, self.size_bytes = {}, {}, 0


def _bytes_column(data: list[bytes]) -> pa.Array:
    offsets = np.zeros(len(data) + 1, np.int64)
    np.cumsum([len(each) for each in data], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(data), buffers)
