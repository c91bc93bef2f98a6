"""Walking from a snapshot to its ancestors.

Each snapshot remembers its nearest ancestors, so a walk reads one file for many steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_arrow.core.snapshot import HISTORY_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icechunk_arrow.core.snapshot import SnapshotInfo
    from icechunk_arrow.engine.files import Files

__all__ = ["ancestors", "full_ancestors"]


def ancestors(files: Files, snapshot_id: str) -> Iterator[SnapshotInfo]:
    """Give a snapshot and all before it, newest first; ancestors come without their metadata."""
    facts = files.read_facts(snapshot_id)
    yield facts.info
    while facts.history:
        full = len(facts.history) == HISTORY_LENGTH
        yield from facts.history[:-1] if full else facts.history
        if not full:
            return
        facts = files.read_facts(facts.history[-1].id)
        yield facts.info


def full_ancestors(files: Files, snapshot_id: str) -> Iterator[SnapshotInfo]:
    """Give a snapshot and all before it, newest first, each with its metadata."""
    current: str | None = snapshot_id
    while current is not None:
        info = files.read_facts(current).info
        yield info
        current = info.parent_id
