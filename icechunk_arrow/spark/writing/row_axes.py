"""Columns with coordinates as axes of arrays: how values become places, and which coordinates are to be stored.

Owns the four ways from a value to a place: coordinates that are stored, a regular grid, the distinct values of the
rows, the place itself. Rows are looked at by Spark alone; what comes here are bounds and distinct values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from msgspec import structs

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.axis_lookup import (
    ExactLookup,
    GridLookup,
    NearLookup,
    PositionLookup,
    RegularGrid,
    canonical,
    kind_of,
    micros_of,
    shown,
)
from icechunk_arrow.core.cf import packed_by
from icechunk_arrow.core.columns import any_array, from_numpy, indices, to_numpy
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.spark.columns import dimensions_of, open_array

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from icechunk_arrow.core.axis_lookup import Lookup
    from icechunk_arrow.session import OpenSession

    Places = npt.NDArray[np.int64]

__all__ = [
    "AxisRequest",
    "AxisRows",
    "NewCoordinates",
    "RowAxis",
    "find_coordinate",
    "resolve_axis",
]

WAYS = ("stored", "distinct", "index")
_FAR = 2**53
"""So many places a grid has that rows may extend."""
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAxis:
    """One axis of the arrays, as executors need it."""

    name: str
    """Of the dimension."""
    column: str
    lookup: Lookup
    is_time: bool = False
    single: bool = False
    """Whether coordinates are compared as 32-bit floats, because they are stored as such."""
    length: int = 0
    low: int = 0
    high: int = 0
    """The first and the last place that a row may have."""
    doubled: Places | None = None
    """Places whose coordinate others have as well: no value can name one."""

    def find(self, column: pa.Array) -> Places:
        """Give the place of each value; -1 where there is none."""
        values = canonical(column)
        if self.single:
            values = values.cast(pa.float32(), safe=False).cast(pa.float64())
        places = self.lookup.find(values)
        if self.doubled is not None and (wrong := np.isin(places, self.doubled)).any():
            raise InvalidInputError(
                f"{self.show(int(places[np.argmax(wrong)]))} stands at several places along {self.name!r}, and "
                f"which is meant cannot be told; say coordinates={{{self.name!r}: 'index'}} and give places. "
                f"Nothing was changed.",
                column=self.column,
            )
        return places

    def show(self, place: int) -> str:
        """Show the coordinate of a place."""
        return f"{self.column}={shown(self.lookup.value_at(place), is_time=self.is_time)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRequest:
    """What the caller asks for an axis."""

    name: str
    column: str
    way: Any = None
    """One of the words, a grid, a sequence of values; None to choose."""
    tolerance: Any = None
    extends: bool = False
    length: int | None = None
    """Of arrays that are there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRows:
    """What is known of a column of coordinates."""

    type: pa.DataType
    bounds: pa.Array
    """The least and the greatest value."""
    distinct: Callable[[], pa.Array]
    """Asks Spark for all values, each once."""

    @property
    def kind(self) -> str:
        """What the column holds."""
        kind = kind_of(self.type)
        assert kind is not None, "checked before Spark is asked"
        return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCoordinates:
    """Values that an array of coordinates is to get: all of a new one, or those behind its present ones."""

    path: str | None
    """None where the array is to be made."""
    values: pa.Array
    """Canonical."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An array of coordinates that is there."""

    path: str
    values: pa.Array
    """Canonical."""
    kind: str
    single: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedAxis:
    """An axis, and the coordinates that are to be stored for it."""

    axis: RowAxis
    request: AxisRequest
    new: NewCoordinates | None = field(default=None)


def find_coordinate(session: OpenSession, group: str, name: str) -> Stored | None:
    """Find the array of one dimension with a name, in a group or the nearest above."""
    folder = group.rstrip("/")
    while "/" not in name:
        path = f"{folder}/{name}"
        view = session.find_array(path)
        if view is not None and len(view.grid.axes) == 1:
            array = open_array(session, path)
            if (array.metadata.dimension_names or (name,)) == (name,):
                return _stored(session, path, array)
        if not folder:
            break
        folder = folder.rpartition("/")[0]
    return None


