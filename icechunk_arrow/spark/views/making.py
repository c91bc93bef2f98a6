"""How a Spark session is given files and rows: the relations that queries of this package name.

Owns the names that these have for a while, how manifests are opened, and what it means if one has gone.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

from icechunk_arrow.engine.context import new_id
from icechunk_arrow.errors import CorruptFileError, InvalidInputError, ObjectNotFoundError
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.formats.manifest import schema_of
from icechunk_arrow.spark.quoting import (
    file_pattern,
    identifier,
    is_readable,
    rows_text,
    spark_root,
    spark_type,
)
from icechunk_arrow.spark.views.definitions import (
    Maker,
    Rows,
    coordinate_statements,
    drop_statements,
    names_of,
)
from icechunk_arrow.spark.views.relations import chunk_query
from icechunk_arrow.tables.places import root_uri

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from icechunk_arrow.engine.context import Context

__all__ = [
    "VERIFYING",
    "SessionMaker",
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


VERIFYING = {
    "parquet.page.verify-checksum.enabled": "true",
    "parquet.filter.columnindex.enabled": "false",
}
"""Spark compares pages with their checksums, and does not use the page index, which has none."""


class SessionMaker(Maker):
    """Makes relations under names of their own, which nobody needs when views are made of them.

    Spark keeps what a view means, as long as it is made of a frame.
    """

    def __init__(self, spark: Any) -> None:
        self.checked = str(spark.conf.get(_ANSI)).lower() == "true"
        self._spark = spark
        self._own: list[str] = []
        self._opened: dict[tuple[str, tuple[str, ...]], Rows] = {}
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
            return f"({rows_text(rows)})"
        # of a table in several pieces Spark 4.2 loses those that come with an empty one
        return self._named(self._spark.createDataFrame(rows.combine_chunks()))

    def rows(self, root: str, manifests: Sequence[str], form: int) -> Rows:
        """Open files of one form, once: after a bulk write those that changed are those that there are."""
        key = root, tuple(manifests)
        if key not in self._opened:
            self._opened[key] = self._open(root, manifests, form)
        return self._opened[key]

    def _open(self, root: str, manifests: Sequence[str], form: int) -> Rows:
        """A file that has gone, or is damaged, is an error whatever the session says."""
        folder = spark_root(root)
        paths = [file_pattern(f"{folder}/{key_of(FileKind.MANIFEST, each)}") for each in manifests]
        columns = (f"{identifier(each.name)} {spark_type(each.type)}" for each in schema_of(form))
        reader = (
            self._spark.read.option("ignoreMissingFiles", "false")
            .option("ignoreCorruptFiles", "false")
            .option("mergeSchema", "false")
            .options(**VERIFYING)
            .schema(", ".join(columns))
        )
        plain = reader.parquet(*paths)
        return Rows(
            plain=self._named(plain),
            with_file=self._named(plain.selectExpr("*", "_metadata.file_name AS file")),
            form=form,
        )

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
        with SessionMaker(spark) as maker:
            for statement in coordinate_statements(name):
                maker.run(statement)
            query = chunk_query(maker, context, snapshot_id, wanted, names_of(name))
            yield spark.sql(query)
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
