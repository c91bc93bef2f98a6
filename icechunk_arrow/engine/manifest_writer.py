"""Writing manifests before their commit: encoded and put in the background when there are many.

Owns the threads, how much waits for them, and what becomes of files when it goes wrong. Which rows stand
together in a manifest is decided by the caller.
"""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, Self

from msgspec import Struct

from icechunk_arrow.core.inventory import NO_INVENTORY, Inventory, describe
from icechunk_arrow.engine.plan import WrittenManifests
from icechunk_arrow.formats import manifest
from icechunk_arrow.formats.budget import DECODE_LIMIT_BYTES
from icechunk_arrow.formats.envelope import header_metadata
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.storage.forked_children import refuse_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from icechunk_arrow.core.boxes import Box
    from icechunk_arrow.engine.plan import ManifestToWrite
    from icechunk_arrow.storage.port import Storage

__all__ = ["ManifestWriter"]

_log = logging.getLogger(__name__)
_IN_FLIGHT = 4
"""So many tables wait or are encoded at a time: with manifests of 2**18 rows some 100 MB."""
_PUTTERS = 8
"""Threads where a put takes a while: encoded manifests are small, so many may be under way."""


_Result = tuple[Inventory, int]
"""Entries, and bytes."""


class _Given(NamedTuple):
    table: pa.Table
    ndims: Mapping[int, int]
    within: Mapping[int, Box] | None


class _Job(Struct, kw_only=True, eq=False):
    given: _Given | None
    """None as soon as another thread has it."""
    future: Future[_Result] | None = None
    """None as long as no thread has begun with it."""


class ManifestWriter:
    """Writes manifests that no snapshot names yet; for one thread, and for one turn.

    A single manifest is written on the caller's thread, or with ``hold_one`` only encoded. Two or more are
    encoded and put by a few threads, since Arrow and the compression let others run; the caller waits when
    too much is under way. As a context it discards what it wrote when its block fails.
    """

    def __init__(
        self,
        storage: Storage,
        new_id: Callable[[], str],
        *,
        workers: int = 2,
        hold_one: bool = False,
    ) -> None:
        self._hold_one = hold_one
        self._held: dict[str, bytes] = {}
        self._storage = storage
        self._new_id = new_id
        self._jobs: dict[str, _Job] = {}
        self._threads = workers if storage.capabilities.fast else max(workers, _PUTTERS)
        self._pool: ThreadPoolExecutor | None = None
        self._room = threading.Semaphore(max(_IN_FLIGHT, workers))
        self._stopped = False
        self._process = os.getpid()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()

    def write(
        self,
        table: pa.Table,
        ndims: Mapping[int, int],
        *,
        within: Mapping[int, Box] | None = None,
        name: str | None = None,
    ) -> str:
        """Write sorted rows of one or many arrays as one manifest, by and by, and give its id.

        ``within`` are extents that the rows of some arrays do not leave, where they are known, and ``name`` is the
        manifest's id where one was planned.

        Raises what went wrong with one that was given before, where that is known already.
        """
        refuse_child(self._process, "wrote manifests")
        if self._failure is not None:
            raise self._failure
        name = name or self._new_id()
        self._jobs[name] = _Job(given=_Given(table, ndims, within))
        if self._pool is not None:
            self._submit(self._pool, name)
        elif len(self._jobs) > 1:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="manifest")
            for waiting in [name for name, job in self._jobs.items() if job.future is None]:
                self._submit(self._pool, waiting)
        return name

    def write_planned(self, manifest: ManifestToWrite) -> None:
        """Write a manifest of a plan, as :meth:`write` does."""
        self.write(manifest.rows, manifest.ndims, within=manifest.within, name=manifest.name)

    def _submit(self, pool: ThreadPoolExecutor, name: str) -> None:
        self._room.acquire()
        job = self._jobs[name]
        held, job.given = [job.given], None
        job.future = pool.submit(self._in_thread, held, name)

    def _in_thread(self, held: list[_Given | None], name: str) -> _Result:
        """Encode and put; the table is let go as soon as it has become bytes."""
        try:
            try:
                if self._stopped:
                    return NO_INVENTORY, 0
                data, entries = _encode(held[0], name)
            finally:
                held.clear()
                self._room.release()
            return self._put(name, data, entries)
        except BaseException as error:
            self._failure = self._failure or error
            raise

    def _put(self, name: str, data: bytes, entries: Inventory) -> _Result:
        self._storage.put(key_of(FileKind.MANIFEST, name), data, header_metadata(FileKind.MANIFEST))
        return entries, len(data)

    def _result(self, name: str) -> _Result:
        """Wait for a manifest, or write it now."""
        refuse_child(self._process, "wrote manifests")
        job = self._jobs[name]
        if job.future is None:
            job.future = Future()
            try:
                data, entries = _encode(job.given, name)
                if self._hold_one:
                    self._held[name] = data
                    job.future.set_result((entries, len(data)))
                else:
                    job.future.set_result(self._put(name, data, entries))
            except BaseException as error:
                if not job.future.done():  # an interrupt may come when it has just been told
                    job.future.set_exception(error)
                raise
            job.given = None
        return job.future.result()

    def recall(self, name: str) -> pa.Table:
        """Give the rows of a manifest back, read from where it was written."""
        waiting = self._jobs[name].given
        if waiting is not None:
            return waiting.table
        self._result(name)
        key = key_of(FileKind.MANIFEST, name)
        return manifest.decode(self._storage.get(key, limit_bytes=DECODE_LIMIT_BYTES), name)

    def drop(self, names: Iterable[str]) -> None:
        """Delete manifests that others have taken the place of; what cannot be deleted is logged."""
        begun = []
        for name in names:
            if self._jobs[name].future is not None:
                self._result(name)
                begun.append(name)
            del self._jobs[name]
        self._delete(begun)

    def finish(self) -> WrittenManifests:
        """Wait for everything, and tell what there is; the first failure is raised."""
        entries = []
        sizes: dict[str, int] = {}
        for name in self._jobs:
            entry, sizes[name] = self._result(name)
            entries.append(entry)
        if self._pool is not None:
            self._pool.shutdown()
        return WrittenManifests(
            entries=Inventory.united(entries), sizes=sizes, held=dict(self._held)
        )

    def discard(self) -> None:
        """Stop, and delete what was written as far as possible; what cannot be deleted is logged."""
        if os.getpid() != self._process:  # its parent may be committing it
            return
        self._stopped = True
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        # also those that failed: a put whose answer was lost has written
        begun = [
            name
            for name, job in self._jobs.items()
            if job.future is not None and not job.future.cancelled()
        ]
        self._jobs.clear()
        self._delete(begun)

    def _delete(self, names: Sequence[str]) -> None:
        if not names:
            return
        try:
            self._storage.delete([key_of(FileKind.MANIFEST, name) for name in names])
        except Exception as error:  # noqa: BLE001  (files that nothing names do no harm)
            _log.warning(
                "%d manifests in %s that nothing names could not be deleted: %s",
                len(names),
                self._storage.url,
                error,
            )


def _encode(given: _Given | None, name: str) -> tuple[bytes, Inventory]:
    assert given is not None
    table, ndims, within = given
    return manifest.encode(table, name), describe(table, name, ndims, within)
