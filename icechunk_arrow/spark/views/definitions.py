# ruff: noqa: S608  (making SQL is what this does; the dialect quotes, tests/sql attack it)
"""What temporary views and functions an attached name has: the same in a session and in a script.

Owns how they build on each other, and what functions know of each array. The texts are in ``sql/``; a
:class:`Target` says how files and small tables become relations, and what becomes of a statement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icechunk_arrow.core import compute as pc
from icechunk_arrow.spark.quoting import identifier, json_text
from icechunk_arrow.tables.metadata import metadata_table
from icechunk_arrow.tables.nodes import grid_run_table, inventory_table
from icechunk_arrow.tables.queries import (
    Source,
    change_query,
    chunk_relations,
    chunk_tables,
    root_uri,
)
from icechunk_arrow.tables.scans import owners_apart, plan_scans_by_array
from icechunk_arrow.tables.schemas import (
    CHUNK_TABLES,
    METADATA_TABLES,
    TABLES,
    with_repository,
)
from icechunk_arrow.tables.sql import SPARK, fill, statement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.tables.scans import Scan
    from icechunk_arrow.tables.sql import Dialect

__all__ = [
    "SnapshotQueries",
    "Target",
    "TargetSource",
    "coordinate_functions",
    "define",
    "drop_statements",
    "place_functions",
    "snapshot_queries",
    "view_name",
]

_FUNCTIONS = (
    *("coord_octets", "coord_encode", "coord_decode"),
    *("chunk_along", "without_nulls", "chunk_along_all", "chunk_of"),
    *("first_coord", "behind_coord", "chunks_in"),
)
_KNOWN = "known"
"""A variable of the session, so that an expression of it and constants becomes a constant while Spark plans: that
is how files are left out."""
_KNOWN_TYPE = (
    "MAP<STRING, STRUCT<shape: ARRAY<BIGINT>, positions: ARRAY<ARRAY<BIGINT>>, chunks: ARRAY<ARRAY<BIGINT>>, "
    "edges: ARRAY<ARRAY<BIGINT>>, manifests: MAP<STRING, MAP<STRING, ARRAY<ARRAY<BIGINT>>>>>>"
)
"""By paths. ``manifests`` has extents by ids, those by their first letters: Spark looks through a map in order."""
_RUN_PARTS = ("position", "chunk", "edge")


class Target(ABC):
    """Takes what makes views: does it in a session, or writes it down."""

    dialect: Dialect = SPARK

    @abstractmethod
    def files(self, root: str, scan: Scan, *, named: bool) -> str:
        """Make a relation of manifests below a place; if wanted with a column ``file``, the name of the file."""

    @abstractmethod
    def table(self, rows: pa.Table) -> str:
        """Make a relation of a small table."""

    @abstractmethod
    def view(self, name: str, query: str) -> None:
        """Make or replace a view."""

    @abstractmethod
    def run(self, command: str) -> None:
        """Do something else."""


class TargetSource(Source):
    """One repository's manifests and small tables, as a target makes relations of them."""

    def __init__(self, target: Target, name: str, context: Context) -> None:
        self.dialect = target.dialect
        self.root = root_uri(context.storage.url)
        self.names = _names_of(name)
        self._target = target

    def files(self, scan: Scan, *, named: bool) -> str:
        """Let the target make a relation of them."""
        relation = self._target.files(self.root, scan, named=named)
        # a query without the column manifest would else read all that Spark knows of a file, numbers of rows too
        return f"(SELECT * FROM {relation} WHERE file <> '')" if named else relation

    def table(self, name: str, rows: pa.Table) -> str:  # noqa: ARG002 -- a target chooses names
        """Let the target make a relation of it."""
        return self._target.table(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotQueries:
    """What views of one repository are made of."""

    tables: Mapping[str, str]
    """A query for each table."""
    arrays: Mapping[str, Any]
    """What functions know of each array."""


def view_name(name: str, table: str) -> str:
    """Say what the view of a table is called."""
    return identifier(f"{name}_{table}")


def _names_of(name: str) -> dict[str, str]:
    """Say what the functions are called that go with an attached name."""
    names = {each: identifier(f"{name}_{each}") for each in _FUNCTIONS}
    return names | {"decode_any": names["coord_decode"]}


def drop_statements(name: str) -> Iterator[str]:
    """Remove the functions, and what they know."""
    for each in reversed(_FUNCTIONS):
        yield f"DROP TEMPORARY FUNCTION IF EXISTS {_names_of(name)[each]}"
    yield f"DROP TEMPORARY VARIABLE IF EXISTS {view_name(name, _KNOWN)}"


def _statements(macro: str, names: Mapping[str, str]) -> list[str]:
    """Give the statements of a text; Spark takes one at a time."""
    return fill(statement(f"macros/{macro}.spark.sql"), names).split(";\n")


def coordinate_functions(target: Target, name: str) -> None:
    """Make the functions that know no repository."""
    for each in ("coord_encode", "coord_decode"):
        for command in _statements(each, _names_of(name)):
            target.run(command)


def place_functions(target: Target, name: str, *, united: bool) -> None:
    """Make the functions that use the variable and views, whatever these say later."""
    columns = CHUNK_TABLES["chunks"]
    variable = view_name(name, _KNOWN)
    names = _names_of(name) | {
        "chunks": view_name(name, "chunks"),
        "columns": SPARK.columns(with_repository(columns) if united else columns),
        "which": "which STRING, " if united else "",
    }
    for each, repository in (("chunk_of", "which"), ("chunks_in", "c.repository")):
        place = f"try_element_at({variable}, {repository})" if united else variable
        for command in _statements(each, names | {"array": f"try_element_at({place}, array_path)"}):
            target.run(command)


def snapshot_queries(
    target: Target, name: str, context: Context, snapshot_id: str, before_id: str, *, own_scans: int
) -> SnapshotQueries:
    """Make what the tables of a snapshot need, ``changes`` since another one.

    ``own_scans`` is how many arrays are read apart from the others, so that a condition on the path leaves out
    all but one of them.
    """
    source = TargetSource(target, name, context)
    snapshot, before = (context.files.read_snapshot(each) for each in (snapshot_id, before_id))
    metadata = {each: metadata_table(context, each, snapshot_id) for each in METADATA_TABLES}
    tables = {each: f"SELECT * FROM {target.table(rows)}" for each, rows in metadata.items()}
    scans = plan_scans_by_array(snapshot, most_arrays=own_scans)
    # it is said which arrays have no rows in shared manifests: so Spark leaves out the whole branch while it plans
    apart = ", ".join(map(SPARK.text, owners_apart(snapshot, scans)))
    where = f" WHERE n.path NOT IN ({apart})" if apart else ""
    relations = chunk_relations(
        source,
        snapshot_id,
        together=scans,
        by_array=scans,
        entries=f"(SELECT explode(m.arrays.path) AS path FROM ({tables['manifests']}) AS m)",
        paths=f"(SELECT n.node_id, n.path FROM ({tables['nodes']}) AS n{where})",
    )
    tables |= chunk_tables(relations | {"nodes": f"({tables['nodes']})"})
    tables["changes"] = change_query(source, context.files, before, snapshot)
    return SnapshotQueries(tables=tables, arrays=_known_arrays(snapshot, metadata["nodes"]))


def _known_arrays(snapshot: Snapshot, nodes: pa.Table) -> dict[str, Any]:
    """Give the edges and manifests of all arrays, as JSON has it."""
    runs = {row["node_id"]: row["runs"] for row in grid_run_table(snapshot).to_pylist()}
    arrays = nodes.filter(pc.equal(nodes["type"], "array"))
    known: dict[str, Any] = {}
    for row in arrays.select(["path", "node_id", "shape", "chunk_shape"]).to_pylist():
        unequal = runs.get(row["node_id"])
        nothing = [[0]] * len(row["shape"])
        if unequal is None:
            parts = [nothing, nothing, [[edge] for edge in row["chunk_shape"]]]
        else:
            parts = [[[run[part] for run in axis] for axis in unequal] for part in _RUN_PARTS]
        known[row["path"]] = {
            "shape": row["shape"],
            **dict(zip(("positions", "chunks", "edges"), parts, strict=True)),
            "manifests": {},
        }
    inventory = inventory_table(snapshot).select(["path", "manifest", "starts", "stops"])
    for path, manifest, *bounds in zip(
        *(each.to_pylist() for each in inventory.columns), strict=True
    ):
        extent = [list(each) for each in zip(*bounds, strict=True)]
        known[path]["manifests"].setdefault(manifest[0], {})[manifest] = extent
    return known


def define(
    target: Target, name: str, members: Mapping[str, SnapshotQueries], *, united: bool
) -> None:
    """Make all views of repositories by their names, and the variable of what is known of arrays."""
    for table in TABLES:
        queries = {label: each.tables[table] for label, each in members.items()}
        query = SPARK.repositories(queries) if united else queries.popitem()[1]
        target.view(view_name(name, table), query)
    arrays = {label: each.arrays for label, each in members.items()}
    kind = f"MAP<STRING, {_KNOWN_TYPE}>" if united else _KNOWN_TYPE
    value = json_text(arrays if united else arrays.popitem()[1], kind)
    target.run(f"DECLARE OR REPLACE VARIABLE {view_name(name, _KNOWN)} {kind} DEFAULT {value}")
