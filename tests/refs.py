"""References as tables, from single ones: how tests write down what a manifest holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icechunk_arrow.core.chunks import rows_of_refs

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from icechunk_arrow.core.chunks import ChunkRef

__all__ = ["table_of_refs"]


def table_of_refs(array_id: int, refs: Mapping[bytes, ChunkRef]) -> pa.Table:
    """Put references of one array, by encoded coordinate, into a sorted table."""
    keys = sorted(refs)
    array_ids = np.full(len(keys), array_id, np.uint32)
    return rows_of_refs(array_ids, keys, [refs[key] for key in keys])
