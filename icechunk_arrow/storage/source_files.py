"""Files of other writers that are read once and never written: what an ingest finds, opens and copies.

Owns finding, sizes, times and ETags of such files, in the words in which a virtual chunk records them.
"""

from __future__ import annotations

import io
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from icechunk_arrow.errors import (
    IcechunkArrowError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
)
from icechunk_arrow.storage.answers import (
    etag_of,
    local_etag,
    micros_of,
    micros_of_http,
    range_from,
)
from icechunk_arrow.storage.failures import Kind, RequestFailedError, send
from icechunk_arrow.storage.settings import StorageSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Listing", "SourceFile", "SourceFiles", "absolute_url", "local_file"]

_BLOCK_BYTES = 1 << 20
"""A library that looks for its metadata reads here and there: blocks of this size are kept."""
_BLOCKS = 64
_LOCAL = ("file://", "local://")
_WEB = ("http://", "https://")
_SETTINGS = StorageSettings()
_T = TypeVar("_T")
_AT_ONCE = 16
"""So many places are asked at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file as it is now."""

    url: str
    size_bytes: int
    etag: str | None
    """Of a local file, its time and size."""
    last_modified: int | None
    """Microseconds since 1970, UTC; only where there is no ETag."""

    @property
    def can_be_compared(self) -> bool:
        """Whether it would be noticed if it changed."""
        return self.etag is not None or self.last_modified is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Files below a folder, in columns."""

    names: list[str]
    """Below the folder."""
    sizes: list[int]
    etags: list[str | None]
    times: list[int | None]
    """Microseconds since 1970, UTC; only where there is no ETag."""


def absolute_url(place: str | os.PathLike[str]) -> str:
    """Write a path or URL as the location of a virtual chunk: absolute, with a scheme."""
    text = os.fspath(place)
    for scheme in _LOCAL:
        if text.startswith(scheme):
            text = text.removeprefix(scheme)
            break
    if "://" in text:
        if "::" in text:
            raise InvalidInputError(
                f"{text!r} is a chain of file systems; give a place that can be read by itself"
            )
        return text
    return f"file://{os.path.abspath(os.path.expanduser(text))}"  # noqa: PTH100, PTH111 -- a string, as all URLs


def local_file(url: str) -> str | None:
    """Give the path of a file on a local disk; None where it is elsewhere."""
    return url.removeprefix("file://") if url.startswith("file://") else None


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """Files that can be reached with one set of options.

    Parameters
    ----------
    storage_options
        What the file system takes.
    """

    storage_options: Mapping[str, Any] = field(repr=False)

    def _reach(self, url: str) -> tuple[Any, str]:
        path = local_file(url)
        if path is not None:
            return LocalFileSystem(), path
        options = dict(self.storage_options)
        if url.startswith(_WEB):
            options.setdefault("encoded", True)  # a location on the web is sent as it stands
        try:
            fs, path = url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            raise InvalidInputError(f"{url!r} cannot be reached: {error}", url=url) from error
        return fs, path

    def _ask(self, url: str, action: str, request: Callable[[], _T]) -> _T:
        """Ask as often as it is worth it, and say in our words what went wrong."""
        try:
            return send(request, _SETTINGS)
        except RequestFailedError as failed:
            failure = failed.failure
            if failure.kind is Kind.MISSING:
                raise ObjectNotFoundError(f"there is no {url}", url=url) from failed
            text = f"{url} could not be {action}: "
            if failure.status is not None:  # fsspec makes "not found" of any answer
                text += f"the server answers with the status {failure.status}; "
            raise StorageError(text + failure.text, url=url) from failed

    def facts(self, url: str) -> SourceFile:
        """Look at a file."""
        fs, path = self._reach(url)
        if local_file(url) is not None:
            return _local_facts(url, self._ask(url, "found", lambda: Path(path).stat()))

        def look() -> Mapping[str, Any]:
            fs.invalidate_cache()
            facts: Mapping[str, Any] = fs.info(path)
            return facts

        facts = self._ask(url, "found", look)
        if facts.get("type") == "directory":
            raise InvalidInputError(f"{url} is a folder, where a file was expected", url=url)
        if facts.get("size") is None:
            raise StorageError(f"{url}: the server does not say its size", url=url)
        return _file(url, facts)

    def facts_of_all(self, urls: Sequence[str]) -> list[SourceFile | IcechunkArrowError]:
        """Look at files, many at once; what goes wrong with one stands in its place."""

        def look(url: str) -> SourceFile | IcechunkArrowError:
            try:
                return self.facts(url)
            except IcechunkArrowError as error:
                return error

        if all(local_file(url) is not None for url in urls):
            return [look(url) for url in urls]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(look, urls))

    def read(self, url: str) -> bytes:
        """Read a whole file."""
        fs, path = self._reach(url)
        return self._ask(url, "read", lambda: bytes(fs.cat_file(path)))

    def find(self, url: str) -> bytes | None:
        """Read a small file, or None where there is none."""
        try:
            return self.read(url)
        except ObjectNotFoundError:
            return None

    def find_many(self, urls: Sequence[str]) -> list[bytes | None]:
        """Read small files of one place at once; None for those that are not there."""
        if not urls:
            return []
        if local_file(urls[0]) is not None:
            return [self.find(url) for url in urls]
        paths = [self._reach(url) for url in urls]
        fs = paths[0][0]
        contents = fs.cat([path for _, path in paths], on_error="return")
        return [
            self.find(url) if isinstance(contents[path], BaseException) else bytes(contents[path])
            for url, (_, path) in zip(urls, paths, strict=True)
        ]

    def read_ranges(
        self, urls: Sequence[str], offsets: Sequence[int], lengths: Sequence[int]
    ) -> list[bytes]:
        """Read a range of each file, many at once where the place can do that."""
        if not urls:
            return []
        if local_file(urls[0]) is not None:
            return [self._range(*each) for each in zip(urls, offsets, lengths, strict=True)]
        places = [self._reach(url) for url in urls]
        fs = places[0][0]
        stops = [offset + length for offset, length in zip(offsets, lengths, strict=True)]
        paths = [path for _, path in places]
        parts = list(fs.cat_ranges(paths, list(offsets), stops, on_error="return", max_gap=None))
        for number, data in enumerate(parts):
            if isinstance(data, BaseException) or len(data) != lengths[number]:
                parts[number] = self._range(urls[number], offsets[number], lengths[number])
        return parts

    def _range(self, url: str, offset: int, length: int) -> bytes:
        """Read one range; of what is too short it is seen whether the file ends there."""
        local = local_file(url)
        if local is not None:
            data = self._ask(url, "read", lambda: _local_range(local, offset, length))
        else:
            fs, path = self._reach(url)
            data = self._ask(url, "read", lambda: range_from(fs, path, offset, length))
        if len(data) != length:
            raise StorageError(
                f"{url} gave {len(data)} bytes where {length} were asked for: it is shorter than it was said to be",
                url=url,
            )
        return data

    @contextmanager
    def opened(self, url: str) -> Iterator[Any]:
        """Open a file for a library that seeks; a local one is given as its path."""
        path = local_file(url)
        if path is not None:
            if not os.path.exists(path):  # noqa: PTH110 -- a string, as all URLs
                raise ObjectNotFoundError(f"there is no {url}", url=url)
            yield path
            return
        fs, path = self._reach(url)
        handle = self._ask(
            url,
            "opened",
            lambda: fs.open(
                path,
                "rb",
                block_size=_BLOCK_BYTES,
                cache_type="blockcache",
                cache_options={"maxblocks": _BLOCKS},
            ),
        )
        reading = _Reading(handle, lambda size: self._ask(url, "read", lambda: handle.read(size)))
        with io.BufferedReader(reading) as buffered:
            yield buffered

    def folders_in(self, folder: str) -> list[str]:
        """Give the names of the folders that stand in a folder, sorted; none where there is no folder."""
        fs, path = self._reach(folder)
        root = path.rstrip("/")
        listing = self._look(fs, folder, lambda: fs.ls(root, detail=True)) or []
        names = [each["name"].rstrip("/") for each in listing if each["type"] == "directory"]
        return sorted(name.rpartition("/")[2] for name in names if name != root)

    def _look(self, fs: Any, folder: str, listed: Callable[[], Any]) -> Any:
        """List a folder as it is now; None where there is none."""

        def look() -> Any:
            fs.invalidate_cache()
            return listed()

        try:
            return self._ask(folder, "listed", look)
        except ObjectNotFoundError:
            return None

    def below(self, folder: str) -> Listing:
        """List every file below a folder, at any depth; nothing where there is no folder."""
        fs, path = self._reach(folder)
        root = path.rstrip("/") + "/"
        if local_file(folder) is not None:
            if os.path.lexists(path) and not os.path.isdir(root):  # noqa: PTH112 -- strings, as all URLs
                raise InvalidInputError(f"{folder} is no folder", url=folder)
            return self._ask(folder, "listed", lambda: _local_listing(root))
        listing = self._look(fs, folder, lambda: fs.find(root, detail=True)) or {}
        files = {name: each for name, each in listing.items() if name.startswith(root)}
        etags = [etag_of(each) for each in files.values()]
        return Listing(
            names=[name[len(root) :] for name in files],
            sizes=[int(each["size"]) for each in files.values()],
            etags=etags,
            times=[
                _micros(each) if etag is None else None
                for etag, each in zip(etags, files.values(), strict=True)
            ],
        )

    def match(self, pattern: str) -> list[str]:
        """Give the files that a pattern with ``*``, ``?`` or ``[…]`` names, sorted."""
        fs, path = self._reach(pattern)
        paths: list[str] = self._ask(pattern, "listed", lambda: fs.glob(path))
        scheme, separator, _ = pattern.partition("://")
        return [
            f"{scheme}{separator}{name}" if "://" not in name else name for name in sorted(paths)
        ]


class _Reading(io.RawIOBase):
    """A file of fsspec, as the standard library's buffers want one."""

    def __init__(self, handle: Any, read: Callable[[int], bytes]) -> None:
        super().__init__()
        self._handle = handle
        self._read = read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._handle.seek(offset, whence))

    def tell(self) -> int:
        return int(self._handle.tell())

    def readinto(self, target: Any) -> int:
        data = self._read(len(target))
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._handle.close()
        super().close()


