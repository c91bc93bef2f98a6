"""Bringing a branch's manifests into the shape that its settings ask for, as one commit.

Owns which rows are read and written for that, a part at a time; what has to move is decided in ``core``.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icechunk_arrow.core.chunks import concat_sorted, keep_rows
from icechunk_arrow.core.columns import to_numpy
from icechunk_arrow.core.inventory import Inventory
from icechunk_arrow.core.placement import limit_of
from icechunk_arrow.core.repacking import plan_repacking
from icechunk_arrow.engine.bulk import BulkReferences, BulkSettings, Layout
from icechunk_arrow.engine.changes import ChangedChunks, Changes
from icechunk_arrow.engine.commit import plan as plan_commit
from icechunk_arrow.engine.commit import publish, write
from icechunk_arrow.engine.context import ArrayView, new_id, now
from icechunk_arrow.engine.history import tip_to_read
from icechunk_arrow.engine.manifest_writer import ManifestWriter
from icechunk_arrow.engine.plan import ArrayShapes, WrittenManifests
from icechunk_arrow.engine.segments import check_live
from icechunk_arrow.errors import ConflictError
from icechunk_arrow.formats.structure import sound_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import pyarrow as pa

    from icechunk_arrow.core.manifest_settings import ManifestSet
    from icechunk_arrow.core.repacking import Repacking
    from icechunk_arrow.core.snapshot import Node, Snapshot
    from icechunk_arrow.engine.context import Context

__all__ = ["ManifestRewrite", "rewrite_manifests"]

_ALL_WRITTEN = BulkSettings(held_rows=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRewrite:
    """What rewriting the manifests of a branch did, or would do."""

    snapshot_id: str | None
    """The commit; None for a dry run, and where every manifest is as it should be."""
    kept: int
    """Manifests that stay as they are."""
    replaced: int
    """Manifests of which every row is written again."""
    written: int
    """Manifests that take their place; in a dry run an estimate, which sparse arrays may exceed."""
    row_count: int
    """How many references are written again."""


def rewrite_manifests(
    context: Context,
    branch: str,
    message: str,
    *,
    properties: Mapping[str, Any],
    dry_run: bool,
) -> ManifestRewrite:
    """Put the references of a branch into the manifests that the settings want, and commit."""
    started_at = now()
    done: tuple[frozenset[str], WrittenManifests] | None = None
    while True:
        tip = tip_to_read(context, branch)
        base = context.files.read_snapshot(tip.snapshot_id)
        unchanged = Changes(
            overlay={}, chunks=ChangedChunks(), next_node_id=base.facts.next_node_id
        )
        nodes = {node.id: node for node in base.nodes() if node.is_array}
        shapes = ArrayShapes(base, unchanged)
        settings = context.saved_config.to_write().chunk_manifests
        inventories = {i: node.inventories for i, node in nodes.items()}
        plan = plan_repacking(inventories, settings, shapes.of(nodes))
        if dry_run or not plan.replaced:
            return _report(plan, None, _estimate(plan, nodes))
        if done is None or not done[0] <= base.manifest_sizes.keys():
            done = plan.replaced, _write(context, plan, base, shapes)
        planned = plan_commit(
            context,
            tip,
            base,
            unchanged,
            message=message,
            properties=properties,
            started_at=started_at,
            rearranged=done,
        )
        finished = write(context, tip, planned)
        try:
            publish(context, tip, finished)
        except ConflictError:
            continue  # another session was faster; what is written still counts if its manifests are live
        return _report(plan, finished.snapshot.id, len(done[1].sizes))


def _report(plan: Repacking, snapshot_id: str | None, written: int) -> ManifestRewrite:
    return ManifestRewrite(
        snapshot_id=snapshot_id,
        kept=len(plan.kept),
        replaced=len(plan.replaced),
        written=written,
        row_count=plan.row_count,
    )


def _estimate(plan: Repacking, nodes: Mapping[int, Node]) -> int:
    count = len(plan.together)
    for array_id, cut in plan.cut.items():
        held = {entry.manifest: entry.row_count for entry in nodes[array_id].inventories}
        count += sum(
            -(-sum(map(held.__getitem__, part)) // limit_of(cut.home)) for part in cut.parts
        )
    return count


def _write(
    context: Context,
    plan: Repacking,
    base: Snapshot,
    shapes: ArrayShapes,
) -> WrittenManifests:
    nodes = {node.id: node for node in base.nodes() if node.is_array}
    with ExitStack() as stack:
        writers = [stack.enter_context(ManifestWriter(context.storage, new_id))]
        for members in plan.together:
            table = _rows_of(context, base, [nodes[each] for each in members])
            writers[0].write_planned(shapes.manifest(new_id(), table))
        for array_id, cut in plan.cut.items():
            for part in cut.parts:
                writers.append(stack.enter_context(ManifestWriter(context.storage, new_id)))
                _cut(context, base, nodes[array_id], cut.home, part, writers[-1])
        written = [writer.finish() for writer in writers]
    return WrittenManifests(
        entries=Inventory.united(each.entries for each in written),
        sizes={name: size for each in written for name, size in each.sizes.items()},
    )


def _rows_of(context: Context, base: Snapshot, nodes: list[Node]) -> pa.Table:
    """Read all references of some arrays."""
    ids = np.array([node.id for node in nodes], np.uint32)
    names = sorted({name for node in nodes for name in node.inventories.names})
    parts = []
    for name in names:
        table = check_live(context.files.read_manifest(name), name, base)
        parts.append(keep_rows(table, np.isin(to_numpy(table["array_id"]), ids)))
    return concat_sorted(parts)


def _cut(
    context: Context,
    base: Snapshot,
    node: Node,
    home: ManifestSet,
    part: Sequence[str],
    writer: ManifestWriter,
) -> None:
    """Stream an array's rows of some manifests into others, cut along its grid."""
    with sound_array(node.path, base.id):
        view = ArrayView(node=node, grid=node.grid, keys=node.chunk_keys)
    layout = Layout.of(home, view)
    with BulkReferences(writer, lambda _: layout, last_wins=False, settings=_ALL_WRITTEN) as bulk:
        names = [name for name in node.inventories.names if name in part]
        bulk.add_manifests(context.files, view, node.inventories, names, base)
        bulk.finish()
