"""Arrays on one grid as rows: a row for each element, a column for each dimension and each array.

Owns how much is read at once and how a block of elements becomes batches. Which part of the work a task does is
a run of chunks, numbered in C order over those that a condition selects, so that a part is two numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.boxes import boxes_of_run, cut
from icechunk_arrow.core.lazy import lazy
from icechunk_arrow.core.selection import chunk_ranges, covered, positions_in
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.spark.columns import (
    array_of,
    dimensions_of,
    element_bytes,
    element_type,
    fill_mask,
    open_array,
    selected,
)
from icechunk_arrow.tables.columns import repeated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.boxes import Box
    from icechunk_arrow.core.grid import Grid
    from icechunk_arrow.core.predicates import Predicate
    from icechunk_arrow.session import Session
    from icechunk_arrow.spark.columns import Dimension

__all__ = ["BATCH_ROWS", "SNAPSHOT", "ArrayQuery", "Column", "GridRows", "choose_columns"]

BATCH_ROWS = 1 << 17
_BLOCK_BYTES = 32 << 20
"""So much is decoded at once, at most, where chunks are not larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: a dimension's values, or an array's; or what its name says."""

    name: str
    type: pa.DataType
    dimension: int | None = None
    path: str | None = None


SNAPSHOT = Column(name="_snapshot", type=pa.string())
"""The snapshot that a row is read from: it is there for queries that name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayQuery:
    """What is asked of arrays, in either layout."""

    paths: tuple[str, ...]
    where: Predicate | None = None
    nulls: bool = False
    columns: tuple[str, ...] | None = None


