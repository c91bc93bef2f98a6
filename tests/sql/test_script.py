"""The generated script is all that a plain DuckDB needs, and says nothing that it should not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icechunk_arrow import InvalidInputError, Repository
from icechunk_arrow.duckdb import sql_script
from icechunk_arrow.tables.inspecting import made_relations
from icechunk_arrow.tables.inspections import (
    OBSERVED,
    checked_parameters,
    find_inspection,
    list_inspections,
)
from icechunk_arrow.tables.schemas import TABLES
from tests.sql.answers import ANSWERS, in_files
from tests.sql.model import Model, in_order
from tests.sql.repositories import STRANGE, fill, new_repository
from tests.sql.test_tables import NOT_OF_THE_MODEL, rows_of

if TYPE_CHECKING:
    from tests.sql.repositories import Filled

SQL = Path(__file__).parents[2] / "sql"

BEGIN = """
import json, re, sys
for name in ("icechunk_arrow", "zarr", "pyarrow", "fsspec", "numpy"):
    sys.modules[name] = None  # whoever imports it fails
import duckdb
con = duckdb.connect()
con.execute(open(sys.argv[1]).read())
"""
ALONE = (
    BEGIN
    + """
asked = [
    "SELECT path, chunk_count, stored_bytes, files FROM weather.arrays ORDER BY path",
    "SELECT count(*) FROM weather.chunks_in('/virtual', [2], [4])",
    "SELECT weather.chunk_of('/unequal', [9, 6]), weather.coord_decode(weather.coord_encode([1, 100]), 2)",
    "SELECT count(*) FROM weather.operations",
    "SELECT change, count(*) FROM weather.changes((SELECT %r), %r) GROUP BY 1 ORDER BY 1" % tuple(sys.argv[2:]),
]
print(json.dumps([con.execute(query).fetchall() for query in asked]))
"""
)
QUESTIONS = (
    BEGIN
    + """
for name, text, names, values in json.load(open(sys.argv[2])):
    query = re.sub("{([a-z_]+)}", lambda found: names[found[1]], open(text).read())
    con.sql(query, params=values or None).write_parquet(f"{sys.argv[3]}/{name}.parquet")
"""
)
ASKED: dict[str, dict[str, Any]] = {
    "changes_by_array": {"since": None},
    "coverage_by_file": {"path": f"/{STRANGE}/packed", "dimension": 0},
    "largest_chunks": {"path": None, "count": 50},
    "references_to": {"location": "s3://bucket/it's"},
    "virtual_storage": {"depth": 2},
}
"""Parameters of the inspections; others are asked with what they take if nothing is given."""


def test_it_works_without_this_package(tmp_path: Path) -> None:
    """DuckDB in a process where nothing else can be imported gives the model's numbers."""
    filled = fill(tmp_path / "r [1]", wide=False)
    script = tmp_path / "script.sql"
    script.write_text(sql_script(filled.repository, "weather"))
    parent, snapshot = filled.snapshots[-2:]
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(script), parent, snapshot],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    arrays, box, [[chunk, decoded]], operations, changes = json.loads(done.stdout)

    model = Model(filled.root)
    expected = sorted(model.arrays(snapshot), key=lambda row: row["path"])
    names = ("path", "chunk_count", "stored_bytes", "files")
    assert arrays == [[row[name] for name in names] for row in expected]
    assert box == [[60]]
    assert (chunk, decoded) == ([4, 2], [1, 100])
    assert operations == [[len(model.operations(snapshot))]]
    assert changes == [["chunk_replaced", 31]]


