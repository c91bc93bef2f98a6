"""Rows of cells that nobody brought together: each task assembles chunks of what its own partition holds.

For writers that cannot shuffle. Arrays and coordinates must be there; a partition is held in memory. A chunk
of which two partitions have rows is written by both tasks, which whoever merges their work finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.axis_lookup import canonical, kind_of
from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.row_blocks import plan_row_blocks
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.spark.writing.row_arrays import cell_column, read_arrays, shape_of
from icechunk_arrow.spark.writing.row_axes import (
    AxisRequest,
    AxisRows,
    find_coordinate,
    resolve_axis,
)
from icechunk_arrow.spark.writing.row_placing import PlaceRows, packed_schema
from icechunk_arrow.spark.writing.row_writing import WriteCells

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from icechunk_arrow.session import ForkSession
    from icechunk_arrow.spark.writing.row_arrays import ArrayShape, RowArray
    from icechunk_arrow.spark.writing.row_axes import RowAxis

__all__ = ["StageCells"]

_BLOCK_BYTES = 64 << 20
"""What chunks that are assembled at a time take in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCells:
    """The work of one task; what the parameters mean is said in ``write_rows``."""

    arrays: Any
    dimensions: Sequence[str] | None
    coordinates: Mapping[str, Any]
    tolerance: Mapping[str, Any]
    group: str
    duplicates: str
    order_by: str | None
    skip_nulls: bool
    replaces: bool
    """Whether what is stored will be removed, so that nothing is merged with it."""

    def __call__(self, fork: ForkSession, batches: Iterator[pa.RecordBatch]) -> None:
        """Write the chunks of one partition."""
        held = list(batches)
        types = {field.name: _plain(field.type) for field in held[0].schema}
        taken = [*(self.dimensions or []), *([self.order_by] if self.order_by else [])]
        if self.arrays is None and self.dimensions is None:
            taken += self._dimensions_of_columns(fork, types)
        arrays = read_arrays(self.arrays, types, self.group, taken)
        present = shape_of(fork, arrays)
        if present is None or any(fork.find_array(each.path) is None for each in arrays):
            missing = [each.path for each in arrays if fork.find_array(each.path) is None]
            raise InvalidInputError(
                f"there is no array {missing[0]!r}; describe it in the option 'arrays', or use "
                f"icechunk_arrow.spark.write_rows, which makes arrays and coordinates of what the rows hold"
            )
        columns = self._columns(present, types)
        rows = pa.Table.from_batches(held).select(
            [*columns, *_used_once(arrays, columns, self.order_by)]
        )
        axes = self._axes(fork, rows, present, columns, types)
        if not rows.num_rows:
            return
        by_shape: dict[tuple[int, ...], list[RowArray]] = {}
        for each in arrays:
            by_shape.setdefault(fork.get_array(each.path).grid.chunk_shape, []).append(each)
        for chunk_shape, some in by_shape.items():
            self._write(fork, rows, some, axes, chunk_shape)

    def _dimensions_of_columns(
        self, fork: ForkSession, types: Mapping[str, pa.DataType]
    ) -> list[str]:
        """Find the dimensions of an array that has a column's name, where they are columns too."""
        for name in types:
            view = fork.find_array(f"{self.group.rstrip('/')}/{name}")
            said = view.node.columns.dimension_names if view and view.node.columns else None
            if said and name not in said and all(each in types for each in said):
                return [each for each in said if each is not None]
        raise InvalidInputError(
            "which columns are the dimensions? Name them in the option 'dimensions', in the order of the "
            "arrays' dimensions, or the columns of values in the option 'columns'"
        )

    def _columns(self, present: ArrayShape, types: Mapping[str, pa.DataType]) -> list[str]:
        names = list(self.dimensions or [name for name in present.names if name is not None])
        if len(names) != len(present.shape):
            raise InvalidInputError(
                f"{present.path!r} has {len(present.shape)} dimensions; name the column of each in the option "
                f"'dimensions'",
                path=present.path,
            )
        for name in names:
            if name not in types or kind_of(types[name]) is None:
                what = f"of {types[name]}" if name in types else "is not there, which"
                raise InvalidInputError(f"the column {name!r} {what} cannot hold coordinates")
        return names

    def _axes(
        self,
        fork: ForkSession,
        rows: pa.Table,
        present: ArrayShape,
        columns: Sequence[str],
        types: Mapping[str, pa.DataType],
    ) -> list[RowAxis]:
        folder = present.path.rpartition("/")[0]
        axes = []
        for column, name, length in zip(columns, present.names, present.shape, strict=True):
            request = AxisRequest(
                name=name or column,
                column=column,
                way=self.coordinates.get(name or column),
                tolerance=self.tolerance.get(name or column),
                length=length,
            )
            stored = None if request.way == "index" else find_coordinate(fork, folder, request.name)
            found = rows[column]
            if found.null_count:
                raise InvalidInputError(
                    f"{found.null_count} rows have no value in the column {column!r}, which says where they "
                    f"are. Nothing was changed.",
                    column=column,
                )
            if not rows.num_rows:
                continue
            ends = pc.min_max(found).as_py()
            kind = types[column]
            bounds = from_values([ends["min"], ends["max"]], found.type).cast(kind)

            known = AxisRows(type=kind, bounds=bounds, distinct=_not_here)
            resolved = resolve_axis(request, known, stored, has_arrays=True)
            axes.append(resolved.axis)
        return axes

    def _write(
        self,
        fork: ForkSession,
        rows: pa.Table,
        arrays: Sequence[RowArray],
        axes: Sequence[RowAxis],
        chunk_shape: tuple[int, ...],
    ) -> None:
        columns = tuple(cell_column(fork, each, self.duplicates) for each in arrays)
        blocks = plan_row_blocks(
            shape=[axis.length for axis in axes],
            chunk_shape=chunk_shape,
            low=[axis.low for axis in axes],
            high=[axis.high for axis in axes],
            cell_bytes=sum(each.value_bytes + 1 for each in columns),
            block_bytes=_BLOCK_BYTES,
        )
        order = None
        if self.order_by is not None:
            order = canonical(pa.nulls(0, _plain(rows.schema.field(self.order_by).type))).type
        schema = packed_schema(blocks, columns, order)
        place = PlaceRows(
            axes=tuple(axes),
            columns=columns,
            blocks=blocks,
            part_count=1,
            order_by=self.order_by,
            schema=schema,
        )
        packed = pa.Table.from_batches(list(place(iter(rows.to_batches()))))
        packed = packed.sort_by([("block", "ascending"), ("number", "ascending")])
        stored = frozenset(each.path for each in columns if fork.has_chunks(each.path))
        write = WriteCells(
            axes=tuple(axes),
            columns=columns,
            blocks=blocks,
            schema=schema,
            duplicates=self.duplicates,
            skip_nulls=self.skip_nulls,
            merged=frozenset() if self.replaces else stored,
        )
        write(fork, iter(packed.to_batches()))


def _used_once(
    arrays: Sequence[RowArray], columns: Sequence[str], order_by: str | None
) -> list[str]:
    """Give the columns that are used beside those of coordinates, each once."""
    used = dict.fromkeys([*(each.column for each in arrays), *([order_by] if order_by else [])])
    return [name for name in used if name not in columns]


def _plain(kind: pa.DataType) -> pa.DataType:
    """Take times with a zone as times in UTC: Spark gives them in the session's."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return kind


def _not_here() -> pa.Array:
    raise InvalidInputError(
        "new coordinates need all rows to be looked at first: icechunk_arrow.spark.write_rows does that"
    )
