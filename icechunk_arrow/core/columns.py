"""Arrow columns from and to numpy and Python lists, without a detour through pandas.

Much of pyarrow imports pandas on first use, which takes longer than opening a repository: ``array``, ``scalar``,
and with it compute functions that are given a Python value; ``table`` of Python values; times with a zone as
Python values. These functions make the same from buffers. They know the types of our schemas only, but for
:func:`any_array`. A rule of the linter keeps what imports pandas out of all other modules.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

__all__ = [
    "alike",
    "any_array",
    "binary_from_numpy",
    "bitmap",
    "bytes_at",
    "conform",
    "conformed",
    "distinct",
    "empty",
    "empty_table",
    "from_numpy",
    "from_values",
    "indices",
    "list_items",
    "list_lengths",
    "offsets_and_data",
    "offsets_of",
    "one_array",
    "resized",
    "run_edges",
    "scalar",
    "to_numpy",
    "to_values",
    "validity",
]

_NUMPY = {
    pa.uint8(): np.uint8,
    pa.uint16(): np.uint16,
    pa.uint32(): np.uint32,
    pa.uint64(): np.uint64,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float64(): np.float64,
    pa.timestamp("us", "UTC"): np.int64,
}
_TIME = pa.timestamp("us", "UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX_OFFSET = 2**31 - 1


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Give each of some numbers once, rising. ``np.unique`` imports all of ``numpy.ma`` first: 12 ms."""
    rising = np.sort(values)
    new = np.ones(len(rising), np.bool_)
    new[1:] = rising[1:] != rising[:-1]
    return rising[new]


