"""Publishing ``state.json`` from a repository with branch sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_arrow.engine.context import new_id
from icechunk_arrow.engine.history import full_ancestors
from icechunk_arrow.engine.state_catalog import StateCatalog, publish_state
from icechunk_arrow.engine.timetravel import find_tip_to_read
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.formats.state import State

if TYPE_CHECKING:
    from icechunk_arrow.core.snapshot import SnapshotInfo
    from icechunk_arrow.engine.context import Context

__all__ = ["export_state"]


def export_state(context: Context) -> State:
    """Write all snapshots that a branch or tag leads to, oldest first, and where these point."""
    catalog = context.catalog
    if isinstance(catalog, StateCatalog):
        raise InvalidInputError("the catalog of this repository is its state file already")
    catalog.check_identity()
    tips = {name: find_tip_to_read(context, name) for name in catalog.list_branches()}
    branches = {name: tip.snapshot_id for name, tip in tips.items() if tip is not None}
    tags = {name: catalog.get_tag(name) for name in catalog.list_tags()}
    known: dict[str, SnapshotInfo] = {}
    for start in (*branches.values(), *tags.values()):
        for info in full_ancestors(context.files, start):
            if info.id in known:
                break
            known[info.id] = info
    snapshots = tuple(sorted(known.values(), key=lambda info: (info.written_at, info.id)))
    first = next(info for info in snapshots if info.parent_id is None)
    state = State(
        id=first.id,
        generation=0,
        snapshots=snapshots,
        branches=branches,
        tags=tags,
        write_id=new_id(),
    )
    return publish_state(context.storage, state)
