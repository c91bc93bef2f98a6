"""Rows of manifests and their extents for tests: made of plain places, and turned back into them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from icechunk_arrow.core import chunks, coords
from icechunk_arrow.core.boxes import volume
from icechunk_arrow.core.chunks import DENSE, ChunkRef
from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.inventory import Inventory, InventoryEntry
from tests.formats.kinds import ID
from tests.refs import table_of_refs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from icechunk_arrow.core.boxes import Box

__all__ = [
    "Place",
    "binary",
    "boxes",
    "content_flags",
    "entries",
    "entry_of",
    "extent_around",
    "inside",
    "meets",
    "places_of",
    "small",
    "table_of",
]

Place = tuple[int, ...]
small = st.integers(0, 5)


@st.composite
def boxes(draw: st.DrawFn, ndim: int) -> Box:
    """A small half-open range per dimension, never empty."""
    return tuple(
        (start, start + draw(st.integers(1, 4))) for start in [draw(small) for _ in range(ndim)]
    )


def inside(extent: Box) -> set[Place]:
    """All coordinates of an extent."""
    return set(itertools.product(*(range(start, stop) for start, stop in extent)))


def meets(one: Box, other: Box) -> bool:
    """Whether two extents have a coordinate in common."""
    return all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(one, other, strict=True))


def content_flags(table: pa.Table) -> int:
    """Flags that describe what kinds of references the rows are."""
    return int(np.bitwise_or.reduce(chunks.kinds_of_rows(table)))


def extent_around(places: Collection[Place]) -> Box:
    """The smallest extent."""
    return tuple((min(i), max(i) + 1) for i in zip(*places, strict=True))


def table_of(array_id: int, places: Iterable[Place]) -> pa.Table:
    """References at these coordinates."""
    refs = {coords.encode_one(p): ChunkRef(file=ID, offset=0, length=1) for p in places}
    return table_of_refs(array_id, refs)


def places_of(table: pa.Table) -> list[tuple[int, Place]]:
    """Array and coordinates of every row."""
    ids, keys = table["array_id"].to_pylist(), table["coord"].to_pylist()
    return [(i, coords.decode_one(key)) for i, key in zip(ids, keys, strict=True)]


def binary(places: Iterable[Place]) -> pa.Array:
    """Encoded coordinates."""
    return from_values([coords.encode_one(p) for p in places], pa.binary())


def entry_of(extent: Box, manifest: str = ID, row_count: int | None = None) -> InventoryEntry:
    """An entry, dense unless a number of rows is given; each row is a chunk of one byte."""
    count = volume(extent) if row_count is None else row_count
    flags = DENSE if count == volume(extent) else 0
    return InventoryEntry(
        manifest=manifest, row=0, extent=extent, flags=flags, row_count=count, stored_bytes=count
    )


def entries(extents: Sequence[Box], ndim: int) -> Inventory:
    """Dense entries of manifests ``m0``, ``m1``, …: in the order of extents, as they stand in a node."""
    return Inventory.of([entry_of(e, f"m{n}") for n, e in enumerate(extents)], ndim)
