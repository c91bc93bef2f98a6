"""Objects on a plain web server, read-only.

Owns the requests, and what an answer must be to be believed. An answer in part is held against what
was asked for; one of a server that ignores ranges is cut by us; a redirect is never followed here (it
could lead to any host: whoever asked decides); an answer whose bytes are encoded is refused, because
offsets count in the file itself. There is no listing in HTTP; who needs one learns so from the
capabilities, and from the error.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urljoin

from fsspec.asyn import sync

from icechunk_arrow.errors import (
    IcechunkArrowError,
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
    StorageError,
)
from icechunk_arrow.storage.bucket import FsspecStorage
from icechunk_arrow.storage.failures import BadAnswerError, Kind, RefusedAnswerError
from icechunk_arrow.storage.foreign import Part, RedirectedError, check_part, micros_of_http
from icechunk_arrow.storage.keys import check_key, check_prefix, check_range
from icechunk_arrow.storage.pieces import content_token
from icechunk_arrow.storage.port import Capabilities

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from icechunk_arrow.storage.port import ObjectInfo, Token, Writable
    from icechunk_arrow.storage.retry import RequestFailedError

__all__ = ["HttpStorage"]

_MISSING = "plain HTTP can be read only, and has no listing"
_CAPABILITIES = Capabilities(
    create=False, replace=False, limited_listing=False, fast=False, missing=_MISSING
)
_CONNECT_SECONDS = 10.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_SKIPPED = 64 * 2**20
"""So many bytes in front of those that are wanted are taken from a server that ignores ranges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What is asked of a URL."""

    start: int | None = 0
    """Where the range begins; None for the last bytes."""
    length: int | None = None
    """None for everything."""
    fresh: bool = False
    """Whether no cache may answer from memory."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers that say it."""
        found = {"Accept-Encoding": "identity"}
        if self.fresh:
            found["Cache-Control"] = "no-cache"
        if self.length is not None:
            first = "" if self.start is None else str(self.start)
            last = self.length if self.start is None else self.start + self.length - 1
            found["Range"] = f"bytes={first}-{last}"
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What came: the bytes that were asked for, as far as there are any."""

    data: bytes = b""
    size: int | None = None
    etag: str | None = None
    modified: int | None = None
    target: str | None = None
    """Where a redirect leads."""


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
        return self._read(key, _Question()).data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See :meth:`Storage.get_range`."""
        check_range(start, length)
        return self._read(key, _Question(start=start, length=max(length, 1))).data[:length]

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """See :meth:`Storage.get_tail`."""
        check_range(0, length)
        answer = self._read(key, _Question(start=None, length=max(length, 1)))
        return answer.data if length else b"", answer.size or 0

    def get_versioned(self, key: str) -> tuple[bytes, Token]:
        """See :meth:`Storage.get_versioned`; no cache is asked."""
        answer = self._read(key, _Question(fresh=True))
        return answer.data, content_token(answer.data)

    def get_part(self, key: str, start: int, length: int, *, facts: bool) -> Part:  # noqa: ARG002
        """See :meth:`FsspecStorage.get_part`; the key is sent as it stands, with its query."""
        url = f"{self._url}/{key}"
        answer = self._ask(url, key, _Question(start=start, length=length))
        if answer.target is not None:
            raise RedirectedError(f"{url} redirects to {answer.target}", target=answer.target)
        return Part(answer.data, answer.etag, answer.modified)

    def exists(self, key: str) -> bool:
        """See :meth:`Storage.exists`; no cache is asked."""
        try:
            self._read(key, _Question(length=1, fresh=True))
        except ObjectNotFoundError:
            return False
        return True

    def put(
        self,
        key: str,
        data: Writable | Iterable[Writable],  # noqa: ARG002 - refused
        metadata: Mapping[str, str] | None = None,  # noqa: ARG002 - refused
    ) -> None:
        """Refuse."""
        check_key(key)
        self._refuse()

    def overwrite(self, key: str, data: bytes) -> None:  # noqa: ARG002 - refused
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

    def _connect(self) -> tuple[Any, str]:
        if any(mark in self._url for mark in "?#"):
            raise InvalidInputError(
                f"{self._url}: the URL of a repository has no query and no fragment, because keys "
                f"follow it; what every request needs goes into storage_options, as headers or params"
            )
        fs, _ = super()._connect()
        plain = self._url.isascii() and self._url.isprintable() and " " not in self._url
        return fs, self._url if plain else str(fs.encode_url(self._url))

    def _path(self, key: str) -> str:
        check_key(key)
        self._fs  # noqa: B018 - knows the root
        return f"{self._root}/{quote(key)}"

    def _read(self, key: str, question: _Question) -> _Answer:
        """Read a key; that it is missing is believed of the server itself, not of a cache."""
        url = self._path(key)
        try:
            answer = self._ask(url, key, question)
        except ObjectNotFoundError:
            if question.fresh:
                raise
            answer = self._ask(url, key, replace(question, fresh=True))
        if answer.target is not None:
            raise StorageError(
                f"{key!r} in {self._url} redirects to {answer.target}, and no redirect of a "
                f"repository is followed: open the place that it leads to, if you trust it",
                key=key,
                target=answer.target,
            )
        return answer

    def _ask(self, url: str, key: str, question: _Question) -> _Answer:
        """Ask for a URL, which is sent as it stands."""
        seconds = self._settings.timeout_seconds
        found: _Answer = self._send(
            "read", key, lambda fs: sync(fs.loop, _exchange, fs, url, question, seconds)
        )
        return found

    def _error(self, failed: RequestFailedError, action: str, key: str) -> IcechunkArrowError:
        error = super()._error(failed, action, key)
        if failed.failure.kind is Kind.DENIED:
            error.message += (
                " (what is forbidden is not taken for missing: a place that answers so for files "
                "that are not there must be allowed to say 404)"
            )
        return error


