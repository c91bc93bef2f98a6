"""Schemas in somebody's DuckDB connection whose views are the tables of one repository or several.

Owns what stands in the connection and how it comes and goes: all of it in one transaction, so that others see the
views of one state or of another. What the views say is in ``definitions``.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from icechunk_arrow.duckdb.definitions import shared_statements, union_statements
from icechunk_arrow.duckdb.prepared import prepare
from icechunk_arrow.duckdb.private import new_files
from icechunk_arrow.duckdb.quoting import identifier, text
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from icechunk_arrow.tables.attaching import Attached, context_of, members_of
from icechunk_arrow.tables.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.storage.table_files import TableFiles
    from icechunk_arrow.tables.attaching import Place

__all__ = ["Attached", "attach", "context_of", "detach", "refresh"]

_MARK = "_attached"
_live: WeakValueDictionary[str, _Attachment] = WeakValueDictionary()
"""Attachments by the token that stands in their schema; DuckDB itself keeps them, by its file systems."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Member:
    """One repository of an attachment."""

    name: str
    prefix: str
    """What its own relations begin with, where there are several repositories."""
    context: Context
    files: TableFiles
    snapshot_id: str = ""


@dataclass(kw_only=True, eq=False)
class _Attachment:
    name: str
    selection: Selection
    members: list[_Member]
    united: bool
    token: str = field(default_factory=new_id)

    def attached(self) -> Attached:
        return Attached(
            name=self.name, snapshots={each.name: each.snapshot_id for each in self.members}
        )


def attach(
    con: Any,
    repository: Place | Mapping[str, Place],
    name: str = "icechunk",
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    storage_options: Mapping[str, Any] | None = None,
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
    selection = Selection(branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    found = members_of(repository, storage_options)
    members = [
        _Member(
            name=label,
            prefix=f"_{number}_" if found.united else "",
            context=context,
            files=new_files(context.storage),
        )
        for number, (label, context) in enumerate(found.contexts.items())
    ]
    attachment = _Attachment(name=name, selection=selection, members=members, united=found.united)
    for member in members:
        member.files.keeper = attachment
        con.register_filesystem(member.files)
    try:
        [(database,)] = con.execute("SELECT current_database()").fetchall()
        _define(con, attachment, identifier(database, name), create=True)
    except BaseException as error:
        for member in members:
            con.unregister_filesystem(member.files.protocol)
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
    _live[attachment.token] = attachment
    return attachment.attached()


def refresh(con: Any, name: str = "icechunk") -> Attached:
    """Let the views of a schema show what its branch, tag or time names now.

    Queries that are under way go on with what they began with.
    """
    schema, attachment = _find(con, name)
    if attachment is None:
        raise InvalidInputError(
            f"the schema {name!r} was attached by another process, which knows where its files are; detach "
            f"it, and attach it again"
        )
    _define(con, attachment, schema, create=False)
    return attachment.attached()


def detach(con: Any, name: str = "icechunk") -> None:
    """Remove a schema that :func:`attach` made, with all that is in it."""
    schema, attachment = _find(con, name)
    con.execute(f"DROP SCHEMA {schema} CASCADE")
    if attachment is not None:
        for member in attachment.members:
            con.unregister_filesystem(member.files.protocol)
        _live.pop(attachment.token, None)


def _find(con: Any, name: str) -> tuple[str, _Attachment | None]:
    """Find a schema, quoted, and its attachment; None where another process made it.

    One of the database in use comes before those of others.
    """
    known = con.execute(
        "SELECT database_name, schema_name FROM duckdb_views() WHERE lower(schema_name) = lower(?) "
        "AND view_name = ? ORDER BY database_name = current_database() DESC, database_name LIMIT 1",
        [name, _MARK],
    ).fetchall()
    if not known:
        raise NotFoundError(f"there is no schema {name!r} that icechunk_arrow.duckdb.attach made")
    schema = identifier(*known[0])
    [(token,)] = con.execute(f"SELECT token FROM {schema}.{_MARK}").fetchall()
    attachment = _live.get(token)
    if attachment is None or not all(
        con.filesystem_is_registered(member.files.protocol) for member in attachment.members
    ):
        return schema, None
    return schema, attachment


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


def _define(con: Any, attachment: _Attachment, schema: str, *, create: bool) -> None:
    """Make or replace everything in a schema."""
    statements = [f"CREATE SCHEMA {schema}"] if create else []
    statements += shared_statements(schema)
    found = [attachment.selection.resolve(member.context) for member in attachment.members]
    for member, snapshot_id in zip(attachment.members, found, strict=True):
        prepared = prepare(member.files, member.context, snapshot_id)
        member.files.check(prepared.source.start)
        statements += prepared.statements(schema, member.prefix)
    if attachment.united:
        prefixes = {member.name: member.prefix for member in attachment.members}
        statements += union_statements(schema, prefixes)
    statements.append(
        f"CREATE OR REPLACE VIEW {schema}.{_MARK} AS SELECT {text(attachment.token)} AS token"
    )
    with _transaction(con), ExitStack() as stack:
        for member in attachment.members:
            stack.enter_context(member.files.describing())
        con.execute(";\n".join(statements))
    for member, snapshot_id in zip(attachment.members, found, strict=True):
        member.snapshot_id = snapshot_id
