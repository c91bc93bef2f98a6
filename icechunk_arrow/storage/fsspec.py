"""Objects in any file system that fsspec knows.

Owns what all places share that are reached over one: the connection, tries, words for failures. And
what can be said of file systems in general: they read, list folder by folder, write and delete. Committing needs
exclusive creation, and only those whose creation is known to be one conditional request may do it; all others open
for reading. What S3 and plain HTTP can do beyond that stands in modules of their own.
"""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from fsspec.core import url_to_fs

from icechunk_arrow.errors import (
    AlreadyExistsError,
    IcechunkArrowError,
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
)
from icechunk_arrow.storage.answers import Part, etag_of, micros_of, range_from
from icechunk_arrow.storage.failures import Kind, RequestFailedError, error_of, send
from icechunk_arrow.storage.forked_children import renew_in_forks
from icechunk_arrow.storage.port import (
    Capabilities,
    ObjectInfo,
    Storage,
    check_key,
    check_range,
    check_size,
    content_token,
    is_key,
    joined,
    listing_order,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from icechunk_arrow.storage.port import Token, Writable
    from icechunk_arrow.storage.secrets import Address

_T = TypeVar("_T")
_TAKEN = frozenset({Kind.EXISTS, Kind.PRECONDITION, Kind.CONFLICT})
# One conditional request each, by their source (they are not among our tests): gcsfs sends
# ifGenerationMatch=0, adlfs If-None-Match.
_EXCLUSIVE: dict[str, dict[str, Any]] = {
    "gs": {"mode": "create"},
    "gcs": {"mode": "create"},
    "abfs": {"overwrite": False},
    "abfss": {"overwrite": False},
    "az": {"overwrite": False},
}
_MODIFIED = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")


class ConnectedStorage(Storage):
    """A place that is reached over a file system of fsspec.

    Parameters
    ----------
    address
        Its URL, what the file system takes, tries and pauses.
    """

    def __init__(self, address: Address) -> None:
        protocol, _, rest = address.url.partition("://")
        self._address = replace(address, url=f"{protocol}://{rest.rstrip('/')}")
        self._url = self._address.url
        self._settings = address.settings
        self._connecting = threading.RLock()
        self._one_at_a_time = threading.RLock()
        self._connection: Any = None
        self._root = ""
        self._fs  # noqa: B018 - wrong options are best told now
        renew_in_forks(self)

    @classmethod
    def with_login(cls, options: Mapping[str, Any], login: Mapping[str, str]) -> dict[str, Any]:
        """Add a name and a password that stood in a URL to the options."""
        return {**login, **options}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._address,)

    def renew_after_fork(self) -> None:
        """Make the connection anew: its thread was not forked."""
        self._connecting = threading.RLock()
        self._one_at_a_time = threading.RLock()
        self._connection = None

    @property
    def url(self) -> str:
        """The URL, as given."""
        return self._url

    @abstractmethod
    def get_part(self, key: str, start: int, length: int, *, facts: bool) -> Part:
        """Get a range of a file that is not ours, fewer bytes where it ends, and facts of the file.

        Its key is any name that the place knows. ``facts`` says whether they are needed, where they cost something.
        """

    @abstractmethod
    def _look_for(self, key: str) -> object:
        """Ask the place for an object, or raise ``ObjectNotFoundError``."""

    def sync(self) -> None:
        """Nothing is left to do: a put returns when the store has answered."""

    def exists(self, key: str) -> bool:
        """See :meth:`Storage.exists`."""
        try:
            self._look_for(key)
        except ObjectNotFoundError:
            return False
        return True

    @property
    def _fs(self) -> Any:
        """The file system; made anew in a forked child."""
        connection = self._connection
        if connection is None:
            with self._connecting:
                if self._connection is None:
                    self._connection, self._root = self._connect()
                connection = self._connection
        return connection

    def _connect(self) -> tuple[Any, str]:
        try:
            fs, path = url_to_fs(self._url, **self._options())
        except (ImportError, TypeError, ValueError, KeyError) as error:
            raise InvalidInputError(
                f"{self._url} cannot be opened with these storage_options: "
                f"{self._address.hidden(str(error))}",
                url=self._url,
            ) from error
        return fs, path.rstrip("/")

    def _options(self) -> dict[str, Any]:
        """Give the file system's options."""
        return dict(self._address.options)

    def _send(self, action: str, key: str, request: Callable[[Any], _T]) -> _T:
        """Send a request as often as it is worth it, and say in our words what went wrong."""
        try:
            return self._try(request)
        except RequestFailedError as failed:
            raise self._error(failed, action, key) from failed

    def _try(self, request: Callable[[Any], _T]) -> _T:
        fs = self._fs
        if getattr(fs, "async_impl", False):
            return send(lambda: request(fs), self._settings, self._address.hidden)
        with self._one_at_a_time:  # what is not asynchronous seldom says that threads may share it
            return send(lambda: request(fs), self._settings, self._address.hidden)

    def _create_error(self, failed: RequestFailedError, key: str) -> IcechunkArrowError:
        if failed.failure.kind in _TAKEN:
            return AlreadyExistsError(f"{key!r} is there already in {self._url}", key=key)
        return self._error(failed, "create", key)

    def _error(self, failed: RequestFailedError, action: str, key: str) -> IcechunkArrowError:
        """Say what a failure means here."""
        return error_of(failed, action, key, self._address)


