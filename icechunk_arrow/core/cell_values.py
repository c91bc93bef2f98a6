"""Values of a column as elements of an array: exactly, or not at all.

Owns which types of columns go into which data types, and how times become the numbers that an array's units ask
for. Nothing is cut or wrapped, and only floats are rounded, to floats of fewer digits: a value that does not fit is
refused, by its row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from icechunk_arrow.core.axis_lookup import canonical, shown
from icechunk_arrow.core.cell_blocks import native_dtype
from icechunk_arrow.core.cf import TimeUnits, find_time_units, packed_by
from icechunk_arrow.core.columns import bitmap, to_numpy, validity

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

__all__ = [
    "CF_DAYS",
    "CF_MICROSECONDS",
    "CellType",
    "ValueFault",
    "arrow_of",
    "cell_type_of",
    "elements_of",
    "encode_moments",
    "is_whole_decimal",
    "numpy_of",
]

CF_MICROSECONDS = "microseconds since 1970-01-01"
CF_DAYS = "days since 1970-01-01"
_DAY = 86_400_000_000


class ValueFault(Exception):  # noqa: N818  (it says where, and becomes an error with names)
    """A value does not fit: its row, how it looks, and why."""

    def __init__(self, row: int, value: str, why: str) -> None:
        super().__init__(why)
        self.row = row
        self.value = value
        self.why = why


class CellType(Struct, frozen=True, kw_only=True):
    """What an array's elements are, and what they mean where they count time."""

    dtype: np.dtype[Any]
    units: TimeUnits | None = None

    def encode(self, column: pa.Array, dtype: np.dtype[Any] | None = None) -> pa.Array:
        """Bring a column to the array's type, or to a wider one in which it is to be carried.

        Raises
        ------
        ValueFault
            A value does not fit.
        """
        target = self.dtype if dtype is None else dtype
        if target.kind in "TUO":
            texts = column.cast(pa.string())
            _check_lengths(texts, target)
            return texts
        valid = validity(column) if column.null_count else None
        if pa.types.is_boolean(column.type):
            return _as_arrow(to_numpy(column), valid)
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            moments = canonical(column)
            values = self._moments(to_numpy(moments), valid)
            return _as_arrow(values, valid)
        whole = is_whole_decimal(column.type)
        values = _whole_numbers(column, target, valid) if whole else numpy_of(column)
        return _as_arrow(_exactly(values, target, valid), valid)

    def _moments(
        self, micros: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_] | None
    ) -> npt.NDArray[Any]:
        there = micros if valid is None else np.where(valid, micros, 0)
        if self.dtype.kind == "M":
            moments = there.view("M8[us]").astype(self.dtype)
            wrong = moments.astype("M8[us]") != there.view("M8[us]")
            _refuse_first(wrong, valid, there, f"it is no whole {self.dtype}", is_time=True)
            return moments.view(np.int64)
        assert self.units is not None
        return encode_moments(there, self.units, self.dtype, valid)


def cell_type_of(
    dtype: np.dtype[Any], attributes: Mapping[str, Any], arrow_type: pa.DataType
) -> CellType | str:
    """Say how a column goes into an array; if it does not, why."""
    units = find_time_units(attributes.get("units"), attributes.get("calendar"))
    packed = packed_by(dtype, attributes)
    if packed:
        return (
            f"it is packed ({', '.join(packed)}), and rows would be written as they are; write to an "
            f"array without these attributes"
        )
    if pa.types.is_timestamp(arrow_type) or pa.types.is_date(arrow_type):
        if dtype.kind == "M":
            return CellType(dtype=dtype)
        if units is None or dtype.kind not in "iuf":
            return "it has no units such as 'seconds since 1970-01-01'; give it some, or cast the column"
        return CellType(dtype=dtype, units=units)
    if pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type):
        fits = dtype.kind in "TUO"
    elif pa.types.is_boolean(arrow_type):
        fits = dtype.kind == "b"
    elif pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type):
        fits = dtype.kind in "iuf"
    elif is_whole_decimal(arrow_type):
        fits = dtype.kind in "iu"
    elif pa.types.is_decimal(arrow_type):
        return (
            "decimals with fractions have no counterpart in Zarr; cast the column to double or long"
        )
    else:
        return f"a column of {arrow_type} has no counterpart in Zarr; cast it, or leave it out"
    return CellType(dtype=dtype) if fits else f"its elements are {dtype}; cast the column"


