"""Files in another form or with other rows than any writer of ours makes: read by name, or refused by their own.

Each was found by ``tests.fuzzing``; the shortest file that shows it stands here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import icechunk_arrow.duckdb
from icechunk_arrow import CorruptFileError, Repository
from icechunk_arrow.core.checksums import crc32c
from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.formats.layout import FileKind, key_of
from tests.conformance.kit.workshop import Seal
from tests.faults.bombs import old, write
from tests.faults.forms import (
    Columns,
    alter_sheet,
    columns_of,
    look_up,
    overwrite,
    with_manifest,
)
from tests.faults.hostile import Victim
from tests.faults.repositories import array_document, group_document
from tests.fuzzing import thrift
from tests.fuzzing.sheets import Sheet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    """A sound repository on a disk, to be altered."""
    return Victim(tmp_path)


@pytest.mark.parametrize("first", ["coord", "inline_data", "chunk_file", "length"])
def test_columns_stand_in_any_order(victim: Victim, first: str) -> None:
    """Columns are found by their names: none is taken for another in its place, and none hides a chunk."""
    before = victim.read()
    with_manifest(
        victim, lambda columns: {first: columns[first], **dict(reversed(columns.items()))}
    )

    assert victim.read() == before
    assert look_up(victim, "/a", 3) is not None
    assert look_up(victim, "/a", 2) is None
    overwrite(victim)


@pytest.mark.parametrize(
    ("name", "arrow_type"),
    [
        ("coord", pa.string()),
        ("coord", pa.float64()),
        ("chunk_file", pa.struct([("x", pa.string())])),
        ("chunk_file", pa.date32()),
        ("array_id", pa.int64()),
        ("length", pa.bool_()),
    ],
    ids=str,
)
def test_columns_of_other_types(victim: Victim, name: str, arrow_type: pa.DataType) -> None:
    """A column of another type is damage for whoever looks a chunk up, lists, commits or asks DuckDB (R11)."""
    with_manifest(
        victim, lambda columns: columns | {name: pa.nulls(len(columns["id"]), arrow_type)}
    )
    with duckdb.connect() as con:

        def ask() -> None:
            icechunk_arrow.duckdb.attach(con, victim.root, "r")
            con.sql("FROM r.chunks").fetchall()

        for see in (victim.read, lambda: look_up(victim, "/a", 1), lambda: overwrite(victim)):
            with pytest.raises(CorruptFileError, match=victim.manifest):
                see()
        with pytest.raises((CorruptFileError, duckdb.Error), match=victim.manifest):
            ask()


@pytest.mark.parametrize("column", [0, -1], ids=["elsewhere", "beside it"])
@pytest.mark.parametrize("arrow_type", [None, pa.list_(pa.int8())], ids=["alike", "a list"])
def test_columns_that_come_twice(
    victim: Victim, column: int, arrow_type: pa.DataType | None
) -> None:
    """Which of the two is meant nobody can tell."""
    key = key_of(FileKind.MANIFEST, victim.manifest)
    sheet = Sheet.of((victim.root / key).read_bytes(), victim.manifest, ())
    again = sheet.fields[column]
    sheet.fields.append(again if arrow_type is None else pa.field(again.name, arrow_type))
    sheet.columns.append(sheet.columns[column] if arrow_type is None else [None] * sheet.row_count)
    victim.write(key, sheet.write())

    with pytest.raises(CorruptFileError, match=f"{victim.manifest}.*twice"):
        victim.read()


def member(tree: list[thrift.Member], *path: int) -> thrift.Member:
    """Find a member of a footer; of lists the first item."""
    for number in path:
        found = next(each for each in tree if each.number == number)
        tree = found.value.values[0] if found.kind == thrift.LIST else found.value
    return found


def column_of(tree: list[thrift.Member]) -> list[thrift.Member]:
    """What a footer says of the first column of the first row group."""
    value: list[thrift.Member] = member(tree, 4, 1, 3).value
    return value


def encrypted(tree: list[thrift.Member]) -> None:
    chunk = member(tree, 4, 1).value.values[0]
    chunk.append(thrift.Member(8, thrift.STRUCT, [thrift.Member(1, thrift.STRUCT, [])]))


FOOTERS: dict[str, Callable[[list[thrift.Member]], Any]] = {
    "sizes of texts where there are numbers": lambda tree: column_of(tree).append(
        thrift.Member(16, thrift.STRUCT, [thrift.Member(1, thrift.I64, 7)])
    ),
    "levels that the column has not": lambda tree: column_of(tree).append(
        thrift.Member(
            16, thrift.STRUCT, [thrift.Member(3, thrift.LIST, thrift.Items(thrift.I64, [1] * 5))]
        )
    ),
    "a compression that is none": lambda tree: setattr(member(column_of(tree), 4), "value", 10**9),
    "another type": lambda tree: setattr(member(column_of(tree), 1), "value", 6),
    "a type that is none": lambda tree: setattr(member(column_of(tree), 1), "value", 77),
    "bytes below zero": lambda tree: setattr(member(column_of(tree), 7), "value", -1),
    "encryption": encrypted,
    "no description": lambda tree: member(tree, 4, 1).value.values[0].pop(),
}
LOOK = """
import sys
from icechunk_arrow import CorruptFileError, Repository
import duckdb, icechunk_arrow.duckdb
for root in sys.argv[1:]:
    con = duckdb.connect()
    con.sql("CREATE TABLE mine AS SELECT 1 AS one")
    try:
        icechunk_arrow.duckdb.attach(con, root, "r")
        con.sql("FROM r.chunks").fetchall()
        print("it is taken")
    except (CorruptFileError, duckdb.Error) as error:
        print("damaged" if "is damaged" in str(error) else repr(error))
    assert con.sql("FROM mine").fetchall() == [(1,)]
    try:
        session = Repository.open(root).readonly_session("main")
        print(*(row for rows in session.chunk_references("/a") for row in rows.to_pylist()))
    except CorruptFileError as error:
        print("damaged" if "is damaged" in str(error) else error)
