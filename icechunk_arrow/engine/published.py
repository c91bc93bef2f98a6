"""The published schema of the configuration, and the command that writes all published schemas.

``python -m icechunk_arrow.engine.published [FOLDER]`` writes them into ``schemas/``.

The configuration's schema is derived from the settings' types, defaults and documentation.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
import typing
from pathlib import Path
from typing import Any

from icechunk_arrow.engine.config import RepositoryConfig
from icechunk_arrow.formats import published as published_formats

__all__ = ["config_json_schema", "published"]

_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
_LIMITS: dict[str, dict[str, float]] = {
    "inline_chunk_threshold_bytes": {"minimum": 0, "maximum": 1 << 20},
    "retry_tries": {"minimum": 1},
    "retry_backoff_seconds": {"minimum": 0},
    "retry_backoff_max_seconds": {"minimum": 0},
    "timeout_seconds": {"exclusiveMinimum": 0},
    "max_concurrency": {"minimum": 1},
}
"""What the settings check of themselves; sizes in bytes begin at 0."""


def published() -> dict[str, str]:
    """Give the text of every published file, by its name."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **config_json_schema(RepositoryConfig),
        "title": "Configuration",
        "description": "config.yaml: settings that travel with a repository, as YAML or JSON.",
    }
    return {
        **published_formats.published(),
        "config.schema.json": published_formats.as_text(schema),
    }


def config_json_schema(settings: type[Any]) -> dict[str, Any]:
    """Derive the JSON Schema of a settings class; every setting may be left out."""
    hints = typing.get_type_hints(settings)
    meanings = _meanings(settings)
    properties = {}
    for each in (each for each in dataclasses.fields(settings) if each.init):
        meaning = {"description": meanings[each.name]}
        wanted = hints[each.name]
        if dataclasses.is_dataclass(wanted):
            schema = {**config_json_schema(typing.cast("type[Any]", wanted)), **meaning}
        else:
            sizes = {"minimum": 0} if each.name.endswith("_bytes") else {}
            limits = _LIMITS.get(each.name, sizes)
            schema = {"type": _json_type(wanted), **limits, "default": each.default, **meaning}
        properties[each.name.replace("_", "-")] = schema
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _json_type(wanted: Any) -> str | list[str]:
    members = wanted.__args__ if isinstance(wanted, types.UnionType) else (wanted,)
    names = [_JSON_TYPES[member] for member in members]
    return names if len(names) > 1 else names[0]


def _meanings(settings: type[Any]) -> dict[str, str]:
    """Read what a class says of its parameters; several may share a paragraph."""
    text = inspect.cleandoc(settings.__doc__ or "").partition("Parameters\n----------\n")[2]
    found = {}
    for names, paragraph in re.findall(r"^(\w+(?:, \w+)*)\n((?:    .*\n?)+)", text, re.MULTILINE):
        meaning = " ".join(paragraph.split())
        found.update(dict.fromkeys(names.split(", "), meaning))
    return found


def main(folder: str = "schemas") -> None:
    """Write every published file into a folder."""
    for name, text in published().items():
        (Path(folder) / name).write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
