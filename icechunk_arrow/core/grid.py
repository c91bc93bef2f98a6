"""Which chunks an array has, which part of the array each of them covers, and how many bytes an element takes.

Owns the meaning of the members `chunk_grid` and `data_type` of a Zarr document, as far as sizes go. Must not know
how a chunk is named in a key, nor where one is stored.

A rectilinear grid may say "a million million chunks of length 1" in twenty bytes, so chunks are kept as runs of
equal edges and never written out; a regular axis is one run without an end. A data type that is not known here has
no size, rather than a wrong one.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

__all__ = ["MAX_CHUNK_INDEX", "MAX_LENGTH", "Axis", "Grid", "grid_of", "item_size_of"]

MAX_LENGTH = 2**63 - 1
"""The greatest extent and chunk edge: numpy indexes nothing longer."""

MAX_CHUNK_INDEX = 2**62 - 1
"""The greatest chunk index: what a coord in a manifest can hold (`coords.MAX_INDEX`)."""
_SIZES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "numpy.datetime64": 8,
    "numpy.timedelta64": 8,
}
_OF_CONFIGURED_LENGTH = frozenset({"fixed_length_utf32", "null_terminated_bytes", "raw_bytes"})
_OF_FIELDS = frozenset({"struct", "structured"})
_RAW_BITS = re.compile(r"r([1-9][0-9]{0,17})\Z")
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One dimension of a grid: its length, and its chunk edges as runs.

    Attributes
    ----------
    extent : int
        The length of the array in this dimension.
    runs : tuple of (edge, count)
        Chunks of equal length, in order, neighbours differing; a count of None goes on for ever.
    chunk_count : int
        How many chunks overlap the extent.
    """

    extent: int
    runs: tuple[tuple[int, int | None], ...]
    chunk_count: int = field(init=False)
    _edges: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _positions: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _indexes: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        finite = [(edge, count) for edge, count in self.runs if count is not None]
        positions = tuple(accumulate((edge * count for edge, count in finite), initial=0))
        indexes = tuple(accumulate((count for _, count in finite), initial=0))
        number = len(self.runs)
        object.__setattr__(self, "_edges", tuple(edge for edge, _ in self.runs))
        object.__setattr__(self, "_positions", positions[:number])
        object.__setattr__(self, "_indexes", indexes[:number])
        if len(finite) == number and positions[-1] < self.extent:
            raise InvalidInputError(
                f"chunk_grid: the chunk edges of one dimension add up to {positions[-1]}, but its "
                f"extent is {self.extent}; add edges until they cover it"
            )
        count = self.chunk_of(self.extent - 1) + 1 if self.extent else 0
        if count > MAX_CHUNK_INDEX + 1:
            raise InvalidInputError(
                f"chunk_grid: one dimension has {count} chunks, and at most {MAX_CHUNK_INDEX + 1} "
                "can be numbered; use larger chunks"
            )
        object.__setattr__(self, "chunk_count", count)

    def chunk_of(self, position: int) -> int:
        """Which chunk holds a position of this dimension."""
        run = bisect_right(self._positions, position) - 1
        return self._indexes[run] + (position - self._positions[run]) // self._edges[run]

    def origin_and_edge(self, index: int) -> tuple[int, int]:
        """Where a chunk begins in this dimension, and its length."""
        run = bisect_right(self._indexes, index) - 1
        edge = self._edges[run]
        return self._positions[run] + (index - self._indexes[run]) * edge, edge

    @property
    def largest_edge(self) -> int:
        """The length of the longest chunk."""
        return max(self._edges)

    def same_chunking(self, other: Axis) -> bool:
        """Whether both give every chunk that both describe the same place and length."""
        described = [
            sum(count for _, count in axis.runs if count is not None)
            for axis in (self, other)
            if axis.runs[-1][1] is not None
        ]
        common = min(described) if described else None
        return _first_runs(self.runs, common) == _first_runs(other.runs, common)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The chunks of one array.

    Attributes
    ----------
    axes : tuple of Axis
        One per dimension; none for a scalar, which has exactly one chunk.
    chunk_counts : tuple of int
        The number of chunks in each dimension.
    """

    axes: tuple[Axis, ...]
    chunk_counts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunk_counts", tuple(axis.chunk_count for axis in self.axes))

    @property
    def chunk_count(self) -> int:
        """The number of chunks; may exceed 64 bits."""
        return math.prod(self.chunk_counts)

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """The chunk shape; of a grid with unequal chunks, the longest edge of each dimension."""
        return tuple(axis.largest_edge for axis in self.axes)

    def contains(self, coord: Sequence[int]) -> bool:
        """Whether there is a chunk at these coordinates."""
        counts = self.chunk_counts
        if len(coord) != len(counts):
            return False
        # A generator inside all() would cost twice as much, on every read of a chunk.
        for index, count in zip(coord, counts, strict=True):  # noqa: SIM110
            if not 0 <= index < count:
                return False
        return True

    def contains_all(self, coords: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """For each row of coordinates, whether there is a chunk.

        Parameters
        ----------
        coords : numpy.ndarray
            uint64, one row per chunk and one column per dimension.

        Returns
        -------
        numpy.ndarray
            One bool per row.
        """
        ndim = len(self.axes)
        if coords.ndim != 2 or coords.shape[1] != ndim or coords.dtype != np.uint64:
            raise InvalidInputError(
                f"coordinates must be a uint64 array of n rows and {ndim} columns, not "
                f"{coords.dtype} of shape {coords.shape}"
            )
        inside = np.ones(coords.shape[0], dtype=np.bool_)
        for column, count in zip(coords.T, self.chunk_counts, strict=True):
            inside &= column < np.uint64(count)
        return inside

    def chunk_origin_and_shape(
        self, coord: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Where a chunk begins and its full shape, as encoded: not cut at the array's end."""
        if not self.contains(coord):
            raise InvalidInputError(
                f"there is no chunk {tuple(coord)}: the array has {self.chunk_counts} chunks; "
                "give one index per dimension below these counts"
            )
        pairs = [axis.origin_and_edge(index) for axis, index in zip(self.axes, coord, strict=True)]
        return tuple(origin for origin, _ in pairs), tuple(edge for _, edge in pairs)

    def chunk_of(self, position: Sequence[int]) -> tuple[int, ...]:
        """Find the chunk that holds an element of the array."""
        extents = tuple(axis.extent for axis in self.axes)
        if len(position) != len(extents) or not all(
            0 <= index < extent for index, extent in zip(position, extents, strict=True)
        ):
            raise InvalidInputError(
                f"there is no element {tuple(position)} in an array of shape {extents}; "
                "give one index per dimension within it"
            )
        return tuple(axis.chunk_of(index) for axis, index in zip(self.axes, position, strict=True))

    def same_chunking(self, other: Grid) -> bool:
        """Whether chunks keep their place and shape from one grid to the other.

        The shape of the array does not matter. A rectilinear grid grows by further edges, so edges
        that only one of the two describes do not matter either.
        """
        return len(self.axes) == len(other.axes) and all(
            mine.same_chunking(theirs) for mine, theirs in zip(self.axes, other.axes, strict=True)
        )


