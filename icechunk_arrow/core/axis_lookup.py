"""Which place along an axis a value names: by a regular grid, by stored values, or by itself.

Owns the comparison, whole columns at a time. Values come in one of three canonical forms, which
:func:`canonical` makes of a column: 64-bit integers (times as microseconds since 1970, UTC), 64-bit floats,
and text. Must not know where the values of an axis are stored, nor which array it belongs to.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from msgspec import Struct

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import validity
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy.typing as npt

    Places = npt.NDArray[np.int64]
    """Indices along an axis; -1 where a value is none of it."""
    Number = int | float | datetime | date | timedelta | np.generic

__all__ = [
    "ExactLookup",
    "GridLookup",
    "Lookup",
    "NearLookup",
    "PositionLookup",
    "RegularGrid",
    "canonical",
    "kind_of",
    "micros_of",
    "shown",
]

_DAY = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GRID_SLACK = 1e-3
"""So much of a step may a float be off the place that it names: far above rounding, far below the next place."""


class Lookup(Protocol):
    """Finds values along an axis."""

    @property
    def length(self) -> int:
        """The number of places."""
        ...

    def find(self, values: pa.Array) -> Places:
        """Give the place of each value of a canonical column; -1 where there is none, or it is null."""
        ...

    def value_at(self, place: int) -> Any:
        """Give the canonical value of a place."""
        ...


# -- columns


def kind_of(arrow_type: pa.DataType) -> str | None:
    """Say what a column of coordinates holds: int, float, time or text; None if it cannot hold any."""
    if pa.types.is_integer(arrow_type):
        return "int"
    if pa.types.is_floating(arrow_type):
        return "float"
    if pa.types.is_timestamp(arrow_type) or pa.types.is_date(arrow_type):
        return "time"
    if pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type):
        return "text"
    return None


def canonical(column: pa.Array) -> pa.Array:
    """Bring a column to its canonical form; nulls stay null."""
    match kind_of(column.type):
        case "int":
            return column.cast(pa.int64())
        case "float":
            return column.cast(pa.float64())
        case "text":
            return column.cast(pa.string())
        case "time" if pa.types.is_timestamp(column.type):
            return column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
        case "time":
            days = column.cast(pa.date32()).view(pa.int32()).cast(pa.int64())
            return pc.multiply_checked(days, _DAY)
    raise InvalidInputError(f"a column of {column.type} cannot hold coordinates")


def micros_of(value: Number) -> int:
    """Count the microseconds of a moment since 1970, or of a span; a moment without a zone is one of UTC."""
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return micros_of(datetime(value.year, value.month, value.day, tzinfo=UTC))
    assert isinstance(value, np.datetime64 | np.timedelta64)
    fine = value.astype("M8[us]" if isinstance(value, np.datetime64) else "m8[us]")
    if fine != value:
        raise InvalidInputError(f"{value} is not a whole number of microseconds")
    return int(fine.astype(np.int64))


def shown(value: Any, *, is_time: bool) -> str:
    """Show a canonical value as its owner would write it."""
    if value is None:
        return "null"
    if is_time:
        return str(np.datetime64(int(value), "us"))
    return repr(value.item() if isinstance(value, np.generic) else value)


def _floats(values: pa.Array) -> npt.NDArray[np.float64]:
    """Give numbers as floats, nulls as NaN."""
    floats = _numbers(values).astype(np.float64, copy=False)
    return np.where(validity(values), floats, np.nan) if values.null_count else floats


def _numbers(values: pa.Array) -> npt.NDArray[Any]:
    """View 64-bit numbers; nulls are whatever lies under them."""
    dtype = np.float64 if pa.types.is_floating(values.type) else np.int64
    data = np.frombuffer(values.buffers()[1] or b"", dtype)
    return data[values.offset : values.offset + len(values)]


def _column(values: npt.NDArray[Any]) -> pa.Array:
    kind = pa.float64() if values.dtype.kind == "f" else pa.int64()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


# -- a grid that a caller gives


class RegularGrid(Struct, frozen=True, kw_only=True):
    """Equal steps: the place of a value is how many of them it is from the start.

    Attributes
    ----------
    start
        The first value: a number, or a moment (``datetime``, ``date``, ``numpy.datetime64``; without a zone: UTC).
    step
        The distance to the next: a number, or a ``timedelta`` or ``numpy.timedelta64``; may be negative.
    count
        How many values there are. Without it, as many as the arrays have, or as the rows need.
    tolerance
        How far a value may be from the one that it names: by default a thousandth of the step for floats, which
        takes up their rounding, and nothing for integers and moments. Half a step means the nearest.

    Examples
    --------
    >>> RegularGrid(start=90.0, step=-0.25, count=721).count
    721
    """

    start: Number
    step: Number
    count: int | None = None
    tolerance: Number | None = None

    def __post_init__(self) -> None:
        times = [isinstance(self.start, date | np.datetime64)]
        times += [
            isinstance(each, timedelta | np.timedelta64)
            for each in (self.step, self.tolerance)
            if each is not None
        ]
        if len(set(times)) != 1:
            raise InvalidInputError(
                f"{self}: start, step and tolerance must be all numbers, or a moment and spans of time"
            )
        if not self.is_time:
            for each in (self.start, self.step, self.tolerance or 0):
                if isinstance(each, bool) or not math.isfinite(_number(each)):
                    raise InvalidInputError(f"{self}: {each!r} is no number to count with")
        if self._as_number(self.step) == 0:
            raise InvalidInputError(f"{self}: the step must not be 0")
        if self.tolerance is not None:
            tolerance, step = self._as_number(self.tolerance), self._as_number(self.step)
            if not 0 <= tolerance <= abs(step) / 2:
                raise InvalidInputError(f"{self}: the tolerance must be from 0 to half a step")
        if self.count is not None and (isinstance(self.count, bool) or self.count < 0):
            raise InvalidInputError(f"{self}: the count must not be negative")

    @property
    def is_time(self) -> bool:
        """Whether it counts time."""
        return isinstance(self.start, date | np.datetime64)

    def _as_number(self, value: Number) -> int | float:
        return micros_of(value) if self.is_time else _number(value)

    def lookup(self, *, kind: str, count: int | None = None) -> GridLookup:
        """Make the lookup for a column of a kind, with another count if one is given."""
        if self.is_time != (kind == "time") or kind == "text":
            raise InvalidInputError(f"{self} does not fit a column of {kind} values")
        start, step = self._as_number(self.start), self._as_number(self.step)
        tolerance = None if self.tolerance is None else self._as_number(self.tolerance)
        length = self.count if count is None else count
        assert length is not None
        if isinstance(start, int) and isinstance(step, int) and kind != "float":
            whole = 0 if tolerance is None else int(tolerance)
            return GridLookup(start=start, step=step, length=length, tolerance=whole)
        slack = abs(step) * _GRID_SLACK if tolerance is None else float(tolerance)
        return GridLookup(start=float(start), step=float(step), length=length, tolerance=slack)


def _number(value: Number) -> int | float:
    number: Any = value.item() if isinstance(value, np.generic) else value
    if not isinstance(number, int | float):
        raise InvalidInputError(f"{value!r} is no number to count with")
    return number


class GridLookup(Struct, frozen=True, kw_only=True):
    """Counts steps; with integers exactly."""

    start: int | float
    step: int | float
    length: int
    tolerance: int | float

    def values(self, first: int, stop: int) -> npt.NDArray[Any]:
        """Give the values at some places."""
        places = np.arange(first, stop, dtype=np.int64)
        return self.start + places * self.step

    def value_at(self, place: int) -> Any:
        """Give the value of a place."""
        return self.start + place * self.step

    def find(self, values: pa.Array) -> Places:
        """Give the place of each value."""
        if not self.length:
            return np.full(len(values), -1, np.int64)
        if isinstance(self.start, float):
            numbers = _floats(values)
            ends = sorted((self.start, self.start + (self.length - 1) * self.step))
            slack = self.tolerance
            inside = (numbers >= ends[0] - slack) & (numbers <= ends[1] + slack)
            near = np.where(inside, numbers, self.start)
            steps = np.rint((near - self.start) / self.step)
            off = np.abs(near - (self.start + steps * self.step))
            places = steps.astype(np.int64)
        else:
            whole = _numbers(values)
            first, last = sorted((self.start, self.start + (self.length - 1) * int(self.step)))
            low, high = max(first - int(self.tolerance), -(2**63)), last + int(self.tolerance)
            inside = (whole >= low) & (whole <= min(high, 2**63 - 1))
            if values.null_count:
                inside &= validity(values)
            step = abs(int(self.step))
            away = np.where(inside, whole, self.start) - self.start
            away = away if self.step > 0 else -away
            places = (away + step // 2) // step if self.tolerance else away // step
            off = np.abs(away - places * step)
        inside &= (off <= self.tolerance) & (places >= 0) & (places < self.length)
        located: Places = places if bool(inside.all()) else np.where(inside, places, -1)
        return located


class PositionLookup(Struct, frozen=True, kw_only=True):
    """Takes a whole number as the place itself."""

    length: int

    def value_at(self, place: int) -> Any:
        """Give the place itself."""
        return place

    def find(self, values: pa.Array) -> Places:
        """Give each value, where it is a place."""
        whole = _numbers(values)
        inside = (whole >= 0) & (whole < self.length)
        if values.null_count:
            inside &= validity(values)
        return whole if bool(inside.all()) else np.where(inside, whole, -1)


# -- values that are stored


class ExactLookup(Struct, frozen=True, kw_only=True, eq=False):
    """Finds equal values, of any order: by counting steps where these are even, else by their hashes."""

    values: pa.Array
    """Canonical, and each of them once."""

    @property
    def length(self) -> int:
        """The number of places."""
        return len(self.values)

    def value_at(self, place: int) -> Any:
        """Give the value of a place."""
        return self.values[place].as_py()

    def find(self, values: pa.Array) -> Places:
        """Give the place of each value; NaN is equal to nothing."""
        if not len(self.values):
            return np.full(len(values), -1, np.int64)
        if pa.types.is_string(self.values.type):
            return _by_hash(values, self.values)
        if pa.types.is_floating(values.type) or pa.types.is_floating(self.values.type):
            # adding 0.0 makes one zero of two
            known: npt.NDArray[Any] = _floats(self.values) + 0.0
            wanted: npt.NDArray[Any] = _floats(values) + 0.0
            sought = ~np.isnan(wanted)
        else:
            known, wanted = _numbers(self.values), _numbers(values)
            sought = validity(values)
        places = _by_steps(wanted, known)
        missed = np.flatnonzero((places < 0) & sought)
        if len(missed):
            places[missed] = _by_hash(_column(wanted[missed]), _column(known))
        if not sought.all():
            places[~sought] = -1
        return places


def _by_steps(wanted: npt.NDArray[Any], known: npt.NDArray[Any]) -> Places:
    """Guess places as if known values were evenly spaced; -1 where the guess is wrong."""
    last = len(known) - 1
    step = (float(known[last]) - float(known[0])) / max(last, 1)
    if not step:
        return np.where(wanted == known[0], 0, -1)
    with np.errstate(invalid="ignore", over="ignore"):
        guess = wanted - known[0].astype(np.float64)
        guess /= step
        np.rint(guess, out=guess)
        np.clip(guess, 0, last, out=guess)
        np.nan_to_num(guess, copy=False)
    places: Places = guess.astype(np.int64)
    places[known[places] != wanted] = -1
    return places


def _apart(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Give distances; of integers without a sign, as they may be longer than 63 bits."""
    if left.dtype.kind == "f":
        distances: npt.NDArray[Any] = np.abs(left - right)
        return distances
    whole: npt.NDArray[Any] = np.maximum(left, right) - np.minimum(left, right)
    return whole.view(np.uint64)


