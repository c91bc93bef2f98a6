"""Which snapshot a person means: by branch, tag, id or time."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from icechunk_arrow.core.ids import check_id
from icechunk_arrow.engine.history import ancestors
from icechunk_arrow.engine.together import together
from icechunk_arrow.errors import (
    ForeignSnapshotError,
    IcechunkArrowError,
    InvalidInputError,
    RefNotFoundError,
    SnapshotNotFoundError,
)

if TYPE_CHECKING:
    from datetime import datetime

    from icechunk_arrow.engine.catalog import Tip
    from icechunk_arrow.engine.context import Context

__all__ = ["find_tip_to_read", "own_tip", "resolve", "tip_to_read", "tip_to_write"]


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
    return own_tip(context, tip)


def find_tip_to_read(context: Context, branch: str) -> Tip | None:
    """Find where a branch stands, or None where there is none."""
    try:
        return tip_to_read(context, branch)
    except RefNotFoundError:
        return None


def own_tip(context: Context, tip: Tip) -> Tip:
    """Go back over entries that name another repository's snapshots, and compare an entry with its snapshot."""
    while True:
        try:
            facts = context.files.read_snapshot(tip.snapshot_id).facts
        except ForeignSnapshotError:
            tip = context.catalog.tip_before(tip)
        else:
            tip.check(facts)
            return tip


def tip_to_write(context: Context, branch: str) -> Tip:
    """Find where a branch stands, for a session that will commit: all settings must be known here."""
    saved = context.saved_config
    if saved.is_known:
        saved.to_write()
        return tip_to_read(context, branch)
    return together(context.storage, lambda: tip_to_read(context, branch), saved.to_write)[0]


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
