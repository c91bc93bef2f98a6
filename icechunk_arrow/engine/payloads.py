"""From chunk bytes to chunk files: inline, gathered with others, or a file each.

Owns the size decisions and the shape of a chunk file (payloads one after the other, in the order of array
and coordinate). Does not know sessions: it is handed payloads and gives references.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from icechunk_arrow.core import checksums
from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.core.columns import from_numpy, from_values, indices
from icechunk_arrow.core.lazy import lazy
from icechunk_arrow.formats.layout import chunk_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from icechunk_arrow.engine.config import RepositoryConfig
    from icechunk_arrow.storage.port import Storage

__all__ = ["PayloadWriter", "PlacedPayloads", "Sealed"]

_MANY_BYTES = 1 << 20
"""From so many on a file is written beside the planning of its commit, wherever it lies."""


class PayloadWriter:
    """Writes chunk bytes into the repository's storage."""

    def __init__(
        self,
        storage: Storage,
        get_config: Callable[[], RepositoryConfig],
        new_id: Callable[[], str],
    ) -> None:
        self._storage = storage
        self._get_config = get_config
        self._new_id = new_id

    @lazy
    def _config(self) -> RepositoryConfig:
        """The settings, which are not asked for before something is written."""
        return self._get_config()

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

    def write_file(self, pieces: Iterable[bytes | memoryview]) -> str:
        """Write a file of chunks that stand one behind the other, and give its name."""
        name = self._new_id()
        self._storage.put(chunk_key(name), pieces)
        return name

    def sealed(self, payloads: Sequence[bytes | memoryview]) -> Sealed:
        """Form the checksums of payloads, where they are stored at all, and what stands behind each."""
        if not self._config.checksum_chunks:
            return _NOT_SEALED
        large = {
            row: _checked(payload)
            for row, payload in enumerate(payloads)
            if len(payload) > checksums.WHOLE_BYTES
        }
        if not large:
            return Sealed(np.fromiter(map(checksums.crc32c, payloads), np.uint32, len(payloads)))
        checked = [
            large[row] if row in large else _checked(payload)
            for row, payload in enumerate(payloads)
        ]
        crcs, _, own = zip(*checked, strict=True)
        return Sealed(
            np.array(crcs, np.uint32),
            {row: sums for row, (_, sums, _) in large.items()},
            np.array(own, np.uint32),
        )

    def write_one(self, data: bytes | memoryview) -> ChunkRef:
        """Write a chunk as a file of its own."""
        if not self._config.checksum_chunks:
            return ChunkRef(file=self.write_file([data]), length=len(data))
        if len(data) <= checksums.WHOLE_BYTES:
            crc = checksums.crc32c(data)
            return ChunkRef(file=self.write_file([data]), length=len(data), crc32c=crc)
        tally = checksums.Tally(data)
        file = self.write_file(tally)
        return ChunkRef(
            file=file, length=len(data), crc32c=tally.crc, sums_crc32c=tally.crc_of_sums
        )

    def start(self, payloads: Sequence[bytes], *, aside: bool) -> PlacedPayloads:
        """Place payloads in chunk files, in order, and write these: now, or on a thread where that pays."""
        sealed = self.sealed(payloads)
        lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
        stored = sealed.stored(lengths)
        ends = np.cumsum(stored)
        stops = _file_stops(ends, self._config.chunk_file_size_bytes)
        starts = [0, *stops[:-1]]
        counts = np.subtract(stops, starts)
        names = [self._new_id() for _ in stops]
        files = [
            (name, sealed.pieces(payloads, a, b))
            for name, a, b in zip(names, starts, stops, strict=True)
        ]
        aside &= not self._storage.capabilities.fast or int(ends[-1]) >= _MANY_BYTES
        written = _begin(partial(self._write_files, files, sync=aside), aside=aside)
        begins = ends - stored
        return PlacedPayloads(
            names=names,
            numbers=np.repeat(np.arange(len(names)), counts),
            offsets=begins - np.repeat(begins[starts], counts),
            lengths=lengths,
            sealed=sealed,
            written=written,
        )

    def _write_files(
        self, files: Iterable[tuple[str, Sequence[bytes | memoryview]]], *, sync: bool
    ) -> None:
        for name, payloads in files:
            self._storage.put(chunk_key(name), payloads)
        if sync:  # on a thread of its own this costs the commit nothing
            self._storage.sync()


def _checked(data: bytes | memoryview) -> tuple[int, bytes, int]:
    """Give a chunk's checksum, the sums of its blocks where it is large, and the checksum of these."""
    if len(data) <= checksums.WHOLE_BYTES:
        return checksums.crc32c(data), b"", 0
    sums = checksums.block_sums(data)
    stored = sums.tobytes()
    return checksums.of_whole(sums, len(data)), stored, checksums.crc32c(stored)


class Sealed(NamedTuple):
    """The checksums of payloads."""

    crcs: npt.NDArray[np.uint32] | None
    """Of each; None where they are not stored."""
    sums: Mapping[int, bytes] = {}
    """What stands behind the large ones, by their places."""
    sums_crcs: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
    """The checksum of that for each payload, where there are large ones."""

    def stored(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many bytes the payloads take in files, with what stands behind them."""
        if not self.sums:
            return lengths
        stored = lengths.copy()
        stored[list(self.sums)] += [len(sums) for sums in self.sums.values()]
        return stored

    def pieces(
        self, payloads: Sequence[bytes | memoryview], start: int, stop: int
    ) -> Sequence[bytes | memoryview]:
        """Give some payloads, each with what stands behind it."""
        if not self.sums:
            return payloads[start:stop]
        both = ((payloads[row], self.sums.get(row, b"")) for row in range(start, stop))
        return [piece for pair in both for piece in pair if piece]

    def columns(self) -> dict[str, pa.Array]:
        """Give the checksums as columns of references."""
        if self.crcs is None:
            return {}
        columns = {"crc32c": from_numpy(self.crcs, pa.uint32())}
        if self.sums:
            valid = np.zeros(len(self.crcs), np.bool_)
            valid[list(self.sums)] = True
            columns["sums_crc32c"] = from_numpy(self.sums_crcs, pa.uint32(), valid)
        return columns


_NOT_SEALED = Sealed(None)


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


class PlacedPayloads(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """Payloads of which is known where they will stand, while their chunk files are being written."""

    names: Sequence[str]
    """The chunk files."""
    numbers: npt.NDArray[np.int64]
    """Which of the files each payload is in."""
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    sealed: Sealed
    written: Future[None]
    """Done when all files are written; says what went wrong."""

    def columns(self) -> dict[str, pa.Array]:
        """Give the references as columns."""
        return {
            "chunk_file": from_values(self.names, pa.string()).take(indices(self.numbers)),
            "offset": from_numpy(self.offsets.astype(np.uint64), pa.uint64()),
            "length": from_numpy(self.lengths.astype(np.uint64), pa.uint64()),
            **self.sealed.columns(),
        }

    def refs(self) -> Iterator[ChunkRef]:
        """Give the reference of each payload."""
        files = map(self.names.__getitem__, self.numbers.tolist())
        crcs, sums, own = self.sealed
        none = repeat(None)
        checks = none if crcs is None else crcs.tolist()
        of_sums = (
            [sum_ if row in sums else None for row, sum_ in enumerate(own.tolist())]
            if sums
            else none
        )
        offsets, lengths = self.offsets.tolist(), self.lengths.tolist()
        return map(ChunkRef, none, files, offsets, lengths, none, none, checks, of_sums)
