"""Writing through ``format("icechunk")``: tasks stage what their partition brings, the driver commits once.

Owns what the options of a write mean, the two phases, and how cells are written that were not brought together.
Spark hands over whatever partitions a frame has, so tasks may write chunks between each other's: the commit brings
these in order. Planning, tasks and commit each run in a process of their own, so a message carries what the commit
has to know.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.axis_lookup import kind_of
from icechunk_arrow.core.cell_blocks import POLICIES
from icechunk_arrow.core.columns import empty, from_values
from icechunk_arrow.core.conflict import ConflictDetector
from icechunk_arrow.core.keys import node_path, path_or_column
from icechunk_arrow.core.stream_marks import Query
from icechunk_arrow.engine.commit import check_message
from icechunk_arrow.engine.forks import discard_written
from icechunk_arrow.engine.history import tip_to_write
from icechunk_arrow.engine.opening import Choices, open_context
from icechunk_arrow.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotDurableError,
    NotFoundError,
    StorageError,
)
from icechunk_arrow.repository import Repository
from icechunk_arrow.session import Session
from icechunk_arrow.spark.source.options import Options
from icechunk_arrow.spark.writing.cells import CellRules
from icechunk_arrow.spark.writing.chunks import StageRows
from icechunk_arrow.spark.writing.row_arrays import (
    cells_of,
    dimensions_of_columns,
    named_paths,
    read_arrays,
    shared_shape,
)
from icechunk_arrow.spark.writing.row_axes import (
    AxisRequest,
    AxisRows,
    find_coordinate,
    resolve_axis,
)
from icechunk_arrow.spark.writing.shuffle import packed
from icechunk_arrow.spark.writing.streams import commit_batch, is_committed, running_query
from icechunk_arrow.spark.writing.targets import apply_mode, make_arrays
from icechunk_arrow.spark.writing.tasks import check_reachable, totals_of, work_on

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from icechunk_arrow.engine.catalog import Tip
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.forks import WrittenChunks
    from icechunk_arrow.session import ForkSession
    from icechunk_arrow.spark.writing.row_arrays import RowArray, SharedShape
    from icechunk_arrow.spark.writing.row_axes import RowAxis

__all__ = ["stream_writer_of", "writer_of"]

_TABLES = ("references", "chunks", "rows")
_OF_SPARK = ("checkpointlocation", "queryname")
"""Options of a stream that are Spark's own, and are passed on."""


