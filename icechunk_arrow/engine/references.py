"""From a person's table of references to sorted, checked columns: all or nothing, no object per row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core import coords
from icechunk_arrow.core.chunks import chunk_table, is_sorted, sort_rows
from icechunk_arrow.core.columns import from_numpy, indices, one_array, to_numpy, validity
from icechunk_arrow.engine.virtual import fault_of_location
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from icechunk_arrow.engine.view import ArrayView

__all__ = ["stage_references"]

_KNOWN = ("path", "index", "location", "offset", "length", "etag", "last_modified")
_MAX_END = 2**63 - 1


def stage_references(
    get_array: Callable[[str], ArrayView], array_path: str | None, table: pa.Table
) -> list[tuple[int, pa.Table]]:
    """Check a table and give, per array, its references in order."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise InvalidInputError(f"references must be a pyarrow.Table, not {type(table).__name__}")
    for name in ("location", "offset", "length"):
        if name not in table.column_names:
            raise InvalidInputError(
                f"the references have no column {name!r}; they have {table.column_names}"
            )
    table = table.combine_chunks()
    staged = []
    for path, rows, part in _by_array(array_path, table):
        view = get_array(path)
        staged.append((view.node.id, _one_array(view, path, part, rows)))
    return staged


def _by_array(
    array_path: str | None, table: pa.Table
) -> Iterator[tuple[str, npt.NDArray[np.int64], pa.Table]]:
    """Split a table by array; with each part, the row numbers that the person knows."""
    if "path" not in table.column_names:
        if array_path is None:
            raise InvalidInputError(
                "which array? Give array_path, or a column 'path' where there are several"
            )
        yield array_path, np.arange(table.num_rows), table
        return
    if array_path is not None:
        raise InvalidInputError("the references have a column 'path': give None as array_path")
    coded = one_array(table["path"])
    if not pa.types.is_dictionary(coded.type):
        coded = coded.cast(pa.string()).dictionary_encode()
    if coded.null_count:
        raise InvalidInputError(f"row {_first(~validity(coded))}: the path is missing")
    codes = to_numpy(coded.indices.cast(pa.int32()))
    for code, path in enumerate(coded.dictionary.to_pylist()):
        rows = np.flatnonzero(codes == code)
        if len(rows):
            yield path, rows, table.take(indices(rows))


def _first(mask: npt.NDArray[np.bool_]) -> int:
    return int(np.flatnonzero(mask)[0])


class _Checker:
    """Refuses a table, naming the first bad row as the person knows it."""

    def __init__(self, path: str, rows: npt.NDArray[np.int64]) -> None:
        self._path, self._rows = path, rows

    def refuse(self, bad: npt.NDArray[np.bool_], fact: Callable[[int], str]) -> None:
        if bad.any():
            row = _first(bad)
            raise InvalidInputError(
                f"row {self._rows[row]} of the references for {self._path!r}: {fact(row)}. Nothing was "
                f"staged.",
                row=int(self._rows[row]),
            )


def _one_array(
    view: ArrayView, path: str, table: pa.Table, rows: npt.NDArray[np.int64]
) -> pa.Table:
    check = _Checker(path, rows)
    index = _index(view, table, check)
    counts = view.grid.chunk_counts
    inside = np.ones(len(index), np.bool_)
    for d, count in enumerate(counts):
        inside &= index[:, d] < np.uint64(count)
    check.refuse(
        ~inside, lambda r: f"chunk {tuple(index[r].tolist())} is outside the grid {counts}"
    )
    offset = _unsigned(table, "offset", check)
    length = _unsigned(table, "length", check)
    check.refuse(
        (offset > _MAX_END) | (length > _MAX_END - np.minimum(offset, np.uint64(_MAX_END))),
        lambda r: f"offset {offset[r]} and length {length[r]} lead beyond the largest file",
    )
    location = _locations(table, check)
    columns = {
        "array_id": from_numpy(np.full(len(index), view.node.id, np.uint32), pa.uint32()),
        "coord": coords.encode(index),
        "chunk_file": location,
        "offset": from_numpy(offset, pa.uint64()),
        "length": from_numpy(length, pa.uint64()),
    }
    if "etag" in table.column_names:
        columns["etag"] = one_array(table["etag"]).cast(pa.string())
    if "last_modified" in table.column_names:
        columns["last_modified"] = _times(table, check)
    staged = chunk_table(columns, len(index))
    return staged if is_sorted(staged) else _sorted(staged, index, check)


