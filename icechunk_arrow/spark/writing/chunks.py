"""Frames of references and of encoded chunks, written by executors and committed at once.

Owns the two functions, what their rows mean, and which task has which rows: neighbours, so that what a task writes
has nothing in common with others. What a row says is not checked on the way: one that has no place goes to some
task, which says what is wrong.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import from_numpy, from_values, to_numpy
from icechunk_arrow.core.keys import path_or_column
from icechunk_arrow.core.splits import box_of
from icechunk_arrow.engine.encoded import encoded_chunks
from icechunk_arrow.engine.references import REFERENCES
from icechunk_arrow.spark.quoting import identifier
from icechunk_arrow.spark.writing.shuffle import Placed, shuffled, unpacked
from icechunk_arrow.spark.writing.targets import apply_mode, check_mode, make_arrays, writing
from icechunk_arrow.spark.writing.tasks import (
    RecentRows,
    job_description,
    run_tasks,
    unlimited_batches,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from icechunk_arrow.session import ForkSession, Session
    from icechunk_arrow.spark.writing.targets import ArraySpec, Target, WriteResult
    from icechunk_arrow.spark.writing.tasks import TaskTotals

__all__ = [
    "GridTasks",
    "StageRows",
    "by_grid",
    "stage_frame",
    "write_chunks",
    "write_references",
]

Duplicates = Literal["error", "last"]
Numbers = npt.NDArray[np.int64]

_TASK_CHUNKS = 1 << 20
"""About so many chunks a task may have, where every place of a grid is filled."""
_MOST_TASKS = 1024
_MOST_BOXES = 1 << 62
_CODED = ("location", "etag")
"""Texts that many rows share."""
_OPTIONS = pa.ipc.IpcWriteOptions(
    compression="lz4"
)  # a fifth of the whole time is saved by moving less


# -- the work of tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRows:
    """The work of one task: rows of references or of encoded chunks, in any order, staged in a fork."""

    kind: str
    """references, or chunks."""
    array_path: str | None
    duplicates: str = "error"
    is_packed: bool = False
    """Whether rows come as ``shuffled`` sends them."""

    def __call__(self, fork: ForkSession, batches: Iterator[pa.RecordBatch]) -> None:
        """Stage rows of one partition."""
        rows = RecentRows(_read(batches) if self.is_packed else batches)
        values = REFERENCES if self.kind == "references" else encoded_chunks(fork.payload_writer)
        fork.stage_rows(
            self.array_path,
            rows.reader(),
            values,
            duplicates=self.duplicates,
            name_row=rows.name,
        )


def _read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _, data in unpacked(batches):
        yield from pa.ipc.open_stream(data)


# -- which task has which chunks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GridTasks:
    """Which task has which chunks, of several arrays at once.

    Grids are cut into the boxes that a manifest may hold, and a task gets whole boxes that follow one another:
    several tasks share a large array, and several small ones share a task.
    """

    paths: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    """For each dimension, the columns that may say where a chunk is along it."""
    counts: Numbers
    """Chunks along each dimension: a row for each array, as in the next two."""
    steps: Numbers
    """Chunks of a box along each dimension."""
    strides: Numbers
    """How many boxes lie between two neighbours along each dimension."""
    first: Numbers
    """The first task of each array."""
    scale: npt.NDArray[np.float64]
    """How many tasks a box of each array has."""
    count: int
    """The tasks."""

    @classmethod
    def of(cls, session: Session, paths: Sequence[str]) -> GridTasks:
        """Share out the chunks of arrays of which there may be rows."""
        views = [session.get_array(path) for path in paths]
        ndim = max((len(view.grid.axes) for view in views), default=0)
        names: list[dict[str, None]] = [{f"index_{d}": None} for d in range(ndim)]
        counts, steps = np.ones((2, len(views), ndim), np.int64)
        strides = np.zeros((len(views), ndim), np.int64)
        boxes = []
        for row, view in enumerate(views):
            here, layout = view.grid.chunk_counts, session.layout_of(view)
            box = box_of(here, layout.limit, layout.axis)
            counts[row, : len(box)], steps[row, : len(box)] = here, box
            total = 1
            # the axis along which manifests are cut is the slowest, as in ``core.splits.box_numbers``
            for d in sorted(range(len(box)), key=lambda d: (d != layout.axis, d))[::-1]:
                along = max(-(-here[d] // box[d]), 1)
                if total * along < _MOST_BOXES:
                    strides[row, d], total = total, total * along
            boxes.append(total)
            own = (view.node.columns.dimension_names if view.node.columns else None) or ()
            for known, name in zip(names, own, strict=False):
                if name is not None:
                    known[name] = None
        first, scale, count = _shares([max(view.grid.chunk_count, 1) for view in views], boxes)
        return cls(
            paths=tuple(paths),
            columns=tuple(map(tuple, names)),
            counts=counts,
            steps=steps,
            strides=strides,
            first=np.array(first or [0], np.int64),
            scale=np.array(scale or [0.0], np.float64),
            count=count,
        )

    def table(self) -> pa.Table:
        """Say it of each array as a row."""
        lists = pa.list_(pa.int64())
        return pa.Table.from_pydict(
            {
                "_icechunk_path": from_values(list(self.paths), pa.string()),
                "_icechunk_steps": from_values(self.steps.tolist(), lists),
                "_icechunk_strides": from_values(self.strides.tolist(), lists),
                "_icechunk_first": from_numpy(self.first, pa.int64()),
                "_icechunk_scale": from_numpy(self.scale, pa.float64()),
            }
        )

    def locate(self, rows: pa.RecordBatch, path: str | None) -> tuple[Numbers, Numbers, Numbers]:
        """Give the task of each row, the number of its box, and that of its chunk in C order, roughly."""
        array = self._arrays(rows, path)
        box = np.zeros(len(array), np.int64)
        linear = np.zeros(len(array), np.float64)
        for d, place in enumerate(self._places(rows)):
            count = self.counts[array, d]
            box += np.minimum(place, count) // self.steps[array, d] * self.strides[array, d]
            linear = linear * np.maximum(count, 1) + place
        task = self.first[array] + np.floor(box * self.scale[array]).astype(np.int64)
        number = np.minimum(linear, float(_MOST_BOXES)).astype(np.int64)
        return np.clip(task, 0, self.count - 1), box, number

    def _arrays(self, rows: pa.RecordBatch, path: str | None) -> Numbers:
        """Give the number of each row's array; 0 where it is unknown."""
        if path is not None or "path" not in rows.schema.names:
            return np.zeros(rows.num_rows, np.int64)
        column = rows.column("path")
        if not pa.types.is_string(column.type):
            return np.zeros(rows.num_rows, np.int64)
        coded = column.dictionary_encode()
        spelled = pc.binary_join_element_wise("", pc.utf8_trim(coded.dictionary, "/"), "/")
        known = pc.index_in(spelled, value_set=from_values(list(self.paths), pa.string()))
        numbers = np.append(to_numpy(known.fill_null(0)).astype(np.int64), 0)
        arrays: Numbers = numbers[to_numpy(coded.indices.fill_null(len(numbers) - 1))]
        return arrays

    def _places(self, rows: pa.RecordBatch) -> list[Numbers]:
        """Give the rows' places along each dimension; 0 where there is none."""
        if "index" in rows.schema.names:
            return _of_lists(rows.column("index"), len(self.columns))
        places = []
        for names in self.columns:
            parts = [rows.column(name) for name in names if name in rows.schema.names]
            column = (pc.coalesce(*parts) if len(parts) > 1 else parts[0]) if parts else None
            places.append(_numbers(column, rows.num_rows))
        return places


