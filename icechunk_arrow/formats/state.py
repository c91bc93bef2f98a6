"""The state file (``state.json``): all snapshots and references in one JSON file.

Specification: schemas/README.md#state-file
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from icechunk_arrow.core.checksums import crc32c
from icechunk_arrow.core.ids import ID_PATTERN, check_id
from icechunk_arrow.core.json_values import (
    check_natural,
    check_text,
    check_whole,
    decode_strict_json,
)
from icechunk_arrow.core.snapshot import SnapshotInfo
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats.budget import DECODE_LIMIT_BYTES, Budget
from icechunk_arrow.formats.layout import MAIN, STATE_KEY, check_ref_name, file_name

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JSON_SCHEMA", "State", "decode", "encode"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MESSAGE = "message"
_METADATA = "metadata"
_CHECKSUM = "crc32c"
_NO_DIGITS = b"00000000"
_LAST_MEMBER = re.compile(rb'"crc32c"[ \t\r\n]*:[ \t\r\n]*"([0-9a-f]{8})"[ \t\r\n]*\}[ \t\r\n]*\Z')
_LAST_GENERATION = (1 << 63) - 1
_REQUIRED = ("id", "generation", "snapshots", "refs")

_ID_SCHEMA = {"type": "string", "pattern": f"^{ID_PATTERN}$"}
JSON_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "State file",
    "description": "state.json: all snapshots and references of a repository.",
    "type": "object",
    "required": ["id", "generation", "snapshots", "refs"],
    "properties": {
        "id": {**_ID_SCHEMA, "description": "Id of the repository: that of its first snapshot."},
        "generation": {
            "type": "integer",
            "minimum": 0,
            "description": "Grows by one whenever the file is replaced.",
        },
        "store_root": {
            "type": "string",
            "description": "Where the data is, as a path or URL; absent or empty where it is beside "
            "this file.",
        },
        "write-id": {**_ID_SCHEMA, "description": "Random at every replacement."},
        "snapshots": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/snapshot"}},
        "refs": {
            "type": "object",
            "description": "Branches as branch.<name>, tags as tag.<name>.",
            "propertyNames": {"pattern": "^(branch|tag)\\.[^/]+$"},
            "additionalProperties": {"$ref": "#/$defs/ref"},
        },
        "crc32c": {
            "type": "string",
            "pattern": "^[0-9a-f]{8}$",
            "description": "The last member: CRC-32C of the file's bytes, these digits read as 00000000.",
        },
    },
    "$defs": {
        "snapshot": {
            "type": "object",
            "required": ["snapshot-id", "timestamp-ms", "structure-file"],
            "properties": {
                "snapshot-id": _ID_SCHEMA,
                "parent-snapshot-id": {
                    "type": ["string", "null"],
                    "pattern": f"^{ID_PATTERN}$",
                    "description": "Absent or null where there is no parent.",
                },
                "timestamp-ms": {
                    "type": "integer",
                    "description": "When it was written: milliseconds since 1970, UTC.",
                },
                "structure-file": {"type": "string", "pattern": f"^{ID_PATTERN}\\.parquet$"},
                "properties": {
                    "type": "object",
                    "properties": {
                        "message": {"type": "string", "description": "The commit's message."},
                        "metadata": {
                            "type": "object",
                            "description": "What the person stored with the commit.",
                        },
                    },
                },
            },
        },
        "ref": {
            "type": "object",
            "required": ["name", "snapshot-id", "type"],
            "properties": {
                "name": {"type": "string", "pattern": "^[^/]+$"},
                "snapshot-id": _ID_SCHEMA,
                "type": {"enum": ["branch", "tag"]},
                "deleted": {
                    "type": "boolean",
                    "description": "True for a withdrawn tag, whose name stays reserved.",
                },
            },
        },
    },
}


class State(Struct, frozen=True, kw_only=True):
    """A state file's contents; ``branches`` and ``tags`` map names to snapshot ids."""

    id: str
    generation: int
    snapshots: tuple[SnapshotInfo, ...]
    branches: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    withdrawn_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags whose names stay reserved."""
    store_root: str | None = None
    write_id: str | None = None
    """Random at every replacement: it tells whose content this is."""

    def next(self, write_id: str, **changes: Any) -> State:
        """Give the state of the next generation."""
        if self.generation >= _LAST_GENERATION:
            raise CorruptFileError(
                f"{STATE_KEY} is of generation {self.generation}, and no generation comes after that: it is "
                f"damaged. Restore it from a copy.",
                key=STATE_KEY,
            )
        return replace(self, generation=self.generation + 1, write_id=write_id, **changes)


def encode(state: State) -> bytes:
    """Encode a state."""
    members: dict[str, Any] = {"id": state.id, "generation": state.generation}
    if state.store_root is not None:
        members["store_root"] = state.store_root
    if state.write_id is not None:
        members["write-id"] = state.write_id
    members["snapshots"] = [
        {
            "snapshot-id": info.id,
            **({} if info.parent_id is None else {"parent-snapshot-id": info.parent_id}),
            "timestamp-ms": (info.written_at - _EPOCH) // timedelta(milliseconds=1),
            "structure-file": file_name(info.id),
            "properties": {_MESSAGE: info.message, _METADATA: dict(info.metadata)},
        }
        for info in state.snapshots
    ]
    members["refs"] = {
        f"{kind}.{name}": {
            "name": name,
            "snapshot-id": snapshot,
            "type": kind,
            **({"deleted": True} if mapping is state.withdrawn_tags else {}),
        }
        for kind, mapping in (
            ("branch", state.branches),
            ("tag", state.tags),
            ("tag", state.withdrawn_tags),
        )
        for name, snapshot in sorted(mapping.items())
    }
    members[_CHECKSUM] = _NO_DIGITS.decode()
    data = json.dumps(members, indent=1).encode()
    before, _, after = data.rpartition(_NO_DIGITS)
    return before + f"{crc32c(data):08x}".encode() + after


def _matches_checksum(data: bytes) -> bool:
    """Whether a file's bytes are those of which its last member is the checksum."""
    match = _LAST_MEMBER.search(data)
    if match is None:
        return False
    start, stop = match.span(1)
    blank = data[:start] + _NO_DIGITS + data[stop:]
    return int(match[1], 16) == crc32c(blank)


