"""Which rows of chunks go to one task: neighbours, so that what a task writes has nothing in common with others.

Arrays are cut along their grids into the boxes that a manifest may hold; a task gets whole boxes that follow one
another. All of it is arithmetic on the index in Spark's own expressions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import from_numpy, from_values, to_numpy
from icechunk_arrow.core.splits import box_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from icechunk_arrow.engine.view import ArrayView
    from icechunk_arrow.session import Session

__all__ = ["GridTasks", "by_grid", "grid_tasks"]

_ROWS = 1 << 20
"""About so many chunks a task may have, where every place of a grid is filled."""
_MOST_TASKS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """How the grid of an array is cut into boxes, and which tasks these go to."""

    steps: tuple[int, ...]
    strides: tuple[int, ...]
    boxes: int
    chunks: int


def _cut(session: Session, view: ArrayView) -> _Cut:
    layout = session.layout_of(view)
    counts = view.grid.chunk_counts
    box = box_of(counts, layout.limit, layout.axis)
    along = [max(-(-n // step), 1) for n, step in zip(counts, box, strict=True)]
    axes = sorted(range(len(counts)), key=lambda d: d != layout.axis)  # the axis of cuts is slowest
    strides = [0] * len(counts)
    total = 1
    for d in reversed(axes):
        strides[d] = total if total * along[d] < 1 << 62 else 0
        total = total * along[d] if strides[d] else total
    chunks = 1
    for n in counts:
        chunks *= max(n, 1)
    return _Cut(steps=box, strides=tuple(strides), boxes=total, chunks=chunks)


def by_grid(df: Any, session: Session, paths: Sequence[str], path: str | None) -> Any:
    """Bring rows of neighbouring chunks into one partition.

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

    views = {each: session.get_array(each) for each in paths}
    cuts = {each: _cut(session, view) for each, view in views.items()}
    table, count = _tasks(cuts)
    if count == 1:
        return df.repartition(1)
    names = [
        [name for name in _place_names(views.values(), d) if name in df.columns]
        for d in range(_most_dimensions(cuts))
    ]
    places = [
        sf.get(sf.col("index"), sf.lit(d)) if "index" in df.columns else _first(names[d])
        for d in range(len(names))
    ]
    spark = df.sparkSession
    tasks = sf.broadcast(spark.createDataFrame(table))
    same = sf.lit(True) if path is not None else df["path"] == tasks["_icechunk_path"]
    joined = df.join(tasks, same, "left")
    number = sf.lit(0)
    for d, place in enumerate(places):
        step, stride = sf.get("_icechunk_steps", sf.lit(d)), sf.get("_icechunk_strides", sf.lit(d))
        number = number + sf.coalesce(sf.floor(place / step) * stride, sf.lit(0))
    task = sf.col("_icechunk_first") + sf.floor(number * sf.col("_icechunk_scale"))
    last = sf.lit(count - 1)
    # what is outside the grid goes anywhere: the task that gets it says what is wrong
    chosen = sf.greatest(sf.least(sf.coalesce(task, sf.lit(0)), last), sf.lit(0)).cast("int")
    return joined.repartitionById(count, chosen).select(*[sf.col(_quoted(c)) for c in df.columns])


