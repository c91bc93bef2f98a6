"""How cells of an array are shared out: as blocks of whole chunks, and an address for each cell of a block.

Owns the arithmetic from places along the axes to a block and an address within it, whole columns at a time. The
address counts cells chunk after chunk, so that a chunk's cells are neighbours. Blocks are boxes as manifests have
them (``core.splits``). Must not know where rows come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icechunk_arrow.core.splits import box_of
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Places = npt.NDArray[np.int64]

__all__ = ["RowBlocks", "plan_row_blocks"]

_MOST_CELLS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlocks:
    """A box of chunks, cut into equal blocks.

    Blocks come in C order, and so do the chunks of each. They are cut along the slowest axes first, each of which
    is cut at every chunk before the next one is cut at all: so all chunks together are in C order too.
    """

    shape: tuple[int, ...]
    """Of the arrays."""
    chunk_shape: tuple[int, ...]
    first: tuple[int, ...]
    """The first chunk of the box, by axis."""
    counts: tuple[int, ...]
    """The number of chunks of the box, by axis."""
    block_shape: tuple[int, ...]
    """The chunks of a block, by axis."""

    @property
    def cells_per_chunk(self) -> int:
        """Cells of a whole chunk, those beyond the array's end included."""
        return math.prod(self.chunk_shape)

    @property
    def _blocks_along(self) -> list[int]:
        return [-(-n // step) for n, step in zip(self.counts, self.block_shape, strict=True)]

    @property
    def block_count(self) -> int:
        """How many blocks there are."""
        return math.prod(self._blocks_along)

    @property
    def chunks_per_block(self) -> int:
        """The most chunks that a block has."""
        return math.prod(self.block_shape)

    @property
    def address_dtype(self) -> np.dtype[np.unsignedinteger]:
        """The narrowest type of addresses within a block."""
        cells = self.chunks_per_block * self.cells_per_chunk
        return np.dtype(np.uint32 if cells <= 2**32 else np.uint64)

    def locate(
        self, places: Sequence[Places], count: int
    ) -> tuple[Places, npt.NDArray[np.unsignedinteger]]:
        """Say for each of some cells, given by a column per axis, in which block it is, and where in it.

        Raises
        ------
        InvalidInputError
            A cell is outside the box.
        """
        block = np.zeros(count, np.int64)
        chunk = np.zeros(count, np.int64)
        within = np.zeros(count, np.int64)
        along = self._blocks_along
        for d, column in enumerate(places):
            edge = self.chunk_shape[d]
            number = column // edge
            within *= edge
            within += column
            within -= number * edge
            number -= self.first[d]
            if count and not 0 <= int(number.min()) <= int(number.max()) < self.counts[d]:
                raise InvalidInputError(
                    "the rows were others when they were read the second time; persist the frame "
                    "(df.persist()), so that both readings give the same"
                )
            step = self.block_shape[d]
            if step == self.counts[d]:  # not cut
                chunk *= step
                chunk += number
                continue
            block *= along[d]
            if step == 1:
                block += number
                continue
            piece = number // step
            block += piece
            chunk *= step
            chunk += number
            chunk -= piece * step
        chunk *= self.cells_per_chunk
        chunk += within
        return block, chunk.astype(self.address_dtype)

    def chunk_places(self, block: int, chunks: Places) -> npt.NDArray[np.int64]:
        """Say where some chunks of a block are in the grid of the arrays: a row for each, a column per axis."""
        found = np.zeros((len(chunks), len(self.counts)), np.int64)
        rest = chunks
        along = self._blocks_along
        for d in reversed(range(len(self.counts))):
            step = self.block_shape[d]
            block, piece = divmod(block, along[d])
            rest, inner = np.divmod(rest, step)
            found[:, d] = inner + (piece * step + self.first[d])
        return found

    def cell_at(self, block: int, address: int) -> tuple[int, ...]:
        """Say which cell of the array an address of a block is."""
        chunk, within = divmod(address, self.cells_per_chunk)
        index = self.chunk_places(block, np.array([chunk]))[0].tolist()
        inside = np.unravel_index(within, self.chunk_shape) if self.chunk_shape else ()
        return tuple(
            number * edge + int(more)
            for number, edge, more in zip(index, self.chunk_shape, inside, strict=True)
        )


def plan_row_blocks(
    *,
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    cell_bytes: int,
    block_bytes: int,
) -> RowBlocks:
    """Cut the box of chunks that rows fall into so that every block is of a size that memory takes.

    Parameters
    ----------
    shape, chunk_shape
        Of the arrays.
    low, high
        The first and the last place that a row has, by axis.
    cell_bytes
        What one cell of all arrays together takes in memory.
    block_bytes
        So much a block should take at most; a chunk is not divided.
    """
    first = tuple(a // edge for a, edge in zip(low, chunk_shape, strict=True))
    last = [b // edge for b, edge in zip(high, chunk_shape, strict=True)]
    counts = tuple(b - a + 1 for a, b in zip(first, last, strict=True))
    cells = math.prod(chunk_shape)
    if math.prod(counts) * cells >= _MOST_CELLS:
        raise InvalidInputError(
            f"the rows fall into {math.prod(counts)} chunks of {cells} cells, more than can be counted; use "
            f"smaller chunks, or write regions one after the other"
        )
    most = max(block_bytes // max(cells * cell_bytes, 1), 1)
    return RowBlocks(
        shape=tuple(shape),
        chunk_shape=tuple(chunk_shape),
        first=first,
        counts=counts,
        block_shape=box_of(counts, most, 0),
    )
