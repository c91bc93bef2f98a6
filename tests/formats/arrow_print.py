"""Prints an Arrow schema as the specification does, whatever the version of pyarrow cuts off."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa


def as_printed(schema: pa.Schema) -> str:
    """Every field with its type, nesting, nullability and metadata."""
    return "\n".join(line for field in schema for line in _lines(field))


def _line(field: pa.Field) -> str:
    return f"{field.name}: {field.type}" + ("" if field.nullable else " not null")


def _children(field: pa.Field, indent: str) -> Iterator[str]:
    for number in range(field.type.num_fields):
        child = field.type.field(number)
        yield f"{indent}child {number}, {_line(child)}"
        yield from _children(child, indent + "    ")


def _lines(field: pa.Field) -> Iterator[str]:
    yield _line(field)
    yield from _children(field, "  ")
    if field.metadata:
        yield "  -- field metadata --"
        for name, value in field.metadata.items():
            yield f"  {name.decode()}: '{value.decode()}'"
