"""Manifests that are written before their commit."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from icechunk_arrow import StorageError
from icechunk_arrow.core import coords
from icechunk_arrow.core.chunks import chunk_table
from icechunk_arrow.core.columns import from_numpy
from icechunk_arrow.core.ids import encode_id
from icechunk_arrow.engine import manifest_writer
from icechunk_arrow.engine.manifest_writer import ManifestWriter
from icechunk_arrow.formats import manifest
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.storage.memory import MemoryStorage
from tests.engine.bulk_place import manifest_names
from tests.faults.storage_wrappers import LosingStorage, WrappedStorage

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_arrow.storage.port import Storage


def rows(first: int, number: int = 5, array_id: int = 1) -> pa.Table:
    """References to some neighbouring chunks of one array."""
    index = np.arange(first, first + number, dtype=np.uint64).reshape(-1, 1)
    columns = {
        "array_id": from_numpy(np.full(number, array_id), pa.uint32()),
        "coord": coords.encode(index),
        "chunk_file": pa.array([f"s3://b/{i}" for i in range(number)]),
        "offset": from_numpy(index[:, 0], pa.uint64()),
        "length": from_numpy(index[:, 0], pa.uint64()),
    }
    return chunk_table(columns, number)


def writer_to(storage: Storage, **more: Any) -> ManifestWriter:
    """Make a writer whose manifests have ids in order."""
    ids = count()
    return ManifestWriter(storage, lambda: encode_id(next(ids).to_bytes(12, "big")), **more)


def threads() -> set[str]:
    """Names of running threads of writers."""
    return {t.name for t in threading.enumerate() if t.name.startswith("manifest")}


class Gate(WrappedStorage):
    """Lets nothing be put until it is opened, and remembers who put."""

    def __init__(self, inner: Storage, *, fast: bool = True) -> None:
        super().__init__(inner, fast=fast)
        self.open = threading.Event()
        self.by: list[str] = []
        self.waiting = 0

    def _run(self, operation: str, key: str, effect: Callable[[], Any]) -> Any:
        if operation == "put":
            self.by.append(threading.current_thread().name)
            self.waiting += 1
            assert self.open.wait(10)
        return effect()


def test_manifests_are_given_in_the_order_written() -> None:
    """Entries, by array and in order, and sizes tell of files that hold exactly the rows given."""
    storage = MemoryStorage()
    writer = writer_to(storage)
    tables = [rows(10 * i, array_id=1 + i % 2) for i in range(20)]
    names = [writer.write(table, {1: 1, 2: 1}) for table in tables]
    written = writer.finish()

    assert written.entries.names == tuple(names)
    assert written.entries.owners.tolist() == [1, 2] * 10
    extents = [((10 * i, 10 * i + 5),) for i in range(20)]
    assert [entry.extent for entry in written.entries] == extents
    assert written.held == {}
    for name, table in zip(names, tables, strict=True):
        data = storage.get(key_of(FileKind.MANIFEST, name))
        assert len(data) == written.sizes[name]
        assert manifest.decode(data, name).equals(table)
    assert threads() == set()


def test_one_manifest_of_several_arrays_needs_no_thread() -> None:
    """A single manifest is written on the caller's thread, and nothing at all is nothing."""
    gate = Gate(MemoryStorage())
    gate.open.set()
    assert writer_to(gate).finish().sizes == {}
    writer = writer_to(gate)
    name = writer.write(pa.concat_tables([rows(0), rows(3, array_id=7)]), {1: 1, 7: 1})
    assert gate.by == []
    written = writer.finish()

    assert gate.by == [threading.current_thread().name]
    assert written.entries.owners.tolist() == [1, 7]
    assert written.entries.rows.tolist() == [0, 5]
    assert list(written.sizes) == [name]


def test_a_single_manifest_can_be_held_back() -> None:
    """On request one manifest alone is encoded and not put; two are put as ever."""
    storage = MemoryStorage()
    writer = writer_to(storage, hold_one=True)
    name = writer.write(rows(0), {1: 1})
    written = writer.finish()
    assert manifest_names(storage) == []
    assert list(written.held) == list(written.sizes) == [name]
    assert len(written.held[name]) == written.sizes[name]
    assert manifest.decode(written.held[name], name).equals(rows(0))

    writer = writer_to(storage, hold_one=True)
    names = [writer.write(rows(10 * i), {1: 1}) for i in range(2)]
    assert writer.finish().held == {}
    assert sorted(manifest_names(storage)) == sorted(names)


