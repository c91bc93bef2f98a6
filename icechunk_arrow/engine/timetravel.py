"""Which snapshot a person means: by branch, tag, id or time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_arrow.core.ids import check_id
from icechunk_arrow.engine.history import ancestors
from icechunk_arrow.errors import InvalidInputError, SnapshotNotFoundError

if TYPE_CHECKING:
    from datetime import datetime

    from icechunk_arrow.engine.context import Context

__all__ = ["resolve"]


def resolve(
    context: Context,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
) -> str:
    """Find the id of the snapshot that exactly one of these names."""
    given = [n for n, v in (("branch", branch), ("tag", tag), ("snapshot_id", snapshot_id)) if v]
    if len(given) != 1:
        raise InvalidInputError(
            f"name exactly one of branch, tag and snapshot_id, not {' and '.join(given) or 'none'}"
        )
    if as_of is not None and branch is None:
        raise InvalidInputError("as_of goes with a branch: tags and snapshots do not move in time")
    if snapshot_id is not None:
        return check_id(snapshot_id, "snapshot id")
    if tag is not None:
        return context.catalog.get_tag(tag)
    assert branch is not None
    tip = context.catalog.get_tip(branch).snapshot_id
    return tip if as_of is None else _as_of(context, branch, tip, as_of)


def _as_of(context: Context, branch: str, tip: str, as_of: datetime) -> str:
    if as_of.tzinfo is None:
        raise InvalidInputError(f"the time {as_of} has no zone; give one, such as datetime.UTC")
    for info in ancestors(context.files, tip):
        if info.written_at <= as_of:
            return info.id
    raise SnapshotNotFoundError(
        f"the branch {branch!r} has no snapshot at or before {as_of}; its first is from "
        f"{info.written_at}"
    )
