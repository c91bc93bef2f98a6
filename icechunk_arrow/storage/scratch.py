# Strings, not paths: pathlib costs more than some of these system calls.
# ruff: noqa: PTH102, PTH208
"""Unfinished files of a local place, and how a finished one gets its name so that one writer wins.

Owns the scratch folder, the files and locks in it, and the choice between a hard link and a rename
that refuses to replace. Knows paths, no keys; raises plain ``OSError``, but where the name of the scratch folder is
taken.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import os
import re
import stat
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

from icechunk_arrow.errors import StorageError
from icechunk_arrow.storage import clock, disk
from icechunk_arrow.storage.chance import token
from icechunk_arrow.storage.disk import Descriptor
from icechunk_arrow.storage.forked_children import run_in_forks
from icechunk_arrow.storage.port import Capabilities, flat_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRATCH = ".icechunk-arrow"
"""What unfinished writes stand in, below the root: a name of our own, which query engines skip."""
NO_LOCKS = "this volume cannot lock files, which replacing one safely needs"

_NOTHING_EXCLUSIVE = (
    "this volume has neither hard links nor a rename that refuses to replace, one of which "
    "committing safely needs; use another volume, or pass storage_options={'exclusive_create': "
    "'unsafe'} to create entries in place, which can leave a torn one after a crash"
)
_LEFT_OVER_SECONDS = 24 * 3600.0
_LOCK_SECONDS = 60.0
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_FILE = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_UNFINISHED = re.compile(r"unfinished-[0-9a-f]{24}")
_LOCKS_UNKNOWN = frozenset(
    {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
)


_held: WeakSet[Descriptor] = WeakSet()


@run_in_forks
def _leave_locks() -> None:
    """Close in a child what its parent may hold: else the lock would last until both have ended."""
    for lock in list(_held):
        lock.close()
    _held.clear()


class UnsafeStorageWarning(UserWarning):
    """A place is written in a way that a crash can leave half an entry behind."""


class Way(enum.Enum):
    """What gives a name to one winner only."""

    LINK = "link"
    RENAME = "rename"
    NONE = "none"


class Volume(NamedTuple):
    """What a mounted volume can do."""

    way: Way
    locks: bool

    def capabilities(self, folder: str, *, unsafe: bool) -> Capabilities:
        """Say what a place can do whose folder lies on this volume."""
        exclusive = self.way is not Way.NONE
        facts = ((exclusive, _NOTHING_EXCLUSIVE), (self.locks, NO_LOCKS))
        return Capabilities(
            create=exclusive or unsafe,
            replace=self.locks,
            limited_listing=False,
            fast=True,
            folder=folder,
            missing="; ".join(text for has, text in facts if not has),
        )


class Unfinished(NamedTuple):
    """A file that has no name yet that readers know."""

    folder: int
    """Descriptor of the scratch folder."""
    name: str


def give_name(way: Way, file: Unfinished, target: str) -> None:
    """Give a file its final name, or raise ``FileExistsError``; the other name may stay."""
    if way is Way.LINK:
        os.link(file.name, target, src_dir_fd=file.folder, follow_symlinks=False)
    else:
        disk.rename_new(file.name, target, src_dir_fd=file.folder)


class ScratchFolder:
    """The folder of unfinished files: ours by its name, and used through a descriptor.

    It is opened for each use, so that nothing stays open, and never through a symbolic link. What others put
    there stays: files are made under fresh names, and only such names are removed.
    """

    def __init__(self, root: str, *, durable: bool) -> None:
        self._path = f"{root.rstrip('/')}/{SCRATCH}"
        self._durable = durable

    def explore(self) -> Volume:
        """Try what the volume can do, with files that are made for it."""
        with self._opened() as folder:
            ways = (way for way in (Way.LINK, Way.RENAME) if self._works(folder, way))
            return Volume(way=next(ways, Way.NONE), locks=_can_lock(folder))

    @contextlib.contextmanager
    def file(self, data: bytes, *, durable: bool = True) -> Iterator[Unfinished]:
        """Write a file, as durably as the place is unless that is no matter, and remove what is left of it."""
        with self._opened() as folder, _new_file(folder) as (name, file):
            disk.write_pieces(file, flat_pieces(data))
            try:
                if durable and self._durable:
                    disk.sync_file(file.fd)
                else:
                    file.flush()
            except disk.LostWriteError as error:  # this file goes, and the next one is another
                raise OSError(error.errno, error.strerror) from error
            yield Unfinished(folder, name)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold a lock; the system lifts it when its holder dies, and children that were forked do not hold it."""
        process = os.getpid()
        with self._opened() as folder:
            lock = Descriptor(os.open(f"{name}.lock", _LOCK_FILE, 0o666, dir_fd=folder))
        _held.add(lock)
        deadline = clock.seconds() + _LOCK_SECONDS
        pause = 0.0002
        try:  # around the taking too: an interrupt may come when it is ours and not yet known to be
            while not _try_lock(lock.fd):
                if clock.seconds() > deadline:
                    raise OSError(
                        errno.ETIMEDOUT, f"another process held its lock for {_LOCK_SECONDS:.0f} s"
                    )
                clock.pause(pause)
                pause = min(pause * 2, 0.01)
            yield
        finally:
            if os.getpid() == process:
                fcntl.flock(lock.fd, fcntl.LOCK_UN)

    def tidy(self) -> None:
        """Remove what crashes left here long ago: plain files with names that are only given here.

        Clocks are set, and that of a file server is another one: what a process holds its lock on is not old,
        whatever its time says. Lock files are used again and stay.
        """
        now = clock.now().timestamp()
        with contextlib.suppress(OSError), self._opened() as folder:
            for name in filter(_UNFINISHED.fullmatch, os.listdir(folder)):
                with contextlib.suppress(OSError):
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    age = now - status.st_mtime
                    if stat.S_ISREG(status.st_mode) and abs(age) > _LEFT_OVER_SECONDS:
                        left = _is_left(folder, name)
                        # a time to come says nothing, but where locks work nobody has the file
                        if left or (left is None and age > 0):
                            os.unlink(name, dir_fd=folder)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            folder = self._open()
        except FileNotFoundError:  # the first use, or another process has tidied up
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._path)
            folder = self._open()
        try:
            yield folder
        finally:
            os.close(folder)

    def _open(self) -> int:
        try:
            return os.open(self._path, _FOLDER)
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.ENOTDIR}:
                raise
            raise StorageError(
                f"{self._path} is no folder, or a symbolic link to one, and unfinished writes of a "
                "repository stand there; it was left as it is: move it away",
                path=self._path,
            ) from error

    def _works(self, folder: int, way: Way) -> bool:
        """Whether a way gives a free name, and refuses one that is taken."""
        taken = _fresh_name()
        target = f"{self._path}/{taken}"
        with _new_file(folder) as (first, _), _new_file(folder) as (second, _):
            try:
                give_name(way, Unfinished(folder, first), target)
                give_name(way, Unfinished(folder, second), target)
            except FileExistsError:
                return True
            except OSError as error:
                if error.errno not in disk.NO_LINKS:
                    raise
            finally:
                _remove(folder, taken)
            return False


