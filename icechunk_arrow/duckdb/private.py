"""Tables over chunks as Arrow: the SQL of this package, run in a DuckDB of its own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from icechunk_arrow.engine.context import new_id
from icechunk_arrow.engine.sealed_files import SealedFiles
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.storage.table_files import TableFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from icechunk_arrow.storage.port import Storage

__all__ = ["arrow_table", "connection", "new_files"]


def new_files(storage: Storage) -> TableFiles:
    """Make a file system for one storage, with a protocol that no other has."""
    return TableFiles(storage, f"icechunk-{new_id().lower()}", SealedFiles(storage).read)


@contextmanager
def connection(files: TableFiles) -> Iterator[Any]:
    """Give a connection to a DuckDB of its own; what its reads meet is raised as it is, not as a text."""
    try:
        import duckdb  # noqa: PLC0415  (an extra, and slow to import)
    except ImportError as error:
        raise InvalidInputError(
            "this table is SQL over chunk manifests and needs DuckDB: pip install 'icechunk-arrow[duckdb]'"
        ) from error
    with duckdb.connect() as con:
        con.register_filesystem(files)
        try:
            yield con
        except duckdb.Error as error:
            if files.failure is not None:
                raise files.failure from error
            raise
        finally:
            con.unregister_filesystem(files.protocol)


def arrow_table(con: Any, query: str, schema: pa.Schema) -> pa.Table:
    """Run a query and give its rows in the types of a schema."""
    found = con.sql(query).to_arrow_table()
    return found.select(schema.names).cast(schema)
