"""Coordinates as sortable bytes: the proof of order, both ways, one by one and by the column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core import coords
from icechunk_arrow.core.columns import from_values
from icechunk_arrow.errors import CorruptFileError, InvalidInputError

EDGES = (0, 1, 63, 64, 65, 2**14 - 1, 2**14, 2**30 - 1, 2**30, 2**62 - 2, coords.MAX_INDEX)
indices = (
    st.sampled_from(EDGES)
    | st.integers(0, 300)
    | st.integers(0, 2**31)
    | st.integers(0, coords.MAX_INDEX)
)


@st.composite
def columns(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Some coordinates of one rank; rank 0 is that of a scalar array."""
    ndim = draw(st.integers(0, 4))
    return draw(
        st.lists(st.tuples(*[indices] * ndim), max_size=8).map(lambda c: c or [(0,) * ndim])
    )


def as_array(found: list[tuple[int, ...]]) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    """Coordinates as rows."""
    return np.array(found, np.uint64).reshape(len(found), len(found[0]))


def binary(*values: bytes) -> pa.Array:
    """A column of encoded coordinates."""
    return from_values(list(values), pa.binary())


@given(columns(), st.data())
def test_order_of_bytes_is_order_of_tuples(
    found: list[tuple[int, ...]], data: st.DataObject
) -> None:
    """The promise on which sorting, statistics and push-down stand."""
    one = data.draw(st.sampled_from(found))
    # close neighbours are where an order would break first
    near = [tuple(max(0, i + data.draw(st.integers(-1, 1))) for i in one)]
    for other in [*found, *(c for c in near if all(i <= coords.MAX_INDEX for i in c))]:
        a, b = coords.encode_one(one), coords.encode_one(other)
        assert (a < b) == (one < other)
        assert (a == b) == (one == other)


def test_order_at_every_edge() -> None:
    """All pairs of edges of the four lengths, in one and in two dimensions."""
    pairs = [(a, b) for a in EDGES for b in EDGES]

    assert sorted(pairs, key=coords.encode_one) == sorted(pairs)
    assert [coords.encode_one((e,)) for e in EDGES] == sorted(
        coords.encode_one((e,)) for e in EDGES
    )


@given(columns())
def test_round_trip_by_the_column_and_one_by_one(found: list[tuple[int, ...]]) -> None:
    """Both ways give the coordinates again, and the same bytes as each other."""
    array = as_array(found)
    encoded = coords.encode(array)

    assert encoded.to_pylist() == [coords.encode_one(coord) for coord in found]
    assert coords.decode(encoded, array.shape[1]).tolist() == [list(coord) for coord in found]
    assert [coords.decode_one(data) for data in encoded.to_pylist()] == found


@given(columns(), st.integers(0, 3), st.integers(0, 3))
def test_slices_are_read_where_they_stand(
    found: list[tuple[int, ...]], before: int, after: int
) -> None:
    """A column that begins within a larger one is decoded like one of its own."""
    array = as_array(found)
    padded = np.concatenate([array[:1]] * before + [array] + [array[:1]] * after)
    part = coords.encode(padded).slice(before, len(array))

    assert coords.decode(part, array.shape[1]).tolist() == array.tolist()


@given(st.lists(indices, max_size=3), st.lists(indices, max_size=3), st.lists(indices, max_size=3))
def test_leading_indices_are_a_prefix(lead: list[int], rest: list[int], other: list[int]) -> None:
    """Coordinates begin with the same bytes exactly where they begin with the same indices."""
    prefix = coords.encode_one(lead)

    assert coords.encode_one([*lead, *rest]).startswith(prefix)
    if len(other) >= len(lead):
        assert coords.encode_one(other).startswith(prefix) == (other[: len(lead)] == lead)


