"""Names of chunks as columns of numbers: what listings and tables of references have by the million.

Owns decoding many names at once. What a single name means is said by ``core.keys``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import from_numpy, to_numpy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.keys import ChunkKeys

__all__ = ["decode_names", "index_lists"]

_NUMBER = r"(0|[1-9][0-9]{0,17})"


def decode_names(
    names: pa.Array, keys: ChunkKeys, chunk_counts: Sequence[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Find which names are of chunks of an array, and of which.

    Parameters
    ----------
    names
        Names below the array, in any order; those that name nothing are passed over, as Zarr does.
    keys
        How the array names its chunks.
    chunk_counts
        Its grid.

    Returns
    -------
    rows, index
        Which of the names, and for each the chunk's place, as rows × dimensions.
    """
    prefix = "c" if keys.name == "default" else ""
    if keys.ndim == 0:
        wanted = prefix or "0"
        rows = np.flatnonzero(to_numpy(pc.equal(names, wanted)))
        return rows, np.zeros((len(rows), 0), np.int64)
    separator = re.escape(keys.separator)
    lead = prefix + separator if prefix else ""
    pattern = f"^{lead}{separator.join([_NUMBER] * keys.ndim)}$"
    rows = np.flatnonzero(to_numpy(pc.match_substring_regex(names, pattern)))
    chosen = names.take(from_numpy(rows, pa.int64()))
    parts = pc.split_pattern(chosen, keys.separator)
    numbers = parts.flatten()
    width = keys.ndim + bool(prefix)
    if prefix:  # every name begins with the same part
        kept = np.arange(len(numbers)).reshape(-1, width)[:, 1:].ravel()
        numbers = numbers.take(from_numpy(kept, pa.int64()))
    index = to_numpy(numbers.cast(pa.int64())).reshape(-1, keys.ndim)
    inside = (index < np.array(chunk_counts, np.int64)).all(axis=1)
    return rows[inside], index[inside]


def index_lists(index: npt.NDArray[np.int64]) -> pa.Array:
    """Write places of chunks as a column of lists."""
    count, ndim = index.shape
    offsets = from_numpy(np.arange(count + 1) * ndim, pa.int32())
    return pa.ListArray.from_arrays(offsets, from_numpy(index.ravel(), pa.int64()))
