"""The cases that a reader must refuse: a sound repository each, of which one file breaks one rule."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from icechunk_arrow.core.chunks import ChunkRef
from tests.conformance.kit.sound import SOUND, log_rows, rows_with
from tests.conformance.kit.workshop import Seal, array_document, group_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.kit.workshop import Case

__all__ = ["REFUSED", "Refused"]

DAMAGE, UNSUPPORTED = "damage", "unsupported"


@dataclass(frozen=True, kw_only=True)
class Refused:
    """One case: the rule, what it is about, and what makes it; ``make`` gives the key of the file."""

    rule: str
    name: str
    make: Callable[[Case], str]
    kind: str = DAMAGE
    also: tuple[str, ...] = ()
    """First letters of other files that a reader may name instead: where two do not go together."""
    pending: bool = False
    """The text demands it and this package's reader does not do it yet: the kit has not got it."""

    @property
    def folder(self) -> str:
        """Name of the case's folder."""
        return f"{self.rule}-{self.name}"


REFUSED: list[Refused] = []
Row = dict[str, Any]


def add(rule: str, name: str, make: Callable[[Case], str], **more: Any) -> None:
    REFUSED.append(Refused(rule=rule, name=name, make=make, **more))


def refused(rule: str, name: str, **more: Any) -> Callable[[Callable[[Case], str]], None]:
    return lambda make: add(rule, name, make, **more)


def sound(case: Case, **config: Any) -> str:
    """Make what each case begins with; give the snapshot."""
    case.create(inline_attributes_threshold_bytes=10, **config)
    session = case.session()
    session.set_document("/", group_document())
    session.set_document("/dense", array_document([3, 2], [1, 1]))
    session.set_document("/native", array_document([20], [20]))
    session.set_document("/sparse", array_document([99], [1], attributes={"text": "long enough"}))
    session.set_document("/virtual", array_document([9], [1]))
    for index in range(3):
        session.write_chunk("/dense", (index, 1), case.noise(2))
    session.write_chunk("/native", (0,), case.noise(20))
    for index in (1, 4, 70):
        session.write_chunk("/sparse", (index,), case.noise(1))
    session.set_chunk_ref("/virtual", (2,), ChunkRef(file="s3://kit/x", offset=1, length=1))
    return _small(case, session.commit("sound"))


def bare(case: Case, **config: Any) -> str:
    """The same for cases about references: a group, nothing else."""
    case.create(**config)
    session = case.session()
    session.set_document("/", group_document())
    session.set_document("/z", group_document())
    return _small(case, session.commit("sound"))


def _small(case: Case, snapshot: str) -> str:
    case.shrink()
    (case.root / "config.yaml").unlink()
    return snapshot


def of_nodes(alter: Callable[[dict[str, Row]], Any]) -> Callable[[Case], str]:
    return lambda case: case.nodes(sound(case), alter)


def of_groups(alter: Callable[[dict[str, Row]], Any]) -> Callable[[Case], str]:
    return lambda case: case.nodes(bare(case), alter)


def file_of(case: Case, folder: str) -> str:
    """Make a repository, no larger than it must be; give the key of its file in a folder."""
    snapshot = bare(case) if folder in "st" else sound(case)
    return f"{folder}/{snapshot}.parquet" if folder in "st" else case.the_one(folder)


def of_facts(alter: Callable[[Row], Any]) -> Callable[[Case], str]:
    return lambda case: case.facts(bare(case), alter)


def of_chunks(alter: Callable[[list[Row]], Any], **config: Any) -> Callable[[Case], str]:
    def make(case: Case) -> str:
        sound(case, **config)
        return case.rewrite(case.the_one("i"), rows=alter)

    return make


def of_seal(folder: str, alter: Callable[[Seal], Seal]) -> Callable[[Case], str]:
    return lambda case: case.reseal(file_of(case, folder), alter)


def of_bytes(folder: str, alter: Callable[[bytes], bytes]) -> Callable[[Case], str]:
    def make(case: Case) -> str:
        key = file_of(case, folder)
        case.write(key, alter(case.read(key)))
        return key

    return make


