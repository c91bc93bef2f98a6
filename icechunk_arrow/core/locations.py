"""Locations of virtual chunks: what a URL must be so that every reader means the same file by it.

Owns the one judgement that writing and reading share, for a text and for a column, and the form in
which URLs are compared. It knows no places: whether a location may be read is decided elsewhere.

An ``http`` or ``https`` location is sent as it stands. For every other scheme what follows the host is
the name of the file, as it is: nothing is decoded or encoded on the way.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import from_numpy, to_numpy

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["fault_of_location", "is_far", "normal_location", "suspects"]

_NEAR = frozenset({"file", "local", "memory"})
_WEB_PORTS = {"http": ":80", "https": ":443"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://(?=.)", re.DOTALL)
_WEB_HOST = re.compile(
    r"(?:[A-Za-z0-9._\-]+|\[[0-9A-Fa-f:.]+\])(?P<port>:[1-9][0-9]{0,4})?", re.ASCII
)
_NO_TEXT = re.compile("[\\x00-\\x1f\\x7f\\\\\ud800-\udfff]")
_SENT = re.compile(r"[!\"$-\[\]-~]*")
"""What can stand in a request: printable ASCII but the space, ``#`` and the backslash."""
_ESCAPED = re.compile("%(2e|2f|5c)", re.IGNORECASE)
_MEANT = {"2e": ".", "2f": "/", "5c": "/"}
_DOTS = frozenset({".", ".."})

# For columns: what is of an everyday kind has no fault, as one pass over the texts tells. Of the others
# those have none that the second pattern takes and the third leaves alone.
_ESCAPE = r"%[01346-9a-fA-F][0-9a-fA-F]|%2[0-9a-dA-D]"
_EVERYDAY = (
    r"^(?:file://|(?:s3|gs|az)://[A-Za-z0-9._-]+|https?://[A-Za-z0-9._-]+(?::[1-9][0-9]{0,3})?)"
    rf"(?:/(?:[A-Za-z0-9_=+,@~!$&'()*-]|{_ESCAPE})(?:[A-Za-z0-9._=+,@~!$&'()*-]|{_ESCAPE})*)+$"
)
_PLAIN = r"^((file|local):///[^/]|[a-zA-Z][a-zA-Z0-9+.-]*://[^/]+/.)"
_SUSPECT = r"[/?;]\.\.?([/?;]|$)|::|[\x00-\x1f\x7f\\]|%2[eEfF]|%5[cC]|\?$"
_SUSPECT += r"|^(file|local):///.*/$|^(?i:file|local)://[^/]"
_PLAIN_WEB = r"^https?://[A-Za-z0-9._-]+(:[1-9][0-9]{0,3})?/[!\"$-\[\]-~]*$"


def fault_of_location(location: str) -> str | None:
    """Say why no reader could use a location, or None."""
    match = _SCHEME.match(location)
    if match is None:
        return "it is not an absolute URL such as s3://bucket/key or file:///folder/name"
    if _NO_TEXT.search(location):
        return "it contains a backslash or a control character"
    scheme, rest = match[1].lower(), location[match.end() :]
    if scheme in _WEB_PORTS:
        return _fault_on_the_web(rest)
    if "::" in location:
        return "it contains '::', which chains file systems"
    host, _, key = rest.partition("/")
    if scheme in {"file", "local"}:
        if host or not key or key.startswith("/"):
            return "a local file has three slashes, as in file:///folder/name"
        if key.endswith("/"):
            return "it names a folder"
    elif not host or not key:
        return "it names no file: it needs a host or bucket, and a key, as in s3://bucket/key"
    return _fault_of_parts(re.split("/", _plain_parts(key)))


def _fault_on_the_web(rest: str) -> str | None:
    """Look at what follows ``http://``."""
    host, slash, path = rest.partition("/")
    if "@" in host:
        return "it contains a user or password, which would be stored for everybody to read"
    match = _WEB_HOST.fullmatch(host)
    if match is None or int((match["port"] or ":1")[1:]) > 65535:
        return "its host is not one that can be asked: a name or address in ASCII, and a port"
    if not slash:
        return "it names no file: a path must follow the host"
    if not _SENT.fullmatch(path):
        return (
            "it is sent as it stands, and contains what cannot be sent: a space, '#' or a character "
            "that is not ASCII must be percent-encoded"
        )
    if path.partition("?")[1:] == ("?", ""):
        return "it ends with a query of nothing, which not every client sends"
    if "::" in path:
        return "it contains '::', which chains file systems"
    return _fault_of_parts(re.split("[/?;]", _plain_parts(path)))


def _plain_parts(key: str) -> str:
    """Write escapes that a server could take for dots and slashes as such."""
    return _ESCAPED.sub(lambda found: _MEANT[found[1].lower()], key) if "%" in key else key


def _fault_of_parts(parts: list[str]) -> str | None:
    if _DOTS.isdisjoint(parts):
        return None
    return "it contains '.' or '..' parts, plain or percent-encoded"


def suspects(locations: pa.Array) -> npt.NDArray[np.bool_]:
    """Tell, quickly, which texts of a column may have a fault; the others have none."""
    suspect: npt.NDArray[np.bool_] = ~_matches(locations, _EVERYDAY)
    if suspect.any():
        odd = locations.filter(from_numpy(suspect, pa.bool_()))
        suspect[suspect] = _odd_suspects(odd)
    return suspect


def _odd_suspects(locations: pa.Array) -> npt.NDArray[np.bool_]:
    """Tell the same of texts that are not of an everyday kind."""
    suspect: npt.NDArray[np.bool_] = ~_matches(locations, _PLAIN)
    suspect |= _matches(locations, _SUSPECT)
    web = to_numpy(pc.starts_with(locations, "http", ignore_case=True))
    if web.any():
        suspect |= web & ~_matches(locations, _PLAIN_WEB)
    return suspect


def _matches(locations: pa.Array, pattern: str) -> Any:
    return to_numpy(pc.match_substring_regex(locations, pattern))


def is_far(location: str) -> bool:
    """Whether reading a location is a request to another machine; never for a bare name."""
    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme.lower() not in _NEAR


def normal_location(location: str) -> str:
    """Write a URL as it is compared and read: scheme and web host in lower case, no usual port."""
    scheme, _, rest = location.partition("://")
    scheme = scheme.lower()
    if scheme in _WEB_PORTS:
        host, slash, path = rest.partition("/")
        rest = host.lower().removesuffix(_WEB_PORTS[scheme]) + slash + path
    return f"{'file' if scheme == 'local' else scheme}://{rest}"
