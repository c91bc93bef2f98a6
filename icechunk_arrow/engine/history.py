"""Walking from a snapshot to its ancestors.

Each snapshot remembers its nearest ancestors, so a walk reads one file for many steps. It ends: every step goes
back in time and to fewer ancestors, or a file is damaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_arrow.core.snapshot import HISTORY_LENGTH
from icechunk_arrow.errors import CorruptFileError, RetiredSnapshotError
from icechunk_arrow.formats.layout import FileKind, key_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icechunk_arrow.core.snapshot import SnapshotFacts, SnapshotInfo
    from icechunk_arrow.engine.files import Files

__all__ = ["ancestors", "check_parent", "full_ancestors"]


def ancestors(files: Files, snapshot_id: str) -> Iterator[SnapshotInfo]:
    """Give a snapshot and all before it, newest first; ancestors come without their metadata."""
    facts = files.read_facts(snapshot_id)
    yield facts.info
    while facts.history:
        full = len(facts.history) == HISTORY_LENGTH
        yield from facts.history[:-1] if full else facts.history
        if not full:
            return
        before = _read_kept(files, facts.history[-1].id)
        if before is None:
            return
        check_ancestor(facts, before, len(facts.history))
        facts = before
        yield facts.info


def full_ancestors(files: Files, snapshot_id: str) -> Iterator[SnapshotInfo]:
    """Give a snapshot and all before it, newest first, each with its metadata."""
    facts = files.read_facts(snapshot_id)
    yield facts.info
    while facts.history:
        before = _read_kept(files, facts.history[0].id)
        if before is None:
            return
        check_ancestor(facts, before, 1)
        facts = before
        yield facts.info


def _read_kept(files: Files, snapshot_id: str) -> SnapshotFacts | None:
    """Read the facts of a snapshot, or of the nearest one before it that is not retired; None where none is."""
    seen: set[str] = set()
    current: str | None = snapshot_id
    while current is not None and current not in seen:
        seen.add(current)
        try:
            return files.read_facts(current)
        except RetiredSnapshotError as error:
            current = error.parent_id
    return None


def check_parent(facts: SnapshotFacts, parent: SnapshotFacts) -> None:
    """Check that a snapshot is the parent that another one names, and can be.

    Raises
    ------
    CorruptFileError
        It is not.
    """
    if facts.parent_id != parent.id:
        key = key_of(FileKind.STRUCTURE, facts.id)
        raise CorruptFileError(
            f"{key} is damaged: it names the ancestor {facts.parent_id}, and a later snapshot names {parent.id} in "
            f"that place. Restore the file from a copy.",
            key=key,
        )
    check_ancestor(facts, parent, 1)


def check_ancestor(facts: SnapshotFacts, before: SnapshotFacts, steps: int) -> None:
    """Check that a snapshot can be the ancestor of another one, so many steps back: else a walk may never end.

    Raises
    ------
    CorruptFileError
        It has more ancestors than that leaves room for, or is not older.
    """
    if before.total_parents > facts.total_parents - steps or before.written_at >= facts.written_at:
        key, other = key_of(FileKind.STRUCTURE, facts.id), key_of(FileKind.STRUCTURE, before.id)
        raise CorruptFileError(
            f"{key} or {other} is damaged: the second cannot be the ancestor of the first, {steps} before it. They "
            f"say that they were written at {facts.written_at} and {before.written_at}, with {facts.total_parents} "
            f"and {before.total_parents} ancestors. Restore the files from a copy.",
            key=key,
        )
