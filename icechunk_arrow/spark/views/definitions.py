# ruff: noqa: S608  (making SQL is what this does; quoting.py quotes, tests/sql attack it)
"""The texts that make temporary views with the tables of repositories: the same for a session and for a script.

Owns which views and functions there are and how they build on each other. The texts are in ``sql/``; a
:class:`Maker` says how files and small tables become relations, and what becomes of a statement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.manifest_columns import IN_TABLES
from icechunk_arrow.formats.manifest import schema_of
from icechunk_arrow.spark.quoting import identifier, json_text, rows_text, spark_type, text
from icechunk_arrow.spark.views.known import KNOWN_TYPE
from icechunk_arrow.sql_texts import fill, statement
from icechunk_arrow.tables.scans import FORM, kind_and_location
from icechunk_arrow.tables.schemas import OVER_CHUNKS, TABLES, with_repository

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from icechunk_arrow.core.manifest_columns import Column
    from icechunk_arrow.tables.manifests import Entries
    from icechunk_arrow.tables.scans import Scan

__all__ = [
    "CHUNK_ROWS",
    "Maker",
    "Rows",
    "array_rows",
    "chunk_rows",
    "coordinate_statements",
    "define",
    "drop_statements",
    "form_of",
    "manifest_rows",
    "names_of",
    "pathed_rows",
    "place_statements",
    "view_name",
]

_FUNCTIONS = (
    *("coord_octets", "coord_encode", "coord_decode"),
    *("chunk_along", "without_nulls", "chunk_along_all", "chunk_of"),
    *("first_coord", "behind_coord", "chunks_in"),
)
_KNOWN = "known"
_LARGEST = 2**63 - 1
_ROWS = pa.schema(
    [
        ("node_id", pa.int64()),
        ("coord", pa.binary()),
        ("kind", pa.string()),
        ("location", pa.string()),
        *((each.name, each.in_tables) for each in IN_TABLES[1:]),
        ("inline_data", pa.binary()),
    ]
)
_PATH_ROWS = pa.schema([("path", pa.string()), *_ROWS])
CHUNK_ROWS = pa.schema(
    [("path", pa.string()), ("index", pa.list_(pa.int64())), *_ROWS, ("manifest", pa.string())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Relations that have the rows of manifests of one form, as they are on disk."""

    plain: str
    with_file: str
    """With a column ``file``, the name of the file. It costs a little for each row."""
    form: int


class Maker(ABC):
    """Takes what makes views: does it in a session, or writes it down."""

    checked: bool
    """Whether it is known that casts which do not fit are errors."""

    @abstractmethod
    def table(self, rows: pa.Table) -> str:
        """Make a relation of a small table."""

    @abstractmethod
    def rows(self, root: str, manifests: Sequence[str], form: int) -> Rows:
        """Make relations of manifests."""

    @abstractmethod
    def view(self, name: str, query: str) -> None:
        """Make or replace a view."""

    @abstractmethod
    def run(self, command: str) -> None:
        """Do something else."""


def view_name(name: str, table: str) -> str:
    """Say what the view of a table is called."""
    return identifier(f"{name}_{table}")


def names_of(name: str) -> dict[str, str]:
    """Say what the functions are called that go with an attached name."""
    return {each: identifier(f"{name}_{each}") for each in _FUNCTIONS}


def drop_statements(name: str) -> Iterator[str]:
    """Remove the functions, and what they know."""
    for each in reversed(_FUNCTIONS):
        yield f"DROP TEMPORARY FUNCTION IF EXISTS {names_of(name)[each]}"
    yield f"DROP TEMPORARY VARIABLE IF EXISTS {view_name(name, _KNOWN)}"


def _texts(name: str, names: Mapping[str, str]) -> list[str]:
    """Give the statements of a text; Spark takes one at a time."""
    return fill(statement(f"macros/{name}.spark.sql"), names).split(";\n")


# -- rows of manifests


def form_of(entries: Entries, scan: Scan) -> int:
    """Tell which form on disk the manifests of a scan have."""
    place = entries.manifests.index(scan.manifests[0])
    return int(entries.flags[np.flatnonzero(entries.codes == place)[0]]) & FORM


def _signed(column: str, form: int, *, checked: bool) -> str:
    """Bring a number to 64 bits with a sign, or fail, also where Spark is told not to check its casts."""
    if spark_type(schema_of(form).field(column).type) == "BIGINT":
        return column
    if checked:
        return f"CAST({column} AS BIGINT) AS {column}"
    wrong = text(f"{column} is above what a BIGINT holds")
    return (
        f"CASE WHEN {column} > {_LARGEST} THEN raise_error({wrong}) ELSE CAST({column} AS BIGINT) END "
        f"AS {column}"
    )


def _of_manifest(column: Column, scan: Scan, form: int, *, checked: bool) -> str:
    """Take a column over from manifests, as it is in the tables."""
    if not column.is_in(scan.form):
        return f"CAST(NULL AS {spark_type(column.in_tables)}) AS {column.name}"
    return (
        column.name
        if column.type == column.in_tables
        else _signed(column.name, form, checked=checked)
    )


