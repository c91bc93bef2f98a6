"""Attributes files (``a/<id>.parquet``): attributes too large for the structure file, one row per node.

Specification: schemas/README.md#attributes-file
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_arrow.core.columns import bytes_at, from_values, one_array
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats import envelope
from icechunk_arrow.formats.budget import DECODE_LIMIT_BYTES
from icechunk_arrow.formats.layout import FileKind

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KIND", "SCHEMA", "decode", "encode", "row_of"]

KIND = FileKind.ATTRIBUTES
SCHEMA = pa.schema(
    [
        pa.field("id", pa.uint32(), nullable=False),
        pa.field("attributes", pa.binary(), nullable=False),
    ]
)
"""Id of the node, and its attributes as one JSON object."""


def encode(rows: Sequence[tuple[int, bytes]], identifier: str) -> bytes:
    """Encode (node id, attributes as JSON) rows; a node's row number is its place in them."""
    columns = [
        from_values([node_id for node_id, _ in rows], pa.uint32()),
        from_values([attributes for _, attributes in rows], pa.binary()),
    ]
    return envelope.write(
        pa.Table.from_arrays(columns, schema=SCHEMA),
        kind=KIND,
        identifier=identifier,
        facts={},
        boundaries=[len(rows)],
        settings={"use_dictionary": False, "write_statistics": False},
    )


def decode(data: bytes, identifier: str, limit_bytes: int = DECODE_LIMIT_BYTES) -> pa.Table:
    """Decode a whole attributes file."""
    sealed, table = envelope.read_whole(data, KIND, identifier, limit_bytes, columns=SCHEMA.names)
    for field in SCHEMA:
        if field.name not in table.column_names or table[field.name].type != field.type:
            raise CorruptFileError(
                f"{sealed.key} has no column {field.name!r} of type {field.type}", key=sealed.key
            )
        if table[field.name].null_count:
            raise CorruptFileError(f"{sealed.key} has a row without {field.name!r}", key=sealed.key)
    return table.select(SCHEMA.names)


def row_of(table: pa.Table, row: int, node_id: int, identifier: str) -> bytes:
    """Read the attributes in a row, which must be the node's."""
    if row >= table.num_rows or table["id"][row].as_py() != node_id:
        raise CorruptFileError(
            f"a/{identifier}.parquet has no attributes of node {node_id} in row {row}",
            key=f"a/{identifier}.parquet",
        )
    return bytes_at(one_array(table["attributes"]), row)
