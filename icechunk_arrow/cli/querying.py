"""Commands that ask in SQL: a query, a prompt, and a script for DuckDB alone."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icechunk_arrow.cli.consoles import working
from icechunk_arrow.cli.failures import query_failures
from icechunk_arrow.cli.inspecting import Parameters, emit_inspection
from icechunk_arrow.cli.interrupting import InterruptibleRows, interruptible
from icechunk_arrow.cli.options import (
    AsOf,
    Branch,
    Format,
    FormatOption,
    Output,
    SnapshotId,
    StorageOptions,
    Tag,
    Url,
    open_repository,
    selected,
)
from icechunk_arrow.cli.output import emit, emit_text
from icechunk_arrow.cli.prompt import converse
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.tables.inspections import list_inspections
from icechunk_arrow.tables.schemas import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from icechunk_arrow.repository import Repository

__all__ = ["sql", "sql_script"]

_SCHEMA = "icechunk"
_BATCH_ROWS = 65_536
_NAMES = """SELECT view_name AS name FROM duckdb_views() WHERE schema_name = $1 AND view_name[1] <> '_'
UNION SELECT column_name FROM duckdb_columns() WHERE schema_name = $1
UNION SELECT function_name FROM duckdb_functions() WHERE schema_name = $1 AND function_name[1] <> '_'
ORDER BY name"""
_ONE_WORD = re.compile(r"\s*(\w+)\s*;?\s*")


def sql(
    url: Url,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY",
            help="SQL for DuckDB, or the name of an inspection; - reads standard input.",
        ),
    ] = None,
    parameters: Parameters = None,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: SnapshotId = None,
    as_of: AsOf = None,
    form: FormatOption = Format.TABLE,
    output: Output = None,
    storage_option: StorageOptions = None,
) -> None:
    """Ask the repository's tables a question, or open a prompt.

    The tables of one snapshot (`icechunk-arrow schema` lists them) and the macros are there by their names.
    Nothing is ever written to the repository. Without QUERY there is a prompt on a terminal; otherwise standard
    input is read. Of several statements the last one's rows are given. A single word is the name of an inspection
    (`icechunk-arrow inspect` lists them).
    """
    interactive = query is None and sys.stdin.isatty()
    if interactive and (output is not None or not sys.stdout.isatty()):
        raise typer.BadParameter("a prompt needs a terminal for its answers; give a QUERY")
    named = None if query is None else _ONE_WORD.fullmatch(query)
    if parameters and not named:
        raise typer.BadParameter("only an inspection has parameters", param_hint="--param")
    which = selected(branch, tag, snapshot, as_of)
    if named:
        _check_name(named[1])
        repository = open_repository(url, storage_option)
        emit_inspection(repository, named[1], parameters, which, form, output)
        return
    text = sys.stdin.read() if query == "-" or (query is None and not interactive) else query
    with _attached(url, storage_option, which) as desk:
        if text is not None:
            desk.answer(text, form, output)
        else:
            converse(desk, form)


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

    def answer(self, text: str, form: Format, output: Path | None = None) -> None:
        """Run statements, and write the rows of the last one."""
        with query_failures("the query"):
            with working("running the query"):
                reader = interruptible(self.con, lambda: self._run(text))
            if reader is not None and reader.schema.names != ["Success"]:
                emit(InterruptibleRows(self.con, reader), form, output)

    def _run(self, text: str) -> pa.RecordBatchReader | None:
        found = self.con.sql(text)
        return None if found is None else found.to_arrow_reader(_BATCH_ROWS)

    def inspect(self, name: str, parameters: list[str], form: Format) -> None:
        """Run an inspection of the snapshot, and write its rows."""
        which = {"snapshot_id": self.snapshot}
        emit_inspection(self.repository, name, parameters, which, form, None)

    def refresh(self) -> None:
        """Go on with the snapshot that the branch names now."""
        from icechunk_arrow.duckdb import refresh  # noqa: PLC0415  (needs an extra)

        with query_failures("the refresh"):
            [self.snapshot] = refresh(self.con, _SCHEMA).snapshots.values()

    def names(self) -> list[str]:
        """Give the names of tables, columns and macros."""
        return [name for (name,) in self.con.execute(_NAMES, [_SCHEMA]).fetchall()]


@contextmanager
def _attached(url: str, storage_option: list[str] | None, which: dict[str, Any]) -> Iterator[Desk]:
    with query_failures(f"attaching {url}"):
        import duckdb  # noqa: PLC0415  (an extra)

        from icechunk_arrow.duckdb import attach  # noqa: PLC0415  (the same)

        con = duckdb.connect()
        with working(f"attaching {url}"):
            repository = open_repository(url, storage_option)
            [snapshot] = attach(con, repository, _SCHEMA, **which).snapshots.values()
        con.execute(f"USE {_SCHEMA}")
    with con:
        yield Desk(con, repository, snapshot)


def sql_script(
    url: Url,
    name: Annotated[str, typer.Option(help="The schema that the script makes.")] = _SCHEMA,
    since: Annotated[
        str | None, typer.Option(help="What its macro `changes` compares with; or the parent.")
    ] = None,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: SnapshotId = None,
    as_of: AsOf = None,
    output: Output = None,
    storage_option: StorageOptions = None,
) -> None:
    """Write a script that makes the same tables in the duckdb command line, without this program."""
    from icechunk_arrow.duckdb import scripting  # noqa: PLC0415  (slow, and one command's)

    which = selected(branch, tag, snapshot, as_of)
    with working(f"writing a script for {url}"):
        repository = open_repository(url, storage_option)
        text = scripting.sql_script(repository, name, since=since, **which)
    emit_text(text, output)