# -- cells that were not brought together


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCells:
    """The work of one task for ``table=rows``: chunks of the cells that its own partition holds, all in memory.

    What the parameters mean is said in ``write_rows``. Arrays and coordinates must be there. A chunk of which two
    partitions have rows is written by both tasks, which the commit finds.
    """

    arrays: Any
    dimensions: Sequence[str] | None
    coordinates: Mapping[str, Any]
    tolerance: Mapping[str, Any]
    group: str
    rules: CellRules
    replaces: bool
    """Whether what is stored will be removed, so that nothing is merged with it."""

    def __call__(self, fork: ForkSession, batches: Iterator[pa.RecordBatch]) -> None:
        """Write the chunks of one partition."""
        table = pa.Table.from_batches(list(batches))
        types = {field.name: _plain(field.type) for field in table.schema}
        dimensions = list(self.dimensions or [])
        if self.arrays is None and self.dimensions is None:
            dimensions = dimensions_of_columns(fork, types, self.group) or []
            if not dimensions:
                raise InvalidInputError(
                    "which columns are the dimensions? Name them in the option 'dimensions', in the order of "
                    "the arrays' dimensions, or the columns of values in the option 'columns'"
                )
        others = [] if self.rules.order_by is None else [self.rules.order_by]
        arrays = read_arrays(self.arrays, types, self.group, [*dimensions, *others])
        present = shared_shape(fork, arrays)
        missing = [each.path for each in arrays if fork.find_array(each.path) is None]
        if present is None or missing:
            raise InvalidInputError(
                f"there is no array {missing[0]!r}; describe it in the option 'arrays', or use "
                f"icechunk_arrow.spark.write_rows, which makes arrays and coordinates of what the rows hold"
            )
        columns = _coordinate_columns(dimensions, present, types)
        used = dict.fromkeys([*columns, *(each.column for each in arrays), *others])
        rows = table.select(list(used))
        axes = self._axes(fork, rows, present, columns, types)
        if rows.num_rows:
            self._write(fork, rows, arrays, axes, types)

    def _axes(
        self,
        fork: ForkSession,
        rows: pa.Table,
        present: SharedShape,
        columns: Sequence[str],
        types: Mapping[str, pa.DataType],
    ) -> list[RowAxis]:
        folder = present.path.rpartition("/")[0]
        axes = []
        for column, name, length in zip(columns, present.names, present.shape, strict=True):
            request = AxisRequest(
                name=name or column,
                column=column,
                way=self.coordinates.get(name or column),
                tolerance=self.tolerance.get(name or column),
                length=length,
            )
            stored = None if request.way == "index" else find_coordinate(fork, folder, request.name)
            values = rows[column]
            if values.null_count:
                raise InvalidInputError(
                    f"{values.null_count} rows have no value in the column {column!r}, which says where they "
                    f"are. Nothing was changed.",
                    column=column,
                )
            if not rows.num_rows:
                continue
            ends = pc.min_max(values).as_py()
            kind = types[column]
            bounds = from_values([ends["min"], ends["max"]], values.type).cast(kind)
            known = AxisRows(type=kind, bounds=bounds, distinct=_not_here)
            axes.append(resolve_axis(request, known, stored, has_arrays=True).axis)
        return axes

    def _write(
        self,
        fork: ForkSession,
        rows: pa.Table,
        arrays: Sequence[RowArray],
        axes: Sequence[RowAxis],
        types: Mapping[str, pa.DataType],
    ) -> None:
        """Do in one task what ``write_rows`` does on both sides of a shuffle."""
        merged = frozenset(each.path for each in arrays if fork.has_chunks(each.path))
        for cells in cells_of(
            fork,
            arrays,
            axes,
            self.rules,
            types=types,
            merged=frozenset() if self.replaces else merged,
            row_count=None,
        ):
            packs = pa.Table.from_batches(list(packed(cells, iter(rows.to_batches()))))
            sorted_packs = packs.sort_by([("first", "ascending"), ("second", "ascending")])
            cells(fork, iter(sorted_packs.to_batches()))


def _coordinate_columns(
    dimensions: Sequence[str], present: SharedShape, types: Mapping[str, pa.DataType]
) -> list[str]:
    names = list(dimensions or [name for name in present.names if name is not None])
    if len(names) != len(present.shape):
        raise InvalidInputError(
            f"{present.path!r} has {len(present.shape)} dimensions; name the column of each in the option "
            f"'dimensions'",
            path=present.path,
        )
    for name in names:
        if name not in types or kind_of(types[name]) is None:
            what = f"of {types[name]}" if name in types else "is not there, which"
            raise InvalidInputError(f"the column {name!r} {what} cannot hold coordinates")
    return names


