"""What the operating system offers for writing files that are whole or absent, and stay.

Owns the calls that Python has no name for, and what differs between systems. Knows no keys and no
places; every function raises plain ``OSError``.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icechunk_arrow.storage.pieces import Flat

__all__ = [
    "NO_LINKS",
    "READ_FLAGS",
    "can_sync_filesystem",
    "read_all",
    "read_range",
    "rename_new",
    "start_writeback",
    "sync_file",
    "sync_filesystem",
    "sync_folder",
    "sync_tree",
    "write_pieces",
]

NO_LINKS = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL}
)
"""How a volume says that it has no hard links, or no rename that refuses to replace."""

READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Neither follows a symbolic link nor waits for somebody to write into a pipe."""

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_SYNC_FILE_RANGE_WRITE = 2
_MOST_BUFFERS = 512
_MANY_BYTES = 1 << 18
"""Buffers are gathered up to so many bytes: that is enough for one call, and still near the processor."""
_SMALL_READ = 1 << 20
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})

_libc = ctypes.CDLL(None, use_errno=True)


def _function(name: str, *argument_types: Any) -> Any:
    """Find a function of the C library; None where it has no such one."""
    function = getattr(_libc, name, None)
    if function is not None:
        function.argtypes = argument_types
        function.restype = ctypes.c_int
    return function


_linux = sys.platform == "linux"
_renameat2 = _function(
    "renameat2", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint
)
_syncfs: Any = _function("syncfs", ctypes.c_int) if _linux else None
_sync_file_range: Any = (
    _function("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    if _linux
    else None
)


def _syncfs_tells_errors() -> bool:
    """Before Linux 5.8 syncfs answered success even when writing had failed."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return version is not None and (int(version[1]), int(version[2])) >= (5, 8)


_can_sync_filesystem = _syncfs is not None and _syncfs_tells_errors()


def can_sync_filesystem() -> bool:
    """Whether one call makes everything on a file system durable, and says so honestly."""
    return _can_sync_filesystem


def sync_filesystem(fd: int) -> None:
    """Make everything durable that lies on the file system of a descriptor.

    It reports what has failed since the descriptor was opened: open it before writing.
    """
    if _syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def sync_tree(root: str) -> None:
    """Make everything durable that lies in a folder, and in those directly below it, on any volume."""
    with os.scandir(root) as entries:
        folders = [root, *(each.path for each in entries if each.is_dir(follow_symlinks=False))]
    if not can_sync_filesystem():
        os.sync()
        return
    done = set()
    for folder in folders:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            device = os.fstat(fd).st_dev
            if device not in done:
                sync_filesystem(fd)
                done.add(device)
        finally:
            os.close(fd)


def start_writeback(fd: int) -> None:
    """Have the system begin to write a file out, without waiting: several then go together."""
    if _sync_file_range is not None:
        _sync_file_range(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)


def sync_file(fd: int) -> None:
    """Return when a file survives a power cut."""
    full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync stops at the drive's cache
    if full is None:
        os.fsync(fd)
    else:
        fcntl.fcntl(fd, full)


def sync_folder(path: str) -> None:
    """Return when the names in a folder survive a power cut.

    Some network and user-space file systems cannot sync folders and say so; there is nothing
    else that could be done about it there.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)


def rename_new(source: str, target: str, *, src_dir_fd: int = _AT_FDCWD) -> None:
    """Rename a file to a name that must be free; ``FileExistsError`` where it is not."""
    if _renameat2 is None:
        raise OSError(errno.ENOSYS, "the C library has no renameat2")
    names = os.fsencode(source), os.fsencode(target)
    if _renameat2(src_dir_fd, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), source, None, target)


def write_pieces(fd: int, pieces: Iterable[Flat]) -> None:
    """Write buffers one after the other, all of them; each is written soon after it was asked for."""
    waiting: list[Flat] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _MANY_BYTES or len(waiting) == _MOST_BUFFERS:
            _write_all(fd, waiting)
            waiting, size = [], 0
    _write_all(fd, waiting)


def _write_all(fd: int, waiting: list[Flat]) -> None:
    """Write a few buffers, as often as it takes."""
    done = 0
    while done < len(waiting):
        given = waiting[done:]
        left = sum(map(len, given)) - os.writev(fd, given)
        done = len(waiting)
        while left:  # not everything was taken: back to the piece that was cut
            done -= 1
            size = len(waiting[done])
            if left < size:
                waiting[done] = memoryview(waiting[done])[size - left :]
            left -= min(left, size)


def read_range(fd: int, start: int, length: int) -> bytes:
    """Read ``length`` bytes from ``start``, fewer where the file ends."""
    if length > _SMALL_READ:  # a length may come from damaged data: never allocate on its word
        length = min(length, max(0, os.fstat(fd).st_size - start))
    data = os.pread(fd, length, start)
    if len(data) == length or not data:
        return data
    pieces = [data]
    got = len(data)
    while got < length and (data := os.pread(fd, length - got, start + got)):
        pieces.append(data)
        got += len(data)
    return b"".join(pieces)


def read_all(fd: int) -> bytes:
    """Read a file to its end."""
    size = os.fstat(fd).st_size
    data = read_range(fd, 0, size + 1)
    while len(data) > size:  # it is being written: take what has come
        more = read_range(fd, len(data), _SMALL_READ)
        if not more:
            break
        data += more
    return data
