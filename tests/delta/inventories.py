"""Published tables against repositories, and a reader of Delta tables that knows nothing but the protocol."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import duckdb

from icechunk_arrow.tables.schemas import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from icechunk_arrow import Repository

__all__ = ["COLUMNS", "check_shows", "rows_of_repository", "rows_of_table", "rows_read_by_duckdb"]

COLUMNS = [name for name in TABLES["chunks"].names if name != "snapshot"]


def _plain(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(map(str, (row[name] for name in COLUMNS))) for row in rows)


def rows_of_repository(repo: Repository, snapshot_id: str) -> list[tuple[Any, ...]]:
    """Give the rows of an inventory as the repository has them."""
    table = repo.readonly_session(snapshot_id=snapshot_id).table("chunks")
    return _plain(table.to_pylist())


def rows_of_table(
    spark: Any, table: Path | str, repository: str, version: int | None = None
) -> list[tuple[Any, ...]]:
    """Give the rows of a repository in a Delta table as Spark reads it."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    frame = reader.table(table) if isinstance(table, str) else reader.load(str(table))
    found = frame.toArrow().to_pylist()
    return _plain([row for row in found if row["repository"] == repository])


def rows_read_by_duckdb(table: Path) -> list[tuple[Any, ...]]:
    """Give all rows as DuckDB reads the files that the log says are there."""
    live: dict[str, None] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                live[action["add"]["path"]] = None
            if "remove" in action:
                del live[action["remove"]["path"]]
    if not live:
        return []
    files = [str(table / unquote(path)) for path in live]
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    found = con.sql("FROM read_parquet($1)", params=[files])
    return _plain(found.to_arrow_table().to_pylist())


def check_shows(
    spark: Any, table: Path | str, repo: Repository, snapshot_id: str, name: str | None = None
) -> None:
    """Compare a table's rows of a repository with the repository's own."""
    found = rows_of_table(spark, table, repo.url if name is None else name)

    assert found == rows_of_repository(repo, snapshot_id)