def of_header(folder: str, alter: Callable[[bytearray], Any]) -> Callable[[Case], str]:
    def change(texts: dict[str, str]) -> None:
        header = bytearray(texts["icechunk.header"].encode())
        alter(header)
        texts["icechunk.header"] = header.decode()

    return lambda case: case.rewrite(file_of(case, folder), texts=change)


def of_columns(folder: str, alter: Callable[[pa.Schema], pa.Schema]) -> Callable[[Case], str]:
    return lambda case: case.rewrite(file_of(case, folder), schema=alter)


def without(name: str) -> Callable[[pa.Schema], pa.Schema]:
    return lambda schema: schema.remove(schema.get_field_index(name))


def as_type(name: str, arrow_type: pa.DataType) -> Callable[[pa.Schema], pa.Schema]:
    def change(schema: pa.Schema) -> pa.Schema:
        at = schema.get_field_index(name)
        return schema.set(at, schema.field(at).with_type(arrow_type))

    return change


def of_entry(alter: Callable[[Row, Case], Row | bytes]) -> Callable[[Case], str]:
    """Alter the entry of a branch that a person began."""

    def make(case: Case) -> str:
        snapshot = bare(case)
        case.open().create_branch("dev", snapshot)
        key = case.entry_key(0, "dev")
        found = alter(json.loads(case.read(key)), case)
        case.write(key, found if isinstance(found, bytes) else json.dumps(found).encode())
        return key

    return make


def of_commit(alter: Callable[[Row], Row]) -> Callable[[Case], str]:
    """Alter the entry of a commit."""

    def make(case: Case) -> str:
        bare(case)
        key = case.entry_key(1)
        case.write_json(key, alter(json.loads(case.read(key))))
        return key

    return make


def of_tag(alter: Callable[[Row], Row]) -> Callable[[Case], str]:
    def make(case: Case) -> str:
        case_snapshot = bare(case)
        case.open().create_tag("v1", case_snapshot)
        key = "refs/tag.v1/ref.json"
        case.write_json(key, alter(json.loads(case.read(key))))
        return key

    return make


def of_state(alter: Callable[[Row], Any], *, summed: bool = True) -> Callable[[Case], str]:
    def make(case: Case) -> str:
        snapshot = bare(case, catalog="state")
        case.open().create_tag("v1", snapshot)
        return case.state(alter, summed=summed)

    return make


def of_log(make_rows: Callable[[list[Row]], list[Row]]) -> Callable[[Case], str]:
    """Alter the rows of a log behind the first, which create five nodes and write eight chunks."""

    def make(case: Case) -> str:
        snapshot = sound(case)
        return rows_with(case, snapshot, *make_rows(log_rows(case, snapshot)))

    return make


def inventory(nodes: dict[str, Row], path: str = "/sparse", **members: Any) -> None:
    nodes[path]["inventories"][0].update(members)


# -- R3, R5: names

add("R3", "manifest-elsewhere", of_nodes(lambda n: inventory(n, inventory_file="../x.parquet")))
add(
    "R3", "manifest-without-ending", of_nodes(lambda n: inventory(n, inventory_file="V" * 19 + "0"))
)
add(
    "R3",
    "attributes-elsewhere",
    of_nodes(lambda n: n["/sparse"]["attrs_reference"].update(attrs_file="../../x.parquet")),
)


@refused("R3", "log-manifest-elsewhere")
def _log_manifest(case: Case) -> str:
    snapshot = sound(case)
    row = {**log_rows(case, snapshot)[-1], "operation": "write_chunks", "coord": None}
    row |= {"manifest": "../x.parquet", "extent": [[2, 3]], "chunk_count": 1}
    return rows_with(case, snapshot, *log_rows(case, snapshot)[:-1], row)


add("R5", "last-character", of_commit(lambda e: {"snapshot": e["snapshot"][:-1] + "1"}))
add("R5", "lower-case", of_commit(lambda e: {"snapshot": e["snapshot"].lower()}))
add("R5", "too-short", of_commit(lambda e: {"snapshot": e["snapshot"][:-1]}))

# -- R9, R10: the seal, each check of it