class FsspecStorage(ConnectedStorage):
    """Objects below a URL that fsspec knows, without anything that all its file systems do not have."""

    @property
    def capabilities(self) -> Capabilities:
        """What this file system can do."""
        exclusive = self._exclusive_options() is not None
        name = self._url.partition("://")[0]
        facts = (
            (exclusive, f"{name} through fsspec has no exclusive creation, which commits need"),
            (False, f"{name} through fsspec has no conditional replacement"),
        )
        return Capabilities(
            create=exclusive,
            replace=False,
            limited_listing=False,
            fast=False,
            lingering=True,
            missing="; ".join(text for has, text in facts if not has)
            + "; use s3://, gs://, az:// or a local folder for what is written",
        )

    def get(self, key: str, *, limit_bytes: int | None = None) -> bytes:
        """See :meth:`Storage.get`."""
        path = self._path(key)
        if limit_bytes is None:
            return bytes(self._send("read", key, lambda fs: fs.cat_file(path)))
        data = self._some(key, lambda fs: bytes(fs.cat_file(path, start=0, end=limit_bytes + 1)))
        check_size(key, len(data), limit_bytes)
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See :meth:`Storage.get_range`."""
        check_range(start, length)
        path = self._path(key)
        if not length:
            self._look_for(key)
            return b""
        return self._some(key, lambda fs: range_from(fs, path, start, length))

    def get_part(self, key: str, start: int, length: int, *, facts: bool) -> Part:
        """See :meth:`ConnectedStorage.get_part`; facts are asked for on their own."""
        path = f"{self._root}/{key}"
        info = self._send("read", key, lambda fs: fs.info(path)) if facts else {}
        data = self._some(key, lambda fs: range_from(fs, path, start, length))
        return Part(data, etag_of(info), micros_of(_modified(info)))

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """See :meth:`Storage.get_tail`."""
        check_range(0, length)
        size = self._look_for(key)
        wanted = min(length, size)
        return self.get_range(key, size - wanted, wanted) if wanted else b"", size

    def put(
        self,
        key: str,
        data: Writable | Iterable[Writable],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """See :meth:`Storage.put`; here it is durable at once."""
        path = self._path(key)
        whole = joined(data)
        options = {"metadata": dict(metadata)} if metadata and self._keeps_metadata() else {}
        self._send("write", key, lambda fs: fs.pipe_file(path, whole, **options))

    def create(self, key: str, data: bytes) -> None:
        """See :meth:`Storage.create`."""
        path = self._path(key)
        self.require_writable()
        options = self._exclusive_options() or {}
        try:
            self._try(lambda fs: fs.pipe_file(path, bytes(data), **options))
        except RequestFailedError as failed:
            raise self._create_error(failed, key) from failed

    def get_versioned(self, key: str, *, limit_bytes: int | None = None) -> tuple[bytes, Token]:
        """See :meth:`Storage.get_versioned`."""
        data = self.get(key, limit_bytes=limit_bytes)
        return data, content_token(data)

    def replace(self, key: str, data: bytes, token: Token) -> None:  # noqa: ARG002 - refused
        """Refuse: see :attr:`capabilities`."""
        check_key(key)
        raise ReadOnlyError(f"{key!r} cannot be replaced: {self.capabilities.missing}", key=key)

    def overwrite(self, key: str, data: bytes) -> None:
        """See :meth:`Storage.overwrite`."""
        path = self._path(key)
        self._send("write", key, lambda fs: fs.pipe_file(path, bytes(data)))

    def _list(self, prefix: str, limit: int | None) -> Iterator[ObjectInfo]:  # noqa: ARG002 - a folder is read whole
        return self._walk(prefix)

    def _list_folders(self, prefix: str) -> Iterable[str]:
        return (name for name, facts in self._entries(prefix) if _is_folder(facts))

    def delete(self, keys: Iterable[str]) -> None:
        """See :meth:`Storage.delete`."""
        paths = [(key, self._path(key)) for key in keys]

        def remove(item: tuple[str, str]) -> None:
            with contextlib.suppress(ObjectNotFoundError):
                self._send("delete", item[0], lambda fs: fs.rm_file(item[1]))

        with ThreadPoolExecutor(self._settings.max_concurrency) as pool:
            for _ in pool.map(remove, paths):
                pass

    def _exclusive_options(self) -> dict[str, Any] | None:
        """Find what makes ``pipe_file`` create exclusively; None where nothing does for sure."""
        fs = self._fs
        names = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
        return next((_EXCLUSIVE[name] for name in names if name in _EXCLUSIVE), None)

    def _keeps_metadata(self) -> bool:
        return self._exclusive_options() == _EXCLUSIVE["gs"]

    def _path(self, key: str) -> str:
        check_key(key)
        return f"{self._root}/{key}"

    def _some(self, key: str, request: Callable[[Any], bytes]) -> bytes:
        """Ask for some of an object: nothing, where it ends before that."""
        try:
            return self._try(request)
        except RequestFailedError as failed:
            if failed.failure.kind is Kind.RANGE:
                return b""
            raise self._error(failed, "read", key) from failed

    def _look_for(self, key: str) -> int:
        """Ask for the size of an object."""
        path = self._path(key)
        facts = self._send("read", key, lambda fs: fs.info(path))
        if _is_folder(facts):
            raise ObjectNotFoundError(f"there is no object {key!r} in {self._url}", key=key)
        return int(facts["size"])

    def _entries(self, prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """List what stands in a folder: names and facts."""
        folder = f"{self._root}/{prefix}".rstrip("/")

        def ask(fs: Any) -> Any:
            fs.invalidate_cache(folder)
            return fs.ls(folder, detail=True)

        try:
            listing = self._send("list", prefix, ask)
        except ObjectNotFoundError:
            return
        for facts in listing:
            above, _, name = facts["name"].rstrip("/").rpartition("/")
            if is_key(name) and above.rstrip("/") == folder:
                yield name, facts

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        entries = sorted(
            self._entries(prefix), key=lambda entry: listing_order(entry[0], _is_folder(entry[1]))
        )
        for name, facts in entries:
            if _is_folder(facts):
                yield from self._walk(f"{prefix}{name}/")
            else:
                yield ObjectInfo(
                    key=prefix + name, size_bytes=int(facts["size"]), modified=_modified(facts)
                )


def _is_folder(facts: Mapping[str, Any]) -> bool:
    return facts.get("type") == "directory"


def _modified(facts: Mapping[str, Any]) -> datetime | None:
    """Read the time of writing, which every file system calls by another name."""
    for name in _MODIFIED:
        value = facts.get(name)
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                continue
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = datetime.fromtimestamp(value, UTC)
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return None
