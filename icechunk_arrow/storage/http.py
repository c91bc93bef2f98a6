"""Objects on a plain web server, read-only.

Owns the requests, and which answers are heard at all: a redirect is never followed here (it
could lead to any host: the caller decides); an answer whose bytes are encoded is refused, because
offsets count in the file itself. There is no listing in HTTP; a caller that needs one learns so from the
capabilities, and from the error.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import quote, urljoin

from fsspec.asyn import sync

from icechunk_arrow.errors import (
    IcechunkArrowError,
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
    StorageError,
)
from icechunk_arrow.storage.answers import (
    Intake,
    Part,
    Question,
    RedirectedError,
    RefusedAnswerError,
    micros_of_http,
    size_without,
)
from icechunk_arrow.storage.failures import Kind
from icechunk_arrow.storage.fsspec import ConnectedStorage
from icechunk_arrow.storage.port import (
    Capabilities,
    check_key,
    check_range,
    content_token,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from icechunk_arrow.storage.failures import RequestFailedError
    from icechunk_arrow.storage.port import ObjectInfo, Token, Writable

_MISSING = "plain HTTP can be read only, and has no listing"
_CAPABILITIES = Capabilities(
    create=False, replace=False, limited_listing=False, fast=False, missing=_MISSING
)
_CONNECT_SECONDS = 10.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class _Answer(NamedTuple):
    """What came: the bytes that were asked for, as far as there are any."""

    data: bytes = b""
    size: int | None = None
    etag: str | None = None
    modified: int | None = None
    target: str | None = None
    """Where a redirect leads."""


class HttpStorage(ConnectedStorage):
    """Objects below an ``http://`` or ``https://`` URL; options are those of fsspec's ``HTTPFileSystem``."""

    @classmethod
    def with_login(cls, options: Mapping[str, Any], login: Mapping[str, str]) -> dict[str, Any]:
        """Send a name and a password that stood in a URL as a header, as web clients do."""
        if not login:
            return dict(options)
        text = f"{login['username']}:{login['password']}".encode()
        headers = {"Authorization": f"Basic {base64.b64encode(text).decode()}"}
        return {**options, "headers": {**headers, **options.get("headers", {})}}

    @property
    def capabilities(self) -> Capabilities:
        """None of them."""
        return _CAPABILITIES

    def get(self, key: str, *, limit_bytes: int | None = None) -> bytes:
        """See :meth:`Storage.get`."""
        return self._read(Question(key=key, limit_bytes=limit_bytes)).data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See :meth:`Storage.get_range`."""
        check_range(start, length)
        return self._read(Question(key=key, start=start, length=max(length, 1))).data[:length]

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """See :meth:`Storage.get_tail`."""
        check_range(0, length)
        answer = self._read(Question(key=key, start=None, length=max(length, 1)))
        return answer.data if length else b"", answer.size or 0

    def get_versioned(self, key: str, *, limit_bytes: int | None = None) -> tuple[bytes, Token]:
        """See :meth:`Storage.get_versioned`; no cache is asked."""
        answer = self._read(Question(key=key, limit_bytes=limit_bytes), fresh=True)
        return answer.data, content_token(answer.data)

    def get_part(self, key: str, start: int, length: int, *, facts: bool) -> Part:  # noqa: ARG002
        """See :meth:`ConnectedStorage.get_part`; the key is sent as it stands, with its query."""
        url = f"{self._url}/{key}"
        answer = self._ask(url, Question(key=key, start=start, length=length))
        if answer.target is not None:
            raise RedirectedError(f"{url} redirects to {answer.target}", target=answer.target)
        return Part(answer.data, answer.etag, answer.modified)

    def put(
        self,
        key: str,
        data: Writable | Iterable[Writable],  # noqa: ARG002 - refused
        metadata: Mapping[str, str] | None = None,  # noqa: ARG002 - refused
    ) -> None:
        """Refuse."""
        check_key(key)
        self._refuse()

    def create(self, key: str, data: bytes) -> None:  # noqa: ARG002 - refused
        """Refuse."""
        check_key(key)
        self.require_writable()

    def replace(self, key: str, data: bytes, token: Token) -> None:  # noqa: ARG002 - refused
        """Refuse."""
        check_key(key)
        raise ReadOnlyError(f"{key!r} cannot be replaced: {_MISSING}", key=key)

    def overwrite(self, key: str, data: bytes) -> None:  # noqa: ARG002 - refused
        """Refuse."""
        check_key(key)
        self._refuse()

    def delete(self, keys: Iterable[str]) -> None:
        """Refuse."""
        if [check_key(key) for key in keys]:
            self._refuse()

    def _list(self, prefix: str, limit: int | None) -> Iterator[ObjectInfo]:  # noqa: ARG002
        """Refuse: a web page is no listing."""
        raise StorageError(f"{self._url} cannot be listed: {_MISSING}", url=self._url)

    def _list_folders(self, prefix: str) -> Iterable[str]:  # noqa: ARG002
        """Refuse: a web page is no listing."""
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

    def _look_for(self, key: str) -> object:
        """Ask for a byte of an object; no cache is asked."""
        return self._read(Question(key=key, length=1), fresh=True)

    def _read(self, question: Question, *, fresh: bool = False) -> _Answer:
        """Read a key; that it is missing is believed of the server itself, not of a cache."""
        key = question.key
        url = self._path(key)
        try:
            answer = self._ask(url, question, fresh=fresh)
        except ObjectNotFoundError:
            if fresh:
                raise
            answer = self._ask(url, question, fresh=True)
        if answer.target is not None:
            raise StorageError(
                f"{key!r} in {self._url} redirects to {answer.target}, and no redirect of a "
                f"repository is followed: open the place that it leads to, if you trust it",
                key=key,
                target=answer.target,
            )
        return answer

    def _ask(self, url: str, question: Question, *, fresh: bool = False) -> _Answer:
        """Ask for a URL, which is sent as it stands; ``fresh`` says that no cache may answer."""
        headers = {"Accept-Encoding": "identity"}
        if fresh:
            headers["Cache-Control"] = "no-cache"
        if question.range is not None:
            headers["Range"] = question.range
        seconds = self._settings.timeout_seconds
        received: _Answer = self._send(
            "read",
            question.key,
            lambda fs: sync(fs.loop, _exchange, fs, url, headers, question, seconds),
        )
        return received

    def _error(self, failed: RequestFailedError, action: str, key: str) -> IcechunkArrowError:
        error = super()._error(failed, action, key)
        if failed.failure.kind is Kind.DENIED:
            error.message += (
                " (what is forbidden is not taken for missing: a place that answers so for files "
                "that are not there must be allowed to say 404)"
            )
        return error


async def _exchange(
    fs: Any, url: str, asked: Mapping[str, str], question: Question, seconds: float
) -> _Answer:
    import aiohttp  # noqa: PLC0415 - the file system has loaded it; nothing else needs it
    import yarl  # noqa: PLC0415 - comes with it

    options = dict(fs.kwargs)
    headers = {**options.pop("headers", {}), **asked}
    options["allow_redirects"] = False
    connect = min(seconds, _CONNECT_SECONDS)
    options.setdefault(
        "timeout", aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=seconds)
    )
    session = await fs.set_session()
    async with session.get(yarl.URL(url, encoded=True), headers=headers, **options) as answer:
        return await _hear(answer, url, question)


async def _hear(answer: Any, url: str, question: Question) -> _Answer:
    """Make of an answer what was asked for, or refuse it."""
    headers = answer.headers
    if answer.status in _REDIRECTS and "Location" in headers:
        return _Answer(target=urljoin(url, headers["Location"]))
    if answer.status not in {200, 206, 416}:
        answer.raise_for_status()
    if answer.status not in {200, 206} and (question.length is None or answer.status != 416):
        raise RefusedAnswerError(f"the server answered with the status {answer.status}")
    encoding = headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise RefusedAnswerError(
            f"the server sends the file encoded ({encoding}), although its own bytes were asked for, "
            f"in which offsets count"
        )
    place = headers.get("Content-Range", "")
    if answer.status == 416:
        return _Answer(size=size_without(question, place))
    chunked = "chunked" in headers.get("Transfer-Encoding", "").lower()
    if answer.status == 200 and answer.content_length is None and not chunked:
        raise RefusedAnswerError(
            "the server tells neither how long its answer is nor where it ends, so that one that was "
            "cut would look whole"
        )
    intake = Intake(question, place if answer.status == 206 else None, answer.content_length)
    async for piece in answer.content.iter_any():
        if intake.take(piece):
            answer.close()
            break
    data, size = intake.end()
    etag, modified = headers.get("ETag"), micros_of_http(headers.get("Last-Modified"))
    return _Answer(data, size, etag, modified)
