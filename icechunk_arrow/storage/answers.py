"""What came of a request for bytes of a file: whether to believe it, and how much of it is taken.

Owns the one judgement of answers for all places behind a network, and what they say of a file: its ETag and its
time. An answer in part is held against what was asked for; one of a server that ignores ranges is cut here; one
that ended early is noticed; and no caller is made to take more than was asked for, or is allowed. It is given heads
and pieces, and sends nothing itself: the sender only has to stop when it says so.
"""

from __future__ import annotations

import re
from collections import deque
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from icechunk_arrow.errors import StorageError
from icechunk_arrow.storage.port import check_size

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

MICRO = 1_000_000
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)
_MOST_SKIPPED = 64 * 2**20
"""So many bytes in front of those that are wanted are taken from a server that ignores ranges."""


class BadAnswerError(Exception):
    """An answer is not what was asked for: it is shorter than announced, or another range."""


class RefusedAnswerError(Exception):
    """An answer cannot be used, and asking again will not change it."""


class RedirectedError(StorageError):
    """A web server says that a file is elsewhere: ``target`` is the absolute URL."""

    target: str


class Part(NamedTuple):
    """Bytes of a file, and what was said of the file in the same answer."""

    data: bytes
    etag: str | None
    modified: int | None
    """Microseconds since 1970, UTC; whole seconds where the place knows no finer ones."""


class Question(Struct, frozen=True, kw_only=True):
    """Which bytes of a file are asked for."""

    key: str
    """What the file is called in errors."""
    start: int | None = 0
    """Where the range begins; None for the last bytes."""
    length: int | None = None
    """None for everything."""
    limit_bytes: int | None = None
    """Of everything, the most that is taken."""

    @property
    def range(self) -> str | None:
        """The header that says it; None for everything."""
        if self.length is None:
            return None
        if self.start is None:
            return f"bytes=-{self.length}"
        return f"bytes={self.start}-{self.start + self.length - 1}"


class Intake:
    """Takes the body of one answer, piece by piece: what was asked for is kept, and what is wrong refused.

    Parameters
    ----------
    question
        What was asked for.
    place
        ``Content-Range`` of an answer in part; None of one that begins where the file does.
    announced
        How many bytes the body is said to have; None where that is not said.
    """

    def __init__(self, question: Question, place: str | None, announced: int | None) -> None:
        self._question = question
        self._must = self._size = announced
        self._is_part = place is not None and question.length is not None
        self._stop: int | None = None
        self._pieces: deque[bytes] = deque()
        self._come = self._kept = 0
        if question.length is None:
            _check_whole(place)
            check_size(question.key, announced or 0, question.limit_bytes)
        elif place is not None:
            self._must, self._size = check_part(place, question.start, question.length)
        elif question.start is None:
            _check_skipped((announced or 0) - question.length)
        else:
            _check_skipped(question.start)
            self._stop = question.start + question.length

    def take(self, piece: bytes) -> bool:
        """Take the next bytes; True when no more are wanted."""
        begin = self._come
        self._come += len(piece)
        question = self._question
        if self._stop is not None:
            first = max(0, (question.start or 0) - begin)
            self._pieces.append(piece[first : max(0, self._stop - begin)])
            return self._come >= self._stop
        self._pieces.append(piece)
        if self._is_part:
            return self._come > (self._must or 0)
        if question.length is None:
            check_size(question.key, self._come, question.limit_bytes)
            return False
        self._kept += len(piece)
        while self._kept - len(self._pieces[0]) >= question.length:
            self._kept -= len(self._pieces.popleft())
        _check_skipped(self._come - question.length)
        return False

    def end(self) -> tuple[bytes, int | None]:
        """Give what was asked for, and the size of the whole file where that is known."""
        left_early = self._stop is not None and self._come >= self._stop
        if not left_early and self._must is not None and self._come != self._must:
            raise BadAnswerError(f"{self._come} bytes came, where {self._must} were announced")
        data = b"".join(self._pieces)
        if left_early or self._is_part:
            return data, self._size
        if self._question.start is None:
            data = data[max(0, len(data) - (self._question.length or 0)) :]
        return data, self._come


