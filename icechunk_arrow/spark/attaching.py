"""Temporary views in somebody's Spark session that are the tables of one repository or several.

Owns what stands in the session and how it comes and goes. What the views say is in ``relations``.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from icechunk_arrow.duckdb.attaching import context_of
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.errors import (
    AlreadyExistsError,
    CorruptFileError,
    InvalidInputError,
    NotFoundError,
)
from icechunk_arrow.repository import Repository
from icechunk_arrow.spark.quoting import identifier, is_readable, text
from icechunk_arrow.spark.relations import (
    FUNCTIONS,
    Relations,
    function_names,
    function_statements,
    listing_here,
)
from icechunk_arrow.tables.places import root_uri
from icechunk_arrow.tables.schemas import TABLES
from icechunk_arrow.tables.selection import Selection, find_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from icechunk_arrow.engine.context import Context

    Place = str | os.PathLike[str] | Repository

__all__ = ["Attached", "attach", "detach", "refresh"]

_MARK = "attached"
_GONE = "PATH_NOT_FOUND"
_known: dict[str, _Attachment] = {}
"""Attachments by the token that stands in a view of the session, which other handles of it see too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """What the views of a name show now."""

    name: str
    """What the views' names begin with."""
    snapshots: Mapping[str, str]
    """The snapshot of each repository, by its name; of a single one by its URL."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Attachment:
    name: str
    selection: Selection
    since: str | None
    contexts: Mapping[str, Context]
    united: bool
    token: str = field(default_factory=new_id)


def attach(
    spark: Any,
    repository: Place | Mapping[str, Place],
    name: str = "icechunk",
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    since: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Attached:
    """Make temporary views that are the tables of a snapshot, read off its live files by Spark.

    The views are ``<name>_nodes``, ``_chunks``, ``_arrays``, ``_manifests``, ``_files``, ``_snapshots``, ``_refs``,
    ``_operations``, ``_config`` and ``_changes``; the functions ``<name>_coord_encode`` and ``_coord_decode``. They
    show the same snapshot until :func:`refresh`. Tables without chunks, the history's too, are made at once.

    Parameters
    ----------
    spark
        A Spark session, classic or of Spark Connect.
    repository
        A path, URL or open repository; or several, by names, and then every view has a first column ``repository``.
        Spark reads ``s3://`` as ``s3a://``, and must have been told how to.
    name
        What names of views begin with: letters, digits and underscores.
    branch, tag, snapshot_id
        Which snapshot; ``main`` if none is named.
    as_of
        The branch's newest snapshot at that time.
    since
        The snapshot, branch or tag that ``<name>_changes`` compares with; the parent if nothing is named.
    storage_options
        What the file system of a URL takes. Spark is told nothing of it.

    Raises
    ------
    AlreadyExistsError
        There is a table or view of one of these names.
    CorruptFileError
        A manifest has gone.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidInputError(
            f"{name!r} cannot begin names of views; give letters, digits and underscores"
        )
    several = not isinstance(repository, str | os.PathLike | Repository)
    places: Mapping[str, Any] = repository if several else {"": repository}  # type: ignore[assignment]
    contexts = {label: context_of(place, storage_options) for label, place in dict(places).items()}
    if not contexts:
        raise InvalidInputError("there is no repository to attach; name at least one")
    for context in contexts.values():
        _check_place(context.storage.url)
    if not several:
        contexts = {context.storage.url: context for context in contexts.values()}
    for table in (*TABLES, _MARK):
        if spark.catalog.tableExists(_view(name, table)):
            raise AlreadyExistsError(
                f"there is a table or view {name}_{table} in this session; choose another name, or detach "
                f"it first"
            )
    attachment = _Attachment(
        name=name,
        selection=Selection(branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of),
        since=since,
        contexts=contexts,
        united=several,
    )
    attached = _define(spark, attachment)
    _known[attachment.token] = attachment
    return attached


def refresh(spark: Any, name: str = "icechunk") -> Attached:
    """Let the views of a name show what its branch, tag or time names now.

    Queries that are under way, and frames that are made already, go on with what they began with.
    """
    attachment = _known.get(_token(spark, name))
    if attachment is None:
        raise InvalidInputError(
            f"{name!r} was attached by another process, which knows where its files are; detach it, and "
            f"attach it again"
        )
    return _define(spark, attachment)


def detach(spark: Any, name: str = "icechunk") -> None:
    """Remove the views and functions that :func:`attach` made."""
    token = _token(spark, name)
    for table in (*TABLES, _MARK):
        spark.catalog.dropTempView(f"{name}_{table}")
    for each in FUNCTIONS:
        spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {function_names(name)[each]}")
    _known.pop(token, None)


def _check_place(url: str) -> None:
    if url.startswith("memory:"):
        raise InvalidInputError(
            f"{url} is in the memory of this process, where Spark cannot read it"
        )
    if not is_readable(root_uri(url)):
        raise InvalidInputError(
            f"Spark cannot read files below {url}, which has a colon and one of *?[]{{}}\\; rename one of "
            f"the folders, or link to it by another name"
        )


def _view(name: str, table: str) -> str:
    return identifier(f"{name}_{table}")


def _token(spark: Any, name: str) -> str:
    if not isinstance(name, str) or not spark.catalog.tableExists(_view(name, _MARK)):
        raise NotFoundError(f"there are no views {name!r} that icechunk_arrow.spark.attach made")
    token: str = spark.table(_view(name, _MARK)).first()[0]
    return token


def _define(spark: Any, attachment: _Attachment) -> Attached:
    """Make or replace all views, after every one of them is known to be good."""
    name = attachment.name
    snapshots, found = {}, []
    for statement in function_statements(name):
        spark.sql(statement)
    with ExitStack() as stack:
        stack.enter_context(listing_here(spark))
        for label, context in attachment.contexts.items():
            snapshot_id = snapshots[label] = attachment.selection.resolve(context)
            stack.enter_context(_errors(context, snapshot_id))
            relations = Relations(spark, context, snapshot_id, function_names(name))
            stack.callback(relations.close)
            parent = relations.snapshot.facts.parent_id or snapshot_id
            since = parent if attachment.since is None else find_named(context, attachment.since)
            tables = relations.tables(context.files.read_snapshot(since))
            if attachment.united:
                column = f"{text(label)} AS repository"
                tables = {each: frame.selectExpr(column, "*") for each, frame in tables.items()}
            found.append(tables)
        frames = {
            table: reduce(lambda left, right: left.unionAll(right), (each[table] for each in found))
            for table in TABLES
        }
        for frame in frames.values():
            _ = frame.schema  # a remote session looks at a frame only when it is asked
        for table, frame in frames.items():
            frame.createOrReplaceTempView(_view(name, table))
    mark = spark.sql(f"SELECT {text(attachment.token)} AS token")
    mark.createOrReplaceTempView(_view(name, _MARK))
    return Attached(name=name, snapshots=snapshots)


@contextmanager
def _errors(context: Context, snapshot_id: str) -> Iterator[None]:
    """Say of a file that has gone which snapshot needs it."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415  (an extra, and slow to import)

    try:
        yield
    except AnalysisException as error:
        if error.getCondition() != _GONE:
            raise
        path = (error.getMessageParameters() or {}).get("path", "a manifest")
        raise CorruptFileError(
            f"{path} has gone, which the snapshot {snapshot_id} of {context.storage.url} needs: a file "
            f"that was collected as garbage, or removed by somebody; attach a newer snapshot"
        ) from error
