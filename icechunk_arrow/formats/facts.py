"""Snapshot facts: the JSON in a structure file's footer that says all that is not a row.

Specification: schemas/README.md#structure-file

Owns the members and the packed arrays of numbers; knows nothing of rows, schemas and footers.
"""

from __future__ import annotations

import base64
import json
from operator import le
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from icechunk_arrow.core.ids import ID_PATTERN, check_id
from icechunk_arrow.core.json_values import (
    check_flag,
    check_natural,
    check_object,
    check_text,
    decode_strict_json,
)
from icechunk_arrow.core.snapshot import (
    HISTORY_LENGTH,
    NODE_IDS_END,
    MadeFrom,
    SnapshotFacts,
    SnapshotInfo,
)
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats.budget import Budget
from icechunk_arrow.formats.envelope import SPEC_VERSION
from icechunk_arrow.formats.times import TIME_PATTERN, decode_time, encode_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = [
    "JSON_SCHEMA",
    "PackedNumbers",
    "decode",
    "decode_numbers",
    "encode",
    "extra_facts",
    "parse",
]

_NUMBER_BYTES = 16
"""What a packed number takes while it is unpacked."""
_MALFORMED = (KeyError, ValueError, TypeError, AttributeError, IndexError, OSError)
"""What reading hostile JSON and packed arrays can end in."""

_KINDS = ("merge", "cherry_pick", "revert", "amend", "rewrite")

_NATURAL = {"type": "integer", "minimum": 0}
_PACKED = {"type": "string", "contentEncoding": "base64"}
JSON_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Snapshot facts",
    "description": "The value of icechunk.snapshot in the footer of a structure file.",
    "type": "object",
    "required": [
        "format_version",
        "format_flags",
        "metadata",
        "repository",
        "started_at",
        "properties",
        "short_term_history",
        "short_term_parents",
        "total_parents",
        "next_node_id",
        "attribute_files",
        "manifest_files",
    ],
    "properties": {
        "format_version": {
            "const": SPEC_VERSION,
            "description": "Version of the format; the same as in the file's identification.",
        },
        "format_flags": {
            "type": "object",
            "description": "Empty in this version; readers ignore what they do not know.",
        },
        "metadata": {"$ref": "#/$defs/entry", "description": "This snapshot."},
        "repository": {
            "$ref": "#/$defs/id",
            "description": "The repository that this snapshot is of: the id of its first snapshot.",
        },
        "started_at": {
            "$ref": "#/$defs/time",
            "description": "When the session began; not after written_at.",
        },
        "properties": {
            "type": "object",
            "description": "What the person stored with the commit: any JSON.",
        },
        "short_term_history": {
            "type": "array",
            "items": {"$ref": "#/$defs/entry"},
            "maxItems": HISTORY_LENGTH,
            "description": "The nearest ancestors, newest first, without this snapshot.",
        },
        "short_term_parents": {
            **_NATURAL,
            "maximum": HISTORY_LENGTH,
            "description": "Length of short_term_history.",
        },
        "total_parents": {**_NATURAL, "description": "How many ancestors there are in all."},
        "next_node_id": {
            **_NATURAL,
            "minimum": 1,
            "maximum": NODE_IDS_END,
            "description": "The id that the next node gets: larger than every id given out before.",
        },
        "branch": {
            "type": ["string", "null"],
            "description": "The branch that this snapshot was made for.",
        },
        "sequence": {
            "type": ["integer", "null"],
            "minimum": 0,
            "description": "Number of the branch entry that a commit of this snapshot creates; null "
            "where the catalog is a state file.",
        },
        "made_from": {
            "type": "array",
            "minItems": 1,
            "description": "Snapshots beside the parent that this one was made from; absent where there "
            "are none. They are named, and not kept alive.",
            "items": {
                "type": "object",
                "required": ["kind", "snapshot"],
                "properties": {"kind": {"enum": list(_KINDS)}, "snapshot": {"$ref": "#/$defs/id"}},
            },
        },
        "author": {
            "type": "string",
            "description": "Who made the commit, as that person says; absent where nobody was named.",
        },
        "synced": {
            "const": False,
            "description": "On a local disk: what this snapshot needs was not made durable before it was "
            "committed; absent where it was.",
        },
        "attribute_files": {
            "type": "array",
            "items": {"type": "string", "pattern": f"^{ID_PATTERN}\\.parquet$"},
            "uniqueItems": True,
            "description": "Every attributes file that a row refers to, sorted.",
        },
        "manifest_files": {
            "type": "object",
            "description": "Numbers about the live manifests, packed: zstd over little-endian "
            "uint64, in base 64.",
            "required": ["count", "size_bytes", "entries", "row_counts", "stored_bytes"],
            "properties": {
                "count": {**_NATURAL, "description": "How many live manifests there are."},
                "size_bytes": {
                    **_PACKED,
                    "description": "Bytes of each live manifest, in the order in which the rows "
                    "name them first.",
                },
                "entries": {**_NATURAL, "description": "How many inventory entries all rows have."},
                "row_counts": {
                    **_PACKED,
                    "description": "How many rows each inventory entry stands for, in the order "
                    "of the rows and of their entries.",
                },
                "stored_bytes": {
                    **_PACKED,
                    "description": "How many bytes the chunks of each inventory entry take where "
                    "they are stored, in the same order.",
                },
            },
        },
    },
    "$defs": {
        "id": {"type": "string", "pattern": f"^{ID_PATTERN}$"},
        "time": {
            "type": "string",
            "pattern": TIME_PATTERN,
            "description": "ISO 8601, UTC, microseconds.",
        },
        "entry": {
            "type": "object",
            "required": ["id", "written_at", "message"],
            "properties": {
                "id": {"$ref": "#/$defs/id"},
                "written_at": {"$ref": "#/$defs/time"},
                "message": {"type": "string"},
            },
        },
    },
}


