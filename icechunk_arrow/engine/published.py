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

from icechunk_arrow.core.manifest_settings import (
    ManifestPreload,
    ManifestRule,
    ManifestSet,
    ManifestSettings,
)
from icechunk_arrow.core.path_patterns import LONGEST_PATTERN
from icechunk_arrow.engine.config import RepositoryConfig
from icechunk_arrow.formats import published as published_formats

__all__ = ["config_json_schema", "published"]

_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
_LIMITS: dict[str, dict[str, float]] = {
    "inline_chunk_threshold_bytes": {"minimum": 0, "maximum": 1 << 20},
    "chunk_file_size_bytes": {"minimum": 0, "maximum": 1 << 30},
}
"""What the settings check of themselves; sizes in bytes begin at 0."""


def published() -> dict[str, str]:
    """Give the text of every published file, by its name."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **config_json_schema(RepositoryConfig),
        "title": "Configuration",
        "description": "config.yaml: how a repository is written, as plain YAML or JSON.",
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
        if wanted is ManifestSettings:
            schema = {**_manifests_schema(), **meaning}
        else:
            sizes = {"minimum": 0} if each.name.endswith("_bytes") else {}
            limits = _LIMITS.get(each.name, sizes)
            schema = {"type": _json_type(wanted), **limits, "default": each.default, **meaning}
        properties[each.name.replace("_", "-")] = schema
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _manifests_schema() -> dict[str, Any]:
    """The schema of ``chunk-manifests``, whose plain form is not that of its classes."""
    parts, preload = _meanings(ManifestSettings), _meanings(ManifestPreload)
    default = ManifestSettings().to_plain()
    pattern = {"type": "string", "minLength": 1, "maxLength": LONGEST_PATTERN}
    positive = {"type": ["integer", "null"], "minimum": 1}
    number = {"type": "integer", "minimum": 0}
    end = {"type": ["integer", "null"], "minimum": 0}
    span = {"type": ["array", "null"], "prefixItems": [end, end], "minItems": 2, "maxItems": 2}
    a_set = _object(
        _meanings(ManifestSet),
        max_manifest_size=positive,
        arrays_per_manifest=positive,
        cardinality=positive,
        overflow_to={"type": ["string", "null"]},
        split_along={"type": ["integer", "string", "null"], "minimum": 0, "minLength": 1},
    )
    other = {**positive, "description": "Another word for arrays-per-manifest."}
    a_set["properties"]["max-arrays-per-manifest"] = other
    a_rule = _object(
        _meanings(ManifestRule),
        target={"type": "string"},
        path={**pattern, "type": ["string", "null"]},
        metadata_chunks=span,
        initialized_chunks=span,
    )
    named_set = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "propertyNames": {"minLength": 1, "maxLength": 100},
        "additionalProperties": {**a_set, "type": ["object", "null"]},
    }
    one_path = _object({"path": preload["arrays"]}, path=pattern)
    a_preload = _object(
        preload,
        max_manifest_size=number,
        max_manifests=number,
        arrays={"type": "array", "items": {**one_path, "required": ["path"]}},
    )
    found = _object(
        parts,
        sets={"type": "array", "items": named_set},
        rules={"type": "array", "items": {**a_rule, "required": ["target"]}},
        preload={**a_preload, "type": ["object", "null"]},
    )
    for name, schema in found["properties"].items():
        schema["default"] = default[name]
    return {**found, "type": ["object", "null"]}


def _object(meanings: dict[str, str], **members: dict[str, Any]) -> dict[str, Any]:
    """The schema of a mapping that takes no other keys."""
    properties = {
        name.replace("_", "-"): {**schema, "description": _in_yaml(meanings[name])}
        for name, schema in members.items()
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _in_yaml(meaning: str) -> str:
    """Say it in the words of the file."""
    keyed = re.sub(r"``\w+``", lambda found: found[0].replace("_", "-"), meaning)
    return keyed.replace("None", "null")


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
