"""Cells from rows: what a dictionary makes of the same rows, for every policy and in any portions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core.cell_blocks import POLICIES, CellError, carried_dtype, new_block

CELLS = 6
ROWS = st.lists(
    st.tuples(st.integers(0, CELLS - 1), st.integers(-100, 100), st.booleans(), st.integers(0, 4)),
    min_size=1,
    max_size=25,
)


def written(
    rows: list[tuple[int, int, bool, int]],
    policy: str,
    dtype: str,
    portions: list[int],
    *,
    ordered: bool = False,
) -> dict[int, Any]:
    """Write rows in portions; give the cells."""
    kind = np.dtype(dtype)
    block = new_block(CELLS, kind, policy, np.nan if kind.kind == "f" else -1)
    address = np.array([row[0] for row in rows], np.uint32)
    values = np.array([row[1] for row in rows], carried_dtype(kind, policy))
    valid = np.array([row[2] for row in rows])
    order = np.array([row[3] for row in rows])
    edges = sorted({0, *(each % (len(rows) + 1) for each in portions), len(rows)})
    for start, stop in pairwise(edges):
        side = slice(start, stop)
        some = None if valid[side].all() else valid[side]
        block.add(address[side], values[side], some, order[side] if ordered else None)
    values = block.finish()
    assert values.dtype == kind
    return {int(each): values[each].item() for each in np.flatnonzero(block.written)}


@pytest.mark.parametrize("dtype", ["f8", "i4"])
@given(rows=ROWS, portions=st.lists(st.integers(0, 25), max_size=3), ordered=st.booleans())
def test_the_last_row_stays(
    dtype: str, rows: list[tuple[int, int, bool, int]], portions: list[int], ordered: bool
) -> None:
    """The last is the one of the greatest order, and of several such the one that came last."""
    expected: dict[int, tuple[int, Any]] = {}
    for cell, value, valid, order in rows:
        if not ordered or cell not in expected or order >= expected[cell][0]:
            missing = np.nan if dtype == "f8" else -1
            expected[cell] = order, value if valid else missing

    found = written(rows, "last", dtype, portions, ordered=ordered)

    assert repr(found) == repr(
        {k: np.dtype(dtype).type(v).item() for k, (_, v) in sorted(expected.items())}
    )


@pytest.mark.parametrize("dtype", ["f8", "i2"])
@pytest.mark.parametrize("policy", ["mean", "sum"])
@given(rows=ROWS, portions=st.lists(st.integers(0, 25), max_size=3))
def test_rows_add_up(
    dtype: str, policy: str, rows: list[tuple[int, int, bool, int]], portions: list[int]
) -> None:
    """Means and sums are those of numpy over rows with a value; a cell with none is missing."""
    found = written(rows, policy, dtype, portions)

    assert found.keys() == {row[0] for row in rows}
    for cell, value in found.items():
        mine = np.array([row[1] for row in rows if row[0] == cell and row[2]], np.float64)
        expected = (mine.mean() if policy == "mean" else mine.sum()) if len(mine) else np.nan
        if dtype == "i2":
            expected = np.rint(expected) if len(mine) else -1
        np.testing.assert_allclose(value, expected, rtol=1e-12)


@given(rows=ROWS, portions=st.lists(st.integers(0, 25), max_size=3))
def test_a_second_row_is_found(rows: list[tuple[int, int, bool, int]], portions: list[int]) -> None:
    """Several rows for a cell are refused, whatever portions they come in, and only these."""
    cells = [row[0] for row in rows]
    twice = {cell for cell in cells if cells.count(cell) > 1}
    if not twice:
        found = written(rows, "error", "f8", portions)
        expected = {row[0]: float(row[1]) if row[2] else np.nan for row in sorted(rows)}
        assert repr(found) == repr(expected)
        return

    with pytest.raises(CellError, match="rows have a value for it") as caught:
        written(rows, "error", "f8", portions)

    assert caught.value.address in twice


@pytest.mark.parametrize("dtype", ["i1", "u8", "i8"])
def test_sums_that_do_not_fit_are_refused(dtype: str) -> None:
    """Neither a narrow type nor 64 bits wrap around."""
    kind = np.dtype(dtype)
    block = new_block(3, kind, "sum", 0)
    most = 100 if dtype == "i1" else 2**63 - 1
    block.add(np.array([1, 1, 0], np.uint32), np.array([most, most, 1], np.int64))

    with pytest.raises(CellError, match=f"does not fit into {kind}") as caught:
        block.finish()

    assert caught.value.address == 1


@pytest.mark.parametrize("policy", ["error", "last"])
@pytest.mark.parametrize("dtype", [np.dtype(object), np.dtypes.StringDType(), np.dtype(">M8[us]")])
def test_texts_and_times_are_cells_too(policy: str, dtype: Any) -> None:
    """Values of any type are laid, in the machine's order of bytes."""
    values = np.array(["2001-01-01", "2002-02-02"], carried_dtype(dtype, policy))
    missing = np.datetime64("NaT", "us") if dtype.kind == "M" else ""
    block = new_block(4, dtype, policy, missing)
    block.add(np.array([3, 0], np.uint32), values, np.array([True, False]))

    found = block.finish()

    assert found.dtype.isnative
    assert str(found[3]).startswith("2001-01-01")
    assert block.written.tolist() == [True, False, False, True]
    assert np.isnat(found[0]) if dtype.kind == "M" else found[0] == ""


def test_policies_are_those_that_are_documented() -> None:
    """Each word makes a block."""
    assert all(new_block(1, np.dtype("f4"), each, np.nan) for each in POLICIES)


@pytest.mark.parametrize("policy", ["sum", "mean"])
def test_results_that_do_not_fit_are_refused(policy: str) -> None:
    """A sum of numbers that is none: of floats as of integers; infinities that rows had stay."""
    block = new_block(3, np.dtype("f4"), policy, np.nan)
    block.add(np.array([0, 0, 1], np.uint32), np.array([3e38, 3e38, np.inf]))
    if policy == "mean":
        assert block.finish().tolist()[:2] == [np.float32(3e38), np.inf]
        return
    with pytest.raises(CellError, match="does not fit into float32") as caught:
        block.finish()
    assert caught.value.address == 0
