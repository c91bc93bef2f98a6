"""Reading loads what it needs: few requests, few bytes, bounded memory, and the right chunks."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from icechunk_arrow import (
    CorruptFileError,
    InvalidInputError,
    Repository,
    RepositoryConfig,
)
from icechunk_arrow.core import coords
from icechunk_arrow.core.chunks import chunk_table
from icechunk_arrow.core.columns import from_numpy, from_values
from icechunk_arrow.core.inventory import Inventory, InventoryEntry
from icechunk_arrow.engine import joint_reads
from icechunk_arrow.engine.cache import MAX_FILES, ByteCache, Windows
from icechunk_arrow.engine.files import Files
from icechunk_arrow.engine.listing import chunk_batches, chunk_coordinates
from icechunk_arrow.engine.lookup import find_ref
from icechunk_arrow.engine.segments import Bulk, Segment, Shrunk, StagedChunks
from icechunk_arrow.formats import manifest
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.storage.memory import MemoryStorage
from tests.faults.repositories import through
from tests.faults.storage_wrappers import WrappedStorage
from tests.places import UNSYNCED, make_array

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icechunk_arrow import Session
    from icechunk_arrow.storage.port import Storage

T = TypeVar("T")
PATIENCE_SECONDS = 30.0
PROTOTYPE = default_buffer_prototype()


class CountingStorage(WrappedStorage):
    """Writes down what it is asked, with ranges, and can come between."""

    def __init__(self, inner: Storage, *, fast: bool = False) -> None:
        super().__init__(inner, fast=fast)
        self.asked: list[str] = []
        self.ranges: list[tuple[str, int, int]] = []
        self.before: Callable[[str, str], None] = lambda _operation, _key: None

    def _run(self, operation: str, key: str, effect: Callable[[], T]) -> T:
        self.asked.append(f"{operation} {key}")
        self.before(operation, key)
        return effect()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.ranges.append((key, start, length))
        return super().get_range(key, start, length)

    def count(self, start: str) -> int:
        """How many requests begin so."""
        return sum(each.startswith(start) for each in self.asked)


def opened(place: Path | str, *, fast: bool = False) -> tuple[Repository, CountingStorage]:
    """Open a repository through a storage that counts."""
    found: list[CountingStorage] = []

    def wrap(inner: Storage) -> Storage:
        found.append(CountingStorage(inner, fast=fast))
        return found[-1]

    with through(wrap):
        repo = Repository.open(place)
    return repo, found[-1]


def made(place: Path, count: int, size_bytes: int = 100, **config: Any) -> np.ndarray:
    """Make a repository with one array of ``count`` chunks, and give its values."""
    given_config = RepositoryConfig(inline_chunk_threshold_bytes=0, **config)
    repo = Repository.create(place, config=given_config, storage_settings=UNSYNCED)
    session = repo.writable_session("main")
    data = np.random.default_rng(count).integers(0, 256, count * size_bytes, np.uint8)
    array = zarr.create_array(
        session.store,
        name="a",
        shape=data.shape,
        chunks=(size_bytes,),
        dtype="u1",
        compressors=None,
    )
    array[...] = data
    session.commit("made")
    return data


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a moment waits for its lookups."""
    monkeypatch.setattr(joint_reads, "PATIENCE_SECONDS", PATIENCE_SECONDS)


# -- few requests


@pytest.mark.usefixtures("patient")
def test_chunks_asked_for_together_are_one_request(tmp_path: Path) -> None:
    """Sixty-four packed chunks cost a manifest's footer, its row group and one range of the chunk file."""
    data = made(tmp_path / "r", 64)
    repo, slow = opened(tmp_path / "r")
    store = repo.readonly_session("main").store
    array = zarr.open_array(store, path="a", mode="r")
    slow.asked.clear()
    with zarr.config.set({"async.concurrency": 64}):
        assert np.array_equal(np.asarray(array[...]), data)
    assert slow.count("get_tail i/") == 1
    assert slow.count("get_range c/") == 1
    assert len(slow.asked) == 2