add("R9", "cut", of_bytes("s", lambda data: data[:-100]))
add("R9", "empty", of_bytes("i", lambda _: b""))
add("R9", "end", of_bytes("s", lambda data: data[:-1] + b"2"))
add(
    "R9",
    "footer-length",
    of_bytes("s", lambda data: data[:-8] + len(data).to_bytes(4, "little") + data[-4:]),
)
add("R9", "trailer-magic", of_seal("s", lambda seal: replace(seal, magic=b"ICASEAL\x02")))
add("R9", "digest", of_seal("i", lambda seal: replace(seal, digest=lambda _: bytes(32))))
add(
    "R9",
    "digest-of-something-else",
    of_seal("t", lambda seal: replace(seal, digest=lambda d: hashlib.sha256(d[:-4]).digest())),
)
add("R9", "trailer-footer-length", of_seal("s", lambda seal: replace(seal, footer_length=5)))
add("R9", "row-group-count", of_seal("s", lambda seal: replace(seal, entries=[])))
add("R9", "too-many-entries", of_seal("s", lambda seal: replace(seal, count=1 << 20)))
add(
    "R9",
    "ends-behind-the-seal",
    of_seal("i", lambda s: replace(s, entries=[(s.entries[0][0] + 50, s.entries[0][1])])),
)
add("R9", "ends-before-it-begins", of_seal("a", lambda s: replace(s, entries=[(3, 0)])))
add("R9", "header-magic", of_header("s", lambda h: h.__setitem__(slice(0, 3), b"ice")))
add("R9", "header-cut", of_header("i", lambda h: h.__delitem__(26)))
add("R9", "type", of_header("i", lambda h: h.__setitem__(25, 3)))
add("R9", "version-0", of_header("s", lambda h: h.__setitem__(24, 0)), kind=UNSUPPORTED)


@refused("R9", "no-header")
def _no_header(case: Case) -> str:
    bare(case)
    key = case.the_one("t")

    def rename(seal: Seal) -> Seal:
        return replace(seal, footer=seal.footer.replace(b"icechunk.header", b"icechunk.headed"))

    return case.reseal(key, rename)


@refused("R9", "name")
def _wrong_name(case: Case) -> str:
    snapshot = bare(case)
    key = f"s/{snapshot}.parquet"
    return case.reseal(key, lambda seal: replace(seal, name=case.new_id().encode()))


add("R68", "newer-version", of_header("s", lambda h: h.__setitem__(24, 2)), kind=UNSUPPORTED)
add("R68", "newer-manifest", of_header("i", lambda h: h.__setitem__(24, 2)), kind=UNSUPPORTED)
add("R68", "newer-log", of_header("t", lambda h: h.__setitem__(24, 127)), kind=UNSUPPORTED)


def flipped(data: bytes) -> bytes:
    """Flip a bit in the middle of the rows."""
    at = (4 + Seal.of(data).entries[-1][0]) // 2
    return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


def other_sum(seal: Seal) -> Seal:
    return replace(seal, entries=[(end, crc ^ 1) for end, crc in seal.entries])


add("R10", "structure-rows", of_bytes("s", flipped))
add("R10", "structure-sum", of_seal("s", other_sum))
add("R10", "manifest-rows", of_bytes("i", flipped))
add("R10", "attributes-rows", of_bytes("a", flipped))
add("R10", "log-rows", of_bytes("t", flipped))

# -- R11: columns and members that must be there

add("R11", "structure-without-inventories", of_columns("s", without("inventories")))
add("R11", "structure-attributes-text", of_columns("s", as_type("inline_attrs", pa.string())))
add("R11", "manifest-without-offset", of_columns("i", without("offset")))
add("R11", "manifest-coord-text", of_columns("i", as_type("coord", pa.string())))
add("R11", "manifest-id-signed", of_columns("i", as_type("array_id", pa.int64())))
add("R11", "log-without-effect", of_columns("t", without("effect")))
add("R11", "log-id-wide", of_columns("t", as_type("id", pa.uint64())))
add("R11", "attributes-without-id", of_columns("a", without("id")))
add("R11", "facts-without-repository", of_facts(lambda f: f.pop("repository")))
add("R11", "facts-without-total-parents", of_facts(lambda f: f.pop("total_parents")))
add("R11", "facts-properties-list", of_facts(lambda f: f.update(properties=[1])))
add("R11", "state-without-generation", of_state(lambda f: f.pop("generation")))


@refused("R11", "no-facts")
def _no_facts(case: Case) -> str:
    snapshot = bare(case)
    key = f"s/{snapshot}.parquet"
    return case.rewrite(key, texts=lambda texts: texts.pop("icechunk.snapshot"))


