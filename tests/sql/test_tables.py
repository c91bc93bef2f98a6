"""Every table has the rows that a slow model finds, in declared columns: Arrow, views and script."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest

import icechunk_arrow.duckdb
from icechunk_arrow.duckdb import sql_script
from icechunk_arrow.tables.schemas import TABLES
from tests.sql.model import Model, in_order
from tests.sql.repositories import Filled, fill

NOT_OF_THE_MODEL = {"manifest_set", "fill"}
SNAPSHOT_TABLES = [name for name in TABLES if name != "changes"]


@pytest.fixture(scope="module", params=["narrow", "wide"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    folder = tmp_path_factory.mktemp("tables") / "it's [a] *; folder"
    return fill(folder, wide=request.param == "wide")


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return in_order(
        [{k: v for k, v in row.items() if k not in NOT_OF_THE_MODEL} for row in table.to_pylist()]
    )


def by_view(con: Any, query: str, name: str) -> pa.Table:
    """Rows of a view in declared types; a view with others does not pass."""
    table = con.sql(query).to_arrow_table()
    schema = TABLES[name]
    assert table.column_names == schema.names
    assert [_plain(field.type) for field in table.schema] == [
        _plain(field.type) for field in schema
    ]
    return table.cast(schema)


def _plain(kind: pa.DataType) -> str:
    """A type without the names of list items and of the zone, which DuckDB chooses."""
    if pa.types.is_list(kind):
        return f"list<{_plain(kind.value_type)}>"
    if pa.types.is_struct(kind):
        fields = (kind.field(i) for i in range(kind.num_fields))
        return "struct<" + ", ".join(f"{each.name}: {_plain(each.type)}" for each in fields) + ">"
    return "time" if pa.types.is_timestamp(kind) and kind.tz else str(kind)


@pytest.mark.parametrize("name", SNAPSHOT_TABLES)
def test_arrow_tables_hold_what_is_in_the_files(filled: Filled, name: str) -> None:
    """``repo.tables`` gives every row of the newest snapshot, in declared columns and types."""
    table = filled.repository.tables(name)
    table.validate(full=True)

    assert table.schema.equals(TABLES[name])
    assert rows_of(table) == in_order(Model(filled.root).table(name, filled.snapshots[-1]))
    assert rows_of(filled.repository.readonly_session("main").table(name)) == rows_of(table)


@pytest.mark.parametrize("name", SNAPSHOT_TABLES)
def test_views_hold_the_same(filled: Filled, name: str) -> None:
    """The views of ``attach`` have the rows, columns and types of the Arrow tables."""
    con = duckdb.connect()
    icechunk_arrow.duckdb.attach(con, filled.repository, "weather")
    table = by_view(con, f"SELECT * FROM weather.{name}", name)

    assert rows_of(table) == in_order(Model(filled.root).table(name, filled.snapshots[-1]))
    con.close()


def test_the_script_holds_the_same(filled: Filled) -> None:
    """A DuckDB that runs the generated script has all these views too."""
    con = duckdb.connect()
    con.execute(sql_script(filled.root, 'a "name"; of its own'))
    for name in SNAPSHOT_TABLES:
        table = by_view(con, f'SELECT * FROM "a ""name""; of its own".{name}', name)
        assert rows_of(table) == in_order(Model(filled.root).table(name, filled.snapshots[-1])), (
            name
        )
    con.close()


@pytest.mark.parametrize("name", ["chunks", "arrays", "nodes", "files", "manifests", "operations"])
def test_every_snapshot_has_its_tables(filled: Filled, name: str) -> None:
    """Time travel: each snapshot of the history, by its id."""
    for snapshot in filled.snapshots[:-1]:
        table = filled.repository.tables(name, snapshot_id=snapshot)
        assert rows_of(table) == in_order(Model(filled.root).table(name, snapshot))


@pytest.mark.parametrize(
    ("before", "after"), [(0, -1), (-1, 0), (1, 2), (2, 3), (3, 4), (4, 5), (5, 2), (3, 3)]
)
def test_changes_are_what_differs(filled: Filled, before: int, after: int) -> None:
    """Nodes and chunks that differ between two snapshots, in either direction; moves between manifests are none."""
    old, new = filled.snapshots[before], filled.snapshots[after]
    expected = in_order(Model(filled.root).changes(old, new))
    table = filled.repository.tables("changes", snapshot_id=new, since=old)
    con = duckdb.connect()
    icechunk_arrow.duckdb.attach(con, filled.repository, "weather", tag="after chunks")
    con.execute(sql_script(filled.root, "script", snapshot_id=new, since=old))
    by_macro = [
        by_view(con, f"SELECT * FROM {schema}.changes('{old}', '{new}')", "changes")
        for schema in ("weather", "script")
    ]
    con.close()

    assert table.schema.equals(TABLES["changes"])
    assert rows_of(table) == expected
    assert [rows_of(each) for each in by_macro] == [expected, expected]


def test_changes_are_since_the_parent(filled: Filled) -> None:
    """Without another snapshot, changes are those of the last commit; branches and tags can be named."""
    repository, model = filled.repository, Model(filled.root)

    assert rows_of(repository.tables("changes")) == in_order(
        model.changes(filled.snapshots[-2], filled.snapshots[-1])
    )
    assert rows_of(repository.tables("changes", since="after chunks")) == in_order(
        model.changes(filled.snapshots[2], filled.snapshots[-1])
    )
    assert repository.tables("changes", since="side; drop", tag="after chunks").num_rows > 0
    assert repository.tables("changes", snapshot_id=filled.snapshots[0]).num_rows == 0


def test_manifests_know_their_set(filled: Filled) -> None:
    """Each manifest is of a set that there is, and filled by its rows over the set's limit."""
    rows = filled.repository.tables("manifests").to_pylist()

    assert {row["manifest_set"] for row in rows} == {"default"}
    assert all(row["fill"] == row["row_count"] / 12 for row in rows)


def test_the_repository_has_everything(filled: Filled) -> None:
    """What is compared is no empty promise: all kinds, shared and many manifests, and both widths."""
    rows = filled.repository.tables("manifests").to_pylist()
    arrays = {row["path"]: row for row in filled.repository.tables("arrays").to_pylist()}
    kinds = set(filled.repository.tables("chunks")["kind"].to_pylist())
    operations = set(filled.repository.tables("operations")["operation"].to_pylist())

    assert max(row["array_count"] for row in rows) > 2
    assert arrays["/virtual"]["manifests"] > 8
    assert kinds == {"inline", "native", "virtual"}
    assert arrays["/empty"]["chunk_count"] == arrays["/no size"]["grid_chunk_count"] == 0
    assert len(operations) == 9
    changed = {
        row["change"]
        for row in Model(filled.root).changes(filled.snapshots[2], filled.snapshots[3])
    }
    assert changed >= {
        "deleted",
        "moved",
        "metadata",
        "attributes",
        "chunk_removed",
        "chunk_replaced",
    }
