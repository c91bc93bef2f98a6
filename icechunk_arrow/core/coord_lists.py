"""Encoded coordinates of any rank as lists of indices: a coordinate itself says how many it has.

For columns that hold chunks of many arrays, such as those of a log. Where the rank is known,
``coords.decode`` is faster and stricter.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import bitmap, from_numpy, offsets_and_data, offsets_of, validity
from icechunk_arrow.errors import CorruptFileError

__all__ = ["INDEX_LIST", "decode_lists"]

INDEX_LIST = pa.list_(pa.int64())
"""Type of a chunk's place along each dimension."""


def decode_lists(coords: pa.Array) -> pa.Array:
    """Decode a binary column into lists of indices; null stays null.

    Raises
    ------
    CorruptFileError
        A value ends within an index.
    """
    offsets, data = offsets_and_data(coords)
    valid = validity(coords)
    place = offsets[:-1].astype(np.int64)
    stop = np.where(valid, offsets[1:], offsets[:-1]).astype(np.int64)
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    rows, found = [], []
    waiting = np.flatnonzero(place < stop)
    while len(waiting):
        at = place[waiting]
        size = np.int64(1) << (padded[at] >> 6).astype(np.int64)
        value = (padded[at] & 63).astype(np.int64)
        for byte in range(1, int(size.max())):
            longer = size > byte
            value[longer] = value[longer] << 8 | padded[at[longer] + byte]
        place[waiting] = at + size
        if (place[waiting] > stop[waiting]).any():
            raise CorruptFileError("a chunk coordinate ends within an index")
        rows.append(waiting)
        found.append(value)
        waiting = waiting[place[waiting] < stop[waiting]]
    every = np.concatenate([np.empty(0, np.int64), *rows])
    order = np.argsort(every, kind="stable")
    values = np.concatenate([np.empty(0, np.int64), *found])[order]
    lengths = np.bincount(every, minlength=len(coords))
    nulls = bitmap(valid)
    return pa.Array.from_buffers(
        INDEX_LIST,
        len(coords),
        [nulls, pa.py_buffer(offsets_of(lengths))],
        children=[from_numpy(values, pa.int64())],
    )