def grid_of(document: dict[str, Any]) -> Grid:
    """Work out the grid of an array document.

    Parameters
    ----------
    document : dict
        An array document; of its members only `shape` and `chunk_grid` are looked at.

    Raises
    ------
    InvalidInputError
        One of the two is malformed, or the kind of grid is not known here.
    """
    shape = document["shape"]
    if not isinstance(shape, list) or not all(_is_int(size, 0) for size in shape):
        raise InvalidInputError(
            f"shape must be a list of integers from 0 to {MAX_LENGTH}, not {shape!r}"
        )
    match document["chunk_grid"]:
        case {"name": "regular", "configuration": {"chunk_shape": list(edges), **rest}} if not rest:
            what, runs = "chunk_shape", [_regular_runs(edge) for edge in edges]
        case {
            "name": "rectilinear",
            "configuration": {"kind": "inline", "chunk_shapes": list(specs), **rest},
        } if not rest:
            what, runs = "chunk_shapes", [_rectilinear_runs(spec) for spec in specs]
        case {"name": "regular" as name}:
            raise InvalidInputError(
                f"chunk_grid: {name!r} needs the configuration "
                '{"chunk_shape": [...]} and nothing else in it'
            )
        case {"name": "rectilinear" as name}:
            raise InvalidInputError(
                f"chunk_grid: {name!r} needs the configuration "
                '{"kind": "inline", "chunk_shapes": [...]} and nothing else in it'
            )
        case {"name": str(name)} | str(name):
            raise InvalidInputError(
                f"chunk_grid: {name!r} is not known here, so the chunks of the array would not be "
                "known either; use the grid 'regular' or 'rectilinear', with its configuration"
            )
        case other:
            raise InvalidInputError(
                "chunk_grid must be an object with a name and a configuration, "
                f"not {type(other).__name__}"
            )
    if len(runs) != len(shape):
        raise InvalidInputError(
            f"chunk_grid: {what} has {len(runs)} entries, but shape has {len(shape)} dimensions; "
            "give one entry per dimension"
        )
    return Grid(
        axes=tuple(Axis(extent=extent, runs=run) for extent, run in zip(shape, runs, strict=True))
    )


