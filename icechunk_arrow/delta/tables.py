"""A Delta table by its path or by its name: made, written, and asked for its history.

Nothing but SQL and frames is used, so a session of Spark Connect does as well as a classic one.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icechunk_arrow.delta.notes import Commit, decode
from icechunk_arrow.errors import InvalidInputError, NotFoundError
from icechunk_arrow.spark.quoting import identifier, spark_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

__all__ = ["DeltaTable", "delta_table", "lost_race"]

_PART = r"(?:\w+|`(?:[^`]|``)+`)"
_NAME = re.compile(rf"{_PART}(?:\.{_PART}){{0,2}}")
_LOST = re.compile(
    r"DELTA_CONCURRENT_|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED|DELTA_TABLE_ALREADY_EXISTS"
    r"|\bConcurrent\w+Exception|MetadataChangedException|ProtocolChangedException"
)
_NO_DELTA = ("DATA_SOURCE_NOT_FOUND", "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG")
_NO_TABLE = frozenset(
    {
        "DELTA_MISSING_DELTA_TABLE",
        "DELTA_PATH_DOES_NOT_EXIST",
        "DELTA_TABLE_NOT_FOUND",
        "DELTA_TABLE_ONLY_OPERATION",
        "PATH_NOT_FOUND",
        "TABLE_OR_VIEW_NOT_FOUND",
    }
)
_FIRST_LOOK = 64
"""So many of the newest commits are read at first: they nearly always say all there is to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTable:
    """A table that may or may not be there."""

    spark: Any
    label: str
    """What the caller called it."""
    relation: str
    """What it is in SQL."""
    path: str | None
    """Where it is; None for a table of a catalog."""

    def frame(self, **options: Any) -> Any:
        """Read it, or a version of it, or what changed in it."""
        frame = self._loaded(self.spark.read, options)
        with _explained(self.label):
            _ = frame.schema  # a remote session looks at a frame only when it is asked
        return frame

    def stream(self, **options: Any) -> Any:
        """Read it as a stream."""
        return self._loaded(self.spark.readStream, options)

    def _loaded(self, reader: Any, options: dict[str, Any]) -> Any:
        reader = reader.format("delta").options(**options)
        with _explained(self.label):
            return reader.table(self.relation) if self.path is None else reader.load(self.path)

    def id(self) -> str:
        """Give the id that Delta knows the table by: a new one if it is made anew."""
        with _explained(self.label):
            table_id: str = (
                self.spark.sql(f"DESCRIBE DETAIL {self.relation}").select("id").first()[0]
            )
        return table_id

    def newest_version(self) -> int:
        """Give the number of its newest commit."""
        return self.commits(1)[0].version

    def create(self, schema: pa.Schema, partition: str) -> None:
        """Make it where it is not there yet; one that is there must have the columns."""
        columns = {field.name: _type(field.type) for field in schema}
        listed = ", ".join(f"{identifier(name)} {kind}" for name, kind in columns.items())
        with _explained(self.label):
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.relation} ({listed}) "
                f"USING delta PARTITIONED BY ({identifier(partition)})"
            )
        types = {each.name: each.dataType.simpleString() for each in self.frame().schema}
        wrong = [name for name, kind in columns.items() if types.get(name) != kind]
        if wrong:
            raise InvalidInputError(
                f"the table {self.label} is there, and is no chunk inventory: it has no column "
                f"{', '.join(f'{name} {columns[name]}' for name in wrong)}; choose another table"
            )

    def commits(self, limit: int | None = None) -> list[Commit]:
        """Give its newest commits, or all that its log still has, oldest first."""
        newest = "" if limit is None else f" LIMIT {limit}"
        with _explained(self.label):
            rows = (
                self.spark.sql(f"DESCRIBE HISTORY {self.relation}{newest}")
                .select("version", "operation", "userMetadata")
                .collect()
            )
        commits = [
            Commit(version=row[0], operation=row[1] or "", note=decode(row[2])) for row in rows
        ]
        return sorted(commits, key=lambda each: each.version)

    def looks(self) -> Iterator[list[Commit]]:
        """Give its newest commits, and then all of them, if there are more."""
        some = self.commits(_FIRST_LOOK)
        yield some
        if len(some) == _FIRST_LOOK:
            yield self.commits()

    def write(
        self, rows: Any, *, where: str | None, user_metadata: str, app_id: str, number: int
    ) -> None:
        """Put rows in place of those of which a condition is true, or beside all others, in one commit.

        Delta passes over a number that the application has used already, or a larger one.
        """
        writer = (
            rows.write.format("delta")
            .option("userMetadata", user_metadata)
            .option("txnAppId", app_id)
            .option("txnVersion", str(number))
        )
        replacing = where is not None
        writer = writer.mode("overwrite" if replacing else "append")
        if replacing:
            writer = writer.option("replaceWhere", where)
        if self.path is None:
            writer.saveAsTable(self.relation)
        else:
            writer.save(self.path)


def delta_table(spark: Any, table: str | os.PathLike[str]) -> DeltaTable:
    """Take what has a slash to be a path, and anything else to be a name in the session's catalogs."""
    label = os.fspath(table)
    if isinstance(table, str) and _NAME.fullmatch(label):
        return DeltaTable(spark=spark, label=label, relation=label, path=None)
    if isinstance(table, str) and "/" not in label:
        raise InvalidInputError(
            f"{label!r} names no table: give its name, as catalog.schema.table, with backticks around "
            f"what is not letters, digits and underscores; or its path, with a slash in it"
        )
    if label.startswith("memory:") or "${" in label:
        raise InvalidInputError(f"Spark cannot keep a table at {label}; choose another place")
    path = spark_root(label) if "://" in label else os.path.abspath(label)  # noqa: PTH100
    return DeltaTable(spark=spark, label=label, relation=f"delta.{identifier(path)}", path=path)


def lost_race(error: BaseException) -> bool:
    """Whether a write failed for no other reason than that another writer was faster."""
    return _LOST.search(f"{type(error).__name__}: {error}") is not None


@contextmanager
def _explained(label: str) -> Iterator[None]:
    """Say of a table that is not there, and of a session without Delta, what can be done."""
    from pyspark.errors import PySparkException  # noqa: PLC0415  (an extra, and slow to import)

    try:
        yield
    except PySparkException as error:
        condition = error.getCondition()
        if condition in _NO_DELTA:
            raise InvalidInputError(
                "this Spark session has no Delta Lake: start it with the package that delta-spark's "
                "configure_spark_with_delta_pip names, the extension io.delta.sql.DeltaSparkSessionExtension, "
                "and the catalog org.apache.spark.sql.delta.catalog.DeltaCatalog"
            ) from error
        if condition in _NO_TABLE:
            raise NotFoundError(f"there is no Delta table {label}") from error
        raise


def _type(kind: pa.DataType) -> str:
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415  (an extra, and slow)

    name: str = from_arrow_type(kind).simpleString()
    return name