def _stored(session: OpenSession, path: str, array: Any) -> Stored:
    packed = packed_by(array.dtype, array.attrs.asdict()) if array.dtype.kind in "iuf" else []
    if packed:
        raise InvalidInputError(
            f"the coordinates {path} are packed ({', '.join(packed)}): their numbers are other values than they "
            f"seem. Say 'index' in coordinates= and give places, or write them unpacked.",
            path=path,
        )
    (dimension,) = dimensions_of(session, path, array)
    values = dimension.values if dimension.path is not None else np.asarray(array[:])
    assert values is not None
    if values.dtype.kind in "UTO":
        return Stored(
            path=path, values=any_array(values.tolist(), pa.string()), kind="text", single=False
        )
    if values.dtype.kind == "M":
        moments = from_numpy(values.astype("M8[us]").view(np.int64), pa.int64())
        return Stored(path=path, values=moments, kind="time", single=False)
    if values.dtype.kind in "iu":
        whole = values.astype(np.int64)
        if values.dtype.kind == "u" and (whole < 0).any():
            raise InvalidInputError(
                f"the coordinates {path} have numbers beyond 64 bits with a sign"
            )
        return Stored(path=path, values=from_numpy(whole, pa.int64()), kind="int", single=False)
    if values.dtype.kind == "f":
        numbers = from_numpy(values.astype(np.float64), pa.float64())
        return Stored(path=path, values=numbers, kind="float", single=values.dtype.itemsize < 8)
    raise InvalidInputError(
        f"the coordinates {path} are {values.dtype}, and no column can be compared with that; say "
        f"coordinates={{{dimension.name!r}: 'index'}} and give places"
    )


def resolve_axis(
    request: AxisRequest, rows: AxisRows, stored: Stored | None, *, has_arrays: bool
) -> ResolvedAxis:
    """Settle how the values of a column become places.

    Raises
    ------
    InvalidInputError
        What is asked for cannot be, or the least or greatest value is outside.
    """
    way = request.way
    if isinstance(way, Mapping):
        way = _grid_of(request, way)
    if way is None:
        way = "stored" if stored is not None else "index" if has_arrays else "distinct"
    if isinstance(way, str) and way not in WAYS:
        raise InvalidInputError(
            f"coordinates[{request.name!r}] must be one of {', '.join(WAYS)}, a RegularGrid, or values, "
            f"not {way!r}"
        )
    if isinstance(way, RegularGrid):
        return _on_grid(request, rows, stored, way)
    if isinstance(way, str) and way == "index":
        return _by_index(request, rows)
    if not isinstance(way, str):
        values = _given(request, way)
        if stored is None:
            kind = (
                kind_of(any_array(way).type) if not isinstance(way, pa.Array) else kind_of(way.type)
            )
            new = Stored(path="", values=values, kind=kind or "", single=False)
            return _among(request, rows, new, is_new=True)
        if not stored.values.equals(values):
            raise InvalidInputError(
                f"the values given for {request.name!r} are not those of {stored.path}; leave them out to "
                f"use what is stored"
            )
    if stored is not None:
        return _among(request, rows, stored, is_new=False)
    if way == "stored":
        raise InvalidInputError(
            f"there is no array of coordinates for the dimension {request.name!r}; say in coordinates= how "
            f"its values become places: 'distinct', 'index', a RegularGrid, or values"
        )
    if request.length is not None:
        raise InvalidInputError(
            f"the arrays have {request.length} places along {request.name!r} and no coordinates; which value "
            f"is which cannot be told from the rows. Say 'index', or give a RegularGrid or values."
        )
    return _distinct(request, rows)


def _grid_of(request: AxisRequest, words: Mapping[str, Any]) -> RegularGrid:
    try:
        return RegularGrid(**words)
    except TypeError as error:
        raise InvalidInputError(
            f"coordinates[{request.name!r}] must have start and step, and may have count and tolerance: "
            f"{error}"
        ) from error


# -- the four ways


def _distinct(request: AxisRequest, rows: AxisRows) -> ResolvedAxis:
    _no_tolerance(request)
    values = _sorted(rows.distinct())
    single = pa.types.is_float32(rows.type)
    axis = RowAxis(
        name=request.name,
        column=request.column,
        lookup=ExactLookup(values=values),
        is_time=rows.kind == "time",
        single=single,
        length=len(values),
        low=0,
        high=len(values) - 1,
    )
    return ResolvedAxis(axis=axis, request=request, new=NewCoordinates(path=None, values=values))


def _by_index(request: AxisRequest, rows: AxisRows) -> ResolvedAxis:
    _no_tolerance(request)
    if rows.kind != "int":
        raise InvalidInputError(
            f"the column {request.column!r} must hold whole numbers to be taken as places, not {rows.type}"
        )
    low, high = canonical(rows.bounds).to_pylist()
    if low < 0:
        raise _outside(request, rows, low, 0, "a place is not negative")
    length = request.length
    if length is None or (request.extends and high >= length):
        length = high + 1
    if high >= length:
        raise _outside(request, rows, high, length)
    axis = RowAxis(
        name=request.name,
        column=request.column,
        lookup=PositionLookup(length=length),
        length=length,
        low=low,
        high=high,
    )
    return ResolvedAxis(axis=axis, request=request)