@pytest.mark.usefixtures("patient")
def test_partial_values_are_joined(tmp_path: Path) -> None:
    """Parts of several chunks, and of one, come with one range, each what was asked for."""
    data = made(tmp_path / "r", 8)
    repo, slow = opened(tmp_path / "r")
    store = repo.readonly_session("main").store
    wanted = [
        ("a/c/0", RangeByteRequest(10, 20)),
        ("a/c/3", None),
        ("a/c/3", SuffixByteRequest(5)),
        ("a/c/99", None),
        ("a/c/7", OffsetByteRequest(90)),
    ]
    found = sync(store.get_partial_values(PROTOTYPE, wanted))
    values = [None if each is None else each.to_bytes() for each in found]
    chunks = data.reshape(8, 100)
    expected = [chunks[0, 10:20], chunks[3], chunks[3, 95:], None, chunks[7, 90:]]
    assert values == [None if each is None else each.tobytes() for each in expected]
    assert slow.count("get_range c/") == 1


def test_a_failed_joined_request_is_made_good(tmp_path: Path) -> None:
    """A place that refuses the joined range, and then answers, gives every chunk."""
    data = made(tmp_path / "r", 16)
    repo, slow = opened(tmp_path / "r")
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    array[:1]
    slow.asked.clear()
    failures = iter([True])

    def refuse(operation: str, key: str) -> None:
        if key.startswith("c/") and next(failures, False):
            raise OSError("connection reset")

    slow.before = refuse
    with zarr.config.set({"async.concurrency": 16}):
        assert np.array_equal(np.asarray(array[...]), data)
    assert slow.count("get_range c/") > 2


def test_sixty_four_requests_are_in_flight(tmp_path: Path) -> None:
    """Chunks in files of their own are asked for side by side, all sixty-four before any has come."""
    data = made(tmp_path / "r", 64, packed_chunk_threshold_bytes=0)
    repo, slow = opened(tmp_path / "r")
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    barrier = threading.Barrier(64)

    def wait(_operation: str, key: str) -> None:
        if key.startswith("c/"):
            barrier.wait(PATIENCE_SECONDS)

    slow.before = wait
    with zarr.config.set({"async.concurrency": 64}):
        assert np.array_equal(np.asarray(array[...]), data)


def test_a_cancelled_read_leaves_the_others(tmp_path: Path) -> None:
    """Of several reads that wait for one range, one is cancelled: the others get their bytes."""
    data = made(tmp_path / "r", 4)
    repo, slow = opened(tmp_path / "r")
    store = repo.readonly_session("main").store
    go = threading.Event()

    async def run() -> list[Any]:
        loop = asyncio.get_running_loop()
        entered = asyncio.Event()

        def hold(_operation: str, key: str) -> None:
            if key.startswith("c/"):
                loop.call_soon_threadsafe(entered.set)
                assert go.wait(PATIENCE_SECONDS)

        slow.before = hold
        tasks = [asyncio.create_task(store.get(f"a/c/{n}", PROTOTYPE)) for n in range(4)]
        await asyncio.wait_for(entered.wait(), PATIENCE_SECONDS)
        tasks[1].cancel()
        go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(run())
    assert isinstance(found.pop(1), asyncio.CancelledError)
    chunks = data.reshape(4, 100)
    assert [each.to_bytes() for each in found] == [chunks[n].tobytes() for n in (0, 2, 3)]


def test_a_store_serves_several_event_loops(tmp_path: Path) -> None:
    """Reads from loops of different threads, at the same time, each come back to their own."""
    data = made(tmp_path / "r", 32).reshape(32, 100)
    repo, _ = opened(tmp_path / "r")
    store = repo.readonly_session("main").store
    found: dict[int, list[bytes]] = {}

    async def read() -> list[bytes]:
        parts = await asyncio.gather(*(store.get(f"a/c/{n}", PROTOTYPE) for n in range(32)))
        return [part.to_bytes() for part in parts if part is not None]

    def run(number: int) -> None:
        found[number] = asyncio.run(read())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(found.values()) == [[row.tobytes() for row in data]] * 4


def test_far_files_are_not_read_on_zarrs_thread(tmp_path: Path) -> None:
    """Where virtual chunks may be a request away zarr must not call the store synchronously."""
    made(tmp_path / "r", 1)
    ways = {"file:///data": True, "s3://bucket": False, "https://example.com/x": False}
    for prefix, expected in ways.items():
        repo = Repository.open(tmp_path / "r", authorize_virtual_chunk_access=[prefix])
        assert repo.readonly_session("main").store._supports_sync_io is expected


