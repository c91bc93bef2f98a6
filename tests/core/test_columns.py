"""Columns from and to numpy and Python: what pyarrow itself would have built."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core import columns
from icechunk_arrow.errors import InvalidInputError

INNER = pa.struct([pa.field("a", pa.uint16(), nullable=False), pa.field("b", pa.string())])
TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.uint8(): st.integers(0, 2**8 - 1),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=4),
    pa.binary(): st.binary(max_size=4),
    pa.list_(pa.uint64()): st.lists(st.none() | st.integers(0, 9), max_size=3),
    pa.list_(pa.list_(pa.uint16(), 2)): st.lists(
        st.lists(st.integers(0, 9), min_size=2, max_size=2), max_size=3
    ),
    INNER: st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.none() | st.text("xy")}),
    pa.list_(INNER): st.lists(
        st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.none() | st.text("xy")}), max_size=3
    ),
}
every_type = pytest.mark.parametrize("arrow_type", TYPES, ids=str)


def values_of(arrow_type: pa.DataType) -> st.SearchStrategy[list[Any]]:
    """Values of a type, some of them null."""
    return st.lists(st.none() | TYPES[arrow_type], max_size=10)


@every_type
@given(data=st.data())
def test_arrays_are_those_that_pyarrow_builds(arrow_type: pa.DataType, data: st.DataObject) -> None:
    """Values, nulls and validity in Arrow's own eyes, also of a part of the column."""
    values = data.draw(values_of(arrow_type))
    found = columns.from_values(values, arrow_type)
    found.validate(full=True)

    assert found.type == arrow_type
    assert found.to_pylist() == values
    assert found.null_count == values.count(None)
    start = data.draw(st.integers(0, len(values)))
    part = found.slice(start)
    assert columns.validity(part).tolist() == [value is not None for value in values[start:]]
    assert columns.validity(pa.chunked_array([part, found])).tolist() == [
        value is not None for value in [*values[start:], *values]
    ]


@pytest.mark.parametrize("arrow_type", list(TYPES)[:6], ids=str)
@given(data=st.data())
def test_numbers_go_to_numpy_and_back(arrow_type: pa.DataType, data: st.DataObject) -> None:
    """Without a copy through Python, from arrays, parts of arrays and arrays in pieces."""
    values = data.draw(st.lists(TYPES[arrow_type], max_size=20))
    found = columns.from_values(values, arrow_type)
    start = data.draw(st.integers(0, len(values)))

    assert columns.to_numpy(found).tolist() == values
    assert columns.to_numpy(found.slice(start)).tolist() == values[start:]
    pieces = pa.chunked_array([found.slice(start), found], arrow_type)
    assert columns.to_numpy(pieces).tolist() == [*values[start:], *values]
    assert columns.to_numpy(pa.chunked_array([], arrow_type)).tolist() == []
    assert columns.from_numpy(columns.to_numpy(found), arrow_type).equals(found)


@given(st.lists(st.none() | st.binary(max_size=5), max_size=9), st.data())
def test_binary_columns_show_their_bytes(values: list[bytes | None], data: st.DataObject) -> None:
    """Offsets and bytes cut out the same values."""
    start = data.draw(st.integers(0, len(values)))
    part = columns.from_values(values, pa.binary()).slice(start)
    offsets, flat = columns.offsets_and_data(part)
    expected = [value or b"" for value in values[start:]]

    assert [flat[a:b].tobytes() for a, b in itertools.pairwise(offsets)] == expected
    again = columns.binary_from_numpy(offsets, flat, pa.binary())
    assert again.to_pylist() == expected
    assert [columns.bytes_at(again, row) for row in range(len(expected))] == expected


NARROW = pa.struct(
    [
        pa.field("n", pa.uint16(), nullable=False),
        pa.field("l", pa.list_(pa.uint16()), nullable=False),
        pa.field("s", pa.struct([pa.field("x", pa.string(), nullable=False)]), nullable=False),
        pa.field("p", pa.list_(pa.list_(pa.uint16(), 2))),
    ]
)
WIDE = pa.struct(
    [
        pa.field("n", pa.uint64(), nullable=False),
        pa.field("l", pa.list_(pa.uint64()), nullable=False),
        pa.field("s", pa.struct([pa.field("x", pa.string(), nullable=False)]), nullable=False),
        pa.field("p", pa.list_(pa.list_(pa.uint64(), 2))),
    ]
)
small = st.integers(0, 2**16 - 1)
nested = st.fixed_dictionaries(
    {
        "n": small,
        "l": st.lists(small, max_size=3),
        "s": st.fixed_dictionaries({"x": st.text("ab", max_size=2)}),
        "p": st.none() | st.lists(st.lists(small, min_size=2, max_size=2), max_size=2),
    }
)


