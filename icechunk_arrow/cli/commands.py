"""The commands: which module does each, what its help says, and what it takes.

What is typed becomes values here, before a command gets it. A command's module is imported when it runs, so that
asking for help waits for no other library than click.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from icechunk_arrow.cli.options import Format, RowsTo, json_or_text, pairs
from icechunk_arrow.formats.layout import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["COMMANDS", "PROGRAM", "option"]

PROGRAM = "icechunk-arrow"

# -- what commands take


def _argument(name: str, says: str, **more: Any) -> click.Argument:
    return click.Argument([name], help=says, **more)


def option(*names: str, says: str, **more: Any) -> click.Option:
    """Make an option with a help text."""
    return click.Option(names, help=says, show_default=True, **more)


def _many(*names: str, says: str, read: Callable[[str], Any] = str) -> click.Option:
    """Make an option that may be repeated, each time with a key and its value."""

    def gathered(_ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> Any:
        return {key: read(text) for key, text in pairs(texts, names[0]).items()}

    return option(*names, metavar="KEY=VALUE", multiple=True, callback=gathered, says=says)


def _time(_ctx: click.Context, _param: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time; write it like 2026-01-31T12:00:00Z"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


_URL = _argument("url", "The repository: a path or URL.")
_STORAGE_OPTIONS = _many(
    "--storage-option",
    "storage_options",
    read=json_or_text,
    says="What the file system takes, as anon=true or client_kwargs='{...}'; a value that is JSON is read as "
    "JSON. May be repeated.",
)
_SETTINGS = _many(
    "--set",
    "settings",
    says="Set a setting, as checksum-chunks=true or chunk-manifests.preload.max-manifests=0; the value is "
    "YAML. May be repeated.",
)
_PARAMETERS = _many(
    "--param",
    "-p",
    "parameters",
    says="A parameter of the inspection, as path=/t2m. May be repeated. Where it is a table of files, name a "
    ".parquet, .csv or .arrow file.",
)
_OUTPUT = option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(path_type=Path, readable=False),
    says="Write there instead.",
)
_ROWS = (
    option(
        "--format",
        "form",
        type=click.Choice([each.value for each in Format]),
        default=Format.TABLE.value,
        callback=lambda _ctx, _param, text: Format(text),
        says="How rows are written; arrow is an IPC stream.",
    ),
    _OUTPUT,
)
"""What a command takes that gives rows."""
_WHEN = (
    option("--branch", says="Read this branch (main, if nothing is named)."),
    option("--tag", says="Read this tag."),
    option("--snapshot", says="Read the snapshot of this id."),
    option(
        "--as-of",
        metavar="TIME",
        callback=_time,
        says="Read the branch as it was then: ISO 8601, UTC if it names no zone.",
    ),
)
"""What a command takes that reads a snapshot."""


def _selected(
    branch: str | None, tag: str | None, snapshot: str | None, as_of: datetime | None
) -> dict[str, Any]:
    """Say which snapshot is meant, as the library's functions take it."""
    named = branch is not None or tag is not None or snapshot is not None
    return {
        "branch": branch if named else MAIN,
        "tag": tag,
        "snapshot_id": snapshot,
        "as_of": as_of,
    }


# -- the commands


def _command(
    name: str, module: str, says: str, takes: Sequence[click.Parameter], examples: Sequence[str]
) -> click.Command:
    """Make a command of the function that is named like it in a module of this package."""

    def run(**taken: Any) -> None:
        if _WHEN[0] in takes:
            taken["which"] = _selected(*(taken.pop(each.name) for each in _WHEN))
        if _ROWS[0] in takes:
            taken["to"] = RowsTo(*(taken.pop(each.name) for each in _ROWS))
        does = getattr(import_module(f"icechunk_arrow.cli.{module}"), name.replace("-", "_"))
        does(**taken)

    lines = [f"  {PROGRAM} {each}" for each in examples]
    return click.Command(
        name,
        callback=run,
        params=list(takes),
        help=says,
        epilog="\n".join(["\b", "Example:", *lines]),
    )


