"""Objects in an S3 bucket, through s3fs.

Owns the requests: each operation of the protocol is one of S3's own, without the caches, look-ups
and guesses of a file system between. s3fs gives the client, its credentials and its event loop.
Tries are ours alone: those of s3fs and botocore are switched off, or they would multiply.

Conditions: creation sends ``If-None-Match: *``, replacement ``If-Match``. A refusal is a 412, with
or without a code; a 409 says that another such request is under way, and asks for another try.

No redirect is followed: it could lead to any host, whose answer would be believed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from fsspec.asyn import sync

from icechunk_arrow.errors import (
    AlreadyExistsError,
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
    ReadOnlyError,
    StorageError,
)
from icechunk_arrow.storage.answers import Intake, Part, Question, micros_of
from icechunk_arrow.storage.chance import token
from icechunk_arrow.storage.failures import Failure, Kind, RequestFailedError
from icechunk_arrow.storage.fsspec import ConnectedStorage
from icechunk_arrow.storage.port import (
    Capabilities,
    ObjectInfo,
    check_key,
    check_range,
    is_key,
    joined,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from icechunk_arrow.storage.port import Token, Writable

_MOST_KEYS = 1000
_MOST_PARTS = 10_000
_PART_BYTES = 64 * 2**20
_CONNECT_SECONDS = 10.0
_PIECE_BYTES = 2**20
_CHANGED = frozenset({Kind.PRECONDITION, Kind.CONFLICT, Kind.MISSING})
_DELETE_AGAIN = frozenset({"InternalError", "SlowDown", "ServiceUnavailable"})


def _date_of(answer: Mapping[str, Any]) -> datetime | None:
    """Read when a server answered."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        return parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError, TypeError):
        return None


_proven: dict[tuple[str, str], Capabilities] = {}


