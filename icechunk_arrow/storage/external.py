"""Reading ranges of files that are not the repository's: what virtual chunks point to.

Owns the comparison of a file with the ETag or time that was recorded for it. Whether a file may be read at
all is decided by the caller.
"""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import fsspec

from icechunk_arrow.errors import (
    InvalidInputError,
    ObjectNotFoundError,
    SourceChangedError,
    StorageError,
)

if TYPE_CHECKING:
    from icechunk_arrow.storage.settings import StorageSettings

__all__ = ["ExternalFiles"]

_MICRO = 1_000_000


class ExternalFiles:
    """Files of one protocol, with the options to reach them."""

    def __init__(
        self, protocol: str, storage_options: dict[str, Any], settings: StorageSettings
    ) -> None:
        self._protocol = protocol
        self._options = storage_options
        self._settings = settings
        self._lock = threading.Lock()
        self._fs: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            "protocol": self._protocol,
            "storage_options": self._options,
            "settings": self._settings,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def read(
        self, url: str, start: int, length: int, *, etag: str | None, last_modified: int | None
    ) -> bytes:
        """Read ``length`` bytes of a file from ``start``, if it is still the recorded one."""
        if self._protocol in {"file", "local"}:
            return self._read_local(url, start, length, etag, last_modified)
        fs = self._filesystem()
        path = fs._strip_protocol(url)  # noqa: SLF001 -- the way fsspec's own tools do it
        try:
            if etag is not None or last_modified is not None:
                info = fs.info(path, refresh=True) if "s3" in self._protocol else fs.info(path)
                _check_remote(url, info, etag, last_modified)
            data: bytes = fs.cat_file(path, start=start, end=start + length)
        except FileNotFoundError as error:
            raise _missing(url) from error
        except OSError as error:
            raise StorageError(f"{url} could not be read: {error}") from error
        return _whole(url, data, start, length)

    def _filesystem(self) -> Any:
        with self._lock:
            if self._fs is None:
                try:
                    self._fs = fsspec.filesystem(
                        self._protocol, use_listings_cache=False, **self._options
                    )
                except (ValueError, ImportError) as error:
                    raise InvalidInputError(
                        f"virtual chunks at {self._protocol}:// cannot be read: {error}"
                    ) from error
            return self._fs

    def _read_local(
        self, url: str, start: int, length: int, etag: str | None, last_modified: int | None
    ) -> bytes:
        path = url.partition("://")[2]
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise _missing(url) from error
        except OSError as error:
            raise StorageError(f"{url} could not be opened: {error}") from error
        try:
            if etag is not None or last_modified is not None:
                found = os.fstat(descriptor)
                modified = found.st_mtime_ns // 1000
                _check(
                    url, f"{found.st_mtime_ns:x}-{found.st_size:x}", etag, modified, last_modified
                )
            data = os.pread(descriptor, length, start)
        except OSError as error:
            raise StorageError(f"{url} could not be read: {error}") from error
        finally:
            os.close(descriptor)
        return _whole(url, data, start, length)


def _missing(url: str) -> ObjectNotFoundError:
    return ObjectNotFoundError(
        f"the file {url} behind a virtual chunk does not exist", location=url
    )


def _whole(url: str, data: bytes, start: int, length: int) -> bytes:
    if len(data) != length:
        raise SourceChangedError(
            f"{url} ends at byte {start + len(data)}, where a chunk of {length} bytes at {start} was "
            f"recorded: the file was replaced or cut",
            location=url,
        )
    return data


def _check_remote(
    url: str, info: dict[str, Any], etag: str | None, last_modified: int | None
) -> None:
    found = info.get("ETag") or info.get("etag")
    modified = info.get("LastModified") or info.get("mtime") or info.get("last_modified")
    if isinstance(modified, datetime):
        moment = modified if modified.tzinfo else modified.replace(tzinfo=UTC)
        micros: int | None = int(moment.timestamp() * _MICRO)
    elif isinstance(modified, int | float):
        micros = int(modified * _MICRO)
    else:
        micros = None
    _check(url, found, etag, micros, last_modified)


def _check(
    url: str,
    found: str | None,
    etag: str | None,
    modified: int | None,
    last_modified: int | None,
) -> None:
    """Compare a file with what was recorded; a time of whole seconds is compared in seconds."""
    if etag is not None and (found or "").strip('"') != etag.strip('"'):
        raise SourceChangedError(
            f"{url} was changed: its ETag is {found}, the recorded one {etag}. Record the reference "
            f"again from the file as it is now.",
            location=url,
        )
    if last_modified is None:
        return
    unit = _MICRO if last_modified % _MICRO == 0 else 1
    if modified is None or modified // unit > last_modified // unit:
        found_at = "unknown" if modified is None else _text(modified)
        raise SourceChangedError(
            f"{url} was changed: it was modified at {found_at}, the reference was recorded for "
            f"{_text(last_modified)}. Record it again from the file as it is now.",
            location=url,
        )


def _text(micros: int) -> str:
    return datetime.fromtimestamp(micros / _MICRO, UTC).isoformat()
