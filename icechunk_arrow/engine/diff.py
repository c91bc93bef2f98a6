"""What changed, as a person asks for it: by path, groups and arrays apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from icechunk_arrow.core.boxes import volume
from icechunk_arrow.core.coords import decode_one
from icechunk_arrow.core.log import Cleared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from icechunk_arrow.core.boxes import Box
    from icechunk_arrow.core.log import BulkWrite, ChunkChanges, NodeName, TransactionLog
    from icechunk_arrow.core.snapshot import Node

__all__ = ["Diff", "diff_of"]

_LISTED = 1000
"""Up to so many chunks that fill an extent are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Changes between two states of a repository."""

    new_groups: frozenset[str] = frozenset()
    new_arrays: frozenset[str] = frozenset()
    deleted_groups: frozenset[str] = frozenset()
    deleted_arrays: frozenset[str] = frozenset()
    updated_groups: frozenset[str] = frozenset()
    updated_arrays: frozenset[str] = frozenset()
    updated_chunks: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """Chunks that were written or deleted one by one, per array."""
    updated_extents: Mapping[str, tuple[Box, ...]] = field(default_factory=dict)
    """Extents in which many chunks were written at once, per array."""
    moved_nodes: tuple[tuple[str, str], ...] = ()

    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not any(getattr(self, name) for name in self.__slots__)

    def __str__(self) -> str:
        lines = []
        for name in self.__slots__:
            value = getattr(self, name)
            if not value:
                continue
            lines.append(f"{name.replace('_', ' ').capitalize()}:")
            if name == "updated_chunks":
                lines += [f"    {path}: {len(coords)} chunks" for path, coords in value.items()]
            elif name == "updated_extents":
                lines += [f"    {path}: within {list(boxes)}" for path, boxes in value.items()]
            elif name == "moved_nodes":
                lines += [f"    {old} -> {new}" for old, new in value]
            else:
                lines += [f"    {path}" for path in sorted(value)]
        return "\n".join(lines) or "No changes"


def _paths(nodes: Iterable[NodeName], kind: str) -> frozenset[str]:
    return frozenset(node.path for node in nodes if node.type == kind)


def _is_listed(box: BulkWrite | Cleared) -> bool:
    """Whether what was done at once is small enough to be told chunk by chunk."""
    dense = isinstance(box, Cleared) or box.is_dense
    return dense and volume(box.extent) <= _LISTED


def _single_chunks(found: ChunkChanges) -> tuple[tuple[int, ...], ...]:
    single = set(map(decode_one, found.single.to_pylist()))
    for box in filter(_is_listed, found.at_once):
        single.update(product(*(range(start, stop) for start, stop in box.extent)))
    return tuple(sorted(single))


def _extents(found: ChunkChanges) -> tuple[Box, ...]:
    return tuple(box.extent for box in found.at_once if not _is_listed(box))


def diff_of(log: TransactionLog, find_node: Callable[[str], Node | None]) -> Diff:
    """Turn a log into a diff; nodes that are gone by now are left out of the updates."""
    updated = [node for node in log.updated.values() if find_node(node.path) is not None]
    changes = {log.names[node_id].path: found for node_id, found in log.chunks.items()}
    return Diff(
        new_groups=_paths(log.created, "group"),
        new_arrays=_paths(log.created, "array"),
        deleted_groups=_paths(log.deleted, "group"),
        deleted_arrays=_paths(log.deleted, "array"),
        updated_groups=_paths(updated, "group"),
        updated_arrays=_paths(updated, "array"),
        updated_chunks={
            path: chunks
            for path, found in sorted(changes.items())
            if (chunks := _single_chunks(found))
        },
        updated_extents={
            path: extents for path, found in sorted(changes.items()) if (extents := _extents(found))
        },
        moved_nodes=tuple((old, node.path) for node, old in log.moved),
    )
