"""The published schemas, as text for other implementations: every kind of file, and the configuration.

Specification: schemas/README.md

``python -m icechunk_arrow.engine.published [FOLDER]`` writes them into ``schemas/``. They are derived from what
files are written with and settings are declared with, so that the two cannot differ.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from dataclasses import MISSING
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from icechunk_arrow.core.manifest_columns import COLUMNS, WIDE
from icechunk_arrow.core.manifest_settings import ManifestPreload, ManifestRule, ManifestSet
from icechunk_arrow.engine.config import RepositoryConfig
from icechunk_arrow.formats import (
    attributes,
    facts,
    hint,
    ledger,
    manifest,
    refs,
    state,
    structure,
    transaction,
)
from icechunk_arrow.formats.envelope import SPEC_VERSION
from icechunk_arrow.settings import (
    LARGEST,
    MOST_ENTRIES,
    OPEN,
    declared,
    form_of,
    is_required,
    key_of,
    plain_value,
)

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from icechunk_arrow.formats.layout import FileKind
    from icechunk_arrow.settings import Form

__all__ = ["as_text", "published", "with_tables"]

_TABLES = {
    "key": RepositoryConfig,
    "key of a set": ManifestSet,
    "key of a rule": ManifestRule,
    "key of `preload`": ManifestPreload,
}
"""The tables of keys in the specification, by the first words of their heads."""
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"))


def _of_files() -> dict[str, str]:
    """Give the text of each published description of a kind of file, by its name."""
    every = reduce(or_, (each.flag for each in COLUMNS))
    narrow, wide = (
        pa.schema([*manifest.schema_of(flags), *manifest.STATISTICS_COLUMNS])
        for flags in (every, every | WIDE)
    )
    always = manifest.SCHEMA.names
    meanings = {each.name: each.meaning for each in COLUMNS}
    descriptions = {
        "structure.json": _arrow(structure.KIND, structure.SCHEMA, width="narrow"),
        "structure-wide.json": _arrow(structure.KIND, structure.WIDE_SCHEMA, width="wide"),
        "manifest.json": _arrow(
            manifest.KIND, narrow, width="narrow", always=always, meanings=meanings
        ),
        "manifest-wide.json": _arrow(
            manifest.KIND, wide, width="wide", always=always, meanings=meanings
        ),
        "attributes.json": _arrow(attributes.KIND, attributes.SCHEMA),
        "transaction.json": _arrow(
            transaction.KIND, transaction.FULL_SCHEMA, always=transaction.SCHEMA.names
        ),
        "branch-entry.schema.json": refs.BRANCH_ENTRY_JSON_SCHEMA,
        "hint.schema.json": hint.JSON_SCHEMA,
        "ledger-entry.schema.json": ledger.ENTRY_JSON_SCHEMA,
        "tag.schema.json": refs.TAG_JSON_SCHEMA,
        "state.schema.json": state.JSON_SCHEMA,
        "snapshot-facts.schema.json": facts.JSON_SCHEMA,
        "log-facts.schema.json": transaction.FACTS_JSON_SCHEMA,
    }
    return {name: as_text(value) for name, value in descriptions.items()}


def as_text(value: Any) -> str:
    """Write JSON for readers and for version control."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _arrow(
    kind: FileKind,
    schema: pa.Schema,
    *,
    width: str | None = None,
    always: Container[str] | None = None,
    meanings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Describe a Parquet file: where it stands and its columns in order.

    Columns outside ``always`` are optional; with None there are no optional ones.
    """
    described: dict[str, Any] = {
        "kind": kind.label,
        "files": f"{kind.value}/<id>.parquet",
        "spec_version": SPEC_VERSION,
    }
    if width is not None:
        described["width"] = width
    described["columns"] = [
        {**_field(field), "optional": always is not None and field.name not in always}
        for field in schema
    ]
    if meanings is not None:
        for column in described["columns"]:
            column["description"] = meanings[column["name"]]
    return described


def _field(field: pa.Field) -> dict[str, Any]:
    metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    described: dict[str, Any] = {
        "name": field.name,
        "type": _type_name(field.type),
        "nullable": field.nullable,
    }
    if metadata:
        described["metadata"] = metadata
    children = [field.type.field(i) for i in range(field.type.num_fields)]
    if children:
        described["children"] = [_field(child) for child in children]
    return described


def _type_name(arrow_type: pa.DataType) -> str:
    """Name a type; what is inside a nested one stands in its children."""
    if pa.types.is_fixed_size_list(arrow_type):
        return f"fixed_size_list[{arrow_type.list_size}]"
    for is_kind, name in ((pa.types.is_struct, "struct"), (pa.types.is_list, "list")):
        if is_kind(arrow_type):
            return name
    return str(arrow_type)


def published() -> dict[str, str]:
    """Give the text of every published file, by its name."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_mapping_schema(RepositoryConfig),
        "title": "Configuration",
        "description": "config.yaml: how a repository is written, as plain YAML or JSON.",
    }
    return {
        **_of_files(),
        "config.schema.json": as_text(schema),
    }


