"""Where the chunks of a variable stand in an HDF5 file: columns, for references.

Owns reading the chunk index of one dataset. What the references are for is the caller's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import h5py
    import numpy.typing as npt

__all__ = ["ChunkPlaces", "chunk_places"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkPlaces:
    """Chunks of one variable in one file: one row each."""

    index: npt.NDArray[np.int64]
    """Rows × dimensions: the chunk's place in the file's own grid."""
    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    by_value: npt.NDArray[np.bool_]
    """Chunks stored otherwise than the dataset says: their values must be read."""


def chunk_places(dataset: h5py.Dataset, chunks: tuple[int, ...]) -> ChunkPlaces:
    """Find the chunks that are stored; ``chunks`` cuts values that stand in one piece along axis 0."""
    return _chunked(dataset) if dataset.chunks else _in_one_piece(dataset, chunks)


def _chunked(dataset: h5py.Dataset) -> ChunkPlaces:
    rows: list[tuple[tuple[int, ...], int, int, int]] = []
    if dataset.id.get_num_chunks():
        dataset.id.chunk_iter(rows.append)
    if not rows:
        return _nothing(dataset.ndim)
    corners, masks, offsets, lengths = zip(*rows, strict=True)
    corner = np.array(corners, np.int64).reshape(len(rows), dataset.ndim)
    inside = (corner < np.array(dataset.shape, np.int64)).all(axis=1)
    return ChunkPlaces(
        index=(corner // np.array(dataset.chunks, np.int64))[inside],
        offset=np.array(offsets, np.int64)[inside],
        length=np.array(lengths, np.int64)[inside],
        by_value=np.array(masks, np.int64)[inside] != 0,
    )


def _in_one_piece(dataset: h5py.Dataset, chunks: tuple[int, ...]) -> ChunkPlaces:
    start = dataset.id.get_offset()
    if start is None or 0 in dataset.shape:
        return _nothing(dataset.ndim)
    pieces = dataset.shape[0] // chunks[0] if dataset.ndim else 1
    length = dataset.id.get_storage_size() // pieces
    index = np.zeros((pieces, dataset.ndim), np.int64)
    if dataset.ndim:
        index[:, 0] = np.arange(pieces)
    return ChunkPlaces(
        index=index,
        offset=start + length * np.arange(pieces, dtype=np.int64),
        length=np.full(pieces, length, np.int64),
        by_value=np.zeros(pieces, np.bool_),
    )


def _nothing(ndim: int) -> ChunkPlaces:
    none = np.empty(0, np.int64)
    return ChunkPlaces(
        index=np.empty((0, ndim), np.int64),
        offset=none,
        length=none,
        by_value=np.empty(0, np.bool_),
    )
