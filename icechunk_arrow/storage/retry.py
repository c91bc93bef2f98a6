"""Sending a request again when that may help, and no more often than the person allows.

Owns the loop and its pauses; :mod:`icechunk_arrow.storage.failures` says what is worth it.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, TypeVar

from icechunk_arrow.storage.failures import Failure, Kind, classify

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_arrow.storage.settings import StorageSettings

__all__ = ["RequestFailedError", "pause_seconds", "send"]

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)
# A store says "conflict" while another write of the object is under way, and asks for another try:
# of a conditional one only that tells who won. A gateway before a file system says it too while
# somebody else removes the folder that an object was to stand in.
_WORTH_IT = frozenset({Kind.TRANSIENT, Kind.CONFLICT})


class RequestFailedError(Exception):
    """A request failed for good; places turn it into what it means to them."""

    def __init__(self, failure: Failure, tries: int) -> None:
        super().__init__(failure.text)
        self.failure = failure
        self.tries = tries


def pause_seconds(failed_tries: int, settings: StorageSettings, chance: float) -> float:
    """Say how long to wait after so many failed tries; ``chance`` from 0 to 1 shortens it."""
    longest = settings.retry_backoff_max_seconds
    doubled = settings.retry_backoff_seconds * 2.0 ** min(failed_tries - 1, 60)
    return min(longest, doubled) * (1 - chance / 2)


def send(
    request: Callable[[], _T], settings: StorageSettings, shown: Callable[[str], str] = str
) -> _T:
    """Send a request until it is answered for good, or the tries are used up.

    What is logged of a failure is what is ``shown`` of its text.
    """
    tries = 0
    while True:
        tries += 1
        try:
            return request()
        except Exception as error:
            failure = classify(error)
            if failure.kind not in _WORTH_IT or tries >= settings.retry_tries:
                raise RequestFailedError(failure, tries) from error
            pause = pause_seconds(tries, settings, random.random())  # noqa: S311 - no secret
            _logger.info("try %d failed (%s), again in %.2f s", tries, shown(failure.text), pause)
        time.sleep(pause)
