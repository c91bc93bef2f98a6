"""Objects on a plain web server, read-only.

Owns the reading of ranges in a way that notices servers that ignore them. There is no listing in
HTTP; who needs one learns so from the capabilities, and from the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from fsspec.asyn import sync

from icechunk_arrow.errors import ObjectNotFoundError, ReadOnlyError, StorageError
from icechunk_arrow.storage.bucket import FsspecStorage
from icechunk_arrow.storage.keys import check_key, check_prefix, check_range
from icechunk_arrow.storage.port import Capabilities

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from icechunk_arrow.storage.port import ObjectInfo, Writable

__all__ = ["HttpStorage"]

_MISSING = "plain HTTP can be read only, and has no listing"
_CAPABILITIES = Capabilities(
    create=False, replace=False, limited_listing=False, fast=False, missing=_MISSING
)
_CONNECT_SECONDS = 10.0


class HttpStorage(FsspecStorage):
    """Objects below an ``http://`` or ``https://`` URL.

    Parameters
    ----------
    url
        The place.
    storage_options
        What ``fsspec.implementations.http.HTTPFileSystem`` takes.
    settings
        Tries, pauses and time-outs.
    """

    @property
    def capabilities(self) -> Capabilities:
        """None of them."""
        return _CAPABILITIES

    def get(self, key: str) -> bytes:
        """See :meth:`Storage.get`."""
        return self._read(key, "", None)[0]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See :meth:`Storage.get_range`."""
        check_range(start, length)
        last = start + max(length, 1) - 1
        body, first, _ = self._read(key, f"bytes={start}-{last}", start + length)
        return body[start - first : start - first + length]

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """See :meth:`Storage.get_tail`."""
        check_range(0, length)
        body, _, size = self._read(key, f"bytes=-{max(length, 1)}", None)
        return body[len(body) - min(length, len(body)) :], size

    def exists(self, key: str) -> bool:
        """See :meth:`Storage.exists`."""
        try:
            self._read(key, "bytes=0-0", 1)
        except ObjectNotFoundError:
            return False
        return True

    def put(
        self,
        key: str,
        data: Writable | Sequence[Writable],  # noqa: ARG002 - refused
        metadata: Mapping[str, str] | None = None,  # noqa: ARG002 - refused
    ) -> None:
        """Refuse."""
        check_key(key)
        self._refuse()

    def delete(self, keys: Iterable[str]) -> None:
        """Refuse."""
        if [check_key(key) for key in keys]:
            self._refuse()

    def list(self, prefix: str = "", *, limit: int | None = None) -> Iterator[ObjectInfo]:  # noqa: ARG002
        """Refuse: a web page is no listing."""
        check_prefix(prefix)
        raise StorageError(f"{self._url} cannot be listed: {_MISSING}", url=self._url)

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        """Refuse: a web page is no listing."""
        check_prefix(prefix)
        raise StorageError(f"{self._url} cannot be listed: {_MISSING}", url=self._url)

    def _refuse(self) -> NoReturn:
        raise ReadOnlyError(f"{self._url} cannot be written: {_MISSING}", url=self._url)

    def _path(self, key: str) -> str:
        check_key(key)
        return f"{self._url}/{quote(key)}"

    def _read(self, key: str, wanted: str, enough: int | None) -> tuple[bytes, int, int]:
        """Read a range: its bytes, where they begin, and the object's size.

        A server that ignores ranges sends the object from its start; ``enough`` bytes are read.
        """
        path = self._path(key)
        seconds = self._settings.timeout_seconds
        found: tuple[bytes, int, int] = self._send(
            "read", key, lambda fs: sync(fs.loop, _exchange, fs, path, wanted, enough, seconds)
        )
        return found


async def _exchange(
    fs: Any, url: str, wanted: str, enough: int | None, seconds: float
) -> tuple[bytes, int, int]:
    import aiohttp  # noqa: PLC0415 - the file system has loaded it; nobody else needs it

    options = dict(fs.kwargs)
    headers = {"Accept-Encoding": "identity", **options.pop("headers", {})}
    if wanted:
        headers["Range"] = wanted
    connect = min(seconds, _CONNECT_SECONDS)
    options.setdefault(
        "timeout", aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=seconds)
    )
    session = await fs.set_session()
    async with session.get(fs.encode_url(url), headers=headers, **options) as answer:
        place = answer.headers.get("Content-Range", "")
        size = place.rpartition("/")[2]
        if answer.status == 416:
            return b"", 0, int(size) if size.isdigit() else 0
        answer.raise_for_status()
        if answer.status == 206:
            body = await answer.read()
            first = int(place.removeprefix("bytes").strip().partition("-")[0])
            return body, first, int(size) if size.isdigit() else first + len(body)
        pieces, got = [], 0
        async for piece in answer.content.iter_any():
            pieces.append(piece)
            got += len(piece)
            if enough is not None and got >= enough:
                answer.close()
                break
        return b"".join(pieces), 0, got
