"""What a commit did to chunks: columns beneath, and by array what is said of it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core import coords
from icechunk_arrow.core.log import NO_SINGLES, ChunkChanges, ChunkLog, Singles
from tests.formats.strategies import chunk_changes

by_array = st.dictionaries(st.integers(0, 2**32 - 1), chunk_changes(), max_size=6)


@given(by_array)
def test_arrays_come_out_as_they_went_in(changes: dict[int, ChunkChanges]) -> None:
    """By array everything is said that was said before, in the order of their ids."""
    log = ChunkLog.of(changes)

    assert dict(log) == changes
    assert list(log) == sorted(changes)
    assert log == ChunkLog.of(log)
    assert len(log) == len(changes)
    assert all(node_id in log for node_id in changes)
    assert log.get(2**33) is None


@given(by_array, st.data())
def test_columns_are_sorted_and_can_do_without_some(
    changes: dict[int, ChunkChanges], data: st.DataObject
) -> None:
    """Chunks named one by one stand by array and coordinate; those of some arrays can be left out."""
    written = ChunkLog.of(changes).written
    rows = list(zip(written.node_ids.tolist(), written.coords.to_pylist(), strict=True))

    assert rows == sorted(rows)
    assert written.counts == {i: len(each.written) for i, each in changes.items() if each.written}
    gone = data.draw(st.sets(st.sampled_from([*changes, 5])))
    left = written.without(gone)
    kept = {i: each.written for i, each in changes.items() if i not in gone}
    assert left.coords == Singles.of(kept).coords
    assert left.node_ids.tolist() == Singles.of(kept).node_ids.tolist()


def test_an_array_that_is_not_there() -> None:
    """It has no chunks, and asking what happened to it is a mistake."""
    assert NO_SINGLES.of_node(3) == pa.array([], pa.binary())
    assert NO_SINGLES.counts == {}
    with pytest.raises(KeyError):
        ChunkLog()[3]


def test_many_arrays_make_no_object_for_a_chunk() -> None:
    """Columns are handed on as they are."""
    places = coords.encode(np.arange(1000, dtype=np.uint64)[:, None])
    log = ChunkLog(written=Singles(np.full(1000, 7, np.uint32), places))

    assert log[7].written.buffers()[2].address == places.buffers()[2].address
