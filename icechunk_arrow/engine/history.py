"""The past: ancestors of a snapshot, which snapshot a caller means, and what changed between two.

Each snapshot remembers its nearest ancestors, so a walk reads one file for many steps. It ends: every step goes
back in time and to fewer ancestors, or a file is damaged.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from icechunk_arrow.core.boxes import volume
from icechunk_arrow.core.coords import decode_one
from icechunk_arrow.core.ids import check_id
from icechunk_arrow.core.log import Cleared
from icechunk_arrow.core.snapshot import HISTORY_LENGTH
from icechunk_arrow.engine.sequences import together
from icechunk_arrow.errors import (
    CorruptFileError,
    ForeignSnapshotError,
    IcechunkArrowError,
    InvalidInputError,
    RefNotFoundError,
    RetiredSnapshotError,
    SnapshotNotFoundError,
)
from icechunk_arrow.formats.layout import FileKind, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from icechunk_arrow.core.boxes import Box
    from icechunk_arrow.core.log import BulkWrite, ChunkChanges, NodeName, TransactionLog
    from icechunk_arrow.core.snapshot import Node, SnapshotFacts, SnapshotInfo
    from icechunk_arrow.engine.catalog import Tip
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.files import Files

__all__ = [
    "Diff",
    "ancestors",
    "check_parent",
    "diff_of",
    "find_tip_to_read",
    "full_ancestors",
    "own_tip",
    "resolve",
    "tip_to_read",
    "tip_to_write",
]

_LISTED = 1000
"""Up to so many chunks that fill an extent are listed."""


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
    while current is not None:
        if current in seen:
            key = key_of(FileKind.STRUCTURE, current)
            raise CorruptFileError(
                f"the ledger is damaged: {key} was retired, and its ancestors lead back to it, the ledger says. "
                f"Restore the ledger's files from a copy.",
                key=key,
            )
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


def resolve(
    context: Context,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
) -> str:
    """Find the id of the snapshot that exactly one of these names."""
    names = [n for n, v in (("branch", branch), ("tag", tag), ("snapshot_id", snapshot_id)) if v]
    if len(names) != 1:
        raise InvalidInputError(
            f"name exactly one of branch, tag and snapshot_id, not {' and '.join(names) or 'none'}"
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
    """Read a snapshot into the cache; a reader that needs it will meet the error, if there is one."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Changes between two states of a repository."""

    new_groups: frozenset[str] = frozenset()
    new_arrays: frozenset[str] = frozenset()
    deleted_groups: frozenset[str] = frozenset()
    deleted_arrays: frozenset[str] = frozenset()
    updated_groups: frozenset[str] = frozenset()
    updated_arrays: frozenset[str] = frozenset()
    updated_chunks: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """Chunks that were written or deleted one by one, per array."""
    updated_extents: Mapping[str, tuple[Box, ...]] = field(default_factory=dict)
    """Extents in which many chunks were written at once, per array."""
    moved_nodes: tuple[tuple[str, str], ...] = ()

    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not any(getattr(self, name) for name in self.__slots__)

    def __str__(self) -> str:
        lines = []
        for name in self.__slots__:
            value = getattr(self, name)
            if not value:
                continue
            lines.append(f"{name.replace('_', ' ').capitalize()}:")
            if name == "updated_chunks":
                lines += [f"    {path}: {len(coords)} chunks" for path, coords in value.items()]
            elif name == "updated_extents":
                lines += [f"    {path}: within {list(boxes)}" for path, boxes in value.items()]
            elif name == "moved_nodes":
                lines += [f"    {old} -> {new}" for old, new in value]
            else:
                lines += [f"    {path}" for path in sorted(value)]
        return "\n".join(lines) or "No changes"


def _paths(nodes: Iterable[NodeName], kind: str) -> frozenset[str]:
    return frozenset(node.path for node in nodes if node.type == kind)


def _is_listed(box: BulkWrite | Cleared) -> bool:
    """Whether what was done at once is small enough to be told chunk by chunk."""
    dense = isinstance(box, Cleared) or box.is_dense
    return dense and volume(box.extent) <= _LISTED


def _single_chunks(found: ChunkChanges) -> tuple[tuple[int, ...], ...]:
    single = set(map(decode_one, found.single.to_pylist()))
    for box in filter(_is_listed, found.at_once):
        single.update(product(*(range(start, stop) for start, stop in box.extent)))
    return tuple(sorted(single))


def _extents(found: ChunkChanges) -> tuple[Box, ...]:
    return tuple(box.extent for box in found.at_once if not _is_listed(box))


def diff_of(log: TransactionLog, find_node: Callable[[str], Node | None]) -> Diff:
    """Turn a log into a diff; nodes that are gone by now are left out of the updates."""
    updated = [node for node in log.updated.values() if find_node(node.path) is not None]
    changes = {log.names[node_id].path: change for node_id, change in log.chunks.items()}
    return Diff(
        new_groups=_paths(log.created, "group"),
        new_arrays=_paths(log.created, "array"),
        deleted_groups=_paths(log.deleted, "group"),
        deleted_arrays=_paths(log.deleted, "array"),
        updated_groups=_paths(updated, "group"),
        updated_arrays=_paths(updated, "array"),
        updated_chunks={
            path: chunks
            for path, change in sorted(changes.items())
            if (chunks := _single_chunks(change))
        },
        updated_extents={
            path: extents
            for path, change in sorted(changes.items())
            if (extents := _extents(change))
        },
        moved_nodes=tuple((old, node.path) for node, old in log.moved),
    )
