"""Cells of arrays in blocks of whole chunks: an address for each cell, and what rows in any order make of it.

``RowBlocks`` is the arithmetic from places along the axes to a block and an address within it, whole columns at a
time. The address counts cells chunk after chunk, so that a chunk's cells are neighbours. Blocks are boxes as
manifests have them (``core.splits``).

``CellBlock`` owns what becomes of several rows of one cell, and of rows without a value. Must not know which array
the cells are of, where rows come from, nor where they go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from icechunk_arrow.core.splits import box_of
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Addresses = npt.NDArray[np.unsignedinteger[Any]]
    Mask = npt.NDArray[np.bool_]
    Values = npt.NDArray[Any]
    Places = npt.NDArray[np.int64]

__all__ = [
    "POLICIES",
    "CellBlock",
    "CellError",
    "RowBlocks",
    "carried_dtype",
    "native_dtype",
    "new_block",
    "plan_row_blocks",
]

_MOST_CELLS = 2**62
POLICIES = ("error", "last", "mean", "sum")


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
        places = np.zeros((len(chunks), len(self.counts)), np.int64)
        rest = chunks
        along = self._blocks_along
        for d in reversed(range(len(self.counts))):
            step = self.block_shape[d]
            block, piece = divmod(block, along[d])
            rest, inner = np.divmod(rest, step)
            places[:, d] = inner + (piece * step + self.first[d])
        return places

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


class CellError(Exception):
    """A cell cannot be written: its address, and why."""

    def __init__(self, address: int, fault: str) -> None:
        super().__init__(fault)
        self.address = address
        self.fault = fault


def native_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Give a type in this machine's order of bytes; types of texts have none."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def carried_dtype(dtype: np.dtype[Any], policy: str) -> np.dtype[Any]:
    """Say as what the values for cells of a type are brought here."""
    if policy == "mean" or (policy == "sum" and dtype.kind == "f"):
        return np.dtype(np.float64)
    return np.dtype(np.int64) if policy == "sum" else native_dtype(dtype)


def new_block(count: int, dtype: np.dtype[Any], policy: str, missing: Any) -> CellBlock:
    """Make a block of empty cells; ``missing`` is what stands for a value that is null."""
    kinds: dict[str, type[CellBlock]] = {
        "error": _Single,
        "last": _Latest,
        "mean": _Mean,
        "sum": _Sum,
    }
    values = np.zeros(count, carried_dtype(dtype, policy))
    return kinds[policy](values=values, dtype=dtype, missing=missing)


class _Added(NamedTuple):
    """What :meth:`CellBlock.add` is given."""

    addresses: Addresses
    values: Values
    valid: Mask | None
    order: Values | None


@dataclass(slots=True)
class CellBlock:
    """Some cells of one array."""

    values: Values
    dtype: np.dtype[Any]
    missing: Any
    written: Mask = field(init=False)

    def __post_init__(self) -> None:
        self.written = np.zeros(len(self.values), np.bool_)

    def add(
        self,
        addresses: Addresses,
        values: Values,
        valid: Mask | None = None,
        order: Values | None = None,
    ) -> None:
        """Write rows, which come in the order of the frame.

        Parameters
        ----------
        addresses, values
            Of each row.
        valid
            False where the value is null; None where there is none that is.
        order
            By what some row is later than another, before their order here counts.
        """
        self._add(_Added(addresses, values, valid, order))

    def _add(self, rows: _Added) -> None:
        raise NotImplementedError

    def finish(self) -> Values:
        """Give the cells after the last row; those that nothing was written to are anything.

        Raises
        ------
        CellError
            A cell has rows that do not go together.
        """
        raise NotImplementedError

    def _filled(self, rows: _Added) -> Values:
        if rows.valid is None:
            return rows.values
        filled = rows.values.copy()
        filled[~rows.valid] = self.missing
        return filled


@dataclass(slots=True)
class _Single(CellBlock):
    """One row a cell, and no more."""

    added: list[Addresses] = field(default_factory=list)
    row_count: int = 0

    def _add(self, rows: _Added) -> None:
        self.values[rows.addresses] = self._filled(rows)
        self.written[rows.addresses] = True
        self.row_count += len(rows.addresses)
        self.added.append(rows.addresses)
        if self.row_count > len(
            self.values
        ):  # what is kept for the message is no more than the cells
            self._refuse()

    def finish(self) -> Values:
        if self.row_count != np.count_nonzero(self.written):
            self._refuse()
        return self.values

    def _refuse(self) -> None:
        cells = np.sort(np.concatenate(self.added))
        again = cells[1:][cells[1:] == cells[:-1]]
        count = np.count_nonzero(cells == again[0])
        raise CellError(int(again[0]), f"{count} rows have a value for it")


@dataclass(slots=True)
class _Latest(CellBlock):
    """The row that is last."""

    latest: npt.NDArray[np.int64] = field(init=False)
    """The number of the row that a cell is of."""
    order: Values | None = None
    row_count: int = 0

    def __post_init__(self) -> None:
        super(_Latest, self).__post_init__()
        self.latest = np.full(len(self.values), -1, np.int64)

    def _add(self, rows: _Added) -> None:
        addresses, values, order = rows.addresses, self._filled(rows), rows.order
        if order is not None:
            if self.order is None:
                self.order = np.zeros(len(self.values), order.dtype)
            later = np.argsort(order, kind="stable")
            later = later[
                ~self.written[addresses[later]] | (order[later] >= self.order[addresses[later]])
            ]
            addresses, values, order = addresses[later], values[later], order[later]
        numbers = np.arange(self.row_count, self.row_count + len(addresses))
        self.row_count += len(addresses)
        # an assignment to one place several times would leave any of them
        np.maximum.at(self.latest, addresses, numbers)
        last = self.latest[addresses] == numbers
        where = addresses[last]
        self.values[where] = values[last]
        self.written[where] = True
        if order is not None and self.order is not None:
            self.order[where] = order[last]

    def finish(self) -> Values:
        return self.values


@dataclass(slots=True)
class _Total(CellBlock):
    """All rows that have a value, added up."""

    counts: npt.NDArray[np.uint32] = field(init=False)
    infinite: Mask = field(init=False)
    """Which have a row that is infinite itself."""
    result: ClassVar[str]
    """What comes of the rows, in words."""

    def __post_init__(self) -> None:
        super(_Total, self).__post_init__()
        self.counts = np.zeros(len(self.values), np.uint32)
        self.infinite = np.zeros(len(self.values), np.bool_)

    def _add(self, rows: _Added) -> None:
        addresses, values = rows.addresses, rows.values
        self.written[addresses] = True
        if rows.valid is not None:
            addresses, values = addresses[rows.valid], values[rows.valid]
        with np.errstate(over="ignore", invalid="ignore"):
            np.add.at(self.values, addresses, values)
        np.add.at(self.counts, addresses, np.uint32(1))
        if values.dtype.kind == "f":
            self.infinite[addresses[np.isinf(values)]] = True
        self._note(addresses, values)

    def _note(self, addresses: Addresses, values: Values) -> None:
        """Look at rows that were added."""

    def finish(self) -> Values:
        values = self._result()
        values[self.counts == 0] = self.missing
        return values

    def _result(self) -> Values:
        raise NotImplementedError

    def _rounded(self, found: npt.NDArray[np.float64]) -> Values:
        """Round to the array's floats; what becomes infinite only by that does not fit."""
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = found.astype(native_dtype(self.dtype))
        beyond = np.isinf(rounded) & ~self.infinite
        if beyond.any():
            raise CellError(int(np.argmax(beyond)), f"{self.result} does not fit into {self.dtype}")
        return rounded

    def _as_integers(self, found: npt.NDArray[np.float64]) -> Values:
        """Round to the nearest; of what fits, since the rows did."""
        return np.rint(found).astype(native_dtype(self.dtype))


@dataclass(slots=True)
class _Sum(_Total):
    result = "the sum of its rows"
    rough: npt.NDArray[np.float64] | None = None
    """The same as floats, which show where 64 bits were too few."""

    def _note(self, addresses: Addresses, values: Values) -> None:
        if self.values.dtype.kind == "i":
            if self.rough is None:
                self.rough = np.zeros(len(self.values), np.float64)
            np.add.at(self.rough, addresses, values.astype(np.float64))

    def _result(self) -> Values:
        if self.dtype.kind == "f":
            return self._rounded(self.values)
        limits = np.iinfo(self.dtype)
        beyond = (self.values < limits.min) | (self.values > min(limits.max, 2**63 - 1))
        if self.rough is not None:
            beyond |= np.abs(self.rough - self.values) > 2.0**62
        if beyond.any():
            raise CellError(int(np.argmax(beyond)), f"{self.result} does not fit into {self.dtype}")
        return self.values.astype(native_dtype(self.dtype))


@dataclass(slots=True)
class _Mean(_Total):
    result = "the mean of its rows"

    def _result(self) -> Values:
        means = self.values / np.maximum(self.counts, 1)
        if self.dtype.kind == "f":
            return self._rounded(means)
        return self._as_integers(means)
