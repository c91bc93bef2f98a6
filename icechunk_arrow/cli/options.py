"""The options that commands share, and how their texts become values."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from icechunk_arrow.formats.layout import MAIN
from icechunk_arrow.repository import Repository

__all__ = [
    "AsOf",
    "Branch",
    "Format",
    "FormatOption",
    "Output",
    "SnapshotId",
    "StorageOptions",
    "Tag",
    "Url",
    "open_repository",
    "pairs",
    "selected",
    "storage_options_of",
]


class Format(Enum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


def _time(text: str | datetime) -> datetime:
    if isinstance(text, datetime):
        return text
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time; write it like 2026-01-31T12:00:00Z"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


Url = Annotated[str, typer.Argument(metavar="URL", help="The repository: a path or URL.")]
Branch = Annotated[
    str | None, typer.Option("--branch", help="Read this branch (main, if nothing is named).")
]
Tag = Annotated[str | None, typer.Option("--tag", help="Read this tag.")]
SnapshotId = Annotated[str | None, typer.Option("--snapshot", help="Read the snapshot of this id.")]
AsOf = Annotated[
    datetime | None,
    typer.Option(
        "--as-of",
        parser=_time,
        metavar="TIME",
        help="Read the branch as it was then: ISO 8601, UTC if it names no zone.",
    ),
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="What the file system takes, as anon=true or client_kwargs='{...}'; a value that is JSON is read as "
        "JSON. May be repeated.",
    ),
]
FormatOption = Annotated[
    Format, typer.Option("--format", help="How rows are written; arrow is an IPC stream.")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there instead.")
]


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """Split ``key=value`` texts."""
    found = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
        if key in found:
            raise typer.BadParameter(f"{key!r} is given twice", param_hint=option)
        found[key] = value
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def storage_options_of(texts: list[str] | None) -> dict[str, Any] | None:
    """Give what a file system takes; None if nothing was named."""
    found = {key: _value(text) for key, text in pairs(texts, "--storage-option").items()}
    return found or None


def open_repository(url: str, storage_option: list[str] | None) -> Repository:
    """Open the repository that a command is about."""
    return Repository.open(url, storage_options_of(storage_option))


def selected(
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
