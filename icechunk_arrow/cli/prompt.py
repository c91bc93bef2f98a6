"""The prompt of ``icechunk-arrow sql``: lines become statements, a mistake does not end it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Protocol

from click import BadParameter

from icechunk_arrow.cli.consoles import say
from icechunk_arrow.cli.inspecting import emit_inspections
from icechunk_arrow.cli.options import pairs
from icechunk_arrow.errors import IcechunkArrowError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icechunk_arrow.cli.options import RowsTo

__all__ = ["Answers", "converse"]

_FIRST, _NEXT = "icechunk> ", "     ...> "
_TABLES = """SELECT view_name AS name FROM duckdb_views()
WHERE schema_name = current_schema() AND view_name[1] <> '_' ORDER BY name"""
_HELP = """A statement ends with a semicolon. Besides SQL there are:
  .tables                         the tables
  .inspect [NAME [KEY=VALUE ...]]  an inspection, or a list of all
  .refresh                        go on with what the branch names now
  .help                           this
  .quit                           leave; so does Ctrl-D"""


class Answers(Protocol):
    """What a prompt needs of what answers."""

    snapshot: str

    def answer(self, text: str, to: RowsTo) -> None:
        """Run statements, and write the rows of the last one."""

    def inspect(self, name: str, parameters: Mapping[str, str], to: RowsTo) -> None:
        """Run an inspection, and write its rows."""

    def refresh(self) -> None:
        """Go on with the snapshot that the branch names now."""

    def names(self) -> list[str]:
        """Give what may be completed."""


def converse(desk: Answers, to: RowsTo) -> None:
    """Read statements from the terminal until its end, and answer each."""
    _complete(desk.names())
    say("SQL for DuckDB; .help says what else there is.")
    lines: list[str] = []
    while True:
        try:
            line = input(_NEXT if lines else _FIRST)
        except EOFError:
            say("")
            return
        except KeyboardInterrupt:
            say("")
            lines = []
            continue
        if not lines and line.strip() in {".quit", ".exit"}:
            return
        if not lines and not line.strip():
            continue
        lines.append(line)
        dotted = len(lines) == 1 and line.startswith(".")
        if not dotted and not line.rstrip().endswith(";"):
            continue
        statement = "\n".join(lines)
        lines = []
        try:
            if dotted:
                _obey(desk, statement.strip(), to)
            else:
                desk.answer(statement, to)
        except IcechunkArrowError as error:
            say(str(error))
        except BadParameter as error:
            say(error.message)
        except KeyboardInterrupt:
            say("interrupted")


def _obey(desk: Answers, command: str, to: RowsTo) -> None:
    try:
        words = shlex.split(command)
    except ValueError:
        say(f"a quote in {command} is not closed")
        return
    match words:
        case [".tables"]:
            desk.answer(_TABLES, to)
        case [".inspect"]:
            emit_inspections(to)
        case [".inspect", name, *parameters]:
            desk.inspect(name, pairs(parameters, "--param"), to)
        case [".refresh"]:
            desk.refresh()
            say(f"the tables show the snapshot {desk.snapshot}")
        case [".help"]:
            say(_HELP)
        case _:
            say(f"{command} is no command; .help lists them")


def _complete(names: list[str]) -> None:
    """Let the terminal's line editor complete names, where Python has one."""
    try:
        import readline  # noqa: PLC0415  (not in every Python)
    except ImportError:
        return

    def complete(start: str, number: int) -> str | None:
        fitting = [name for name in names if name.startswith(start)]
        return fitting[number] if number < len(fitting) else None

    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
