"""Storages that fail on purpose, each around a real one.

Owns where an operation fails: before its effect, after it, or with a wrong answer. Knows nothing of
what is stored.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from icechunk_arrow.errors import StorageError
from icechunk_arrow.storage.port import Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from icechunk_arrow.storage.port import Capabilities, ObjectInfo, Token, Writable

__all__ = ["LosingStorage", "Stopped", "StoppingStorage", "WrappedStorage"]

T = TypeVar("T")


class Stopped(BaseException):
    """The process is over; nothing may catch this as an error."""


class WrappedStorage(Storage):
    """Passes everything on; subclasses come between in :meth:`_run`.

    Parameters
    ----------
    inner
        The real storage.
    fast
        What the capabilities say of speed; the engine writes in several threads where it is False.
    """

    def __init__(self, inner: Storage, *, fast: bool | None = None) -> None:
        self.inner = inner
        self._fast = fast

    def _run(self, operation: str, key: str, effect: Callable[[], T]) -> T:
        """Have one operation done."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        able = self.inner.capabilities
        return able if self._fast is None else replace(able, fast=self._fast)

    def require_writable(self) -> None:
        self.inner.require_writable()

    def get(self, key: str, *, limit_bytes: int | None = None) -> bytes:
        return self._run("get", key, lambda: self.inner.get(key, limit_bytes=limit_bytes))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._run("get_range", key, lambda: self.inner.get_range(key, start, length))

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        return self._run("get_tail", key, lambda: self.inner.get_tail(key, length))

    def put(
        self,
        key: str,
        data: Writable | Iterable[Writable],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._run("put", key, lambda: self.inner.put(key, data, metadata))

    @property
    def syncs(self) -> bool:
        return self.inner.syncs

    def sync(self) -> None:
        self._run("sync", "", self.inner.sync)

    def sync_everything(self) -> None:
        self._run("sync", "", self.inner.sync_everything)

    def create(self, key: str, data: bytes) -> None:
        self._run("create", key, lambda: self.inner.create(key, data))

    def get_versioned(self, key: str, *, limit_bytes: int | None = None) -> tuple[bytes, Token]:
        return self._run(
            "get_versioned", key, lambda: self.inner.get_versioned(key, limit_bytes=limit_bytes)
        )

    def replace(self, key: str, data: bytes, token: Token) -> None:
        self._run("replace", key, lambda: self.inner.replace(key, data, token))

    def overwrite(self, key: str, data: bytes) -> None:
        self._run("overwrite", key, lambda: self.inner.overwrite(key, data))

    def time_of_put(self, key: str) -> datetime | None:
        return self.inner.time_of_put(key)

    def exists(self, key: str) -> bool:
        return self._run("exists", key, lambda: self.inner.exists(key))

    def _list(self, prefix: str, limit: int | None) -> Iterator[ObjectInfo]:
        return self._run("list", prefix, lambda: iter(list(self.inner.list(prefix, limit=limit))))

    def _list_folders(self, prefix: str) -> Iterable[str]:
        return self._run("list_folders", prefix, lambda: list(self.inner.list_folders(prefix)))

    def delete(self, keys: Iterable[str]) -> None:
        names = list(keys)
        self._run("delete", ",".join(names), lambda: self.inner.delete(names))


class StoppingStorage(WrappedStorage):
    """Counts operations, and ends the process, so to speak, around one of them.

    Parameters
    ----------
    inner
        The real storage.
    stop_at
        The operation, counted from 0; None never stops.
    after
        Whether it has its effect; either way nobody learns of it, and nothing works any more.
    fast
        See :class:`WrappedStorage`.
    """

    def __init__(
        self,
        inner: Storage,
        *,
        stop_at: int | None = None,
        after: bool = False,
        fast: bool | None = None,
    ) -> None:
        super().__init__(inner, fast=fast)
        self._stop_at = stop_at
        self._after = after
        self._lock = threading.Lock()
        self._is_over = False
        self.operations: list[tuple[str, str]] = []

    def _run(self, operation: str, key: str, effect: Callable[[], T]) -> T:
        with self._lock:
            if self._is_over:
                raise Stopped(f"{operation} {key} after the end")
            stop = len(self.operations) == self._stop_at
            self.operations.append((operation, key))
            if stop:
                self._is_over = True
        if not stop:
            return effect()
        if self._after:
            effect()
        raise Stopped(f"{'after' if self._after else 'before'} {operation} {key}")


class LosingStorage(WrappedStorage):
    """Loses answers of chosen operations, each once for every time it is armed.

    ``ways`` are ``"lost"`` (it has its effect, the answer is an error), ``"failed"`` (no effect, the
    same error), ``"twice"`` (it has its effect and is sent again, so that the answer is that of the
    second time), and a function, which is called in place of the operation.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._armed: list[tuple[str, str, str | Callable[[], Any]]] = []
        self.fired: list[str] = []

    def arm(self, operation: str, way: str | Callable[[], Any], key: str = "") -> None:
        """Have the next such operation go wrong, on a key that contains a text."""
        self._armed.append((operation, key, way))

    def _run(self, operation: str, key: str, effect: Callable[[], T]) -> T:
        for each in self._armed:
            name, part, way = each
            if name == operation and part in key:
                self._armed.remove(each)
                self.fired.append(f"{operation} {key}")
                return self._go_wrong(operation, key, effect, way)
        return effect()

    def _go_wrong(
        self, operation: str, key: str, effect: Callable[[], T], way: str | Callable[[], Any]
    ) -> T:
        lost = StorageError(f"no answer to {operation} {key}", key=key)
        if way == "failed":
            raise lost
        if way == "lost":
            effect()
            raise lost
        if way == "twice":
            effect()
            return effect()  # which must find the first
        assert callable(way)
        way()
        raise lost
