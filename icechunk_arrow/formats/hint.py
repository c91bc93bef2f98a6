"""The hint of a branch (``refs/branch.<name>/hint.json``): an entry that was the newest not long ago.

Specification: schemas/README.md#references

It saves questions where folders cannot be listed, and decides nothing: a reader that cannot use it goes without.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from icechunk_arrow.core.ids import ID_PATTERN, MAX_SEQUENCE, is_id

__all__ = ["JSON_SCHEMA", "MOST_BYTES", "Hint", "decode", "encode"]

JSON_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Hint of a branch",
    "description": "refs/branch.<name>/hint.json: an entry that was the newest not long ago.",
    "type": "object",
    "required": ["sequence", "snapshot"],
    "properties": {
        "sequence": {"type": "integer", "minimum": 0, "description": "Number of the entry."},
        "snapshot": {
            "type": "string",
            "pattern": f"^{ID_PATTERN}$",
            "description": "The snapshot that it names.",
        },
    },
}


MOST_BYTES = 1 << 12


class Hint(NamedTuple):
    """An entry of a branch."""

    sequence: int
    snapshot: str


def encode(hint: Hint) -> bytes:
    """Encode a hint."""
    return json.dumps(hint._asdict()).encode()


def decode(data: bytes) -> Hint | None:
    """Decode a hint; None where it says nothing that can be used."""
    if len(data) > MOST_BYTES:
        return None
    try:
        members = json.loads(data)
        hint = Hint(sequence=members["sequence"], snapshot=members["snapshot"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_number = type(hint.sequence) is int and 0 <= hint.sequence < MAX_SEQUENCE - 1
    return hint if is_number and is_id(hint.snapshot) else None
