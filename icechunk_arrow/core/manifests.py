"""What a commit does to the rows of live manifests: which go, and what is left.

Pure decisions on extents and columns. Where rows are put is the business of ``core.placement``.

Specification: schemas/README.md#manifests-of-a-snapshot
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.chunks import describe_arrays, keep_rows, rows_of_arrays
from icechunk_arrow.core.columns import (
    from_numpy,
    from_values,
    indices,
    list_items,
    list_lengths,
    one_array,
    run_edges,
    to_numpy,
)
from icechunk_arrow.core.inventories import Inventories

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.chunk_set import ChunkSet
    from icechunk_arrow.core.boxes import Box

__all__ = [
    "ENTRY_SCHEMA",
    "describe",
    "entries_of_array",
    "extent_numbers",
    "inventories_by_array",
    "subtract",
]


def subtract(
    table: pa.Table, removals: Mapping[int, ChunkSet], removed: Collection[int]
) -> pa.Table:
    """Take rows out: all of removed arrays, and of others the chunks of a set."""
    ids, starts, counts = rows_of_arrays(table)
    stays = np.ones(table.num_rows, np.bool_)
    column = one_array(table["coord"])
    for array_id, start, count in zip(ids.tolist(), starts.tolist(), counts.tolist(), strict=True):
        if array_id in removed:
            stays[start : start + count] = False
        elif array_id in removals:
            gone = removals[array_id].mask(column.slice(start, count))
            stays[start : start + count] = ~gone
    return keep_rows(table, stays)


ENTRY_SCHEMA = pa.schema(
    [
        pa.field("array_id", pa.uint32(), nullable=False),
        pa.field("manifest", pa.string(), nullable=False),
        pa.field("row", pa.uint64(), nullable=False),
        pa.field("extent", pa.list_(pa.list_(pa.uint64(), 2)), nullable=False),
        pa.field("flags", pa.uint16(), nullable=False),
        pa.field("row_count", pa.uint64(), nullable=False),
        pa.field("stored_bytes", pa.uint64(), nullable=False),
    ]
)
"""Inventory entries of many arrays, as columns."""


def describe(
    table: pa.Table,
    manifest: str,
    ndims: Mapping[int, int],
    within: Mapping[int, Box] | None = None,
) -> pa.Table:
    """Describe what a manifest holds of each array, as ``describe_arrays`` does: its entries, in order."""
    found = describe_arrays(table, ndims, within)
    return _entries(
        found.array_ids,
        [manifest] * len(found.array_ids),
        found.rows,
        (found.starts, found.stops, found.ndims),
        found.flags,
        found.row_counts,
        found.stored_bytes,
    )


def entries_of_array(array_id: int, held: Inventories) -> pa.Table:
    """Put one array's entries into columns."""
    count, ndim = held.starts.shape
    return _entries(
        np.full(count, array_id, np.uint32),
        held.manifests,
        held.rows,
        (held.starts, held.stops, np.full(count, ndim)),
        held.flags,
        held.row_counts,
        held.stored_bytes,
    )


def _entries(
    array_ids: npt.NDArray[Any],
    manifests: Sequence[str],
    rows: npt.NDArray[Any],
    extents: tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]],
    flags: npt.NDArray[Any],
    row_counts: npt.NDArray[Any],
    stored_bytes: npt.NDArray[Any],
) -> pa.Table:
    starts, stops, ndims = extents
    inside = np.arange(starts.shape[1]) < ndims[:, None]
    numbers = from_numpy(np.stack([starts, stops], axis=2)[inside].reshape(-1), pa.uint64())
    offsets = np.zeros(len(ndims) + 1, np.int32)
    np.cumsum(ndims, out=offsets[1:])
    pair = ENTRY_SCHEMA.field("extent").type
    pairs = pa.Array.from_buffers(pair.value_type, int(offsets[-1]), [None], children=[numbers])
    columns = [
        from_numpy(array_ids, pa.uint32()),
        _names(manifests),
        from_numpy(rows, pa.uint64()),
        pa.Array.from_buffers(pair, len(ndims), [None, pa.py_buffer(offsets)], children=[pairs]),
        from_numpy(flags, pa.uint16()),
        from_numpy(row_counts, pa.uint64()),
        from_numpy(stored_bytes, pa.uint64()),
    ]
    return pa.Table.from_arrays(columns, schema=ENTRY_SCHEMA)


def _names(manifests: Sequence[str]) -> pa.Array:
    if len(set(manifests)) == 1:
        one = from_values(manifests[:1], pa.string())
        return one.take(indices(np.zeros(len(manifests), np.int64)))
    return from_values(manifests, pa.string())


def extent_numbers(extents: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Read a column of extents, of either width: how many pairs each has, and all pairs as an n × 2 array.

    Raises
    ------
    ValueError
        Something is null.
    """
    pairs = list_items(extents)
    numbers = list_items(pairs)
    if extents.null_count or pairs.null_count or numbers.null_count:
        raise ValueError("an extent is missing, or a number in one")
    return list_lengths(extents), to_numpy(numbers).astype(np.uint64).reshape(-1, 2)


def inventories_by_array(entries: pa.Table) -> dict[int, Inventories]:
    """Sort entries by array; each array's in the order of their extents."""
    if not entries.num_rows:
        return {}
    ids = to_numpy(entries["array_id"])
    ndims, pairs = extent_numbers(one_array(entries["extent"]))
    offsets = np.cumsum(ndims) - ndims
    names = entries["manifest"].to_pylist()
    numbers = ("row", "flags", "row_count", "stored_bytes")
    columns = {name: to_numpy(entries[name]) for name in numbers}
    found: dict[int, Inventories] = {}
    order = np.argsort(ids, kind="stable")
    for first, last in pairwise(run_edges(ids[order]).tolist()):
        some = order[first:last]
        ndim = int(ndims[some[0]])
        box = pairs[offsets[some][:, None] + np.arange(ndim)]
        held = Inventories(
            manifests=tuple(names[row] for row in some.tolist()),
            rows=columns["row"][some],
            starts=box[:, :, 0],
            stops=box[:, :, 1],
            flags=columns["flags"][some],
            row_counts=columns["row_count"][some],
            stored_bytes=columns["stored_bytes"][some],
        )
        found[int(ids[some[0]])] = held.in_order()
    return found
