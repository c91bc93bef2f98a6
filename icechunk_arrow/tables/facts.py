"""One door to the tables that need no chunk manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_arrow.tables.history import operation_table, ref_table, snapshot_table
from icechunk_arrow.tables.manifests import manifest_table
from icechunk_arrow.tables.nodes import node_table
from icechunk_arrow.tables.settings import config_table

if TYPE_CHECKING:
    import pyarrow as pa

    from icechunk_arrow.engine.context import Context

__all__ = ["fact_table"]


def fact_table(context: Context, name: str, snapshot_id: str) -> pa.Table:
    """Make one of the tables of ``schemas.FACTS``, of a snapshot or the history that ends with it."""
    if name == "nodes":
        return node_table(context.files, context.files.read_snapshot(snapshot_id))
    if name == "manifests":
        snapshot = context.files.read_snapshot(snapshot_id)
        return manifest_table(snapshot, context.config.chunk_manifests)
    if name == "snapshots":
        return snapshot_table(context, snapshot_id)
    if name == "operations":
        return operation_table(context, snapshot_id)
    if name == "refs":
        return ref_table(context)
    assert name == "config", name
    return config_table(context.config)
