"""Blocks of chunks: every cell has one place in one block, and blocks have no chunk in common."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core.cell_blocks import RowBlocks, plan_row_blocks
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable


@st.composite
def plans(draw: Callable[[st.SearchStrategy[int]], int]) -> tuple[RowBlocks, list[range], int]:
    """Plan blocks for a box of some array; give the box, and what a block may have at most."""
    sides, shape, edges = [], [], []
    for _ in range(draw(st.integers(1, 3))):
        length = draw(st.integers(1, 9))
        low = draw(st.integers(0, length - 1))
        high = draw(st.integers(low, length - 1))
        shape.append(length)
        edges.append(draw(st.integers(1, 4)))
        sides.append(range(low, high + 1))
    most = draw(st.integers(1, 2000))
    blocks = plan_row_blocks(
        shape=shape,
        chunk_shape=edges,
        low=[side.start for side in sides],
        high=[side.stop - 1 for side in sides],
        cell_bytes=5,
        block_bytes=most,
    )
    return blocks, sides, most


@given(plans())
def test_every_cell_has_a_place_and_comes_back_from_it(
    plan: tuple[RowBlocks, list[range], int],
) -> None:
    """Addresses are one for each cell, say which cell it is, and keep chunks and blocks apart and bounded."""
    blocks, sides, most = plan
    cells = np.array(list(product(*sides)), np.int64)

    block, address = blocks.locate(list(cells.T), len(cells))

    pairs = list(zip(block.tolist(), address.tolist(), strict=True))
    assert len(set(pairs)) == len(cells)
    assert [blocks.cell_at(*pair) for pair in pairs] == list(map(tuple, cells.tolist()))
    assert 0 <= block.min() <= block.max() < blocks.block_count
    assert int(address.max()) < blocks.chunks_per_block * blocks.cells_per_chunk
    assert blocks.chunks_per_block == 1 or (
        blocks.chunks_per_block * blocks.cells_per_chunk * 5 <= most
    )
    chunks = cells // np.array(blocks.chunk_shape)
    numbers = (address // blocks.cells_per_chunk).astype(np.int64)
    for each in np.unique(block).tolist():
        mine = block == each
        np.testing.assert_array_equal(blocks.chunk_places(each, numbers[mine]), chunks[mine])
    # chunks follow one another as their coordinates do, so that manifests of tasks are disjoint
    order = np.lexsort([numbers, block])
    ranks = np.ravel_multi_index(tuple(chunks.T), tuple(chunks.max(axis=0) + 1))
    assert (np.diff(ranks[order]) >= 0).all()


def test_blocks_are_as_large_as_they_may_be() -> None:
    """A block takes whole inner axes first, and as much of the next as memory has."""
    blocks = plan_row_blocks(
        shape=(100, 40, 40),
        chunk_shape=(10, 10, 10),
        low=[0, 0, 0],
        high=[99, 39, 39],
        cell_bytes=8,
        block_bytes=40 * 8000,
    )

    assert (blocks.block_shape, blocks.chunks_per_block, blocks.block_count) == ((2, 4, 4), 32, 5)


def test_rows_that_changed_meanwhile_are_refused() -> None:
    """A place outside the box that was found before is no silent wrong address."""
    blocks = plan_row_blocks(
        shape=(9,), chunk_shape=(2,), low=[2], high=[5], cell_bytes=8, block_bytes=100
    )

    for place in (0, 8):
        with pytest.raises(InvalidInputError, match="persist the frame"):
            blocks.locate([np.array([place])], 1)


def test_more_cells_than_can_be_counted_are_refused() -> None:
    """Addresses do not wrap around."""
    with pytest.raises(InvalidInputError, match="smaller chunks"):
        plan_row_blocks(
            shape=(2**62, 4),
            chunk_shape=(2**40, 1),
            low=[0, 0],
            high=[2**62 - 1, 3],
            cell_bytes=8,
            block_bytes=math.inf,  # type: ignore[arg-type]
        )
