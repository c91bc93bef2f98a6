"""Tables as Parquet bytes, for engines that read files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["parquet_of"]

_ROWS = 1 << 17


def parquet_of(table: pa.Table) -> bytes:
    """Write a table that is read soon and thrown away: little effort on being small."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="lz4") as writer:
        for part in _parts(table):
            writer.write_table(part)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, max(table.num_rows, 1), _ROWS):
        yield table.slice(start, _ROWS)
