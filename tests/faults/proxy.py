"""A proxy before a real HTTP server that spoils a part of what passes: small, seeded, over real sockets.

It reads each request whole, decides by its plan what happens to it, and is transparent otherwise (signed
requests stay valid). Nothing in it knows S3, so it stands before any server that speaks plain HTTP: what is a
listing, how a whole file is had where requests are signed, and which request may be spoilt in which way, is said
from outside.
"""

from __future__ import annotations

import contextlib
import enum
import http.client
import random
import re
import select
import socket
import struct
import threading
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from tests.servers import Handler, listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["AWAY", "FaultProxy", "Spoil", "fault_proxy", "seeded"]


class Spoil(enum.Enum):
    """What can happen to a request, or to its answer."""

    REFUSED = "the server is never asked, and the connection is reset"
    BUSY = "the server is never asked, and the answer is 503"
    THROTTLED = "the server is never asked, and the answer is 429"
    CUT = "the server does what was asked; its answer ends in the middle"
    SHORT = "the server does what was asked; its answer is whole for HTTP, with fewer bytes"
    LOST = "the server does what was asked; no answer comes"
    FAILED = "the server does what was asked; the answer is 500"
    SLOW = "the request comes late to the server, or its answer to the client: others overtake it"
    SILENT = (
        "the server does what was asked; half of its answer comes, then nothing for a long time"
    )
    LATE = "the connection is reset; the request comes to the server a while later"
    DOUBLED = "the server is asked twice; the second answer comes"
    LONGER = "some bytes more come than were asked for, and are announced"
    WHOLE = "the whole file comes where a range was asked for"
    MISPLACED = "the answer says of its bytes that they stand one further on"
    RETAGGED = "the answer says of the file that it is another version"
    OTHER_RANGE = "the answer is that to an earlier request for another range of the file"
    OTHER_FILE = "the answer is that to an earlier request for another file"
    STALE = "the answer to a listing is an earlier one"
    FLIPPED = "one bit of the body of the answer is another"
    REDIRECTED = "the server is never asked; the answer leads to the same file under another path"
    MISLED = (
        "the server is never asked; the answer leads to another host or path, with another file"
    )


AWAY = "/~away"
"""Under this the proxy has all paths once more: where :attr:`Spoil.REDIRECTED` leads."""
_ASTRAY = "/~astray"
_BEFORE = {Spoil.BUSY: 503, Spoil.THROTTLED: 429}
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "expect"})
_KEPT_ANSWERS, _KEPT_LISTINGS = 64, 20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(.+)")
_REDIRECTS = (301, 302, 307, 308)


