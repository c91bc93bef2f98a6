"""What a history is compared with: arrays as dictionaries of chunks, and what a rebase makes of them.

Owns the expectation alone; knows nothing of manifests, files or sessions.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field

__all__ = ["ArrayModel", "Changes", "Model", "Place", "Value", "rebased"]

Place = tuple[int, ...]
Value = bytes | tuple[str, int, int]
"""Bytes of a chunk, or location, offset and length of a virtual one."""


@dataclass
class ArrayModel:
    """An array, which keeps its number wherever it is moved."""

    uid: int
    counts: Place
    """Chunks along each dimension."""
    chunks: dict[Place, Value] = field(default_factory=dict)

    @property
    def places(self) -> list[Place]:
        """Where chunks can be."""
        return list(itertools.product(*map(range, self.counts)))


Model = dict[str, ArrayModel]


@dataclass
class Changes:
    """What a session did since its base, or a commit to its parent."""

    created: dict[int, str] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    moved: dict[int, str] = field(default_factory=dict)
    """Arrays of the base that were moved, with the paths that they had there."""
    resized: dict[int, Place] = field(default_factory=dict)
    """Arrays of the base, with the counts that they had there."""
    kept: dict[int, Place] = field(default_factory=dict)
    """The smallest counts that an array of the base had meanwhile."""
    touched: dict[int, dict[Place, Value | None]] = field(default_factory=dict)

    def of_chunks(self, uid: int) -> bool:
        """Whether chunks of an array were written or deleted, or went with a part of it."""
        return bool(self.touched.get(uid)) or uid in self.kept


def _by_uid(model: Model) -> dict[int, ArrayModel]:
    return {array.uid: array for array in model.values()}


def _conflict(ours: Changes, mine: Model, theirs: Changes) -> bool:
    """Whether changes cannot follow a commit, chunks that both wrote and deletions apart."""
    current = _by_uid(mine)
    paths = {array.uid: path for path, array in mine.items()}
    if theirs.moved or any(paths.get(uid, path) != path for uid, path in ours.moved.items()):
        return True
    changed = {uid for uid, counts in ours.resized.items() if current[uid].counts != counts}
    return (
        bool(set(ours.created.values()) & set(theirs.created.values()))
        or any(uid in changed or ours.of_chunks(uid) for uid in (*theirs.resized, *theirs.deleted))
    )  # fmt: skip


def rebased(
    ours: Changes, mine: Model, theirs: list[Changes], tip: Model, *, keep_ours: bool
) -> Model | None:
    """What a session shows after its changes were put on top of commits; None where that fails.

    Commits are met one after the other: what gives way to one is not in the way of the next. ``ours`` is left
    with the changes that remain.
    """
    if not theirs:
        return mine
    for each in theirs:
        if _conflict(ours, mine, each):
            return None
        if not keep_ours and not _yield(ours, each):
            return None
    found = {path: array for path, array in tip.items() if array.uid not in ours.deleted}
    found = copy.deepcopy(found)
    current = _by_uid(found)
    for path, array in mine.items():
        if array.uid in ours.created:
            found[path] = copy.deepcopy(array)
            continue
        if array.uid not in current:
            continue  # they deleted it
        there = current[array.uid]
        if ours.resized.get(array.uid, array.counts) != array.counts:
            there.counts = array.counts
        kept = ours.kept.get(array.uid)
        if kept is not None:
            there.chunks = {p: v for p, v in there.chunks.items() if _within(p, kept)}
        for place, value in ours.touched.get(array.uid, {}).items():
            if value is None:
                there.chunks.pop(place, None)
            else:
                there.chunks[place] = value
    return found


def _yield(ours: Changes, theirs: Changes) -> bool:
    """Take back what was done to chunks that they touched; False where we cut off some of those."""
    for uid, places in theirs.touched.items():
        kept = ours.kept.get(uid)
        if kept is not None and not all(_within(place, kept) for place in places):
            return False
        own = ours.touched.get(uid, {})
        ours.touched[uid] = {place: own[place] for place in own.keys() - places.keys()}
    for uid, kept in theirs.kept.items():
        own = ours.touched.get(uid, {})
        ours.touched[uid] = {place: value for place, value in own.items() if _within(place, kept)}
    return True


def _within(place: Place, counts: Place) -> bool:
    return all(i < n for i, n in zip(place, counts, strict=True))
