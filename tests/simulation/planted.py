"""Defects to be planted, one for each class of invariant; the simulation has to find every one."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace as changed

from icechunk_arrow.engine import branch_session, catalog, chunk_bytes, commit, forks
from icechunk_arrow.engine.catalog import Fate, SequenceCatalog, Tip, read_entry
from icechunk_arrow.engine.session import BaseSession
from icechunk_arrow.engine.state_catalog import StateCatalog
from icechunk_arrow.errors import AlreadyExistsError
from icechunk_arrow.formats import refs
from icechunk_arrow.formats.layout import tag_key
from icechunk_arrow.formats.refs import RefEntry
from tests.replay import planted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["DEFECTS", "plant"]


def _lost_update(patch: pytest.MonkeyPatch) -> None:
    """Whoever finds the next entry taken takes it for its own."""
    original = catalog.create_entry

    def create_entry(storage: Any, key: str, entry: RefEntry) -> bool:
        original(storage, key, entry)
        return True

    patch.setattr(catalog, "create_entry", create_entry)


def _overrun_state(patch: pytest.MonkeyPatch) -> None:
    """A commit moves its branch in the state file from wherever that stands."""

    def advance(self: Any, tip: Any, snapshot: Any) -> Any:
        def decide(state: Any) -> Any:
            return state.next(
                self._new_id(),
                snapshots=(*state.snapshots, snapshot),
                branches={**state.branches, tip.branch: snapshot.id},
            )

        state = self._change(decide, lambda _: False)
        return Tip(branch=tip.branch, snapshot_id=snapshot.id, position=state.generation)

    patch.setattr(StateCatalog, "advance", advance)


def _missing_sync(patch: pytest.MonkeyPatch) -> None:
    """A commit is made before what it names is durable."""
    patch.setattr(commit, "_make_durable", lambda *_: None)


class _Unsynced:
    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def sync(self) -> None:
        """Nothing."""


def _unsynced_fork(patch: pytest.MonkeyPatch) -> None:
    """A fork says that it synced, and did not."""
    original = forks.write_out

    def write_out(context: Any, *args: Any, **more: Any) -> Any:
        return original(replace(context, storage=_Unsynced(context.storage)), *args, **more)

    patch.setattr("icechunk_arrow.session.write_out", write_out)


def _stale_handle(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks again whether the place is still that of the repository."""
    patch.setattr(SequenceCatalog, "confirm", lambda *_: None)


def _gap(patch: pytest.MonkeyPatch) -> None:
    """A commit after another one of the same handle skips a number."""
    original = SequenceCatalog.advance

    def advance(self: Any, tip: Any, snapshot: Any) -> Any:
        skipped = self._made.get(tip.branch) == tip.position
        return original(self, changed(tip, position=tip.position + 1) if skipped else tip, snapshot)

    patch.setattr(SequenceCatalog, "advance", advance)


def _entry_first(patch: pytest.MonkeyPatch) -> None:
    """The entry is created before the files that it leads to."""
    write_files, publish = vars(commit)["_write_files"], commit.publish
    waiting: list[Any] = []

    def late(context: Any, tip: Any, finished: Any) -> Any:
        new = publish(context, tip, finished)
        write_files(context, finished.files)
        return new

    def write(context: Any, tip: Any, planned: Any, pending: Any = None) -> Any:
        finished = vars(commit)["_finish"](context, planned)
        context.catalog.confirm(tip)
        if pending is not None:
            pending.finish()
        waiting.append(finished)
        return finished

    patch.setattr(commit, "write", write)
    patch.setattr(commit, "publish", late)


def _moving_reader(patch: pytest.MonkeyPatch) -> None:
    """A reader reads chunks where the branch stands now."""
    original = BaseSession.find_chunk

    def find_chunk(self: Any, view: Any, coord: Any) -> Any:
        if self.read_only and not hasattr(self, "_forked_at"):
            tip = self._context.catalog.find_tip("main")
            newest = self._context.files.read_snapshot(tip.snapshot_id)
            view = changed(view, node=newest.find_node_by_id(view.node.id) or view.node)
        return original(self, view, coord)

    patch.setattr(BaseSession, "find_chunk", find_chunk)


