"""Temporary views in the caller's Spark session that are the tables of one repository or several.

Owns what stands in the session and how it comes and goes: first how the session is given files and rows, what is
checked before Spark reads, and what it means if a file has gone; then attaching. What the views say is in
``definitions``.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, Unpack

from icechunk_arrow.core.manifest_columns import schema_of
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.errors import (
    AlreadyExistsError,
    CorruptFileError,
    InvalidInputError,
    NotFoundError,
    ObjectNotFoundError,
)
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.spark.quoting import file_pattern, is_readable, spark_root
from icechunk_arrow.spark.views.definitions import (
    Target,
    TargetSource,
    coordinate_functions,
    define,
    drop_statements,
    place_functions,
    snapshot_queries,
    view_name,
)
from icechunk_arrow.tables.attaching import Attached, Attachment, attached_elsewhere
from icechunk_arrow.tables.node_changes import own_manifests
from icechunk_arrow.tables.queries import chunk_query, root_uri
from icechunk_arrow.tables.schemas import TABLES
from icechunk_arrow.tables.selection import Selection, Which
from icechunk_arrow.tables.sql import SPARK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.tables.attaching import Place
    from icechunk_arrow.tables.scans import Scan

__all__ = [
    "READING",
    "Attached",
    "SessionTarget",
    "attach",
    "check_manifests",
    "check_name",
    "check_place",
    "detach",
    "naming_gone_files",
    "reading_chunks",
    "refresh",
]

_GONE = "PATH_NOT_FOUND"
_LISTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_LISTED_HERE = 1000
"""Up to so many files are asked for by the driver: a job for it takes longer."""
_ANSI = "spark.sql.ansi.enabled"
READING = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "parquet.page.verify-checksum.enabled": "true",
    "parquet.filter.columnindex.enabled": "false",
}
"""A file that has gone, or is damaged, is an error whatever the session says. Spark compares pages with their
checksums, and does not use the page index, which has none."""
_MARK = "attached"
_OWN_SCANS = 32
"""So many arrays are read apart from the others: a condition on the path then leaves out all but one."""
_live: dict[str, Attachment] = {}
"""Attachments by the token that stands in a view of the session, which other handles of it see too."""


class SessionTarget(Target):
    """Makes relations under names of their own, which are not needed any more when views are made of them.

    Spark keeps what a view means, as long as it is made of a frame.
    """

    def __init__(self, spark: Any) -> None:
        if str(spark.conf.get(_ANSI)).lower() == "true":  # casts that do not fit are errors
            self.dialect = replace(SPARK, signed="CAST({0} AS BIGINT)")
        self._spark = spark
        self._own: list[str] = []
        self._frames: dict[tuple[str, ...], Any] = {}
        self._files: dict[tuple[str, ...], str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(_listing_here(self._spark))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for view in self._own:
            self._spark.catalog.dropTempView(view)

    def _named(self, frame: Any) -> str:
        name = f"_icechunk_{new_id().lower()}"
        frame.createOrReplaceTempView(name)
        self._own.append(name)
        return name

    def table(self, rows: pa.Table) -> str:
        """Give Spark the rows."""
        if not rows.num_rows:
            return f"({SPARK.no_rows(rows.schema)})"
        # of a table in several pieces Spark 4.2 loses those that come with an empty one
        return self._named(self._spark.createDataFrame(rows.combine_chunks()))

    def files(self, root: str, scan: Scan, *, named: bool) -> str:
        """Open files of one form, once: after a bulk write those that changed are those that there are."""
        key = (root, *scan.manifests)
        if key not in self._frames:
            self._frames[key] = self._opened(spark_root(root), scan)
        key = (str(named), *key)
        if key not in self._files:
            frame = self._frames[key[1:]]
            if named:  # it costs a little for each row
                frame = frame.selectExpr("*", "_metadata.file_name AS file")
            self._files[key] = self._named(frame)
        return self._files[key]

    def _opened(self, folder: str, scan: Scan) -> Any:
        keys = (key_of(FileKind.MANIFEST, each) for each in scan.manifests)
        paths = [file_pattern(f"{folder}/{key}") for key in keys]
        columns = SPARK.columns(schema_of(scan.form))
        return self._spark.read.options(**READING).schema(columns).parquet(*paths)

    def view(self, name: str, query: str) -> None:
        """Make a view that goes on meaning what the query means now."""
        self._spark.sql(query).createOrReplaceTempView(name)

    def run(self, command: str) -> None:
        """Do it."""
        self._spark.sql(command)


@contextmanager
def reading_chunks(
    spark: Any, context: Context, snapshot_id: str, manifests: Iterable[str]
) -> Iterator[Any]:
    """Give a frame with those rows of the table ``chunks`` that are in some manifests of a snapshot."""
    name = f"_icechunk_{new_id().lower()}"
    wanted = list(manifests)
    check_manifests(context, snapshot_id, wanted)
    try:
        with SessionTarget(spark) as target:
            coordinate_functions(target, name)
            source = TargetSource(target, name, context)
            yield spark.sql(chunk_query(source, context.files.read_snapshot(snapshot_id), wanted))
    finally:
        for statement in drop_statements(name):
            spark.sql(statement)


@contextmanager
def _listing_here(spark: Any) -> Iterator[None]:
    """Let the driver look up files itself while a snapshot is attached."""
    before = spark.conf.get(_LISTING)
    if int(before) >= _LISTED_HERE:
        yield
        return
    spark.conf.set(_LISTING, str(_LISTED_HERE))
    try:
        yield
    finally:
        spark.conf.set(_LISTING, before)


def check_manifests(context: Context, snapshot_id: str, manifests: Iterable[str]) -> None:
    """Check the footers of manifests, which Spark will take at their word."""
    sizes = context.files.read_snapshot(snapshot_id).manifest_sizes
    try:
        context.files.check_ends({name: sizes[name] for name in manifests if name in sizes})
    except CorruptFileError as error:
        if not isinstance(error.__cause__, ObjectNotFoundError):
            raise
        raise _gone(str(vars(error).get("key", "a manifest")), context, snapshot_id) from error


def check_place(url: str) -> None:
    """Refuse a repository whose files Spark cannot read."""
    if url.startswith("memory:"):
        raise InvalidInputError(
            f"{url} is in the memory of this process, where Spark cannot read it"
        )
    if not is_readable(root_uri(url)):
        raise InvalidInputError(
            f"Spark cannot read files below {url}, which has a colon and one of *?[]{{}}\\; rename one of "
            f"the folders, or link to it by another name"
        )


@contextmanager
def naming_gone_files(context: Context, snapshot_id: str) -> Iterator[None]:
    """Say of a file that has gone which snapshot needs it."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415  (an extra, and slow to import)

    try:
        yield
    except AnalysisException as error:
        if error.getCondition() != _GONE:
            raise
        path = (error.getMessageParameters() or {}).get("path", "a manifest")
        raise _gone(path, context, snapshot_id) from error


def _gone(path: str, context: Context, snapshot_id: str) -> CorruptFileError:
    return CorruptFileError(
        f"{path} has gone, which the snapshot {snapshot_id} of {context.storage.url} needs: a file "
        f"that was collected as garbage, or removed by somebody; attach a newer snapshot"
    )


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
    for context in attachment.contexts.values():
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
    name, united = attachment.name, attachment.united
    snapshots, members = {}, {}
    with SessionTarget(spark) as target:
        if create:
            coordinate_functions(target, name)
        for label, context, snapshot_id, before in attachment.resolved():
            snapshots[label] = snapshot_id
            _check(context, before, snapshot_id)
            with naming_gone_files(context, snapshot_id):
                members[label] = snapshot_queries(
                    target, name, context, snapshot_id, before, own_scans=_OWN_SCANS
                )
        define(target, name, members, united=united)
        if create:
            place_functions(target, name, united=united)
        target.view(view_name(name, _MARK), f"SELECT {SPARK.text(attachment.token)} AS token")
    return Attached(name=name, snapshots=snapshots)
