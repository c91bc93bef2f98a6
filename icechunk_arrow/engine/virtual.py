"""Virtual chunks: which locations may be read, and reading them.

A manifest is data from another writer. Writing a reference needs no permission; reading one needs a URL
prefix that the caller that opened the repository has allowed, matched at ``/`` boundaries after the
location is checked to be plain. Where a web server says that a file is elsewhere, that place needs to be
allowed just so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from icechunk_arrow.core.locations import fault_of_location, normal_location
from icechunk_arrow.errors import InvalidInputError, NotAuthorizedError, StorageError
from icechunk_arrow.formats.layout import chunk_key
from icechunk_arrow.storage.external import ExternalFiles, RedirectedError
from icechunk_arrow.storage.secrets import Address, without_password

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icechunk_arrow.core.chunks import ChunkRef
    from icechunk_arrow.storage.settings import StorageSettings

__all__ = ["VirtualAccess", "check_location", "check_reference", "lies_within"]

_EVERYTHING = frozenset({"file:///", "local:///"})
_MOST_REDIRECTS = 5
_LONG = 4096
_WEB = ("http://", "https://")


def check_location(location: str) -> str:
    """Give a location back, or say why it cannot be one."""
    fault = fault_of_location(location)
    if fault is not None:
        raise InvalidInputError(f"{location!r} cannot be the location of a virtual chunk: {fault}")
    return location


def _judge(location: str) -> str | None:
    """Give the normal form of a location without fault."""
    return normal_location(location) if fault_of_location(location) is None else None


_judged = lru_cache(maxsize=256)(_judge)
"""Remembers: many chunks in turn are of one file."""


def check_reference(ref: ChunkRef) -> None:
    """Refuse a reference that no reader could follow."""
    if ref.kind == "virtual":
        check_location(ref.file or "")
    elif ref.kind == "native":
        chunk_key(ref.file or "")


def _prefix(given: str) -> str:
    """Write what a caller allows as what normal locations begin with."""
    if given.lower() in _EVERYTHING:
        return "file:///"
    bare, login = without_password(given)
    if login:
        raise InvalidInputError(
            f"a password stands in the URL prefix {bare!r}; give it among the storage_options of the prefix"
        )
    folder = given.rstrip("/") + "/"
    fault = fault_of_location(folder + "x")
    if fault is not None:
        raise InvalidInputError(
            f"{given!r} is not a URL prefix such as s3://bucket/folder or file:///folder: {fault}"
        )
    return normal_location(folder)


def _as_url(place: str) -> str:
    return place if "://" in place else f"file://{place}"


def lies_within(place: str, root: str, settings: StorageSettings) -> bool:
    """Whether a folder that another writer names is one below a place, for sure."""
    try:
        return VirtualAccess([_as_url(place)], settings).allows_root(root)
    except InvalidInputError:  # the place has an odd name, and nothing can be said
        return False


class VirtualAccess:
    """What the caller allowed when opening a repository."""

    def __init__(
        self,
        allowed: Iterable[str] | Mapping[str, Mapping[str, Any] | None] | None,
        settings: StorageSettings,
        *,
        pickle_secrets: bool = False,
    ) -> None:
        if isinstance(allowed, str):
            raise InvalidInputError(
                f"authorize_virtual_chunk_access wants a list of URL prefixes, or a mapping of them to "
                f"storage_options: [{allowed!r}]"
            )
        prefixes = allowed or {}
        options = prefixes if isinstance(prefixes, Mapping) else dict.fromkeys(prefixes)
        self._prefixes: dict[str, ExternalFiles] = {}
        for each, storage_options in options.items():
            prefix = _prefix(each)
            address = Address(prefix, dict(storage_options or {}), settings, pickle_secrets)
            self._prefixes[prefix] = ExternalFiles(address)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The URL prefixes that may be read."""
        return tuple(self._prefixes)

    def allows(self, location: str) -> bool:
        """Whether a location may be read."""
        return self._find(location) is not None

    def allows_root(self, url: str) -> bool:
        """Whether a folder may be opened: below an allowed prefix, or one itself."""
        place = self._find(_as_url(url).rstrip("/") + "/x")
        return place is not None and place[0].reaches_plainly(place[1])

    def _find(self, location: str) -> tuple[ExternalFiles, str] | None:
        """Find the files that a location is among, and how it is written there."""
        normal = (_judged if len(location) < _LONG else _judge)(location)
        if normal is None:
            return None
        fitting = [prefix for prefix in self._prefixes if normal.startswith(prefix)]
        return (self._prefixes[max(fitting, key=len)], normal) if fitting else None

    def read(self, ref: ChunkRef, start: int, length: int) -> bytes:
        """Read a part of a virtual chunk; an empty one without a request."""
        assert ref.file is not None
        if not length:
            return b""
        location = ref.file
        for _ in range(_MOST_REDIRECTS):
            place = self._find(location)
            if place is None:
                raise self._not_allowed(ref.file, location)
            files, url = place
            try:
                return files.read(
                    url,
                    ref.offset + start,
                    length,
                    etag=ref.etag,
                    last_modified=ref.last_modified,
                )
            except RedirectedError as redirected:
                location = redirected.target
                if not location.lower().startswith(_WEB):
                    raise self._not_allowed(ref.file, location) from redirected
        raise StorageError(
            f"{ref.file} is redirected more than {_MOST_REDIRECTS} times, last to {location!r}",
            location=ref.file,
        )

    def _not_allowed(self, asked: str, location: str) -> NotAuthorizedError:
        """Say that a location may not be read, and how it may."""
        folder = location.rpartition("/")[0] + "/"
        what = f"the chunk at {asked!r}"
        if location != asked:
            what += f" is redirected to {location!r}, which"
        fault = fault_of_location(location)
        if fault is not None:
            return NotAuthorizedError(
                f"{what} cannot be read with any permission: {fault}", location=location
            )
        return NotAuthorizedError(
            f"{what} lies outside every URL prefix allowed here "
            f"({', '.join(self._prefixes) or 'none is'}). If you trust this repository, open it "
            f"with authorize_virtual_chunk_access=[{folder!r}].",
            location=location,
        )
