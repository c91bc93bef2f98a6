"""What went wrong in a request, whether another try may help, and what it is called in our words.

Owns the reading of foreign exceptions (botocore's through s3fs, aiohttp's, those of gcsfs and
adlfs), the decision what they mean, the tries and their pauses, and the errors that come of them. Imports
none of those libraries: it looks at the types of exceptions and at what
they carry. What a type says counts before any number: aiohttp's errors about an answer that it
could not read carry a status that no server has sent.
"""

from __future__ import annotations

import enum
import inspect
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from icechunk_arrow.errors import (
    IcechunkArrowError,
    ObjectNotFoundError,
    ReadOnlyError,
    StorageError,
)
from icechunk_arrow.storage import clock
from icechunk_arrow.storage.chance import fraction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icechunk_arrow.storage.secrets import Address
    from icechunk_arrow.storage.settings import StorageSettings

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)


class Kind(enum.Enum):
    """What a failure means to a place."""

    MISSING = "there is no such object"
    NO_BUCKET = "there is no such bucket"
    EXISTS = "the object is there"
    PRECONDITION = "a condition of the request does not hold"
    CONFLICT = "another request for the object was under way"
    RANGE = "the object ends before the range"
    DENIED = "it is not allowed"
    UNSUPPORTED = "the store cannot do it"
    TRANSIENT = "it may go well next time"
    OTHER = "anything else"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed request."""

    kind: Kind
    text: str
    status: int | None = None
    code: str = ""


_BY_CODE = {
    "BandwidthLimitExceeded": Kind.TRANSIENT,
    "ConditionalRequestConflict": Kind.CONFLICT,
    "InternalError": Kind.TRANSIENT,
    "InvalidRange": Kind.RANGE,
    "NoSuchBucket": Kind.NO_BUCKET,
    "NoSuchKey": Kind.MISSING,
    "NoSuchUpload": Kind.MISSING,
    "NotImplemented": Kind.UNSUPPORTED,
    "OperationAborted": Kind.CONFLICT,
    "PreconditionFailed": Kind.PRECONDITION,
    "RequestLimitExceeded": Kind.TRANSIENT,
    "RequestTimeout": Kind.TRANSIENT,  # a 400, and the one that is worth another try
    "ServiceUnavailable": Kind.TRANSIENT,
    "SlowDown": Kind.TRANSIENT,
    "Throttling": Kind.TRANSIENT,
    "ThrottlingException": Kind.TRANSIENT,
    "TooManyRequests": Kind.TRANSIENT,
}
_BY_STATUS = {
    401: Kind.DENIED,
    403: Kind.DENIED,
    404: Kind.MISSING,
    405: Kind.UNSUPPORTED,
    408: Kind.TRANSIENT,
    409: Kind.CONFLICT,
    410: Kind.MISSING,
    412: Kind.PRECONDITION,
    416: Kind.RANGE,
    429: Kind.TRANSIENT,
    501: Kind.UNSUPPORTED,
}
_BY_TYPE: tuple[tuple[type[BaseException], Kind], ...] = (
    (FileNotFoundError, Kind.MISSING),
    (IsADirectoryError, Kind.MISSING),
    (NotADirectoryError, Kind.MISSING),
    (FileExistsError, Kind.EXISTS),
    (PermissionError, Kind.DENIED),
    (NotImplementedError, Kind.UNSUPPORTED),
    (TimeoutError, Kind.TRANSIENT),
    (ConnectionError, Kind.TRANSIENT),
)
_DENIED_TYPES = frozenset(
    {"CredentialRetrievalError", "NoCredentialsError", "PartialCredentialsError"}
)
# Of aiohttp, botocore, requests, urllib3, azure-core and gcsfs: the answer did not come, or not
# whole, or not as it was sent.
_TRANSIENT_TYPES = frozenset(
    {
        "BadAnswerError",
        "ChecksumError",
        "ChunkedEncodingError",
        "ClientConnectionError",
        "ClientPayloadError",
        "ConnectionClosedError",
        "ConnectTimeoutError",
        "EndpointConnectionError",
        "FlexibleChecksumError",
        "HTTPClientError",
        "HttpProcessingError",
        "IncompleteRead",
        "IncompleteReadError",
        "ProxyError",
        "ReadTimeoutError",
        "ResponseParserError",
        "ServiceRequestError",
        "ServiceResponseError",
    }
)

# A store says "conflict" while another write of the object is under way, and asks for another try:
# of a conditional one only that tells which writer won. A gateway before a file system says it too while
# another process removes the folder that an object was to stand in.
_WORTH_IT = frozenset({Kind.TRANSIENT, Kind.CONFLICT})


def classify(error: BaseException) -> Failure:
    """Read an exception and those that it was raised from."""
    text = str(error) or type(error).__name__
    for cause in _causes(error):
        if any(base.__name__ in _TRANSIENT_TYPES for base in type(cause).__mro__):
            return Failure(kind=Kind.TRANSIENT, text=text)
    for cause in _causes(error):
        status, code = _answer(cause)
        if status is None and not code:
            continue
        return Failure(kind=_kind_of_answer(status, code), text=text, status=status, code=code)
    for cause in _causes(error):
        for kind_of_error, kind in _BY_TYPE:
            if isinstance(cause, kind_of_error):
                return Failure(kind=kind, text=text)
        if type(cause).__name__ in _DENIED_TYPES:
            return Failure(kind=Kind.DENIED, text=text)
    return Failure(kind=Kind.OTHER, text=text)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__


def _answer(error: BaseException) -> tuple[int | None, str]:
    """Find the status and the error code that a store answered with, where it did answer."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's ClientError
        code = str(response.get("Error", {}).get("Code", ""))
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status is None and code.isdigit():
            status = int(code)
        return status, code
    for name in ("status", "status_code", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int) and 400 <= value <= 599:
            return value, str(getattr(error, "error_code", "") or "")
    return None, ""