# -- reading ahead


def test_small_chunks_in_order_are_few_system_calls(tmp_path: Path) -> None:
    """On a local disk chunks read one after the other come out of what was read ahead."""
    data = made(tmp_path / "r", 500)
    repo, disk = opened(tmp_path / "r", fast=True)
    store = repo.readonly_session("main").store
    for number, row in enumerate(data.reshape(500, 100)):
        found = store.get_sync(f"a/c/{number}")
        assert found is not None
        assert found.to_bytes() == row.tobytes()
    assert len([each for each in disk.ranges if each[0].startswith("c/")]) <= 3


def test_scattered_reads_get_what_they_ask_for() -> None:
    """Reads far from each other are not made larger, and few files are remembered."""
    storage = CountingStorage(MemoryStorage(), fast=True)
    for number in range(20):
        storage.put(f"c/{number:020}", bytes(1 << 20))
    windows = Windows(storage)
    for number in range(20):
        for start in (900_000, 500_000, 100_000):
            windows.read(f"c/{number:020}", start, 100)
    assert {length for _, _, length in storage.ranges} == {100}
    assert len(windows._windows) <= MAX_FILES


@settings(max_examples=60)
@given(
    st.booleans(),
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 330_000), st.integers(0, 70_000)), max_size=30
    ),
)
def test_reading_ahead_never_changes_the_bytes(
    fast: bool, reads: list[tuple[int, int, int]]
) -> None:
    """Whatever is read in whatever order, also beyond the end, is what stands in the file."""
    content = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8).tobytes()
    storage = CountingStorage(MemoryStorage(), fast=fast)
    for number in range(3):
        storage.put(f"c/{number}", bytes([number]) + content)
    windows = Windows(storage)
    for number, start, length in reads:
        for at in (start, start + length):  # one after the other, so that something is ahead
            expected = (bytes([number]) + content)[at : at + length]
            assert windows.read(f"c/{number}", at, length) == expected


# -- where all chunks are


def described(batches: Any) -> dict[tuple[int, ...], dict[str, Any]]:
    """Put rows of batches by their place."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    found = {tuple(row.pop("index")): row for row in rows}
    assert len(found) == len(rows), "a chunk stands there twice"
    return found


async def gathered(batches: Any) -> list[pa.RecordBatch]:
    """Take all batches of an asynchronous iterator."""
    return [batch async for batch in batches]


@pytest.fixture
def mixed(tmp_path: Path) -> Session:
    """A session with chunks of each kind, committed and not."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=50, checksum_chunks=True)
    repo = Repository.create(
        tmp_path / "mixed", config=config, authorize_virtual_chunk_access=["s3://far"]
    )
    session = repo.writable_session("main")
    make_array(session.store, "a", (40, 2), chunks=(1, 1))
    make_array(session.store, "b", ())[...] = 3
    session.write_chunk("/a", (0, 0), b"inline")
    session.write_chunk("/a", (1, 1), bytes(100))
    refs = pa.table(
        {
            "index": pa.array([[n, 0] for n in range(10, 20)]),
            "location": pa.array(["s3://far/file"] * 10),
            "offset": pa.array(range(10)),
            "length": pa.array([7] * 10),
            "etag": pa.array(["x", None] * 5),
        }
    )
    session.set_references("/a", refs)
    session.commit("base")
    session = repo.writable_session("main")
    session.write_chunk("/a", (1, 1), b"over")
    session.delete_chunk("/a", (10, 0))
    session.set_references("/a", refs.slice(1, 1).set_column(2, "offset", pa.array([500])))
    session.write_chunk("/a", (30, 1), bytes(60))
    return session


