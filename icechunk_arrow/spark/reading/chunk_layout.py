"""Arrays as chunks: a row for each chunk that is stored, with its place and its elements as a list.

Owns how stored chunks are found and numbered: by the inventory of each array, entry by entry, so that an array of
a million million chunks of which few are there costs no more than these.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import Boxes
from icechunk_arrow.core.columns import one_array
from icechunk_arrow.core.selection import chunk_ranges, edges_of
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.spark.columns import (
    array_of,
    dimensions_of,
    element_bytes,
    element_type,
    fill_mask,
    list_of,
    open_array,
    selected,
    sliced_list,
)
from icechunk_arrow.spark.reading.grids import SNAPSHOT, Column, choose_columns
from icechunk_arrow.tables.columns import repeated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from icechunk_arrow.core.grid import Grid
    from icechunk_arrow.core.inventory import Inventory
    from icechunk_arrow.core.predicates import Predicate
    from icechunk_arrow.engine.context import ArrayView
    from icechunk_arrow.session import Session
    from icechunk_arrow.spark.reading.grids import ArrayQuery

    Coordinates = npt.NDArray[np.uint64]

__all__ = ["ChunkRows"]

_BATCH_BYTES = 16 << 20
_BATCH_CHUNKS = 10_000
_AT_ONCE = 8
_NUMBERS = list_of(pa.int64())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Source:
    """One array, and which of its chunks are asked for."""

    path: str
    array: Any
    view: ArrayView
    chunks: tuple[npt.NDArray[np.int64], ...]
    inventories: Inventory
    """The entries that may have some of them."""

    @property
    def chunk_bytes(self) -> int:
        size = math.prod(self.view.grid.chunk_shape) * element_bytes(self.array.dtype)
        return max(size, 1)

    def chosen(self, places: Coordinates) -> Coordinates:
        """Keep those chunks that are asked for."""
        return places[Boxes(places, places + np.uint64(1)).meet_ranges(self.chunks)]


class ChunkRows:
    """Chunks of arrays of one data type: those that a condition on dimensions touches, whole."""

    def __init__(self, session: Session, query: ArrayQuery) -> None:
        self._files = session._context.files  # noqa: SLF001 -- a session's references come without their places
        self._fast = session._context.storage.capabilities.fast  # noqa: SLF001
        self._nulls = query.nulls
        self._snapshot_id = session.snapshot_id
        self._sources = [_source(session, path, query.where) for path in query.paths]
        types = [element_type(each.array, each.path) for each in self._sources]
        for each, kind in zip(self._sources, types, strict=True):
            if kind != types[0]:
                raise InvalidInputError(
                    f"the elements of {each.path} are {kind}, and those of {query.paths[0]} {types[0]}: their "
                    f"chunks do not go into one column; read them apart",
                    path=each.path,
                )
        self.columns = choose_columns(
            [
                Column(name="path", type=pa.string()),
                Column(name="index", type=_NUMBERS),
                Column(name="origin", type=_NUMBERS),
                Column(name="shape", type=_NUMBERS),
                Column(name="values", type=list_of(types[0])),
            ],
            query.columns,
        )
        self.schema = pa.schema([(each.name, each.type) for each in self.columns])

    # -- parts

    def _parts(self, part_bytes: int) -> list[tuple[int, int]]:
        """Say for each array how many chunks make a part, and how many parts there are."""
        parts = []
        for source in self._sources:
            count = max(part_bytes // source.chunk_bytes, 1)
            parts.append((count, -(-source.inventories.chunk_count // count)))
        return parts

    def part_count(self, part_bytes: int) -> int:
        """Say into how many parts of so many bytes the chunks come."""
        return sum(parts for _, parts in self._parts(part_bytes))

    def chunks_in(self, part_bytes: int) -> int:
        """Say how many chunks make a part, of whichever array."""
        return max(part_bytes // max(each.chunk_bytes for each in self._sources), 1)

    def grid_of(self, path: str) -> Grid:
        """Give the grid of one array."""
        (grid,) = (each.view.grid for each in self._sources if each.path == path)
        return grid

    def read_part(self, part: int, part_bytes: int) -> Iterator[pa.RecordBatch]:
        """Give the rows of one part."""
        for source, (count, parts) in zip(self._sources, self._parts(part_bytes), strict=True):
            if part < parts:
                places = self._stored(source, part * count, (part + 1) * count)
                yield from self._batches(source, places)
                return
            part -= parts

    def _stored(self, source: _Source, start: int, stop: int) -> Iterator[Coordinates]:
        """Give the coordinates of stored chunks, the ``start``-th to ``stop``-th by entries."""
        entries = source.inventories
        ends = np.cumsum(entries.row_counts.astype(np.int64))
        node_id, ndim = source.view.node.id, len(source.view.grid.axes)
        for number in range(int(np.searchsorted(ends, start, "right")), len(entries)):
            entry = entries[number]
            begin = int(ends[number]) - entry.row_count
            if begin >= stop:
                return
            first = entry.row + max(start - begin, 0)
            last = entry.row + min(stop - begin, entry.row_count)
            for table in self._files.scan_rows(
                entry.manifest, node_id, first, last, columns=("array_id", "coord")
            ):
                yield source.chosen(coords.decode(one_array(table["coord"]), ndim))

    # -- rows

    def rows_of_chunks(self, path: str, places: Coordinates) -> Iterator[pa.RecordBatch]:
        """Give the rows of some chunks of one array, those of them that are asked for."""
        (source,) = (each for each in self._sources if each.path == path)
        yield from self._batches(source, [source.chosen(places)])

    def _batches(self, source: _Source, places: Iterable[Coordinates]) -> Iterator[pa.RecordBatch]:
        most = min(max(_BATCH_BYTES // source.chunk_bytes, 1), _BATCH_CHUNKS)
        for some in places:
            for start in range(0, len(some), most):
                yield self._batch(source, some[start : start + most].astype(np.int64))

    def _batch(self, source: _Source, places: npt.NDArray[np.int64]) -> pa.RecordBatch:
        axes = source.view.grid.axes
        sides = [edges_of(axis, places[:, d]) for d, axis in enumerate(axes)]
        edges = np.stack(sides, axis=1) if sides else np.empty((len(places), 0, 2), np.int64)
        origins, shapes = edges[:, :, 0], edges[:, :, 1] - edges[:, :, 0]
        numbers = {"index": places, "origin": origins, "shape": shapes}
        texts = {"path": source.path, SNAPSHOT.name: self._snapshot_id}
        lengths = np.full(len(places), len(axes), np.int64)
        columns = []
        for column in self.columns:
            if column.name in texts:
                columns.append(repeated(texts[column.name], len(places)))
            elif column.name in numbers:
                items = array_of(numbers[column.name].reshape(-1), pa.int64())
                columns.append(sliced_list(items, lengths))
            else:
                columns.append(self._values(source, edges))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _values(self, source: _Source, edges: npt.NDArray[np.int64]) -> pa.Array:
        boxes = [tuple(slice(*side) for side in box) for box in edges.tolist()]
        read = partial(_elements, source.array)
        if self._fast or len(boxes) < 2:
            parts = [read(box) for box in boxes]
        else:
            with ThreadPoolExecutor(min(_AT_ONCE, len(boxes))) as pool:
                parts = list(pool.map(read, boxes))
        items = np.concatenate(parts)
        null = fill_mask(items, source.array.fill_value) if self._nulls else None
        kind = element_type(source.array, source.path)
        lengths = np.array([len(part) for part in parts], np.int64)
        return sliced_list(array_of(items, kind, null, source.path), lengths)


def _elements(array: Any, box: tuple[slice, ...]) -> npt.NDArray[Any]:
    return np.asarray(array[box]).reshape(-1)


def _source(session: Session, path: str, where: Predicate | None) -> _Source:
    array, view = open_array(session, path), session.get_array(path)
    axes, entries = view.grid.axes, view.node.inventories
    if where is None:
        chunks = [np.array([[0, axis.chunk_count]], np.int64) for axis in axes]
    else:
        ranges = selected(dimensions_of(session, path, array), where, path)
        chunks = [chunk_ranges(each, axis) for each, axis in zip(ranges, axes, strict=True)]
    return _Source(
        path=path,
        array=array,
        view=view,
        chunks=tuple(chunks),
        inventories=entries.chosen(entries.boxes.meet_ranges(chunks)),
    )
