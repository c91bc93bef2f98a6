"""The program: its commands in one place, and how a failure becomes a message and an exit code.

Knows what the commands are called; what they do is in the modules that it imports.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from icechunk_arrow.cli import describing, inspecting, inventory, making, querying, showing
from icechunk_arrow.cli.consoles import say
from icechunk_arrow.errors import IcechunkArrowError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run"]

_PROGRAM = "icechunk-arrow"
_FAILED, _PIPE_CLOSED, _INTERRUPTED = 1, 141, 130
_EXIT_CODES = """\b
Exit codes:
  0    it went well
  1    it failed; the message on standard error says why
  2    the command line is not understood
  130  interrupted
  141  whoever read the output has gone

\b
Example:
  icechunk-arrow tree weather"""


class _Program(TyperGroup):
    """Runs a command; of our own errors people see the message alone."""

    def invoke(self, ctx: Any) -> Any:
        try:
            found = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _forget_output()
            raise SystemExit(_PIPE_CLOSED) from None
        except KeyboardInterrupt:
            raise SystemExit(_INTERRUPTED) from None
        except IcechunkArrowError as error:
            say(f"{_PROGRAM}: {error}")
            raise SystemExit(_FAILED) from None
        return found


def _forget_output() -> None:
    """Let nothing more be written at exit, which would complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=_Program,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EXIT_CODES,
)


def _version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        typer.echo(version("icechunk-arrow"))
    except PackageNotFoundError:
        typer.echo("0+unknown")  # a plain checkout
    raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Look at versioned Zarr repositories, and ask them questions in SQL.

    URL is a path or what fsspec knows (s3://bucket/folder). Data goes to standard output, messages to standard
    error.
    """


_COMMANDS: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "init": (making.init, ("init new-weather --set chunk-file-size-bytes=100000000",)),
    "log": (inventory.log, ("log weather --limit 5",)),
    "branches": (inventory.branches, ("branches weather",)),
    "tags": (inventory.tags, ("tags weather --format json",)),
    "ls": (inventory.ls, ("ls weather / --recursive",)),
    "tree": (inventory.tree, ("tree weather --tag v1",)),
    "show": (
        showing.show,
        (
            "show weather/refs/branch.main/ZZZZZZZZ.json",
            "show $(ls -t weather/i/*.parquet | head -1) --rows 5",
        ),
    ),
    "diff": (inventory.diff, ("diff weather v1", "diff weather v1 --branch main --chunks")),
    "sql": (
        querying.sql,
        (
            "sql weather 'SELECT path, chunk_count, missing FROM arrays'",
            "sql weather 'FROM chunks' --tag v1 --format parquet --output chunks.parquet",
            "sql weather gaps --param path=/t2m",
            "sql weather \"FROM chunks_in('/t2m', [0], [2])\" --format csv",
        ),
    ),
    "inspect": (
        inspecting.inspect,
        (
            "inspect",
            "inspect weather gaps --param path=/t2m --param dimension=1 --format csv",
            "inspect weather changed_sources --param observed_files=listing.csv",
        ),
    ),
    "sql-script": (querying.sql_script, ("sql-script weather > weather.sql",)),
    "schema": (
        describing.schema,
        ("schema", "schema chunks", "schema manifest.json --format json"),
    ),
    "config": (making.config, ("config weather --set checksum-chunks=true",)),
}
"""Each command, and examples that its help shows; a test runs them."""

for _name, (_command, _examples) in _COMMANDS.items():
    _lines = [f"  {_PROGRAM} {_example}" for _example in _examples]
    app.command(_name, epilog="\n".join(["\b", "Example:", *_lines]))(_command)


def run() -> None:
    """Run what this process's arguments say, and exit."""
    try:
        try:
            app(prog_name=_PROGRAM)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        sys.exit(_PIPE_CLOSED)
