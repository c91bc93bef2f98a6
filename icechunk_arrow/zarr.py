"""The Zarr store over a session: zarr's interface, asynchronous and synchronous.

The only asynchronous code of the package. What is at hand (memory, local disk, small things) is answered on
the spot; everything else runs in a pool of threads, so that many requests to an object store are in flight.
What one turn of the event loop asks for there is read jointly: neighbours in a file come with one request.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from zarr.abc.store import (
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype

from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.core.columns import from_numpy, from_values
from icechunk_arrow.core.keys import node_path
from icechunk_arrow.core.locations import is_far
from icechunk_arrow.engine.joint_reads import JointReads
from icechunk_arrow.engine.keyspace import Keyspace
from icechunk_arrow.engine.listing import BATCH_ROWS
from icechunk_arrow.engine.virtual import check_location
from icechunk_arrow.errors import InvalidInputError, NotAuthorizedError, ReadOnlyError
from icechunk_arrow.storage.forked_children import renew_in_forks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from datetime import datetime

    import numpy.typing as npt
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import BufferPrototype

    from icechunk_arrow.engine.keyspace import Found
    from icechunk_arrow.engine.session import BaseSession

__all__ = ["IcechunkStore", "VirtualChunkSpec"]

_SMALL_BYTES = 1 << 17
"""Up to this size a read from a fast place is quicker than handing it to another thread."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualChunkSpec:
    """One virtual chunk, for :meth:`IcechunkStore.set_virtual_refs`."""

    index: Sequence[int]
    location: str
    offset: int
    length: int
    etag_checksum: str | None = None
    last_updated_at_checksum: datetime | None = None


def _whole(size_bytes: int) -> tuple[int, int]:
    return 0, size_bytes


def _bounds(byte_range: ByteRequest | None) -> Callable[[int], tuple[int, int]]:
    """Turn zarr's ways to say which bytes into one."""
    match byte_range:
        case None:
            return _whole
        case RangeByteRequest(start, end):
            return lambda size: (min(start, size), min(end, size))
        case OffsetByteRequest(offset):
            return lambda size: (min(offset, size), size)
        case SuffixByteRequest(suffix):
            return lambda size: (max(size - suffix, 0), size)
    raise InvalidInputError(f"Unexpected byte_range, got {byte_range}.")


