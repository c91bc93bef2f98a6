"""The rows of a snapshot's nodes, held as their file has them.

A session that looks for one chunk needs one row. Bringing every column into another width takes longer than that
look-up, so it waits until somebody asks for the columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import conformed, to_numpy
from icechunk_arrow.core.lazy import lazy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["NodeRows"]


class NodeRows:
    """Columns in one of several widths.

    Parameters
    ----------
    held
        The rows, with the names of ``schema``.
    schema
        The width in which they are asked for.
    """

    def __init__(self, held: pa.Table, schema: pa.Schema) -> None:
        self.held = held
        self._schema = schema
        self._conformed: dict[pa.Schema, list[pa.Array] | None] = {}

    @classmethod
    def of(cls, table: pa.Table) -> NodeRows:
        """Hold rows that were made here, in the schema in which they are asked for."""
        rows = cls(table, table.schema)
        rows.table = table
        return rows

    @lazy
    def ids(self) -> npt.NDArray[np.uint32]:
        """The nodes' ids, which no other column has to be brought into shape for."""
        return to_numpy(self.held["id"]).astype(np.uint32)

    @lazy
    def table(self) -> pa.Table:
        """The rows in their one schema."""
        columns = self.in_width(self._schema)
        assert columns is not None, "the one schema has room for everything"
        return pa.Table.from_arrays(columns, schema=self._schema)

    def in_width(self, schema: pa.Schema) -> Sequence[pa.Array] | None:
        """Give the columns in the width of a schema; None where it is too narrow."""
        if schema not in self._conformed:
            try:
                self._conformed[schema] = conformed(self.held, schema)
            except pa.ArrowInvalid:
                self._conformed[schema] = None
        return self._conformed[schema]
