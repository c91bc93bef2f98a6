"""Putting Arrow columns together: what several tables need.

Knows nothing of snapshots and files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import (
    bitmap,
    conform,
    from_numpy,
    from_values,
    indices,
    offsets_of,
    to_numpy,
    validity,
)
from icechunk_arrow.tables.schemas import EXTENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = [
    "extents",
    "int64",
    "lengths_of",
    "lists_of",
    "products",
    "repeated",
    "scattered",
    "table_of",
]

_LARGEST = 2.0**63


def int64(array: pa.Array) -> pa.Array:
    """Bring numbers, or lists of them, to 64 bits with a sign."""
    kind = pa.list_(pa.int64()) if pa.types.is_list(array.type) else pa.int64()
    return conform(array, kind)


def repeated(text: str, count: int) -> pa.Array:
    """One text, so many times."""
    return from_values([text], pa.string()).take(indices(np.zeros(count, np.int64)))


def scattered(values: pa.Array, rows: npt.NDArray[np.int64], count: int) -> pa.Array:
    """Put values into some rows of a column of so many; the other rows are null."""
    if len(rows) == count:
        return values
    places = np.zeros(count, np.int64)
    places[rows] = np.arange(len(rows))
    valid = np.zeros(count, np.bool_)
    valid[rows] = True
    return values.take(from_numpy(places, pa.int64(), valid))


def products(
    values: npt.NDArray[Any], lengths: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Multiply neighbouring values, so many for each product; and tell which products fit 64 bits."""
    firsts = np.cumsum(lengths) - lengths
    padded = np.insert(values.astype(np.uint64), firsts, 1)  # a product of nothing is 1
    starts = firsts + np.arange(len(lengths))
    if not len(lengths):
        return np.empty(0, np.int64), np.empty(0, np.bool_)
    fits = np.multiply.reduceat(padded.astype(np.float64), starts) < _LARGEST
    return np.where(fits, np.multiply.reduceat(padded, starts), 0).astype(np.int64), fits


def extents(pairs: pa.Array) -> pa.Array:
    """Turn extents as lists of pairs into lists of ``start`` and ``stop``."""
    numbers = to_numpy(int64(pairs.flatten().flatten()))
    ends = [from_numpy(numbers[which::2], pa.int64()) for which in (0, 1)]
    structs = pa.Array.from_buffers(EXTENT.value_type, len(ends[0]), [None], children=ends)
    return lists_of(structs, lengths_of(pairs), validity(pairs))


def lengths_of(lists: pa.Array) -> npt.NDArray[np.int64]:
    """How many items each list has; a null one none."""
    lengths = to_numpy(pc.list_value_length(lists))
    return np.where(validity(lists), lengths, 0).astype(np.int64)


def lists_of(
    items: pa.Array, lengths: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Cut items into lists of these lengths; ``valid`` is False where one is null."""
    buffers = [bitmap(valid), pa.py_buffer(offsets_of(lengths))]
    return pa.Array.from_buffers(pa.list_(items.type), len(lengths), buffers, children=[items])


def table_of(schema: pa.Schema, columns: Sequence[pa.Array]) -> pa.Table:
    """Make a table of columns in the order of a schema."""
    assert len(schema) == len(columns)
    return pa.Table.from_arrays(list(columns), schema=schema)
