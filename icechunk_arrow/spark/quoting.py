# ruff: noqa: S608  (making SQL is what this does; tests/sql attack it)
"""Names, values, rows and paths as Spark takes them: what a repository holds is never anything but one of these."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.tables.sql import SPARK

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "file_pattern",
    "identifier",
    "is_readable",
    "json_text",
    "rows_text",
    "spark_root",
    "text",
]

_HARMLESS = re.compile(r'[A-Za-z0-9_/.: =,{}\[\]"()+-]*')
_WILD = re.compile(r"([\\*?\[\]{}])")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

identifier, text = SPARK.identifier, SPARK.text


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
        return SPARK.no_rows(table.schema)
    names = [f"c{place}" for place in range(table.num_columns)]
    columns = [_Plain(table[each.name].to_pylist(), each.type) for each in table.schema]
    rows = json_text(
        [
            dict(zip(names, row, strict=True))
            for row in zip(*(each.values for each in columns), strict=True)
        ],
        "ARRAY<STRUCT<{}>>".format(
            ", ".join(f"{name} {each.kind}" for name, each in zip(names, columns, strict=True))
        ),
    )
    listed = ", ".join(
        f"{each.again.format(name)} AS {identifier(field.name)}"
        for name, each, field in zip(names, columns, table.schema, strict=True)
    )
    return f"SELECT {listed} FROM (SELECT inline({rows}))"


class _Plain:
    """A column in values that JSON and Spark agree on."""

    def __init__(self, values: Sequence[Any], kind: pa.DataType) -> None:
        self.values, self.kind, self.again = values, SPARK.type(kind), "{}"
        if pa.types.is_binary(kind):
            self.values = [None if each is None else each.hex() for each in values]
            self.kind, self.again = "STRING", "unhex({})"
        elif pa.types.is_timestamp(kind):
            moment = timedelta(microseconds=1)
            self.values = [None if each is None else (each - _EPOCH) // moment for each in values]
            self.kind, self.again = "BIGINT", "timestamp_micros({})"


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
