"""Branch entries and tags: small JSON files.

Specification: schemas/README.md#references
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct

from icechunk_arrow.core.ids import ID_PATTERN, is_id
from icechunk_arrow.core.json_values import parse_json
from icechunk_arrow.errors import CorruptFileError, InvalidInputError, UnsupportedFormatError
from icechunk_arrow.formats.budget import Budget

__all__ = [
    "BRANCH_ENTRY_JSON_SCHEMA",
    "MOST_BYTES",
    "STATE_CATALOG",
    "TAG_JSON_SCHEMA",
    "RefEntry",
    "decode",
    "decode_members",
    "encode",
]

STATE_CATALOG = "state"
"""What a first entry says of a catalog that is a state file."""

_KEY = {
    "type": "string",
    "description": "The key of this very file, so that one in another's place is noticed.",
}
MOST_BYTES = 1 << 16
"""What a file below ``refs/`` may have; no entry comes near it."""
"""An entry has a hundred; ``info`` may have more."""
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
_INFO = {
    "type": "object",
    "description": "Whatever a writer wants to say; readers that do not know it pass over it.",
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
        "catalog": {
            "const": "state",
            "description": "In entry 0 of main alone: the state file says where branches and tags stand, "
            "and this entry has no successor.",
        },
        "info": _INFO,
    },
    "dependentRequired": {"deleted": ["write_id"], "write_id": ["key"], "key": ["write_id"]},
    "additionalProperties": False,
}
TAG_JSON_SCHEMA: dict[str, Any] = {
    "$schema": _DRAFT,
    "title": "Tag",
    "description": "refs/tag.<name>/ref.json; with deleted, refs/tag.<name>/deleted.json, which "
    "withdraws the tag.",
    "type": "object",
    "required": ["snapshot", "write_id", "key"],
    "properties": {
        "snapshot": _SNAPSHOT,
        "write_id": _WRITE_ID,
        "key": _KEY,
        "deleted": {"const": True, "description": "In deleted.json only, and always there."},
        "info": _INFO,
    },
    "additionalProperties": False,
}


class RefEntry(Struct, frozen=True, kw_only=True):
    """Where a branch or tag points."""

    snapshot: str
    write_id: str | None = None
    """Random, where the entry carries no id of its own making: it tells whose entry this is."""
    deleted: bool = False
    """The branch ends here; a later entry may begin it again."""
    key: str | None = None
    """Where an entry with a ``write_id`` stands."""
    catalog: str | None = None
    """``state`` in a repository's first entry where a state file says where branches and tags stand."""

    @property
    def is_commit(self) -> bool:
        """Whether a commit made this entry: then the snapshot itself says where it belongs."""
        return self.write_id is None


def encode(entry: RefEntry) -> bytes:
    """Encode an entry; that of a commit is nothing but the snapshot."""
    members: dict[str, Any] = {"snapshot": entry.snapshot}
    if entry.write_id is not None:
        members["write_id"] = entry.write_id
    if entry.key is not None:
        members["key"] = entry.key
    if entry.deleted:
        members["deleted"] = True
    if entry.catalog is not None:
        members["catalog"] = entry.catalog
    return json.dumps(members).encode()


def decode(data: bytes, key: str) -> RefEntry:
    """Decode an entry; one with an unknown member says something that this version cannot know."""
    members = decode_members(data, key, {"snapshot", "write_id", "deleted", "key", "catalog"})
    if not is_id(members.get("snapshot")):
        raise CorruptFileError(f"{key} names no snapshot", key=key)
    deleted, catalog = "deleted" in members, members.get("catalog")
    if deleted and (members["deleted"] is not True or "write_id" not in members):
        raise CorruptFileError(f"{key} is damaged: its member 'deleted' is not right", key=key)
    if catalog is not None and catalog != STATE_CATALOG:
        raise UnsupportedFormatError(
            f"{key} names a catalog {catalog!r} that this version does not know", key=key
        )
    return RefEntry(
        snapshot=members["snapshot"],
        write_id=members.get("write_id"),
        deleted=deleted,
        key=members.get("key"),
        catalog=catalog,
    )


def decode_members(data: bytes, key: str, known: set[str]) -> dict[str, Any]:
    """Decode a small file below ``refs/``; ``write_id`` and ``key`` are there together or not at all.

    Of what is not known ``info`` alone may be passed over.
    """
    Budget(key, MOST_BYTES).check(len(data))
    try:
        members = parse_json(data)
    except InvalidInputError as error:
        raise CorruptFileError(f"{key} is damaged: {error}", key=key) from error
    if not isinstance(members, dict) or not isinstance(members.get("info", {}), dict):
        raise CorruptFileError(f"{key} is damaged: it is not an entry", key=key)
    unknown = sorted(members.keys() - known - {"info"})
    if unknown:
        raise UnsupportedFormatError(
            f"{key} has a member {unknown[0]!r} that this version does not know: it is damaged, or "
            f"written by something newer",
            key=key,
        )
    if ("write_id" in members) != ("key" in members):
        raise CorruptFileError(f"{key} is damaged: 'write_id' and 'key' go together", key=key)
    if "write_id" in members and not is_id(members["write_id"]):
        raise CorruptFileError(f"{key} is damaged: its 'write_id' is not an id", key=key)
    if members.get("key", key) != key:
        raise CorruptFileError(f"{key} is damaged: it is the file {members['key']!r}", key=key)
    return members
