"""From values to places: what a dictionary or plain arithmetic says, whole columns at a time."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core.axis_lookup import (
    ExactLookup,
    NearLookup,
    PositionLookup,
    RegularGrid,
    canonical,
    kind_of,
    micros_of,
    shown,
)
from icechunk_arrow.errors import InvalidInputError

FLOATS = st.floats(-1e6, 1e6, width=32)
INTEGERS = st.integers(-(2**62), 2**62)
TEXTS = st.text(max_size=4)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), FLOATS),
        (pa.int64(), INTEGERS),
        (pa.string(), TEXTS),
        (pa.int64(), st.integers(0, 9)),
    ],
)
@given(data=st.data())
def test_equal_values_are_found(kind: pa.DataType, values: Any, data: Any) -> None:
    """Stored values in any order are found, and nothing else is; null and NaN never."""
    known = data.draw(st.lists(values, unique=True, max_size=12))
    known = list(dict.fromkeys(each or 0.0 if kind == pa.float64() else each for each in known))
    asked = data.draw(st.lists(st.one_of(values, st.sampled_from(known or [None]), st.none())))
    lookup = ExactLookup(values=pa.array(known, kind))
    places = {value: place for place, value in enumerate(known)}

    found = lookup.find(pa.array(asked, kind)).tolist()

    assert found == [-1 if each is None else places.get(each, -1) for each in asked]
    assert [lookup.value_at(place) for place in range(lookup.length)] == known


def test_numbers_of_both_kinds_meet() -> None:
    """Whole numbers are found among floats and the other way round; there is one zero and no NaN."""
    floats = ExactLookup(values=pa.array([0.0, 2.0, 7.5, float("nan")]))
    whole = ExactLookup(values=pa.array([5, -3, 0]))

    assert floats.find(pa.array([2, 0, 7, None])).tolist() == [1, 0, -1, -1]
    assert floats.find(pa.array([-0.0, float("nan"), 7.5])).tolist() == [0, -1, 2]
    assert whole.find(pa.array([-3.0, -0.0, 0.5, float("inf")])).tolist() == [1, 2, -1, -1]


@given(
    start=st.integers(-1000, 1000),
    step=st.integers(-50, 50).filter(bool),
    count=st.integers(0, 40),
    asked=st.lists(st.integers(-3000, 3000), min_size=1),
)
def test_a_grid_of_whole_numbers_is_exact(
    start: int, step: int, count: int, asked: list[int]
) -> None:
    """The place is the number of steps, for rising and falling grids."""
    lookup = RegularGrid(start=start, step=step, count=count).lookup(kind="int")
    places = {start + step * place: place for place in range(count)}

    assert lookup.find(pa.array(asked)).tolist() == [places.get(each, -1) for each in asked]


@given(
    start=st.floats(-1e4, 1e4),
    step=st.floats(1e-3, 1e3),
    falls=st.booleans(),
    place=st.integers(0, 5000),
    off=st.floats(-0.9e-3, 0.9e-3),
)
def test_a_grid_of_floats_takes_up_rounding(
    start: float, step: float, falls: bool, place: int, off: float
) -> None:
    """A value that is nearly one of the grid is it; one between two is none."""
    step = -step if falls else step
    lookup = RegularGrid(start=start, step=step, count=5001).lookup(kind="float")
    value = start + place * step

    found = lookup.find(pa.array([value + off * step * 0.9, value + step / 2, None, float("nan")]))

    assert found.tolist() == [place, -1, -1, -1]


def test_a_grid_of_times() -> None:
    """Moments of any zone are steps from the start; a tolerance takes what is near."""
    start = np.datetime64("2024-01-01")
    hours = RegularGrid(start=dt.date(2024, 1, 1), step=dt.timedelta(hours=1), count=24)
    near = RegularGrid(
        start=start,
        step=np.timedelta64(1, "h"),
        count=24,
        tolerance=dt.timedelta(minutes=30),
    )
    zone = dt.timezone(dt.timedelta(hours=5, minutes=45))
    moments = [
        dt.datetime(2024, 1, 1, 3, tzinfo=dt.UTC),
        dt.datetime(2024, 1, 1, 8, 45, tzinfo=zone),
        dt.datetime(2024, 1, 1, 3, 20, tzinfo=dt.UTC),
        dt.datetime(2023, 12, 31, 23, 45, tzinfo=dt.UTC),
        dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
    ]
    column = canonical(pa.array(moments, pa.timestamp("us", "Asia/Kathmandu")))

    assert hours.lookup(kind="time").find(column).tolist() == [3, 3, -1, -1, -1]
    assert near.lookup(kind="time").find(column).tolist() == [3, 3, 3, 0, -1]
    assert hours.lookup(kind="time").value_at(3) == micros_of(moments[0])


@given(
    known=st.lists(FLOATS, unique=True, min_size=1, max_size=8),
    asked=st.lists(FLOATS, min_size=1),
    tolerance=st.floats(0, 1e5),
)
def test_the_nearest_is_found(known: list[float], asked: list[float], tolerance: float) -> None:
    """The nearest stored value within the tolerance, as a search of all says."""
    lookup = NearLookup.of(np.array(known), tolerance)

    for value, place in zip(asked, lookup.find(pa.array(asked)).tolist(), strict=True):
        distances = np.abs(np.array(known) - value)
        assert (place >= 0) == (distances.min() <= tolerance)
        assert place < 0 or distances[place] == distances.min()
        assert place < 0 or lookup.value_at(place) == known[place]


def test_positions_are_themselves() -> None:
    """A place within the axis, and nothing else."""
    lookup = PositionLookup(length=3)

    assert lookup.find(pa.array([0, 2, 3, -1, None])).tolist() == [0, 2, -1, -1, -1]


@pytest.mark.parametrize(
    "words",
    [
        {"start": 0, "step": 0},
        {"start": 0, "step": 1, "count": -1},
        {"start": 0.0, "step": float("nan")},
        {"start": dt.date(2024, 1, 1), "step": 1},
        {"start": 0, "step": dt.timedelta(1)},
        {"start": 0, "step": 1, "tolerance": 1},
        {"start": True, "step": 1},
        {"start": "0", "step": 1},
    ],
)
def test_grids_that_are_none_are_refused(words: dict[str, Any]) -> None:
    """What cannot be counted with is said at once."""
    with pytest.raises(InvalidInputError):
        RegularGrid(**words)


def test_a_grid_does_not_fit_another_kind_of_column() -> None:
    """Times are not counted in numbers, nor texts at all."""
    for kind in ("time", "text"):
        with pytest.raises(InvalidInputError, match=f"does not fit a column of {kind}"):
            RegularGrid(start=0, step=1, count=2).lookup(kind=kind)


def test_columns_become_canonical() -> None:
    """Days and moments are microseconds in UTC, numbers 64 bits wide; other types hold no coordinates."""
    days = pa.array([dt.date(1970, 1, 2), None])

    assert canonical(days).to_pylist() == [86_400_000_000, None]
    assert canonical(pa.array([1.5], pa.float32())).type == pa.float64()
    assert canonical(pa.array([3], pa.int8())).to_pylist() == [3]
    assert canonical(pa.array(["a"], pa.large_string())).type == pa.string()
    assert kind_of(pa.bool_()) is None
    with pytest.raises(InvalidInputError, match="cannot hold coordinates"):
        canonical(pa.array([True]))


def test_values_are_shown_as_their_owner_writes_them() -> None:
    """In messages times are times, not numbers."""
    assert shown(86_400_000_000, is_time=True) == "1970-01-02T00:00:00.000000"
    assert shown(np.float64(0.25), is_time=False) == "0.25"
    assert shown("a", is_time=False) == "'a'"
    assert shown(None, is_time=True) == "null"


def test_distances_of_far_integers_do_not_wrap() -> None:
    """Two numbers at both ends of 64 bits are far apart, not near."""
    least, most = -(2**63), 2**63 - 1
    lookup = NearLookup.of(np.array([least + 1, 0]), 10)
    assert lookup.find(pa.array([most - 1, least, 5, 11])).tolist() == [-1, 0, 1, -1]
    lookup = NearLookup.of(np.array([most, 0]), 2)
    assert lookup.find(pa.array([least, most - 2, -3])).tolist() == [-1, 0, -1]
