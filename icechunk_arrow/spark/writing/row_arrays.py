"""Value columns and the arrays they go to: which are there, how those are made that are not, how all grow.

Owns what an array is made like from a column's type, and which other arrays must grow with those that are written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.axis_lookup import canonical
from icechunk_arrow.core.cell_blocks import carried_dtype, plan_row_blocks
from icechunk_arrow.core.cell_values import (
    CF_DAYS,
    CF_MICROSECONDS,
    ValueFault,
    cell_type_of,
    elements_of,
    is_whole_decimal,
)
from icechunk_arrow.core.keys import node_path
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.spark.columns import open_array
from icechunk_arrow.spark.writing.cells import CellColumn, Cells
from icechunk_arrow.spark.writing.targets import make_arrays

if TYPE_CHECKING:
    from icechunk_arrow.core.cell_values import CellType
    from icechunk_arrow.session import OpenSession, Session
    from icechunk_arrow.spark.writing.cells import CellRules
    from icechunk_arrow.spark.writing.row_axes import NewCoordinates, ResolvedAxis, RowAxis

__all__ = [
    "RowArray",
    "SharedShape",
    "cells_of",
    "chunk_edges",
    "dimensions_of_columns",
    "grow",
    "make_missing",
    "named_paths",
    "read_arrays",
    "shared_shape",
    "store_coordinates",
]

_CHUNK_BYTES = 4 << 20
_COORDINATES_PER_CHUNK = (1 << 10, 1 << 16)
_DAY = 86_400_000_000
_INT64_DIGITS, _UINT64_DIGITS = 18, 20
"""Digits of decimals that always fit, and of those that Spark makes of unsigned numbers."""
_BLOCK_BYTES = (8 << 20, 256 << 20)
"""What a block of chunks takes in memory: the least, so that packs are not tiny, and the most."""
_MOST_BLOCKS = 256
_BLOCK_BYTES_IN_ONE_TASK = 64 << 20
_TASK_BYTES = 32 << 20
_MOST_TASKS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RowArray:
    """A column of values, and the array it goes to."""

    column: str
    type: pa.DataType
    path: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedShape:
    """What the arrays that are there have in common."""

    path: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    names: tuple[str | None, ...]


def read_arrays(
    arrays: Any, types: Mapping[str, pa.DataType], group: str, taken: Sequence[str]
) -> list[RowArray]:
    """Read the parameter ``arrays``; ``taken`` are columns that are no values."""
    if arrays is None:
        arrays = [name for name in types if name not in taken]
    if isinstance(arrays, str):
        arrays = [arrays]
    if not isinstance(arrays, Mapping):
        arrays = {name: name for name in arrays}
    if not arrays:
        raise InvalidInputError("there is no column of values beside those of the dimensions")
    row_arrays = []
    for column, spec in arrays.items():
        if column not in types:
            raise InvalidInputError(
                f"the frame has no column {column!r}; it has {', '.join(map(repr, types))}"
            )
        if column in taken:
            raise InvalidInputError(
                f"the column {column!r} cannot be a dimension and values at once"
            )
        options = dict(spec) if isinstance(spec, Mapping) else {"path": spec}
        path = options.pop("path", column)
        if not isinstance(path, str) and not hasattr(path, "name"):
            raise InvalidInputError(
                f"arrays[{column!r}] must be a path, an array of zarr, or a mapping, not {spec!r}"
            )
        full = node_path(path, group)
        row_arrays.append(RowArray(column=column, type=types[column], path=full, options=options))
    paths = [each.path for each in row_arrays]
    if len(set(paths)) < len(paths):
        raise InvalidInputError(f"two columns go to one array: {', '.join(paths)}")
    return row_arrays


def named_paths(arrays: Any, group: str) -> list[str]:
    """Give the arrays that the parameter ``arrays`` names, or the group where it names none."""
    if arrays is None:
        return [f"{node_path(group).rstrip('/')}/*"]
    names: Any = [arrays] if isinstance(arrays, str) else arrays
    specs = dict(names) if isinstance(names, Mapping) else dict(zip(names, names, strict=True))
    paths = []
    for column, each in specs.items():
        path = each.get("path", column) if isinstance(each, Mapping) else each
        paths.append(node_path(path, group))
    return paths


def shared_shape(session: OpenSession, arrays: Sequence[RowArray]) -> SharedShape | None:
    """Say what those of the arrays have in common that are there; None if none is."""
    first: SharedShape | None = None
    for each in arrays:
        node = session.find_node(each.path)
        if node is not None and not node.is_array:
            raise InvalidInputError(f"{each.path!r} is a group; rows go to arrays", path=each.path)
        view = session.find_array(each.path)
        if view is None:
            continue
        grid = view.grid
        if any(len(axis.runs) != 1 or axis.runs[0][1] is not None for axis in grid.axes):
            raise InvalidInputError(
                f"{each.path!r} has chunks of unequal lengths; rows go to arrays with a regular grid",
                path=each.path,
            )
        columns = view.node.columns
        shared = SharedShape(
            path=each.path,
            shape=tuple(axis.extent for axis in grid.axes),
            chunk_shape=grid.chunk_shape,
            names=tuple((columns.dimension_names if columns else None) or (None,) * len(grid.axes)),
        )
        if first is not None and (shared.shape, shared.names) != (first.shape, first.names):
            raise InvalidInputError(
                f"{shared.path!r} has shape {shared.shape} and dimensions {shared.names}, and {first.path!r} "
                f"{first.shape} and {first.names}; write them with a call each, into one session",
                path=shared.path,
            )
        first = first or shared
    return first


def dimensions_of_columns(
    session: OpenSession, types: Mapping[str, pa.DataType], group: str
) -> list[str] | None:
    """Find an array that has the name of a column, and whose dimensions are columns too; give these."""
    for name in types:
        view = session.find_array(f"{group.rstrip('/')}/{name}")
        names = (view.node.columns.dimension_names if view and view.node.columns else None) or ()
        if names and name not in names and all(each in types for each in names):
            return [str(each) for each in names]
    return None


# -- arrays that are not there


def make_missing(
    session: Session,
    arrays: Sequence[RowArray],
    names: Sequence[str],
    shape: Sequence[int],
    chunks: Mapping[str, int],
    like: SharedShape | None,
) -> None:
    """Make those arrays that are not there."""
    unknown = sorted(set(chunks) - set(names))
    if unknown:
        raise InvalidInputError(
            f"chunks= names {unknown[0]!r}, which is no dimension: {list(names)}"
        )
    for each in arrays:
        if session.find_array(each.path) is not None:
            continue
        spec = {"shape": tuple(shape), "dtype": _dtype_of(each), "dimension_names": tuple(names)}
        spec |= each.options
        dtype = _numpy_dtype(spec["dtype"])
        if "chunks" not in spec:
            fixed = [chunks.get(name) for name in names]
            if like is not None and not chunks:
                fixed = list(like.chunk_shape)
            spec["chunks"] = chunk_edges(shape, fixed, dtype.itemsize if dtype else 32)
        if "fill_value" not in spec and dtype is not None and dtype.kind in "fM":
            spec["fill_value"] = np.nan if dtype.kind == "f" else np.datetime64("NaT", "us")
        make_arrays(session, {each.path: spec})


def chunk_edges(
    shape: Sequence[int], fixed: Sequence[int | None], item_bytes: int
) -> tuple[int, ...]:
    """Choose the edges that are not given so that a chunk is of some megabytes: halve the longest."""
    edges = [max(n, 1) if edge is None else edge for n, edge in zip(shape, fixed, strict=True)]
    if any(isinstance(edge, bool) or edge < 1 for edge in edges):
        raise InvalidInputError(f"chunks must be whole numbers from 1, not {list(fixed)}")
    free = [d for d, edge in enumerate(fixed) if edge is None]
    while free and math.prod(edges) * item_bytes > _CHUNK_BYTES:
        longest = max(free, key=lambda d: edges[d])
        if edges[longest] == 1:
            break
        edges[longest] = -(-edges[longest] // 2)
    return tuple(edges)


def _dtype_of(array: RowArray) -> Any:
    kind = array.type
    if pa.types.is_timestamp(kind):
        return "datetime64[us]"
    if pa.types.is_date(kind):
        return "datetime64[D]"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return str(np.dtype(kind.to_pandas_dtype()))
    if is_whole_decimal(kind) and kind.precision <= _UINT64_DIGITS:
        return "int64" if kind.precision <= _INT64_DIGITS else "uint64"
    wrong = cell_type_of(np.dtype(np.float64), {}, kind)
    raise InvalidInputError(f"the column {array.column!r} cannot become an array: {wrong}")


def _numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    if dtype in ("string", str):
        return None
    try:
        numpy_dtype: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        return None
    return numpy_dtype


def _cell_type(array: Any, row: RowArray) -> CellType:
    """Say how a column goes into its array, or why it does not."""
    cell_type = cell_type_of(array.dtype, array.attrs.asdict(), row.type)
    if isinstance(cell_type, str):
        raise InvalidInputError(
            f"the column {row.column!r} of {row.type} does not go into {row.path!r}: {cell_type}",
            path=row.path,
        )
    return cell_type


# -- cells


def cells_of(
    session: OpenSession,
    arrays: Sequence[RowArray],
    axes: Sequence[RowAxis],
    rules: CellRules,
    *,
    types: Mapping[str, pa.DataType],
    merged: frozenset[str],
    row_count: int | None,
) -> list[Cells]:
    """Say how rows become cells: once for all arrays whose chunks are of one shape.

    Parameters
    ----------
    session, arrays, axes, rules, types
        What is written, by columns of these types.
    merged
        Arrays that have chunks, which partial ones are laid over.
    row_count
        How many rows there are; None where one task has all of them.
    """
    by_shape: dict[tuple[int, ...], list[CellColumn]] = {}
    for each in arrays:
        chunk_shape = session.get_array(each.path).grid.chunk_shape
        column = _cell_column(session, each, rules.duplicates)
        by_shape.setdefault(chunk_shape, []).append(column)
    order_type = None
    if rules.order_by is not None:
        order_type = canonical(pa.nulls(0, types[rules.order_by])).type
    cells = []
    for chunk_shape, columns in by_shape.items():
        block_bytes, most_tasks = _BLOCK_BYTES_IN_ONE_TASK, 1
        if row_count is not None:
            size_bytes = row_count * (4 + sum(each.value_bytes for each in columns))
            low, high = _BLOCK_BYTES
            block_bytes = min(max(size_bytes // _MOST_BLOCKS, low), high)
            most_tasks = min(max(size_bytes // _TASK_BYTES, 1), _MOST_TASKS)
        blocks = plan_row_blocks(
            shape=[axis.length for axis in axes],
            chunk_shape=chunk_shape,
            low=[axis.low for axis in axes],
            high=[axis.high for axis in axes],
            cell_bytes=sum(each.value_bytes + 1 for each in columns),
            block_bytes=block_bytes,
        )
        cells.append(
            Cells(
                axes=tuple(axes),
                columns=tuple(columns),
                blocks=blocks,
                rules=rules,
                order_type=order_type,
                merged=merged,
                task_count=min(blocks.block_count, most_tasks),
            )
        )
    return cells


def _cell_column(session: Any, row: RowArray, duplicates: str) -> CellColumn:
    """Say how a column goes into its array, and that several values of one cell can become one as asked."""
    stored = open_array(session, row.path)
    kind = _cell_type(stored, row)
    numeric = stored.dtype.kind in "iuf" and kind.units is None
    if duplicates in {"mean", "sum"} and not numeric:
        raise InvalidInputError(
            f"{row.path!r} holds {stored.dtype}, of which there is no {duplicates}", path=row.path
        )
    return CellColumn(
        name=row.column,
        path=row.path,
        type=kind,
        carried=carried_dtype(kind.dtype, duplicates),
    )


# -- arrays that grow


def grow(session: Session, arrays: Sequence[RowArray], axes: Sequence[ResolvedAxis]) -> None:
    """Make arrays longer, and with them all others below the same group that have the dimension as well."""
    longer: dict[str, dict[str, int]] = {}
    for d, each in enumerate(axes):
        before = each.request.length
        if before is None or each.axis.length <= before:
            continue
        name = each.request.name
        paths = {array.path for array in arrays if session.find_array(array.path) is not None}
        stored = each.new.path if each.new is not None else None
        folder = (stored or next(iter(paths))).rpartition("/")[0] + "/"
        for path in session.array_paths():
            view = session.get_array(path)
            names = (view.node.columns.dimension_names if view.node.columns else None) or ()
            mine = path in paths
            if path == stored or not (mine or (path.startswith(folder) and name in names)):
                continue
            along = d if mine else names.index(name)
            if view.grid.axes[along].extent == before:
                longer.setdefault(path, {})[str(along)] = each.axis.length
    for path, lengths in longer.items():
        array = open_array(session, path, "r+")
        array.resize(tuple(lengths.get(str(d), n) for d, n in enumerate(array.shape)))


def store_coordinates(
    session: Session, group: str, resolved: ResolvedAxis, kind: pa.DataType
) -> None:
    """Make an array of coordinates, or write behind the end of one."""
    new, name = resolved.new, resolved.request.name
    if new is None:
        return
    if new.path is None:
        path = f"{group.rstrip('/')}/{name}"
        if session.find_node(path) is not None:
            raise InvalidInputError(
                f"the coordinates of {name!r} would be stored as {path!r}, and there is something else",
                path=path,
            )
        make_arrays(session, {path: _coordinate_spec(name, new, resolved, kind)})
        first = 0
    else:
        path = new.path
        first = open_array(session, path).shape[0]
        open_array(session, path, "r+").resize((first + len(new.values),))
    if len(new.values):
        array = open_array(session, path, "r+")
        array[first:] = _elements(array, path, name, new, resolved)


def _coordinate_spec(
    name: str, new: NewCoordinates, resolved: ResolvedAxis, kind: pa.DataType
) -> dict[str, Any]:
    count = len(new.values)
    low, high = _COORDINATES_PER_CHUNK
    spec: dict[str, Any] = {
        "shape": (count,),
        "chunks": (min(max(count, low), high),),
        "dimension_names": (name,),
    }
    if resolved.axis.is_time:
        units = CF_DAYS if pa.types.is_date(kind) else CF_MICROSECONDS
        attributes = {"units": units, "calendar": "proleptic_gregorian"}
        return spec | {"dtype": "int64", "attributes": attributes}
    if pa.types.is_string(new.values.type):
        return spec | {"dtype": "string"}
    if pa.types.is_floating(new.values.type):
        single = pa.types.is_float32(kind) and resolved.axis.single
        return spec | {"dtype": "float32" if single else "float64", "fill_value": np.nan}
    return spec | {
        "dtype": str(np.dtype(kind.to_pandas_dtype())) if pa.types.is_integer(kind) else "int64"
    }


def _elements(array: Any, path: str, name: str, new: NewCoordinates, resolved: ResolvedAxis) -> Any:
    """Write coordinates as the elements of their array."""
    values = new.values
    if pa.types.is_string(values.type):
        return np.array(
            values.to_pylist(), dtype=array.dtype if array.dtype.kind == "T" else object
        )
    if resolved.axis.is_time:
        values = values.view(pa.timestamp("us", "UTC"))
    row = RowArray(column=name, type=values.type, path=path, options={})
    kind = _cell_type(array, row)
    try:
        return elements_of(kind.encode(values), kind.dtype)
    except ValueFault as fault:
        raise InvalidInputError(
            f"{name}={fault.value} cannot be stored in {path!r}: {fault.why}", path=path
        ) from None