def _by_hash(wanted: pa.Array, known: pa.Array) -> Places:
    indices = pc.fill_null(pc.index_in(wanted, known, skip_nulls=True), -1)
    data = np.frombuffer(indices.buffers()[1] or b"", np.int32)
    places: Places = np.asarray(data[indices.offset : indices.offset + len(indices)], np.int64)
    return places


class NearLookup(Struct, frozen=True, kw_only=True, eq=False):
    """Finds the nearest of some numbers, if it is near enough; of two equally near, the smaller."""

    values: npt.NDArray[Any]
    """In rising order."""
    places: Places
    """Where each of them stands on the axis."""
    tolerance: int | float

    @property
    def length(self) -> int:
        """The number of places."""
        return len(self.places)

    @classmethod
    def of(cls, values: npt.NDArray[Any], tolerance: float) -> NearLookup:
        """Sort the values of an axis."""
        order = np.argsort(values, kind="stable")
        return cls(values=values[order], places=order.astype(np.int64), tolerance=tolerance)

    def value_at(self, place: int) -> Any:
        """Give the value of a place."""
        return self.values[int(np.flatnonzero(self.places == place)[0])].item()

    def find(self, values: pa.Array) -> Places:
        """Give the place of the nearest value."""
        if not len(self.values):
            return np.full(len(values), -1, np.int64)
        known = self.values
        if known.dtype.kind == "f" or pa.types.is_floating(values.type):
            numbers: npt.NDArray[Any] = _floats(values)
            known = known.astype(np.float64)
        else:
            numbers = _numbers(values)
        above = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        below = np.maximum(above - 1, 0)
        to_above, to_below = _apart(known[above], numbers), _apart(known[below], numbers)
        nearest = np.where(to_below <= to_above, below, above)
        near = np.minimum(to_above, to_below) <= self.tolerance
        if values.null_count:
            near &= validity(values)
        return np.where(near, self.places[nearest], -1)