def run_edges(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Tell where runs of equal neighbours begin, and behind them where the last one ends."""
    inner = np.flatnonzero(values[1:] != values[:-1])
    edges = np.zeros(len(inner) + 2, np.int64)
    edges[1:-1] = inner + 1
    edges[-1] = len(values)
    return edges


def bitmap(valid: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    """Mark what is there, as Arrow does: no buffer where everything is."""
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def from_numpy(
    values: npt.NDArray[Any], arrow_type: pa.DataType, valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Wrap numbers as an Arrow array; ``valid`` is False where it is null."""
    if arrow_type == pa.bool_():
        data = np.packbits(values.astype(np.bool_), bitorder="little")
    else:
        data = np.ascontiguousarray(values, dtype=_NUMPY[arrow_type])
    buffers = [bitmap(valid), pa.py_buffer(data)]
    return pa.Array.from_buffers(arrow_type, len(values), buffers)


def indices(values: npt.NDArray[Any]) -> pa.Array:
    """Row numbers, as ``take`` wants them."""
    return from_numpy(values, pa.int64())


def to_numpy(array: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """View numbers as numpy; nulls come out as whatever lies under them."""
    if isinstance(array, pa.ChunkedArray):
        parts = [to_numpy(chunk) for chunk in array.chunks]
        if len(parts) == 1:
            return parts[0]
        dtype = np.bool_ if array.type == pa.bool_() else _NUMPY[array.type]
        return np.concatenate(parts) if parts else np.empty(0, dtype)
    start, stop = array.offset, array.offset + len(array)
    data = array.buffers()[1]
    if array.type == pa.bool_():
        bits = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        return np.unpackbits(bits, bitorder="little")[start:stop].astype(np.bool_)
    if data is None:
        return np.zeros(len(array), _NUMPY[array.type])
    return np.frombuffer(data, _NUMPY[array.type])[start:stop]


def validity(array: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Tell for each value whether it is there."""
    if isinstance(array, pa.ChunkedArray):
        parts = [validity(chunk) for chunk in array.chunks]
        return np.concatenate(parts) if parts else np.empty(0, np.bool_)
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.bool_)
    bitmap = array.buffers()[0]
    if array.null_count == 0 or bitmap is None:
        return np.ones(len(array), np.bool_)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(np.bool_)


def binary_from_numpy(
    offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8] | bytes, arrow_type: pa.DataType
) -> pa.Array:
    """Wrap offsets and bytes as a binary or string array without nulls."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(arrow_type, len(offsets) - 1, buffers)


def offsets_and_data(
    array: pa.Array,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """View a binary or string array as its offsets and its bytes."""
    _, offsets, data = array.buffers()
    if offsets is None:
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    where = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return where, np.frombuffer(data if data is not None else b"", np.uint8)


def bytes_at(array: pa.Array, row: int) -> bytes:
    """One value of a binary array."""
    value: bytes = array[row].as_py()
    return value


def from_values(values: Sequence[Any], arrow_type: pa.DataType) -> pa.Array:
    """Build an array of any type of our schemas from Python values; None is null.

    Times are ``datetime`` objects or their microseconds.
    """
    count = len(values)
    if not count:
        return empty(arrow_type)
    valid = None
    missing = values.count(None)
    if missing:
        if missing == count and not pa.types.is_struct(arrow_type):
            return pa.nulls(count, arrow_type)
        valid = np.fromiter((value is not None for value in values), np.bool_, count)
    if pa.types.is_string(arrow_type) or pa.types.is_binary(arrow_type):
        blank = "" if pa.types.is_string(arrow_type) else b""
        lengths, data = _joined([value or blank for value in values] if missing else values)
        buffers = [bitmap(valid), pa.py_buffer(_offsets(lengths)), pa.py_buffer(data)]
        return pa.Array.from_buffers(arrow_type, count, buffers)
    if pa.types.is_fixed_size_list(arrow_type):
        size = arrow_type.list_size
        flat = [
            item for value in values for item in (value if value is not None else [None] * size)
        ]
        children = [from_values(flat, arrow_type.value_type)]
        return pa.Array.from_buffers(arrow_type, count, [bitmap(valid)], children=children)
    if pa.types.is_list(arrow_type):
        flat = [item for value in values if value is not None for item in value]
        offsets = _offsets(0 if value is None else len(value) for value in values)
        children = [from_values(flat, arrow_type.value_type)]
        buffers = [bitmap(valid), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(arrow_type, count, buffers, children=children)
    if pa.types.is_struct(arrow_type):
        if missing == count > 1:  # what stands under a null is the same each time
            return from_values([None], arrow_type).take(indices(np.zeros(count, np.int64)))
        children = [
            from_values(
                [None if value is None else value[field.name] for value in values]
                if field.nullable
                else [
                    _blank(field.type) if value is None else value[field.name] for value in values
                ],
                field.type,
            )
            for field in (arrow_type.field(i) for i in range(arrow_type.num_fields))
        ]
        return pa.Array.from_buffers(arrow_type, count, [bitmap(valid)], children=children)
    if valid is not None:
        values = [0 if value is None else value for value in values]
    if arrow_type == _TIME:
        values = [_micros(value) if isinstance(value, datetime) else value for value in values]
    dtype = np.bool_ if arrow_type == pa.bool_() else _NUMPY[arrow_type]
    return from_numpy(np.array(values, dtype), arrow_type, valid)


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def scalar(value: Any, arrow_type: pa.DataType) -> pa.Scalar:
    """Wrap one value, for a compute function."""
    return from_values([value], arrow_type)[0]


def any_array(
    values: Any, arrow_type: pa.DataType | None = None, valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Build an array of any type, or of the type that the values seem to have, as pyarrow does.

    It imports pandas: for what callers hand over, and for what runs beside Spark, which has imported it already.
    """
    return pa.array(values, arrow_type, mask=None if valid is None else ~valid)


def to_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Give values as Python has them."""
    if column.type != _TIME:
        values: list[Any] = column.to_pylist()
        return values
    moments = zip(to_numpy(column).tolist(), validity(column).tolist(), strict=True)
    return [_EPOCH + timedelta(microseconds=micros) if there else None for micros, there in moments]


def _joined(values: Sequence[Any]) -> tuple[Iterable[int], bytes]:
    """Join texts and bytes; tell how long each is."""
    kinds = set(map(type, values))
    if kinds == {bytes}:
        return map(len, values), b"".join(values)
    if kinds == {str} and (text := "".join(values)).isascii():
        return map(len, values), text.encode()
    parts = [value.encode() if isinstance(value, str) else bytes(value) for value in values]
    return map(len, parts), b"".join(parts)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """All of a column as a single array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else empty(column.type)


@cache
def empty(arrow_type: pa.DataType) -> pa.Array:
    """Make an array of a type with nothing in it."""
    return pa.nulls(0, arrow_type)


@cache
def empty_table(schema: pa.Schema) -> pa.Table:
    """Make a table without rows."""
    return pa.Table.from_arrays([empty(field.type) for field in schema], schema=schema)


def list_lengths(lists: pa.Array) -> npt.NDArray[np.int64]:
    """Count the items of each list; ``pyarrow.compute`` does the same, but its first call takes its time."""
    if pa.types.is_fixed_size_list(lists.type):
        return np.full(len(lists), lists.type.list_size, np.int64)
    offsets = _list_offsets(lists).astype(np.int64)
    return offsets[1:] - offsets[:-1]


def list_items(lists: pa.Array) -> pa.Array:
    """Give the items of all lists, one after the other.

    Raises
    ------
    ValueError
        A list that is null has some.
    """
    if pa.types.is_fixed_size_list(lists.type):
        size = lists.type.list_size
        return lists.values.slice(lists.offset * size, len(lists) * size)
    if lists.null_count and (list_lengths(lists) > 0)[~validity(lists)].any():
        raise ValueError("a list that is null has items")
    offsets = _list_offsets(lists)
    return lists.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _list_offsets(lists: pa.Array) -> npt.NDArray[np.int32]:
    return to_numpy(lists.offsets) if len(lists) else np.zeros(1, np.int32)


def conform(array: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Cast nested columns between our widths.

    Arrow's own cast refuses what its Parquet reader gives: nulls in a field that may not be null, below
    a parent that is null. Other types than integers are never cast: ``TypeError``. Lists of one length,
    as those of a file without an Arrow schema, are taken for fixed-size ones. Members are found by their names.
    """
    if pa.types.is_fixed_size_list(arrow_type) and pa.types.is_list(array.type):
        array = _fixed_size(array, arrow_type.list_size)
    both = (array.type, arrow_type)
    if array.type.id != arrow_type.id and not all(map(pa.types.is_integer, both)):
        raise TypeError(f"a column is of type {array.type}, not {arrow_type}")
    if pa.types.is_struct(arrow_type):
        children = []
        for i in range(arrow_type.num_fields):
            field = arrow_type.field(i)
            child = conform(array.field(field.name), field.type)
            children.append(child if field.nullable else _without_nulls(child))
        return pa.Array.from_buffers(arrow_type, len(array), [_nulls_of(array)], children=children)
    if pa.types.is_fixed_size_list(arrow_type):
        child = conform(list_items(array), arrow_type.value_type)
        return pa.Array.from_buffers(arrow_type, len(array), [None], children=[child])
    if pa.types.is_list(arrow_type):
        offsets = _list_offsets(array)
        child = conform(list_items(array), arrow_type.value_type)
        buffers = [_nulls_of(array), pa.py_buffer(offsets - offsets[0])]
        return pa.Array.from_buffers(arrow_type, len(array), buffers, children=[child])
    if array.type == arrow_type:
        return array
    if all(map(pa.types.is_unsigned_integer, both)) and _fits(array, arrow_type.bit_width):
        return resized(array, arrow_type)
    return array.cast(arrow_type)


def alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a file's type is the one that is documented.

    Items of lists may have another name, lists of one length any, structs more members, and fields may be null.
    """
    if pa.types.is_list(wanted) or pa.types.is_fixed_size_list(wanted):
        lists = pa.types.is_list(found) or found == wanted
        return lists and alike(found.value_type, wanted.value_type)
    if pa.types.is_struct(wanted):
        return pa.types.is_struct(found) and all(
            found.get_field_index(field.name) >= 0
            and alike(found.field(field.name).type, field.type)
            for field in wanted
        )
    return bool(found == wanted)


def conformed(table: pa.Table, schema: pa.Schema) -> list[pa.Array]:
    """Bring the columns of a schema out of a table, each as :func:`conform` does."""
    return [conform(one_array(table[field.name]), field.type) for field in schema]


def _fits(array: pa.Array, bits: int) -> bool:
    """Whether numbers without a sign have room in so many bits."""
    if bits >= array.type.bit_width:
        return True
    numbers = to_numpy(array)
    there = numbers[validity(array)] if array.null_count else numbers
    return not len(there) or int(there.max()) < 1 << bits


def resized(array: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Give numbers more room, or less, in which they fit.

    Arrow's cast does the same, but its first one takes half a millisecond.
    """
    return from_numpy(to_numpy(array), arrow_type, validity(array) if array.null_count else None)


def _nulls_of(array: pa.Array) -> pa.Buffer | None:
    return bitmap(validity(array)) if array.null_count else None


def _fixed_size(array: pa.Array, size: int) -> pa.Array:
    if array.null_count or (list_lengths(array) != size).any():
        raise TypeError(
            f"a column is of type {array.type}, and not all its lists have {size} items"
        )
    fixed = pa.list_(array.type.value_type, size)
    return pa.Array.from_buffers(fixed, len(array), [None], children=[list_items(array)])


def _without_nulls(array: pa.Array) -> pa.Array:
    """Forget which values are null, where the parent is null and no reader looks."""
    if array.null_count == 0:
        return array
    children = []
    if pa.types.is_struct(array.type):
        children = [array.field(i) for i in range(array.type.num_fields)]
    elif pa.types.is_list(array.type):
        offsets = _list_offsets(array)
        buffers = [None, pa.py_buffer(offsets - offsets[0])]
        return pa.Array.from_buffers(array.type, len(array), buffers, children=[list_items(array)])
    if children:
        return pa.Array.from_buffers(array.type, len(array), [None], children=children)
    return pa.Array.from_buffers(
        array.type, len(array), [None, *array.buffers()[1:]], offset=array.offset
    )


def _blank(arrow_type: pa.DataType) -> Any:
    """Stand in for a value under a null parent where the field itself may not be null."""
    if pa.types.is_struct(arrow_type):
        fields = (arrow_type.field(i) for i in range(arrow_type.num_fields))
        return {field.name: _blank(field.type) for field in fields}
    if pa.types.is_list(arrow_type):
        return []
    return "" if pa.types.is_string(arrow_type) else b"" if pa.types.is_binary(arrow_type) else 0


def _offsets(lengths: Iterable[int]) -> npt.NDArray[np.int32]:
    return offsets_of(np.fromiter(lengths, np.int64))


def offsets_of(lengths: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int32]:
    """Add up lengths to the offsets of a binary, string or list array."""
    ends = np.cumsum(lengths)
    if len(ends) and int(ends[-1]) > _MAX_OFFSET:
        raise InvalidInputError(
            f"one column would hold {ends[-1]} bytes or items, and at most {_MAX_OFFSET} fit; write "
            f"less at once, in several commits"
        )
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    return offsets