"""


def test_footers_of_which_libraries_do_not_recover(tmp_path: Path) -> None:
    """pyarrow ends the process over some, DuckDB gives up a database with all its tables: neither is asked."""
    (tmp_path / "one").mkdir()
    victim = Victim(tmp_path / "one")
    key = key_of(FileKind.MANIFEST, victim.manifest)
    seal = Seal.of((victim.root / key).read_bytes())
    roots = []
    for place, alter in enumerate(FOOTERS.values()):
        tree, _ = thrift.parse(seal.footer)
        alter(tree)
        root = tmp_path / f"{place}"
        shutil.copytree(victim.root, root)
        data = replace(seal, footer=thrift.write(tree)).put_together()
        (root / key).write_bytes(data)
        roots.append(str(root))
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *roots],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    seen = dict(zip(FOOTERS, zip(said[1::2], strict=True), strict=True))
    assert seen == dict.fromkeys(FOOTERS, ("damaged",))
    assert "it is taken" not in said


def retyped(name: str, kind: Callable[[pa.DataType], pa.DataType]) -> Callable[[Sheet], None]:
    def alter(sheet: Sheet) -> None:
        place = [each.name for each in sheet.fields].index(name)
        sheet.fields[place] = pa.field(name, kind(sheet.fields[place].type))

    return alter


def with_member(
    number: int, kind: Callable[[pa.Field], pa.Field]
) -> Callable[[pa.DataType], pa.DataType]:
    """Change one member of a structure, or of the items of a list."""

    def alter(found: pa.DataType) -> pa.DataType:
        if pa.types.is_list(found):
            return pa.list_(alter(found.value_type))
        members = [found.field(i) for i in range(found.num_fields)]
        members[number] = kind(members[number])
        return pa.struct(members)

    return alter


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("id", lambda _: pa.uint8()),
        ("id", lambda _: pa.uint32()),
        ("inventories", with_member(3, lambda each: each.with_type(pa.int64()))),
        ("attrs_reference", with_member(2, lambda each: each.with_type(pa.int32()))),
        (
            "attrs_reference",
            with_member(0, lambda each: each.with_name("path").with_nullable(True)),
        ),
        ("array_metadata", with_member(0, lambda each: each.with_type(pa.list_(pa.uint8())))),
    ],
    ids=["narrower", "wider", "a signed flag", "signed flags", "another name", "narrower numbers"],
)
def test_members_of_other_types(
    victim: Victim, name: str, kind: Callable[[pa.DataType], pa.DataType]
) -> None:
    """Columns of a structure file have the types of its width, to the last member (R11, R13)."""
    key = key_of(FileKind.STRUCTURE, victim.snapshot_id)
    victim.read()
    alter_sheet(victim, key, retyped(name, kind))

    with pytest.raises(CorruptFileError, match=victim.snapshot_id):
        victim.read()


def test_members_are_found_by_their_names(victim: Victim) -> None:
    """One that nobody knows may stand before those that are known, and these in any order (R11)."""

    def other_order(found: pa.DataType) -> pa.DataType:
        if pa.types.is_list(found):
            return pa.list_(other_order(found.value_type))
        if not pa.types.is_struct(found):
            return found
        members = [
            each.with_type(other_order(each.type))
            for each in map(found.field, range(found.num_fields))
        ]
        return pa.struct([pa.field("new", pa.string()), *reversed(members)])

    before = victim.read()
    key = key_of(FileKind.STRUCTURE, victim.snapshot_id)
    for name in ("array_metadata", "attrs_reference", "inventories"):
        alter_sheet(victim, key, retyped(name, other_order))

    assert victim.read() == before
    overwrite(victim)


@pytest.mark.parametrize("width", ["wide", "", None])
@pytest.mark.parametrize("kind", ["structure", "manifest"])
def test_the_width_is_the_one_that_a_file_says(
    victim: Victim, kind: str, width: str | None
) -> None:
    """Readers go by it (R13), so one that is missing or not the columns' is damage."""
    identifier = victim.manifest if kind == "manifest" else victim.snapshot_id
    key = key_of(FileKind.MANIFEST if kind == "manifest" else FileKind.STRUCTURE, identifier)

    def alter(sheet: Sheet) -> None:
        texts = dict(sheet.texts) | {"icechunk.width": width or ""}
        if width is None:
            del texts["icechunk.width"]
        sheet.texts = list(texts.items())

    alter_sheet(victim, key, alter)
    for see in (victim.read, lambda: look_up(victim, "/a", 1), lambda: overwrite(victim)):
        with pytest.raises(CorruptFileError, match=identifier):
            see()


