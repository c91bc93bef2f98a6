"""A second reader, made from schemas/README.md alone: it finds everything in a repository, or says what is wrong.

It is as another implementation would be: pyarrow decodes Parquet, and all else stands here. It stops at the first
rule that is broken, with an error that is `damage` or `unsupported` and the key of the file. It reads folders, and
needs no speed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import sys
from datetime import datetime
from itertools import pairwise
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastcrc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["DamageError", "UnsupportedError", "read"]

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ID = re.compile(f"[{ALPHABET}]{{19}}[0G]")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00")
SEQUENCE = re.compile(f"([{ALPHABET}]{{8}})\\.json")
VERSION = 1
MAGIC = bytes.fromhex("494345f09fa78a4348554e4b")
KINDS = {"s": 1, "i": 2, "a": 3, "t": 4}
NOT_NULL = {
    "s": ("id", "type", "path"),
    "i": ("id", "array_id", "coord", "length"),
    "a": ("id", "attributes"),
    "t": ("id", "operation", "effect"),
}
FEW_BYTES = 40
crc32c = fastcrc.crc32.iscsi
DENSE, WIDE = 1, 16
FORM = {32: ("etag", "last_modified"), 64: ("crc32c",), 256: ("sums_crc32c",)}
"""Which columns flags promise."""


class RefusalError(Exception):
    """A file is not taken."""

    kind: str

    def __init__(self, key: str, fact: str) -> None:
        super().__init__(f"{key}: {fact}")
        self.key = key


class DamageError(RefusalError):
    """It breaks a rule."""

    kind = "damage"


class UnsupportedError(RefusalError):
    """It says something that came later than this reader."""

    kind = "unsupported"


def need(key: str, holds: object, fact: str) -> None:
    """Refuse a file of which something does not hold."""
    if not holds:
        raise DamageError(key, fact)


def is_id(value: object) -> bool:
    """R5."""
    return isinstance(value, str) and ID.fullmatch(value) is not None


def id_of_file(key: str, name: object) -> str:
    """R3: a whole name, with its ending."""
    good = isinstance(name, str) and name.endswith(".parquet") and is_id(name[:-8])
    need(key, good, f"{name!r} is no file name")
    return str(name)[:-8]


def is_whole(value: object) -> bool:
    return type(value) is int and value >= 0


def is_natural(value: object) -> bool:
    """R66: whole numbers are below 2 to the 63rd."""
    return is_whole(value) and int(str(value)) < 1 << 63


def parsed(key: str, data: bytes | str, *, once: bool = False) -> Any:
    """Parse JSON; with ``once`` as entries, facts, logs and the state file have it: R66."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        need(key, not once or len(dict(pairs)) == len(pairs), "a member comes twice")
        return dict(pairs)

    def number(text: str) -> float:
        need(key, not once or isfinite(float(text)), f"the number {text[:20]} is not finite")
        return float(text)

    try:
        text = data if isinstance(data, str) else data.decode()
        return json.loads(
            text, object_pairs_hook=members, parse_float=number, parse_constant=number
        )
    except (ValueError, RecursionError) as error:
        raise DamageError(key, f"is no JSON: {error}") from error


def time_of(key: str, value: object) -> datetime:
    need(key, isinstance(value, str) and TIME.fullmatch(value), f"{value!r} is spelt otherwise")
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError as error:
        raise DamageError(key, f"{value!r} is no time") from error
    need(key, 1970 <= found.year <= 9000, "a time is of no clock")
    return found


def indexes(key: str, coord: bytes, rank: int) -> tuple[int, ...]:
    """R30."""
    found, place = [], 0
    while place < len(coord):
        size = 1 << (coord[place] >> 6)
        part = coord[place : place + size]
        need(key, len(part) == size, "a coordinate is cut")
        value = int.from_bytes(part, "big") & ((1 << (8 * size - 2)) - 1)
        shortest = 1 if value < 64 else 2 if value < 1 << 14 else 4 if value < 1 << 30 else 8
        need(key, size == shortest, "a coordinate is not in its shortest form")
        found.append(value)
        place += size
    need(key, len(found) == rank, f"a coordinate has {len(found)} indexes")
    return tuple(found)


# -- types, as the specification writes them

u16, u32, u64 = pa.uint16(), pa.uint32(), pa.uint64()
text, blob, moment = pa.string(), pa.binary(), pa.timestamp("us", "UTC")


def structure_types(*, wide: bool) -> dict[str, pa.DataType]:
    number, identifier = (u64, u32) if wide else (u16, u16)
    numbers = pa.list_(number)
    array = {
        "shape": numbers,
        "data_type": text,
        "fill_value": blob,
        "dimension_names": pa.list_(text),
        "chunk_grid": pa.struct(
            {"name": text, "configuration": pa.struct({"chunk_shape": numbers})}
        ),
        "chunk_key_encoding": pa.struct(
            {"name": text, "configuration": pa.struct({"separator": text})}
        ),
        "codecs": pa.list_(pa.struct({"name": text, "configuration": blob})),
    }
    reference = {"attrs_file": text, "row": number, "flags": u16}
    entry = {"inventory_file": text, "row": number, "extent": pa.list_(numbers), "flags": u16}
    return {
        "id": identifier,
        "type": text,
        "path": text,
        "array_metadata": pa.struct(array),
        "inline_attrs": blob,
        "attrs_reference": pa.struct(reference),
        "inventories": pa.list_(pa.struct(entry)),
    }


def manifest_types(*, wide: bool) -> tuple[dict[str, pa.DataType], dict[str, pa.DataType]]:
    needed = {
        "id": u32,
        "array_id": u32,
        "coord": blob,
        "inline_data": blob,
        "chunk_file": text,
        "offset": u64,
        "length": u64 if wide else u32,
    }
    return needed, {
        "etag": text,
        "last_modified": moment,
        "crc32c": u32,
        "sums_crc32c": u32,
    }


