"""Long tables as arrays: a row for each cell, with its coordinates and its values, written in one commit.

Owns the function and what its words mean. Spark brings the cells of each chunk to one task; what happens on the way
and there is in ``cells``.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from icechunk_arrow.core.axis_lookup import kind_of
from icechunk_arrow.core.cell_blocks import POLICIES
from icechunk_arrow.core.columns import one_array
from icechunk_arrow.core.keys import node_path
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.spark.quoting import identifier
from icechunk_arrow.spark.writing.cells import CellRules
from icechunk_arrow.spark.writing.row_arrays import (
    cells_of,
    dimensions_of_columns,
    grow,
    make_missing,
    read_arrays,
    shared_shape,
    store_coordinates,
)
from icechunk_arrow.spark.writing.row_axes import (
    AxisRequest,
    AxisRows,
    find_coordinate,
    resolve_axis,
)
from icechunk_arrow.spark.writing.shuffle import shuffled
from icechunk_arrow.spark.writing.targets import apply_mode, check_mode, writing
from icechunk_arrow.spark.writing.tasks import (
    TaskTotals,
    check_reachable,
    error_of,
    job_description,
    run_tasks,
    unlimited_batches,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icechunk_arrow.session import Session
    from icechunk_arrow.spark.writing.row_arrays import RowArray, SharedShape
    from icechunk_arrow.spark.writing.row_axes import ResolvedAxis
    from icechunk_arrow.spark.writing.targets import Target, WriteResult

    Types = Mapping[str, pa.DataType]

__all__ = ["RowTargets", "row_targets", "write_rows"]

Duplicates = Literal["error", "last", "mean", "sum"]
_WORDS = {"duplicates": POLICIES, "outside": ("error", "extend"), "nulls": ("fill", "skip")}


def write_rows(
    df: Any,
    target: Target,
    arrays: str | Sequence[str] | Mapping[str, str | Mapping[str, Any]] | None = None,
    *,
    dimensions: Sequence[str] | None = None,
    coordinates: Mapping[str, Any] | None = None,
    group: str = "/",
    chunks: Mapping[str, int] | None = None,
    tolerance: Mapping[str, Any] | None = None,
    mode: str = "append",
    duplicates: Duplicates = "error",
    order_by: str | None = None,
    outside: Literal["error", "extend"] = "error",
    nulls: Literal["fill", "skip"] = "fill",
    branch: str = "main",
    message: str = "write rows",
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> WriteResult:
    """Write a long table into arrays: a row says for one cell where it is, and its values.

    Spark brings the cells of a chunk to one task, which lays them over what is stored and encodes chunks with the
    codecs of their arrays. The frame is read twice or more: persist one that is dear to compute or varies.

    Parameters
    ----------
    df
        A column of coordinates for each dimension, and a column of values for each array.
    target
        A URL, a repository, or a writable session, which is not committed: several writes become one commit.
    arrays
        Columns of values, by default all that are no dimension: their names; or a mapping to paths, or to
        mappings of ``path`` and what ``zarr.create_array`` takes for an array that is made (``dtype``, ``chunks``,
        ``compressors``, ``fill_value``, ``attributes``, …). Paths are relative to ``group``.
    dimensions
        Columns of coordinates, in the order of the arrays' dimensions; by default those with their names, or the
        keys of ``coordinates`` where the arrays are yet to be made.
    coordinates
        How values become places, by dimension: ``"stored"``, by the array of coordinates with that name, in
        ``group`` or the nearest above (chosen where there is one); a :class:`RegularGrid` or a mapping of what it
        takes, or a sequence of values, of which coordinates are made where there are none; ``"distinct"``, the
        rows' own values, sorted (chosen where there are neither coordinates nor arrays); ``"index"``: the column
        has the places, from 0 (chosen where there are arrays without coordinates). Times become numbers with CF
        units, and are found in such. Null and NaN are no coordinates.
    group
        Where arrays and coordinates are made.
    chunks
        Lengths of the chunks of arrays that are made, by dimension; others are chosen for some megabytes a chunk.
    tolerance
        How far a value may be from a stored coordinate, by dimension: a number or a span of time. Without it they
        must be equal (as 32-bit floats where such are stored).
    mode
        ``append`` writes the cells that rows name, and leaves all others; ``overwrite`` first removes what the
        arrays hold; ``error`` and ``ignore`` refuse, or do nothing, if one of them holds anything.
    duplicates
        Of several rows for a cell: ``error`` refuses them; ``last`` takes the last by ``order_by``, or else in the
        frame's order; ``mean`` and ``sum`` are of those not null, as 64-bit floats (sums of whole numbers exactly).
    order_by
        With ``last``: a column of numbers or times.
    outside
        ``error`` refuses rows outside the arrays; ``extend`` makes these longer at the end, with all others in the
        group that have the dimension, and appends coordinates.
    nulls
        ``fill`` writes NaN, no time, ``_FillValue`` or ``missing_value`` of the attributes, or else the fill
        value, where a row has no value; ``skip`` leaves the cell.
    branch, message, metadata, storage_options
        Of the commit; what ``Repository.open`` takes for a URL.

    Raises
    ------
    InvalidInputError
        A row or an argument is wrong, told by name; nothing is changed.
    """
    asked = {"mode": mode, "duplicates": duplicates, "outside": outside, "nulls": nulls}
    _check_words(asked, order_by)
    with writing(
        target, branch=branch, message=message, metadata=metadata, storage_options=storage_options
    ) as under_way:
        session = under_way.session
        check_reachable(session)
        write = _RowsWrite(
            df=df,
            session=session,
            types=_column_types(df),
            group=node_path(group),
            coordinates=dict(coordinates or {}),
            chunks=dict(chunks or {}),
            tolerance=dict(tolerance or {}),
            mode=mode,
            rules=CellRules(duplicates=duplicates, order_by=order_by, skip_nulls=nulls == "skip"),
            extends=outside == "extend",
        )
        with job_description(df.sparkSession, f"icechunk_arrow: rows to {session.storage_url}"):
            under_way.totals = write.run(arrays, dimensions)
    return under_way.result


def _check_words(asked: Mapping[str, str], order_by: str | None) -> None:
    check_mode(asked["mode"])
    for name, words in _WORDS.items():
        if asked[name] not in words:
            raise InvalidInputError(
                f"{name} must be one of {', '.join(words)}, not {asked[name]!r}"
            )
    if order_by is not None and asked["duplicates"] != "last":
        raise InvalidInputError("order_by says which row is last: it goes with duplicates='last'")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTargets:
    """Where the columns of a frame would go."""

    paths: dict[str, str]
    """Of arrays, by the column of values."""
    dimensions: tuple[str, ...]
    """Columns of coordinates."""


def row_targets(
    df: Any,
    session: Session,
    arrays: str | Sequence[str] | Mapping[str, str | Mapping[str, Any]] | None = None,
    *,
    dimensions: Sequence[str] | None = None,
    coordinates: Mapping[str, Any] | None = None,
    group: str = "/",
    order_by: str | None = None,
    **_: Any,
) -> RowTargets:
    """Say which columns of a frame :func:`write_rows` would write to which arrays, with the same words."""
    chosen, columns, _present = _choose_columns(
        session,
        _column_types(df),
        arrays,
        dimensions,
        group=node_path(group),
        coordinates=list(coordinates or {}),
        order_by=order_by,
    )
    return RowTargets(paths={each.column: each.path for each in chosen}, dimensions=tuple(columns))


# -- which columns are values, and which coordinates


def _choose_columns(
    session: Session,
    types: Types,
    asked: Any,
    dimensions: Sequence[str] | None,
    *,
    group: str,
    coordinates: Sequence[str],
    order_by: str | None,
) -> tuple[list[RowArray], list[str], SharedShape | None]:
    """Say which columns are values and which coordinates, and what of the arrays is there."""
    if isinstance(dimensions, str):
        dimensions = [dimensions]
    if asked is None and dimensions is None:
        # the arrays that have the names of columns tell
        dimensions = dimensions_of_columns(session, types, group) or list(coordinates)
        if not dimensions:
            raise _unnamed()
    others = [] if order_by is None else [order_by]
    arrays = read_arrays(asked, types, group, [*(dimensions or []), *others])
    present = shared_shape(session, arrays)
    columns = _coordinate_columns(dimensions, present, types, coordinates)
    if order_by is not None and kind_of(types.get(order_by, pa.null())) in {None, "text"}:
        raise InvalidInputError(
            f"order_by must name a column of numbers or times, not {order_by!r}"
        )
    twice = [each.column for each in arrays if each.column in columns]
    if twice:
        raise InvalidInputError(f"the column {twice[0]!r} cannot be a dimension and values at once")
    return arrays, columns, present


def _coordinate_columns(
    dimensions: Sequence[str] | None,
    present: SharedShape | None,
    types: Types,
    coordinates: Sequence[str],
) -> list[str]:
    """Say which columns have the coordinates, in the order of dimensions."""
    if dimensions is not None:
        columns = list(dimensions)
    elif present is not None and all(present.names):
        columns = [str(name) for name in present.names]
    elif present is None and coordinates:
        columns = list(coordinates)
    else:
        raise _unnamed()
    if present is not None and len(columns) != len(present.shape):
        raise InvalidInputError(
            f"{present.path!r} has {len(present.shape)} dimensions, and dimensions= names {len(columns)}",
            path=present.path,
        )
    if not columns or len(set(columns)) < len(columns):
        raise InvalidInputError(f"dimensions= must name columns, each once, not {columns}")
    for name in columns:
        if name not in types:
            raise InvalidInputError(
                f"the frame has no column {name!r} for the dimension; it has "
                f"{', '.join(map(repr, types))}"
            )
        if kind_of(types[name]) is None:
            raise InvalidInputError(
                f"the column {name!r} of {types[name]} cannot hold coordinates; cast it to a number, "
                f"a time or text"
            )
    return columns


def _unnamed() -> InvalidInputError:
    return InvalidInputError(
        "which columns are the dimensions? Name them with dimensions=, in the order of the arrays' dimensions"
    )


# -- the write


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowsWrite:
    """One write: what was asked for, and the steps in their order."""

    df: Any
    session: Session
    types: Types
    group: str
    coordinates: dict[str, Any]
    chunks: dict[str, int]
    tolerance: dict[str, Any]
    mode: str
    rules: CellRules
    extends: bool

    def run(self, asked: Any, dimensions: Sequence[str] | None) -> TaskTotals:
        """Look at the rows, make what is not there, and let tasks write."""
        session, types, order_by = self.session, self.types, self.rules.order_by
        arrays, columns, present = _choose_columns(
            session,
            types,
            asked,
            dimensions,
            group=self.group,
            coordinates=list(self.coordinates),
            order_by=order_by,
        )
        stored_names = columns if present is None else present.names
        names = [name or column for name, column in zip(stored_names, columns, strict=True)]
        for what, options in (("coordinates", self.coordinates), ("tolerance", self.tolerance)):
            for name in options.keys() - set(names):
                raise InvalidInputError(
                    f"{what}= names {name!r}, and the dimensions are {', '.join(map(repr, names))}"
                )
        used = dict.fromkeys([*columns, *(each.column for each in arrays)])
        used.update({} if order_by is None else {order_by: None})
        rows = self.df.select(*[identifier(name) for name in used])
        paths = frozenset(each.path for each in arrays if session.find_array(each.path))
        if self.mode in {"error", "ignore"} and not apply_mode(self.mode, session, paths):
            return TaskTotals()
        count, bounds = _bounds(rows, columns, types)
        if not count:
            if self.mode == "overwrite":
                apply_mode(self.mode, session, paths)
            return TaskTotals()
        resolved = [
            self._resolve(d, name, rows, columns[d], bounds, present)
            for d, name in enumerate(names)
        ]
        if present is not None:
            grow(session, arrays, resolved)
        for each in resolved:
            store_coordinates(session, self.group, each, types[each.request.column])
        axes = [each.axis for each in resolved]
        make_missing(session, arrays, names, [each.length for each in axes], self.chunks, present)
        if self.mode == "overwrite":
            apply_mode(self.mode, session, paths)
        merged = frozenset(path for path in paths if session.has_chunks(path))
        cells = cells_of(
            session, arrays, axes, self.rules, types=types, merged=merged, row_count=count
        )
        texts = any(pa.types.is_string(types[name]) for name in used)
        with nullcontext() if texts else unlimited_batches(self.df.sparkSession):
            totals = [run_tasks(shuffled(rows, each), session, each) for each in cells]
        return sum(totals, TaskTotals())

    def _resolve(
        self,
        dimension: int,
        name: str,
        rows: Any,
        column: str,
        bounds: Mapping[str, pa.Array],
        present: SharedShape | None,
    ) -> ResolvedAxis:
        """Settle how the values of a column become places along a dimension."""

        def distinct() -> pa.Array:
            values = rows.select(identifier(column)).distinct().toArrow().column(0)
            return one_array(values)

        request = AxisRequest(
            name=name,
            column=column,
            way=self.coordinates.get(name),
            tolerance=self.tolerance.get(name),
            extends=self.extends,
            length=present.shape[dimension] if present is not None else None,
        )
        stored = None
        if not (isinstance(request.way, str) and request.way == "index"):
            folder = self.group if present is None else present.path.rpartition("/")[0]
            stored = find_coordinate(self.session, folder, name)
        known = AxisRows(type=self.types[column], bounds=bounds[column], distinct=distinct)
        return resolve_axis(request, known, stored, has_arrays=present is not None)


def _column_types(df: Any) -> dict[str, pa.DataType]:
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415  (an extra, and slow to import)
    from pyspark.sql.types import TimestampNTZType, TimestampType  # noqa: PLC0415

    types: dict[str, pa.DataType] = {}
    for field in df.schema.fields:
        if field.name in types:
            raise InvalidInputError(f"the frame has the column {field.name!r} twice")
        kind = field.dataType
        if isinstance(kind, TimestampType):
            types[field.name] = pa.timestamp("us", "UTC")
        elif isinstance(kind, TimestampNTZType):
            types[field.name] = pa.timestamp("us")
        else:
            types[field.name] = to_arrow_type(kind)
    return types


def _bounds(rows: Any, columns: Sequence[str], types: Types) -> tuple[int, dict[str, pa.Array]]:
    """Count the rows, and find the least and the greatest coordinate of each column; refuse those without."""
    from pyspark.sql import functions as sf  # noqa: PLC0415

    asked = [sf.count(sf.lit(1)).alias("rows")]
    for d, name in enumerate(columns):
        column = sf.col(identifier(name))
        asked += [
            sf.count(column).alias(f"there_{d}"),
            sf.min(column).alias(f"low_{d}"),
            sf.max(column).alias(f"high_{d}"),
        ]
    try:
        table = rows.agg(*asked).toArrow()
    except Exception as error:
        ours = error_of(error)
        if ours is None:
            raise
        raise ours from error
    count: int = table["rows"][0].as_py()
    bounds = {}
    for d, name in enumerate(columns):
        missing = count - table[f"there_{d}"][0].as_py()
        if missing:
            raise InvalidInputError(
                f"{missing} of {count} rows have no value in the column {name!r}, which says where they "
                f"are; filter them out, or fill them in. Nothing was changed.",
                column=name,
            )
        ends = pa.chunked_array([*table[f"low_{d}"].chunks, *table[f"high_{d}"].chunks])
        bounds[name] = ends.combine_chunks()
        if (
            count
            and kind_of(types[name]) == "float"
            and bounds[name][1].as_py() != bounds[name][1].as_py()
        ):
            raise InvalidInputError(
                f"rows have NaN in the column {name!r}, which says where they are; filter them out. "
                f"Nothing was changed.",
                column=name,
            )
    return count, bounds
