"""Times as every file writes them: ISO 8601, UTC, microseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime

__all__ = ["TIME_PATTERN", "decode_time", "encode_time", "is_moment"]

TIME_PATTERN = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00$"
"""What :func:`encode_time` writes, as a regular expression."""
_FORM = re.compile(TIME_PATTERN)
_FIRST_YEAR, _LAST_YEAR = 1970, 9000
"""Times of commits are added to; what lies outside is no clock's."""


def encode_time(moment: datetime) -> str:
    """Write a time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def is_moment(moment: datetime) -> bool:
    """Whether a time is one that some clock may have shown."""
    return _FIRST_YEAR <= moment.year <= _LAST_YEAR


def decode_time(text: str) -> datetime:
    """Read a time; one of another form, or that no clock ever showed, is refused with ``ValueError``."""
    if not _FORM.match(text):
        raise ValueError(f"the time {text[:50]!r} is not like 2026-01-31T12:00:00.000000+00:00")
    moment = datetime.fromisoformat(text)
    if not is_moment(moment):
        raise ValueError(f"the time {text!r} is not from {_FIRST_YEAR} to {_LAST_YEAR}")
    return moment
