"""A place for bulk writes: arrays as values, a storage in memory, and what stands there afterwards."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow import NodeNotFoundError
from icechunk_arrow.core import coords
from icechunk_arrow.core.chunks import concat_sorted
from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.documents import parse_document, split_document
from icechunk_arrow.core.ids import encode_id
from icechunk_arrow.core.snapshot import Node
from icechunk_arrow.engine.bulk import BulkSettings, Layout
from icechunk_arrow.engine.context import ArrayView
from icechunk_arrow.engine.manifest_writer import ManifestWriter
from icechunk_arrow.engine.references import REFERENCES, stage_rows
from icechunk_arrow.formats import manifest
from icechunk_arrow.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from icechunk_arrow.engine.bulk import StagedReferences
    from icechunk_arrow.storage.port import Storage

__all__ = ["TINY", "BulkPlace", "Row", "in_memory", "manifest_names", "table_of", "view_of"]

TINY = BulkSettings(
    slice_rows=7,
    held_rows=10,
    held_rows_in_all=15,
    gather_rows=20,
    gather_bytes=1 << 30,
    run_batch_rows=3,
)
Row = tuple[str, tuple[int, ...], int]
"""Path, chunk, and a number from which location, offset and length follow."""


def view_of(path: str, node_id: int, counts: Sequence[int], names: Sequence[str] = ()) -> ArrayView:
    """Make an array with so many chunks along each dimension."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(counts),
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * len(counts)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {},
    }
    if names:
        document["dimension_names"] = list(names)
    parsed = parse_document(json.dumps(document).encode(), path=path)
    columns, attributes, extension = split_document(parsed)
    node = Node(id=node_id, path=path, columns=columns, attributes=attributes, extension=extension)
    return ArrayView(node=node, grid=node.grid, keys=node.chunk_keys)


def _location(number: int) -> str:
    return f"s3://bucket/{number // 3}.nc"


def table_of(rows: Iterable[Row], *, paths: bool = True) -> pa.Table:
    """Put rows into a table with the places as lists."""
    rows = list(rows)
    columns: dict[str, Any] = {
        "index": from_values([list(chunk) for _, chunk, _ in rows], pa.list_(pa.uint64())),
        "location": from_values([_location(number) for _, _, number in rows], pa.string()),
        "offset": from_values([number * 10 for _, _, number in rows], pa.int64()),
        "length": from_values([number + 1 for _, _, number in rows], pa.uint32()),
    }
    if paths:
        columns["path"] = from_values([path for path, _, _ in rows], pa.string())
    return pa.table(columns)


def manifest_names(storage: Storage) -> list[str]:
    """Ids of all manifests in a storage, which holds nothing else."""
    keys = [info.key for info in storage.list()]
    assert all(key.startswith("i/") for key in keys)
    return [key[2:].removesuffix(".parquet") for key in keys]


def in_memory(staged: StagedReferences) -> pa.Table:
    """Rows that are left to the commit."""
    return concat_sorted(staged.bulk.tables)


@dataclass
class BulkPlace:
    """Arrays and a storage."""

    views: dict[str, ArrayView]
    limit: int = 8
    axis: int = 0
    settings: BulkSettings = TINY
    storage: Storage = field(default_factory=MemoryStorage)

    def get_array(self, path: str) -> ArrayView:
        """Give an array, or raise as a session does."""
        if path not in self.views:
            raise NodeNotFoundError(f"there is no array {path!r} here", path=path)
        return self.views[path]

    def stage(self, path: str | None, source: Any, **more: Any) -> list[StagedReferences]:
        """Make one bulk write."""
        ids = count()
        writer = ManifestWriter(self.storage, lambda: encode_id(next(ids).to_bytes(12, "big")))
        return stage_rows(
            self.get_array,
            path,
            source,
            REFERENCES,
            layout_of=lambda _: Layout(limit=self.limit, axis=self.axis),
            writer=writer,
            settings=self.settings,
            **more,
        )

    def tables(self, staged: Iterable[StagedReferences]) -> list[tuple[int, pa.Table]]:
        """Give all tables: those in memory, and the manifests'; their entries are checked."""
        found: list[tuple[int, pa.Table]] = []
        sizes: dict[str, int] = {}
        for each in staged:
            found += ((each.node_id, table) for table in each.bulk.tables)
            assert list(each.bulk.sizes) == [entry.manifest for entry in each.bulk.inventory]
            sizes |= each.bulk.sizes
            for entry in each.bulk.inventory:
                data = self.storage.get(f"i/{entry.manifest}.parquet")
                assert len(data) == each.bulk.sizes[entry.manifest]
                table = manifest.decode(data, entry.manifest)
                assert (entry.row, entry.row_count) == (0, table.num_rows)
                found.append((each.node_id, table))
        assert sorted(sizes) == sorted(manifest_names(self.storage))
        return found

    def read(self, staged: Iterable[StagedReferences]) -> dict[tuple[str, tuple[int, ...]], int]:
        """Tell which number stands at each chunk; each is checked to stand there once."""
        paths = {view.node.id: path for path, view in self.views.items()}
        found: dict[tuple[str, tuple[int, ...]], int] = {}
        for node_id, table in self.tables(staged):
            keys = table["coord"].to_pylist()
            assert keys == sorted(keys)
            assert set(table["array_id"].to_pylist()) == {node_id}
            for row in table.to_pylist():
                number = row["length"] - 1
                place = paths[node_id], coords.decode_one(row["coord"])
                assert place not in found
                assert (row["chunk_file"], row["offset"]) == (_location(number), number * 10)
                assert row["inline_data"] is row["crc32c"] is None
                found[place] = number
        return found
