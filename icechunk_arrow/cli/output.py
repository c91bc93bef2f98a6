"""Rows as users and programs want them: a table, JSON, CSV, Parquet or Arrow.

Rows come in batches and go on at once, so that an answer of any size needs little memory. Tables for users are the
exception: they have a limit, and say so.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from icechunk_arrow.cli.consoles import harmless, harmless_json, say, working
from icechunk_arrow.cli.options import Format, RowsTo
from icechunk_arrow.core.columns import from_values, to_values
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console, RenderableType
    from rich.table import Table

__all__ = [
    "BatchReader",
    "cell",
    "emit",
    "emit_text",
    "opened",
    "pick",
    "plain",
    "print_on",
    "rich_table",
    "rows_of",
    "text_table",
]

_MOST_ROWS = 1000
_WIDE = 1_000_000
_BINARY = {Format.PARQUET, Format.ARROW}


class BatchReader(Protocol):
    """Rows that come in batches; the end is ``StopIteration``."""

    schema: pa.Schema

    def read_next_batch(self) -> pa.RecordBatch:
        """Give the next rows."""


def plain(value: Any) -> Any:
    """Turn a value into what JSON has: times as ISO 8601, bytes as hexadecimal digits, no number as null."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return value.hex()
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() if value.is_finite():
            return int(value) if value == value.to_integral_value() else float(value)
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return str(value)


def cell(value: Any) -> str:
    """Write a value into a cell of a table or of a CSV file; null is empty."""
    plain_value = plain(value)
    if plain_value is None:
        return ""
    return (
        plain_value if isinstance(plain_value, str) else json.dumps(plain_value, ensure_ascii=False)
    )


def emit(rows: pa.Table | BatchReader, to: RowsTo) -> None:
    """Write rows where they are to go."""
    if to.file is None and to.form in _BINARY and sys.stdout.isatty():
        raise InvalidInputError(
            f"{to.form.value} is not for a terminal; name a file with --output, or pipe it on"
        )
    reader = rows.to_reader() if isinstance(rows, pa.Table) else rows
    with opened(to.file) as sink:
        try:
            _WRITERS[to.form](reader, sink)
        except pa.ArrowNotImplementedError as error:
            raise InvalidInputError(
                f"{to.form.value} cannot hold these rows ({error}); cast the column, or choose another format"
            ) from error


def text_table(rows: list[dict[str, str]]) -> pa.Table:
    """Make a table of texts."""
    names = list(rows[0])
    columns = [from_values([row[name] for row in rows], pa.string()) for name in names]
    return pa.Table.from_arrays(columns, names)


def pick(table: pa.Table, rows: list[tuple[str, int]]) -> pa.Table:
    """Take some rows of a table, sorted by the texts that stand before their numbers."""
    return table.take(from_values([row for _, row in sorted(rows)], pa.int64()))


def emit_text(text: str, output: Path | None = None) -> None:
    """Write a text to standard output or into a file."""
    with opened(output) as sink:
        shown = harmless_json(text) if sink.isatty() else text
        sink.write(shown.encode("utf-8", "replace"))


@contextmanager
def opened(output: Path | None) -> Iterator[BinaryIO]:
    """Open where data goes; a file is there when all of it is written, and not before."""
    if output is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    whole = output if output.exists() and not output.is_file() else None  # a pipe or device
    place = whole or output.with_name(f".{output.name}.part")
    try:
        with place.open("wb") as file:
            yield file
        if whole is None:
            place.replace(output)
    except BaseException as error:
        if whole is None:
            place.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, IcechunkArrowError):
            raise StorageError(f"{output} cannot be written: {error.strerror or error}") from error
        raise


def rows_of(batch: pa.RecordBatch | pa.Table) -> Iterator[tuple[Any, ...]]:
    """Give rows as Python has them."""
    return zip(*map(to_values, batch.columns), strict=True)


def _batches(reader: BatchReader) -> Iterator[pa.RecordBatch]:
    """Give the batches; on a terminal it shows how many rows there were so far.

    A query that fails on the way raises an error of Arrow's, and no ``OSError`` as if the output were at fault.
    """
    count = 0
    with working("writing rows") as tell:
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            except OSError as error:
                raise pa.ArrowException(str(error)) from error
            yield batch
            count += batch.num_rows
            tell(f"{count:,}")


def _rows(reader: BatchReader) -> Iterator[tuple[Any, ...]]:
    return (row for batch in _batches(reader) for row in rows_of(batch))


def _write_json(reader: BatchReader, sink: BinaryIO) -> None:
    names = reader.schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(
            f"several columns are named {twice[0]!r}, of which JSON keeps one; name them apart with AS"
        )
    before = b"[\n"
    shown = harmless_json if sink.isatty() else str
    for row in _rows(reader):
        members = dict(zip(names, map(plain, row), strict=True))
        text = shown(json.dumps(members, ensure_ascii=False))
        sink.write(before + text.encode("utf-8", "replace"))
        before = b",\n"
    sink.write(b"[]\n" if before == b"[\n" else b"\n]\n")


def _write_csv(reader: BatchReader, sink: BinaryIO) -> None:
    text = io.TextIOWrapper(sink, encoding="utf-8", newline="", write_through=False)
    shown = harmless if sink.isatty() else str
    try:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(shown, reader.schema.names))
        writer.writerows((shown(cell(value)) for value in row) for row in _rows(reader))
        text.flush()
    finally:
        text.detach()


def _write_parquet(reader: BatchReader, sink: BinaryIO) -> None:
    with pq.ParquetWriter(sink, reader.schema) as writer:
        for batch in _batches(reader):
            writer.write_batch(batch)


def _write_arrow(reader: BatchReader, sink: BinaryIO) -> None:
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        for batch in _batches(reader):
            writer.write_batch(batch)


def _write_table(reader: BatchReader, sink: BinaryIO) -> None:
    all_rows = _rows(reader)
    rows = list(islice(all_rows, _MOST_ROWS))
    more = next(all_rows, None) is not None
    del all_rows  # what it shows on the terminal ends with it
    print_on(sink, rich_table(reader.schema, rows))
    if more:
        say(f"these are the first {_MOST_ROWS:,} rows; the other formats write all")


def rich_table(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> Table:
    """Lay rows out for users; numbers stand at the right."""
    from rich import box  # noqa: PLC0415  (programs' formats do not wait for it)
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for field in schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        justify: Any = "right" if number or pa.types.is_decimal(field.type) else "left"
        table.add_column(Text(harmless(field.name)), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(harmless(cell(value))) for value in row))
    return table


def print_on(sink: BinaryIO, what: RenderableType) -> None:
    """Write something for users; on a terminal with its width and colours."""
    text = io.TextIOWrapper(sink, encoding="utf-8", errors="replace", write_through=True)
    try:
        _console_on(text).print(what)
        text.flush()
    finally:
        text.detach()


def _console_on(file: IO[str]) -> Console:
    """Make a console; what is no terminal gets lines that are never broken, and no colour."""
    from rich.console import Console  # noqa: PLC0415  (as above)

    if file.isatty():
        return Console(file=file, highlight=False)
    return Console(file=file, width=_WIDE, color_system=None, force_terminal=False, highlight=False)


_WRITERS = {
    Format.TABLE: _write_table,
    Format.JSON: _write_json,
    Format.CSV: _write_csv,
    Format.PARQUET: _write_parquet,
    Format.ARROW: _write_arrow,
}