def _sorted(table: pa.Table, index: npt.NDArray[np.uint64], check: _Checker) -> pa.Table:
    order = np.lexsort(index.T[::-1]) if index.shape[1] else np.arange(len(index))
    same = (index[order[1:]] == index[order[:-1]]).all(axis=1)
    repeated = np.zeros(len(index), np.bool_)
    repeated[order[1:][same]] = True
    check.refuse(repeated, lambda r: f"chunk {tuple(index[r].tolist())} stands there twice")
    ordered = table.take(indices(order))
    return sort_rows(ordered)


def _index(view: ArrayView, table: pa.Table, check: _Checker) -> npt.NDArray[np.uint64]:
    """Read the chunks' places as an n × dimensions array."""
    ndim = len(view.grid.chunk_counts)
    if "index" in table.column_names:
        lists = one_array(table["index"])
        if pa.types.is_fixed_size_list(lists.type):
            lists = lists.cast(pa.list_(lists.type.value_type))
        if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
            raise InvalidInputError(f"the column 'index' must hold lists, not {lists.type}")
        lengths = pc.list_value_length(lists)
        wrong = ~validity(lists) | (to_numpy(lengths.cast(pa.int64()).fill_null(-1)) != ndim)
        check.refuse(
            wrong, lambda r: f"the index is {lists[r].as_py()}, the array has {ndim} dimensions"
        )
        flat = _to_unsigned(lists.flatten(), "index", check, ndim)
        return flat.reshape(len(lists), ndim)
    columns = view.node.columns
    names = (columns.dimension_names if columns else None) or ()
    chosen = []
    for d in range(ndim):
        options = [f"index_{d}", *(name for name in names[d : d + 1] if name is not None)]
        found = [name for name in options if name in table.column_names and name not in _KNOWN]
        if not found:
            raise InvalidInputError(
                f"the references have neither a column 'index' nor one of {options} for dimension {d}"
            )
        chosen.append(_unsigned(table, found[0], check))
    return np.stack(chosen, axis=1) if ndim else np.zeros((table.num_rows, 0), np.uint64)


def _unsigned(table: pa.Table, name: str, check: _Checker) -> npt.NDArray[np.uint64]:
    return _to_unsigned(one_array(table[name]), name, check, 1)


def _to_unsigned(
    column: pa.Array, name: str, check: _Checker, per_row: int
) -> npt.NDArray[np.uint64]:
    """Read whole numbers from 0, of any integer type."""
    if not pa.types.is_integer(column.type):
        raise InvalidInputError(f"the column {name!r} must hold whole numbers, not {column.type}")
    missing = ~validity(column)
    numbers = column
    negative = np.zeros(len(column), np.bool_)
    if pa.types.is_signed_integer(column.type):
        signed = to_numpy(column.cast(pa.int64()).fill_null(0))
        negative = signed < 0
        numbers = from_numpy(signed, pa.int64())
        values = signed.astype(np.uint64)
    else:
        values = to_numpy(numbers.cast(pa.uint64()).fill_null(0))

    def per(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        return np.any(mask.reshape(-1, per_row), axis=1) if per_row != 1 else mask

    if len(column):
        check.refuse(per(missing), lambda _: f"the {name} is missing")
        check.refuse(per(negative), lambda _: f"the {name} is negative")
    return values


def _locations(table: pa.Table, check: _Checker) -> pa.Array:
    """Check each distinct location once."""
    column = one_array(table["location"])
    coded = (
        column
        if pa.types.is_dictionary(column.type)
        else column.cast(pa.string()).dictionary_encode()
    )
    check.refuse(~validity(coded), lambda _: "the location is missing")
    faults = [fault_of_location(location or "") for location in coded.dictionary.to_pylist()]
    if any(faults):
        codes = to_numpy(coded.indices.cast(pa.int32()))
        bad = np.array([fault is not None for fault in faults], np.bool_)[codes]
        check.refuse(
            bad, lambda r: f"the location {coded[r].as_py()!r} cannot be used: {faults[codes[r]]}"
        )
    return coded.dictionary_decode().cast(pa.string())


def _times(table: pa.Table, check: _Checker) -> pa.Array:
    column = one_array(table["last_modified"])
    if not pa.types.is_timestamp(column.type):
        raise InvalidInputError(
            f"the column 'last_modified' must hold timestamps, not {column.type}"
        )
    if column.type.tz is None:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    late = to_numpy(column.cast(pa.timestamp("us", "UTC"), safe=False))
    check.refuse((late < 0) & validity(column), lambda _: "the time is before 1970")
    return from_numpy(late, pa.int64(), validity(column)).view(pa.timestamp("us", "UTC"))
