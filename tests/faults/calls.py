# It is about system calls.
# ruff: noqa: PTH102, PTH105, PTH116, PTH200, PTH208
"""System calls of a local place that misbehave at a chosen one, and what a power cut would leave at any moment.

Owns what each kind of trouble does to which calls, and a book of what is durable. It stands in place of the module
``os`` in the modules that reach a disk, and of no other: what the test itself does works. Nothing is synced really.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import Counter, defaultdict
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow.storage import disk, local, scratch, table_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["TROUBLES", "Book", "Calls", "misbehaving"]

_MAKES = {"open to write", "mkdir", "link", "replace", "rename_new"}
_WRITES = _MAKES | {"writev"}
_OPENS = {"open", "open to write", "scandir", "listdir"}
_LOOKS = {"open", "pread", "lstat", "stat", "fstat", "scandir", "listdir"}
_SYNCS = {"fsync", "syncfs"}

TROUBLES: dict[str, tuple[int, set[str]]] = {
    "full": (errno.ENOSPC, _WRITES),
    "quota": (errno.EDQUOT, _WRITES | _SYNCS),
    "large": (errno.EFBIG, {"writev"}),
    "read-only": (errno.EROFS, _MAKES | {"unlink"}),
    "descriptors": (errno.EMFILE, _OPENS),
    "forbidden": (errno.EACCES, _MAKES | _LOOKS - {"pread", "fstat"} | {"unlink"}),
    "broken": (errno.EIO, _WRITES | _LOOKS | _SYNCS | {"unlink", "flock"}),
    "unsynced": (errno.EIO, _SYNCS),
    "stale": (errno.ESTALE, _WRITES | _LOOKS | _SYNCS | {"unlink"}),
    "told at the end": (errno.ENOSPC, {"close"}),
    "short": (0, {"writev", "pread"}),
    "answered late": (0, {"link", "rename_new", "mkdir"}),
}
"""What a call says, and which calls. ``short`` takes or gives a part, as it may; ``answered late`` has its effect
and says that somebody else was faster, as a file server does whose first answer was lost."""


class Book:
    """What a power cut would take: files whose bytes, and names that are not known to be durable."""

    def __init__(self) -> None:
        self.unsynced: set[tuple[int, int]] = set()
        self.lost: set[tuple[int, int]] = set()
        """Bytes that the system could not write, which it says once."""
        self.names: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
        self.lost_names: set[tuple[tuple[int, int], str]] = set()

    @staticmethod
    def _id(status: os.stat_result) -> tuple[int, int]:
        return status.st_dev, status.st_ino

    def wrote(self, fd: int) -> None:
        """Bytes were written."""
        self.unsynced.add(self._id(os.fstat(fd)))

    def named(self, path: str) -> None:
        """A name was given."""
        folder, _, name = path.rpartition("/")
        self.names[self._id(os.stat(folder))].add(name)

    def synced(self, fd: int, *, well: bool) -> None:
        """One file or folder was synced, or the system said that it could not be."""
        found = self._id(os.fstat(fd))
        if not well:
            self.lost |= self.unsynced & {found}
            self.lost_names |= {(found, name) for name in self.names[found]}
        self.unsynced.discard(found)
        self.names[found].clear()

    def synced_all(self, *, well: bool) -> None:
        """A whole volume was synced, or the system said that it could not be."""
        if not well:
            self.lost |= self.unsynced
            self.lost_names |= {
                (found, name) for found, names in self.names.items() for name in names
            }
        self.unsynced.clear()
        self.names.clear()

    def would_go(self, root: Path, keys: set[str]) -> set[str]:
        """Tell which of some files a power cut would take now."""
        gone = set()
        for key in keys:
            path = root
            for part in key.split("/"):
                folder, path = self._id(path.stat()), path / part
                own = self._id(path.stat())
                if (
                    part in self.names[folder]
                    or (folder, part) in self.lost_names
                    or own in self.unsynced | self.lost
                ):
                    gone.add(key)
        return gone


class Calls:
    """Stands for the module ``os``: counts the calls that a trouble is about, and has some of them fail.

    Parameters
    ----------
    trouble
        A name of :data:`TROUBLES`; an empty one only counts.
    begins_at
        The call, counted from 0, from which on they fail.
    lasts
        How many fail; None for all that follow.
    on
        Called when it begins, and then nothing fails here: the trouble is a real one. Where it gives False it is
        called again with the next call.
    """

    def __init__(
        self,
        trouble: str = "",
        begins_at: int = 0,
        lasts: int | None = None,
        on: Callable[[], object] | None = None,
    ) -> None:
        self.number, self.about = TROUBLES.get(
            trouble, (0, set().union(*(c for _, c in TROUBLES.values())))
        )
        self.trouble = trouble
        self.begins_at = begins_at
        self.lasts = lasts
        self.on = on
        self.count = 0
        self.met: Counter[str] = Counter()
        self.book = Book()

    def __getattr__(self, name: str) -> Any:
        own = type(self).__dict__.get(f"_{name}")
        if own is not None:
            return own.__get__(self)
        return getattr(os, name)

    def _fails(self, call: str) -> bool:
        """Count a call, and say whether it goes wrong."""
        if call not in self.about:
            return False
        step, self.count = self.count, self.count + 1
        if self.on is not None:
            if step >= self.begins_at and not self.met["it"]:
                self.met["it"] += self.on() is not False
            return False
        if not self.trouble or step < self.begins_at:
            return False
        if self.lasts is not None and step >= self.begins_at + self.lasts:
            return False
        self.met[call] += 1
        return True

    def _come(self, call: str, path: Any = None) -> None:
        if self._fails(call):
            raise OSError(self.number, os.strerror(self.number), path)

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        self._come("open to write" if flags & os.O_CREAT else "open", path)
        fd = os.open(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            self.book.wrote(fd)
            if dir_fd is None:
                self.book.named(os.fspath(path))
        return fd

    def _close(self, fd: int) -> None:
        written = Book._id(os.fstat(fd)) in self.book.unsynced
        fails = written and self._fails("close")
        if fails:
            self.book.synced(fd, well=False)
        os.close(fd)
        if fails:
            raise OSError(self.number, os.strerror(self.number))

    def _mkdir(self, path: str) -> None:
        late = self.trouble == "answered late" and self._fails("mkdir")
        if not late and self.trouble != "answered late":
            self._come("mkdir", path)
        os.mkdir(path)
        self.book.named(path)
        if late:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def _link(self, source: str, target: str, **more: Any) -> None:
        self._named("link", target, lambda: os.link(source, target, **more))

    def _replace(self, source: str, target: str, **more: Any) -> None:
        self._named("replace", target, lambda: os.replace(source, target, **more))

    def _named(self, call: str, target: str, act: Callable[[], None]) -> None:
        late = self.trouble == "answered late" and self._fails(call)
        if not late and self.trouble != "answered late":
            self._come(call, target)
        act()
        self.book.named(target)
        if late:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)

    def _writev(self, fd: int, buffers: Any) -> int:
        if self.trouble == "short":
            if self._fails("writev"):
                data = b"".join(buffers)
                self.book.wrote(fd)
                return os.write(fd, data[: max(1, len(data) // 3)])
        elif self._fails("writev"):
            data = b"".join(buffers)  # a part is taken before it is noticed
            os.write(fd, data[: len(data) // 2])
            raise OSError(self.number, os.strerror(self.number))
        self.book.wrote(fd)
        return os.writev(fd, buffers)

    def _pread(self, fd: int, length: int, start: int) -> bytes:
        if self.trouble == "short":
            return os.pread(fd, max(1, length // 3) if self._fails("pread") else length, start)
        self._come("pread")
        return os.pread(fd, length, start)

    def _fsync(self, fd: int) -> None:
        fails = self._fails("fsync")
        self.book.synced(fd, well=not fails)
        if fails:
            raise OSError(self.number, os.strerror(self.number))

    def syncfs(self, fd: int) -> None:
        """Sync a whole volume."""
        fails = self._fails("syncfs")
        self.book.synced_all(well=not fails)
        if fails:
            raise OSError(self.number, os.strerror(self.number))

    def rename_new(self, source: str, target: str, *, src_dir_fd: int) -> None:
        """Rename to a free name."""
        real = _RENAME_NEW
        self._named("rename_new", target, lambda: real(source, target, src_dir_fd=src_dir_fd))

    def flock(self, fd: int, how: int) -> None:
        """Lock or unlock; unlocking always works."""
        if how != fcntl.LOCK_UN:
            self._come("flock")
        fcntl.flock(fd, how)

    def _lstat(self, path: Any) -> os.stat_result:
        self._come("lstat", path)
        return os.lstat(path)

    def _stat(self, path: Any, **more: Any) -> os.stat_result:
        self._come("stat", path)
        return os.stat(path, **more)

    def _fstat(self, fd: int) -> os.stat_result:
        self._come("fstat")
        return os.fstat(fd)

    def _scandir(self, path: str) -> Any:
        self._come("scandir", path)
        return os.scandir(path)

    def _listdir(self, path: Any) -> list[str]:
        self._come("listdir", path)
        return os.listdir(path)

    def _unlink(self, path: Any, **more: Any) -> None:
        self._come("unlink", path)
        os.unlink(path, **more)


_RENAME_NEW = disk.rename_new


@contextmanager
def misbehaving(calls: Calls, *, links: bool = True) -> Iterator[Calls]:
    """Have the package make its system calls through these for a while; without hard links if it is said."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (disk, local, scratch, table_files):
            patch.setattr(module, "os", calls)
        patch.setattr(disk, "sync_filesystem", calls.syncfs)
        patch.setattr(disk, "rename_new", calls.rename_new)
        locks = SimpleNamespace(
            **{name: getattr(fcntl, name) for name in ("LOCK_EX", "LOCK_NB", "LOCK_SH", "LOCK_UN")}
        )
        locks.flock = calls.flock
        patch.setattr(scratch, "fcntl", locks)
        if not links:

            def refuse(*_: Any, **__: Any) -> None:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

            patch.setattr(calls, "_link", refuse, raising=False)
        yield calls
