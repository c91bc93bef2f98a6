"""A session on a branch: what changes in it becomes the branch's next snapshot, in one commit.

Owns what is known of the branch and of commits that were cut short. What a commit writes is the plan's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icechunk_arrow.core.documents import parse_document
from icechunk_arrow.engine import commit as committing
from icechunk_arrow.engine.commit import check_message
from icechunk_arrow.engine.rebase import Rebase
from icechunk_arrow.engine.session import BaseSession
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
    from collections.abc import Mapping, Sequence

    from icechunk_arrow.core.conflict import ConflictSolver
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.catalog import Tip
    from icechunk_arrow.engine.context import Context

__all__ = ["BranchSession"]


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
        tip, staging = self._tip, self._staging  # asked nobody: showing a session sends no request
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

    def delete_nodes(self, paths: Sequence[str]) -> None:
        """Remove nodes with all their chunks."""
        with self._lock:
            self._check_writable()
            for path in paths:
                self._staging.delete_node(path)
                self._forget(path)

    def move(self, from_path: str, to_path: str) -> None:
        """Give a node, and all below it, another path; chunks stay where they are."""
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
            With ``rebase_with``: somebody changed the same things.
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
            self._attempts = (*self._attempts, finished.snapshot.id)
            committing.publish(self._context, tip, finished)
        except BaseException:
            if pending is not None and pending.is_written():  # once is enough
                pending.take_over(self._staging.arrays)
                self._waiting_bytes = 0
            raise
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
