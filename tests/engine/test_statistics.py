"""Statistics of chunks: nobody writes them yet, every reader takes them, and every move of rows carries them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import icechunk_arrow.duckdb
from icechunk_arrow import CorruptFileError, Repository, RepositoryConfig
from icechunk_arrow.core import coords
from icechunk_arrow.core.chunks import (
    CHUNK_SCHEMA,
    HAS_CHECKS,
    HAS_CRC,
    HAS_STATISTICS,
    HAS_SUMS,
    STATISTICS,
    WIDE,
    chunk_table,
    concat_sorted,
    form_flags,
)
from icechunk_arrow.core.ids import encode_id
from icechunk_arrow.engine.bulk import StagedReferences
from icechunk_arrow.engine.segments import Bulk
from icechunk_arrow.formats import envelope, manifest
from icechunk_arrow.formats.layout import FileKind
from tests.engine.test_rewriting import settings
from tests.faults.repositories import array_document, payload

if TYPE_CHECKING:
    from pathlib import Path

    from icechunk_arrow.session import OpenSession

ID = encode_id(bytes(range(12)))
MARK = b'{"_FillValue": -9999}'
COUNT = 40


def statistics(number: int, mark: bytes | None = MARK) -> dict[str, Any]:
    """Give a chunk statistics of every family, which are like those of no other."""
    return {
        "value_count": 10,
        "nan_count": number % 3,
        "missing_count": 1,
        "low_float": -number / 2,
        "high_float": number * 1e300,
        "low_int": -number,
        "high_int": 2**62 + number,
        "low_uint": number,
        "high_uint": 2**64 - 1 - number,
        "low_text": b"a" * (number % 64),
        "high_text": b"z" * 64,
        "sum_float": 0.1 * number,
        "sum_int": None if number % 2 else number**2,
        "bounds_exact": number % 2,
        "clip": None if number % 5 else coords.encode_one((7,)),
        "missing": mark,
    }


def rows(
    numbers: list[int], array_id: int = 1, mark: bytes | None = MARK, file: str = "s3://b/f"
) -> pa.Table:
    """Make references with statistics."""
    count = len(numbers)
    columns = {
        "array_id": pa.array([array_id] * count, pa.uint32()),
        "coord": pa.array([coords.encode_one((n,)) for n in numbers], pa.binary()),
        "chunk_file": pa.array([file] * count, pa.string()),
        "offset": pa.array([1000 * n for n in numbers], pa.uint64()),
        "length": pa.array([1000] * count, pa.uint64()),
        "statistics": pa.array([statistics(n, mark) for n in numbers], STATISTICS.type),
    }
    return chunk_table(columns, count)


def held(repo: Repository, path: str = "/a") -> dict[int, dict[str, Any] | None]:
    """Read the statistics of an array's chunks from its live manifests."""
    session = repo.readonly_session("main")
    node = session.find_node(path)
    assert node is not None
    found = {}
    for entry in node.inventories:
        table = repo._context.files.read_manifest(entry.manifest).slice(entry.row, entry.row_count)
        assert bool(entry.flags & HAS_STATISTICS) == (STATISTICS.name in table.column_names)
        each = (
            table["statistics"].to_pylist() if entry.flags & HAS_STATISTICS else [None] * len(table)
        )
        for coord, known in zip(table["coord"].to_pylist(), each, strict=True):
            is_known = known is not None and known["value_count"] is not None
            found[coords.decode_one(coord)[0]] = known if is_known else None
    return found


def stage(session: OpenSession, table: pa.Table, path: str = "/a") -> None:
    """Stage references as they are."""
    node_id = session.get_array(path).node.id
    session.stage([StagedReferences(node_id=node_id, bulk=Bulk(tables=(table,)))])


def made(place: Path, config: RepositoryConfig | None = None, **arguments: Any) -> Repository:
    repo = Repository.create(place, config=config)
    session = repo.writable_session("main")
    session.set_document("/a", array_document(2 * COUNT))
    stage(session, rows(list(range(COUNT)), **arguments))
    session.commit("with statistics")
    return repo


EXPECTED = {n: statistics(n) for n in range(COUNT)}


# -- files


def written_by_hand(table: pa.Table, markers: str = json.dumps({"1": json.loads(MARK)})) -> bytes:
    """Write a manifest as the specification says, with every column that there is."""
    flags = HAS_CHECKS | HAS_CRC | HAS_SUMS
    fields = [*manifest.schema_of(flags), *manifest.STATISTICS_COLUMNS]
    given = {name: table[name] for name in table.column_names}
    children = given.pop("statistics").combine_chunks().flatten()
    given |= {f.name: child for f, child in zip(STATISTICS.type, children, strict=True)}
    given["id"] = pa.array(range(table.num_rows), pa.uint32())
    columns = [given[field.name].cast(field.type) for field in fields]
    return envelope.write(
        pa.Table.from_arrays(columns, schema=pa.schema(fields)),
        kind=FileKind.MANIFEST,
        identifier=ID,
        facts={"icechunk.width": "narrow", "icechunk.missing-markers": markers},
        boundaries=[table.num_rows],
        settings={},
    )


