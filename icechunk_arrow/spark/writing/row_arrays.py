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
import zarr

from icechunk_arrow.core.cell_blocks import carried_dtype
from icechunk_arrow.core.cell_values import (
    CF_DAYS,
    CF_MICROSECONDS,
    ValueFault,
    cell_type_of,
    elements_of,
    is_whole_decimal,
)
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.spark.axes import node_path
from icechunk_arrow.spark.writing.arrays_to_make import make_arrays
from icechunk_arrow.spark.writing.row_placing import CellColumn

if TYPE_CHECKING:
    from icechunk_arrow.core.cell_values import CellType
    from icechunk_arrow.session import OpenSession, Session
    from icechunk_arrow.spark.writing.row_axes import NewCoordinates, ResolvedAxis

__all__ = [
    "ArrayShape",
    "RowArray",
    "cell_column",
    "chunk_edges",
    "grow",
    "make",
    "named_paths",
    "read_arrays",
    "shape_of",
    "store_coordinates",
]

_CHUNK_BYTES = 4 << 20
_COORDINATES_PER_CHUNK = (1 << 10, 1 << 16)
_DAY = 86_400_000_000
_INT64_DIGITS, _UINT64_DIGITS = 18, 20
"""Digits of decimals that always fit, and of those that Spark makes of unsigned numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowArray:
    """A column of values, and the array it goes to."""

    column: str
    type: pa.DataType
    path: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayShape:
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
    found = []
    for column, said in arrays.items():
        if column not in types:
            raise InvalidInputError(
                f"the frame has no column {column!r}; it has {', '.join(map(repr, types))}"
            )
        if column in taken:
            raise InvalidInputError(
                f"the column {column!r} cannot be a dimension and values at once"
            )
        options = dict(said) if isinstance(said, Mapping) else {"path": said}
        path = options.pop("path", column)
        if not isinstance(path, str):
            raise InvalidInputError(
                f"arrays[{column!r}] must be a path, or a mapping, not {said!r}"
            )
        full = path if path.startswith("/") else f"{group.rstrip('/')}/{path}"
        found.append(
            RowArray(column=column, type=types[column], path=node_path(full), options=options)
        )
    paths = [each.path for each in found]
    if len(set(paths)) < len(paths):
        raise InvalidInputError(f"two columns go to one array: {', '.join(paths)}")
    return found


def named_paths(arrays: Any, group: str) -> list[str]:
    """Give the arrays that the parameter ``arrays`` names, or the group where it names none."""
    if arrays is None:
        return [f"{node_path(group).rstrip('/')}/*"]
    names: Any = [arrays] if isinstance(arrays, str) else arrays
    said = dict(names) if isinstance(names, Mapping) else dict(zip(names, names, strict=True))
    found = []
    for column, each in said.items():
        path = each.get("path", column) if isinstance(each, Mapping) else each
        found.append(path if path.startswith("/") else f"{node_path(group).rstrip('/')}/{path}")
    return [node_path(path) for path in found]


def shape_of(session: OpenSession, arrays: Sequence[RowArray]) -> ArrayShape | None:
    """Say what those of the arrays have in common that are there; None if none is."""
    first: ArrayShape | None = None
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
        found = ArrayShape(
            path=each.path,
            shape=tuple(axis.extent for axis in grid.axes),
            chunk_shape=grid.chunk_shape,
            names=tuple((columns.dimension_names if columns else None) or (None,) * len(grid.axes)),
        )
        if first is not None and (found.shape, found.names) != (first.shape, first.names):
            raise InvalidInputError(
                f"{found.path!r} has shape {found.shape} and dimensions {found.names}, and {first.path!r} "
                f"{first.shape} and {first.names}; write them with a call each, into one session",
                path=found.path,
            )
        first = first or found
    return first


# -- making


def make(
    session: Session,
    arrays: Sequence[RowArray],
    names: Sequence[str],
    shape: Sequence[int],
    chunks: Mapping[str, int],
    like: ArrayShape | None,
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
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        return None
    return found


def opened(session: Any, path: str, mode: str = "r") -> Any:
    """Open an array with zarr."""
    return zarr.open_array(store=session.store, path=path.strip("/"), mode=mode, zarr_format=3)


def cell_type(array: Any, row: RowArray) -> CellType:
    """Say how a column goes into its array, or why it does not."""
    found = cell_type_of(array.dtype, array.attrs.asdict(), row.type)
    if isinstance(found, str):
        raise InvalidInputError(
            f"the column {row.column!r} of {row.type} does not go into {row.path!r}: {found}",
            path=row.path,
        )
    return found


# -- growing


def cell_column(session: Any, row: RowArray, duplicates: str) -> CellColumn:
    """Say how a column goes into its array, and that several values of one cell can become one as asked."""
    stored = opened(session, row.path)
    cells = cell_type(stored, row)
    numeric = stored.dtype.kind in "iuf" and cells.units is None
    if duplicates in {"mean", "sum"} and not numeric:
        raise InvalidInputError(
            f"{row.path!r} holds {stored.dtype}, of which there is no {duplicates}", path=row.path
        )
    return CellColumn(
        name=row.column,
        path=row.path,
        cells=cells,
        carried=carried_dtype(cells.dtype, duplicates),
    )


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
        array = opened(session, path, "r+")
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
        first = opened(session, path).shape[0]
        opened(session, path, "r+").resize((first + len(new.values),))
    if len(new.values):
        array = opened(session, path, "r+")
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
    kind = cell_type(array, row)
    try:
        return elements_of(kind.encode(values), kind.dtype)
    except ValueFault as fault:
        raise InvalidInputError(
            f"{name}={fault.value} cannot be stored in {path!r}: {fault.why}", path=path
        ) from None
