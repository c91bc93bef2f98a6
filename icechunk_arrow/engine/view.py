"""An array as reading and writing of its chunks needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icechunk_arrow.core.grid import Grid
    from icechunk_arrow.core.keys import ChunkKeys
    from icechunk_arrow.core.snapshot import Node

__all__ = ["ArrayView"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayView:
    """A node with what follows from its document, worked out once."""

    node: Node
    grid: Grid
    keys: ChunkKeys
