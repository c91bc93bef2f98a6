"""Queries touch the files, row groups and columns that they need: by DuckDB's counts and its reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import icechunk_arrow.duckdb
from icechunk_arrow.duckdb import sql_script
from icechunk_arrow.duckdb.reading import SealedFiles
from tests.sql.profiles import scanned
from tests.sql.repositories import add_array, new_repository, refer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from icechunk_arrow import Repository

LARGE_FILES, GROUPS_OF_FILE = 4, 4
PLANNING = 1
"""DuckDB counts the file that it opened for the columns, while it planned, as read."""


def fill(place: Path | str) -> Repository:
    """Two large arrays with manifests of their own, four row groups each; and small ones that share some."""
    repository = new_repository(place, rows=65_536)
    session = repository.writable_session("main")
    for name in ("temperature", "wind"):
        add_array(session, name, (300, 1000))
        row, column = np.divmod(np.arange(260_000), 1000)
        table = {
            "index_0": row,
            "index_1": column,
            "location": pa.array([f"s3://b/{name}/{n}.nc" for n in range(260)]).take(pa.array(row)),
            "offset": 100 * column,
            "length": 90 + column % 7,
        }
        session.set_references(f"/{name}", pa.table(table))
    session.commit("large ones")
    for number in range(6):
        session = repository.writable_session("main")
        for each in range(3):
            add_array(session, f"small-{number}-{each}", (20,))
            refer(session, f"/small-{number}-{each}", [(n,) for n in range(20)])
        session.commit("small ones")
    return repository


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return fill(tmp_path_factory.mktemp("pruning") / "r")


@pytest.fixture(scope="module", params=["attached", "script"])
def con(request: pytest.FixtureRequest, repository: Repository) -> Any:
    with duckdb.connect() as connection:
        if request.param == "attached":
            icechunk_arrow.duckdb.attach(connection, repository, "w")
        else:
            connection.execute(sql_script(repository, "w"))
        yield connection


def test_there_is_something_to_leave_out(con: Any) -> None:
    """Without a condition everything is read."""
    everything = scanned(con, 'SELECT count(*), sum("offset") FROM w.chunks')

    assert everything.files >= 2 * LARGE_FILES + 6
    assert everything.rows == 2 * 260_000 + 18 * 20
    assert everything.row_groups == 2 * LARGE_FILES * GROUPS_OF_FILE + 6


def test_a_path_leaves_out_files(con: Any) -> None:
    """A large array's query opens its own files, a small one's the one that it shares."""
    large = scanned(con, "SELECT sum(length) FROM w.chunks WHERE path = '/wind'")
    small = scanned(con, "SELECT sum(length) FROM w.chunks WHERE path = '/small-3-1'")

    assert (large.row_groups, large.rows) == (LARGE_FILES * GROUPS_OF_FILE, 260_000)
    assert large.files <= LARGE_FILES + PLANNING
    assert small.files <= 1 + PLANNING
    assert (small.row_groups, small.rows) == (1, 20)


def test_a_path_leaves_out_row_groups_of_arrays(con: Any) -> None:
    """The summary of one array counts the rows of that array alone."""
    large = scanned(con, "SELECT chunk_count, stored_bytes FROM w.arrays WHERE path = '/wind'")
    small = scanned(con, "SELECT chunk_count, stored_bytes FROM w.arrays WHERE path = '/small-3-1'")

    assert 260_000 <= large.rows < 260_000 + 100
    assert 20 <= small.rows < 100


@pytest.mark.parametrize(
    "condition",
    [
        "path = '/wind' AND coord = w.coord_encode([100, 7])",
        "path = '/wind' AND coord >= w.coord_encode([100, 7]) AND coord < w.coord_encode([100, 8])",
    ],
)
def test_a_coordinate_leaves_out_row_groups(con: Any, condition: str) -> None:
    """One chunk is looked for in one row group."""
    one = scanned(con, f"SELECT location FROM w.chunks WHERE {condition}")

    assert one.row_groups == 1
    assert con.execute(f"SELECT index FROM w.chunks WHERE {condition}").fetchall() == [([100, 7],)]


def test_a_box_touches_what_can_hold_it(con: Any) -> None:
    """``chunks_in`` opens the one file whose extent the box meets, and reads row groups that can."""
    one = scanned(con, "SELECT location FROM w.chunks_in('/temperature', [100], [120])")
    [(rows,)] = con.execute(
        "SELECT count(*) FROM w.chunks_in('/temperature', [100], [120])"
    ).fetchall()

    assert rows == 20_000
    assert one.files <= 1 + PLANNING
    assert one.row_groups <= 3
    assert one.rows <= 3 * 16_384


def test_a_box_across_files(con: Any) -> None:
    """A narrow box along the slow dimension meets all files of the array, and none of others."""
    some = scanned(con, "SELECT location FROM w.chunks_in('/temperature', [0, 5], [260, 6])")
    [(rows,)] = con.execute(
        "SELECT count(*) FROM w.chunks_in('/temperature', [NULL, 5], [NULL, 6])"
    ).fetchall()

    assert rows == 260
    assert some.files <= LARGE_FILES + PLANNING


def test_a_box_elsewhere_reads_nothing(con: Any) -> None:
    """Where no extent meets the box, no row is read of an array; and hardly one where there is no array."""
    assert scanned(con, "SELECT location FROM w.chunks_in('/temperature', [300], [400])").rows == 0
    assert scanned(con, "SELECT location FROM w.chunks_in('/none', [0], [4])").rows <= 4096


def test_filters_on_indices_are_right_and_pruned_by_path(con: Any) -> None:
    """A condition on ``index`` reads the array's rows, and finds those that it says."""
    condition = "path = '/wind' AND index[1] = 100 AND index[2] < 3"
    some = scanned(con, f"SELECT location FROM w.chunks WHERE {condition}")

    assert some.files <= LARGE_FILES + PLANNING
    assert some.row_groups <= LARGE_FILES * GROUPS_OF_FILE
    assert con.execute(
        f"SELECT index FROM w.chunks WHERE {condition} ORDER BY coord"
    ).fetchall() == [([100, n],) for n in range(3)]


