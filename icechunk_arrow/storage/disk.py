# Strings and descriptors, not paths: pathlib costs more than these system calls.
# ruff: noqa: PTH114, PTH208
"""What the operating system offers for files that are whole or absent, stay, and lie where their name says.

Owns the calls that Python has no name for, what differs between systems, and the list of what one handle has
written and not yet made durable. Knows no keys and no places; functions raise plain ``OSError``.

Measured on ext4 (NVMe): four small files take 1.07 ms synced one after the other, 0.73 ms with threads, 0.54 ms
when write-back of all is started first and then each is synced: the first sync commits the journal for all. A
thousand take 113 ms that way and 40 ms by one ``syncfs``, which however also writes what others have written to
the volume. So: few files are synced each, many by one ``syncfs`` where the kernel reports its errors, in batches
where not.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import stat
import sys
import threading
import unicodedata
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct, field

from icechunk_arrow.errors import StorageError
from icechunk_arrow.storage.forked_children import renew_in_forks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icechunk_arrow.storage.port import Flat

NO_LINKS = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL}
)
"""How a volume says that it has no hard links, or no rename that refuses to replace."""

READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Neither follows a symbolic link nor waits for a process to write into a pipe."""

FEW = 64
"""Up to so many files stay open until they are synced, one by one."""

_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_SYNC_FILE_RANGE_WRITE = 2
_SYS_OPENAT2 = 437
"""The same number on every architecture that Python runs on, Alpha excepted."""
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_AGAIN = frozenset({errno.EINTR, errno.EAGAIN})
_TRIES = 1000
"""The kernel asks for another try while another process renames folders on the way."""
_MOST_BUFFERS = 512
_MANY_BYTES = 1 << 18
"""Buffers are gathered up to so many bytes: that is enough for one call, and still near the processor."""
_SMALL_READ = 1 << 20
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})

_WAYS_OUT = {
    errno.ENOSPC: "the volume is full; make room there, and do it again",
    errno.EDQUOT: "make room there or have more allowed, and do it again",
    errno.EFBIG: "the volume, or a limit of this process (ulimit -f), takes no file so large",
    errno.EMFILE: "this process has too many open; close some, or raise its limit (ulimit -n)",
    errno.ENFILE: "all processes of this machine have too many open",
    errno.ESTALE: "the file server has another volume there now; open the repository anew",
}

_libc = ctypes.CDLL(None, use_errno=True)


class LostWriteError(OSError):
    """The system could not write out what it had taken; it says so once and forgets."""


class OtherSpellingError(FileNotFoundError):
    """A name is not there, and leads to something of another spelling on a volume that folds letters."""


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def _function(name: str, *argument_types: Any, result: Any = ctypes.c_int) -> Any:
    """Find a function of the C library; None where it has no such one."""
    function = getattr(_libc, name, None)
    if function is not None:
        function.argtypes = argument_types
        function.restype = result
    return function


def _find_openat2() -> Any:
    """Find the system call that refuses links on the way; None where there is none, or it is not let through."""
    types = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_OpenHow))
    call = _function("syscall", *types, ctypes.c_size_t, result=ctypes.c_long)
    how = ctypes.pointer(_OpenHow(_FOLDER, 0, _RESOLVE_NO_SYMLINKS))
    descriptor = call(_SYS_OPENAT2, _AT_FDCWD, b"/", how, _OPEN_HOW_BYTES)
    if descriptor < 0:
        return None
    os.close(descriptor)
    return call


