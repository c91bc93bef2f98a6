"""A proxy before a real HTTP server that spoils a part of what passes: small, seeded, over real sockets.

It reads each request whole, decides by its plan what happens to it, and is transparent otherwise (signed
requests stay valid). Nothing in it knows S3, so it stands before any server that speaks plain HTTP.
"""

from __future__ import annotations

import contextlib
import enum
import http.client
import random
import socket
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.servers import Handler, listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["FaultProxy", "Spoil", "fault_proxy", "seeded"]


class Spoil(enum.Enum):
    """What can happen to a request, or to its answer."""

    REFUSED = "the server is never asked, and the connection is reset"
    BUSY = "the server is never asked, and the answer is 503"
    THROTTLED = "the server is never asked, and the answer is 429"
    CUT = "the server does what was asked; its answer ends in the middle"
    SHORT = "the server does what was asked; its answer is whole for HTTP, with fewer bytes"
    LOST = "the server does what was asked; no answer comes"
    FAILED = "the server does what was asked; the answer is 500"


_BEFORE = {Spoil.BUSY: 503, Spoil.THROTTLED: 429}
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "expect"})


def seeded(seed: int, rates: Mapping[Spoil, float]) -> Callable[[str, str], Spoil | None]:
    """Make a plan that spoils each request by chance, the same chances for the same seed."""
    chance = random.Random(seed)
    lock = threading.Lock()

    def plan(_method: str, _path: str) -> Spoil | None:
        with lock:
            number = chance.random()
        for spoil, rate in rates.items():
            if number < rate:
                return spoil
            number -= rate
        return None

    return plan


@dataclass
class FaultProxy:
    """A running proxy."""

    upstream: str
    plan: Callable[[str, str], Spoil | None]
    """Called with method and path of each request."""
    endpoint: str = ""
    passed: list[str] = field(default_factory=list)
    """Requests, spoilt or not, in the order in which they came."""
    spoilt: Counter[Spoil] = field(default_factory=Counter)


@contextlib.contextmanager
def fault_proxy(upstream: str, plan: Callable[[str, str], Spoil | None]) -> Iterator[FaultProxy]:
    """Run a proxy on a free port of this machine."""
    state = FaultProxy(upstream, plan)
    with listening(_Spoiling, state) as state.endpoint:
        yield state


class _Spoiling(Handler):
    state: FaultProxy

    def _serve(self) -> None:
        body = self.received()
        spoil = self.state.plan(self.command, self.path)
        self.state.passed.append(f"{self.command} {self.path}")
        if spoil is not None:
            self.state.spoilt[spoil] += 1
        if spoil is Spoil.REFUSED:
            self._reset()
            return
        if spoil in _BEFORE:
            self.answer(_BEFORE[spoil], {})
            return
        status, headers, answer = self._forward(body)
        if spoil is Spoil.LOST:
            self._reset()
        elif spoil is Spoil.FAILED:
            self.answer(500, {})
        elif spoil is Spoil.CUT:
            self._cut(status, headers, answer)
        else:
            if spoil is Spoil.SHORT and answer:
                answer = answer[: len(answer) // 2]
                headers = {**headers, "Content-Length": str(len(answer))}
            self.answer(status, headers, answer)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Ask the server, over a connection of its own."""
        target = urlsplit(self.state.upstream)
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=30)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            data = answer.read()
            headers = {n: v for n, v in answer.getheaders() if n.lower() not in _HOP_BY_HOP}
            return answer.status, headers, data
        finally:
            connection.close()

    def _cut(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send half of the body, or half of the headers where there is no body."""
        head = [f"HTTP/1.1 {status} cut"] + [f"{name}: {value}" for name, value in headers.items()]
        text = ("\r\n".join(head) + "\r\n\r\n").encode("latin-1")
        sent = text + body[: len(body) // 2] if body else text[: len(text) // 2]
        self.send(sent)
        self.close_connection = True

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
