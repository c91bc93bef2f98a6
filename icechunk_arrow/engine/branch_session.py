"""A session on a branch: what changes in it becomes the branch's next snapshot, in one commit.

Owns what is known of the branch, commits that were cut short, and putting changes on top of commits that the
session has not seen (``Rebase``): commits in between are read, the pure conflict rules asked, and the changes
moved over. What a commit writes is the plan's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec.structs import replace

from icechunk_arrow.core.columns import from_numpy, one_array, to_numpy
from icechunk_arrow.core.conflict import (
    chunks_of,
    conflicts,
    cuts_off,
    given_way,
    sparse_writes,
    to_be_read,
)
from icechunk_arrow.core.documents import parse_document
from icechunk_arrow.core.inventory import NO_INVENTORY
from icechunk_arrow.core.keys import node_path
from icechunk_arrow.engine import commit as committing
from icechunk_arrow.engine.catalog import conflict
from icechunk_arrow.engine.changes import in_columns
from icechunk_arrow.engine.commit import check_message
from icechunk_arrow.engine.history import ancestors, own_tip
from icechunk_arrow.engine.merging import merge
from icechunk_arrow.engine.plan import UNCOMMITTED
from icechunk_arrow.engine.session import BaseSession
from icechunk_arrow.engine.staging import check_node_id
from icechunk_arrow.errors import (
    ConflictError,
    CorruptFileError,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    RebaseFailedError,
    StorageError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from icechunk_arrow.core.chunk_set import ChunkSet
    from icechunk_arrow.core.conflict import Conflict, ConflictSolver
    from icechunk_arrow.core.log import ChunkChanges, TransactionLog
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.catalog import Tip
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.staging import Staging

__all__ = ["BranchSession", "Rebase"]


class Rebase:
    """Staged changes on their way from where a session began to where its branch is now.

    What is given is not touched: an interrupt leaves it as it was.
    """

    def __init__(
        self,
        context: Context,
        staging: Staging,
        log_of: Callable[[Staging], TransactionLog],
    ) -> None:
        self._context = context
        self._log_of = log_of
        self.staging = staging
        """The changes as far as they were moved: on the last commit with which they do not conflict."""

    def run(self, tip: Tip, solver: ConflictSolver | None) -> Tip:
        """Move them as far as possible from where their branch stood; give where it is.

        Without a solver they only place chunks elsewhere, and give way to whatever was done.
        """
        context, base_id = self._context, self.staging.base.id
        new_tip = own_tip(context, context.catalog.get_tip(tip.branch))
        if new_tip.snapshot_id == base_id:
            return new_tip
        passed = _commits_between(context, base_id, new_tip)
        staging = self.staging = self.staging.copy()
        for snapshot_id in passed:
            theirs = context.files.read_log(snapshot_id)
            if solver is None:
                _give_way(context, staging, theirs)
            else:
                _settle(context, staging, solver, self._log_of(staging), theirs, snapshot_id)
            _move_over(staging, context.files.read_snapshot(snapshot_id))
        return new_tip


def _commits_between(context: Context, base_id: str, tip: Tip) -> list[str]:
    """Commits after the base, oldest first."""
    ids: list[str] = []
    for info in ancestors(context.files, tip.snapshot_id):
        if info.id == base_id:
            return ids[::-1]
        ids.append(info.id)
    raise ConflictError(
        f"the branch {tip.branch!r} was reset: {base_id}, where this session began, is not in its "
        f"history any more. Open a new session and make the changes again.",
        expected_parent=base_id,
        actual_parent=tip.snapshot_id,
    )


def _chunks_of(context: Context, node_id: int, theirs: ChunkChanges) -> ChunkSet:
    """Tell which chunks of an array a commit touched; manifests with holes are read."""
    names = {bulk.manifest for bulk in sparse_writes(theirs)}
    return chunks_of(theirs, {name: _coords_in(context, node_id, name) for name in names})


def _coords_in(context: Context, node_id: int, manifest: str) -> pa.Array:
    """Read which chunks of an array a manifest has."""
    table = context.files.read_manifest(manifest)
    mine = from_numpy(to_numpy(table["array_id"]) == node_id, pa.bool_())
    return one_array(table["coord"]).filter(mine)


def _give_way(context: Context, staging: Staging, theirs: TransactionLog) -> None:
    """Take back what was placed elsewhere of all that a commit touched."""
    for node_id, staged in list(staging.arrays.items()):
        changes = given_way(node_id, theirs)
        if changes is not None:
            merge(context, staged, node_id, without=_chunks_of(context, node_id, changes))
        if changes is None or staged.is_empty:
            del staging.arrays[node_id]


def _settle(
    context: Context,
    staging: Staging,
    solver: ConflictSolver,
    ours: TransactionLog,
    theirs: TransactionLog,
    snapshot_id: str,
) -> None:
    known = {}
    for node_id, bulk in to_be_read(ours, theirs):
        if bulk.manifest == UNCOMMITTED:
            coords = in_columns({node_id: staging.arrays[node_id]}).written.coords
        else:
            coords = _coords_in(context, node_id, bulk.manifest)
        known[node_id, bulk.manifest] = coords
    clashes = conflicts(ours, theirs, known)
    resolution = solver.solve(clashes)
    # what was cut off as a whole cannot be given back in parts
    lost = {i for i in resolution.drop_chunks_of if cuts_off(ours.chunks[i], theirs.chunks[i])}
    unsolved = (*resolution.unsolved, *(each for each in clashes if each.node_id in lost))
    if unsolved:
        raise RebaseFailedError(
            f"the changes cannot follow commit {snapshot_id}: "
            + "; ".join(map(_in_words, unsolved[:5]))
            + (f"; and {len(unsolved) - 5} more" if len(unsolved) > 5 else "")
            + ". See .conflicts; BasicConflictSolver settles some kinds.",
            snapshot=snapshot_id,
            conflicts=unsolved,
        )
    for node_id in resolution.drop_chunks_of:
        changed = _chunks_of(context, node_id, theirs.chunks[node_id])
        merge(context, staging.arrays[node_id], node_id, without=changed)


def _in_words(conflict: Conflict) -> str:
    chunks = "" if conflict.chunk_count is None else f" ({conflict.chunk_count} chunks)"
    return f"{conflict.conflict_type.name} at {conflict.path!r}{chunks}"


def _move_over(staging: Staging, base: Snapshot) -> None:
    """Make another snapshot the base of staged changes that do not conflict with it."""
    old = staging.base
    renumbered: dict[int, int] = {}
    next_id = max(base.facts.next_node_id, staging.next_node_id)
    for path, node in list(staging.overlay.items()):
        if node is None:
            there = base.find_node(path)
            if there is None or there.id not in old.rows_by_id:
                del staging.overlay[path]  # they deleted it too, and perhaps made another one
            continue
        if node.id in old.rows_by_id:
            current = base.find_node_by_id(node.id)
            if current is None:  # nothing is left of our changes, or they would be a conflict
                del staging.overlay[path]
                continue
            staging.overlay[path] = replace(node, inventories=current.inventories)
        elif node.id in base.rows_by_id or node.id < base.facts.next_node_id:
            check_node_id(next_id, path)
            renumbered[node.id] = next_id
            staging.overlay[path] = replace(node, id=next_id, inventories=NO_INVENTORY)
            next_id += 1
    staging.arrays = {
        renumbered.get(node_id, node_id): staged for node_id, staged in staging.arrays.items()
    }
    staging.next_node_id = next_id
    staging.views.clear()
    staging.base = base


class BranchSession(BaseSession):
    """Reads one snapshot; on a branch, also makes nodes and commits all changes. A read-only session pickles."""

    def __init__(self, context: Context, snapshot_id: str, tip: Tip | None = None) -> None:
        self._tip = tip
        self._attempts: tuple[str, ...] = ()
        """Snapshots that were to be the next on the tip, and of which it is not known whether they are."""
        self._unacknowledged: str | None = None
        """The commit that was made, until :meth:`commit` has given its id."""
        super().__init__(context, snapshot_id)

    def __getstate__(self) -> dict[str, Any]:
        if not self.read_only:
            raise ReadOnlyError(
                "a writable session cannot be pickled: its changes would be lost in the copy. Commit "
                "first, pickle a read-only session, or write from threads of this process."
            )
        return {"context": self._context, "snapshot_id": self.snapshot_id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["context"], state["snapshot_id"])  # type: ignore[misc]

    def __repr__(self) -> str:
        if self._is_copy:
            return f"<Session copied by a fork {self._context.storage.url}>"
        tip, staging = self._tip, self._staging  # as they are: showing a session sends no request
        where = f"snapshot {staging.base.id!r}"
        if tip is not None:
            where = f"branch {tip.branch!r} at {where}"
        state = "read-only" if tip is None else "writable"
        changed = "" if staging.is_empty else ", uncommitted changes"
        if self._attempts:
            changed = ", a commit that was cut short"
        return f"<Session {state} {self._context.storage.url} {where}{changed}>"

    @property
    def branch(self) -> str | None:
        """The branch that a commit goes to; None when read-only."""
        self._find_out()
        return None if self._tip is None else self._tip.branch

    @property
    def read_only(self) -> bool:
        """Whether this session can only read."""
        self._find_out()
        return self._tip is None

    @property
    def _is_writer(self) -> bool:
        return self._tip is not None

    def _check_writable(self) -> None:
        if self._find_out():
            raise StorageError(
                "a commit of this session was cut short, and what it sent may still arrive, so that nothing "
                "can be added to it: call commit() again, which makes it or finds it made, or open a new session"
            )
        self._get_tip()

    def _get_tip(self) -> Tip:
        self._refuse_copy()
        if self._tip is None:
            raise ReadOnlyError(
                "this session is read-only; repo.writable_session(branch) gives one that writes "
                "(after a commit, too: a session commits once)"
            )
        return self._tip

    def _find_out(self) -> bool:
        """Learn what became of commits that were cut short; whether one of them may still arrive."""
        if not self._attempts or self._is_copy:
            return False
        with self._lock:
            if self._tip is None:  # one was made, and learning that was cut short
                self._attempts = ()
            elif self._attempts:
                fate = self._context.catalog.fate_of(self._attempts, self._tip)
                if fate.made is not None:
                    self._become(self._context.files.read_snapshot(fate.made))
                elif not (fate.is_open and self._context.storage.capabilities.lingering):
                    self._attempts = ()
            return bool(self._attempts)

    def _become(self, snapshot: Snapshot) -> None:
        """Stand on the commit that was made. Done again from the start where an interrupt comes between."""
        self._unacknowledged = snapshot.id
        self._begin(snapshot)
        self._tip = None
        self._attempts = ()

    # -- nodes

    def set_document(self, path: str, data: bytes) -> None:
        """Create a node, or replace its document."""
        document = parse_document(data, path=path)
        with self._lock:
            self._check_writable()
            self._staging.set_document(path, document, self.attributes_of)
            self._forget(path)

    def _forget(self, path: str) -> None:
        self._staging.views.pop(path, None)

    def delete_nodes(self, paths: Sequence[Any]) -> None:
        """Remove nodes with all their chunks."""
        with self._lock:
            self._check_writable()
            for path in map(node_path, paths):
                self._staging.delete_node(path)
                self._forget(path)

    def move(self, from_path: Any, to_path: str) -> None:
        """Give a node, and all below it, another path; chunks stay where they are."""
        from_path, to_path = node_path(from_path), node_path(to_path)
        with self._lock:
            self._check_writable()
            if self.find_node(from_path) is None:
                raise NodeNotFoundError(f"there is no node {from_path!r} to move", path=from_path)
            self._staging.move_node(from_path, to_path)
            self._staging.views.clear()

    # -- commit

    def place_only(self) -> None:
        """Say that every reference staged here names the bytes that the chunk has already.

        Such a commit changes no value, so it gives way to whatever others do.
        """
        self._is_placement = True

    def commit(
        self,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        allow_empty: bool = False,
    ) -> str:
        """Make the changes the branch's next snapshot, and give its id; then the session is read-only.

        After an interrupt, or an error that leaves open whether the commit was made, it can be called again: where
        the first call made the commit, with its own message, that one's id is given.

        Raises
        ------
        ConflictError
            The branch has moved; the changes are kept, to be rebased.
        RebaseFailedError
            With ``rebase_with``: another session changed the same things.
        InvalidInputError
            Nothing was changed, and ``allow_empty`` is False.
        """
        with self._lock:
            self._find_out()
            if self._unacknowledged is None:
                self._get_tip()
                if self._staging.is_empty and not allow_empty:
                    raise InvalidInputError(
                        "there are no changes to commit; allow_empty=True makes a snapshot all the same"
                    )
                check_message(message, metadata)
            tries = 0
            while self._unacknowledged is None:
                try:
                    self._commit_once(message, metadata or {})
                except CorruptFileError:
                    self._context.catalog.check_identity()  # no damage, if it is another repository's
                    raise
                except ConflictError:
                    self._find_out()
                    if self._unacknowledged is not None:
                        break  # it lost to an earlier attempt of this very session
                    tries += 1
                    if rebase_with is None or tries > rebase_tries:
                        raise
                    self.rebase(rebase_with)
            snapshot_id, self._unacknowledged = self._unacknowledged, None
            return snapshot_id

    def _commit_once(self, message: str, metadata: Mapping[str, Any]) -> None:
        tip = self._get_tip()
        base = self._staging.base.id
        if (
            base != tip.snapshot_id
        ):  # a rebase came as far as there; a reset may bring the old tip back
            raise conflict(tip.branch, base, self._context.catalog.get_tip(tip.branch).snapshot_id)
        changes = self._changes_of(self._staging, self._writer)
        pending = changes.chunks.pending
        try:
            planned = committing.plan(
                self._context,
                tip,
                self._staging.base,
                changes,
                message=message,
                properties=metadata,
                started_at=self._started_at,
            )
            finished = committing.write(self._context, tip, planned, pending)
            self._refuse_copy()
            self._attempts = (*self._attempts, finished.snapshot.id)
            committing.publish(self._context, tip, finished)
        except BaseException:
            if not self._is_copy and pending is not None and pending.is_written():  # once is enough
                pending.take_over(self._staging.arrays)
                self._waiting_bytes = 0
            raise
        self._refuse_copy()
        self._become(finished.snapshot)

    def rebase(self, solver: ConflictSolver) -> None:
        """Put the changes on top of what the branch has become.

        Raises
        ------
        RebaseFailedError
            A commit changed the same things, and the solver did not settle it.
        """
        with self._lock:
            self._check_writable()
            self._write_waiting()
            moved = Rebase(self._context, self._staging, self._log_of)
            try:
                tip = moved.run(self._get_tip(), None if self._is_placement else solver)
            except RebaseFailedError:
                self._staging = moved.staging  # it stands on the last commit that made no conflict
                raise
            # in this order: changes on an old base must never meet a newer tip
            self._staging = moved.staging
            self._tip = tip