def _is_int(value: object, least: int) -> bool:
    """Whether a JSON value is an integer (true is not one) from `least` to the greatest length."""
    return type(value) is int and least <= value <= MAX_LENGTH


def _checked_edge(edge: object) -> int:
    """Check a chunk edge or the count of a run."""
    if not _is_int(edge, 1):
        raise InvalidInputError(
            f"chunk_grid: chunk edges and counts are integers from 1 to {MAX_LENGTH}, not {edge!r}"
        )
    assert isinstance(edge, int)
    return edge


def _regular_runs(edge: object) -> tuple[tuple[int, int | None], ...]:
    """One edge, repeated as often as the extent needs."""
    return ((_checked_edge(edge), None),)


def _rectilinear_runs(spec: object) -> tuple[tuple[int, int | None], ...]:
    """Read a rectilinear dimension: a bare edge, or a list of edges and [edge, count] pairs."""
    if not isinstance(spec, list):
        return _regular_runs(spec)
    if not spec:
        raise InvalidInputError(
            "chunk_grid: a dimension has an empty list of chunk edges; give at least one edge"
        )
    pairs: list[tuple[int, int]] = []
    for entry in spec:
        match entry:
            case [edge, count]:
                pairs.append((_checked_edge(edge), _checked_edge(count)))
            case _:
                pairs.append((_checked_edge(entry), 1))
    return tuple(_merged(pairs))


def _merged(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join equal neighbours, so that equal edges are equal runs."""
    merged: list[tuple[int, int]] = []
    for edge, count in pairs:
        if merged and merged[-1][0] == edge:
            merged[-1] = (edge, merged[-1][1] + count)
        else:
            merged.append((edge, count))
    return merged


def _first_runs(
    runs: tuple[tuple[int, int | None], ...], chunk_count: int | None
) -> list[tuple[int, int | None]]:
    """Cut runs after so many chunks; nowhere where the count is None."""
    if chunk_count is None:
        return list(runs)
    first: list[tuple[int, int | None]] = []
    for edge, count in runs:
        taken = chunk_count if count is None else min(count, chunk_count)
        first.append((edge, taken))
        chunk_count -= taken
        if chunk_count == 0:
            break
    return first


def item_size_of(data_type: Any) -> int | None:
    """Give the bytes of one element, uncompressed; None where they differ or the type is not known.

    Parameters
    ----------
    data_type
        The member ``data_type`` of a document: a name, or an object with a name and a configuration.
    """
    match data_type:
        case str(name) | {"name": str(name)} if name in _SIZES:
            return _SIZES[name]
        case str(name):
            return _raw(name)
        case {"name": str(name), "configuration": {"length_bytes": int(size)}} if (
            name in _OF_CONFIGURED_LENGTH and 0 <= size <= _LARGEST
        ):
            return size
        case {"name": str(name), "configuration": {"fields": list(fields)}} if name in _OF_FIELDS:
            return _total(fields)
        case _:
            return None


def _raw(name: str) -> int | None:
    bits = _RAW_BITS.match(name)
    return int(bits[1]) // 8 if bits and int(bits[1]) % 8 == 0 else None


def _total(fields: list[Any]) -> int | None:
    """Add up the fields of a structure: pairs of name and type, or objects with these members."""
    sizes: list[int] = []
    for member in fields:
        match member:
            case [_, data_type] | {"data_type": data_type}:
                size = item_size_of(data_type)
            case _:
                return None
        if size is None:
            return None
        sizes.append(size)
    return sum(sizes)