@given(st.lists(st.none() | nested, max_size=6), st.data())
def test_nested_columns_change_their_width_both_ways(
    values: list[Any], data: st.DataObject
) -> None:
    """Narrow to wide and back is the same column, with nulls above required fields."""
    start = data.draw(st.integers(0, len(values)))
    narrow = columns.from_values(values, NARROW).slice(start)
    wide = columns.conform(narrow, WIDE)
    wide.validate(full=True)
    back = columns.conform(wide, NARROW)

    assert wide.type == WIDE
    assert wide.to_pylist() == values[start:]
    assert back.equals(narrow)
    assert columns.conform(columns.conform(narrow, NARROW), NARROW).equals(narrow)


def test_what_does_not_fit_is_refused() -> None:
    """A value that is too large is an error, never another value."""
    value = {"n": 1, "l": [1 << 16], "s": {"x": ""}, "p": None}

    with pytest.raises(pa.ArrowInvalid):
        columns.conform(columns.from_values([value], WIDE), NARROW)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (pa.string(), pa.uint16()),
        (pa.uint16(), pa.string()),
        (pa.uint16(), pa.list_(pa.uint16())),
        (pa.list_(pa.uint16()), pa.uint16()),
        (pa.list_(pa.string()), pa.list_(pa.uint16())),
        (pa.bool_(), pa.uint16()),
    ],
)
def test_only_widths_are_changed(found: pa.DataType, wanted: pa.DataType) -> None:
    """A column of another type is not turned into what it is not."""
    with pytest.raises(TypeError, match="a column is of type"):
        columns.conform(columns.from_values([], found), wanted)


@given(st.lists(st.none() | st.lists(st.integers(0, 9), max_size=3), max_size=6), st.data())
def test_items_of_lists(values: list[Any], data: st.DataObject) -> None:
    """All items one after the other, of any slice, and how many each list has."""
    start = data.draw(st.integers(0, len(values)))
    lists = columns.from_values(values, pa.list_(pa.uint16())).slice(start)
    held = [value or [] for value in values[start:]]

    assert columns.list_items(lists).to_pylist() == [item for each in held for item in each]
    assert columns.list_lengths(lists).tolist() == [len(each) for each in held]


def test_items_of_pairs() -> None:
    """Lists of a fixed size are lists too."""
    pairs = columns.from_values([[1, 2], [3, 4], [5, 6]], pa.list_(pa.uint16(), 2))

    assert columns.list_items(pairs.slice(1)).to_pylist() == [3, 4, 5, 6]
    assert columns.list_lengths(pairs.slice(1)).tolist() == [2, 2]


def test_a_list_that_is_null_and_has_items() -> None:
    """Arrow allows it; here nobody would know whose the items are."""
    offsets, items = pa.py_buffer(np.array([0, 2, 3], np.int32)), pa.array([1, 2, 3], pa.uint16())
    lists = pa.Array.from_buffers(
        pa.list_(pa.uint16()), 2, [pa.py_buffer(b"\x02"), offsets], children=[items]
    )

    with pytest.raises(ValueError, match="null"):
        columns.list_items(lists)


def test_lists_of_one_length_are_taken_for_fixed_size_ones() -> None:
    """A Parquet file without an Arrow schema does not say that its pairs are pairs."""
    pairs = [[[1, 2], [3, 4]], None, [[5, 6]], []]
    found = columns.from_values(pairs, pa.list_(pa.list_(pa.uint16())))
    wanted = pa.list_(pa.list_(pa.uint64(), 2))

    assert columns.conform(found, wanted).equals(columns.from_values(pairs, wanted))
    assert columns.conform(found.slice(2), wanted).to_pylist() == pairs[2:]
    for wrong in ([[[1, 2, 3]]], [[[1, 2], [3]]], [[None]]):
        with pytest.raises(TypeError, match="not all its lists have 2 items"):
            columns.conform(columns.from_values(wrong, found.type), wanted)


