"""From what a caller writes to a place: paths and URLs.

Owns which implementation a URL leads to, and what is said about URLs that lead nowhere.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.storage.local import LocalStorage
from icechunk_arrow.storage.memory import MemoryStorage
from icechunk_arrow.storage.secrets import Address, hidden, without_password
from icechunk_arrow.storage.settings import StorageSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icechunk_arrow.storage.fsspec import ConnectedStorage
    from icechunk_arrow.storage.port import Storage

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

    Returns
    -------
    Storage
        The place.
    """
    text, options = os.fspath(url), dict(storage_options or {})
    address = Address(text, options, settings or StorageSettings(), pickle_secrets)
    return open_address(address) if isinstance(url, str) else _open_local(text, address)


def open_address(address: Address) -> Storage:
    """Open a place; see :func:`open_storage`."""
    url = address.url
    if "::" in url and not url.startswith(("/", ".", "~")):
        raise InvalidInputError(
            f"{hidden(url, {})!r} is a chain of file systems, in which commits would not be safe; name the "
            "place itself"
        )
    protocol, separator, rest = url.partition("://")
    if not separator:
        return _open_local(url, address)
    if protocol in {"file", "local"}:
        return _open_local(rest, address)
    if protocol == "memory":
        _check_options(address, frozenset())
        return MemoryStorage(rest.strip("/"))
    return _open_remote(protocol, address)


def _open_local(path: str, address: Address) -> Storage:
    if not path:
        raise InvalidInputError("an empty path names no place; write '.' for the current folder")
    if "\0" in path:
        raise InvalidInputError(f"{path!r} holds a NUL character, which no path can")
    _check_options(address, _LOCAL_OPTIONS)
    if path.startswith("~"):
        path = os.path.expanduser(path)  # noqa: PTH111 - a string, as everywhere here
    return LocalStorage(path, durable=address.settings.durable, **address.options)


def _open_remote(protocol: str, address: Address) -> Storage:
    """Open a place behind a network: one class for each way there is to reach one."""
    from fsspec.registry import get_filesystem_class  # noqa: PLC0415 - local places need none

    url, login = without_password(address.url)
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
    way = _way_to(protocol)
    options = way.with_login(address.options, login)
    return way(replace(address, url=url, options=options))


def _way_to(protocol: str) -> type[ConnectedStorage]:
    """Choose the class for a protocol's places; each is loaded where it is needed: s3fs alone takes a second."""
    if protocol in {"s3", "s3a"}:
        from icechunk_arrow.storage.s3 import S3Storage  # noqa: PLC0415

        return S3Storage
    if protocol in {"http", "https"}:
        from icechunk_arrow.storage.http import HttpStorage  # noqa: PLC0415

        return HttpStorage
    from icechunk_arrow.storage.fsspec import FsspecStorage  # noqa: PLC0415

    return FsspecStorage


def _check_options(address: Address, known: frozenset[str]) -> None:
    """Refuse options that would do nothing."""
    unknown = sorted(set(address.options) - known)
    if unknown:
        takes = ", ".join(sorted(known)) or "none"
        raise InvalidInputError(
            f"{address.url}: unknown storage_options {unknown}; it takes {takes}"
        )
