"""Schemas come, follow their branch when asked to, and go; they show one state, and say what is wrong with it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import icechunk_arrow.duckdb
from icechunk_arrow import (
    AlreadyExistsError,
    CorruptFileError,
    InvalidInputError,
    NotFoundError,
    Repository,
    SnapshotNotFoundError,
)
from icechunk_arrow.duckdb import attach, detach, refresh
from icechunk_arrow.storage.local import LocalStorage
from icechunk_arrow.tables.schemas import TABLES
from tests.sql.repositories import STRANGE, add_array, new_repository, refer

if TYPE_CHECKING:
    from collections.abc import Callable

VIEWS = {name for name in TABLES if name != "changes"}


@pytest.fixture
def con() -> Any:
    with duckdb.connect() as connection:
        yield connection


def grow(repository: Repository, name: str, count: int = 10, branch: str = "main") -> str:
    session = repository.writable_session(branch)
    add_array(session, name, (count,))
    refer(session, f"/{name}", [(n,) for n in range(count)])
    return session.commit(f"grow {name}")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = new_repository(tmp_path / "r")
    grow(repository, "a")
    return repository


def count(con: Any, name: str = "w") -> int:
    [(found,)] = con.execute(f"SELECT count(*) FROM {name}.chunks").fetchall()
    return int(found)


def test_there_is_a_schema(con: Any, repository: Repository) -> None:
    """``attach`` makes a schema with the views and macros that it promises, and cursors see it."""
    attached = attach(con, repository, "w")
    views = con.cursor().execute(
        "SELECT view_name FROM duckdb_views() WHERE schema_name = 'w' AND view_name NOT LIKE '\\_%' ESCAPE '\\'"
    )
    macros = con.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() "
        "WHERE schema_name = 'w' AND function_name NOT LIKE '\\_%' ESCAPE '\\'"
    )

    assert {name for (name,) in views.fetchall()} == VIEWS
    assert {name for (name,) in macros.fetchall()} == {
        *("coord_encode", "coord_decode", "chunk_of", "chunks_in", "changes")
    }
    assert attached.snapshots == {repository.url: repository.lookup_branch("main")}
    assert con.execute(
        "SELECT schema_name FROM duckdb_schemas() WHERE schema_name = 'w'"
    ).fetchall() == [("w",)]


def test_a_state_stays_until_refresh(con: Any, repository: Repository) -> None:
    """Commits do not show until ``refresh``, which follows the branch; refs and history too."""
    attach(con, repository, "w")
    grow(repository, "b")
    repository.create_tag("late", repository.lookup_branch("main"))
    refs = con.execute("SELECT name FROM w.refs").fetchall()
    before = count(con), con.execute("SELECT count(*) FROM w.snapshots").fetchall()
    refreshed = refresh(con, "w")
    after = count(con), con.execute("SELECT count(*) FROM w.snapshots").fetchall()

    assert (before, after) == ((10, [(2,)]), (20, [(3,)]))
    assert refreshed.snapshots == {repository.url: repository.lookup_branch("main")}
    assert len(con.execute("SELECT name FROM w.refs").fetchall()) == 2
    assert len(refs) in {1, 2}


def test_queries_under_way_keep_their_state(con: Any, tmp_path: Path) -> None:
    """A query that is being read goes on with the rows it began with, whatever is refreshed meanwhile."""
    repository = new_repository(tmp_path / "r", rows=4096)
    grow(repository, "a", 200_000)
    attach(con, repository, "w")
    reader = con.cursor().sql("SELECT index, length FROM w.chunks").to_arrow_reader(1024)
    rows = reader.read_next_batch().num_rows
    grow(repository, "b")
    for _ in range(6):
        refresh(con, "w")
    rows += sum(batch.num_rows for batch in reader)

    assert rows == 200_000
    assert count(con) == 200_010


def test_any_snapshot_can_be_shown(con: Any, repository: Repository) -> None:
    """By branch, tag, id, and time; several at once; each stays what it is on refresh, but for the branch."""
    first = repository.lookup_branch("main")
    between = datetime.now(UTC)
    repository.create_tag("one", first)
    repository.create_branch("side", first)
    grow(repository, "b")
    attach(con, repository, "by_tag", tag="one")
    attach(con, repository, "by_id", snapshot_id=first)
    attach(con, repository, "by_time", branch="main", as_of=between)
    attach(con, repository, "by_main_time", as_of=between)
    attach(con, repository, "by_branch", branch="side")
    attach(con, repository.url, "newest")
    grow(repository, "c", branch="side")
    counts = []
    for name in ("by_tag", "by_id", "by_time", "by_main_time", "by_branch", "newest"):
        before = count(con, name)
        refresh(con, name)
        counts.append((before, count(con, name)))

    assert counts == [(10, 10), (10, 10), (10, 10), (10, 10), (10, 20), (20, 20)]
    for wrong in ({"branch": "main", "tag": "one"}, {"tag": "one", "as_of": between}):
        with pytest.raises(InvalidInputError):
            attach(con, repository, "wrong", **wrong)


def test_nothing_is_left_of_what_fails(con: Any, repository: Repository) -> None:
    """Where attaching fails, neither schema nor file system stays."""
    systems = con.list_filesystems()
    with pytest.raises(SnapshotNotFoundError):
        attach(con, repository, "w", snapshot_id="VY76P925PRY57WFEK410")
    assert con.list_filesystems() == systems
    assert con.execute("SELECT * FROM duckdb_schemas() WHERE schema_name = 'w'").fetchall() == []
    attach(con, repository, "w")
    with pytest.raises(AlreadyExistsError, match="'w'"):
        attach(con, repository, "w")
    assert count(con) == 10


@pytest.mark.parametrize("name", ["", "a\0b", None, 5])
def test_names_that_cannot_be_are_refused(con: Any, repository: Repository, name: Any) -> None:
    """A schema needs a name."""
    with pytest.raises(InvalidInputError, match="schema"):
        attach(con, repository, name)


def test_detaching_takes_all_away(con: Any, repository: Repository) -> None:
    """``detach`` removes the schema, and only one that ``attach`` made."""
    systems = con.list_filesystems()
    attach(con, repository, "w")
    detach(con, "w")
    con.execute("CREATE SCHEMA mine")

    assert con.list_filesystems() == systems
    assert con.execute("SELECT * FROM duckdb_schemas() WHERE schema_name = 'w'").fetchall() == []
    for name in ("w", "mine", "main"):
        with pytest.raises(NotFoundError):
            detach(con, name)
        with pytest.raises(NotFoundError):
            refresh(con, name)
    attach(con, repository, "w")


def test_it_is_part_of_a_transaction(con: Any, repository: Repository) -> None:
    """Within a transaction of the user's, a schema goes with it."""
    con.execute("BEGIN TRANSACTION")
    attach(con, repository, "w")
    assert count(con) == 10
    con.execute("ROLLBACK")

    assert con.execute("SELECT * FROM duckdb_schemas() WHERE schema_name = 'w'").fetchall() == []


