"""Columns as elements: the same values, or a refusal that names the row."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core.cell_values import CellType, ValueFault, cell_type_of, elements_of
from icechunk_arrow.core.cf import decode_times, find_time_units

HOURS = {"units": "hours since 1990-01-01", "calendar": "standard"}


def encoded(column: pa.Array, dtype: Any, attributes: dict[str, Any] | None = None) -> Any:
    """Bring a column into an array's type."""
    kind = cell_type_of(np.dtype(dtype), attributes or {}, column.type)
    assert isinstance(kind, CellType), kind
    return elements_of(kind.encode(column), kind.dtype)


@given(
    st.sampled_from(["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]),
    st.sampled_from([pa.int8(), pa.int32(), pa.int64(), pa.uint64()]),
    st.data(),
)
def test_whole_numbers_stay_or_are_refused(dtype: str, kind: pa.DataType, data: Any) -> None:
    """A whole number is the same in the array, or it is refused by its row."""
    bits, signed = kind.bit_width, pa.types.is_signed_integer(kind)
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    powers = [sign * 2**power for power in range(bits) for sign in (-1, 1)]
    special = st.sampled_from([each for each in powers if least <= each <= most])
    values = data.draw(st.lists(st.integers(least, most) | special, min_size=1))
    with np.errstate(all="ignore"):
        fits = [_holds(value, np.dtype(dtype)) for value in values]

    if all(fits):
        assert [int(each) for each in encoded(pa.array(values, kind), dtype)] == values
        return
    with pytest.raises(ValueFault) as caught:
        encoded(pa.array(values, kind), dtype)
    assert caught.value.row == fits.index(False)
    assert caught.value.value == str(values[caught.value.row])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_floats_hold_powers_of_two_up_to_the_largest(dtype: str) -> None:
    """The least 64-bit number is one of them; the largest, which a float rounds up, is none."""
    for kind, powers in ((pa.int64(), [-(2**63), 2**62]), (pa.uint64(), [2**63])):
        assert [int(each) for each in encoded(pa.array(powers, kind), dtype)] == powers
    for kind, largest in ((pa.int64(), 2**63 - 1), (pa.uint64(), 2**64 - 1)):
        with pytest.raises(ValueFault):
            encoded(pa.array([largest], kind), dtype)


def _holds(value: int, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "f":
        found = float(np.array(value).astype(dtype))
        return np.isfinite(found) and int(found) == value
    limits = np.iinfo(dtype)
    return bool(limits.min <= value <= limits.max)


@given(st.sampled_from(["i2", "u4", "i8", "u8"]), st.lists(st.floats(), min_size=1))
def test_floats_become_whole_numbers_only_if_they_are(dtype: str, values: list[float]) -> None:
    """Fractions, NaN and what is too large are refused."""
    limits = np.iinfo(dtype)
    fits = [np.isfinite(v) and v == int(v) and limits.min <= v <= limits.max for v in values]

    if all(fits):
        assert [int(each) for each in encoded(pa.array(values), dtype)] == [int(v) for v in values]
        return
    with pytest.raises(ValueFault) as caught:
        encoded(pa.array(values), dtype)
    assert caught.value.row == fits.index(False)


def test_floats_lose_digits_but_not_themselves() -> None:
    """Doubles go into single precision as numpy rounds them; one that would become infinite is refused."""
    values = pa.array([0.1, float("nan"), float("inf"), None])

    np.testing.assert_array_equal(
        encoded(values, "f4")[:3], np.array([0.1, np.nan, np.inf], np.float32)
    )
    with pytest.raises(ValueFault, match="beyond float32") as caught:
        encoded(pa.array([1.0, 1e300]), "f4")
    assert caught.value.row == 1


@pytest.mark.parametrize("dtype", ["i4", "f8", "f4"])
@given(st.lists(st.integers(-200_000, 200_000), min_size=1))
def test_times_in_units_come_back(dtype: str, hours: list[int]) -> None:
    """What is written in an array's units is read as the same moments."""
    units = find_time_units(HOURS["units"], HOURS["calendar"])
    assert units is not None
    micros = np.array(hours, np.int64) * 3_600_000_000 + units.zero
    column = pa.array(micros).cast(pa.timestamp("us", "UTC"))

    found = encoded(column, dtype, HOURS)

    assert decode_times(found, units, "x").view(np.int64).tolist() == micros.tolist()


def test_times_that_units_or_types_cannot_say_are_refused() -> None:
    """A minute is no whole hour, nor a whole day; a time too far away does not wrap around."""
    minute = pa.array([dt.datetime(1990, 1, 1, 5, 1, tzinfo=dt.UTC)], pa.timestamp("us"))
    far = pa.array([2**62], pa.int64()).cast(pa.timestamp("us", "UTC"))

    for dtype, attributes, column in (
        ("i8", HOURS, minute),
        ("M8[D]", {}, minute),
        ("i2", HOURS, far),
        ("i8", {"units": "nanoseconds since 1970-01-01"}, far),
    ):
        with pytest.raises(ValueFault):
            encoded(column, dtype, attributes)
    assert encoded(minute, "M8[s]") == np.array(["1990-01-01T05:01"], "M8[s]")
    assert encoded(pa.array([dt.date(1990, 1, 3)]), "i4", HOURS).tolist() == [48]


def test_nulls_are_never_a_fault() -> None:
    """What lies under a null is not looked at."""
    column = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([2**62, 7]))]
    )

    assert column.to_pylist() == [None, 7]
    assert encoded(column, "i1")[1] == 7
    assert encoded(pa.array([None, "a"]), "<U1").tolist() == ["", "a"]


