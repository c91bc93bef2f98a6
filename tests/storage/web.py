"""A web server with many manners, over real HTTP: what the static hosts of this world do, right and wrong.

It knows files by the very text of the request, percent signs and query included, keeps what it was asked,
and serves ranges as it should unless a file was given other manners.
"""

from __future__ import annotations

import contextlib
import enum
import gzip
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.servers import Handler, listening

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Manner", "Page", "Web", "web"]


class Manner(enum.Enum):
    """What a server does instead of what was asked."""

    NO_RANGES = "sends the file from its beginning"
    NO_RANGES_CHUNKED = "sends the file from its beginning, without saying how long it is"
    NO_LENGTH = "sends the file from its beginning, and closes the connection where it ends"
    BEGINS_ELSEWHERE = "sends bytes from one further on, and says so"
    ENDS_EARLY = "sends fewer bytes than were asked for, and says so"
    SENDS_MORE = "sends all that follows, and says so"
    WRONG_SIZE = "says of the whole that it ends before the part"
    NO_PLACE = "does not say which part it sends"
    GZIP = "sends the part of the compressed file, and says that it is compressed"
    CUT = "announces the part, and stops in the middle of it"
    SHORT = "announces a body shorter than the part that it says it sends"
    PARTS = "sends the part as one of many"


@dataclass(kw_only=True)
class Page:
    """What is at a path."""

    data: bytes = b""
    manner: Manner | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 0
    endless: bool = False
    """Whether zeros are sent, without end."""
    announced: int | None = None
    """How long such a file is said to be."""
    times: int = 1 << 30
    """So often the manner and the status hold; then the page is served as it should be."""


@dataclass
class Web:
    """The server's pages by the text of the request, and what was asked."""

    pages: dict[str, Page] = field(default_factory=dict)
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    endpoint: str = ""

    @property
    def paths(self) -> list[str]:
        """The texts of the requests."""
        return [path for path, _ in self.asked]

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.endpoint.rpartition(":")[2])


@contextlib.contextmanager
def web() -> Iterator[Web]:
    """Run a server on a free port of this machine."""
    state = Web()
    with listening(_Pages, state) as state.endpoint:
        yield state


class _Pages(Handler):
    state: Web

    def _get(self) -> None:
        path = self.requestline.split()[1]  # http.server alters self.path
        self.state.asked.append((path, dict(self.headers)))
        page = self.state.pages.get(path)
        if page is None:
            self.answer(404, {}, b"no such page")
            return
        if self.command == "GET":
            page.times -= 1
        if page.status and page.times >= 0:
            self.answer(page.status, page.headers, b"a page that says what is the matter")
            return
        if page.endless:
            self.send_without_end(page.announced)
            return
        manner = page.manner if page.times >= 0 and self.command == "GET" else None
        self._serve(page, manner)

    do_GET = do_HEAD = _get  # noqa: N815

    def _serve(self, page: Page, manner: Manner | None) -> None:
        data, headers = page.data, {"Accept-Ranges": "bytes", **page.headers}
        if manner is Manner.GZIP:
            data = gzip.compress(data, mtime=0)
            headers["Content-Encoding"] = "gzip"
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if manner in {Manner.NO_RANGES, Manner.NO_RANGES_CHUNKED, Manner.NO_LENGTH}:
            wanted = None
        if wanted is None:
            self._whole(data, headers, manner)
            return
        size = len(data)
        first = int(wanted[1]) if wanted[1] else max(0, size - int(wanted[2]))
        stop = min(size, int(wanted[2]) + 1) if wanted[1] else size
        if first >= size:
            self.answer(416, {**headers, "Content-Range": f"bytes */{size}"})
            return
        if manner is Manner.BEGINS_ELSEWHERE:
            first, stop = first + 1, stop + 1
        elif manner is Manner.ENDS_EARLY:
            stop = first + max(1, (stop - first) // 2)
        elif manner is Manner.SENDS_MORE:
            stop = size
        part = data[first:stop]
        told = stop - 1 if manner is Manner.WRONG_SIZE else size
        place = f"bytes {first}-{stop - 1}/{told}"
        if manner is Manner.PARTS:
            part = (
                b"--x\r\nContent-Range: " + place.encode() + b"\r\n\r\n" + part + b"\r\n--x--\r\n"
            )
            headers["Content-Type"] = "multipart/byteranges; boundary=x"
        elif manner is not Manner.NO_PLACE:
            headers["Content-Range"] = place
        if manner is Manner.CUT:
            self.answer(206, headers, part, sent=len(part) // 2)
        else:
            self.answer(206, headers, part[: len(part) // 2] if manner is Manner.SHORT else part)

    def _whole(self, data: bytes, headers: dict[str, str], manner: Manner | None) -> None:
        if manner is Manner.NO_RANGES_CHUNKED:
            self.begin(200, {**headers, "Transfer-Encoding": "chunked"})
            with contextlib.suppress(ConnectionError):
                for at in range(0, len(data), 1 << 16):
                    piece = data[at : at + (1 << 16)]
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
        elif manner is Manner.NO_LENGTH:
            self.close_connection = True
            self.begin(200, {**headers, "Connection": "close"})
            self.send(data)
        elif manner in {Manner.CUT, Manner.SHORT}:
            self.answer(200, headers, data, sent=len(data) // 2)
        else:
            self.answer(200, headers, data)