def encode_moments(
    micros: npt.NDArray[np.int64],
    units: TimeUnits,
    dtype: np.dtype[Any],
    valid: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[Any]:
    """Count moments in units, exactly."""
    away = micros - units.zero
    wrapped = (away > micros) if units.zero > 0 else (away < micros)
    _refuse_first(wrapped, valid, micros, "it is too far from the array's zero", is_time=True)
    if dtype.kind == "f":
        counted = (away / (units.nanoseconds / 1000)).astype(dtype)
        back = np.rint(counted.astype(np.float64) * (units.nanoseconds / 1000))
        fine = back.astype(np.int64) == away
    elif units.nanoseconds < 1000:
        times = 1000 // units.nanoseconds
        fine = np.abs(away) < 2**63 // times
        counted = np.where(fine, away, 0) * times
    else:
        length = units.nanoseconds // 1000
        counted = away // length
        fine = counted * length == away
    _refuse_first(~fine, valid, micros, "the array's units cannot express it", is_time=True)
    return counted if dtype.kind == "f" else _exactly(counted, dtype, valid)


def is_whole_decimal(arrow_type: pa.DataType) -> bool:
    """Whether a column has whole numbers as decimals: so Spark has unsigned ones of 64 bits."""
    return bool(pa.types.is_decimal128(arrow_type)) and arrow_type.scale == 0


def _whole_numbers(
    column: pa.Array, dtype: np.dtype[Any], valid: npt.NDArray[np.bool_] | None
) -> npt.NDArray[Any]:
    """Take whole numbers of 128 bits as those of 64 that are meant for a type, with a sign or without."""
    words: npt.NDArray[np.int64]
    words = np.frombuffer(column.buffers()[1] or b"", "<i8").reshape(-1, 2)
    low, high = words[column.offset : column.offset + len(column)].T
    signed = dtype.kind == "i"
    wrong = high != (low >> 63 if signed else 0)
    if valid is not None:
        wrong &= valid
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueFault(row, str(column[row].as_py()), f"{dtype} cannot hold it exactly")
    values: npt.NDArray[Any] = low if signed else low.view(np.uint64)
    return values


def numpy_of(column: pa.Array) -> npt.NDArray[Any]:
    """View numbers of any width as numpy; nulls are whatever lies under them."""
    dtype = np.dtype(column.type.to_pandas_dtype())
    data = np.frombuffer(column.buffers()[1] or b"", dtype)
    return data[column.offset : column.offset + len(column)]


def elements_of(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Give values that were encoded as elements of a type; nulls are anything."""
    if dtype.kind in "TUO":
        texts = column.fill_null("") if column.null_count else column
        kind = object if dtype.kind == "O" else dtype
        return np.array(texts.to_pylist(), dtype=kind)
    values = numpy_of(column)
    return values.view(np.bool_ if dtype.kind == "b" else dtype) if dtype.kind in "bM" else values


def arrow_of(dtype: np.dtype[Any]) -> pa.DataType:
    """Say as what elements travel."""
    if dtype.kind in "TUO":
        return pa.string()
    if dtype.kind == "M":
        return pa.int64()
    if dtype.kind == "b":
        return pa.uint8()
    return pa.from_numpy_dtype(native_dtype(dtype))


def _as_arrow(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None) -> pa.Array:
    kind = arrow_of(values.dtype)
    data = np.ascontiguousarray(values, native_dtype(values.dtype))
    return pa.Array.from_buffers(kind, len(values), [bitmap(valid), pa.py_buffer(data)])


def _exactly(
    values: npt.NDArray[Any], dtype: np.dtype[Any], valid: npt.NDArray[np.bool_] | None
) -> npt.NDArray[Any]:
    """Cast numbers, none of which may change but for digits of floats."""
    native = native_dtype(dtype)
    if values.dtype.kind == native.kind == "f":
        with np.errstate(over="ignore"):
            rounded = values.astype(native, copy=False)
        _refuse_first(
            np.isinf(rounded) & np.isfinite(values),
            valid,
            values,
            f"it is beyond {dtype}",
            is_time=False,
        )
        return rounded
    long_integers = values.dtype.kind in "iu" and native.kind == "f" and values.dtype.itemsize == 8
    if np.can_cast(values.dtype, native, "safe") and not long_integers:
        return values.astype(native, copy=False)
    with np.errstate(all="ignore"):
        converted = values.astype(native)
        same = converted.astype(values.dtype) == values
    if native.kind in "iu" and values.dtype.kind in "iuf":
        limits = np.iinfo(native)
        same &= (values >= limits.min) & (values <= _largest(limits, values.dtype))
    elif values.dtype.kind in "iu":  # on the way back from a float what is too large wraps around
        bounds, wide = np.iinfo(values.dtype), converted.astype(np.float64)
        same &= (wide >= float(bounds.min)) & (wide < float(bounds.max) + 1)
    _refuse_first(~same, valid, values, f"{dtype} cannot hold it exactly", is_time=False)
    return converted


def _largest(limits: np.iinfo[Any], dtype: np.dtype[Any]) -> Any:
    """The largest value of a type that is not above a limit."""
    if dtype.kind != "f":
        return limits.max
    nearest = dtype.type(limits.max)
    return nearest if int(nearest) <= limits.max else np.nextafter(nearest, dtype.type(0))


def _refuse_first(
    wrong: npt.NDArray[np.bool_],
    valid: npt.NDArray[np.bool_] | None,
    values: npt.NDArray[Any],
    why: str,
    *,
    is_time: bool,
) -> None:
    faults = wrong if valid is None else wrong & valid
    if faults.any():
        row = int(np.argmax(faults))
        raise ValueFault(row, shown(values[row], is_time=is_time), why)


def _check_lengths(texts: pa.Array, dtype: np.dtype[Any]) -> None:
    if dtype.kind != "U":
        return
    longest = dtype.itemsize // 4
    for text in texts.unique().to_pylist():
        if text is None or (len(text) <= longest and not text.endswith("\0")):
            continue
        why = f"it is longer than the array's {longest} characters"
        if len(text) <= longest:
            why = "it ends in NUL, which texts of one length cannot keep"
        raise ValueFault(texts.index(text).as_py(), repr(text), why)
