"""Arrays as columns of Spark: which type holds the elements of one, and what stands in the columns of dimensions.

Owns elements as Arrow: unsigned numbers take the next wider type with a sign, 64 bits of them a decimal; half
precision becomes single; complex numbers become a struct of two; times are in microseconds. Nothing is lost but
digits of a time. And where the coordinate of a dimension is: CF times are decoded where they name moments exactly,
and stay the numbers that are stored where they do not; a dimension without a coordinate has its positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import zarr

from icechunk_arrow.core.cf import decode_times, find_time_units, to_microseconds
from icechunk_arrow.core.columns import any_array, bitmap, offsets_of
from icechunk_arrow.core.selection import select
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.predicates import Predicate
    from icechunk_arrow.session import OpenSession

    Mask = npt.NDArray[np.bool_]

__all__ = [
    "Dimension",
    "array_of",
    "dimensions_of",
    "element_bytes",
    "element_type",
    "fill_mask",
    "list_of",
    "open_array",
    "selected",
    "sliced_list",
]

_NUMBERS = {
    "b1": pa.bool_(),
    "i1": pa.int8(),
    "i2": pa.int16(),
    "i4": pa.int32(),
    "i8": pa.int64(),
    "u1": pa.int16(),
    "u2": pa.int32(),
    "u4": pa.int64(),
    "u8": pa.decimal128(20, 0),
    "f2": pa.float32(),
    "f4": pa.float32(),
    "f8": pa.float64(),
}
_TIME = pa.timestamp("us", "UTC")
_SPAN = pa.duration("us")
_PLAIN = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}
_UNKNOWN_BYTES = 32
"""What an element of no fixed size is taken to have."""


def list_of(item: pa.DataType) -> pa.DataType:
    """Give the type of lists, with the items named as Spark names them."""
    return pa.list_(pa.field("element", item))


def element_type(array: Any, path: str) -> pa.DataType:
    """Say which type of a column an array's elements have."""
    dtype, stored = array.dtype, type(array.metadata.data_type).__name__
    if stored == "VariableLengthBytes" or dtype.kind == "S":
        return pa.binary()
    if dtype.kind in "UT":
        return pa.string()
    if dtype.kind == "V" and dtype.fields is None:
        return pa.binary()
    if dtype.kind == "M":
        return _TIME
    if dtype.kind == "m":
        return _SPAN
    if dtype.kind == "c" and dtype.itemsize <= 16:
        part = pa.float32() if dtype.itemsize == 8 else pa.float64()
        return pa.struct([pa.field("real", part), pa.field("imag", part)])
    kind = _NUMBERS.get(f"{dtype.kind}{dtype.itemsize}")
    if kind is None:
        raise InvalidInputError(
            f"the array {path} is of data type {dtype}, which no column of Spark holds; leave it out",
            path=path,
        )
    return kind


def element_bytes(dtype: np.dtype[Any]) -> int:
    """Say how many bytes an element takes, more or less."""
    return dtype.itemsize if dtype.kind not in "OT" else _UNKNOWN_BYTES


def fill_mask(values: npt.NDArray[Any], fill: Any) -> Mask:
    """Tell which values are the fill value; NaN is equal to NaN here, and a missing time to another."""
    mask: Mask
    if values.dtype.kind in "Mm" and np.isnat(fill):
        mask = np.isnat(values)
    elif values.dtype.kind in "fc" and np.isnan(fill):
        mask = np.isnan(values)
    elif values.dtype.kind in "OV":
        blank = fill.tobytes() if isinstance(fill, np.generic) else fill
        mask = np.fromiter((each == blank for each in _items(values)), np.bool_, len(values))
    else:
        mask = values == fill
    return mask


def array_of(
    values: npt.NDArray[Any], arrow_type: pa.DataType, null: Mask | None = None, name: str = ""
) -> pa.Array:
    """Wrap one-dimensional values as Arrow; ``null`` is True where there is none."""
    values = np.ascontiguousarray(values)
    valid = None if null is None else ~null
    count = len(values)
    if arrow_type in (_TIME, _SPAN):
        times = to_microseconds(values, name)
        there = ~np.isnat(times)
        valid = there if valid is None else valid & there
        return pa.Array.from_buffers(arrow_type, count, [bitmap(valid), _buffer(times)])
    if arrow_type == pa.bool_():
        bits = np.packbits(values.astype(np.bool_), bitorder="little")
        return pa.Array.from_buffers(arrow_type, count, [bitmap(valid), _buffer(bits)])
    if pa.types.is_string(arrow_type) or pa.types.is_binary(arrow_type):
        return _texts(values, arrow_type, valid)
    if pa.types.is_decimal(arrow_type):
        words = np.zeros((count, 2), "<u8")
        words[:, 0] = values
        return pa.Array.from_buffers(arrow_type, count, [bitmap(valid), _buffer(words)])
    if pa.types.is_struct(arrow_type):
        part = arrow_type.field(0).type
        children = [array_of(each, part) for each in (values.real, values.imag)]
        return pa.Array.from_buffers(arrow_type, count, [bitmap(valid)], children=children)
    numbers = values.astype(_PLAIN[arrow_type], copy=False)
    return pa.Array.from_buffers(arrow_type, count, [bitmap(valid), _buffer(numbers)])