_OPEN_HOW_BYTES = ctypes.sizeof(_OpenHow)
_linux = sys.platform == "linux"
_openat2: Any = _find_openat2() if _linux else None
_renameat2 = _function(
    "renameat2", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint
)
_syncfs: Any = _function("syncfs", ctypes.c_int) if _linux else None
_sync_file_range: Any = (
    _function("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    if _linux
    else None
)
_PLAIN = ctypes.pointer(_OpenHow(READ_FLAGS, 0, _RESOLVE_NO_SYMLINKS))
_BENEATH = ctypes.pointer(_OpenHow(READ_FLAGS, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH))


def told(error: OSError) -> str:
    """Say what the system says, and the way out where there is one."""
    way_out = _WAYS_OUT.get(error.errno or 0)
    said = error.strerror or str(error)
    return said if way_out is None else f"{said} ({way_out})"


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
        raise LostWriteError(number, os.strerror(number))


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
    with _lost():
        if full is None:
            os.fsync(fd)
        else:
            fcntl.fcntl(fd, full)


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    """Say that it is lost what the system could not write out."""
    try:
        yield
    except OSError as error:
        raise LostWriteError(error.errno, error.strerror) from error


def sync_folder(path: str) -> None:
    """Return when the names in a folder survive a power cut.

    Some network and user-space file systems cannot sync folders and say so; there is nothing
    else that could be done about it there.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _lost():
            os.fsync(fd)
    except LostWriteError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)


def check_spelling(folder: str, name: str) -> None:
    """Refuse an entry of a folder that is there by a name whose letters are larger or smaller."""
    other = name.swapcase()
    if other == name:
        return
    try:
        if not os.path.samestat(os.lstat(f"{folder}/{other}"), os.lstat(f"{folder}/{name}")):
            return
    except (FileNotFoundError, NotADirectoryError):
        return
    form = partial(unicodedata.normalize, "NFC")  # some volumes tell names in another form
    there = list(map(form, os.listdir(folder)))
    if form(name) not in there:
        known = next((each for each in there if each.casefold() == form(name).casefold()), other)
        raise OtherSpellingError(errno.ENOENT, f"it is called {known!r} there", f"{folder}/{name}")


def rename_new(source: str, target: str, *, src_dir_fd: int = _AT_FDCWD) -> None:
    """Rename a file to a name that must be free; ``FileExistsError`` where it is not."""
    if _renameat2 is None:
        raise OSError(errno.ENOSYS, "the C library has no renameat2")
    names = os.fsencode(source), os.fsencode(target)
    if _renameat2(src_dir_fd, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), source, None, target)


def write_pieces(file: Descriptor, pieces: Iterable[Flat]) -> None:
    """Write buffers one after the other, all of them; each is written soon after it was asked for."""
    waiting: list[Flat] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _MANY_BYTES or len(waiting) == _MOST_BUFFERS:
            _write_all(file, waiting)
            waiting, size = [], 0
    _write_all(file, waiting)


def _write_all(file: Descriptor, waiting: list[Flat]) -> None:
    """Write a few buffers, as often as it takes."""
    done = 0
    while done < len(waiting):
        buffers = waiting[done:]
        left = sum(map(len, buffers)) - os.writev(file.own(), buffers)
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


def read_all(fd: int, size: int) -> bytes:
    """Read a file of this size to its end."""
    data = read_range(fd, 0, size + 1)
    while len(data) > size:  # it is being written: take what has come
        more = read_range(fd, len(data), _SMALL_READ)
        if not more:
            break
        data += more
    return data


def open_beneath(folder: str, path: str) -> tuple[int, os.stat_result]:
    """Open a regular file that stands below a folder, without being led out of it; give its facts too.

    Nothing is remembered between two calls and no descriptor stays open: a link that is put there later is met by
    the next call, and no volume is kept from being unmounted. Where the kernel can do it (``openat2``, Linux from
    5.6) one call opens the file and refuses links in the whole path; only where that call meets one, the folder is
    opened as it is named, and the file beneath it. Elsewhere the way is walked, folder by folder.

    Parameters
    ----------
    folder
        An absolute path that ends with ``/``. It may be reached through links: the caller named it.
    path
        The file's path, which begins with ``folder``, without ``.`` and ``..`` parts.

    Raises
    ------
    OSError
        ``ELOOP`` for a symbolic link below the folder, ``EINVAL`` for what is no regular file.
    """
    if _openat2 is None:
        descriptor = _walk(folder, path)
    else:
        descriptor = _ask(_AT_FDCWD, path, _PLAIN)
        if descriptor == -errno.ELOOP:
            descriptor = _beneath(folder, path[len(folder) :])
        if descriptor < 0:
            raise OSError(-descriptor, os.strerror(-descriptor), path)
    try:
        facts = os.fstat(descriptor)
        _check_regular(facts, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, facts


def _check_regular(facts: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", path)


def leads_over_link(folder: str, path: str) -> bool:
    """Whether one of the folders between a folder and a file below it is a symbolic link now."""
    place = folder.rstrip("/")
    for part in path[len(folder) :].split("/")[:-1]:
        place = f"{place}/{part}"
        if os.path.islink(place):
            return True
    return False


def _ask(folder: int, path: str, how: Any) -> int:
    """Open a file with one call: a descriptor, or an error's number below zero."""
    name = os.fsencode(path)
    for _ in range(_TRIES):
        descriptor: int = _openat2(_SYS_OPENAT2, folder, name, how, _OPEN_HOW_BYTES)
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number not in _AGAIN:
            return -number
    return -number


def _beneath(folder: str, rest: str) -> int:
    """Open a file beneath a folder that is opened as it is named."""
    above = os.open(folder, _FOLDER)
    try:
        return _ask(above, rest.lstrip("/"), _BENEATH)
    finally:
        os.close(above)


def _walk(folder: str, path: str) -> int:
    """Open a file folder by folder, where no call does it at once."""
    *parts, name = filter(None, path[len(folder) :].split("/"))
    above = os.open(folder, _FOLDER)
    try:
        for part in parts:
            _refuse_link(part, above, path)
            below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
            os.close(above)
            above = below
        _refuse_link(name, above, path)
        return os.open(name, READ_FLAGS, dir_fd=above)
    finally:
        os.close(above)


def _refuse_link(name: str, above: int, path: str) -> None:
    """Say that a name is a link; systems differ in what they call it when it is opened."""
    if stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


class Descriptor:
    """A file descriptor that closes with its last reference."""

    __slots__ = ("__weakref__", "fd", "process")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.process = os.getpid()

    def own(self) -> int:
        """Give it to be written to: by who opened it, and not by a child that was forked in the middle of that.

        Both have one place in the file: what the child writes would stand between what its parent does.
        """
        # one line, so that nobody forks behind the question
        return self.fd if os.getpid() == self.process else _refuse_child()

    def close(self) -> None:
        """Close it now: some file servers, and file systems of programs, say only then that they took nothing."""
        fd = self.fd
        del self.fd
        with _lost():
            os.close(fd)

    def flush(self) -> None:
        """Hear what :meth:`close` would tell, and keep it open."""
        Descriptor(os.dup(self.fd)).close()

    def __del__(self, _close=os.close) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        if hasattr(self, "fd"):  # it was closed, or an interrupt came before it was set
            _close(self.fd)


def _refuse_child() -> NoReturn:
    raise OSError(errno.EBADF, "this process was forked while its parent wrote the file")


class _Batch(Struct, eq=False):
    """What one sync makes durable."""

    files: list[Descriptor] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    owed: set[str] = field(default_factory=set)
    """Folders in which a name may have been given, by a call whose outcome nobody knows."""
    volumes: set[Descriptor] = field(default_factory=set)
    whole: bool = False
    """Whether there are so many files that the volumes are synced instead of them."""

    def save(self) -> None:
        """Sync whole volumes, or the files and the folders that name them."""
        if self.whole:
            for volume in self.volumes:
                sync_filesystem(volume.fd)
        else:
            if len(self.files) > 1:
                for file in self.files:
                    start_writeback(file.fd)
            for file in self.files:
                sync_file(file.fd)
        for folder in sorted(self.owed if self.whole else self.folders | self.owed):
            sync_folder(folder)


class Unsynced:
    """Files that are written and not yet durable.

    Files stay open until then: write-back errors are told only to the process that holds a file, and forgotten
    when the system drops it from memory. Once all is durable nothing is open, so that a volume can
    be unmounted while a process still has a repository on it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields
        self._turn = threading.Lock()  # held through a sync: no call returns before it is done
        self._waiting = _Batch()
        self._saving: list[_Batch] = []
        self._devices: dict[str, int] = {}
        self._watched: weakref.WeakValueDictionary[int, Descriptor] = weakref.WeakValueDictionary()
        self._failure: str | None = None
        renew_in_forks(self)

    def renew_after_fork(self) -> None:
        """Make the locks anew; what another thread was syncing is not known to be durable here."""
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def watch(self, folder: str) -> Descriptor | None:
        """Open a folder's volume, to be told of errors: before a write, and held until :meth:`add`."""
        if not can_sync_filesystem():
            return None
        watched = self._watched.get(self._devices.get(folder, -1))
        if watched is None:
            watched = Descriptor(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            device = self._devices[folder] = os.fstat(watched.fd).st_dev
            watched = self._watched.setdefault(device, watched)
        return watched

    def add(self, file: Descriptor, folder: str, volume: Descriptor | None) -> None:
        """Take over an open file that was written in a folder, and the volume that was watched."""
        with self._lock:
            self._check()
            waiting = self._waiting
            if volume is not None:
                waiting.volumes.add(volume)
            waiting.files.append(file)
            waiting.folders.add(folder)
            if not waiting.whole and len(waiting.files) <= FEW:
                return
            closing: list[Descriptor] = []
            if volume is not None or waiting.whole:
                waiting.whole = True
                closing, waiting.files = waiting.files, []
        if not closing:
            self.sync()
        try:
            while closing:
                closing.pop().close()
        except LostWriteError as error:
            raise self.fail(error) from error

    def owe(self, folder: str) -> None:
        """Have the next sync make the names in a folder durable, too: one may have been given there."""
        with self._lock:
            self._waiting.owed.add(folder)

    def sync_names(self, folder: str) -> None:
        """Return when the names in a folder are durable; after a failure the next :meth:`sync` owes that."""
        try:
            sync_folder(folder)
        except OSError:
            self.owe(folder)
            raise

    def fail(self, error: LostWriteError) -> StorageError:
        """Never again say that what was written is durable; give the error that says so."""
        self._failure = (
            f"what was written could not be made durable ({told(error)}) and may be "
            "lost: open the place anew and write it again"
        )
        with self._lock:
            self._waiting, self._saving = _Batch(), []  # nothing stays open for it
        return StorageError(self._failure)

    def _check(self) -> None:
        if self._failure is not None:
            raise StorageError(self._failure)

    def sync(self) -> None:
        """Return when everything added so far is durable.

        What the system could not write out it forgets, so a second try would succeed without the data being
        there: then this fails for ever. After an interrupt, or where a folder could not be opened, the next one
        begins anew.
        """
        with self._turn:
            self._check()
            with self._lock:
                self._saving.append(self._waiting)
                self._waiting = _Batch()
            try:
                for batch in self._saving:
                    batch.save()
            except LostWriteError as error:
                raise self.fail(error) from error
            except OSError as error:
                raise StorageError(
                    f"what was written could not be made durable yet ({told(error)}); it is not "
                    "lost: try again"
                ) from error
            self._saving = []
