"""The inspection queries that there are: what the headers of ``sql/inspect/`` say, and whether parameters fit.

Owns how a header is read. Knows no engine: a query names its relations and parameters in braces, and what runs
it says what stands for each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.keys import node_path
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.tables.sql import fill, list_sql, read_sql, statement

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "OBSERVED",
    "Inspection",
    "Parameter",
    "checked_parameters",
    "find_inspection",
    "inspection_table",
    "list_inspections",
]

_FOLDER = "inspect"
_FACT = re.compile(r"^-- ([a-z]+): +(.*(?:\n-- {5,}.*)*)", re.MULTILINE)
_PARAMETER = re.compile(
    r"(?P<name>\w+) +(?P<kind>\w+)(?: = (?P<default>\S+))?(?: from (?P<least>\d+))?"
    r"(?: to (?P<most>\d+))? {2,}(?P<meaning>\S.*)"
)
_SQL_TYPES = {"text": "STRING", "array": "STRING", "integer": "BIGINT", "dimension": "BIGINT"}
"""What parameters become in a query; the others are relations, or decide what is in one."""
_TEXTS = {"text", "array", "snapshot"}
_NUMBERS = {"integer", "dimension"}
_TYPES: dict[str, pa.DataType] = {
    "text": pa.string(),
    "integer": pa.int64(),
    "integers": pa.list_(pa.int64()),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "time": pa.timestamp("us", "UTC"),
}
_WORDS = {
    "text": "a text",
    "array": "a text, the path of an array",
    "snapshot": "a text, the id of a snapshot or the name of a branch or tag",
    "integer": "an integer",
    "dimension": "an integer, the number of a dimension",
    "table": "an Arrow table with the columns location, size_bytes, etag and last_modified",
}
_MOST = 2**63 - 1

OBSERVED = pa.schema(
    [
        ("location", pa.string()),
        ("size_bytes", pa.int64()),
        ("etag", pa.string()),
        ("last_modified", pa.timestamp("us", "UTC")),
    ]
)
"""The table ``observed_files``: what was found where files are."""
_LISTING = pa.schema(
    [
        ("name", pa.string()),
        ("purpose", pa.string()),
        ("parameters", pa.list_(pa.string())),
        ("columns", pa.list_(pa.string())),
        ("engines", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a query."""

    name: str
    kind: str
    """``text``, ``array``, ``snapshot``, ``integer``, ``dimension`` or ``table``."""
    required: bool
    default: str | int | None
    least: int
    most: int
    meaning: str
    line: str
    """As the header has it."""

    @property
    def sql_type(self) -> str | None:
        """The type in SQL, which all engines know; None for one that is no value of a query."""
        return _SQL_TYPES.get(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """One query of ``sql/inspect/``."""

    name: str
    purpose: str
    engines: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    relations: tuple[str, ...]
    columns: pa.Schema

    def query(self, names: Mapping[str, str]) -> str:
        """Give the query with what stands for each relation and parameter."""
        return fill(statement(f"{_FOLDER}/{self.name}.sql"), names)


def list_inspections() -> list[str]:
    """Names of all queries, sorted."""
    return [each.removesuffix(".sql") for each in list_sql(_FOLDER)]


def find_inspection(name: str) -> Inspection:
    """Find a query, or say which there are."""
    if name not in list_inspections():
        raise InvalidInputError(
            f"there is no inspection {name!r}; there are {', '.join(list_inspections())}"
        )
    facts = {
        key: [re.sub(r"^-- +", "", line) for line in lines.split("\n")]
        for key, lines in _FACT.findall(read_sql(f"{_FOLDER}/{name}.sql"))
    }
    columns = (each.split() for each in _listed(facts["columns"]))
    listed = [] if facts["parameters"] == ["none"] else facts["parameters"]
    return Inspection(
        name=name,
        purpose=" ".join(facts["purpose"]),
        engines=_listed(facts["engines"]),
        parameters=tuple(map(_parameter, listed)),
        relations=_listed(facts["relations"]),
        columns=pa.schema([(column, _TYPES[kind]) for column, kind in columns]),
    )


def _listed(lines: list[str]) -> tuple[str, ...]:
    return tuple(each.strip() for each in " ".join(lines).split(","))


def _parameter(line: str) -> Parameter:
    parts = _PARAMETER.fullmatch(line)
    assert parts is not None, line
    kind, default = parts["kind"], parts["default"]
    value: str | int | None = None if default in {None, "null", "listing"} else default
    return Parameter(
        name=parts["name"],
        kind=kind,
        required=default is None,
        default=int(value) if value is not None and kind in _NUMBERS else value,
        least=int(parts["least"] or 0),
        most=min(int(parts["most"] or _MOST), _MOST),
        meaning=parts["meaning"],
        line=re.sub(" {2,}", "  ", line),
    )


def inspection_table() -> pa.Table:
    """Make the table of all queries."""
    inspections = [find_inspection(name) for name in list_inspections()]
    rows: list[list[Any]] = [
        [each.name for each in inspections],
        [each.purpose for each in inspections],
        [[parameter.line for parameter in each.parameters] for each in inspections],
        [each.columns.names for each in inspections],
        [list(each.engines) for each in inspections],
    ]
    columns = [from_values(each, field.type) for each, field in zip(rows, _LISTING, strict=True)]
    return pa.Table.from_arrays(columns, schema=_LISTING)


def checked_parameters(inspection: Inspection, given: Mapping[str, Any]) -> dict[str, Any]:
    """Give each parameter of a query its value, or say what is wrong with what was given."""
    known = [each.name for each in inspection.parameters]
    for name in given:
        if name not in known:
            raise InvalidInputError(
                f"the inspection {inspection.name!r} has no parameter {name!r}; "
                + (f"it has {', '.join(known)}" if known else "it has none")
            )
    return {
        each.name: _checked(inspection, each, given[each.name])
        if each.name in given
        else _default(inspection, each)
        for each in inspection.parameters
    }


def _default(inspection: Inspection, parameter: Parameter) -> str | int | None:
    if parameter.required:
        raise InvalidInputError(
            f"the inspection {inspection.name!r} needs the parameter {parameter.name!r}: "
            f"{parameter.meaning}; give {_WORDS[parameter.kind]}"
        )
    return parameter.default


def _checked(inspection: Inspection, parameter: Parameter, value: Any) -> Any:
    start = f"the parameter {parameter.name!r} of the inspection {inspection.name!r} "
    if value is None and not parameter.required and parameter.default is None:
        return None
    if parameter.kind == "table":
        return _observed(start, value)
    fits = (
        isinstance(value, str)
        if parameter.kind in _TEXTS
        else isinstance(value, int) and not isinstance(value, bool)
    )
    if not fits:
        raise InvalidInputError(f"{start}is {_WORDS[parameter.kind]}, not {value!r}")
    if parameter.kind in _NUMBERS and not parameter.least <= value <= parameter.most:
        raise InvalidInputError(
            f"{start}is from {parameter.least} to {parameter.most}, not {value}"
        )
    if parameter.kind in _TEXTS and any(0xD800 <= ord(each) < 0xE000 for each in value):
        raise InvalidInputError(f"{start}is no text: {value!r} holds a lone surrogate")
    return node_path(value) if parameter.kind == "array" else value


def _observed(start: str, value: Any) -> pa.Table:
    """Bring observed files into their columns; those that are left out are not known of any file."""
    if not isinstance(value, pa.Table):
        raise InvalidInputError(f"{start}is {_WORDS['table']}, not {type(value).__name__}")
    strange = sorted(set(value.column_names) - set(OBSERVED.names))
    if "location" not in value.column_names or strange:
        wrong = f"has the strange {', '.join(strange)}" if strange else "has no column location"
        raise InvalidInputError(f"{start}is {_WORDS['table']}; this one {wrong}")
    columns = []
    for field in OBSERVED:
        if field.name not in value.column_names:
            columns.append(from_values([None] * value.num_rows, field.type))
            continue
        try:
            columns.append(value[field.name].cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(
                f"{start}has {value[field.name].type} in {field.name!r}, which is no {field.type}: {error}"
            ) from error
    return pa.Table.from_arrays(columns, schema=OBSERVED)