def test_offsets_that_do_not_fit_are_refused() -> None:
    """More than 2 GiB in one column is an error, not a wrap to negative offsets."""
    assert columns.offsets_of(np.array([3, 0, 2], np.int64)).tolist() == [0, 3, 3, 5]
    assert columns.offsets_of(np.empty(0, np.int64)).tolist() == [0]
    assert columns.offsets_of(np.array([2**31 - 1], np.int64)).tolist() == [0, 2**31 - 1]
    with pytest.raises(InvalidInputError, match="several commits"):
        columns.offsets_of(np.array([2**31 - 1, 1], np.int64))


def test_one_array_of_any_pieces() -> None:
    """No pieces, one, or several."""
    one = columns.from_values([1, 2], pa.uint16())

    assert columns.one_array(pa.chunked_array([], pa.uint16())).equals(columns.empty(pa.uint16()))
    assert columns.one_array(pa.chunked_array([one])).equals(one)
    assert columns.one_array(pa.chunked_array([one, one])).to_pylist() == [1, 2, 1, 2]


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3), max_size=20))
def test_distinct_gives_each_number_once_rising(numbers: list[int]) -> None:
    """What ``np.unique`` gives, the largest and no numbers among them."""
    found = columns.distinct(np.array(numbers, np.uint64))

    assert found.dtype == np.uint64
    assert found.tolist() == sorted(set(numbers))


@given(st.lists(st.none() | st.integers(0, 2**16 - 1), max_size=20), st.integers(0, 20))
def test_resized_numbers_are_those_that_arrow_casts(values: list[int | None], start: int) -> None:
    """Nulls stay nulls, of a part of a column too; wider and narrow again."""
    narrow = columns.from_values(values, pa.uint16()).slice(start)
    wide = narrow.cast(pa.uint64())

    assert columns.resized(narrow, pa.uint64()).equals(wide)
    assert columns.resized(wide, pa.uint16()).equals(narrow)
    assert columns.conform(wide, pa.uint16()).equals(narrow)


@pytest.mark.parametrize("value", [1 << 16, (1 << 64) - 1])
def test_a_number_that_does_not_fit_is_refused(value: int) -> None:
    """Alone, beside others and beside nulls; what stands under a null does not count."""
    for values in ([value], [1, value], [None, value]):
        with pytest.raises(pa.ArrowInvalid):
            columns.conform(columns.from_values(values, pa.uint64()), pa.uint16())
    under_null = columns.from_numpy(
        np.array([value, 1], np.uint64), pa.uint64(), np.array([False, True])
    )
    assert columns.conform(under_null, pa.uint16()).to_pylist() == [None, 1]


@given(st.lists(st.none() | st.datetimes(timezones=st.just(UTC)), max_size=9), st.integers(0, 9))
def test_times_are_those_of_python(moments: list[datetime | None], start: int) -> None:
    """Into a column and out of it, in pieces too, as pyarrow does, and without it."""
    kind = pa.timestamp("us", "UTC")
    found = columns.from_values(moments, kind)

    assert found.equals(pa.array(moments, kind))
    assert columns.to_values(found) == moments
    pieces = pa.chunked_array([found.slice(start), found], kind)
    assert columns.to_values(pieces) == pieces.to_pylist()
    texts = columns.from_values(["a", None], pa.string())
    assert columns.to_values(texts) == ["a", None]


def test_scalars_are_those_of_pyarrow() -> None:
    """One value with a type, for compute functions."""
    for value, kind in ((3, pa.uint16()), ("x", pa.string()), (True, pa.bool_())):
        assert columns.scalar(value, kind).equals(pa.scalar(value, kind))


def test_arrays_of_other_types() -> None:
    """What our schemas do not know is built by pyarrow; ``valid`` is False where it is null."""
    found = columns.any_array([b"a", b"b"], pa.large_binary(), np.array([True, False]))

    assert found.equals(pa.array([b"a", None], pa.large_binary()))
    assert columns.any_array([1.5]).type == pa.float64()