COMMANDS = [
    _command(
        "init",
        "config",
        "Make a repository where there is none.",
        [
            _URL,
            _SETTINGS,
            option(
                "--catalog",
                type=click.Choice(["branches", "state"]),
                default="branches",
                says="Keep branches and tags as files of their own, or in one state file.",
            ),
            _STORAGE_OPTIONS,
        ],
        ["init new-weather --set chunk-file-size-bytes=100000000"],
    ),
    _command(
        "log",
        "history",
        "List a snapshot and all before it, newest first.",
        [
            _URL,
            option("--limit", type=click.IntRange(min=1), says="Show so many snapshots at most."),
            *_WHEN,
            *_ROWS,
            _STORAGE_OPTIONS,
        ],
        ["log weather --limit 5"],
    ),
    _command(
        "branches",
        "history",
        "List the branches as they stand now.",
        [_URL, *_ROWS, _STORAGE_OPTIONS],
        ["branches weather"],
    ),
    _command(
        "tags",
        "history",
        "List the tags as they stand now.",
        [_URL, *_ROWS, _STORAGE_OPTIONS],
        ["tags weather --format json"],
    ),
    _command(
        "ls",
        "nodes",
        "List the arrays and groups in a group, or one array.",
        [
            _URL,
            _argument("path", "A group or array.  [default: /]", default="/"),
            option("--recursive", "-r", is_flag=True, says="List what is in groups below, too."),
            *_WHEN,
            *_ROWS,
            _STORAGE_OPTIONS,
        ],
        ["ls weather / --recursive"],
    ),
    _command(
        "tree",
        "nodes",
        "Draw the groups and arrays.",
        [
            _URL,
            _argument("path", "Begin at this group.  [default: /]", default="/"),
            option("--depth", type=click.IntRange(min=0), says="Go down so far at most."),
            *_WHEN,
            _STORAGE_OPTIONS,
        ],
        ["tree weather --tag v1"],
    ),
    _command(
        "show",
        "show",
        "Say what a file is, what it says of itself, which columns it has, and its first rows.\n\n"
        "All in one with --format table or json; the other formats give the rows alone.",
        [
            _argument("file", "A file of a repository: path or URL."),
            option(
                "--rows", type=click.IntRange(min=0), default=10, says="Show so many rows at most."
            ),
            *_ROWS,
            _STORAGE_OPTIONS,
        ],
        [
            "show weather/refs/branch.main/ZZZZZZZZ.json",
            "show $(ls -t weather/i/*.parquet | head -1) --rows 5",
        ],
    ),
    _command(
        "diff",
        "history",
        "Say what changed up to a snapshot, since another one.\n\n"
        "Nodes that were created, deleted, moved or altered, and how many chunks were added, removed or replaced.",
        [
            _URL,
            _argument(
                "since", "A snapshot, branch or tag; the parent if none is named.", required=False
            ),
            option("--chunks", is_flag=True, says="A row for each chunk, instead of counts."),
            *_WHEN,
            *_ROWS,
            _STORAGE_OPTIONS,
        ],
        ["diff weather v1", "diff weather v1 --branch main --chunks"],
    ),
    _command(
        "sql",
        "querying",
        "Ask the repository's tables a question, or open a prompt.\n\n"
        "The tables of one snapshot (`icechunk-arrow schema` lists them) and the macros are there by their names. "
        "Nothing is ever written to the repository. Without QUERY there is a prompt on a terminal; otherwise "
        "standard input is read. Of several statements the last one's rows are given. A single word is the name of "
        "an inspection (`icechunk-arrow inspect` lists them).",
        [
            _URL,
            _argument(
                "query",
                "SQL for DuckDB, or the name of an inspection; - reads standard input.",
                required=False,
            ),
            _PARAMETERS,
            *_WHEN,
            *_ROWS,
            _STORAGE_OPTIONS,
        ],
        [
            "sql weather 'SELECT path, chunk_count, missing FROM arrays'",
            "sql weather 'FROM chunks' --tag v1 --format parquet --output chunks.parquet",
            "sql weather gaps --param path=/t2m",
            "sql weather \"FROM chunks_in('/t2m', [0], [2])\" --format csv",
        ],
    ),
    _command(
        "inspect",
        "inspecting",
        "Ask a question that is answered already: gaps, sizes, growth, who refers to a bucket, and others.\n\n"
        "`icechunk-arrow inspect` lists them with their parameters; other formats than table say all of each.",
        [
            _argument("url", "The repository: a path or URL.", required=False),
            _argument("name", "An inspection; without it, all are listed.", required=False),
            _PARAMETERS,
            *_WHEN,
            *_ROWS,
            _STORAGE_OPTIONS,
        ],
        [
            "inspect",
            "inspect weather gaps --param path=/t2m --param dimension=1 --format csv",
            "inspect weather changed_sources --param observed_files=listing.csv",
        ],
    ),
    _command(
        "sql-script",
        "querying",
        "Write a script that makes the same tables in the duckdb command line, without this program.",
        [
            _URL,
            option("--name", default="icechunk", says="The schema that the script makes."),
            option("--since", says="What its macro `changes` compares with; or the parent."),
            *_WHEN,
            _OUTPUT,
            _STORAGE_OPTIONS,
        ],
        ["sql-script weather > weather.sql"],
    ),
    _command(
        "schema",
        "schema",
        "Say which columns a table or a kind of file has.\n\n"
        "Files with a JSON Schema, and every file with --format json, are given as they are published.",
        [
            _argument("name", "A table or a kind of file; without it, all names.", required=False),
            *_ROWS,
        ],
        ["schema", "schema chunks", "schema manifest.json --format json"],
    ),
    _command(
        "config",
        "config",
        "Show the settings in force, after those of --set were checked and saved.",
        [_URL, _SETTINGS, *_ROWS, _STORAGE_OPTIONS],
        ["config weather --set checksum-chunks=true"],
    ),
]
"""Each command: the module that does it, what its help says, what it takes, and examples that a test runs."""
