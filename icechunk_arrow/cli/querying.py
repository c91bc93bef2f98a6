"""Commands that ask in SQL: a query, a prompt, and a script for DuckDB alone.

DuckDB looks for signals now and then only, and misses those that come while it is deep in a query. So it works in
a thread of its own, and Ctrl-C tells it to stop.
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from icechunk_arrow.cli.consoles import working
from icechunk_arrow.cli.inspecting import emit_inspection, query_failures
from icechunk_arrow.cli.output import emit, emit_text
from icechunk_arrow.cli.prompt import converse
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.repository import Repository
from icechunk_arrow.tables.inspections import list_inspections
from icechunk_arrow.tables.schemas import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from icechunk_arrow.cli.options import RowsTo
    from icechunk_arrow.tables.selection import Which


__all__ = ["InterruptibleRows", "interruptible", "sql", "sql_script"]

_T = TypeVar("_T")
_AGAIN_SECONDS = 0.1
_SCHEMA = "icechunk"
_BATCH_ROWS = 65_536
_NAMES = """SELECT view_name AS name FROM duckdb_views() WHERE schema_name = $1 AND view_name[1] <> '_'
UNION SELECT column_name FROM duckdb_columns() WHERE schema_name = $1
UNION SELECT function_name FROM duckdb_functions() WHERE schema_name = $1 AND function_name[1] <> '_'
ORDER BY name"""
_ONE_WORD = re.compile(r"\s*(\w+)\s*;?\s*")


def interruptible(con: Any, work: Callable[[], _T]) -> _T:
    """Do what takes a connection long; an interrupt ends it, and is raised when it has ended."""
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(work)
        try:
            return under_way.result()
        except KeyboardInterrupt:
            while not under_way.done():
                con.interrupt()  # one that comes between two statements is forgotten
                wait([under_way], _AGAIN_SECONDS)
            raise


class InterruptibleRows:
    """The rows of a query that runs while they are read."""

    def __init__(self, con: Any, reader: pa.RecordBatchReader) -> None:
        self._con = con
        self._reader = reader
        self.schema: pa.Schema = reader.schema

    def read_next_batch(self) -> pa.RecordBatch:
        """Give the next rows."""
        return interruptible(self._con, self._reader.read_next_batch)


def sql(
    url: str,
    *,
    query: str | None,
    parameters: Mapping[str, str],
    which: Which,
    to: RowsTo,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Ask the repository's tables a question, or open a prompt."""
    interactive = query is None and sys.stdin.isatty()
    if interactive and (to.file is not None or not sys.stdout.isatty()):
        raise click.BadParameter("a prompt needs a terminal for its answers; give a QUERY")
    named = None if query is None else _ONE_WORD.fullmatch(query)
    if parameters and not named:
        raise click.BadParameter("only an inspection has parameters", param_hint="--param")
    if named:
        _check_name(named[1])
        repository = Repository.open(url, storage_options)
        emit_inspection(repository, named[1], parameters, which, to)
        return
    text = sys.stdin.read() if query == "-" or (query is None and not interactive) else query
    with _attached(url, storage_options, which) as desk:
        if text is not None:
            desk.answer(text, to)
        else:
            converse(desk, to)


def _check_name(word: str) -> None:
    if word not in list_inspections():
        way_out = (
            f"write 'FROM {word}'" if word in TABLES else "`icechunk-arrow inspect` lists these"
        )
        raise InvalidInputError(f"{word!r} is neither SQL nor the name of an inspection; {way_out}")


@dataclass
class Desk:
    """A DuckDB in memory that has the tables of one snapshot."""

    con: Any
    repository: Repository
    snapshot: str
    """Whose tables these are; an inspection at the prompt is about the same one."""

    def answer(self, text: str, to: RowsTo) -> None:
        """Run statements, and write the rows of the last one."""
        with query_failures("the query"):
            with working("running the query"):
                reader = interruptible(self.con, lambda: self._run(text))
            if reader is not None and reader.schema.names != ["Success"]:
                emit(InterruptibleRows(self.con, reader), to)

    def _run(self, text: str) -> pa.RecordBatchReader | None:
        relation = self.con.sql(text)
        return None if relation is None else relation.to_arrow_reader(_BATCH_ROWS)

    def inspect(self, name: str, parameters: Mapping[str, str], to: RowsTo) -> None:
        """Run an inspection of the snapshot, and write its rows."""
        which: Which = {"snapshot_id": self.snapshot}
        emit_inspection(self.repository, name, parameters, which, to)

    def refresh(self) -> None:
        """Go on with the snapshot that the branch names now."""
        from icechunk_arrow.duckdb import refresh  # noqa: PLC0415  (needs an extra)

        with query_failures("the refresh"):
            [self.snapshot] = refresh(self.con, _SCHEMA).snapshots.values()

    def names(self) -> list[str]:
        """Give the names of tables, columns and macros."""
        return [name for (name,) in self.con.execute(_NAMES, [_SCHEMA]).fetchall()]


@contextmanager
def _attached(url: str, storage_options: Mapping[str, Any] | None, which: Which) -> Iterator[Desk]:
    with query_failures(f"attaching {url}"):
        import duckdb  # noqa: PLC0415  (an extra)

        from icechunk_arrow.duckdb import attach  # noqa: PLC0415  (the same)

        con = duckdb.connect()
        with working(f"attaching {url}"):
            repository = Repository.open(url, storage_options)
            [snapshot] = attach(con, repository, _SCHEMA, **which).snapshots.values()
        con.execute(f"USE {_SCHEMA}")
    with con:
        yield Desk(con, repository, snapshot)


def sql_script(
    url: str,
    *,
    name: str,
    since: str | None,
    which: Which,
    output: Path | None,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Write a script that makes the same tables in the duckdb command line, without this program."""
    from icechunk_arrow.duckdb import scripting  # noqa: PLC0415  (slow, and one command's)

    with working(f"writing a script for {url}"):
        repository = Repository.open(url, storage_options)
        text = scripting.sql_script(repository, name, since=since, **which)
    emit_text(text, output)
