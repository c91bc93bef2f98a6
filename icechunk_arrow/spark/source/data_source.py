"""The data source ``icechunk`` of Spark: which of our readers and writers answers which of its questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from icechunk_arrow.spark.source.reading import pinned, reader_of, schema_of, stream_reader_of
from icechunk_arrow.spark.source.writing import stream_writer_of, writer_of

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["IcechunkSource"]


class IcechunkSource(DataSource):
    """Repositories as a format of Spark, to read and write, in batches and streams."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(pinned(options))

    @classmethod
    def name(cls) -> str:
        """What stands in ``format``."""
        return "icechunk"

    def schema(self) -> Any:
        """Give the columns of what is read."""
        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read a table about a repository, or its arrays."""
        return reader_of(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Read what commits changed."""
        return stream_reader_of(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Write a frame in one commit."""
        return writer_of(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Write every batch of a stream in a commit, exactly once."""
        return stream_writer_of(self.options, schema, overwrite=overwrite)
