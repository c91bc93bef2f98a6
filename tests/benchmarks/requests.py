"""Requests that must wait for each other: a place with latency put in, which writes down what it is asked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import zarr

import icechunk_arrow
from tests.benchmarks.harness import print_line
from tests.faults.repositories import through
from tests.faults.storage_wrappers import WrappedStorage

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_arrow.storage.port import Storage
    from tests.benchmarks.harness import Bench

__all__ = ["cold_read"]

T = TypeVar("T")

LATENCY_SECONDS = 0.03
MOST_SEQUENTIAL = 6


@dataclass(frozen=True)
class _Request:
    name: str
    key: str
    began: float
    ended: float


class SlowStorage(WrappedStorage):
    """Answers like an object store: after a while, and many questions at once."""

    def __init__(self, inner: Storage, requests: list[_Request]) -> None:
        super().__init__(inner, fast=False)
        self._requests = requests

    def _run(self, operation: str, key: str, effect: Callable[[], T]) -> T:
        began = time.perf_counter()
        time.sleep(LATENCY_SECONDS)
        try:
            return effect()
        finally:
            self._requests.append(_Request(operation, key, began, time.perf_counter()))


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
        with through(partial(SlowStorage, requests=requests)):
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
