"""Files that are not the repository's: what came of one, and whether it is still the recorded one.

Owns how ETags and times are compared, for every kind of place, and how an answer in part of a web
server or object store is held against what was asked for.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from icechunk_arrow.errors import StorageError
from icechunk_arrow.storage.failures import BadAnswerError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Part",
    "RedirectedError",
    "bare_etag",
    "check_part",
    "difference",
    "etag_of",
    "micros_of",
    "micros_of_http",
    "parse_content_range",
    "show_micros",
]

_MICRO = 1_000_000
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)


class RedirectedError(StorageError):
    """A web server says that a file is elsewhere: ``target`` is the absolute URL."""

    target: str


class Part(NamedTuple):
    """Bytes of a file, and what was said of the file in the same answer."""

    data: bytes
    etag: str | None
    modified: int | None
    """Microseconds since 1970, UTC; whole seconds where the place knows no finer ones."""


def bare_etag(etag: str) -> str:
    """Write an ETag without its quotes; a weak one keeps its ``W/``, and so is another one."""
    weak = "W/" if etag.startswith("W/") else ""
    return weak + etag.removeprefix("W/").strip('"')


def etag_of(facts: Mapping[str, Any]) -> str | None:
    """Find the ETag among what a file system of fsspec says of a file."""
    found = facts.get("ETag") or facts.get("etag")
    return bare_etag(found) if isinstance(found, str) else None


def difference(
    etag: str | None, modified: int | None, recorded_etag: str | None, recorded_time: int | None
) -> str | None:
    """Say how a file differs from the recorded one; None where it does not.

    Where the recorded time is one of whole seconds, its part of a second was not known: any time
    within that second is the same. A place that tells whole seconds needs no rule of its own.
    """
    if recorded_etag is not None:
        if etag is None:
            return f"no ETag is told, and {recorded_etag} was recorded"
        if bare_etag(etag) != bare_etag(recorded_etag):
            return f"its ETag is {bare_etag(etag)}, and {bare_etag(recorded_etag)} was recorded"
    if recorded_time is not None:
        if modified is None:
            return f"no time is told, and {show_micros(recorded_time)} was recorded"
        unit = _MICRO if recorded_time % _MICRO == 0 else 1
        if modified // unit > recorded_time // unit:
            return (
                f"it was modified at {show_micros(modified)}, and {show_micros(recorded_time)} was "
                f"recorded"
            )
    return None


def micros_of(moment: datetime | None) -> int | None:
    """Count the microseconds from 1970 to a moment, exactly."""
    if moment is None:
        return None
    return int(moment.replace(microsecond=0).timestamp()) * _MICRO + moment.microsecond


def micros_of_http(date: str | None) -> int | None:
    """Read a date as HTTP writes it; None for none, and for one that is no date."""
    if not date:
        return None
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    return micros_of(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def show_micros(micros: int) -> str:
    """Write a time for an error."""
    try:
        return str(
            datetime.fromtimestamp(micros // _MICRO, UTC).replace(microsecond=micros % _MICRO)
        )
    except (OverflowError, ValueError, OSError):
        return f"{micros} microseconds after 1970"


def parse_content_range(text: str) -> tuple[int, int, int | None]:
    """Read ``Content-Range``: where a part begins and ends, and the size of the whole if it is told."""
    found = _CONTENT_RANGE.fullmatch(text.strip())
    if found is None:
        raise BadAnswerError(f"an answer in part says {text!r} of where its bytes stand")
    first, stop = int(found[1]), int(found[2]) + 1
    size = None if found[3] == "*" else int(found[3])
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