def _mapping_schema(settings: type[Any], without: str = "") -> dict[str, Any]:
    """Describe the mapping that stands for settings; it takes no other keys."""
    meanings = _meanings(settings)
    properties: dict[str, Any] = {}
    required = []
    for field in _fields(settings):
        wanted = declared(settings)[field.name]
        if field.name == without:
            continue
        key, schema = key_of(field.name), _schema_of(wanted)
        also = form_of(wanted).takes.also
        if also:
            properties[also] = {**schema, "description": f"Another word for {key}."}
        if _has_default(field):
            schema = {**schema, "default": plain_value(wanted, field.default)}
        if is_required(field):
            required.append(key)
        properties[key] = {**schema, "description": meanings[field.name]}
    mapping = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**mapping, "required": required} if required else mapping


def _schema_of(wanted: Any) -> dict[str, Any]:
    form = form_of(wanted)
    if form.settings is not None:
        return {**_mapping_schema(form.settings), "type": ["object", "null"]}
    if form.item is not None:
        return {"type": "array", "items": _item_schema(form), "maxItems": MOST_ENTRIES}
    return msgspec.json.schema(wanted)


def _item_schema(form: Form) -> dict[str, Any]:
    """Describe an item of a list, in the form that it has in files."""
    takes = form.takes
    if takes.item_key:
        return {
            "type": "object",
            "properties": {takes.item_key: _schema_of(form.item)},
            "additionalProperties": False,
            "required": [takes.item_key],
        }
    kind = form_of(form.item).settings
    assert kind is not None
    inner = _mapping_schema(kind, takes.item_name)
    if not takes.item_name:
        return inner
    return {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "propertyNames": _schema_of(declared(kind)[takes.item_name]),
        "additionalProperties": {**inner, "type": ["object", "null"]},
    }


def _fields(settings: type[Any]) -> list[dataclasses.Field[Any]]:
    return [each for each in dataclasses.fields(settings) if each.init]


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not MISSING and field.default is not OPEN


def _meanings(settings: type[Any]) -> dict[str, str]:
    """Read what a class says of its settings, in the words of files."""
    text = inspect.cleandoc(settings.__doc__ or "").partition("Parameters\n----------\n")[2]
    meanings = {}
    for name, paragraph in re.findall(r"^(\w+)\n((?:    .*\n?)+)", text, re.MULTILINE):
        meaning = " ".join(paragraph.split())
        keyed = re.sub(r"``\w+``", lambda word: word[0].replace("_", "-"), meaning)
        meanings[name] = keyed.replace("None", "null")
    return meanings


def with_tables(page: str) -> str:
    """Put the tables of keys into the page that has them."""
    for title, settings in _TABLES.items():
        begin = page.index(f"| {title} | takes |")
        end = page.index("\n\n", begin) + 1
        page = page[:begin] + _table(title, settings) + page[end:]
    return page


def _table(title: str, settings: type[Any]) -> str:
    """Write the table of a class's keys in Markdown; the name of a set stands above its keys."""
    rows = [f"| {title} | takes | default | meaning |", "|---|---|---|---|"]
    for field in _fields(settings):
        if field.name == "name":
            continue
        wanted = declared(settings)[field.name]
        also = form_of(wanted).takes.also
        keys = f"`{key_of(field.name)}`" + (f", also `{also}`" if also else "")
        default = ""
        if _has_default(field):
            default = _spelt(plain_value(wanted, field.default), field.name)
        meaning = _meanings(settings)[field.name].replace("``", "`")
        cells = [keys, _taken(wanted, field.name), default, meaning]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, ""])


def _taken(wanted: Any, name: str) -> str:
    """Say what a setting takes, in a few words."""
    form = form_of(wanted)
    if form.settings is not None:
        return "mapping"
    if form.item is not None:
        return "list"
    schema = msgspec.json.schema(wanted)
    return ", ".join(_kind(each, name) for each in schema.get("anyOf", [schema]))


def _kind(schema: dict[str, Any], name: str) -> str:
    if schema["type"] != "integer":
        words = {"boolean": "`true`, `false`", "string": "text", "array": "pair", "null": "`null`"}
        return words[schema["type"]]
    most = schema.get("maximum", LARGEST)
    to = "" if most == LARGEST else f" to {_spelt(most, name)}"
    what = "bytes" if name.endswith("_bytes") else "number"
    return f"{what} from {schema['minimum']}{to}"


def _spelt(value: Any, name: str) -> str:
    """Write a value as a user does."""
    for size, unit in _UNITS:
        if name.endswith("_bytes") and value >= size and not value % size:
            return f"{value // size} {unit}"
    return f"`{json.dumps(value)}`" if isinstance(value, list | bool | None) else str(value)


def main(folder: str = "schemas") -> None:
    """Write every published file into a folder, and the tables into its page, if it has one."""
    for name, text in published().items():
        (Path(folder) / name).write_text(text)
    page = Path(folder) / "README.md"
    if page.exists():
        page.write_text(with_tables(page.read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
