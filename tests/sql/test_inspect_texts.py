"""Headers of the inspection queries say all that there is to know, and what they say is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from icechunk_arrow import Repository
from icechunk_arrow.tables.inspections import find_inspection, list_inspections
from icechunk_arrow.tables.schemas import TABLES
from icechunk_arrow.tables.sql import list_sql, statement

FOLDER = Path(__file__).parent.parent.parent / "sql"
README = (FOLDER / "README.md").read_text()
OTHERS = {
    *("dimensions", "extents", "history_entries"),
    *("all_entries", "all_rows", "ref_snapshots", "live_files"),
}
ONE_ENGINE = r"\[|::|lambda|->|list_|unnest|explode|\bLIMIT\b|\bQUALIFY\b|\bVARCHAR\b|[\"`\\]"


@pytest.mark.parametrize("name", list_inspections())
def test_headers_are_complete(name: str) -> None:
    """Purpose, engines, relations, parameters and columns are there, and the text uses just these."""
    found = find_inspection(name)
    text = statement(f"inspect/{name}.sql")
    used = set(re.findall(r"\{([a-z_][a-z0-9_]*)\}", text))
    values = {each.name for each in found.parameters if each.kind != "snapshot"}

    assert len(found.purpose) > 20
    assert found.engines == ("DuckDB", "Spark")
    assert used - {"item_at"} == values | set(found.relations)
    assert set(found.relations) <= set(TABLES) | OTHERS
    assert not {each.name for each in found.parameters} & (set(TABLES) | OTHERS)
    for column in found.columns.names:
        assert re.search(rf"\b{column}\b", text), column
    for each in found.parameters:
        assert each.meaning
        assert each.required == (each.default is None and "= " not in each.line)


@pytest.mark.parametrize("name", list_inspections())
def test_texts_are_plain(name: str) -> None:
    """Nothing that only one of the engines understands."""
    text = re.sub(r"'[^']*'", "''", statement(f"inspect/{name}.sql"))
    assert re.findall(ONE_ENGINE, text) == []


def test_the_readme_names_them() -> None:
    """The page about SQL lists every query, and nothing else."""
    part = README.split("## Inspections")[1].split("## What is read")[0]
    table = part.split("|---|---|")[1].split("\n\n")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    assert sorted(re.findall(r"`(\w+)`", "".join(first))) == list_inspections()


def test_there_is_a_listing() -> None:
    """``repo.inspections`` has a row for each text."""
    rows = Repository.inspections().to_pylist()

    assert [f"{row['name']}.sql" for row in rows] == list_sql("inspect")
    [gaps] = [row for row in rows if row["name"] == "gaps"]
    assert gaps["parameters"][1] == "dimension  dimension = 0  number of the dimension, from 0"
    assert gaps["columns"][:3] == ["path", "dimension", "state"]
    assert gaps["engines"] == ["DuckDB", "Spark"]
