"""Coordinates of mixed rank come out as lists, as they went in."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core.coords import MAX_INDEX, decode_lists, encode_one
from icechunk_arrow.errors import CorruptFileError

indices = st.one_of(
    st.integers(0, 100), st.sampled_from([63, 64, 16_383, 16_384, 2**30 - 1, 2**30, MAX_INDEX])
)


@given(st.lists(st.one_of(st.none(), st.lists(indices, max_size=6))), st.integers(0, 3))
def test_lists_come_back(places: list[list[int] | None], start: int) -> None:
    """Of any rank, null too, and of a part of a column."""
    column = pa.array(
        [None if place is None else encode_one(place) for place in places], pa.binary()
    )
    found = decode_lists(column.slice(start))
    found.validate(full=True)

    assert found.to_pylist() == places[start:]


@pytest.mark.parametrize("coord", [b"\x40", b"\x05\x80\x00", b"\xff" * 7])
def test_a_cut_coordinate_is_damage(coord: bytes) -> None:
    """A value that ends within an index is refused."""
    with pytest.raises(CorruptFileError, match="ends within an index"):
        decode_lists(pa.array([b"\x01", coord], pa.binary()))


@pytest.mark.parametrize(
    "coord", [b"\x40\x01", b"\x80\x00\x20\x00", b"\xc0\x00\x00\x00\x20\x00\x00\x00"]
)
def test_there_is_one_form_of_each_index(coord: bytes) -> None:
    """A longer one than is needed is refused, whatever stands around it."""
    with pytest.raises(CorruptFileError, match="shortest form"):
        decode_lists(pa.array([b"\x01", None, coord + b"\x02"], pa.binary()))
