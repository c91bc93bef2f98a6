"""A crowd of arrays with references here and there, the same for every subject; zarr and numpy alone, for peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "CHUNKS",
    "LENGTH",
    "create",
    "free_place",
    "location",
    "name",
    "offsets",
    "places",
]

CHUNKS = 4_000
"""Chunks in the grid of each array."""
LENGTH = 100
"""Bytes of each chunk."""


def name(array: int) -> str:
    """Name an array."""
    return f"band_{array:04}"


def location(array: int) -> str:
    """Name the file of an array."""
    return f"s3://bucket/tiles/{name(array)}.tif"


def places(array: int, count: int) -> npt.NDArray[np.int64]:
    """Choose chunks of an array, rising; no box is full."""
    chosen = np.random.default_rng(array).choice(CHUNKS, count, replace=False)
    return np.sort(chosen).astype(np.int64)


def free_place(array: int, count: int) -> int:
    """Choose a chunk that is not among those."""
    return int(np.setdiff1d(np.arange(CHUNKS), places(array, count))[0])


def create(store: Any, arrays: int) -> None:
    """Make a group with the arrays, all empty."""
    root = zarr.create_group(store)
    for number in range(arrays):
        root.create_array(name(number), shape=(CHUNKS,), chunks=(1,), dtype="u1", compressors=None)


def offsets(count: int) -> npt.NDArray[np.int64]:
    """Say where chunks begin in their file."""
    return np.arange(count, dtype=np.int64) * LENGTH