def test_every_reference_can_be_had(mixed: Session) -> None:
    """Base and changes come together, each chunk once, of every kind, as it is found one by one."""
    found = described(mixed.chunk_references("/a"))
    assert sorted(found) == sorted([(0, 0), (1, 1), *((n, 0) for n in range(11, 20)), (30, 1)])
    assert found[0, 0]["kind"] == "inline"
    assert found[0, 0]["inline_data"] == b"inline"
    assert found[1, 1]["inline_data"] == b"over"
    assert (found[11, 0]["offset"], found[12, 0]["offset"]) == (500, 2)
    assert {found[n, 0]["kind"] for n in range(11, 20)} == {"virtual"}
    mixed.commit("changes")
    found = described(mixed.chunk_references("/a"))
    view = mixed.get_array("/a")
    for place, row in found.items():
        ref = mixed.find_chunk(view, place)
        assert ref is not None
        assert not isinstance(ref, bytes)
        kind = "inline" if ref.inline is not None else "virtual" if ":" in ref.file else "native"  # type: ignore[operator]
        assert (row["kind"], row["length"]) == (kind, ref.length)
        assert (row["location"], row["inline_data"]) == (ref.file, ref.inline)
        assert (row["etag"], row["crc32c"]) == (ref.etag, ref.crc32c)
        assert row["offset"] == (None if kind == "inline" else ref.offset)
    assert {row["kind"] for row in found.values()} == {"inline", "native", "virtual"}
    scalar = described(mixed.chunk_references("/b"))
    assert list(scalar) == [()]


def test_the_store_gives_references_too(mixed: Session) -> None:
    """The store's iterator is asynchronous and gives the same, in batches of the size asked for."""
    for path in ("/a", "a"):
        batches = sync(gathered(mixed.store.array_chunk_iterator(path, batch_size=5)))
        assert [batch.num_rows for batch in batches] == [5, 5, 2]
        assert described(batches) == described(mixed.chunk_references("/a"))
    with pytest.raises(InvalidInputError, match="batch_size"):
        sync(gathered(mixed.store.array_chunk_iterator("/a", batch_size=0)))


def test_virtual_references_can_be_fed_back(mixed: Session) -> None:
    """What was read of virtual chunks, handed to another array, is the same there."""
    make_array(mixed.store, "copy", (40, 2), chunks=(1, 1))
    table = pa.Table.from_batches(mixed.chunk_references("/a"))
    virtual = table.filter(pc.equal(table["kind"], "virtual"))
    names = ["index", "location", "offset", "length", "etag", "last_modified"]
    mixed.set_references("/copy", virtual.select(names))
    copied = described(mixed.chunk_references("/copy"))
    assert len(copied) == 9
    assert copied == {
        place: row
        for place, row in described(mixed.chunk_references("/a")).items()
        if row["kind"] == "virtual"
    }


def _manifest_of(places: list[tuple[int, ...]], name: str, files: Files) -> InventoryEntry:
    """Write a manifest of array 7 and give its entry."""
    ordered = np.array(sorted(places), np.uint64)
    count = len(ordered)
    columns = {
        "array_id": from_numpy(np.full(count, 7, np.uint32), pa.uint32()),
        "coord": coords.encode(ordered),
        "chunk_file": from_values([name] * count, pa.string()),
        "offset": from_numpy(np.arange(count, dtype=np.uint64), pa.uint64()),
        "length": from_numpy(np.ones(count, np.uint64), pa.uint64()),
    }
    data = manifest.encode(chunk_table(columns, count), name)
    files.storage.put(key_of(FileKind.MANIFEST, name), data)
    low, high = ordered.min(axis=0).tolist(), ordered.max(axis=0).tolist()
    extent = tuple((a, b + 1) for a, b in zip(low, high, strict=True))
    dense = int(np.prod([b - a for a, b in extent])) == count
    return InventoryEntry(
        manifest=name,
        row=0,
        extent=extent,
        flags=int(dense),
        row_count=count,
        stored_bytes=count,
    )


class _View:
    """As much of an array as listing looks at."""

    def __init__(self, inventories: Inventory, shape: tuple[int, ...]) -> None:
        self.node = type("N", (), {"id": 7, "inventories": inventories})
        self.grid = type("G", (), {"chunk_counts": shape})


_places = st.sets(st.tuples(st.integers(0, 5), st.integers(0, 70)), min_size=1, max_size=30)