def test_columns_are_left_out(con: Any) -> None:
    """A sum of lengths reads lengths, and ids where arrays share manifests."""
    some = scanned(con, "SELECT sum(length) FROM w.chunks WHERE path = '/wind'")

    assert some.columns == {"length", "array_id"}


@pytest.fixture(scope="module")
def several(
    repository: Repository, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, Path]]:
    """A connection to the repository beside another one, and that one's folder."""
    other = tmp_path_factory.mktemp("other") / "r"
    with duckdb.connect() as con:
        icechunk_arrow.duckdb.attach(con, {"one": repository, "two": fill(other)}, "w")
        yield con, other


def test_a_repository_leaves_out_the_others(several: tuple[Any, Path]) -> None:
    """A condition on ``repository`` opens no file of another one."""
    con, _ = several
    both = scanned(con, "SELECT sum(length) FROM w.chunks")
    one = scanned(con, "SELECT sum(length) FROM w.chunks WHERE repository = 'one'")
    box = scanned(con, "SELECT * FROM w.chunks_in('/wind', [100], [120]) WHERE repository = 'two'")

    assert (both.rows, one.rows) == (2 * one.rows, 2 * 260_000 + 18 * 20)
    assert one.files <= 2 * LARGE_FILES + 6 + PLANNING
    assert box.files <= 1 + PLANNING
    assert box.rows <= 3 * 16_384
    with_file = "SELECT DISTINCT repository FROM w.files WHERE location LIKE 's3://b/wind/%'"
    assert sorted(con.execute(with_file).fetchall()) == [("one",), ("two",)]


def test_wide_and_narrow_files_are_pruned_alike(tmp_path: Path) -> None:
    """Of an array with files of both widths, those row groups are read that can hold a box or a coordinate."""
    repository = new_repository(tmp_path / "r", rows=16_384)
    for start, length in ((0, 90), (100, 2**40)):
        session = repository.writable_session("main")
        if start == 0:
            add_array(session, "a", (200, 1000))
        row, column = np.divmod(np.arange(100_000), 1000)
        table = {
            "index_0": row + start,
            "index_1": column,
            "location": pa.array(["s3://b/f"] * 100_000),
            "offset": 100 * column,
            "length": np.full(100_000, length),
        }
        session.set_references("/a", pa.table(table))
        session.commit("one width")
    kinds = {pq.read_schema(path).field("length").type for path in (tmp_path / "r" / "i").iterdir()}
    assert kinds == {pa.uint32(), pa.uint64()}
    with duckdb.connect() as con:
        icechunk_arrow.duckdb.attach(con, repository, "w")
        for place in (50, 150):
            box = f"SELECT * FROM w.chunks_in('/a', [{place}], [{place + 1}])"
            one = (
                f"SELECT * FROM w.chunks WHERE path = '/a' AND coord = w.coord_encode([{place}, 7])"
            )
            assert scanned(con, one).row_groups == 1
            assert scanned(con, box).row_groups <= 2
            assert len(con.execute(box).fetchall()) == 1000
            [found] = con.execute(one.replace("*", "length")).fetchall()
            assert found == (2**40 if place > 100 else 90,)


class Reads:
    """What DuckDB asked a storage for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, int, int]] = []
        read = SealedFiles.read

        def recorded(files: SealedFiles, key: str, size: int, start: int, length: int) -> bytes:
            self.asked.append((key, start, length))
            return read(files, key, size, start, length)

        monkeypatch.setattr(SealedFiles, "read", recorded)

    def take(self) -> set[str]:
        """Forget what was asked so far, and give the files."""
        found = {key for key, _, _ in self.asked}
        self.asked.clear()
        return found


def test_elsewhere_only_needed_files_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files are not on a local disk, reads go through the storage: of what a query needs."""
    repository = fill("memory://pruning")
    manifests = {
        row["manifest"]: {each["path"] for each in row["arrays"]}
        for row in repository.tables("manifests").to_pylist()
    }
    with duckdb.connect() as con:
        reads = Reads(monkeypatch)
        icechunk_arrow.duckdb.attach(con, repository, "w")
        attached = reads.take()
        own = {name for name, paths in manifests.items() if paths == {"/wind"}}
        con.execute("SELECT sum(length) FROM w.chunks WHERE path = '/wind'").fetchall()
        wind = {key[2:-8] for key in reads.take()}
        con.execute("SELECT location FROM w.chunks_in('/temperature', [100], [120])").fetchall()
        box = {key[2:-8] for key in reads.take()}

    assert attached == set()
    assert {name for name in wind if manifests[name] == {"/wind"}} == own
    assert len(wind - own) <= 2
    assert len(box) <= 1 + PLANNING
