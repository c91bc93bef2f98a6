"""From chunk bytes to chunk files: inline, gathered with others, or a file each.

Owns the size decisions and the shape of a chunk file (payloads one after the other, in the order of array
and coordinate). Does not know sessions: it is handed payloads and gives references.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
import pyarrow as pa

from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.core.columns import from_numpy, from_values, indices
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats.layout import chunk_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from icechunk_arrow.engine.config import RepositoryConfig
    from icechunk_arrow.storage.port import Storage

__all__ = ["PayloadWriter", "PlacedPayloads"]

_MANY_BYTES = 1 << 20
"""From so many on a file is written beside the planning of its commit, wherever it lies."""


class PayloadWriter:
    """Writes chunk bytes into the repository's storage."""

    def __init__(
        self, storage: Storage, config: RepositoryConfig, new_id: Callable[[], str]
    ) -> None:
        self._storage = storage
        self._config = config
        self._new_id = new_id

    def waits(self, size_bytes: int) -> bool:
        """Whether a chunk of this size waits in memory for others, or for the manifest."""
        return (
            size_bytes <= self._config.inline_chunk_threshold_bytes
            or size_bytes < self._config.packed_chunk_threshold_bytes
        )

    def is_inline(self, size_bytes: int) -> bool:
        """Whether a chunk of this size stands in the manifest."""
        return size_bytes <= self._config.inline_chunk_threshold_bytes

    def waiting(self, staged: Iterable[object]) -> list[bool]:
        """Tell which of what is staged of chunks are bytes that wait to be gathered into chunk files."""
        limit = self.inline_limit
        return [isinstance(each, bytes) and len(each) > limit for each in staged]

    @property
    def inline_limit(self) -> int:
        """Bytes of a chunk that stands in the manifest, at most."""
        return self._config.inline_chunk_threshold_bytes

    @property
    def packed_limit(self) -> int:
        """Chunks from so many bytes on have a file each."""
        return self._config.packed_chunk_threshold_bytes

    @property
    def file_size(self) -> int:
        """About so many bytes of small chunks make a file."""
        return self._config.chunk_file_size_bytes

    def write_file(self, data: bytes | memoryview) -> str:
        """Write a file of chunks that stand one behind the other, and give its name."""
        name = self._new_id()
        self._storage.put(chunk_key(name), data)
        return name

    def checksums(self, data: pa.Array, chosen: npt.NDArray[np.bool_]) -> dict[str, pa.Array]:
        """Give the checksums of some payloads, where they are stored at all, as a column."""
        if not self._config.checksum_chunks:
            return {}
        found = np.zeros(len(data), np.uint32)
        for row in np.flatnonzero(chosen).tolist():
            found[row] = google_crc32c.value(data[row].as_py())
        return {"crc32c": from_numpy(found, pa.uint32(), chosen)}

    def write_one(self, data: bytes | memoryview) -> ChunkRef:
        """Write a chunk as a file of its own."""
        name = self._new_id()
        self._storage.put(chunk_key(name), data)
        return ChunkRef(file=name, length=len(data), crc32c=self._crc(data))

    def _crc(self, data: bytes | memoryview) -> int | None:
        return google_crc32c.value(bytes(data)) if self._config.checksum_chunks else None

    def check_crc(self, ref: ChunkRef, data: bytes) -> None:
        """Compare a chunk's bytes with the checksum that was stored for them."""
        if google_crc32c.value(data) != ref.crc32c:
            raise CorruptFileError(
                f"c/{ref.file} is damaged: the chunk of {ref.length} bytes at {ref.offset} does not "
                f"match its checksum. Restore the file from a copy, or open an earlier snapshot.",
                key=f"c/{ref.file}",
            )

    def start(self, payloads: Sequence[bytes], *, aside: bool) -> PlacedPayloads:
        """Place payloads in chunk files, in order, and write these: now, or on a thread where that pays."""
        lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
        ends = np.cumsum(lengths)
        stops = _file_stops(ends, self._config.chunk_file_size_bytes)
        starts = [0, *stops[:-1]]
        counts = np.subtract(stops, starts)
        names = [self._new_id() for _ in stops]
        files = [(name, payloads[a:b]) for name, a, b in zip(names, starts, stops, strict=True)]
        aside &= not self._storage.capabilities.fast or int(ends[-1]) >= _MANY_BYTES
        written = _begin(partial(self._write_files, files, sync=aside), aside=aside)
        checks = None
        if self._config.checksum_chunks:
            checks = np.fromiter(map(google_crc32c.value, payloads), np.uint32, len(payloads))
        begins = ends - lengths
        return PlacedPayloads(
            names=names,
            numbers=np.repeat(np.arange(len(names)), counts),
            offsets=begins - np.repeat(begins[starts], counts),
            lengths=lengths,
            checks=checks,
            written=written,
        )

    def _write_files(self, files: Iterable[tuple[str, Sequence[bytes]]], *, sync: bool) -> None:
        for name, payloads in files:
            self._storage.put(chunk_key(name), payloads)
        if sync:  # on a thread of its own this costs the commit nothing
            self._storage.sync()


def _file_stops(ends: npt.NDArray[np.int64], file_size: int) -> list[int]:
    """Cut payloads, of which the running total is given, into files: each ends with the one that fills it."""
    stops: list[int] = []
    done = 0
    while len(ends) > (stops[-1] if stops else 0):
        stop = int(ends.searchsorted(done + file_size)) + 1
        stops.append(min(stop, len(ends)))
        done = int(ends[stops[-1] - 1])
    return stops


def _begin(write: Callable[[], None], *, aside: bool) -> Future[None]:
    """Write now, or on a thread beside this one."""
    if aside:
        pool = ThreadPoolExecutor(1, "chunk-files")
        try:
            return pool.submit(write)
        finally:
            pool.shutdown(wait=False)
    write()
    done: Future[None] = Future()
    done.set_result(None)
    return done


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedPayloads:
    """Payloads of which is known where they will stand, while their chunk files are being written."""

    names: Sequence[str]
    """The chunk files."""
    numbers: npt.NDArray[np.int64]
    """Which of the files each payload is in."""
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    checks: npt.NDArray[np.uint32] | None
    written: Future[None]
    """Done when all files are written; says what went wrong."""

    def columns(self) -> dict[str, pa.Array]:
        """Give the references as columns."""
        found = {
            "chunk_file": from_values(self.names, pa.string()).take(indices(self.numbers)),
            "offset": from_numpy(self.offsets.astype(np.uint64), pa.uint64()),
            "length": from_numpy(self.lengths.astype(np.uint64), pa.uint64()),
        }
        if self.checks is not None:
            found["crc32c"] = from_numpy(self.checks, pa.uint32())
        return found

    def refs(self) -> Iterator[ChunkRef]:
        """Give the reference of each payload."""
        files = map(self.names.__getitem__, self.numbers.tolist())
        checks = repeat(None) if self.checks is None else self.checks.tolist()
        none = repeat(None)
        offsets, lengths = self.offsets.tolist(), self.lengths.tolist()
        return map(ChunkRef, none, files, offsets, lengths, none, none, checks)