def decode(data: bytes, key: str, limit_bytes: int = DECODE_LIMIT_BYTES) -> State:
    """Decode a state file."""
    Budget(key, limit_bytes).check_json(data)
    try:
        members = decode_strict_json(data)
    except ValueError as error:
        raise CorruptFileError(f"{key} is not JSON: {error}", key=key) from error
    missing = [name for name in _REQUIRED if not isinstance(members, dict) or name not in members]
    if missing:
        raise CorruptFileError(f"{key} has no {missing[0]!r}", key=key)
    if _CHECKSUM in members and not _matches_checksum(data):
        raise CorruptFileError(f"{key} is damaged: it does not match its checksum", key=key)
    try:
        refs = members["refs"]
        state = State(
            id=check_id(members["id"]),
            generation=check_natural(members["generation"]),
            store_root=_text(members.get("store_root")) or None,
            write_id=_text(members.get("write-id")),
            snapshots=tuple(map(_info, members["snapshots"])),
            branches=_refs(refs, "branch", deleted=False),
            tags=_refs(refs, "tag", deleted=False),
            withdrawn_tags=_refs(refs, "tag", deleted=True),
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise CorruptFileError(f"{key} is no sound state file: {error!r}", key=key) from error
    if MAIN not in state.branches:
        raise CorruptFileError(f"{key} has no branch {MAIN!r}, which is always there", key=key)
    known = {info.id for info in state.snapshots}
    for kind, mapping in (("branch", state.branches), ("tag", state.tags)):
        for name, snapshot in mapping.items():
            if snapshot not in known:
                raise CorruptFileError(
                    f"{key}: the {kind} {name!r} points to {snapshot}, which it does not list",
                    key=key,
                )
    return state


def _text(value: Any) -> str | None:
    return None if value is None else check_text(value)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise TypeError(f"{value!r} is not an object")
    return value or {}


def _info(entry: dict[str, Any]) -> SnapshotInfo:
    parent = entry.get("parent-snapshot-id")
    if entry["structure-file"] != file_name(check_id(entry["snapshot-id"])):
        raise ValueError(f"the structure file of {entry['snapshot-id']} has another name")
    properties = _object(entry.get("properties"))
    return SnapshotInfo(
        id=entry["snapshot-id"],
        parent_id=None if parent is None else check_id(parent),
        written_at=_EPOCH + timedelta(milliseconds=check_whole(entry["timestamp-ms"])),
        message=_text(properties.get(_MESSAGE)) or "",
        metadata=_object(properties.get(_METADATA)),
    )


def _refs(refs: dict[str, Any], kind: str, *, deleted: bool) -> dict[str, str]:
    snapshots = {}
    for key, ref in refs.items():
        name, is_deleted = check_ref_name(ref["name"]), ref.get("deleted", False)
        if ref["type"] not in {"branch", "tag"} or key != f"{ref['type']}.{name}":
            raise ValueError(f"the key {key!r} does not go with {ref!r}")
        if type(is_deleted) is not bool or (is_deleted and ref["type"] == "branch"):
            raise ValueError(f"{key!r} has 'deleted', which withdrawn tags alone have")
        if ref["type"] == kind and is_deleted is deleted:
            snapshots[name] = check_id(ref["snapshot-id"])
    return snapshots
