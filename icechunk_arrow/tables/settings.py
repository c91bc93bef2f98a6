"""The table of settings: those in force, one row for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.json_values import encode_json
from icechunk_arrow.tables.columns import table_of
from icechunk_arrow.tables.schemas import FACTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icechunk_arrow.engine.config import RepositoryConfig

__all__ = ["config_table"]


def config_table(config: RepositoryConfig) -> pa.Table:
    """Make the table of settings as ``config.yaml`` has them, keys of mappings joined by dots."""
    found = dict(_flat("", config.to_plain()))
    columns = [from_values(list(each), pa.string()) for each in (found.keys(), found.values())]
    return table_of(FACTS["config"], columns)


def _flat(above: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _flat(f"{above}.{name}" if above else str(name), each)
    else:
        yield above, encode_json(value).decode()
