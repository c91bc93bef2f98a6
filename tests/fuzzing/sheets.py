"""Parquet files as columns of values that can be altered and written again, with a right seal.

Owns damage to values, rows, columns, types, facts and forms. The seal is made by
``tests.faults.sealing``, which is not the package's own.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.conformance.kit.workshop import Seal
from tests.faults.sealing import sealed
from tests.fuzzing import trees
from tests.fuzzing.trees import UnfitError, interesting_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["MUTATIONS", "Sheet"]

_UNFIT = (IndexError, AssertionError, StopIteration, struct.error, ValueError)
_JSON_TEXTS = ("icechunk.snapshot", "icechunk.extensions", "icechunk.missing-markers")


@dataclass
class Sheet:
    """A Parquet file that is taken apart."""

    identifier: str
    fields: list[pa.Field]
    columns: list[list[Any]]
    """Values of each field, by row."""
    texts: list[tuple[str, str]]
    names: tuple[str, ...]
    """Names and ids that stand in the repository."""
    settings: dict[str, Any] = field(default_factory=dict)
    boundaries: list[int] | None = None
    after: list[Callable[[Seal], Seal]] = field(default_factory=list)
    """What is done to the finished file, before its digest is made."""

    @classmethod
    def of(cls, data: bytes, identifier: str, names: tuple[str, ...]) -> Sheet:
        """Take a file apart."""
        source = pa.BufferReader(data)
        table = pq.read_table(source)
        metadata = pq.read_metadata(source)
        texts = [
            (key.decode(), value.decode())
            for key, value in (metadata.metadata or {}).items()
            if key != b"ARROW:schema"
        ]
        groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        ends = [sum(groups[: i + 1]) for i in range(len(groups))]
        return cls(
            identifier=identifier,
            fields=[table.schema.field(i).remove_metadata() for i in range(len(table.schema))],
            columns=[column.to_pylist() for column in table.columns],
            texts=texts,
            names=names,
            boundaries=ends,
        )

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return len(self.columns[0]) if self.columns else 0

    def column(self, name: str) -> list[Any]:
        """Values of a column."""
        for field_, values in zip(self.fields, self.columns, strict=True):
            if field_.name == name:
                return values
        raise UnfitError

    def write(self) -> bytes:
        """Put it together again."""
        try:
            arrays = [
                pa.array(values, type=each.type)
                for each, values in zip(self.fields, self.columns, strict=True)
            ]
            schema = pa.schema(
                [
                    each if not array.null_count else each.with_nullable(True)
                    for each, array in zip(self.fields, arrays, strict=True)
                ]
            )
            table = pa.Table.from_arrays(arrays, schema=schema)
            sink = io.BytesIO()
            options = {
                "compression": "zstd",
                "use_dictionary": False,
                "write_statistics": True,
                "version": "2.6",
                "write_page_checksum": True,
                **self.settings,
            }
            writer = pq.ParquetWriter(
                sink, schema, store_schema=False, use_compliant_nested_type=False, **options
            )
            rows = table.num_rows
            stops = [n for n in self.boundaries or [rows] if n < rows] + ([rows] if rows else [])
            ends, start = [], 0
            for stop in stops:
                writer.write_table(table.slice(start, stop - start), row_group_size=stop - start)
                ends.append(sink.tell())
                start = stop
            writer.add_key_value_metadata(dict(self.texts))
            writer.close()
        except (pa.ArrowException, OSError, OverflowError, TypeError, ValueError) as error:
            raise UnfitError(str(error)) from error
        data = sealed(sink.getvalue(), self.identifier, ends)
        for place, alter in enumerate(self.after):
            unfit = (*_UNFIT, TypeError, AttributeError) if place else _UNFIT
            try:
                data = alter(Seal.of(data)).put_together()
            except unfit as error:
                raise UnfitError(str(error)) from error  # it is too damaged to be damaged more
        return data


# -- values of Arrow, by their type

_BYTES: tuple[bytes, ...] = (
    b"",
    b"\0",
    b"\x01",
    b"\x3f",
    b"\x40\x01",
    b"\x40\x40",
    b"\xff",
    b"{}",
    b"[]",
    b"{",
    b"null",
)
_BYTES = (*_BYTES, b"[" * 100_000 + b"]" * 100_000, b"[%b1]" % (b"1," * 100_000))
_BYTES = (*_BYTES, b"\xc0\x00\x00\x00\x00\x00\x00\x01", b'{"a":1,"a":2}', b'{"a":NaN}', b"x" * 2000)


def another(arrow_type: pa.DataType, value: Any, draw: Random, names: tuple[str, ...]) -> Any:
    """Give another value of a type; of a nested one, with one place changed."""
    if value is not None and (pa.types.is_struct(arrow_type) or _is_list(arrow_type)):
        return _inside(arrow_type, value, draw, names)
    if pa.types.is_integer(arrow_type):
        old = value or 0
        chosen = draw.choice([0, 1, old + 1, old - 1, 2 * old, draw.randrange(100), *trees.NUMBERS])
        bits = arrow_type.bit_width - pa.types.is_signed_integer(arrow_type)
        least = -(1 << bits) if pa.types.is_signed_integer(arrow_type) else 0
        return min(max(chosen, least), (1 << bits) - 1)
    if pa.types.is_string(arrow_type):
        return interesting_text(value or "", draw, names)
    if pa.types.is_binary(arrow_type):
        old = value or b""
        flipped = bytes([old[0] ^ (1 << draw.randrange(8))]) + old[1:] if old else b"\x02"
        return draw.choice([flipped, flipped, old[:-1], old + b"\0", *_BYTES])
    if pa.types.is_floating(arrow_type):
        return draw.choice([0.0, -0.0, 1.0, float("nan"), float("inf"), -1e300])
    if pa.types.is_timestamp(arrow_type):
        return draw.choice([0, 1, 1 << 53, 253_402_300_799_000_000, -1])
    if value is None and _is_list(arrow_type):
        return []
    raise UnfitError


def _is_list(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(arrow_type) or pa.types.is_fixed_size_list(arrow_type))


def _inside(arrow_type: pa.DataType, value: Any, draw: Random, names: tuple[str, ...]) -> Any:
    if pa.types.is_struct(arrow_type):
        each = arrow_type.field(draw.randrange(arrow_type.num_fields))
        inner = value[each.name]
        new = None if draw.random() < 0.1 else another(each.type, inner, draw, names)
        return {**value, each.name: new}
    items = list(value)
    place = draw.randrange(len(items) + 1)
    way = draw.randrange(6)
    if not items or place == len(items):
        items.append(draw.choice([*items, None]))
    elif way == 0:
        del items[place]
    elif way == 1:
        items.insert(place, items[place])
    elif way == 2:
        items[0], items[place] = items[place], items[0]
    else:
        items[place] = another(arrow_type.value_type, items[place], draw, names)
    return items


def _cell(sheet: Sheet, draw: Random) -> tuple[int, int]:
    if not sheet.row_count:
        raise UnfitError
    return draw.randrange(len(sheet.fields)), draw.randrange(sheet.row_count)


def change_value(sheet: Sheet, draw: Random) -> str:
    """Put another value of its type into one cell."""
    column, row = _cell(sheet, draw)
    values, each = sheet.columns[column], sheet.fields[column]
    old = values[row]
    others = [value for value in values if value != old]
    from_others = others and draw.random() < 0.3
    new = draw.choice(others) if from_others else another(each.type, old, draw, sheet.names)
    if new == old:
        raise UnfitError
    values[row] = new
    return f"{each.name} of row {row} is {new!r:.80} for {old!r:.80}"


def change_json(sheet: Sheet, draw: Random) -> str:
    """Alter JSON that stands in a cell or in the footer."""
    cells = [
        (column, row)
        for column, each in enumerate(sheet.fields)
        if each.name in {"snapshot", "attributes", "inline_attrs"}
        for row, value in enumerate(sheet.columns[column])
        if value
    ]
    texts = [place for place, (name, _) in enumerate(sheet.texts) if name in _JSON_TEXTS]
    if not cells and not texts:
        raise UnfitError
    chosen: Any = draw.choice([*cells, *texts * (2 if cells else 1)])
    old = sheet.texts[chosen][1] if isinstance(chosen, int) else sheet.columns[chosen[0]][chosen[1]]
    try:
        tree = trees.parse(old)
    except (ValueError, TypeError, RecursionError) as error:
        raise UnfitError(str(error)) from error  # it was damaged before
    way = draw.choice(sorted(trees.MUTATIONS))
    told = trees.MUTATIONS[way](tree, draw, sheet.names)
    new = trees.dump(tree)
    if isinstance(chosen, int):
        sheet.texts[chosen] = (sheet.texts[chosen][0], new)
        return f"{sheet.texts[chosen][0]}, {way}: {told}"
    sheet.columns[chosen[0]][chosen[1]] = new if isinstance(old, str) else new.encode()
    return f"{sheet.fields[chosen[0]].name} of row {chosen[1]}, {way}: {told}"


def set_null(sheet: Sheet, draw: Random) -> str:
    """Take the value out of a cell."""
    column, row = _cell(sheet, draw)
    if sheet.columns[column][row] is None:
        raise UnfitError
    sheet.columns[column][row] = None
    return f"{sheet.fields[column].name} of row {row} is null"


def drop_row(sheet: Sheet, draw: Random) -> str:
    """Leave a row out."""
    _, row = _cell(sheet, draw)
    for values in sheet.columns:
        del values[row]
    return f"row {row} is left out"


def double_row(sheet: Sheet, draw: Random) -> str:
    """Let a row come twice."""
    _, row = _cell(sheet, draw)
    to = draw.choice([row, draw.randrange(sheet.row_count + 1)])
    for values in sheet.columns:
        values.insert(to, values[row])
    return f"row {row} comes again before row {to}"


def swap_rows(sheet: Sheet, draw: Random) -> str:
    """Let two rows change places, with their numbers or without."""
    _, row = _cell(sheet, draw)
    other = draw.randrange(sheet.row_count)
    keeps = draw.random() < 0.5
    if row == other:
        raise UnfitError
    for each, values in zip(sheet.fields, sheet.columns, strict=True):
        if not (keeps and each.name == "id"):
            values[row], values[other] = values[other], values[row]
    return f"rows {row} and {other} change places" + (", their ids do not" if keeps else "")


def drop_column(sheet: Sheet, draw: Random) -> str:
    """Leave a column out."""
    place = draw.randrange(len(sheet.fields))
    name = sheet.fields.pop(place).name
    del sheet.columns[place]
    return f"the column {name} is left out"


def double_column(sheet: Sheet, draw: Random) -> str:
    """Let a column come twice, the second with other values perhaps."""
    place = draw.randrange(len(sheet.fields))
    values = list(sheet.columns[place])
    if draw.random() < 0.5:
        values.reverse()
    to = draw.randrange(len(sheet.fields) + 1)
    name = sheet.fields[place].name
    sheet.fields.insert(to, sheet.fields[place])
    sheet.columns.insert(to, values)
    return f"the column {name} comes again as number {to}"


def move_column(sheet: Sheet, draw: Random) -> str:
    """Put a column elsewhere."""
    place, to = (draw.randrange(len(sheet.fields)) for _ in range(2))
    sheet.fields.insert(to, sheet.fields.pop(place))
    sheet.columns.insert(to, sheet.columns.pop(place))
    return f"the column {sheet.fields[to].name} is number {to}"


def rename_column(sheet: Sheet, draw: Random) -> str:
    """Give a column, or a field within one, another name."""
    place = draw.randrange(len(sheet.fields))
    old = sheet.fields[place]
    new = draw.choice(["new", old.name.upper(), "", "id", "path", "a.b", old.name + "\0"])
    if pa.types.is_struct(old.type) and draw.random() < 0.7:
        inner = draw.randrange(old.type.num_fields)
        members = [old.type.field(i) for i in range(old.type.num_fields)]
        before = members[inner].name
        members[inner] = members[inner].with_name(new)
        sheet.fields[place] = pa.field(old.name, pa.struct(members), old.nullable)
        for row, value in enumerate(sheet.columns[place]):
            if value is not None:
                sheet.columns[place][row] = {
                    (new if name == before else name): each for name, each in value.items()
                }
        return f"{old.name}.{before} is called {new!r}"
    sheet.fields[place] = old.with_name(new)
    return f"the column {old.name} is called {new!r}"


def add_column(sheet: Sheet, draw: Random) -> str:
    """Add a column: one that nobody knows, or an optional one of this specification, of any type."""
    name = draw.choice(["new", "etag", "crc32c", "sums_crc32c", "clip", "keys", "last_modified"])
    arrow_type, value = draw.choice(
        [(pa.string(), "x"), (pa.uint32(), 7), (pa.binary(), b"x"), (pa.list_(pa.int8()), [1])]
    )
    sheet.fields.append(pa.field(name, arrow_type))
    sheet.columns.append([draw.choice([value, None]) for _ in range(sheet.row_count)])
    return f"there is a column {name} of {arrow_type} more"


def change_type(sheet: Sheet, draw: Random) -> str:
    """Give a column, or a field within one, another type, with the same values as far as it can hold them."""
    place = draw.randrange(len(sheet.fields))
    old = sheet.fields[place]
    new, told = _retyped(old.type, draw)
    sheet.fields[place] = pa.field(old.name, new, nullable=True)
    sheet.columns[place] = [_fitted(new, value) for value in sheet.columns[place]]
    return f"the column {old.name} has {told}"


_INTEGERS = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int32(), pa.int64())
_OTHERS: tuple[Any, ...] = (
    pa.string(),
    pa.binary(),
    pa.float64(),
    pa.bool_(),
    *_INTEGERS,
    pa.date32(),
)
_OTHERS = (*_OTHERS, pa.decimal128(20, 0), pa.binary(4), pa.large_string(), pa.timestamp("ms"))


def _retyped(arrow_type: pa.DataType, draw: Random) -> tuple[pa.DataType, str]:
    if pa.types.is_struct(arrow_type) and draw.random() < 0.8:
        members = [arrow_type.field(i) for i in range(arrow_type.num_fields)]
        inner = draw.randrange(len(members))
        if draw.random() < 0.15 and len(members) > 1:
            name = members.pop(inner).name
            return pa.struct(members), f"no member {name}"
        if draw.random() < 0.15:
            members.insert(inner, pa.field("new", pa.int8()))
            return pa.struct(members), "a member more"
        new, told = _retyped(members[inner].type, draw)
        name = members[inner].name
        members[inner] = pa.field(name, new)
        return pa.struct(members), f"in {name} {told}"
    if _is_list(arrow_type) and draw.random() < 0.7:
        new, told = _retyped(arrow_type.value_type, draw)
        return pa.list_(new), f"in its items {told}"
    if draw.random() < 0.2:
        wrapped = draw.choice([pa.list_(arrow_type), pa.struct([pa.field("x", arrow_type)])])
        return wrapped, f"the type {wrapped}"
    chosen = draw.choice(_INTEGERS if pa.types.is_integer(arrow_type) else _OTHERS)
    if chosen == arrow_type:
        raise UnfitError
    return chosen, f"the type {chosen} for {arrow_type}"


def _fitted(arrow_type: pa.DataType, value: Any) -> Any:
    """Bring a value into another type, whatever becomes of it."""
    if value is None:
        return None
    if _is_list(arrow_type):
        return [
            _fitted(arrow_type.value_type, each)
            for each in (value if isinstance(value, list) else [value])
        ]
    if pa.types.is_struct(arrow_type):
        of = value if isinstance(value, dict) else {}
        members = [arrow_type.field(i) for i in range(arrow_type.num_fields)]
        return {each.name: _fitted(each.type, of.get(each.name, value)) for each in members}
    if pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type):
        return value.decode("latin1") if isinstance(value, bytes) else str(value)
    if pa.types.is_fixed_size_binary(arrow_type):
        return str(value).encode()[:4].ljust(4)
    if pa.types.is_binary(arrow_type):
        return value if isinstance(value, bytes) else str(value).encode()
    if pa.types.is_boolean(arrow_type):
        return bool(value)
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else 1
    if pa.types.is_integer(arrow_type):
        return int(number) % (1 << (arrow_type.bit_width - 1))
    return number


def change_text(sheet: Sheet, draw: Random) -> str:
    """Alter a text of the footer, leave it out, or add one."""
    if not sheet.texts:
        raise UnfitError
    place = draw.randrange(len(sheet.texts))
    name, old = sheet.texts[place]
    way = draw.randrange(4)
    if way == 0:
        del sheet.texts[place]
        return f"{name} is left out"
    if way == 1:
        sheet.texts[place] = (draw.choice(["new", name.upper(), name + "x", ""]), old)
        return f"{name} is called {sheet.texts[place][0]!r}"
    if way == 2:
        new = {"narrow": "wide", "wide": "narrow"}.get(old, "")
    elif name == "icechunk.header":
        header = list(old.ljust(27))
        header[draw.choice([24, 25, 26, draw.randrange(len(header))])] = chr(draw.randrange(128))
        new = "".join(header)
    else:
        new = interesting_text(old, draw, sheet.names)
    if new == old:
        raise UnfitError
    sheet.texts[place] = (name, new)
    return f"{name} is {new!r:.60}"


def change_form(sheet: Sheet, draw: Random) -> str:
    """Write the same rows in another form: compression, encoding, pages, row groups."""
    ways: list[tuple[str, dict[str, Any]]] = [
        *(
            ("compression", {"compression": each})
            for each in ("none", "snappy", "gzip", "lz4", "brotli")
        ),
        ("dictionaries", {"use_dictionary": True}),
        ("pages of version 2", {"data_page_version": "2.0"}),
        ("tiny pages", {"data_page_size": 1, "write_batch_size": 1}),
        ("no statistics", {"write_statistics": False}),
        ("no page checksums", {"write_page_checksum": False}),
        ("version 1.0", {"version": "1.0"}),
        ("a page index", {"write_page_index": True}),
        ("splits", {}),
        ("encodings", {"use_byte_stream_split": True}),
    ]
    told, settings = draw.choice(ways)
    sheet.settings |= settings
    if told == "splits":
        rows = sheet.row_count
        sheet.boundaries = sorted({draw.randrange(1, rows + 1) for _ in range(3)}) if rows else []
    return f"it is written with {told} {settings}"


MUTATIONS: dict[str, Callable[[Sheet, Random], str]] = {
    "value": change_value,
    "json": change_json,
    "null": set_null,
    "missing row": drop_row,
    "doubled row": double_row,
    "rows' order": swap_rows,
    "missing column": drop_column,
    "doubled column": double_column,
    "columns' order": move_column,
    "column's name": rename_column,
    "added column": add_column,
    "type": change_type,
    "text": change_text,
    "form": change_form,
}
"""What is done to rows and columns, by the kind of damage; each says what it did."""
