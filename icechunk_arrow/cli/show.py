"""The command that opens one file of a repository: what it is, what it says of itself, its columns and rows.

Of a Parquet file it reads the end and the row groups that are shown, and checks what it reads.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import structs

from icechunk_arrow.cli.consoles import working
from icechunk_arrow.cli.options import Format, RowsTo, json_or_text
from icechunk_arrow.cli.output import (
    cell,
    emit,
    emit_text,
    opened,
    plain,
    print_on,
    rich_table,
    rows_of,
)
from icechunk_arrow.engine.config import RepositoryConfig
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.formats import refs, state
from icechunk_arrow.formats.budget import DECODE_LIMIT_BYTES, Budget
from icechunk_arrow.formats.envelope import open_seal, read_row_groups, seal_needs
from icechunk_arrow.formats.layout import FileKind, ParsedKey, parse_key
from icechunk_arrow.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from icechunk_arrow.storage.port import Storage

__all__ = ["show"]

_FIRST_LOOK = 64 * 1024
_LONGEST_FACT = 300
_KEY_PARTS = (3, 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What there is to say about a file."""

    identification: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    columns: list[dict[str, Any]] = field(default_factory=list)
    rows: pa.Table | None = None


def show(
    file: str,
    *,
    rows: int,
    to: RowsTo,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Say what a file is, what it says of itself, which columns it has, and its first rows."""
    root, key, parsed = _split(file)
    with working(f"reading {file}"):
        shown = _read(open_storage(root, storage_options), key, parsed, rows)
    if to.form is Format.JSON:
        document = {
            "identification": shown.identification,
            "facts": shown.facts,
            "schema": shown.columns,
            "rows": []
            if shown.rows is None
            else [
                plain(dict(zip(shown.rows.column_names, row, strict=True)))
                for row in rows_of(shown.rows)
            ],
        }
        emit_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", to.file)
    elif to.form is Format.TABLE:
        _print(shown, to.file)
    elif shown.rows is None:
        raise InvalidInputError(f"{file} has no rows; choose --format table or json")
    else:
        emit(shown.rows, to)


def _split(file: str) -> tuple[str, str, ParsedKey]:
    """Split a file's place into the repository's and its key there."""
    parts = file.split("/")
    for count in _KEY_PARTS:
        parsed = parse_key("/".join(parts[-count:])) if len(parts) >= count else None
        if parsed is not None:
            root = "/".join(parts[:-count])
            whole = root or ("/" if file.startswith("/") else ".")
            return whole, "/".join(parts[-count:]), parsed
    raise InvalidInputError(
        f"{file!r} is not named like a file of a repository, such as s/<id>.parquet, "
        f"refs/branch.main/<sequence>.json or config.yaml; name it with its folder"
    )


def _read(storage: Storage, key: str, parsed: ParsedKey, limit: int) -> _Shown:
    about = {name: value for name, value in structs.asdict(parsed).items() if value is not None}
    identification = {"repository": storage.url, "key": key, **about}
    match parsed.role:
        case "structure" | "manifest" | "attributes" | "transaction":
            return _read_parquet(storage, key, FileKind(key[0]), identification, limit)
        case "chunk":
            _, size = storage.get_tail(key, 1)
            return _Shown(identification={**identification, "size_bytes": size})
        case _:
            data = storage.get(key, limit_bytes=DECODE_LIMIT_BYTES)
            identification["size_bytes"] = len(data)
            return _Shown(identification=identification, facts=_facts_of(parsed.role, data, key))


def _facts_of(role: str, data: bytes, key: str) -> dict[str, Any]:
    """Check a small file, and give what it says."""
    if role == "config":
        return RepositoryConfig.from_yaml(data, []).to_plain()
    if role == "state":
        state.decode(data, key)
    else:
        refs.decode(data, key)
    facts: dict[str, Any] = json.loads(data)
    return facts


def _read_parquet(
    storage: Storage, key: str, kind: FileKind, identification: dict[str, Any], limit: int
) -> _Shown:
    tail, size = storage.get_tail(key, _FIRST_LOOK)
    while (needs := seal_needs(tail, size, key)) > len(tail):
        Budget(key).check(needs)
        tail, size = storage.get_tail(key, needs)
    sealed = open_seal(tail, size, kind, identification["identifier"])
    metadata = sealed.metadata
    groups: list[int] = []
    count = 0
    while count < limit and len(groups) < sealed.row_group_count:
        count += metadata.row_group(len(groups)).num_rows
        groups.append(len(groups))
    if groups:
        start, stop = sealed.byte_range(groups[0], groups[-1])
        data = storage.get_range(key, start, stop - start)
        table = read_row_groups(sealed, groups, data).slice(0, limit)
    else:
        table = metadata.schema.to_arrow_schema().empty_table()
    facts = {name: _fact(text) for name, text in sealed.facts.items() if name != "ARROW:schema"}
    return _Shown(
        identification={
            **identification,
            "kind": kind.label,
            "size_bytes": size,
            "row_count": metadata.num_rows,
            "row_groups": sealed.row_group_count,
        },
        facts=facts,
        columns=[
            {"column": each.name, "type": str(each.type), "nullable": each.nullable}
            for each in metadata.schema.to_arrow_schema()
        ],
        rows=table,
    )


def _fact(text: str) -> Any:
    """Read a fact that is JSON; others are texts."""
    return json_or_text(text) if text.startswith(("{", "[")) else text


def _short(value: Any) -> str:
    text = cell(value)
    return text if len(text) <= _LONGEST_FACT else text[:_LONGEST_FACT] + " …"


def _print(shown: _Shown, file: Path | None) -> None:
    """Write everything for users, one part after the other."""
    facts = pa.schema([("name", pa.string()), ("value", pa.string())])
    columns = pa.schema([("column", pa.string()), ("type", pa.string()), ("nullable", pa.bool_())])
    parts: dict[str, Any] = {
        "Identification": (facts, [(k, _short(v)) for k, v in shown.identification.items()]),
        "Facts": (facts, [(k, _short(v)) for k, v in shown.facts.items()]),
        "Schema": (columns, [tuple(each.values()) for each in shown.columns]),
    }
    if shown.rows is not None:
        parts["Rows"] = (shown.rows.schema, list(rows_of(shown.rows)))
    sys.stdout.flush()
    with opened(file) as sink:
        for title, (schema, rows) in parts.items():
            if rows:
                print_on(sink, f"[bold]{title}[/bold]")
                print_on(sink, rich_table(schema, rows))
                print_on(sink, "")
