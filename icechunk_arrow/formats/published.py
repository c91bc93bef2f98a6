"""The published schemas: what every file kind looks like, as text for other implementations.

Specification: schemas/README.md

Derived from the schemas with which files are written, so that the two cannot differ. Knows no places.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.core.manifest_columns import COLUMNS, HAS_CHECKS, HAS_CRC, HAS_SUMS, WIDE
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

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from icechunk_arrow.formats.layout import FileKind

__all__ = ["as_text", "published"]


def published() -> dict[str, str]:
    """Give the text of each published file, by its name."""
    every = HAS_CHECKS | HAS_CRC | HAS_SUMS
    narrow, wide = (
        pa.schema([*manifest.schema_of(flags), *manifest.STATISTICS_COLUMNS])
        for flags in (every, every | WIDE)
    )
    always = manifest.SCHEMA.names
    meanings = {each.name: each.meaning for each in COLUMNS}
    found = {
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
    return {name: as_text(value) for name, value in found.items()}


def as_text(value: Any) -> str:
    """Write JSON for people and for version control."""
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
