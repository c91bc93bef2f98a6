"""What functions in Spark know of each array: its chunk edges, and which manifests have its chunks.

It stands in a variable of the session, so that an expression of it and constants becomes a constant while Spark
plans: that is how files are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icechunk_arrow.core import compute as pc
from icechunk_arrow.tables.entries import grid_run_table

if TYPE_CHECKING:
    import pyarrow as pa

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.tables.manifests import Entries

__all__ = ["KNOWN_TYPE", "known_arrays"]

KNOWN_TYPE = (
    "MAP<STRING, STRUCT<shape: ARRAY<BIGINT>, positions: ARRAY<ARRAY<BIGINT>>, chunks: ARRAY<ARRAY<BIGINT>>, "
    "edges: ARRAY<ARRAY<BIGINT>>, manifests: MAP<STRING, MAP<STRING, ARRAY<ARRAY<BIGINT>>>>>>"
)
"""By paths. ``manifests`` has extents by ids, those by their first letters: Spark looks through a map in order."""
_PARTS = ("position", "chunk", "edge")


def known_arrays(snapshot: Snapshot, nodes: pa.Table, entries: Entries) -> dict[str, Any]:
    """Give the edges and manifests of all arrays, as JSON has it."""
    runs = {row["node_id"]: row["runs"] for row in grid_run_table(snapshot).to_pylist()}
    arrays = nodes.filter(pc.equal(nodes["type"], "array"))
    names = ("path", "node_id", "shape", "chunk_shape")
    known: dict[str, Any] = {}
    for path, node_id, shape, edges in zip(
        *(arrays[name].to_pylist() for name in names), strict=True
    ):
        unequal = runs.get(node_id)
        nothing = [[0]] * len(shape)
        if unequal is None:
            parts = [nothing, nothing, [[edge] for edge in edges]]
        else:
            parts = [[[run[part] for run in axis] for axis in unequal] for part in _PARTS]
        known[path] = {
            "shape": shape,
            **dict(zip(("positions", "chunks", "edges"), parts, strict=True)),
            "manifests": {},
        }
    for path, code, start, stop in zip(
        entries.paths.to_pylist(),
        entries.codes.tolist(),
        entries.bound("start").to_pylist(),
        entries.bound("stop").to_pylist(),
        strict=True,
    ):
        manifest = entries.manifests[code]
        extent = [list(each) for each in zip(start, stop, strict=True)]
        known[path]["manifests"].setdefault(manifest[0], {})[manifest] = extent
    return known
