"""Reading ranges of files that are not the repository's: what virtual chunks point to.

Owns the comparison of a file with the ETag or time that was recorded for it, and that a local file is
reached through no symbolic link below the folder that was allowed. Whether a file may be read at all is
decided by the caller.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from icechunk_arrow.errors import ObjectNotFoundError, SourceChangedError, StorageError
from icechunk_arrow.storage.answers import MICRO, Part, RedirectedError, bare_etag, local_etag
from icechunk_arrow.storage.disk import leads_over_link, open_beneath, read_range, told
from icechunk_arrow.storage.forked_children import renew_in_forks
from icechunk_arrow.storage.open import open_address

if TYPE_CHECKING:
    from icechunk_arrow.storage.secrets import Address

__all__ = ["ExternalFiles", "RedirectedError", "difference"]

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
_LARGEST = 2**63 - 1
_ENCODED = re.compile("%[0-9A-Fa-f]{2}")


class ExternalFiles:
    """Files below one prefix, with the options to reach them.

    Parameters
    ----------
    address
        What their URLs begin with, scheme and host in lower case, with a ``/`` at the end; and what it takes to
        reach them.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        prefix = address.url
        self._folder = prefix.removeprefix("file://") if prefix.startswith("file://") else None
        self._lock = threading.Lock()
        self._places: dict[str, Any] = {}
        renew_in_forks(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return ExternalFiles, (self._address,)

    def renew_after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def read(
        self, url: str, start: int, length: int, *, etag: str | None, last_modified: int | None
    ) -> bytes:
        """Read ``length`` bytes of a file from ``start``, if it is still the recorded one.

        ``RedirectedError`` where a web server says that it is elsewhere.
        """
        if start + length > _LARGEST:
            raise SourceChangedError(
                f"{url}: no file has {length} bytes from {start}, where a chunk was recorded",
                location=url,
            )
        facts = etag is not None or last_modified is not None
        if self._folder is None:
            part = self._read_remote(url, start, length, facts=facts)
        else:
            part = _read_local(self._folder, url, start, length, facts=facts)
        data = part.data
        if facts and (data or part.etag or part.modified):
            changed = difference(part.etag, part.modified, etag, last_modified)
            if changed is not None:
                raise SourceChangedError(
                    f"{url} was changed since the reference to it was made: {changed}. Make the "
                    f"reference again from the file as it is now.",
                    location=url,
                )
        if len(data) != length:
            raise SourceChangedError(
                f"{url} ends at byte {start + len(data)}, where a chunk of {length} bytes at {start} "
                f"was recorded: the file was replaced or cut",
                location=url,
            )
        return data

    def reaches_plainly(self, url: str) -> bool:
        """Whether the folder of a file is reached over no symbolic link below the prefix."""
        return self._folder is None or not leads_over_link(self._folder, url[7:])

    def _read_remote(self, url: str, start: int, length: int, *, facts: bool) -> Part:
        scheme, _, rest = url.partition("://")
        host, _, key = rest.partition("/")
        try:
            part: Part = self._place(f"{scheme}://{host}").get_part(key, start, length, facts=facts)
        except ObjectNotFoundError as error:
            raise _missing(url) from error
        return part

    def _place(self, root: str) -> Any:
        with self._lock:
            if root not in self._places:
                self._places[root] = open_address(replace(self._address, url=root))
            return self._places[root]


def difference(
    etag: str | None, modified: int | None, recorded_etag: str | None, recorded_time: int | None
) -> str | None:
    """Say how a file differs from the recorded one; None where it does not.

    Where the recorded time is one of whole seconds, its part of a second was not known: any time
    within that second is the same. A place that tells whole seconds needs no rule of its own.
    """
    if recorded_etag is not None:
        if etag is None:
            return f"no ETag is told, and {recorded_etag} was recorded"
        if bare_etag(etag) != bare_etag(recorded_etag):
            return f"its ETag is {bare_etag(etag)}, and {bare_etag(recorded_etag)} was recorded"
    if recorded_time is not None:
        if modified is None:
            return f"no time is told, and {_shown(recorded_time)} was recorded"
        unit = MICRO if recorded_time % MICRO == 0 else 1
        if modified // unit > recorded_time // unit:
            return (
                f"it was modified at {_shown(modified)}, and {_shown(recorded_time)} was recorded"
            )
    return None


def _shown(micros: int) -> str:
    """Write a time for an error."""
    try:
        return str(datetime.fromtimestamp(micros // MICRO, UTC).replace(microsecond=micros % MICRO))
    except (OverflowError, ValueError, OSError):
        return f"{micros} microseconds after 1970"


def _read_local(folder: str, url: str, start: int, length: int, *, facts: bool) -> Part:
    """Read a range of a local file; its ETag is made of its time and size."""
    try:
        descriptor, status = open_beneath(folder, url[7:])
        try:
            # offset and length may be made up: never allocate on their word
            rest = max(0, status.st_size - start)
            data = read_range(descriptor, start, min(length, rest)) if rest else b""
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _local_error(error, url, folder) from error
    if not facts:
        return Part(data, None, None)
    return Part(data, local_etag(status), status.st_mtime_ns // 1000)


def _local_error(error: OSError, url: str, folder: str) -> Exception:
    if error.errno in _ABSENT:
        return _missing(url)
    if error.errno == errno.ELOOP:
        return StorageError(
            f"{url} leads over a symbolic link below {folder}, and none is followed there: allow the "
            f"folder that it leads to, and refer to the file in it",
            location=url,
        )
    if error.errno in {errno.EINVAL, errno.ENXIO}:
        return StorageError(
            f"{url} is not a file: it is a folder, a pipe or a device", location=url
        )
    return StorageError(f"{url} could not be read: {told(error)}", location=url)


def _missing(url: str) -> ObjectNotFoundError:
    hint = ""
    if _ENCODED.search(url) and not url.startswith(("http://", "https://")):
        hint = (
            ". What follows the host of such a URL is the name as it is: a location that was "
            "percent-encoded, as Path.as_uri() does it, names another file"
        )
    return ObjectNotFoundError(
        f"the file {url} behind a virtual chunk does not exist{hint}", location=url
    )
