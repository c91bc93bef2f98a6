"""The program: its help, and how a failure becomes a message and an exit code."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from icechunk_arrow.cli.commands import COMMANDS, PROGRAM, option
from icechunk_arrow.cli.consoles import say
from icechunk_arrow.errors import IcechunkArrowError

__all__ = ["app", "run"]

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


class _Program(click.Group):
    """Runs a command; of our own errors the message alone is shown."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _forget_output()
            raise SystemExit(_PIPE_CLOSED) from None
        except KeyboardInterrupt:
            raise SystemExit(_INTERRUPTED) from None
        except IcechunkArrowError as error:
            say(f"{PROGRAM}: {error}")
            raise SystemExit(_FAILED) from None
        return result

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Give the commands in the order of the table."""
        return list(self.commands)


def _forget_output() -> None:
    """Let nothing more be written at exit, which would complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(import_module("icechunk_arrow").__version__)
        ctx.exit()


app = _Program(
    commands=COMMANDS,
    help="Look at versioned Zarr repositories, and ask them questions in SQL.\n\n"
    "URL is a path or what fsspec knows (s3://bucket/folder). Data goes to standard output, messages to standard "
    "error.",
    epilog=_EXIT_CODES,
    params=[
        option(
            "--version",
            is_flag=True,
            callback=_say_version,
            is_eager=True,
            expose_value=False,
            says="Say the version.",
        )
    ],
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run() -> None:
    """Run what this process's arguments say, and exit."""
    try:
        try:
            app(prog_name=PROGRAM)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        sys.exit(_PIPE_CLOSED)
    except OSError as error:  # what else fails is an error of ours, and was told by now
        _forget_output()
        with suppress(OSError):
            say(f"{PROGRAM}: standard output cannot be written: {error.strerror or error}")
        sys.exit(_FAILED)
