"""A child that is forked in the middle of a thread's work, and goes on with it, takes nothing from its parent."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from icechunk_arrow.core.ids import encode_id
from icechunk_arrow.engine.manifest_writer import ManifestWriter
from icechunk_arrow.engine.sorting import KeyedRows, Spill
from icechunk_arrow.errors import StorageError
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.storage.open import open_storage
from icechunk_arrow.storage.settings import StorageSettings
from tests.engine.test_manifest_writer import rows
from tests.processes.children import fork, fork_and_go_on, new_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def refused_in_child(folder: Path, goes_on: Callable[[], object]) -> None:
    """Have a child go on, and see that an error of ours stops it."""

    def life() -> None:
        with pytest.raises(StorageError):
            goes_on()

    fork(folder, "a child that goes on", life).wait()


@pytest.mark.parametrize("number", [1, 3])
def test_manifests_stay_that_a_parent_wrote(tmp_path: Path, number: int) -> None:
    """What a failing block deletes was written by its own process."""
    storage = open_storage(tmp_path / "r")
    ids = count()
    writer = ManifestWriter(storage, lambda: encode_id(next(ids).to_bytes(12, "big")))
    with writer:
        names = [writer.write(rows(5 * n), {1: 1}) for n in range(number)]
        entries = writer.finish().entries

        def fail() -> None:
            with writer:
                raise StorageError("it goes wrong there")

        refused_in_child(tmp_path, fail)
        refused_in_child(tmp_path, lambda: writer.write(rows(100), {1: 1}))
        refused_in_child(tmp_path, lambda: writer.drop(names))
    assert len(entries) == number
    assert all(storage.exists(key_of(FileKind.MANIFEST, name)) for name in names)


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_has_what_its_writer_wrote(tmp_path: Path, durable: bool) -> None:
    """Both have the same place in an open file: only one of them goes on writing, and it stays there."""
    storage = open_storage(tmp_path / "r", settings=StorageSettings(durable=durable))
    children = []

    def pieces() -> Iterator[bytes]:
        yield b"a" * (1 << 19)  # more than is gathered: it is written before the next is asked for
        child = fork_and_go_on(new_log(tmp_path), "a child that goes on")
        if child is not None:
            child.wait()
            children.append(child)
        yield b"b" * 10

    parent = os.getpid()
    try:
        storage.put("i/file", pieces())
    except StorageError:
        if os.getpid() == parent:
            raise
        os._exit(0)
    finally:
        if os.getpid() != parent:
            os._exit(1)
    assert len(children) == 1
    assert storage.get("i/file") == b"a" * (1 << 19) + b"b" * 10


def test_sorted_runs_are_a_parent_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child neither writes between them nor moves the place at which its parent reads."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    spill = Spill(2)
    columns = pa.RecordBatch.from_arrays([pa.array(range(5))], names=["n"])
    given = KeyedRows(
        columns=columns, keys=np.arange(5, dtype=np.uint64), numbers=np.arange(5, dtype=np.int64)
    )
    places = spill.write(given)
    refused_in_child(tmp_path, lambda: spill.write(given))
    refused_in_child(tmp_path, lambda: list(spill.read(places)))
    found = [row for part in spill.read(places) for row in part.columns.column(0).to_pylist()]
    assert found == list(range(5))
    spill.close()