def _check_whole(place: str | None) -> None:
    """Refuse a part, where everything was asked for."""
    if place is None:
        return
    first, stop, size = parse_content_range(place)
    if first or stop != size:
        raise BadAnswerError(f"asked for everything, the server sent {place!r}")


def _check_skipped(count: int) -> None:
    """Refuse to take very much for the sake of what comes behind it."""
    if count > _MOST_SKIPPED:
        raise RefusedAnswerError(
            f"the server ignores ranges, and {count} bytes would have to come before those that are "
            f"wanted; put the file where ranges are served"
        )


def size_without(question: Question, place: str) -> int | None:
    """Read ``Content-Range`` of an answer that says that a file ends before the range: its size, where told."""
    told = place.rpartition("/")[2]
    size = int(told) if told.isdecimal() else None
    if size and (question.start is None or question.start < size):
        raise BadAnswerError(f"the server has nothing from {question.start} of {size} bytes")
    return size


def range_from(fs: Any, path: str, start: int, length: int) -> bytes:
    """Read a range through a file system of fsspec; where too little comes, see whether the file ends there."""
    data = bytes(fs.cat_file(path, start=start, end=start + length))
    if len(data) < length and start + len(data) < int(fs.info(path)["size"]):
        raise BadAnswerError(f"{len(data)} bytes came, where {length} were asked for")
    return data[:length]


def parse_content_range(text: str) -> tuple[int, int, int | None]:
    """Read ``Content-Range``: where a part begins and ends, and the size of the whole if it is told."""
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if match is None:
        raise BadAnswerError(f"an answer in part says {text!r} of where its bytes stand")
    first, stop = int(match[1]), int(match[2]) + 1
    size = None if match[3] == "*" else int(match[3])
    if first >= stop or (size is not None and stop > size):
        raise BadAnswerError(f"an answer in part says {text!r}, which is no range")
    return first, stop, size


def check_part(text: str, start: int | None, length: int) -> tuple[int, int | None]:
    """Hold ``Content-Range`` against the range that was asked for; ``None`` asks for the last bytes.

    Gives how many bytes must come, and the size of the whole.
    """
    first, stop, size = parse_content_range(text)
    if start is None:
        if size is None:
            raise BadAnswerError(f"an answer with the last bytes does not tell the size: {text!r}")
        right = first == max(0, size - length) and stop == size
    else:
        right = first == start and stop == min(start + length, stop if size is None else size)
    if not right or stop - first > length:
        asked = f"the last {length}" if start is None else f"{length} from {start}"
        raise BadAnswerError(f"asked for {asked} bytes, the server sent {text!r}")
    return stop - first, size


def bare_etag(etag: str) -> str:
    """Write an ETag without its quotes; a weak one keeps its ``W/``, and so is another one."""
    weak = "W/" if etag.startswith("W/") else ""
    return weak + etag.removeprefix("W/").strip('"')


def etag_of(facts: Mapping[str, Any]) -> str | None:
    """Find the ETag among what a file system of fsspec says of a file."""
    etag = facts.get("ETag") or facts.get("etag")
    return bare_etag(etag) if isinstance(etag, str) else None


def local_etag(facts: os.stat_result) -> str:
    """Write what a local file has in place of an ETag, as the specification of manifests says."""
    return f"{facts.st_mtime_ns:x}-{facts.st_size:x}"


def micros_of(moment: datetime | None) -> int | None:
    """Count the microseconds from 1970 to a moment, exactly."""
    if moment is None:
        return None
    return int(moment.replace(microsecond=0).timestamp()) * MICRO + moment.microsecond


def micros_of_http(date: str | None) -> int | None:
    """Read a date as HTTP writes it; None for none, and for one that is no date."""
    if not date:
        return None
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    return micros_of(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
