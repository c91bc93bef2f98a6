"""Which chunks of an array there are, and where: streamed in batches, base and uncommitted changes together.

Reading everything once must not push out of the cache what is wanted again, so large arrays are read past it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_arrow.core import coords
from icechunk_arrow.core.chunks import keep_rows, kind_column
from icechunk_arrow.core.columns import (
    from_numpy,
    one_array,
)
from icechunk_arrow.engine.changes import in_columns
from icechunk_arrow.engine.segments import (
    Bulk,
    Memory,
    Newer,
    StagedChunks,
    entry_coordinates,
    entry_rows,
    keys_of,
)
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

    from icechunk_arrow.engine.context import ArrayView
    from icechunk_arrow.engine.files import Files
    from icechunk_arrow.engine.segments import Segment

    Coordinates = npt.NDArray[np.uint64]

__all__ = ["BATCH_ROWS", "chunk_batches", "chunk_coordinates", "reference_schema"]

BATCH_ROWS = 100_000
_BATCH_BYTES = 64 << 20
"""A batch ends early at this size: inline chunks can be large."""
_ROW_BYTES = 40
_CACHE_SHARE = 16
"""An array that would take no more than this part of the cache is read through it."""


def chunk_coordinates(
    files: Files, view: ArrayView, staged: StagedChunks | None
) -> Iterator[Coordinates]:
    """Give the coordinates of all chunks that there are, as n × dimensions arrays."""
    ndim = len(view.grid.chunk_counts)
    past_cache = _is_large(files, view, staged)
    for segment, newer in _layers(files, view, staged, past_cache=past_cache):
        for column in _columns_in_memory(segment):
            rest = column.filter(from_numpy(~newer.mask(column), pa.bool_()))
            for start in range(0, len(rest), BATCH_ROWS):
                yield coords.decode(rest.slice(start, BATCH_ROWS), ndim)
        if not isinstance(segment, Bulk):
            continue
        for entry in segment.inventory:
            batches = entry_coordinates(files, segment.array_id, entry, past_cache=past_cache)
            for batch in batches:
                rest = batch[~newer.mask(coords.encode(batch))] if newer.says_anything else batch
                if len(rest):
                    yield rest


def reference_schema(ndim: int) -> pa.Schema:
    """Give the columns of :func:`chunk_batches`; those from ``location`` are what references are set with."""
    return pa.schema(
        [
            pa.field("index", pa.list_(pa.uint64(), ndim), nullable=False),
            pa.field("kind", pa.string(), nullable=False),
            pa.field("location", pa.string()),
            pa.field("offset", pa.uint64()),
            pa.field("length", pa.uint64(), nullable=False),
            pa.field("etag", pa.string()),
            pa.field("last_modified", pa.timestamp("us", "UTC")),
            pa.field("crc32c", pa.uint32()),
            pa.field("inline_data", pa.binary()),
        ]
    )


def chunk_batches(
    files: Files, view: ArrayView, staged: StagedChunks | None, batch_size: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Give the references of all chunks that there are, at most so many at once, in no promised order."""
    if batch_size < 1:
        raise InvalidInputError(f"batch_size must be a whole number from 1, not {batch_size}")
    ndim = len(view.grid.chunk_counts)
    waiting: list[pa.RecordBatch] = []
    count = size_bytes = 0
    for table in _tables(files, view, staged):
        for start in range(0, table.num_rows, batch_size):
            batch = _described(table.slice(start, batch_size), ndim)
            while batch.num_rows:
                part = batch.slice(0, batch_size - count)
                batch = batch.slice(part.num_rows)
                waiting.append(part)
                count += part.num_rows
                size_bytes += part.nbytes
                if count == batch_size or size_bytes >= _BATCH_BYTES:
                    yield _united(waiting)
                    waiting, count, size_bytes = [], 0, 0
    if waiting:
        yield _united(waiting)


def _united(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    columns = [pa.concat_arrays([batch.column(i) for batch in batches]) for i in range(9)]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)


def _tables(files: Files, view: ArrayView, staged: StagedChunks | None) -> Iterator[pa.Table]:
    past_cache = _is_large(files, view, staged)
    for segment, newer in _layers(files, view, staged, past_cache=past_cache):
        if isinstance(segment, Memory):
            rows = in_columns({0: StagedChunks(singles=dict(segment.singles))}).rows
            yield keep_rows(rows, ~newer.mask(one_array(rows["coord"])))
        if not isinstance(segment, Bulk):
            continue
        for table in segment.tables:
            yield keep_rows(table, ~newer.mask(one_array(table["coord"])))
        for entry in segment.inventory:
            for table, _ in entry_rows(files, segment.array_id, entry, past_cache=past_cache):
                column = one_array(table["coord"])
                yield keep_rows(table, ~newer.mask(column)) if newer.says_anything else table


def _layers(
    files: Files, view: ArrayView, staged: StagedChunks | None, *, past_cache: bool
) -> Iterator[tuple[Segment, Newer]]:
    """Give what there is of an array, newest first and the base last, each with what is newer."""
    newer = Newer(files, len(view.grid.chunk_counts), past_cache=past_cache)
    # held on to: what another thread changes meanwhile must not show by halves
    segments = [] if staged is None else staged.copy().newest_first()
    for segment in segments:
        yield segment, newer
        newer.add(segment)
    yield Bulk(inventory=view.node.inventories, array_id=view.node.id), newer


def _is_large(files: Files, view: ArrayView, staged: StagedChunks | None) -> bool:
    """Whether an array takes so much of the cache that it is read past it."""
    segments = () if staged is None else staged.segments
    rows = view.node.inventories.chunk_count
    rows += sum(each.inventory.chunk_count for each in segments if isinstance(each, Bulk))
    return rows * _ROW_BYTES * _CACHE_SHARE > files.cache.limit_bytes


def _columns_in_memory(segment: Segment) -> Iterator[pa.Array]:
    """Give the encoded coordinates of chunks that a segment has in memory."""
    if isinstance(segment, Memory):
        yield keys_of({key: value for key, value in segment.singles.items() if value is not None})
    elif isinstance(segment, Bulk):
        for table in segment.tables:
            yield one_array(table["coord"])


def _described(table: pa.Table, ndim: int) -> pa.RecordBatch:
    """Turn rows as manifests have them into what callers see."""
    count = table.num_rows
    index = coords.decode(one_array(table["coord"]), ndim)
    columns = {name: one_array(table[name]) for name in table.column_names}
    files = columns["chunk_file"]
    if not pa.types.is_dictionary(files.type):
        files = files.dictionary_encode()
    names = files.dictionary
    flat = from_numpy(index.reshape(-1), pa.uint64())
    schema = reference_schema(ndim)
    arrays = {
        "index": pa.FixedSizeListArray.from_arrays(flat, ndim)
        if ndim
        else pa.Array.from_buffers(pa.list_(pa.uint64(), 0), count, [None], children=[flat]),
        "kind": kind_column(files),
        "location": names.take(files.indices) if len(names) else pa.nulls(count, pa.string()),
    }
    for name in schema.names[3:]:
        column = columns.get(name)
        arrays[name] = column if column is not None else pa.nulls(count, schema.field(name).type)
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
