"""The tables over chunks of one snapshot, as Arrow: the views that ``attach`` makes, asked for all their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_arrow.duckdb.definitions import names_in, shared_statements
from icechunk_arrow.duckdb.prepared import prepare
from icechunk_arrow.duckdb.private import arrow_table, connection, new_files
from icechunk_arrow.tables.schemas import OVER_CHUNKS

if TYPE_CHECKING:
    import pyarrow as pa

    from icechunk_arrow.engine.context import Context

__all__ = ["chunk_table"]

_SCHEMA = "main"


def chunk_table(context: Context, name: str, snapshot_id: str) -> pa.Table:
    """Make one of the tables of ``schemas.OVER_CHUNKS``."""
    files = new_files(context.storage)
    prepared = prepare(files, context, snapshot_id)
    statements = [*shared_statements(_SCHEMA), *prepared.statements(_SCHEMA)]
    with connection(files) as con:
        with files.describing():
            con.execute(";\n".join(statements))
        return arrow_table(con, f"SELECT * FROM {names_in(_SCHEMA)[name]}", OVER_CHUNKS[name])
