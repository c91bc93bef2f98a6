"""What was read once and may be wanted again, and bytes that are read ahead.

``ByteCache`` is bounded in bytes. Loads of one key happen once, however many threads ask at the same time; a load
that is interrupted leaves nothing behind that a thread would wait for.

``Windows`` read ahead where small chunks of one file are read one after the other: where the last read ended
decides it, so scattered reads get exactly what they ask for. Files under ``c/`` are written once, so bytes that
were read stay right.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from msgspec import Struct

from icechunk_arrow.storage.forked_children import renew_in_forks

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from icechunk_arrow.storage.port import Storage

__all__ = ["ByteCache", "Windows"]

SMALL_BYTES = 16 << 10
"""From a fast place only chunks up to this size are read ahead: for larger ones the system call is cheap."""
WINDOW_BYTES = 64 << 10
"""What is read ahead on a fast place, and at first on a slow one."""
SLOW_SMALL_BYTES = 256 << 10
SLOW_WINDOW_BYTES = 1 << 20
"""Up to this a window grows on a slow place, by doubling: as much as comes in the time a request waits."""
MAX_FILES = 8
"""How many files are remembered, the last ones: what they hold stands beside the cache."""


class _Load:
    """A load that is under way, for as long as a thread is at it or waits for it."""

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

        A thread that waits for a load that fails tries it again.
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


class _Window(Struct, frozen=True):
    """What was read of a file the last time, and where the chunk that was asked for ended."""

    start: int
    stop: int
    data: bytes
    asked: int


class Windows:
    """Reads of chunk files."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        fast = storage.capabilities.fast
        self._small = SMALL_BYTES if fast else SLOW_SMALL_BYTES
        self._most = WINDOW_BYTES if fast else SLOW_WINDOW_BYTES
        self._windows: dict[str, _Window] = {}

    def read(self, key: str, start: int, length: int) -> bytes:
        """Give ``length`` bytes of a file from ``start``, fewer where it ends."""
        # No lock: a window is a value, and of two threads that replace it either may win.
        window = self._windows.get(key)
        if window is not None and window.start <= start and start + length <= window.stop:
            first = start - window.start
            return window.data[first : first + length]
        if length > self._small:
            return self._storage.get_range(key, start, length)
        ahead = 0 if window is None else self._ahead(window, start, length)
        data = self._storage.get_range(key, start, max(length, ahead))
        kept = data if ahead else b""
        self._remember(key, _Window(start, start + len(kept), kept, start + length))
        return data[:length] if ahead else data

    def _ahead(self, window: _Window, start: int, length: int) -> int:
        """How much to read where the last read of the file was this one; 0 is no more than is asked for."""
        low, high = (window.stop - length, window.stop) if window.data else (window.asked,) * 2
        if not low <= start <= high + WINDOW_BYTES:
            return 0
        return min(self._most, max(WINDOW_BYTES, 2 * (window.stop - window.start)))

    def _remember(self, key: str, window: _Window) -> None:
        windows = self._windows
        if key not in windows and len(windows) >= MAX_FILES:
            for oldest in list(windows)[: len(windows) - MAX_FILES + 1]:
                windows.pop(oldest, None)
        windows[key] = window
