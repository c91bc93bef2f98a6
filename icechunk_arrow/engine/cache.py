"""A cache bounded in bytes: what was read once and may be wanted again.

Loads of one key happen once, however many threads ask at the same time. A load that is interrupted leaves
nothing behind that anybody would wait for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from icechunk_arrow.storage.forked_children import renew_in_forks

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["ByteCache"]


class _Load:
    """A load that is under way, for as long as somebody is at it or waits for it."""

    __slots__ = ("__weakref__", "is_done", "lock", "value")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_done = False
        self.value: Any = None


class ByteCache:
    """Least recently used values, up to a number of bytes in all."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._loads: WeakValueDictionary[Hashable, _Load] = WeakValueDictionary()
        self._size_bytes = 0
        renew_in_forks(self)

    def renew_after_fork(self) -> None:
        """Forget what vanished threads were loading, and what they had half done."""
        self._lock = threading.Lock()
        self._loads = WeakValueDictionary()
        self._size_bytes = sum(size_bytes for _, size_bytes in self._values.values())

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
        """Give the value for a key; ``load`` makes it, with its size, where it is not held.

        Who waits for a load that fails tries it again.
        """
        with self._lock:
            held = self._values.get(key)
            if held is not None:
                self._values.move_to_end(key)
                return held[0]
            shared = self._loads.get(key)
            if shared is None:
                shared = self._loads[key] = _Load()
        with shared.lock:
            if not shared.is_done:
                shared.value, size_bytes = load()
                shared.is_done = True
                with self._lock:
                    self._hold(key, shared.value, size_bytes)
            return shared.value

    def _hold(self, key: Hashable, value: Any, size_bytes: int) -> None:
        if size_bytes > self.limit_bytes:
            return
        _, before = self._values.pop(key, (None, 0))
        self._values[key] = (value, size_bytes)
        self._size_bytes += size_bytes - before
        while self._size_bytes > self.limit_bytes and self._values:
            _, (_, freed) = self._values.popitem(last=False)
            self._size_bytes -= freed
