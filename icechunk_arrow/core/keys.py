"""Zarr keys and node paths: `group/temp/c/0/1` is the chunk (0, 1) of the node `/group/temp`.

Owns the rules for node paths and the chunk key encodings. Must not know what stands under a key.

A path begins with a slash and `/` is the root; a key has no slash in front. Writing under a key
that is none is an error, reading it finds nothing: so `split_key` and `decode` answer None, and
`check_node_path` and `path_of_prefix` raise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

__all__ = [
    "LONGEST_PATH_BYTES",
    "METADATA_NAME",
    "ChunkKeys",
    "check_node_path",
    "chunk_keys_of",
    "key_of",
    "node_path",
    "path_of_prefix",
    "path_or_column",
    "split_key",
]

METADATA_NAME = "zarr.json"
"""The last part of the key of a node's document."""

LONGEST_PATH_BYTES = 4096
"""Of a node's path in UTF-8; file systems and object stores take no longer keys, or not even these."""

# 19 digits hold every chunk index that a manifest can; int() of an endless number would be slow.
_MOST_DIGITS = 19

_SEPARATORS = {"default": "/", "v2": "."}  # by encoding, where the document names none


def node_path(given: Any, group: str = "/") -> str:
    """Give the path of the node that a caller means: this is the one place where callers' paths are taken.

    Parameters
    ----------
    given
        A path, with slashes in front and behind or without; or the zarr array or group itself.
    group
        What a path without a slash in front is below.

    Raises
    ------
    InvalidInputError
        It is neither, or no node may have this path.
    """
    path = given if isinstance(given, str) else getattr(given, "name", None)
    if not isinstance(path, str):
        raise InvalidInputError(
            f"{given!r} is neither the path of a node, such as '/group/temp', nor an array or group of zarr"
        )
    names = path.strip("/")
    if not path.startswith("/"):
        names = f"{group.strip('/')}/{names}".strip("/")
    return check_node_path("/" + names)


def path_or_column(given: Any) -> str | None:
    """Give the path of the one array that a caller means; None where rows have a column ``path``."""
    return None if given is None else node_path(given)


def check_node_path(path: str) -> str:
    """Give back the path, if a node may stand there.

    Parameters
    ----------
    path : str
        `/` or `/name/name`.

    Raises
    ------
    InvalidInputError
        The path is none, with what is wrong and how it would be right.
    """
    if path == "/":
        return path
    if not path.startswith("/"):
        raise InvalidInputError(f"node path {path!r} must begin with '/'", path=path)
    for name in path[1:].split("/"):
        if fault := _fault_of_name(name):
            raise InvalidInputError(f"node path {path!r}: {fault}", path=path)
    if len(path) * 4 > LONGEST_PATH_BYTES < len(path.encode()):
        raise InvalidInputError(
            f"node path {path[:200]!r}… has more than {LONGEST_PATH_BYTES} bytes; choose shorter names",
            path=path,
        )
    return path


def _fault_of_name(name: str) -> str | None:
    """Say what keeps a string from being the name of a node."""
    if not name:
        return "a name is empty; put exactly one '/' between names and none at the end"
    # The specification forbids longer rows of periods and a leading "__" too; zarr-python writes the
    # first, and xarray the second for a DataArray without a name.
    if name in {".", ".."}:
        return f"{name!r} is no name but a step between folders; write the path without it"
    if name == METADATA_NAME:
        return f"{METADATA_NAME!r} is the name of every node's document; choose another name"
    if "\0" in name:
        return f"{name!r} contains the character NUL; leave it out"
    if not _is_unicode(name):
        return f"{name!r} contains half of a surrogate pair; names are Unicode text"
    return None


