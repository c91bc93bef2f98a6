"""Objects in this process's memory: the reference implementation of the protocol.

Owns the registry of named places. Promises what :mod:`icechunk_arrow.storage.port` promises, in
the plainest way; what it refuses (a name that is taken, a write in a forked child) it refuses
loudly, so that engine tests find mistakes here first.
"""

from __future__ import annotations

import os
import threading
from bisect import insort
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from icechunk_arrow.errors import (
    AlreadyExistsError,
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from icechunk_arrow.storage.answers import Part, micros_of
from icechunk_arrow.storage.chance import token
from icechunk_arrow.storage.clock import now
from icechunk_arrow.storage.forked_children import renew_in_forks, run_in_forks
from icechunk_arrow.storage.port import (
    Capabilities,
    ObjectInfo,
    Storage,
    check_key,
    check_range,
    check_size,
    content_token,
    joined,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from icechunk_arrow.storage.port import Token, Writable

_CAPABILITIES = Capabilities(create=True, replace=True, limited_listing=True, fast=True)
_PROCESS = token()
_FEW = 64


class _Object(Struct, frozen=True):
    data: bytes
    modified: datetime


class _Names:
    """The names in one folder; sorted when a listing asks, at little cost after few changes."""

    def __init__(self) -> None:
        self._order: list[str] = []
        self._added: set[str] = set()
        self._removed: set[str] = set()

    def __len__(self) -> int:
        return len(self._order) + len(self._added) - len(self._removed)

    def add(self, name: str) -> None:
        if name in self._removed:
            self._removed.remove(name)
        else:
            self._added.add(name)

    def remove(self, name: str) -> None:
        if name in self._added:
            self._added.remove(name)
        else:
            self._removed.add(name)

    def sorted(self) -> list[str]:
        if self._removed:
            names = [name for name in self._order if name not in self._removed]
            self._order, self._removed = names, set()
        if len(self._added) > _FEW:
            self._order.extend(self._added)
            self._order.sort()
        else:
            for name in self._added:
                insort(self._order, name)
        self._added.clear()
        return self._order


class _Place:
    """The content that all storages of one name share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, _Object] = {}
        self.folders: dict[str, _Names] = {}
        self.process_id = os.getpid()
        renew_in_forks(self)

    def renew_after_fork(self) -> None:
        self.lock = threading.Lock()

    def set(self, key: str, data: bytes) -> None:
        if key not in self.objects:
            folder, name = _split(key)
            self.folders.setdefault(folder, _Names()).add(name)
        self.objects[key] = _Object(data, now())

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is None:
            return
        folder, name = _split(key)
        names = self.folders[folder]
        names.remove(name)
        if not len(names):
            del self.folders[folder]

    def keys(self, prefix: str, limit: int | None) -> list[str]:
        folders = [folder for folder in self.folders if folder.startswith(prefix)]
        if folders == [prefix]:
            sorted_keys = (prefix + name for name in self.folders[prefix].sorted())
        else:
            below = (folder + name for folder in folders for name in self.folders[folder].sorted())
            sorted_keys = (key for key in sorted(below))
        # a write that was interrupted may have left a name twice, or one without an object
        there = (key for key, _ in groupby(sorted_keys) if key in self.objects)
        return list(islice(there, limit))


_places: dict[str, _Place] = {}
_places_lock = threading.Lock()


@run_in_forks
def _renew() -> None:
    global _places_lock  # noqa: PLW0603 - a lock cannot be renewed in its place
    _places_lock = threading.Lock()


def _split(key: str) -> tuple[str, str]:
    folder, slash, name = key.rpartition("/")
    return folder + slash, name


def _reopen(name: str, process: str, process_id: int) -> MemoryStorage:
    """Unpickle a named place, where it is."""
    if process != _PROCESS or process_id != os.getpid():
        raise InvalidInputError(
            f"memory://{name} lives in another process; use a folder or an object store for work "
            "that is shared between processes"
        )
    return MemoryStorage(name)


class MemoryStorage(Storage):
    """Objects in memory.

    Parameters
    ----------
    name
        Storages of one name share their content within the process, for as long as it lives.
        Without a name the content belongs to this storage alone.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        if name:
            with _places_lock:
                self._place = _places.setdefault(name, _Place())
        else:
            self._place = _Place()

    def __repr__(self) -> str:
        return f"MemoryStorage({self._name!r})" if self._name else "MemoryStorage()"

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._name:
            raise TypeError(
                "a nameless memory place cannot be pickled: nobody else could find it; give it a "
                "name (memory://name) within one process, or use a folder or an object store"
            )
        return _reopen, (self._name, _PROCESS, self._place.process_id)

    @property
    def url(self) -> str:
        """``memory://`` and the name."""
        return f"memory://{self._name}"

    @property
    def capabilities(self) -> Capabilities:
        """All of them."""
        return _CAPABILITIES

    def get(self, key: str, *, limit_bytes: int | None = None) -> bytes:
        """See :meth:`Storage.get`."""
        data = self._find(check_key(key)).data
        check_size(key, len(data), limit_bytes)
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See :meth:`Storage.get_range`."""
        check_range(start, length)
        return self.get(key)[start : start + length]

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """See :meth:`Storage.get_tail`."""
        check_range(0, length)
        data = self.get(key)
        return data[max(0, len(data) - length) :], len(data)

    def get_part(self, key: str, start: int, length: int, *, facts: bool) -> Part:  # noqa: ARG002
        """Get a range of an object that is not a repository's, under any name, and facts of it."""
        item = self._find(key)
        data = item.data[start : start + length]
        return Part(data, content_token(item.data), micros_of(item.modified))

    def put(
        self,
        key: str,
        data: Writable | Iterable[Writable],
        metadata: Mapping[str, str] | None = None,  # noqa: ARG002 - no reader could see it here
    ) -> None:
        """See :meth:`Storage.put`."""
        self._add(key, joined(data))

    def sync(self) -> None:
        """Nothing in memory survives a power cut, and nothing is left to do."""

    def create(self, key: str, data: bytes) -> None:
        """See :meth:`Storage.create`."""
        self._add(key, bytes(data))

    def get_versioned(self, key: str, *, limit_bytes: int | None = None) -> tuple[bytes, Token]:
        """See :meth:`Storage.get_versioned`."""
        data = self.get(key, limit_bytes=limit_bytes)
        return data, content_token(data)

    def replace(self, key: str, data: bytes, token: Token) -> None:
        """See :meth:`Storage.replace`."""
        check_key(key)
        self._check_process()
        with self._place.lock:
            item = self._place.objects.get(key)
            if item is None or content_token(item.data) != token:
                fact = "is gone" if item is None else "has changed"
                raise PreconditionFailedError(f"{key!r} in {self.url} {fact}", key=key)
            self._place.set(key, bytes(data))

    def overwrite(self, key: str, data: bytes) -> None:
        """See :meth:`Storage.overwrite`."""
        check_key(key)
        self._check_process()
        with self._place.lock:
            self._place.set(key, bytes(data))

    def exists(self, key: str) -> bool:
        """See :meth:`Storage.exists`."""
        return check_key(key) in self._place.objects

    def _list(self, prefix: str, limit: int | None) -> Iterator[ObjectInfo]:
        with self._place.lock:
            items = [(key, self._place.objects[key]) for key in self._place.keys(prefix, limit)]
        return (
            ObjectInfo(key=key, size_bytes=len(item.data), modified=item.modified)
            for key, item in items
        )

    def _list_folders(self, prefix: str) -> Iterable[str]:
        with self._place.lock:
            below = [f[len(prefix) :] for f in self._place.folders if f.startswith(prefix)]
        return {rest.partition("/")[0] for rest in below if rest}

    def delete(self, keys: Iterable[str]) -> None:
        """See :meth:`Storage.delete`."""
        names = [check_key(key) for key in keys]
        self._check_process()
        with self._place.lock:
            for key in names:
                self._place.remove(key)

    def _find(self, key: str) -> _Object:
        item = self._place.objects.get(key)
        if item is None:
            raise ObjectNotFoundError(f"there is no object {key!r} in {self.url}", key=key)
        return item

    def _add(self, key: str, data: bytes) -> None:
        check_key(key)
        self._check_process()
        with self._place.lock:
            if key in self._place.objects:
                raise AlreadyExistsError(f"{key!r} is there already in {self.url}", key=key)
            self._place.set(key, data)

    def _check_process(self) -> None:
        """Refuse a write that only a forked copy would see."""
        if self._place.process_id != os.getpid():
            raise StorageError(
                f"{self.url} belongs to another process, of which this one is a fork: what is "
                "written here would be lost; use a folder or an object store"
            )
