"""CF times: the same moments as xarray and cftime work out, or none at all."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core.cf import (
    decode_times,
    find_time_units,
    shift_between,
    to_microseconds,
)
from icechunk_arrow.errors import InvalidInputError

xarray = pytest.importorskip("xarray")


def decoded(values: Any, units: str, calendar: str | None = None) -> list[str]:
    found = find_time_units(units, calendar)
    assert found is not None
    return [str(each) for each in decode_times(np.array(values), found, "time")]


@pytest.mark.parametrize("values", [[0, 1, -1, 60_000], [0.5, 1.25, np.nan, -3.0009765625]])
@pytest.mark.parametrize(
    "unit", ["days", "hours", "minutes", "seconds", "milliseconds", "microseconds"]
)
@pytest.mark.parametrize(
    "since",
    ["1970-01-01", "1900-1-1 00:00:0.0", "2000-02-29T12:30:15", "2001-01-01 06:00:00 +05:30"],
)
def test_times_are_those_of_xarray(values: list[Any], unit: str, since: str) -> None:
    """Units, reference dates and zones mean what they mean to xarray."""
    units = f"{unit} since {since}"
    expected = xarray.coding.times.decode_cf_datetime(
        np.array(values), units, "proleptic_gregorian"
    )

    found = decoded(values, units, "proleptic_gregorian")
    difference = np.array(found, "M8[ns]") - expected.astype("M8[ns]")
    assert (np.isnat(difference) | (np.abs(difference) < np.timedelta64(1, "us"))).all()
    assert (np.isnat(difference) == np.isnan(np.array(values, float))).all()


@pytest.mark.parametrize(
    ("value", "units", "calendar", "moment"),
    [
        # the standard calendar is Julian before October 1582: its year 1 began two days earlier
        (730_000, "days since 0001-01-01", "standard", "1999-09-02"),
        (730_000, "days since 0001-01-01", "proleptic_gregorian", "1999-09-04"),
        (1, "days since 1582-10-04", "gregorian", "1582-10-15"),
        (1, "days since 1582-10-04", "proleptic_gregorian", "1582-10-05"),
        (0, "days since 1900-02-28", None, "1900-02-28"),
        (1, "days since 1900-02-28", None, "1900-03-01"),
    ],
)
def test_calendars_differ_before_the_reform(
    value: int, units: str, calendar: str | None, moment: str
) -> None:
    """A mixed calendar counts from Julian dates; later moments are the same in both."""
    assert decoded([value], units, calendar) == [f"{moment}T00:00:00.000000"]


@pytest.mark.parametrize(
    ("units", "calendar"),
    [
        ("days since 2000-01-01", "noleap"),
        ("days since 2000-01-01", "360_day"),
        ("months since 2000-01-01", None),
        ("years since 2000-01-01", None),
        ("days", None),
        ("hours since yesterday", None),
        ("days since 2001-02-29", None),
        ("days since 1582-10-10", "standard"),
        ("days since 0000-01-01", None),
        ("degrees_north", None),
        (5, None),
        (None, None),
    ],
)
def test_what_names_no_moments_is_not_decoded(units: object, calendar: object) -> None:
    """Calendars of models, units without a fixed length, dates that there were not."""
    assert find_time_units(units, calendar) is None


def test_times_beyond_64_bits_are_refused() -> None:
    """Numbers do not wrap around."""
    found = find_time_units("days since 2000-01-01", None)
    assert found is not None
    for values in (
        np.array([10**12]),
        np.array([1e300]),
        np.array([np.inf]),
        np.array([2**63], "u8"),
    ):
        with pytest.raises(InvalidInputError, match="64 bits"):
            decode_times(values, found, "time")
    with pytest.raises(InvalidInputError, match="64 bits"):
        to_microseconds(np.array([2**60], "M8[s]"), "time")


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "10m", "s", "ms", "us", "ns"])
def test_any_unit_becomes_microseconds(unit: str) -> None:
    """Nanoseconds lose what is finer."""
    values = np.array([-3, 0, 5001, "NaT"], f">M8[{unit}]")

    assert to_microseconds(values, "x").tolist() == values.astype("M8[us]").tolist()


@given(
    unit=st.sampled_from(["days", "hours", "minutes", "seconds"]),
    wanted=st.sampled_from(["day", "h", "min", "s"]),
    start=st.datetimes(min_value=datetime(1600, 1, 1)),  # noqa: DTZ001 -- as files have them
    values=st.lists(st.integers(0, 10**6), min_size=1, max_size=5),
)
def test_times_are_counted_exactly_or_not_at_all(
    unit: str, wanted: str, start: Any, values: list[int]
) -> None:
    """A whole number becomes the whole number that means the same moment, or nothing."""
    begin = np.datetime64(start.replace(microsecond=0), "s")
    seconds = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
    other = {"day": 86400, "h": 3600, "min": 60, "s": 1}
    shift = shift_between(
        f"{unit} since {str(begin).replace('T', ' ')}", f"{wanted} since 2000-01-01", "standard"
    )
    assert shift is not None
    column = np.array(values, np.int64)
    found = shift.apply(column)

    moments = begin + column * np.timedelta64(seconds[unit], "s")
    apart = (moments - np.datetime64("2000-01-01", "s")).astype(np.int64)
    if (apart % other[wanted]).any():
        assert found is None
    else:
        assert found is not None
        assert (found * other[wanted] == apart).all()


def test_other_calendars_are_not_converted() -> None:
    """Years of 360 days are not ours, and a unit that is none is not guessed at."""
    assert shift_between("days since 2000-01-01", "days since 2001-01-01", "360_day") is None
    assert shift_between("fortnights since 2000-01-01", "days since 2000-01-01", "standard") is None
    assert shift_between("months since 2000-01-01", "days since 2000-01-01", "standard") is None
    assert shift_between("days since 2001-02-29", "days since 2000-01-01", "standard") is None
    assert shift_between(b"days since 2000-01-01", "days since 2000-01-01", None) is None


@pytest.mark.parametrize(
    ("units", "wanted", "calendar", "values", "found"),
    [
        ("weeks since 2000-01-03", "days since 2000-01-01", "", [0, 2], [2, 16]),
        ("hours since 2000-01-01 00:00 +01:00", "hours since 2000-01-01", None, [1], [0]),
        ("ms since 2000-01-01 00:00:00.25", "ms since 2000-01-01", None, [-250, 0], [0, 250]),
        ("days since 1582-10-15", "days since 1582-10-04", "standard", [0], [1]),
        ("days since 1582-10-15", "days since 1582-10-04", "proleptic_gregorian", [0], [11]),
        ("ns since 2000-01-01 00:00:00.0000001", "ns since 2000-01-01", None, [0], None),
        ("days since 0001-01-01", "days since 2000-01-01", "standard", [10**6], [269_879]),
    ],
)
def test_times_of_any_unit_and_zone_are_counted_anew(
    units: str, wanted: str, calendar: str | None, values: list[int], found: list[int] | None
) -> None:
    """Whatever names moments can be counted from another one; what would be cut off is not."""
    shift = shift_between(units, wanted, calendar)
    counted = None if shift is None else shift.apply(np.array(values))

    assert (None if counted is None else counted.tolist()) == found
