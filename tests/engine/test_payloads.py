"""Bytes that wait in memory: where they go, that they go there once, and what a failure leaves."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow import ConflictDetector, Repository, RepositoryConfig, StorageError
from icechunk_arrow.core.chunks import ChunkRef, chunk_table, ref_of_row
from icechunk_arrow.core.ids import encode_id
from icechunk_arrow.engine.payloads import PayloadWriter
from icechunk_arrow.formats.layout import chunk_key
from icechunk_arrow.storage.memory import MemoryStorage
from tests.faults.repositories import array_document, payload, through
from tests.faults.storage_wrappers import LosingStorage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from icechunk_arrow import Session
    from icechunk_arrow.storage.port import Storage

SIZE = 10_000
FEW, MANY = 30, 300
"""So few chunks of that size are written before their commit is planned, so many beside that."""


@pytest.fixture
def storage() -> Iterator[LosingStorage]:
    """The storage of the repositories that a test opens, which loses what it is told to."""
    losing = LosingStorage(MemoryStorage(secrets.token_hex(6)))
    with through(lambda _: losing):
        Repository.create("memory://here")
        yield losing


def written(first: int, count: int) -> Session:
    """A session with chunks that wait in memory."""
    session = Repository.open("memory://here").writable_session("main")
    if session.find_node("/a") is None:
        session.set_document("/a", array_document(2 * MANY))
    for index in range(first, first + count):
        session.write_chunk("/a", (index,), payload(f"{index}", SIZE))
    return session


def check(count: int) -> None:
    """Check that the first so many chunks are there, for a reader, and no more."""
    session = Repository.open("memory://here").readonly_session("main")
    view = session.get_array("/a")
    for index in range(count):
        found = session.find_chunk(view, (index,))
        assert found is not None
        assert session.read_chunk(found, 0, SIZE) == payload(f"{index}", SIZE)
    assert session.find_chunk(view, (count,)) is None


def sizes(storage: Storage) -> list[int]:
    """How large the chunk files are."""
    return [found.size_bytes for found in storage.list("c/")]


@given(
    st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=30),
    st.integers(1, 60),
    st.booleans(),
    st.booleans(),
)
def test_where_payloads_stand(
    payloads: list[bytes], file_size: int, checked: bool, aside: bool
) -> None:
    """One after the other; a file ends with the payload that fills it."""
    place = MemoryStorage(secrets.token_hex(6))
    names = map(encode_id, (bytes([number]) * 12 for number in range(100)))
    config = RepositoryConfig(
        chunk_file_size_bytes=file_size, packed_chunk_threshold_bytes=0, checksum_chunks=checked
    )
    placed = PayloadWriter(place, lambda: config, lambda: next(names)).start(payloads, aside=aside)
    placed.written.result()
    files: list[bytes] = [b""]
    expected = []
    for data in payloads:
        if len(files[-1]) >= file_size:
            files.append(b"")
        check = google_crc32c.value(data) if checked else None
        name = encode_id(bytes([len(files) - 1]) * 12)
        expected.append(ChunkRef(None, name, len(files[-1]), len(data), None, None, check))
        files[-1] += data

    assert list(placed.refs()) == expected
    table = chunk_table(placed.columns(), len(payloads))
    assert [ref_of_row(table, row) for row in range(len(payloads))] == expected
    assert [place.get(chunk_key(name)) for name in placed.names] == files


@pytest.mark.parametrize("count", [FEW, MANY])
def test_what_could_not_be_written_is_written_by_the_next_try(
    storage: LosingStorage, count: int
) -> None:
    """Nothing is committed without its bytes, and nothing is lost."""
    session = written(0, count)
    before = Repository.open("memory://here").lookup_branch("main")
    storage.arm("put", "failed", "c/")
    with pytest.raises(StorageError, match="no answer to put c/"):
        session.commit("first try")

    assert Repository.open("memory://here").lookup_branch("main") == before
    assert session.has_uncommitted_changes
    session.commit("second try")
    check(count)
    assert sizes(storage) == [SIZE * count]


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("key", ["i/", "t/", "s/"])
def test_what_is_written_is_not_written_again(storage: LosingStorage, count: int, key: str) -> None:
    """A commit that failed for another reason has put its bytes where the next try finds them."""
    session = written(0, count)
    storage.arm("put", "failed", key)
    with pytest.raises(StorageError, match="no answer to put"):
        session.commit("first try")

    assert sizes(storage) == [SIZE * count]
    session.commit("second try")
    check(count)
    assert sizes(storage) == [SIZE * count]


@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_lost_race_costs_no_second_file(storage: LosingStorage, count: int) -> None:
    """Who comes second is put on top of the first with the bytes that are there."""
    late = written(0, 0)
    late.commit("the array")
    late, early = written(0, count), written(count, count)
    early.commit("early")
    late.commit("late", rebase_with=ConflictDetector())

    check(2 * count)
    assert sizes(storage) == [SIZE * count] * 2


def test_bytes_that_are_overwritten_are_not_written(tmp_path: Path) -> None:
    """What counts towards a chunk file is what waits, not what was ever given."""
    size = 100 * SIZE
    config = RepositoryConfig(chunk_file_size_bytes=size, packed_chunk_threshold_bytes=size)
    session = Repository.create(tmp_path, config=config).writable_session("main")
    session.set_document("/a", array_document(10))
    for number in range(400):
        session.write_chunk("/a", (number % 10,), payload(f"{number}", SIZE))

    assert not (tmp_path / "c").exists()
    session.set_document("/a", array_document(4))
    session.delete_chunk("/a", (0,))
    session.commit("what is left")
    [path] = (tmp_path / "c").iterdir()
    assert path.read_bytes() == b"".join(payload(f"{390 + number}", SIZE) for number in (1, 2, 3))
