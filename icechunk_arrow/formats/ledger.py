"""The ledger: which snapshots were retired or rewritten since, as entries below ``refs/ledger/`` and their logs.

Specification: schemas/README.md#ledger

An entry names a log that belongs to no snapshot. The newest log repeats all that still holds, so one is enough.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from icechunk_arrow.core.columns import from_numpy, from_values
from icechunk_arrow.core.ids import ID_PATTERN, check_id, is_id
from icechunk_arrow.core.json_values import decode_strict_json
from icechunk_arrow.errors import CorruptFileError, UnsupportedFormatError
from icechunk_arrow.formats import transaction
from icechunk_arrow.formats.budget import DECODE_LIMIT_BYTES
from icechunk_arrow.formats.refs import decode_members
from icechunk_arrow.formats.times import decode_time, encode_time

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

__all__ = [
    "ENTRY_JSON_SCHEMA",
    "OPERATIONS",
    "Ledger",
    "LedgerEntry",
    "decode",
    "decode_entry",
    "encode",
    "encode_entry",
]

_FACTS = "ledger"
RETIRE, REWRITE, MARK, VERIFIED = "retire_snapshot", "rewrite_snapshot", "collect_mark", "verified"
OPERATIONS = (_FACTS, RETIRE, REWRITE, MARK, VERIFIED)
_NOTE = "note"
_ID = {"type": "string", "pattern": f"^{ID_PATTERN}$"}
ENTRY_JSON_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Ledger entry",
    "description": "refs/ledger/<sequence name>.json.",
    "type": "object",
    "required": ["log", "write_id", "key"],
    "properties": {
        "log": {
            **_ID,
            "description": "Id of the log t/<id>.parquet, which belongs to no snapshot.",
        },
        "write_id": {
            **_ID,
            "description": "Random; it tells the writer after a lost answer that the file is its own.",
        },
        "key": {"type": "string", "description": "The key of this very file."},
        "info": {"type": "object", "description": "Readers that do not know it pass over it."},
    },
    "additionalProperties": False,
}


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """One entry of the ledger."""

    log: str
    write_id: str
    key: str


class Ledger(Struct, frozen=True, kw_only=True, dict=True):
    """What the newest log of the ledger says."""

    id: str
    repository: str
    written_at: datetime
    retired: Mapping[str, str | None] = field(default_factory=dict)
    """Snapshots whose structure files may be gone, each with its parent."""
    rewritten: Mapping[str, str] = field(default_factory=dict)
    """Snapshots in whose place others stand."""
    census: str | None = None
    """The census of the last mark of a collection, where there was one."""
    verified: frozenset[str] = frozenset()
    """Snapshots that were found whole."""


def encode_entry(entry: LedgerEntry) -> bytes:
    """Encode an entry."""
    return json.dumps({"log": entry.log, "write_id": entry.write_id, "key": entry.key}).encode()


def decode_entry(data: bytes, key: str) -> LedgerEntry:
    """Decode an entry."""
    members = decode_members(data, key, {"log", "write_id", "key"})
    if not is_id(members.get("log")) or "write_id" not in members:
        raise CorruptFileError(f"{key} is damaged: it names no log", key=key)
    return LedgerEntry(log=members["log"], write_id=members["write_id"], key=key)


def encode(ledger: Ledger) -> bytes:
    """Encode a log of the ledger."""
    facts = json.dumps(
        {
            "id": ledger.id,
            "repository": ledger.repository,
            "written_at": encode_time(ledger.written_at),
        },
        separators=(",", ":"),
    )
    rows: list[tuple[str, str | None, str | None, str | None]] = [(_FACTS, None, None, None)]
    rows += [(RETIRE, each, parent, None) for each, parent in sorted(ledger.retired.items())]
    rows += [(REWRITE, old, new, None) for old, new in sorted(ledger.rewritten.items())]
    rows += [] if ledger.census is None else [(MARK, None, None, f"{ledger.census}.parquet")]
    rows += [(VERIFIED, each, None, None) for each in sorted(ledger.verified)]
    words, of, other, census = zip(*rows, strict=True)
    columns = {
        "id": from_numpy(np.arange(len(rows), dtype=np.uint32), pa.uint32()),
        "operation": from_values(list(words), pa.string()),
        "effect": from_values([_NOTE] * len(rows), pa.string()),
        "snapshot": from_values([facts, *[None] * (len(rows) - 1)], pa.string()),
        "of_snapshot": from_values(list(of), pa.string()),
        "other_snapshot": from_values(list(other), pa.string()),
        "census": from_values(list(census), pa.string()),
    }
    needed = {"of_snapshot", "other_snapshot", "census", *transaction.SCHEMA.names}
    schema = pa.schema([each for each in transaction.FULL_SCHEMA if each.name in needed])
    table = [columns.get(each.name, pa.nulls(len(rows), each.type)) for each in schema]
    return transaction.write_rows(pa.Table.from_arrays(table, schema=schema), ledger.id)


def decode(data: bytes, identifier: str, limit_bytes: int = DECODE_LIMIT_BYTES) -> Ledger:
    """Decode a log of the ledger; what it says beyond this version, it says as notes."""
    key, table = transaction.read_rows(data, identifier, limit_bytes)
    if any(effect != _NOTE for effect in table["effect"].unique().to_pylist()):
        raise UnsupportedFormatError(
            f"{key}: the ledger says something that this version does not know", key=key
        )
    try:
        return _ledger_of(table, identifier)
    except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{key} is no sound ledger: {error}", key=key) from error


def _ledger_of(table: pa.Table, identifier: str) -> Ledger:
    names = ("operation", "snapshot", "of_snapshot", "other_snapshot", "census")
    rows = table.select(names).to_pylist()
    facts = decode_strict_json(rows[0]["snapshot"].encode())
    if rows[0]["operation"] != _FACTS or facts["id"] != identifier:
        raise ValueError("its first row is not the ledger's")

    def about(operation: str) -> list[tuple[str, str | None]]:
        some = [row for row in rows if row["operation"] == operation]
        return [(check_id(row["of_snapshot"]), row["other_snapshot"]) for row in some]

    marks = [row["census"] for row in rows if row["operation"] == MARK]
    return Ledger(
        id=identifier,
        repository=check_id(facts["repository"]),
        written_at=decode_time(facts["written_at"]),
        retired={of: parent and check_id(parent) for of, parent in about(RETIRE)},
        rewritten={of: check_id(new or "") for of, new in about(REWRITE)},
        census=check_id(marks[-1].removesuffix(".parquet")) if marks else None,
        verified=frozenset(of for of, _ in about(VERIFIED)),
    )
