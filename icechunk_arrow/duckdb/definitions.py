"""The statements that make a schema with the tables of one repository: the same for a connection and a script.

Owns which relations and macros there are and how they build on each other. The texts are in ``sql/``; where files
and small tables come from is said by a :class:`Source`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from icechunk_arrow.core.manifest_columns import IN_TABLES
from icechunk_arrow.duckdb.quoting import identifier, text
from icechunk_arrow.sql_texts import fill, statement
from icechunk_arrow.tables.scans import kind_and_location
from icechunk_arrow.tables.schemas import FACTS, OVER_CHUNKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from icechunk_arrow.core.manifest_columns import Column
    from icechunk_arrow.tables.scans import Scan

__all__ = [
    "ENTRY_COLUMNS",
    "RUN_COLUMNS",
    "VIEWS",
    "Places",
    "Source",
    "change_query",
    "names_in",
    "no_rows",
    "pathed_rows_sql",
    "repository_statements",
    "rows_sql",
    "shared_statements",
    "sql_columns",
    "union_statements",
]

VIEWS = (*FACTS, *OVER_CHUNKS)
_SHARED = {
    name: name if name.startswith(("_", "coord")) else "_" + name
    for name in (
        *("coord_encode", "coord_decode", "decode_text"),
        *("decode_1", "decode_2", "decode_3", "decode_4"),
        *("_word", "_rest", "_bits2", "_bits3", "_cut"),
    )
}
"""Macros that are the same whatever the repository."""
_OWN = (
    *VIEWS,
    *("_entries", "_grid_runs"),
    *("chunk_of", "chunks_in", "changes"),
)
ENTRY_COLUMNS = (
    ("path", "VARCHAR"),
    ("node_id", "BIGINT"),
    ("ndim", "BIGINT"),
    ("manifest", "VARCHAR"),
    ("file", "VARCHAR"),
    ("row_count", "BIGINT"),
    ("starts", "BIGINT[]"),
    ("stops", "BIGINT[]"),
)
RUN_COLUMNS = (
    ("node_id", "BIGINT"),
    ("runs", "STRUCT(position BIGINT, chunk BIGINT, edge BIGINT)[][]"),
)


class Places(ABC):
    """Where manifests are."""

    root: str
    """URI of the repository."""

    @abstractmethod
    def files(self, scan: Scan) -> str:
        """Give the files of a scan as the first argument of ``read_parquet``."""


class Source(Places):
    """Where the files and the small tables of one snapshot come from."""

    snapshot: str

    @abstractmethod
    def fact(self, name: str) -> str:
        """Give a query for a table that needs no manifest."""

    @abstractmethod
    def changes(self) -> str:
        """Give a query for the changes between ``earlier`` and ``later``, the macro's parameters."""


def names_in(schema: str, prefix: str = "") -> dict[str, str]:
    """Say what stands for each name of the SQL texts, with a prefix for what is one repository's own.

    Here and below ``schema`` is quoted. With the name of its database before it macros work whatever database is in
    use, and where the database has the same name.
    """
    start = schema + "."
    own = {name.removeprefix("_"): start + identifier(prefix + name) for name in _OWN}
    return own | {name: start + identifier(macro) for name, macro in _SHARED.items()}


def sql_columns(schema: pa.Schema) -> list[tuple[str, str]]:
    """Give names and DuckDB's types of the columns of an Arrow schema."""
    return [(field.name, _type(field.type)) for field in schema]


def _type(arrow_type: pa.DataType) -> str:
    kind = str(arrow_type)
    simple = {
        "string": "VARCHAR",
        "int64": "BIGINT",
        "double": "DOUBLE",
        "bool": "BOOLEAN",
        "binary": "BLOB",
        "timestamp[us, tz=UTC]": "TIMESTAMPTZ",
    }
    if kind in simple:
        return simple[kind]
    if kind.startswith("list"):
        return _type(arrow_type.value_type) + "[]"
    fields = (arrow_type.field(place) for place in range(arrow_type.num_fields))
    return f"STRUCT({', '.join(f'{identifier(each.name)} {_type(each.type)}' for each in fields)})"


