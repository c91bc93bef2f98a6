# Strings, not paths: pathlib costs more than some of these system calls.
# ruff: noqa: PTH100, PTH102, PTH108, PTH112, PTH120
"""Objects as files on a local disk, or on anything mounted like one.

Owns the order of system calls that makes creation atomic and durable. Knows no file kinds.

- ``create``: a file under ``.icechunk-arrow/``, sync, hard link to the final name, sync of the
  folder. Measured with four processes, everything simpler showed torn entries or two winners.
- ``put`` writes straight to the final name, which is the cheapest, and safe: the name is fresh and
  random, no reader looks at it before a commit names it, the commit follows a sync, and what a
  crash leaves is an ordinary orphan of a known age to listings and garbage collection.
- ``replace``: a lock on a file under ``.icechunk-arrow/`` that the system lifts when its holder dies, read,
  compare, rename. It excludes only other users of this method, which is all that is needed.
- Nothing is removed, replaced or followed that was not made here: names are given exclusively, and
  what is replaced or deleted is named by its writer.
- Symbolic links below the root are not followed, neither files nor folders: a repository got from
  elsewhere must not read files outside of it. The root itself may be one.
- A volume may take ``Main`` and ``main`` for one name. What is there by another spelling is not there: else a
  branch would show, and move, another one.
- Files are opened for every read: a cached descriptor would save 4 of 7 microseconds, and spend
  2 of them on finding out whether the name still leads to the same file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import threading
import warnings
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from icechunk_arrow.errors import (
    AlreadyExistsError,
    IcechunkArrowError,
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
    ReadOnlyError,
    StorageError,
)
from icechunk_arrow.storage import disk
from icechunk_arrow.storage.disk import Descriptor, Unsynced
from icechunk_arrow.storage.forked_children import renew_in_forks
from icechunk_arrow.storage.port import (
    ObjectInfo,
    Storage,
    check_key,
    check_range,
    check_size,
    content_token,
    flat_pieces,
    is_key,
    listing_order,
)
from icechunk_arrow.storage.scratch import (
    NO_LOCKS,
    SCRATCH,
    ScratchFolder,
    UnsafeStorageWarning,
    Volume,
    Way,
    give_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from icechunk_arrow.storage.port import Capabilities, Flat, Token, Writable

_T = TypeVar("_T")
_Entries = list[tuple[str, bool]]
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
_FORBIDDEN = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class LocalStorage(Storage):
    """Objects as files below a folder, which is made by the first write.

    Parameters
    ----------
    root
        The folder.
    durable
        Whether writes survive a power cut before the calls that promise so return.
    exclusive_create
        ``"unsafe"`` allows creation in place on volumes that offer nothing better.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        durable: bool = True,
        exclusive_create: Literal["safe", "unsafe"] = "safe",
    ) -> None:
        if exclusive_create not in {"safe", "unsafe"}:
            raise InvalidInputError(
                f"exclusive_create is 'safe' or 'unsafe', not {exclusive_create!r}"
            )
        self._root = os.path.abspath(os.fspath(root))
        self._base = self._root.rstrip("/") + "/"
        self._scratch = ScratchFolder(self._root, durable=durable)
        self._is_tidy = False
        self._durable = durable
        self._unsafe = exclusive_create == "unsafe"
        self._volume: Volume | None = None
        self._volume_lock = threading.Lock()
        self._folders = _Folders(self._root, durable=durable)
        self._unsynced = Unsynced()
        renew_in_forks(self)

    def __repr__(self) -> str:
        return f"LocalStorage({self._root!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._root, self._durable, self._unsafe)

    def renew_after_fork(self) -> None:
        """Make the lock anew."""
        self._volume_lock = threading.Lock()

    @property
    def url(self) -> str:
        """The folder's absolute path."""
        return self._root

    @property
    def capabilities(self) -> Capabilities:
        """What is known; all is assumed until the first write or :meth:`require_writable`."""
        volume = self._volume or Volume(way=Way.LINK, locks=True)
        return volume.capabilities(self._base, unsafe=self._unsafe)

    def require_writable(self) -> None:
        """See :meth:`Storage.require_writable`."""
        with self._writing(SCRATCH):
            if self._explore().way is Way.NONE and not self._unsafe:
                self._explore(again=True)  # it may have been so for a while only
        super().require_writable()

    def get(self, key: str, *, limit_bytes: int | None = None) -> bytes:
        """See :meth:`Storage.get`."""

        def take(fd: int) -> bytes:
            size = os.fstat(fd).st_size
            check_size(key, size, limit_bytes)
            data = disk.read_all(fd, size)
            check_size(key, len(data), limit_bytes)
            return data

        return self._read(key, take)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See :meth:`Storage.get_range`."""
        check_range(start, length)
        return self._read(key, lambda fd: disk.read_range(fd, start, length))

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """See :meth:`Storage.get_tail`."""
        check_range(0, length)

        def take(fd: int) -> tuple[bytes, int]:
            size = os.fstat(fd).st_size
            wanted = min(length, size)
            return disk.read_range(fd, size - wanted, wanted), size

        return self._read(key, take)

    def get_versioned(self, key: str, *, limit_bytes: int | None = None) -> tuple[bytes, Token]:
        """See :meth:`Storage.get_versioned`."""
        data = self.get(key, limit_bytes=limit_bytes)
        return data, content_token(data)

    def exists(self, key: str) -> bool:
        """See :meth:`Storage.exists`."""
        path = self._path(key)
        try:
            self._folders.check_plain(key)
            return stat.S_ISREG(os.lstat(path).st_mode)
        except OSError as error:
            if error.errno in _ABSENT:
                return False
            raise self._read_error(error, key) from error

    def _list(self, prefix: str, limit: int | None) -> Iterator[ObjectInfo]:  # noqa: ARG002 - a folder is read whole
        return self._walk(prefix)

    def _list_folders(self, prefix: str) -> Iterable[str]:
        return (name for name, is_folder in self._entries(prefix) if is_folder)

    def put(
        self,
        key: str,
        data: Writable | Iterable[Writable],
        metadata: Mapping[str, str] | None = None,  # noqa: ARG002 - files have no room for it
    ) -> None:
        """See :meth:`Storage.put`."""
        path = self._path(key)
        with self._writing(key):
            file, volume = self._write_new(key, path, flat_pieces(data))
            if not self._durable:
                with _removed_after_failure(path):
                    file.close()
        if self._durable:
            self._unsynced.add(file, os.path.dirname(path), volume)

    @property
    def syncs(self) -> bool:
        """Whether this handle is durable."""
        return self._durable

    def sync(self) -> None:
        """See :meth:`Storage.sync`."""
        if self._durable:
            self._unsynced.sync()

    def sync_everything(self) -> None:
        """See :meth:`Storage.sync_everything`; it syncs the volumes that the folders lie on."""
        if self._durable:
            self._unsynced.sync()
            with self._writing(""):
                disk.sync_tree(self._root)

    def create(self, key: str, data: bytes) -> None:
        """See :meth:`Storage.create`.

        Why that is right: the file is whole and synced before it has the name that readers know. The name is given
        by one call that fails where it is taken (a hard link, or a rename that refuses to replace), so of several
        writers one wins, and no reader sees a part. The folder is synced before this returns, so the caller is told
        of nothing that a power cut takes back. Looking first whether the name is taken saves a loser the file, and
        decides nothing. Where the volume has neither call the file is made in place, which refuses a taken name
        too, but shows a part to readers meanwhile: only a caller that chose ``"unsafe"`` comes there.

        After a failure of the call that gives the name, or of the sync behind it, nobody knows whether the name
        stands and stays: the next :meth:`sync` sees to it that it stays.
        """
        path = self._path(key)
        self.require_writable()
        with self._writing(key):
            self._folders.make(key.rpartition("/")[0])
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, "it is there already", path)
            way = self._explore().way
            if way is Way.NONE:
                file, volume = self._write_new(key, path, flat_pieces(data))
                if self._durable:
                    self._unsynced.add(file, os.path.dirname(path), volume)
                    self._unsynced.sync()
                return
            with self._scratch.file(data) as unfinished, self._naming(path):
                give_name(way, unfinished, path)
            if self._durable:
                self._unsynced.sync_names(os.path.dirname(path))

    @contextlib.contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Remember a name that may be given although the call failed: its first answer may have been lost."""
        try:
            yield
        except OSError:
            if self._durable:
                self._unsynced.owe(os.path.dirname(path))
            raise

    def replace(self, key: str, data: bytes, token: Token) -> None:
        """See :meth:`Storage.replace`."""
        path = self._path(key)
        gone = PreconditionFailedError(f"{key!r} in {self.url} is gone", key=key)
        if not self.exists(key):
            raise gone
        with self._writing(key):
            if not self._explore().locks and not self._explore(again=True).locks:
                raise ReadOnlyError(f"{self._root}: {NO_LOCKS}", key=key)
            with self._scratch.lock(hashlib.sha256(key.encode()).hexdigest()[:32]):
                try:
                    present = content_token(self.get(key))
                except ObjectNotFoundError:
                    raise gone from None
                if present != token:
                    raise PreconditionFailedError(f"{key!r} in {self.url} has changed", key=key)
                with self._scratch.file(data) as unfinished, self._naming(path):
                    os.replace(unfinished.name, path, src_dir_fd=unfinished.folder)
                if self._durable:
                    self._unsynced.sync_names(os.path.dirname(path))

    def overwrite(self, key: str, data: bytes) -> None:
        """See :meth:`Storage.overwrite`."""
        path = self._path(key)
        with self._writing(key):
            self._explore()
            self._folders.make(key.rpartition("/")[0])
            with self._scratch.file(data, durable=False) as unfinished:
                os.replace(unfinished.name, path, src_dir_fd=unfinished.folder)

    def time_of_put(self, key: str) -> datetime | None:
        """See :meth:`Storage.time_of_put`."""
        try:
            return _modified(os.stat(self._path(key)))  # noqa: PTH116
        except OSError:
            return None

    def delete(self, keys: Iterable[str]) -> None:
        """See :meth:`Storage.delete`."""
        for key in keys:
            path = self._path(key)
            with self._writing(key):
                try:
                    self._folders.check_plain(key)
                    _refuse_link(path)
                    os.unlink(path)
                except OSError as error:
                    if error.errno not in _ABSENT:
                        raise

    def tidy(self) -> None:
        """See :meth:`Storage.tidy`; once for each handle."""
        if not self._is_tidy:
            self._is_tidy = True
            self._scratch.tidy()

    def _path(self, key: str) -> str:
        check_key(key)
        if key.startswith(SCRATCH) and key.partition("/")[0] == SCRATCH:
            raise InvalidInputError(f"{key!r}: unfinished writes of a local place stand there")
        return self._base + key

    def _read(self, key: str, take: Callable[[int], _T]) -> _T:
        """Open a file, take something of it, and say in our words what the system says about that."""
        path = self._path(key)
        try:
            self._folders.check_plain(key)
            fd = os.open(path, disk.READ_FLAGS)
            try:
                return take(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise self._read_error(error, key) from error

    def _write_new(
        self, key: str, path: str, pieces: Iterable[Flat]
    ) -> tuple[Descriptor, Descriptor | None]:
        """Write a file under a name that must be free; no part of it stays after a failure.

        Give it open, and its volume as :meth:`Unsynced.watch` does.
        """
        try:
            file, volume = self._open_new(key, path)
        except FileNotFoundError:  # another process removed the folder
            self._folders.forget()
            file, volume = self._open_new(key, path)
        with _removed_after_failure(path):
            disk.write_pieces(file, pieces)
        return file, volume

    def _open_new(self, key: str, path: str) -> tuple[Descriptor, Descriptor | None]:
        self._folders.make(key.rpartition("/")[0])
        volume = self._unsynced.watch(os.path.dirname(path)) if self._durable else None
        return Descriptor(os.open(path, _NEW_FILE, 0o666)), volume

    def _explore(self, *, again: bool = False) -> Volume:
        """Find out what the volume can do; once, with the first write, and where that is not enough."""
        if self._volume is None or again:
            with self._volume_lock:
                if self._volume is None or again:
                    self._folders.make("")
                    volume = self._scratch.explore()
                    if volume.way is Way.NONE and self._unsafe:
                        warnings.warn(
                            f"{self._root}: entries are created in place, because this volume has "
                            "neither hard links nor a rename that refuses to replace; a crash can "
                            "leave a torn entry",
                            UnsafeStorageWarning,
                            stacklevel=3,
                        )
                    self._volume = volume
        return self._volume

    def _entries(self, prefix: str) -> _Entries:
        """Names in a folder and whether each is a folder; links and pipes are left out."""
        children: _Entries = []
        try:
            self._folders.check_plain(prefix)
            with os.scandir(self._base + prefix) as entries:
                for entry in entries:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if (is_folder or entry.is_file(follow_symlinks=False)) and is_key(entry.name):
                        children.append((entry.name, is_folder))
        except OSError as error:
            if error.errno not in _ABSENT:
                raise self._read_error(error, prefix) from error
        if not prefix:
            return [entry for entry in children if entry[0] != SCRATCH]
        return children

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        entries = self._entries(prefix)
        for name, is_folder in sorted(entries, key=lambda entry: listing_order(*entry)):
            key = prefix + name
            if is_folder:
                yield from self._walk(f"{key}/")
                continue
            try:
                facts = os.lstat(self._base + key)
            except OSError as error:
                if error.errno in _ABSENT:  # deleted meanwhile
                    continue
                raise self._read_error(error, key) from error
            yield ObjectInfo(key=key, size_bytes=facts.st_size, modified=_modified(facts))

    def _read_error(self, error: OSError, key: str) -> IcechunkArrowError:
        if error.errno in _ABSENT:
            return ObjectNotFoundError(f"there is no object {key!r} in {self.url}", key=key)
        if error.errno == errno.ELOOP:
            return self._link_error(error, key)
        return StorageError(f"{key!r} in {self.url} cannot be read: {disk.told(error)}", key=key)

    @contextlib.contextmanager
    def _writing(self, key: str) -> Iterator[None]:
        """Say in our words what the system says about writing."""
        try:
            yield
        except IcechunkArrowError:
            raise
        except OSError as error:
            raise self._write_error(error, key) from error

    def _write_error(self, error: OSError, key: str) -> IcechunkArrowError:
        if isinstance(error, disk.LostWriteError) and self._durable:
            return self._unsynced.fail(error)
        if isinstance(error, disk.OtherSpellingError):
            return InvalidInputError(
                f"{key!r} cannot be written in {self.url}: this volume takes large and small letters "
                f"for the same, and {error.strerror}; choose another name",
                key=key,
            )
        if isinstance(error, FileExistsError):
            return AlreadyExistsError(f"{key!r} is there already in {self.url}", key=key)
        if error.errno in _FORBIDDEN:
            return ReadOnlyError(f"{self.url} cannot be written: {error.strerror}", key=key)
        if error.errno == errno.ENAMETOOLONG:
            return InvalidInputError(f"{key!r} is too long a name for {self.url}", key=key)
        if error.errno == errno.ELOOP:
            return self._link_error(error, key)
        return StorageError(f"{key!r} in {self.url} cannot be written: {disk.told(error)}", key=key)

    def _link_error(self, error: OSError, key: str) -> StorageError:
        return StorageError(
            f"{error.filename or key!r} is a symbolic link, and links inside a repository are not "
            "followed; put the file or folder itself there",
            key=key,
        )


class _Folders:
    """What one handle knows of the folders below its root: there, durable, and not symbolic links."""

    def __init__(self, root: str, *, durable: bool) -> None:
        self._root = root
        self._durable = durable
        self._plain: set[str] = set()
        self._made: set[str] = set()

    def check_plain(self, key: str) -> None:
        """Refuse a key below a symbolic link or of another spelling; what was right is not looked at again."""
        folder = key.rpartition("/")[0]
        if not folder or folder in self._plain:
            return
        place = self._root
        for part in folder.split("/"):
            above, place = place, f"{place}/{part}"
            if stat.S_ISLNK(os.lstat(place).st_mode):
                raise OSError(errno.ELOOP, "a folder is a symbolic link", place)
            disk.check_spelling(above, part)
        self._plain.add(folder)

    def make(self, folder: str) -> None:
        """Make a folder and those above it, and their names durable, unless this was done."""
        if folder in self._made:
            return
        self._make_root(self._root)
        place = self._root
        for part in folder.split("/") if folder else ():
            above, place = place, f"{place}/{part}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(place)
            if self._durable:  # also where it was there: its maker may not have come so far
                disk.sync_folder(above)
        self.check_plain(f"{folder}/")
        self._made.add(folder)

    def forget(self) -> None:
        """Look again: another process has removed a folder."""
        self._made.clear()

    def _make_root(self, root: str) -> None:
        """Make the root and what is missing above it; where it is there, its maker may not have come so far."""
        above = os.path.dirname(root)
        is_new = not os.path.isdir(root)
        if is_new:
            if above != root:
                self._make_root(above)
            with contextlib.suppress(FileExistsError):
                os.mkdir(root)
        if self._durable:
            # a folder of another user may be one that cannot be opened, only passed through
            with contextlib.nullcontext() if is_new else contextlib.suppress(PermissionError):
                disk.sync_folder(above)


def _modified(facts: os.stat_result) -> datetime | None:
    """When a file was written; None for a time that no calendar has, which anybody may give it."""
    try:
        return datetime.fromtimestamp(facts.st_mtime, UTC)
    except (OverflowError, ValueError, OSError):
        return None


@contextlib.contextmanager
def _removed_after_failure(path: str) -> Iterator[None]:
    """Let no part of a file stay that was just made; one that a parent makes stays with it."""
    process = os.getpid()
    try:
        yield
    except BaseException:
        if os.getpid() == process:
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise


def _refuse_link(path: str) -> None:
    """Refuse what was not made here: nothing here makes links."""
    if stat.S_ISLNK(os.lstat(path).st_mode):
        raise OSError(errno.ELOOP, "it is a symbolic link", path)


def _reopen(root: str, durable: bool, unsafe: bool) -> LocalStorage:
    exclusive_create: Literal["safe", "unsafe"] = "unsafe" if unsafe else "safe"
    return LocalStorage(root, durable=durable, exclusive_create=exclusive_create)