# -- R14 to R16: nodes


def swapped(case: Case) -> str:
    key = f"s/{bare(case)}.parquet"
    return case.rewrite(key, rows=lambda rows: [*rows[:-2], rows[-1], rows[-2]])


add("R14", "order", swapped)
add("R14", "path-twice", of_groups(lambda n: n["/"].update(path="/z")))
add("R14", "id-twice", of_groups(lambda n: n["/z"].update(id=n["/"]["id"])))


def renamed(old: str, new: str) -> Callable[[Case], str]:
    """Give a node another path, with the rows in order."""

    def change(rows: list[Row]) -> list[Row]:
        (row,) = (each for each in rows if each["path"] == old)
        row["path"] = new
        return sorted(rows, key=lambda each: str(each["path"]).encode())

    return lambda case: case.rewrite(f"s/{bare(case)}.parquet", rows=change)


for name, path in {
    "empty": "",  # of the root, which stays the first row
    "relative": "z",
    "empty-name": "/zz//a",
    "up": "/zz/../../x",
    "nul": "/z\0z",
    "document": "/zz/zarr.json",
}.items():
    add("R15", f"path-{name}", renamed("/z" if path else "/", path))
add(
    "R15",
    "below-an-array",
    of_nodes(lambda n: n["/virtual"].update(path="/sparse/a")),
)
add("R16", "array-without-metadata", of_groups(lambda n: n["/"].update(type="array")))
add("R16", "group-with-metadata", of_nodes(lambda n: n["/native"].update(type="group")))
add("R16", "unknown-type", of_groups(lambda n: n["/"].update(type="table")))
add("R16", "no-grid", of_nodes(lambda n: n["/sparse"]["array_metadata"].update(chunk_grid=None)))
add(
    "R16",
    "no-key-encoding",
    of_nodes(lambda n: n["/sparse"]["array_metadata"].update(chunk_key_encoding=None)),
)

# -- R17 and documents

add(
    "R17",
    "attributes-no-json",
    of_groups(lambda n: n["/"].update(inline_attrs=b'{"a": 1', attrs_reference=None)),
)
add(
    "R17",
    "fill-value-no-json",
    of_nodes(lambda n: n["/native"]["array_metadata"].update(fill_value=b"{")),
)


def of_extensions(text: str) -> Callable[[Case], str]:
    def make(case: Case) -> str:
        key = f"s/{bare(case)}.parquet"
        return case.rewrite(key, texts=lambda t: t.update({"icechunk.extensions": text}))

    return make


add("R17", "extensions-no-json", of_extensions("{"))
add("R17", "extensions-no-patch", of_extensions('{"1": {"set": []}}'))
add("R100", "codecs-null", of_nodes(lambda n: n["/native"]["array_metadata"].update(codecs=None)))

# -- R18, R19: inventories

add("R18", "rank", of_nodes(lambda n: inventory(n, extent=[[1, 71], [0, 1]])))
add("R18", "empty-range", of_nodes(lambda n: inventory(n, extent=[[71, 71]])))
add("R18", "more-rows-than-room", of_nodes(lambda n: inventory(n, extent=[[1, 3]])))
add("R18", "rows-of-others", of_nodes(lambda n: inventory(n, row=3)), also=("i",))
add("R18", "rows-behind-the-end", of_nodes(lambda n: inventory(n, row=100)), also=("i",))
add(
    "R18",
    "outside-the-extent",
    of_nodes(lambda n: inventory(n, extent=[[2, 99]])),
    also=("i",),
)
add("R18", "of-a-group", of_nodes(lambda n: n["/"].update(inventories=n["/sparse"]["inventories"])))
add("R19", "dense-with-holes", of_nodes(lambda n: inventory(n, flags=3)))
add(
    "R19",
    "dense-other-coordinates",
    of_nodes(lambda n: inventory(n, "/dense", extent=[[0, 3], [0, 1]])),
    also=("i",),
)


# -- R20 to R23: facts