@pytest.mark.parametrize(
    ("coord", "expected"),
    [
        ((), ""),
        ((0,), "00"),
        ((63,), "3f"),
        ((64,), "4040"),
        ((16_383,), "7fff"),
        ((16_384,), "80004000"),
        ((2**30 - 1,), "bfffffff"),
        ((2**30,), "c000000040000000"),
        ((coords.MAX_INDEX,), "ffffffffffffffff"),
        ((5, 30, 10), "051e0a"),
        ((100, 0), "406400"),
        # RFC 9000, appendix A.1
        ((151_288_809_941_952_652,), "c2197c5eff14e88c"),
        ((494_878_333,), "9d7f3e7d"),
        ((15_293,), "7bbd"),
        ((37,), "25"),
    ],
)
def test_known_bytes(coord: tuple[int, ...], expected: str) -> None:
    """Limits of the four lengths, and the RFC's own examples."""
    assert coords.encode_one(coord).hex() == expected
    assert coords.encode(as_array([coord])).to_pylist() == [bytes.fromhex(expected)]


def test_indices_that_do_not_fit_are_refused() -> None:
    """2**62 has no form; the error says so before anything is written."""
    with pytest.raises(InvalidInputError, match=f"{2**62} is too large"):
        coords.encode(as_array([(1, 2), (3, 2**62)]))


@pytest.mark.parametrize("data", ["4000", "403f", "80000000", "80003fff", "c00000003fffffff"])
def test_longer_forms_are_refused(data: str) -> None:
    """Each index has one form, or one chunk would have two names."""
    with pytest.raises(CorruptFileError, match="shortest form"):
        coords.decode(binary(b"\x01", bytes.fromhex(data)), 1)


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        ("", "fewer than 2"),
        ("01", "fewer than 2"),
        ("010203", "more than 2"),
        ("0140", "within an index"),
        ("01c0000000400000", "within an index"),
        ("40", "within an index"),
    ],
)
def test_other_ranks_and_cut_values_are_refused(data: str, fact: str) -> None:
    """A value that is not exactly as many indices as the array has dimensions is damage."""
    with pytest.raises(CorruptFileError, match=fact):
        coords.decode(binary(b"\x00\x00", bytes.fromhex(data)), 2)


@given(columns(), st.integers(0, 3))
def test_words_are_in_the_order_of_the_bytes(found: list[tuple[int, ...]], before: int) -> None:
    """A coordinate of up to eight bytes is a number, by which rows are sorted."""
    encoded = coords.encode(as_array(found[:1] * before + found)).slice(before)
    words = coords.as_words(encoded)
    data = encoded.to_pylist()

    if max(map(len, data)) > 8:
        assert words is None
    else:
        assert words is not None
        assert words.tolist() == [int.from_bytes(d.ljust(8, b"\0"), "big") for d in data]


@pytest.mark.parametrize("ndim", [1, 2, 3, 5])
def test_long_columns(ndim: int) -> None:
    """Longer than what is worked on at once, with indices of every length in every dimension."""
    generator = np.random.default_rng(ndim)
    bits = generator.integers(0, 62, (70_000, ndim), dtype=np.uint64)
    found = generator.integers(0, 2**62, (70_000, ndim), dtype=np.uint64) >> bits
    encoded = coords.encode(found)
    encoded.validate(full=True)
    rows = [*range(5), *range(32_766, 32_770), *range(65_534, 65_538), 69_999]

    assert (coords.decode(encoded, ndim) == found).all()
    assert [encoded[row].as_py() for row in rows] == [
        coords.encode_one(found[row].tolist()) for row in rows
    ]
    with pytest.raises(CorruptFileError, match=f"fewer than {ndim + 1}"):
        coords.decode(encoded, ndim + 1)
    with pytest.raises(CorruptFileError, match=f"more than {ndim - 1}"):
        coords.decode(encoded, ndim - 1)


def test_scalars_have_the_empty_coordinate() -> None:
    """And nothing else."""
    assert coords.decode(coords.encode(np.empty((2, 0), np.uint64)), 0).shape == (2, 0)
    with pytest.raises(CorruptFileError, match="more than 0"):
        coords.decode(binary(b"\x00"), 0)


def test_empty_columns() -> None:
    """No rows, of any rank."""
    for ndim in range(3):
        encoded = coords.encode(np.empty((0, ndim), np.uint64))
        assert len(encoded) == 0
        assert coords.decode(encoded, ndim).shape == (0, ndim)