STATISTICS = {
    **dict.fromkeys(("value_count", "nan_count", "missing_count", "low_uint", "high_uint"), u64),
    **dict.fromkeys(("low_float", "high_float", "sum_float"), pa.float64()),
    **dict.fromkeys(("low_int", "high_int", "sum_int"), pa.int64()),
    **dict.fromkeys(("low_text", "high_text", "clip"), blob),
    "bounds_exact": pa.uint8(),
}
"""Columns that a reader may ignore, but no columns of another type: R11."""


ATTRIBUTES = {"id": u32, "attributes": blob}
LOG = {
    "id": u32,
    "operation": text,
    "effect": text,
    "node_id": u32,
    "node_type": text,
    "path": text,
    "from_path": text,
    "coord": blob,
    "manifest": text,
    "extent": pa.list_(pa.list_(u64)),
    "chunk_count": u64,
    "snapshot": text,
}
LOG_OPTIONAL = {
    "keys": pa.list_(text),
    "shape_before": pa.list_(u64),
    "shape_after": pa.list_(u64),
    "chunk_offset": pa.list_(pa.int64()),
    "location": text,
    "etag": text,
    "last_modified": moment,
    "size_bytes": u64,
    "of_snapshot": text,
    "other_snapshot": text,
    "census": text,
}


def alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether types are the same; lists of a fixed size are lists, and structs may have more."""
    if pa.types.is_list(wanted):
        lists = pa.types.is_list(found) or pa.types.is_fixed_size_list(found)
        return lists and alike(found.value_type, wanted.value_type)
    if pa.types.is_struct(wanted):
        return pa.types.is_struct(found) and all(
            found.get_field_index(field.name) >= 0
            and alike(found.field(field.name).type, field.type)
            for field in wanted
        )
    return bool(found == wanted)


def leaves_of(kind: pa.DataType) -> list[tuple[str | None, ...]]:
    """Ways to the columns of Parquet below a type: names of members, and None for items."""
    if pa.types.is_struct(kind):
        return [(each.name, *way) for each in kind for way in leaves_of(each.type)]
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return [(None, *way) for way in leaves_of(kind.value_type)]
    return [()]


def values_in(value: Any, way: tuple[str | None, ...]) -> int:
    """How many values a column of Parquet has for one of a row: what is null or empty counts too."""
    if not way or value is None:
        return 1
    if way[0] is not None:
        return values_in(value[way[0]], way[1:])
    return max(1, sum(values_in(each, way[1:]) for each in value))


class Sealed:
    """A Parquet file whose seal and row groups were checked: R9, R10, R71."""

    unread: frozenset[str] = frozenset()
    """Columns that are not decoded, so that nothing is said of what is in them."""

    def __init__(self, key: str, data: bytes) -> None:
        self.key, self.data = key, data
        size = len(data)
        need(key, size >= 84 and data[-4:] == b"PAR1", "does not end as it should")
        footer = int.from_bytes(data[-8:-4], "little")
        need(key, footer + 80 <= size, "the footer's length is larger than the file")
        trailer_at = size - 8 - footer - 68
        magic, name, count, said, digest = struct.unpack_from("<8s20sII32s", data, trailer_at)
        need(key, magic == b"ICASEAL\x01", "there is no seal")
        begin = trailer_at - 12 * count
        need(key, begin >= 4, "the seal has more entries than there is room for")
        sealed = data[begin:trailer_at] + data[trailer_at : trailer_at + 36] + data[-8 - footer :]
        need(key, hashlib.sha256(sealed).digest() == digest, "the digest does not match")
        need(key, said == footer, "the seal has another length of the footer")
        try:
            self.file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DamageError(key, f"pyarrow cannot read the footer: {error}") from error
        texts = self.file.metadata.metadata or {}
        self.texts = {
            k.decode(errors="replace"): v.decode(errors="replace") for k, v in texts.items()
        }
        self._check_header(texts.get(b"icechunk.header", b""))
        need(key, name == key[2:-8].encode(), "it is another file")
        need(key, self.file.metadata.num_row_groups == count, "another number of row groups")
        self._check_groups(list(struct.iter_unpack("<QI", data[begin:trailer_at])), begin)

    def _check_header(self, header: bytes) -> None:
        need(self.key, len(header) == 27 and header.startswith(MAGIC), "no identification")
        if not 1 <= header[24] <= VERSION:
            raise UnsupportedError(
                self.key, f"is of version {header[24]}, this reader knows {VERSION}"
            )
        need(self.key, header[25] == KINDS[self.key[0]], "is a file of another type")

    def _check_groups(self, entries: list[tuple[int, int]], begin: int) -> None:
        start = 4
        for group, (end, crc) in enumerate(entries):
            need(self.key, start < end <= begin, "row groups do not stand one behind the other")
            need(
                self.key,
                crc32c(self.data[start:end]) == crc,
                f"the bytes of row group {group} are altered",
            )
            start = end
            found = self.file.metadata.row_group(group)
            need(self.key, 1 <= found.num_rows <= 1 << 24, "a row group has no such number of rows")

    def rows(
        self,
        needed: dict[str, pa.DataType],
        optional: dict[str, pa.DataType] | None = None,
        ignored: dict[str, pa.DataType] | None = None,
    ) -> list[dict[str, Any]]:
        """Decode all rows, with the columns that are known: R11."""
        try:
            schema = self.file.schema_arrow
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise DamageError(self.key, f"pyarrow cannot read the schema: {error}") from error
        known = {**needed, **(optional or {})}
        need(self.key, len({*schema.names}) == len(schema.names), "a column comes twice")
        for name, wanted in {**known, **(ignored or {})}.items():
            at = schema.get_field_index(name)
            need(self.key, at >= 0 or name not in needed, f"has no column {name!r}")
            good = at < 0 or alike(schema.field(at).type, wanted)
            need(self.key, good, f"the column {name!r} is of another type")
        names = [name for name in schema.names if name in known and name not in self.unread]
        try:
            table = self.file.read(columns=names)
            table.validate(full=True)
            found: list[dict[str, Any]] = table.to_pylist()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DamageError(self.key, f"pyarrow cannot read the rows: {error}") from error
        for name in {*NOT_NULL[self.key[0]]} - self.unread:
            need(self.key, not table[name].null_count, f"a row has no {name!r}")
        counted = sum(
            self.file.metadata.row_group(i).num_rows for i in range(self.file.num_row_groups)
        )
        need(self.key, table.num_rows == counted, "another number of rows")
        self._check_columns({*names}, schema, found)
        return found

    def _check_columns(
        self, names: set[str], schema: pa.Schema, rows: list[dict[str, Any]]
    ) -> None:
        """Compare what the footer says of columns with what was decoded: header byte 26, R66, R71."""
        leaves = [(each.name, path) for each in schema for path in leaves_of(each.type)]
        start = 0
        for group in range(self.file.num_row_groups):
            found = self.file.metadata.row_group(group)
            some = rows[start : start + found.num_rows]
            start += found.num_rows
            for place, (name, path) in enumerate(leaves):
                if name in names:
                    column = found.column(place)
                    good = column.compression in {"ZSTD", "UNCOMPRESSED"}
                    need(self.key, good, f"a column is compressed with {column.compression}")
                    need(self.key, column.num_values <= 1 << 28, "a row group is too large")
                    count = sum(values_in(row[name], path) for row in some)
                    need(self.key, column.num_values == count, "another number of values")


class Repository:
    """A repository in a folder; each file is read once."""

    def __init__(self, root: Path, state_root: Path | None = None) -> None:
        self.root, self.state_root = root, state_root or root
        self.sealed: dict[str, Sealed] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.sizes: dict[str, int] = {}
        """Of the manifests of the snapshot that is read."""
        entry = self.entry("main", 0)
        need("refs/branch.main/ZZZZZZZZ.json", entry, "there is no repository")
        assert entry is not None
        self.identity: str = entry["snapshot"]
        self.by_state = entry.get("catalog") == "state"
        self.ledger = self.read_ledger()

    def get(self, key: str) -> bytes | None:
        path = self.root / key
        return path.read_bytes() if path.is_file() else None

    def must_get(self, key: str) -> bytes:
        data = self.get(key)
        if data is None:
            raise DamageError(key, "is missing, although it is named")
        return data

    def open(self, key: str) -> Sealed:
        if key not in self.sealed:
            self.sealed[key] = Sealed(key, self.must_get(key))
        return self.sealed[key]

    # -- references

    def small_file(self, key: str, data: bytes, known: set[str]) -> dict[str, Any]:
        """Read a file under ``refs/``: R42, R66, R72, R101."""
        need(key, len(data) <= 1 << 16, "is too long for an entry")
        found = parsed(key, data, once=True)
        need(key, isinstance(found, dict), "is no object")
        need(key, isinstance(found.get("info", {}), dict), "its info is no object")
        if unknown := found.keys() - known - {"info"}:
            raise UnsupportedError(key, f"has the member {min(unknown)!r}")
        need(key, ("write_id" in found) == ("key" in found), "write_id and key go together")
        need(key, is_id(found.get("write_id", self_id(found))), "its write_id is no id")
        need(key, found.get("key", key) == key, "it belongs elsewhere")
        result: dict[str, Any] = found
        return result

    def entry(self, branch: str, number: int) -> dict[str, Any] | None:
        key = entry_key(branch, number)
        data = self.get(key)
        if data is None:
            return None
        known = {"snapshot", "write_id", "key", "deleted", "catalog"}
        found = self.small_file(key, data, known)
        need(key, is_id(found.get("snapshot")), "names no snapshot")
        deleted = found.get("deleted", True)
        need(key, deleted is True, "deleted is not true")
        need(key, "deleted" not in found or "write_id" in found, "deleted without write_id")
        if found.get("catalog", "state") != "state":
            raise UnsupportedError(key, f"names the catalog {found['catalog']!r}")
        first = (branch, number) == ("main", 0)
        need(key, "catalog" not in found or first, "has a catalog, and is not the first entry")
        return found

    def names(self, kind: str) -> Iterator[str]:
        for folder in sorted((self.root / "refs").iterdir()):
            before, _, name = folder.name.partition(".")
            if folder.is_dir() and before == kind and is_ref_name(name):
                yield name

    def newest(self, folder: str) -> int | None:
        names = [SEQUENCE.fullmatch(each.name) for each in (self.root / folder).iterdir()]
        numbers = [number_of(match[1]) for match in names if match is not None]
        return max(numbers, default=None)

    def branch(self, name: str) -> dict[str, Any] | None:
        """Where a branch stands: R39, R72, R77."""
        number = self.newest(f"refs/branch.{name}")
        while number is not None and number >= 0:
            found = self.entry(name, number)
            key = entry_key(name, number)
            need(key, found, "is missing, although there is a later entry")
            assert found is not None
            if found.get("deleted"):
                return None
            identifier, facts = self.snapshot_facts(found["snapshot"])
            if facts is not None and facts["repository"] != self.identity:
                number -= 1
                continue
            if "write_id" not in found and facts is not None and facts.get("sequence") is not None:
                place = (facts.get("branch"), facts["sequence"])
                said = identifier != found["snapshot"] or place == (name, number)
                need(key, said, f"its snapshot was committed as {place}")
            return {"snapshot": found["snapshot"], "sequence": number}
        return None

    def tags(self) -> dict[str, str]:
        found = {}
        for name in self.names("tag"):
            for word in ("ref", "deleted"):
                key = f"refs/tag.{name}/{word}.json"
                data = self.get(key)
                if data is None:
                    continue
                tag = self.small_file(key, data, {"snapshot", "write_id", "key", "deleted"})
                need(key, is_id(tag.get("snapshot")) and "key" in tag, "is no tag")
                said = tag.get("deleted", False)
                good = said is (word == "deleted") and said == ("deleted" in tag)
                need(key, good, "deleted is wrong")
                if word == "ref":
                    found[name] = tag["snapshot"]
                else:
                    found.pop(name, None)
        for name, snapshot in found.items():
            identifier, facts = self.snapshot_facts(snapshot)
            own = facts is None or facts["repository"] == self.identity
            need(f"s/{identifier}.parquet", own, f"the tag {name!r} leads to another repository")
        return found

    def state(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Read the state file: R44 to R48."""
        key = "state.json"
        path = self.state_root / key
        need(key, path.is_file(), "is missing, although it is the catalog")
        data = path.read_bytes()
        found = parsed(key, data, once=True)
        need(key, isinstance(found, dict), "is no object")
        if "crc32c" in found:
            end = re.search(
                rb'"crc32c"[ \t\r\n]*:[ \t\r\n]*"([0-9a-f]{8})"[ \t\r\n]*}[ \t\r\n]*\Z', data
            )
            need(key, end, "the checksum is not the last member")
            assert end is not None
            blank = data[: end.start(1)] + b"00000000" + data[end.end(1) :]
            need(key, crc32c(blank) == int(end[1], 16), "the checksum does not match")
        need(key, is_id(found.get("id")), "has no id")
        need(key, found["id"] == self.identity, "is that of another repository")
        need(key, is_natural(found.get("generation")), "has no generation")
        for name in ("store_root", "write-id"):
            need(key, isinstance(found.get(name), str | None), f"{name!r} is no text")
        need(key, isinstance(found.get("snapshots"), list), "has no snapshots")
        need(key, isinstance(found.get("refs"), dict), "has no refs")
        listed = set()
        for each in found["snapshots"]:
            need(key, isinstance(each, dict), "a snapshot is no object")
            identifier, parent = each.get("snapshot-id"), each.get("parent-snapshot-id")
            need(key, is_id(identifier) and (parent is None or is_id(parent)), "an id is none")
            same = each.get("structure-file") == f"{identifier}.parquet"
            need(key, same, "a structure file has another name")
            time = each.get("timestamp-ms")
            good = type(time) is int and -62_135_596_800_000 <= time < 253_402_300_800_000
            need(key, good, "a snapshot has no time")
            check_properties(key, each.get("properties"))
            listed.add(identifier)
        branches: dict[str, Any] = {}
        tags: dict[str, str] = {}
        for name, ref in found["refs"].items():
            need(key, isinstance(ref, dict), "a reference is no object")
            kind, bare, deleted = ref.get("type"), ref.get("name"), ref.get("deleted", False)
            texts = isinstance(kind, str) and isinstance(bare, str)
            good = texts and kind in {"branch", "tag"} and name == f"{kind}.{bare}"
            need(key, good, f"{name!r} is wrong")
            need(key, is_ref_name(bare), f"{bare!r} is no name")
            need(key, type(deleted) is bool and (kind == "tag" or not deleted), "deleted is wrong")
            need(key, is_id(ref.get("snapshot-id")), f"{name!r} points nowhere")
            if not deleted:
                need(key, ref["snapshot-id"] in listed, f"{name!r} points to what is not listed")
                if kind == "branch":
                    branches[bare] = {"snapshot": ref["snapshot-id"], "sequence": None}
                else:
                    tags[bare] = ref["snapshot-id"]
        need(key, "main" in branches, "has no main")
        return branches, tags

    def read_ledger(self) -> dict[str, Any] | None:
        """Read the newest entry's log: R80."""
        folder = "refs/ledger"
        number = self.newest(folder) if (self.root / folder).is_dir() else None
        if number is None:
            return None
        key = f"{folder}/{sequence_name(number)}.json"
        entry = self.small_file(key, self.must_get(key), {"log", "write_id", "key"})
        need(key, is_id(entry.get("log")) and "key" in entry, "is no entry of the ledger")
        log = f"t/{entry['log']}.parquet"
        rows = self.open(log).rows(LOG, LOG_OPTIONAL)
        if any(row["effect"] != "note" for row in rows):
            raise UnsupportedError(log, "an operation of the ledger is no note")
        need(log, rows and rows[0]["operation"] == "ledger", "does not begin as a ledger")
        facts = parsed(log, rows[0]["snapshot"] or "", once=True)
        need(log, isinstance(facts, dict), "its facts are no object")
        need(log, facts.get("id") == entry["log"], "it is another log")
        time_of(log, facts.get("written_at"))
        need(log, facts.get("repository") == self.identity, "is of another repository")
        found: dict[str, Any] = {"retired": {}, "rewritten": {}, "census": None, "verified": []}
        for row in rows[1:]:
            of, other = row.get("of_snapshot"), row.get("other_snapshot")
            match row["operation"]:
                case "retire_snapshot":
                    need(log, is_id(of) and (other is None or is_id(other)), "an id is none")
                    found["retired"][of] = other
                case "rewrite_snapshot":
                    need(log, is_id(of) and is_id(other), "an id is none")
                    found["rewritten"][of] = other
                case "collect_mark":
                    found["census"] = id_of_file(log, row.get("census"))
                case "verified":
                    need(log, is_id(of), "an id is none")
                    found["verified"].append(of)
        found["verified"].sort()
        return found

    # -- snapshots

    def snapshot_facts(self, identifier: str) -> tuple[str, dict[str, Any] | None]:
        """Read a snapshot's facts, or none of one that was retired: R81."""
        key = f"s/{identifier}.parquet"
        if key not in self.sealed and self.get(key) is None:
            ledger = self.ledger or {"rewritten": {}, "retired": {}}
            if identifier in ledger["rewritten"]:
                return self.snapshot_facts(ledger["rewritten"][identifier])
            if identifier in ledger["retired"]:
                return identifier, None
            raise DamageError(key, "is missing, and the ledger does not know it")
        if identifier not in self.facts:
            self.facts[identifier] = checked_facts(self.open(key))
        return identifier, self.facts[identifier]

    def ancestors(self, identifier: str | None) -> Iterator[str]:
        seen = set()
        while identifier is not None:
            if identifier in seen:
                self.check_rest(f"s/{identifier}.parquet", False, "is its own ancestor")
                return
            seen.add(identifier)
            identifier, facts = self.snapshot_facts(identifier)
            if facts is None:
                assert self.ledger is not None
                identifier = self.ledger["retired"][identifier]
                continue
            key = f"s/{identifier}.parquet"
            need(key, facts["repository"] == self.identity, "is of another repository")
            yield identifier
            history = facts["short_term_history"]
            identifier = history[0]["id"] if history else None

    def snapshot(self, identifier: str) -> dict[str, Any]:
        _, facts = self.snapshot_facts(identifier)
        assert facts is not None
        history = [each["id"] for each in facts["short_term_history"]]
        parent = history[0] if history else None
        if parent is not None:
            self.check_parent(identifier, facts, parent)
        said = {name: facts.get(name) for name in FACTS}
        return {
            "parent": parent,
            "message": facts["metadata"]["message"],
            "written_at": facts["metadata"]["written_at"],
            **said,
            **rare(facts),
            "history": history,
            "nodes": self.nodes(identifier, facts),
            "operations": None if parent is None else self.operations(identifier, facts),
        }

    def check_parent(self, identifier: str, facts: dict[str, Any], parent: str) -> None:
        """Compare with the parent, where it is there: R20."""
        found, of_parent = self.snapshot_facts(parent)
        if of_parent is None or found != parent:
            return
        key = f"s/{identifier}.parquet"
        ids = [each["id"] for each in facts["short_term_history"]]
        before = [each["id"] for each in of_parent["short_term_history"]]
        need(key, ids == [parent, *before][:16], "its history is not its parent's")
        grows = facts["total_parents"] == of_parent["total_parents"] + 1
        need(key, grows, "total_parents is not one more than the parent's")
        rises = facts["next_node_id"] >= of_parent["next_node_id"]
        self.check_rest(key, rises, "next_node_id falls")

    def nodes(self, identifier: str, facts: dict[str, Any]) -> dict[str, Any]:
        file = self.open(f"s/{identifier}.parquet")
        key = file.key
        wide = file.texts.get("icechunk.width")
        need(key, wide in {"narrow", "wide"}, "has no width")
        rows = file.rows(structure_types(wide=wide == "wide"))
        paths = [row["path"].encode() for row in rows]
        need(key, all(a < b for a, b in pairwise(paths)), "paths are not sorted")
        ids = [row["id"] for row in rows]
        need(key, len({*ids}) == len(ids), "an id comes twice")
        inside = all(1 <= each < facts["next_node_id"] for each in ids)
        need(key, inside, "a node's id is not below next_node_id")
        extensions = parsed(key, file.texts.get("icechunk.extensions", "{}"))
        need(key, isinstance(extensions, dict), "extensions are no object")
        for number, patch in extensions.items():
            good = isinstance(patch, dict) and isinstance(patch.get("set"), dict)
            need(key, good and isinstance(patch.get("unset"), list), "a patch is none")
            need(key, re.fullmatch("[0-9]+", number), "a patch is of no node")
        entries = [(row, entry) for row in rows for entry in row["inventories"] or ()]
        need(key, all(entry is not None for _, entry in entries), "an inventory entry is null")
        counts = self.counts(file, facts, [entry["inventory_file"] for _, entry in entries])
        for (_, entry), count in zip(entries, counts, strict=True):
            entry["row_count"] = count
        arrays = {row["path"] for row in rows if row["type"] == "array"}
        found = {}
        for row in rows:
            patch = extensions.get(str(row["id"]), {"set": {}, "unset": []})
            check_node(key, row, arrays, {*patch["set"]})
            node = {"id": row["id"]}
            document = self.document(key, row, patch)
            node["document"] = json.dumps(document, sort_keys=True)
            if row["type"] == "array":
                node["chunks"] = self.chunks(key, row)
            found[row["path"]] = node
        return found

    def counts(self, file: Sealed, facts: dict[str, Any], names: list[str]) -> list[int]:
        """Unpack the row counts: R22."""
        key, packed = file.key, facts["manifest_files"]
        need(key, isinstance(packed, dict), "manifest_files is no object")
        manifests = list(dict.fromkeys(id_of_file(key, name) for name in names))
        for name, count in (("count", len(manifests)), ("entries", len(names))):
            good = type(packed.get(name)) is int and packed[name] == count
            need(key, good, f"another number of {name} than there are")
        unpack(key, packed.get("stored_bytes"), len(names))
        sizes = unpack(key, packed.get("size_bytes"), len(manifests))
        self.sizes = dict(zip(manifests, sizes, strict=True))
        return unpack(key, packed.get("row_counts"), len(names))

    def document(self, key: str, row: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
        """Put a node's document together."""
        document: dict[str, Any] = {"zarr_format": 3, "node_type": row["type"]}
        if (array := row["array_metadata"]) is not None:
            grid, keys = array["chunk_grid"], array["chunk_key_encoding"]
            need(
                key, None not in (array["codecs"] or ()), f"{row['path']} has a codec that is null"
            )
            document |= {
                "shape": array["shape"],
                "data_type": array["data_type"],
                "chunk_grid": {"name": grid["name"], "configuration": grid["configuration"]},
                "chunk_key_encoding": {
                    "name": keys["name"],
                    "configuration": {"separator": keys["configuration"]["separator"]},
                },
                "codecs": [
                    {"name": codec["name"]}
                    | (
                        {}
                        if codec["configuration"] is None
                        else {"configuration": parsed(key, codec["configuration"])}
                    )
                    for codec in array["codecs"]
                ],
                "storage_transformers": [],
            }
            if array["fill_value"] is not None:
                document["fill_value"] = parsed(key, array["fill_value"])
            if array["dimension_names"] is not None:
                document["dimension_names"] = array["dimension_names"]
        attributes = row["inline_attrs"]
        if (reference := row["attrs_reference"]) is not None:
            attributes = self.attributes(key, reference, row["id"])
        if attributes is not None:
            document["attributes"] = parsed(key, attributes)
            need(key, isinstance(document["attributes"], dict), "attributes are no object")
        for name in patch["unset"]:
            need(
                key,
                isinstance(name, str) and name in document,
                f"a patch takes away {name!r}, which is not there",
            )
            del document[name]
        document |= patch["set"]
        return document

    def attributes(self, key: str, reference: dict[str, Any], node: int) -> bytes:
        """R32."""
        file = f"a/{id_of_file(key, reference['attrs_file'])}.parquet"
        rows = self.open(file).rows(ATTRIBUTES)
        need(key, reference["row"] < len(rows), f"refers to a row that {file} has not")
        row = rows[reference["row"]]
        need(file, row["id"] == node, "its row is another node's")
        data: bytes = row["attributes"]
        return data

    # -- chunks

    def chunks(self, key: str, row: dict[str, Any]) -> list[dict[str, Any]]:
        found: dict[tuple[int, ...], dict[str, Any]] = {}
        rank = len(row["array_metadata"]["shape"])
        for entry in row["inventories"] or ():
            for index, chunk in self.entry_chunks(key, row["id"], entry, rank):
                need(key, index not in found, f"the chunk {index} stands in two manifests")
                found[index] = chunk
        return [found[index] for index in sorted(found)]

    def check_rest(self, key: str, holds: object, fact: str) -> None:
        """Check what shows in more than was asked for; a reader may pass over it: *Who checks what*."""
        need(key, holds, fact)

    def entry_chunks(
        self, key: str, node: int, entry: dict[str, Any], rank: int
    ) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
        """Read an array's rows of one manifest: R18, R19, R24 to R30."""
        name = f"i/{id_of_file(key, entry['inventory_file'])}.parquet"
        extent, count = entry["extent"], entry["row_count"]
        need(key, len(extent) == rank, "an extent has another rank than its array")
        good = all(len(pair) == 2 and pair[0] < pair[1] for pair in extent)
        need(key, good, "an extent is empty")
        volume = prod(stop - start for start, stop in extent)
        need(key, 1 <= count <= volume, "there are more rows than an extent has room for")
        flags = entry["flags"] or 0
        need(key, not flags & DENSE or count == volume, "a dense entry has holes")
        file = self.open(name)
        self.check_rest(
            name, are_markers(file.texts.get("icechunk.missing-markers", "{}")), "no markers"
        )
        self.check_rest(name, len(file.data) == self.sizes[name[2:-8]], "has another size")
        width = file.texts.get("icechunk.width")
        need(name, width in {"narrow", "wide"}, "has no width")
        wide = width == "wide"
        self.check_rest(key, wide == bool(flags & WIDE), f"flags do not go with {name}")
        rows = file.rows(*manifest_types(wide=wide), STATISTICS)
        order = [(each["array_id"], each["coord"]) for each in rows]
        self.check_rest(name, all(a < b for a, b in pairwise(order)), "rows do not rise")
        schema = file.file.schema_arrow.names
        need(name, ("etag" in schema) == ("last_modified" in schema), "has half of a check")
        for flag, columns in FORM.items():
            there = any(each in schema for each in columns)
            self.check_rest(key, there == bool(flags & flag), f"flags do not go with {name}")
        mine = rows[entry["row"] : entry["row"] + count]
        own = len(mine) == count and all(each["array_id"] == node for each in mine)
        need(name, own, f"has not {count} rows of the array {node} at {entry['row']}")
        coords = [each["coord"] for each in mine]
        rising = all(a < b for a, b in pairwise(coords))
        need(name, rising, "coordinates do not rise")
        for each in mine:
            index = indexes(name, each["coord"], rank)
            inside = all(a <= i < b for i, (a, b) in zip(index, extent, strict=True))
            need(name, inside, f"the chunk {index} is outside of the extent")
            yield index, self.chunk(name, index, each)

    def chunk(self, key: str, index: tuple[int, ...], row: dict[str, Any]) -> dict[str, Any]:
        inline, file, offset = row["inline_data"], row["chunk_file"], row["offset"]
        length = row["length"]
        one = (inline is None) != (file is None) and (file is None) == (offset is None)
        need(key, one, f"the chunk {index} is not in one place")
        kind = "inline" if file is None else "virtual" if re.search("[:/]", file) else "native"
        found = {"index": [*index], "kind": kind, "length": length}
        if kind != "inline":
            found |= {"location": file, "offset": offset}
        found |= {name: row[name] for name in ("etag", "crc32c") if row.get(name) is not None}
        if row.get("last_modified") is not None:
            found["last_modified"] = row["last_modified"].isoformat(timespec="microseconds")
        if kind == "virtual":
            return found
        if kind == "inline":
            need(key, len(inline) == length, f"the chunk {index} has another length")
            return found | said(inline)
        need(key, is_id(file), f"{file!r} is no chunk file")
        if not length:
            return found | said(b"")
        data = self.must_get(f"c/{file}")[offset : offset + length]
        need(f"c/{file}", len(data) == length, "is cut")
        crc = row.get("crc32c")
        good = crc is None or crc32c(data) == crc
        need(f"c/{file}", good, f"the bytes of the chunk {index} are altered")
        if row.get("sums_crc32c") is not None:
            need(key, crc is not None, f"the chunk {index} has sums and no crc32c")
            self.check_blocks(f"c/{file}", data, offset + length, row["sums_crc32c"])
        return found | said(data)

    def check_blocks(self, key: str, data: bytes, behind: int, crc: int) -> None:
        """Check the sums of a chunk's blocks, which stand behind it."""
        blocks = range(0, len(data), 65_536)
        stored = self.must_get(key)[behind : behind + 4 * len(blocks)]
        self.check_rest(key, crc32c(stored) == crc, "the sums of blocks are altered")
        good = stored == b"".join(
            crc32c(data[start : start + 65_536]).to_bytes(4, "little") for start in blocks
        )
        self.check_rest(key, good, "the sums of blocks are others")

    # -- logs

    def operations(self, identifier: str, facts: dict[str, Any]) -> list[dict[str, Any]]:
        """Read a log: R34 to R36, R74."""
        file = self.open(f"t/{identifier}.parquet")
        rows = file.rows(LOG, LOG_OPTIONAL)
        key = file.key
        need(key, rows and rows[0]["operation"] == "snapshot", "does not begin with the snapshot")
        need(key, [row["id"] for row in rows] == [*range(len(rows))], "rows are not numbered")
        self.check_log_facts(key, rows[0], facts)
        found, before = [], None
        for row in rows:
            operation, effect = row["operation"], row["effect"]
            if operation not in EFFECTS:
                if effect not in {"placement", "note"}:
                    raise UnsupportedError(key, f"the operation {operation!r} ({effect!r})")
                continue
            need(
                key, effect == EFFECTS[operation], f"{operation} cannot have the effect {effect!r}"
            )
            place = place_of(key, row)
            rising = before is None or before < place
            repeats = before == place and operation in REPEATED
            need(key, rising or repeats, f"{operation} stands in the wrong place")
            need(key, before is None or operation != "snapshot", "there are two first rows")
            before = place
            if operation != "snapshot":
                found.append(self.operation(key, row))
        return found

    def check_log_facts(self, key: str, first: dict[str, Any], facts: dict[str, Any]) -> None:
        found = parsed(key, first["snapshot"] or "", once=True)
        metadata, history = facts["metadata"], facts["short_term_history"]
        wanted = {
            "id": metadata["id"],
            "parent_id": history[0]["id"] if history else None,
            "written_at": metadata["written_at"],
            "message": metadata["message"],
            **{name: facts.get(name) for name in ("repository", *FACTS)},
            **rare(facts),
        }
        known = {name: found.get(name) for name in wanted}
        need(key, isinstance(found, dict) and found.get("id") == wanted["id"], "is another log")
        need(f"s/{wanted['id']}.parquet", known == wanted, f"its facts are not those in {key}")

    def operation(self, key: str, row: dict[str, Any]) -> dict[str, Any]:
        found = {k: v for k, v in row.items() if v is not None and k != "id"}
        if "coord" not in NEEDED.get(row["operation"], ()):
            found.pop("coord", None)
        if "manifest" not in NEEDED.get(row["operation"], ()):
            found.pop("manifest", None)
        if "coord" in found:
            rank = count_indexes(found["coord"])
            found["coord"] = [*indexes(key, found["coord"], rank)]
        if "manifest" in found:
            id_of_file(key, found["manifest"])
        if "extent" in NEEDED.get(row["operation"], ()):
            good = all(
                pair is not None and len(pair) == 2 and None not in pair for pair in row["extent"]
            )
            need(key, good, "an extent is none")
        if "last_modified" in found:
            found["last_modified"] = found["last_modified"].isoformat(timespec="microseconds")
        return found


FACTS = (
    "started_at",
    "properties",
    "total_parents",
    "next_node_id",
    "branch",
    "sequence",
)
EFFECTS = {
    "snapshot": "note",
    "create_node": "content",
    "delete_node": "content",
    "move_node": "content",
    "update_metadata": "content",
    "update_attributes": "content",
    "resize_array": "content",
    "truncate_chunks": "content",
    "delete_chunks": "content",
    "shift_chunks": "content",
    "write_chunks": "content",
    "write_chunk": "content",
    "delete_chunk": "content",
    "relocate_chunks": "placement",
    "annotate_chunks": "placement",
    "take_source": "note",
}
ORDER = {name: place for place, name in enumerate(EFFECTS)}
CHUNKS = {*list(EFFECTS)[7:15]}
REPEATED = {"write_chunks", "delete_chunks", "relocate_chunks", "annotate_chunks", "take_source"}
"""Operations that may come again in the same place: what they say has no order of its own."""
NEEDED = {
    "create_node": (),
    "delete_node": (),
    "move_node": ("from_path",),
    "update_metadata": ("keys",),
    "update_attributes": ("keys",),
    "resize_array": ("shape_before", "shape_after"),
    "truncate_chunks": ("extent",),
    "delete_chunks": ("extent", "chunk_count"),
    "shift_chunks": ("chunk_offset",),
    "write_chunks": ("manifest", "extent", "chunk_count"),
    "write_chunk": ("coord",),
    "delete_chunk": ("coord",),
    "relocate_chunks": ("manifest", "extent", "chunk_count"),
    "annotate_chunks": ("manifest", "extent", "chunk_count"),
}


def rare(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts that few snapshots have."""
    return {
        name: value for name, value in facts.items() if name in {"made_from", "author", "synced"}
    }


def place_of(key: str, row: dict[str, Any]) -> tuple[Any, ...]:
    """Where a row of a log belongs: R34."""
    operation = row["operation"]
    if operation in NEEDED:
        for name in ("node_id", "node_type", "path", *NEEDED[operation]):
            need(key, row.get(name) is not None, f"a row of {operation} has no {name}")
    if operation == "snapshot":
        return (0,)
    if operation == "take_source":
        need(key, row.get("location") is not None, "a row of take_source has no location")
        return (3,)
    if operation in CHUNKS:
        return (2, row["node_id"], ORDER[operation], row["coord"] or b"")
    return (1, ORDER[operation], row["path"].encode())


def count_indexes(coord: bytes) -> int:
    count = place = 0
    while place < len(coord):
        place += 1 << (coord[place] >> 6)
        count += 1
    return count


def self_id(found: dict[str, Any]) -> object:
    """What stands for a write_id that is not there."""
    return found.get("write_id", "0" * 20)


def said(data: bytes) -> dict[str, str]:
    """Say what a chunk's bytes are, as the kit does."""
    if len(data) <= FEW_BYTES:
        return {"bytes": data.hex()}
    return {"bytes_crc32c": f"{crc32c(data):08x}"}


def sequence_name(number: int) -> str:
    """R6."""
    rest = 1099511627775 - number
    return "".join(ALPHABET[rest >> shift & 31] for shift in range(35, -1, -5))


def number_of(name: str) -> int:
    value = 0
    for character in name:
        value = value * 32 + ALPHABET.index(character)
    return 1099511627775 - value


def entry_key(branch: str, number: int) -> str:
    return f"refs/branch.{branch}/{sequence_name(number)}.json"


def are_markers(text: str) -> bool:
    """Whether a text says of arrays what counts as missing."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and all(re.fullmatch("[0-9]+", each) for each in found)


def check_properties(key: str, properties: object) -> None:
    """Look at what a state file says of a commit."""
    need(key, isinstance(properties, dict | None), "properties are no object")
    found: Any = properties or {}
    need(key, isinstance(found.get("message"), str | None), "a message is no text")
    need(key, isinstance(found.get("metadata"), dict | None), "metadata is no object")


def is_ref_name(name: str) -> bool:
    plain = not re.search(r"[/\\\x00-\x1f\x7f]", name) and name == name.strip()
    return plain and 1 <= len(name.encode()) <= 200


def unpack(key: str, packed: object, count: int) -> list[int]:
    try:
        data = base64.b64decode(str(packed), validate=True)
        plain = pa.decompress(data, 8 * count, codec="zstd", asbytes=True)
        found: list[int] = np.frombuffer(plain, "<u8").tolist()
    except (ValueError, OSError) as error:
        raise DamageError(key, f"packed numbers are none: {error}") from error
    need(key, len(found) == count, "there are fewer packed numbers than entries")
    return found


def checked_facts(file: Sealed) -> dict[str, Any]:
    """Read and check the facts in a structure file's footer: R20, R21."""
    key = file.key
    need(key, "icechunk.snapshot" in file.texts, "has no facts")
    facts = parsed(key, file.texts["icechunk.snapshot"], once=True)
    need(key, isinstance(facts, dict), "facts are no object")
    for name, kind in {
        "metadata": dict,
        "repository": str,
        "started_at": str,
        "properties": dict,
        "short_term_history": list,
        "short_term_parents": int,
        "total_parents": int,
        "next_node_id": int,
        "manifest_files": dict,
    }.items():
        need(key, isinstance(facts.get(name), kind), f"the fact {name!r} is missing or wrong")
    history = facts["short_term_history"]
    for each in (facts["metadata"], *history):
        good = isinstance(each, dict) and is_id(each.get("id"))
        need(key, good and isinstance(each.get("message"), str), "a snapshot is not described")
        time_of(key, each.get("written_at"))
    own = facts["metadata"]
    need(key, own["id"] == key[2:-8], "holds the facts of another snapshot")
    need(key, is_id(facts["repository"]), "repository is no id")
    ids = {own["id"], *(each["id"] for each in history)}
    need(key, len(ids) == len(history) + 1, "an id comes twice in its history")
    for name in ("total_parents", "next_node_id", "short_term_parents"):
        need(key, is_natural(facts[name]), f"{name!r} is no number")
    need(key, 1 <= facts["next_node_id"] <= 1 << 32, "ids of nodes have 32 bits and begin at 1")
    need(key, facts["short_term_parents"] == len(history), "the history has another length")
    for name in ("branch", "author"):
        need(key, isinstance(facts.get(name), str | None), f"{name!r} is no text")
    good = facts.get("sequence") is None or is_natural(facts["sequence"])
    need(key, good, "the sequence is no number")
    need(key, type(facts.get("synced", True)) is bool, "synced is neither true nor false")
    need(key, len(history) == min(16, facts["total_parents"]), "the history has a wrong length")
    times = [time_of(key, each["written_at"]) for each in (own, *history)]
    falling = all(a > b for a, b in pairwise(times))
    need(key, falling, "a snapshot is not later than its parent")
    need(key, time_of(key, facts["started_at"]) <= times[0], "began after it was written")
    need(key, isinstance(facts.get("made_from", []), list), "made_from is no list")
    for each in facts.get("made_from", ()):
        good = isinstance(each, dict) and isinstance(each.get("kind"), str)
        need(key, good and is_id(each.get("snapshot")), "made_from is wrong")
    result: dict[str, Any] = facts
    return result


def check_node(key: str, row: dict[str, Any], arrays: set[str], patched: set[str]) -> None:
    """R15, R16, R32, R100; of what is patched, columns say nothing."""
    path, array = row["path"], row["array_metadata"]
    names = path[1:].split("/") if path != "/" else []
    good = path.startswith("/") and all(
        name not in {"", ".", "..", "zarr.json"} and "\0" not in name for name in names
    )
    need(key, good, f"{path!r} is no path")
    above = {"/" + "/".join(names[:n]) for n in range(len(names))}
    need(key, not above & arrays, f"{path!r} stands below an array")
    need(key, row["type"] in {"array", "group"}, f"{path!r} is of no type")
    need(key, (row["type"] == "array") == (array is not None), f"{path!r} is of another type")
    if array is None:
        need(key, not row["inventories"], f"the group {path!r} has chunks")
    else:
        for name in ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "codecs"):
            need(key, array[name] is not None, f"{path!r} has no {name}")
        grid = array["chunk_grid"]["configuration"]["chunk_shape"]
        edges = all(type(each) is int and each > 0 for each in grid)
        need(key, edges and None not in array["shape"], f"{path!r} has no grid")
        keys = array["chunk_key_encoding"]
        known = keys["name"] in {"default", "v2"} and keys["configuration"]["separator"] in {*"./"}
        known = known or "chunk_key_encoding" in patched
        need(key, known, f"{path!r} has keys of chunks that Zarr does not know")
    both = row["inline_attrs"] is not None and row["attrs_reference"] is not None
    need(key, not both, f"{path!r} has attributes in two places")


def read(root: Path, state_root: Path | None = None) -> dict[str, Any]:
    """Read everything, in the form of the kit's `expected.json`."""
    repository = Repository(root, state_root)
    branches: dict[str, Any]
    if repository.by_state:
        branches, tags = repository.state()
    else:
        there = {name: repository.branch(name) for name in repository.names("branch")}
        branches = {name: found for name, found in there.items() if found is not None}
        tags = repository.tags()
    snapshots: dict[str, Any] = {}
    for tip in {*(each["snapshot"] for each in branches.values()), *tags.values()}:
        for identifier in repository.ancestors(tip):
            if identifier in snapshots:
                break
            snapshots[identifier] = repository.snapshot(identifier)
    return {
        "repository": repository.identity,
        "branches": branches,
        "tags": tags,
        "ledger": repository.ledger,
        "snapshots": snapshots,
    }


def main(arguments: Sequence[str]) -> None:
    """Read cases of the kit, and print for each what was found, or how it was refused."""
    for name in arguments:
        case = Path(name)
        state = case / "state"
        try:
            found = read(case / "repository", state if state.is_dir() else None)
        except RefusalError as error:
            found = {"kind": error.kind, "key": error.key, "error": str(error)}
        print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