class _Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def altered(self, body: bytes | None = None, **headers: str) -> _Answer:
        """The same with another body, or other headers, each of which was there."""
        data = self.body if body is None else body
        new = {name.lower().replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            new["content-length"] = str(len(data))
        return _Answer(
            self.status, {n: new.get(n.lower(), v) for n, v in self.headers.items()}, data
        )

    def find(self, name: str) -> str | None:
        return next((v for n, v in self.headers.items() if n.lower() == name), None)


def seeded(
    seed: int,
    rates: Mapping[Spoil, float],
    *,
    may: Callable[[Spoil, str, str], bool] = lambda *_: True,
    persistent: float = 0.0,
) -> Callable[[str, str], Spoil | None]:
    """Make a plan that spoils each request by chance, the same chances for the same seed.

    ``may`` says of method and path whether they may be spoilt so. With the chance ``persistent`` what happens to
    a request happens to all that are sent for the same in the next seconds: no try helps.
    """
    chance = random.Random(seed)
    lock = threading.Lock()
    lasting: dict[tuple[str, str], tuple[Spoil, float]] = {}

    def draw() -> Spoil | None:
        number = chance.random()
        for spoil, rate in rates.items():
            if number < rate:
                return spoil
            number -= rate
        return None

    def plan(method: str, path: str) -> Spoil | None:
        with lock:
            lasts, until = lasting.get((method, path), (None, 0.0))
            if lasts is not None and time.monotonic() < until:
                return lasts
            found = draw()
            stays = chance.random() < persistent
            if found is None or not may(found, method, path):
                return None
            if stays:
                lasting[method, path] = found, time.monotonic() + 3
            return found

    return plan


@dataclass
class FaultProxy:
    """A running proxy."""

    upstream: str
    plan: Callable[[str, str], Spoil | None]
    """Called with method and path of each request."""
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    """What is drawn beside the plan: which bit, how long, where to."""
    is_listing: Callable[[str, str], bool] = lambda *_: False
    """Whether method and path ask for a listing."""
    whole: Callable[[str], bytes | None] | None = None
    """Gives the whole file of a path; None where the server may be asked again without its range."""
    slow_seconds: float = 0.3
    late_seconds: float = 1.2
    silent_seconds: float = 5.0
    """After so long a connection on which nothing comes is closed, unless the client does it before."""
    endpoint: str = ""
    passed: list[str] = field(default_factory=list)
    """Requests, spoilt or not, in the order in which they came."""
    spoilt: Counter[Spoil] = field(default_factory=Counter)
    """What was done, where there was something to do it to."""
    strayed: list[str] = field(default_factory=list)
    """Requests of those who went where they were misled to."""
    _late: list[threading.Thread] = field(default_factory=list)
    _listings: defaultdict[str, deque[_Answer]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_KEPT_LISTINGS))
    )
    _answers: deque[tuple[str, str, _Answer]] = field(
        default_factory=lambda: deque(maxlen=_KEPT_ANSWERS)
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def settle(self) -> None:
        """Wait until everything has come to the server that is under way to it."""
        while self._late:
            self._late.pop().join()

    def draw(self, count: int) -> int:
        """Draw a number below a count."""
        with self._lock:
            return self.chance.randrange(count)

    def draw_seconds(self, most: float) -> float:
        """Draw how long something takes."""
        with self._lock:
            return self.chance.uniform(0.02, 1) * most

    def keep(self, path: str, wanted: str, answer: _Answer, *, listing: bool) -> None:
        """Remember an answer for those who will be given an old one, or another's."""
        with self._lock:
            if listing:
                self._listings[path].append(answer)
            else:
                self._answers.append((path, wanted, answer))

    def earlier(self, spoil: Spoil, path: str, wanted: str, answer: _Answer) -> _Answer | None:
        """Find an answer to another request, or an old one to the same listing.

        Of ranges one that is as long, where there is one: its length gives it not away.
        """
        with self._lock:
            if spoil is Spoil.STALE:
                found = list(self._listings[path])
            elif spoil is Spoil.OTHER_RANGE:
                found = [a for p, r, a in self._answers if p == path and r != wanted]
                found = [a for a in found if len(a.body) == len(answer.body)] or found
            else:
                found = [a for p, _, a in self._answers if p != path]
            return found[self.chance.randrange(len(found))] if found else None


@contextlib.contextmanager
def fault_proxy(
    upstream: str, plan: Callable[[str, str], Spoil | None], **how: object
) -> Iterator[FaultProxy]:
    """Run a proxy on a free port of this machine; ``how`` has other members of it."""
    state = FaultProxy(upstream, plan, **how)  # type: ignore[arg-type]
    with listening(_Spoiling, state) as state.endpoint:
        try:
            yield state
        finally:
            state.settle()


class _Spoiling(Handler):
    state: FaultProxy

    def _serve(self) -> None:
        body, state = self.received(), self.state
        # http.server joins slashes at the beginning, which signatures do not
        self.path = self.requestline.split(" ")[1].removeprefix(AWAY)
        if self.path.startswith(_ASTRAY):
            state.strayed.append(f"{self.command} {self.path}")
            self.answer(200, {"ETag": '"astray"'}, b"from elsewhere " * 300)
            return
        spoil = state.plan(self.command, self.path)
        state.passed.append(f"{self.command} {self.path}")
        if spoil in _WITHOUT_SERVER:
            state.spoilt[spoil] += 1
            _WITHOUT_SERVER[spoil](self, spoil, body)
            return
        if spoil is Spoil.SLOW:
            state.spoilt[spoil] += 1
            time.sleep(state.draw_seconds(state.slow_seconds))
        if spoil is Spoil.DOUBLED:
            state.spoilt[spoil] += 1
            self._forward(body)
        answer = self._forward(body)
        if spoil is Spoil.SLOW:
            time.sleep(state.draw_seconds(state.slow_seconds))
        listing = state.is_listing(self.command, self.path)
        if self.command == "GET" and answer.status in {200, 206}:
            state.keep(self.path, self._wanted, answer, listing=listing)
        if spoil in _SENDING:
            state.spoilt[spoil] += 1
            _SENDING[spoil](self, answer)
            return
        if spoil in _ALTERING:
            altered = _ALTERING[spoil](self, spoil, answer)
            if altered is not None:
                state.spoilt[spoil] += 1
                answer = altered
        self.answer(*answer)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

    @property
    def _wanted(self) -> str:
        return str(self.headers.get("Range", ""))

    def _forward(self, body: bytes, without: str = "") -> _Answer:
        """Ask the server, over a connection of its own; ``without`` a header."""
        target = urlsplit(self.state.upstream)
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=30)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in {*_HOP_BY_HOP, without}:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            data = answer.read()
            headers = {n: v for n, v in answer.getheaders() if n.lower() not in _HOP_BY_HOP}
            return _Answer(answer.status, headers, data)
        finally:
            connection.close()

    # -- where the server is never asked, or only later

    def _refuse(self, _spoil: Spoil, _body: bytes) -> None:
        self._reset()

    def _say_no(self, spoil: Spoil, _body: bytes) -> None:
        self.answer(_BEFORE[spoil], {})

    def _forward_later(self, _spoil: Spoil, body: bytes) -> None:
        seconds = self.state.draw_seconds(self.state.late_seconds)

        def forward() -> None:
            time.sleep(seconds)
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._forward(body)

        thread = threading.Thread(target=forward)
        thread.start()
        self.state._late.append(thread)
        self._reset()

    def _redirect(self, spoil: Spoil, _body: bytes) -> None:
        endpoint = self.state.endpoint
        if spoil is Spoil.REDIRECTED:
            places = [f"{endpoint}{AWAY}{self.path}", f"{AWAY}{self.path}"]
        else:
            elsewhere = endpoint.replace("127.0.0.1", "localhost")
            places = [
                f"{elsewhere}{_ASTRAY}{self.path}",
                f"{endpoint}{_ASTRAY}{self.path}",
                f"//{elsewhere.partition('//')[2]}{_ASTRAY}{self.path}",
                f"{_ASTRAY}/../..{_ASTRAY}{self.path}",
                f"http://user:word@{elsewhere.partition('//')[2]}{_ASTRAY}{self.path}",
                "file:///etc/hostname",
                "ftp://127.0.0.1:1/x",
                "http://[::1",
                "\u00e9 \\",
            ]
        status = _REDIRECTS[self.state.draw(len(_REDIRECTS))]
        self.answer(status, {"Location": places[self.state.draw(len(places))]})

    # -- where the server has done it, and its answer does not come as it should

    def _lose(self, _answer: _Answer) -> None:
        self._reset()

    def _fail(self, _answer: _Answer) -> None:
        self.answer(500, {})

    def _half(self, answer: _Answer) -> bytes:
        """Half of the body, or half of the headers where there is no body."""
        head = [f"HTTP/1.1 {answer.status} cut"]
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        text = ("\r\n".join(head) + "\r\n\r\n").encode("latin-1")
        body = b"" if self.command == "HEAD" else answer.body
        return text + body[: len(body) // 2] if body else text[: len(text) // 2]

    def _cut(self, answer: _Answer) -> None:
        self.send(self._half(answer))
        self.close_connection = True

    def _fall_silent(self, answer: _Answer) -> None:
        self.send(self._half(answer) if self.state.draw(2) else b"")
        with contextlib.suppress(OSError):
            readable, _, _ = select.select([self.connection], [], [], self.state.silent_seconds)
            if readable:
                self.connection.recv(1)
        self._reset()

    def _reset(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    # -- where another answer comes

    def _shorten(self, _spoil: Spoil, answer: _Answer) -> _Answer | None:
        return answer.altered(answer.body[: len(answer.body) // 2]) if answer.body else None

    def _lengthen(self, _spoil: Spoil, answer: _Answer) -> _Answer | None:
        return answer.altered(answer.body + answer.body[:7]) if answer.body else None

    def _flip(self, _spoil: Spoil, answer: _Answer) -> _Answer | None:
        if not answer.body:
            return None
        bit, body = self.state.draw(8 * len(answer.body)), bytearray(answer.body)
        body[bit >> 3] ^= 1 << (bit & 7)
        return answer.altered(bytes(body))

    def _give_whole(self, _spoil: Spoil, answer: _Answer) -> _Answer | None:
        if answer.status != 206:
            return None
        if self.state.whole is None:
            return self._forward(b"", without="range")
        body = self.state.whole(self.path)
        if body is None:
            return None
        headers = {n: v for n, v in answer.headers.items() if n.lower() != "content-range"}
        return _Answer(200, headers, b"").altered(body)

    def _misplace(self, _spoil: Spoil, answer: _Answer) -> _Answer | None:
        told = _CONTENT_RANGE.fullmatch(answer.find("content-range") or "")
        if told is None:
            return None
        first, last, size = int(told[1]), int(told[2]), told[3]
        return answer.altered(content_range=f"bytes {first + 1}-{last + 1}/{size}")

    def _retag(self, _spoil: Spoil, answer: _Answer) -> _Answer | None:
        tag = answer.find("etag")
        return None if tag is None else answer.altered(etag=f'"{tag[1:-1][::-1]}0"')

    def _give_earlier(self, spoil: Spoil, answer: _Answer) -> _Answer | None:
        listing = self.state.is_listing(self.command, self.path)
        if self.command != "GET" or listing != (spoil is Spoil.STALE):
            return None
        found = self.state.earlier(spoil, self.path, self._wanted, answer)
        return None if found == answer else found


_WITHOUT_SERVER = {
    Spoil.REFUSED: _Spoiling._refuse,
    Spoil.BUSY: _Spoiling._say_no,
    Spoil.THROTTLED: _Spoiling._say_no,
    Spoil.LATE: _Spoiling._forward_later,
    Spoil.REDIRECTED: _Spoiling._redirect,
    Spoil.MISLED: _Spoiling._redirect,
}
_SENDING = {
    Spoil.LOST: _Spoiling._lose,
    Spoil.FAILED: _Spoiling._fail,
    Spoil.CUT: _Spoiling._cut,
    Spoil.SILENT: _Spoiling._fall_silent,
}
_ALTERING = {
    Spoil.SHORT: _Spoiling._shorten,
    Spoil.LONGER: _Spoiling._lengthen,
    Spoil.FLIPPED: _Spoiling._flip,
    Spoil.WHOLE: _Spoiling._give_whole,
    Spoil.MISPLACED: _Spoiling._misplace,
    Spoil.RETAGGED: _Spoiling._retag,
    Spoil.OTHER_RANGE: _Spoiling._give_earlier,
    Spoil.OTHER_FILE: _Spoiling._give_earlier,
    Spoil.STALE: _Spoiling._give_earlier,
}
