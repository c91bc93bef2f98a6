"""One door to the tables that need no chunk manifest; and the one of settings, a row for each in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.json_values import encode_json
from icechunk_arrow.tables.columns import table_of
from icechunk_arrow.tables.history import operation_table, ref_table, snapshot_table
from icechunk_arrow.tables.nodes import manifest_table, node_table
from icechunk_arrow.tables.schemas import METADATA_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icechunk_arrow.engine.config import RepositoryConfig
    from icechunk_arrow.engine.context import Context

__all__ = ["config_table", "metadata_table"]


def metadata_table(context: Context, name: str, snapshot_id: str) -> pa.Table:
    """Make one of ``schemas.METADATA_TABLES``, of a snapshot or the history that ends with it."""
    match name:
        case "nodes":
            return node_table(context.files, context.files.read_snapshot(snapshot_id))
        case "manifests":
            snapshot = context.files.read_snapshot(snapshot_id)
            return manifest_table(snapshot, context.config.chunk_manifests)
        case "snapshots":
            return snapshot_table(context, snapshot_id)
        case "operations":
            return operation_table(context, snapshot_id)
        case "refs":
            return ref_table(context)
        case _:
            assert name == "config", name
            return config_table(context.config)


def config_table(config: RepositoryConfig) -> pa.Table:
    """Make the table of settings as ``config.yaml`` has them, keys of mappings joined by dots."""
    settings = dict(_flat("", config.to_plain()))
    columns = [
        from_values(list(each), pa.string()) for each in (settings.keys(), settings.values())
    ]
    return table_of(METADATA_TABLES["config"], columns)


def _flat(above: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _flat(f"{above}.{name}" if above else str(name), each)
    else:
        yield above, encode_json(value).decode()
