"""How a place is used: durability, tries, time-outs, requests in flight.

Owns the settings and their checks; the places obey them. Knows nothing of repositories.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from icechunk_arrow.errors import InvalidInputError

__all__ = ["StorageSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Settings of one handle on a place.

    Parameters
    ----------
    durable
        Local disk: what a commit names is synced before the commit, and the commit before it
        returns. Without it a commit is still atomic, but a power cut may take the last ones back.
    retry_tries
        How often a request to an object store is sent at most; 1 means never again.
    retry_backoff_seconds, retry_backoff_max_seconds
        The pause after the first failed try, and the longest one. It doubles from try to try and
        is shortened at random, so that many clients do not come back at once.
    timeout_seconds
        S3 and HTTP: how long to wait for a connection, and for the next bytes of an answer. Other
        file systems take theirs from ``storage_options``, as do these where it is given there.
    max_concurrency
        How many connections are kept open to one object store, and how many deletions and parts
        of a large upload run at once.
    """

    durable: bool = True
    retry_tries: int = 5
    retry_backoff_seconds: float = 0.1
    retry_backoff_max_seconds: float = 10.0
    timeout_seconds: float = 60.0
    max_concurrency: int = 64

    def __post_init__(self) -> None:
        for name in ("retry_tries", "max_concurrency"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidInputError(f"{name} must be a whole number from 1, not {value!r}")
        for name in ("retry_backoff_seconds", "retry_backoff_max_seconds", "timeout_seconds"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise InvalidInputError(f"{name} must be a number of seconds, not {value!r}")
        if self.timeout_seconds == 0:
            raise InvalidInputError("timeout_seconds must be more than 0")