class S3Storage(ConnectedStorage):
    """Objects below ``s3://bucket/prefix``; options are those of ``s3fs.S3FileSystem``."""

    _last_put: datetime | None = None
    """When the server answered the last time that something was put."""

    @property
    def capabilities(self) -> Capabilities:
        """All but speed; conditions are assumed until :meth:`require_writable` has tried them."""
        proven = _proven.get(self._server())
        if proven is not None:
            return proven
        return self._capabilities(create=True, replace=True)

    def require_writable(self) -> None:
        """See :meth:`Storage.require_writable`.

        There are servers that ignore conditions and answer success to every writer. So where it is
        not Amazon's, one object is written and removed again, once per process and bucket.
        """
        server = self._server()
        if server not in _proven:
            with self._connecting:
                if server not in _proven:
                    _proven[server] = self._prove()
        super().require_writable()

    def get(self, key: str, *, limit_bytes: int | None = None) -> bytes:
        """See :meth:`Storage.get`."""
        return self._read(Question(key=check_key(key), limit_bytes=limit_bytes)).data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See :meth:`Storage.get_range`."""
        check_range(start, length)
        if not length:
            self._look_for(key)
            return b""
        return self._read(Question(key=check_key(key), start=start, length=length)).data

    def get_part(self, key: str, start: int, length: int, *, facts: bool) -> Part:  # noqa: ARG002
        """See :meth:`ConnectedStorage.get_part`; one request, and any key that S3 knows."""
        check_range(start, length)
        received = self._read(Question(key=key, start=start, length=length))
        return Part(received.data, received.etag, micros_of(received.modified))

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """See :meth:`Storage.get_tail`; one request."""
        check_range(0, length)
        if not length:
            return b"", self._look_for(key)
        received = self._read(Question(key=check_key(key), start=None, length=length))
        return received.data, received.size or 0

    def put(
        self,
        key: str,
        data: Writable | Iterable[Writable],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """See :meth:`Storage.put`; here it is durable at once."""
        body = joined(data)
        facts = dict(metadata or {})
        if not all(f"{name}{value}".isascii() for name, value in facts.items()):
            raise InvalidInputError(f"the metadata of {key!r} must be ASCII: {facts}")
        if len(body) > 2 * _PART_BYTES:
            self._put_in_parts(key, body, facts)
            return
        answer = self._request(
            "write", key, "put_object", **self._object(key), Body=body, Metadata=facts
        )
        self._last_put = _date_of(answer)

    def create(self, key: str, data: bytes) -> None:
        """See :meth:`Storage.create`."""
        check_key(key)
        self.require_writable()
        self._create(key, data)

    def get_versioned(self, key: str, *, limit_bytes: int | None = None) -> tuple[bytes, Token]:
        """See :meth:`Storage.get_versioned`."""
        received = self._read(Question(key=check_key(key), limit_bytes=limit_bytes))
        if received.etag is None:
            raise StorageError(f"{key!r} in {self._url}: the server tells no ETag of it", key=key)
        return received.data, received.etag

    def replace(self, key: str, data: bytes, token: Token) -> None:
        """See :meth:`Storage.replace`."""
        check_key(key)
        self.require_writable()
        if not self.capabilities.replace:
            raise ReadOnlyError(f"{self._url}: {self.capabilities.missing}", key=key)
        self._replace(key, data, token)

    def overwrite(self, key: str, data: bytes) -> None:
        """See :meth:`Storage.overwrite`."""
        self._request("write", key, "put_object", **self._object(key), Body=bytes(data))

    def time_of_put(self, key: str) -> datetime | None:  # noqa: ARG002 - the last answer's is near enough
        """See :meth:`Storage.time_of_put`."""
        return self._last_put

    def _list(self, prefix: str, limit: int | None) -> Iterator[ObjectInfo]:
        if self.capabilities.limited_listing:
            return self._objects(prefix, limit)
        return iter(sorted(self._objects(prefix, None), key=lambda found: found.key))

    def _list_folders(self, prefix: str) -> Iterable[str]:
        names = set()
        for page in self._pages(prefix, None, Delimiter="/"):
            for folder in page.get("CommonPrefixes", ()):
                names.add(folder["Prefix"][len(self._key(prefix)) : -1])
        return filter(is_key, names)

    def delete(self, keys: Iterable[str]) -> None:
        """See :meth:`Storage.delete`; a thousand per request."""
        names = [check_key(key) for key in keys]
        batches = [names[at : at + _MOST_KEYS] for at in range(0, len(names), _MOST_KEYS)]
        if len(batches) == 1:
            self._delete(batches[0])
        elif batches:
            with ThreadPoolExecutor(min(8, self._settings.max_concurrency)) as pool:
                for _ in pool.map(self._delete, batches):
                    pass

    def _options(self) -> dict[str, Any]:
        options = self._address.options
        seconds = self._settings.timeout_seconds
        config = {
            "connect_timeout": min(seconds, _CONNECT_SECONDS),
            "read_timeout": seconds,
            "max_pool_connections": self._settings.max_concurrency,
            "retries": {"total_max_attempts": 1},
            **_without_redirects(),
            **options.get("config_kwargs", {}),
        }
        return {"use_listings_cache": False, **options, "config_kwargs": config}

    def _connect(self) -> tuple[Any, str]:
        fs, path = super()._connect()
        fs.retries = 1  # ours; no other file system has these options, so none shares the instance
        self._bucket, folder, _ = fs.split_path(path)
        if not self._bucket:
            raise InvalidInputError(f"{self._url} names no bucket; write s3://bucket/prefix")
        self._folder = f"{folder}/" if folder else ""
        return fs, path

    def _server(self) -> tuple[str, str]:
        return str(self._fs.s3.meta.endpoint_url), self._bucket

    def _capabilities(self, *, create: bool, replace: bool) -> Capabilities:
        # Directory buckets ("S3 Express") do not list in order.
        ordered = not self._bucket.endswith("--x-s3")
        facts = ((create, "If-None-Match"), (replace, "If-Match"))
        lacking = " and ".join(name for has, name in facts if not has)
        missing = f"the S3 server does not heed {lacking} on PUT" if lacking else ""
        return Capabilities(
            create=create,
            replace=replace,
            limited_listing=ordered,
            fast=False,
            lingering=True,
            missing=missing,
        )

    def _prove(self) -> Capabilities:
        """Find out whether conditions are heeded."""
        if ".amazonaws.com" in self._server()[0]:
            return self._capabilities(create=True, replace=True)
        key = f".icechunk-arrow/probe-{token()}"
        self._request("write", key, "put_object", **self._object(key), Body=b"probe")
        try:
            return self._capabilities(
                create=self._refuses(lambda: self._create(key, b"again")),
                replace=self._refuses(lambda: self._replace(key, b"again", f'"{"0" * 32}"')),
            )
        finally:
            with contextlib.suppress(StorageError, ReadOnlyError):
                self._delete([key])

    @staticmethod
    def _refuses(write: Any) -> bool:
        """Whether a write is refused because its condition does not hold."""
        try:
            write()
        except (AlreadyExistsError, PreconditionFailedError):
            return True
        except ReadOnlyError:  # "not implemented"
            return False
        return False

    def _key(self, key: str) -> str:
        return self._folder + key

    def _object(self, key: str) -> dict[str, Any]:
        check_key(key)
        return {"Bucket": self._bucket, "Key": self._key(key)}

    def _look_for(self, key: str) -> int:
        """Ask for the size of an object."""
        answer = self._request("read", key, "head_object", **self._object(key))
        return int(answer["ContentLength"])

    def _create(self, key: str, data: bytes) -> None:
        arguments = {**self._object(key), "Body": bytes(data), "IfNoneMatch": "*"}
        try:
            self._try(lambda fs: _ask(fs, "put_object", arguments))
        except RequestFailedError as failed:
            raise self._create_error(failed, key) from failed

    def _replace(self, key: str, data: bytes, token: Token) -> None:
        arguments = {**self._object(key), "Body": bytes(data), "IfMatch": token}
        try:
            self._try(lambda fs: _ask(fs, "put_object", arguments))
        except RequestFailedError as failed:
            if failed.failure.kind in _CHANGED:
                fact = "is gone" if failed.failure.kind is Kind.MISSING else "has changed"
                raise PreconditionFailedError(f"{key!r} in {self._url} {fact}", key=key) from failed
            raise self._error(failed, "replace", key) from failed

    def _read(self, question: Question) -> _Found:
        """Read some of an object, under any name: nothing, where it ends before that."""
        place = {"Bucket": self._bucket, "Key": self._key(question.key)}
        try:
            received: _Found = self._try(lambda fs: sync(fs.loop, _fetch, fs, place, question))
        except RequestFailedError as failed:
            if failed.failure.kind is Kind.RANGE:
                return _Found()
            raise self._error(failed, "read", question.key) from failed
        return received

    def _request(self, action: str, key: str, method: str, **arguments: Any) -> Any:
        """Send one of S3's other requests."""
        return self._send(action, key, lambda fs: _ask(fs, method, arguments))

    def _pages(self, prefix: str, limit: int | None, **arguments: Any) -> Iterator[dict[str, Any]]:
        """List page by page, in S3's order, which is that of the keys."""
        arguments.update(Bucket=self._bucket, Prefix=self._key(prefix))
        remaining = limit
        while remaining is None or remaining > 0:
            most = _MOST_KEYS if remaining is None else min(remaining, _MOST_KEYS)
            page = self._request("list", prefix, "list_objects_v2", **arguments, MaxKeys=most)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]
            if remaining is not None:
                remaining -= sum(map(self._is_object, page.get("Contents", ())))

    def _is_object(self, found: Mapping[str, Any]) -> bool:
        """Whether a listed object can be ours: consoles make empty ones that stand for folders."""
        return is_key(found["Key"][len(self._folder) :])

    def _objects(self, prefix: str, limit: int | None) -> Iterator[ObjectInfo]:
        for page in self._pages(prefix, limit):
            for item in filter(self._is_object, page.get("Contents", ())):
                key = item["Key"][len(self._folder) :]
                yield ObjectInfo(
                    key=key, size_bytes=int(item["Size"]), modified=item.get("LastModified")
                )

    def _delete(self, keys: Sequence[str]) -> None:
        """Delete up to a thousand objects; those that the server could not get to, again."""
        waiting = {self._key(key): key for key in keys}
        refused: list[Mapping[str, Any]] = []

        def ask(fs: Any) -> None:
            objects = [{"Key": name} for name in waiting]
            answer = _ask(
                fs,
                "delete_objects",
                {"Bucket": self._bucket, "Delete": {"Objects": objects, "Quiet": True}},
            )
            errors = [e for e in answer.get("Errors", ()) if e.get("Code") != "NoSuchKey"]
            again = {e["Key"] for e in errors if e.get("Code") in _DELETE_AGAIN}
            refused.extend(e for e in errors if e["Key"] not in again)
            for name in set(waiting) - again:
                del waiting[name]
            if waiting:
                raise TimeoutError(f"the server could not get to {len(waiting)} objects")

        try:
            self._try(ask)
        except RequestFailedError as failed:
            raise self._error(failed, "delete", next(iter(waiting.values()))) from failed
        if refused:
            first = refused[0]
            kind = Kind.DENIED if first.get("Code") == "AccessDenied" else Kind.OTHER
            text = f"{first.get('Code')} {first.get('Message', '')} ({len(refused)} objects)"
            failure = RequestFailedError(Failure(kind=kind, text=text), 1)
            raise self._error(failure, "delete", first["Key"][len(self._folder) :])

    def _put_in_parts(self, key: str, body: bytes, metadata: dict[str, str]) -> None:
        """Write a large object in parts, several at once; none stays when one fails."""
        place = self._object(key)
        size = max(_PART_BYTES, -(-len(body) // _MOST_PARTS))
        started = self._request("write", key, "create_multipart_upload", **place, Metadata=metadata)
        upload = {**place, "UploadId": started["UploadId"]}

        def send_part(number: int) -> dict[str, Any]:
            part = body[(number - 1) * size : number * size]
            answer = self._request(
                "write", key, "upload_part", **upload, PartNumber=number, Body=part
            )
            return {"PartNumber": number, "ETag": answer["ETag"]}

        try:
            with ThreadPoolExecutor(min(4, self._settings.max_concurrency)) as pool:
                parts = list(pool.map(send_part, range(1, -(-len(body) // size) + 1)))
            self._complete(key, upload, parts, len(body))
        except BaseException:
            with contextlib.suppress(StorageError, ReadOnlyError):
                self._request("write", key, "abort_multipart_upload", **upload)
            raise

    def _complete(
        self, key: str, upload: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], size: int
    ) -> None:
        """Make an object of its parts; an upload that is gone may be one whose answer was lost."""
        try:
            self._request(
                "write",
                key,
                "complete_multipart_upload",
                **upload,
                MultipartUpload={"Parts": parts},
            )
        except ObjectNotFoundError:
            if self._look_for(key) != size:
                raise


class _Direct(NamedTuple):
    """A session of aiohttp that follows no redirect."""

    session: Any

    async def request(self, *arguments: Any, **options: Any) -> Any:
        """Send a request to where it is addressed, and nowhere else."""
        return await self.session.request(*arguments, **options, allow_redirects=False)


@functools.cache
def _without_redirects() -> dict[str, Any]:
    """Give the configuration by which aiobotocore leaves redirects alone, as botocore does; aiohttp follows them.

    Old versions do not let themselves be told.
    """
    from aiobotocore.config import AioConfig  # noqa: PLC0415 - s3fs loads it, which takes a second
    from aiobotocore.httpsession import AIOHTTPSession  # noqa: PLC0415 - the same

    if "http_session_cls" not in inspect.signature(AioConfig.__init__).parameters:
        return {}

    class DirectSession(AIOHTTPSession):  # type: ignore[misc]
        async def _get_session(self, proxy_url: str | None) -> Any:
            return _Direct(await super()._get_session(proxy_url))

    return {"http_session_cls": DirectSession}


class _Found(NamedTuple):
    """What came of an object."""

    data: bytes = b""
    size: int | None = None
    etag: str | None = None
    modified: datetime | None = None


def _ask(fs: Any, method: str, arguments: Mapping[str, Any]) -> Any:
    """Send one request on the event loop of the file system, and wait for the answer."""
    return sync(fs.loop, fs._call_s3, method, **arguments)  # noqa: SLF001 - what call_s3 calls


async def _fetch(fs: Any, place: Mapping[str, str], question: Question) -> _Found:
    """Ask for an object, and take of it what was asked for."""
    wanted = {} if question.range is None else {"Range": question.range}
    answer = await fs._call_s3("get_object", **place, **wanted)  # noqa: SLF001 - what call_s3 calls
    body = answer["Body"]
    try:
        intake = Intake(question, answer.get("ContentRange"), answer.get("ContentLength"))
        while piece := await body.read(_PIECE_BYTES):
            if intake.take(piece):
                break
        data, size = intake.end()
    finally:
        body.close()
    return _Found(data, size, answer.get("ETag"), answer.get("LastModified"))