add("R20", "own-id", of_facts(lambda f: f["metadata"].update(id=f["repository"])))
add("R20", "total-parents", of_facts(lambda f: f.update(total_parents=7)))
add("R20", "history-length", of_facts(lambda f: f.update(short_term_history=[])))
add(
    "R20",
    "own-parent",
    of_facts(lambda f: f["short_term_history"][0].update(id=f["metadata"]["id"])),
)
add(
    "R21",
    "before-the-parent",
    of_facts(lambda f: f["metadata"].update(written_at="2026-11-20T11:00:00.000000+00:00")),
)
add(
    "R21",
    "started-later",
    of_facts(lambda f: f.update(started_at="2027-11-20T11:00:00.000000+00:00")),
)
add("R21", "no-time", of_facts(lambda f: f["metadata"].update(written_at="yesterday")))
add("R22", "count", of_facts(lambda f: f["manifest_files"].update(count=2)))
add("R22", "entries", of_facts(lambda f: f["manifest_files"].update(entries=2**40)))
add(
    "R22",
    "packed-numbers-cut",
    of_facts(lambda f: f["manifest_files"].update(size_bytes="KLUv/SA=")),
)
add("R23", "next-node-id", of_facts(lambda f: f.update(next_node_id=2)))
add("R23", "node-0", of_groups(lambda n: n["/"].update(id=0)))

# -- R24 to R30: rows of a manifest

SPARSE = slice(-4, -1)
"""Rows of the sparse array: behind them stands the virtual one."""


def reordered(rows: list[Row]) -> list[Row]:
    head, (first, second, third), tail = rows[:-4], rows[SPARSE], rows[-1:]
    assert [each["coord"] for each in (first, second, third)] == [b"\1", b"\4", b"\x40\x46"]
    return [*head, second, first, third, *tail]


def last(rows: list[Row], **members: Any) -> list[Row]:
    """Alter the first row of the sparse array."""
    rows[-4].update(members)
    return rows


add("R24", "order", of_chunks(reordered))
add("R24", "twice", of_chunks(lambda rows: [*rows[:-3], {**rows[-4]}, *rows[-2:]]))
add("R25", "nowhere", of_chunks(lambda rows: last(rows, inline_data=None)))
add("R25", "in-two-places", of_chunks(lambda rows: last(rows, chunk_file="V" * 19 + "0", offset=0)))
add(
    "R25", "file-without-offset", of_chunks(lambda rows: [*rows[:-1], {**rows[-1], "offset": None}])
)
add("R25", "inline-with-offset", of_chunks(lambda rows: last(rows, offset=0)))
add("R25", "inline-length", of_chunks(lambda rows: last(rows, length=2)))
add(
    "R26",
    "native-name",
    of_chunks(lambda rows: last(rows, inline_data=None, chunk_file="config.yaml", offset=0)),
)


@refused("R27", "crc32c")
def _wrong_bytes(case: Case) -> str:
    sound(case, checksum_chunks=True)
    session = case.session()
    session.set_document("/late", array_document([90], [90]))
    session.write_chunk("/late", (0,), case.noise(90))
    before = case.keys("c")
    session.commit("a file of its own")
    (key,) = set(case.keys("c")) - set(before) or {case.keys("c")[-1]}
    data = case.read(key)
    case.write(key, data[:5] + bytes([data[5] ^ 1]) + data[6:])
    return key


add("R30", "long-form", of_chunks(lambda rows: last(rows, coord=b"\x40\x01")))
add("R30", "too-many-indexes", of_chunks(lambda rows: last(rows, coord=b"\x01\x00")))
add("R30", "too-few-indexes", of_chunks(lambda rows: last(rows, coord=b"")))
add(
    "R30",
    "cut",
    of_chunks(lambda rows: [*rows[:-2], {**rows[-2], "coord": b"\x40"}, rows[-1]]),
)

# -- R32: attributes

add("R32", "twice", of_nodes(lambda n: n["/sparse"].update(inline_attrs=b"{}")))
add(
    "R32",
    "behind-the-end",
    of_nodes(lambda n: n["/sparse"]["attrs_reference"].update(row=9)),
    also=("a",),
)


@refused("R32", "of-another-node")
def _other_attributes(case: Case) -> str:
    sound(case)

    def change(rows: list[Row]) -> None:
        rows[0]["id"] = 77

    return case.rewrite(case.the_one("a"), rows=change)


# -- R34, R74: logs


