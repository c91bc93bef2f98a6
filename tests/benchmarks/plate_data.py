"""A plate: very many small arrays below a group, written through zarr alone, so that peers can do it too."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr

__all__ = ["write"]


def write(store: Any, *, arrays: int, chunks: int, chunk_bytes: int) -> None:
    """Create the arrays, and fill each."""
    root = zarr.create_group(store)
    data = np.resize(np.arange(1, 252, dtype=np.uint8), chunks * chunk_bytes)
    for number in range(arrays):
        array = root.create_array(
            f"{number:04}",
            shape=(chunks * chunk_bytes,),
            chunks=(chunk_bytes,),
            dtype="u1",
            compressors=None,
        )
        array[:] = data
