"""The catalog that is one state file, replaced by compare-and-swap; and a state file made of branch sequences.

Specification: schemas/README.md#state-file
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from icechunk_arrow.engine.catalog import (
    Catalog,
    Fate,
    Tip,
    branch_not_found,
    conflict,
    refuse_main,
    replaced,
)
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.engine.history import find_tip_to_read, full_ancestors
from icechunk_arrow.engine.small_files import create_small, write_small
from icechunk_arrow.errors import (
    AlreadyExistsError,
    CorruptFileError,
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RepositoryNotFoundError,
    StorageError,
)
from icechunk_arrow.formats import state as state_format
from icechunk_arrow.formats.budget import DECODE_LIMIT_BYTES
from icechunk_arrow.formats.layout import MAIN, STATE_KEY, check_ref_name
from icechunk_arrow.formats.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from icechunk_arrow.core.snapshot import SnapshotInfo
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.storage.port import Storage

__all__ = ["StateCatalog", "export_state", "publish_state", "read_state"]


def _read_versioned(storage: Storage, limit_bytes: int) -> tuple[State, str]:
    try:
        data, token = storage.get_versioned(STATE_KEY, limit_bytes=limit_bytes)
    except ObjectNotFoundError as error:
        raise RepositoryNotFoundError(f"there is no {STATE_KEY} at {storage.url}") from error
    return state_format.decode(data, STATE_KEY, limit_bytes), token


def read_state(storage: Storage, limit_bytes: int = DECODE_LIMIT_BYTES) -> State:
    """Read the state file at a place, whosever it is."""
    return _read_versioned(storage, limit_bytes)[0]


class StateCatalog(Catalog):
    """All branches and tags in ``state.json``, beside the data or apart from it."""

    def __init__(
        self,
        storage: Storage,
        repository: str,
        new_id: Callable[[], str],
        limit_bytes: int = DECODE_LIMIT_BYTES,
    ) -> None:
        self._storage = storage
        self._repository = repository
        self._new_id = new_id
        self._limit_bytes = limit_bytes

    def read(self) -> State:
        """Read the whole state."""
        return self._read()[0]

    def _read(self) -> tuple[State, str]:
        state, token = _read_versioned(self._storage, self._limit_bytes)
        if state.id != self._repository:
            raise replaced(self._storage.url)
        return state, token

    def initialize(self, snapshot: SnapshotInfo, *, store_root: str | None = None) -> None:
        """Write the first state of the repository; ``store_root`` where its data is elsewhere."""
        state = State(
            id=snapshot.id,
            generation=0,
            snapshots=(snapshot,),
            branches={MAIN: snapshot.id},
            store_root=store_root,
            write_id=self._new_id(),
        )
        data = state_format.encode(state)
        if create_small(self._storage, STATE_KEY, data, limit_bytes=self._limit_bytes) != data:
            raise AlreadyExistsError(
                f"there is a state file at {self._storage.url} already; open it, or choose another place"
            )

    def exists(self) -> bool:
        """Whether there is a state file."""
        return self._storage.exists(STATE_KEY)

    def tip_before(self, tip: Tip) -> Tip:
        raise CorruptFileError(
            f"{STATE_KEY} is damaged: the branch {tip.branch!r} points to {tip.snapshot_id}, which is a "
            f"snapshot of another repository",
            key=STATE_KEY,
        )

    def check_identity(self) -> None:
        self.read()

    def confirm(self, tip: Tip) -> None:
        """Nothing: a commit replaces the very state that it has read."""

    def _change(
        self, decide: Callable[[State], State | None], has_effect: Callable[[State], bool]
    ) -> State:
        """Replace the state by what ``decide`` makes of it, as often as others are faster.

        ``decide`` raises where the change is not possible. After a lost answer ``has_effect`` tells whether
        the change is in, whichever writer replaced the file since.
        """
        self._storage.require_writable()
        while True:
            state, token = self._read()
            new = decide(state)
            if new is None:
                return state
            try:
                self._storage.replace(STATE_KEY, state_format.encode(new), token)
            except PreconditionFailedError:
                # another writer, or ourselves with the answer lost and the request sent again
                now = self.read()
                if now.write_id == new.write_id:
                    self._storage.sync()
                    return now
            except StorageError:
                now = self.read()
                if now.write_id != new.write_id and not (
                    now.generation > new.generation and has_effect(now)
                ):
                    raise
                self._storage.sync()  # that it is there does not say that it stays
                return now
            else:
                return new

    def find_tip(self, branch: str) -> Tip | None:
        check_ref_name(branch)
        state = self.read()
        snapshot = state.branches.get(branch)
        if snapshot is None:
            return None
        return Tip(branch=branch, snapshot_id=snapshot, position=state.generation)

    def advance(self, tip: Tip, snapshot: SnapshotInfo) -> Tip:
        def is_in(state: State) -> bool:
            return any(info.id == snapshot.id for info in state.snapshots)

        def decide(state: State) -> State | None:
            if is_in(state):
                return None
            actual = state.branches.get(tip.branch)
            if actual != tip.snapshot_id:
                raise conflict(tip.branch, tip.snapshot_id, actual)
            return state.next(
                self._new_id(),
                snapshots=(*state.snapshots, snapshot),
                branches={**state.branches, tip.branch: snapshot.id},
            )

        state = self._change(decide, is_in)
        self._storage.tidy()
        return Tip(branch=tip.branch, snapshot_id=snapshot.id, position=state.generation)

    def fate_of(self, snapshots: Collection[str], tip: Tip) -> Fate:
        state = self.read()
        made = next((info.id for info in state.snapshots if info.id in snapshots), None)
        stands = state.branches.get(tip.branch) == tip.snapshot_id
        if made is not None:
            self._storage.sync()  # whoever is told of it must be able to rely on it
        return Fate(made=made, is_open=made is None and stands)

    def create_branch(self, name: str, snapshot: SnapshotInfo) -> None:
        check_ref_name(name)

        def decide(state: State) -> State:
            if name in state.branches:
                raise AlreadyExistsError(
                    f"there is a branch {name!r} already; reset_branch moves it, delete_branch ends it"
                )
            return self._with_branch(state, name, snapshot)

        self._change(decide, lambda state: state.branches.get(name) == snapshot.id)

    def _with_branch(self, state: State, name: str, snapshot: SnapshotInfo) -> State:
        known = any(info.id == snapshot.id for info in state.snapshots)
        return state.next(
            self._new_id(),
            snapshots=state.snapshots if known else (*state.snapshots, snapshot),
            branches={**state.branches, name: snapshot.id},
        )

    def reset_branch(self, name: str, snapshot: SnapshotInfo, expected: str | None) -> None:
        def decide(state: State) -> State:
            actual = state.branches.get(name)
            if actual is None:
                raise branch_not_found(name)
            if expected is not None and actual != expected:
                raise conflict(name, expected, actual)
            return self._with_branch(state, name, snapshot)

        self._change(decide, lambda state: state.branches.get(name) == snapshot.id)

    def delete_branch(self, name: str) -> None:
        refuse_main(name)

        def decide(state: State) -> State:
            if name not in state.branches:
                raise branch_not_found(name)
            rest = {n: s for n, s in state.branches.items() if n != name}
            return state.next(self._new_id(), branches=rest)

        self._change(decide, lambda state: name not in state.branches)

    def list_branches(self) -> set[str]:
        return set(self.read().branches)

    def create_tag(self, name: str, snapshot: SnapshotInfo) -> None:
        check_ref_name(name, "tag")

        def decide(state: State) -> State:
            if name in state.withdrawn_tags:
                raise AlreadyExistsError(
                    f"the tag {name!r} was withdrawn, and its name stays reserved; choose another"
                )
            if name in state.tags:
                raise AlreadyExistsError(
                    f"there is a tag {name!r} already, and tags do not move; choose another name"
                )
            known = any(info.id == snapshot.id for info in state.snapshots)
            return state.next(
                self._new_id(),
                snapshots=state.snapshots if known else (*state.snapshots, snapshot),
                tags={**state.tags, name: snapshot.id},
            )

        self._change(decide, lambda state: state.tags.get(name) == snapshot.id)

    def find_tag(self, name: str) -> str | None:
        return self.read().tags.get(check_ref_name(name, "tag"))

    def delete_tag(self, name: str) -> None:
        snapshot = self.get_tag(name)

        def decide(state: State) -> State | None:
            if name in state.withdrawn_tags:
                return None
            return state.next(
                self._new_id(),
                tags={n: s for n, s in state.tags.items() if n != name},
                withdrawn_tags={**state.withdrawn_tags, name: snapshot},
            )

        self._change(decide, lambda state: name in state.withdrawn_tags)

    def list_tags(self) -> set[str]:
        return set(self.read().tags)


def publish_state(storage: Storage, state: State) -> State:
    """Write ``state.json`` for readers that want everything in one read; the branches decide, not it."""
    new = state

    def decide(found: bytes | None) -> bytes:
        nonlocal new
        standing = None if found is None else state_format.decode(found, STATE_KEY)
        if found is not None and standing is not None and standing.write_id == state.write_id:
            new = standing  # the answer was lost behind a success
            return found
        new = state if standing is None else replace(state, generation=standing.generation + 1)
        return state_format.encode(new)

    write_small(storage, STATE_KEY, decide, limit_bytes=DECODE_LIMIT_BYTES)
    return new


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
