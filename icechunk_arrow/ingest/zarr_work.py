"""What executors do with Zarr stores: list the chunks of arrays.

Owns how the listing of a large array is cut into pieces, and what a listed file becomes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import from_numpy, from_values
from icechunk_arrow.ingest.chunk_names import decode_names, index_lists
from icechunk_arrow.ingest.chunk_rows import CHUNK_ROWS
from icechunk_arrow.ingest.source_facts import incomparable, refusal
from icechunk_arrow.spark.writing.tasks import telling_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from icechunk_arrow.core.keys import ChunkKeys
    from icechunk_arrow.storage.source_files import Listing, SourceFiles

__all__ = ["ListChunks", "ListedArray", "listing_pieces"]

_PIECE_CHUNKS = 1 << 17
"""About so many chunks are listed at once, where the store's folders allow it."""
_FOLDER_CHUNKS = 1 << 8
"""Folders with fewer are not worth a request each."""
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedArray:
    """An array whose chunks are listed."""

    path: str
    """In the repository."""
    url: str
    """Its folder."""
    keys: ChunkKeys
    chunk_counts: tuple[int, ...]


def listing_pieces(array: ListedArray) -> list[str]:
    """Name the folders to list, below the array: itself, or those of the first dimension where they are many."""
    counts = array.chunk_counts
    inner = math.prod(counts[1:])
    cut = (
        array.keys.separator == "/"
        and len(counts) > 1
        and inner >= _FOLDER_CHUNKS
        and inner * counts[0] > _PIECE_CHUNKS
    )
    if not cut:
        return [""]
    lead = "c/" if array.keys.name == "default" else ""
    return [f"{lead}{first}" for first in range(counts[0])]


@dataclass(frozen=True, kw_only=True)
class ListChunks:
    """Lists chunks: batches of ``array`` and ``folder`` in, ``CHUNK_ROWS`` out."""

    files: SourceFiles
    arrays: Mapping[str, ListedArray]
    """By path in the repository."""
    detects: bool
    """Whether rows say what their files are now."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """List some folders."""
        with telling_errors():
            for batch in batches:
                for row in batch.to_pylist():
                    yield from self._list(self.arrays[row["array"]], row["folder"])

    def _list(self, array: ListedArray, folder: str) -> Iterator[pa.RecordBatch]:
        base = f"{array.url}/{folder}".rstrip("/")
        listing = self.files.below(base)
        lead = f"{folder}/" if folder else ""
        names = from_values([lead + name for name in listing.names], pa.string())
        rows, index = decode_names(names, array.keys, array.chunk_counts)
        for start in range(0, len(rows), _BATCH_ROWS):
            stop = start + _BATCH_ROWS
            some = rows[start:stop]
            facts = _facts(base, listing, some.tolist()) if self.detects else None
            yield _rows_of(array.path, base, listing, facts, some, index[start:stop])


Facts = tuple[list[str | None], list[int | None]]


def _facts(base: str, listing: Listing, rows: list[int]) -> Facts:
    """Give the ETag or the time of files; all must have one."""
    etags, times = [listing.etags[row] for row in rows], [listing.times[row] for row in rows]
    wrong = [
        incomparable(f"{base}/{listing.names[row]}")
        for row, etag, time in zip(rows, etags, times, strict=True)
        if etag is None and time is None
    ]
    if wrong:
        raise refusal(wrong, len(wrong), len(rows))
    return etags, times


def _rows_of(
    path: str,
    base: str,
    listing: Listing,
    facts: Facts | None,
    rows: np.ndarray[tuple[int], np.dtype[np.int64]],
    index: np.ndarray[tuple[int, int], np.dtype[np.int64]],
) -> pa.RecordBatch:
    chosen, count = rows.tolist(), len(rows)
    etags, times = facts if facts is not None else ([None] * count, [None] * count)
    zeros = from_numpy(np.zeros(count), pa.int64())
    columns = {
        "path": from_values([path], pa.string()).take(zeros),
        "index": index_lists(index),
        "location": from_values([f"{base}/{listing.names[row]}" for row in chosen], pa.string()),
        "offset": zeros,
        "length": from_values([listing.sizes[row] for row in chosen], pa.int64()),
        "etag": from_values(etags, pa.string()),
        "last_modified": from_values(times, pa.int64()).view(pa.timestamp("us", "UTC")),
        "data": pa.nulls(count, pa.binary()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=CHUNK_ROWS)
