"""Files of other people that are read once and never written: what an ingest finds, opens and copies.

Owns finding, sizes, times and ETags of such files, in the words in which a virtual chunk records them.
"""

from __future__ import annotations

import io
import os
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.core import url_to_fs

from icechunk_arrow.errors import InvalidInputError, ObjectNotFoundError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Listing", "SourceFile", "SourceFiles", "absolute_url", "local_file"]

_BLOCK_BYTES = 1 << 20
"""A library that looks for its metadata reads here and there: blocks of this size are kept."""
_BLOCKS = 64
_LOCAL = ("file://", "local://")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file as it is now."""

    url: str
    size_bytes: int
    etag: str | None
    last_modified: int | None
    """Microseconds since 1970, UTC."""


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

    storage_options: Mapping[str, Any]

    def _reach(self, url: str) -> tuple[Any, str]:
        try:
            fs, path = url_to_fs(url, **({} if local_file(url) else self.storage_options))
        except (ImportError, ValueError) as error:
            raise InvalidInputError(f"{url!r} cannot be reached: {error}", url=url) from error
        return fs, path

    @contextmanager
    def _errors(self, url: str, action: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ObjectNotFoundError(f"there is no {url}", url=url) from error
        except OSError as error:
            raise StorageError(f"{url} could not be {action}: {error}", url=url) from error

    def facts(self, url: str) -> SourceFile:
        """Look at a file."""
        fs, path = self._reach(url)
        with self._errors(url, "found"):
            fs.invalidate_cache()
            found = fs.info(path)
        if found.get("type") == "directory":
            raise InvalidInputError(f"{url} is a folder, where a file was expected", url=url)
        return _file(url, found)

    def read(self, url: str) -> bytes:
        """Read a whole file."""
        fs, path = self._reach(url)
        with self._errors(url, "read"):
            data: bytes = fs.cat_file(path)
            return data

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
        found = fs.cat([path for _, path in paths], on_error="return")
        return [_content(url, found[path]) for url, (_, path) in zip(urls, paths, strict=True)]

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
        found = fs.cat_ranges(paths, list(offsets), stops, on_error="return", max_gap=None)
        for url, data, length in zip(urls, found, lengths, strict=True):
            if isinstance(data, FileNotFoundError):
                raise ObjectNotFoundError(f"there is no {url}", url=url) from data
            if isinstance(data, BaseException):
                raise StorageError(f"{url} could not be read: {data}", url=url) from data
            _check_length(url, data, length)
        return list(found)

    def _range(self, url: str, offset: int, length: int) -> bytes:
        path = local_file(url)
        assert path is not None, "files of one batch are in one place"
        with self._errors(url, "read"), Path(path).open("rb") as file:
            file.seek(offset)
            data = file.read(length)
        _check_length(url, data, length)
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
        with self._errors(url, "opened"):
            handle = fs.open(
                path,
                "rb",
                block_size=_BLOCK_BYTES,
                cache_type="blockcache",
                cache_options={"maxblocks": _BLOCKS},
            )
        with io.BufferedReader(_Reading(handle)) as buffered:
            yield buffered

    def folders_in(self, folder: str) -> list[str]:
        """Give the names of the folders that stand in a folder, sorted; none where there is no folder."""
        fs, path = self._reach(folder)
        root = path.rstrip("/")
        with self._errors(folder, "listed"):
            fs.invalidate_cache()
            try:
                found = fs.ls(root, detail=True)
            except FileNotFoundError:
                return []
        names = [each["name"].rstrip("/") for each in found if each["type"] == "directory"]
        return sorted(name.rpartition("/")[2] for name in names if name != root)

    def below(self, folder: str) -> Listing:
        """List every file below a folder, at any depth; nothing where there is no folder."""
        fs, path = self._reach(folder)
        root = path.rstrip("/") + "/"
        with self._errors(folder, "listed"):
            fs.invalidate_cache()
            try:
                found = fs.find(root, detail=True)
            except FileNotFoundError:
                found = {}
        kept = {name: each for name, each in found.items() if name.startswith(root)}
        etags = [_etag(each) for each in kept.values()]
        return Listing(
            names=[name[len(root) :] for name in kept],
            sizes=[int(each["size"]) for each in kept.values()],
            etags=etags,
            times=[
                _micros(each) if etag is None else None
                for etag, each in zip(etags, kept.values(), strict=True)
            ],
        )

    def match(self, pattern: str) -> list[str]:
        """Give the files that a pattern with ``*``, ``?`` or ``[…]`` names, sorted."""
        fs, path = self._reach(pattern)
        with self._errors(pattern, "listed"):
            found = fs.glob(path)
        scheme, separator, _ = pattern.partition("://")
        return [
            f"{scheme}{separator}{name}" if "://" not in name else name for name in sorted(found)
        ]


class _Reading(io.RawIOBase):
    """A file of fsspec, as the standard library's buffers want one."""

    def __init__(self, handle: Any) -> None:
        super().__init__()
        self._handle = handle

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._handle.seek(offset, whence))

    def tell(self) -> int:
        return int(self._handle.tell())

    def readinto(self, target: Any) -> int:
        data = self._handle.read(len(target))
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._handle.close()
        super().close()


def _file(url: str, found: Mapping[str, Any]) -> SourceFile:
    return SourceFile(
        url=url,
        size_bytes=int(found["size"]),
        etag=_etag(found),
        last_modified=_micros(found),
    )


def _etag(found: Mapping[str, Any]) -> str | None:
    etag = found.get("ETag") or found.get("etag")
    return etag.strip('"') if isinstance(etag, str) else None


def _content(url: str, found: Any) -> bytes | None:
    if isinstance(found, FileNotFoundError):
        return None
    if isinstance(found, BaseException):
        raise StorageError(f"{url} could not be read: {found}", url=url) from found
    return bytes(found)


def _check_length(url: str, data: bytes, length: int) -> None:
    if len(data) != length:
        raise StorageError(
            f"{url} gave {len(data)} bytes where {length} were asked for: it is shorter than it was said to be",
            url=url,
        )


def _micros(found: Mapping[str, Any]) -> int | None:
    """Tell when a file was last written, rounded up where the place says a part of a microsecond."""
    moment = found.get("mtime", found.get("LastModified", found.get("last_modified")))
    if isinstance(moment, int | float):
        return int(moment * 1_000_000) + 1
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return int(moment.timestamp()) * 1_000_000 + moment.microsecond
    return None
