"""What may be named: keys, prefixes, ranges and limits, checked before anything is touched.

Owns the rules of names that hold in every place; knows nothing of what the names mean.
"""

from __future__ import annotations

import re

from icechunk_arrow.errors import InvalidInputError

__all__ = ["check_key", "check_limit", "check_prefix", "check_range", "is_key", "listing_order"]

# A part is not "." or "..", and holds no separator of any system, no NUL and no lone surrogate
# (which has no UTF-8 form, so no object store could take it).
_PART = r"(?!\.{1,2}(?:/|\Z))[^/\\\x00\ud800-\udfff]+"
_KEY = re.compile(f"{_PART}(?:/{_PART})*")
_LARGEST = 2**63 - 1


def is_key(name: str) -> bool:
    """Whether an object can have this name."""
    return _KEY.fullmatch(name) is not None


def check_key(key: str) -> str:
    """Return the key, or say that no object can have this name."""
    if _KEY.fullmatch(key) is None:
        raise InvalidInputError(
            f"{key!r} is no name of an object: parts between '/' must not be empty, '.' or '..', "
            "nor hold a backslash, a NUL or half a surrogate pair"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return the prefix, or say that it names no folder."""
    if prefix and not (prefix.endswith("/") and is_key(prefix[:-1])):
        raise InvalidInputError(f"{prefix!r} names no folder: it must be empty or end with one '/'")
    return prefix


def check_range(start: int, length: int) -> None:
    """Refuse ranges that no object has."""
    if start < 0 or length < 0 or start + length > _LARGEST:
        raise InvalidInputError(f"there is no range of {length} bytes from {start}")


def check_limit(limit: int | None) -> None:
    """Refuse a negative limit."""
    if limit is not None and limit < 0:
        raise InvalidInputError(f"a listing cannot be limited to {limit} objects")


def listing_order(name: str, is_folder: bool) -> str:
    """By what the entries of one folder are sorted so that all keys below come out sorted."""
    return f"{name}/" if is_folder else name