def no_rows(columns: Sequence[tuple[str, str]]) -> str:
    """Write a query that gives columns and no rows."""
    listed = ", ".join(f"NULL::{kind} AS {identifier(name)}" for name, kind in columns)
    return f"SELECT {listed} WHERE false"


# -- scans

_ROW_COLUMNS = (
    ("node_id", "BIGINT"),
    ("coord", "BLOB"),
    ("kind", "VARCHAR"),
    ("location", "VARCHAR"),
    *((each.name, _type(each.in_tables)) for each in IN_TABLES[1:]),
    ("inline_data", "BLOB"),
    ("manifest", "VARCHAR"),
    ("file", "VARCHAR"),
)
_CHUNK_ROW_COLUMNS = (("path", "VARCHAR"), ("index", "BIGINT[]"), *_ROW_COLUMNS)


def _of_manifest(column: Column, scan: Scan) -> str:
    """Take a column over from manifests, as it is in the tables."""
    name, kind = identifier(column.name), _type(column.in_tables)
    if not column.is_in(scan.form):
        return f"NULL::{kind} AS {name}"
    return name if column.type == column.in_tables else f"{name}::{kind} AS {name}"


def _scan_sql(scan: Scan, source: Places, more: str = "") -> str:
    """Read the manifests of one scan, with more columns before the others."""
    kind, location = kind_and_location(scan, text(source.root + "/c/"))
    node_id = "array_id::BIGINT" if scan.owner is None else f"{scan.owner.node_id}::BIGINT"
    return (
        f"SELECT {more}{node_id} AS node_id, coord, {kind} AS kind, {location} AS location, "
        f"{', '.join(_of_manifest(each, scan) for each in IN_TABLES[1:])}, "
        f"{'inline_data' if scan.has_inline else 'NULL::BLOB AS inline_data'}, "
        f"parse_filename(filename, true) AS manifest, filename AS file "
        f"FROM read_parquet({source.files(scan)}, hive_partitioning = false)"
    )


def rows_sql(scans: Sequence[Scan], source: Places) -> str:
    """Read manifests, all arrays together, without their paths."""
    return "\nUNION ALL\n".join(_scan_sql(each, source) for each in scans) or no_rows(_ROW_COLUMNS)


def _decoded(coord: str, ndim: int | None, names: dict[str, str]) -> str:
    """Decode a coordinate, with the macro that is made for its rank."""
    if ndim == 0:
        return "[]::BIGINT[]"
    return f"{names.get(f'decode_{ndim}', names['decode_text'])}({coord})"


def _chunk_rows_sql(scans: Sequence[Scan], source: Source, names: dict[str, str]) -> str:
    """Read manifests with the paths of their arrays and the places of chunks.

    Where arrays share manifests, the names of files are compared too: that is how a condition on the path
    leaves out files.
    """
    parts = []
    for scan in scans:
        if scan.owner is not None:
            index = _decoded("coord", scan.ndim, names)
            more = f"{text(scan.owner.path)}::VARCHAR AS path, {index} AS index, "
            parts.append(_scan_sql(scan, source, more))
        else:
            parts.append(
                f"SELECT e.path, {_decoded('r.coord', scan.ndim, names)} AS index, r.* "
                f"FROM ({_scan_sql(scan, source)}) AS r "
                f"JOIN {names['entries']} AS e ON e.file = r.file AND e.node_id = r.node_id"
            )
    return "\nUNION ALL\n".join(parts) or no_rows(_CHUNK_ROW_COLUMNS)


def _array_rows_sql(scans: Sequence[Scan], source: Places, names: dict[str, str]) -> str:
    """Read manifests with the paths of their arrays, to be counted: without a comparison for each row's file."""
    shared = [scan for scan in scans if scan.owner is None]
    parts = [
        _scan_sql(scan, source, f"{text(scan.owner.path)}::VARCHAR AS path, ")
        for scan in scans
        if scan.owner is not None
    ]
    if shared:
        parts.append(
            f"SELECT p.path, r.* FROM ({rows_sql(shared, source)}) AS r "
            f"JOIN (SELECT DISTINCT node_id, path FROM {names['entries']}) AS p ON p.node_id = r.node_id"
        )
    return "\nUNION ALL\n".join(parts) or no_rows((("path", "VARCHAR"), *_ROW_COLUMNS))