def encode(
    facts: SnapshotFacts,
    *,
    attribute_files: Sequence[str],
    manifest_sizes: npt.NDArray[np.uint64],
    row_counts: npt.NDArray[np.uint64],
    stored_bytes: npt.NDArray[np.uint64],
) -> str:
    """Encode facts as JSON, all ASCII."""
    return json.dumps(
        {
            "format_version": SPEC_VERSION,
            "format_flags": {},
            "metadata": _entry(facts.info),
            "repository": facts.repository,
            "started_at": encode_time(facts.started_at),
            "properties": dict(facts.properties),
            "short_term_history": [_entry(info) for info in facts.history],
            "short_term_parents": len(facts.history),
            "total_parents": facts.total_parents,
            "next_node_id": facts.next_node_id,
            "branch": facts.branch,
            "sequence": facts.sequence,
            **extra_facts(facts),
            "attribute_files": sorted(attribute_files),
            "manifest_files": {
                "count": len(manifest_sizes),
                "size_bytes": _pack(manifest_sizes),
                "entries": len(row_counts),
                "row_counts": _pack(row_counts),
                "stored_bytes": _pack(stored_bytes),
            },
        },
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
    )


def extra_facts(facts: SnapshotFacts) -> dict[str, Any]:
    """Give the members that few snapshots have."""
    members: dict[str, Any] = {}
    if facts.made_from:
        members["made_from"] = [
            {"kind": each.kind, "snapshot": each.snapshot} for each in facts.made_from
        ]
    if facts.author is not None:
        members["author"] = facts.author
    if not facts.synced:
        members["synced"] = False
    return members


def _entry(info: SnapshotInfo) -> dict[str, str]:
    return {
        "id": info.id,
        "written_at": encode_time(info.written_at),
        "message": info.message,
    }


def _pack(values: npt.NDArray[np.uint64]) -> str:
    """Write numbers as compressed text."""
    data = values.astype("<u8").tobytes()
    return base64.b64encode(pa.compress(data, codec="zstd", asbytes=True)).decode()


def _unpack(text: str, count: int) -> npt.NDArray[np.uint64]:
    data = pa.decompress(
        base64.b64decode(text, validate=True), 8 * count, codec="zstd", asbytes=True
    )
    return np.frombuffer(data, "<u8").astype(np.uint64)


def parse(text: str, key: str) -> Any:
    """Parse what stands in the footer of the file ``key``; what it says is checked by those below."""
    try:
        return decode_strict_json(text.encode())
    except ValueError as error:
        raise _unsound(key, error) from error