@contextlib.contextmanager
def _new_file(folder: int) -> Iterator[tuple[str, Descriptor]]:
    """Make a file, and remove its name afterwards, where it still has it; meanwhile it is locked."""
    name, process = _fresh_name(), os.getpid()
    file = Descriptor(os.open(name, _NEW_FILE, 0o666, dir_fd=folder))
    try:
        with contextlib.suppress(OSError):  # not every volume has locks
            fcntl.flock(file.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield name, file
    finally:
        if os.getpid() == process:  # a child that was forked here leaves it to its parent
            _remove(folder, name)


def _fresh_name() -> str:
    return f"unfinished-{token()}"


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _can_lock(folder: int) -> bool:
    """Whether files can be locked."""
    with _new_file(folder) as (_, file):
        try:
            return _try_lock(file.fd)
        except OSError as error:
            if error.errno not in _LOCKS_UNKNOWN:
                raise
            return False


def _is_left(folder: int, name: str) -> bool | None:
    """Whether no process has a file any more; None where the volume cannot tell."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = Descriptor(os.open(name, flags, dir_fd=folder))
    try:
        return _try_lock(file.fd)
    except OSError as error:
        if error.errno not in _LOCKS_UNKNOWN:
            raise
        return None


def _try_lock(fd: int) -> bool:
    """Take a lock if no process holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