def pathed_rows_sql(
    scans: Sequence[Scan], source: Places, names: dict[str, str], paths: str
) -> str:
    """Read manifests with paths from a relation that has one for each ``node_id``."""
    parts = (
        f"SELECT p.path, {_decoded('r.coord', scan.ndim, names)} AS index, r.* "
        f"FROM ({_scan_sql(scan, source)}) AS r JOIN {paths} AS p ON p.node_id = r.node_id"
        for scan in scans
    )
    return "\nUNION ALL\n".join(parts) or no_rows(_CHUNK_ROW_COLUMNS)


def change_query(
    before_rows: str, after_rows: str, node_changes: str, *, from_snapshot: str, to_snapshot: str
) -> str:
    """Compare two snapshots: rows of manifests that one of them has alone, and what became of nodes."""
    names = {
        "before_rows": f"({before_rows})",
        "after_rows": f"({after_rows})",
        "node_changes": node_changes,
        "from_snapshot": text(from_snapshot),
        "to_snapshot": text(to_snapshot),
    }
    return fill(statement("tables/changes.sql"), names)


# -- statements


def shared_statements(schema: str) -> Iterator[str]:
    """Make the macros that know no repository."""
    names = names_in(schema)
    for name in ("coord_encode", "coord_decode"):
        yield fill(statement(f"macros/{name}.duckdb.sql"), names)


def repository_statements(
    schema: str,
    source: Source,
    together: Sequence[Scan],
    by_array: Sequence[Scan],
    *,
    prefix: str = "",
    grid_runs: bool,
) -> Iterator[str]:
    """Make the relations and macros of one repository; its entries are there already, and grid runs if any."""
    names = names_in(schema, prefix) | {"snapshot": text(source.snapshot)}
    if not grid_runs:
        names["grid_runs"] = f"({no_rows(RUN_COLUMNS)})"
    names |= {
        "manifest_rows": f"({rows_sql(together, source)})",
        "chunk_rows": f"({_chunk_rows_sql(by_array, source, names)})",
        "array_rows": f"({_array_rows_sql(by_array, source, names)})",
    }
    for name in FACTS:
        yield f"CREATE OR REPLACE VIEW {names[name]} AS {source.fact(name)}"
    for name in OVER_CHUNKS:
        query = fill(statement(f"tables/{name}.sql"), names)
        yield f"CREATE OR REPLACE VIEW {names[name]} AS {query}"
    for name in ("chunk_of", "chunks_in"):
        yield fill(statement(f"macros/{name}.duckdb.sql"), names)
    yield (
        f"CREATE OR REPLACE MACRO {names['changes']}(earlier, later) AS TABLE {source.changes()}"
    )


def union_statements(schema: str, repositories: dict[str, str]) -> Iterator[str]:
    """Unite several repositories, given as names and prefixes, with a column that tells them apart."""
    own = {name: names_in(schema, prefix) for name, prefix in repositories.items()}
    names = names_in(schema)

    def united(query: str) -> str:
        return "\nUNION ALL\n".join(
            f"SELECT {text(repository)}::VARCHAR AS repository, t.* FROM {fill(query, found)} AS t"
            for repository, found in own.items()
        )

    for view in VIEWS:
        yield f"CREATE OR REPLACE VIEW {names[view]} AS {united('{' + view + '}')}"
    yield (
        f"CREATE OR REPLACE MACRO {names['chunks_in']}(array_path, lower, upper) AS TABLE "
        f"{united('{chunks_in}(array_path, lower, upper)')}"
    )
    cases = "".join(
        f" WHEN {text(repository)} THEN {found['chunk_of']}(array_path, place)"
        for repository, found in own.items()
    )
    yield (
        f"CREATE OR REPLACE MACRO {names['chunk_of']}(which, array_path, place) AS CASE which{cases} END"
    )
    changes = "\nUNION ALL\n".join(
        f"SELECT {text(repository)}::VARCHAR AS repository, t.* FROM {found['changes']}("
        f"CASE WHEN which = {text(repository)} THEN earlier END, "
        f"CASE WHEN which = {text(repository)} THEN later END) AS t"
        for repository, found in own.items()
    )
    yield (f"CREATE OR REPLACE MACRO {names['changes']}(which, earlier, later) AS TABLE {changes}")