def test_a_schema_of_another_process_is_told_apart(tmp_path: Path, repository: Repository) -> None:
    """A database file keeps the schema; it can be detached there, and attached anew."""
    place = str(tmp_path / "file.db")
    with duckdb.connect(place) as con:
        attach(con, repository, "w")
    with duckdb.connect(place) as con:
        with pytest.raises(InvalidInputError, match="another process"):
            refresh(con, "w")
        detach(con, "w")
        attach(con, repository, "w")
        assert count(con) == 10


def test_attaching_reads_no_history(
    con: Any, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of structure files the one in question is read, and neither logs nor manifests."""
    for number in range(20):
        grow(repository, f"more-{number}", 1)
    opened = Repository.open(repository.url)
    read: set[str] = set()
    for name in ("get", "get_range", "get_tail"):
        original = getattr(LocalStorage, name)

        def recorded(
            self: Any, key: str, *more: Any, original: Any = original, **words: Any
        ) -> Any:
            read.add(key)
            return original(self, key, *more, **words)

        monkeypatch.setattr(LocalStorage, name, recorded)
    attach(con, opened, "w")
    at_first = {key for key in read if not key.startswith("refs/")}
    con.execute("SELECT count(*) FROM w.operations").fetchall()

    assert at_first == {f"s/{repository.lookup_branch('main')}.parquet"}
    assert len([key for key in read if key.startswith("t/")]) == 21


WITHOUT_PANDAS = """
import sys
from importlib.abc import MetaPathFinder

class NoPandas(MetaPathFinder):
    wanted = False

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "pandas":
            NoPandas.wanted = True
            raise ImportError(name)

sys.meta_path.insert(0, NoPandas())
import duckdb
import icechunk_arrow
from icechunk_arrow.duckdb import attach, refresh, sql_script
repository = icechunk_arrow.Repository.open(sys.argv[1])
con = duckdb.connect()
attach(con, repository, "w")
for name in ("chunks", "arrays", "files", "manifests", "nodes", "snapshots", "operations"):
    assert repository.tables(name).num_rows, name
    assert con.execute(f"SELECT count(*) FROM w.{name}").fetchall() != [(0,)], name
refresh(con, "w")
gaps = repository.inspect("gaps")
print(NoPandas.wanted, gaps.num_rows, repository.tables("changes").num_rows, len(sql_script(repository)) > 0)
"""


def test_nothing_needs_pandas(repository: Repository) -> None:
    """Nothing so much as tries to import pandas, which takes longer than attaching; a script goes without."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS, repository.url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = (done.returncode, done.stdout.split())
    assert found == (0, ["False", "0", "12", "True"]), done.stderr[-2000:]


def test_a_file_that_has_gone_is_named(con: Any, repository: Repository) -> None:
    """The error names snapshot and file, before rows are given; through Python it is one of ours."""
    snapshot = repository.lookup_branch("main")
    attach(con, repository, "w")
    [(manifest,)] = con.execute("SELECT manifest FROM w.manifests").fetchall()
    (_path(repository) / "i" / f"{manifest}.parquet").unlink()
    for query in (
        "SELECT count(*) FROM w.chunks",
        "SELECT * FROM w.arrays",
        "SELECT * FROM w.chunks_in('/a', [], [])",
    ):
        with pytest.raises(
            duckdb.Error, match=f"i/{manifest}.parquet of the snapshot {snapshot} is gone"
        ):
            con.execute(query).fetchall()
    again: list[Callable[[], Any]] = [
        lambda: repository.tables("chunks"),
        lambda: attach(con, repository, "again"),
        lambda: refresh(con, "w"),
    ]
    for each in again:
        with pytest.raises(CorruptFileError, match=f"{manifest}.*{snapshot}"):
            each()
    assert (
        con.execute("SELECT 1 FROM duckdb_schemas() WHERE schema_name = 'again'").fetchall() == []
    )


@pytest.mark.parametrize("place", ["disk", "memory"])
def test_no_row_is_missing_where_files_go(con: Any, tmp_path: Path, place: str) -> None:
    """Where files go while a query is read, it gives every row or an error."""
    where = str(tmp_path / "r") if place == "disk" else f"memory://{tmp_path.name}"
    repository = new_repository(where, rows=4096)
    grow(repository, "a", 100_000)
    con.execute("SET threads = 1")
    attach(con, repository, "w")
    reader = con.sql("SELECT location FROM w.chunks").to_arrow_reader(1024)
    read = reader.read_next_batch().num_rows
    repository._context.storage.delete(
        [f"i/{row['manifest']}.parquet" for row in repository.tables("manifests").to_pylist()]
    )
    with suppress(duckdb.Error, OSError):  # the second through Arrow's reader
        read += sum(batch.num_rows for batch in reader)
        assert read == 100_000
    assert read > 0
    for each in (con, con.cursor()):
        with suppress(duckdb.Error):
            assert each.execute("SELECT count(location) FROM w.chunks").fetchall() == [(100_000,)]
            assert place == "memory"  # whose small files may be remembered


def test_a_transaction_keeps_its_state(con: Any, repository: Repository) -> None:
    """Within a transaction every query sees one state, whatever another cursor refreshes."""
    attach(con, repository, "w")
    other = con.cursor()
    con.execute("BEGIN TRANSACTION")
    before = count(con)
    grow(repository, "b")
    refresh(other, "w")
    assert (before, count(con), count(other)) == (10, 10, 20)
    con.execute("COMMIT")
    assert count(con) == 20


def test_any_database_may_be_in_use(con: Any, repository: Repository) -> None:
    """Views and macros work by their full names, and a schema is found, in whatever database it is."""
    attach(con, repository, "w")
    con.execute("ATTACH ':memory:' AS other")
    con.execute("USE other")
    assert count(con, "memory.w") == 10
    for call in ("chunks_in('/a', [0], [3])", "changes('main', 'main')"):
        con.execute(f"SELECT * FROM memory.w.{call}").fetchall()
    assert con.execute("SELECT memory.w.chunk_of('/a', [3])").fetchall() == [([3],)]
    grow(repository, "b")
    refresh(con, "w")
    attach(con, repository, "w", tag=None)
    assert (count(con, "memory.w"), count(con, "other.w")) == (20, 20)
    detach(con, "w")
    schemas = con.execute("SELECT database_name FROM duckdb_schemas() WHERE schema_name = 'w'")
    assert schemas.fetchall() == [("memory",)]
    with pytest.raises(InvalidInputError, match=r"a database .* is called 'other'"):
        attach(con, repository, "other")


def test_a_file_that_is_another_is_refused(
    con: Any, repository: Repository, tmp_path: Path
) -> None:
    """A cut file is damage, and a symbolic link is not followed."""
    attach(con, repository, "w")
    [(manifest,)] = con.execute("SELECT manifest FROM w.manifests").fetchall()
    file = _path(repository) / "i" / f"{manifest}.parquet"
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    with pytest.raises(duckdb.Error, match="is damaged"):
        con.execute("SELECT count(*) FROM w.chunks")
    file.unlink()
    (tmp_path / "elsewhere").write_bytes(data)
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(duckdb.Error, match="is damaged"):
        con.execute("SELECT count(*) FROM w.chunks")


def _path(repository: Repository) -> Any:
    return Path(repository.url)


def test_places_without_a_disk_are_read_through_the_storage(con: Any) -> None:
    """A repository in memory shows the same tables."""
    repository = new_repository("memory://attached")
    grow(repository, "a")
    session = repository.writable_session("main")
    add_array(session, "inline", (3,))[:] = 1
    session.commit("inline")
    attach(con, repository, "w")
    con.execute("SET threads = 8")

    assert count(con) == 13
    assert con.execute(
        "SELECT path, chunk_count, files FROM w.arrays ORDER BY path"
    ).fetchall() == [
        ("/a", 10, 3),
        ("/inline", 3, 0),
    ]
    assert repository.tables("chunks").num_rows == 13
    assert set(repository.tables("files")["kind"].to_pylist()) == {"virtual"}


@pytest.mark.s3
def test_an_object_store_is_read_through_its_storage(con: Any, s3: Any, s3_url: str) -> None:
    """The same on a real S3 server: by URL and options, refreshed, in a script of names alone."""
    repository = Repository.create(s3_url, s3.storage_options)
    grow(repository, "a")
    attach(con, s3_url, "w", storage_options=s3.storage_options)
    grow(repository, "b")
    refresh(con, "w")
    script = icechunk_arrow.duckdb.sql_script(repository)

    assert count(con) == 20
    assert con.execute("SELECT count(*) FROM w.chunks_in('/b', [2], [5])").fetchall() == [(3,)]
    assert repository.tables("arrays")["chunk_count"].to_pylist() == [10, 10]
    assert f"{s3_url}/i/" in script
    assert not [v for v in s3.storage_options.values() if isinstance(v, str) and v in script]


def test_a_missing_object_is_named(con: Any) -> None:
    """The same error where files are objects of a storage, when a query asks for it; attaching asks for none."""
    repository = new_repository("memory://gone")
    snapshot = grow(repository, "a")
    attach(con, repository, "w")
    [(manifest,)] = con.execute("SELECT manifest FROM w.manifests").fetchall()
    repository._context.storage.delete([f"i/{manifest}.parquet"])
    with duckdb.connect() as other:
        attach(other, repository, "w")
        for each in (con, other):
            with pytest.raises(duckdb.Error, match=f"{manifest}.*{snapshot} is gone from memory:"):
                each.execute("SELECT count(*) FROM w.chunks").fetchall()
    with pytest.raises(CorruptFileError, match=f"{manifest}.*{snapshot}"):
        repository.tables("chunks")


LABELS = ["one", "it's; [2]"]


@pytest.fixture
def several(tmp_path: Path) -> dict[str, Repository]:
    found = {}
    for number, label in enumerate(LABELS):
        found[label] = new_repository(tmp_path / f"{number}")
        for each in range(2):
            grow(found[label], f"a{each}", 10 + number)
    return found


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_several_repositories_are_told_apart(
    con: Any, several: dict[str, Repository], name: str
) -> None:
    """Views over several have a first column ``repository``, and each one's rows; Arrow tables too."""
    attach(con, several, "w")
    table = con.sql(f"SELECT * FROM w.{name}").to_arrow_table()
    together = Repository.tables_together(several, name)

    assert table.column_names == together.column_names == ["repository", *TABLES[name].names]
    for label, repository in several.items():
        alone = repository.tables(name)
        for found in (table, together):
            rows = [row for row in found.to_pylist() if row.pop("repository") == label]
            assert sorted(map(repr, rows)) == sorted(
                map(repr, alone.cast(found.schema.remove(0)).to_pylist())
            )


def test_macros_over_several(con: Any, several: dict[str, Repository]) -> None:
    """Macros that need one repository are told which; boxes are looked for in all."""
    attach(con, several, "w")
    label = LABELS[1]
    parent = several[label].lookup_snapshot(several[label].lookup_branch("main")).parent_id
    boxes = con.execute(
        "SELECT repository, count(*) FROM w.chunks_in('/a0', [1], [4]) GROUP BY ALL ORDER BY 1 DESC"
    )

    assert boxes.fetchall() == [("one", 3), (label, 3)]
    assert con.execute("SELECT w.chunk_of($1, '/a0', [10])", [label]).fetchall() == [([10],)]
    assert con.execute("SELECT w.chunk_of('one', '/a0', [10])").fetchall() == [(None,)]
    quoted = label.replace("'", "''")
    changes = con.execute(
        "SELECT repository, change, count(*) "
        f"FROM w.changes('{quoted}', '{parent}', 'main') GROUP BY ALL ORDER BY 2"
    ).fetchall()
    assert changes == [(label, "chunk_added", 11), (label, "created", 1)]
    grow(several["one"], "new", 5)
    refresh(con, "w")
    assert con.execute("SELECT count(*) FROM w.chunks").fetchall() == [(47,)]
    detach(con, "w")


@pytest.mark.parametrize(
    "folder",
    [
        "length=5",
        "coord=x/array_id=7",
        "a[1]",
        "a*",
        "a?b",
        "it's",
        'quo"te',
        "semi;colon",
        "new\nline",
        "per%20cent",
        "ß🎈 ",
    ],
)
def test_paths_are_plain_names(con: Any, tmp_path: Path, folder: str) -> None:
    """Whatever a folder is called, its own files are read and no others; columns are the files' own."""
    (tmp_path / "a1").mkdir()
    grow(new_repository(tmp_path / "a1" / "r"), "other", 3)
    repository = new_repository(tmp_path / folder / "r")
    grow(repository, "a")
    attach(con, repository, f"{folder}'; DROP TABLE x")
    schema = '"' + f"{folder}'; DROP TABLE x".replace('"', '""') + '"'

    assert con.execute(f"SELECT count(*), sum(length) FROM {schema}.chunks").fetchall() == [
        (10, 24)
    ]
    assert con.execute(f"SELECT DISTINCT path FROM {schema}.chunks").fetchall() == [("/a",)]
    con.execute(icechunk_arrow.duckdb.sql_script(repository, "script"))
    assert con.execute("SELECT count(*), sum(length) FROM script.chunks").fetchall() == [(10, 24)]
    assert con.execute("SELECT count(*) FROM script.operations").fetchall() == [(12,)]
    refresh(con, f"{folder}'; DROP TABLE x")
    detach(con, f"{folder}'; DROP TABLE x")


@pytest.mark.parametrize(
    "name", ["main'); DROP SCHEMA w; --", STRANGE, "../../etc", "x" * 300, "\0", ""]
)
def test_words_for_snapshots_are_data(con: Any, repository: Repository, name: str) -> None:
    """What ``changes`` is asked for is looked up as a name, and nothing else."""
    attach(con, repository, "w")
    con.register("given", pa.table({"name": [name]}))
    quoted = name.replace("'", "''").replace("\0", "' || chr(0) || '")
    with pytest.raises(duckdb.Error, match="is no snapshot, branch or tag"):
        con.execute(f"SELECT * FROM w.changes('{quoted}', 'main')").fetchall()
    assert count(con) == 10


def test_virtual_locations_are_data(con: Any, repository: Repository) -> None:
    """Locations with everything that SQL and globs know come out as they went in."""
    session = repository.writable_session("main")
    places = [f"s3://bucket/{c}'\";--[x]*?{{}}%20$" for c in "abc"]
    refer(session, "/a", [(n,) for n in range(3)], location=places)
    session.commit("strange")
    attach(con, repository, "w")

    found = con.execute(
        "SELECT location FROM w.chunks WHERE index[1] < 3 ORDER BY coord"
    ).fetchall()
    assert found == [(place,) for place in places]
    assert len(con.execute("SELECT * FROM w.files WHERE location = ?", [places[0]]).fetchall()) == 1


def test_without_duckdb_it_says_so(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that are SQL say what to install; the others need nothing."""
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert repository.tables("nodes").num_rows == 2
    with pytest.raises(InvalidInputError, match=r"pip install 'icechunk-arrow\[duckdb\]'"):
        repository.tables("chunks")


def test_there_is_no_such_table(repository: Repository) -> None:
    """An unknown table is refused with those that there are."""
    with pytest.raises(InvalidInputError, match="there are nodes, manifests"):
        repository.tables("chunk")
    with pytest.raises(InvalidInputError, match="since goes with the table 'changes'"):
        repository.tables("chunks", since="main")