def test_texts_are_not_cut() -> None:
    """A text that is too long for a type of fixed length is refused."""
    assert encoded(pa.array(["é", "abc"]), "<U3").tolist() == ["é", "abc"]
    assert encoded(pa.array(["é", "abc"]), np.dtypes.StringDType()).tolist() == ["é", "abc"]
    with pytest.raises(ValueFault, match="longer than the array's 3") as caught:
        encoded(pa.array(["a", "b", "abcd"]), "<U3")
    assert caught.value.value == "'abcd'"


@pytest.mark.parametrize("dtype", ["u8", "i8", "u1", "i2"])
def test_whole_decimals_are_integers(dtype: str) -> None:
    """Spark has unsigned numbers of 64 bits as decimals; what is beyond the type is refused by its row."""
    limits = np.iinfo(dtype)
    numbers = [int(limits.min), None, 0, 17, int(limits.max)]
    column = pa.array([None, *numbers, 5], pa.decimal128(20, 0)).slice(1, 5)
    found = encoded(column, dtype)

    assert found.dtype == np.dtype(dtype)
    kept = [
        value for value, number in zip(found.tolist(), numbers, strict=True) if number is not None
    ]
    assert kept == [number for number in numbers if number is not None]
    for wrong in (int(limits.min) - 1, int(limits.max) + 1, 10**37, -(10**37)):
        with pytest.raises(ValueFault, match="cannot hold it exactly") as caught:
            encoded(pa.array([1, None, wrong], pa.decimal128(38, 0)), dtype)
        assert (caught.value.row, caught.value.value) == (2, str(wrong))


def test_booleans_are_bytes_on_the_way() -> None:
    """They travel as numbers, and arrive as they were."""
    found = encoded(pa.array([True, None, False]), "?")

    assert found.dtype == np.bool_
    assert (found[0], found[2]) == (True, False)


@pytest.mark.parametrize(
    ("dtype", "attributes", "kind", "text"),
    [
        ("f8", {"scale_factor": 0.1}, pa.float64(), "packed"),
        ("f8", {}, pa.timestamp("us"), "no units"),
        ("f8", {}, pa.string(), "cast the column"),
        ("i4", {}, pa.bool_(), "cast the column"),
        ("f8", {}, pa.decimal128(9, 2), "decimals"),
        ("f8", {}, pa.decimal128(9, 0), "cast the column"),
        ("f8", {}, pa.list_(pa.int8()), "no counterpart"),
        ("?", {}, pa.int8(), "cast the column"),
    ],
)
def test_types_that_do_not_go_together(
    dtype: str, attributes: dict[str, Any], kind: pa.DataType, text: str
) -> None:
    """The reason says what can be done."""
    found = cell_type_of(np.dtype(dtype), attributes, kind)

    assert isinstance(found, str)
    assert text in found


def test_texts_that_an_array_would_cut_are_refused() -> None:
    """Too long, or ending in characters that fixed lengths drop: by its row."""
    texts = pa.array(["ab", "ab", "abcdef"])
    with pytest.raises(ValueFault, match="longer") as caught:
        encoded(texts, "U5")
    assert caught.value.row == 2
    with pytest.raises(ValueFault, match="NUL") as caught:
        encoded(pa.array(["", "ab\0"]), "U5")
    assert caught.value.row == 1
    assert encoded(pa.array(["a\0b"]), "U5").tolist() == ["a\0b"]


def test_arrays_whose_numbers_mean_others_are_refused() -> None:
    """Packed, or with signs that attributes deny: what rows say would be read as something else."""
    for attributes in ({"scale_factor": 2.0}, {"add_offset": 1}, {"_Unsigned": "true"}):
        found = cell_type_of(np.dtype("i2"), attributes, pa.int64())
        assert isinstance(found, str)
        assert "is packed" in found
    assert isinstance(cell_type_of(np.dtype("u2"), {"_Unsigned": "true"}, pa.int64()), CellType)
