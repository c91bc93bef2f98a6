"""The live manifests of a snapshot: the column ``inventories`` of its structure file, and what it tells.

Owns the questions that go from a manifest to its arrays; the way from an array to its manifests is the node's.
"""

from __future__ import annotations

from itertools import islice
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
from icechunk_arrow.core.inventories import Entries
from icechunk_arrow.core.manifests import extent_numbers
from icechunk_arrow.formats.layout import file_id, file_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import numpy.typing as npt

    from icechunk_arrow.core.boxes import Box
    from icechunk_arrow.core.snapshot import Snapshot

__all__ = [
    "check_extents",
    "entries_column",
    "extent_lists",
    "extents",
    "manifest_row_counts",
    "manifest_table",
    "read_entries",
    "tenants",
    "with_entries",
]

_SUFFIX = np.frombuffer(file_name("").encode(), np.uint8)


def read_entries(lists: pa.Array) -> Entries:
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
    ranks, pairs = extent_numbers(extents)
    coded = names.dictionary_encode()
    return Entries(
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


def check_extents(entries: Entries) -> None:
    """Check what look-ups by arithmetic rely on: as many rows as there is room for, or exactly so many.

    Raises
    ------
    ValueError
        There is another number of rows.
    """
    if (entries.pairs[:, 0] >= entries.pairs[:, 1]).any():
        raise ValueError("an inventory's extent is empty")
    for which, boxes in entries.boxes():
        room = (boxes[:, :, 1] - boxes[:, :, 0]).astype(np.float64).prod(axis=1)
        counts = entries.row_counts[which]
        dense = (entries.flags[which] & DENSE) != 0
        if (counts > room).any() or (counts != room)[dense].any():
            raise ValueError("an inventory's extent does not go with its number of rows")


def entries_column(
    entries: Entries, valid: npt.NDArray[np.bool_], arrow_type: pa.DataType
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


def extent_lists(entries: Entries, arrow_type: pa.DataType) -> pa.Array:
    """Make a column of the extents."""
    pair = arrow_type.value_type
    numbers = from_numpy(entries.pairs.reshape(-1), pair.value_type)
    pairs = pa.Array.from_buffers(pair, len(entries.pairs), [None], children=[numbers])
    buffers = [None, pa.py_buffer(offsets_of(entries.ranks))]
    return pa.Array.from_buffers(arrow_type, len(entries), buffers, children=[pairs])


def _file_names(entries: Entries) -> pa.Array:
    """Name the manifest of each entry; all names are of one length."""
    if not len(entries):
        return from_values([], pa.string())
    ids = np.array(entries.manifests, "S")
    letters = ids.view(np.uint8).reshape(len(ids), ids.itemsize)
    names = np.empty((len(ids), ids.itemsize + len(_SUFFIX)), np.uint8)
    names[:, : ids.itemsize], names[:, ids.itemsize :] = letters, _SUFFIX
    ends = offsets_of(np.full(len(entries), names.shape[1]))
    return binary_from_numpy(ends, names[entries.codes].reshape(-1), pa.string())


def with_entries(
    base: Entries,
    node_ids: npt.NDArray[np.uint32],
    replaced: Collection[str],
    added: pa.Table | None,
) -> tuple[Entries, set[int]]:
    """Take the entries of some manifests out of a snapshot's, and put others in; tell which nodes' rows change.

    ``node_ids`` are by row, ``added`` has the columns of ``core.manifests.ENTRY_SCHEMA``. An array's
    entries stay in the order of their extents.
    """
    kept = base.without(replaced)
    touched = set() if kept is base else set(base.owners[base.of_manifests(replaced)].tolist())
    if added is None or not added.num_rows:
        return kept, touched
    coded = one_array(added["manifest"]).dictionary_encode()
    ranks, pairs = extent_numbers(one_array(added["extent"]))
    by_id = np.argsort(node_ids)
    owners = by_id[np.searchsorted(node_ids, to_numpy(added["array_id"]), sorter=by_id)]
    come = Entries(
        manifests=tuple(coded.dictionary.to_pylist()),
        codes=to_numpy(coded.indices).astype(np.int64),
        owners=owners,
        rows=to_numpy(added["row"]),
        row_counts=to_numpy(added["row_count"]),
        stored_bytes=to_numpy(added["stored_bytes"]),
        flags=to_numpy(added["flags"]),
        ranks=ranks,
        pairs=pairs,
    )
    return kept.united(come), touched | set(owners.tolist())


def tenants(snapshot: Snapshot, manifests: Iterable[str]) -> dict[str, dict[int, int]]:
    """Tell which arrays have rows in each of these manifests, and how many."""
    found: dict[str, dict[int, int]] = {name: {} for name in manifests}
    if not found:
        return found
    entries = snapshot.entries
    chosen = np.flatnonzero(entries.of_manifests(found))
    owners = snapshot.rows.ids[entries.owners[chosen]]
    names, counts = entries.codes[chosen], entries.row_counts[chosen]
    for code, owner, count in zip(names.tolist(), owners.tolist(), counts.tolist(), strict=True):
        found[entries.manifests[code]][owner] = count
    return found


def extents(snapshot: Snapshot, manifest: str) -> dict[int, Box]:
    """Give the extents of a manifest's rows, by array."""
    entries = snapshot.entries
    chosen = np.flatnonzero(entries.of_manifests([manifest]))
    owners = snapshot.rows.ids[entries.owners[chosen]]
    some = entries.taken(chosen)
    pairs = map(tuple, some.pairs.tolist())
    return {
        owner: tuple(islice(pairs, rank))
        for owner, rank in zip(owners.tolist(), some.ranks.tolist(), strict=True)
    }


def manifest_row_counts(snapshot: Snapshot) -> dict[str, int]:
    """Count the rows of every live manifest."""
    entries = snapshot.entries
    return dict(zip(entries.manifests, entries.sums().tolist(), strict=True))


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
    found = snapshot.entries
    count = len(found.manifests)
    order = np.lexsort([found.rows, found.codes])
    entries = found.taken(order)
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
    ends = offsets_of(np.bincount(found.codes, minlength=count))
    columns = [
        from_values(found.manifests, pa.string()),
        from_values([snapshot.manifest_sizes[name] for name in found.manifests], pa.uint64()),
        from_numpy(found.sums(), pa.uint64()),
        pa.Array.from_buffers(arrays_type, count, [None, pa.py_buffer(ends)], children=[structs]),
    ]
    return pa.Table.from_arrays(columns, schema=MANIFEST_SCHEMA)