@settings(max_examples=80)
@given(
    _places,
    st.lists(_places, max_size=2),
    st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 70)), st.booleans(), max_size=8),
    st.one_of(st.none(), st.tuples(st.integers(0, 6), st.integers(0, 71))),
    st.sampled_from([0, 1 << 30]),
)
def test_newer_layers_cover_older_ones(
    base: set[tuple[int, int]],
    runs: list[set[tuple[int, int]]],
    entries: dict[tuple[int, int], bool],
    kept: tuple[int, int] | None,
    cache_bytes: int,
) -> None:
    """Single changes over runs over the base, shrunken or not: each chunk once, from the newest that says it."""
    files = Files(MemoryStorage(), ByteCache(cache_bytes))
    view = _View(Inventory.of([_manifest_of([*base], "0" * 20, files)], 2), (6, 71))
    ran: set[tuple[int, int]] = set()
    run_entries = []
    for number, run in enumerate(runs, 1):
        fresh = run - ran
        ran |= run
        if fresh:
            run_entries.append(_manifest_of([*fresh], f"{number}" * 20, files))
    segments: list[Segment] = [] if kept is None else [Shrunk(kept)]
    staged = StagedChunks(
        (*segments, Bulk(inventory=Inventory.of(run_entries, 2), array_id=7)),
        {coords.encode_one(k): b"new" if v else None for k, v in entries.items()},
    )
    inside = {p for p in base if kept is None or all(i < n for i, n in zip(p, kept, strict=True))}
    expected = dict.fromkeys(inside, "0" * 20)
    for number, run in enumerate(runs, 1):
        older = set().union(*runs[: number - 1])
        expected.update(dict.fromkeys(run - older, f"{number}" * 20))
    for place, present in entries.items():
        expected.pop(place, None)
        if present:
            expected[place] = ""
    found = described(chunk_batches(files, view, staged, 7))  # type: ignore[arg-type]
    assert {place: row["location"] or "" for place, row in found.items()} == expected
    listed = [
        tuple(place)
        for batch in chunk_coordinates(files, view, staged)  # type: ignore[arg-type]
        for place in batch.tolist()
    ]
    assert sorted(listed) == sorted(expected)


def test_the_likeliest_manifest_is_opened_first() -> None:
    """Where extents overlap, a chunk that was put into a hole is found without opening what has the hole."""
    files = Files(CountingStorage(MemoryStorage()), ByteCache(1 << 20))
    large = _manifest_of([(0, n) for n in range(60) if n not in {7, 30, 31}], "0" * 20, files)
    small = _manifest_of([(0, 7), (0, 40 + 30)], "1" * 19 + "0", files)
    dense = _manifest_of([(0, 30), (0, 31)], "2" * 19 + "0", files)
    inventories = Inventory.of([large, small, dense], 2)
    storage = files.storage
    assert isinstance(storage, CountingStorage)
    for place, name in (((0, 30), "2" * 19 + "0"), ((0, 7), "1" * 19 + "0"), ((0, 8), "0" * 20)):
        storage.asked.clear()
        found = find_ref(files, 7, inventories, place)
        assert found is not None
        assert found.file == name
        assert storage.asked == [f"get_tail i/{name}.parquet"]
    assert find_ref(files, 7, inventories, (0, 65)) is None


# -- rows by arithmetic

BOX = ((0, 3), (10, 16_010))
"""Nearly three row groups: at least one has no other rows, those at the ends may."""


def _boxed(around: int) -> tuple[Files, InventoryEntry]:
    """Write a manifest of a full box, with so many rows of other arrays before it and behind it."""
    index = np.stack(np.meshgrid(*(np.arange(*side) for side in BOX), indexing="ij"), -1)
    box = coords.encode(index.reshape(-1, 2).astype(np.uint64))
    others = coords.encode(np.stack([np.zeros(around), np.arange(around)], 1).astype(np.uint64))
    count = len(box)
    ids = np.repeat(np.array([3, 7, 9]), [around, count, around])
    columns = {
        "array_id": from_numpy(ids.astype(np.uint32), pa.uint32()),
        "coord": pa.concat_arrays([others, box, others]),
        "chunk_file": from_values(["0" * 20] * len(ids), pa.string()),
        "offset": from_numpy(np.arange(len(ids)).astype(np.uint64), pa.uint64()),
        "length": from_numpy(np.ones(len(ids), np.uint64), pa.uint64()),
    }
    files = Files(MemoryStorage(), ByteCache(64 << 20))
    data = manifest.encode(chunk_table(columns, len(ids)), "1" * 20)
    files.storage.put(key_of(FileKind.MANIFEST, "1" * 20), data)
    return files, InventoryEntry(
        manifest="1" * 20, row=around, extent=BOX, flags=1, row_count=count, stored_bytes=count
    )


