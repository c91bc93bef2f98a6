"""What is changed in place: resizing, deleting, overwriting, threads; and what cannot be written."""

from __future__ import annotations

import importlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from zarr.core.buffer import cpu
from zarr.core.sync import sync

from icechunk_arrow import InvalidInputError, NodeNotFoundError, ReadOnlyError
from tests.conformance.places import document_of, keys_of, settled

if TYPE_CHECKING:
    from icechunk_arrow import Session
    from tests.conformance.places import Place

zarr: Any = importlib.import_module("zarr")  # typed, its arrays index to unions of everything


@pytest.mark.parametrize("when", range(8), ids=lambda when: f"commits {when:03b}")
def test_chunks_outside_a_smaller_shape_do_not_come_back(
    session: Session, memory: Place, when: int
) -> None:
    """Grown again, an array shows its fill value where it was cut, wherever commits lie between."""
    commits = [bool(when & bit) for bit in (4, 2, 1)]
    array = zarr.create_array(
        session.store, name="x", shape=(8, 8), chunks=(2, 2), dtype="i4", fill_value=-1
    )
    array[...] = np.arange(64).reshape(8, 8)
    session = settled(memory, session, committed=commits[0])
    zarr.open_array(session.store, path="x").resize((4, 6))
    session = settled(memory, session, committed=commits[1])
    assert keys_of(session.store, "x/c") == [f"x/c/{i}/{j}" for i in range(2) for j in range(3)]
    zarr.open_array(session.store, path="x").resize((8, 8))
    session = settled(memory, session, committed=commits[2])
    expected = np.full((8, 8), -1)
    expected[:4, :6] = np.arange(64).reshape(8, 8)[:4, :6]
    np.testing.assert_array_equal(zarr.open_array(session.store, path="x")[:], expected)
    assert keys_of(session.store, "x/c") == [f"x/c/{i}/{j}" for i in range(2) for j in range(3)]
    again = settled(memory, session, committed=True)
    np.testing.assert_array_equal(zarr.open_array(again.store, path="x")[:], expected)


def test_a_document_alone_resizes_without_zarr(session: Session, memory: Place) -> None:
    """Chunks vanish by the document's shape, even where nobody deletes them one by one."""
    array = zarr.create_array(session.store, shape=(6,), chunks=(1,), dtype="i4")
    array[...] = 5
    session = settled(memory, session, committed=True)
    document = document_of(session.store, "")
    for shape in (2, 6):
        changed = json.dumps({**document, "shape": [shape]}).encode()
        session.store.set_sync("zarr.json", cpu.Buffer.from_bytes(changed))
    assert keys_of(session.store, "c") == ["c/0", "c/1"]
    session = settled(memory, session, committed=True)
    assert zarr.open_array(session.store)[:].tolist() == [5, 5, 0, 0, 0, 0]


def test_appending(session: Session, memory: Place, committed: bool, pipeline: str) -> None:
    """append() lengthens along any axis, commit by commit."""
    expected = np.zeros((0, 3), "i4")
    zarr.create_array(session.store, name="x", shape=(0, 3), chunks=(2, 2), dtype="i4")
    for step in range(5):
        session = settled(memory, session, committed=committed)
        part = np.full((step + 1, 3), step, "i4")
        zarr.open_array(session.store, path="x").append(part)
        expected = np.concatenate([expected, part])
    zarr.open_array(session.store, path="x").append(np.full((15, 2), 9, "i4"), axis=1)
    expected = np.concatenate([expected, np.full((15, 2), 9, "i4")], axis=1)
    session = settled(memory, session, committed=committed)
    np.testing.assert_array_equal(zarr.open_array(session.store, path="x")[:], expected)


def test_deleting(session: Session, memory: Place, committed: bool) -> None:
    """Arrays, groups and single chunks go, and what is made in their place begins empty."""
    group = zarr.create_group(session.store)
    for name in ("a/b/x", "a/y", "ab"):
        group.create_array(name, shape=(4,), chunks=(2,), dtype="i4")[...] = 1
    session = settled(memory, session, committed=committed)
    session.store.delete_sync("ab/c/1")
    session = settled(memory, session, committed=committed)
    assert zarr.open_array(session.store, path="ab")[:].tolist() == [1, 1, 0, 0]
    del zarr.open_group(session.store)["a/b/x"]
    session = settled(memory, session, committed=committed)
    assert "a/b/x" not in zarr.open_group(session.store)
    del zarr.open_group(session.store)["a"]
    session = settled(memory, session, committed=committed)
    assert keys_of(session.store) == ["ab/c/0", "ab/zarr.json", "zarr.json"]
    again = zarr.create_array(session.store, name="a/y", shape=(4,), chunks=(2,), dtype="i4")
    assert again[:].tolist() == [0] * 4
    session = settled(memory, session, committed=True)
    assert zarr.open_array(session.store, path="a/y")[:].tolist() == [0] * 4
    sync(session.store.clear())
    session = settled(memory, session, committed=True)
    assert keys_of(session.store) == []