def decode(found: Any, key: str) -> SnapshotFacts:
    """Decode the facts of the file ``key``."""
    try:
        history = found["short_term_history"]
        own = found["metadata"]
        facts = SnapshotFacts(
            id=check_id(own["id"]),
            repository=check_id(found["repository"]),
            message=check_text(own["message"]),
            written_at=decode_time(own["written_at"]),
            started_at=decode_time(found["started_at"]),
            properties=check_object(found["properties"]),
            history=tuple(
                SnapshotInfo(
                    id=check_id(entry["id"]),
                    parent_id=history[i + 1]["id"] if i + 1 < len(history) else None,
                    written_at=decode_time(entry["written_at"]),
                    message=check_text(entry["message"]),
                )
                for i, entry in enumerate(history)
            ),
            total_parents=check_natural(found["total_parents"]),
            next_node_id=check_natural(found["next_node_id"]),
            branch=None if found.get("branch") is None else check_text(found["branch"]),
            sequence=None if found.get("sequence") is None else check_natural(found["sequence"]),
            made_from=tuple(map(_made_from, found.get("made_from", ()))),
            author=None if found.get("author") is None else check_text(found["author"]),
            synced=check_flag(found.get("synced", True)),
        )
        _check_history(facts, check_natural(found["short_term_parents"]))
    except _MALFORMED as error:
        raise _unsound(key, error) from error
    return facts


def _check_history(facts: SnapshotFacts, said: int) -> None:
    """Check that the history is as long as it must be, and goes back in time."""
    count = len(facts.history)
    if count != said or count != min(facts.total_parents, HISTORY_LENGTH):
        raise ValueError(
            f"it names {count} ancestors where it counts {said}, and {facts.total_parents} in all"
        )
    if len({facts.id, *(info.id for info in facts.history)}) != count + 1:
        raise ValueError("a snapshot is its own ancestor")
    times = [facts.written_at, *(info.written_at for info in facts.history)]
    if any(map(le, times, times[1:])) or facts.started_at > facts.written_at:
        raise ValueError("its times do not go back from the newest to the oldest")
    if not 1 <= facts.next_node_id <= NODE_IDS_END:
        raise ValueError(f"ids of nodes are from 1 to {NODE_IDS_END - 1}")


class PackedNumbers(Struct, frozen=True, kw_only=True):
    """The packed arrays."""

    size_bytes: npt.NDArray[np.uint64]
    """By manifest."""
    row_counts: npt.NDArray[np.uint64]
    """By inventory entry, as are the bytes."""
    stored_bytes: npt.NDArray[np.uint64]


def decode_numbers(
    found: Any,
    key: str,
    *,
    manifest_count: int | None = None,
    entry_count: int | None = None,
    budget: Budget | None = None,
) -> PackedNumbers:
    """Decode the packed arrays.

    The rows of the file say how many there must be, so nothing is unpacked on the word of the JSON; a caller that
    has not read the rows gives no counts, and believes what a budget allows.
    """
    try:
        listed = found["manifest_files"]
        manifests, entries = check_natural(listed["count"]), check_natural(listed["entries"])
        for counted, known in ((manifests, manifest_count), (entries, entry_count)):
            if known not in {None, counted}:
                raise ValueError(
                    f"it counts {manifests} manifests and {entries} inventory entries, the rows have "
                    f"{manifest_count} and {entry_count}"
                )
        (budget or Budget(key)).check(_NUMBER_BYTES * (manifests + 2 * entries))
        return PackedNumbers(
            size_bytes=_unpack(listed["size_bytes"], manifests),
            row_counts=_unpack(listed["row_counts"], entries),
            stored_bytes=_unpack(listed["stored_bytes"], entries),
        )
    except _MALFORMED as error:
        raise _unsound(key, error) from error


def _made_from(found: Any) -> MadeFrom:
    return MadeFrom(kind=check_text(found["kind"]), snapshot=check_id(found["snapshot"]))


def _unsound(key: str, error: Exception) -> CorruptFileError:
    return CorruptFileError(f"{key} has no sound snapshot facts: {error!r}", key=key)
