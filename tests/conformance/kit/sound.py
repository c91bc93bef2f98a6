"""The cases that every reader takes: what makes each of them."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from icechunk_arrow.core.checksums import crc32c
from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.core.manifest_settings import ManifestSettings
from icechunk_arrow.formats import ledger as ledger_format
from icechunk_arrow.formats.layout import ledger_key
from icechunk_arrow.formats.ledger import Ledger, LedgerEntry
from icechunk_arrow.formats.transaction import FULL_SCHEMA
from tests.conformance.kit.workshop import array_document, group_document, json_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_arrow import Session
    from tests.conformance.kit.workshop import Case

__all__ = ["SOUND", "WITH_SCHEMA", "add_refs", "fill", "rows_with"]

MODIFIED = 1_795_003_200_123_456
SOURCE = "s3://kit-bucket/folder/name with space%20and%.nc"


def fill(case: Case, session: Session) -> None:
    """Two groups, an array of inline chunks, one of packed ones, one of large ones, a scalar."""
    session.set_document("/", group_document(title="kit"))
    session.set_document("/deep/er", group_document())
    session.set_document("/inline", array_document([3, 8], [1, 4], dimension_names=["y", None]))
    session.set_document("/deep/packed", array_document([4, 40], [1, 20]))
    session.set_document("/deep/er/large", array_document([200], [100]))
    session.set_document("/scalar", array_document([], []))
    for row in range(3):
        session.write_chunk("/inline", (row, row % 2), case.noise(4))
    for row in range(4):
        session.write_chunk("/deep/packed", (row, 1), case.noise(20))
    session.write_chunk("/deep/er/large", (1,), case.noise(100))
    session.write_chunk("/scalar", (), case.noise(1))


def _empty(case: Case) -> None:
    case.create()


def _unsynced(case: Case) -> None:
    session = case.create(synced=False).writable_session("main")
    session.set_document("/a", group_document())
    session.commit("what a power cut may take back")


def _narrow(case: Case) -> None:
    case.create()
    session = case.session()
    fill(case, session)
    session.commit("what there is", metadata={"runs": [1, 2.5, None], "größe": "\N{ICE CUBE}"})
    session = case.session()
    session.set_document("/none", array_document([0, 5], [1, 5]))
    session.commit("")


def _wide(case: Case) -> None:
    case.create()
    session = case.session()
    session.set_document("/far", array_document([2**31, 2**40, 300], [1, 2**36, 3]))
    session.set_document("/near", array_document([4], [2]))
    for coord in ((0, 0, 0), (63, 15, 64), (64, 0, 99), (16_384, 3, 63), (2**30, 7, 1)):
        session.write_chunk("/far", coord, case.noise(3))
    session.write_chunk("/near", (1,), case.noise(2))
    session.commit("large shapes")
    session = case.session()
    session.set_chunk_ref("/far", (0, 1, 2), ChunkRef(file=SOURCE, offset=2**33, length=2**32))
    session.commit("a large length")


def _state(case: Case, *, apart: bool) -> None:
    repo = case.create(catalog="state", apart=apart)
    session = case.session()
    fill(case, session)
    first = session.commit("one", metadata={"größe": 2**60, "part": 0.1, "crc32c": "00000000"})
    session = case.session()
    session.write_chunk("/inline", (2, 1), case.noise(4))
    session.commit("two")
    repo = case.open()
    repo.create_branch("dev", first)
    repo.create_branch("gone", first)
    repo.delete_branch("gone")
    repo.create_tag("v1", first)
    repo.create_tag("dev", first)
    repo.create_tag("wrong", first)
    repo.delete_tag("wrong")
    if apart:
        case.state(lambda found: found.update(store_root="../repository"))


def _export(case: Case) -> None:
    repo = case.create()
    session = case.session()
    fill(case, session)
    session.commit("one")
    repo.export_state()
    session = case.session()
    session.write_chunk("/scalar", (), case.noise(1))
    session.commit("two, which the export does not know")


def _references(case: Case) -> None:
    repo = case.create()
    first = case.tip()
    session = case.session()
    fill(case, session)
    one = session.commit("one")
    session = case.session()
    session.write_chunk("/scalar", (), case.noise(1))
    two = session.commit("two")
    repo.create_branch("moved", one)
    repo.reset_branch("moved", two)
    repo.reset_branch("moved", one)
    repo.create_branch("ended", one)
    repo.delete_branch("ended")
    repo.create_branch("again", one)
    session = repo.writable_session("again")
    session.write_chunk("/scalar", (), case.noise(1))
    session.commit("on a branch")
    repo.delete_branch("again")
    repo.create_branch("again", two)
    session = repo.writable_session("again")
    session.write_chunk("/scalar", (), case.noise(1))
    session.commit("on the branch that began again")
    repo.create_branch("grün.v1 a", first)
    repo.create_tag("main", one)
    repo.create_tag("v1.0", two)
    repo.create_tag("withdrawn", two)
    repo.delete_tag("withdrawn")
    case.write("refs/branch.main/00NOTES.txt", b"no entry")
    case.write("refs/notes.txt", b"no reference")
    case.write("s/notes.txt", b"no snapshot")
    case.write("more/notes.txt", b"nothing")


def _main_reset(case: Case) -> None:
    repo = case.create()
    session = case.session()
    fill(case, session)
    one = session.commit("one")
    session = case.session()
    session.set_document("/late", group_document())
    session.commit("nobody sees this")
    repo.reset_branch("main", one)
    session = case.session()
    session.set_document("/later", group_document())
    session.commit("after the reset")


def _info(case: Case) -> None:
    repo = case.create()
    session = case.session()
    fill(case, session)
    one = session.commit("one")
    repo.create_tag("v1", one)
    repo.create_branch("dev", one)
    for key in (case.entry_key(1), case.entry_key(0, "dev"), "refs/tag.v1/ref.json"):
        info = {"by": "another implementation", "deleted": True, "deep": {"key": [1]}}
        case.write_json(key, {"info": info, **json.loads(case.read(key))})


def _hint(case: Case, content: dict[str, Any] | bytes) -> None:
    repo = case.create()
    first = case.tip()
    session = case.session()
    session.set_document("/a", group_document())
    one = session.commit("one")
    for _ in range(9):
        repo.reset_branch("main", first)
        repo.reset_branch("main", one)
    if isinstance(content, dict):
        content = json_bytes({"snapshot": one, **content})
    case.write("refs/branch.main/hint.json", content)


def add_refs(case: Case, session: Session) -> None:
    """Virtual chunks: with an ETag, with a time, with both, with neither."""
    session.set_document("/virtual", array_document([8], [2]))
    length: dict[str, Any] = {"file": SOURCE, "length": 2}
    session.set_chunk_ref("/virtual", (0,), ChunkRef(**length, etag='"5-abc"'))
    session.set_chunk_ref("/virtual", (1,), ChunkRef(**length, offset=7, last_modified=MODIFIED))
    both = ChunkRef(**length, etag='W/"x"', last_modified=MODIFIED, offset=2**40)
    session.set_chunk_ref("/virtual", (2,), both)
    plain = ChunkRef(file="https://data.example/a?b=c%2F&d", offset=3, length=2)
    session.set_chunk_ref("/virtual", (3,), plain)


def _chunks(case: Case) -> None:
    case.create(checksum_chunks=True)
    session = case.session()
    fill(case, session)
    add_refs(case, session)
    session.write_chunk("/inline", (1, 0), b"")
    session.commit("with CRC-32C of native chunks")
    session = case.session()
    session.set_document("/unchecked", array_document([2], [1]))
    native = case.open().readonly_session("main")
    (batch,) = native.chunk_references("/deep/er/large")
    file = batch.to_pylist()[0]["location"]
    session.set_chunk_ref("/unchecked", (0,), ChunkRef(file=file, offset=10, length=50))
    session.set_chunk_ref("/unchecked", (1,), ChunkRef(file=file, offset=30, length=50))
    session.set_document("/nothing", array_document([3], [1]))
    session.set_chunk_ref("/nothing", (0,), ChunkRef(file=case.new_id(), offset=7, length=0))
    session.set_chunk_ref("/nothing", (1,), ChunkRef(file=SOURCE, offset=7, length=0))
    session.write_chunk("/nothing", (2,), b"")
    session.commit("ranges that overlap, without sums")


def _sums(case: Case) -> None:
    case.create()
    session = case.session()
    session.set_document("/a", array_document([140_000], [70_000]))
    session.set_document("/b", array_document([140], [70]))
    data = case.noise(100) + bytes(69_900)
    sums = b"".join(
        crc32c(data[start : start + 65_536]).to_bytes(4, "little") for start in (0, 65_536)
    )
    ref = ChunkRef(
        file=case.new_id(),
        offset=6,
        length=len(data),
        crc32c=crc32c(data),
        sums_crc32c=crc32c(sums),
    )
    case.write(f"c/{ref.file}", b"before" + data + sums)
    session.set_chunk_ref("/a", (1,), ref)
    session.write_chunk("/b", (0,), case.noise(70))
    session.commit("sums of two blocks behind a chunk")


def _statistics(case: Case) -> None:
    case.create()
    session = case.session()
    attributes = {"_FillValue": 7, "missing_value": [8, 9]}
    session.set_document("/a", array_document([9, 3], [2, 3], attributes=attributes))
    for index in range(5):
        session.write_chunk("/a", (index, 0), bytes([7, 1, 2, 3, 4, 5]))
    session.commit("with statistics")
    types = {
        "value_count": pa.uint64(),
        "nan_count": pa.uint64(),
        "missing_count": pa.uint64(),
        "low_int": pa.int64(),
        "high_int": pa.int64(),
        "sum_int": pa.int64(),
        "bounds_exact": pa.uint8(),
        "clip": pa.binary(),
    }

    def described(rows: list[dict[str, Any]]) -> None:
        for row in rows[:4]:
            row |= {"value_count": 6, "nan_count": 0, "missing_count": 1, "low_int": 1}
            row |= {"high_int": 5, "sum_int": 15, "bounds_exact": 1}
        rows[4] |= {"value_count": 3, "missing_count": 1, "low_int": 0, "clip": b"\x01\x03"}

    def schema(found: pa.Schema) -> pa.Schema:
        return pa.schema([*found, *(pa.field(name, kind) for name, kind in types.items())])

    key = case.the_one("i")
    markers = {"icechunk.missing-markers": json.dumps({"1": attributes})}
    case.rewrite(key, rows=described, schema=schema, texts=lambda texts: texts.update(markers))
    size = len(case.read(key))

    def flags(nodes: dict[str, dict[str, Any]]) -> None:
        nodes["/a"]["inventories"][0]["flags"] |= 128

    case.nodes(case.tip(), flags)
    case.facts(case.tip(), lambda facts: _set_sizes(facts, size))


def _sharded(case: Case) -> None:
    case.create()
    session = case.session()
    inner = [{"name": "bytes"}, {"name": "crc32c"}]
    sharding = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [4],
            "codecs": [{"name": "bytes"}],
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, inner[1]],
            "index_location": "end",
        },
    }
    session.set_document("/sharded", array_document([64], [32], codecs=[sharding]))
    session.write_chunk("/sharded", (0,), case.noise(8 * 4 + 8 * 16 + 4))
    session.write_chunk("/sharded", (1,), case.noise(2 * 4 + 8 * 16 + 4))
    session.commit("chunks are shards: their bytes are Zarr's affair")


def _attributes(case: Case) -> None:
    case.create(inline_attributes_threshold_bytes=20)
    session = case.session()
    session.set_document("/", group_document(text="ß" * 100))
    session.set_document("/a", array_document([2], [1], attributes={"text": "y" * 50}))
    session.set_document("/b", group_document(short=1))
    without = json.loads(group_document())
    del without["attributes"]
    session.set_document("/c", json_bytes(without))
    session.set_document("/d", group_document())
    session.commit("in a file of their own")
    session = case.session()
    session.set_document("/a", array_document([2], [1], attributes={"text": "z" * 50}))
    session.commit("one of them changed: two files are in use")


RECTILINEAR = {
    "name": "rectilinear",
    "configuration": {"kind": "inline", "chunk_shapes": [[2, 3, [5, 2]], [4, 4]]},
}


def _extensions(case: Case) -> None:
    case.create()
    session = case.session()
    session.set_document("/", json_bytes({"zarr_format": 3, "node_type": "group"}))
    extra = {"must_understand": False, "name": "x"}
    documents: dict[str, dict[str, Any]] = {
        "bare": {"codecs": ["bytes", {"name": "gzip", "configuration": {"level": 1}}]},
        "empty": {"codecs": [{"name": "bytes", "configuration": {}}]},
        "separator": {"chunk_key_encoding": {"name": "default"}},
        "v2": {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}},
        "type": {
            "data_type": {"name": "numpy.datetime64", "configuration": {"unit": "s"}},
            "fill_value": "NaT",
        },
        "transformers": {"storage_transformers": ...},
        "unknown": {"my_member": extra, "attributes": {"a": None}},
        "no attributes": {"attributes": ...},
        "no names": {"dimension_names": [None]},
    }
    for name, more in documents.items():
        session.set_document(f"/{name}", array_document([4], [2], **more))
    session.set_document("/rectilinear", array_document([15, 8], [5, 4], chunk_grid=RECTILINEAR))
    session.write_chunk("/rectilinear", (3, 1), case.noise(20))
    session.write_chunk("/v2", (1,), case.noise(2))
    session.commit("documents that the columns cannot hold")


def _values(case: Case) -> None:
    case.create()
    session = case.session()
    attributes = {
        "nan": float("nan"),
        "list": [float("inf"), -float("inf"), -0.0, 1e300, 5e-324],
        "integers": [2**53 + 1, -(2**63), 2**64 - 1, 10**30],
        "one": [1, 1.0, True],
        "half": "\ud83d",
        "text": 'a\u2028\x00"\\/\N{ICE CUBE}',
        "": {"": []},
    }
    session.set_document("/", group_document(**attributes))
    document = array_document([2**53 + 1], [2**53 + 1], fill_value="NaN", data_type="float32")
    session.set_document("/large", document)
    session.set_document("/int", array_document([1], [1], data_type="uint64", fill_value=2**64 - 1))
    # in UTF-16 the last two would stand the other way round
    for name in ("a b", "a", "a-b", "a/b", "ä", "a\u0308", "日本", "\uffee", "\N{ICE CUBE}"):
        session.set_document(f"/{name}", group_document())
    session.commit("numbers and names", metadata={"large": 2**53 + 1})


def _manifests(case: Case) -> None:
    sets: dict[str, Any] = {"sets": [{"small": {"max-manifest-size": 4, "overflow-to": None}}]}
    sets["rules"] = [{"path": "/cut", "target": "small"}]
    case.create(chunk_manifests=ManifestSettings.from_plain(sets))
    session = case.session()
    for name in ("cut", "dense", "sparse"):
        session.set_document(f"/{name}", array_document([70, 3], [1, 1]))
    for row in range(6):
        for column in range(3):
            session.write_chunk("/cut", (row, column), case.noise(1))
    for row in range(60, 68):
        for column in range(1, 3):
            session.write_chunk("/dense", (row, column), case.noise(1))
    for row in (0, 1, 5, 63, 64, 69):
        session.write_chunk("/sparse", (row, row % 3), case.noise(1))
    session.commit("several manifests for one array, several arrays in one")
    session = case.session()
    for row in (2, 64):
        session.write_chunk("/sparse", (row, 1), case.noise(1))
        session.write_chunk("/dense", (row, 1), case.noise(1))
    session.write_chunk("/cut", (0, 0), case.noise(1))
    session.commit("beside the old ones")


def _row_groups(case: Case) -> None:
    case.create()
    session = case.session()
    for name in ("dense", "sparse"):
        session.set_document(f"/{name}", array_document([300], [1]))
    for index in range(40):
        session.write_chunk("/dense", (index + 50,), case.noise(1))
        session.write_chunk("/sparse", (index * 7,), case.noise(1))
    session.commit("in many row groups")
    key = case.rewrite(case.the_one("i"), group_rows=7)
    size = len(case.read(key))
    case.facts(case.tip(), lambda facts: _set_sizes(facts, size))


def _set_sizes(facts: dict[str, Any], size: int) -> None:
    import base64

    packed = pa.compress(size.to_bytes(8, "little"), codec="zstd", asbytes=True)
    facts["manifest_files"]["size_bytes"] = base64.b64encode(packed).decode()


def _large_files(case: Case) -> None:
    case.create()
    session = case.session()
    session.set_document("/a", array_document([400], [1]))
    for index in range(260):
        session.set_chunk_ref("/a", (index,), ChunkRef(file=SOURCE, offset=index * 9, length=9))
    session.commit("dictionaries, statistics, compressed pages")


def _operations(case: Case) -> None:
    case.create()
    session = case.session()
    fill(case, session)
    session.set_document("/b", array_document([64, 4], [1, 1]))
    session.set_document("/c", array_document([10], [1]))
    session.write_chunk("/c", (3,), case.noise(1))
    session.commit("create_node, write_chunk")
    session = case.session()
    for row in range(10):
        for column in range(4):
            session.write_chunk("/b", (row, column), case.noise(1))
    session.commit("write_chunks")
    session = case.session()
    session.set_document("/b", array_document([9, 3], [1, 1]))
    session.set_document("/inline", array_document([3, 8], [1, 4], attributes={"a": 1}))
    session.set_document("/scalar", array_document([], [], fill_value=7))
    session.move("/deep/er", "/sunk")
    session.delete_nodes(["/c"])
    session.commit("resize_array, truncate_chunks, update_*, move_node, delete_node")
    session = case.session()
    for row in range(2, 8):
        for column in range(3):
            session.delete_chunk("/b", (row, column))
    session.delete_chunk("/inline", (0, 0))
    session.delete_chunk("/inline", (0, 1))
    session.commit("delete_chunks, delete_chunk, whether they were there or not")


def rows_with(
    case: Case, snapshot: str, *rows: dict[str, Any], columns: tuple[str, ...] = ()
) -> str:
    """Put other rows behind the first of a log; give its key."""

    def change(old: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [dict(row, id=number) for number, row in enumerate([old[0], *rows])]

    def schema(found: pa.Schema) -> pa.Schema:
        names = {*found.names, *columns}
        return pa.schema([each for each in FULL_SCHEMA if each.name in names])

    return case.rewrite(f"t/{snapshot}.parquet", rows=change, schema=schema)


def log_rows(case: Case, snapshot: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(case.root / f"t/{snapshot}.parquet").to_pylist()
    return found[1:]


def _rare_operations(case: Case) -> None:
    case.create()
    session = case.session()
    session.set_document("/a", array_document([40], [1]))
    for index in range(4):
        session.write_chunk("/a", (index,), case.noise(20))
    session.commit("begin")
    view = case.session()
    refs = {i: view.find_chunk(view.get_array("/a"), (i,)) for i in range(4)}
    name = {"node_id": view.get_array("/a").node.id, "node_type": "array", "path": "/a"}

    session = case.session()
    for index in range(4):
        session.delete_chunk("/a", (index,))
    for index, ref in refs.items():
        assert isinstance(ref, ChunkRef)
        session.set_chunk_ref("/a", (index + 2,), ref)
    row = {"operation": "shift_chunks", "effect": "content", **name, "chunk_offset": [2]}
    rows_with(case, session.commit("shift_chunks"), row, columns=("chunk_offset",))

    session = case.session()
    for index in range(4, 6):
        ref = refs[index - 2]
        assert isinstance(ref, ChunkRef)
        session.set_chunk_ref("/a", (index,), ref)
    snapshot = session.commit("annotate_chunks")
    entries = pq.read_table(case.root / f"s/{snapshot}.parquet")["inventories"].to_pylist()[-1]
    (manifest,) = [e["inventory_file"] for e in entries if e["extent"] == [[4, 6]]]
    wrote = {"manifest": manifest, "extent": [[4, 6]], "chunk_count": 2}
    placed = {"effect": "placement", **name}
    annotated = {"operation": "annotate_chunks", **placed, **wrote}
    unknown = {"operation": "polish_chunks", **placed, "coord": b"\x05"}
    note = {"operation": "remember", "effect": "note", "location": "x"}
    rows_with(case, snapshot, annotated, unknown, note, columns=("location",))

    session = case.session()
    session.set_chunk_ref("/a", (30,), ChunkRef(file=SOURCE, offset=5, length=20, etag="e"))
    snapshot = session.commit("take_source")
    source = {
        "operation": "take_source",
        "effect": "note",
        "location": SOURCE,
        "etag": "e",
        "last_modified": datetime(2026, 11, 18, 12, 0, 0, 5, tzinfo=UTC),
        "size_bytes": 2**33,
    }
    columns = ("location", "etag", "last_modified", "size_bytes")
    rows_with(case, snapshot, *log_rows(case, snapshot), source, columns=columns)


def _relocated(case: Case) -> None:
    repo = case.create(packed_chunk_threshold_bytes=64)
    for number in range(3):
        session = case.session()
        if not number:
            session.set_document("/a", array_document([90], [30]))
            session.set_document("/b", array_document([90], [30]))
        session.write_chunk("/a", (number,), case.noise(30))
        session.write_chunk("/b", (2 - number,), case.noise(30))
        session.commit(f"file {number}")
    done = repo.compact_chunks("main", "relocate_chunks")
    assert done.snapshot_id is not None


def _foreign(case: Case) -> None:
    case.create()
    session = case.session()
    fill(case, session)
    session.commit("one")
    other = type(case)(folder=case.folder / "other", random=case.random)
    other.create()
    session = other.session()
    session.set_document("/a", group_document())
    foreign = session.commit("of another repository")
    shutil.copy(other.root / f"s/{foreign}.parquet", case.root / f"s/{foreign}.parquet")
    shutil.rmtree(other.folder)
    for number in (2, 3):
        case.write_json(case.entry_key(number), {"snapshot": foreign})


def _again(case: Case, old: str, new: str) -> str:
    """Write a snapshot and its log anew, under another id."""
    for folder in "st":
        shutil.copy(case.root / f"{folder}/{old}.parquet", case.root / f"{folder}/{new}.parquet")
    case.facts(new, lambda facts: facts["metadata"].update(id=new))

    def log(rows: list[dict[str, Any]]) -> None:
        rows[0]["snapshot"] = json.dumps({**json.loads(rows[0]["snapshot"]), "id": new})

    case.rewrite(f"t/{new}.parquet", rows=log)
    return new


def _ledger(case: Case) -> None:
    repo = case.create()
    first = case.tip()
    ids = []
    for number in range(18):
        session = case.session()
        session.set_document("/", group_document(number=number))
        ids.append(session.commit(f"commit {number}"))
    repo.create_tag("old", ids[2])
    repo.create_tag("retired", ids[4])
    instead = _again(case, ids[2], case.new_id())
    retired = {ids[1]: ids[0], ids[4]: ids[3], ids[5]: ids[4]}
    for snapshot in (*retired, ids[2]):
        (case.root / f"s/{snapshot}.parquet").unlink()
    (case.root / f"t/{ids[5]}.parquet").unlink()
    for number, known in enumerate(({ids[1]: ids[0]}, retired)):
        ledger = Ledger(
            id=case.new_id(),
            repository=first,
            written_at=datetime(2026, 11, 21, number, tzinfo=UTC),
            retired=known,
            rewritten={ids[2]: instead},
            census=case.new_id(),
            verified=frozenset({ids[7]}),
        )
        case.write(f"t/{ledger.id}.parquet", ledger_format.encode(ledger))
        key = ledger_key(number)
        entry = LedgerEntry(log=ledger.id, write_id=case.new_id(), key=key)
        case.write(key, ledger_format.encode_entry(entry))
    extra = {"id": 99, "operation": "remark", "effect": "note", "of_snapshot": ids[0]}
    case.rewrite(f"t/{ledger.id}.parquet", rows=lambda rows: [*rows, extra])


def _unknown(case: Case) -> None:
    case.create(catalog="state", inline_attributes_threshold_bytes=10)
    session = case.session()
    fill(case, session)
    session.set_document("/inline", array_document([3, 8], [1, 4], attributes={"text": "y" * 30}))
    snapshot = session.commit("one")

    def wider(schema: pa.Schema) -> pa.Schema:
        return schema.append(pa.field("colour", pa.list_(pa.int8())))

    def coloured(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["colour"] = [1, None]
            for entry in row.get("inventories") or ():
                entry["flags"] |= 1 << 14

    for folder in "iat":
        case.rewrite(case.the_one(folder), rows=coloured, schema=wider)
    size = len(case.read(case.the_one("i")))
    case.rewrite(f"s/{snapshot}.parquet", rows=coloured, schema=wider)

    def facts(found: dict[str, Any]) -> None:
        _set_sizes(found, size)
        found["colour"] = {"deep": [1]}
        found["metadata"]["colour"] = 1
        found["manifest_files"]["colour"] = 1
        found["format_flags"] = {"colour": True}
        for each in found["short_term_history"]:
            each["colour"] = 1

    case.facts(snapshot, facts)

    def state(found: dict[str, Any]) -> None:
        found["colour"] = 1.50
        found["snapshots"][0]["colour"] = [1e2]
        found["refs"]["branch.main"]["colour"] = None

    case.state(state)
    text = case.read("config.yaml")
    case.write("config.yaml", text + b"colour: blue\n")


def _made_from(case: Case) -> None:
    repo = case.create()
    first = case.tip()
    session = case.session()
    fill(case, session)
    one = session.commit("one")
    repo.create_branch("dev", one)
    session = repo.writable_session("dev")
    session.set_document("/dev", group_document())
    two = session.commit("on dev")
    session = case.session()
    session.set_document("/dev", group_document())
    merged = session.commit("merge of dev, by another implementation")

    def add(found: dict[str, Any]) -> None:
        kinds = [{"kind": "merge", "snapshot": two}, {"kind": "revert", "snapshot": first}]
        unknown = {"kind": "dream", "snapshot": case_id}
        found.update(made_from=[*kinds, unknown], author="Änn <ann@example.org>")

    case_id = case.new_id()
    case.facts(merged, add)

    def log(rows: list[dict[str, Any]]) -> None:
        found = json.loads(rows[0]["snapshot"])
        add(found)
        rows[0]["snapshot"] = json.dumps(found)

    case.rewrite(f"t/{merged}.parquet", rows=log)


SOUND: dict[str, Callable[[Case], None]] = {
    "empty": _empty,
    "unsynced": _unsynced,
    "narrow": _narrow,
    "wide": _wide,
    "state-beside": lambda case: _state(case, apart=False),
    "state-apart": lambda case: _state(case, apart=True),
    "state-export": _export,
    "references": _references,
    "main-reset": _main_reset,
    "info": _info,
    "hint": lambda case: _hint(case, {"sequence": 16}),
    "hint-too-large": lambda case: _hint(case, {"sequence": 400}),
    "hint-old": lambda case: _hint(case, {"sequence": 2}),
    "hint-unreadable": lambda case: _hint(case, b'{"sequence": "many"'),
    "chunks": _chunks,
    "sums": _sums,
    "statistics": _statistics,
    "sharded": _sharded,
    "attributes": _attributes,
    "extensions": _extensions,
    "values": _values,
    "manifests": _manifests,
    "row-groups": _row_groups,
    "large-files": _large_files,
    "operations": _operations,
    "rare-operations": _rare_operations,
    "relocated": _relocated,
    "foreign": _foreign,
    "ledger": _ledger,
    "unknown": _unknown,
    "made-from": _made_from,
}
WITH_SCHEMA = {"empty", "narrow", "wide", "values"}
"""Cases whose structure files keep what writers SHOULD store and no reader needs: the Arrow schema."""
"""By name. What comes with later work is one more line here."""
