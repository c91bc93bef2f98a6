"""A cache bounded in bytes: what was read once and may be wanted again.

Loads of one key happen once, however many threads ask at the same time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["ByteCache"]


class ByteCache:
    """Least recently used values, up to a number of bytes in all."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._loading: dict[Hashable, Future[Any]] = {}
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """How much is held now."""
        return self._size_bytes

    def find(self, key: Hashable) -> Any:
        """Give the value held for a key, or None."""
        with self._lock:
            held = self._values.get(key)
            if held is None:
                return None
            self._values.move_to_end(key)
            return held[0]

    def get(self, key: Hashable, load: Callable[[], tuple[Any, int]]) -> Any:
        """Give the value for a key; ``load`` makes it, with its size, where it is not held."""
        with self._lock:
            held = self._values.get(key)
            if held is not None:
                self._values.move_to_end(key)
                return held[0]
            future = self._loading.get(key)
            mine = future is None
            if future is None:
                future = self._loading[key] = Future()
        if not mine:
            return future.result()
        try:
            value, size_bytes = load()
        except BaseException as error:
            with self._lock:
                del self._loading[key]
            future.set_exception(error)
            raise
        with self._lock:
            del self._loading[key]
            self._hold(key, value, size_bytes)
        future.set_result(value)
        return value

    def _hold(self, key: Hashable, value: Any, size_bytes: int) -> None:
        if size_bytes > self.limit_bytes:
            return
        self._values[key] = (value, size_bytes)
        self._size_bytes += size_bytes
        while self._size_bytes > self.limit_bytes:
            _, (_, freed) = self._values.popitem(last=False)
            self._size_bytes -= freed