def test_a_file_with_every_column_is_read() -> None:
    """All columns of the specification, in its order, behind the known ones; what is read is written again."""
    table = rows(list(range(COUNT)))
    data = written_by_hand(table)
    names = pq.ParquetFile(pa.BufferReader(data)).schema_arrow.names
    assert names[9:] == ["crc32c", "sums_crc32c", *(f.name for f in manifest.STATISTICS_COLUMNS)]
    found = manifest.decode(data, ID)
    assert found.to_pylist() == table.to_pylist()
    assert manifest.decode(manifest.encode(found, ID), ID).to_pylist() == table.to_pylist()


def test_only_columns_that_are_used_are_written() -> None:
    """A family that no row has is not there, and without any there is no mark of what was missing."""
    some = rows([1, 2]).to_pylist()
    for row in some:
        row["statistics"] = {
            name: value if name in {"low_int", "high_int"} else None
            for name, value in row["statistics"].items()
        }
    schema = CHUNK_SCHEMA.append(STATISTICS)
    table = pa.Table.from_pylist(some, schema=schema)
    file = pq.ParquetFile(pa.BufferReader(manifest.encode(table, ID)))
    assert file.schema_arrow.names[7:] == ["low_int", "high_int"]
    assert b"icechunk.missing-markers" not in file.metadata.metadata
    assert form_flags(table) == HAS_STATISTICS
    for row in some:
        row["statistics"] = dict.fromkeys(row["statistics"])
    table = pa.Table.from_pylist(some, schema=schema)
    assert form_flags(table) == 0
    assert pq.ParquetFile(pa.BufferReader(manifest.encode(table, ID))).schema_arrow.names[7:] == []


def test_what_was_missing_is_kept_for_each_array() -> None:
    """Each array has its own mark, or none; where one has two, only rows with the first one stay known."""
    parts = [rows([1, 2], 1), rows([3], 2, None), rows([4], 3, b'{"missing_value": NaN}')]
    table = concat_sorted([*parts, rows([5, 6], 1, b'{"_FillValue": 0}')])
    data = manifest.encode(table, ID)
    facts = pq.ParquetFile(pa.BufferReader(data)).metadata.metadata
    assert (
        facts[b"icechunk.missing-markers"]
        == b'{"1": {"_FillValue": -9999}, "3": {"missing_value": NaN}}'
    )
    found = manifest.decode(data, ID).to_pylist()
    known = [(row["array_id"], row["statistics"]["value_count"]) for row in found]
    assert known == [(1, 10), (1, 10), (1, None), (1, None), (2, 10), (3, 10)]
    assert [row["statistics"]["missing"] for row in found][-2:] == [None, b'{"missing_value": NaN}']


@pytest.mark.parametrize("markers", ["", "[]", '{"x": 1}', "[" * 100_000])
def test_wrong_marks_are_damage(markers: str) -> None:
    """They are JSON, an object by array id."""
    with pytest.raises(CorruptFileError, match=ID):
        manifest.decode(written_by_hand(rows([1]), markers), ID)


def test_row_groups_end_by_the_bytes_of_statistics_too() -> None:
    """A look-up fetches a whole row group, which statistics must not make large."""
    table = rows(list(range(16_000)))
    groups = pq.ParquetFile(pa.BufferReader(manifest.encode(table, ID))).num_row_groups
    assert groups > 2


# -- moves


def test_readers_take_them(tmp_path: Path) -> None:
    """Look-ups, tables and views are what they are without; manifests of both kinds are read together."""
    repo = made(tmp_path / "r")
    session = repo.writable_session("main")
    stage(session, rows([COUNT, COUNT + 1]).drop_columns(["statistics"]))
    session.commit("without")
    session = repo.readonly_session("main")
    for number in (0, COUNT - 1, COUNT):
        found = session.find_chunk(session.get_array("/a"), (number,))
        assert not isinstance(found, bytes)
        assert found is not None
        assert found.offset == 1000 * number
    offsets = [1000 * n for n in range(COUNT + 2)]
    listed = [n for b in session.chunk_references("/a") for n in b["offset"].to_pylist()]
    assert sorted(listed) == offsets
    assert sorted(repo.tables("chunks")["offset"].to_pylist()) == offsets
    with duckdb.connect() as con:
        icechunk_arrow.duckdb.attach(con, repo, "r")
        assert con.sql('SELECT sum("offset"), count(*) FROM r.chunks').fetchall() == [
            (sum(offsets), COUNT + 2)
        ]


def test_what_stays_of_a_manifest_keeps_them(tmp_path: Path) -> None:
    """Rows that are taken out leave those of the others; what is written anew has none."""
    repo = made(tmp_path / "r")
    session = repo.writable_session("main")
    session.write_chunk("/a", (3,), payload("new", 2000))
    session.delete_chunk("/a", (5,))
    session.commit("changes")
    assert held(repo) == {n: v for n, v in EXPECTED.items() if n != 5} | {3: None}


