"""Two dialects spell the same things: names, texts and types come back from the engines as they went in."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from icechunk_arrow.tables.schemas import CHUNK_ROWS, GRID_RUNS, INVENTORY, MANIFEST_ROWS, TABLES
from icechunk_arrow.tables.sql import DUCKDB, SPARK, Dialect
from tests.sql.repositories import STRANGE

TEXTS = [
    "",
    "plain",
    "it's",
    'quo"te',
    "back`tick",
    "a\\b",
    "${x}",
    "new\nline\u2028",
    "ß🎈",
    STRANGE,
]
SCHEMAS = {
    **TABLES,
    "entries": INVENTORY,
    "manifest_rows": MANIFEST_ROWS,
    "chunk_rows": CHUNK_ROWS,
    "grid_runs": GRID_RUNS,
}


def test_texts_and_names_are_data() -> None:
    """DuckDB gives every text back, under every name."""
    listed = ", ".join(f"{DUCKDB.text(each)} AS {DUCKDB.identifier(each or ' ')}" for each in TEXTS)
    with duckdb.connect() as con:
        found = con.sql(f"SELECT {listed}")
        assert found.columns == [each or " " for each in TEXTS]
        assert found.fetchall() == [tuple(TEXTS)]
        assert con.sql(DUCKDB.repositories(dict.fromkeys(TEXTS, "SELECT 1 AS n"))).fetchall() == [
            (each, 1) for each in TEXTS
        ]


@pytest.mark.spark
def test_texts_and_names_are_data_to_spark(spark: Any) -> None:
    """So does Spark, which replaces and escapes within statements."""
    listed = ", ".join(
        f"{SPARK.text(each)} AS {SPARK.identifier(f'c{n}`')}" for n, each in enumerate(TEXTS)
    )
    [row] = spark.sql(f"SELECT {listed}").collect()
    assert list(row) == TEXTS
    rows = spark.sql(SPARK.repositories(dict.fromkeys(TEXTS, "SELECT 1 AS n"))).collect()
    assert [tuple(each) for each in rows] == [(each, 1) for each in TEXTS]


@pytest.mark.parametrize("name", SCHEMAS)
def test_types_are_named(name: str) -> None:
    """A table that DuckDB makes of a schema, and a query without rows, have its types."""
    schema = SCHEMAS[name]
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE t ({DUCKDB.columns(schema)})")
        for query in ("FROM t", DUCKDB.no_rows(schema)):
            found = con.sql(query).to_arrow_table()
            assert found.column_names == schema.names
            assert found.cast(schema).num_rows == 0


@pytest.mark.spark
def test_types_are_named_to_spark(spark: Any) -> None:
    """The same in Spark."""
    for schema in SCHEMAS.values():
        declared = spark.createDataFrame([], SPARK.columns(schema)).schema
        assert spark.sql(SPARK.no_rows(schema)).schema == declared
        assert spark.sql(SPARK.no_rows(schema)).toArrow().cast(schema).num_rows == 0


@pytest.mark.parametrize("dialect", [DUCKDB, SPARK])
def test_parts_of_a_name_are_quoted_apart(dialect: Dialect) -> None:
    """A dot within a name is part of it."""
    mark = dialect.quote
    assert dialect.identifier("a.b", mark) == f"{mark}a.b{mark}.{mark * 4}"
