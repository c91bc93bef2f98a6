"""Files of a few kilobytes that would take gigabytes: each sealed rightly, each in one file of a sound repository.

Owns the makers, by name; each gets a victim, puts one file in another one's place, and gives its key.
"""

from __future__ import annotations

import base64
import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from icechunk_arrow.formats import attributes, envelope, structure
from icechunk_arrow.formats.layout import STATE_KEY, FileKind, branch_key, key_of
from tests.faults.hostile import state_victim
from tests.faults.sealing import altered_footer, sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.faults.hostile import Victim

__all__ = ["BOMBS", "old", "write"]

BOMBS: dict[str, Callable[[Victim], str]] = {}
_LONG = b"x" * 1_000_000


def bomb(make: Callable[[Victim], str]) -> Callable[[Victim], str]:
    """Keep a maker by its name."""
    BOMBS[make.__name__.replace("_", " ")] = make
    return make


def coded(value: bytes, count: int, arrow_type: pa.DataType) -> pa.Array:
    """Give a column of one value many times, of which a file takes next to nothing."""
    codes = pa.array(np.zeros(count, np.int32))
    return pa.DictionaryArray.from_arrays(codes, pa.array([value]).cast(arrow_type))


def write(
    victim: Victim,
    kind: FileKind,
    identifier: str,
    columns: Mapping[str, pa.Array],
    facts: Mapping[str, str] | None = None,
    **settings: Any,
) -> str:
    """Write a table as a file of a kind."""
    texts = {
        "icechunk.header": envelope._header(kind).decode(),
        **envelope.header_metadata(kind),
        **(facts or {}),
    }
    table = pa.table(dict(columns))
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        table.schema,
        store_schema=False,
        use_compliant_nested_type=False,
        **{"compression": "zstd", "write_statistics": False, **settings},
    ) as writer:
        writer.write_table(table, row_group_size=table.num_rows)
        writer.add_key_value_metadata(texts)
    data = sink.getvalue()
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    ends = [4]
    for i in range(group.num_columns):
        column = group.column(i)
        ends.append(column.total_compressed_size + column.data_page_offset)
        if column.has_dictionary_page:
            ends[-1] = column.total_compressed_size + column.dictionary_page_offset
    key = key_of(kind, identifier)
    victim.write(key, sealed(data, identifier, [max(ends)]))
    return key


def old(victim: Victim, kind: FileKind, identifier: str) -> tuple[pa.Table, dict[str, str]]:
    """Read the sound file: its rows, and its facts."""
    data = (victim.root / key_of(kind, identifier)).read_bytes()
    texts = pq.read_metadata(pa.BufferReader(data)).metadata
    return pq.read_table(pa.BufferReader(data)), {k.decode(): v.decode() for k, v in texts.items()}


def write_structure(
    victim: Victim, count: int, column: str, values: pa.Array, **settings: Any
) -> str:
    """Write the first array's row again and again, with another column."""
    table, facts = old(victim, FileKind.STRUCTURE, victim.snapshot_id)
    row = table["path"].to_pylist().index("/a")
    rows = pa.array(np.full(count, row))
    columns = {name: table[name].combine_chunks().take(rows) for name in table.column_names}
    made = {**columns, column: values}
    return write(victim, FileKind.STRUCTURE, victim.snapshot_id, made, facts, **settings)


@bomb
def a_word_a_thousand_times(victim: Victim) -> str:
    return write_structure(victim, 5000, "type", coded(_LONG, 5000, pa.string()))


@bomb
def attributes_in_a_dictionary(victim: Victim) -> str:
    return write_structure(victim, 5000, "inline_attrs", coded(_LONG, 5000, pa.binary()))


@bomb
def paths_that_share_their_beginning(victim: Victim) -> str:
    paths = pa.array([f"/{'x' * 20_000}{n:05}" for n in range(4000)])
    options = {"use_dictionary": False, "column_encoding": {"path": "DELTA_BYTE_ARRAY"}}
    return write_structure(victim, 4000, "path", paths, **options)


@bomb
def a_page_that_unpacks_to_much(victim: Victim) -> str:
    attrs = pa.array([b" " * 150_000_000])
    return write_structure(victim, 1, "inline_attrs", attrs, use_dictionary=False)


@bomb
def a_shape_without_end(victim: Victim) -> str:
    table, _ = old(victim, FileKind.STRUCTURE, victim.snapshot_id)
    one = table.slice(table["path"].to_pylist().index("/a"), 1)["array_metadata"].combine_chunks()
    kind = structure.SCHEMA.field("array_metadata").type
    children = [one.field(i) for i in range(kind.num_fields)]
    shape = kind.get_field_index("shape")
    numbers = pa.array(np.zeros(1 << 24, np.uint16))
    children[shape] = pa.ListArray.from_arrays(pa.array([0, len(numbers)], pa.int32()), numbers)
    fields = [one.type.field(i) for i in range(kind.num_fields)]
    return write_structure(
        victim, 1, "array_metadata", pa.StructArray.from_arrays(children, fields=fields)
    )