async def _exchange(fs: Any, url: str, question: _Question, seconds: float) -> _Answer:
    import aiohttp  # noqa: PLC0415 - the file system has loaded it; nobody else needs it
    import yarl  # noqa: PLC0415 - comes with it

    options = dict(fs.kwargs)
    headers = {**options.pop("headers", {}), **question.headers}
    options["allow_redirects"] = False
    connect = min(seconds, _CONNECT_SECONDS)
    options.setdefault(
        "timeout", aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=seconds)
    )
    session = await fs.set_session()
    async with session.get(yarl.URL(url, encoded=True), headers=headers, **options) as answer:
        return await _judge(answer, url, question)


async def _judge(answer: Any, url: str, question: _Question) -> _Answer:
    """Make of an answer what was asked for, or refuse it."""
    headers = answer.headers
    if answer.status in _REDIRECTS and "Location" in headers:
        return _Answer(target=urljoin(url, headers["Location"]))
    if answer.status not in {200, 206, 416}:
        answer.raise_for_status()
    if answer.status != 200 and (question.length is None or answer.status not in {206, 416}):
        raise RefusedAnswerError(f"the server answered with the status {answer.status}")
    encoding = headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise RefusedAnswerError(
            f"the server sends the file encoded ({encoding}), although its own bytes were asked for, "
            f"in which offsets count"
        )
    if answer.status == 416:
        return _nothing(headers.get("Content-Range", ""), question)
    if answer.status == 206:
        assert question.length is not None
        wanted, size = check_part(headers.get("Content-Range", ""), question.start, question.length)
        data = await _take(answer, wanted)
        if len(data) != wanted:
            raise BadAnswerError(f"{len(data)} bytes came, where {wanted} were announced")
    else:
        data, size = await _take_whole(answer, question)
    return _Answer(
        data=data,
        size=size,
        etag=headers.get("ETag"),
        modified=micros_of_http(headers.get("Last-Modified")),
    )


def _nothing(place: str, question: _Question) -> _Answer:
    """Read the answer that the file ends before the range."""
    told = place.rpartition("/")[2]
    size = int(told) if told.isdecimal() else None
    if size and (question.start is None or question.start < size):
        raise BadAnswerError(f"the server has nothing from {question.start} of {size} bytes")
    return _Answer(size=size)


async def _take(answer: Any, most: int) -> bytes:
    """Take a body, and no more than so many bytes of it and a piece."""
    pieces, got = [], 0
    async for piece in answer.content.iter_any():
        pieces.append(piece)
        got += len(piece)
        if got > most:
            answer.close()
            break
    return b"".join(pieces)


async def _take_whole(answer: Any, question: _Question) -> tuple[bytes, int | None]:
    """Take what was asked for out of a whole file."""
    size = answer.content_length
    if size is None and "chunked" not in answer.headers.get("Transfer-Encoding", "").lower():
        raise RefusedAnswerError(
            "the server tells neither how long its answer is nor where it ends, so that one that was "
            "cut would look whole"
        )
    if question.length is None:
        return await answer.read(), size
    return (
        await _take_last(answer, question)
        if question.start is None
        else await _take_some(answer, question.start, question.length)
    )


async def _take_some(answer: Any, start: int, length: int) -> tuple[bytes, int | None]:
    """Take a range, and leave the rest."""
    if start > _MOST_SKIPPED:
        answer.close()
        raise _no_ranges(start)
    kept, got = bytearray(), 0
    async for piece in answer.content.iter_any():
        kept += piece[max(0, start - got) : start + length - got]
        got += len(piece)
        if got >= start + length:
            size = answer.content_length
            answer.close()
            return bytes(kept), size
    return bytes(kept), got


async def _take_last(answer: Any, question: _Question) -> tuple[bytes, int]:
    """Take the last bytes."""
    assert question.length is not None
    size = answer.content_length
    kept: deque[bytes] = deque()
    held = got = 0
    async for piece in answer.content.iter_any():
        kept.append(piece)
        got += len(piece)
        held += len(piece)
        while held - len(kept[0]) >= question.length:
            held -= len(kept.popleft())
        if max(got, size or 0) - question.length > _MOST_SKIPPED:
            answer.close()
            raise _no_ranges(max(got, size or 0) - question.length)
    data = b"".join(kept)
    return data[max(0, len(data) - question.length) :], got


def _no_ranges(skipped: int) -> RefusedAnswerError:
    return RefusedAnswerError(
        f"the server ignores ranges, and {skipped} bytes would have to come before those that are "
        f"wanted; put the file where ranges are served"
    )
