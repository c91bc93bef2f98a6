"""A small S3 server that misbehaves on purpose, over real HTTP.

It keeps objects, heeds conditions unless told not to, counts requests, and first plays the faults
that a test has put in its queue. What a well-behaved server does is tested with versitygw.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.servers import Handler, listening

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FakeS3", "Fault", "fake_s3"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An answer that comes instead of, or after, the right one."""

    status: int = 500
    code: str = ""
    obeys: bool = False
    """Do what was asked, and only then answer wrongly."""
    cut: bool = False
    """Close the connection instead of answering."""
    seconds: float = 0.0
    """Wait so long first."""


@dataclass
class FakeS3:
    """The server's state."""

    objects: dict[str, bytes] = field(default_factory=dict)
    faults: deque[Fault] = field(default_factory=deque)
    requests: list[str] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    probes: int = 0
    heeds: frozenset[str] = frozenset({"If-None-Match", "If-Match"})
    ranges: bool = True
    undeletable: dict[str, str] = field(default_factory=dict)
    endless: str = ""
    """The key of an object that never ends."""
    announced: int | None = None
    """How long it says that it is."""
    endpoint: str = ""

    @property
    def storage_options(self) -> dict[str, Any]:
        return {
            "key": "k",
            "secret": "s",
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }


@contextlib.contextmanager
def fake_s3() -> Iterator[FakeS3]:
    """Run a server on this machine."""
    state = FakeS3()
    with listening(_Bucket, state) as state.endpoint:
        yield state


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class _Bucket(Handler):
    state: FakeS3

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        key = unquote(parts.path).removeprefix("/bucket").lstrip("/")
        body = self._body()
        self.state.authorizations.append(self.headers.get("Authorization", ""))
        probe = key.startswith("p/.icechunk-arrow/probe-")
        if not probe and b".icechunk-arrow/probe-" not in body:
            self.state.requests.append(f"{self.command} {self.path}")
            if self.state.faults:
                fault = self.state.faults.popleft()
                threading.Event().wait(fault.seconds)
                if fault.obeys:
                    self._obey(key, parts.query, body)
                if fault.cut:
                    self.close_connection = True
                    return
                self.answer(fault.status, {}, _error(fault.code) if fault.code else b"")
                return
        else:
            self.state.probes += 1
        if self.command == "GET" and key and key == self.state.endless:
            self.send_without_end(self.state.announced)
            return
        status, found, headers = self._obey(key, parts.query, body)
        self.answer(status, {"Date": self.date_time_string(), **headers}, found)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

    def _body(self) -> bytes:
        """Read what was sent, also in the signed chunks that newer clients make of it."""
        raw = self.received()
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return raw
        out = b""
        while raw:
            line, _, raw = raw.partition(b"\r\n")
            size = int(line.partition(b";")[0], 16)
            if not size:
                break
            out, raw = out + raw[:size], raw[size + 2 :]
        return out

    def _obey(self, key: str, query: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        objects = self.state.objects
        if self.command == "PUT":
            return self._put(key, body)
        if self.command == "POST":
            return self._delete(body)
        if "list-type" in query:
            return 200, self._listing(parse_qs(query)), {}
        if key not in objects:
            return 404, _error("NoSuchKey"), {}
        data, headers = objects[key], {"ETag": _etag(objects[key])}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or not self.state.ranges:
            return 200, data, headers
        first = int(wanted[1]) if wanted[1] else max(0, len(data) - int(wanted[2]))
        if first >= len(data):
            return 416, _error("InvalidRange"), {}
        part = data[first : int(wanted[2]) + 1 if wanted[1] else None]
        headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
        return 206, part, headers

    def _put(self, key: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        present = self.state.objects.get(key)
        heeds, headers = self.state.heeds, self.headers
        taken = headers.get("If-None-Match") and "If-None-Match" in heeds and present is not None
        match = headers.get("If-Match") if "If-Match" in heeds else None
        if match and present is None:
            return 404, _error("NoSuchKey"), {}
        if taken or (match and match != _etag(present or b"")):
            return 412, _error("PreconditionFailed"), {}
        self.state.objects[key] = body
        return 200, b"", {"ETag": _etag(body)}

    def _delete(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        errors = ""
        for name in re.findall(r"<Key>(.*?)</Key>", body.decode()):
            if name in self.state.undeletable:
                code = self.state.undeletable[name]
                if code == "SlowDown":  # only the first time
                    del self.state.undeletable[name]
                errors += f"<Error><Key>{name}</Key><Code>{code}</Code></Error>"
            else:
                self.state.objects.pop(name, None)
        return 200, f"<DeleteResult>{errors}</DeleteResult>".encode(), {}

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        prefix = query.get("prefix", [""])[0]
        keys = sorted(key for key in self.state.objects if key.startswith(prefix))
        most = int(query.get("max-keys", ["1000"])[0])
        after = query.get("continuation-token", [""])[0]
        keys = [key for key in keys if key > after]
        found = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(self.state.objects[key])}</Size></Contents>"
            for key in keys[:most]
        )
        more = ""
        if len(keys) > most:
            more = f"<NextContinuationToken>{keys[most - 1]}</NextContinuationToken>"
        truncated = "true" if more else "false"
        return (
            f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{found}{more}"
            "</ListBucketResult>"
        ).encode()


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>on purpose</Message></Error>".encode()
