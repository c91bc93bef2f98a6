"""Spark: an executor, frames of what sources give, and rows of chunks on their way through its shuffles.

Owns all that ingests of files do with Spark, on classic sessions and on Spark Connect. The rows of frames and of
Delta tables, which are Spark's already, go through ``ingest.rows``.
"""

from __future__ import annotations

import pickle
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from icechunk_arrow.core.columns import any_array, from_values, to_numpy
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.ingest.executor import part_count
from icechunk_arrow.ingest.progress import Amount
from icechunk_arrow.ingest.source import FILES_NOW, REFERENCES, SHOWN_REASONS, AskFiles, refusal
from icechunk_arrow.spark.writing.chunks import StageRows, by_grid
from icechunk_arrow.spark.writing.tasks import (
    check_reachable,
    error_of,
    marking_errors,
    run_tasks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from icechunk_arrow.ingest.progress import Reporter
    from icechunk_arrow.session import ForkSession, Session
    from icechunk_arrow.storage.source_files import SourceFiles

P = TypeVar("P")
R = TypeVar("R")

CHUNK_ROWS = pa.schema([pa.field("path", pa.string()), *REFERENCES])
"""References of several arrays; ``path`` is in the repository."""
_REFERENCE = [name for name in CHUNK_ROWS.names if name != "data"]
_VALUES = pa.schema([("number", pa.int64()), ("value", pa.binary())])
_EVERY_SECONDS = 0.5
_BROADCAST = 1 << 16
_BATCH_BYTES = 1 << 26
_BATCH_ROWS = 1 << 12
_LEAST_TASKS = 8
_MOST_TASKS = 10_000
_TASK_BYTES = 1 << 28
_TASK_ROWS = 1 << 16


# -- an executor


class SparkExecutor:
    """Works on parts in the tasks of a Spark session: an ``Executor``."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    def map(self, function: Callable[[P], R], parts: Sequence[P]) -> Iterator[tuple[P, R]]:
        """As :meth:`Executor.map`; a part is a task."""
        frame = frame_over(self.spark, _Mapped(function), list(enumerate(parts)), _VALUES)
        for row in rows_of(frame):
            # from our own task, through Spark, which pickles its own messages as well
            yield parts[row["number"]], pickle.loads(bytes(row["value"]))  # noqa: S301

    @contextmanager
    def watched(self, description: str, report: Callable[[float], None] | None) -> Iterator[None]:
        """As :meth:`Executor.watched`; Spark's pages show the description."""
        is_remote = type(self.spark).__module__.startswith("pyspark.sql.connect")
        with (_on_connect if is_remote else _on_classic)(self.spark, description, report):
            yield

    def check_reachable(self, session: Session) -> None:
        """As :meth:`Executor.check_reachable`."""
        check_reachable(session)


@dataclass(frozen=True, slots=True)
class _Mapped:
    """What a task does with its part: the answer is one small row."""

    function: Callable[[Any], Any]

    def __call__(self, part: tuple[int, Any]) -> Iterator[pa.RecordBatch]:
        number, item = part
        value = pickle.dumps(self.function(item))
        yield pa.RecordBatch.from_arrays(
            [from_values([number], pa.int64()), from_values([value], pa.binary())], schema=_VALUES
        )


@contextmanager
def _on_classic(
    spark: Any, description: str, report: Callable[[float], None] | None
) -> Iterator[None]:
    context = spark.sparkContext
    names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    before = {name: context.getLocalProperty(name) for name in names}
    group = f"icechunk-{new_id()}"
    context.setJobGroup(group, description)
    ended = threading.Event()
    watcher = None
    if report is not None:
        watcher = threading.Thread(
            target=_poll, args=(context.statusTracker(), group, report, ended), daemon=True
        )
        watcher.start()
    try:
        yield
    finally:
        ended.set()
        if watcher is not None:
            watcher.join()
        for name, value in before.items():
            context.setLocalProperty(name, value)


def _poll(
    tracker: Any, group: str, report: Callable[[float], None], ended: threading.Event
) -> None:
    while not ended.wait(_EVERY_SECONDS):
        jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
        stages = filter(None, (tracker.getStageInfo(i) for job in jobs for i in job.stageIds))
        share = _share((stage.numCompletedTasks, stage.numTasks) for stage in stages)
        if share < 1:
            report(share)


def _share(stages: Iterable[tuple[int, int]]) -> float:
    """Give the part of all tasks that is done."""
    pairs = list(stages)
    total = sum(count for _, count in pairs)
    return sum(done for done, _ in pairs) / total if total else 0.0


@contextmanager
def _on_connect(
    spark: Any, description: str, report: Callable[[float], None] | None
) -> Iterator[None]:
    tag = description.replace(",", ";")

    def handle(stages: Iterable[Any] | None, *_: Any, **__: Any) -> None:
        share = _share((each.num_completed_tasks, each.num_tasks) for each in stages or ())
        if report is not None and 0 < share < 1:
            report(share)

    spark.addTag(tag)
    if report is not None:
        spark.registerProgressHandler(handle)
    try:
        yield
    finally:
        if report is not None:
            spark.removeProgressHandler(handle)
        spark.removeTag(tag)


# -- frames


def is_frame(source: Any) -> bool:
    """Whether something is a DataFrame of Spark's, classic or of Spark Connect."""
    return hasattr(source, "mapInArrow") and hasattr(source, "columns")


def frame_over(
    spark: Any,
    function: Callable[[P], Iterator[pa.RecordBatch]],
    parts: Sequence[P],
    schema: pa.Schema,
) -> Any:
    """Give a frame of the rows that a function gives for parts; Spark calls it when it is asked for them.

    Each part is a task. The function pickles, and may be called more than once for a part.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415  (an extra, and slow to import)

    table = pa.Table.from_pydict(
        {
            "task": from_values(range(len(parts)), pa.int64()),
            "part": from_values([pickle.dumps(part) for part in parts], pa.binary()),
        }
    )
    frame = spark.createDataFrame(table).repartitionById(
        max(1, len(parts)), sf.col("task").cast("int")
    )
    return frame.mapInArrow(_Rows(function), spark_type(schema))


@dataclass(frozen=True, slots=True)
class _Rows:
    """What runs in a task: Spark sends it a part in a row."""

    function: Callable[[Any], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marking_errors():
            for batch in batches:
                for part in batch.column("part").to_pylist():
                    yield from self.function(pickle.loads(part))  # noqa: S301 - from frame_over


def frame_of_batches(spark: Any, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Any:
    """Make a frame of what is in memory."""
    table = pa.Table.from_batches(batches, schema=schema)
    return spark.createDataFrame(table.combine_chunks())  # Spark loses rows behind an empty chunk


def spark_type(schema: pa.Schema) -> Any:
    """Say an Arrow schema in Spark's words."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  (an extra, and slow)

    return from_arrow_schema(schema)


def rows_of(frame: Any) -> list[Any]:
    """Collect the rows of a frame that has few; an error of ours comes home as it was raised in a task."""
    try:
        rows: list[Any] = frame.collect()
    except Exception as error:
        ours = error_of(error)
        if ours is None:
            raise
        raise ours from error
    return rows


@contextmanager
def kept(frame: Any) -> Iterator[Any]:
    """Let Spark keep a frame that is read more than once."""
    persisted = frame.persist()
    try:
        yield persisted
    finally:
        persisted.unpersist()


def chunk_rows_of(frame: Any) -> Any:
    """Give a frame of the caller's the columns of ``CHUNK_ROWS``."""
    from pyspark.sql import functions as sf  # noqa: PLC0415
    from pyspark.sql.types import TimestampNTZType  # noqa: PLC0415

    needed = ("path", "index", "location", "offset", "length")
    for name in needed:
        if name not in frame.columns:
            raise InvalidInputError(
                f"a DataFrame of references needs the columns {', '.join(needed)}; it has {frame.columns}"
            )
    wanted = {each.name: each.dataType for each in spark_type(CHUNK_ROWS)}
    types = {each.name: each.dataType for each in frame.schema}
    for name, kind in types.items():
        if name in wanted and not _fits(kind, wanted[name]):
            raise InvalidInputError(
                f"the column {name!r} of references is {kind.simpleString()}, and {wanted[name].simpleString()} "
                f"is wanted: cast it, so that nothing is cut or rounded unseen"
            )
    columns = {
        name: sf.col(name) if name in types else sf.lit(None).cast(kind)
        for name, kind in wanted.items()
    }
    if isinstance(
        types.get("last_modified"), TimestampNTZType
    ):  # a time without a zone is one of UTC
        columns["last_modified"] = sf.concat(sf.col("last_modified").cast("string"), sf.lit("Z"))
    return frame.select(*(columns[name].cast(kind).alias(name) for name, kind in wanted.items()))


def _fits(given: Any, wanted: Any) -> bool:
    """Whether a column can be taken for what is wanted without another meaning."""
    from pyspark.sql import types as st  # noqa: PLC0415

    if isinstance(given, st.NullType):
        return True
    if isinstance(wanted, st.ArrayType):
        return isinstance(given, st.ArrayType) and _fits(given.elementType, wanted.elementType)
    if isinstance(wanted, st.LongType):
        whole = isinstance(given, st.DecimalType) and given.scale == 0
        return whole or isinstance(given, st.IntegralType)
    if isinstance(wanted, st.TimestampType):
        return isinstance(given, st.TimestampType | st.TimestampNTZType)
    return isinstance(given, type(wanted))


# -- rows of chunks, on their way into a session


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTaker:
    """Takes chunks of others into a session: referred to, or copied byte for byte."""

    session: Session
    """Has the arrays already."""
    files: SourceFiles
    """Reaches the chunks."""
    virtual: bool
    """Refer to chunks that stand somewhere; otherwise copy them."""
    asks: bool
    """Record what files are now with references that do not say it."""
    reporter: Reporter

    def take(self, rows: Any, paths: list[str]) -> int:
        """Take chunks, and tell how many they were.

        Parameters
        ----------
        rows
            A frame with the columns of ``CHUNK_ROWS``, in any order. It is read more than once: see ``kept``.
        paths
            The arrays.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415  (an extra, and slow to import)

        with self.reporter.stage("finding chunks", Amount()):
            (counts,) = rows_of(
                rows.agg(
                    sf.count("location").alias("there"),
                    sf.count("data").alias("inline"),
                    sf.count_if(sf.isnull("location") == sf.isnull("data")).alias("unclear"),
                    sf.coalesce(sf.sum("length"), sf.lit(0)).alias("bytes"),
                )
            )
        if counts["unclear"]:
            raise InvalidInputError(
                f"{counts['unclear']} rows have neither a location nor data, or both; each row is one chunk, which "
                f"stands somewhere or in the row. Nothing was changed."
            )
        if counts["there"] and counts["inline"]:
            _check_once(rows)
        count = 0
        if counts["there"]:
            chosen = rows.where(sf.col("location").isNotNull())
            amount = Amount(chunks=counts["there"], bytes=counts["bytes"])
            take = self._refer if self.virtual else self._copy
            count += take(chosen, paths, amount)
        if counts["inline"]:
            chosen = rows.where(sf.col("data").isNotNull()).select("path", "index", "data")
            placed = by_grid(chosen, self.session, paths, None)
            with self.reporter.stage("writing chunks", Amount(chunks=counts["inline"])):
                count += self._run(placed, StageRows(kind="chunks", array_path=None))
        return count

    def _run(
        self, placed: Any, work: Callable[[ForkSession, Iterator[pa.RecordBatch]], None]
    ) -> int:
        return run_tasks(placed, self.session, work).chunk_count

    def _copy(self, chosen: Any, _: list[str], amount: Amount) -> int:
        chunks, size_bytes = amount.chunks or 0, amount.bytes or 0
        # a task that fails is not much, and many cores have something to do
        wanted = max(_LEAST_TASKS, size_bytes // _TASK_BYTES, chunks // _TASK_ROWS)
        tasks = max(1, min(chunks, wanted, _MOST_TASKS))
        placed = chosen.select(*_REFERENCE[:5]).repartitionByRange(tasks, "path", "index")
        with self.reporter.stage("copying chunks", amount):
            return self._run(placed, _CopyChunks(files=self.files))

    def _refer(self, chosen: Any, paths: list[str], amount: Amount) -> int:
        rows = chosen.select(*_REFERENCE)
        with ExitStack() as stack:
            if self.asks:
                with self.reporter.stage("asking files", Amount()):
                    rows = stack.enter_context(_files_asked(rows, self.files))
            placed = by_grid(rows, self.session, paths, None)
            with self.reporter.stage("referring to chunks", amount):
                return self._run(placed, StageRows(kind="references", array_path=None))


def _check_once(rows: Any) -> None:
    """Refuse chunks that are given twice, here and there: each is written by a job of its own, which sees one."""
    from pyspark.sql import functions as sf  # noqa: PLC0415

    counted = rows.groupBy("path", "index").agg(
        sf.count("location").alias("there"), sf.count("data").alias("inline")
    )
    twice = rows_of(counted.where("there > 0 AND inline > 0").limit(1))
    if twice:
        raise InvalidInputError(
            f"the chunk {twice[0]['index']} of {twice[0]['path']!r} comes twice: with a location, and as data. "
            f"Nothing was changed."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CopyChunks:
    """The work of one task: reads chunks where they are, and stages their bytes."""

    files: SourceFiles

    def __call__(self, fork: ForkSession, batches: Iterator[pa.RecordBatch]) -> None:
        staging = StageRows(kind="chunks", array_path=None)
        staging(fork, (read for batch in batches for read in self._read(batch)))

    def _read(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Read some chunks at a time, so that memory does not depend on how many there are."""
        lengths = to_numpy(batch.column("length"))
        start = 0
        while start < batch.num_rows:
            stop, size_bytes = start, 0
            while stop < min(batch.num_rows, start + _BATCH_ROWS) and size_bytes < _BATCH_BYTES:
                size_bytes += int(lengths[stop])
                stop += 1
            some = batch.slice(start, stop - start)
            data = self.files.read_ranges(
                *(some.column(name).to_pylist() for name in ("location", "offset", "length"))
            )
            yield pa.RecordBatch.from_pydict(
                {
                    "path": some.column("path"),
                    "index": some.column("index"),
                    "data": any_array(data, pa.large_binary()),
                }
            )
            start = stop


@contextmanager
def _files_asked(rows: Any, files: SourceFiles) -> Iterator[Any]:
    """Give a frame of references in which all rows say what their file was; those that do already keep it."""
    from pyspark.sql import functions as sf  # noqa: PLC0415  (an extra, and slow to import)

    blank = sf.col("etag").isNull() & sf.col("last_modified").isNull()
    asked = rows.where(blank).select("location").distinct()
    count = asked.count()
    if not count:
        yield rows
        return
    answers = asked.repartition(part_count(count)).mapInArrow(
        _AskRows(AskFiles(files=files)), spark_type(FILES_NOW)
    )
    with kept(answers) as facts:
        wrong = facts.where(sf.col("reason").isNotNull())
        (failed,) = rows_of(wrong.agg(sf.count("reason").alias("count")))
        if failed["count"]:
            some = rows_of(wrong.orderBy("location").limit(SHOWN_REASONS))
            raise refusal([row["reason"] for row in some], failed["count"], count)
        known = facts.select(
            "location",
            sf.col("etag").alias("_etag_now"),
            sf.col("last_modified").alias("_time_now"),
        )
        if count <= _BROADCAST:
            known = sf.broadcast(known)
        now = {"etag": "_etag_now", "last_modified": "_time_now"}
        yield rows.join(known, "location", "left").select(
            *(
                sf.when(blank, sf.col(now[name])).otherwise(sf.col(name)).alias(name)
                if name in now
                else name
                for name in rows.columns
            )
        )


@dataclass(frozen=True, slots=True)
class _AskRows:
    """Asks the files of a frame: batches of ``location`` in, ``FILES_NOW`` out."""

    ask: AskFiles

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from self.ask(batch.column("location").to_pylist()).to_batches()
