"""What engines join the rows of manifests with: which array has rows in which file, and unequal chunk edges.

These are no tables for people; their columns are what the texts in ``sql/`` name ``entries`` and ``grid_runs``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import (
    from_numpy,
    from_values,
    indices,
    one_array,
    to_numpy,
    validity,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icechunk_arrow.core.grid import Axis
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.tables.manifests import Entries

__all__ = ["entry_table", "grid_run_table"]

_ENTRIES = pa.schema(
    [
        ("path", pa.string()),
        ("node_id", pa.int64()),
        ("ndim", pa.int64()),
        ("manifest", pa.string()),
        ("file", pa.string()),
        ("row_count", pa.int64()),
        ("starts", pa.list_(pa.int64())),
        ("stops", pa.list_(pa.int64())),
    ]
)
_RUN = pa.struct(
    [pa.field("position", pa.int64()), pa.field("chunk", pa.int64()), pa.field("edge", pa.int64())]
)
_RUNS = pa.schema([("node_id", pa.int64()), ("runs", pa.list_(pa.list_(_RUN)))])
_REGULAR = "regular"


def entry_table(entries: Entries, files: Sequence[str]) -> pa.Table:
    """Put inventory entries into a table; ``files`` names each manifest as the engine does."""
    codes = indices(entries.codes)
    columns = [
        entries.paths,
        from_numpy(entries.node_ids, pa.int64()),
        from_numpy(entries.ranks, pa.int64()),
        from_values(entries.manifests, pa.string()).take(codes),
        from_values(files, pa.string()).take(codes),
        from_numpy(entries.row_counts, pa.int64()),
        entries.bound("start"),
        entries.bound("stop"),
    ]
    return pa.Table.from_arrays(columns, schema=_ENTRIES)


def grid_run_table(snapshot: Snapshot) -> pa.Table:
    """Put the edges of all grids that are not regular into a table, as runs of equal ones."""
    metadata = one_array(snapshot.table["array_metadata"])
    names = metadata.field("chunk_grid").field("name")
    regular = from_values([_REGULAR], pa.string())[0]
    unequal = validity(metadata) & to_numpy(pc.not_equal(names, regular))
    ids = snapshot.rows.ids[unequal].tolist()
    runs = []
    for node_id in ids:
        node = snapshot.find_node_by_id(node_id)
        assert node is not None
        runs.append(
            [
                [
                    {"position": position, "chunk": chunk, "edge": edge}
                    for position, chunk, edge in _runs_of(axis)
                ]
                for axis in node.grid.axes
            ]
        )
    columns = [from_values(ids, pa.int64()), from_values(runs, _RUNS.field("runs").type)]
    return pa.Table.from_arrays(columns, schema=_RUNS)


def _runs_of(axis: Axis) -> Iterator[tuple[int, int, int]]:
    """Give for each run of equal edges where it begins, the number of its first chunk, and the edge."""
    position = chunk = 0
    for edge, count in axis.runs:
        yield position, chunk, edge
        if count is not None:
            position, chunk = position + edge * count, chunk + count
