"""From chunk bytes to chunk files: inline, gathered with others, or a file each.

Owns the size decisions and the shape of a chunk file (payloads one after the other, in the order of array
and coordinate). Does not know sessions: it is handed payloads and gives references.
"""

from __future__ import annotations

from itertools import accumulate, repeat
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
import pyarrow as pa

from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.core.columns import from_numpy
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats.layout import chunk_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from icechunk_arrow.engine.config import RepositoryConfig
    from icechunk_arrow.storage.port import Storage

__all__ = ["PayloadWriter", "Pending"]

Place = tuple[int, bytes]
"""An array's id and an encoded coordinate."""


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

    def write_many(self, payloads: Sequence[bytes]) -> Iterator[list[ChunkRef]]:
        """Write payloads into chunk files, in order; give the references of each file once it is written."""
        batch: list[bytes] = []
        size_bytes = 0
        for data in payloads:
            batch.append(data)
            size_bytes += len(data)
            if size_bytes >= self._config.chunk_file_size_bytes:
                yield self._write_batch(batch)
                batch, size_bytes = [], 0
        if batch:
            yield self._write_batch(batch)

    def _write_batch(self, batch: list[bytes]) -> list[ChunkRef]:
        name = self._new_id()
        self._storage.put(chunk_key(name), batch)
        lengths = list(map(len, batch))
        offsets = accumulate(lengths[:-1], initial=0)
        none = repeat(None)
        checks = map(self._crc, batch)
        return list(map(ChunkRef, none, repeat(name), offsets, lengths, none, none, checks))


class Pending:
    """Payloads that wait in memory to be gathered into chunk files; not safe for threads by itself."""

    def __init__(self, writer: PayloadWriter, limit_bytes: int) -> None:
        self._writer = writer
        self._limit_bytes = limit_bytes
        self._payloads: dict[Place, bytes] = {}
        self.size_bytes = 0

    def __contains__(self, place: Place) -> bool:
        return place in self._payloads

    @property
    def is_full(self) -> bool:
        """Whether there is enough for a chunk file."""
        return self.size_bytes >= self._limit_bytes

    def add(self, place: Place, payload: bytes) -> None:
        """Let a payload wait."""
        self.drop(place)
        self._payloads[place] = payload
        self.size_bytes += len(payload)

    def drop(self, place: Place) -> None:
        """Forget a payload that is overwritten or deleted before it was written."""
        payload = self._payloads.pop(place, None)
        if payload is not None:
            self.size_bytes -= len(payload)

    def drop_if(self, gone: Callable[[Place], bool]) -> None:
        """Forget all payloads of which this is true."""
        for place in [place for place in self._payloads if gone(place)]:
            self.drop(place)

    def write(self) -> Iterator[Iterator[tuple[Place, bytes, ChunkRef]]]:
        """Write everything that waits; give the payloads of each file with their references."""
        places = sorted(self._payloads)
        start = 0
        for refs in self._writer.write_many([self._payloads[place] for place in places]):
            written = places[start : start + len(refs)]
            payloads = list(map(self._payloads.pop, written))
            self.size_bytes -= sum(map(len, payloads))
            start += len(refs)
            yield zip(written, payloads, refs, strict=True)