@refused("R34", "no-first-row")
def _no_first_row(case: Case) -> str:
    snapshot = bare(case)
    return case.rewrite(f"t/{snapshot}.parquet", rows=lambda rows: rows[1:])


@refused("R34", "of-another-snapshot")
def _log_of_another(case: Case) -> str:
    snapshot = bare(case)

    def change(rows: list[Row]) -> None:
        found = json.loads(rows[0]["snapshot"])
        rows[0]["snapshot"] = json.dumps({**found, "id": found["repository"]})

    return case.rewrite(f"t/{snapshot}.parquet", rows=change)


def first_of(rows: list[Row], operation: str) -> int:
    return [row["operation"] for row in rows].index(operation)


add("R34", "chunks-before-nodes", of_log(lambda rows: [rows[-1], *rows[:-1]]))
add("R34", "nodes-not-by-path", of_log(lambda rows: [rows[1], rows[0], *rows[2:]]))
add("R34", "arrays-not-by-id", of_log(lambda rows: [*rows[:-4], rows[-1], *rows[-4:-1]]))
add("R34", "coordinates", of_log(lambda rows: [*rows[:-4], rows[-3], rows[-4], *rows[-2:]]))
add("R34", "effect", of_log(lambda rows: [*rows[:-1], {**rows[-1], "effect": "note"}]))
add(
    "R34",
    "second-first-row",
    of_log(lambda rows: [{**rows[0], "operation": "snapshot", "effect": "note"}, *rows]),
)
add("R34", "no-coordinate", of_log(lambda rows: [*rows[:-1], {**rows[-1], "coord": None}]))
add(
    "R74",
    "unknown-content",
    of_log(lambda rows: [*rows, {**rows[-1], "operation": "stir_chunks"}]),
    kind=UNSUPPORTED,
)
add(
    "R74",
    "unknown-effect",
    of_log(lambda rows: [*rows, {**rows[-1], "operation": "stir_chunks", "effect": "magic"}]),
    kind=UNSUPPORTED,
)


@refused("R102", "no-log")
def _no_log(case: Case) -> str:
    key = f"t/{bare(case)}.parquet"
    (case.root / key).unlink()
    return key


# -- R39 to R43, R72, R77: references

add("R42", "unknown-member", of_commit(lambda e: {**e, "frozen": True}), kind=UNSUPPORTED)
add("R42", "unknown-member-of-a-tag", of_tag(lambda e: {**e, "frozen": 1}), kind=UNSUPPORTED)
add(
    "R42",
    "member-twice",
    of_entry(
        lambda e, _: (
            json.dumps(e)[:-1].encode() + b', "key": ' + json.dumps(e["key"]).encode() + b"}"
        )
    ),
)
add("R42", "info-no-object", of_commit(lambda e: {**e, "info": "x"}))
add("R101", "write-id-without-key", of_commit(lambda e: {**e, "write_id": e["snapshot"]}))
add(
    "R101",
    "key-without-write-id",
    of_commit(lambda e: {**e, "key": "refs/branch.main/ZZZZZZZY.json"}),
)
add("R101", "deleted-without-write-id", of_commit(lambda e: {**e, "deleted": True}))
add("R101", "tag-without-key", of_tag(lambda e: {"snapshot": e["snapshot"]}))
add("R101", "no-snapshot", of_entry(lambda e, _: {**e, "snapshot": None}))
add("R101", "no-json", of_entry(lambda e, _: b"{"))
add("R101", "a-list", of_entry(lambda e, _: b"[]"))
add("R72", "key", of_entry(lambda e, _: {**e, "key": "refs/branch.main/ZZZZZZZZ.json"}))
add("R72", "tag-key", of_tag(lambda e: {**e, "key": "refs/tag.v2/ref.json"}))


@refused("R101", "unknown-catalog", kind=UNSUPPORTED)
def _first_entry(case: Case) -> str:
    bare(case)
    key = case.entry_key(0)
    case.write_json(key, {**json.loads(case.read(key)), "catalog": "ledger"})
    return key


@refused("R34", "ids")
def _ids(case: Case) -> str:
    key = f"t/{bare(case)}.parquet"
    return case.rewrite(key, rows=lambda rows: [{**row, "id": 0} for row in rows])


