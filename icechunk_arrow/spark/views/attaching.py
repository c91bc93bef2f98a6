"""Temporary views in somebody's Spark session that are the tables of one repository or several.

Owns what stands in the session and how it comes and goes. What the views say is in ``definitions``, how Spark is
given files and rows in ``session``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from icechunk_arrow.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from icechunk_arrow.spark.views.definitions import (
    coordinate_functions,
    define,
    drop_statements,
    place_functions,
    snapshot_queries,
    view_name,
)
from icechunk_arrow.spark.views.session import (
    SessionTarget,
    check_manifests,
    check_place,
    naming_gone_files,
)
from icechunk_arrow.tables.attaching import Attached, Attachment, attached_elsewhere
from icechunk_arrow.tables.node_changes import own_manifests
from icechunk_arrow.tables.schemas import TABLES
from icechunk_arrow.tables.selection import Selection, Which
from icechunk_arrow.tables.sql import SPARK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.tables.attaching import Place

__all__ = ["Attached", "attach", "check_name", "detach", "refresh"]

_MARK = "attached"
_OWN_SCANS = 32
"""So many arrays are read apart from the others: a condition on the path then leaves out all but one."""
_live: dict[str, Attachment] = {}
"""Attachments by the token that stands in a view of the session, which other handles of it see too."""


def attach(
    spark: Any,
    repository: Place | Mapping[str, Place],
    name: str = "icechunk",
    *,
    since: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **which: Unpack[Which],
) -> Attached:
    """Make temporary views that are the tables of a snapshot, read off its live files by Spark.

    The views are ``<name>_nodes``, ``_chunks``, ``_arrays``, ``_manifests``, ``_files``, ``_snapshots``, ``_refs``,
    ``_operations``, ``_config`` and ``_changes``; the functions ``<name>_coord_encode``, ``_coord_decode``,
    ``_chunk_of`` and ``_chunks_in``. They show the same snapshot until :func:`refresh`. Tables without chunks, the
    history's too, are made at once.

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
    check_name(name)
    attachment = Attachment.of(name, repository, storage_options, Selection(**which), since)
    for context in attachment.members.contexts.values():
        check_place(context.storage.url)
    for table in (*TABLES, _MARK):
        if spark.catalog.tableExists(view_name(name, table)):
            raise AlreadyExistsError(
                f"there is a table or view {name}_{table} in this session; choose another name, or detach "
                f"it first"
            )
    try:
        attached = _define(spark, attachment, create=True)
    except BaseException:
        _drop(spark, name)
        raise
    _live[attachment.token] = attachment
    return attached


def refresh(spark: Any, name: str = "icechunk") -> Attached:
    """Let the views of a name show what its branch, tag or time names now.

    Queries that are under way, and frames that are made already, go on with what they began with.
    """
    attachment = _live.get(_token(spark, name))
    if attachment is None:
        raise attached_elsewhere(repr(name))
    return _define(spark, attachment, create=False)


def detach(spark: Any, name: str = "icechunk") -> None:
    """Remove the views and functions that :func:`attach` made."""
    token = _token(spark, name)
    _drop(spark, name)
    _live.pop(token, None)


def _drop(spark: Any, name: str) -> None:
    for table in (*TABLES, _MARK):
        spark.catalog.dropTempView(f"{name}_{table}")
    for statement in drop_statements(name):
        spark.sql(statement)


def check_name(name: Any) -> None:
    """Refuse what no view can be called."""
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidInputError(
            f"{name!r} cannot begin names of views; give letters, digits and underscores"
        )


def _token(spark: Any, name: str) -> str:
    if not isinstance(name, str) or not spark.catalog.tableExists(view_name(name, _MARK)):
        raise NotFoundError(f"there are no views {name!r} that icechunk_arrow.spark.attach made")
    token: str = spark.table(view_name(name, _MARK)).first()[0]
    return token


def _check(context: Context, before_id: str, after_id: str) -> None:
    """Check the footers of all manifests that views will read."""
    before, after = (context.files.read_snapshot(each) for each in (before_id, after_id))
    check_manifests(context, before_id, own_manifests(before, after))
    check_manifests(context, after_id, after.manifest_sizes)


def _define(spark: Any, attachment: Attachment, *, create: bool) -> Attached:
    """Make or replace all views, after all files are known to be there; functions need no replacing."""
    name, united = attachment.name, attachment.members.united
    snapshots, members = {}, {}
    with SessionTarget(spark) as target:
        if create:
            coordinate_functions(target, name)
        for label, context, found, before in attachment.resolved():
            snapshots[label] = found
            _check(context, before, found)
            with naming_gone_files(context, found):
                members[label] = snapshot_queries(
                    target, name, context, found, before, own_scans=_OWN_SCANS
                )
        define(target, name, members, united=united)
        if create:
            place_functions(target, name, united=united)
        target.view(view_name(name, _MARK), f"SELECT {SPARK.text(attachment.token)} AS token")
    return Attached(name=name, snapshots=snapshots)