def _on_grid(
    request: AxisRequest, rows: AxisRows, stored: Stored | None, grid: RegularGrid
) -> ResolvedAxis:
    if request.tolerance is not None:
        raise InvalidInputError(f"give the tolerance of {request.name!r} with its grid")
    length = len(stored.values) if stored is not None else request.length
    more = request.extends and grid.count is not None and grid.count > (length or 0)
    if grid.count is not None and length is not None and grid.count != length and not more:
        raise InvalidInputError(
            f"the grid given for {request.name!r} has {grid.count} places, and what is stored has {length}"
        )
    far = grid.lookup(kind=rows.kind, count=_FAR)
    low, high = sorted(far.find(canonical(rows.bounds)).tolist())
    needed = high + 1
    present = max(length or 0, grid.count or 0) or needed
    final = max(present, needed) if request.extends else present
    if low < 0 or needed > final:
        worst = _first_missing(grid.lookup(kind=rows.kind, count=final), rows.bounds)
        raise _outside(request, rows, worst, final)
    lookup = structs.replace(far, length=final)
    axis = RowAxis(
        name=request.name,
        column=request.column,
        lookup=lookup,
        is_time=grid.is_time,
        length=final,
        low=low,
        high=high,
    )
    new = None
    if stored is not None:
        expected = np.arange(len(stored.values))
        if not np.array_equal(_widened(lookup, stored).find(stored.values), expected):
            raise InvalidInputError(
                f"the grid given for {request.name!r} is not that of {stored.path}"
            )
        if final > len(stored.values):
            behind = _values_between(lookup, len(stored.values), final)
            new = NewCoordinates(path=stored.path, values=behind)
    else:
        new = NewCoordinates(path=None, values=_values_between(lookup, 0, final))
    return ResolvedAxis(axis=axis, request=request, new=new)


def _widened(lookup: GridLookup, stored: Stored) -> GridLookup:
    """Take up the rounding of coordinates that are stored with few digits."""
    if not stored.single or not isinstance(lookup.start, float):
        return lookup
    numbers = np.abs(np.asarray(stored.values.to_numpy(zero_copy_only=False)))
    rounding = float(numbers.max(initial=0.0)) * 2.0**-23
    return structs.replace(
        lookup, tolerance=max(lookup.tolerance, min(rounding, abs(lookup.step) / 2))
    )


def _values_between(lookup: GridLookup, first: int, stop: int) -> pa.Array:
    values = lookup.values(first, stop)
    return from_numpy(values, pa.float64() if values.dtype.kind == "f" else pa.int64())


def _among(request: AxisRequest, rows: AxisRows, stored: Stored, *, is_new: bool) -> ResolvedAxis:
    """Find values among those that are stored, or given."""
    _check_kinds(request, rows, stored)
    if request.length is not None and len(stored.values) != request.length:
        raise InvalidInputError(
            f"there are {len(stored.values)} coordinates {stored.path or request.name}, and the arrays have "
            f"{request.length} places along {request.name!r}"
        )
    values, new = stored.values, None
    lookup = _lookup_of(request, rows, values)
    single = stored.single and rows.kind == "float"
    axis = RowAxis(
        name=request.name,
        column=request.column,
        lookup=lookup,
        is_time=stored.kind == "time",
        single=single,
        doubled=_doubled(values),
    )
    if request.extends:
        asked = rows.distinct()
        missed = canonical(asked.filter(from_numpy(axis.find(asked) < 0, pa.bool_())))
        if len(missed):
            more = _in_order(request, stored, missed)
            values = pa.concat_arrays([values, more])
            new = NewCoordinates(path=stored.path, values=more)
            axis = replace(axis, lookup=_lookup_of(request, rows, values))
    if is_new:
        new = NewCoordinates(path=None, values=values)
    axis = replace(axis, length=len(values), low=0, high=len(values) - 1)
    if rows.kind != "text" and _rises(values) is not None:
        places = axis.find(rows.bounds)
        if (places < 0).any():
            worst = canonical(rows.bounds)[int(np.argmax(places < 0))].as_py()
            raise _outside(request, rows, worst, len(values))
        axis = replace(axis, low=int(places.min()), high=int(places.max()))
    if not len(values):
        raise _outside(request, rows, canonical(rows.bounds)[0].as_py(), 0)
    return ResolvedAxis(axis=axis, request=request, new=new)


