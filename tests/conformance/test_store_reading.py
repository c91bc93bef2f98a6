"""Many reads at once through zarr, on every kind of place: joined or not, the same bytes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

from tests.conformance.places import settled

if TYPE_CHECKING:
    from zarr.core.buffer import Buffer

    from icechunk_arrow import IcechunkStore
    from tests.conformance.places import Place

PROTOTYPE = default_buffer_prototype()
COUNT, SIZE = 60, 300


@pytest.fixture
def filled(place: Place, committed: bool) -> tuple[IcechunkStore, np.ndarray]:
    """A store with an array of packed chunks, some large ones and some inline, and their bytes."""
    place.create(inline_chunk_threshold_bytes=8, packed_chunk_threshold_bytes=2000)
    session = place.session()
    data = np.random.default_rng(1).integers(0, 256, (COUNT, SIZE), np.uint8)
    array = zarr.create_array(
        session.store, name="a", shape=(COUNT, SIZE), chunks=(1, SIZE), dtype="u1", compressors=None
    )
    array[...] = data
    return settled(place, session, committed=committed).store, data


async def test_many_reads_at_once(filled: tuple[IcechunkStore, np.ndarray]) -> None:
    """Whole chunks, parts of them and chunks that are not there, all at once, each get their own."""
    store, data = filled
    wanted: list[tuple[str, Any, bytes | None]] = []
    for number in np.random.default_rng(2).permutation(COUNT + 3).tolist():
        key = f"a/c/{number}/0"
        row = data[number].tobytes() if number < COUNT else None
        wanted += [
            (key, None, row),
            (key, RangeByteRequest(10, 90), row and row[10:90]),
            (key, OffsetByteRequest(290), row and row[290:]),
            (key, SuffixByteRequest(7), row and row[-7:]),
            (key, RangeByteRequest(5, 5), row and b""),
        ]
    found = await asyncio.gather(*(store.get(key, PROTOTYPE, part) for key, part, _ in wanted))
    values = [None if each is None else each.to_bytes() for each in found]
    assert values == [expected for *_, expected in wanted]


async def test_ranges_of_one_chunk(filled: tuple[IcechunkStore, np.ndarray]) -> None:
    """zarr's reading of many ranges of one key gives each range, and says what is missing."""
    store: Any = filled[0]
    data = filled[1]
    if not hasattr(Store, "get_ranges"):  # zarr before 3.4: nobody can ask
        return
    parts = [RangeByteRequest(start, start + 20) for start in (0, 200, 40, 10)]
    found: dict[int, Buffer | None] = {}
    async for group in store.get_ranges("a/c/3/0", parts, prototype=PROTOTYPE):
        found.update(group)
    expected = {n: data[3, p.start : p.end].tobytes() for n, p in enumerate(parts)}
    assert {number: each and each.to_bytes() for number, each in found.items()} == expected
    with pytest.raises(BaseExceptionGroup) as caught:
        async for _ in store.get_ranges("a/c/99/0", parts, prototype=PROTOTYPE):
            pass
    assert caught.group_contains(FileNotFoundError)


def test_parts_of_shards(place: Place, pipeline: str) -> None:
    """Chunks inside of shards are read in parts, by both pipelines, and are what was written."""
    assert pipeline
    place.create(packed_chunk_threshold_bytes=4000)
    session = place.session()
    data = np.random.default_rng(3).integers(0, 1000, (64, 64)).astype("i4")
    array = zarr.create_array(
        session.store,
        name="s",
        shape=(64, 64),
        chunks=(4, 4),
        shards=(32, 32),
        dtype="i4",
        compressors=None,
    )
    array[...] = data
    session.commit("shards")
    read = zarr.open_array(place.session().store, path="s", mode="r")
    for box in (np.s_[...], np.s_[3:50, 7:9], np.s_[::9, ::5], np.s_[33, :]):
        assert np.array_equal(np.asarray(read[box]), data[box])


async def test_where_chunks_are(filled: tuple[IcechunkStore, np.ndarray]) -> None:
    """The store tells of every chunk where it is, once, in batches."""
    store, data = filled
    batches = [batch async for batch in store.array_chunk_iterator("/a", batch_size=25)]
    assert [batch.num_rows for batch in batches] == [25, 25, 10]
    table = pa.Table.from_batches(batches)
    assert sorted(table["index"].to_pylist()) == [[n, 0] for n in range(COUNT)]
    assert set(table["length"].to_pylist()) == {SIZE}
    inline = {tuple(r["index"]): r["inline_data"] for r in table.to_pylist() if r["inline_data"]}
    assert all(data[place[0]].tobytes() == value for place, value in inline.items())
