"""Branch entries and tags: small JSON files.

Specification: schemas/README.md#references
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from icechunk_arrow.core.ids import is_id
from icechunk_arrow.errors import CorruptFileError, UnsupportedFormatError

__all__ = ["RefEntry", "decode", "encode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefEntry:
    """Where a branch or tag points."""

    snapshot: str
    write_id: str | None = None
    """Random, where the entry carries no id of its own making: it tells whose entry this is."""
    deleted: bool = False
    """The branch ends here; a later entry may begin it again."""


def encode(entry: RefEntry) -> bytes:
    """Encode an entry; that of a commit is nothing but the snapshot."""
    found: dict[str, Any] = {"snapshot": entry.snapshot}
    if entry.write_id is not None:
        found["write_id"] = entry.write_id
    if entry.deleted:
        found["deleted"] = True
    return json.dumps(found).encode()


def decode(data: bytes, key: str) -> RefEntry:
    """Decode an entry; one with an unknown member says something that this version cannot know."""
    try:
        found = json.loads(data)
    except ValueError as error:
        raise CorruptFileError(f"{key} is not JSON: {error}", key=key) from error
    if not isinstance(found, dict) or not is_id(found.get("snapshot")):
        raise CorruptFileError(f"{key} names no snapshot", key=key)
    unknown = sorted(found.keys() - {"snapshot", "write_id", "deleted"})
    if unknown:
        raise UnsupportedFormatError(
            f"{key} has a member {unknown[0]!r} that this version does not know: it is damaged, or "
            f"written by something newer",
            key=key,
        )
    write_id, deleted = found.get("write_id"), found.get("deleted", False)
    if not (write_id is None or isinstance(write_id, str)) or not isinstance(deleted, bool):
        raise CorruptFileError(f"{key} has a member of a wrong type", key=key)
    return RefEntry(snapshot=found["snapshot"], write_id=write_id, deleted=deleted)
