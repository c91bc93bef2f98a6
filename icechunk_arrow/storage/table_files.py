"""Files of a storage, and files made on demand, as a file system that a query engine reads.

Owns what an engine is told about names, sizes and times, and how few requests its reads become. Knows neither
manifests nor tables: names, sizes and contents are given.

An engine lists a name before it opens it. So a name may stand for a group of files; on a local disk that is where
files that have gone are noticed, before a row is read. Objects are read by what checks them: an engine is given
nothing else of them, wherever they lie. While views are made only columns matter: no object is looked at for that.
"""

from __future__ import annotations

import io
import os
import stat
import threading
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractFileSystem

from icechunk_arrow.errors import CorruptFileError, ObjectNotFoundError, StorageError
from icechunk_arrow.storage.disk import told
from icechunk_arrow.storage.forked_children import renew_in_forks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from icechunk_arrow.storage.port import Storage

_GENERATIONS = 4
"""So many states of what is read are remembered, for queries that began before a refresh."""
_MADE_AT = datetime(2000, 1, 1, tzinfo=UTC)
_DESCRIBED_AT = datetime(1999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """Objects that are read together, with their sizes."""

    sizes: Mapping[str, int]
    """Bytes of each object, by key."""
    owner: str
    """What they belong to, for messages: ``snapshot VY76P925PRY57WFEK410``."""


class TableFiles(AbstractFileSystem):  # type: ignore[misc]
    """A read-only file system of names ``<protocol>://<generation>/…``.

    Parameters
    ----------
    storage
        Where objects are.
    protocol
        What names begin with; of this instance alone.
    read
        Reads a part of an object, checked: of its key, its size, where the part begins and how long it is.
    """

    cachable = False

    def __init__(
        self, storage: Storage, protocol: str, read: Callable[[str, int, int, int], bytes]
    ) -> None:
        super().__init__()
        self.protocol = protocol
        self.storage = storage
        self.failure: Exception | None = None
        """What went wrong last: an engine passes on its text only."""
        self.keeper: object = None
        """Whatever must live as long as an engine has this file system."""
        self._groups: OrderedDict[int, dict[str, FileGroup]] = OrderedDict()
        self._makers: dict[int, Callable[[str, bool], bytes]] = {}
        self._sizes: dict[str, tuple[str, int, str]] = {}
        self._made: dict[str, bytes] = {}
        self._read = read
        self._lock = threading.Lock()
        self._local = threading.local()
        renew_in_forks(self)

    def renew_after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    # -- what there is

    def add_generation(self, make: Callable[[str, bool], bytes]) -> str:
        """Add a state, and give what its names begin with.

        Of any name that is no group's ``make`` gives the content; with True, and of groups too, one that has the
        same columns and no rows.
        """
        with self._lock:
            number = next(reversed(self._groups), 0) + 1
            self._groups[number] = {}
            self._makers[number] = make
            while len(self._groups) > _GENERATIONS:
                self._forget(self._groups.popitem(last=False)[0])
        return self._name(number, "")

    def add_group(self, start: str, rest: str, group: FileGroup) -> str:
        """Add objects to a state, and give the name that stands for all of them."""
        number, _ = self._parsed(start)
        with self._lock:
            self._groups[number][rest] = group
            for key, size in group.sizes.items():
                self._sizes[self._name(number, key)] = (key, size, group.owner)
        return self._name(number, rest)

    def _name(self, number: int, rest: str) -> str:
        return f"{self.protocol}://{number}/{rest}"

    def _forget(self, number: int) -> None:
        del self._makers[number]
        start = self._name(number, "")
        for known in (self._sizes, self._made):
            for name in [name for name in known if name.startswith(start)]:
                del known[name]

    @contextmanager
    def describing(self) -> Iterator[None]:
        """Within this block the calling thread sees files without rows: their columns cost nothing."""
        self._local.describing = True
        try:
            yield
        finally:
            self._local.describing = False

    def _is_describing(self) -> bool:
        return getattr(self._local, "describing", False)

    def check(self, start: str) -> None:
        """Find files of a state on a local disk that have gone, or are not what they were.

        Elsewhere nothing is asked: it would take a request for each, and reading them will tell.
        """
        folder = self.storage.capabilities.folder
        if folder is not None:
            _check_local(folder, self._groups[self._parsed(start)[0]].values())

    # -- what an engine asks

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return path

    def unstrip_protocol(self, name: str) -> str:
        """Names are whole already."""
        return name

    def glob(self, path: str, maxdepth: int | None = None, **_: Any) -> list[str]:  # noqa: ARG002
        """Give the files that a name stands for; nothing in a name is a pattern."""
        with self._reported():
            number, rest = self._parsed(path)
            group = self._groups[number].get(rest)
            if group is None or self._is_describing():
                return [path]
            folder = self.storage.capabilities.folder
            if folder is not None:
                _check_local(folder, [group])
            return [self._name(number, key) for key in group.sizes]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Size of a file, without asking the storage."""
        with self._reported():
            known = self._sizes.get(path)
            size = len(self._content(path)) if known is None else known[1]
            return {"name": path, "size": size, "type": "file"}

    def modified(self, path: str) -> datetime:  # noqa: ARG002
        """When a file was changed: never."""
        return _DESCRIBED_AT if self._is_describing() else _MADE_AT

    def exists(self, path: str, **_: Any) -> bool:
        """Whether a file is there; what is named is."""
        return path.startswith(f"{self.protocol}://")

    def isfile(self, path: str) -> bool:
        """Everything is a file."""
        return self.exists(path)

    def isdir(self, path: str) -> bool:  # noqa: ARG002
        """Nothing is a folder."""
        return False

    def open(self, path: str, mode: str = "rb", **_: Any) -> io.RawIOBase | io.BytesIO:
        """Open a file to read; the storage is not asked yet."""
        with self._reported():
            if mode != "rb":
                raise PermissionError(f"{path} can only be read")
            if path in self._sizes:
                return _Remote(self, path)
            return io.BytesIO(self._content(path))

    # -- contents

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failure = error
            raise

    def _parsed(self, path: str) -> tuple[int, str]:
        number, _, rest = path.removeprefix(f"{self.protocol}://").partition("/")
        if not number.isdigit() or int(number) not in self._groups:
            raise FileNotFoundError(
                f"{path} is of a state that is gone: it was refreshed more than {_GENERATIONS} times since. "
                f"Run the query again."
            )
        return int(number), rest

    def _content(self, path: str) -> bytes:
        number, rest = self._parsed(path)
        if self._is_describing():
            return self._makers[number](rest, True)
        content = self._made.get(path)
        if content is None:
            content = self._makers[number](rest, False)
            with self._lock:
                if number in self._groups:
                    self._made[path] = content
        return content

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Read a part of an object, checked."""
        with self._reported():
            key, size, owner = self._sizes[path]
            length = max(min(length, size - start), 0)
            try:
                return self._read(key, size, start, length)
            except ObjectNotFoundError as error:
                raise _gone(key, owner, self.storage.url) from error


def _check_local(root: str, groups: Iterable[FileGroup]) -> None:
    """Find files that have gone, or are not what they were, before anything is read of the others.

    Symbolic links are not followed: they could lead out of the repository.
    """
    owners: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for group in groups:
        owners.update(dict.fromkeys(group.sizes, group.owner))
        sizes.update(group.sizes)
    for folder in {key.rpartition("/")[0] for key in sizes}:
        if os.path.islink(root + folder):  # noqa: PTH114
            raise CorruptFileError(
                f"{root}{folder} is a symbolic link, which is not followed below a repository",
                key=folder,
            )
    for key, size in sizes.items():
        try:
            status = os.lstat(root + key)
        except FileNotFoundError as error:
            raise _gone(key, owners[key], root) from error
        except OSError as error:
            raise StorageError(
                f"{root}{key} of {owners[key]} cannot be read: {told(error)}", key=key
            ) from error
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            raise CorruptFileError(
                f"{root}{key} of {owners[key]} is damaged: it should be a file of {size} bytes. Restore it "
                f"from a copy.",
                key=key,
            )


def _gone(key: str, owner: str, place: str) -> CorruptFileError:
    return CorruptFileError(
        f"{key} of {owner} is gone from {place}. Restore it from a copy, or attach another snapshot.",
        key=key,
    )


class _Remote(io.RawIOBase):
    """An object of the storage, read by ranges."""

    def __init__(self, files: TableFiles, path: str) -> None:
        super().__init__()
        self._files = files
        self._path = path
        self._place = 0
        self.size = int(files.info(path)["size"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, self.size)[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        length = self.size - self._place if size < 0 else size
        data = self._files.read_range(self._path, self._place, length)
        self._place += len(data)
        return data
