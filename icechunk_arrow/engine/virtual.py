"""Virtual chunks: which locations may be read, and reading them.

A manifest is data from somebody else. Writing a reference needs no permission; reading one needs a URL
prefix that the person who opened the repository has allowed, matched at ``/`` boundaries after the
location is checked to be plain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from icechunk_arrow.errors import InvalidInputError, NotAuthorizedError
from icechunk_arrow.storage.external import ExternalFiles

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icechunk_arrow.core.chunks import ChunkRef
    from icechunk_arrow.storage.settings import StorageSettings

__all__ = ["LOCATION_PATTERN", "VirtualAccess", "check_location", "is_far"]

LOCATION_PATTERN = r"^[a-z][a-z0-9+.-]*://[^/]"
"""What an absolute location looks like; a local file has three slashes."""
_LOCAL = r"^(file|local):///[^/]"
_ABSOLUTE = re.compile(rf"({_LOCAL})|({LOCATION_PATTERN})", re.IGNORECASE)
_NEAR = frozenset({"file", "local", "memory"})
_BAD_PARTS = re.compile(r"(^|/)\.{1,2}(/|$)|::|[\x00-\x1f\x7f\\]|%2e%2e|%2f\.\.", re.IGNORECASE)


def fault_of_location(location: str) -> str | None:
    """Say what is wrong with a location, or None."""
    if not _ABSOLUTE.match(location):
        return "it is not an absolute URL such as s3://bucket/key or file:///folder/name"
    rest = location.split("://", 1)[1]
    if _BAD_PARTS.search(rest) or "::" in location:
        return "it contains '.' or '..' parts, '::', a backslash or a control character"
    return None


def check_location(location: str) -> str:
    """Give a location back, or say why it cannot be one."""
    fault = fault_of_location(location)
    if fault is not None:
        raise InvalidInputError(f"{location!r} cannot be the location of a virtual chunk: {fault}")
    return location


def is_far(location: str) -> bool:
    """Whether reading a location is a request to another machine; never for a bare name."""
    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme.lower() not in _NEAR


def _normal(url: str) -> str:
    """Bring scheme and host into one case; ``local://`` is ``file://``."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    host, slash, path = rest.partition("/")
    if scheme in {"http", "https"}:
        host = host.lower()
    return f"{'file' if scheme == 'local' else scheme}://{host}{slash}{path}"


class VirtualAccess:
    """What a person allowed when opening a repository."""

    def __init__(
        self,
        allowed: Iterable[str] | Mapping[str, Mapping[str, Any] | None] | None,
        settings: StorageSettings,
    ) -> None:
        if isinstance(allowed, str):
            raise InvalidInputError(
                f"authorize_virtual_chunk_access wants a list of URL prefixes, or a mapping of them to "
                f"storage_options: [{allowed!r}]"
            )
        given = allowed or {}
        options = given if isinstance(given, Mapping) else dict.fromkeys(given)
        self._prefixes: dict[str, ExternalFiles] = {}
        for prefix, storage_options in options.items():
            bare = prefix.rstrip("/")
            scheme, separator, rest = bare.partition("://")
            if not separator and prefix in {"file:///", "local:///"}:
                scheme, bare = "file", "file://"
            elif not separator or "::" in prefix or _BAD_PARTS.search(rest):
                raise InvalidInputError(
                    f"{prefix!r} is not a URL prefix such as s3://bucket/folder or file:///folder"
                )
            self._prefixes[_normal(bare) + "/"] = ExternalFiles(
                scheme.lower(), dict(storage_options or {}), settings
            )

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The URL prefixes that may be read."""
        return tuple(self._prefixes)

    def allows(self, location: str) -> bool:
        """Whether a location may be read."""
        return self._find(location) is not None

    def allows_root(self, url: str) -> bool:
        """Whether a folder may be opened: below an allowed prefix, or one itself."""
        place = url if "://" in url else f"file://{url}"
        return self._find(place.rstrip("/") + "/x") is not None

    def _find(self, location: str) -> ExternalFiles | None:
        if fault_of_location(location) is not None:
            return None
        normal = _normal(location)
        fitting = [prefix for prefix in self._prefixes if normal.startswith(prefix)]
        return self._prefixes[max(fitting, key=len)] if fitting else None

    def read(self, ref: ChunkRef, start: int, length: int) -> bytes:
        """Read a part of a virtual chunk."""
        assert ref.file is not None
        files = self._find(ref.file)
        if files is None:
            folder = ref.file.rpartition("/")[0] + "/"
            raise NotAuthorizedError(
                f"the chunk at {ref.file!r} lies outside every URL prefix allowed here "
                f"({', '.join(self._prefixes) or 'none is'}). If you trust this repository, open it "
                f"with authorize_virtual_chunk_access=[{folder!r}].",
                location=ref.file,
            )
        return files.read(
            _normal(ref.file),
            ref.offset + start,
            length,
            etag=ref.etag,
            last_modified=ref.last_modified,
        )
