"""The command that runs a query of the inspection library by its name, and lists what there is.

Owns also what DuckDB and Arrow meet, as errors of ours; and that DuckDB has to be installed.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from icechunk_arrow.cli.consoles import working
from icechunk_arrow.cli.options import Format, RowsTo
from icechunk_arrow.cli.output import emit, text_table
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.repository import Repository
from icechunk_arrow.tables.inspections import OBSERVED, find_inspection, inspection_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from icechunk_arrow.tables.selection import Which

__all__ = ["emit_inspection", "emit_inspections", "inspect", "query_failures"]

_TRACEBACK = "Traceback (most recent call last)"
_ERROR_NAME = re.compile(r"^(?:\s+.*\n)*[\w.]+: ")


@contextmanager
def query_failures(what: str) -> Iterator[None]:
    """Say what DuckDB and Arrow meet as errors of ours, without their tracebacks."""
    try:
        import duckdb  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise InvalidInputError("SQL needs DuckDB: pip install 'icechunk-arrow[duckdb]'") from error
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        raise InvalidInputError(f"{what} failed: {_without_traceback(str(error))}") from error
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise


def _without_traceback(text: str) -> str:
    """Leave the message alone, where DuckDB was told of an error in Python by its traceback."""
    if _TRACEBACK not in text:
        return text
    message = text.rpartition("\n  File ")[2].partition("\n")[2]
    return _ERROR_NAME.sub("", message)


def inspect(
    url: str | None,
    *,
    name: str | None,
    parameters: Mapping[str, str],
    which: Which,
    to: RowsTo,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Ask a question that is answered already, or list these."""
    repository = None if url is None else Repository.open(url, storage_options)
    if repository is None or name is None:
        if parameters:
            raise click.BadParameter("name an inspection, too", param_hint="--param")
        emit_inspections(to)
    else:
        emit_inspection(repository, name, parameters, which, to)


def emit_inspections(to: RowsTo) -> None:
    """List the inspections; for users the names of parameters will do."""
    table = inspection_table()
    if to.form is Format.TABLE:
        lines = [
            {
                "name": row["name"],
                "purpose": row["purpose"],
                "parameters": ", ".join(each.partition(" ")[0] for each in row["parameters"]),
            }
            for row in table.to_pylist()
        ]
        table = text_table(lines)
    emit(table, to)


def emit_inspection(
    repository: Repository,
    name: str,
    parameters: Mapping[str, str],
    which: Which,
    to: RowsTo,
) -> None:
    """Run an inspection of a snapshot, and write its rows."""
    kinds = {each.name: each.kind for each in find_inspection(name).parameters}
    values = {key: _READ.get(kinds.get(key, ""), str)(text) for key, text in parameters.items()}
    with query_failures(f"the inspection {name}"):
        with working(f"inspecting {repository.url}: {name}"):
            table = repository.inspect(name, **which, **values)
        emit(table, to)


def _number(text: str) -> int | str:
    """Read a number; what is none goes on as it is, and the library says what it has to be."""
    try:
        return int(text)
    except ValueError:
        return text


def _files(text: str) -> pa.Table:
    """Read a table of files that were found."""
    readers: dict[str, Callable[[str], pa.Table]] = {
        ".parquet": _read_parquet,
        ".csv": _read_csv,
        ".arrow": _read_arrow,
    }
    read = readers.get(Path(text).suffix)
    if read is None:
        raise InvalidInputError(
            f"{text!r} is none of {', '.join(readers)}, which a table is read from"
        )
    try:
        return read(text)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInputError(f"{text} cannot be read: {error}") from error


def _read_parquet(text: str) -> pa.Table:
    with pq.ParquetFile(text) as file:
        return file.read()


def _read_csv(text: str) -> pa.Table:
    """Read CSV; an etag of digits alone is a text all the same."""
    types = {field.name: field.type for field in OBSERVED}
    return csv.read_csv(text, convert_options=csv.ConvertOptions(column_types=types))


def _read_arrow(text: str) -> pa.Table:
    with pa.OSFile(text) as file, pa.ipc.open_stream(file) as reader:
        return reader.read_all()


_READ: dict[str, Callable[[str], Any]] = {
    "integer": _number,
    "dimension": _number,
    "table": _files,
}
"""How the text of a parameter becomes its value, by its kind; others are texts."""
