"""From what a person writes to a place: paths and URLs.

Owns which implementation a URL leads to, and what is said about URLs that lead nowhere.
"""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.storage.local import LocalStorage
from icechunk_arrow.storage.memory import MemoryStorage
from icechunk_arrow.storage.secrets import hidden, without_password
from icechunk_arrow.storage.settings import StorageSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icechunk_arrow.storage.port import Storage

__all__ = ["is_absolute", "open_storage"]

_INSTALL = {
    "s3": "icechunk-arrow[s3]",
    "s3a": "icechunk-arrow[s3]",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "http": "aiohttp",
    "https": "aiohttp",
}
_LOCAL_OPTIONS = frozenset({"exclusive_create"})


def is_absolute(place: str) -> bool:
    """Whether a path or URL names a place wherever it is read."""
    return "://" in place or place.startswith(("/", "~"))


def open_storage(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    settings: StorageSettings | None = None,
    pickle_secrets: bool = False,
    left_out: tuple[str, ...] = (),
) -> Storage:
    """Open a place; nothing is read or written yet.

    Parameters
    ----------
    url
        A path, ``file://``, ``memory://name``, ``s3://bucket/prefix``, or what else fsspec knows.
    storage_options
        What the file system takes. A local place takes ``exclusive_create="unsafe"``.
    settings
        Durability, tries and time-outs.
    pickle_secrets
        Whether pickles of the place hold the secrets among its options.
    left_out
        Names of options that the pickle that these are from has left out, for errors.

    Returns
    -------
    Storage
        The place.
    """
    settings = settings or StorageSettings()
    options = dict(storage_options or {})
    if not isinstance(url, str):
        return _open_local(os.fspath(url), options, settings)
    if "::" in url and not url.startswith(("/", ".", "~")):
        raise InvalidInputError(
            f"{hidden(url, {})!r} is a chain of file systems, in which commits would not be safe; name the "
            "place itself"
        )
    protocol, separator, rest = url.partition("://")
    if not separator:
        return _open_local(url, options, settings)
    if protocol in {"file", "local"}:
        return _open_local(rest, options, settings)
    if protocol == "memory":
        _check_options(url, options, frozenset())
        return MemoryStorage(rest.strip("/"))
    more = {"pickle_secrets": pickle_secrets, "left_out": left_out}
    return _open_remote(url, protocol, options, settings, more)


def _open_local(path: str, options: dict[str, Any], settings: StorageSettings) -> Storage:
    if not path:
        raise InvalidInputError("an empty path names no place; write '.' for the current folder")
    if "\0" in path:
        raise InvalidInputError(f"{path!r} holds a NUL character, which no path can")
    _check_options(path, options, _LOCAL_OPTIONS)
    if path.startswith("~"):
        path = os.path.expanduser(path)  # noqa: PTH111 - a string, as everywhere here
    return LocalStorage(path, durable=settings.durable, **options)


def _open_remote(
    url: str,
    protocol: str,
    options: dict[str, Any],
    settings: StorageSettings,
    more: dict[str, Any],
) -> Storage:
    from fsspec.registry import get_filesystem_class  # noqa: PLC0415  (not for local places)

    url, login = without_password(url)
    try:
        get_filesystem_class(protocol)
    except ImportError as error:
        package = _INSTALL.get(protocol)
        way_out = f"pip install '{package}'" if package else str(error)
        raise InvalidInputError(
            f"{url!r} needs a package that is not installed: {way_out}", url=url
        ) from error
    except ValueError as error:
        raise InvalidInputError(
            f"{url!r}: nobody knows the protocol {protocol!r}; write a path, file://, memory://, "
            "s3://, gs://, az://, https:// or another one of fsspec",
            url=url,
        ) from error
    # The three are loaded where they are needed: s3fs alone takes a second.
    if protocol in {"s3", "s3a"}:
        from icechunk_arrow.storage.s3 import S3Storage  # noqa: PLC0415

        return S3Storage(url, {**login, **options}, settings=settings, **more)
    if protocol in {"http", "https"}:
        from icechunk_arrow.storage.http import HttpStorage  # noqa: PLC0415

        return HttpStorage(url, _authorized(options, login), settings=settings, **more)
    from icechunk_arrow.storage.bucket import FsspecStorage  # noqa: PLC0415

    return FsspecStorage(url, {**login, **options}, settings=settings, **more)


def _authorized(options: dict[str, Any], login: Mapping[str, str]) -> dict[str, Any]:
    """Send a name and a password that stood in a URL as a header, as web clients do."""
    if not login:
        return options
    text = f"{login['username']}:{login['password']}".encode()
    headers = {"Authorization": f"Basic {base64.b64encode(text).decode()}"}
    return {**options, "headers": {**headers, **options.get("headers", {})}}


def _check_options(url: str, options: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse options that would do nothing."""
    unknown = sorted(set(options) - known)
    if unknown:
        takes = ", ".join(sorted(known)) or "none"
        raise InvalidInputError(f"{url}: unknown storage_options {unknown}; it takes {takes}")