def _micros(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise InvalidInputError(f"the time {moment} has no zone; give one, such as datetime.UTC")
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


class IcechunkStore(Store):
    """A Zarr v3 store: what a session reads and writes, by key.

    Get one as ``session.store``. It works wherever zarr takes a store::

        group = zarr.open_group(session.store)
        dataset = xarray.open_zarr(session.store, consolidated=False)
    """

    supports_writes: bool = True
    supports_deletes: bool = True
    supports_partial_writes: bool = False  # type: ignore[assignment]
    supports_listing: bool = True
    supports_consolidated_metadata: bool = False

    def __init__(self, session: BaseSession, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self._session = session
        self._keys = Keyspace(session)
        storage = session._context.storage  # noqa: SLF001 -- the store is the session's other face
        self._fast = storage.capabilities.fast
        settings = session._context.storage_settings  # noqa: SLF001
        self._max_concurrency = settings.max_concurrency
        access = session._context.access  # noqa: SLF001
        self._sync = self._fast and not any(map(is_far, access.prefixes))
        self._pool: ThreadPoolExecutor | None = None
        self._joint_reads: WeakKeyDictionary[asyncio.AbstractEventLoop, JointReads] = (
            WeakKeyDictionary()
        )
        renew_in_forks(self)

    def renew_after_fork(self) -> None:
        """Forget threads that were not forked, and what they were asked for."""
        self._pool = None
        self._joint_reads = WeakKeyDictionary()

    @property
    def session(self) -> BaseSession:
        """The session that this store reads and writes."""
        return self._session

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IcechunkStore):
            return False
        mine, theirs = self._session, other._session
        if mine is theirs:
            return True
        return (
            mine.read_only
            and theirs.read_only
            and mine.snapshot_id == theirs.snapshot_id
            and mine.storage_url == theirs.storage_url
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<IcechunkStore {'read-only ' if self.read_only else ''}of {self._session!r}>"

    __str__ = __repr__

    def __getstate__(self) -> dict[str, Any]:
        if not self._session.read_only:
            raise ReadOnlyError(
                "the store of a writable session cannot be pickled: its changes would be lost in the "
                "copy. Commit first, pickle a read-only store, or write from threads of this process."
            )
        return {"session": self._session, "is_open": self._is_open}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["session"], read_only=True)  # type: ignore[misc]
        self._is_open = state["is_open"]

    def with_read_only(self, read_only: bool = False) -> IcechunkStore:
        """Give a store of the same session that only reads, or that may write."""
        if not read_only and self._session.read_only:
            raise ReadOnlyError(
                "this session is read-only; repo.writable_session(branch).store can be written"
            )
        return type(self)(self._session, read_only=read_only)

    def _check_writable(self) -> None:
        """Say as an error of ours what zarr says of stores that only read."""
        if self.read_only:
            raise ReadOnlyError(
                "store was opened in read-only mode and does not support writing; a store of "
                "repo.writable_session(branch) does"
            )

    # -- synchronous protocol

    @property
    def _supports_sync_io(self) -> bool:
        """Whether zarr should call the synchronous methods: not where each call may be a request."""
        return self._sync

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Read a key, or a part of it."""
        bounds = _bounds(byte_range)
        found = self._keys.find(key)
        if found is None:
            return None
        return _buffer(prototype, self._keys.read(found, bounds))

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write a key."""
        self._check_writable()
        self._keys.write(key, self._payload(value))

    def delete_sync(self, key: str) -> None:
        """Remove a key."""
        self._check_writable()
        self._keys.delete(key)

    def _payload(self, value: Buffer) -> bytes | memoryview:
        if type(value) is not cpu.Buffer and not isinstance(value, Buffer):
            raise TypeError(
                f"{type(self).__name__}.set(): `value` must be a Buffer instance. Got an instance of "
                f"{type(value)} instead."
            )
        if len(value) <= _SMALL_BYTES:  # kept or written at once: a copy is cheaper than a view
            return value.to_bytes()
        return np.ascontiguousarray(value.as_numpy_array()).view(np.uint8).data

    # -- asynchronous protocol

    async def _elsewhere(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.wrap_future(self._submit(function, *args))

    def _submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Have a function run in another thread."""
        if self._pool is None:
            workers = self._max_concurrency
            self._pool = ThreadPoolExecutor(workers, "icechunk_arrow")
        return self._pool.submit(function, *args)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Read a key, or a part of it."""
        if not self._is_open:
            await self._open()
        bounds = _bounds(byte_range)
        if not self._fast:
            data = await self._ask(partial(self._keys.find, key), bounds)
            return None if data is None else _buffer(prototype, data)
        found: Found | None = self._keys.find(key)
        if found is None:
            return None
        if not self._sync and _is_elsewhere(found):
            data = await self._ask(lambda: found, bounds)
            assert data is not None
            return _buffer(prototype, data)
        if found[1] <= _SMALL_BYTES:
            return _buffer(prototype, self._keys.read(found, bounds))
        return _buffer(prototype, await self._elsewhere(self._keys.read, found, bounds))

    async def _ask(
        self, look: Callable[[], Found | None], bounds: Callable[[int], tuple[int, int]]
    ) -> bytes | memoryview | None:
        """Read together with everything else that this turn of the event loop asks for."""
        loop = asyncio.get_running_loop()
        joint = self._joint_reads.get(loop)
        if joint is None:

            def later(seconds: float, then: Callable[[], None]) -> None:
                loop.call_soon_threadsafe(loop.call_later, seconds, then)

            joint = JointReads(self._keys.read_part, self._keys.part_to_fetch, self._submit, later)
            self._joint_reads[loop] = joint
            loop.call_soon(self._begin, loop)
        return await asyncio.wrap_future(joint.ask(look, bounds))

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._joint_reads.pop(loop).start()

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        """Read parts of many keys at once."""
        reads = (self.get(key, prototype, byte_range) for key, byte_range in key_ranges)
        return list(await asyncio.gather(*reads))

    async def _find(self, key: str) -> Found | None:
        """Find what is under a key; where requests take a while, in another thread."""
        if self._fast:
            return self._keys.find(key)
        return await self._elsewhere(self._keys.find, key)

    async def exists(self, key: str) -> bool:
        """Whether there is something under a key."""
        return await self._find(key) is not None

    async def getsize(self, key: str) -> int:
        """Size of what is under a key, without reading it."""
        found = await self._find(key)
        if found is None:
            raise FileNotFoundError(key)
        return int(found[1])

    async def set(self, key: str, value: Buffer) -> None:
        """Write a key; visible to others after a commit."""
        if not self._is_open:
            await self._open()
        self._check_writable()
        data = self._payload(value)
        if self._fast and len(data) <= _SMALL_BYTES:
            self._keys.write(key, data)
        else:
            await self._elsewhere(self._keys.write, key, data)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write a key that has nothing yet."""
        self._check_writable()
        if not await self.exists(key):
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        """Remove a key, if it is there."""
        self._check_writable()
        await self._elsewhere(self._keys.delete, key)

    async def delete_dir(self, prefix: str) -> None:
        """Remove all keys below a folder."""
        self._check_writable()
        await self._elsewhere(self._keys.delete_folder, prefix)

    async def list(self) -> AsyncIterator[str]:
        """Give all keys."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Give all keys that begin with a prefix."""
        async for key in self._streamed(self._keys.list_keys(prefix)):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Give the names directly below a folder."""
        async for name in self._streamed(self._keys.list_folder(prefix)):
            yield name

    async def _streamed(self, names: Iterator[str]) -> AsyncIterator[str]:
        while batch := await self._elsewhere(_some, names):
            for name in batch:
                yield name

    async def array_chunk_iterator(
        self, array_path: str, batch_size: int = BATCH_ROWS
    ) -> AsyncIterator[pa.RecordBatch]:
        """Give where all chunks of an array are, committed or not, in batches of at most so many rows.

        The columns are those of ``session.chunk_references``, in no promised order of rows.
        """
        path = node_path(array_path)
        batches = await self._elsewhere(self._session.chunk_references, path, batch_size)
        while (batch := await self._elsewhere(next, batches, None)) is not None:
            yield batch

    async def is_empty(self, prefix: str) -> bool:
        """Whether there is nothing below a folder."""
        folder = prefix if prefix == "" or prefix.endswith("/") else prefix + "/"
        return not await self._elsewhere(_some, self._keys.list_keys(folder), 1)

    def close(self) -> None:
        """Stop the threads; the session stays."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
        super().close()

    # -- virtual chunks

    def _may_point_to(self, location: str, *, validate: bool) -> str:
        check_location(location)
        if validate and not self._session.allows(location):
            raise NotAuthorizedError(
                f"{location!r} lies outside every URL prefix allowed here", location=location
            )
        return location

    def set_virtual_ref(
        self,
        key: str,
        location: str,
        *,
        offset: int,
        length: int,
        checksum: str | datetime | None = None,
        validate_container: bool = False,
    ) -> None:
        """Point one chunk, given by its Zarr key, at a byte range of a file that exists already.

        Parameters
        ----------
        key
            The chunk's key, such as ``temperature/c/0/1``.
        location
            An absolute URL. One of ``http`` or ``https`` is sent as it stands, so it is percent-encoded;
            elsewhere what follows the host is the file's name as it is, so it is not.
        offset, length
            The byte range.
        checksum
            The file's ETag, or the time after which it must not have been modified.
        validate_container
            Refuse a location that this session would not be allowed to read.
        """
        self._check_writable()
        self._may_point_to(location, validate=validate_container)
        _check_range(offset, length)
        etag = checksum if isinstance(checksum, str) else None
        moment = None if isinstance(checksum, str) else _micros(checksum)
        ref = ChunkRef(file=location, offset=offset, length=length, etag=etag, last_modified=moment)
        self._keys.point(key, ref)

    def set_virtual_refs(
        self,
        array_path: str,
        chunks: Sequence[VirtualChunkSpec],
        *,
        validate_containers: bool = False,
    ) -> None:
        """Point several chunks of an array at byte ranges; for many, ``session.set_references``."""
        self._check_writable()
        for chunk in chunks:
            self._may_point_to(chunk.location, validate=validate_containers)
        micros = [_micros(chunk.last_updated_at_checksum) for chunk in chunks]
        columns = {
            "index": from_values([list(chunk.index) for chunk in chunks], pa.list_(pa.int64())),
            "location": from_values([chunk.location for chunk in chunks], pa.string()),
            "offset": from_values([chunk.offset for chunk in chunks], pa.int64()),
            "length": from_values([chunk.length for chunk in chunks], pa.int64()),
            "etag": from_values([chunk.etag_checksum for chunk in chunks], pa.string()),
            "last_modified": from_values(micros, pa.timestamp("us", "UTC")),
        }
        self._session.set_references(array_path, pa.Table.from_pydict(columns))

    def set_virtual_refs_arr(
        self,
        array_path: str,
        chunk_grid_shape: Sequence[int],
        locations: Sequence[str],
        offsets: npt.NDArray[np.uint64],
        lengths: npt.NDArray[np.uint64],
        *,
        arr_offset: Sequence[int] | None = None,
        checksum: str | datetime | None = None,
        validate_containers: bool = False,
    ) -> None:
        """Point a box of chunks, in C order, at byte ranges; an empty location leaves a chunk out.

        ``arr_offset`` is where the box begins in the array's chunk grid; ``checksum`` counts for all.
        """
        self._check_writable()
        shape = tuple(chunk_grid_shape)
        count = int(np.prod(shape, dtype=np.int64))
        if not len(locations) == len(offsets) == len(lengths) == count:
            raise InvalidInputError(
                f"a grid of {shape} has {count} chunks, but there are {len(locations)} locations, "
                f"{len(offsets)} offsets and {len(lengths)} lengths"
            )
        start = np.array(arr_offset if arr_offset is not None else [0] * len(shape), np.int64)
        if len(start) != len(shape):
            raise InvalidInputError(f"arr_offset {arr_offset} has not {len(shape)} dimensions")
        chosen = np.flatnonzero(np.fromiter((bool(each) for each in locations), np.bool_, count))
        for location in {locations[i] for i in chosen.tolist()}:
            self._may_point_to(location, validate=validate_containers)
        index = np.stack(np.unravel_index(chosen, shape), axis=1) + start if shape else None
        columns: dict[str, pa.Array] = {
            "location": from_values([locations[i] for i in chosen.tolist()], pa.string()),
            "offset": from_numpy(np.asarray(offsets)[chosen].astype(np.int64), pa.int64()),
            "length": from_numpy(np.asarray(lengths)[chosen].astype(np.int64), pa.int64()),
        }
        for d in range(len(shape)):
            assert index is not None
            columns[f"index_{d}"] = from_numpy(index[:, d], pa.int64())
        if checksum is not None:
            name = "etag" if isinstance(checksum, str) else "last_modified"
            kind = pa.string() if isinstance(checksum, str) else pa.timestamp("us", "UTC")
            value = checksum if isinstance(checksum, str) else _micros(checksum)
            columns[name] = from_values([value] * len(chosen), kind)
        self._session.set_references(array_path, pa.Table.from_pydict(columns))


def _check_range(offset: int, length: int) -> None:
    if offset < 0 or length < 0 or offset + length >= 2**63:
        raise InvalidInputError(f"offset {offset} and length {length} are no range of a file")


def _buffer(prototype: BufferPrototype | None, data: bytes | memoryview) -> Buffer:
    chosen = default_buffer_prototype() if prototype is None else prototype
    return chosen.buffer.from_bytes(data)


def _is_elsewhere(found: Found) -> bool:
    """Whether bytes stand in a file that is a request away."""
    content = found[0]
    return isinstance(content, ChunkRef) and content.file is not None and is_far(content.file)


def _some(keys: Iterator[str], count: int = 1000) -> list[str]:
    """Take the next keys."""
    return list(islice(keys, count))