@bomb
def facts_that_are_lists(victim: Victim) -> str:
    lists: list[list[int]] = [[]] * 12_000_000
    victim.alter_structure(facts=lambda facts: facts.update(properties={"x": lists}))
    return key_of(FileKind.STRUCTURE, victim.snapshot_id)


@bomb
def numbers_that_nobody_counted(victim: Victim) -> str:
    count = 1 << 26
    packed = pa.compress(bytes(8 * count), codec="zstd", asbytes=True)
    text = base64.b64encode(packed).decode()
    said: dict[str, Any] = {"count": count, "entries": count}
    said |= dict.fromkeys(("size_bytes", "row_counts", "stored_bytes"), text)
    victim.alter_structure(facts=lambda facts: facts.update(manifest_files=said))
    return key_of(FileKind.STRUCTURE, victim.snapshot_id)


@bomb
def a_footer_of_empty_columns(victim: Victim) -> str:
    key = key_of(FileKind.STRUCTURE, victim.snapshot_id)
    count = 900_000
    length = bytes([0xFC, count & 127 | 128, count >> 7 & 127 | 128, count >> 14])
    group = b"\x19" + length + b"\x26\x00\x00" * count + b"\x16\x00\x16\x02\x00"
    schema = b"\x19\x2c\x48\x01s\x15\x02\x00\x15\x02\x25\x00\x18\x01a\x00"
    footer = b"\x15\x04" + schema + b"\x16\x02\x19\x1c" + group + b"\x00"
    victim.write(key, altered_footer((victim.root / key).read_bytes(), lambda _: footer))
    return key


def write_manifest(victim: Victim, count: int, /, *, settings: Any = None, **more: Any) -> str:
    columns = {
        "id": pa.array(np.arange(count, dtype=np.uint32)),
        "array_id": pa.array(np.full(count, victim.array_id, np.uint32)),
        "coord": coded(b"\0", count, pa.binary()),
        "inline_data": pa.nulls(count, pa.binary()),
        "chunk_file": coded(b"0" * 20, count, pa.string()),
        "offset": pa.array(np.zeros(count, np.uint64)),
        "length": pa.array(np.zeros(count, np.uint32)),
        **more,
    }
    return write(victim, FileKind.MANIFEST, victim.manifest, columns, **(settings or {}))


@bomb
def files_in_a_dictionary(victim: Victim) -> str:
    return write_manifest(victim, 1 << 18, etag=coded(_LONG, 1 << 18, pa.string()))


@bomb
def coordinates_in_a_dictionary(victim: Victim) -> str:
    return write_manifest(victim, 1 << 18, coord=coded(_LONG, 1 << 18, pa.binary()))


@bomb
def coordinates_that_share_their_beginning(victim: Victim) -> str:
    coord = pa.array([b"x" * 20_000 + n.to_bytes(2, "big") for n in range(4000)])
    options = {"use_dictionary": False, "column_encoding": {"coord": "DELTA_BYTE_ARRAY"}}
    return write_manifest(victim, 4000, coord=coord, settings=options)


@bomb
def chunks_of_much_and_the_same(victim: Victim) -> str:
    inline = coded(_LONG, 1 << 18, pa.binary())
    return write_manifest(victim, 1 << 18, inline_data=inline)


@bomb
def attributes_of_much_and_the_same(victim: Victim) -> str:
    (path,) = (victim.root / "a").iterdir()
    columns = {
        "id": pa.array(np.ones(1 << 16, np.uint32)),
        "attributes": coded(_LONG, 1 << 16, attributes.SCHEMA.field("attributes").type),
    }
    return write(victim, FileKind.ATTRIBUTES, path.stem, columns)


def write_log(victim: Victim, count: int, **more: pa.Array) -> str:
    table, _ = old(victim, FileKind.TRANSACTION, victim.snapshot_id)
    rows = pa.array(np.minimum(np.arange(count), table.num_rows - 1))
    columns = {name: table[name].combine_chunks().take(rows) for name in table.column_names}
    return write(victim, FileKind.TRANSACTION, victim.snapshot_id, {**columns, **more})


@bomb
def a_log_of_one_path(victim: Victim) -> str:
    return write_log(victim, 1 << 16, path=coded(_LONG, 1 << 16, pa.string()))


@bomb
def a_log_of_many_nodes(victim: Victim) -> str:
    words = pa.array(["snapshot"] + ["create_node"] * ((1 << 19) - 1))
    return write_log(victim, 1 << 19, operation=words)


@bomb
def an_entry_of_many_lists(victim: Victim) -> str:
    key = branch_key("main", 1)
    victim.write(key, b'{"snapshot": [' + b"[]," * 12_000_000 + b"[]]}")
    return key


@bomb
def a_state_file_of_many_lists(victim: Victim) -> str:
    state = {"id": "0" * 20, "generation": 1, "snapshots": [], "x": 0}
    text = json.dumps(state).encode().replace(b'"x": 0', b'"x": [' + b"[]," * 12_000_000 + b"[]]")
    victim.root = state_victim(victim.folder / "state")
    victim.write(STATE_KEY, text)
    return STATE_KEY
