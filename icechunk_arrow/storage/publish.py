# Strings, not paths: pathlib costs more than some of these system calls.
# ruff: noqa: PTH102, PTH108
"""Temporary files of a local place, and how a finished one gets its name so that one writer wins.

Owns the folder ``tmp/``, the files and locks in it, and the choice between a hard link and a rename
that refuses to replace. Knows paths, no keys; raises plain ``OSError``.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icechunk_arrow.storage import disk
from icechunk_arrow.storage.pieces import flat_pieces
from icechunk_arrow.storage.port import Capabilities
from icechunk_arrow.storage.unsynced import Descriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "NO_LOCKS",
    "TemporaryFolder",
    "UnsafeStorageWarning",
    "Volume",
    "Way",
    "publish",
]

NO_LOCKS = "this volume cannot lock files, which replacing one safely needs"

_NOTHING_EXCLUSIVE = (
    "this volume has neither hard links nor a rename that refuses to replace, one of which "
    "committing safely needs; use another volume, or pass storage_options={'exclusive_create': "
    "'unsafe'} to create entries in place, which can leave a torn one after a crash"
)
_LEFT_OVER_SECONDS = 24 * 3600.0
_LOCK_SECONDS = 60.0
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_FILE = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCKS_UNKNOWN = frozenset(
    {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
)


class UnsafeStorageWarning(UserWarning):
    """A place is written in a way that a crash can leave half an entry behind."""


class Way(enum.Enum):
    """What gives a name to one winner only."""

    LINK = "link"
    RENAME = "rename"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What a mounted volume can do."""

    way: Way
    locks: bool

    def capabilities(self, *, unsafe: bool) -> Capabilities:
        """Say what a place on this volume can do."""
        exclusive = self.way is not Way.NONE
        facts = ((exclusive, _NOTHING_EXCLUSIVE), (self.locks, NO_LOCKS))
        return Capabilities(
            create=exclusive or unsafe,
            replace=self.locks,
            limited_listing=False,
            fast=True,
            missing="; ".join(text for has, text in facts if not has),
        )


def publish(way: Way, temporary: str, target: str) -> None:
    """Give a file its final name, or raise ``FileExistsError``; the temporary name may stay."""
    if way is Way.LINK:
        os.link(temporary, target)
    else:
        disk.rename_new(temporary, target)


class TemporaryFolder:
    """The folder of unfinished files."""

    def __init__(self, path: str, *, durable: bool) -> None:
        self._path = path
        self._durable = durable

    def explore(self) -> Volume:
        """Make the folder, clean it, and try what its volume can do."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._path)
        self._sweep()
        ways = (way for way in (Way.LINK, Way.RENAME) if self._works(way))
        return Volume(way=next(ways, Way.NONE), locks=self._locks())

    @contextlib.contextmanager
    def file(self, data: bytes) -> Iterator[str]:
        """Write a file, as durably as the place is, and remove what is left of it."""
        path = self._new_path()
        try:
            try:
                file = Descriptor(os.open(path, _NEW_FILE, 0o666))
            except FileNotFoundError:  # somebody has tidied up
                os.mkdir(self._path)
                file = Descriptor(os.open(path, _NEW_FILE, 0o666))
            disk.write_pieces(file.fd, flat_pieces(data))
            if self._durable:
                disk.sync_file(file.fd)
            yield path
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold a lock; the system lifts it when its holder dies."""
        lock = Descriptor(os.open(f"{self._path}/{name}.lock", _LOCK_FILE, 0o666))
        deadline = time.monotonic() + _LOCK_SECONDS
        pause = 0.0002
        while not _try_lock(lock.fd):
            if time.monotonic() > deadline:
                raise OSError(
                    errno.ETIMEDOUT, f"another process held its lock for {_LOCK_SECONDS:.0f} s"
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.01)
        try:
            yield
        finally:
            fcntl.flock(lock.fd, fcntl.LOCK_UN)

    def _new_path(self) -> str:
        return f"{self._path}/{secrets.token_hex(12)}"

    def _works(self, way: Way) -> bool:
        """Whether a way gives a free name, and refuses one that is taken."""
        first, second, target = (self._new_path() for _ in range(3))
        try:
            for path in (first, second):
                os.close(os.open(path, _NEW_FILE, 0o600))
            try:
                publish(way, first, target)
                publish(way, second, target)
            except FileExistsError:
                return True
            except OSError as error:
                if error.errno not in disk.NO_LINKS:
                    raise
            return False
        finally:
            for path in (first, second, target):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _locks(self) -> bool:
        """Whether files can be locked; a lock that is held just now shows that they can."""
        probe = Descriptor(os.open(f"{self._path}/probe.lock", _LOCK_FILE, 0o666))
        try:
            _try_lock(probe.fd)
        except OSError as error:
            if error.errno not in _LOCKS_UNKNOWN:
                raise
            return False
        return True

    def _sweep(self) -> None:
        """Remove what a crash left here long ago; lock files are used again and stay."""
        oldest = time.time() - _LEFT_OVER_SECONDS
        with os.scandir(self._path) as entries:
            for entry in entries:
                if entry.name.endswith(".lock"):
                    continue
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < oldest:
                        os.unlink(entry.path)


def _try_lock(fd: int) -> bool:
    """Take a lock if nobody holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
