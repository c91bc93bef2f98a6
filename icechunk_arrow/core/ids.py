"""Identifiers and sequence names: Crockford base 32, both ways.

Owns the alphabet and the two shapes that it is used in: an id is 12 random bytes in 20 characters,
a sequence name is ``MAX_SEQUENCE - n`` in 8 characters, so that the newest entry sorts first.
Random bytes are arguments: nothing here reads a clock or a generator.
"""

from __future__ import annotations

import re

from icechunk_arrow.errors import InvalidInputError

__all__ = [
    "ID_BYTES",
    "ID_PATTERN",
    "MAX_SEQUENCE",
    "check_id",
    "decode_id",
    "encode_id",
    "is_id",
    "sequence_name",
    "sequence_number",
]

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ID_BYTES = 12
MAX_SEQUENCE = 1099511627775
ID_PATTERN = f"[{ALPHABET}]{{19}}[0G]"
"""What an id looks like, as a regular expression; its last character carries one bit."""
_ID = re.compile(ID_PATTERN + r"\Z")
_SEQUENCE = re.compile(rf"[{ALPHABET}]{{8}}\Z")
_VALUES = {character: value for value, character in enumerate(ALPHABET)}


def _encode(number: int, length: int) -> str:
    return "".join(ALPHABET[number >> shift & 31] for shift in range(5 * length - 5, -1, -5))


def _decode(text: str) -> int:
    number = 0
    for character in text:
        number = number << 5 | _VALUES[character]
    return number


def encode_id(data: bytes) -> str:
    """Write 12 bytes as 20 characters; the last character carries one bit of data and four zeros."""
    assert len(data) == ID_BYTES
    return _encode(int.from_bytes(data, "big") << 4, 20)


def decode_id(text: str) -> bytes:
    """Read the 12 bytes of an id."""
    return (_decode(check_id(text)) >> 4).to_bytes(ID_BYTES, "big")


def is_id(text: object) -> bool:
    """Whether this is an id as :func:`encode_id` writes it."""
    return isinstance(text, str) and _ID.match(text) is not None


def check_id(text: str, what: str = "id") -> str:
    """Give the id back, or say what an id looks like."""
    if not is_id(text):
        raise InvalidInputError(
            f"{text!r} is not a {what}: expected 20 characters of Crockford base 32, "
            f"such as 'VY76P925PRY57WFEK410'"
        )
    return text


def sequence_name(number: int) -> str:
    """Name the entry ``number`` of a branch: 0 is ZZZZZZZZ, 100 is ZZZZZZWV."""
    assert 0 <= number <= MAX_SEQUENCE
    return _encode(MAX_SEQUENCE - number, 8)


def sequence_number(name: str) -> int | None:
    """Read the number of an entry's name; None where it is no such name."""
    return MAX_SEQUENCE - _decode(name) if _SEQUENCE.match(name) else None
