"""Chunk bytes are checked by default, a part of a large chunk with one request."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

from icechunk_arrow import CorruptFileError, Repository, RepositoryConfig
from icechunk_arrow.core.checksums import BLOCK_BYTES, Tally, block_sums, crc32c, of_whole
from tests.engine.test_slow_places import open_slow
from tests.faults.repositories import CONFIG, array_document, payload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from icechunk_arrow.core.chunks import ChunkRef

LARGE = (1 << 20) + 5000
BLOCKS = 17
SMALL = 100_000


def made(place: Path, sizes: Sequence[int], config: RepositoryConfig | None = None) -> Path:
    """Make an array whose chunks have these sizes."""
    repo = Repository.create(place, config=config)
    session = repo.writable_session("main")
    session.set_document("/a", array_document(len(sizes)))
    for number, size in enumerate(sizes):
        session.write_chunk("/a", (number,), payload(str(number), size))
    session.commit("chunks")
    return place


def ref_of(repo: Repository, number: int = 0) -> ChunkRef:
    session = repo.readonly_session("main")
    found = session.find_chunk(session.get_array("/a"), (number,))
    assert found is not None
    assert not isinstance(found, bytes)
    return found


def read(repo: Repository, *wanted: Any, number: int = 0) -> list[bytes]:
    """Read parts of a chunk, all in one moment."""

    async def ask() -> list[bytes]:
        keys = [(f"a/c/{number}", each) for each in wanted]
        found = await store.get_partial_values(default_buffer_prototype(), keys)
        return [each.to_bytes() for each in found if each is not None]

    store = repo.readonly_session("main").store
    try:
        return asyncio.run(ask())
    finally:
        store.close()


@given(st.integers(1, 4), st.integers(-70_000, 70_000), st.integers())
@settings(max_examples=30)
def test_the_sum_of_a_whole_comes_of_those_of_its_blocks(blocks: int, more: int, seed: int) -> None:
    """Put together without the bytes, it is the CRC-32C of all of them, as others form it."""
    data = random.Random(seed).randbytes(max(blocks * BLOCK_BYTES + more, 0))
    sums = block_sums(data)
    assert of_whole(sums, len(data)) == crc32c(data) == google_crc32c.value(data)
    tally = Tally(data)
    for _ in range(2):  # whoever has to begin again gets the same pieces
        assert b"".join(tally) == data + sums.tobytes()
        assert tally.crc == crc32c(data)
        assert tally.crc_of_sums == crc32c(sums.tobytes())
    assert [
        google_crc32c.value(data[i : i + BLOCK_BYTES]) for i in range(0, len(data), BLOCK_BYTES)
    ] == (sums.tolist())


def test_what_is_written_by_default(tmp_path: Path) -> None:
    """Every native chunk has a sum; behind a large one stand those of its blocks, as the specification says."""
    repo = Repository.open(made(tmp_path / "r", [SMALL, 1 << 20, LARGE]))
    for number, size in ((0, SMALL), (1, 1 << 20), (2, LARGE)):
        ref, data = ref_of(repo, number), payload(str(number), size)
        assert ref.crc32c == google_crc32c.value(data)
        stored = (tmp_path / "r" / "c" / str(ref.file)).read_bytes()[ref.offset :]
        assert stored[:size] == data
        if size <= 1 << 20:
            assert ref.sums_crc32c is None
            continue
        sums = [google_crc32c.value(data[at : at + (1 << 16)]) for at in range(0, size, 1 << 16)]
        behind = b"".join(each.to_bytes(4, "little") for each in sums)
        assert stored[size:] == behind
        assert ref.sums_crc32c == google_crc32c.value(behind)


@pytest.mark.parametrize("fast", [True, False])
def test_parts_are_right_whatever_they_are(tmp_path: Path, fast: bool) -> None:
    """Any range, of a cold chunk or one whose sums are known, alone or with others."""
    place = made(tmp_path / "r", [LARGE, SMALL])
    data = [payload("0", LARGE), payload("1", SMALL)]
    draw = random.Random(3)
    for number, size in ((0, LARGE), (1, SMALL)):
        ranges = [tuple(sorted(draw.choices(range(size + 1), k=2))) for _ in range(12)]
        ranges += [(0, 1), (0, size), (size - 1, size), (5, 5), (BLOCK_BYTES, 2 * BLOCK_BYTES)]
        for count in (1, len(ranges)):
            repo = Repository.open(place) if fast else open_slow(place)[0]
            for at in range(0, len(ranges), count):
                some = ranges[at : at + count]
                found = read(repo, *(RangeByteRequest(*each) for each in some), number=number)
                assert found == [data[number][a:b] for a, b in some]
    repo = Repository.open(place)
    assert read(repo, SuffixByteRequest(9), OffsetByteRequest(LARGE - 5), None) == [
        data[0][-9:],
        data[0][-5:],
        data[0],
    ]


def test_a_part_stays_one_request(tmp_path: Path) -> None:
    """What fetches a shard's index brings the sums; only who begins elsewhere asks once more, once."""
    place = made(tmp_path / "r", [LARGE])
    data = payload("0", LARGE)

    def asked(repo: Repository, *wanted: Any) -> int:
        before = len(slow.asked)
        assert read(repo, *wanted) == [data[slice(*bounds(each))] for each in wanted]
        return sum(" c/" in request for request in slow.asked[before:])

    def bounds(wanted: Any) -> tuple[int, int]:
        if isinstance(wanted, SuffixByteRequest):
            return LARGE - wanted.suffix, LARGE
        return wanted.start, wanted.end

    repo, slow = open_slow(place)
    assert asked(repo, SuffixByteRequest(2000)) == 1
    assert asked(repo, RangeByteRequest(500_000, 510_000)) == 1
    assert asked(repo, *(RangeByteRequest(at, at + 10) for at in range(0, 500_000, 50_000))) == 1
    repo, slow = open_slow(place)
    assert asked(repo, RangeByteRequest(10, 20)) == 2
    assert asked(repo, RangeByteRequest(300_000, 300_001)) == 1


