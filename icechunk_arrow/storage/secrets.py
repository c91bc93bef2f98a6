"""The address of a place, and what of it is secret: what a pickle keeps, and how texts hide it.

A secret is what is not known to be none. A pickle leaves secrets out, unless the caller asked for them when
the place was opened, or hands work to a cluster of Spark by a function of this package, which needs them
there. Some can be found again where the pickle is opened: keys of object stores stand in environments,
profiles and the services of machines. Of others it is said at once that they cannot be pickled.
"""

from __future__ import annotations

import pickle
import re
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import unquote

from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.storage.settings import StorageSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T = TypeVar("T")

_FOUND_AGAIN = {
    "s3": frozenset(
        {
            *("key", "secret", "token", "username", "password"),
            *("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
        }
    ),
    "gs": frozenset({"token"}),
    "az": frozenset(
        {"account_key", "sas_token", "connection_string", "credential", "client_secret"}
    ),
}
"""Secrets that the libraries look for in the environment too."""
_FAMILIES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "https": "http"}
_PLAIN_WORDS = {
    "every file system": """
        asynchronous batch_size block_size cache_type default_block_size default_cache_type default_fill_cache
        exclusive_create listings_expiry_time max_concurrency max_paths skip_instance_cache use_listings_cache
    """,
    "s3fs, and botocore's client and configuration": """
        ACL SSEKMSKeyId ServerSideEncryption StorageClass addressing_style anon api_version cache_regions
        client_kwargs config_kwargs connect_timeout endpoint_url fixed_upload_size local_expiry_check max_attempts
        max_pool_connections mode parameter_validation payload_signing_enabled profile read_timeout region
        region_name request_checksum_calculation requester_pays response_checksum_validation retries s3
        s3_additional_kwargs signature_version tcp_keepalive total_max_attempts use_accelerate_endpoint
        use_dualstack_endpoint use_ssl user_agent user_agent_extra verify version_aware
    """,
    "gcsfs": """
        access cache_timeout consistency default_location default_mode endpoint location project timeout
    """,
    "adlfs": "account_host account_name client_id container_name location_mode tenant_id",
    "http": "encoded headers same_scheme simple_links size_policy ssl trust_env",
}
_PLAIN = frozenset(word for words in _PLAIN_WORDS.values() for word in words.split())
_PLAIN_HEADERS = frozenset({"accept", "accept-encoding", "accept-language", "user-agent", "range"})
_PLAIN_TOKENS = frozenset({"anon", "google_default", "cloud", "cache", "browser"})
_USER = re.compile(r"(?P<start>[a-z][a-z0-9+.-]*://)(?P<user>[^/@\s?#]*:[^/@\s]*)@", re.IGNORECASE)
_SHORTEST = 4
"""Shorter values are not looked for in texts: they would be found in every word."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a place is and what it takes to reach it; its pickle holds no secrets, unless they were asked for."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What the file system takes."""
    settings: StorageSettings = field(default_factory=StorageSettings)
    pickle_secrets: bool = False
    left_out: tuple[str, ...] = ()
    """Names of options that the pickle that this comes from has left out, for errors."""

    def __reduce__(self) -> tuple[Any, ...]:
        options, left_out = pickled_options(self.url, self.options, keep=self.pickle_secrets)
        left_out = left_out or self.left_out
        return Address, (self.url, options, self.settings, self.pickle_secrets, left_out)

    def hidden(self, text: str) -> str:
        """Give a text of a library without secrets."""
        return hidden(text, self.options)


_kept: ContextVar[bool] = ContextVar("secrets kept in pickles", default=False)


@contextmanager
def secrets_kept() -> Iterator[None]:
    """Keep secrets in what is pickled within this block."""
    before = _kept.set(True)
    try:
        yield
    finally:
        _kept.reset(before)


class Entrusted(Generic[T]):
    """A value on its way to a task of the caller's own cluster: it pickles with the secrets that it needs there."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        with secrets_kept():
            return _entrusted, (pickle.dumps(self.value),)


def _entrusted(data: bytes) -> Entrusted[Any]:
    return Entrusted(pickle.loads(data))  # noqa: S301 - within a pickle that is being opened


def pickled_options(
    url: str, options: Mapping[str, Any], *, keep: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Give the options that a pickle has, and the names of those that it leaves out.

    Raises
    ------
    InvalidInputError
        There are secrets that no process could find again.
    """
    if keep or _kept.get():
        return dict(options), ()
    scheme = url.partition("://")[0].lower()
    again = _FOUND_AGAIN.get(_FAMILIES.get(scheme, scheme), frozenset())
    plain, left_out = _split(options, again, "")
    lost = [name for name in left_out if name.rpartition(".")[2] not in again]
    if lost:
        raise InvalidInputError(
            f"{url} cannot be pickled: its storage_options {', '.join(lost)} may hold secrets, which a pickle "
            "leaves out, and nothing could find them again. Open it in the other process, or open it here "
            "with pickle_secrets=True, so that whoever reads the pickle has them."
        )
    return plain, tuple(left_out)


def _split(
    options: Mapping[str, Any], again: frozenset[str], above: str
) -> tuple[dict[str, Any], list[str]]:
    plain: dict[str, Any] = {}
    left_out: list[str] = []
    for name, value in options.items():
        if name in _PLAIN and isinstance(value, dict):
            inner, names = _split_inner(name, value, again, f"{above}{name}.")
            left_out += names
            plain[name] = inner
        elif _is_plain(name, value, above):
            plain[name] = value
        else:
            left_out.append(f"{above}{name}")
    return plain, left_out


def _split_inner(
    name: str, value: dict[str, Any], again: frozenset[str], above: str
) -> tuple[dict[str, Any], list[str]]:
    if name != "headers":
        return _split(value, again, above)
    plain = {key: each for key, each in value.items() if str(key).lower() in _PLAIN_HEADERS}
    return plain, [f"{above}{key}" for key in value if key not in plain]


def _is_plain(name: str, value: Any, above: str) -> bool:
    if name == "token" and not above:
        return isinstance(value, str) and value in _PLAIN_TOKENS
    if isinstance(value, str) and _USER.search(value):
        return False
    return name in _PLAIN and (value is None or isinstance(value, str | int | float | bool))


def _values(options: Any) -> Iterator[str]:
    """Give all texts of options that may be secrets."""
    if isinstance(options, dict):
        for name, value in options.items():
            if isinstance(value, dict):
                yield from _values(value)
            elif isinstance(value, str) and not _is_plain(str(name), value, ""):
                yield value


def hidden(text: str, options: Mapping[str, Any]) -> str:
    """Give a text of a library without the secrets that it was given, and without passwords in URLs."""
    for value in _values(dict(options)):
        if len(value) >= _SHORTEST:
            text = text.replace(value, "***")
    return _USER.sub(r"\g<start>***@", text)


def without_password(url: str) -> tuple[str, dict[str, str]]:
    """Take name and password out of a URL, so that nothing that shows the URL shows them."""
    match = _USER.match(url)
    if match is None:
        return url, {}
    name, _, password = match["user"].partition(":")
    bare = match["start"] + url[match.end() :]
    return bare, {"username": unquote(name), "password": unquote(password)}
