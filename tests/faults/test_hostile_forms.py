"""Files in another form or with other rows than a writer here makes: read by name, or refused by the file's name.

Each was found by ``tests.fuzzing``; the shortest file that shows it stands here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import icechunk_arrow.duckdb
from icechunk_arrow import CorruptFileError, Repository
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.storage.memory import MemoryStorage
from tests.conformance.kit.writing import FOLDER
from tests.faults.bombs import old, write
from tests.faults.hostile import Victim
from tests.faults.repositories import array_document, group_document
from tests.fuzzing.sheets import Sheet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

Columns = dict[str, pa.Array]


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    """A sound repository on a disk, to be altered."""
    return Victim(tmp_path)


def columns_of(table: pa.Table) -> Columns:
    return {name: table[name].combine_chunks() for name in table.column_names}


def with_manifest(victim: Victim, alter: Callable[[Columns], Mapping[str, pa.Array]]) -> None:
    """Put the manifest's columns in another form."""
    table, facts = old(victim, FileKind.MANIFEST, victim.manifest)
    write(
        victim,
        FileKind.MANIFEST,
        victim.manifest,
        alter(columns_of(table)),
        facts,
        use_dictionary=False,
        write_statistics=True,
    )


def with_log(victim: Victim, alter: Callable[[Columns], Mapping[str, pa.Array]]) -> None:
    """Put the columns of the commit's log in another form."""
    table, facts = old(victim, FileKind.TRANSACTION, victim.snapshot_id)
    write(
        victim,
        FileKind.TRANSACTION,
        victim.snapshot_id,
        alter(columns_of(table)),
        facts,
        use_dictionary=False,
    )


def look_up(victim: Victim, path: str, index: int) -> object:
    session = Repository.open(victim.root).readonly_session("main")
    return session.find_chunk(session.get_array(path), (index,))


def overwrite(victim: Victim) -> None:
    """Commit another chunk over one of the manifest, which is written anew without it."""
    session = Repository.open(victim.root).writable_session("main")
    session.write_chunk("/b", (0,), b"new")
    session.commit("over the old")


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


def test_columns_that_come_twice(victim: Victim) -> None:
    """Which of the two is meant nobody can tell."""
    key = key_of(FileKind.MANIFEST, victim.manifest)
    sheet = Sheet.of((victim.root / key).read_bytes(), victim.manifest, ())
    sheet.fields.append(sheet.fields[0])
    sheet.columns.append(sheet.columns[0])
    victim.write(key, sheet.write())

    with pytest.raises(CorruptFileError, match=f"{victim.manifest}.*twice"):
        victim.read()


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
    """Rows that are written again are compared with the snapshot: else a chunk would be gone without a word."""
    with_manifest(victim, alter)

    with pytest.raises(CorruptFileError, match=victim.manifest):
        overwrite(victim)


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


@pytest.mark.parametrize("name", ["node_type", "path", "node_id", "coord"])
def test_operations_that_lack_what_they_need(victim: Victim, name: str) -> None:
    """A row of a log without a value that its operation needs is refused, also by the table of operations (R34)."""

    def alter(columns: Columns) -> Columns:
        values = columns[name].to_pylist()
        values[-1] = None
        return columns | {name: pa.array(values, columns[name].type)}

    with_log(victim, alter)
    repo = Repository.open(victim.root)
    for see in (
        lambda: repo._context.files.read_log(victim.snapshot_id),
        lambda: repo.tables("operations"),
    ):
        with pytest.raises(CorruptFileError, match=victim.snapshot_id):
            see()


def test_the_table_of_operations_refuses_another_order(victim: Victim) -> None:
    """It reads logs as everybody does (R34)."""

    def alter(columns: Columns) -> Columns:
        count = len(columns["id"])
        order = pa.array([*range(count - 2), count - 1, count - 2])
        return {n: v if n == "id" else v.take(order) for n, v in columns.items()}

    with_log(victim, alter)

    with pytest.raises(CorruptFileError, match=victim.snapshot_id):
        Repository.open(victim.root).tables("operations")


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


def test_references_to_what_the_ledger_knows() -> None:
    """A tag may name a snapshot that was retired or rewritten: the table of references shows it (R81)."""
    place = MemoryStorage("hostile-forms-ledger")
    root = FOLDER / "ledger" / "repository"
    for path in root.rglob("*"):
        if path.is_file():
            place.put(path.relative_to(root).as_posix(), path.read_bytes())
    rows = Repository.open(place.url).tables("refs").to_pylist()

    assert {row["name"] for row in rows} == {"main", "old", "retired"}


def test_documents_that_are_staged_are_judged_as_before(victim: Victim) -> None:
    """What a caller gives is a wrong argument still, and a sound document is taken."""
    session = Repository.open(victim.root).writable_session("main")
    session.set_document("/g", group_document())
    session.set_document("/c", array_document(3))

    assert session.get_array("/c").grid.chunk_counts == (3,)