def _file(url: str, found: Mapping[str, Any]) -> SourceFile:
    etag = etag_of(found)
    return SourceFile(
        url=url,
        size_bytes=int(found["size"]),
        etag=etag,
        last_modified=_micros(found) if etag is None else None,
    )


def _local_facts(url: str, found: os.stat_result) -> SourceFile:
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
        raise InvalidInputError(f"{url} is {what}, where a file was expected", url=url)
    etag = local_etag(found)
    return SourceFile(url=url, size_bytes=found.st_size, etag=etag, last_modified=None)


def _local_listing(root: str) -> Listing:
    listing = Listing(names=[], sizes=[], etags=[], times=[])
    if not os.path.isdir(root):  # noqa: PTH112 -- strings, as all URLs
        return listing

    def fail(error: OSError) -> None:
        raise error

    for place, _, names in os.walk(root, onerror=fail, followlinks=True):
        for name in names:
            path = os.path.join(place, name)  # noqa: PTH118 -- strings: there may be very many
            status = os.stat(path)  # noqa: PTH116
            if stat.S_ISREG(status.st_mode):
                listing.names.append(path[len(root) :])
                listing.sizes.append(status.st_size)
                listing.etags.append(local_etag(status))
                listing.times.append(None)
    return listing


def _local_range(path: str, offset: int, length: int) -> bytes:
    with Path(path).open("rb") as file:
        file.seek(offset)
        data: bytes = file.read(length)
        return data


def _micros(found: Mapping[str, Any]) -> int | None:
    """Tell when a file was last written."""
    names = ("mtime", "LastModified", "last_modified", "Last-Modified")
    moment = next((found[name] for name in names if found.get(name) is not None), None)
    if isinstance(moment, str):
        return micros_of_http(moment)
    if isinstance(moment, int | float):
        moment = datetime.fromtimestamp(moment, UTC)
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return micros_of(moment)
    return None