def _forgotten_attempts(patch: pytest.MonkeyPatch) -> None:
    """After an error nobody looks whether the commit was made."""

    def create_entry(storage: Any, key: str, entry: RefEntry) -> bool:
        if not entry.is_commit:
            entry = changed(entry, key=key)
        try:
            storage.create(key, refs.encode(entry))
        except AlreadyExistsError:
            return False
        return True

    patch.setattr(catalog, "create_entry", create_entry)
    for each in (SequenceCatalog, StateCatalog):
        patch.setattr(each, "fate_of", lambda *_: Fate(made=None, is_open=False))


def _impatience(patch: pytest.MonkeyPatch) -> None:
    """What has not arrived when somebody looks never will."""
    for each in (SequenceCatalog, StateCatalog):
        original: Callable[..., Fate] = each.fate_of

        def fate_of(self: Any, *args: Any, original: Callable[..., Fate] = original) -> Fate:
            return original(self, *args)._replace(is_open=False)

        patch.setattr(each, "fate_of", fate_of)


def _trusted_clock(patch: pytest.MonkeyPatch) -> None:
    """A commit has the time of its writer's clock, whatever time its parent has."""
    patch.setattr(commit, "max", lambda first, *_: first, raising=False)


def _unchecked_bytes(patch: pytest.MonkeyPatch) -> None:
    """What comes of a chunk file is given out as it is."""

    def read(self: Any, ref: Any, start: int, stop: int) -> Any:
        return vars(chunk_bytes.ChunkBytes)["_read"](self, ref, start, stop - start)

    patch.setattr(chunk_bytes.ChunkBytes, "read", read)


def _old_tip(patch: pytest.MonkeyPatch) -> None:
    """A handle does not look again where a branch stands."""
    original = vars(SequenceCatalog)["_find_newest"]

    def find_newest(self: Any, branch: str) -> Any:
        return self._seen.get(branch) or original(self, branch)

    patch.setattr(SequenceCatalog, "_find_newest", find_newest)


def _moving_tag(patch: pytest.MonkeyPatch) -> None:
    """A tag that is there is made again."""

    def create_tag(self: Any, name: str, snapshot: Any) -> None:
        key = tag_key(name)
        entry = RefEntry(snapshot=snapshot.id, write_id=self._new_id(), key=key)
        self._storage.overwrite(key, refs.encode(entry))

    patch.setattr(SequenceCatalog, "create_tag", create_tag)


def _careless_reset(patch: pytest.MonkeyPatch) -> None:
    """A reset does not compare what it expects with where the branch stands."""
    original = vars(SequenceCatalog)["_append"]

    def append(self: Any, name: str, snapshot_id: Any, *, expected: Any, deleted: bool) -> None:
        original(self, name, snapshot_id, expected=None, deleted=deleted)

    patch.setattr(SequenceCatalog, "_append", append)


def _raw_error(patch: pytest.MonkeyPatch) -> None:
    """An entry that is cut off is an error of the JSON library."""
    original = read_entry

    def read(storage: Any, key: str) -> RefEntry:
        data = storage.get(key, limit_bytes=refs.MOST_BYTES)
        if not data.endswith(b"}"):
            raise ValueError(data)
        return original(storage, key)

    patch.setattr(catalog, "read_entry", read)


def _unseen_conflicts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(branch_session, "conflicts", lambda *_: ())


DEFECTS = {
    "lost update": _lost_update,
    "overrun state": _overrun_state,
    "missing sync": _missing_sync,
    "unsynced fork": _unsynced_fork,
    "stale handle": _stale_handle,
    "gap": _gap,
    "entry first": _entry_first,
    "moving reader": _moving_reader,
    "forgotten attempts": _forgotten_attempts,
    "impatience": _impatience,
    "trusted clock": _trusted_clock,
    "unchecked bytes": _unchecked_bytes,
    "old tip": _old_tip,
    "moving tag": _moving_tag,
    "careless reset": _careless_reset,
    "raw error": _raw_error,
    "unseen conflicts": _unseen_conflicts,
    "reused ids": planted.DEFECTS["reused ids"],
    "forgotten rows": planted.DEFECTS["forgotten rows"],
}


@contextmanager
def plant(name: str) -> Iterator[None]:
    """Plant a defect for a while; none, if it has no name."""
    with pytest.MonkeyPatch.context() as patch:
        if name:
            DEFECTS[name](patch)
        yield
