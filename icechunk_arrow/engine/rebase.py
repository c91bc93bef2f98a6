"""Putting a session's changes on top of commits that it has not seen.

Reads the commits in between, asks the pure conflict rules, and moves the changes over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_arrow.core.columns import from_numpy, one_array, to_numpy
from icechunk_arrow.core.conflict import (
    chunks_of,
    conflicts,
    cuts_off,
    given_way,
    sparse_writes,
    to_be_read,
)
from icechunk_arrow.core.inventory import NO_INVENTORY
from icechunk_arrow.engine.changes import in_columns
from icechunk_arrow.engine.history import ancestors
from icechunk_arrow.engine.merging import merge
from icechunk_arrow.engine.plan import UNCOMMITTED
from icechunk_arrow.engine.timetravel import own_tip
from icechunk_arrow.errors import ConflictError, RebaseFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_arrow.core.chunk_set import ChunkSet
    from icechunk_arrow.core.conflict import Conflict, ConflictSolver
    from icechunk_arrow.core.log import ChunkChanges, TransactionLog
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.catalog import Tip
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.staging import Staging

__all__ = ["Rebase"]


class Rebase:
    """Staged changes on their way from where a session began to where its branch is now.

    What is given is not touched: an interrupt leaves it as it was.
    """

    def __init__(
        self,
        context: Context,
        staging: Staging,
        log_of: Callable[[Staging], TransactionLog],
    ) -> None:
        self._context = context
        self._log_of = log_of
        self.staging = staging
        """The changes as far as they were moved: on the last commit with which they do not conflict."""

    def run(self, tip: Tip, solver: ConflictSolver | None) -> Tip:
        """Move them as far as possible from where their branch stood; give where it is.

        Without a solver they only place chunks elsewhere, and give way to whatever was done.
        """
        context, base_id = self._context, self.staging.base.id
        new_tip = own_tip(context, context.catalog.get_tip(tip.branch))
        if new_tip.snapshot_id == base_id:
            return new_tip
        passed = _commits_between(context, base_id, new_tip)
        staging = self.staging = self.staging.copy()
        for snapshot_id in passed:
            theirs = context.files.read_log(snapshot_id)
            if solver is None:
                _give_way(context, staging, theirs)
            else:
                _settle(context, staging, solver, self._log_of(staging), theirs, snapshot_id)
            _move_over(staging, context.files.read_snapshot(snapshot_id))
        return new_tip


def _commits_between(context: Context, base_id: str, tip: Tip) -> list[str]:
    """Commits after the base, oldest first."""
    found: list[str] = []
    for info in ancestors(context.files, tip.snapshot_id):
        if info.id == base_id:
            return found[::-1]
        found.append(info.id)
    raise ConflictError(
        f"the branch {tip.branch!r} was reset: {base_id}, where this session began, is not in its "
        f"history any more. Open a new session and make the changes again.",
        expected_parent=base_id,
        actual_parent=tip.snapshot_id,
    )


def _chunks_of(context: Context, node_id: int, theirs: ChunkChanges) -> ChunkSet:
    """Tell which chunks of an array a commit touched; manifests with holes are read."""
    names = {bulk.manifest for bulk in sparse_writes(theirs)}
    return chunks_of(theirs, {name: _coords_in(context, node_id, name) for name in names})


def _coords_in(context: Context, node_id: int, manifest: str) -> pa.Array:
    """Read which chunks of an array a manifest has."""
    table = context.files.read_manifest(manifest)
    mine = from_numpy(to_numpy(table["array_id"]) == node_id, pa.bool_())
    return one_array(table["coord"]).filter(mine)


def _give_way(context: Context, staging: Staging, theirs: TransactionLog) -> None:
    """Take back what was placed elsewhere of all that a commit touched."""
    for node_id, staged in list(staging.arrays.items()):
        changes = given_way(node_id, theirs)
        if changes is not None:
            merge(context, staged, node_id, without=_chunks_of(context, node_id, changes))
        if changes is None or staged.is_empty:
            del staging.arrays[node_id]


def _settle(
    context: Context,
    staging: Staging,
    solver: ConflictSolver,
    ours: TransactionLog,
    theirs: TransactionLog,
    snapshot_id: str,
) -> None:
    known = {}
    for node_id, bulk in to_be_read(ours, theirs):
        if bulk.manifest == UNCOMMITTED:
            coords = in_columns({node_id: staging.arrays[node_id]}).written.coords
        else:
            coords = _coords_in(context, node_id, bulk.manifest)
        known[node_id, bulk.manifest] = coords
    found = conflicts(ours, theirs, known)
    resolution = solver.solve(found)
    # what was cut off as a whole cannot be given back in parts
    lost = {i for i in resolution.drop_chunks_of if cuts_off(ours.chunks[i], theirs.chunks[i])}
    unsolved = (*resolution.unsolved, *(each for each in found if each.node_id in lost))
    if unsolved:
        raise RebaseFailedError(
            f"the changes cannot follow commit {snapshot_id}: "
            + "; ".join(map(_in_words, unsolved[:5]))
            + (f"; and {len(unsolved) - 5} more" if len(unsolved) > 5 else "")
            + ". See .conflicts; BasicConflictSolver settles some kinds.",
            snapshot=snapshot_id,
            conflicts=unsolved,
        )
    for node_id in resolution.drop_chunks_of:
        changed = _chunks_of(context, node_id, theirs.chunks[node_id])
        merge(context, staging.arrays[node_id], node_id, without=changed)


def _in_words(conflict: Conflict) -> str:
    chunks = "" if conflict.chunk_count is None else f" ({conflict.chunk_count} chunks)"
    return f"{conflict.conflict_type.name} at {conflict.path!r}{chunks}"


def _move_over(staging: Staging, base: Snapshot) -> None:
    """Make another snapshot the base of staged changes that do not conflict with it."""
    old = staging.base
    renumbered: dict[int, int] = {}
    next_id = max(base.facts.next_node_id, staging.next_node_id)
    for path, node in list(staging.overlay.items()):
        if node is None:
            there = base.find_node(path)
            if there is None or there.id not in old.rows_by_id:
                del staging.overlay[path]  # they deleted it too, and perhaps made another one
            continue
        if node.id in old.rows_by_id:
            current = base.find_node_by_id(node.id)
            if current is None:  # nothing is left of our changes, or they would be a conflict
                del staging.overlay[path]
                continue
            staging.overlay[path] = replace(node, inventories=current.inventories)
        elif node.id in base.rows_by_id or node.id < base.facts.next_node_id:
            renumbered[node.id] = next_id
            staging.overlay[path] = replace(node, id=next_id, inventories=NO_INVENTORY)
            next_id += 1
    staging.arrays = {
        renumbered.get(node_id, node_id): staged for node_id, staged in staging.arrays.items()
    }
    staging.next_node_id = next_id
    staging.views.clear()
    staging.base = base
