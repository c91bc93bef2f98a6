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
from typing import TYPE_CHECKING, Any

from icechunk_arrow.errors import ObjectNotFoundError, SourceChangedError, StorageError
from icechunk_arrow.storage.beneath import leads_over_link, open_beneath
from icechunk_arrow.storage.foreign import Part, RedirectedError, difference
from icechunk_arrow.storage.forks import renew_in_forks
from icechunk_arrow.storage.open import open_storage
from icechunk_arrow.storage.secrets import pickled_options

if TYPE_CHECKING:
    from icechunk_arrow.storage.settings import StorageSettings

__all__ = ["ExternalFiles", "RedirectedError"]

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
_LARGEST = 2**63 - 1
_ENCODED = re.compile("%[0-9A-Fa-f]{2}")


class ExternalFiles:
    """Files below one prefix, with the options to reach them.

    Parameters
    ----------
    prefix
        What their URLs begin with, scheme and host in lower case; it ends with ``/``.
    storage_options
        What the file system takes.
    settings
        Tries and time-outs.
    """

    def __init__(
        self,
        prefix: str,
        storage_options: dict[str, Any],
        settings: StorageSettings,
        *,
        pickle_secrets: bool = False,
        left_out: tuple[str, ...] = (),
    ) -> None:
        self._prefix = prefix
        self._options = storage_options
        self._settings = settings
        self._pickle_secrets = pickle_secrets
        self._left_out = left_out
        self._folder = prefix.removeprefix("file://") if prefix.startswith("file://") else None
        self._lock = threading.Lock()
        self._places: dict[str, Any] = {}
        renew_in_forks(self)

    def renew_after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        options, left_out = pickled_options(self._prefix, self._options, keep=self._pickle_secrets)
        return {
            "prefix": self._prefix,
            "storage_options": options,
            "settings": self._settings,
            "pickle_secrets": self._pickle_secrets,
            "left_out": left_out or self._left_out,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

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
                self._places[root] = open_storage(
                    root,
                    self._options,
                    settings=self._settings,
                    pickle_secrets=self._pickle_secrets,
                    left_out=self._left_out,
                )
            return self._places[root]


def _read_local(folder: str, url: str, start: int, length: int, *, facts: bool) -> Part:
    """Read a range of a local file; its ETag is made of its time and size."""
    try:
        descriptor, found = open_beneath(folder, url[7:])
        try:
            # offset and length may be made up: never allocate on their word
            rest = max(0, found.st_size - start)
            data = os.pread(descriptor, min(length, rest), start) if rest else b""
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _local_error(error, url, folder) from error
    if not facts:
        return Part(data, None, None)
    etag = f"{found.st_mtime_ns:x}-{found.st_size:x}"
    return Part(data, etag, found.st_mtime_ns // 1000)


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
    return StorageError(f"{url} could not be read: {error.strerror}", location=url)


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
