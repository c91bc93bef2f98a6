"""Any table of one repository or of several, as Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_arrow.core.columns import empty_table
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.tables.columns import repeated
from icechunk_arrow.tables.metadata import metadata_table
from icechunk_arrow.tables.schemas import METADATA_TABLES, TABLES, with_repository
from icechunk_arrow.tables.selection import find_earlier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.tables.selection import Selection

__all__ = ["read_table", "read_together"]


def read_table(context: Context, name: str, snapshot_id: str, since: str | None = None) -> pa.Table:
    """Make a table of a snapshot; ``changes`` is what happened since another one, or its parent."""
    if name not in TABLES:
        raise InvalidInputError(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    if since is not None and name != "changes":
        raise InvalidInputError(f"since goes with the table 'changes', not with {name!r}")
    if name in METADATA_TABLES:
        return metadata_table(context, name, snapshot_id)
    # icechunk_arrow.duckdb begins with what callers attach, and that is repositories, which read tables
    from icechunk_arrow.duckdb.reading import change_table, chunk_table  # noqa: PLC0415

    if name == "changes":
        return change_table(context, find_earlier(context, snapshot_id, since), snapshot_id)
    return chunk_table(context, name, snapshot_id)


def read_together(
    contexts: Mapping[str, Context], name: str, selection: Selection, since: str | None = None
) -> pa.Table:
    """Make a table of several repositories, with a first column that says which."""
    parts = []
    for repository, context in contexts.items():
        table = read_table(context, name, selection.resolve(context), since)
        schema = with_repository(table.schema)
        columns = [repeated(repository, table.num_rows), *table.columns]
        parts.append(pa.Table.from_arrays(columns, schema=schema))
    if not parts:
        return empty_table(with_repository(TABLES[name]))
    return pa.concat_tables(parts)