def test_merged_manifests_keep_them(tmp_path: Path) -> None:
    """Small manifests that are united, some with statistics and some without."""
    repo = made(tmp_path / "r")
    for number in range(COUNT, COUNT + 10):
        session = repo.writable_session("main")
        table = rows([number])
        stage(session, table if number % 2 else table.drop_columns(["statistics"]))
        session.commit("one more")
    (merged, *_) = repo.readonly_session("main").find_node("/a").inventories  # type: ignore[union-attr]
    assert merged.row_count > COUNT
    more = {n: statistics(n) if n % 2 else None for n in range(COUNT, COUNT + 10)}
    assert held(repo) == EXPECTED | more


def test_rewritten_manifests_keep_them(tmp_path: Path) -> None:
    """Cut along the grid, streamed into others."""
    repo = made(tmp_path / "r")
    session = repo.writable_session("main")
    stage(session, rows([COUNT]).drop_columns(["statistics"]))
    session.commit("without")
    done = Repository.open(tmp_path / "r", config=settings(7)).rewrite_manifests("main", "cut")
    assert done.written > 4
    assert held(repo) == EXPECTED | {COUNT: None}


def test_compaction_keeps_them(tmp_path: Path) -> None:
    """Chunks in other files are the same chunks."""
    repo = Repository.create(
        tmp_path / "r", config=RepositoryConfig(packed_chunk_threshold_bytes=0)
    )
    session = repo.writable_session("main")
    session.set_document("/a", array_document(2 * COUNT))
    for number in range(COUNT):
        session.write_chunk("/a", (number,), payload(str(number), 1000))
    session.commit("native")
    session = repo.writable_session("main")
    session.set_document("/a", array_document(2 * COUNT, attributes={"_FillValue": -9999}))
    (entry,) = session.find_node("/a").inventories  # type: ignore[union-attr]
    plain = repo._context.files.read_manifest(entry.manifest)
    known = pa.array([statistics(n) for n in range(COUNT // 2)], STATISTICS.type)
    stage(session, plain.slice(0, COUNT // 2).append_column(STATISTICS, known))
    session.commit("with statistics")
    expected = held(repo)
    assert sum(each is not None for each in expected.values()) == COUNT // 2
    files = repo.tables("files").num_rows
    config = RepositoryConfig(packed_chunk_threshold_bytes=16 << 10)
    repo = Repository.open(tmp_path / "r", config=config)
    repo.compact_chunks("main", "gather", smaller_than_bytes=64 << 10)
    assert repo.tables("files").num_rows < files
    assert held(repo) == expected


def test_they_follow_an_array_that_gets_another_id(tmp_path: Path) -> None:
    """Two sessions create an array each; that of the later one is renumbered, with its marks."""
    repo = Repository.create(tmp_path / "r")
    one, other = repo.writable_session("main"), repo.writable_session("main")
    for session, path in ((one, "/b"), (other, "/a")):
        session.set_document(path, array_document(2 * COUNT))
        stage(session, rows(list(range(COUNT))), path)
    one.commit("b")
    other.rebase(icechunk_arrow.ConflictDetector())
    other.commit("a")
    nodes = [repo.readonly_session("main").find_node(path) for path in ("/a", "/b")]
    assert len({node.id for node in nodes if node is not None}) == 2
    assert held(repo, "/a") == held(repo, "/b") == EXPECTED


def test_what_forks_wrote_over_each_other_keeps_them(tmp_path: Path) -> None:
    """Manifests of two forks that have a chunk in common are merged in streams."""
    repo = Repository.create(tmp_path / "r")
    session = repo.writable_session("main")
    session.set_document("/a", array_document(2 * COUNT))
    forks = [session.fork() for _ in range(2)]
    stage(forks[0], rows(list(range(COUNT // 2 + 1))))
    stage(forks[1], rows(list(range(COUNT // 2, COUNT))))
    session.merge(*forks, duplicates="last")
    session.commit("merged")
    assert held(repo) == EXPECTED


def test_without_statistics_nothing_is_larger(tmp_path: Path) -> None:
    """Tables of references have no such column where nobody has any."""
    repo = made(tmp_path / "r")
    session = repo.writable_session("main")
    session.set_document("/b", array_document(COUNT))
    for number in range(COUNT):
        session.write_chunk("/b", (number,), payload(str(number), 1000))
    session.commit("b")
    (entry,) = repo.readonly_session("main").find_node("/b").inventories  # type: ignore[union-attr]
    assert entry.flags & (HAS_STATISTICS | HAS_SUMS | WIDE) == 0
    table = repo._context.files.read_manifest(entry.manifest)
    assert table.schema.names == CHUNK_SCHEMA.names
    assert np.all(np.array(table["crc32c"].to_pylist()) >= 0)