def test_half_of_a_check_is_none(victim: Victim) -> None:
    """An ETag goes with a time (R27)."""
    with_manifest(
        victim, lambda columns: columns | {"etag": pa.nulls(len(columns["id"]), pa.string())}
    )

    with pytest.raises(CorruptFileError, match=f"{victim.manifest}.*etag"):
        look_up(victim, "/a", 1)


def test_texts_that_are_none(victim: Victim) -> None:
    """Bytes that are no UTF-8 are damage also deep in a column."""

    def alter(seal: Seal) -> Seal:
        assert seal.body.count(b"uint8") > 0
        body = seal.body.replace(b"uint8", b"u\xecnt8")
        return replace(
            seal, body=body, entries=[(end, crc32c(body[4:end])) for end, _ in seal.entries]
        )

    key = key_of(FileKind.STRUCTURE, victim.snapshot_id)

    def plainly(sheet: Sheet) -> None:
        sheet.settings = {"compression": "none", "write_page_checksum": False}
        sheet.after.append(alter)

    alter_sheet(victim, key, plainly)

    with pytest.raises(CorruptFileError, match=victim.snapshot_id):
        victim.read()


def longer(columns: Columns) -> Columns:
    lengths = columns["length"].to_pylist()
    return columns | {"length": pa.array([*lengths[:-1], 1 << 20], pa.uint32())}


def of_no_id(columns: Columns) -> Columns:
    files = columns["chunk_file"].to_pylist()
    return columns | {"chunk_file": pa.array([file and file[:-1] for file in files])}


@pytest.mark.parametrize("alter", [longer, of_no_id], ids=["a length", "a name"])
def test_rows_that_are_written_again_are_right(
    victim: Victim, alter: Callable[[Columns], Columns]
) -> None:
    """A commit that moves rows to another manifest looks at all that is in them (R25, R26)."""
    with_manifest(victim, alter)

    with pytest.raises(CorruptFileError, match=victim.manifest):
        overwrite(victim)


def test_a_chunk_behind_all_bytes(victim: Victim) -> None:
    """No file has so many bytes: what is named there is cut, and no wrong argument."""
    with_manifest(
        victim,
        lambda columns: (
            columns
            | {
                "offset": pa.array(
                    [each and (1 << 63) - 1 for each in columns["offset"].to_pylist()], pa.uint64()
                )
            }
        ),
    )
    session = Repository.open(victim.root).readonly_session("main")
    ref = session.find_chunk(session.get_array("/a"), (1,))
    assert isinstance(ref, ChunkRef)
    assert ref.offset == (1 << 63) - 1

    with pytest.raises(CorruptFileError, match=f"c/{ref.file} is cut"):
        session.read_chunk(ref, 0, ref.length)


