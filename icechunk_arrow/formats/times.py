"""Times as every file writes them: ISO 8601, UTC, microseconds."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["TIME_PATTERN", "decode_time", "encode_time"]

TIME_PATTERN = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00$"
"""What :func:`encode_time` writes, as a regular expression."""


def encode_time(moment: datetime) -> str:
    """Write a time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def decode_time(text: str) -> datetime:
    """Read a time; one without a zone is refused with ``ValueError``."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"the time {text!r} has no zone")
    return moment
