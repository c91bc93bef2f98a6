"""Dimensions of arrays as columns: the values of their coordinates, or the positions themselves.

Owns where the coordinate of a dimension is, and what its values become: CF times are decoded where they name
moments exactly, and stay the numbers that are stored where they do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import zarr

from icechunk_arrow.core.cf_time import decode_times, find_time_units, to_microseconds
from icechunk_arrow.core.selection import select
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.spark.elements import element_bytes, element_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.predicates import Predicate
    from icechunk_arrow.session import OpenSession

__all__ = ["Dimension", "dimensions_of", "node_path", "open_array", "selected"]

_TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dimension:
    """One dimension of a grid."""

    name: str
    length: int
    type: pa.DataType
    path: str | None = None
    """The coordinate array; None where the dimension has none."""
    values: npt.NDArray[Any] | None = None

    @property
    def element_bytes(self) -> int:
        """How many bytes one value takes, more or less."""
        return 8 if self.values is None else element_bytes(self.values.dtype)

    def between(self, start: int, stop: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Give the values at positions, which lie between two."""
        if self.values is None:
            return positions
        return self.values[start:stop] if len(positions) == stop - start else self.values[positions]


def node_path(path: str) -> str:
    """Write a path as nodes have it."""
    return "/" + path.strip("/")


def open_array(session: OpenSession, path: str) -> Any:
    """Open an array with zarr, or ``NodeNotFoundError``."""
    session.get_array(path)
    return zarr.open_array(store=session.store, path=path.strip("/"), mode="r", zarr_format=3)


def dimensions_of(session: OpenSession, path: str, array: Any) -> list[Dimension]:
    """Describe the dimensions of an array, in order.

    A dimension's coordinate is the array of one dimension that is named as it, in the same group or the nearest
    above. A dimension without a name, or with that of one before it, is ``dim_<number>``.
    """
    names = array.metadata.dimension_names or (None,) * array.ndim
    found: list[Dimension] = []
    for number, (name, length) in enumerate(zip(names, array.shape, strict=True)):
        shown = f"dim_{number}"
        if name and name not in {each.name for each in found}:
            shown = name
        coordinate = None if shown != name else _find_coordinate(session, path, name, length)
        if coordinate is None:
            found.append(Dimension(name=shown, length=length, type=pa.int64()))
            continue
        values, kind = _values_of(*coordinate)
        found.append(
            Dimension(name=shown, length=length, type=kind, path=coordinate[0], values=values)
        )
    return found


def selected(
    dimensions: Sequence[Dimension], where: Predicate | None, path: str
) -> list[npt.NDArray[np.int64]]:
    """Find the positions along each dimension at which a condition holds, as ranges."""
    asked = () if where is None else where.columns
    known = [each.name for each in dimensions]
    for name in asked:
        if name not in known:
            raise InvalidInputError(
                f"the condition speaks of {name!r}, which is no dimension of {path}: it has "
                f"{', '.join(known) or 'none'}. For values of arrays, filter the rows with Spark.",
                column=name,
            )
    return [
        select(
            () if where is None else where.of(each.name),
            each.length if each.values is None else each.values,
        )
        for each in dimensions
    ]


def _find_coordinate(
    session: OpenSession, path: str, name: str, length: int
) -> tuple[str, Any] | None:
    folder = path
    while folder and "/" not in name:
        folder = folder.rpartition("/")[0]
        candidate = f"{folder}/{name}"
        view = session.find_array(candidate)
        if view is None or len(view.grid.axes) != 1:
            continue
        array = open_array(session, candidate)
        if (array.metadata.dimension_names or (name,)) != (name,):
            continue
        if array.shape != (length,):
            raise InvalidInputError(
                f"the coordinate {candidate} has {array.shape[0]} values, and the dimension {name!r} of "
                f"{path} is of length {length}; write the one that is behind",
                path=candidate,
            )
        return candidate, array
    return None


def _values_of(path: str, array: Any) -> tuple[npt.NDArray[Any], pa.DataType]:
    """Read a coordinate; times come as microseconds."""
    values = np.asarray(array[:])
    if values.dtype.kind in "iuf":
        units = find_time_units(array.attrs.get("units"), array.attrs.get("calendar"))
        if units is not None:
            return decode_times(values, units, path), _TIME
    kind = element_type(array, path)
    return (to_microseconds(values, path) if kind == _TIME else values), kind