_in_box = st.tuples(*(st.integers(start, stop - 1) for start, stop in BOX))


@pytest.mark.parametrize("around", [0, 1, 5000])
def test_rows_of_a_full_box(around: int) -> None:
    """Each chunk's row is found by arithmetic, in row groups of its own and in shared ones."""
    files, entry = _boxed(around)
    inventories = Inventory.of([entry], 2)

    @settings(max_examples=60)
    @given(_in_box)
    def check(place: tuple[int, int]) -> None:
        found = find_ref(files, 7, inventories, place)
        assert found is not None
        assert found.offset == around + place[0] * 16_000 + place[1] - 10

    check()


@pytest.mark.parametrize("around", [20_000, 5000])
@pytest.mark.parametrize(
    ("extent", "row"),
    [
        (((0, 3), (9, 16_009)), 0),
        (((0, 2), (10, 24_010)), 0),
        (((10, 16_010), (0, 3)), 0),
        (((0, 3), (10, 16_009)), 1),
        (((0, 3), (10, 15_000)), 0),
        (((1, 4), (10, 16_010)), 0),
        (BOX, 16_384),
        (BOX, -16_384),
    ],
)
def test_a_box_that_the_rows_do_not_fill(around: int, extent: Any, row: int) -> None:
    """What a snapshot says of a box is compared with the manifest: never another chunk's row."""
    files, entry = _boxed(around)
    assert (
        find_ref(files, 7, Inventory.of([entry], 2), (2, 11)) is not None
    )  # now it is in the cache
    count = int(np.prod([stop - start for start, stop in extent]))
    wrong = replace(entry, extent=extent, row=max(entry.row + row, 0), row_count=count)
    inventories = Inventory.of([wrong], 2)
    errors = 0

    @settings(max_examples=60)
    @given(st.tuples(*(st.integers(start, stop - 1) for start, stop in extent)))
    def check(place: tuple[int, int]) -> None:
        nonlocal errors
        try:
            found = find_ref(files, 7, inventories, place)
        except CorruptFileError:
            errors += 1
            return
        assert found is not None
        assert found.offset == around + place[0] * 16_000 + place[1] - 10

    check()
    assert errors


# -- bounded memory

MANY = 1 << 20


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose array has a million references, with a hole in it."""
    place = tmp_path_factory.mktemp("many") / "r"
    repo = Repository.create(place, storage_settings=UNSYNCED)
    session = repo.writable_session("main")
    make_array(session.store, "a", (MANY,), chunks=(1,))
    make_array(session.store, "few", (3,), chunks=(1,))[...] = 1
    rows = np.flatnonzero(np.arange(MANY) != 1000)
    session.set_references(
        "/a",
        pa.table(
            {
                "index_0": pa.array(rows),
                "location": pa.array(["s3://far/file"]).take(pa.array(np.zeros(len(rows), "i8"))),
                "offset": pa.array(rows * 1000),
                "length": pa.array(np.full(len(rows), 1000)),
            }
        ),
    )
    session.commit("many")
    return place


@pytest.mark.parametrize("question", ["coordinates", "references", "keys", "names"])
def test_bulk_questions_stream(many: Path, question: str) -> None:
    """All of a million chunks pass by with some tens of megabytes in hand at any time."""
    session = Repository.open(many).readonly_session("main")
    store = session.store

    async def count(names: Any) -> int:
        total = 0
        async for _ in names:
            total += 1
        return total

    ways: dict[str, Callable[[], int]] = {
        "coordinates": lambda: sum(len(each) for each in session.chunk_coordinates("/a")),
        "references": lambda: sum(each.num_rows for each in session.chunk_references("/a")),
        "keys": lambda: asyncio.run(count(store.list_prefix("a/c/"))),
        "names": lambda: asyncio.run(count(store.list_dir("a"))) + MANY - 3,
    }
    gc.collect()
    pa.default_memory_pool().release_unused()
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    found = ways[question]()
    _, python = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == MANY - 1
    assert python < 48 << 20
    assert pa.total_allocated_bytes() - arrow < 16 << 20


def test_reading_everything_once_keeps_the_cache(many: Path) -> None:
    """What is wanted again stays in the cache while a large array is read from end to end."""
    repo, slow = opened(many)
    session = repo.readonly_session("main")
    view = session.get_array("/few")
    held = [session.find_chunk(view, (n,)) for n in range(3)]
    cache = repo._context.files.cache
    before = cache.size_bytes
    slow.asked.clear()
    assert sum(each.num_rows for each in session.chunk_references("/a")) == MANY - 1
    assert sum(len(each) for each in session.chunk_coordinates("/a")) == MANY - 1
    assert cache.size_bytes == before
    slow.asked.clear()
    assert [session.find_chunk(view, (n,)) for n in range(3)] == held
    assert slow.asked == []


def test_coordinates_decode_no_other_column(many: Path) -> None:
    """To tell where chunks are, only ids and coordinates are decoded."""
    session = Repository.open(many).readonly_session("main")
    files = session._context.files
    entry = session.get_array("/a").node.inventories[0]
    columns = ("array_id", "coord")
    table = next(
        files.scan_rows(
            entry.manifest,
            session.get_array("/a").node.id,
            entry.row,
            entry.row + 1,
            columns=columns,
        )
    )
    assert tuple(table.column_names) == columns
    assert table.num_rows == 1


_MEASURE = """
import ctypes, gc, json, sys
import numpy as np, pyarrow as pa
pa.set_memory_pool(pa.system_memory_pool())
from icechunk_arrow.core import coords
from icechunk_arrow.core.chunks import chunk_table
from icechunk_arrow.core.columns import from_numpy, from_values
from icechunk_arrow.engine.manifest_file import ManifestFile, RowGroup
from icechunk_arrow.formats import envelope, manifest
from icechunk_arrow.formats.layout import FileKind

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * 4096

count, files, repeat = map(int, sys.argv[1:])
random = np.random.default_rng(0)
index = np.stack([np.arange(count) // 256, np.arange(count) % 256], 1).astype(np.uint64)
names = [f"s3://bucket/some/folder/file-{n:06}.nc" for n in range(files)]
length = random.integers(1000, 9000, count).astype(np.uint64)
columns = {
    "array_id": from_numpy(np.full(count, 3, np.uint32), pa.uint32()),
    "coord": coords.encode(index),
    "chunk_file": from_values([names[n] for n in np.sort(random.integers(0, files, count))], pa.string()),
    "offset": from_numpy(np.cumsum(length), pa.uint64()),
    "length": from_numpy(length, pa.uint64()),
}
name = "0" * 20
data = manifest.encode(chunk_table(columns, count), name)
tail = data[-65536:] if len(data) > 1 << 20 else b""

def opened():
    sealed = envelope.open_seal(data, len(data), FileKind.MANIFEST, name)
    return ManifestFile(sealed, tail)

def rows():
    start, stop = first.sealed.byte_range(0, 0)
    made = RowGroup(first, 0, data[start:stop])
    made.coord_at(0)
    return made

first = opened()
rows()
found = {}
for make in (opened, rows):
    before = resident()
    kept = [make() for _ in range(repeat)]
    found[make.__name__] = [(resident() - before) / repeat, kept[0].size_bytes]
    del kept
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("count", "files", "repeat"), [(65_536, 100, 60), (65_536, 60_000, 60), (1 << 20, 10, 20)]
)
def test_the_cache_knows_what_it_holds(count: int, files: int, repeat: int) -> None:
    """Sizes that the cache counts with are within a third of what the process takes for the values."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(count), str(files), str(repeat)],
        capture_output=True,
        check=True,
        text=True,
    )
    for name, (true, said) in json.loads(done.stdout).items():
        assert said == pytest.approx(true, rel=0.34), name
