# ruff: noqa: S608  (making SQL is what this does; tests/sql attack it)
"""Names, values and paths as Spark takes them: what comes from a repository is never anything but one of these."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "file_pattern",
    "identifier",
    "is_readable",
    "json_text",
    "rows_text",
    "spark_root",
    "spark_type",
    "text",
]

_PLAIN = re.compile(r"[A-Za-z0-9_/.: =-]*")
_HARMLESS = re.compile(r'[A-Za-z0-9_/.: =,{}\[\]"()+-]*')
_WILD = re.compile(r"([\\*?\[\]{}])")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES = {
    "string": "STRING",
    "int64": "BIGINT",
    "uint32": "BIGINT",
    "uint64": "DECIMAL(20,0)",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "binary": "BINARY",
    "timestamp[us, tz=UTC]": "TIMESTAMP",
}


def identifier(name: str) -> str:
    """Quote the name of a view or function."""
    return "`" + name.replace("`", "``") + "`"


def text(value: str) -> str:
    """Write a text; one with other than harmless characters as its bytes.

    Spark replaces ``${…}`` in statements, and a setting decides what a backslash means in a literal.
    """
    if _PLAIN.fullmatch(value):
        return f"'{value}'"
    return f"cast(X'{value.encode().hex()}' AS STRING)"


def json_text(value: Any, kind: str) -> str:
    """Write a value of any type by way of JSON, which Spark reads again; what does not fit the type is an error."""
    data = json.dumps(value, separators=(",", ":"))
    if _HARMLESS.fullmatch(data) and "--" not in data:
        written = f"'{data}'"
    else:
        written = f"cast(unbase64('{base64.b64encode(data.encode()).decode()}') AS STRING)"
    return f"from_json({written}, '{kind}', map('mode', 'FAILFAST'))"


def rows_text(table: pa.Table) -> str:
    """Write a query that gives the rows of a table."""
    if not table.num_rows:
        columns = (
            f"CAST(NULL AS {spark_type(each.type)}) AS {identifier(each.name)}"
            for each in table.schema
        )
        return f"SELECT {', '.join(columns)} WHERE false"
    values = zip(
        *(_plain_values(table[each.name].to_pylist(), each.type) for each in table.schema),
        strict=True,
    )
    kinds = (f"c{place} {_plain_type(each.type)}" for place, each in enumerate(table.schema))
    rows = json_text(
        [{f"c{place}": value for place, value in enumerate(row)} for row in values],
        f"ARRAY<STRUCT<{', '.join(kinds)}>>",
    )
    columns = (
        f"{_from_plain(f'c{place}', each.type)} AS {identifier(each.name)}"
        for place, each in enumerate(table.schema)
    )
    return f"SELECT {', '.join(columns)} FROM (SELECT inline({rows}))"


def _plain_values(values: Sequence[Any], kind: pa.DataType) -> Sequence[Any]:
    """Bring values into what JSON and Spark agree on."""
    if pa.types.is_binary(kind):
        return [None if each is None else each.hex() for each in values]
    if pa.types.is_timestamp(kind):
        return [
            None if each is None else (each - _EPOCH) // timedelta(microseconds=1)
            for each in values
        ]
    return values


def _plain_type(kind: pa.DataType) -> str:
    if pa.types.is_binary(kind):
        return "STRING"
    return "BIGINT" if pa.types.is_timestamp(kind) else spark_type(kind)


def _from_plain(column: str, kind: pa.DataType) -> str:
    if pa.types.is_binary(kind):
        return f"unhex({column})"
    return f"timestamp_micros({column})" if pa.types.is_timestamp(kind) else column


def spark_type(kind: pa.DataType) -> str:
    """Name a type of our tables, or of a column of a manifest, as Spark does."""
    name = str(kind)
    if name in _TYPES:
        return _TYPES[name]
    if name.startswith("list"):
        return f"ARRAY<{spark_type(kind.value_type)}>"
    fields = (kind.field(place) for place in range(kind.num_fields))
    return f"STRUCT<{', '.join(f'{identifier(each.name)}: {spark_type(each.type)}' for each in fields)}>"


def spark_root(root: str) -> str:
    """Give a repository's URI as Spark's file systems name it."""
    return "s3a" + root[2:] if root.startswith("s3://") else root


def file_pattern(path: str) -> str:
    """Write a path as a pattern that matches nothing but it."""
    return _WILD.sub(r"\\\1", path)


def is_readable(root: str) -> bool:
    """Tell whether Spark can read files below a place: it takes patterns apart wrongly at colons."""
    path = root.partition("://")[2]
    return ":" not in path or not _WILD.search(path)
