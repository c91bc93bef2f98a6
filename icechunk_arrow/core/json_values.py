"""JSON values: the exact bytes, the exact value, and when two are the same.

Owns what JSON and Python disagree on: NaN, equality of 1 and true, halves of surrogate pairs,
members that come twice, depth. Must not know Zarr.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

from icechunk_arrow.errors import InvalidInputError

__all__ = [
    "changed_members",
    "check_flag",
    "check_natural",
    "check_object",
    "check_text",
    "check_whole",
    "decode_json",
    "decode_strict_json",
    "encode_json",
    "is_finite",
    "json_bytes",
    "kind_of",
    "parse_json",
    "same_json",
    "without_surrogates",
]

_MAX_DEPTH = 400  # json itself gives up near a thousand levels of brackets, less the caller's own
_NUMBERS_END = 1 << 63

_SURROGATE = re.compile("[\ud800-\udfff]")


def encode_json(value: Any, *, sort_keys: bool = False) -> bytes:
    """Encode a JSON value as compact UTF-8.

    JSON strings can hold half a surrogate pair, UTF-8 cannot: such a half stays an escape.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)
    try:
        return text.encode()
    except UnicodeEncodeError:  # they stand in strings only, so an escape is always right
        return _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text).encode()


def decode_json(data: bytes) -> Any:
    """Decode JSON bytes of our own; a ValueError where they are none."""
    try:
        return json.loads(data.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def decode_strict_json(data: bytes) -> Any:
    """Decode JSON bytes as the standard has them: numbers are finite, and no member comes twice.

    Raises
    ------
    ValueError
        They are none.
    """
    try:
        return json.loads(
            data.decode(),
            object_pairs_hook=_unique_members,
            parse_constant=_finite,
            parse_float=_finite,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:50]} is not finite")
    return value


def json_bytes(data: bytes) -> int:
    """Bound what the values of JSON bytes take in memory, without reading them."""
    objects, lists, members = map(data.count, (b"{", b"[", b","))
    return len(data) + 240 * objects + 100 * lists + 90 * members


def parse_json(data: bytes) -> Any:
    """Decode JSON that any writer wrote: no member twice, and not too deep to be written again.

    Raises
    ------
    InvalidInputError
        With what is wrong, and without a name of the thing, which the caller knows.
    """
    too_deep = f"it is nested more than {_MAX_DEPTH} levels deep; make it flatter"
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique_members)
    except InvalidInputError:
        raise
    except RecursionError:
        raise InvalidInputError(too_deep) from None
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"it is not UTF-8 text ({error}); write JSON in UTF-8") from None
    except ValueError as error:
        raise InvalidInputError(f"it is not JSON ({error}); write one JSON object") from None
    deep = data.count(b"[") + data.count(b"{") > _MAX_DEPTH  # may be: counts those in strings too
    if deep and isinstance(value, (dict, list)) and _is_deeper(value, _MAX_DEPTH):
        raise InvalidInputError(too_deep)
    return value


def same_json(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same: 1, 1.0 and true differ, the order of members does not.

    NaN is the same as NaN, and 0.0 is not the same as -0.0.
    """
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def changed_members(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, ...]:
    """Name the members that only one of two objects has, or whose values differ, sorted."""
    both = before.keys() & after.keys()
    differ = {name for name in both if not same_json(before[name], after[name])}
    return tuple(sorted(differ | (before.keys() ^ after.keys())))


def is_finite(value: Any) -> bool:
    """Whether a JSON value holds no NaN and no infinity."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def kind_of(value: object) -> str:
    """Say what a JSON value is, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return "a string"
        case _:
            return "a number"


def check_whole(value: Any) -> int:
    """Give a whole number that a file should have; ``TypeError`` for anything else, true and 1.0 too."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def check_natural(value: Any) -> int:
    """Give a whole number from 0 that has 63 bits; an error for any other value."""
    if not 0 <= check_whole(value) < _NUMBERS_END:
        raise ValueError(f"{value!r} is not a whole number from 0 to {_NUMBERS_END - 1}")
    return int(value)


def check_object(value: Any) -> dict[str, Any]:
    """Give a value that is an object; ``TypeError`` for any other, also what could be made one."""
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no object")
    return value


def check_flag(value: Any) -> bool:
    """Give a value that is true or false; ``TypeError`` for any other."""
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def check_text(value: Any) -> str:
    """Give a text that a file should have; ``TypeError`` for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def without_surrogates(text: str) -> str:
    """Replace halves of surrogate pairs, which UTF-8 and so Parquet cannot hold."""
    return _SURROGATE.sub("\ufffd", text)


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its members, none of which may come twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise InvalidInputError(f"the member {twice!r} comes twice in one object; keep one of them")
    return members


def _is_deeper(value: dict[str, Any] | list[Any], limit: int) -> bool:
    """Whether a JSON value opens more than so many brackets inside one another."""
    containers = [value]
    for _ in range(limit):
        containers = [
            inner
            for container in containers
            for inner in (container.values() if isinstance(container, dict) else container)
            if isinstance(inner, (dict, list))
        ]
    return bool(containers)
