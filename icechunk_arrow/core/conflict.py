"""Whether two sets of changes go together: decided on what was done, not on what it looks like now.

``ours`` is what a session has not committed, ``theirs`` what one commit did that the session has not seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from icechunk_arrow.core.boxes import Boxes, point_at, volume
from icechunk_arrow.core.chunk_set import ChunkSet
from icechunk_arrow.core.chunks import member_mask
from icechunk_arrow.core.columns import bytes_at, from_numpy
from icechunk_arrow.core.coords import decode, decode_one
from icechunk_arrow.core.log import ChunkChanges

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from icechunk_arrow.core.log import BulkWrite, NodeName, TransactionLog

    Known = Mapping[tuple[int, str], pa.Array]
    """Coordinates of sparse writes, by array and manifest."""

__all__ = [
    "BasicConflictSolver",
    "Conflict",
    "ConflictDetector",
    "ConflictSolver",
    "ConflictType",
    "Resolution",
    "VersionSelection",
    "chunks_of",
    "conflicts",
    "cuts_off",
    "given_way",
    "sparse_writes",
    "to_be_read",
]

MOST_LISTED = 1000
"""How many chunks a conflict names at most; it counts all."""


class ConflictType(Enum):
    """Why two sets of changes do not go together."""

    NewNodeConflictsWithExistingNode = 1
    NewNodeInInvalidGroup = 2
    ZarrMetadataDoubleUpdate = 3
    ZarrMetadataUpdateOfDeletedArray = 4
    ZarrMetadataUpdateOfDeletedGroup = 5
    ChunkDoubleUpdate = 6
    ChunksUpdatedInDeletedArray = 7
    ChunksUpdatedInUpdatedArray = 8
    DeleteOfUpdatedArray = 9
    DeleteOfUpdatedGroup = 10
    MoveOperationCannotBeRebased = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """One reason why a rebase is not possible as it is."""

    conflict_type: ConflictType
    path: str
    node_id: int | None = None
    conflicted_chunks: tuple[tuple[int, ...], ...] | None = None
    """The first of the chunks that both wrote; None where one side cut off what the other one wrote."""
    chunk_count: int | None = None


class VersionSelection(Enum):
    """Which side a conflict is settled for."""

    Fail = 0
    UseOurs = 1
    UseTheirs = 2


class Resolution(Struct, frozen=True, kw_only=True):
    """What a solver makes of conflicts."""

    unsolved: tuple[Conflict, ...] = ()
    drop_chunks_of: frozenset[int] = frozenset()
    """Arrays in which our writes of the chunks that they wrote too are dropped."""


class ConflictSolver(ABC):
    """Decides what to do about conflicts."""

    @abstractmethod
    def solve(self, found: tuple[Conflict, ...]) -> Resolution:
        """Settle conflicts, or give them back unsolved."""


@dataclass(frozen=True, slots=True)
class ConflictDetector(ConflictSolver):
    """Settles nothing: a rebase succeeds only where there is no conflict."""

    def solve(self, found: tuple[Conflict, ...]) -> Resolution:
        """Give every conflict back."""
        return Resolution(unsolved=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicConflictSolver(ConflictSolver):
    """Settles chunks written by both, and deletions of what they updated.

    Parameters
    ----------
    on_chunk_conflict
        Whose chunk stays where both wrote one.
    fail_on_delete_of_updated_array, fail_on_delete_of_updated_group
        Whether deleting what they updated is a conflict.
    """

    on_chunk_conflict: VersionSelection = VersionSelection.UseOurs
    fail_on_delete_of_updated_array: bool = False
    fail_on_delete_of_updated_group: bool = False

    def solve(self, found: tuple[Conflict, ...]) -> Resolution:
        """Settle what the settings allow."""
        failing = {
            ConflictType.ChunkDoubleUpdate: self.on_chunk_conflict is VersionSelection.Fail,
            ConflictType.DeleteOfUpdatedArray: self.fail_on_delete_of_updated_array,
            ConflictType.DeleteOfUpdatedGroup: self.fail_on_delete_of_updated_group,
        }
        dropped = (
            conflict.node_id
            for conflict in found
            if conflict.conflict_type is ConflictType.ChunkDoubleUpdate
            and self.on_chunk_conflict is VersionSelection.UseTheirs
            and conflict.node_id is not None
        )
        return Resolution(
            unsolved=tuple(c for c in found if failing.get(c.conflict_type, True)),
            drop_chunks_of=frozenset(dropped),
        )


def conflicts(
    ours: TransactionLog,
    theirs: TransactionLog,
    known: Known,
) -> tuple[Conflict, ...]:
    """Find every reason why ``ours`` cannot simply follow ``theirs``.

    What has to be ``known`` for it :func:`to_be_read` says beforehand.
    """
    if theirs.keeps_values:  # what is placed elsewhere is no matter of ours
        return ()
    if theirs.moved or ours.moved:
        moved = (theirs.moved or ours.moved)[0]
        return (
            Conflict(
                conflict_type=ConflictType.MoveOperationCannotBeRebased,
                path=moved[1],
                node_id=moved[0].id,
            ),
        )
    reasons = [*_of_new_nodes(ours, theirs), *_of_updates(ours, theirs)]
    reasons += _of_chunks(ours, theirs, known)
    return (*reasons, *_of_deletions(ours, theirs))


def to_be_read(ours: TransactionLog, theirs: TransactionLog) -> list[tuple[int, BulkWrite]]:
    """Ask for bulk writes, by array, of which extents do not tell whether both touched a chunk."""
    if theirs.keeps_values:
        return []
    others = {node.id for node in (*theirs.created, *theirs.deleted)}
    return [
        (node_id, bulk)
        for node_id in ours.chunks
        if node_id in theirs.chunks and node_id not in others
        for mine, other in permutations((ours.chunks[node_id], theirs.chunks[node_id]))
        for bulk in sparse_writes(_meeting(mine, other))
    ]


def sparse_writes(changes: ChunkChanges) -> list[BulkWrite]:
    """Give the bulk writes whose extents have holes: only their manifests tell which chunks they are."""
    return [bulk for bulk in changes.bulk if not bulk.is_dense]


def given_way(node_id: int, theirs: TransactionLog) -> ChunkChanges | None:
    """Tell what chunks that were only placed elsewhere by us have to give way to.

    None stands for all of the array's chunks.
    """
    gone = {node.id for node in theirs.deleted} | {each.node.id for each in theirs.shifted}
    if node_id in gone:
        return None
    changes = theirs.chunks.get(node_id, ChunkChanges())
    placed = (*theirs.relocated.get(node_id, ()), *theirs.annotated.get(node_id, ()))
    return replace(changes, bulk=(*changes.bulk, *placed))


def _of(kind: ConflictType, node: NodeName) -> Conflict:
    return Conflict(conflict_type=kind, path=node.path, node_id=node.id)


def _above(path: str) -> list[str]:
    """Paths of everything above a node."""
    parts = path.split("/")[1:]
    return ["/", *("/" + "/".join(parts[:n]) for n in range(1, len(parts)))] if path != "/" else []


def _of_new_nodes(ours: TransactionLog, theirs: TransactionLog) -> list[Conflict]:
    taken = {node.path for node in theirs.created}
    arrays = {node.path for node in theirs.created if node.type == "array"}
    below = {above for node in theirs.created for above in _above(node.path)}
    gone = {node.path for node in theirs.deleted} - taken - {node.path for node in ours.created}
    reasons = []
    for node in ours.created:
        if node.path in taken:
            reasons.append(_of(ConflictType.NewNodeConflictsWithExistingNode, node))
        elif (arrays | gone).intersection(_above(node.path)) or (
            node.type == "array" and node.path in below
        ):
            reasons.append(_of(ConflictType.NewNodeInInvalidGroup, node))
    return reasons


def _of_updates(ours: TransactionLog, theirs: TransactionLog) -> list[Conflict]:
    updated = theirs.updated
    deleted = {node.id for node in theirs.deleted}
    reasons = []
    for node in ours.updated.values():
        if node.id in updated:
            reasons.append(_of(ConflictType.ZarrMetadataDoubleUpdate, node))
        if node.id in deleted:
            array = node.type == "array"
            kind = (
                ConflictType.ZarrMetadataUpdateOfDeletedArray
                if array
                else ConflictType.ZarrMetadataUpdateOfDeletedGroup
            )
            reasons.append(_of(kind, node))
    return reasons


def _of_chunks(
    ours: TransactionLog,
    theirs: TransactionLog,
    known: Known,
) -> list[Conflict]:
    deleted = {node.id for node in theirs.deleted}
    created = {node.id for node in theirs.created}
    updated = theirs.updated
    reasons = []
    for node_id in ours.chunks:
        node = ours.names[node_id]
        if node_id in deleted:
            reasons.append(_of(ConflictType.ChunksUpdatedInDeletedArray, node))
            continue
        if node_id in created:
            continue  # an id given out twice; ours is given another
        if node_id in updated:
            reasons.append(_of(ConflictType.ChunksUpdatedInUpdatedArray, node))
        if node_id in theirs.chunks:
            reasons += _of_double_updates(node, ours, theirs, known)
    return reasons


def _of_double_updates(
    node: NodeName,
    ours: TransactionLog,
    theirs: TransactionLog,
    known: Known,
) -> list[Conflict]:
    mine, other = ours.chunks[node.id], theirs.chunks[node.id]
    reasons = []
    if cuts_off(mine, other) or cuts_off(other, mine):
        reasons.append(_of(ConflictType.ChunkDoubleUpdate, node))
    of_node = {manifest: coords for (i, manifest), coords in known.items() if i == node.id}
    chunks, count = _both(mine, other, of_node)
    if count:
        reasons.append(
            Conflict(
                conflict_type=ConflictType.ChunkDoubleUpdate,
                path=node.path,
                node_id=node.id,
                conflicted_chunks=tuple(chunks),
                chunk_count=count,
            )
        )
    return reasons


def cuts_off(mine: ChunkChanges, other: ChunkChanges) -> bool:
    """Whether one side cut off chunks that the other one wrote or deleted."""
    kept = mine.kept
    if kept is None:
        return False
    # extents are the smallest, so a chunk reaches as far as they do
    ends = (zip(each.extent, kept, strict=True) for each in other.at_once)
    if any(stop > count for axes in ends for (_, stop), count in axes):
        return True
    return bool((decode(other.single, len(kept)) >= np.array(kept, np.uint64)).any())


def chunks_of(changes: ChunkChanges, known: Mapping[str, pa.Array]) -> ChunkSet:
    """Tell which chunks were written, deleted or cut off, there or not.

    ``known`` are the coordinates of sparse writes, by manifest.
    """
    return replace(_chunks_of(changes, known, _rank(changes)), kept=changes.kept)


def _rank(changes: ChunkChanges) -> int:
    """Tell how many dimensions an array has to which something happened."""
    if changes.at_once:
        return len(changes.at_once[0].extent)
    if changes.kept is not None:
        return len(changes.kept)
    return len(decode_one(bytes_at(changes.single, 0))) if len(changes.single) else 0


def _chunks_of(changes: ChunkChanges, known: Mapping[str, pa.Array], ndim: int) -> ChunkSet:
    single = [changes.single]
    single += [known[bulk.manifest] for bulk in sparse_writes(changes)]
    boxes = [bulk.extent for bulk in changes.bulk if bulk.is_dense]
    boxes += [each.extent for each in changes.cleared]
    return ChunkSet.of(ndim, deleted=pa.concat_arrays(single), boxes=boxes)


def _both(
    mine: ChunkChanges,
    other: ChunkChanges,
    known: Mapping[str, pa.Array],
) -> tuple[list[tuple[int, ...]], int]:
    """Find the chunks that both wrote or deleted: the first of them, and how many."""
    ndim = _rank(mine)
    ours = _chunks_of(_meeting(mine, other), known, ndim)
    theirs = _chunks_of(_meeting(other, mine), known, ndim)
    in_both = [ours.coordinates.filter(_mask(theirs.mask(ours.coordinates)))]
    rest = theirs.coordinates.filter(_mask(ours.mask(theirs.coordinates)))
    in_both.append(rest.filter(_mask(~member_mask(rest, in_both[0]))))
    single = pa.concat_arrays(in_both)
    listed = sorted(map(decode_one, single[:MOST_LISTED].to_pylist()))
    count = len(single)
    for box in ours.boxes.common(theirs.boxes):
        more = min(volume(box), MOST_LISTED - len(listed))
        listed += (point_at(box, place) for place in range(more))
        count += volume(box)
    return listed[:MOST_LISTED], count


def _mask(values: npt.NDArray[np.bool_]) -> pa.Array:
    return from_numpy(values, pa.bool_())


def _meeting(changes: ChunkChanges, other: ChunkChanges) -> ChunkChanges:
    """Leave out bulk writes that cannot have a chunk in common with the other side."""
    if not changes.bulk:
        return changes
    ndim = len(changes.bulk[0].extent)
    boxes = [each.extent for each in other.at_once]
    theirs = ChunkSet.of(ndim, deleted=other.single, boxes=boxes)
    mine = Boxes.of([bulk.extent for bulk in changes.bulk], ndim)
    return replace(changes, bulk=tuple(changes.bulk[i] for i in theirs.touching(mine)))


def _of_deletions(ours: TransactionLog, theirs: TransactionLog) -> list[Conflict]:
    touched = {*theirs.updated, *theirs.chunks}
    below = {above for node in theirs.created for above in _above(node.path)}
    reasons = []
    for node in ours.deleted:
        if node.type == "array" and node.id in touched:
            reasons.append(_of(ConflictType.DeleteOfUpdatedArray, node))
        elif node.type == "group" and (node.id in touched or node.path in below):
            reasons.append(_of(ConflictType.DeleteOfUpdatedGroup, node))
    return reasons
