"""The tables of a snapshot for the data source: how they come in parts, and the rows of each as Arrow.

Owns how the table ``chunks`` is divided among tasks: by manifests, each read by one task and by nobody else. Other
tables come in one part: they are as small as the metadata that they are made of, or need all manifests at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.chunks import are_virtual
from icechunk_arrow.core.columns import (
    from_numpy,
    from_values,
    indices,
    one_array,
    to_numpy,
    validity,
)
from icechunk_arrow.core.coord_lists import decode_lists
from icechunk_arrow.core.manifest_columns import IN_TABLES
from icechunk_arrow.tables.columns import int64, repeated, table_of
from icechunk_arrow.tables.places import root_uri
from icechunk_arrow.tables.reading import read_table
from icechunk_arrow.tables.schemas import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.manifest_file import ManifestFile

__all__ = ["TableRead"]

_PART_BYTES = 8 << 20
"""Manifests of so many bytes make a part: about a million chunks."""
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableRead:
    """A table of one snapshot: pickles, and every task reads its part."""

    context: Context
    name: str
    snapshot_id: str
    since: str | None = None
    columns: tuple[str, ...] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow."""
        schema = TABLES[self.name]
        if self.columns is None:
            return schema
        return pa.schema([schema.field(name) for name in self.columns])

    def parts(self) -> list[tuple[str, ...]]:
        """Say which manifests each part has; a table that is not of chunks has one part, without any."""
        if self.name != "chunks":
            return [()]
        sizes = self.context.files.read_snapshot(self.snapshot_id).manifest_sizes
        ends = np.cumsum(np.fromiter(sizes.values(), np.int64, len(sizes)))
        groups = (ends - 1) // _PART_BYTES
        edges = np.flatnonzero(np.diff(groups, prepend=-1)).tolist()
        names = list(sizes)
        return [tuple(names[a:b]) for a, b in zip(edges, [*edges[1:], len(names)], strict=True)]

    def read_part(self, manifests: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Give the rows of one part."""
        for table in self._tables(manifests):
            yield from table.select(self.schema.names).to_batches(max_chunksize=_BATCH_ROWS)

    def _tables(self, manifests: tuple[str, ...]) -> Iterator[pa.Table]:
        if self.name != "chunks":
            yield read_table(self.context, self.name, self.snapshot_id, self.since)
            return
        snapshot = self.context.files.read_snapshot(self.snapshot_id)
        for manifest in manifests:
            opened = self.context.files.open_manifest(manifest)
            for group in range(opened.sealed.row_group_count):
                rows = self.context.files.read_rows(manifest, group).table
                yield _chunk_rows(
                    rows, snapshot, opened, manifest, root_uri(self.context.storage.url)
                )


def _chunk_rows(
    rows: pa.Table, snapshot: Snapshot, opened: ManifestFile, manifest: str, root: str
) -> pa.Table:
    """Turn the rows of a manifest into those of the table ``chunks``."""
    count = rows.num_rows
    schema = TABLES["chunks"]
    found = {name: one_array(rows[name]) for name in rows.column_names}
    kind, location = _places(found["chunk_file"], count, root)
    others = [
        _as_in_tables(found[each.name], each.in_tables)
        if each.name in found
        else pa.nulls(count, each.in_tables)
        for each in IN_TABLES[1:]
    ]
    columns = [
        _paths(found["array_id"], snapshot, opened),
        int64(found["array_id"]),
        decode_lists(found["coord"]),
        found["coord"],
        kind,
        location,
        *others,
        repeated(manifest, count),
        repeated(snapshot.id, count),
    ]
    return table_of(schema, columns)


def _as_in_tables(values: pa.Array, kind: pa.DataType | None) -> pa.Array:
    return values if values.type == kind else int64(values)


def _paths(ids: pa.Array, snapshot: Snapshot, opened: ManifestFile) -> pa.Array:
    known, codes = np.unique(to_numpy(ids), return_inverse=True)
    places = [snapshot.rows_by_id.get(node_id) for node_id in known.tolist()]
    if None in places:
        raise opened.wrong(f"it has rows of arrays that the snapshot {snapshot.id} has not")
    return (
        one_array(snapshot.table["path"]).take(from_values(places, pa.int64())).take(indices(codes))
    )


def _places(files: pa.Array, count: int, root: str) -> tuple[pa.Array, pa.Array]:
    """Say of which kind each chunk is, and the URI of the file that it is in."""
    if not pa.types.is_dictionary(files.type):
        files = files.dictionary_encode()
    names = files.dictionary
    kinds = np.zeros(count, np.int64)
    if not len(names):
        return repeated("inline", count), pa.nulls(count, pa.string())
    far = are_virtual(names)
    there = validity(files)
    codes = to_numpy(files.indices).astype(np.int64)
    kinds[there] = np.where(far[codes[there]], 2, 1)
    native = pc.binary_join_element_wise(f"{root}/c", names, "/")
    location = pc.take(pc.if_else(from_numpy(far, pa.bool_()), names, native), files.indices)
    words = from_values(["inline", "native", "virtual"], pa.string())
    return words.take(indices(kinds)), location
