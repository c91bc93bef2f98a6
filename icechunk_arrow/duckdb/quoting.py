"""Names and values as DuckDB SQL: what comes from a repository is never anything but one name or one value."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

__all__ = ["identifier", "literal", "plain_pattern", "text"]

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_WILD = re.compile(r"([*?\[])")


def identifier(*names: str) -> str:
    """Quote the name of a schema or relation; several are each within the one before."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def text(value: str) -> str:
    """Quote a text; what would break a line, or end the text for a careless reader, stands as its number."""
    if not _CONTROLS.search(value):
        return "'" + value.replace("'", "''") + "'"
    parts = re.split(f"({_CONTROLS.pattern})", value)
    written = [
        f"chr({ord(part)})" if place % 2 else text(part) for place, part in enumerate(parts) if part
    ]
    return "(" + " || ".join(written) + ")"


def plain_pattern(path: str) -> str:
    """Write a path as a pattern that matches nothing but it."""
    return _WILD.sub(r"[\1]", path)


def literal(value: Any) -> str:
    """Write a value of any type of our tables."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return text(value)
        case bytes():
            return f"unhex('{value.hex()}')"
        case datetime():
            return f"TIMESTAMPTZ '{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00'"
        case list() | tuple():
            return "[" + ", ".join(map(literal, value)) + "]"
        case dict():
            members = (f"{identifier(name)} := {literal(each)}" for name, each in value.items())
            return f"struct_pack({', '.join(members)})"
        case _:
            raise AssertionError(type(value))
