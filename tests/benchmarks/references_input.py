"""The same references as a person hands them over: Arrow tables, a record batch reader; and the floor.

The floor is what pyarrow alone makes of them: one sorted Parquet file, without any guarantee.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.benchmarks import references_data
from tests.benchmarks.harness import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.benchmarks.references_data import Box

__all__ = [
    "as_reader",
    "batches",
    "find_in_floor",
    "stream_floor",
    "table",
    "table_of",
    "write_floor",
]

_ROW_GROUP_ROWS = 16_384


def table_of(found: Box, *, dimensions: int = 2, coded: bool = False) -> pa.Table:
    """Give a row per chunk, an integer column per dimension; locations as text, or coded as a dictionary."""
    flat = found.rows * references_data.COLUMNS + found.columns
    places = {
        1: [flat],
        2: [found.rows, found.columns],
        3: [found.rows, found.columns // 40, found.columns % 40],
    }[dimensions]
    names, codes = np.unique(found.files, return_inverse=True)
    files = pa.DictionaryArray.from_arrays(
        pa.array(codes.astype(np.int32)),
        pa.array([references_data.location(file) for file in names.tolist()]),
    )
    return pa.table(
        {
            **{f"index_{d}": pa.array(place) for d, place in enumerate(places)},
            "location": files if coded else files.cast(pa.string()),
            "offset": pa.array(found.offsets),
            "length": pa.array(found.lengths),
        }
    )


def table(*, dimensions: int = 2, **box: int) -> pa.Table:
    """Make the table of a box."""
    return table_of(references_data.box(**box), dimensions=dimensions)


def batches(rows: int, *, coded: bool = False) -> Iterator[pa.RecordBatch]:
    """Make the references of the first so many rows, batch by batch."""
    for _, found in references_data.boxes(rows):
        yield from table_of(found, coded=coded).to_batches()


def _timed(made: Iterable[pa.RecordBatch], watch: Stopwatch) -> Iterator[pa.RecordBatch]:
    pulled = iter(made)
    while True:
        with watch:
            batch = next(pulled, None)
        if batch is None:
            return
        yield batch


def as_reader(
    made: Iterable[pa.RecordBatch], *, coded: bool = False
) -> tuple[pa.RecordBatchReader, Stopwatch]:
    """Give batches as a reader, with a watch that adds up what making them takes."""
    watch = Stopwatch()
    schema = table_of(references_data.box(rows=1, columns=1), coded=coded).schema
    return pa.RecordBatchReader.from_batches(schema, _timed(made, watch)), watch


def _settings(schema: pa.Schema) -> dict[str, Any]:
    """Delta encodings, a dictionary for locations, zstd: what suits such columns."""
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": ["location"],
        "column_encoding": dict.fromkeys(
            (name for name in schema.names if name != "location"), "DELTA_BINARY_PACKED"
        ),
    }


def write_floor(path: Path, references: pa.Table) -> None:
    """Sort references and write them with pyarrow, nothing else."""
    order = [(name, "ascending") for name in references.column_names if name.startswith("index")]
    pq.write_table(
        references.sort_by(order),
        path,
        row_group_size=_ROW_GROUP_ROWS,
        **_settings(references.schema),
    )


def stream_floor(path: Path, rows: int) -> None:
    """Write the same file for more references than memory holds; they come in order."""
    reader, _ = as_reader(batches(rows))
    with pq.ParquetWriter(path, reader.schema, **_settings(reader.schema)) as writer:
        for batch in reader:
            writer.write_batch(batch, row_group_size=_ROW_GROUP_ROWS)


def find_in_floor(path: Path, row: int, column: int) -> int:
    """Find one reference: footer, bisection over the statistics, the one row group; and give its length."""
    with pq.ParquetFile(path) as file:
        footer = file.metadata

        def first_row(group: int) -> int:
            return int(footer.row_group(group).column(0).statistics.min)

        group = bisect_right(range(footer.num_row_groups), row, key=first_row) - 1
        while group >= 0:  # a row may begin in the group before
            found = file.read_row_group(group)
            mask = pc.and_(pc.equal(found["index_0"], row), pc.equal(found["index_1"], column))
            lengths = found.filter(mask)["length"]
            if len(lengths):
                return int(lengths[0].as_py())
            group -= 1
    raise LookupError(f"no reference for {row}, {column}")