def _shares(chunks: Sequence[int], boxes: Sequence[int]) -> tuple[list[int], list[float], int]:
    """Give each array its tasks: several to a large one, and one to several small ones."""
    most = max(_TASK_CHUNKS, -(-sum(chunks) // _MOST_TASKS))
    first, scale = list[int](), list[float]()
    used, room = 0, 0
    for count, box_count in zip(chunks, boxes, strict=True):
        if count > most:
            tasks = max(min(box_count, count // most + 1), 1)
            first.append(used)
            scale.append(tasks / box_count)
            used, room = used + tasks, 0
            continue
        if count > room:
            used, room = used + 1, most
        room -= count
        first.append(used - 1)
        scale.append(0.0)
    return first, scale, max(used, 1)


def _of_lists(lists: pa.Array, dimensions: int) -> list[Numbers]:
    """Give the items of lists, dimension by dimension; 0 where a list is too short, or none."""
    if not (pa.types.is_list(lists.type) and pa.types.is_integer(lists.type.value_type)):
        return [np.zeros(len(lists), np.int64) for _ in range(dimensions)]
    offsets = np.frombuffer(lists.buffers()[1], np.int32)[
        lists.offset : lists.offset + len(lists) + 1
    ]
    items = _numbers(lists.values, len(lists.values))
    by_dimension = []
    for d in range(dimensions):
        there = offsets[1:] - offsets[:-1] > d
        values = np.zeros(len(lists), np.int64)
        values[there] = items[offsets[:-1][there] + d]
        by_dimension.append(values)
    return by_dimension


def _numbers(column: Any, count: int) -> Numbers:
    """Give whole numbers from 0 as they are, and 0 for everything else."""
    if column is None:
        return np.zeros(count, np.int64)
    kind = column.type
    if not (pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)):
        return np.zeros(count, np.int64)
    whole = pc.cast(column, pa.int64(), safe=False)
    values = to_numpy(pc.fill_null(whole, 0))
    clipped: Numbers = np.clip(values, 0, _MOST_BOXES - 1)
    return clipped


# -- on the way there


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlaceReferences:
    """Packs references for the shuffle: the rows of one task, as a stream of Arrow whose texts are coded."""

    tasks: GridTasks
    path: str | None
    keeps_order: bool
    """Whether a task has its rows in the frame's order; else they come as nearly in the order of chunks as can be
    had for nothing."""
    rows_at_once: ClassVar[int] = 1 << 17
    held_bytes: ClassVar[int] = 0
    pack_bytes: ClassVar[int] = 1 << 40

    @property
    def task_count(self) -> int:
        return self.tasks.count

    def place(self, rows: pa.RecordBatch) -> Placed:
        task, box, number = self.tasks.locate(rows, self.path)
        columns = [
            column.dictionary_encode()
            if name in _CODED and pa.types.is_string(column.type)
            else column
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        coded = pa.RecordBatch.from_arrays(columns, names=rows.schema.names)
        return Placed(group=task, rows=coded, keys=None if self.keeps_order else (box, number))

    def tasks_of(self, groups: Numbers) -> list[int]:
        tasks: list[int] = groups.tolist()
        return tasks

    def write(self, rows: pa.RecordBatch) -> pa.Buffer:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as stream:
            stream.write_batch(rows)
        return sink.getvalue()


def by_grid(df: Any, session: Session, paths: Sequence[str], path: str | None) -> Any:
    """Bring rows of neighbouring chunks into one partition, as they are.

    For rows with bytes, which would go through Python once more to be packed, at 1.2 to 3 times the processor time
    of the whole: the arithmetic of ``GridTasks`` in Spark's own expressions.

    Parameters
    ----------
    df
        Rows with a column ``index``, or a column per dimension; with a column ``path`` where ``path`` is None.
    session
        Knows the arrays.
    paths
        Arrays of which there may be rows.
    path
        The array, where there is only one.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415  (an extra, and slow to import)

    tasks = GridTasks.of(session, paths)
    if tasks.count == 1:
        return df.repartition(1)
    known = sf.broadcast(df.sparkSession.createDataFrame(tasks.table()))
    same = (
        sf.lit(True)
        if path is not None
        else sf.concat(sf.lit("/"), sf.btrim("path", sf.lit("/"))) == known["_icechunk_path"]
    )
    box = sf.lit(0)
    for d, names in enumerate(tasks.columns):
        if "index" in df.columns:
            place = sf.get(sf.col("index"), sf.lit(d))
        else:
            place = sf.coalesce(*_columns(df, names), sf.lit(0))
        step, stride = (sf.get(f"_icechunk_{each}", sf.lit(d)) for each in ("steps", "strides"))
        box = box + sf.coalesce(sf.floor(place / step) * stride, sf.lit(0))
    task = sf.col("_icechunk_first") + sf.floor(box * sf.col("_icechunk_scale"))
    # what is outside the grid goes anywhere: the task that gets it says what is wrong
    last = sf.lit(tasks.count - 1)
    chosen = sf.greatest(sf.least(sf.coalesce(task, sf.lit(0)), last), sf.lit(0)).cast("int")
    joined = df.join(known, same, "left")
    return joined.repartitionById(tasks.count, chosen).select(*_columns(df, df.columns))


def _columns(df: Any, names: Iterable[str]) -> list[Any]:
    from pyspark.sql import functions as sf  # noqa: PLC0415

    return [sf.col(identifier(name)) for name in df.columns if name in names]


def stage_frame(
    df: Any,
    session: Session,
    work: StageRows,
    paths: Sequence[str],
    *,
    shuffle: bool = True,
    before_merge: Callable[[TaskTotals], bool] | None = None,
) -> TaskTotals:
    """Let tasks stage the rows of a frame, each those of neighbouring chunks.

    Parameters
    ----------
    df, session, work, before_merge
        As :func:`run_tasks` takes them.
    paths
        Arrays of which there may be rows.
    shuffle
        Bring neighbours together first; otherwise the frame's own partitions are the tasks.
    """
    path = work.array_path
    if shuffle and work.kind == "references":
        tasks = GridTasks.of(session, paths)
        wanted = {*REFERENCES.known, *(name for names in tasks.columns for name in names)}
        keeps_order = work.duplicates == "last"
        place = _PlaceReferences(tasks=tasks, path=path, keeps_order=keeps_order)
        df = shuffled(df.select(*_columns(df, wanted)), place)
        work = replace(work, is_packed=True)
    elif shuffle:
        df = by_grid(df, session, paths, path)
    with unlimited_batches(df.sparkSession) if work.is_packed else nullcontext():
        return run_tasks(df, session, work, duplicates=work.duplicates, before_merge=before_merge)


# -- the functions


class WriteWords(TypedDict, total=False):
    """Words that go with every write of references or chunks."""

    arrays: Mapping[str, ArraySpec] | None
    mode: str
    duplicates: Duplicates
    shuffle: bool
    branch: str
    message: str
    metadata: Mapping[str, Any] | None
    storage_options: Mapping[str, Any] | None


def write_references(
    df: Any, target: Target, array_path: Any = None, **words: Unpack[WriteWords]
) -> WriteResult:
    """Write a frame of virtual references: byte ranges of files that exist already.

    Parameters
    ----------
    df
        Columns ``index`` (a list of integers; or ``index_0``, ``index_1``, … or the names of the dimensions),
        ``location``, ``offset``, ``length``, and if wanted ``etag`` and ``last_modified``; ``path`` where
        ``array_path`` is not given.
    target
        A URL, a repository, or a writable session. A session is not committed: several writes into one become
        one commit.
    array_path
        The array, if all rows are of one.
    arrays
        Arrays that are made where they are not there yet: path to a Zarr v3 document, or to the arguments of
        ``zarr.create_array``.
    mode
        ``append``, unless another one is named, writes over what is there, chunk by chunk; ``overwrite`` first
        removes all chunks of the arrays that rows are for; ``error`` and ``ignore`` refuse, or do nothing, if one
        of these has chunks.
    duplicates
        ``error``, unless said otherwise, refuses a chunk that comes twice; ``last`` takes the last of its rows, in
        the frame's order.
    shuffle
        True, unless said otherwise: bring neighbouring chunks together first. Without it the frame's own partitions
        are the tasks: right in any case, and best if each holds a range of the array.
    branch, message, metadata
        Of the commit; the branch is ``main``, unless another one is named.
    storage_options
        For a URL, as ``Repository.open`` takes them.
    """
    return _write("references", df, target, array_path, **words)


def write_chunks(
    df: Any, target: Target, array_path: Any = None, **words: Unpack[WriteWords]
) -> WriteResult:
    """Write a frame of chunks that are encoded already, as the codecs of their arrays make them.

    The columns are ``index`` (or one per dimension), ``data`` with the bytes, and ``path`` where ``array_path`` is
    not given. Everything else is as in :func:`write_references`.
    """
    return _write("chunks", df, target, array_path, **words)


def _write(
    kind: str,
    df: Any,
    target: Target,
    array_path: Any,
    *,
    arrays: Mapping[str, ArraySpec] | None = None,
    mode: str = "append",
    duplicates: Duplicates = "error",
    shuffle: bool = True,
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> WriteResult:
    path = path_or_column(array_path)
    work = StageRows(kind=kind, array_path=path, duplicates=duplicates)
    if message is None:
        message = f"write {kind}"
    check_mode(mode)
    with writing(
        target, branch=branch, message=message, metadata=metadata, storage_options=storage_options
    ) as under_way:
        session = under_way.session
        make_arrays(session, arrays or {})
        with job_description(df.sparkSession, f"icechunk_arrow: {kind} to {session.storage_url}"):
            under_way.totals = stage_frame(
                df,
                session,
                work,
                session.array_paths() if path is None else [path],
                shuffle=shuffle,
                before_merge=lambda totals: apply_mode(mode, session, totals.paths),
            )
    return under_way.result
