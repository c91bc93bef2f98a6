"""The tables of a snapshot for the data source: how they come in parts, and the rows of each as Arrow.

Owns how the table ``chunks`` is divided among tasks: by manifests, each read by one task and by nobody else. Other
tables come in one part: they are as small as the metadata that they are made of, or need all manifests at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.tables.chunk_rows import chunks_of_group, root_uri
from icechunk_arrow.tables.reading import read_table
from icechunk_arrow.tables.schemas import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icechunk_arrow.engine.context import Context

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
                yield chunks_of_group(
                    rows, snapshot, opened, manifest, root_uri(self.context.storage.url)
                )
