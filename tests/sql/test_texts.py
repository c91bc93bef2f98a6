"""The SQL texts are described, found, and filled with names only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from icechunk_arrow.tables.schemas import CHUNK_TABLES, TABLES
from icechunk_arrow.tables.sql import fill, list_sql, read_sql, statement

FOLDER = Path(__file__).parent.parent.parent / "sql"
TEXTS = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.sql"))
README = (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("name", TEXTS)
def test_texts_have_headers(name: str) -> None:
    """Each says its purpose, engines, and columns, in lines that can be read; and has one statement, or macros."""
    text = read_sql(name)
    for fact in ("purpose", "engines", "columns"):
        assert re.search(rf"^-- {fact}: +\S", text, re.MULTILINE), fact
    assert max(map(len, text.splitlines())) <= 120
    assert "--" not in statement(name)


@pytest.mark.parametrize("name", [*CHUNK_TABLES, "changes"])
def test_headers_name_the_columns(name: str) -> None:
    """A table's text lists its columns as the schema has them."""
    listed = re.search(r"-- columns: +(.*?)\n(?!-- {5})", read_sql(f"tables/{name}.sql"), re.DOTALL)
    assert listed is not None
    assert re.findall(r"\w+", listed[1].replace("\n--", "")) == TABLES[name].names


@pytest.mark.parametrize("name", TABLES)
def test_the_readme_names_the_columns(name: str) -> None:
    """So does the page about them."""
    line = re.search(rf"^\| `{name}` \|[^|]*\|([^|]*)\|$", README, re.MULTILINE)
    assert line is not None
    assert [each.strip() for each in line[1].split(",")] == TABLES[name].names


def test_every_text_is_found() -> None:
    """Folders list their texts."""
    assert [
        f"{folder}/{each}"
        for folder in ("inspect", "macros", "tables")
        for each in list_sql(folder)
    ] == TEXTS


def test_only_names_are_filled() -> None:
    """What is filled in is not looked at again, and an unknown name is an error."""
    assert fill("SELECT '{3}' FROM {a}", {"a": "{b}"}) == "SELECT '{3}' FROM {b}"
    with pytest.raises(KeyError):
        fill("{unknown}", {})
