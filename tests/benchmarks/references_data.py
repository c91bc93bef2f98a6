"""The references that every subject is given: a grid of chunks in files, as a day's worth of netCDF has.

numpy alone, so that peers in other environments can use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["COLUMNS", "LOCATIONS", "ROWS", "Box", "box"]

ROWS = 1200
"""How many rows of chunks the array has; the first thousand are filled at once."""
COLUMNS = 1000
LOCATIONS = tuple(
    f"s3://bucket/reanalysis/v2/hourly/{1950 + i // 12}/{i % 12 + 1:02}/surface_temperature.nc"
    for i in range(ROWS)
)
"""One file for each row of chunks."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box of chunks in C order: which file, where in it, how long."""

    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    files: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]


def box(*, rows: int, first_row: int = 0, columns: int = COLUMNS) -> Box:
    """Make the references of some rows: compressed chunks of unequal length, one after the other."""
    random = np.random.default_rng(first_row + 1)
    lengths = random.integers(58_000, 62_000, (rows, columns), dtype=np.uint64)
    offsets = np.cumsum(lengths, axis=1, dtype=np.uint64) - lengths + np.uint64(20_000)
    row, column = np.divmod(np.arange(rows * columns), columns)
    return Box(
        rows=row + first_row,
        columns=column,
        files=row + first_row,
        offsets=offsets.reshape(-1),
        lengths=lengths.reshape(-1),
    )