def _plain(kind: pa.DataType) -> pa.DataType:
    """Take times with a zone as times in UTC: Spark gives them in the session's."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return kind


def _not_here() -> pa.Array:
    raise InvalidInputError(
        "new coordinates need all rows to be looked at first: icechunk_arrow.spark.write_rows does that"
    )


# -- the two phases


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """What a write is to do, as its options say."""

    context: Context
    tip: Tip
    """Where the branch stood when the write was planned."""
    work: StageRows | StageCells
    mode: str
    arrays: Mapping[str, Any]
    message: str
    metadata: Mapping[str, Any]
    query_id: str | None = None

    def session(self) -> Session:
        """Give the session that the write began with: on the same snapshot, with the same arrays made."""
        session = Session(self.context, self.tip.snapshot_id, self.tip)
        make_arrays(session, self.arrays)
        return session

    def query(self, checkpoint: str | None) -> Query:
        """Say which streaming query this is, with what it writes."""
        if isinstance(self.work, StageCells):
            kind, targets = "rows", named_paths(self.work.arrays, self.work.group)
        else:
            path = self.work.array_path
            kind, targets = self.work.kind, [] if path is None else [path]
        return Query(kind=kind, targets=tuple(targets), checkpoint=checkpoint, name=self.query_id)

    def merged(self, parts: Sequence[WrittenChunks]) -> Session | None:
        """Give the session with what the tasks wrote; None where the mode says to leave things as they are."""
        session = self.session()
        if not apply_mode(self.mode, session, totals_of(parts).paths):
            return None
        if isinstance(self.work, StageRows):
            session.merge_written(parts, duplicates=self.work.duplicates)
            return session
        try:
            session.merge_written(parts)
        except InvalidInputError as error:
            raise InvalidInputError(
                f"rows of one chunk came in several partitions, each of which makes a chunk of its own of them. "
                f"Use icechunk_arrow.spark.write_rows, which brings them together, or repartition the frame "
                f"by chunk. {error}"
            ) from error
        return session


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message(WriterCommitMessage):
    """What a task tells the commit."""

    tip: Tip
    """Where the branch stood when the write was planned: what was written stands on that."""
    written: WrittenChunks | None
    """None where the partition was empty."""
    query_id: str | None = None
    """The streaming query that the task ran for."""


def writer_of(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> _Writer:
    """Give what writes a frame."""
    return _Writer(_write_of(options, overwrite=overwrite, stream=False), schema)


def stream_writer_of(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> _StreamWriter:
    """Give what writes the batches of a stream."""
    return _StreamWriter(_write_of(options, overwrite=overwrite, stream=True), schema)


def _write_of(options: Mapping[str, str], *, overwrite: bool, stream: bool) -> _Write:
    asked = Options(options)
    for name in _OF_SPARK if stream else ():
        asked.take(name)
    url = asked.need("path", "the URL of the repository, as save does")
    table = asked.take_one_of("table", _TABLES, "references")
    appending = ("append",) if stream else ("append", "error", "ignore")
    words = ("overwrite",) if overwrite else appending
    mode = asked.take_one_of("mode", words, words[0])
    arrays = asked.take_object("arrays") or {}
    branch = asked.take("branch") or "main"
    message = asked.take("message") or f"write {table}"
    metadata = asked.take_object("metadata") or {}
    query_id = asked.take("query_id") if stream else None
    storage_options = asked.storage_options()
    if table == "rows":
        work: StageRows | StageCells = _cells_of(asked, replaces=overwrite)
    else:
        work = StageRows(
            kind=table,
            array_path=path_or_column(asked.take("array")),
            duplicates=asked.take_one_of("duplicates", ("error", "last"), "error"),
        )
    asked.refuse_rest("writing")
    check_message(message, metadata)
    context = open_context(url, storage_options, None, Choices(pickle_secrets=True), state_url=None)
    context.storage.require_writable()
    return _Write(
        context=context,
        tip=tip_to_write(context, branch),
        work=work,
        mode=mode,
        arrays=arrays,
        message=message,
        metadata=metadata,
        query_id=query_id,
    )


def _cells_of(given: Options, *, replaces: bool) -> StageCells:
    """Read what ``table=rows`` takes: the words of ``write_rows`` that need no look at all rows."""
    columns = given.take("columns")
    order_by = given.take("order_by")
    duplicates = given.take_one_of("duplicates", POLICIES, "error")
    if order_by is not None and duplicates != "last":
        raise InvalidInputError("order_by says which row is last: it goes with duplicates=last")
    return StageCells(
        arrays=None if columns is None else _columns_of(columns),
        dimensions=given.take_list("dimensions"),
        coordinates=given.take_object("coordinates") or {},
        tolerance=given.take_object("tolerance") or {},
        group=node_path(given.take("group") or "/"),
        rules=CellRules(
            duplicates=duplicates,
            order_by=order_by,
            skip_nulls=given.take_one_of("nulls", ("fill", "skip"), "fill") == "skip",
        ),
        replaces=replaces,
    )


def _columns_of(text: str) -> Any:
    """Read the columns of values: their names, or an object that gives the path of each one's array."""
    alone = Options({"columns": text})
    if text.lstrip().startswith("{"):
        return alone.take_object("columns")
    return alone.take_list("columns")