def run_alone(program: str, *arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("wide", [False, True])
def test_every_query_runs_without_this_package(tmp_path: Path, wide: bool) -> None:
    """DuckDB alone runs the texts of ``sql/``, on the script's views and on files, and finds the model's rows."""
    filled = fill(tmp_path / "it's [a] *; folder", wide=wide)
    (filled.root / "c" / "stray").write_bytes(b"abc")
    parent, snapshot = filled.snapshots[-2:]
    script, asked, out = (tmp_path / name for name in ("script.sql", "asked.json", "out"))
    script.write_text(sql_script(filled.repository, "weather"))
    out.mkdir()
    plan = [_table_query(tmp_path, name, parent, snapshot) for name in TABLES]
    plan += [_question(filled, tmp_path, name) for name in list_inspections()]
    asked.write_text(json.dumps(plan))
    run_alone(QUESTIONS, script, asked, out)

    model = Model(filled.root)
    for name, schema in TABLES.items():
        found = pq.read_table(out / f"table-{name}.parquet").cast(schema)
        assert rows_of(found) == in_order(model.table(name, snapshot, parent)), name
    for name, answer in ANSWERS.items():
        columns = find_inspection(name).columns
        given = _given(filled, name)
        if name == "changes_by_array":
            given = {"since": parent}
        found = pq.read_table(out / f"{name}.parquet").cast(columns)
        hidden = NOT_OF_THE_MODEL | ({"last_modified"} if name == "unreferenced_files" else set())
        rows = [{k: v for k, v in row.items() if k not in hidden} for row in found.to_pylist()]
        if name == "gaps":
            rows = [row for row in rows if row["path"] not in {"/far", "/too many"}]
        assert rows, name
        assert in_order(rows) == in_order(list(answer(model, snapshot, **given))), name


Query = tuple[str, str, dict[str, str], dict[str, Any]]


def _table_query(folder: Path, name: str, parent: str, snapshot: str) -> Query:
    """All rows of a table of the script."""
    text = folder / "table.sql"
    text.write_text("FROM {relation}")
    asked = f"weather.changes('{parent}', '{snapshot}')" if name == "changes" else f"weather.{name}"
    return f"table-{name}", str(text), {"relation": asked}, {}


def _given(filled: Filled, name: str) -> dict[str, Any]:
    if name == "changed_sources":
        locations = {row["location"] for row in in_files(Model(filled.root), filled.snapshots[-1])}
        rows = [{"location": each, "size_bytes": 15} for each in sorted(locations)]
        return {"observed_files": pa.Table.from_pylist(rows, schema=OBSERVED)}
    return ASKED.get(name, {})


def _question(filled: Filled, folder: Path, name: str) -> Query:
    """A query of ``sql/inspect``; what the script has no view of is put into files."""
    inspection = find_inspection(name)
    values = checked_parameters(inspection, _given(filled, name))
    made, held = made_relations(
        filled.repository._context, inspection, filled.snapshots[-1], values
    )
    if held is not None:
        rows = {
            (row["manifest"], row["node_id"], row["coord"]): row
            for each in filled.snapshots
            for row in filled.repository.tables("chunks", snapshot_id=each).to_pylist()
        }
        every_row = pa.Table.from_pylist(list(rows.values()), schema=TABLES["chunks"])
        made["all_rows"] = every_row
    names = {"item_at": "list_extract"} | {each: f"weather.{each}" for each in TABLES}
    if "changes" in made:
        parent, snapshot = filled.snapshots[-2:]
        names["changes"] = f"weather.changes('{parent}', '{snapshot}')"
        del made["changes"]
    for relation, table in made.items():
        file = folder / f"{name}-{relation}.parquet"
        pq.write_table(table, file)
        names[relation] = f"read_parquet('{file}')"
    bound = {}
    for parameter in inspection.parameters:
        if parameter.sql_type is not None:
            names[parameter.name] = f"CAST(${parameter.name} AS {parameter.sql_type})"
            bound[parameter.name] = values[parameter.name]
    return name, str(SQL / "inspect" / f"{name}.sql"), names, bound


def test_lines_are_lines(tmp_path: Path) -> None:
    """No control character of a name or message gets into the script: a shell reads its lines one by one."""
    filled = fill(tmp_path / "new\nline", wide=True)
    script = sql_script(filled.repository)
    forbidden = [c for c in script if ord(c) < 32 and c != "\n"]

    assert forbidden == []
    assert not [line for line in script.splitlines() if line.startswith(".")]
    assert STRANGE.replace("'", "''") not in script
    with pytest.raises(InvalidInputError, match="line"):
        sql_script(filled.repository, "a\n.shell name")


def test_a_place_that_no_script_can_read_is_refused() -> None:
    """What is in this process's memory stays there; and a script has one repository."""
    repository = new_repository("memory://script")
    with pytest.raises(InvalidInputError, match="memory"):
        sql_script(repository)
    several: Any = {"one": repository}
    with pytest.raises(InvalidInputError, match="one repository"):
        sql_script(several)


def test_a_file_that_has_gone_is_named(tmp_path: Path) -> None:
    """DuckDB itself says which file is not there, before any row."""
    filled = fill(tmp_path / "r [1]", wide=False)
    with duckdb.connect() as con:
        con.execute(sql_script(filled.repository, "weather"))
        live = filled.repository.tables("manifests")["manifest"].to_pylist()
        lost = filled.root / "i" / f"{min(live)}.parquet"
        lost.unlink()
        with pytest.raises(duckdb.Error, match=lost.name):
            con.execute("SELECT count(*) FROM weather.chunks").fetchall()


def test_empty_repositories_have_scripts(tmp_path: Path) -> None:
    """A repository without nodes, and one without chunks."""
    repository = Repository.create(tmp_path / "r")
    with duckdb.connect() as con:
        con.execute(sql_script(repository, "none"))
        for view in ("nodes", "chunks", "arrays", "files", "manifests", "operations"):
            assert con.execute(f"SELECT count(*) FROM none.{view}").fetchall() == [(0,)]
        [(first,)] = con.execute("SELECT snapshot FROM none.snapshots").fetchall()
        assert con.execute(f"SELECT * FROM none.changes('{first}', '{first}')").fetchall() == []
        with pytest.raises(duckdb.Error, match="this script knows the changes from"):
            con.execute(f"SELECT * FROM none.changes('{first}', 'main')").fetchall()
