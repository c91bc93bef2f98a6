"""Reading by ``format("icechunk")``: tables of a snapshot, arrays, and the stream of a branch, in batches of Arrow.

Owns what the options of a read say, that a loaded frame stays with the snapshot that it began with, and how the
table ``chunks`` is divided among tasks: by manifests, each read by one task alone. Other tables come in one part:
they are as small as the metadata that they are made of, or need all manifests at once. Conditions come as the
option ``where``: what Spark could push down to a source in Python is not taken, since it keeps it for later
queries on the same frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from icechunk_arrow.core.columns import empty_table
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from icechunk_arrow.repository import Repository
from icechunk_arrow.spark.reading.arrays import LAYOUTS, PART_BYTES, plan_read, session_to_read
from icechunk_arrow.spark.reading.commit_stream import CHANGE_ROWS, CommitStream, Place
from icechunk_arrow.spark.source.options import PINNED, Options
from icechunk_arrow.tables.queries import chunks_of_group, root_uri
from icechunk_arrow.tables.reading import read_table
from icechunk_arrow.tables.schemas import TABLES
from icechunk_arrow.tables.selection import Selection, find_earlier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.spark.reading.arrays import ArrayRead

__all__ = ["TableRead", "pinned", "reader_of", "schema_of", "stream_reader_of"]

_PART_BYTES = 8 << 20
"""Manifests of so many bytes make a part: about a million chunks."""
_BATCH_ROWS = 1 << 16
_STREAM_ONLY = ("starting", "since", "max_commits_per_trigger")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableRead:
    """A table of one snapshot: pickles, and every task reads its part."""

    context: Context
    name: str
    snapshot_id: str
    since: str | None = None
    columns: tuple[str, ...] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow."""
        schema = TABLES[self.name]
        if self.columns is None:
            return schema
        return pa.schema([schema.field(name) for name in self.columns])

    def parts(self) -> list[tuple[str, ...]]:
        """Say which manifests each part has; a table that is not of chunks has one part, without any."""
        if self.name != "chunks":
            return [()]
        sizes = self.context.files.read_snapshot(self.snapshot_id).manifest_sizes
        ends = np.cumsum(np.fromiter(sizes.values(), np.int64, len(sizes)))
        groups = (ends - 1) // _PART_BYTES
        edges = np.flatnonzero(np.diff(groups, prepend=-1)).tolist()
        names = list(sizes)
        return [tuple(names[a:b]) for a, b in zip(edges, [*edges[1:], len(names)], strict=True)]

    def read_part(self, manifests: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Give the rows of one part."""
        for table in self._tables(manifests):
            yield from table.select(self.schema.names).to_batches(max_chunksize=_BATCH_ROWS)

    def _tables(self, manifests: tuple[str, ...]) -> Iterator[pa.Table]:
        if self.name != "chunks":
            yield read_table(self.context, self.name, self.snapshot_id, self.since)
            return
        snapshot = self.context.files.read_snapshot(self.snapshot_id)
        for manifest in manifests:
            opened = self.context.files.open_manifest(manifest)
            for group in range(opened.sealed.row_group_count):
                rows = self.context.files.read_rows(manifest, group).table
                yield chunks_of_group(
                    rows, snapshot, opened, manifest, root_uri(self.context.storage.url)
                )


def pinned(options: Mapping[str, str]) -> dict[str, str]:
    """Add to options which snapshot is read, as it stands now.

    A source that does so when it is made gives all queries of a frame the same: it is made when a frame is loaded,
    or of one whose schema was given, when Spark first plans a query.
    Where that cannot be told, because the options are of a write, or wrong, they stay as they are: the reader or
    writer that takes them says what is wrong.
    """
    fixed = {str(name).lower(): value for name, value in options.items()}
    try:
        asked = Options(fixed)
        repository = _repository(asked)
        fixed[PINNED] = _selection(asked).resolve(repository._context)  # noqa: SLF001 -- Selection resolves for all
    except IcechunkArrowError:
        pass
    return fixed


def schema_of(options: Mapping[str, str]) -> StructType:
    """Say which columns a read has: of an array, of a table, or without either of the stream of changed chunks."""
    if "table" not in options and "array" not in options:
        return from_arrow_schema(CHANGE_ROWS)
    asked = Options(options)
    if any(name in asked for name in _STREAM_ONLY) and "array" in asked:
        return from_arrow_schema(_stream(asked).schema)
    return from_arrow_schema(_read_of(asked).schema)


def reader_of(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Make the reader of a frame with these columns."""
    read = _read_of(Options(options), tuple(schema.names))
    _check_schema(schema, read.schema)
    return _Reader(read, schema)


def stream_reader_of(options: Mapping[str, str], schema: StructType) -> _StreamReader:
    """Make the reader of a stream with these columns."""
    stream = _stream(Options(options), tuple(schema.names))
    _check_schema(schema, stream.schema)
    return _StreamReader(stream, to_arrow_schema(schema, timezone="UTC"))


class _Reader(DataSourceReader):
    """Reads the parts of a table or of arrays; pickles."""

    def __init__(self, read: ArrayRead | TableRead, schema: StructType) -> None:
        self._read = read
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        """Give the parts, each of which a task reads."""
        return [InputPartition(part) for part in self._read.parts()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the rows of a part."""
        if partition.value is None:  # what Spark makes of no parts
            yield from empty_table(self._schema).to_batches()
            return
        for batch in self._read.read_part(partition.value):
            yield batch.cast(self._schema)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
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


# -- options


def _repository(asked: Options) -> Repository:
    return Repository.open(
        asked.need("path", "the URL of a repository, to load or as an option"),
        asked.storage_options(),
        authorize_virtual_chunk_access=asked.allowed(),
        state_url=asked.take("state_url"),
        pickle_secrets=True,  # Spark's tasks open what this reader holds
    )


def _selection(asked: Options) -> Selection:
    selection = Selection(
        branch=asked.take("branch"),
        tag=asked.take("tag"),
        snapshot_id=asked.take("snapshot_id"),
        as_of=asked.take_time("as_of"),
    )
    return selection if asked.pinned is None else Selection(snapshot_id=asked.pinned)


def _columns(asked: Options, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Say which columns are read: those of the schema that Spark was given, or those of the option."""
    listed = asked.take_list("columns")
    if listed is None:
        return names
    if names is not None and list(names) != listed:
        raise InvalidInputError(
            f"the option columns says {', '.join(listed)}, and the schema of the frame {', '.join(names)}; give one"
        )
    return tuple(listed)


def _read_of(asked: Options, names: tuple[str, ...] | None = None) -> ArrayRead | TableRead:
    if ("table" in asked) == ("array" in asked):
        raise InvalidInputError(
            f"give one of the options array, such as '/t2m' or '/t2m,/precip', and table: {', '.join(TABLES)}"
        )
    repository, selection = _repository(asked), _selection(asked)
    columns = _columns(asked, names)
    if "array" in asked:
        return _array_read(asked, session_to_read(repository, selection), columns)
    name = asked.take_one_of("table", TABLES, "")
    since = asked.take("since") if name == "changes" else None
    asked.refuse_rest(f"reading the table {name}")
    session = session_to_read(repository, selection)
    context = session._context  # noqa: SLF001 -- tables are read from a context
    if name == "changes":
        since = find_earlier(context, session.snapshot_id, since)
    read = TableRead(
        context=context, name=name, snapshot_id=session.snapshot_id, since=since, columns=columns
    )
    known = TABLES[name].names
    wrong = [each for each in columns or () if each not in known]
    if wrong or len(set(columns or ())) != len(columns or ()):
        raise InvalidInputError(
            f"the columns {', '.join(columns or ())} cannot be chosen: the table {name} has {', '.join(known)}"
        )
    return read


def _array_read(asked: Options, session: Any, columns: tuple[str, ...] | None) -> ArrayRead:
    words: dict[str, Any] = {
        "paths": asked.take_list("array") or [],
        "layout": asked.take_one_of("layout", LAYOUTS, "rows"),
        "where": asked.take("where"),
        "nulls": asked.take_flag("nulls"),
        "part_bytes": asked.take_number("partition_bytes", PART_BYTES),
    }
    asked.refuse_rest("reading arrays")
    return plan_read(session, columns=columns, **words)


def _stream(asked: Options, names: tuple[str, ...] | None = None) -> CommitStream:
    if "table" in asked:
        raise InvalidInputError(
            "a stream gives changed chunks, or with the option array their elements; leave out the option table"
        )
    for name in ("tag", "snapshot_id", "as_of"):
        if name in asked:
            raise InvalidInputError(
                f"a stream follows a branch, which {name} is not; give branch, and where to begin with "
                f"since=<snapshot or tag>",
                option=name,
            )
    repository = _repository(asked)
    branch = asked.take("branch") or "main"
    starting = asked.take_one_of("starting", ("latest", "earliest"), "latest")
    if "since" in asked and starting != "latest":
        raise InvalidInputError("since says where to begin, and so does starting; give one of them")
    since = asked.take("since")
    most_commits = asked.take_number("max_commits_per_trigger")
    columns = _columns(asked, names)
    session = session_to_read(repository, Selection(branch=branch))
    read = None
    if "array" in asked:
        read = _array_read(asked, session, columns)
    asked.refuse_rest("a stream")
    return CommitStream(
        context=session._context,  # noqa: SLF001 -- a stream reads logs
        branch=branch,
        since=since,
        from_beginning=starting == "earliest",
        most_commits=most_commits,
        read=read,
        columns=columns,
    )


def _check_schema(given: StructType, ours: pa.Schema) -> None:
    """Refuse a schema that says other types than there are: values are not changed in silence."""
    expected = from_arrow_schema(ours)
    for mine, field in zip(expected, given, strict=True):
        if mine.dataType != field.dataType:
            raise InvalidInputError(
                f"the schema says that {field.name} is {field.dataType.simpleString()}; it is "
                f"{mine.dataType.simpleString()}: leave out the schema, and cast the column of the frame",
                column=field.name,
            )