def _doubled(values: pa.Array) -> Places | None:
    """Give the places whose value is not theirs alone; None if there are none."""
    if pa.types.is_floating(values.type):  # adding 0.0 makes one zero of two
        values = from_numpy(np.asarray(values.to_numpy(zero_copy_only=False)) + 0.0, values.type)
    coded = values.dictionary_encode()
    if len(coded.dictionary) == len(values):
        return None
    codes = to_numpy(coded.indices)
    return np.flatnonzero(np.bincount(codes)[codes] > 1)


def _lookup_of(request: AxisRequest, rows: AxisRows, values: pa.Array) -> Lookup:
    if request.tolerance is None:
        return ExactLookup(values=values)
    if rows.kind == "text":
        raise InvalidInputError(f"texts have no distance: no tolerance for {request.name!r}")
    is_span = not isinstance(request.tolerance, int | float | np.number)
    if is_span != (rows.kind == "time"):
        raise InvalidInputError(
            f"the tolerance of {request.name!r} must be a {'span of time' if rows.kind == 'time' else 'number'}"
        )
    distance = micros_of(request.tolerance) if is_span else request.tolerance
    return NearLookup.of(np.asarray(values.to_numpy(zero_copy_only=False)), distance)


def _check_kinds(request: AxisRequest, rows: AxisRows, stored: Stored) -> None:
    numbers = {"int", "float"}
    if rows.kind == stored.kind or {rows.kind, stored.kind} <= numbers:
        return
    raise InvalidInputError(
        f"the column {request.column!r} holds {rows.type}, and the coordinates {stored.path or request.name} "
        f"are of another kind ({stored.kind}); cast the column"
    )


def _in_order(request: AxisRequest, stored: Stored, missed: pa.Array) -> pa.Array:
    """Order new coordinates as those that are there; refuse such as would come before the last of them."""
    if stored.single:
        missed = missed.cast(pa.float32(), safe=False)
    try:
        more = _sorted(missed.cast(stored.values.type).unique())
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"new values of {request.column!r} do not go into the coordinates {stored.path}: {error}"
        ) from error
    rises = None if stored.kind == "text" else _rises(stored.values)
    if rises is None or not len(stored.values):
        return more
    if not rises:
        more = more.take(indices(np.arange(len(more))[::-1]))
    first, last = more[0].as_py(), stored.values[-1].as_py()
    if first < last if rises else first > last:
        is_time = stored.kind == "time"
        raise InvalidInputError(
            f"rows have {request.column}={shown(first, is_time=is_time)}, which is not among the coordinates "
            f"{stored.path} and would come before their last, {shown(last, is_time=is_time)}; arrays are "
            f"extended at the end only"
        )
    return more


def _rises(values: pa.Array) -> bool | None:
    """Tell whether values rise, or fall (False); None where they do neither."""
    numbers = np.asarray(values.to_numpy(zero_copy_only=False))
    if bool((numbers[1:] > numbers[:-1]).all()):
        return True
    return False if bool((numbers[1:] < numbers[:-1]).all()) else None


def _sorted(values: pa.Array) -> pa.Array:
    present = canonical(values).drop_null()
    return present.take(pc.sort_indices(present)) if len(present) else present


def _given(request: AxisRequest, values: Any) -> pa.Array:
    try:
        array = values if isinstance(values, pa.Array) else any_array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise InvalidInputError(
            f"the values given for {request.name!r} cannot be coordinates: {error}"
        ) from error
    if kind_of(array.type) is None or array.null_count:
        raise InvalidInputError(
            f"the values given for {request.name!r} must be numbers, times or texts, none missing"
        )
    coordinates = canonical(array)
    if len(coordinates.unique()) != len(coordinates):
        raise InvalidInputError(f"the values given for {request.name!r} are not all different")
    return coordinates


def _no_tolerance(request: AxisRequest) -> None:
    if request.tolerance is not None:
        raise InvalidInputError(
            f"a tolerance is for stored coordinates; {request.name!r} is not found among such"
        )


def _first_missing(lookup: Lookup, bounds: pa.Array) -> Any:
    values = canonical(bounds)
    return values[int(np.argmax(lookup.find(values) < 0))].as_py()


def _outside(
    request: AxisRequest, rows: AxisRows, value: Any, length: int, why: str | None = None
) -> InvalidInputError:
    reason = why or f"it is none of the {length} places along {request.name!r}"
    more = "" if request.extends else "; outside='extend' makes the arrays longer, at their end"
    return InvalidInputError(
        f"rows have {request.column}={shown(value, is_time=rows.kind == 'time')}: {reason}{more}",
        column=request.column,
    )
