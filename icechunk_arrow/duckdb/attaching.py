"""Schemas in somebody's DuckDB connection whose views are the tables of one repository or several.

Owns what stands in the connection and how it comes and goes: all of it in one transaction, so that others see the
views of one state or of another. What the views say is in ``definitions``.
"""

from __future__ import annotations

import os
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
from icechunk_arrow.repository import Repository
from icechunk_arrow.tables.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.storage.table_files import TableFiles

    Place = str | os.PathLike[str] | Repository

__all__ = ["Attached", "attach", "context_of", "detach", "refresh"]

_MARK = "_attached"
_live: WeakValueDictionary[str, _Attachment] = WeakValueDictionary()
"""Attachments by the token that stands in their schema; DuckDB itself keeps them, by its file systems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """What a schema shows now."""

    name: str
    """The schema."""
    snapshots: Mapping[str, str]
    """The snapshot of each repository, by its name; of a single one by its URL."""


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
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidInputError(f"{name!r} cannot name a schema; give some text")
    selection = Selection(branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    several = _is_mapping(repository)
    places: dict[str, Any] = dict(repository) if several else {"": repository}  # type: ignore[arg-type]
    if not places:
        raise InvalidInputError("there is no repository to attach; name at least one")
    members = []
    for number, (label, place) in enumerate(places.items()):
        context = context_of(place, storage_options)
        members.append(
            _Member(
                name=label if several else context.storage.url,
                prefix=f"_{number}_" if several else "",
                context=context,
                files=new_files(context.storage),
            )
        )
    attachment = _Attachment(name=name, selection=selection, members=members, united=several)
    for member in members:
        member.files.keeper = attachment
        con.register_filesystem(member.files)
    try:
        _define(con, attachment, create=True)
    except BaseException as error:
        for member in members:
            con.unregister_filesystem(member.files.protocol)
        if f'Schema with name "{name}" already exists' not in str(error):
            raise
        raise AlreadyExistsError(
            f"there is a schema {name!r} in this connection; choose another name, or detach it first"
        ) from error
    _live[attachment.token] = attachment
    return attachment.attached()


def refresh(con: Any, name: str = "icechunk") -> Attached:
    """Let the views of a schema show what its branch, tag or time names now.

    Queries that are under way go on with what they began with.
    """
    attachment = _find(con, name)
    if attachment is None:
        raise InvalidInputError(
            f"the schema {name!r} was attached by another process, which knows where its files are; detach "
            f"it, and attach it again"
        )
    _define(con, attachment, create=False)
    return attachment.attached()


def detach(con: Any, name: str = "icechunk") -> None:
    """Remove a schema that :func:`attach` made, with all that is in it."""
    attachment = _find(con, name)
    con.execute(f"DROP SCHEMA {identifier(name)} CASCADE")
    if attachment is not None:
        for member in attachment.members:
            con.unregister_filesystem(member.files.protocol)
        _live.pop(attachment.token, None)


def _is_mapping(value: object) -> bool:
    return not isinstance(value, str | os.PathLike | Repository) and hasattr(value, "keys")


def context_of(place: Any, storage_options: Mapping[str, Any] | None) -> Context:
    """Open a repository, or take one that is open."""
    if isinstance(place, Repository):
        if storage_options is not None:
            raise InvalidInputError("storage_options go with a URL; a repository is open already")
        return place._context  # noqa: SLF001  (the engine's parts are no matter for those who use it)
    return Repository.open(place, storage_options)._context  # noqa: SLF001


def _find(con: Any, name: str) -> _Attachment | None:
    """Find the attachment of a schema; None where another process made it."""
    known = con.execute(
        "SELECT 1 FROM duckdb_views() WHERE schema_name = ? AND view_name = ?", [name, _MARK]
    ).fetchall()
    if not known:
        raise NotFoundError(f"there is no schema {name!r} that icechunk_arrow.duckdb.attach made")
    [(token,)] = con.execute(f"SELECT token FROM {identifier(name)}.{_MARK}").fetchall()
    attachment = _live.get(token)
    if attachment is None or not all(
        con.filesystem_is_registered(member.files.protocol) for member in attachment.members
    ):
        return None
    return attachment


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


def _define(con: Any, attachment: _Attachment, *, create: bool) -> None:
    """Make or replace everything in a schema."""
    schema = attachment.name
    statements = [f"CREATE SCHEMA {identifier(schema)}"] if create else []
    statements += shared_statements(schema)
    found = [attachment.selection.resolve(member.context) for member in attachment.members]
    for member, snapshot_id in zip(attachment.members, found, strict=True):
        prepared = prepare(member.files, member.context, snapshot_id)
        statements += prepared.statements(schema, member.prefix)
    if attachment.united:
        prefixes = {member.name: member.prefix for member in attachment.members}
        statements += union_statements(schema, prefixes)
    statements.append(
        f"CREATE OR REPLACE VIEW {identifier(schema)}.{_MARK} AS SELECT {text(attachment.token)} AS token"
    )
    with _transaction(con), ExitStack() as stack:
        for member in attachment.members:
            stack.enter_context(member.files.describing())
        con.execute(";\n".join(statements))
    for member, snapshot_id in zip(attachment.members, found, strict=True):
        member.snapshot_id = snapshot_id
