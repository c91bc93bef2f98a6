"""Which snapshot a person means: by branch, tag, id or time."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from icechunk_arrow.core.ids import check_id
from icechunk_arrow.engine.history import ancestors
from icechunk_arrow.engine.together import together
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError, SnapshotNotFoundError

if TYPE_CHECKING:
    from datetime import datetime

    from icechunk_arrow.engine.catalog import Tip
    from icechunk_arrow.engine.context import Context

__all__ = ["resolve", "tip_to_read"]


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
    tip = tip_to_read(context, branch).snapshot_id
    return tip if as_of is None else _as_of(context, branch, tip, as_of)


def tip_to_read(context: Context, branch: str) -> Tip:
    """Find where a branch stands, for a session.

    From a place that is slow the snapshot at which it last stood is read meanwhile: most often it is the one.
    """
    guess = context.catalog.last_seen(branch)
    if guess is None or context.storage.capabilities.fast:
        tip = context.catalog.get_tip(branch)
    else:
        tip, _ = together(
            context.storage,
            lambda: context.catalog.get_tip(branch),
            lambda: _read_ahead(context, guess),
        )
    tip.check(context.files.read_snapshot(tip.snapshot_id).facts)
    return tip


def _read_ahead(context: Context, snapshot_id: str) -> None:
    """Read a snapshot into the cache; whoever needs it will meet the error, if there is one."""
    with suppress(IcechunkArrowError):
        context.files.read_snapshot(snapshot_id)


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
