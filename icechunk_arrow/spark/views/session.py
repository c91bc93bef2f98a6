"""A Spark session as a target: how it is given files and rows, and what it means if a file has gone.

Owns the names that relations have for a while, how manifests are opened, and what is checked before Spark reads.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from icechunk_arrow.core.manifest_columns import schema_of
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.errors import CorruptFileError, InvalidInputError, ObjectNotFoundError
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.spark.quoting import file_pattern, is_readable, spark_root
from icechunk_arrow.spark.views.definitions import (
    Target,
    TargetSource,
    coordinate_functions,
    drop_statements,
)
from icechunk_arrow.tables.queries import chunk_query, root_uri
from icechunk_arrow.tables.sql import SPARK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.tables.scans import Scan

__all__ = [
    "READING",
    "SessionTarget",
    "check_manifests",
    "check_place",
    "naming_gone_files",
    "reading_chunks",
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


class SessionTarget(Target):
    """Makes relations under names of their own, which nobody needs when views are made of them.

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
