"""The live manifests of a snapshot, read off the inventories in its structure file's rows as columns.

Owns the questions that go from a manifest to its arrays; the way from an array to its manifests is the node's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import (
    bitmap,
    from_numpy,
    from_values,
    indices,
    one_array,
    to_numpy,
    validity,
)
from icechunk_arrow.formats.layout import file_id, file_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import numpy.typing as npt

    from icechunk_arrow.core.snapshot import Snapshot

__all__ = [
    "ROW_COUNTS",
    "flat_entries",
    "manifest_row_counts",
    "manifest_table",
    "manifests_of",
    "owner_rows",
    "ranks",
    "tenants",
    "with_entries",
]

ROW_COUNTS = "row_counts"
"""The column beside the structure file's own: how many rows each inventory entry stands for."""


def flat_entries(table: pa.Table) -> pa.Array:
    """All inventory entries of all nodes, one after the other."""
    return one_array(table["inventories"]).flatten()


def manifests_of(table: pa.Table) -> list[str]:
    """Ids of the manifests, in the order in which the rows name them first."""
    files = flat_entries(table).field("inventory_file").dictionary_encode().dictionary
    return [file_id(name) for name in files.to_pylist()]


def owner_rows(table: pa.Table) -> npt.NDArray[np.int64]:
    """For each inventory entry, the row of its array."""
    return to_numpy(pc.list_parent_indices(one_array(table["inventories"]))).astype(np.int64)


def tenants(snapshot: Snapshot, manifests: Iterable[str]) -> dict[str, dict[int, int]]:
    """Tell which arrays have rows in each of these manifests, and how many."""
    found: dict[str, dict[int, int]] = {name: {} for name in manifests}
    if not found:
        return found
    names = flat_entries(snapshot.table).field("inventory_file")
    owners = to_numpy(snapshot.table["id"])[owner_rows(snapshot.table)]
    counts = to_numpy(one_array(snapshot.table[ROW_COUNTS]).flatten())
    wanted = from_values([file_name(name) for name in found], pa.string())
    mask = to_numpy(pc.is_in(names, value_set=wanted))
    chosen = names.take(indices(np.flatnonzero(mask))).to_pylist()
    for name, owner, count in zip(
        chosen, owners[mask].tolist(), counts[mask].tolist(), strict=True
    ):
        found[file_id(name)][owner] = count
    return found


def ranks(snapshot: Snapshot, manifest: str) -> dict[int, int]:
    """Tell how many dimensions the arrays have that have rows in a manifest."""
    entries = flat_entries(snapshot.table)
    name = from_values([file_name(manifest)], pa.string())
    rows = np.flatnonzero(to_numpy(pc.is_in(entries.field("inventory_file"), value_set=name)))
    lengths = to_numpy(pc.list_value_length(entries.field("extent").take(indices(rows))))
    owners = to_numpy(snapshot.table["id"])[owner_rows(snapshot.table)[rows]]
    return dict(zip(owners.tolist(), lengths.tolist(), strict=True))


def manifest_row_counts(snapshot: Snapshot) -> dict[str, int]:
    """Count the rows of every live manifest."""
    coded = flat_entries(snapshot.table).field("inventory_file").dictionary_encode()
    counts = to_numpy(one_array(snapshot.table[ROW_COUNTS]).flatten())
    names = coded.dictionary.to_pylist()
    codes = to_numpy(coded.indices)
    sums = np.bincount(codes, weights=counts, minlength=len(names)).astype(np.int64)
    return {file_id(name): count for name, count in zip(names, sums.tolist(), strict=True)}


