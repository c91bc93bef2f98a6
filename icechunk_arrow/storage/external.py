"""Reading ranges of files that are not the repository's: what virtual chunks point to.

Owns the comparison of a file with the ETag or time that was recorded for it. Whether a file may be
read at all is decided by the caller.
"""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from icechunk_arrow.errors import (
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SourceChangedError,
    StorageError,
)
from icechunk_arrow.storage.open import open_storage

if TYPE_CHECKING:
    from icechunk_arrow.storage.port import Storage
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
        self._places: dict[str, Storage] = {}

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
            data = _read_local(url, start, length, etag, last_modified)
        else:
            data = self._read_remote(url, start, length, etag, last_modified)
        if len(data) != length:
            raise SourceChangedError(
                f"{url} ends at byte {start + len(data)}, where a chunk of {length} bytes at {start} "
                f"was recorded: the file was replaced or cut",
                location=url,
            )
        return data

    def _read_remote(
        self, url: str, start: int, length: int, etag: str | None, last_modified: int | None
    ) -> bytes:
        scheme, _, rest = url.partition("://")
        host, _, key = rest.partition("/")
        place = self._place(f"{scheme}://{host}")
        try:
            if etag is None and last_modified is None:
                return place.get_range(key, start, length)
            read: Any = getattr(place, "get_range_if", None)
            if read is None:
                raise InvalidInputError(
                    f"{url}: an ETag or a time cannot be compared at {scheme}:// places"
                )
            moment = None if last_modified is None else _moment(last_modified)
            data: bytes = read(key, start, length, etag=etag, unmodified_since=moment)
        except ObjectNotFoundError as error:
            raise _missing(url) from error
        except PreconditionFailedError as error:
            recorded = f"ETag {etag}" if etag is not None else f"time {_moment(last_modified or 0)}"
            raise _changed(url, str(error), recorded) from error
        return data

    def _place(self, root: str) -> Storage:
        with self._lock:
            if root not in self._places:
                self._places[root] = open_storage(root, self._options, settings=self._settings)
            return self._places[root]


def _read_local(
    url: str, start: int, length: int, etag: str | None, last_modified: int | None
) -> bytes:
    path = url.partition("://")[2]
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _missing(url) from error
    except OSError as error:
        raise StorageError(f"{url} could not be opened: {error}") from error
    try:
        found = os.fstat(descriptor)
        _check_local(url, found, etag, last_modified)
        # offset and length may be made up: never allocate on their word
        rest = max(0, found.st_size - start)
        return os.pread(descriptor, min(length, rest), start) if rest else b""
    except OSError as error:
        raise StorageError(f"{url} could not be read: {error}") from error
    finally:
        os.close(descriptor)


def _check_local(
    url: str, found: os.stat_result, etag: str | None, last_modified: int | None
) -> None:
    """Compare a file with what was recorded; a time of whole seconds is compared in seconds."""
    own = f"{found.st_mtime_ns:x}-{found.st_size:x}"
    if etag is not None and own != etag.strip('"'):
        raise _changed(url, f"its ETag is {own}", f"ETag {etag}")
    if last_modified is not None:
        modified = found.st_mtime_ns // 1000
        unit = _MICRO if last_modified % _MICRO == 0 else 1
        if modified // unit > last_modified // unit:
            raise _changed(
                url, f"it was modified at {_moment(modified)}", f"time {_moment(last_modified)}"
            )


def _missing(url: str) -> ObjectNotFoundError:
    return ObjectNotFoundError(
        f"the file {url} behind a virtual chunk does not exist", location=url
    )


def _changed(url: str, fact: str, recorded: str) -> SourceChangedError:
    return SourceChangedError(
        f"{url} was changed since the reference to it was made ({recorded}): {fact}. Make the reference "
        f"again from the file as it is now.",
        location=url,
    )


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / _MICRO, UTC)
