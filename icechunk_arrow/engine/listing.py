"""Which chunks of an array there are, and where: streamed in batches, base and uncommitted changes together.

Newer wins: what is staged in memory over the runs of the session, both over the base. Reading everything once
must not push out of the cache what is wanted again, so large arrays are read past it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import around, inside, points_of
from icechunk_arrow.core.chunks import (
    CHUNK_SCHEMA,
    are_virtual,
    keep_rows,
    member_mask,
)
from icechunk_arrow.core.columns import (
    from_numpy,
    from_values,
    indices,
    one_array,
    to_numpy,
    validity,
)
from icechunk_arrow.engine.manifest_file import wrong_file
from icechunk_arrow.engine.settling import settle
from icechunk_arrow.engine.staging import Runs
from icechunk_arrow.errors import CorruptFileError, InvalidInputError
from icechunk_arrow.formats.layout import FileKind, key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.inventory import Inventory, InventoryEntry
    from icechunk_arrow.engine.files import Files
    from icechunk_arrow.engine.staging import ArrayDelta
    from icechunk_arrow.engine.view import ArrayView

    Mask = npt.NDArray[np.bool_]
    Coordinates = npt.NDArray[np.uint64]

__all__ = ["BATCH_ROWS", "chunk_batches", "chunk_coordinates", "reference_schema"]

BATCH_ROWS = 100_000
_BATCH_BYTES = 64 << 20
"""A batch ends early at this size: inline chunks can be large."""
_ROW_BYTES = 40
_CACHE_SHARE = 16
"""An array that would take no more than this part of the cache is read through it."""
_COORDINATES = ("array_id", "coord")
_KINDS = ("inline", "native", "virtual")


def chunk_coordinates(
    files: Files, view: ArrayView, delta: ArrayDelta | None
) -> Iterator[Coordinates]:
    """Give the coordinates of all chunks that there are, as n × dimensions arrays."""
    ndim = len(view.grid.chunk_counts)
    layers = _Layers(files, view, delta)
    for start in range(0, len(layers.present), BATCH_ROWS):
        yield coords.decode(layers.present.slice(start, BATCH_ROWS), ndim)
    for array_id, inventories, is_base in layers.stored():
        for entry in inventories:
            for batch in _entry_coordinates(files, array_id, entry, ndim, layers.is_large):
                rest = batch[~layers.covered(batch, is_base=is_base)]
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
    files: Files, view: ArrayView, delta: ArrayDelta | None, batch_size: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Give the references of all chunks that there are, at most so many at once, in no promised order."""
    if batch_size < 1:
        raise InvalidInputError(f"batch_size must be a whole number from 1, not {batch_size}")
    ndim = len(view.grid.chunk_counts)
    waiting: list[pa.RecordBatch] = []
    count = size_bytes = 0
    for table in _tables(files, view, delta, ndim):
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


def _tables(
    files: Files, view: ArrayView, delta: ArrayDelta | None, ndim: int
) -> Iterator[pa.Table]:
    layers = _Layers(files, view, delta)
    if delta is not None:
        yield from _staged(delta)
    for array_id, inventories, is_base in layers.stored():
        for entry in inventories:
            for table in _entry_tables(files, array_id, entry, layers.is_large):
                batch = _coordinates_of(table, entry, ndim)
                yield keep_rows(table, ~layers.covered(batch, is_base=is_base))


class _Layers:
    """An array's chunks by age, and what the newer ones cover of the older."""

    def __init__(self, files: Files, view: ArrayView, delta: ArrayDelta | None) -> None:
        self._files = files
        self._view = view
        # held on to: what another thread changes meanwhile must not show by halves
        self._runs = Runs() if delta is None else delta.runs
        self._kept = None if delta is None else delta.kept
        binary = CHUNK_SCHEMA.field("coord").type
        self.present, gone = from_values([], binary), from_values([], binary)
        if delta is not None:
            self.present, gone = delta.coordinates()
        self._above = pa.concat_arrays([self.present, gone])
        rows = sum(inventories.chunk_count for _, inventories, _ in self.stored())
        self.is_large = rows * _ROW_BYTES * _CACHE_SHARE > files.cache.limit_bytes

    def stored(self) -> Iterator[tuple[int, Inventory, bool]]:
        """Give what stands in manifests: array id, entries, and whether it is the base."""
        if len(self._runs):
            yield self._runs.array_id, self._runs.inventories, False
        yield self._view.node.id, self._view.node.inventories, True

    def covered(self, batch: Coordinates, *, is_base: bool) -> Mask:
        """For each chunk of a batch, whether something newer says what there is in its place."""
        mask = np.zeros(len(batch), np.bool_)
        if not len(batch):
            return mask
        kept = self._kept if is_base else self._runs.kept
        if kept is not None:
            mask |= (batch >= np.array(kept, np.uint64)).any(axis=1)
        if len(self._above):
            mask |= member_mask(coords.encode(batch), self._above)
        if is_base and len(self._runs):
            mask |= self._in_runs(self._runs, batch)
        return mask

    def _in_runs(self, runs: Runs, batch: Coordinates) -> Mask:
        """Which chunks stand in the runs; only runs around them are read, where they have holes."""
        mask = np.zeros(len(batch), np.bool_)
        for number in np.flatnonzero(runs.inventories.boxes.meet(around(batch))).tolist():
            entry = runs.inventories[number]
            within = inside(entry.extent, batch)
            if entry.is_dense or not within.any():
                mask |= within
                continue
            ndim = batch.shape[1]
            encoded = coords.encode(batch)
            for held in _entry_coordinates(self._files, runs.array_id, entry, ndim, self.is_large):
                mask |= member_mask(encoded, coords.encode(held))
        if runs.kept is not None:  # void rows of runs cover nothing
            mask &= (batch < np.array(runs.kept, np.uint64)).all(axis=1)
        return mask


