"""How columns become axes: which way is chosen, which coordinates are new, and what is refused; without Spark."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

from icechunk_arrow import Repository
from icechunk_arrow.core.axis_lookup import RegularGrid
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.spark.writing.row_arrays import chunk_edges
from icechunk_arrow.spark.writing.row_axes import (
    AxisRequest,
    AxisRows,
    find_coordinate,
    resolve_axis,
)

if TYPE_CHECKING:
    from pathlib import Path

    from icechunk_arrow.spark.writing.row_axes import ResolvedAxis, Stored

pytestmark = pytest.mark.spark


def stored(tmp_path: Path, values: Any, **attributes: Any) -> Stored:
    """Store coordinates with zarr, and find them from a group below."""
    session = Repository.create(tmp_path / "r").writable_session("main")
    zarr.create_array(
        session.store,
        name="x",
        data=np.array(values),
        dimension_names=("x",),
        attributes=attributes,
    )
    found = find_coordinate(session, "/some/group", "x")
    assert found is not None
    return found


def resolved(
    values: Any, way: Any = None, known: Stored | None = None, **words: Any
) -> ResolvedAxis:
    """Settle an axis for some values."""
    column = pa.array(values)
    ends = pa.array([min(values), max(values)], column.type)
    rows = AxisRows(type=column.type, bounds=ends, distinct=column.unique)
    arrays = words.get("length") is not None
    request = AxisRequest(name="x", column="x", way=way, **words)
    return resolve_axis(request, rows, known, has_arrays=arrays)


def test_the_way_is_chosen_by_what_is_there(tmp_path: Path) -> None:
    """Stored coordinates first; without them places where there are arrays, and distinct values where not."""
    found = [resolved([3, 9], known=stored(tmp_path, [3, 5, 9])), resolved([3, 9], length=10)]
    found.append(resolved([3, 9]))

    assert [each.axis.find(pa.array([3, 9])).tolist() for each in found] == [[0, 2], [3, 9], [0, 1]]
    assert [each.axis.length for each in found] == [3, 10, 2]
    assert [(each.axis.low, each.axis.high) for each in found] == [(0, 2), (3, 9), (0, 1)]
    assert [each.new is None for each in found] == [True, True, False]


def test_times_are_found_in_cf_units(tmp_path: Path) -> None:
    """Moments meet numbers with units, and come out as text in messages."""
    known = stored(tmp_path, [0, 6, 12], units="hours since 2024-01-01", calendar="standard")
    moments = [dt.datetime(2024, 1, 1, hour, tzinfo=dt.UTC) for hour in (6, 12)]

    found = resolved(moments, known=known)

    assert found.axis.find(pa.array(moments)).tolist() == [1, 2]
    assert found.axis.show(1) == "x=2024-01-01T06:00:00.000000"


def test_coordinates_of_32_bits_are_compared_as_such(tmp_path: Path) -> None:
    """A double is found among singles that it is rounded to; a grid takes up their rounding."""
    values = np.arange(0, 360, 0.1)
    known = stored(tmp_path, values.astype(np.float32))

    assert resolved(list(values), known=known).axis.find(pa.array(values)).tolist() == [
        *range(3600)
    ]
    grid = RegularGrid(start=0.0, step=0.1)
    assert resolved(list(values), way=grid, known=known).axis.length == 3600


def test_what_is_new_is_appended(tmp_path: Path) -> None:
    """New values go behind the last in their order, rising or falling."""
    known = stored(tmp_path, [5.0, 4.0])

    found = resolved([4.0, 2.0, 3.5], known=known, extends=True, length=2)

    assert found.new is not None
    assert found.axis.length == 4
    assert sorted(found.new.values.to_pylist()) == [2.0, 3.5]
    places = found.axis.find(pa.array([5.0, 4.0, 3.5, 2.0])).tolist()
    assert places == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("coordinates", "words"),
    [
        ([0, 1, 1, 3], {}),
        ([0.0, 1.0, 1.0, 3.0], {}),
        ([0.0, 1.0, 1.0, 3.0], {"tolerance": 0.25}),
        ([0.0, 0.0, 1.0, -0.0, 3.0, 1.0], {}),
        ([3, 1, 0, 1], {"tolerance": 0}),
    ],
)
def test_a_value_that_two_places_have_is_none(
    tmp_path: Path, coordinates: list[Any], words: dict[str, Any]
) -> None:
    """Which of two places with one coordinate is meant nobody can tell; others beside them can be written."""
    known = stored(tmp_path, coordinates)
    unique = resolved([3], known=known, **words).axis
    assert unique.find(pa.array([3])).tolist() == [coordinates.index(3)]
    with pytest.raises(InvalidInputError, match=r"x=1(\.0)? stands at several places.*'index'"):
        unique.find(pa.array([3, 1]))
    with pytest.raises(InvalidInputError, match="stands at several places"):
        resolved([1, 3], known=known, **words).axis.find(pa.array([1]))


@pytest.mark.parametrize(
    "attributes", [{"scale_factor": 0.01}, {"add_offset": 5.0}, {"_Unsigned": "true"}]
)
def test_packed_coordinates_are_refused(tmp_path: Path, attributes: dict[str, Any]) -> None:
    """Stored numbers of such are other values than they seem: 100 may be 1 degree."""
    with pytest.raises(InvalidInputError, match=r"are packed .*'index'"):
        stored(tmp_path, np.array([0, 100, 200], "i2"), **attributes)


@pytest.mark.parametrize(
    ("values", "words", "text"),
    [
        ([3, 6], {}, r"x=6: it is none of the 3 places along 'x'; outside='extend'"),
        ([3, 4], {"extends": True}, "extended at the end only"),
        (["a"], {}, "are of another kind"),
        ([3, 5], {"way": [3, 5]}, "are not those of"),
        ([3, 5], {"way": RegularGrid(start=3, step=2)}, "is not that of"),
        (
            [3, 5],
            {"way": RegularGrid(start=3, step=2, count=7)},
            "has 7 places, and what is stored has 3",
        ),
        ([3, 5], {"way": "nearest"}, "must be one of stored, distinct, index"),
        ([3, 5], {"way": {"begin": 3}}, "must have start and step"),
        ([3, 5], {"tolerance": dt.timedelta(1)}, "must be a number"),
        ([3, 5], {"length": 4}, "3 coordinates /x, and the arrays have 4"),
        ([-1, 0], {"way": "index"}, "a place is not negative"),
        ([0, 9], {"way": "index", "length": 5}, "none of the 5 places"),
        ([0.5, 1.0], {"way": "index"}, "whole numbers"),
        ([0, 1], {"way": "index", "tolerance": 1}, "a tolerance is for stored"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, values: list[Any], words: dict[str, Any], text: str
) -> None:
    """Each fault names the dimension or value, and the way out."""
    with pytest.raises(InvalidInputError, match=text):
        resolved(values, known=stored(tmp_path, [3, 5, 9]), **words)


@pytest.mark.parametrize(
    ("way", "length", "text"),
    [
        ("stored", None, "there is no array of coordinates"),
        ("distinct", 4, "cannot be told from the rows"),
        ([1, 1, 2], None, "not all different"),
        ([1, None], None, "none missing"),
        ([1, 2], None, "x=3: it is none of the 2 places"),
        (RegularGrid(start=0, step=2), None, "x=3: it is none of"),
    ],
)
def test_without_stored_coordinates(way: Any, length: int | None, text: str) -> None:
    """What is given must have all of the rows' values."""
    with pytest.raises(InvalidInputError, match=text):
        resolved([2, 3], way=way, length=length)


def test_chunks_are_of_some_megabytes() -> None:
    """Edges that are not given are halved, the longest first; those that are given stay."""
    assert chunk_edges((10, 20), (None, None), 8) == (10, 20)
    assert chunk_edges((1000, 1000, 1000), (None, None, None), 8) == (63, 63, 125)
    assert chunk_edges((1000, 4000), (1, None), 8) == (1, 4000)
    with pytest.raises(InvalidInputError, match="whole numbers from 1"):
        chunk_edges((4,), (0,), 8)