def _scan(
    scan: Scan, rows: Rows, root: str, *, checked: bool, more: str = "", manifest: bool = False
) -> str:
    """Read the manifests of one scan; unsigned numbers get a sign."""
    kind, location = kind_and_location(scan, text(root + "/c/"))
    owner = scan.owner
    columns = [
        f"{'CAST(array_id AS BIGINT)' if owner is None else f'{owner.node_id}L'} AS node_id",
        "coord",
        f"{kind} AS kind",
        f"{location} AS location",
        *(_of_manifest(each, scan, rows.form, checked=checked) for each in IN_TABLES[1:]),
        "inline_data" if scan.has_inline else "CAST(NULL AS BINARY) AS inline_data",
    ]
    if not manifest:
        return f"SELECT {more}{', '.join(columns)} FROM {rows.plain}"
    columns.append("replace(file, '.parquet', '') AS manifest")
    # a query without the column manifest would else read all that Spark knows of a file, numbers of rows too
    return f"SELECT {more}{', '.join(columns)} FROM {rows.with_file} WHERE file <> ''"


def _united(queries: Sequence[str], schema: pa.Schema) -> str:
    found = "\nUNION ALL\n".join(queries) or rows_text(schema.empty_table())
    return f"({found})"


def manifest_rows(scans: Mapping[Scan, Rows], root: str, *, checked: bool) -> str:
    """Read manifests, all arrays together, without their paths."""
    return _united(
        [_scan(scan, rows, root, checked=checked) for scan, rows in scans.items()], _ROWS
    )


def array_rows(scans: Mapping[Scan, Rows], root: str, paths: str, *, checked: bool) -> str:
    """Read manifests with the paths of their arrays, to be counted: without places and names of files."""
    parts = [
        _scan(scan, rows, root, checked=checked, more=f"{text(scan.owner.path)} AS path, ")
        for scan, rows in scans.items()
        if scan.owner is not None
    ]
    shared = {scan: rows for scan, rows in scans.items() if scan.owner is None}
    if shared:
        found = manifest_rows(shared, root, checked=checked)
        parts.append(
            f"SELECT /*+ BROADCAST(p) */ p.path, r.* "
            f"FROM {found} AS r JOIN {paths} AS p ON p.node_id = r.node_id"
        )
    return _united(parts, _PATH_ROWS)


def chunk_rows(
    scans: Mapping[Scan, Rows], root: str, paths: str, names: Mapping[str, str], *, checked: bool
) -> str:
    """Read manifests with the paths of their arrays and the places of chunks."""
    index = f"{names['coord_decode']}(coord) AS index"
    parts = [
        _scan(
            *(scan, rows, root),
            checked=checked,
            more=f"{text(scan.owner.path)} AS path, {index}, ",
            manifest=True,
        )
        for scan, rows in scans.items()
        if scan.owner is not None
    ]
    shared = {scan: rows for scan, rows in scans.items() if scan.owner is None}
    if shared:
        parts.append(pathed_rows(shared, root, paths, names, checked=checked))
    return _united(parts, CHUNK_ROWS)


def pathed_rows(
    scans: Mapping[Scan, Rows], root: str, paths: str, names: Mapping[str, str], *, checked: bool
) -> str:
    """Read manifests with paths from a relation that has one for each ``node_id``."""
    parts = [
        _scan(scan, rows, root, checked=checked, manifest=True) for scan, rows in scans.items()
    ]
    return (
        f"SELECT /*+ BROADCAST(p) */ p.path, {names['coord_decode']}(r.coord) AS index, r.* "
        f"FROM {_united(parts, _ROWS)} AS r JOIN {paths} AS p ON p.node_id = r.node_id"
    )


# -- everything that an attached name has


def coordinate_statements(name: str) -> Iterator[str]:
    """Make the functions that know no repository."""
    for each in ("coord_encode", "coord_decode"):
        yield from _texts(each, names_of(name))


def define(
    maker: Maker,
    name: str,
    members: Mapping[str, Mapping[str, str]],
    known: Mapping[str, Mapping[str, Any]],
    *,
    united: bool,
) -> None:
    """Make all views of queries for each repository's tables, and the variable of what is known of its arrays."""
    for table in TABLES:
        queries = [
            f"SELECT {text(label)} AS repository, t.* FROM ({tables[table]}) AS t"
            if united
            else tables[table]
            for label, tables in members.items()
        ]
        maker.view(view_name(name, table), "\nUNION ALL\n".join(queries))
    kind = f"MAP<STRING, {KNOWN_TYPE}>" if united else KNOWN_TYPE
    value = known if united else next(iter(known.values()))
    maker.run(
        f"DECLARE OR REPLACE VARIABLE {view_name(name, _KNOWN)} {kind} DEFAULT {json_text(value, kind)}"
    )


def place_statements(name: str, *, united: bool) -> Iterator[str]:
    """Make the functions that use the variable and views, whatever these say later."""
    columns = OVER_CHUNKS["chunks"]
    variable = view_name(name, _KNOWN)
    names = names_of(name) | {
        "chunks": view_name(name, "chunks"),
        "columns": ", ".join(
            f"{identifier(each.name)} {spark_type(each.type)}"
            for each in (with_repository(columns) if united else columns)
        ),
        "which": "which STRING, " if united else "",
    }
    for each, repository in (("chunk_of", "which"), ("chunks_in", "c.repository")):
        place = f"try_element_at({variable}, {repository})" if united else variable
        yield from _texts(each, names | {"array": f"try_element_at({place}, array_path)"})