def _is_unicode(text: str) -> bool:
    """Whether a string can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def path_of_prefix(prefix: str) -> str:
    """Make the node path of what stands before `/zarr.json` in a key; empty is the root."""
    return check_node_path("/" + prefix)


def key_of(path: str, relative: str) -> str:
    """Make the key of something that belongs to a node: its document or one of its chunks."""
    return relative if path == "/" else f"{path[1:]}/{relative}"


def split_key(key: str, is_array: Callable[[str], object]) -> tuple[str, str] | None:
    """Which node a key belongs to, and the rest of the key.

    An array has no children, so at most one of the paths in front of a chunk key is an array, and
    the likely ones can be tried first.

    Parameters
    ----------
    key : str
        Any string.
    is_array : callable
        Says of a path whether an array stands there: the `__contains__` of a dictionary of arrays
        is the fastest.

    Returns
    -------
    tuple of (str, str), or None
        The node's path and `zarr.json`, whether or not there is such a node; or an array's path
        and what may be the name of a chunk; or None if the key lies in no array.
    """
    end = key.find("/c/")
    if end > 0 and is_array(path := "/" + key[:end]):
        return path, key[end + 1 :]
    end = key.rfind("/")
    name = key[end + 1 :]
    path = "/" + key[:end] if end >= 0 else "/"
    if name == METADATA_NAME or is_array(path):
        return path, name
    if is_array("/"):
        return "/", key
    end = key.find("/")
    while end >= 0:
        if is_array(path := "/" + key[:end]):
            return path, key[end + 1 :]
        end = key.find("/", end + 1)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkKeys:
    """How the chunks of one array are named below the array's path.

    Attributes
    ----------
    name : str
        The chunk key encoding: `default` or `v2`.
    separator : str
        What stands between the indexes: `/` or `.`.
    ndim : int
        The number of dimensions of the array.
    """

    name: str
    separator: str
    ndim: int
    _template: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.name not in _SEPARATORS:
            raise InvalidInputError(
                f"chunk_key_encoding: {self.name!r} is not known here, so no chunk of the array "
                "could be found by its key; use 'default' or 'v2'"
            )
        if self.separator not in ("/", "."):
            raise InvalidInputError(
                f"chunk_key_encoding: the separator must be '/' or '.', not {self.separator!r}"
            )
        separator = self.separator
        if self.name == "default":
            template = "c" + (separator + "%d") * self.ndim
        else:
            template = separator.join(["%d"] * self.ndim) or "0"
        object.__setattr__(self, "_template", template)

    def encode(self, coord: tuple[int, ...]) -> str:
        """Name a chunk: `c/0/1`, `0.1`, or `c` for that of a scalar."""
        return self._template % coord

    def decode(self, relative: str) -> tuple[int, ...] | None:
        """Find the coordinates in a name; None if no chunk is ever named so."""
        if not self.ndim:
            return () if relative == self._template else None
        parts = relative.split(self.separator)
        if self.name == "default" and parts.pop(0) != "c":
            return None
        if len(parts) != self.ndim:
            return None
        for part in parts:  # a pattern is no faster, and takes as long to make as a chunk to find
            if not (part.isdecimal() and part.isascii()) or len(part) > _MOST_DIGITS:
                return None
            if part[0] == "0" and part != "0":
                return None
        return tuple(map(int, parts))

    def encode_many(self, coords: npt.NDArray[np.uint64]) -> list[str]:
        """Name many chunks, given as one row of coordinates each."""
        if self.ndim == 0:
            return [self._template] * len(coords)
        template = self._template
        return [template % coord for coord in zip(*coords.T.tolist(), strict=True)]


def chunk_keys_of(document: dict[str, Any]) -> ChunkKeys:
    """Work out from an array document how the chunks are named.

    Parameters
    ----------
    document : dict
        An array document; of its members only `shape` and `chunk_key_encoding` are looked at.

    Raises
    ------
    InvalidInputError
        The encoding is malformed or not known here.
    """
    configuration: dict[str, Any] = {}
    match document["chunk_key_encoding"]:
        case str(name):
            pass
        case {"separator": _}:
            raise InvalidInputError(
                "chunk_key_encoding: the separator stands beside the name; "
                'write it as {"name": ..., "configuration": {"separator": ...}}'
            )
        case {"name": str(name), "configuration": {**members}}:
            configuration.update((str(member), value) for member, value in members.items())
        case {"name": str(name), **rest} if "configuration" not in rest:
            pass
        case other:
            raise InvalidInputError(
                "chunk_key_encoding must be a name, or an object with a name and a configuration, "
                f"not {other!r}"
            )
    separator = configuration.pop("separator", _SEPARATORS.get(name, "/"))
    keys = ChunkKeys(name=name, separator=separator, ndim=len(document["shape"]))
    if configuration:
        raise InvalidInputError(
            f"chunk_key_encoding: the configuration has {sorted(configuration)}, which mean "
            "nothing known here; it holds 'separator' or nothing"
        )
    return keys
