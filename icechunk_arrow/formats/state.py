"""The state file (``state.json``): all snapshots and references in one JSON file.

Specification: schemas/README.md#state-file
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import google_crc32c

from icechunk_arrow.core.ids import is_id
from icechunk_arrow.core.snapshot import SnapshotInfo
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats.layout import file_name

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["State", "decode", "encode"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MESSAGE = "message"
_METADATA = "metadata"
_CHECKSUM = "crc32c"
_REQUIRED = ("id", "generation", "snapshots")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
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
        return replace(self, generation=self.generation + 1, write_id=write_id, **changes)


def encode(state: State) -> bytes:
    """Encode a state."""
    found: dict[str, Any] = {"id": state.id, "generation": state.generation}
    if state.store_root is not None:
        found["store_root"] = state.store_root
    if state.write_id is not None:
        found["write-id"] = state.write_id
    found["snapshots"] = [
        {
            "snapshot-id": info.id,
            **({} if info.parent_id is None else {"parent-snapshot-id": info.parent_id}),
            "timestamp-ms": (info.written_at - _EPOCH) // timedelta(milliseconds=1),
            "structure-file": file_name(info.id),
            "properties": {_MESSAGE: info.message, _METADATA: dict(info.metadata)},
        }
        for info in state.snapshots
    ]
    found["refs"] = {
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
    found[_CHECKSUM] = _checksum(found)
    return json.dumps(found, indent=1).encode()


def _checksum(found: dict[str, Any]) -> str:
    """CRC-32C of everything else, in a form that does not depend on white space."""
    rest = {name: value for name, value in found.items() if name != _CHECKSUM}
    data = json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()
    return f"{google_crc32c.value(data):08x}"


def decode(data: bytes, key: str) -> State:
    """Decode a state file."""
    try:
        found = json.loads(data)
    except ValueError as error:
        raise CorruptFileError(f"{key} is not JSON: {error}", key=key) from error
    missing = [name for name in _REQUIRED if not isinstance(found, dict) or name not in found]
    if missing:
        raise CorruptFileError(f"{key} has no {missing[0]!r}", key=key)
    if _CHECKSUM in found and found[_CHECKSUM] != _checksum(found):
        raise CorruptFileError(f"{key} is damaged: it does not match its checksum", key=key)
    try:
        refs = found.get("refs") or {}
        state = State(
            id=found["id"],
            generation=_integer(found["generation"]),
            store_root=found.get("store_root"),
            write_id=found.get("write-id"),
            snapshots=tuple(map(_info, found["snapshots"])),
            branches=_refs(refs, "branch", deleted=False),
            tags=_refs(refs, "tag", deleted=False),
            withdrawn_tags=_refs(refs, "tag", deleted=True),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{key} is no sound state file: {error!r}", key=key) from error
    known = {info.id for info in state.snapshots}
    for kind, mapping in (("branch", state.branches), ("tag", state.tags)):
        for name, snapshot in mapping.items():
            if snapshot not in known:
                raise CorruptFileError(
                    f"{key}: the {kind} {name!r} points to {snapshot}, which it does not list",
                    key=key,
                )
    return state


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _id(value: Any) -> str:
    if not is_id(value):
        raise ValueError(f"{value!r} is not a snapshot id")
    text: str = value
    return text


def _info(entry: dict[str, Any]) -> SnapshotInfo:
    parent = entry.get("parent-snapshot-id")
    if entry["structure-file"] != file_name(_id(entry["snapshot-id"])):
        raise ValueError(f"the structure file of {entry['snapshot-id']} has another name")
    properties = entry.get("properties") or {}
    return SnapshotInfo(
        id=entry["snapshot-id"],
        parent_id=None if parent is None else _id(parent),
        written_at=_EPOCH + timedelta(milliseconds=_integer(entry["timestamp-ms"])),
        message=properties.get(_MESSAGE, ""),
        metadata=properties.get(_METADATA, {}),
    )


def _refs(refs: dict[str, Any], kind: str, *, deleted: bool) -> dict[str, str]:
    for ref in refs.values():
        if ref["type"] not in {"branch", "tag"}:
            raise ValueError(f"{ref['type']!r} is neither branch nor tag")
    return {
        ref["name"]: _id(ref["snapshot-id"])
        for ref in refs.values()
        if ref["type"] == kind and bool(ref.get("deleted")) is deleted
    }
