"""The command that says what tables and files look like; it needs no repository."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from icechunk_arrow.cli.options import Format, RowsTo
from icechunk_arrow.cli.output import emit, emit_text, text_table
from icechunk_arrow.core.columns import from_values
from icechunk_arrow.engine.published import published
from icechunk_arrow.errors import InvalidInputError, NotFoundError
from icechunk_arrow.tables.schemas import TABLES

__all__ = ["schema", "schema_rows"]

_FILE_COLUMNS = pa.schema(
    [
        ("column", pa.string()),
        ("type", pa.string()),
        ("nullable", pa.bool_()),
        ("optional", pa.bool_()),
        ("description", pa.string()),
    ]
)


def schema(name: str | None, *, to: RowsTo) -> None:
    """Say which columns a table or a kind of file has, or which there are."""
    files = published()
    if name is None:
        rows = [{"name": each, "what": "table"} for each in TABLES]
        rows += [{"name": each, "what": _title(text)} for each, text in files.items()]
        emit(text_table(rows), to)
    elif name in TABLES:
        emit(schema_rows(TABLES[name]), to)
    elif name not in files:
        raise NotFoundError(
            f"there is no table or kind of file {name!r}; `icechunk-arrow schema` lists all"
        )
    elif to.form is Format.JSON or "columns" not in json.loads(files[name]):
        if to.form not in {Format.JSON, Format.TABLE}:
            raise InvalidInputError(f"{name} is a JSON Schema; it is given with --format json")
        emit_text(files[name], to.file)
    else:
        rows = [_file_column(each) for each in json.loads(files[name])["columns"]]
        columns = [
            from_values([row[field.name] for row in rows], field.type) for field in _FILE_COLUMNS
        ]
        emit(pa.Table.from_arrays(columns, schema=_FILE_COLUMNS), to)


def _title(text: str) -> str:
    members = json.loads(text)
    if "kind" in members:
        width = f", {members['width']}" if "width" in members else ""
        return f"{members['kind']}{width}: {members['files']}"
    return f"JSON: {members['title']}"


def _file_column(column: dict[str, Any]) -> dict[str, Any]:
    nested = ", ".join(each["name"] for each in column.get("children", []))
    return {
        "column": column["name"],
        "type": f"{column['type']}({nested})" if nested else column["type"],
        "nullable": column["nullable"],
        "optional": column["optional"],
        "description": "; ".join(column.get("metadata", {}).values()),
    }


def schema_rows(columns: pa.Schema) -> pa.Table:
    """Make a table of a schema: a row for each column."""
    rows = [
        {
            "column": field.name,
            "type": str(field.type),
            "description": (field.metadata or {}).get(b"description", b"").decode(),
        }
        for field in columns
    ]
    return text_table(rows)
