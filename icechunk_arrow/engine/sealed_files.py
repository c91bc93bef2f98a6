"""Sealed files, read by ranges that somebody else chooses: no byte is given out that was not checked.

Owns how a range becomes whole row groups, and what is kept of them. A file's end is checked when the file is
first read, as our own reader checks it; its row groups, which the seal has a checksum for each, when they are read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icechunk_arrow.core.checksums import crc32c
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats import envelope
from icechunk_arrow.formats.budget import Budget
from icechunk_arrow.formats.layout import FileKind, file_id
from icechunk_arrow.storage.forked_children import renew_in_forks

if TYPE_CHECKING:
    import numpy.typing as npt

    from icechunk_arrow.storage.port import Storage

__all__ = ["SealedFiles"]

_TAIL_BYTES = 1 << 16
_FAR_TAIL_BYTES = 1 << 18
"""What is fetched of a file's end at first: the footer; where requests are slow all of 65,536 chunks."""
_READ_AHEAD_BYTES = 1 << 20
"""From a fast place so much is read at once where somebody reads on: each read has a price of its own."""
_CACHE_BYTES = 1 << 26
_BEGIN = b"PAR1"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Opened:
    """A file whose end is right."""

    bounds: npt.NDArray[np.int64]
    """Where row groups begin, and behind them where the last one ends."""
    crcs: npt.NDArray[np.uint32]
    end: bytes
    """The seal and the footer, which are behind everything else."""

    @property
    def size_bytes(self) -> int:
        return len(self.end) + 12 * len(self.crcs) + 500


class SealedFiles:
    """Files of one storage, by their keys; for many threads."""

    def __init__(self, storage: Storage, cache_bytes: int = _CACHE_BYTES) -> None:
        self._storage = storage
        self._fast = storage.capabilities.fast
        self._most = cache_bytes
        self._held: OrderedDict[tuple[str, int], tuple[_Opened | bytes, int]] = OrderedDict()
        self._held_bytes = 0
        self._lock = threading.Lock()
        renew_in_forks(self)

    def renew_after_fork(self) -> None:
        """Make the lock anew, and count again what a vanished thread may have half done."""
        self._lock = threading.Lock()
        self._held_bytes = sum(size_bytes for _, size_bytes in self._held.values())

    def read(self, key: str, size_bytes: int, start: int, length: int) -> bytes:
        """Give a range of a file that has so many bytes; what no checksum covers is given as zeros."""
        stop = min(start + length, size_bytes)
        opened = self._open(key, size_bytes)
        ends_at = size_bytes - len(opened.end)
        if start >= ends_at:
            return opened.end[start - ends_at : stop - ends_at]
        bounds = opened.bounds
        first = int(np.searchsorted(bounds, start, side="right")) - 1
        last = int(np.searchsorted(bounds, stop, side="left")) - 1
        groups = range(max(first, 0), min(last, len(bounds) - 2) + 1)
        if len(groups) == 1 and bounds[groups[0]] <= start and stop <= bounds[groups[0] + 1]:
            begin = int(bounds[groups[0]])
            return self._groups(key, opened, groups)[0][start - begin : stop - begin]
        found = bytearray(stop - start)
        pieces = [(0, _BEGIN), (ends_at, opened.end)]
        pieces += zip(
            bounds[groups.start :].tolist(), self._groups(key, opened, groups), strict=False
        )
        for begin, data in pieces:
            low, high = max(begin, start), min(begin + len(data), stop)
            if low < high:
                found[low - start : high - start] = memoryview(data)[low - begin : high - begin]
        return bytes(found)

    def _open(self, key: str, size_bytes: int) -> _Opened:
        """Check the end of a file, once; row groups that come along are kept."""
        held = self._find((key, -1))
        if isinstance(held, _Opened):
            return held
        tail = self._tail(key, size_bytes, _TAIL_BYTES if self._fast else _FAR_TAIL_BYTES)
        needs = envelope.seal_needs(tail, size_bytes, key)
        for _ in range(2):  # the length of the footer, then the number of row groups
            if needs > len(tail):
                Budget(key).check(needs)
                tail = self._tail(key, size_bytes, needs)
                needs = envelope.seal_needs(tail, size_bytes, key)
        folder, _, name = key.partition("/")
        sealed = envelope.open_seal(tail, size_bytes, FileKind(folder), file_id(name))
        opened = _Opened(
            bounds=np.append(len(_BEGIN), sealed.row_group_ends.astype(np.int64)),
            crcs=sealed.row_group_crcs.copy(),
            end=tail[len(tail) - needs :],
        )
        self._keep((key, -1), opened, opened.size_bytes)
        whole = int(np.searchsorted(opened.bounds, size_bytes - len(tail)))
        if whole < len(opened.crcs):
            at = int(opened.bounds[whole]) - (size_bytes - len(tail))
            self._checked(key, opened, range(whole, len(opened.crcs)), tail[at:])
        return opened

    def _tail(self, key: str, size_bytes: int, length: int) -> bytes:
        wanted = min(length, size_bytes)
        tail = self._storage.get_range(key, size_bytes - wanted, wanted)
        if len(tail) != wanted:
            raise _cut(key)
        return tail

    def _groups(self, key: str, opened: _Opened, groups: range) -> list[bytes]:
        """Give row groups, checked: those that are not held with one read."""
        found = ((group, self._find((key, group))) for group in groups)
        held = {group: data for group, data in found if isinstance(data, bytes)}
        missing = [group for group in groups if group not in held]
        if missing:
            first, last = missing[0], missing[-1]
            start, stop = int(opened.bounds[first]), int(opened.bounds[last + 1])
            if self._fast:
                last += int(
                    np.searchsorted(opened.bounds[last + 2 :], start + _READ_AHEAD_BYTES, "right")
                )
                stop = int(opened.bounds[last + 1])
            data = self._storage.get_range(key, start, stop - start)
            if len(data) != stop - start:
                raise _cut(key)
            held |= self._checked(key, opened, range(first, last + 1), data)
        return [held[group] for group in groups]

    def _checked(self, key: str, opened: _Opened, groups: range, data: bytes) -> dict[int, bytes]:
        """Check row groups that stand one after the other, and keep them."""
        base = int(opened.bounds[groups[0]])
        view = memoryview(data)
        found = {}
        for group in groups:
            start, stop = opened.bounds[group : group + 2].tolist()
            part = view[start - base : stop - base]
            if crc32c(part) != int(opened.crcs[group]):
                raise CorruptFileError(
                    f"{key} is damaged: the bytes of row group {group} do not match their checksum. "
                    f"Restore the file from a copy, or attach an earlier snapshot.",
                    key=key,
                )
            found[group] = bytes(part)
            self._keep((key, group), found[group], len(part) + 200)
        return found

    def _find(self, name: tuple[str, int]) -> _Opened | bytes | None:
        with self._lock:
            held = self._held.get(name)
            if held is None:
                return None
            self._held.move_to_end(name)
            return held[0]

    def _keep(self, name: tuple[str, int], value: _Opened | bytes, size_bytes: int) -> None:
        with self._lock:
            if name in self._held:
                return
            self._held[name] = value, size_bytes
            self._held_bytes += size_bytes
            while self._held_bytes > self._most:
                self._held_bytes -= self._held.popitem(last=False)[1][1]


def _cut(key: str) -> CorruptFileError:
    return CorruptFileError(
        f"{key} is cut: it has fewer bytes than its snapshot says. Restore the file from a copy, or attach "
        f"an earlier snapshot.",
        key=key,
    )
