"""The references that every subject is given: a grid of chunks in files, as hourly netCDF has.

One file for each row of a thousand chunks (or for several rows, where that is asked for), the chunks of a file
one after the other and of unequal length. As many rows as are asked for, and the same ones each time. numpy
alone, so that peers in other environments can use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

__all__ = [
    "COLUMNS",
    "SPARE_ROWS",
    "Box",
    "box",
    "boxes",
    "corner",
    "grid",
    "location",
    "split_rows",
]

COLUMNS = 1000
"""Chunks in a row of the grid, and in a file."""
SPARE_ROWS = 200
"""Rows of chunks that an array has behind those that are filled at once."""

_WHOLE_ROWS = 1000
_BATCH_ROWS = 125
_SPLIT = 100_000


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box of chunks in C order: which file, where in it, how long."""

    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    files: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]


def location(file: int) -> str:
    """Name a file: by default each row of chunks has its own."""
    year, month = 1950 + file // 12, file % 12 + 1
    return f"s3://bucket/reanalysis/v2/hourly/{year}/{month:02}/surface_temperature.nc"


def grid(rows: int, dimensions: int = 2) -> tuple[int, ...]:
    """Shape of the same chunks as a grid of one, two or three dimensions."""
    return {1: (rows * COLUMNS,), 2: (rows, COLUMNS), 3: (rows, 25, 40)}[dimensions]


def corner(first_row: int, dimensions: int = 2) -> tuple[int, ...]:
    """Say where a row begins in such a grid."""
    return {1: (first_row * COLUMNS,), 2: (first_row, 0), 3: (first_row, 0, 0)}[dimensions]


def split_rows(dimensions: int = 2) -> int:
    """Say how long a manifest of 100,000 references is along the first dimension."""
    return _SPLIT if dimensions == 1 else _SPLIT // COLUMNS


def box(*, rows: int, first_row: int = 0, columns: int = COLUMNS, rows_per_file: int = 1) -> Box:
    """Make the references of some rows: compressed chunks of unequal length, one after the other.

    The first row begins a file, and ``rows_per_file`` divides the rows.
    """
    random = np.random.default_rng(first_row + 1)
    lengths = random.integers(
        58_000, 62_000, (rows // rows_per_file, rows_per_file * columns), dtype=np.uint64
    )
    offsets = np.cumsum(lengths, axis=1, dtype=np.uint64) - lengths + np.uint64(20_000)
    row, column = np.divmod(np.arange(rows * columns), columns)
    return Box(
        rows=row + first_row,
        columns=column,
        files=(row + first_row) // rows_per_file,
        offsets=offsets.reshape(-1),
        lengths=lengths.reshape(-1),
    )


def boxes(rows: int) -> Iterator[tuple[int, Box]]:
    """Make the references of the first so many rows: a million at once, more in batches of 125,000.

    With each box comes the row that it begins with.
    """
    step = rows if rows <= _WHOLE_ROWS else _BATCH_ROWS
    for first in range(0, rows, step):
        yield first, box(rows=min(step, rows - first), first_row=first)