def test_overwriting_an_array_with_another(
    session: Session, memory: Place, committed: bool
) -> None:
    """Nothing of the old array shows through, whether type, shape, chunks or kind differ."""
    store = session.store
    zarr.create_array(store, name="x", shape=(6,), chunks=(2,), dtype="i4")[...] = 7
    for dtype, shape, chunks in (("i4", (6,), (2,)), ("f8", (6,), (2,)), ("f8", (4, 4), (2, 3))):
        session = settled(memory, session, committed=committed)
        array = zarr.create_array(
            session.store, name="x", shape=shape, chunks=chunks, dtype=dtype, overwrite=True
        )
        assert keys_of(session.store, "x/c") == []
        assert not array[...].any()
        array[...] = 3
    session = settled(memory, session, committed=committed)
    zarr.create_group(session.store, path="x", overwrite=True)
    session = settled(memory, session, committed=committed)
    assert keys_of(session.store, "x/") == ["x/zarr.json"]


def test_many_threads_share_a_session(place: Place, pipeline: str) -> None:
    """Threads that write and read one session at once lose nothing and see nothing of another."""
    place.create(inline_chunk_threshold_bytes=16, chunk_file_size_bytes=1 << 20)
    session = place.session()
    group = zarr.create_group(session.store)
    for name in ("inline", "packed"):
        chunk = 4 if name == "inline" else 400
        group.create_array(name, shape=(40, chunk), chunks=(1, chunk), dtype="u1", compressors=None)

    def work(row: int) -> bool:
        good = True
        for name in ("inline", "packed"):
            array = zarr.open_array(session.store, path=name)
            array[row] = row + 1
            good &= bool((array[row] == row + 1).all())
        zarr.create_array(session.store, name=f"own/{row}", shape=(1,), dtype="i4")[0] = row
        return good

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(work, range(40)))
    session.commit("by many threads")
    reader = place.open().readonly_session("main")
    expected = np.arange(1, 41, dtype="u1")[:, None]
    for name in ("inline", "packed"):
        found = zarr.open_array(reader.store, path=name, mode="r")
        np.testing.assert_array_equal(found[:], np.broadcast_to(expected, found.shape))
    with ThreadPoolExecutor(16) as threads:
        read = threads.map(
            lambda row: zarr.open_array(reader.store, path=f"own/{row}", mode="r")[0], range(40)
        )
        assert list(read) == list(range(40))


ODD_KEYS = (
    *("", "/", "foo", "x", "x/", "x//zarr.json", "/x/zarr.json", "x/zarr.json/", "x/c", "x/c/"),
    *("x/c/0/", "x/c//0", "x/c/00", "x/c/-1", "x/c/+1", "x/c/1.0", "x/c/9", "x/c/0/0", "x/0"),
    *("x/c/1e0", "x/c/٣", "x/C/0", "x/c/ 0", "x/c/99999999999999999999999", "x/.zarray", ".zgroup"),
    *("x/zarr.json/c/0", "../zarr.json", "x/../zarr.json", "./zarr.json", "a\0b/zarr.json", "c/0"),
    *("y/c/0", "xzarr.json", "x/c/0\n", "\ud800/zarr.json", "x/c/0/zarr.json", "q/zarr.json"),
)


@pytest.mark.parametrize("key", ODD_KEYS, ids=ascii)
def test_an_odd_key_is_absent_and_cannot_be_written(
    session: Session, memory: Place, committed: bool, key: str
) -> None:
    """Reading finds nothing, deleting does nothing, and writing says what is wrong with the key."""
    zarr.create_array(session.store, name="x", shape=(4,), chunks=(1,), dtype="u1")[...] = 1
    store = settled(memory, session, committed=committed).store
    before = keys_of(store)
    assert sync(store.get(key, cpu.buffer_prototype)) is None
    assert store.get_sync(key) is None
    assert not sync(store.exists(key))
    with pytest.raises(FileNotFoundError):
        sync(store.getsize(key))
    store.delete_sync(key)
    if key != "q/zarr.json":
        with pytest.raises((InvalidInputError, NodeNotFoundError)) as error:
            store.set_sync(key, cpu.Buffer.from_bytes(b'{"zarr_format":3,"node_type":"group"}'))
        assert len(str(error.value)) > 30
    assert keys_of(store) == before


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "JSON"),
        (b"\x00\xff", "JSON"),
        (b"[]", "object"),
        (b'{"zarr_format": 2}', "zarr_format must be 3"),
        (b'{"zarr_format": 3}', "node_type"),
        (b'{"zarr_format": 3, "node_type": "array"}', "shape"),
        (b'{"zarr_format": 3, "node_type": "group", "attributes": []}', "attributes"),
    ],
)
def test_what_is_no_document_is_refused(session: Session, content: bytes, reason: str) -> None:
    """Metadata that is not Zarr v3 is refused with the path and the fact, and nothing is changed."""
    with pytest.raises(InvalidInputError, match=f"'/x'.*{reason}"):
        session.store.set_sync("x/zarr.json", cpu.Buffer.from_bytes(content))
    assert not session.has_uncommitted_changes


def test_zarr_v2_is_refused(session: Session) -> None:
    """Asked for the older format, zarr gets an error that says which can be stored."""
    with pytest.raises(NodeNotFoundError, match="Zarr v3"):
        zarr.create_array(session.store, name="x", shape=(1,), dtype="u1", zarr_format=2)


def test_after_a_commit_the_store_only_reads(session: Session) -> None:
    """A session commits once: its store reads what was committed, and says how to write on."""
    array = zarr.create_array(session.store, shape=(2,), dtype="u1")
    array[...] = 4
    session.commit("done")
    assert zarr.open_array(session.store, mode="r")[:].tolist() == [4, 4]
    with pytest.raises(ReadOnlyError, match="writable_session"):
        array[...] = 5
    with pytest.raises(ReadOnlyError, match="writable_session"):
        session.store.delete_sync("c/0")