class GridRows:
    """Arrays that share shape and dimensions, with the elements that a condition selects."""

    def __init__(self, session: Session, query: ArrayQuery) -> None:
        paths = query.paths
        self._nulls = query.nulls
        self._snapshot_id = session.snapshot_id
        opened = {path: open_array(session, path) for path in paths}
        first = paths[0]
        for path, array in opened.items():
            _check_fits(first, opened[first], path, array)
        self.dimensions: list[Dimension] = dimensions_of(session, first, opened[first])
        self.columns = choose_columns(_columns(self.dimensions, opened), query.columns)
        self._arrays = {
            each.path: opened[each.path] for each in self.columns if each.path is not None
        }
        self._ranges = selected(self.dimensions, query.where, first)
        self._grids = {path: session.get_array(path).grid for path in paths}
        grids = [self._grids[path] for path in (self._arrays or (first,))]
        self.grid: Grid = max(grids, key=lambda grid: math.prod(grid.chunk_shape))
        self._chunks = [
            chunk_ranges(ranges, axis)
            for ranges, axis in zip(self._ranges, self.grid.axes, strict=True)
        ]
        self._steps = _common_steps(list(self._arrays.values()), self.grid)

    @lazy
    def schema(self) -> pa.Schema:
        """The columns as Arrow."""
        return pa.schema([(each.name, each.type) for each in self.columns])

    @lazy
    def chunk_bytes(self) -> int:
        """What the rows of one chunk of the grid take, coordinates counted."""
        sides = (each.dimension for each in self.columns if each.dimension is not None)
        beside = sum(self.dimensions[each].element_bytes for each in sides)
        return max(math.prod(self.grid.chunk_shape), 1) * (self._read_bytes + beside)

    @lazy
    def _read_bytes(self) -> int:
        """What is read for a row; something is where nothing but coordinates is wanted."""
        return sum(element_bytes(each.dtype) for each in self._arrays.values()) or 1

    @lazy
    def counts(self) -> tuple[int, ...]:
        """How many chunks are selected along each dimension."""
        return tuple(int((each[:, 1] - each[:, 0]).sum()) for each in self._chunks)

    def part_count(self, part_bytes: int) -> int:
        """Say into how many parts of so many bytes the selected chunks come."""
        return -(-math.prod(self.counts) // self.chunks_in(part_bytes))

    def chunks_in(self, part_bytes: int) -> int:
        """Say how many chunks make a part."""
        return max(part_bytes // self.chunk_bytes, 1)

    def grid_of(self, path: str) -> Grid:
        """Give the grid that all arrays are on; where chunks differ, changes of one are none of the others."""
        for other, grid in self._grids.items():
            if grid != self._grids[path]:
                raise InvalidInputError(
                    f"{path} and {other} are not chunked alike: a stream reads them apart",
                    path=other,
                )
        return self._grids[path]

    def read_part(self, part: int, part_bytes: int) -> Iterator[pa.RecordBatch]:
        """Give the rows of one part."""
        count = self.chunks_in(part_bytes)
        stop = min((part + 1) * count, math.prod(self.counts))
        for box in boxes_of_run(self.counts, part * count, stop):
            numbers = [
                _chosen(chunks, *side) for chunks, side in zip(self._chunks, box, strict=True)
            ]
            for chunks in product(*numbers):
                yield from self.rows_of_chunks(chunks)

    def rows_of_chunks(self, chunks: Box) -> Iterator[pa.RecordBatch]:
        """Give the rows of a box of chunks of the grid."""
        box = []
        for axis, (first, last) in zip(self.grid.axes, chunks, strict=True):
            origin, edge = axis.origin_and_edge(last - 1)
            box.append((axis.origin_and_edge(first)[0], min(origin + edge, axis.extent)))
        most = max(_BLOCK_BYTES // self._read_bytes, 1)
        for block in cut(tuple(box), most, self._steps):
            yield from self._block(block)

    def _block(self, box: Box) -> Iterator[pa.RecordBatch]:
        """Read a box of elements once, and give what is selected of it."""
        ranges = [covered(each, *side) for each, side in zip(self._ranges, box, strict=True)]
        if not all(map(len, ranges)):
            return
        bounds = [(int(each[0, 0]), int(each[-1, 1])) for each in ranges]
        places = [positions_in(each) for each in ranges]
        values = {path: _taken(array, bounds, places) for path, array in self._arrays.items()}
        sides = [
            dimension.between(*bound, place)
            for dimension, bound, place in zip(self.dimensions, bounds, places, strict=True)
        ]
        shape = tuple(map(len, places))
        for part in cut(tuple((0, length) for length in shape), BATCH_ROWS):
            yield self._batch(part, sides, values)

    def _batch(
        self,
        part: Box,
        sides: Sequence[npt.NDArray[Any]],
        values: dict[str, npt.NDArray[Any]],
    ) -> pa.RecordBatch:
        where: tuple[Any, ...] = tuple(slice(*side) for side in part)
        shape = tuple(stop - start for start, stop in part)
        columns = []
        for column in self.columns:
            if column.dimension is not None:
                d = column.dimension
                columns.append(_repeated(sides[d][where[d]], d, shape, column))
                continue
            if column.path is None:
                columns.append(repeated(self._snapshot_id, math.prod(shape)))
                continue
            cells = values[column.path][(*where, ...)].reshape(-1)
            null = fill_mask(cells, self._arrays[column.path].fill_value) if self._nulls else None
            columns.append(array_of(cells, column.type, null, column.path))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def choose_columns(known: Sequence[Column], names: Sequence[str] | None) -> tuple[Column, ...]:
    """Keep the columns that are named, in that order."""
    if names is None:
        return tuple(known)
    by_name = {each.name: each for each in (SNAPSHOT, *known)}
    unknown = [name for name in names if name not in by_name]
    if unknown or not names or len(set(names)) != len(names):
        raise InvalidInputError(
            f"the columns {', '.join(map(repr, names)) or '(none)'} cannot be chosen: there are "
            f"{', '.join(map(repr, by_name))}, each to be named once at most"
        )
    return tuple(by_name[name] for name in names)


def _columns(dimensions: Sequence[Dimension], arrays: dict[str, Any]) -> list[Column]:
    """Name the columns: dimensions, and arrays by their names, or by paths where these are taken."""
    columns = [
        Column(name=each.name, type=each.type, dimension=number)
        for number, each in enumerate(dimensions)
    ]
    coordinates = {each.path for each in dimensions}
    rest = [path for path in arrays if path not in coordinates]
    names = [path.rpartition("/")[2].casefold() for path in rest]
    taken = {each.name.casefold() for each in dimensions}
    for path, folded in zip(rest, names, strict=True):
        alone = names.count(folded) == 1 and folded not in taken
        name = path.rpartition("/")[2] if alone else path
        columns.append(Column(name=name, type=element_type(arrays[path], path), path=path))
    return columns


def _check_fits(first: str, expected: Any, path: str, array: Any) -> None:
    mine, theirs = (each.metadata.dimension_names or None for each in (array, expected))
    if array.shape == expected.shape and mine == theirs:
        return
    raise InvalidInputError(
        f"{path} has shape {array.shape} and dimensions {mine}, and {first} has {expected.shape} and "
        f"{theirs}: they share no rows; read them apart",
        path=path,
    )


def _common_steps(arrays: Sequence[Any], grid: Grid) -> tuple[int, ...]:
    """Say where blocks may be cut: at what can be decoded by itself, inside of shards too."""
    shapes = [each.chunks for each in arrays] or [grid.chunk_shape]
    return tuple(max(edges) for edges in zip(*shapes, strict=True))


def _chosen(chunks: npt.NDArray[np.int64], start: int, stop: int) -> list[tuple[int, int]]:
    """Find which chunks the ``start``-th to ``stop``-th of some ranges of them are."""
    lengths = chunks[:, 1] - chunks[:, 0]
    ends = np.cumsum(lengths)
    firsts = ends - lengths
    some = slice(int(np.searchsorted(ends, start, "right")), int(np.searchsorted(firsts, stop)))
    low = chunks[some, 0] + np.maximum(start - firsts[some], 0)
    high = chunks[some, 1] - np.maximum(ends[some] - stop, 0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _taken(
    array: Any, bounds: Sequence[tuple[int, int]], places: Sequence[npt.NDArray[np.int64]]
) -> npt.NDArray[Any]:
    """Read a box, and take positions of it."""
    block = np.asarray(array[tuple(slice(*bound) for bound in bounds)])
    for d, ((start, stop), positions) in enumerate(zip(bounds, places, strict=True)):
        if len(positions) != stop - start:
            block = np.take(block, positions - start, axis=d)
    return block


def _repeated(
    side: npt.NDArray[Any], dimension: int, shape: tuple[int, ...], column: Column
) -> pa.Array:
    """Give a dimension's values for each element of a box."""
    if side.dtype.kind in "OSTUV":  # once as Arrow, then by number
        numbers = np.arange(len(side))
        values = array_of(side, column.type, None, column.name)
        taken = array_of(_spread(numbers, dimension, shape), pa.int64())
        return values.take(taken)
    return array_of(_spread(side, dimension, shape), column.type, None, column.name)


def _spread(side: npt.NDArray[Any], dimension: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    lengths = [1] * len(shape)
    lengths[dimension] = len(side)
    return np.broadcast_to(side.reshape(lengths), shape).reshape(-1)
