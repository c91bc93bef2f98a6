"""Garbage with HDF5 objects in it, and far HDF5 files: neither waits for the other for ever."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from icechunk_arrow.ingest.collecting import uncollected
from icechunk_arrow.ingest.hdf5 import Hdf5File
from icechunk_arrow.ingest.source import ScanOptions
from icechunk_arrow.storage.source_files import SourceFiles
from tests.ingest.files import weather_file
from tests.processes.children import fork
from tests.storage.web import Page, web

SECONDS = 60


class Circle:
    """Garbage that only a collection finds."""

    def __init__(self, held: Any) -> None:
        self.held = held
        self.me = self


def read_while_garbage_waits(path: str) -> None:
    """Read a far file, while each answer leaves circles with HDF5 objects, and any thread collects at once."""
    import h5py

    held = [h5py.h5p.create(h5py.h5p.DATASET_CREATE) for _ in range(200)]
    with web() as site:
        site.pages["/w.nc"] = Page(data=Path(path).read_bytes())

        class Leaving(list[Any]):
            """What was asked: noted before each answer."""

            def append(self, asked: Any) -> None:
                Circle(held.pop())
                super().append(asked)

        site.asked = Leaving()
        gc.collect()
        gc.set_threshold(1)
        options = ScanOptions()
        with Hdf5File.open(SourceFiles({}), options, f"{site.endpoint}/w.nc") as file:
            contents = file.contents()
            for name, variable in contents.variables.items():
                file.references(name)
                file.values(name, tuple(slice(0, n) for n in variable.shape))
        assert len(held) < 200
    assert gc.isenabled()


def test_a_far_file_is_read_while_garbage_waits(tmp_path: Path) -> None:
    """In a process of its own, which a loop and a reader that wait for each other would keep for ever."""
    path = weather_file(tmp_path / "w.nc", days=400)
    code = f"from {__name__} import read_while_garbage_waits as go; go({str(path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        timeout=SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_was_switched_off_before_stays_off() -> None:
    """And what was on is on again, blocks within blocks."""
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_block_waits_for_a_collection_under_way() -> None:
    """It may have found an object for which it needs the lock that the block is about to take."""
    entered, freed = threading.Event(), threading.Event()

    class Slow:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            entered.set()
            assert freed.wait(SECONDS)

    gc.disable()  # nobody else is to find it
    try:
        Slow()
        collecting = threading.Thread(target=gc.collect)
        collecting.start()
        assert entered.wait(SECONDS)
    finally:
        gc.enable()
    inside = threading.Event()

    def block() -> None:
        with uncollected():
            inside.set()

    waiting = threading.Thread(target=block)
    waiting.start()
    assert not inside.wait(0.1)
    freed.set()
    assert inside.wait(SECONDS)
    waiting.join()
    collecting.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_collects_again(tmp_path: Path) -> None:
    """Also one that is forked within a block, by another thread."""

    def life() -> None:
        assert gc.isenabled()

    with uncollected():
        child = fork(tmp_path, "a child", life)
    child.wait()