def sliced_list(items: pa.Array, lengths: npt.NDArray[Any]) -> pa.Array:
    """Cut items into lists."""
    buffers = [None, _buffer(offsets_of(lengths))]
    kind = list_of(items.type)
    return pa.Array.from_buffers(kind, len(lengths), buffers, children=[items])


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(values).view(np.uint8).reshape(-1))


def _items(values: npt.NDArray[Any]) -> list[Any]:
    if values.dtype.kind == "V":
        count, size = len(values), values.dtype.itemsize
        data = values.tobytes()
        return [data[at : at + size] for at in range(0, count * size, size)]
    items: list[Any] = values.tolist()
    return items


def _texts(values: npt.NDArray[Any], arrow_type: pa.DataType, valid: Mask | None) -> pa.Array:
    return any_array(_items(values), arrow_type, valid)


# -- dimensions


def open_array(session: OpenSession, path: str, mode: Literal["r", "r+"] = "r") -> Any:
    """Open an array with zarr, or ``NodeNotFoundError``."""
    session.get_array(path)
    return zarr.open_array(store=session.store, path=path.strip("/"), mode=mode, zarr_format=3)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dimension:
    """One dimension of a grid."""

    name: str
    length: int
    type: pa.DataType
    path: str | None = None
    """The coordinate array; None where the dimension has none."""
    values: npt.NDArray[Any] | None = None

    @property
    def element_bytes(self) -> int:
        """How many bytes one value takes, more or less."""
        return 8 if self.values is None else element_bytes(self.values.dtype)

    def between(self, start: int, stop: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Give the values at positions, which lie between two."""
        if self.values is None:
            return positions
        return self.values[start:stop] if len(positions) == stop - start else self.values[positions]


def dimensions_of(session: OpenSession, path: str, array: Any) -> list[Dimension]:
    """Describe the dimensions of an array, in order.

    A dimension's coordinate is the array of one dimension that is named as it, in the same group or the nearest
    above. A dimension without a name, or with that of one before it, is ``dim_<number>``.
    """
    names = array.metadata.dimension_names or (None,) * array.ndim
    dimensions: list[Dimension] = []
    for number, (name, length) in enumerate(zip(names, array.shape, strict=True)):
        shown = f"dim_{number}"
        if name and name not in {each.name for each in dimensions}:
            shown = name
        coordinate = None if shown != name else _find_coordinate(session, path, name, length)
        if coordinate is None:
            dimensions.append(Dimension(name=shown, length=length, type=pa.int64()))
            continue
        values, kind = _values_of(*coordinate)
        dimensions.append(
            Dimension(name=shown, length=length, type=kind, path=coordinate[0], values=values)
        )
    return dimensions


def selected(
    dimensions: Sequence[Dimension], where: Predicate | None, path: str
) -> list[npt.NDArray[np.int64]]:
    """Find the positions along each dimension at which a condition holds, as ranges."""
    asked = () if where is None else where.columns
    known = [each.name for each in dimensions]
    for name in asked:
        if name not in known:
            raise InvalidInputError(
                f"the condition speaks of {name!r}, which is no dimension of {path}: it has "
                f"{', '.join(known) or 'none'}. For values of arrays, filter the rows with Spark.",
                column=name,
            )
    return [
        select(
            () if where is None else where.of(each.name),
            each.length if each.values is None else each.values,
        )
        for each in dimensions
    ]


def _find_coordinate(
    session: OpenSession, path: str, name: str, length: int
) -> tuple[str, Any] | None:
    folder = path
    while folder and "/" not in name:
        folder = folder.rpartition("/")[0]
        candidate = f"{folder}/{name}"
        view = session.find_array(candidate)
        if view is None or len(view.grid.axes) != 1:
            continue
        array = open_array(session, candidate)
        if (array.metadata.dimension_names or (name,)) != (name,):
            continue
        if array.shape != (length,):
            raise InvalidInputError(
                f"the coordinate {candidate} has {array.shape[0]} values, and the dimension {name!r} of "
                f"{path} is of length {length}; write the one that is behind",
                path=candidate,
            )
        return candidate, array
    return None


def _values_of(path: str, array: Any) -> tuple[npt.NDArray[Any], pa.DataType]:
    """Read a coordinate; times come as microseconds."""
    values = np.asarray(array[:])
    if values.dtype.kind in "iuf":
        units = find_time_units(array.attrs.get("units"), array.attrs.get("calendar"))
        if units is not None:
            return decode_times(values, units, path), _TIME
    kind = element_type(array, path)
    return (to_microseconds(values, path) if kind == _TIME else values), kind
