"""The statements that make a schema with the tables of one repository or of several, for a connection and a script.

Owns which relations and macros a schema has and how they build on each other. Their texts are in ``sql/``; where
manifests and small tables are found is said by a :class:`SnapshotSource`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from icechunk_arrow.tables.nodes import grid_run_table, inventory_table
from icechunk_arrow.tables.queries import Source, chunk_relations, chunk_tables
from icechunk_arrow.tables.scans import plan_scans, plan_scans_by_array
from icechunk_arrow.tables.schemas import CHUNK_TABLES, GRID_RUNS, METADATA_TABLES
from icechunk_arrow.tables.sql import DUCKDB, fill, statement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from icechunk_arrow.core.snapshot import Snapshot

__all__ = ["SnapshotSource", "coordinate_macros", "names_in", "schema_statements"]

_OWN_SCANS = 8
"""So many arrays are read apart from the others: each costs the opening of a file in every query's planning."""
_VIEWS = (*METADATA_TABLES, *CHUNK_TABLES)
_SHARED = {
    name: name if name.startswith(("_", "coord")) else "_" + name
    for name in (
        *("coord_encode", "coord_decode", "decode_text"),
        *("decode_1", "decode_2", "decode_3", "decode_4"),
        *("_word", "_rest", "_bits2", "_bits3", "_cut"),
    )
}
"""Macros that are the same whatever the repository."""
_HELD = ("entries", "grid_runs")
"""What stands in the schema as tables, because nearly every query joins it."""
_MACROS = ("chunk_of", "chunks_in", "changes")


class SnapshotSource(Source):
    """One snapshot's manifests and small tables."""

    dialect = DUCKDB
    snapshot: Snapshot
    folder: str
    """What DuckDB's names of manifests begin with, before their keys."""
    statements: list[str]
    """What has to be done before anything else that names a relation of this source."""

    @abstractmethod
    def held(self, name: str, rows: pa.Table) -> str:
        """Give a relation that stands in the schema."""

    @abstractmethod
    def metadata(self, name: str) -> str:
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
    names = {name: start + DUCKDB.identifier(macro) for name, macro in _SHARED.items()}
    names |= {name: start + DUCKDB.identifier(name) for name in _VIEWS}
    names |= {name: start + DUCKDB.identifier(f"{prefix}_{name}") for name in _HELD}
    names |= {name: start + DUCKDB.identifier(prefix + name) for name in _MACROS}
    return names | {"decode_any": names["decode_text"]}


def coordinate_macros(schema: str) -> Iterator[str]:
    """Make the macros that know no repository."""
    for name in ("coord_encode", "coord_decode"):
        yield fill(statement(f"macros/{name}.duckdb.sql"), names_in(schema))


def schema_statements(
    schema: str, sources: Mapping[str, SnapshotSource], *, united: bool
) -> Iterator[str]:
    """Make all that is in a schema, of repositories by their names.

    If they are ``united``, tables have a column that tells them apart, and each has macros of its own beneath those
    of the schema; otherwise there is but one.
    """
    yield from coordinate_macros(schema)
    queries, relations = {}, {}
    for label, source in sources.items():
        tables = queries[label] = {name: source.metadata(name) for name in METADATA_TABLES}
        relations[label] = _relations(source, tables["nodes"])
        tables |= chunk_tables(relations[label])
        tables["changes"] = source.changes()
        yield from source.statements
    names = names_in(schema)
    for view in _VIEWS:
        of_each = {label: tables[view] for label, tables in queries.items()}
        query = DUCKDB.repositories(of_each) if united else of_each.popitem()[1]
        yield f"CREATE OR REPLACE VIEW {names[view]} AS {query}"
    for label, source in sources.items():
        for macro in ("chunk_of", "chunks_in"):
            text = statement(f"macros/{macro}.duckdb.sql")
            yield fill(text, {**source.names, **relations[label]})
        changes = f"{source.names['changes']}(earlier, later)"
        yield f"CREATE OR REPLACE MACRO {changes} AS TABLE {queries[label]['changes']}"
    if united:
        own = {label: each.names for label, each in sources.items()}
        yield from _macros_over_several(names, own)


def _relations(source: SnapshotSource, nodes: str) -> dict[str, str]:
    """Say what stands for the relations that texts about a snapshot name."""
    snapshot = source.snapshot
    entries = source.held("entries", inventory_table(snapshot, source.folder))
    runs = grid_run_table(snapshot)
    relations = chunk_relations(
        source,
        snapshot.id,
        together=plan_scans(snapshot),
        by_array=plan_scans_by_array(snapshot, most_arrays=_OWN_SCANS),
        entries=entries,
        paths=f"(SELECT DISTINCT node_id, path FROM {entries})",
    )
    return relations | {
        "nodes": f"({nodes})",
        "grid_runs": source.held("grid_runs", runs)
        if runs.num_rows
        else f"({DUCKDB.no_rows(GRID_RUNS)})",
    }


def _macros_over_several(
    names: Mapping[str, str], own: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Unite the macros of several repositories."""
    boxes = DUCKDB.repositories(
        {
            label: f"FROM {each['chunks_in']}(array_path, lower, upper)"
            for label, each in own.items()
        }
    )
    yield (
        f"CREATE OR REPLACE MACRO {names['chunks_in']}(array_path, lower, upper) AS TABLE {boxes}"
    )
    cases = "".join(
        f" WHEN {DUCKDB.text(label)} THEN {each['chunk_of']}(array_path, place)"
        for label, each in own.items()
    )
    yield (
        f"CREATE OR REPLACE MACRO {names['chunk_of']}(which, array_path, place) AS CASE which{cases} END"
    )
    changes = DUCKDB.repositories(
        {
            label: f"FROM {each['changes']}({_only(label, 'earlier')}, {_only(label, 'later')})"
            for label, each in own.items()
        }
    )
    yield f"CREATE OR REPLACE MACRO {names['changes']}(which, earlier, later) AS TABLE {changes}"


def _only(label: str, parameter: str) -> str:
    return f"CASE WHEN which = {DUCKDB.text(label)} THEN {parameter} END"
