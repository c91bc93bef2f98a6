"""The live manifests of a snapshot: the column ``inventories`` of its structure file, and them as a table.

Owns how an inventory becomes nested columns and is read from them; what it tells is ``core.inventory``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.chunks import DENSE
from icechunk_arrow.core.columns import (
    binary_from_numpy,
    bitmap,
    from_numpy,
    from_values,
    indices,
    list_items,
    list_lengths,
    offsets_of,
    one_array,
    to_numpy,
    validity,
)
from icechunk_arrow.core.inventory import Inventory
from icechunk_arrow.formats.layout import file_id, file_name

if TYPE_CHECKING:
    import numpy.typing as npt

    from icechunk_arrow.core.snapshot import Snapshot

__all__ = [
    "check_extents",
    "entries_column",
    "extent_lists",
    "manifest_table",
    "read_entries",
]

_SUFFIX = np.frombuffer(file_name("").encode(), np.uint8)


def read_entries(lists: pa.Array) -> Inventory:
    """Read the column ``inventories`` of a structure file, of either width; its numbers stand elsewhere.

    Raises
    ------
    ValueError
        Something is null, or not as long as it says.
    """
    held = list_items(lists)
    names, rows, extents, flags = held.flatten()
    if held.null_count or names.null_count or rows.null_count:
        raise ValueError("an inventory entry lacks its file or row")
    ranks, pairs = _extent_numbers(extents)
    coded = names.dictionary_encode()
    return Inventory(
        manifests=tuple(map(file_id, coded.dictionary.to_pylist())),
        codes=to_numpy(coded.indices).astype(np.int64),
        owners=np.repeat(np.arange(len(lists)), list_lengths(lists)),
        rows=to_numpy(rows).astype(np.uint64),
        row_counts=np.zeros(len(held), np.uint64),
        stored_bytes=np.zeros(len(held), np.uint64),
        flags=np.where(validity(flags), to_numpy(flags), np.uint16(0)),
        ranks=ranks,
        pairs=pairs,
    )


def _extent_numbers(extents: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
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


def check_extents(entries: Inventory) -> None:
    """Check what look-ups by arithmetic rely on: as many rows as there is room for, or exactly so many.

    Raises
    ------
    ValueError
        There is another number of rows.
    """
    if (entries.pairs[:, 0] >= entries.pairs[:, 1]).any():
        raise ValueError("an inventory's extent is empty")
    for which, boxes in entries.boxes_by_rank():
        room = boxes.volumes()
        counts = entries.row_counts[which]
        dense = (entries.flags[which] & DENSE) != 0
        if (counts > room).any() or (counts != room)[dense].any():
            raise ValueError("an inventory's extent does not go with its number of rows")


def entries_column(
    entries: Inventory, valid: npt.NDArray[np.bool_], arrow_type: pa.DataType
) -> pa.Array | None:
    """Make the column ``inventories`` of a type; None where the type is too narrow. Groups have null."""
    struct = arrow_type.value_type
    rows, extents = struct.field("row").type, struct.field("extent").type
    most = 1 << rows.bit_width
    if len(entries) and max(int(entries.rows.max()), int(entries.pairs.max(initial=0))) >= most:
        return None
    children = [
        _file_names(entries),
        from_numpy(entries.rows, rows),
        extent_lists(entries, extents),
        from_numpy(entries.flags, pa.uint16()),
    ]
    held = pa.Array.from_buffers(struct, len(entries), [None], children=children)
    ends = offsets_of(np.bincount(entries.owners, minlength=len(valid)))
    buffers = [bitmap(valid), pa.py_buffer(ends)]
    return pa.Array.from_buffers(arrow_type, len(valid), buffers, children=[held])


def extent_lists(entries: Inventory, arrow_type: pa.DataType) -> pa.Array:
    """Make a column of the extents."""
    pair = arrow_type.value_type
    numbers = from_numpy(entries.pairs.reshape(-1), pair.value_type)
    pairs = pa.Array.from_buffers(pair, len(entries.pairs), [None], children=[numbers])
    buffers = [None, pa.py_buffer(offsets_of(entries.ranks))]
    return pa.Array.from_buffers(arrow_type, len(entries), buffers, children=[pairs])


def _file_names(entries: Inventory) -> pa.Array:
    """Name the manifest of each entry; all names are of one length."""
    if not len(entries):
        return from_values([], pa.string())
    ids = np.array(entries.manifests, "S")
    letters = ids.view(np.uint8).reshape(len(ids), ids.itemsize)
    names = np.empty((len(ids), ids.itemsize + len(_SUFFIX)), np.uint8)
    names[:, : ids.itemsize], names[:, ids.itemsize :] = letters, _SUFFIX
    ends = offsets_of(np.full(len(entries), names.shape[1]))
    return binary_from_numpy(ends, names[entries.codes].reshape(-1), pa.string())


MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("manifest", pa.string(), nullable=False),
        pa.field("size_bytes", pa.uint64(), nullable=False),
        pa.field("chunk_count", pa.uint64(), nullable=False),
        pa.field(
            "arrays",
            pa.list_(
                pa.struct(
                    [
                        pa.field("path", pa.string()),
                        pa.field("row", pa.uint64()),
                        pa.field("chunk_count", pa.uint64()),
                        pa.field("extent", pa.list_(pa.list_(pa.uint64(), 2))),
                        pa.field("flags", pa.uint16()),
                    ]
                )
            ),
            nullable=False,
        ),
    ]
)


def manifest_table(snapshot: Snapshot) -> pa.Table:
    """List the live manifests, each with the arrays that it has rows of, in the order of their rows."""
    inventory = snapshot.entries
    count = len(inventory.manifests)
    order = np.lexsort([inventory.rows, inventory.codes])
    entries = inventory.chosen(order)
    paths = one_array(snapshot.table["path"])
    arrays_type = MANIFEST_SCHEMA.field("arrays").type
    extent_type = arrays_type.value_type.field("extent").type
    children = [
        paths.take(indices(entries.owners)),
        from_numpy(entries.rows, pa.uint64()),
        from_numpy(entries.row_counts, pa.uint64()),
        extent_lists(entries, extent_type),
        from_numpy(entries.flags, pa.uint16()),
    ]
    structs = pa.Array.from_buffers(arrays_type.value_type, len(order), [None], children=children)
    ends = offsets_of(np.bincount(inventory.codes, minlength=count))
    columns = [
        from_values(inventory.manifests, pa.string()),
        from_values([snapshot.manifest_sizes[name] for name in inventory.manifests], pa.uint64()),
        from_numpy(inventory.row_sums(), pa.uint64()),
        pa.Array.from_buffers(arrays_type, count, [None, pa.py_buffer(ends)], children=[structs]),
    ]
    return pa.Table.from_arrays(columns, schema=MANIFEST_SCHEMA)