def _entry_coordinates(
    files: Files, array_id: int, entry: InventoryEntry, ndim: int, past_cache: bool
) -> Iterator[Coordinates]:
    if not entry.is_dense:
        columns = _COORDINATES if past_cache else None
        for table in _entry_tables(files, array_id, entry, past_cache, columns):
            yield _coordinates_of(table, entry, ndim)
        return
    for start in range(0, entry.row_count, BATCH_ROWS):
        yield points_of(entry.extent, start, min(start + BATCH_ROWS, entry.row_count))


def _coordinates_of(table: pa.Table, entry: InventoryEntry, ndim: int) -> Coordinates:
    """Decode the coordinates of an entry's rows, which its extent must contain."""
    key = key_of(FileKind.MANIFEST, entry.manifest)
    try:
        found = coords.decode(one_array(table["coord"]), ndim)
    except CorruptFileError as error:
        raise wrong_file(key, str(error)) from None
    if not inside(entry.extent, found).all():
        raise wrong_file(key, "a chunk lies outside of the extent that its snapshot says")
    return found


def _entry_tables(
    files: Files,
    array_id: int,
    entry: InventoryEntry,
    past_cache: bool,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.Table]:
    """Give an array's rows in one manifest, by row groups, checked to be the array's."""
    first, last = entry.row, entry.row + entry.row_count
    if past_cache:
        yield from files.scan_rows(entry.manifest, array_id, first, last, columns=columns)
        return
    row = first
    while row < last:
        rows, at = files.rows_at(entry.manifest, row)
        stop = min(at + last - row, len(rows))
        rows.check_owner(array_id, at, stop)
        yield rows.table.slice(at, stop - at)
        row += stop - at


def _staged(delta: ArrayDelta) -> Iterator[pa.Table]:
    """Give what a session holds in memory, as references; bytes that wait count as inline."""
    rows = settle({0: replace(delta, entries=dict(delta.entries))}).rows
    if rows.num_rows:
        yield rows


def _described(table: pa.Table, ndim: int) -> pa.RecordBatch:
    """Turn rows as manifests have them into what people see."""
    count = table.num_rows
    index = coords.decode(one_array(table["coord"]), ndim)
    columns = {name: one_array(table[name]) for name in table.column_names}
    inline = columns.get("inline_data")
    in_file = ~validity(inline) if inline is not None else np.ones(count, np.bool_)
    files = columns["chunk_file"]
    if not pa.types.is_dictionary(files.type):
        files = files.dictionary_encode()
    names = files.dictionary
    is_far = are_virtual(names)
    codes = to_numpy(files.indices).astype(np.int64)
    kind = np.zeros(count, np.int64)
    kind[in_file] = np.where(is_far[codes[in_file]], 2, 1) if in_file.any() else 0
    flat = from_numpy(index.reshape(-1), pa.uint64())
    schema = reference_schema(ndim)
    arrays = {
        "index": pa.FixedSizeListArray.from_arrays(flat, ndim)
        if ndim
        else pa.Array.from_buffers(pa.list_(pa.uint64(), 0), count, [None], children=[flat]),
        "kind": from_values(list(_KINDS), pa.string()).take(indices(kind)),
        "location": names.take(files.indices) if len(names) else pa.nulls(count, pa.string()),
    }
    for name in schema.names[3:]:
        kept = columns.get(name)
        arrays[name] = kept if kept is not None else pa.nulls(count, schema.field(name).type)
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