def without_row(row: int) -> Callable[[Columns], Columns]:
    def alter(columns: Columns) -> Columns:
        kept = [n for n in range(len(columns["id"])) if n != row]
        return {name: values.take(pa.array(kept)) for name, values in columns.items()}

    return alter


def of_the_other(columns: Columns) -> Columns:
    ids = columns["array_id"].to_pylist()
    ids[2] = ids[3]
    columns["coord"] = pa.array(
        [*columns["coord"].to_pylist()[:2], b"", *columns["coord"].to_pylist()[3:]]
    )
    return columns | {"array_id": pa.array(ids, pa.uint32())}


@pytest.mark.parametrize(
    "alter",
    [without_row(0), without_row(2), without_row(6), of_the_other],
    ids=["0", "2", "6", "other"],
)
def test_a_commit_does_not_make_damage_sound(
    victim: Victim, alter: Callable[[Columns], Columns]
) -> None:
    """Rows that are written again are compared with the snapshot: else a chunk would be gone for good."""
    with_manifest(victim, alter)

    with pytest.raises(CorruptFileError, match=victim.manifest):
        overwrite(victim)


def test_a_listing_names_no_chunk_twice_in_row_groups(victim: Victim) -> None:
    """Rows that rise in each row group, and not from one to the next, are damage for whoever lists (R24)."""

    def alter(sheet: Sheet) -> None:
        for each, values in zip(sheet.fields, sheet.columns, strict=True):
            if each.name != "id":
                values[1] = values[0]
        sheet.boundaries = [1, sheet.row_count]

    alter_sheet(victim, key_of(FileKind.MANIFEST, victim.manifest), alter)
    session = Repository.open(victim.root).readonly_session("main")
    for see in (session.chunk_references, session.chunk_coordinates):
        with pytest.raises(CorruptFileError, match=f"{victim.manifest}.*(sorted|twice)"):
            list(see("/a"))


def test_a_listing_names_no_chunk_twice(victim: Victim) -> None:
    """A row that comes again in place of another is damage also for whoever only lists (R24)."""

    def alter(columns: Columns) -> Columns:
        order = pa.array([0, 0, 2, *range(3, len(columns["id"]))])
        return {name: values.take(order) for name, values in columns.items()}

    with_manifest(victim, alter)
    session = Repository.open(victim.root).readonly_session("main")
    for see in (session.chunk_references, session.chunk_coordinates):
        with pytest.raises(CorruptFileError, match=f"{victim.manifest}.*(sorted|twice)"):
            list(see("/a"))


@pytest.mark.parametrize("attributes", [b"[]", b"1", None])
def test_attributes_that_are_no_object(victim: Victim, attributes: bytes | None) -> None:
    """What gives a node's attributes is one JSON object (R32)."""
    (key,) = (victim.root / "a").glob("*.parquet")
    table, facts = old(victim, FileKind.ATTRIBUTES, key.stem)
    columns = columns_of(table) | {"attributes": pa.array([attributes], pa.binary())}
    write(victim, FileKind.ATTRIBUTES, key.stem, columns, facts, use_dictionary=False)

    with pytest.raises(CorruptFileError, match=f"{key.stem}|{victim.snapshot_id}"):
        victim.read()


@pytest.mark.parametrize("chunks", [[], [10, 10], [0]], ids=str)
def test_grids_that_are_none(victim: Victim, chunks: list[int]) -> None:
    """A grid that the columns cannot mean is damage of the structure file, and no wrong argument."""

    def alter(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["path"] == "/a":
                row["array_metadata"]["chunk_grid"]["configuration"]["chunk_shape"] = chunks

    victim.alter_structure(alter)
    session = Repository.open(victim.root).readonly_session("main")

    with pytest.raises(CorruptFileError, match=victim.snapshot_id):
        session.get_array("/a")


def test_documents_that_are_staged_are_judged_as_before(victim: Victim) -> None:
    """What a caller gives is a wrong argument still, and a sound document is taken."""
    session = Repository.open(victim.root).writable_session("main")
    session.set_document("/g", group_document())
    session.set_document("/c", array_document(3))

    assert session.get_array("/c").grid.chunk_counts == (3,)