def with_entries(table: pa.Table, replaced: Collection[str], added: pa.Table | None) -> pa.Table:
    """Take the entries of some manifests out of a structure's rows, and put others in.

    ``added`` has the columns of ``core.manifests.ENTRY_SCHEMA``. An array's entries stay in the order of their
    extents.
    """
    if not replaced and (added is None or not added.num_rows):
        return table
    lists = one_array(table["inventories"])
    entries = lists.flatten()
    counts = to_numpy(one_array(table[ROW_COUNTS]).flatten())
    owners = owner_rows(table)
    if replaced:
        gone = from_values([file_name(name) for name in replaced], pa.string())
        kept = np.flatnonzero(~to_numpy(pc.is_in(entries.field("inventory_file"), value_set=gone)))
        entries, counts, owners = entries.take(indices(kept)), counts[kept], owners[kept]
    if added is not None and added.num_rows:
        ids = to_numpy(table["id"])
        by_id = np.argsort(ids)
        rows = by_id[np.searchsorted(ids, to_numpy(added["array_id"]), sorter=by_id)]
        entries = pa.concat_arrays([entries, _as_entries(added, entries.type)])
        counts = np.concatenate([counts, to_numpy(added["row_count"])])
        owners = np.concatenate([owners, rows])
        order = _by_owner_and_extent(entries, owners, np.unique(rows))
        if (np.diff(order) != 1).any():
            entries, counts, owners = entries.take(indices(order)), counts[order], owners[order]
    offsets = np.zeros(table.num_rows + 1, np.int32)
    np.cumsum(np.bincount(owners, minlength=table.num_rows), out=offsets[1:])
    nulls = bitmap(validity(lists))
    for name, child in (
        ("inventories", entries),
        (ROW_COUNTS, from_numpy(counts, pa.uint64())),
    ):
        place = table.schema.get_field_index(name)
        field = table.schema.field(place)
        buffers = [nulls, pa.py_buffer(offsets)]
        column = pa.Array.from_buffers(field.type, table.num_rows, buffers, children=[child])
        table = table.set_column(place, field, column)
    return table


def _as_entries(added: pa.Table, entry_type: pa.DataType) -> pa.Array:
    coded = one_array(added["manifest"]).dictionary_encode()
    names = from_values([file_name(name) for name in coded.dictionary.to_pylist()], pa.string())
    children = [
        names.take(coded.indices),
        one_array(added["row"]),
        one_array(added["extent"]),
        one_array(added["flags"]),
    ]
    return pa.Array.from_buffers(entry_type, added.num_rows, [None], children=children)


def _by_owner_and_extent(
    entries: pa.Array, owners: npt.NDArray[np.int64], touched: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Order entries by array; among those of a touched array by extent, the others stay as they were."""
    order = np.argsort(owners, kind="stable")
    held = owners[order]
    several = touched[np.bincount(held)[touched] > 1]
    places = np.flatnonzero(np.isin(held, several))
    if not len(places):
        return order
    some = entries.take(indices(order[places]))
    extents = some.field("extent")
    ranks = to_numpy(pc.list_value_length(extents)).astype(np.int64)
    numbers = np.zeros((len(places), 2 * int(ranks.max(initial=0))), np.uint64)
    inside = np.arange(numbers.shape[1]) < 2 * ranks[:, None]
    numbers[inside] = to_numpy(extents.flatten().flatten())
    names = np.array(some.field("inventory_file").to_pylist(), "S")
    keys = [names, *numbers.T[::-1], held[places]]
    order[places] = order[places][np.lexsort(keys)]
    return order


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
    entries = flat_entries(snapshot.table)
    owners = owner_rows(snapshot.table)
    coded = entries.field("inventory_file").dictionary_encode()
    names = coded.dictionary
    codes = to_numpy(coded.indices).astype(np.int64)
    rows = to_numpy(entries.field("row"))
    counts = to_numpy(one_array(snapshot.table[ROW_COUNTS]).flatten())
    order = np.lexsort([rows, codes])
    offsets = np.zeros(len(names) + 1, np.int32)
    np.cumsum(np.bincount(codes, minlength=len(names)), out=offsets[1:])
    some = indices(order)
    children = [
        one_array(snapshot.table["path"]).take(indices(owners[order])),
        entries.field("row").take(some),
        from_numpy(counts[order], pa.uint64()),
        entries.field("extent").take(some),
        entries.field("flags").take(some),
    ]
    arrays_type = MANIFEST_SCHEMA.field("arrays").type
    structs = pa.Array.from_buffers(arrays_type.value_type, len(order), [None], children=children)
    columns = [
        from_values([file_id(name) for name in names.to_pylist()], pa.string()),
        from_values([snapshot.manifest_sizes[file_id(n)] for n in names.to_pylist()], pa.uint64()),
        from_numpy(
            np.bincount(codes, weights=counts, minlength=len(names)).astype(np.uint64), pa.uint64()
        ),
        pa.Array.from_buffers(
            arrays_type, len(names), [None, pa.py_buffer(offsets)], children=[structs]
        ),
    ]
    return pa.Table.from_arrays(columns, schema=MANIFEST_SCHEMA)