def _tasks(cuts: dict[str, _Cut]) -> tuple[pa.Table, int]:
    """Give each array its tasks: several to a large one, and one to several small ones."""
    total = sum(cut.chunks for cut in cuts.values())
    rows = max(_ROWS, -(-total // _MOST_TASKS))
    first, scale = [], []
    used, room = 0, 0
    for cut in cuts.values():
        if cut.chunks > rows:
            tasks = max(min(cut.boxes, cut.chunks // rows + 1), 1)
            first.append(used)
            scale.append(tasks / cut.boxes)
            used, room = used + tasks, 0
            continue
        if cut.chunks > room:
            used, room = used + 1, rows
        room -= cut.chunks
        first.append(used - 1)
        scale.append(0.0)
    lists = pa.list_(pa.int64())
    table = pa.Table.from_pydict(
        {
            "_icechunk_path": from_values(list(cuts), pa.string()),
            "_icechunk_steps": from_values([list(c.steps) for c in cuts.values()], lists),
            "_icechunk_strides": from_values([list(c.strides) for c in cuts.values()], lists),
            "_icechunk_first": from_numpy(np.array(first, np.int64), pa.int64()),
            "_icechunk_scale": from_numpy(np.array(scale, np.float64), pa.float64()),
        }
    )
    return table, max(used, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GridTasks:
    """The same arithmetic in numpy: which task has which chunks, of several arrays at once."""

    paths: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    """For each dimension, the columns that may say where a chunk is along it."""
    counts: npt.NDArray[np.int64]
    """Chunks along each dimension: a row for each array, as in the next two."""
    steps: npt.NDArray[np.int64]
    strides: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    scale: npt.NDArray[np.float64]
    count: int
    """The tasks."""

    @property
    def dimensions(self) -> int:
        """The most that an array has."""
        return int(self.steps.shape[1])

    def boxes(self, array: npt.NDArray[np.int64], places: Sequence[npt.NDArray[np.int64]]) -> Any:
        """Give the number of the box of each chunk."""
        found = np.zeros(len(array), np.int64)
        for d, place in enumerate(places):
            found += (
                np.minimum(place, self.counts[array, d])
                // self.steps[array, d]
                * self.strides[array, d]
            )
        return found

    def tasks(self, array: npt.NDArray[np.int64], box: npt.NDArray[np.int64]) -> Any:
        """Give the task of each box."""
        found = self.first[array] + np.floor(box * self.scale[array]).astype(np.int64)
        return np.clip(found, 0, self.count - 1)

    def linear(self, array: npt.NDArray[np.int64], places: Sequence[npt.NDArray[np.int64]]) -> Any:
        """Give the number of each chunk in order of coordinates; where that takes too many bits, roughly."""
        found = np.zeros(len(array), np.float64)
        for d, place in enumerate(places):
            found = found * np.maximum(self.counts[array, d], 1) + place
        return np.minimum(found, float(1 << 62)).astype(np.int64)


def grid_tasks(session: Session, paths: Sequence[str]) -> GridTasks:
    """Say which tasks have which chunks of arrays of which there may be rows."""
    views = {each: session.get_array(each) for each in paths}
    cuts = {each: _cut(session, view) for each, view in views.items()}
    table, count = _tasks(cuts)
    ndim = _most_dimensions(cuts)
    shape = (len(cuts), ndim)
    steps, strides, counts = (
        np.ones(shape, np.int64),
        np.zeros(shape, np.int64),
        np.ones(shape, np.int64),
    )
    for row, (path, cut) in enumerate(cuts.items()):
        used = len(cut.steps)
        steps[row, :used] = np.maximum(cut.steps, 1)
        strides[row, :used] = cut.strides
        counts[row, :used] = views[path].grid.chunk_counts
    return GridTasks(
        paths=tuple(cuts),
        columns=tuple(tuple(_place_names(views.values(), d)) for d in range(ndim)),
        counts=counts,
        steps=steps,
        strides=strides,
        first=to_numpy(table["_icechunk_first"]),
        scale=to_numpy(table["_icechunk_scale"]),
        count=count,
    )


def _most_dimensions(cuts: dict[str, _Cut]) -> int:
    return max((len(cut.steps) for cut in cuts.values()), default=0)


def _place_names(views: Iterable[ArrayView], d: int) -> list[str]:
    """Names of columns that may say where a chunk is along a dimension."""
    found = {f"index_{d}": None}
    for view in views:
        names = (view.node.columns.dimension_names if view.node.columns else None) or ()
        found.update({name: None for name in names[d : d + 1] if name is not None})
    return list(found)


def _first(names: Sequence[str]) -> Any:
    from pyspark.sql import functions as sf  # noqa: PLC0415

    return sf.coalesce(*[sf.col(_quoted(name)) for name in names]) if names else sf.lit(0)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
