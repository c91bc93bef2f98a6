"""Whatever gives Arrow data, as record batches of a convenient size.

Knows the ways in which libraries hand over Arrow data; knows nothing of what is in the columns.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["read_batches", "slices"]

_READ_AHEAD = 4


def read_batches(
    source: Any, rows: int, choose: Callable[[pa.Schema], Sequence[str]]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Give the schema of a source, and its chosen columns, batch by batch; nothing else need be read."""
    reader: Any
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    datasets = sys.modules.get("pyarrow.dataset")  # who has a dataset has imported it
    if isinstance(source, pa.Table):
        reader = source.to_reader(max_chunksize=rows)
    elif isinstance(source, pa.RecordBatchReader):
        reader = source
    elif datasets is not None and isinstance(source, datasets.Dataset):
        scanner = source.scanner(
            columns=list(choose(source.schema)),
            batch_size=rows,
            batch_readahead=_READ_AHEAD,
            fragment_readahead=1,
        )
        reader = scanner.to_reader()
    elif datasets is not None and isinstance(source, datasets.Scanner):
        reader = source.to_reader()
    elif hasattr(source, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(source)
        except pa.ArrowInvalid as error:
            raise _unknown(source) from error
    else:
        raise _unknown(source)
    names = list(choose(reader.schema))
    return reader.schema, (batch.select(names) for batch in reader)


def _unknown(source: Any) -> InvalidInputError:
    return InvalidInputError(
        f"references must be a pyarrow.Table, RecordBatch, RecordBatchReader, Dataset or Scanner, or a table "
        f"of another library that has __arrow_c_stream__, not {type(source).__name__}"
    )


def slices(
    batches: Iterator[pa.RecordBatch], rows: int, size_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Cut long batches, without copying, and unite small ones up to a size; none is empty."""
    waiting: list[pa.RecordBatch] = []
    count = waiting_bytes = 0
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            part = batch.slice(start, rows)
            if waiting and count + part.num_rows > rows:
                yield _united(waiting)
                waiting, count, waiting_bytes = [], 0, 0
            waiting.append(part)
            count += part.num_rows
            waiting_bytes += part.nbytes
            if count * 4 >= rows or waiting_bytes >= size_bytes:
                yield _united(waiting)
                waiting, count, waiting_bytes = [], 0, 0
    if waiting:
        yield _united(waiting)


def _united(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch
