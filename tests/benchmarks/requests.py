"""Requests that must wait for each other: a place with latency put in, which writes down what it is asked."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa
import zarr

import icechunk_arrow
from icechunk_arrow.engine import opening
from icechunk_arrow.storage.memory import MemoryStorage
from icechunk_arrow.storage.port import Capabilities
from tests.benchmarks.harness import print_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icechunk_arrow.storage.port import ObjectInfo
    from tests.benchmarks.harness import Bench

__all__ = ["cold_read"]

LATENCY_SECONDS = 0.03
MOST_SEQUENTIAL = 6


@dataclass(frozen=True)
class _Request:
    name: str
    key: str
    began: float
    ended: float


class SlowStorage(MemoryStorage):
    """A memory place that answers like an object store: after a while, and many questions at once."""

    def __init__(self, name: str, requests: list[_Request]) -> None:
        super().__init__(name)
        self._inner = MemoryStorage(name)  # methods of one place may call each other
        self._requests = requests

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(create=True, replace=True, limited_listing=True, fast=False)

    def _late(self, name: str, key: str, ask: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        time.sleep(LATENCY_SECONDS)
        try:
            return ask()
        finally:
            self._requests.append(_Request(name, key, began, time.perf_counter()))

    def get(self, key: str) -> bytes:
        data: bytes = self._late("get", key, lambda: self._inner.get(key))
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data: bytes = self._late(
            "get_range", key, lambda: self._inner.get_range(key, start, length)
        )
        return data

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        found: tuple[bytes, int] = self._late(
            "get_tail", key, lambda: self._inner.get_tail(key, length)
        )
        return found

    def exists(self, key: str) -> bool:
        found: bool = self._late("exists", key, lambda: self._inner.exists(key))
        return found

    def list(self, prefix: str = "", *, limit: int | None = None) -> Iterator[ObjectInfo]:
        found: list[ObjectInfo] = self._late(
            "list", prefix, lambda: [*self._inner.list(prefix, limit=limit)]
        )
        return iter(found)


@contextmanager
def _slow(name: str, requests: list[_Request]) -> Iterator[None]:
    """Have repositories opened in a slow place: there is no URL for one."""
    slow = SlowStorage(name, requests)
    with mock.patch.object(opening, "open_storage", return_value=slow):
        yield


def _sequential(requests: list[_Request]) -> list[_Request]:
    """Find the longest chain of requests of which each began after the one before had ended."""
    chain: list[_Request] = []
    for request in sorted(requests, key=lambda each: each.ended):
        if not chain or request.began >= chain[-1].ended:
            chain.append(request)
    return chain


def _make(url: str, *, many: bool) -> None:
    repo = icechunk_arrow.Repository.create(url)
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(1 << 20, 256), chunks=(1, 256), dtype="i4", compressors=None
    )
    array[1000] = 7
    if many:
        count = 1 << 20
        rows = np.flatnonzero(np.arange(count) != 1000)
        lengths = np.random.default_rng(0).integers(1000, 9000, len(rows))
        table = pa.table(
            {
                "index_0": pa.array(rows),
                "index_1": pa.array(np.zeros(len(rows), np.int64)),
                "location": pa.array(["s3://bucket/one/file"]).take(
                    pa.array(np.zeros(len(rows), np.int64))
                ),
                "offset": pa.array(np.cumsum(lengths)),
                "length": pa.array(lengths),
            }
        )
        session.set_references("/a", table)
    session.commit("filled")
    for number in range(5):
        repo.writable_session("main").commit(f"empty {number}", allow_empty=True)


def cold_read(bench: Bench) -> None:
    """Repository.open, readonly_session and one chunk, where every request takes 30 ms.

    How many requests are made one after the other, and which: the longest chain without overlap. A small
    repository, whose files come with one request each, and one with a million references in one manifest.
    """
    for many in (False, True):
        name = f"benchmark-cold-{'large' if many else 'small'}"
        _make(f"memory://{name}", many=many)
        requests: list[_Request] = []
        with _slow(name, requests):
            began = time.perf_counter()
            repo = icechunk_arrow.Repository.open(f"memory://{name}")
            opened = len(requests)
            store = repo.readonly_session("main").store
            session = len(requests)
            values = zarr.open_array(store, path="a", mode="r")[1000]
            seconds = time.perf_counter() - began
        assert (np.asarray(values) == 7).all()
        chain = _sequential(requests)
        verdict = "reached" if len(chain) <= MOST_SEQUENTIAL else "MISSED"
        size = "1,048,576 chunks" if many else "one chunk"
        print(f"\ncold open and one chunk, {LATENCY_SECONDS * 1e3:.0f} ms latency, {size}")
        print_line(
            f"{len(chain)} requests one after the other of {len(requests)} in all "
            f"({opened} to open, {session - opened} for the session), aim {MOST_SEQUENTIAL}: {verdict}; "
            f"{seconds / LATENCY_SECONDS:.1f} latencies"
        )
        for request in sorted(requests, key=lambda each: each.began):
            mark = "*" if request in chain else " "
            at = (request.began - began) / LATENCY_SECONDS
            print_line(f"  {mark} at {at:4.1f} latencies: {request.name} {request.key}")
