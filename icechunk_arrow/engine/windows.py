"""Bytes that come next in chunk files: read ahead where small chunks are read one after the other.

Files under ``c/`` are written once, so bytes that were read stay right. What is read ahead is decided by where
the last read of the same file ended: scattered reads get exactly what they ask for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icechunk_arrow.storage.port import Storage

__all__ = ["Windows"]

SMALL_BYTES = 16 << 10
"""From a fast place only chunks up to this size are read ahead: for larger ones the system call is cheap."""
WINDOW_BYTES = 64 << 10
"""What is read ahead on a fast place, and at first on a slow one."""
SLOW_SMALL_BYTES = 256 << 10
SLOW_WINDOW_BYTES = 1 << 20
"""Up to this a window grows on a slow place, by doubling: as much as comes in the time a request waits."""
MAX_FILES = 8
"""How many files are remembered, the last ones: what they hold stands beside the cache."""


@dataclass(frozen=True, slots=True)
class _Window:
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
