"""Values of options that several commands know. Imports click alone: help does not wait for more."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Format", "RowsTo", "json_or_text", "pairs"]


class Format(Enum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


@dataclass(frozen=True, slots=True)
class RowsTo:
    """How a command's rows are written, and where: to standard output where no file is named."""

    form: Format
    file: Path | None = None


def json_or_text(text: str) -> Any:
    """Read JSON; what is none is a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Split ``key=value`` texts."""
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
        if key in values:
            raise click.BadParameter(f"{key!r} is given twice", param_hint=option)
        values[key] = value
    return values