@refused("R72", "commit-of-another-branch")
def _other_branch(case: Case) -> str:
    snapshot = bare(case)
    case.open().create_branch("dev", snapshot)
    key = case.entry_key(1, "dev")
    case.write_json(key, {"snapshot": snapshot})
    return key


@refused("R72", "commit-of-another-number")
def _other_number(case: Case) -> str:
    snapshot = bare(case)
    key = case.entry_key(2)
    case.write_json(key, {"snapshot": snapshot})
    return key


@refused("R80", "ledger-content", kind=UNSUPPORTED)
def _ledger_content(case: Case) -> str:
    SOUND["ledger"](case)

    def change(rows: list[Row]) -> None:
        rows[-1]["effect"] = "content"

    newest = json.loads(case.read(case.keys("refs/ledger")[0]))["log"]
    return case.rewrite(f"t/{newest}.parquet", rows=change)


@refused("R81", "structure-file-missing")
def _no_structure(case: Case) -> str:
    key = f"s/{bare(case)}.parquet"
    (case.root / key).unlink()
    return key


# -- R44 to R48: state files


@refused("R44", "state-of-another")
def _other_state(case: Case) -> str:
    bare(case, catalog="state")

    def change(found: Row) -> None:
        found["id"] = found["snapshots"][-1]["snapshot-id"]

    return case.state(change)


add("R46", "key", of_state(lambda f: f["refs"].update({"branch.x": f["refs"]["branch.main"]})))
add(
    "R46",
    "unlisted",
    of_state(lambda f: f["refs"]["branch.main"].update({"snapshot-id": "0" * 20})),
)
add("R46", "deleted-branch", of_state(lambda f: f["refs"]["branch.main"].update(deleted=True)))
add("R46", "no-main", of_state(lambda f: f["refs"].pop("branch.main")))
add("R46", "type", of_state(lambda f: f["refs"]["tag.v1"].update(type="twig")))


def of_state_text(alter: Callable[[str], str]) -> Callable[[Case], str]:
    def make(case: Case) -> str:
        bare(case, catalog="state")
        case.write("state.json", alter(case.read("state.json").decode()).encode())
        return "state.json"

    return make


add(
    "R47",
    "sum",
    of_state_text(lambda text: text.replace('"message": "sound"', '"message": "found"')),
)
add("R47", "white-space", of_state_text(lambda text: text + "\n"))
add("R47", "not-last", of_state_text(lambda text: text[:-2] + ',\n "x": 1\n}'))
add("R47", "twice", of_state_text(lambda text: '{"crc32c": "00000000",' + text[1:]))
add("R47", "no-digits", of_state_text(lambda text: text[:-12] + '"none"\n}'))
add(
    "R48",
    "structure-file",
    of_state(lambda f: f["snapshots"][0].update({"structure-file": "../x.parquet"})),
)

# -- R53: what is named is there, and whole


def missing(folder: str) -> Callable[[Case], str]:
    def make(case: Case) -> str:
        sound(case)
        key = case.keys(folder)[0]
        (case.root / key).unlink()
        return key

    return make


add("R53", "manifest-missing", missing("i"))
add("R53", "attributes-missing", missing("a"))
add("R53", "chunk-file-missing", missing("c"))


@refused("R53", "chunk-file-cut")
def _cut_chunk(case: Case) -> str:
    sound(case)
    key = case.keys("c")[0]
    case.write(key, case.read(key)[:-1])
    return key


@refused("R71", "rows-of-a-group")
def _many_rows(case: Case) -> str:
    sound(case)
    key = case.the_one("i")
    rows = pq.read_metadata(pa.BufferReader(case.read(key))).num_rows

    def swell(seal: Seal) -> Seal:
        said, many = (b"\x16" + _varint(number) for number in (rows, 2**24 + 1))
        assert said in seal.footer
        return replace(seal, footer=seal.footer.replace(said, many))

    return case.reseal(key, swell)


def _varint(number: int) -> bytes:
    """Encode an integer as Thrift's compact protocol does."""
    number *= 2
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


@refused("R103", "tag-of-another-repository")
def _another(case: Case) -> str:
    snapshot = bare(case)
    case.open().create_tag("v1", snapshot)
    case.facts(snapshot, lambda facts: facts.update(repository=case.new_id()))
    return f"s/{snapshot}.parquet"