def test_the_caller_waits_when_too_much_is_under_way() -> None:
    """No more than a few tables wait: whoever writes faster than the storage takes is held up."""
    gate = Gate(MemoryStorage())
    writer = writer_to(gate, workers=2)
    given = []

    def give() -> None:
        for i in range(20):
            writer.write(rows(10 * i), {1: 1})
            given.append(i)

    giver = threading.Thread(target=give)
    giver.start()
    giver.join(0.5)
    assert giver.is_alive()
    assert len(given) <= 8  # four tables wait, and two that are encoded are being put
    gate.open.set()
    giver.join(10)

    assert len(writer.finish().sizes) == 20


def test_a_slow_place_gets_many_requests_at_once() -> None:
    """Where a put takes a while more of them are under way than are encoded at a time."""
    gate = Gate(MemoryStorage(), fast=False)
    writer = writer_to(gate)
    for i in range(10):
        writer.write(rows(10 * i), {1: 1})
    for _ in range(200):
        if gate.waiting >= 8:
            break
        threading.Event().wait(0.02)
    assert gate.waiting == 8
    gate.open.set()

    assert len(writer.finish().sizes) == 10


@pytest.mark.parametrize("number", [1, 12])
def test_the_first_failure_is_raised_and_nothing_stays(number: int) -> None:
    """A put that fails, or whose answer is lost, is an error; discarding then leaves no file."""
    inner = MemoryStorage()
    for way in ("failed", "lost"):
        storage = LosingStorage(inner)
        storage.arm("put", way)
        writer = writer_to(storage)
        with pytest.raises(StorageError, match="no answer to put"):  # noqa: PT012  (either may raise)
            for i in range(number):
                writer.write(rows(10 * i), {1: 1})
            writer.finish()
        writer.discard()

        assert manifest_names(inner) == []
        assert threads() == set()


def test_discarding_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    """Files that cannot be deleted are logged and left; the error that led there stays the one raised."""
    inner = MemoryStorage()
    storage = LosingStorage(inner)
    writer = writer_to(storage)
    for i in range(5):
        writer.write(rows(10 * i), {1: 1})
    writer.finish()
    storage.arm("delete", "failed")
    with caplog.at_level(logging.WARNING):
        writer.discard()

    assert len(manifest_names(inner)) == 5
    assert "5 manifests" in caplog.text


def test_manifests_are_read_back_and_dropped() -> None:
    """A manifest can be had again, and one that is dropped is neither listed nor there."""
    storage = MemoryStorage()
    writer = writer_to(storage)
    only = writer.write(rows(0), {1: 1})
    assert writer.recall(only).equals(rows(0))
    names = [only, *(writer.write(rows(10 * i), {1: 1}) for i in range(1, 5))]
    assert writer.recall(names[2]).equals(rows(20))
    writer.drop(names[:3])
    written = writer.finish()

    assert written.entries.names == tuple(names[3:])
    assert sorted(written.sizes) == sorted(names[3:]) == sorted(manifest_names(storage))


def test_what_was_never_begun_is_dropped_without_a_trace() -> None:
    """A single manifest that is dropped was never written."""
    gate = Gate(MemoryStorage())
    gate.open.set()
    writer = writer_to(gate)
    writer.drop([writer.write(rows(0), {1: 1})])

    assert len(writer.finish().entries) == 0
    assert gate.by == []


def test_an_interrupt_right_after_a_manifest_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what the caller meets, and no error of a future that knew its result already."""

    class Interrupted(Future[Any]):
        def set_result(self, result: Any) -> None:
            super().set_result(result)
            raise KeyboardInterrupt

    monkeypatch.setattr(manifest_writer, "Future", Interrupted)
    writer = writer_to(MemoryStorage())
    writer.write(rows(0), {1: 1})
    with pytest.raises(KeyboardInterrupt):
        writer.finish()
