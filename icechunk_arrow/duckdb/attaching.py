"""Schemas in the caller's DuckDB connection whose views are the tables of one repository or several.

Owns what stands in the connection and how it comes and goes: all of it in one transaction, so that others see the
views of one state or of another. What the views say is in ``definitions``.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakValueDictionary

from icechunk_arrow.duckdb.definitions import names_in, schema_statements
from icechunk_arrow.duckdb.reading import CheckedSource, checked_files
from icechunk_arrow.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from icechunk_arrow.tables.attaching import Attached, Attachment, attached_elsewhere
from icechunk_arrow.tables.selection import Selection, Which
from icechunk_arrow.tables.sql import DUCKDB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icechunk_arrow.storage.table_files import TableFiles
    from icechunk_arrow.tables.attaching import Place

__all__ = ["Attached", "attach", "detach", "refresh"]

_MARK = "_attached"
_live: WeakValueDictionary[str, _Connected] = WeakValueDictionary()
"""Attachments by the token that stands in their schema; DuckDB itself keeps them, by its file systems."""


class _Connected:
    """What is attached to a connection, and the file system by which DuckDB reads each repository."""

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self.files: dict[str, TableFiles] = {
            label: checked_files(context.storage) for label, context in attachment.contexts.items()
        }
        for each in self.files.values():
            each.keeper = self

    def unregister(self, con: Any) -> None:
        """Take the file systems from a connection."""
        for each in self.files.values():
            con.unregister_filesystem(each.protocol)


def attach(
    con: Any,
    repository: Place | Mapping[str, Place],
    name: str = "icechunk",
    *,
    storage_options: Mapping[str, Any] | None = None,
    **which: Unpack[Which],
) -> Attached:
    """Make a schema with the tables of a snapshot as views over its live files.

    The views are ``nodes``, ``chunks``, ``arrays``, ``manifests``, ``files``, ``snapshots``, ``refs``,
    ``operations`` and ``config``; the macros ``coord_encode``, ``coord_decode``, ``chunk_of``, ``chunks_in`` and
    ``changes``. They show the same snapshot until :func:`refresh`. Nothing of chunks or of the history is read
    until a query asks for it.

    Parameters
    ----------
    con
        A DuckDB connection. Its cursors see the schema too.
    repository
        A path, URL or open repository; or several, by names, and then every view has a first column ``repository``.
    name
        Name of the schema, which must not exist.
    branch, tag, snapshot_id
        Which snapshot; ``main`` if none is named.
    as_of
        The branch's newest snapshot at that time.
    storage_options
        What the file system of a URL takes.

    Raises
    ------
    AlreadyExistsError
        There is a schema of this name.
    InvalidInputError
        A database of this connection has this name: DuckDB does not tell the two apart.
    CorruptFileError
        A manifest has gone from a local disk. Elsewhere the query that needs it says so.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidInputError(f"{name!r} cannot name a schema; give some text")
    attachment = Attachment.of(name, repository, storage_options, Selection(**which))
    connected = _Connected(attachment)
    for files in connected.files.values():
        con.register_filesystem(files)
    try:
        [(database,)] = con.execute("SELECT current_database()").fetchall()
        attached = _define(con, connected, DUCKDB.identifier(database, name), create=True)
    except BaseException as error:
        connected.unregister(con)
        if f'Schema with name "{name}" already exists' in str(error):
            raise AlreadyExistsError(
                f"there is a schema {name!r} in this connection; choose another name, or detach it first"
            ) from error
        if "Ambiguous reference to catalog or schema" in str(error):
            raise InvalidInputError(
                f"a database of this connection is called {name!r}, and DuckDB does not tell a schema from it; "
                f"choose another name"
            ) from error
        raise
    _live[attachment.token] = connected
    return attached


def refresh(con: Any, name: str = "icechunk") -> Attached:
    """Let the views of a schema show what its branch, tag or time names now.

    Queries that are under way go on with what they began with.
    """
    schema, connected = _find(con, name)
    if connected is None:
        raise attached_elsewhere(f"the schema {name!r}")
    return _define(con, connected, schema, create=False)


def detach(con: Any, name: str = "icechunk") -> None:
    """Remove a schema that :func:`attach` made, with all that is in it."""
    schema, connected = _find(con, name)
    con.execute(f"DROP SCHEMA {schema} CASCADE")
    if connected is not None:
        connected.unregister(con)
        _live.pop(connected.attachment.token, None)


def _find(con: Any, name: str) -> tuple[str, _Connected | None]:
    """Find a schema, quoted, and what is attached by it; None where another process made it.

    One of the database in use comes before those of others.
    """
    rows = con.execute(
        "SELECT database_name, schema_name FROM duckdb_views() WHERE lower(schema_name) = lower(?) "
        "AND view_name = ? ORDER BY database_name = current_database() DESC, database_name LIMIT 1",
        [name, _MARK],
    ).fetchall()
    if not rows:
        raise NotFoundError(f"there is no schema {name!r} that icechunk_arrow.duckdb.attach made")
    schema = DUCKDB.identifier(*rows[0])
    [(token,)] = con.execute(f"SELECT token FROM {schema}.{_MARK}").fetchall()
    connected = _live.get(token)
    if connected is None or not all(
        con.filesystem_is_registered(files.protocol) for files in connected.files.values()
    ):
        return schema, None
    return schema, connected


@contextmanager
def _transaction(con: Any) -> Iterator[None]:
    """Do all or nothing; within a transaction that is under way already, it is part of that."""
    # asked twice: a statement by itself is a transaction of its own, and BEGIN within one would end it
    ids = [con.execute("SELECT current_transaction_id()").fetchall() for _ in range(2)]
    if ids[0] == ids[1]:
        yield
        return
    con.execute("BEGIN TRANSACTION")
    try:
        yield
    except BaseException:
        con.execute("ROLLBACK")
        raise
    con.execute("COMMIT")


def _define(con: Any, connected: _Connected, schema: str, *, create: bool) -> Attached:
    """Make or replace everything in a schema."""
    attachment, files = connected.attachment, connected.files
    united = attachment.united
    sources, snapshots = {}, {}
    for number, (label, context, snapshot_id, _) in enumerate(attachment.resolved()):
        snapshots[label] = snapshot_id
        names = names_in(schema, f"_{number}_" if united else "")
        snapshot = context.files.read_snapshot(snapshot_id)
        sources[label] = CheckedSource(files[label], context, snapshot, names)
    statements = [
        *([f"CREATE SCHEMA {schema}"] if create else []),
        *schema_statements(schema, sources, united=united),
        f"CREATE OR REPLACE VIEW {schema}.{_MARK} AS SELECT {DUCKDB.text(attachment.token)} AS token",
    ]
    for label, source in sources.items():
        files[label].check(source.folder)
    with _transaction(con), ExitStack() as stack:
        for each in files.values():
            stack.enter_context(each.describing())
        con.execute(";\n".join(statements))
    return Attached(name=attachment.name, snapshots=snapshots)
