# ruff: noqa: S608  (making SQL is what this does; the dialect quotes, tests/sql attack it)
"""How DuckDB and Spark spell SQL, side by side, and the SQL texts of this package.

Whatever makes a query takes a dialect, and asks no further for which engine it is. What comes from a repository is
never anything but one name or one value in it.

Texts name relations and macros in braces, ``{chunk_rows}``; what runs them says what stands for each in an
engine. Nothing else of a text is ever filled in: values go in as quoted literals under such a name. Texts are
found in an installed package and in a checkout alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["DUCKDB", "SPARK", "Dialect", "fill", "list_sql", "read_sql", "statement"]

_NAME = re.compile(r"\{([a-z_][a-z0-9_]*)\}")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_HARMLESS = re.compile(r"[A-Za-z0-9_/.: =-]*")


@cache
def _folder() -> Path:
    package = Path(__file__).parents[1]
    for place in (package / "sql", package.parent / "sql"):
        if (place / "tables").is_dir():
            return place
    raise InvalidInputError(
        f"the SQL texts of icechunk_arrow are neither in {package} nor beside it: the installation is "
        f"not complete; install the package again"
    )


def list_sql(folder: str) -> list[str]:
    """Names of the texts in one folder of ``sql/``, sorted."""
    return sorted(each.name for each in (_folder() / folder).glob("*.sql"))


@cache
def read_sql(name: str) -> str:
    """Read a text as it stands, such as ``tables/chunks.sql``."""
    return (_folder() / name).read_text(encoding="utf-8")


@cache
def statement(name: str) -> str:
    """Read a text without the comments at its beginning, and without a semicolon at its end."""
    lines = read_sql(name).splitlines()
    while lines and (not lines[0] or lines[0].startswith("--")):
        del lines[0]
    return "\n".join(lines).rstrip().rstrip(";")


def fill(text: str, names: Mapping[str, str]) -> str:
    """Put what stands for each name into a text; a name that is not given is a ``KeyError``."""
    return _NAME.sub(lambda match: names[match[1]], text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Words of an engine, and what is made of them alike for all."""

    text: Callable[[str], str]
    """Quotes a text."""
    quote: str
    """What stands around a name, and twice for itself within one."""
    types: Mapping[pa.DataType, str]
    """Types that have no parts."""
    list_type: str
    struct_type: str
    struct_member: str
    item_at: str
    """The function for the item of a list at a place from 1, null if there is none."""
    signed: str
    """An expression that makes a BIGINT of an unsigned column ``{0}`` of 64 bits, or fails; ``{1}`` is its name."""
    file_columns: str
    """What is made of a file's name where a query reads manifests with it: the column ``manifest`` at least."""
    joins_files: bool
    """Whether names of files cost nothing, and those that a join compares leave out files."""

    def identifier(self, *names: str) -> str:
        """Quote the name of a schema, relation or column; several are each within the one before."""
        mark = self.quote
        return ".".join(mark + name.replace(mark, mark + mark) + mark for name in names)

    def type(self, kind: pa.DataType) -> str:
        """Name the type of a column of our tables, or of a manifest."""
        if kind in self.types:
            return self.types[kind]
        if pa.types.is_list(kind):
            return self.list_type.format(self.type(kind.value_type))
        fields = (kind.field(place) for place in range(kind.num_fields))
        members = (
            self.struct_member.format(self.identifier(each.name), self.type(each.type))
            for each in fields
        )
        return self.struct_type.format(", ".join(members))

    def columns(self, schema: pa.Schema) -> str:
        """List the columns of a schema and their types, as a declaration does."""
        return ", ".join(f"{self.identifier(each.name)} {self.type(each.type)}" for each in schema)

    def null(self, kind: pa.DataType) -> str:
        """Write a null of a type."""
        return f"CAST(NULL AS {self.type(kind)})"

    def no_rows(self, schema: pa.Schema) -> str:
        """Write a query that gives columns and no rows."""
        listed = (f"{self.null(each.type)} AS {self.identifier(each.name)}" for each in schema)
        return f"SELECT {', '.join(listed)} WHERE false"

    def repositories(self, queries: Mapping[str, str]) -> str:
        """Unite queries for repositories by their names, with a first column ``repository``."""
        return "\nUNION ALL\n".join(
            f"SELECT CAST({self.text(label)} AS {self.types[pa.string()]}) AS repository, t.* FROM ({query}) AS t"
            for label, query in queries.items()
        )


# -- DuckDB


def _duckdb_text(value: str) -> str:
    """Quote a text; what would break a line, or end the text for a careless reader, stands as its number."""
    if not _CONTROLS.search(value):
        return "'" + value.replace("'", "''") + "'"
    parts = re.split(f"({_CONTROLS.pattern})", value)
    written = [
        f"chr({ord(part)})" if place % 2 else _duckdb_text(part)
        for place, part in enumerate(parts)
        if part
    ]
    return "(" + " || ".join(written) + ")"


DUCKDB = Dialect(
    text=_duckdb_text,
    quote='"',
    types={
        pa.string(): "VARCHAR",
        pa.int64(): "BIGINT",
        pa.uint64(): "UBIGINT",
        pa.float64(): "DOUBLE",
        pa.bool_(): "BOOLEAN",
        pa.binary(): "BLOB",
        pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
    },
    list_type="{}[]",
    struct_type="STRUCT({})",
    struct_member="{} {}",
    item_at="list_extract",
    signed="CAST({0} AS BIGINT)",
    file_columns="parse_filename(filename, true) AS manifest, filename AS file",
    joins_files=True,
)


# -- Spark


def _spark_text(value: str) -> str:
    """Write a text; one with other than harmless characters as its bytes.

    Spark replaces ``${…}`` in statements, and a setting decides what a backslash means in a literal.
    """
    if _HARMLESS.fullmatch(value):
        return f"'{value}'"
    return f"cast(X'{value.encode().hex()}' AS STRING)"


SPARK = Dialect(
    text=_spark_text,
    quote="`",
    types={
        pa.string(): "STRING",
        pa.int64(): "BIGINT",
        pa.uint32(): "BIGINT",
        pa.uint64(): "DECIMAL(20,0)",
        pa.float64(): "DOUBLE",
        pa.bool_(): "BOOLEAN",
        pa.binary(): "BINARY",
        pa.timestamp("us", "UTC"): "TIMESTAMP",
    },
    list_type="ARRAY<{}>",
    struct_type="STRUCT<{}>",
    struct_member="{}: {}",
    item_at="try_element_at",
    # a session may be told not to check its casts
    signed="CASE WHEN {0} > 9223372036854775807 THEN raise_error('{1} is above what a BIGINT holds') "
    "ELSE CAST({0} AS BIGINT) END",
    file_columns="replace(file, '.parquet', '') AS manifest",
    joins_files=False,
)