class _Tasks:
    """What batches and streams have in common: the tasks, and cleaning up after them."""

    def __init__(self, write: _Write, schema: StructType) -> None:
        session = write.session()
        check_reachable(session)
        self._plan = write
        self._fork = session.fork()
        write.work(self._fork, iter([_no_rows(schema)]))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        """Stage what a partition brings; on an executor."""
        return _Message(
            tip=self._plan.tip,
            written=work_on(self._fork, self._plan.work, iterator),
            query_id=running_query(),
        )

    def _clean_up(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what finished tasks wrote, if another one did not finish: then no commit was begun.

        After a commit that failed all messages are there. What is certain then the commit has deleted; the rest
        may be published by an answer that was lost.
        """
        if any(message is None for message in messages):
            finished = [message for message in messages if isinstance(message, _Message)]
            discard_written(self._plan.context, _parts(finished))


class _Writer(_Tasks, DataSourceArrowWriter):
    """Writes a frame in one commit."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Merge what the tasks wrote, and commit it; in another process than the planning."""
        write, parts = self._plan, _parts(_all_there(messages))
        with _discarding(write.context, parts):
            session = write.merged(parts)
            if session is not None and session.has_uncommitted_changes:
                session.commit(write.message, write.metadata, rebase_with=ConflictDetector())
        if session is None:
            discard_written(write.context, parts)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Clean up after a job that failed."""
        self._clean_up(messages)


class _StreamWriter(_Tasks, DataSourceStreamArrowWriter):
    """Writes each batch of a stream in one commit, once."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Merge what the tasks wrote, and commit it, unless the branch has this batch.

        Spark makes a writer anew for this: what was planned on which snapshot stands in the messages.
        """
        there = _all_there(messages)
        parts = _parts(there)
        if not parts:
            return
        query = self._plan.query(there[0].query_id)
        if query.name is None and query.checkpoint is None:
            raise InvalidInputError(
                "Spark does not say which streaming query this is; give the option 'query_id', a name that "
                "stays with the query's checkpoint"
            )
        batch = query.batch(batchId)
        write = replace(self._plan, tip=there[0].tip)
        with _discarding(write.context, parts):
            repository = Repository(write.context)
            done = is_committed(repository, write.tip.branch, batch)
            session = None if done else write.merged(parts)
            if session is not None:
                done = (
                    commit_batch(repository, session, batch, write.message, write.metadata) is None
                )
        if done:
            discard_written(write.context, parts)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Clean up after a batch that failed."""
        self._clean_up(messages)


@contextmanager
def _discarding(context: Context, parts: Sequence[WrittenChunks]) -> Iterator[None]:
    """Delete what tasks wrote where it is certain that it was not published: something was refused, or lost."""
    try:
        yield
    except (
        InvalidInputError,
        AlreadyExistsError,
        NotFoundError,
        ConflictError,
        NotDurableError,
    ):
        discard_written(context, parts)
        raise


def _all_there(messages: Sequence[WriterCommitMessage | None]) -> list[_Message]:
    finished = [message for message in messages if isinstance(message, _Message)]
    if len(finished) < len(messages):
        raise StorageError(
            f"{len(messages) - len(finished)} of {len(messages)} tasks did not say what they wrote. Nothing was "
            f"committed; write the frame again."
        )
    return finished


def _parts(messages: Sequence[_Message]) -> list[WrittenChunks]:
    return [message.written for message in messages if message.written is not None]


def _no_rows(schema: StructType) -> pa.RecordBatch:
    """Give a batch as the tasks will see, for columns to be checked before anything runs."""
    types = to_arrow_schema(schema)
    return pa.RecordBatch.from_arrays([empty(field.type) for field in types], schema=types)
