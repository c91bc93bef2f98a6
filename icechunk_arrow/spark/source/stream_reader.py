"""The stream of a branch as Spark asks for it: offsets, limits and partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from icechunk_arrow.spark.reading.commit_stream import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit

    from icechunk_arrow.spark.reading.commit_stream import CommitStream

__all__ = ["StreamReader"]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Gives what commits changed; an offset is the snapshot behind which a query stands."""

    def __init__(self, stream: CommitStream, schema: pa.Schema) -> None:
        self._stream = stream
        self._schema = schema
        self._last: Place | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's name, as the others
        """Say where a new query begins."""
        return self._stream.first().offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Say how many commits a batch has: a commit has one log, so Spark's word is files."""
        most = self._stream.most_commits
        return ReadAllAvailable() if most is None else ReadMaxFiles(max_files=most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Say how far the next batch goes."""
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        until = self._stream.tip() if self._last is None else self._last
        return self._stream.next(Place.of(start), until, most).offset()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the branch stands: the query ends there."""
        self._last = self._stream.tip()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Say where the branch stands, for the query's progress."""
        return self._stream.tip().offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide what lies between two offsets among tasks."""
        parts = self._stream.parts(Place.of(start), Place.of(end))
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the rows of a part."""
        for batch in self._stream.read_part(partition.value):
            yield batch.cast(self._schema)