def test_a_shard_is_read_as_before(tmp_path: Path) -> None:
    """zarr's sharding: the index and the parts that it names, each with one request for each shard."""
    repo = Repository.create(tmp_path / "r")
    session = repo.writable_session("main")
    values = np.random.default_rng(1).random((1024, 1024))
    array = zarr.create_array(
        session.store,
        name="a",
        shape=values.shape,
        dtype="f8",
        shards=(512, 512),
        chunks=(32, 32),
        compressors=None,
    )
    array[...] = values
    session.commit("shards")
    repo, slow = open_slow(tmp_path / "r")
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    slow.asked.clear()
    assert np.array_equal(np.asarray(array[100:110, 100:110]), values[100:110, 100:110])
    assert sum(" c/" in request for request in slow.asked) == 2
    assert np.array_equal(np.asarray(array[...]), values)


def flipped(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 8
    path.write_bytes(data)


@pytest.mark.parametrize("fast", [True, False])
def test_a_flipped_bit_is_noticed_in_its_blocks_alone(tmp_path: Path, fast: bool) -> None:
    """Within a block that is read, or in the sums, it is an error that names the file; elsewhere it is not seen."""
    place = made(tmp_path / "r", [LARGE])
    path = place / "c" / str(ref_of(Repository.open(place)).file)
    data = payload("0", LARGE)
    cases: list[tuple[int, Any, bool]] = [
        (3 * BLOCK_BYTES, RangeByteRequest(3 * BLOCK_BYTES + 700, 4 * BLOCK_BYTES - 5), True),
        (3 * BLOCK_BYTES - 1, RangeByteRequest(3 * BLOCK_BYTES + 700, 4 * BLOCK_BYTES - 5), False),
        (LARGE - 1, SuffixByteRequest(200), True),
        (LARGE + 4 * (BLOCKS - 1), SuffixByteRequest(200), True),
        (LARGE + 2, RangeByteRequest(500_000, 500_010), True),
        (LARGE + 2, None, False),
        (77, None, True),
    ]
    for at, wanted, wrong in cases:
        flipped(path, at)
        repo = Repository.open(place) if fast else open_slow(place)[0]
        if wrong:
            with pytest.raises(CorruptFileError, match=f"c/{path.name}"):
                read(repo, wanted)
        else:
            first, stop = (0, LARGE) if wanted is None else (wanted.start, wanted.end)
            assert read(repo, wanted) == [data[first:stop]]
        flipped(path, at)


def test_sums_go_where_their_chunks_go(tmp_path: Path) -> None:
    """Packed with others, handed over as encoded bytes, written by a fork, gathered by compaction: all checked."""
    config = RepositoryConfig(packed_chunk_threshold_bytes=4 << 20, chunk_file_size_bytes=32 << 20)
    place = made(tmp_path / "r", [LARGE, SMALL, LARGE], config)
    data = [payload(str(number), size) for number, size in enumerate([LARGE, SMALL, LARGE])]
    repo = Repository.open(place)
    session = repo.writable_session("main")
    rows = pa.table(
        {"index": [[number] for number in range(3)], "data": [data[2], data[0], data[1]]}
    )
    session.set_document("/b", array_document(3))
    session.set_encoded_chunks("/b", rows)
    session.set_document("/c", array_document(3))
    session.commit("two more")
    session = repo.writable_session("main")
    fork = session.fork()
    for number in range(3):
        fork.write_chunk("/c", (number,), data[number])
    session.merge(fork)
    session.commit("of a fork")

    for gathered in (False, True):
        if gathered:
            done = repo.compact_chunks("main", "gather", smaller_than_bytes=32 << 20)
            assert (done.files_before, done.files_after) == (3, 1)
        session = repo.readonly_session("main")
        for path, order in (("/a", (0, 1, 2)), ("/b", (2, 0, 1)), ("/c", (0, 1, 2))):
            for number, which in enumerate(order):
                ref = session.find_chunk(session.get_array(path), (number,))
                assert ref is not None
                assert not isinstance(ref, bytes)
                assert ref.crc32c == google_crc32c.value(data[which])
                assert (ref.sums_crc32c is not None) == (which != 1)
                for start, stop in ((0, ref.length), (70_000, 70_005), (5, 99_000)):
                    assert bytes(session.read_chunk(ref, start, stop)) == data[which][start:stop]


def test_without_the_setting_there_are_no_sums(tmp_path: Path) -> None:
    """Whoever does without checksums gets the bytes as they are."""
    repo = Repository.open(made(tmp_path / "r", [LARGE], RepositoryConfig(checksum_chunks=False)))
    ref = ref_of(repo)
    assert (ref.crc32c, ref.sums_crc32c) == (None, None)
    assert (tmp_path / "r" / "c" / str(ref.file)).stat().st_size == LARGE
    assert read(repo, RangeByteRequest(5, 9)) == [payload("0", LARGE)[5:9]]


def test_a_chunk_of_another_writer_without_sums_is_read_whole(tmp_path: Path) -> None:
    """Its checksum covers all of it, so that is what is read and checked."""
    place = made(tmp_path / "r", [LARGE], CONFIG)
    repo = Repository.open(place)
    ref = ref_of(repo)._replace(sums_crc32c=None)
    session = repo.writable_session("main")
    session.set_chunk_ref("/a", (0,), ref)
    session.commit("no sums")
    repo, slow = open_slow(place)
    assert read(repo, RangeByteRequest(5, 9)) == [payload("0", LARGE)[5:9]]
    assert sum(" c/" in request for request in slow.asked) == 1
    flipped(place / "c" / str(ref.file), LARGE - 1)
    with pytest.raises(CorruptFileError, match="does not match its checksum"):
        read(open_slow(place)[0], RangeByteRequest(5, 9))