def _kind_of_answer(status: int | None, code: str) -> Kind:
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return Kind.TRANSIENT if status is not None and status >= 500 else Kind.OTHER


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
        except IcechunkArrowError:
            raise
        except Exception as error:
            _let_go(error)
            failure = classify(error)
            if failure.kind not in _WORTH_IT or tries >= settings.retry_tries:
                raise RequestFailedError(failure, tries) from error
            pause = pause_seconds(tries, settings, fraction())
            _logger.info("try %d failed (%s), again in %.2f s", tries, shown(failure.text), pause)
        clock.pause(pause)


def _let_go(error: BaseException) -> None:
    """Cut off an error's traceback what lies outside of the event loop.

    What ran in the loop refers to the error, and so to all functions of the traceback and to what their callers
    hold: a circle. With an HDF5 file in it the loop, when it collects that, waits for the lock of HDF5, and who
    has the lock waits for the loop.
    """
    place = error.__traceback__
    while place is not None and not place.tb_frame.f_code.co_flags & inspect.CO_COROUTINE:
        place = place.tb_next
    if place is not None:
        error.__traceback__ = place


def error_of(
    failed: RequestFailedError, action: str, key: str, address: Address
) -> IcechunkArrowError:
    """Say what a failed request means to the caller that asked a place for the key."""
    failure, url = failed.failure, address.url
    facts = {"key": key, "status": failure.status, "code": failure.code}
    if failure.kind is Kind.MISSING:
        return ObjectNotFoundError(f"there is no object {key!r} in {url}", key=key)
    if failure.kind is Kind.NO_BUCKET:
        return StorageError(f"{url}: there is no such bucket; make it first", **facts)
    text = f"cannot {action} {key!r} in {url}: {address.hidden(failure.text)}"
    if failure.kind is Kind.DENIED and address.left_out:
        text += (
            f". The pickle that this came from has left out its storage_options "
            f"{', '.join(address.left_out)}: set the credentials in this process's environment, open the "
            f"repository here, or open it there with pickle_secrets=True"
        )
    if failure.kind in {Kind.DENIED, Kind.UNSUPPORTED} and action not in {"read", "list"}:
        return ReadOnlyError(text, **facts)
    if failed.tries > 1:
        text += f" (tried {failed.tries} times)"
    return StorageError(text, **facts)
