"""How a place is used: durability, tries, time-outs, requests in flight.

Owns the settings; the places obey them. Knows nothing of repositories.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from icechunk_arrow.settings import Positive, Takes, check_settings

__all__ = ["StorageSettings"]

_Seconds = Annotated[
    float, Meta(ge=0, le=sys.float_info.max), Takes(words="a number of seconds from 0")
]


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

    durable: Annotated[bool, Takes(words="true or false")] = True
    retry_tries: Positive = 5
    retry_backoff_seconds: _Seconds = 0.1
    retry_backoff_max_seconds: _Seconds = 10.0
    timeout_seconds: Annotated[
        float,
        Meta(gt=0, le=sys.float_info.max),
        Takes(words="a number of seconds, more than 0"),
    ] = 60.0
    max_concurrency: Positive = 64

    def __post_init__(self) -> None:
        check_settings(self, spell=str)
