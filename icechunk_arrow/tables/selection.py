"""Which snapshot a caller means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from icechunk_arrow.core.ids import is_id
from icechunk_arrow.engine.history import find_tip_to_read, resolve
from icechunk_arrow.errors import InvalidInputError, RefNotFoundError, SnapshotNotFoundError
from icechunk_arrow.formats.layout import MAIN

if TYPE_CHECKING:
    from datetime import datetime

    from icechunk_arrow.engine.context import Context

__all__ = ["Selection", "Which", "find_earlier", "find_named"]


class Which(TypedDict, total=False):
    """The words for a snapshot, wherever one is attached: those of :class:`Selection`."""

    branch: str | None
    tag: str | None
    snapshot_id: str | None
    as_of: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A branch, as of a time or as it stands, or a tag, or a snapshot; ``main`` if nothing is named."""

    branch: str | None = None
    tag: str | None = None
    snapshot_id: str | None = None
    as_of: datetime | None = None

    def resolve(self, context: Context) -> str:
        """Find the id of the snapshot in one repository."""
        named = (self.branch, self.tag, self.snapshot_id) != (None, None, None)
        snapshot_id = resolve(
            context,
            branch=self.branch if named else MAIN,
            tag=self.tag,
            snapshot_id=self.snapshot_id,
            as_of=self.as_of,
        )
        context.files.read_snapshot(snapshot_id)
        return snapshot_id


def find_earlier(context: Context, snapshot_id: str, since: str | None) -> str:
    """Find the snapshot that ``changes`` compares with: the one named, else the parent, else itself."""
    if since is not None:
        return find_named(context, since)
    return context.files.read_snapshot(snapshot_id).facts.parent_id or snapshot_id


def find_named(context: Context, name: str) -> str:
    """Find the snapshot that a single word names: its id, or a branch, or a tag."""
    if is_id(name):
        try:
            return context.files.read_snapshot(name).id
        except SnapshotNotFoundError:
            pass
    try:
        tip = find_tip_to_read(context, name)
        snapshot_id = context.catalog.find_tag(name) if tip is None else tip.snapshot_id
    except InvalidInputError:
        snapshot_id = None
    if snapshot_id is None:
        raise RefNotFoundError(f"{name!r} is no snapshot, branch or tag of {context.storage.url}")
    return snapshot_id
