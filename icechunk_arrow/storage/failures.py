"""What went wrong in a request to an object store, whatever library says it.

Owns the reading of foreign exceptions (botocore's through s3fs, aiohttp's, those of gcsfs and
adlfs) and the decision what they mean. Imports none of them: it looks at their types and at what
they carry. What a type says counts before any number: aiohttp's errors about an answer that it
could not read carry a status that no server has sent.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BadAnswerError", "Failure", "Kind", "RefusedAnswerError", "classify"]


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


class BadAnswerError(Exception):
    """An answer is not what was asked for: it is shorter than announced, or another range."""


class RefusedAnswerError(Exception):
    """An answer cannot be used, and asking again will not change it."""


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
