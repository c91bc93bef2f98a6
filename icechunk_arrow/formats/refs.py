"""Branch entries and tags: small JSON files.

Specification: schemas/README.md#references
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from icechunk_arrow.core.ids import ID_PATTERN, is_id
from icechunk_arrow.core.json_values import parse_json
from icechunk_arrow.errors import CorruptFileError, InvalidInputError, UnsupportedFormatError

__all__ = ["BRANCH_ENTRY_JSON_SCHEMA", "TAG_JSON_SCHEMA", "RefEntry", "decode", "encode"]

_KEY = {
    "type": "string",
    "description": "The key of this very file, so that one in another's place is noticed.",
}
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SNAPSHOT = {
    "type": "string",
    "pattern": f"^{ID_PATTERN}$",
    "description": "Id of the snapshot: the name of its structure file without the ending.",
}
_WRITE_ID = {
    "type": "string",
    "pattern": f"^{ID_PATTERN}$",
    "description": "Random; it tells the writer after a lost answer that the file is its own.",
}
BRANCH_ENTRY_JSON_SCHEMA: dict[str, Any] = {
    "$schema": _DRAFT,
    "title": "Branch entry",
    "description": "refs/branch.<name>/<sequence name>.json. A commit writes snapshot alone.",
    "type": "object",
    "required": ["snapshot"],
    "properties": {
        "snapshot": _SNAPSHOT,
        "write_id": _WRITE_ID,
        "key": _KEY,
        "deleted": {
            "const": True,
            "description": "The branch ends here, until a later entry begins it again.",
        },
    },
    "dependentRequired": {"deleted": ["write_id"]},
    "additionalProperties": False,
}
TAG_JSON_SCHEMA: dict[str, Any] = {
    "$schema": _DRAFT,
    "title": "Tag",
    "description": "refs/tag.<name>/ref.json; with deleted, refs/tag.<name>/deleted.json, which "
    "withdraws the tag.",
    "type": "object",
    "required": ["snapshot", "write_id"],
    "properties": {
        "snapshot": _SNAPSHOT,
        "write_id": _WRITE_ID,
        "key": _KEY,
        "deleted": {"const": True, "description": "In deleted.json only, and always there."},
    },
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RefEntry:
    """Where a branch or tag points."""

    snapshot: str
    write_id: str | None = None
    """Random, where the entry carries no id of its own making: it tells whose entry this is."""
    deleted: bool = False
    """The branch ends here; a later entry may begin it again."""
    key: str | None = None
    """Where an entry with a ``write_id`` stands."""

    @property
    def is_commit(self) -> bool:
        """Whether a commit made this entry: then the snapshot itself says where it belongs."""
        return self.write_id is None


def encode(entry: RefEntry) -> bytes:
    """Encode an entry; that of a commit is nothing but the snapshot."""
    found: dict[str, Any] = {"snapshot": entry.snapshot}
    if entry.write_id is not None:
        found["write_id"] = entry.write_id
    if entry.key is not None:
        found["key"] = entry.key
    if entry.deleted:
        found["deleted"] = True
    return json.dumps(found).encode()


def decode(data: bytes, key: str) -> RefEntry:
    """Decode an entry; one with an unknown member says something that this version cannot know."""
    try:
        found = parse_json(data)
    except InvalidInputError as error:
        raise CorruptFileError(f"{key} is damaged: {error}", key=key) from error
    if not isinstance(found, dict) or not is_id(found.get("snapshot")):
        raise CorruptFileError(f"{key} names no snapshot", key=key)
    unknown = sorted(found.keys() - {"snapshot", "write_id", "deleted", "key"})
    if unknown:
        raise UnsupportedFormatError(
            f"{key} has a member {unknown[0]!r} that this version does not know: it is damaged, or "
            f"written by something newer",
            key=key,
        )
    write_id, deleted = found.get("write_id"), found.get("deleted", False)
    if not (write_id is None or isinstance(write_id, str)) or not isinstance(deleted, bool):
        raise CorruptFileError(f"{key} has a member of a wrong type", key=key)
    place = found.get("key", key)
    if place != key:
        raise CorruptFileError(f"{key} is damaged: it is the file {place!r}", key=key)
    return RefEntry(
        snapshot=found["snapshot"], write_id=write_id, deleted=deleted, key=found.get("key")
    )
